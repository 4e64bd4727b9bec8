"""The search finds work that never ends, and a space without end is refused."""

import pytest

from refold.events.session import commands
from refold.events.session.state import SessionState
from tests.selfcheck.exhaustive import exploration
from tests.selfcheck.exhaustive.enabled_commands import TOOL_NAMES
from tests.selfcheck.exhaustive.exploration import explore
from tests.selfcheck.exhaustive.scope import Scope

TINY = Scope(name="tiny", inputs=1, turns=1, calls=0)


def resumed_for_ever(state: SessionState) -> commands.SessionCommand | None:
    return commands.ResumeRun(tools=TOOL_NAMES, asked=True) if state.run is not None else None


def forgotten(_: SessionState) -> commands.SessionCommand | None:
    return None


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
