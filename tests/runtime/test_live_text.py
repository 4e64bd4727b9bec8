"""`refold run` of an agent that streams: its answer is on stdout as it comes, safe, and once."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from refold import RunId, SessionId, Streamed, TextDelta, ThinkingDelta
from refold.commands.cli import app
from refold.commands.output import safe_text
from refold.commands.run.shown import LiveText
from refold.events.core.codec import RecordedEvent
from refold.events.core.ids import EventRef, StreamName
from refold.events.model.messages import RequestReference
from refold.events.session.events import ModelFailed, ModelResponded, SessionEvent

AGENTS = """
from refold import (
    Agent, AgentConfig, ProviderError, ScriptedProvider, TextBlock, cut, say, tool, use
)

config = AgentConfig(model="m", streaming=True)

@tool(tier="observe", effect="pure")
def look(name: str) -> str:
    "Look."
    return "seen"

def agent_of(*script, config=config):
    return Agent(config=config, provider=ScriptedProvider(script), tools=[look], name="agent")

sayer = agent_of(say("Several lines\\nof an answer."))
looker = agent_of([TextBlock(text="I look."), use("look", {"name": "it"})], say("It is fine."))
breaking = agent_of(cut(say("a long answer"), after=1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `streaming_agents`, which this process forgets afterwards."""
    tmp_path.joinpath("streaming_agents.py").write_text(AGENTS.replace("", ""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("streaming_agents", None)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.usefixtures("folder")
def test_an_answer_that_was_streamed_stands_on_stdout_once() -> None:
    result = run("streaming_agents:sayer", "hi")
    assert (result.exit_code, result.stdout) == (0, "Several lines\nof an answer.\n")


@pytest.mark.usefixtures("folder")
def test_the_text_before_a_call_is_shown_and_the_call_on_stderr() -> None:
    result = run("streaming_agents:looker", "hi")
    assert result.stdout == "I look.\nIt is fine.\n"
    assert [line for line in result.stderr.splitlines() if line[:2] in ("->", "<-")] == [
        '-> look(name="it")',
        "<- look: seen",
    ]
    text, call = result.output.index("I look."), result.output.index("-> look")
    assert text < call < result.output.index("It is fine.")


@pytest.mark.usefixtures("folder")
def test_half_an_answer_ends_its_line_and_the_failure_is_an_error() -> None:
    result = run("streaming_agents:breaking", "hi")
    assert (result.exit_code, result.stdout) == (1, "a long a\n")
    assert "the connection broke" in result.stderr


@pytest.mark.usefixtures("folder")
def test_json_is_not_disturbed() -> None:
    result = run("streaming_agents:looker", "hi", "--json")
    assert json.loads(result.stdout)["text"] == "It is fine."
    assert result.stderr == ""


@pytest.mark.usefixtures("folder")
def test_a_key_whose_run_is_over_has_its_answer_written() -> None:
    for _ in range(2):
        result = run("streaming_agents:sayer", "hi", "--session", "s", "--key", "k")
        assert (result.exit_code, result.stdout) == (0, "Several lines\nof an answer.\n")


def piece(text: str, run: str = "run_1") -> Streamed:
    return Streamed(session=SessionId("s"), run=RunId(run), turn=1, delta=TextDelta(text))


def recorded(event: SessionEvent) -> RecordedEvent[SessionEvent]:
    return RecordedEvent(
        stream=StreamName("session/s"),
        version=1,
        position=1,
        time=0,
        event=event,
        batch=1,
        correlation=EventRef(""),
        causation=None,
    )


RESPONDED = recorded(
    ModelResponded(
        run=RunId("run_1"),
        turn=1,
        content=(),
        stop_reason="end_turn",
        request=RequestReference(configured=1, messages=1),
    )
)
FAILED = recorded(ModelFailed(run=RunId("run_1"), turn=1, kind="connection", message="cut", retryable=True))


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "a\x1b[31mred\x1b[0m b",
        "a\x1b]0;a title\x07 b",
        "a\x1b]0;never ended",
        "two\r\nlines\rand three",
        "\x9b2Jclear",
        "bell\x07 \u202eturned",
        "ends in an escape \x1b",
    ],
)
def test_text_in_pieces_of_any_size_is_written_as_safe_as_in_one(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (1, 2, 3, 100):
        live = LiveText()
        live.run = "run_1"
        for start in range(0, len(text), size):
            live.see(piece(text[start : start + size]))
        live.see(RESPONDED)
        assert capsys.readouterr().out == safe_text(text) + "\n"
        assert live.has_written(text)


def test_only_the_text_of_its_run_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveText()
    live.see(piece("before"))
    live.run = "run_2"
    live.see(piece("of another"))
    live.see(Streamed(session=SessionId("s"), run=RunId("run_2"), turn=1, delta=ThinkingDelta("hm")))
    live.see(piece("mine", "run_2"))
    assert capsys.readouterr().out == "mine"
    assert not live.has_written("mine")


def test_an_answer_that_is_asked_for_again_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveText()
    live.run = "run_1"
    for item in (piece("half"), FAILED, piece("whole"), RESPONDED):
        live.see(item)
    assert capsys.readouterr().out == "half\nwhole\n"
    assert live.has_written("whole")


def test_a_pipe_that_nobody_reads_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        encoding = "utf-8"

        def write(self, text: Any) -> None:
            raise BrokenPipeError

        def flush(self) -> None: ...

    live = LiveText()
    live.run = "run_1"
    monkeypatch.setattr(sys, "stdout", Broken())
    live.see(piece("a"))
    live.see(RESPONDED)
    with pytest.raises(BrokenPipeError):
        live.has_written("a")
