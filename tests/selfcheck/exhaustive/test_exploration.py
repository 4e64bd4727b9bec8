"""The search finds what is there, by a shortest way, and always the same."""

import msgspec
import pytest

from refold.events.session import commands
from refold.events.session import react as session_decisions
from refold.events.session.events import RunFailed, RunFailureKind
from refold.events.session.state import Run, SessionState
from tests.selfcheck.exhaustive import exploration
from tests.selfcheck.exhaustive.enabled_commands import TOOL_NAMES
from tests.selfcheck.exhaustive.exploration import explore
from tests.selfcheck.exhaustive.scope import EVERYDAY, Scope

STUBBORN = next(scope for scope in EVERYDAY if scope.name == "stubborn model")
TINY = Scope(name="tiny", inputs=1, turns=1, calls=0)


def resumed_for_ever(state: SessionState) -> commands.SessionCommand | None:
    return commands.ResumeRun(tools=TOOL_NAMES, asked=True) if state.run is not None else None


def forgotten(_: SessionState) -> commands.SessionCommand | None:
    return None


def test_two_explorations_of_a_scope_are_equal() -> None:
    assert explore(TINY) == explore(TINY)


def test_a_larger_scope_has_more_states() -> None:
    smaller, larger = explore(TINY), explore(msgspec.structs.replace(TINY, inputs=2))
    assert smaller.counterexamples == larger.counterexamples == {}
    assert smaller.states < larger.states
    assert smaller.depth < larger.depth


@pytest.mark.slow
def test_a_fault_is_shown_with_the_fewest_commands_that_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = session_decisions._no_further_turn

    def one_early(state: SessionState, run: Run) -> tuple[RunFailureKind, str] | None:
        more = int(run.empty_answers > 0)
        run.empty_answers += more
        try:
            return right(state, run)
        finally:
            run.empty_answers -= more

    monkeypatch.setattr(session_decisions, "_no_further_turn", one_early)
    found = explore(STUBBORN).counterexamples
    assert list(found) == ["OUTCOME"]
    example = found["OUTCOME"]
    assert [type(command) for command in example.commands] == [
        commands.OpenSession,
        commands.Configure,
        commands.SendInput,
        commands.RecordModelResponse,
    ]
    last = example.log[-1]
    assert isinstance(last, RunFailed)
    assert last.kind == "empty_answers"


def test_ordinary_work_that_goes_round_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "ordinary_command", resumed_for_ever)
    example = explore(TINY).counterexamples["LIVE"]
    assert example.message == "ordinary work comes back to this state, and goes round for ever"
    assert [type(command) for command in example.commands] == [
        commands.OpenSession,
        commands.Configure,
        commands.SendInput,
    ]


def test_work_that_nothing_goes_on_with_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "ordinary_command", forgotten)
    example = explore(TINY).counterexamples["LIVE"]
    assert example.message == "work is left, nothing is pending, and no decision is awaited"


def test_a_space_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "STATES_MAX", 10)
    with pytest.raises(RuntimeError, match="scope 'tiny' has more than 10 states; make it smaller"):
        explore(TINY)
