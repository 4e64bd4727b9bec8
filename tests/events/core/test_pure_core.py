"""Plan and replan, seen on a core of a dozen lines."""

import msgspec
import pytest

from refold.events.core.errors import CommandRejected, CoreFailed, LogFormatError
from refold.events.core.event import Event
from refold.events.core.pure_core import CONSEQUENCES_MAX, Plan, PureCore, Recorded, evolve_all, plan, replan


class Said(Event, frozen=True, kw_only=True, tag="test.said.v1"):
    word: str


class Words(msgspec.Struct):
    said: list[str] = []
    version: int = 0


class Echo(PureCore[Words, str, Said]):
    """Says each word, and then each word that `follows` names for it."""

    def __init__(self, follows: dict[str, list[str]]) -> None:
        self.follows = follows

    def admit(self, state: Words, command: str) -> Said | Recorded:
        if command in state.said:
            return Recorded(state.said.index(command) + 1)
        if not command:
            raise CommandRejected("say something")
        return Said(word=command)

    def evolve(self, state: Words, event: Said) -> Words:
        if event.word == "impossible":
            raise KeyError(event.word)
        state.said.append(event.word)
        state.version += 1
        return state

    def react(self, state: Words, event: Said) -> list[Said]:
        assert state.said[-1] == event.word  # What is reacted to is already true.
        return [Said(word=word) for word in self.follows.get(event.word, [])]


TREE = Echo({"a": ["b", "c"], "b": ["b1", "b2"], "b1": ["b11"], "c": ["c1"]})


def words(planned: Plan[Words, Said] | Recorded) -> list[str]:
    assert isinstance(planned, Plan)
    return [event.word for event in planned.events]


def test_an_event_is_followed_by_what_it_causes_before_its_sibling_is_all_at_one_time() -> None:
    planned = plan(TREE, TREE.initial(), "a", 5)
    assert words(planned) == ["a", "b", "b1", "b11", "b2", "c", "c1"]
    assert isinstance(planned, Plan)
    assert planned.state.said == words(planned)
    assert planned.events[0] == Said(word="a", at=5)
    assert {event.at for event in planned.events} == {5}
    assert replan(TREE, Words(), Said(word="a"), 5) == planned


def test_a_command_that_was_recorded_before_or_is_refused_changes_nothing() -> None:
    state = Words(["x", "a"], 2)
    assert plan(TREE, state, "a", 5) == Recorded(2)
    with pytest.raises(CommandRejected, match="say something"):
        plan(TREE, state, "", 5)
    assert state == Words(["x", "a"], 2)


def test_a_core_that_circles_is_stopped_and_named() -> None:
    circle = Echo({"a": ["b"], "b": ["a"]})
    with pytest.raises(CoreFailed, match=r"\.react is circling: a Said has more than 100,000 consequences"):
        plan(circle, Words(), "a", 5)


def test_a_batch_may_be_as_long_as_the_bound() -> None:
    long = Echo({"a": ["b"] * (CONSEQUENCES_MAX - 1)})
    assert len(words(plan(long, Words(), "a", 5))) == CONSEQUENCES_MAX


def test_events_are_folded_from_the_beginning_or_from_a_state() -> None:
    events = [Said(word="a"), Said(word="b")]
    assert evolve_all(TREE, events) == Words(["a", "b"], 2)
    assert evolve_all(TREE, events[1:], Words(["a"], 1)) == Words(["a", "b"], 2)
    assert evolve_all(TREE, []) == Words()


def test_an_event_that_cannot_have_happened_is_an_error_that_says_where() -> None:
    with pytest.raises(LogFormatError, match="contradicts the events before it: KeyError: 'impossible'; "):
        evolve_all(TREE, [Said(word="a"), Said(word="impossible")])
