"""The answer of an agent that streams is written as it comes, safe, and once; see also the transcripts."""

import sys
from typing import Any

import pytest

from refold import RunId, SessionId, Streamed, TextDelta, ThinkingDelta
from refold.commands.output import safe_text
from refold.commands.run.shown import LiveText
from refold.events.model.messages import RequestReference
from refold.events.session.events import ModelFailed, ModelResponded
from tests.runtime.command_line import run
from tests.runtime.talking import recorded_event


@pytest.mark.usefixtures("folder")
def test_the_text_before_a_call_is_shown_before_the_call() -> None:
    output = run("run", "agents:streaming", "look").output
    assert output.index("I look.") < output.index("-> look") < output.index("Done.")


def piece(text: str, run: str = "run_1") -> Streamed:
    return Streamed(session=SessionId("s"), run=RunId(run), turn=1, asked=2, offset=0, delta=TextDelta(text))


RESPONDED = recorded_event(
    ModelResponded(
        run=RunId("run_1"),
        turn=1,
        content=(),
        stop_reason="end_turn",
        request=RequestReference(configured=1, messages=1),
    )
)
FAILED = recorded_event(ModelFailed(run=RunId("run_1"), turn=1, kind="connection", message="cut", retryable=True))


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
    live.see(Streamed(session=SessionId("s"), run=RunId("run_2"), turn=1, asked=2, offset=0, delta=ThinkingDelta("hm")))
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
