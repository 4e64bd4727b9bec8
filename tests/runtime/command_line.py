"""The `refold` command for tests: inside this process, as a process of its own, and what it leaves in a log."""

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from refold.commands.cli import app
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import SessionEvent
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore
from tests.runtime.terminal import COMMAND

COMMANDS = typer.main.get_command(app)
# Typer's runner makes all commands anew each time, which takes longer than most of them.
vars(typer.testing)["_get_command"] = functools.cache(typer.main.get_command)


def run(*arguments: object, columns: int = 80, stdin: str | bytes | None = None) -> Result:
    """Run a command in this process; an exception that is no exit is a fault of Refold."""
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, input=stdin, env={"COLUMNS": str(columns)})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(result: Result) -> str:
    """Return the one line that an error is."""
    assert result.stdout == ""
    assert result.stderr.startswith("refold: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@contextmanager
def started(*arguments: object, cwd: Path | None = None, **environment: str) -> "Iterator[subprocess.Popen[str]]":
    """Run a command as a process whose output is read as text; it is waited for, and killed if the block fails."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        # Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
        env={**os.environ, "PYTHONASYNCIODEBUG": "", **environment},
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def read_until(process: "subprocess.Popen[str]", *beginnings: str) -> None:
    """Read what the process writes to stderr until there was a line with each of these beginnings."""
    assert process.stderr is not None
    waiting = set(beginnings)
    while waiting:
        line = process.stderr.readline()
        assert line, f"the process ended early; still expected {waiting}"
        waiting = {beginning for beginning in waiting if not line.startswith(beginning)}


def events_of(log: Path, session: str = "s") -> list[SessionEvent]:
    """Return the events of a session in a log."""

    async def read() -> list[SessionEvent]:
        async with await SQLiteStore.open(log, read_only=True) as store:
            return SESSION_CODEC.decode_all(await store.read_stream(f"session/{session}"))

    return asyncio.run(read())


def assert_sound(log: Path) -> None:
    """Fail unless the log passes its check and replays."""
    assert asyncio.run(check_log(log)).problems == ()
    asyncio.run(replay(log)).raise_for_divergence()
