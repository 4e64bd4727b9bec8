"""What tests with processes of their own share: programs that are started, read and killed, and the logs they leave.

Most programs run with every warning an error and in Python's development mode, so that a task that was destroyed, a
coroutine that was never awaited or a file that was left open is reported on stderr.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RuntimeClosed, RuntimeEvent
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import InputQueued, RunCancelled, RunCompleted, RunFailed, SessionEvent
from refold.stores import SQLiteStore
from tests.conformance.sessions import assert_sound

ROOT = Path(__file__).resolve().parents[2]

QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
"""The environment without asyncio's debug mode, which writes a line to stderr whenever a step of the loop is slow."""

# From Python 3.12 on it warns of every fork beside threads, with reason.
STRICT = ("-W", "error", "-W", "ignore:This process:DeprecationWarning", "-X", "dev")

BEGINNING = """
import asyncio, atexit, gc, logging, multiprocessing, os, signal, subprocess, sys, threading
from refold import *
from refold.stores import InMemoryStore, SQLiteStore

if sys.flags.dev_mode:  # Development mode switches asyncio's debug mode on, and that times every step of the loop.
    logging.getLogger("asyncio").addFilter(lambda record: "took" not in record.getMessage())

log = sys.argv[1]
"""
"""How the programs of tests begin; their first argument is the path of a log."""

Process = subprocess.Popen[str]
Done = subprocess.CompletedProcess[str]


def command_line(*arguments: object) -> list[str]:
    """Return how Python is called: `-c` and a program, a script, or `-m` and a module, and what they are given."""
    return [sys.executable, "-P", *map(str, arguments)]


def refold_line(*arguments: object) -> list[str]:
    """Return how the `refold` command is called."""
    return command_line("-c", "from refold.commands.cli import main; main()", *arguments)


def run(line: list[str], **options: Any) -> Done:
    """Run a process to its end, however that is; one that hangs is an error."""
    settings: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "env": QUIET, "timeout": 120}
    return subprocess.run(line, **settings | options)


@contextmanager
def started(line: list[str], **options: Any) -> Iterator[Process]:
    """Run a process until the block ends, and kill it then if it is still there."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    settings: dict[str, Any] = pipes | {"text": True, "env": QUIET}
    with subprocess.Popen(line, **settings | options) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: Process, *beginnings: str) -> str:
    """Read until lines that begin so have been written, in any order; return the last of them."""
    assert process.stdout is not None
    waiting = list(beginnings)
    for line in process.stdout:
        for beginning in waiting:
            if line.startswith(beginning):
                waiting.remove(beginning)
                break
        if not waiting:
            return line
    raise AssertionError(f"it ended before it wrote {waiting}")


def kill(process: Process) -> None:
    """Kill a process as `kill -9` does, and wait for its end."""
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


class Left(NamedTuple):
    """What processes have left in a log."""

    session: list[SessionEvent]
    """The events of a session."""
    runtimes: list[RuntimeEvent]

    @property
    def ends(self) -> list[str]:
        """How the session's runs ended, in order."""
        return [type(it).__name__ for it in self.session if isinstance(it, RunCompleted | RunCancelled | RunFailed)]

    @property
    def inputs(self) -> list[str]:
        """What was sent to the session."""
        return [it.content[0].text for it in self.session if isinstance(it, InputQueued)]  # type: ignore[union-attr]

    @property
    def closed(self) -> bool:
        """Whether the last runtime closed in order."""
        return isinstance(self.runtimes[-1], RuntimeClosed)


def left_in(log: Path, session: str = "s") -> Left:
    """Check a log that no process holds any more, and return what is in it."""

    async def read() -> Left:
        async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
            await assert_sound(store)
            return Left(
                SESSION_CODEC.decode_all(await store.read_stream(f"session/{session}")),
                RUNTIME_CODEC.decode_all(await store.read_stream(RUNTIME_STREAM)),
            )

    return asyncio.run(read())
