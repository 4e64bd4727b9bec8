"""The `refold` command as a process of its own: pipes, locales, and a log that another process is writing."""

import asyncio
import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from refold.events.core.content import TextBlock
from refold.stores import SQLiteStore
from tests.runtime.command_line import started
from tests.runtime.log_builder import LogBuilder, log_of


def output_of(*arguments: object, **environment: str) -> str:
    with started(*arguments, cwd=None, **environment) as process:
        output, error = process.communicate()
    told = [line for line in error.splitlines() if not line.startswith("note: SQLite ")]  # Of some versions.
    assert (process.returncode, told) == (0, [])
    return output


def test_a_pipe_gets_no_colours_and_a_forced_terminal_does(log_file: Path) -> None:
    assert "\x1b" not in output_of("show", log_file, "alice")
    assert "\x1b[" in output_of("show", log_file, "alice", FORCE_COLOR="1", TERM="xterm-256color")


def test_text_is_written_and_json_is_utf_8_in_any_locale(log_file: Path) -> None:
    assert "Weather in Lisbon?" in output_of("show", log_file, "alice", PYTHONIOENCODING="ascii")
    assert json.loads(output_of("show", log_file, "alice", "--json", PYTHONIOENCODING="ascii"))["session"] == "alice"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"], ["--events"]])
def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path, flags: list[str]) -> None:
    async def build(builder: LogBuilder) -> None:
        await builder.weather_session("alice", result="line\n" * 4_000)
        for number in range(60):
            await builder.open(f"session {number}")

    with started("show", log_of(tmp_path / "long.db", build), "alice", *flags) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() in (0, 141)


@pytest.mark.slow
def test_a_log_in_use_is_read_and_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "live.db"
        async with await SQLiteStore.open(path) as store:
            live = LogBuilder(store)
            await live.open_session("alice")
            assert "in flight: tool:call_6_0" in await asyncio.to_thread(output_of, "show", path, "alice")
            for command in ("sessions", "replay", "check"):
                await asyncio.to_thread(output_of, command, path)
            await live.result("alice", "call_6_0", "sunny")
            await live.answer("alice", TextBlock(text="Sunny."))
            assert "run_3 completed" in await asyncio.to_thread(output_of, "show", path, "alice")
        await asyncio.to_thread(output_of, "check", path)

    asyncio.run(scenario())


def test_the_command_is_installed() -> None:
    [script] = entry_points(group="console_scripts", name="refold")
    main: Callable[[], None] = script.load()
    assert main.__module__ == "refold.__main__"
