"""`refold chat`: a person at a terminal, which is a real one with real signals; see also the transcripts."""

from pathlib import Path
from typing import Any

import pytest

from refold.events.session.core import fold
from tests.runtime.command_line import assert_sound, events_of, run, started
from tests.runtime.dialogues import held
from tests.runtime.transcripts import compare, sections

DIALOGUES = sections("dialogues.txt")


@pytest.mark.parametrize("title", DIALOGUES)
def test_a_dialogue_is_held(title: str, folder: Path) -> None:
    path, text = DIALOGUES[title]
    compare(path, title, text, held(text, folder))
    assert_sound(folder / "refold.db")


def test_a_run_that_a_crash_left_open_goes_on_first(folder: Path) -> None:
    with started("chat", "agents:streaming", "--session", "s") as chatting:
        chatting.communicate("die\n")
        assert chatting.returncode == 9
    assert fold(events_of(folder / "refold.db")).run is not None
    result = run("chat", "agents:streaming", "--session", "s", stdin="hello\n")
    assert (result.exit_code, result.stdout) == (0, "Done.\n5 hello\n")
    assert "run_3, which is open, goes on" in result.stderr
    assert_sound(folder / "refold.db")


def test_bytes_that_are_no_text_end_nothing(folder: Path) -> None:
    with started("chat", "agents:plain", PYTHONIOENCODING="utf-8:strict") as chatting:
        stdin: Any = chatting.stdin
        stdin.buffer.write(b"caf\xe9 \xff\n")
        answers, _ = chatting.communicate("hello\n")
    assert (chatting.returncode, answers) == (0, "1 caf\ufffd \ufffd\n3 hello\n")


def test_a_reader_that_goes_away_ends_a_chat_quietly(folder: Path) -> None:
    with started("chat", "agents:streaming") as chatting:
        assert chatting.stdin is not None
        assert chatting.stdout is not None
        assert chatting.stderr is not None
        chatting.stdout.close()
        chatting.stdin.write("hello\n")
        chatting.stdin.close()
        assert chatting.stderr.read().count("\n") == 1
        assert chatting.wait(60) == 141
