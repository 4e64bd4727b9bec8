"""Cases G of the reported faults, and M04: who is cancelled, in which task, and what is durable when he is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Cancelled,
    ModelRequest,
    RunResult,
    ScriptedProvider,
    Session,
    ToolContext,
    ToolResultBlock,
    say,
    tool,
    use,
)
from refold.events import SESSION_CODEC
from refold.events.core.content import CANCELLED_TEXT
from refold.events.session.invariants import check_events, check_history
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore

CONFIG = AgentConfig(model="test-model")

TERMINAL = ("RunCompleted", "RunFailed", "RunCancelled")


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is found sound when the test is over."""
    store: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield store
    assert (await check_log(store)).problems == ()
    (await replay(store, level="core")).raise_for_divergence()
    await store.close()


def runtime_of(log: EventStore, *script: Any, tools: Any = (), **options: Any) -> AgentRuntime:
    return AgentRuntime(CONFIG, provider=ScriptedProvider(script), tools=tools, log=log, **options)


async def cancel_by(way: str, session: Session, begun: asyncio.Event) -> str:
    """Send an input, cancel its run once a tool has begun, and return what its caller is told."""
    token = CancellationToken()
    sending = asyncio.create_task(session.send("go", cancel=token))
    await begun.wait()
    match way:
        case "session":
            await session.cancel()
        case "token":
            token.cancel()
        case _:
            sending.cancel()
    try:
        return type((await sending).outcome).__name__
    except asyncio.CancelledError:
        return "CancelledError"


async def types_of(session: Session) -> list[str]:
    return [type(recorded.event).__name__ async for recorded in session.events()]


async def results_of(session: Session) -> list[str]:
    return [
        block.text
        for message in await session.history()
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]


# G01, G04: the tool's task ends before the run is said to have ended


@pytest.mark.parametrize("way", ["session", "token", "task"])
async def test_case_g01_the_tools_task_is_over_before_anybody_is_told_that_its_run_is(
    log: EventStore, way: str
) -> None:
    begun, tasks, ticks = asyncio.Event(), list[asyncio.Task[Any]](), list[int]()

    @tool
    async def tick() -> str:
        """Tick for ever."""
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        while True:
            ticks.append(len(ticks))
            begun.set()
            await asyncio.sleep(0)

    async with runtime_of(log, use("tick"), say("after"), tools=[tick]) as runtime:
        session = await runtime.session("s")
        assert await cancel_by(way, session, begun) == ("CancelledError" if way == "task" else "Cancelled")
        assert [task.done() for task in tasks] == [True]
        heard = len(ticks)
        assert (await session.send("more")).text == "after"
        assert len(ticks) == heard, "nothing ticks on"


@pytest.mark.parametrize("way", ["session", "token", "task"])
async def test_case_g01_the_tasks_of_a_tool_are_ended_by_it_and_waited_for(log: EventStore, way: str) -> None:
    begun, cleaned = asyncio.Event(), list[str]()

    async def child(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.append(name)

    @tool
    async def parent() -> str:
        """Have children."""
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(child(name))
            await asyncio.sleep(0)
            begun.set()
        return "unreachable"

    async with runtime_of(log, use("parent"), say("after"), tools=[parent]) as runtime:
        session = await runtime.session("s")
        await cancel_by(way, session, begun)
        assert sorted(cleaned) == ["a", "b", "c"]
        assert await results_of(session) == [CANCELLED_TEXT]


@pytest.mark.parametrize("way", ["session", "token", "task"])
@pytest.mark.parametrize(
    "manners", ["reraises", "swallows as Exception", "swallows and returns", "raises another", "cleans up slowly"]
)
async def test_case_g04_a_cancellation_that_a_tool_handles_in_its_own_way_still_ends_the_run_as_cancelled(
    log: EventStore, way: str, manners: str
) -> None:
    begun, cleaned = asyncio.Event(), list[str]()

    @tool
    async def work() -> str:
        """Work."""
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.append(manners)
            match manners:
                case "swallows and returns":
                    return "as if nothing had been"
                case "raises another":
                    raise ValueError("in the cleaning") from None
                case "swallows as Exception":
                    with contextlib.suppress(Exception):
                        await asyncio.sleep(0)
                case "cleans up slowly":
                    for _ in range(20):
                        await asyncio.sleep(0)
            raise
        return "unreachable"

    async with runtime_of(log, use("work"), say("after"), tools=[work]) as runtime:
        session = await runtime.session("s")
        assert await cancel_by(way, session, begun) == ("CancelledError" if way == "task" else "Cancelled")
        assert cleaned == [manners], "the cleaning is over when the caller is told"
        assert await results_of(session) == [CANCELLED_TEXT]
        types = await types_of(session)
        assert [kind for kind in types if kind in TERMINAL] == ["RunCancelled"]
        assert (await session.send("more")).text == "after"


async def test_case_g04_a_second_cancel_in_the_cleaning_of_the_first_changes_nothing(log: EventStore) -> None:
    begun, cleaning, gate, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def work() -> str:
        """Work."""
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await gate.wait()
            cleaned.append("done")
        return "unreachable"

    async with runtime_of(log, use("work"), say("after"), tools=[work]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        first = asyncio.create_task(session.cancel())
        await cleaning.wait()
        second = asyncio.create_task(session.cancel())
        sending.cancel()
        await asyncio.sleep(0)
        sending.cancel()
        await session.history()
        assert [sending.done(), first.done()] == [False, False], "the run's effects have not ended"
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.gather(first, second)
        assert cleaned == ["done"]
        types = await types_of(session)
        assert types.count("RunCancelled") == types.count("CancelRequested") == types.count("ToolCallFailed") == 1
        assert (await session.send("more")).text == "after"


# G05: what a tool opens, it opens and closes in one task


class Scope:
    """Refuses to be left in another task than it was entered in, as anyio's cancel scopes do."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> "Scope":
        self._task = asyncio.current_task()
        self._seen.append("entered")
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        if asyncio.current_task() is not self._task:
            raise RuntimeError("Attempted to exit cancel scope in a different task than it was entered in")
        self._seen.append("left")


@contextlib.asynccontextmanager
async def generated_scope(seen: list[str]) -> AsyncIterator[None]:
    """The same, as an async generator that holds a timeout and a group of tasks open."""
    async with Scope(seen), asyncio.timeout(3600), asyncio.TaskGroup() as group:
        serving = group.create_task(asyncio.Event().wait())
        try:
            yield
        finally:
            serving.cancel()


def resource(seen: list[str], kind: str) -> Any:
    return Scope(seen) if kind == "scope" else generated_scope(seen)


@pytest.mark.parametrize("kind", ["scope", "generator"])
@pytest.mark.parametrize("end", ["returns", "raises", "times out", "session", "token", "task"])
async def test_case_g05_a_tool_leaves_what_it_opened_in_the_task_that_opened_it(
    log: EventStore, kind: str, end: str
) -> None:
    begun, seen = asyncio.Event(), list[str]()

    @tool
    async def connect() -> str:
        """Open something and use it."""
        async with resource(seen, kind):
            if end == "times out":
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            if end == "raises":
                raise ValueError("of the tool")
            if end != "returns":
                begun.set()
                await asyncio.Event().wait()
        return "used"

    async with runtime_of(log, use("connect"), say("done"), say("after"), tools=[connect]) as runtime:
        session = await runtime.session("s")
        if end in ("session", "token", "task"):
            await cancel_by(end, session, begun)
            assert await results_of(session) == [CANCELLED_TEXT]
        else:
            assert (await session.send("go")).text == "done"
            (result,) = await results_of(session)
            expected = {"returns": "used", "raises": "of the tool", "times out": "TimeoutError"}[end]
            assert expected in result or "ExceptionGroup" in result
            assert "different task" not in result
        assert seen == ["entered", "left"]
        assert (await session.send("more")).text in ("done", "after")


async def test_case_g05_many_calls_at_once_each_have_a_task_of_their_own(log: EventStore) -> None:
    seen, tasks = list[str](), set[asyncio.Task[Any] | None]()

    @tool(tier="observe")
    async def connect(number: int) -> str:
        """Open something and use it."""
        async with generated_scope(seen):
            tasks.add(asyncio.current_task())
            for _ in range(number):
                await asyncio.sleep(0)
        return f"used {number}"

    async with runtime_of(
        log, [use("connect", {"number": number}) for number in range(10)], say("done"), tools=[connect]
    ) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "done"
        assert await results_of(session) == [f"used {number}" for number in range(10)]
    assert len(tasks) == 10
    assert (seen.count("entered"), seen.count("left")) == (10, 10)


async def test_case_g05_a_tool_that_is_an_open_generator_at_a_close_is_left_in_its_own_task(log: EventStore) -> None:
    begun, seen = asyncio.Event(), list[str]()

    @tool
    async def connect() -> str:
        """Open something and stay."""
        async with generated_scope(seen):
            begun.set()
            await asyncio.Event().wait()
        return "unreachable"

    async with runtime_of(log, use("connect"), tools=[connect], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await begun.wait()
    assert seen == ["entered", "left"]
    await asyncio.wait([sending])


@pytest.mark.parametrize("streaming", [False, True])
async def test_case_g05_a_provider_leaves_what_it_opened_in_the_task_that_opened_it(
    log: EventStore, streaming: bool
) -> None:
    begun, seen = asyncio.Event(), list[str]()

    class Connects(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> Any:
            async with generated_scope(seen):
                response = await super().complete(request)
                if len(self.requests) == 2:
                    begun.set()
                    await asyncio.Event().wait()
                return response

        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            async with Scope(seen):
                async for item in super().stream(request):
                    yield item

    provider = Connects([say("one"), say("two"), say("three")])
    config = AgentConfig(model="m", streaming=streaming)
    async with AgentRuntime(config, provider=provider, log=log) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "one"
        assert await cancel_by("session", session, begun) == "Cancelled"
        assert (await session.send("go")).text == "three"
    each = 6 if streaming else 3
    assert (seen.count("entered"), seen.count("left")) == (each, each)


# G07, M04: durable first


@pytest.mark.parametrize("way", ["session", "token", "task"])
async def test_case_g07_who_is_told_of_the_cancellation_finds_the_balanced_history_in_the_log_at_once(
    log: EventStore, way: str
) -> None:
    begun, seen = asyncio.Event(), list[str]()

    @tool(tier="observe")
    async def park(name: str) -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return name

    async with runtime_of(log, [use("park", {"name": n}) for n in "abc"], say("after"), tools=[park]) as runtime:
        session = await runtime.session("s")
        runtime.subscribe(lambda recorded: seen.append(type(recorded.event).__name__))
        await cancel_by(way, session, begun)
        stored = SESSION_CODEC.decode_all(await log.read_stream("session/s"))
        assert check_events(stored, "session/s") == []
        assert [type(event).__name__ for event in stored] == seen, "what is published is durable, and all of it is"
        assert [kind for kind in seen if kind in TERMINAL] == ["RunCancelled"]
        assert seen[-1] == "RunCancelled"
        assert await results_of(session) == [CANCELLED_TEXT] * 3
        assert check_history(await session.history()) == []


async def test_case_g07_everybody_who_follows_a_run_sees_one_terminal_event_and_nobody_waits_on(
    log: EventStore,
) -> None:
    begun = asyncio.Event()

    @tool
    async def park() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return "unreachable"

    seen: list[list[str]] = [[] for _ in range(3)]
    async with runtime_of(log, use("park"), tools=[park]) as runtime:
        session = await runtime.session("s")

        def follow(mine: list[str]) -> asyncio.Task[RunResult]:
            return asyncio.create_task(
                session.send("go", key="k", on_event=lambda recorded: mine.append(type(recorded.event).__name__))
            )

        followers = [follow(mine) for mine in seen]
        await begun.wait()
        await asyncio.gather(*(session.cancel() for _ in range(3)))
        assert [(await follower).outcome for follower in followers] == [Cancelled()] * 3
        for mine in seen:
            assert [kind for kind in mine if kind in TERMINAL] == ["RunCancelled"]
            assert mine[-1] == "RunCancelled"
        assert (await session.send("go", key="k")).outcome == Cancelled(), "also for who comes late"


async def cancelled_by_asyncio(how: str, session: Session, ready: asyncio.Event) -> None:
    """Send an input and have asyncio cancel its caller once `ready` is set."""

    async def when_ready(act: Callable[[], object]) -> None:
        await ready.wait()
        act()

    def fail() -> None:
        raise ValueError("of a sibling")

    match how:
        case "task":
            sending = asyncio.create_task(session.send("go"))
            await when_ready(sending.cancel)
            await sending
        case "timeout":
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                group.create_task(when_ready(lambda: limit.reschedule(asyncio.get_running_loop().time())))
                await session.send("go")
        case _:
            async with asyncio.TaskGroup() as group:
                group.create_task(when_ready(fail))
                group.create_task(session.send("go"))


@pytest.mark.parametrize("how", ["task", "timeout", "group"])
async def test_case_m04_three_calls_in_flight_of_a_caller_that_asyncio_cancels_have_their_results_before_the_next_input(
    log: EventStore, how: str
) -> None:
    begun, ready = list[str](), asyncio.Event()

    @tool(tier="observe")
    async def park(context: ToolContext[Any], name: str) -> str:
        """Wait."""
        begun.append(name)
        if len(begun) == 3:
            ready.set()
        await asyncio.Event().wait()
        return name

    async with runtime_of(log, [use("park", {"name": n}) for n in "abc"], say("after"), tools=[park]) as runtime:
        session = await runtime.session("s")
        with pytest.raises((asyncio.CancelledError, TimeoutError, ExceptionGroup)):
            await cancelled_by_asyncio(how, session, ready)
        assert (await session.send("new input")).text == "after"
        provider = runtime.agent.provider
        assert isinstance(provider, ScriptedProvider)
        messages = list(provider.requests[1].messages)
        assert check_history(messages) == []
        assert [type(block).__name__ for message in messages for block in message.content] == [
            "TextBlock",
            *["ToolUseBlock"] * 3,
            *["ToolResultBlock"] * 3,
            "TextBlock",
        ]
        assert [b.text for b in messages[2].content if isinstance(b, ToolResultBlock)] == [CANCELLED_TEXT] * 3
        assert messages[-1].text == "new input"
