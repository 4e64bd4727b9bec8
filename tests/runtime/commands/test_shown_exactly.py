"""What is logged stands on the screen in lines that no terminal obeys, with the frame of the user's code."""

import logging
import sys
from pathlib import Path

import pytest

from refold.commands.execution import SafeFormatter, safe_logging
from tests.runtime.command_line import started

AGENT = """
from refold import Agent, AgentConfig, ScriptedProvider, say, tool, use

@tool
def burn() -> str:
    raise RuntimeError("\\x1b]52;c;ZXZpbA==\\x07two\\nlines \\u202e" + "x" * 5_000)

agent = Agent(config=AgentConfig(model="m"), tools=[burn], provider=ScriptedProvider([use("burn", {}), say("Done.")]))
"""


def test_a_tools_error_is_one_line_with_the_users_frame_that_no_terminal_obeys(tmp_path: Path) -> None:
    (tmp_path / "burner.py").write_text(AGENT)
    with started(
        "run", "burner:agent", "Go", "--log", tmp_path / "x.db", cwd=tmp_path, PYTHONPATH=str(tmp_path)
    ) as process:
        output, errors = process.communicate()
    assert (process.returncode, output) == (0, "Done.\n")
    assert not any(one in output + errors for one in "\x1b\x07\u202e")
    [line] = [line for line in errors.splitlines() if line.startswith("warning: ")]
    assert "RuntimeError: two lines" in line
    assert len(line) <= 2_000


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_any_record_is_one_safe_line_and_the_traceback_is_there_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    make = logging.getLogger("refold.test").makeRecord
    try:
        raise Mute
    except Mute:
        first = make("refold.test", logging.ERROR, "", 1, "it \x1b[31m%s", ("broke",), sys.exc_info())
    second = make("refold.test", logging.WARNING, "", 1, "%d", ("no number",), None)
    form = SafeFormatter().format
    assert form(first).startswith(f"error: it broke: Mute ({__file__}:")
    assert form(second) == "warning: %d (TypeError in its arguments)"
    caplog.set_level(logging.DEBUG, logger="refold")
    assert form(first).count("\n") >= 3


def test_the_logging_of_a_program_is_left_alone() -> None:
    root = logging.root
    before = list(root.handlers)
    assert before, "pytest has its own"
    with safe_logging():
        assert root.handlers == before
