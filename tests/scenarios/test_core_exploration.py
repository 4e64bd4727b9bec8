"""The exploration of a user's core: what it tries, and each kind of fault that it must find."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from refold.events import CommandRejected, Effect, Event, KeyedCommand, KeyedEvent, PureCore, State, WaitUntil
from refold.scenarios.core_exploration import CoreExploration, explore_core


class Push(KeyedCommand, frozen=True, kw_only=True):
    amount: int = 1


class TimeUp(msgspec.Struct, frozen=True):
    pass


class Pushed(KeyedEvent, frozen=True, kw_only=True, tag="counter.pushed.v1"):
    amount: int


class Rang(Event, frozen=True, kw_only=True, tag="counter.rang.v1"):
    pass


class Count(State):
    total: int = 0
    pushed_at: int | None = None
    rings: int = 0
    seen: set[str] = set()


class Counter(PureCore[Count, Push | TimeUp, Pushed | Rang]):
    """Counts to at most 3; a time after each push, it rings."""

    def admit(self, state: Count, command: Push | TimeUp) -> Pushed | Rang:
        if isinstance(command, TimeUp):
            return Rang()
        if state.total + command.amount > 3:
            raise CommandRejected("full")
        return Pushed(amount=command.amount)

    def evolve(self, state: Count, event: Pushed | Rang) -> Count:
        if isinstance(event, Pushed):
            state.total += event.amount
            state.pushed_at = event.at
            state.seen |= {f"{event.amount} pushed", f"{state.total} in all"}
        else:
            state.pushed_at = None
            state.rings += 1
        return state

    def pending(self, state: Count) -> list[Effect]:
        if state.pushed_at is None:
            return []
        return [WaitUntil(key=f"ring:{state.version}", due_at=state.pushed_at + 10)]

    def due(self, effect: WaitUntil) -> TimeUp:
        return TimeUp()


def pushes(state: Count) -> Iterable[Push | TimeUp]:
    return [Push(), Push(amount=2)]


def explored(
    core: type[Counter] | Counter, *, holds: Callable[[Count], object] | None = None, commands_max: int = 4
) -> CoreExploration:
    return explore_core(core, pushes, holds=holds, commands_max=commands_max)


def test_a_sound_core_has_no_counterexample_and_times_come_by_themselves() -> None:
    found = explored(Counter)
    assert found.counterexample is None
    assert (found.states, found.batches, found.refusals) == (20, 20, 19)
    assert explored(Counter, holds=lambda state: state.rings < 3).counterexample is None
    assert explored(Counter, holds=lambda state: state.rings < 2).counterexample is not None


def test_what_must_hold_is_shown_with_the_fewest_commands_that_break_it() -> None:
    def stays_below_three(state: Count) -> None:
        assert state.total < 3, f"total is {state.total}"

    found = explored(Counter, holds=stays_below_three).counterexample
    assert found is not None
    assert found.problem.startswith("does not hold: total is 3")
    assert found.commands == (Push(), Push(amount=2))
    assert [type(event).__name__ for event in found.log] == ["Pushed", "Pushed"]
    assert "\nafter\n  Push(key=None, amount=1)\n  Push(key=None, amount=2)\nlog\n   1  Pushed(" in str(found)


def test_the_state_before_the_first_command_is_judged_too() -> None:
    found = explored(Counter, holds=lambda state: state.total > 0).counterexample
    assert found is not None
    assert (found.problem, found.commands, found.log) == ("does not hold: <lambda>", (), ())


class Fails(Counter):
    def react(self, state: Count, event: Pushed | Rang) -> list[Any]:
        raise LookupError("a fault")


class Remembers(Counter):
    """Keeps something beside its state."""

    def __init__(self) -> None:
        self.pushes = 0

    def admit(self, state: Count, command: Push | TimeUp) -> Pushed | Rang:
        self.pushes += 1
        return Pushed(amount=self.pushes)


class ChangesWhatItRefuses(Counter):
    def admit(self, state: Count, command: Push | TimeUp) -> Pushed | Rang:
        try:
            return super().admit(state, command)
        except CommandRejected:
            state.rings += 1
            raise


class ReactsOnTheState(Counter):
    """Lets `react` change the state, which no fold does."""

    def react(self, state: Count, event: Pushed | Rang) -> list[Any]:
        state.rings = 7
        return []


class CountsWhatIsPending(Counter):
    def pending(self, state: Count) -> list[Effect]:
        state.rings += state.total
        return super().pending(state)


class AdmitsIntoTheState(Counter):
    """Has `evolve` hide what `admit` changed."""

    def admit(self, state: Count, command: Push | TimeUp) -> Pushed | Rang:
        state.total += 1
        return Pushed(amount=0)

    def evolve(self, state: Count, event: Pushed | Rang) -> Count:
        state.total = 1
        return state


class FailsToWait(Counter):
    def pending(self, state: Count) -> Any:
        return super().pending(state) if state.total < 3 else None


class WaitsForNothing(Counter):
    def due(self, effect: WaitUntil) -> Any:
        return None


class FoldsOtherwise(Counter):
    """Lets `admit` tell `evolve` something that no log tells."""

    def __init__(self) -> None:
        self.admitted = 0

    def admit(self, state: Count, command: Push | TimeUp) -> Pushed | Rang:
        self.admitted = 1
        return super().admit(state, command)

    def evolve(self, state: Count, event: Pushed | Rang) -> Count:
        state.rings, self.admitted = self.admitted, 0
        return super().evolve(state, event)


class DecidesByCommand(Counter):
    """Lets `admit` tell `react` something that no log tells."""

    def __init__(self) -> None:
        self.last: object = None

    def admit(self, state: Count, command: Push | TimeUp) -> Pushed | Rang:
        self.last = command
        return super().admit(state, command)

    def react(self, state: Count, event: Pushed | Rang) -> list[Any]:
        last, self.last = self.last, None
        return [Rang()] if last == Push() else []


@pytest.mark.parametrize(
    ("core", "problem"),
    [
        (Fails, "Fails.react fails on the Pushed of version 1: LookupError: a fault"),
        (Remembers, "asked twice, the core decides differently"),
        (ChangesWhatItRefuses, "ChangesWhatItRefuses.admit changes the state on the Push; only evolve may"),
        (ReactsOnTheState, "ReactsOnTheState.react changes the state on the Pushed"),
        (CountsWhatIsPending, "CountsWhatIsPending.pending changes the state on the Count"),
        (AdmitsIntoTheState, "AdmitsIntoTheState.admit changes the state on the Push"),
        (FailsToWait, "FailsToWait.pending gave None, not a list of effects"),
        (WaitsForNothing, "WaitsForNothing.due gave None, which is none of its commands"),
        (FoldsOtherwise, "folding the log gives another state than the live one"),
        (DecidesByCommand, "executing the log again gives another batch or state"),
    ],
)
def test_each_kind_of_fault_is_found(core: type[Counter], problem: str) -> None:
    found = explored(core).counterexample
    assert found is not None
    assert found.problem.startswith(problem)
    assert len(found.commands) == (2 if core in (ChangesWhatItRefuses, FailsToWait) else 1)
