"""`refold chat`: a person at a terminal, which is a real one with real signals; see also the transcripts."""

import os
import readline
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.commands.run.input_history import InputHistory, history_file
from refold.events.secrets.redaction import Redaction
from refold.events.session.core import fold
from refold.stores.clean_log import in_use
from tests.runtime.command_line import assert_sound, events_of, run, started
from tests.runtime.commands.run.dialogues import held
from tests.runtime.terminal import Terminal
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


@pytest.mark.parametrize(("said", "session"), [("deliver", "s"), ("ask", "s/call_6_0")])
@pytest.mark.parametrize("command", [("chat",), ("run", "--log", "refold.db")])
def test_a_question_leaves_the_run_open_where_nobody_can_be_asked(
    command: tuple[str, ...], said: str, session: str, folder: Path
) -> None:
    words = () if command == ("chat",) else (said,)
    result = run(*command, "agents:asking", *words, "--session", "s", stdin=f"{said}\n")
    assert result.exit_code == 1
    assert "What stands on it?" in result.stderr
    assert "waits for an answer as call_6_0.1" in result.stderr
    assert f"refold answer refold.db {session} call_6_0.1 VALUE" in result.stderr
    again = run("run", "--log", "refold.db", "agents:asking", "And now?", "--session", "s")
    assert "What stands on it? waits for an answer as call_6_0.1" in again.stderr
    assert "the input was not sent" in again.stderr


def test_who_is_back_sees_the_last_exchanges_and_has_what_was_written_before(folder: Path) -> None:
    typed = ["one", "two", "three", "four", "pay"]
    with Terminal(folder, "chat", "agents:streaming", "--session", "s") as terminal:
        for text in typed:
            terminal.until("> ")
            terminal.write(f"{text}\n")
        terminal.until("allow it? ")
        terminal.write("n\n")
        terminal.until("why not? ")
        terminal.write("a secret reason\n")
        terminal.until("Done.\n> ")
        terminal.write("\x04")
        assert terminal.end()[0] == 0
    kept = folder / "state" / "refold" / "chat_history"
    assert kept.read_text().split("\n") == [*typed, ""]
    assert (stat.S_IMODE(kept.stat().st_mode), stat.S_IMODE(kept.parent.stat().st_mode)) == (0o600, 0o700)
    kept.chmod(0o644)
    with Terminal(folder, "chat", "agents:streaming", "--session", "s") as terminal:
        head, *shown = terminal.until("> ").splitlines()
        assert "12 messages before" in head
        assert shown[0] == "… 2 earlier exchanges; /history shows all"
        assert [line.strip() for line in shown if line.strip() in ("one", "two", "three", "four")] == ["three", "four"]
        assert "     pay (denied)" in "".join(shown) or "too dear" not in shown
        terminal.write("\x1b[A\x1b[A\n")  # Up, twice.
        assert "four" in terminal.until("13 four").replace("13 four", "")
        terminal.until("> ")
        terminal.write("\x04")
        terminal.end()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with Terminal(folder, "chat", "agents:streaming", "--session", "t", "--no-history") as terminal:
        terminal.until("> ")
        terminal.write("not to be kept\n")
        terminal.until("1 not to be kept\n> ")
        terminal.write("\x04")
        terminal.end()
    assert kept.read_text().split("\n") == [*typed, "four", ""]


def test_a_history_is_cut_keeps_no_known_secret_and_ends_nothing_where_it_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = history_file()
    assert file is not None
    file.parent.mkdir()
    file.with_name(f"{file.name}.{os.getpid()}").touch()  # A process of that number was killed as it cut.
    file.write_bytes(b"".join(b"line %d \xff\n" % n for n in range(2_001)))
    redaction = in_use(Redaction(["hunter2hunter2"]))
    history = InputHistory(file)
    for line in ("hello", "hello", "", "my key is hunter2hunter2", "lines \\", "a\u2028b", "\udcff"):
        history.add(line)
    assert redaction.text("hunter2hunter2") != "hunter2hunter2"
    lines = file.read_text().split("\n")
    assert (len(lines), lines[0], lines[-5:]) == (1_005, "line 1001 \ufffd", ["hello", "lines", "a\u2028b", "?", ""])
    length = readline.get_current_history_length()
    InputHistory(file)
    assert readline.get_history_item(length + 999) == "a\u2028b"
    assert len(list(file.parent.iterdir())) == 2
    made: list[Callable[[], object]] = [lambda: file.symlink_to("/etc/passwd"), lambda: os.mkfifo(file), file.mkdir]
    for make in made:
        file.unlink()
        make()
        InputHistory(file).add("hello")
        assert capsys.readouterr().err.count("is not kept for later chats") == 1


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
