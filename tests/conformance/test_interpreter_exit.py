"""Interpreters that end under a runtime, in whichever way: no hang, a sound log, and nothing or one advice on stderr.

Each runs with every warning an error and in Python's development mode. What an asyncio loop that ends under an open
runtime says is in `test_asyncio_process`.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RuntimeClosed
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import RunCancelled, RunCompleted, RunFailed
from refold.stores import SQLiteStore
from tests.conformance.sessions import assert_sound

QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}

PROGRAM = '''
import asyncio, atexit, logging, os, sys, threading
from refold import *

if sys.flags.dev_mode:  # Development mode switches asyncio's debug mode on, and that times every step of the loop.
    logging.getLogger("asyncio").addFilter(lambda record: "took" not in record.getMessage())

@tool
async def leave() -> str:
    """Leave by SystemExit."""
    sys.exit(7)

@tool
def leave_thread() -> str:
    """Leave a thread by SystemExit."""
    sys.exit(7)

@tool
async def end() -> str:
    """End the process."""
    os._exit(7)

def make(*script, **options):
    tools = [leave, leave_thread, end]
    provider = ScriptedProvider(script)
    return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=tools, log=sys.argv[1], **options)

'''

IN_ORDER = {
    "async, sys.exit in the block": (
        """
async def main():
    async with make(say("done")) as runtime:
        print((await (await runtime.session("s")).send("go")).text)
        sys.exit(5)
asyncio.run(main())
""",
        5,
    ),
    "sync, sys.exit in the block": (
        """
with make(say("done")) as runtime:
    print(runtime.session("s").send("go").text)
    sys.exit(5)
""",
        5,
    ),
    "sync, never closed": (
        """
runtime = make(say("done")).__enter__()
print(runtime.session("s").send("go").text)
""",
        0,
    ),
    "sync, never closed and let go of": (
        """
def use():
    print(make(say("done")).__enter__().session("s").send("go").text)
use()
""",
        0,
    ),
    "sync, never closed, in a thread that ends after the main thread": (
        """
runtime = make(say("done")).__enter__()
def use():
    threading.main_thread().join()
    print(runtime.session("s").send("go").text)
threading.Thread(target=use).start()
""",
        0,
    ),
    "a connection for threads, never closed": (
        """
runtime = make(say("done")).__enter__()
connection = SyncConnection(connect(sys.argv[1]))
print(connection.session("s").send("go").text)
""",
        0,
    ),
    "async and sync, both in order": (
        """
async def main():
    async with make(say("done")) as runtime:
        print((await (await runtime.session("s")).send("go")).text)
asyncio.run(main())
with make() as runtime:
    pass
""",
        0,
    ),
}

LEAVING_TOOLS = {
    "async face": """
async def main():
    async with make(use("TOOL"), say("done"), cancel_grace_s=0.1, close_grace_s=0.1) as runtime:
        print((await (await runtime.session("s")).send("go")).text)
asyncio.run(main())
""",
    "sync face": """
with make(use("TOOL"), say("done"), cancel_grace_s=0.1, close_grace_s=0.1) as runtime:
    print(runtime.session("s").send("go").text)
""",
}


def run(program: str, log: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-X", "dev", "-c", PROGRAM + program, str(log)],
        capture_output=True,
        text=True,
        check=False,
        env=QUIET,
        timeout=60,
    )


def read(log: Path) -> tuple[list[str], bool]:
    """Check a log that nobody holds any more; return how its runs ended, and whether its runtime closed in order."""

    async def look() -> tuple[list[str], bool]:
        async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
            await assert_sound(store)
            events = SESSION_CODEC.decode_all(await store.read_stream("session/s"))
            runtime = RUNTIME_CODEC.decode_all(await store.read_stream(RUNTIME_STREAM))
        ends = [type(event).__name__ for event in events if isinstance(event, RunCompleted | RunCancelled | RunFailed)]
        return ends, isinstance(runtime[-1], RuntimeClosed)

    return asyncio.run(look())


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_ORDER)
def test_a_process_that_ends_in_order_says_nothing_and_its_runtime_has_closed(case: str, tmp_path: Path) -> None:
    program, code = IN_ORDER[case]
    done = run(program, tmp_path / "events.db")
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", code)
    assert read(tmp_path / "events.db") == (["RunCompleted"], True)


@pytest.mark.parametrize("face", LEAVING_TOOLS)
def test_a_tool_that_ends_the_process_leaves_its_run_open(face: str, tmp_path: Path) -> None:
    done = run(LEAVING_TOOLS[face].replace("TOOL", "end"), tmp_path / "events.db")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 7)
    assert read(tmp_path / "events.db") == ([], False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leave", "leave_thread"])
@pytest.mark.parametrize("face", LEAVING_TOOLS)
def test_a_tool_that_raises_system_exit_has_failed_and_ends_nothing(face: str, name: str, tmp_path: Path) -> None:
    done = run(LEAVING_TOOLS[face].replace("TOOL", name), tmp_path / "events.db")
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert done.stderr.count(f"tool/{name}: call call_6_0 of session s raised\n") == 1  # The library's log.
    assert "Warning" not in done.stderr
    assert read(tmp_path / "events.db") == (["RunCompleted"], True)
