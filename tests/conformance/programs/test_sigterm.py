"""Processes that SIGTERM ends: at once, which is a crash, or in order, where they asked for that. Signals are real."""

import asyncio
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from textwrap import indent
from typing import Any

import httpx
import pytest

from refold import AgentConfig, AgentRuntime, ConfigError, ScriptedProvider, close_on_sigterm, stop_on_sigterm
from refold.events.kinds.runtime import RuntimeClosed
from refold.events.session.events import RunCancelled, SessionEvent, ToolCallCompleted
from tests.conformance.processes import BEGINNING, STRICT, command_line, left_in, read_until, started

PROGRAM = (
    BEGINNING
    + '''
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
    return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[work], log=log, **options)

async def main():
    try:
BODY
        print("the block ended")
    finally:
        print("finally", flush=True)

asyncio.run(main())
'''
)

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

RAISES = """
async with make(hang, close_grace_s=0) as runtime, stop_on_sigterm(runtime):
    try:
        await (await runtime.session("s")).send("go")
    except ActorStopped:
        raise ValueError("of its own") from None
"""

AGENTS = """
import asyncio
from refold import Agent, AgentConfig, ScriptedProvider

async def hang(request):
    print("hanging", flush=True)
    await asyncio.Event().wait()

hanger = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([hang]))
"""


def program(body: str, log: Path) -> list[str]:
    return command_line(*STRICT, "-c", PROGRAM.replace("BODY", indent(body.strip("\n"), "        ")), log)


def assert_closed_in_order(log: Path, open_runs: int = 1) -> list[SessionEvent]:
    session, runtimes = left_in(log)
    assert isinstance(runtimes[-1], RuntimeClosed)
    assert runtimes[-1].open_runs == open_runs
    assert not any(isinstance(event, RunCancelled) for event in session)
    return session


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def test_by_default_it_is_a_crash_and_the_log_is_sound(log: Path) -> None:
    with started(program(WITHOUT, log)) as process:
        read_until(process, "asked")
        process.terminate()
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGTERM
    session, runtimes = left_in(log)
    assert (len(runtimes), any(isinstance(event, RunCancelled) for event in session)) == (1, False)


@pytest.mark.parametrize("case", STOPPING)
def test_a_program_that_asked_for_it_closes_its_runtime_and_leaves_its_runs_open(case: str, log: Path) -> None:
    open_runs = 2 if "group" in case else 1
    with started(program(STOPPING[case], log)) as process:
        read_until(process, *["asked"] * open_runs)
        process.terminate()
        said, complaints = process.communicate(timeout=60)
    told = ["SIGTERM: the runtime closes; a second one ends the process at once"]
    assert said.splitlines() == [*told, *(["stopped"] if case == "serves" else []), "finally"]
    assert (complaints, process.returncode) == ("", 143)
    assert_closed_in_order(log, open_runs)


def test_what_is_in_flight_reaches_the_log_within_the_grace(log: Path) -> None:
    with started(program(WORKS, log)) as process:
        read_until(process, "working")
        process.terminate()
        read_until(process, "SIGTERM")
        assert process.communicate("worked\n", timeout=60)[1] == ""
    assert process.returncode == 143
    [completed] = [event for event in assert_closed_in_order(log) if isinstance(event, ToolCallCompleted)]
    assert completed.content[0].text == "worked"  # type: ignore[union-attr]


def test_a_second_one_ends_the_process_within_the_grace_and_the_log_is_sound(log: Path) -> None:
    with started(program(WORKS, log)) as process:
        read_until(process, "working")
        process.terminate()
        read_until(process, "SIGTERM")
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM
    assert len(left_in(log).runtimes) == 1


def test_an_error_of_the_block_is_raised_as_it_is(log: Path) -> None:
    with started(program(RAISES, log)) as process:
        read_until(process, "asked")
        process.terminate()
        _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints.splitlines()[-1]) == (1, "ValueError: of its own")
    assert_closed_in_order(log)


def run_command(folder: Path) -> list[str]:
    folder.joinpath("agents.py").write_text(AGENTS)
    return command_line(
        *("-m", "refold", "run", "agents:hanger", "go"), *("--log", folder / "events.db", "--session", "s")
    )


def test_a_second_one_ends_the_run_command_at_once(tmp_path: Path) -> None:
    with started(run_command(tmp_path), cwd=tmp_path) as process:
        read_until(process, "hanging")
        process.terminate()
        assert process.stderr is not None
        while "closing" not in process.stderr.readline():
            assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM
    assert len(left_in(tmp_path / "events.db").runtimes) == 1


SERVER = (
    BEGINNING
    + """
from contextlib import asynccontextmanager
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

async def hang(request):
    await asyncio.Event().wait()

@asynccontextmanager
async def lifespan(app):
    model = ScriptedProvider([hang] * 9)
    async with AgentRuntime(AgentConfig(model="m"), provider=model, log=log, close_grace_s=0) as it:
        app.state.runtime = it
        async with close_on_sigterm(it):
            yield

app = FastAPI(lifespan=lifespan)

async def lines(items):
    try:
        async for item in items:
            yield f"{type(item).__name__}\\n"
    except ActorStopped:
        yield "stopped\\n"

@app.get("/{way}")
async def follow(way: str):
    session = await app.state.runtime.session("s" if way == "stream" else "t")
    if way == "stream":
        items = session.stream("go")
    elif way == "follow":
        items = session.follow(after_version=0)
    else:
        items = (await session.submit("go", key="k")).stream()
    return StreamingResponse(lines(items))

uvicorn.run(app, port=0)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_with_open_streams_ends_and_leaves_its_runs_open(number: signal.Signals, log: Path) -> None:
    with started(command_line("-c", SERVER, log), stderr=subprocess.STDOUT) as process:
        address = re.search(r"(http://[\d.:]+)", read_until(process, "INFO:     Uvicorn running"))
        assert address
        with ExitStack() as streams, httpx.Client(base_url=address[1], timeout=60) as client:
            lines = []
            for way in ("stream", "read", "follow"):
                lines.append(streams.enter_context(client.stream("GET", f"/{way}")).iter_lines())
                assert next(lines[-1]) == "RecordedEvent"
            process.send_signal(number)
            ends = [list(each)[-1] for each in lines]
        said = process.communicate(timeout=60)[0]
    assert (ends[0], set(ends[1:]) <= {"stopped", "RecordedEvent"}) == ("stopped", True)
    assert "Traceback" not in said
    runtimes = left_in(log).runtimes
    assert isinstance(runtimes[-1], RuntimeClosed)
    assert runtimes[-1].open_runs == 2


@pytest.mark.parametrize("stop", [close_on_sigterm, stop_on_sigterm])
async def test_a_handler_that_python_has_not_set_gives_place_to_the_systems(
    stop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([])) as runtime:
            with monkeypatch.context() as patched:
                patched.setattr(signal, "getsignal", lambda number: None)
                block = stop(runtime)
                await block.__aenter__()
            await block.__aexit__(None, None, None)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("stop", [close_on_sigterm, stop_on_sigterm])
async def test_the_handlers_that_were_there_before_are_there_again_after_the_block(stop: Any) -> None:
    def handle(*_: object) -> None:
        raise AssertionError("nobody sends a signal")

    before, interrupt = signal.signal(signal.SIGTERM, handle), signal.getsignal(signal.SIGINT)
    try:
        async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([])) as runtime, stop(runtime):
            assert signal.getsignal(signal.SIGTERM) is not handle
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == [handle, interrupt]
    finally:
        signal.signal(signal.SIGTERM, before)


# Where it cannot be.


async def test_a_thread_that_gets_no_signals_is_told() -> None:
    async def elsewhere() -> None:
        async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([])) as runtime:
            with pytest.raises(ConfigError, match="main thread"):
                async with stop_on_sigterm(runtime):
                    raise AssertionError("unreachable")

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
