"""A working memory's decisions: what is kept, and what goes first."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import AgentMemoryError
from refold.events.core.contract import Recorded, plan
from refold.events.kinds.working_memory import (
    FORGOTTEN_PER_EVENT,
    WORKING_CORE,
    ChangeRoom,
    ClearItems,
    Items,
    ItemsForgotten,
    RemoveItem,
    SetItem,
    WorkingCommand,
    WorkingCore,
    WorkingEvent,
)
from refold.scenarios.core_exploration import explore_core


def live(*commands: WorkingCommand) -> tuple[Items, list[WorkingEvent]]:
    state, log = Items(), list[WorkingEvent]()
    for command in commands:
        planned = plan(WORKING_CORE, state, command, 0)
        if not isinstance(planned, Recorded):
            state = planned.state
            log += planned.events
    return state, log


def sets(names: str) -> list[WorkingCommand]:
    return [SetItem(name=name, value=name.upper()) for name in names]


def test_the_one_set_longest_ago_goes() -> None:
    state, log = live(ChangeRoom(capacity=2), *sets("abac"))
    assert list(state.items) == ["a", "c"]
    assert log[-1] == ItemsForgotten(names=("b",))


def test_less_room_takes_the_oldest() -> None:
    names = [f"n{number}" for number in range(FORGOTTEN_PER_EVENT + 5)]
    state, log = live(*(SetItem(name=name, value="") for name in names), ChangeRoom(capacity=2))
    assert list(state.items) == names[-2:]
    assert [len(event.names) for event in log if isinstance(event, ItemsForgotten)] == [FORGOTTEN_PER_EVENT, 3]


def test_what_changes_nothing_is_not_recorded() -> None:
    assert live(ClearItems(), RemoveItem(name="a"))[1] == []
    assert len(live(ChangeRoom(capacity=3), ChangeRoom(capacity=3))[1]) == 1


@pytest.mark.parametrize("command", [SetItem(name="", value="v"), ChangeRoom(capacity=0)])
def test_what_cannot_be_is_refused(command: WorkingCommand) -> None:
    with pytest.raises(AgentMemoryError):
        live(command)


@given(st.lists(st.sampled_from("abcdef"), max_size=30), st.integers(1, 4))
def test_those_stay_that_were_set_last(names: Sequence[str], capacity: int) -> None:
    state, _ = live(ChangeRoom(capacity=capacity), *sets("".join(names)))
    last = list(dict.fromkeys(reversed(names)))[:capacity]
    assert list(state.items) == list(reversed(last))


def test_every_short_life_holds() -> None:
    def tried(state: Items) -> list[WorkingCommand]:
        return [*sets("abc"), RemoveItem(name="a"), ClearItems(), ChangeRoom(capacity=1), ChangeRoom(capacity=2)]

    found = explore_core(WorkingCore, tried, commands_max=4)
    assert found.counterexample is None, found.counterexample
    assert found.states >= 30
