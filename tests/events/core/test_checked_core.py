"""A user's core behind its checks: types, versions, keys, what is evolved, and whose fault an error is."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import (
    CommandRejected,
    CoreFailed,
    Effect,
    Event,
    KeyedCommand,
    KeyedEvent,
    PureCore,
    Recorded,
    State,
    WaitUntil,
)
from refold.events.core.checked_core import CheckedCore
from refold.events.core.cleaning import Unrecordable
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.pure_core import Plan, evolve_all, plan, replan
from refold.events.core.records import StoredEvent


class Add(KeyedCommand, frozen=True, kw_only=True):
    amount: Any = 1


class AddLater(KeyedCommand, frozen=True, kw_only=True, omit_defaults=True):
    amount: Any = 1


class Added(KeyedEvent, frozen=True, kw_only=True, tag="sum.added.v1"):
    amount: float


class Halved(Event, frozen=True, kw_only=True, tag="sum.halved.v1"):
    rest: float
    note: dict[str, Any] = {}


class Foreign(Event, frozen=True, kw_only=True, tag="foreign.v1"):
    pass


class Sum(State):
    total: float = 0
    seen: list[int] = []
    notes: dict[str, Any] = {}


class Adder(PureCore[Sum, Add | AddLater, Added | Halved]):
    def admit(self, state: Sum, command: Add | AddLater) -> Added | Halved | Recorded:
        if command.amount == 0:
            return Recorded(0)
        if command.amount == "half":
            return Halved(rest=state.total / 2)
        return Added(amount=command.amount)

    def evolve(self, state: Sum, event: Added | Halved) -> Sum:
        state.seen.append(state.version)
        match event:
            case Added(amount=amount):
                state.total += amount
            case Halved(rest=rest, note=note):
                state.total = rest
                state.notes = note
                state.notes["by"] = "the state"
        return state

    def react(self, state: Sum, event: Added | Halved) -> list[Added | Halved]:
        if isinstance(event, Added) and event.amount > 100:
            return [Halved(rest=event.amount)]
        return []


def planned(core: CheckedCore[Any, Any, Any], command: object, state: Any = None) -> Plan[Any, Any]:
    made = plan(core, core.initial() if state is None else state, command, at=7)
    assert isinstance(made, Plan)
    return made


def through_the_log(core: CheckedCore[Any, Any, Any], events: tuple[Any, ...]) -> list[Any]:
    return core.codec.decode_all(
        StoredEvent(position=n, stream="sum/a", version=n, batch=1, at=event.at, data=core.codec.encode(event))  # type: ignore[arg-type]
        for n, event in enumerate(events, 1)
    )


def test_versions_are_counted_and_are_those_of_the_event_that_is_evolved() -> None:
    core = CheckedCore(Adder)
    made = planned(core, Add(amount=1000))
    assert (made.state.version, made.state.seen, core.version(made.state)) == (2, [1, 2], 2)
    assert [event.at for event in made.events] == [7, 7]


def test_what_is_evolved_is_what_the_log_gives_back() -> None:
    core = CheckedCore(Adder)
    made = planned(core, Add(amount=1000))  # An int where the event says float.
    assert type(made.events[0].amount) is float
    assert type(made.state.total) is float
    folded = evolve_all(core, through_the_log(core, made.events))
    assert msgspec.json.encode(folded) == msgspec.json.encode(made.state)
    again = replan(core, core.initial(), through_the_log(core, made.events)[0], at=7)
    assert msgspec.json.encode(again.events) == msgspec.json.encode(made.events)


def test_a_state_that_changes_a_part_of_an_event_does_not_change_the_event() -> None:
    core = CheckedCore(Adder)
    made = planned(core, Add(amount="half"))
    assert made.state.notes == {"by": "the state"}
    assert made.events[0].note == {}


@given(st.lists(st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False, width=32))))
def test_a_life_of_any_amounts_is_folded_to_the_live_state(amounts: list[float]) -> None:
    core = CheckedCore(Adder)
    state, events = core.initial(), list[Any]()
    for amount in amounts:
        made = plan(core, state, Add(amount=amount), at=7)
        if isinstance(made, Plan):
            state = made.state
            events += made.events
    folded = evolve_all(core, through_the_log(core, tuple(events)))
    assert msgspec.json.encode(folded) == msgspec.json.encode(state)


@pytest.mark.parametrize("amount", [float("nan"), "three", None, 2**70, {1, 2}, object()])
def test_what_cannot_be_recorded_is_a_refusal(amount: object) -> None:
    with pytest.raises(Unrecordable):
        planned(CheckedCore(Adder), Add(amount=amount))


# Keys


def test_the_same_key_gets_the_first_outcome_and_another_command_under_it_is_refused() -> None:
    core = CheckedCore(Adder)
    state = planned(core, Add(amount=5, key="a")).state
    state = planned(core, Add(amount=5), state).state
    assert plan(core, state, Add(amount=5, key="a"), at=8) == Recorded(1)
    for other in (Add(amount=6, key="a"), AddLater(amount=5, key="a")):
        with pytest.raises(CommandRejected, match="the key 'a' was used for another command, at version 1"):
            plan(core, state, other, at=8)
    assert (state.total, state.version) == (10, 2)


def test_a_key_survives_a_field_that_is_added_to_its_command_with_a_default() -> None:
    class Grown(KeyedCommand, frozen=True, kw_only=True):
        amount: Any = 1
        unit: str = "piece"

    Grown.__name__ = "Add"
    core = CheckedCore(Adder)
    state = planned(core, Add(amount=5, key="a")).state
    grown: Any = Grown(amount=5, key="a")
    assert plan(core, state, grown, at=8) == Recorded(1)


def test_a_key_on_a_command_whose_event_has_no_place_for_it_is_a_fault_of_the_core() -> None:
    with pytest.raises(CoreFailed, match="makes a Halved of a Add with a key; derive Halved from KeyedEvent"):
        planned(CheckedCore(Adder), Add(amount="half", key="a"))


@pytest.mark.parametrize("amount", [{1}, object(), float("nan")])
def test_a_keyed_command_that_is_no_plain_data_is_refused(amount: object) -> None:
    with pytest.raises(CommandRejected):
        planned(CheckedCore(Adder), Add(amount=amount, key="a"))


# States that are replaced, and states that are not what they should be


class Replaced(State):
    total: float = 0
    versions: tuple[int, ...] = ()


class Replacer(PureCore[Replaced, Add, Added]):
    def admit(self, state: Replaced, command: Add) -> Added:
        return Added(amount=command.amount)

    def evolve(self, state: Replaced, event: Added) -> Replaced:
        return msgspec.structs.replace(
            state, total=state.total + event.amount, versions=(*state.versions, state.version)
        )


def test_a_state_that_is_replaced_has_its_versions_counted_too() -> None:
    core = CheckedCore(Replacer)
    first = planned(core, Add(amount=1, key="a"))
    second = planned(core, Add(amount=2), first.state)
    assert second.state.versions == (1, 2)
    assert (second.state.version, second.state.total) == (2, 3)
    assert plan(core, second.state, Add(amount=1, key="a"), at=8) == Recorded(1)
    folded = evolve_all(core, through_the_log(core, (*first.events, *second.events)))
    assert folded == second.state


class Odd(Adder):
    """Answers in one function what it is told to; an error is raised, and a function of the state gives the answer."""

    def __init__(self, function: str = "", answer: Any = None) -> None:
        self.function, self.answer = function, answer

    def told(self, function: str, state: Sum, otherwise: Any) -> Any:
        answer = self.answer if self.function == function else otherwise
        if callable(answer):
            answer = answer(state)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def admit(self, state: Sum, command: Add | AddLater) -> Any:
        return self.told("admit", state, Added(amount=command.amount))

    def evolve(self, state: Sum, event: Added | Halved) -> Any:
        return self.told("evolve", state, state)

    def react(self, state: Sum, event: Added | Halved) -> Any:
        return self.told("react", state, ())

    def pending(self, state: Sum) -> Any:
        return self.told("pending", state, ())

    def due(self, effect: WaitUntil) -> Any:
        return None

    def failed(self, effect: Effect, error: Exception) -> Any:
        return "again"


def late(state: Sum) -> Iterator[Any]:
    yield from ()
    raise LookupError("too late")


def effects(*keys: Any) -> list[Effect]:
    return [Effect(key=key) for key in keys]


def ring(due_at: Any) -> list[Effect]:
    return [WaitUntil(key="ring", due_at=due_at)]


@pytest.mark.parametrize(
    ("function", "answer", "said"),
    [
        ("admit", Foreign(), "Odd decides Foreign(.*), which is none of its events"),
        ("admit", None, "Odd.admit gave nothing for Add(key=None, amount=1): no event, no Recorded and no refusal"),
        ("evolve", CommandRejected("no"), "Odd.evolve must not refuse; only admit may"),
        ("evolve", None, "Odd.evolve must return the Sum, and returns None"),
        ("evolve", lambda state: Sum(), "a state of version 0 where 1 was counted"),
        ("react", [None], "Odd decides None, which is none of its events"),
        ("react", None, "Odd.react gave None, not a list of events"),
        ("react", Added(amount=1), "Odd.react gave Added(.*), not a list of events"),
        ("react", {Added(amount=1)}, "Odd.react gave {Added(.*)}, not a list of events"),
        pytest.param("react", [Added(amount=1)], "Odd.react is circling: a Added has more", marks=pytest.mark.slow),
        ("react", late, "Odd.react fails on the Added of version 1: LookupError: too late"),
        ("pending", effects("a", "a"), "a key of its own without spaces, not ..a., .a.."),
        ("pending", effects("a b"), "a key of its own without spaces, not ..a b.."),
        ("pending", effects(""), "a key of its own without spaces, not ...."),
        ("pending", effects(3), "a key of its own without spaces, not .3."),
        ("pending", None, "Odd.pending gave None, not a list of effects"),
        ("pending", Effect(key="a"), "Odd.pending gave Effect(.*), not a list of effects"),
        ("pending", late, "Odd.pending fails on the Sum of version 1: LookupError: too late"),
        ("pending", ["work"], "Odd.pending must return effects, and returns 'work'"),
        ("pending", ring(1.75e15), "gives ring the time 1750000000000000.0; due_at is an int of microseconds"),
        ("pending", ring(1_750_000_000), "since the epoch, UTC, such as event.at"),
        ("pending", ring(1_750_000_000_000), "gives ring the time 1750000000000; due_at is an int of microseconds"),
        ("pending", ring(True), "gives ring the time True; due_at is an int of microseconds"),
    ],
)
def test_what_a_core_may_not_do_is_said(function: str, answer: Any, said: str) -> None:
    core = CheckedCore(Odd(function, answer))
    with pytest.raises(CoreFailed, match=said.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")):
        core.pending(planned(core, Add(amount=1)).state)


def test_what_a_core_makes_of_a_time_or_of_failed_work_is_a_command() -> None:
    core, wait = CheckedCore(Odd()), WaitUntil(key="ring", due_at=0)
    with pytest.raises(CoreFailed, match=r"Odd\.due gave None, which is none of its commands \(Add, AddLater\)"):
        core.due(wait)
    with pytest.raises(CoreFailed, match=r"Odd\.failed gave 'again', which is none of its commands \(Add, AddLater\)"):
        core.failed(wait, OSError())


def test_a_keyed_command_that_becomes_nothing_is_named() -> None:
    with pytest.raises(CoreFailed, match=r"Odd\.admit gave nothing for Add\(key='a', amount=1\)"):
        planned(CheckedCore(Odd("admit")), Add(amount=1, key="a"))


# Only `evolve` changes the state


def meddling(how: str, answer: Any) -> Callable[[Any], Any]:
    """Return a function that changes the state where it should only look."""

    def meddle(state: Sum) -> Any:
        if how == "value":
            state.total -= 1
        else:
            state.notes["sneaked"] = object() if how == "object" else how
        return answer

    return meddle


@pytest.mark.parametrize("how", ["value", "part", "object"])
@pytest.mark.parametrize(
    ("where", "answer", "given"),
    [
        ("admit", Added(amount=5), "Add"),
        ("admit", Recorded(0), "Add"),
        ("admit", CommandRejected("no"), "Add"),
        ("react", (), "Added"),
        ("pending", (), "Sum"),
    ],
)
def test_a_function_that_changes_the_state_it_is_shown_is_noticed(
    where: str, answer: Any, given: str, how: str
) -> None:
    core = CheckedCore(Odd(where, meddling(how, answer)))
    with pytest.raises(CoreFailed, match=rf"Odd\.{where} changes the state on the {given}; only evolve may"):
        core.pending(planned(core, Add(amount=5)).state)


def test_a_large_state_is_looked_at_now_and_then_or_always_and_one_that_cannot_be_written_down_never() -> None:
    odd = Odd("admit", meddling("value", Added(amount=1)))
    sometimes, always = (CheckedCore(odd, always_watched=way) for way in (False, True))

    def noticed(core: CheckedCore[Any, Any, Any], notes: dict[str, Any], times: int) -> int:
        state: Any = core.initial()
        state.notes = notes
        found = 0
        for _ in range(times):
            try:
                core.admit(state, Add())
            except CoreFailed:
                found += 1
        return found

    large = {str(number): "x" * 100 for number in range(1_000)}
    assert 2 <= noticed(sometimes, large, 1_200) <= 4
    assert noticed(always, large, 10) == 10
    assert noticed(CheckedCore(odd), {"odd": object()}, 10) == 0


def test_consequences_and_work_may_be_yielded() -> None:
    core = CheckedCore(Odd("pending", lambda state: iter(effects("a", "b"))))
    wanted = core.pending(planned(core, Add(amount=1)).state)
    assert [effect.key for effect in wanted] == [effect.key for effect in wanted] == ["a", "b"]
    consequences = iter([Added(amount=2)])
    made = planned(CheckedCore(Odd("react", lambda state: consequences)), Add(amount=1))
    assert [event.amount for event in made.events] == [1, 2]


def test_an_event_that_cannot_be_folded_is_named_by_its_version() -> None:
    with pytest.raises(LogFormatError, match=r"version 1 contradicts .* Odd\.evolve must return the Sum"):
        evolve_all(CheckedCore(Odd("evolve")), [Added(amount=1)])


# Types

T = TypeVar("T")


def test_the_types_of_a_core_are_found_through_its_bases_too() -> None:
    class Own(Replacer):
        pass

    assert CheckedCore(Own).command_types == (Add,)
    assert CheckedCore(Own).codec.tags == ("sum.added.v1",)
    assert isinstance(CheckedCore(Own()).initial(), Replaced)


class Mutable(msgspec.Struct):
    x: int = 0


class Untagged(Event, frozen=True, kw_only=True):
    pass


class Twice(Event, frozen=True, kw_only=True, tag="sum.added.v1"):
    pass


Icy = msgspec.defstruct("Icy", [], bases=(State,), frozen=True)


class Needy(State, kw_only=True):
    needed: int


def core_of(state: Any, commands: Any, events: Any) -> Any:
    class Made(PureCore[state, commands, events]):
        def admit(self, state: Any, command: Any) -> Any:
            return Added(amount=1)

        def evolve(self, state: Any, event: Any) -> Any:
            return state

    return Made


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ((dict, Add, Added), "the state of Made, <class 'dict'>, must be a class derived from State"),
        ((Icy, Add, Added), "Icy must not be frozen"),
        ((Needy, Add, Added), "every field of Needy needs a default"),
        ((Sum, int, Added), "the commands of Made must be classes derived from Struct"),
        ((Sum, Add | Mutable, Added), r"Mutable of Made must be frozen, .*: class Mutable\(\.\.\., frozen=True\)"),
        ((Sum, Add, Add), "the events of Made must be classes derived from Event"),
        ((Sum, Add, Untagged), "Untagged of Made needs a tag that stays when the class is renamed"),
        ((Sum, Add, Added | Twice), "Added and Twice of Made have one tag, 'sum.added.v1'"),
        ((Sum, Add, "Added"), "Made must say its types"),
    ],
)
def test_types_that_cannot_work_are_refused(types: tuple[Any, Any, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CheckedCore(core_of(*types))


def test_a_core_that_does_not_say_its_types_is_refused() -> None:
    class Bare(PureCore[Sum, T, Added], Generic[T]):
        def admit(self, state: Sum, command: T) -> Added:
            return Added(amount=1)

        def evolve(self, state: Sum, event: Added) -> Sum:
            return state

    with pytest.raises(ConfigError, match=r"Bare must say its types: class Bare\(PureCore\["):
        CheckedCore(Bare)


class Immutable(msgspec.Struct, frozen=True):
    x: tuple[int, ...] = ()
    next: "Immutable | None" = None


@pytest.mark.parametrize(
    ("kind", "value", "copied"),
    [
        (str, "a", False),
        (Annotated[int, msgspec.Meta(ge=0)], 1, False),
        (Literal["a", "b"], "a", False),
        (tuple[str, int], ("a", 1), False),
        (frozenset[int], frozenset({1}), False),
        (Immutable | None, Immutable(next=Immutable()), False),
        (list[int], [1], True),
        (dict[str, int], {"a": 1}, True),
        (set[int], {1}, True),
        (Any, "a", True),
        (Mutable, Mutable(), True),
        (tuple[list[int], ...], ([1],), True),
        (Immutable | list[int], [1], True),
    ],
)
def test_only_events_that_hold_something_changeable_are_copied(kind: Any, value: object, copied: bool) -> None:
    event: Any = msgspec.defstruct("Held", [("x", kind)], bases=(Event,), frozen=True, kw_only=True, tag="sum.held.v1")

    class Holder(PureCore[Sum, Add, event]):
        def admit(self, state: Sum, command: Add) -> Any:
            return event(x=command.amount)

        def evolve(self, state: Any, event: Any) -> Any:
            state.notes["given"] = event
            return state

    made = planned(CheckedCore(Holder), Add(amount=value))
    assert (made.state.notes["given"] is not made.events[0]) == copied
    assert made.state.notes["given"] == made.events[0] == event(at=7, x=value)
