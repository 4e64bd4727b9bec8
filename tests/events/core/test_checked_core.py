"""A user's core behind its checks: types, versions, keys, what is evolved, and whose fault an error is."""

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
from refold.events.core.contract import Plan, evolve_all, plan, replan
from refold.events.core.errors import ConfigError, LogFormatError
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


class Odd(Replacer):
    """Does what it is told to, wrongly."""

    def __init__(self, way: str) -> None:
        self.way = way

    def admit(self, state: Replaced, command: Add) -> Any:
        ways: dict[str, Any] = {"foreign event": Halved(rest=1), "no answer": None}
        return ways[self.way] if self.way in ways else super().admit(state, command)

    def evolve(self, state: Replaced, event: Added) -> Any:
        if self.way == "refusal":
            raise CommandRejected("no")
        return {"nothing": None, "new state": Replaced()}.get(self.way, state)

    def react(self, state: Replaced, event: Added) -> Any:
        ways: dict[str, Any] = {"no event": [None], "no reaction": None, "late reaction": self.late()}
        ways |= {"one reaction": Added(amount=1), "unordered": {Added(amount=1)}, "circling": [Added(amount=1)]}
        return ways.get(self.way, ())

    def late(self) -> Any:
        yield from ()
        raise LookupError("too late")

    def pending(self, state: Replaced) -> Any:
        keys: dict[str, Any] = {"one key": "aa", "spaces": ["a b"], "no key": [""], "number": [3]}
        others = {"no pending": None, "late pending": self.late(), "no effect": ["work"], "one effect": Effect(key="a")}
        times = {"float": 1.75e15, "seconds": 1_750_000_000, "milliseconds": 1_750_000_000_000, "yes": True}
        if self.way in times:
            return [WaitUntil(key="ring", due_at=times[self.way])]  # type: ignore[arg-type]
        return others[self.way] if self.way in others else [Effect(key=key) for key in keys.get(self.way, ())]

    def due(self, effect: WaitUntil) -> Any:
        return None

    def failed(self, effect: Effect, error: Exception) -> Any:
        return "again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("foreign event", "Odd decides Halved(.*), which is none of its events"),
        ("refusal", "Odd.evolve must not refuse; only admit may"),
        ("nothing", "Odd.evolve must return the Replaced, and returns None"),
        ("new state", "a state of version 0 where 1 was counted"),
        ("no event", "Odd decides None, which is none of its events"),
        ("one key", "a key of its own without spaces, not ..a., .a.."),
        ("spaces", "a key of its own without spaces, not ..a b.."),
        ("no key", "a key of its own without spaces, not ...."),
        ("number", "a key of its own without spaces, not .3."),
        ("no answer", "Odd.admit gave nothing for Add(key=None, amount=1): no event, no Recorded and no refusal"),
        ("no reaction", "Odd.react gave None, not a list of events"),
        ("one reaction", "Odd.react gave Added(.*), not a list of events"),
        ("unordered", "Odd.react gave {Added(.*)}, not a list of events"),
        ("circling", "Odd.react is circling: a Added has more than 100,000 consequences"),
        ("late reaction", "Odd.react fails on the Added of version 1: LookupError: too late"),
        ("no pending", "Odd.pending gave None, not a list of effects"),
        ("one effect", "Odd.pending gave Effect(.*), not a list of effects"),
        ("late pending", "Odd.pending fails on the Replaced of version 1: LookupError: too late"),
        ("no effect", "Odd.pending must return effects, and returns 'work'"),
        ("float", "gives ring the time 1750000000000000.0; due_at is an int of microseconds since the epoch, UTC"),
        (
            "seconds",
            "gives ring the time 1750000000; due_at is an int of microseconds since the epoch, UTC, such as event.at",
        ),
        ("milliseconds", "gives ring the time 1750000000000; due_at is an int of microseconds"),
        ("yes", "gives ring the time True; due_at is an int of microseconds"),
    ],
)
def test_what_a_core_may_not_do_is_said(way: str, said: str) -> None:
    core = CheckedCore(Odd(way))
    with pytest.raises(CoreFailed, match=said.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")):
        core.pending(planned(core, Add(amount=1)).state)


def test_what_a_core_makes_of_a_time_or_of_failed_work_is_a_command() -> None:
    core, wait = CheckedCore(Odd("")), WaitUntil(key="ring", due_at=0)
    with pytest.raises(CoreFailed, match=r"Odd\.due gave None, which is none of its commands \(Add\)"):
        core.due(wait)
    with pytest.raises(CoreFailed, match=r"Odd\.failed gave 'again', which is none of its commands \(Add\)"):
        core.failed(wait, OSError())


def test_a_keyed_command_that_becomes_nothing_is_named() -> None:
    with pytest.raises(CoreFailed, match=r"Odd\.admit gave nothing for Add\(key='a', amount=1\)"):
        planned(CheckedCore(Odd("no answer")), Add(amount=1, key="a"))


# Only `evolve` changes the state


class Meddler(Adder):
    """Changes the state where it should only look."""

    def __init__(self, where: str, how: str = "value") -> None:
        self.where, self.how = where, how

    def meddle(self, function: str, state: Sum) -> None:
        if self.where == function:
            if self.how == "value":
                state.total -= 1
            else:
                state.notes["sneaked"] = object() if self.how == "object" else self.how

    def admit(self, state: Sum, command: Add | AddLater) -> Added | Halved | Recorded:
        self.meddle("admit", state)
        if command.amount == "refused":
            raise CommandRejected("no")
        return super().admit(state, command)

    def react(self, state: Sum, event: Added | Halved) -> list[Added | Halved]:
        self.meddle("react", state)
        return super().react(state, event)

    def pending(self, state: Sum) -> list[Effect]:
        self.meddle("pending", state)
        return []


@pytest.mark.parametrize("how", ["value", "part", "object"])
@pytest.mark.parametrize(
    ("where", "amount", "given"),
    [
        ("admit", 5, "Add"),
        ("admit", 0, "Add"),
        ("admit", "refused", "Add"),
        ("react", 5, "Added"),
        ("pending", 5, "Sum"),
    ],
)
def test_a_function_that_changes_the_state_it_is_shown_is_noticed(
    where: str, amount: Any, given: str, how: str
) -> None:
    core = CheckedCore(Meddler(where, how))
    with pytest.raises(CoreFailed, match=rf"Meddler\.{where} changes the state on the {given}; only evolve may"):
        core.pending(planned(core, Add(amount=amount)).state)


def large(core: CheckedCore[Any, Any, Any]) -> Any:
    state = core.initial()
    state.notes = {str(number): "x" * 100 for number in range(1_000)}
    return state


def noticed(core: CheckedCore[Any, Any, Any], state: Any) -> bool:
    try:
        core.admit(state, Add())
    except CoreFailed:
        return True
    return False


def test_a_large_state_is_looked_at_now_and_then_or_always() -> None:
    sometimes, always = (CheckedCore(Meddler("admit"), always_watched=way) for way in (False, True))
    state = large(sometimes)
    assert 2 <= sum(noticed(sometimes, state) for _ in range(1_200)) <= 4
    assert all(noticed(always, state) for _ in range(10))


def test_a_state_that_cannot_be_written_down_is_taken_on_trust() -> None:
    core = CheckedCore(Meddler("admit", "more"))
    state = core.initial()
    state.notes["odd"] = object()
    assert not any(noticed(core, state) for _ in range(10))


class Generating(Replacer):
    """Yields what others return."""

    def react(self, state: Replaced, event: Added) -> Any:
        if event.amount > 100:
            yield Added(amount=1)

    def pending(self, state: Replaced) -> Any:
        yield Effect(key=f"after:{state.version}")


def test_consequences_and_work_may_be_yielded() -> None:
    core = CheckedCore(Generating)
    made = planned(core, Add(amount=1000))
    assert [event.amount for event in made.events] == [1000, 1]
    wanted = core.pending(made.state)
    assert [effect.key for effect in wanted] == ["after:2"]
    assert [effect.key for effect in wanted] == ["after:2"]


def test_an_event_that_cannot_be_folded_is_named_by_its_version() -> None:
    core = CheckedCore(Odd("nothing"))
    with pytest.raises(LogFormatError, match=r"version 1 contradicts .* Odd\.evolve must return the Replaced"):
        evolve_all(core, [Added(amount=1)])


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
