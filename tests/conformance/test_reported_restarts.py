"""Cases N and M of the reported faults: what is the same when it is done again, and what a killed process leaves.

The kills are real, with SIGKILL, at a moment that the child itself chooses.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    Completed,
    LogInUse,
    ModelRequest,
    ScriptedProvider,
    Session,
    ToolResultBlock,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CRASHED_TEXT
from refold.events.session.events import InputQueued, RunParked, RunStarted, ToolCallCompleted
from refold.events.session.invariants import check_events, check_history
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore

CONFIG = AgentConfig(model="test-model")


async def assert_sound(log: EventStore) -> None:
    assert (await check_log(log)).problems == ()
    first, second = await replay(log, level="core"), await replay(log, level="core")
    first.raise_for_divergence()
    assert first == second
    for head in await log.list_streams(prefix="session/"):
        assert check_events(SESSION_CODEC.decode_all(await log.read_stream(head.stream)), head.stream) == []


async def assert_sound_file(path: Path) -> None:
    async with await SQLiteStore.open(path, read_only=True) as store:
        await assert_sound(store)


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is found sound when the test is over."""
    store: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield store
    await assert_sound(store)
    await store.close()


def runtime_of(log: Any, *script: Any, tools: Any = (), **options: Any) -> AgentRuntime:
    return AgentRuntime(CONFIG, provider=ScriptedProvider(script), tools=tools, log=log, **options)


async def results_of(session: Session) -> list[str]:
    return [
        block.text
        for message in await session.history()
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]


async def types_of(session: Session) -> list[str]:
    return [type(recorded.event).__name__ async for recorded in session.events()]


async def end_of_open_run(runtime: AgentRuntime, session: Session) -> None:
    """Return when a run that an earlier process left has ended or was parked."""
    done = asyncio.Event()

    def see(recorded: Any) -> None:
        if type(recorded.event).__name__ in ("RunCompleted", "RunFailed", "RunCancelled", "RunParked"):
            done.set()

    forget = runtime.subscribe(see, session=session.id)
    state = await session.state_at()
    if state.run is not None and not state.run.parked:
        await done.wait()
    forget()


# N01, N03: the order in the log is the order


@pytest.mark.parametrize("order", ["".join(order) for order in itertools.permutations("abc")])
@pytest.mark.parametrize("tick", ["apart", "in one tick"])
async def test_case_n01_parallel_results_are_recorded_as_they_end_and_decided_on_alike_in_every_replay(
    log: EventStore, order: str, tick: str
) -> None:
    gates = {name: asyncio.Event() for name in "abc"}
    ended: list[str] = []
    begun = asyncio.Event()

    @tool(tier="observe")
    async def look(name: str) -> str:
        """Look."""
        if name == "c":
            begun.set()
        await gates[name].wait()
        ended.append(name)
        return name

    async with runtime_of(log, [use("look", {"name": name}) for name in "abc"], say("ok"), tools=[look]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        for name in order:
            recorded = asyncio.Event()
            forget = runtime.subscribe(lambda _, recorded=recorded: recorded.set())  # type: ignore[misc]
            gates[name].set()
            if tick == "apart":
                await recorded.wait()
            forget()
        assert (await sending).outcome == Completed()
        texts = [
            recorded.event.content[0].text  # type: ignore[union-attr]
            async for recorded in session.events()
            if isinstance(recorded.event, ToolCallCompleted)
        ]
        assert texts == ended, "the log has them in the order in which they ended"
        assert await results_of(session) == ["a", "b", "c"], "the model has them in the order of its calls"
    if tick == "apart":
        assert "".join(ended) == order


async def accepted_and_run(session: Session) -> tuple[list[str], list[int]]:
    """Return the inputs in the order accepted, and their versions in the order in which their runs began."""
    texts: list[str] = []
    places: list[int] = []
    versions: list[int] = []
    async for recorded in session.events():
        if isinstance(recorded.event, InputQueued):
            texts.append("".join(block.text for block in recorded.event.content if hasattr(block, "text")))
            versions.append(recorded.version)
        elif isinstance(recorded.event, RunStarted):
            places.append(recorded.event.input)
    assert places == versions
    return texts, places


async def test_case_n03_inputs_that_arrive_close_together_run_in_the_order_of_the_log(log: EventStore) -> None:
    def echo(request: ModelRequest) -> str:
        return f"heard {request.messages[-1].text}"

    async with runtime_of(log, *[echo] * 30) as runtime:
        session = await runtime.session("s")
        results = await asyncio.gather(*(session.send(f"input {number}") for number in range(30)))
        assert [result.text for result in results] == [f"heard input {number}" for number in range(30)]
        texts, _ = await accepted_and_run(session)
        assert texts == [f"input {number}" for number in range(30)]


@pytest.mark.slow
@pytest.mark.parametrize("second", ["send", "cancel", "both"])
@pytest.mark.parametrize("at", range(1, 12))
async def test_case_n03_what_arrives_at_any_event_of_a_run_has_one_place_in_the_log(
    log: EventStore, at: int, second: str
) -> None:
    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    def answer(request: ModelRequest) -> Any:
        return use("work") if request.messages[-1].text == "first" else "fine"

    others: list[asyncio.Task[Any]] = []
    async with runtime_of(log, *[answer] * 6, tools=[work]) as runtime:
        session = await runtime.session("s")

        def arrive(recorded: Any) -> None:
            if recorded.version == at:
                if second in ("send", "both"):
                    others.append(asyncio.create_task(session.send("second")))
                if second in ("cancel", "both"):
                    others.append(asyncio.create_task(session.cancel()))

        runtime.subscribe(arrive)
        await session.send("first")
        await asyncio.gather(*others)
        texts, _ = await accepted_and_run(session)
        assert texts == (["first"] if second == "cancel" else ["first", "second"])
        assert check_history(await session.history()) == []
        types = await types_of(session)
        assert sum(types.count(kind) for kind in ("RunCompleted", "RunCancelled")) == len(texts)


# N09: a result and what follows from it are one transaction

CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.stores import SQLiteStore

log, effect, point, wanted, ran = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5])
armed, warm = False, True

def kill(reached):
    if armed and reached == point:
        os.kill(os.getpid(), signal.SIGKILL)

@tool(tier="act", effect=effect)
async def work() -> str:
    global armed
    if warm:
        return "warm"
    with ran.open("a") as file:
        file.write("x")
    if wanted == "in the body":
        os.kill(os.getpid(), signal.SIGKILL)
    if wanted == "result":
        armed = True
    return "worked"

def answer(text):
    def say_it(request):
        global armed
        armed = armed or (wanted == text and not warm)
        return use("work") if text == "call" else "done"
    return say_it

async def main():
    global armed, warm
    async with await SQLiteStore.open(log, fault=kill) as store:
        provider = ScriptedProvider([answer("call"), answer("final")] * 2)
        async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[work], log=store) as runtime:
            session = await runtime.session("s")
            await (await runtime.session("another")).send("go")  # Defines the tool, which is an append of its own.
            warm = False
            armed = wanted == "input"
            await session.send("go", key="k")

asyncio.run(main())
"""


def run_child(source: str, *arguments: object) -> int:
    """Run a process to its end, which may be of its own hand, and return how it ended."""
    command = [sys.executable, "-P", "-c", source, *map(str, arguments)]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=120).returncode


@pytest.mark.slow
@pytest.mark.parametrize("point", ["append.begun", "append.inserted", "append.committed"])
@pytest.mark.parametrize("wanted", ["input", "call", "result", "final"])
@pytest.mark.parametrize("effect", ["once", pytest.param("idempotent", marks=pytest.mark.slow)])
async def test_case_n09_a_process_killed_in_any_append_has_recorded_a_whole_step_or_nothing_of_it(
    tmp_path: Path, effect: Any, wanted: str, point: str
) -> None:
    path, ran = tmp_path / "events.db", tmp_path / "ran"
    assert run_child(CHILD, path, effect, point, wanted, ran) == -signal.SIGKILL
    before = len(ran.read_text()) if ran.exists() else 0
    assert before == (wanted in ("result", "final"))
    again: list[str] = []

    @tool(tier="act", effect=effect)
    async def work() -> str:
        """Work again."""
        again.append("x")
        return "worked"

    def answer(request: ModelRequest) -> Any:
        return "done" if len(request.messages) > 1 else use("work")

    async with runtime_of(path, answer, answer, tools=[work]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        types = await types_of(session)
        counts = [types.count(kind) for kind in ("InputQueued", "RunCompleted")]
        assert counts == [1, 1]
        assert types.count("ToolCallCompleted") + types.count("ToolCallFailed") == 1
        assert not {"ToolResultLate", "ModelInterrupted"}.intersection(types)
        (result,) = await results_of(session)
    lost = wanted == "result" and point != "append.committed"
    started = wanted == "call" and point == "append.committed"
    unknown = effect == "once" and (lost or started)
    assert result == (CRASHED_TEXT if unknown else "worked")
    assert len(again) == (0 if unknown or (before and not lost) else 1)
    await assert_sound_file(path)


# M02: a run that was killed in a tool ends by itself, at once


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
async def test_case_m02_a_run_killed_in_a_tool_ends_without_any_input_and_before_any_time_has_passed(
    tmp_path: Path, effect: Any
) -> None:
    path, ran, again = tmp_path / "events.db", tmp_path / "ran", list[str]()
    assert run_child(CHILD, path, effect, "", "in the body", ran) == -signal.SIGKILL

    @tool(tier="act", effect=effect)
    async def work() -> str:
        """Work again."""
        again.append("x")
        return "worked"

    clock = ManualClock()
    async with runtime_of(path, say("done"), tools=[work], clock=clock) as runtime:
        session = await runtime.session("s", restore=True)
        await end_of_open_run(runtime, session)
        assert clock.monotonic_s() == 0, "nothing waits for a lease"
        assert await results_of(session) == [CRASHED_TEXT if effect == "once" else "worked"]
        assert (await types_of(session))[-1] == "RunCompleted"
    assert again == ([] if effect == "once" else ["x"])
    await assert_sound_file(path)


# M03: one runtime owns a log


OTHER = """
import asyncio, sys
from refold import AgentConfig, AgentRuntime, LogInUse, ScriptedProvider, say

async def main():
    try:
        async with AgentRuntime(
            AgentConfig(model="m"), provider=ScriptedProvider([say("x")]), log=sys.argv[1], wait_for_log_s=0
        ) as runtime:
            await (await runtime.session("s")).send("from another process")
    except LogInUse as error:
        sys.exit(7 if str(error.pid) == sys.argv[2] else 8)

asyncio.run(main())
"""


@pytest.mark.parametrize("second", ["in this process", "in another process"])
async def test_case_m03_a_second_runtime_is_refused_while_the_first_is_in_a_tool_and_nothing_is_lost(
    tmp_path: Path, second: str
) -> None:
    path, begun, gate = tmp_path / "events.db", asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        begun.set()
        await gate.wait()
        return "worked"

    async with runtime_of(path, use("work"), say("done"), say("more"), tools=[work]) as first:
        session = await first.session("s")
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        if second == "in this process":
            with pytest.raises(LogInUse, match=str(os.getpid())):
                await runtime_of(path, say("x"), wait_for_log_s=0).__aenter__()
        else:
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, run_child, OTHER, path, os.getpid()) == 7
        gate.set()
        assert (await sending).text == "done"
        assert (await session.send("again")).text == "more"
    async with runtime_of(path, say("third"), wait_for_log_s=0) as third:
        session = await third.session("s", restore=True)
        assert (await session.send("and again")).text == "third"
        texts = [message.text for message in await session.history() if message.text]
        assert texts == ["go", "done", "again", "more", "and again", "third"]
    await assert_sound_file(path)


async def test_case_m03_a_second_runtime_that_may_wait_takes_the_log_over_and_goes_on(tmp_path: Path) -> None:
    path, begun, gate = tmp_path / "events.db", asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        begun.set()
        await gate.wait()
        return "worked"

    first = runtime_of(path, use("work"), tools=[work], close_grace_s=0)
    async with first:
        sending = asyncio.create_task((await first.session("s")).send("go", key="k"))
        await begun.wait()
        second = runtime_of(path, say("done"), tools=[work], wait_for_log_s=60)
        opening = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        assert not opening.done()
        await first.close()
        gate.set()
        await opening
    with pytest.raises(ActorStopped):
        await sending
    async with second_of(opening) as runtime:
        assert (await (await runtime.session("s")).send("go", key="k")).text == "done"
    await assert_sound_file(path)


class second_of:  # noqa: N801 - Reads as a phrase where it is used.
    """Leaves a runtime that was entered elsewhere."""

    def __init__(self, opening: asyncio.Task[AgentRuntime]) -> None:
        self._opening = opening

    async def __aenter__(self) -> AgentRuntime:
        return await self._opening

    async def __aexit__(self, *_: object) -> None:
        await (await self._opening).close()


# M09: a tool that kills its process is parked

BOMB = """
import asyncio, os, signal, sys
from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use

log, life, effect = sys.argv[1], int(sys.argv[2]), sys.argv[3]

@tool(effect=effect)
async def bomb() -> str:
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    parked = asyncio.Event()

    def see(recorded):
        if type(recorded.event).__name__ == "RunParked":
            parked.set()

    provider = ScriptedProvider([use("bomb")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[bomb], log=log) as runtime:
        runtime.subscribe(see, session="s")
        session = await runtime.session("s")
        if life == 0:
            await session.send("go", key="k")
        if (run := (await session.state_at()).run) is not None and not run.parked:
            await parked.wait()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["idempotent", "pure"])
async def test_case_m09_a_tool_that_kills_every_process_is_parked_after_three_resumes_until_somebody_decides(
    tmp_path: Path, effect: Any
) -> None:
    path, ran = tmp_path / "events.db", list[str]()
    ends = [run_child(BOMB, path, life, effect) for life in range(5)]
    assert ends == [-signal.SIGKILL] * 4 + [0]

    @tool(effect=effect)
    async def bomb() -> str:
        """Be harmless now."""
        ran.append("x")
        return "defused"

    async with runtime_of(path, say("innocent"), say("done"), tools=[bomb]) as runtime:
        session = await runtime.session("s")
        await end_of_open_run(runtime, session)
        types = await types_of(session)
        assert (types.count("RunResumed"), types.count("RunParked")) == (4, 1), "the fourth resume only parks it"
        assert types[-1] == RunParked.__name__
        assert (await (await runtime.session("another")).send("go")).text == "innocent"
        assert ran == [], "nothing is tried again before somebody decides"
        await session.resume()
        assert (await session.send("go", key="k")).text == "done"
        assert await results_of(session) == ["defused"]
    assert ran == ["x"]
    await assert_sound_file(path)


@pytest.mark.slow
async def test_case_m09_a_parked_run_can_be_cancelled_and_the_session_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    for life in range(5):
        run_child(BOMB, path, life, "pure")
    async with runtime_of(path, say("after")) as runtime:
        session = await runtime.session("s")
        await session.cancel()
        assert (await session.send("another")).text == "after"
        assert _outcomes(await types_of(session)) == ["RunCancelled", "RunCompleted"]
    await assert_sound_file(path)


def _outcomes(types: Sequence[str]) -> list[str]:
    return [kind for kind in types if kind in ("RunCompleted", "RunFailed", "RunCancelled")]
