"""The `refold` command as a process of its own: pipes, locales, and a log that somebody is writing."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from refold.events.core.content import TextBlock
from refold.stores import SQLiteStore
from tests.runtime.conftest import LogBuilder

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def run_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        check=False,
        env={**QUIET, **environment},
    )


def test_a_pipe_gets_no_colours_and_a_forced_terminal_does(log_file: Path) -> None:
    assert b"\x1b" not in run_process("show", log_file, "alice").stdout
    assert b"\x1b[" in run_process("show", log_file, "alice", FORCE_COLOR="1", TERM="xterm-256color").stdout


def test_json_is_utf_8_in_any_locale(log_file: Path) -> None:
    done = run_process("show", log_file, "alice", "--json", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["session"] == "alice"


def test_text_is_written_in_any_locale(log_file: Path) -> None:
    done = run_process("show", log_file, "alice", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Weather in Lisbon?" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"], ["--events"]])
def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "long.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await LogBuilder(store).weather_session("alice", result="line\n" * 4_000)
            for number in range(60):
                await LogBuilder(store).open(f"session {number}")

    asyncio.run(build())
    command = [
        sys.executable,
        "-P",
        "-c",
        "from refold.commands.cli import main; main()",
        "show",
        str(path),
        "alice",
        *flags,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=QUIET) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() in (0, 141)


@pytest.mark.slow
def test_a_log_in_use_is_read_and_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "live.db"
        async with await SQLiteStore.open(path) as store:
            live = LogBuilder(store)
            await live.open_session("alice")
            shown = await asyncio.to_thread(run_process, "show", path, "alice")
            assert b"in flight: tool:call_6_0" in shown.stdout
            for command in ("sessions", "replay", "check"):
                assert (await asyncio.to_thread(run_process, command, path)).returncode == 0
            await live.result("alice", "call_6_0", "sunny")
            await live.answer("alice", TextBlock(text="Sunny."))
            shown = await asyncio.to_thread(run_process, "show", path, "alice")
            assert b"run_3 completed" in shown.stdout
        done = await asyncio.to_thread(run_process, "check", path)
        assert done.returncode == 0

    asyncio.run(scenario())


def test_the_command_is_installed() -> None:
    [script] = entry_points(group="console_scripts", name="refold")
    main: Callable[[], None] = script.load()
    assert main.__module__ == "refold.__main__"
