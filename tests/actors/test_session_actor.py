"""A session's actor in a whole runtime: a log that fails, a runtime that closes, another that goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    Cancelled,
    ConfigError,
    LogFormatError,
    ModelRequest,
    PersistenceError,
    ScriptedProvider,
    Session,
    ToolContext,
    ToolResultBlock,
    lifecycle,
    say,
    tool,
    use,
)
from refold.actors import ManualClock, SystemClock
from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.events.session.events import (
    InputQueued,
    RunCompleted,
)
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore

CONFIG = AgentConfig(model="test-model")


async def assert_sound(store: EventStore) -> None:
    assert (await check_log(store)).problems == ()
    (await replay(store, level="core")).raise_for_divergence()


@pytest.fixture(params=["memory", "file"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is checked and replayed when the test is over."""
    store: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield store
    await assert_sound(store)
    await store.close()


class Seen:
    """Waits for events of a session; also for those that came before anybody waited."""

    def __init__(self, runtime: AgentRuntime, session: str = "s") -> None:
        self._events: list[Any] = []
        self._wake = asyncio.Event()
        runtime.subscribe(self._see, session=session)

    def _see(self, recorded: Any) -> None:
        self._events.append(recorded.event)
        self._wake.set()

    async def first(self, kind: type) -> Any:
        """Return the first event of a kind, once it is durable."""
        while not (found := [event for event in self._events if isinstance(event, kind)]):
            self._wake.clear()
            await self._wake.wait()
        return found[0]


def runtime_of(log: EventStore, *script: Any, tools: Any = (), **options: Any) -> AgentRuntime:
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


# A log that fails


class FaultyStore(InMemoryStore):
    """Fails one append that holds events of a session, counted from 1."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__()
        self.at, self.how, self.count = at, how, 0

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        if not any(batch.stream.startswith("session/") for batch in batches):
            return await super().append(batches, payloads)
        self.count += 1
        if self.count == self.at and self.how == "before":
            raise PersistenceError("the disk is full")
        if self.count == self.at and self.how == "anything":
            raise ZeroDivisionError
        appended = await super().append(batches, payloads)
        if self.count == self.at and self.how == "after":
            raise PersistenceError("the disk went away", outcome_unknown=True)
        return appended


@pytest.mark.parametrize("how", ["before", "anything", "after"])
@pytest.mark.parametrize("at", range(1, 5))
async def test_a_log_that_fails_once_at_any_append_of_a_run_costs_an_error_or_a_moment_and_nothing_else(
    at: int, how: str
) -> None:
    ran: list[str] = []

    @tool(effect="once")
    async def work() -> str:
        """Work."""
        ran.append("worked")
        return "worked"

    store, clock = FaultyStore(at, how), ManualClock()
    provider = ScriptedProvider([use("work"), say("done")])
    async with AgentRuntime(CONFIG, provider=provider, tools=[work], log=store, clock=clock) as runtime:
        session = await runtime.session("s")
        seen: list[int] = []
        runtime.subscribe(lambda recorded: seen.append(recorded.version))
        if at == 1:
            with pytest.raises(PersistenceError):
                await session.send("go", key="k")
            assert (await session.history() == []) == (how != "after")
        sending = asyncio.create_task(session.send("go", key="k"))
        await clock.advance(1)
        assert (await sending).text == "done"
        types = await types_of(session)
        assert seen == list(range(1, len(types) + 1))
        assert await results_of(session) == ["worked"]
    assert (ran, len(provider.requests)) == (["worked"], 2)
    assert types.count("InputQueued") == types.count("RunCompleted") == types.count("ToolCallCompleted") == 1
    assert not {"ToolResultLate", "ModelInterrupted"}.intersection(types)
    await assert_sound(store)


class Unreadable(InMemoryStore):
    broken = True

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> Any:
        if self.broken and stream.startswith("session/"):
            raise PersistenceError(f"stream {stream!r} cannot be read")
        return await super().read_stream(stream, after_version=after_version, limit=limit)


async def test_an_open_run_goes_on_by_itself_when_its_log_can_be_read_again() -> None:
    store, clock = Unreadable(), ManualClock()
    store.broken = False
    async with runtime_of(store, lambda _: asyncio.Event().wait(), clock=clock, close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await clock.settle()
        closing = asyncio.create_task(runtime.close())
        while not closing.done():
            await clock.advance(1)
    with pytest.raises(ActorStopped):
        await sending
    store.broken = True
    async with runtime_of(store, say("fine"), clock=clock) as runtime:
        await clock.advance(3)
        store.broken = False
        await clock.advance(10)
        finished = (await (await runtime.session("s")).state_at()).last_run
        assert finished is not None
        assert finished.outcome == "completed"
    await assert_sound(store)


# Closing, and going on


def parked(effect: Any, begun: asyncio.Event, gate: asyncio.Event, keys: list[str]) -> Any:
    @tool(name="work", effect=effect)
    async def work(context: ToolContext[Any]) -> str:
        """Work until let go."""
        keys.append(context.idempotency_key)
        begun.set()
        await gate.wait()
        return "worked"

    return work


@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
async def test_a_run_left_open_in_a_tool_goes_on_as_the_tools_effect_class_says(log: EventStore, effect: str) -> None:
    begun, gate, keys = asyncio.Event(), asyncio.Event(), list[str]()
    work = parked(effect, begun, gate, keys)
    async with runtime_of(log, use("work"), tools=[work], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        await begun.wait()
    with pytest.raises(ActorStopped):
        await sending
    gate.set()
    async with runtime_of(log, say("done"), tools=[work]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert await results_of(session) == [CRASHED_TEXT if effect == "once" else "worked"]
    assert keys == keys[:1] * (1 if effect == "once" else 2)


async def test_without_auto_resume_nothing_goes_on_before_somebody_asks(log: EventStore) -> None:
    begun, gate, keys = asyncio.Event(), asyncio.Event(), list[str]()
    work = parked("pure", begun, gate, keys)
    async with runtime_of(log, use("work"), tools=[work], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await begun.wait()
    with pytest.raises(ActorStopped):
        await sending
    gate.set()
    async with runtime_of(log, say("done"), say("next"), tools=[work], auto_resume=False) as runtime:
        session, seen = await runtime.session("s"), Seen(runtime)
        before = await types_of(session)
        assert len(await session.history()) == 3
        queued = asyncio.create_task(session.send("another"))
        await seen.first(InputQueued)
        assert len(await session.history()) == 3
        assert await types_of(session) == [*before, "InputQueued"]
        assert len(keys) == 1
        await session.resume()
        await seen.first(RunCompleted)
        assert (await queued).text == "next"
        assert (await types_of(session)).count("RunResumed") == 1
    assert len(keys) == 2


async def test_without_auto_resume_a_run_can_be_cancelled_and_the_next_one_begins(log: EventStore) -> None:
    begun, gate, keys = asyncio.Event(), asyncio.Event(), list[str]()
    work = parked("pure", begun, gate, keys)
    async with runtime_of(log, use("work"), tools=[work], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await begun.wait()
    with pytest.raises(ActorStopped):
        await sending
    async with runtime_of(log, say("next"), tools=[work], auto_resume=False) as runtime:
        session = await runtime.session("s")
        await session.cancel()
        assert (await session.send("another")).text == "next"
        assert await results_of(session) == [CANCELLED_TEXT]
    assert len(keys) == 1


@pytest.fixture
def crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every runtime take the one before it for crashed, though it ended in order."""

    async def never(store: EventStore) -> bool:
        return False

    monkeypatch.setattr(lifecycle, "ended_in_order", never)


async def test_a_deploy_in_the_middle_of_a_long_call_is_no_fruitless_resume(log: EventStore) -> None:
    begun, gate, keys = asyncio.Event(), asyncio.Event(), list[str]()
    work = parked("idempotent", begun, gate, keys)
    script: list[Any] = [use("work")]
    for _ in range(6):
        begun.clear()
        async with runtime_of(log, *script, tools=[work], close_grace_s=0) as runtime:
            if script:
                sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
            await begun.wait()
        script = []
    with pytest.raises(ActorStopped):
        await sending
    gate.set()
    async with runtime_of(log, say("done"), tools=[work]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert "RunParked" not in await types_of(session)


@pytest.mark.usefixtures("crashed")
async def test_runs_that_were_resumed_in_vain_go_on_one_by_one_so_that_none_is_parked_for_another() -> None:
    store, clock = InMemoryStore(), ManualClock()

    async def resumed() -> list[int]:
        """Return how often each of the three runs was resumed."""
        streams = [await store.read_stream(f"session/{name}") for name in "abc"]
        return [sum(b'"session.run_resumed.v1"' in event.data for event in stream) for stream in streams]

    async def life(*, runs: int, seconds: float) -> None:
        runtime = runtime_of(store, *[never] * 3, clock=clock, close_grace_s=0)
        async with runtime:
            for name in "abc"[:runs]:
                sending.append(asyncio.create_task((await runtime.session(name)).send("go")))
            await clock.advance(seconds)
            closing = asyncio.create_task(runtime.close())
            while not closing.done():
                await clock.advance(1)

    async def never(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "unreachable"

    sending: list[asyncio.Task[Any]] = []
    await life(runs=3, seconds=0)
    await life(runs=0, seconds=0)
    assert await resumed() == [1, 1, 1]
    await life(runs=0, seconds=1)
    assert await resumed() == [2, 1, 1]
    await life(runs=0, seconds=6)
    assert await resumed() == [3, 2, 1]
    await asyncio.gather(*sending, return_exceptions=True)


async def test_an_actor_that_is_restarted_in_the_middle_of_a_tool_waits_for_it_and_does_not_run_it_again(
    log: EventStore,
) -> None:
    begun, gate, keys = asyncio.Event(), asyncio.Event(), list[str]()
    work = parked("once", begun, gate, keys)
    clock = ManualClock()
    config = AgentConfig(model="m", run_timeout_s=600)
    provider = ScriptedProvider([use("work"), say("done")])
    failures: list[Any] = []
    failed = asyncio.Event()

    def on_failure(failure: Any) -> None:
        failures.append(failure)
        failed.set()

    options: dict[str, Any] = {"clock": clock, "on_failure": on_failure}
    async with AgentRuntime(config, provider=provider, tools=[work], log=log, **options) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        runtime.system.ref("session/s").tell(object())
        await failed.wait()
        await clock.advance(1)
        await session.history()
        gate.set()
        assert (await sending).text == "done"
        assert await results_of(session) == ["worked"]
        assert "RunResumed" not in await types_of(session)
    assert (len(keys), [failure.address for failure in failures]) == (1, ["session/s"])


# What is left


class Left:
    """The tasks and threads that there are; made before something that must leave none behind."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._threads = set(threading.enumerate())

    async def assert_nothing_more(self) -> None:
        """Wait for the threads that are ending, and check that no other one and no task has been added."""
        await asyncio.sleep(0)
        for thread in self._added():
            await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)
        assert self._added() == []
        assert asyncio.all_tasks() - self._tasks == set()

    def _added(self) -> list[threading.Thread]:
        added = set(threading.enumerate()) - self._threads
        return [thread for thread in added if not thread.name.startswith("asyncio_")]


@pytest.mark.parametrize("how", ["plainly", "with cancel", "by an error"])
async def test_no_task_and_no_thread_is_left_after_a_runtime(tmp_path: Path, how: str) -> None:
    begun, keys = asyncio.Event(), list[str]()
    work = parked("once", begun, asyncio.Event(), keys)

    @tool(tier="observe")
    def quick() -> str:
        """Run in a thread."""
        return "quick"

    async def use_it() -> None:
        path = tmp_path / "events.db"
        provider = ScriptedProvider([[use("quick")] * 3, say("one"), use("work")])
        async with AgentRuntime(CONFIG, provider=provider, tools=[work, quick], log=path, close_grace_s=0) as runtime:
            session = await runtime.session("s")
            await session.send("first")
            sending = asyncio.create_task(session.send("go"))
            await begun.wait()
            if how == "with cancel":
                await runtime.close(cancel=True)
                assert (await sending).outcome == Cancelled()
                return
            if how == "by an error":
                sending.cancel()
                raise LookupError("mine")
        with pytest.raises(ActorStopped):
            await sending

    before = Left()
    if how == "by an error":
        with pytest.raises(LookupError):
            await use_it()
    else:
        await use_it()
    await before.assert_nothing_more()


async def test_a_closed_runtime_refuses_every_command_and_says_why(log: EventStore) -> None:
    runtime = runtime_of(log, say("fine"))
    with pytest.raises(ConfigError, match="not open"):
        await runtime.session("s")
    async with runtime:
        session = await runtime.session("s")
        await session.send("go")
    for command in (
        session.send("go"),
        session.cancel(),
        session.resume(),
        session.history(),
        session.decide("call_1_0", allow=True),
        runtime.session("other"),
    ):
        with pytest.raises(ActorStopped, match="closed"):
            await command
    await runtime.close()
    with pytest.raises(ConfigError, match="make another one"):
        await runtime.__aenter__()


async def test_a_runtime_that_cannot_open_its_log_leaves_no_thread_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    path.write_bytes(b"this is no log at all, but long enough to be looked at" * 10)
    before = Left()
    with pytest.raises(LogFormatError):
        await AgentRuntime(CONFIG, provider=ScriptedProvider([]), log=path).__aenter__()
    await before.assert_nothing_more()
    path.unlink()
    async with AgentRuntime(CONFIG, provider=ScriptedProvider([]), log=path, wait_for_log_s=0) as runtime:
        assert await runtime.sessions() == []


async def test_a_runtime_whose_start_fails_releases_its_file(tmp_path: Path) -> None:
    path = tmp_path / "events.db"

    class Broken(SystemClock):
        def now_us(self) -> int:
            raise RuntimeError("no time")

    before = Left()
    runtime = AgentRuntime(CONFIG, provider=ScriptedProvider([]), log=path, clock=Broken(), close_grace_s=0)
    opening = asyncio.create_task(runtime.__aenter__())
    with pytest.raises(RuntimeError, match="no time"):
        await opening
    await before.assert_nothing_more()
    async with AgentRuntime(CONFIG, provider=ScriptedProvider([]), log=path, wait_for_log_s=0) as again:
        assert await again.sessions() == []
