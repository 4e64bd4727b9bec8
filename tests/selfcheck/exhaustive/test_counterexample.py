"""A counterexample is a program that runs, and a log that can be read."""

from refold.events.core.content import TextBlock
from refold.events.core.ids import RunId
from refold.events.session.commands import CancelRun, SendInput
from refold.events.session.events import InputQueued, RunCancelled
from refold.events.session.state import SessionState
from refold.scenarios.as_code import expression
from tests.selfcheck.exhaustive.counterexample import as_lines, as_program
from tests.selfcheck.exhaustive.enabled_commands import EnabledCommands, final_answer
from tests.selfcheck.exhaustive.scope import Scope

SCOPE = Scope(name="tiny", inputs=1)
HELLO = SendInput(content=(TextBlock(text="Hello"),))


def test_code_leaves_out_what_is_the_default() -> None:
    assert expression(HELLO) == 'SendInput(content=(TextBlock(text="Hello"),))'
    assert expression(CancelRun()) == "CancelRun()"
    assert expression(()) == "()"
    assert expression((1, "a")) == '(1, "a")'


def test_a_program_comes_to_the_state_that_its_commands_lead_to() -> None:
    commands = (*EnabledCommands(SCOPE).prelude, HELLO, final_answer(RunId("run_3"), 1))
    names: dict[str, object] = {}
    exec(as_program(commands, SCOPE), names)
    state = names["state"]
    assert isinstance(state, SessionState)
    assert state.last_run is not None
    assert state.last_run.outcome == "completed"


def test_a_log_is_one_line_for_each_event_with_its_version_and_without_its_time() -> None:
    log = (InputQueued(at=5, content=(TextBlock(text="Hello"),)), RunCancelled(at=5, run=RunId("run_1")))
    assert as_lines(log).splitlines() == [
        '   1  InputQueued(content=(TextBlock(text="Hello"),))',
        '   2  RunCancelled(run="run_1")',
    ]
