"""Processes that SIGTERM ends: at once, which is a crash, or in order, where they asked for that. Signals are real."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, ConfigError, ScriptedProvider, stop_on_sigterm
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RuntimeClosed, RuntimeEvent
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import RunCancelled, SessionEvent, ToolCallCompleted
from refold.stores import SQLiteStore
from tests.conformance.sessions import assert_sound

QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}

PROGRAM = '''
import asyncio, logging, sys
from refold import *

if sys.flags.dev_mode:  # Development mode switches asyncio's debug mode on, and that times every step of the loop.
    logging.getLogger("asyncio").addFilter(lambda record: "took" not in record.getMessage())
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")

@tool
def work() -> str:
    """Work, until there is a line to read."""
    print("working", flush=True)
    return sys.stdin.readline().strip()

async def hang(request):
    print("asked", flush=True)
    await asyncio.Event().wait()

def make(*script, **options):
    provider = ScriptedProvider(script)
    return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[work], log=sys.argv[1], **options)

async def main():
    try:
BODY
        print("the block ended")
    finally:
        print("finally", flush=True)

asyncio.run(main())
'''

WITHOUT = """
        async with make(hang) as runtime:
            await (await runtime.session("s")).send("go")
"""

STOPPING = {
    "awaits a run": """
        async with make(hang, close_grace_s=0) as runtime, stop_on_sigterm(runtime):
            await (await runtime.session("s")).send("go")
""",
    "awaits runs in a group": """
        async with make(hang, hang, close_grace_s=0) as runtime, stop_on_sigterm(runtime), asyncio.TaskGroup() as group:
            for name in "st":
                group.create_task((await runtime.session(name)).send("go"))
""",
    "serves": """
        async def take():
            try:
                await session.send("go")
            except ActorStopped:
                print("stopped", flush=True)
        async with make(hang, close_grace_s=0) as runtime, stop_on_sigterm(runtime):
            session = await runtime.session("s")
            taking = asyncio.create_task(take())
            await asyncio.Event().wait()
""",
}

WORKS = """
        async with make(use("work"), hang, close_grace_s=3600) as runtime, stop_on_sigterm(runtime):
            await (await runtime.session("s")).send("go")
"""

AGENTS = """
import asyncio
from refold import Agent, AgentConfig, ScriptedProvider

async def hang(request):
    print("hanging", flush=True)
    await asyncio.Event().wait()

hanger = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([hang]))
"""


@contextmanager
def started(*arguments: object, folder: Path | None = None) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-P", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=QUIET,
        cwd=folder,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def program(body: str, log: Path) -> list[object]:
    return ["-W", "error", "-X", "dev", "-c", PROGRAM.replace("BODY\n", body.lstrip("\n")), log]


def read_until(process: "subprocess.Popen[str]", beginning: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"it ended before it wrote {beginning!r}")


def events_of(log: Path) -> tuple[list[SessionEvent], list[RuntimeEvent]]:
    """Check a log that nobody holds any more, and return the events of its session `s` and of its runtimes."""

    async def read() -> tuple[list[SessionEvent], list[RuntimeEvent]]:
        async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
            await assert_sound(store)
            session = SESSION_CODEC.decode_all(await store.read_stream("session/s"))
            return session, RUNTIME_CODEC.decode_all(await store.read_stream(RUNTIME_STREAM))

    return asyncio.run(read())


def assert_closed_in_order(log: Path, open_runs: int = 1) -> list[SessionEvent]:
    session, runtime = events_of(log)
    assert isinstance(runtime[-1], RuntimeClosed)
    assert runtime[-1].open_runs == open_runs
    assert not any(isinstance(event, RunCancelled) for event in session)
    return session


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def test_by_default_it_is_a_crash_and_the_log_is_sound(log: Path) -> None:
    with started(*program(WITHOUT, log)) as process:
        read_until(process, "asked")
        process.terminate()
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGTERM
    session, runtime = events_of(log)
    assert (len(runtime), any(isinstance(event, RunCancelled) for event in session)) == (1, False)


@pytest.mark.parametrize("case", STOPPING)
def test_a_program_that_asked_for_it_closes_its_runtime_and_leaves_its_runs_open(case: str, log: Path) -> None:
    with started(*program(STOPPING[case], log)) as process:
        for _ in range(2 if "group" in case else 1):
            read_until(process, "asked")
        process.terminate()
        said, complaints = process.communicate(timeout=60)
    told = ["SIGTERM: the runtime closes; a second one ends the process at once"]
    assert said.splitlines() == [*told, *(["stopped"] if case == "serves" else []), "finally"]
    assert (complaints, process.returncode) == ("", 143)
    assert_closed_in_order(log, open_runs=2 if "group" in case else 1)


def test_what_is_in_flight_reaches_the_log_within_the_grace(log: Path) -> None:
    with started(*program(WORKS, log)) as process:
        read_until(process, "working")
        process.terminate()
        read_until(process, "SIGTERM")
        assert process.communicate("worked\n", timeout=60)[1] == ""
    assert process.returncode == 143
    [completed] = [event for event in assert_closed_in_order(log) if isinstance(event, ToolCallCompleted)]
    assert completed.content[0].text == "worked"  # type: ignore[union-attr]


def test_a_second_one_ends_the_process_within_the_grace_and_the_log_is_sound(log: Path) -> None:
    with started(*program(WORKS, log)) as process:
        read_until(process, "working")
        process.terminate()
        read_until(process, "SIGTERM")
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM
    assert len(events_of(log)[1]) == 1


def test_an_error_of_the_block_is_raised_as_it_is(log: Path) -> None:
    body = STOPPING["awaits a run"].replace(
        'await (await runtime.session("s")).send("go")',
        """
            try:
                await (await runtime.session("s")).send("go")
            except ActorStopped:
                raise ValueError("of its own") from None""",
    )
    with started(*program(body, log)) as process:
        read_until(process, "asked")
        process.terminate()
        _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints.splitlines()[-1]) == (1, "ValueError: of its own")
    assert_closed_in_order(log)


def run_command(folder: Path) -> list[object]:
    folder.joinpath("agents.py").write_text(AGENTS)
    return ["-m", "refold", "run", "agents:hanger", "go", "--log", folder / "events.db", "--session", "s"]


@pytest.mark.slow  # It takes the grace that a runtime has by default.
def test_the_run_command_leaves_its_run_open(tmp_path: Path) -> None:
    with started(*run_command(tmp_path), folder=tmp_path) as process:
        read_until(process, "hanging")
        process.terminate()
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 143
    closing, left_open, goes_on = complaints.splitlines()[-3:]
    assert closing == "closing; SIGTERM again leaves at once"
    assert left_open == "refold: SIGTERM; the run is left open"
    assert "refold resume" in goes_on
    assert_closed_in_order(tmp_path / "events.db")


def test_a_second_one_ends_the_run_command_at_once(tmp_path: Path) -> None:
    with started(*run_command(tmp_path), folder=tmp_path) as process:
        read_until(process, "hanging")
        process.terminate()
        assert process.stderr is not None
        while "closing" not in process.stderr.readline():
            assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM
    assert len(events_of(tmp_path / "events.db")[1]) == 1


# Where it cannot be.


async def test_the_handler_that_was_there_before_is_there_again_after_the_block() -> None:
    def handle(*_: object) -> None:
        raise AssertionError("nobody sends a signal")

    before = signal.signal(signal.SIGTERM, handle)
    try:
        async with (
            AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([])) as runtime,
            stop_on_sigterm(runtime),
        ):
            assert signal.getsignal(signal.SIGTERM) is not handle
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_thread_that_gets_no_signals_is_told() -> None:
    async def elsewhere() -> None:
        async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([])) as runtime:
            with pytest.raises(ConfigError, match="main thread"):
                async with stop_on_sigterm(runtime):
                    raise AssertionError("unreachable")

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
