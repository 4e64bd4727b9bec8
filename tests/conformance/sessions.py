"""What the tests of sessions share: logs that are checked, models and tools that wait, ways to watch and to cancel."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

import refold
from refold.actors import ActorRef, ManualClock
from refold.events import SESSION_CODEC
from refold.events.kinds.tool import TOOL_CODEC, ToolCallAbandoned
from refold.events.model.history_rules import HistoryRules
from refold.events.session.events import AgentConfigured
from refold.inspection.check import check_log
from refold.replay import replay
from refold.replay.shadow import process
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from refold.tools import dry_run
from tests.conformance.failing_store import FailingStore

CONFIG = refold.AgentConfig(model="test-model")

EVIDENCE = ("ToolResultLate", "ModelInterrupted")
"""Events that belong to no run."""

TERMINAL = ("RunCompleted", "RunFailed", "RunCancelled")


@asynccontextmanager
async def checked_log(kind: str, folder: Path) -> AsyncIterator[EventStore]:
    """Give a log in memory or in a file, which is checked and replayed when the test is over."""
    store: EventStore = InMemoryStore() if kind == "memory" else await SQLiteStore.open(folder / "events.db")
    yield store
    await assert_sound(store)
    await store.close()


async def assert_sound(log: EventStore) -> None:
    assert (await check_log(log)).problems == ()
    (await replay(log, level="core")).raise_for_divergence()
    agents = _made.pop(log, [])
    alike = all(getattr(each, "decides_alike", True) for agent in agents for each in (*agent.middleware, agent.context))
    if len(agents) == 1 and alike and await _of_one_configuration(log):
        with nullcontext() if isinstance(log, SQLiteStore) else replayed_here():
            report = await replay(log, agent=agents[0])
        report.raise_for_divergence(allow_missing=["memory is not one of the log", "Agent(keep_originals=True)"])


@contextmanager
def replayed_here() -> Iterator[None]:
    """Have this process do what a replay has a child process do: forking one takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "Shadow", _Here)
        patch.setattr(dry_run, "_tried", [])
        yield


class _Here:
    """Stands for a replay's child process."""

    def __init__(self, store: EventStore, begin: process.Begin, answer_s: float) -> None:
        self.page = process.Page()
        self._work = begin(store, self.page)

    async def do(self, job: object, gone: Mapping[str, str], reads: object) -> tuple[Any, process.Gone]:
        now_gone = dict(gone)
        return await self._work(job, now_gone), now_gone

    def end(self) -> None:
        """There is nothing to end."""


async def _of_one_configuration(log: EventStore) -> bool:
    """Return whether each agent of a log had one configuration all along."""
    found: dict[str, set[str]] = {}
    for stored in await log.read_all(limit=100_000):
        if stored.stream.startswith("session/") and b"session.agent_configured" in stored.data:
            event = SESSION_CODEC.decode(stored)
            assert isinstance(event, AgentConfigured)
            found.setdefault(event.configuration.agent, set()).add(event.configuration.fingerprint)
    return all(len(fingerprints) == 1 for fingerprints in found.values())


_made: WeakKeyDictionary[EventStore, list[refold.Agent]] = WeakKeyDictionary()
"""The agents that wrote each log; where it was one, it must decide the same again."""


def runtime_of(log: EventStore, *script: Any, tools: Any = (), **options: Any) -> refold.AgentRuntime:
    """Return a runtime of options of its own and of its agent; with `alike=False` it need not decide the same again."""
    config = options.pop("config", CONFIG)
    provider = options.pop("provider", None) or refold.ScriptedProvider(script)
    alike = options.pop("alike", True)
    runtime = refold.AgentRuntime(config, provider=provider, tools=tools, log=log, **options)
    if alike and runtime.agent not in _made.setdefault(log, []):
        _made[log].append(runtime.agent)
    return runtime


@asynccontextmanager
async def session_in(
    runtime: refold.AgentRuntime[Any], name: str = "s"
) -> AsyncIterator[tuple[refold.AgentRuntime[Any], refold.Session[Any]]]:
    """Open a runtime, and give it with a session."""
    async with runtime:
        yield runtime, await runtime.session(name)


def opened(
    log: EventStore, *script: Any, **options: Any
) -> AbstractAsyncContextManager[tuple[refold.AgentRuntime, refold.Session]]:
    """Open a runtime, and give it with its session "s"; see `runtime_of`."""
    return session_in(runtime_of(log, *script, **options))


def requests_of(runtime: "refold.AgentRuntime | refold.SyncRuntime") -> list[refold.ModelRequest]:
    """Return what a runtime's scripted model was asked."""
    provider = runtime.agent.provider
    assert isinstance(provider, refold.ScriptedProvider)
    return provider.requests


async def crash(runtime: refold.AgentRuntime, store: FailingStore, clock: ManualClock | None = None) -> None:
    """End a runtime as a crash does: nothing more of it reaches its log, not even that it ended.

    Its option `close_grace_s` should be 0.
    """
    store.fail_appends(lambda: refold.PersistenceError("the machine is off"))
    closing = asyncio.create_task(runtime.close())
    while not closing.done():
        await (clock.advance(0) if clock is not None else asyncio.wait([closing]))
    closing.result()
    store.mend()


@asynccontextmanager
async def dying(
    log: EventStore, *script: Any, **options: Any
) -> AsyncIterator[tuple[refold.AgentRuntime, refold.Session]]:
    """Open a runtime as `opened` does, which crashes at the end of the block; its callers are told that it is gone."""
    store, clock = FailingStore(log), options.get("clock")
    async with opened(store, *script, close_grace_s=0, **options) as (runtime, session):
        yield runtime, session
        await crash(runtime, store, clock)


@refold.tool(tier="observe", effect="pure")
async def look(at: str = "it") -> str:
    """Look."""
    return f"saw {at}"


# Who waits


class HeldAnswer:
    """A model's answer that comes when it is let go."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()

    async def __call__(self, request: refold.ModelRequest) -> Any:
        self.asked.set()
        await self.gate.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Streams:
    """A model that streams what it is given; errors are raised, and functions are awaited."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        raise AssertionError("it is streamed from")

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        for item in self.items:
            if isinstance(item, BaseException):
                raise item
            if callable(item):
                await item()
            else:
                yield item


class Parked:
    """Tools that begin, say so, and wait until they are let go or cancelled."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()
        self._wake = asyncio.Event()

        @refold.tool(tier="observe")
        async def park(name: str) -> str:
            """Wait."""
            self._begin(name)
            await self.gate.wait()
            return f"{name} returned"

        @refold.tool(tier="act")
        async def act(name: str) -> str:
            """Wait, alone."""
            self._begin(name)
            await self.gate.wait()
            return f"{name} returned"

        @refold.tool(tier="observe")
        async def ignore(name: str) -> str:
            """Wait, and take no cancellation."""
            self._begin(name)
            while not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    continue
            return f"{name} returned"

        @refold.tool(tier="act", effect="pure")
        async def repeat(name: str) -> str:
            """Wait, alone; may be run again."""
            self._begin(name)
            await self.gate.wait()
            return f"{name} returned"

        self.park, self.act, self.ignore, self.repeat = park, act, ignore, repeat

    def _begin(self, name: str) -> None:
        self.begun.append(name)
        self._wake.set()

    async def until(self, count: int) -> None:
        """Return once so many bodies have begun."""
        while len(self.begun) < count:
            self._wake.clear()
            await self._wake.wait()


HOOKS = ("on_user_message", "on_pre_llm", "on_post_llm", "on_tool_call", "on_tool_result")


class Hooked(refold.Middleware):
    """Does in each hook what a function says, if there is one for it."""

    def __init__(self, **hooks: Callable[[refold.HookContext, Any], Any]) -> None:
        self.hooks = hooks

    async def _do(self, hook: str, context: refold.HookContext, value: Any) -> Any:
        made = self.hooks[hook](context, value) if hook in self.hooks else None
        return await made if inspect.isawaitable(made) else made

    async def on_user_message(self, context: refold.HookContext, content: Any) -> Any:
        return await self._do("on_user_message", context, content)

    async def on_pre_llm(self, context: refold.HookContext, request: refold.ModelRequest) -> Any:
        return await self._do("on_pre_llm", context, request)

    async def on_post_llm(self, context: refold.HookContext, response: refold.ModelResponse) -> Any:
        return await self._do("on_post_llm", context, response)

    async def on_tool_call(self, context: refold.HookContext, call: refold.ToolCall) -> Any:
        return await self._do("on_tool_call", context, call)

    async def on_tool_result(self, context: refold.HookContext, result: refold.ToolResultBlock) -> Any:
        return await self._do("on_tool_result", context, result)


# Who watches


class Seen:
    """Waits for events of a session; also for those that came before anybody waited."""

    def __init__(self, runtime: refold.AgentRuntime, session: refold.Session) -> None:
        self.recorded: list[Any] = []
        self.session = session
        self._wake = asyncio.Event()
        runtime.subscribe(self._see, session=session.id)

    def _see(self, recorded: Any) -> None:
        self.recorded.append(recorded)
        self._wake.set()

    async def first(self, kind: type[Any], count: int = 1) -> list[Any]:
        """Return the first `count` events of a kind, once they are durable."""
        while len(found := [item.event for item in self.recorded if isinstance(item.event, kind)]) < count:
            self._wake.clear()
            await self._wake.wait()
        return found


async def happened(session: refold.Session, kind: type[Any], count: int = 1) -> None:
    """Return once a session has so many events of a kind, also those of before."""
    async with session.follow(after_version=0) as followed:
        async for item in followed:
            count -= isinstance(item, refold.RecordedEvent) and isinstance(item.event, kind)
            if count == 0:
                return


async def results_of(session: refold.Session) -> list[refold.ToolResultBlock]:
    return [
        block
        for message in await session.history()
        for block in message.content
        if isinstance(block, refold.ToolResultBlock)
    ]


async def types_of(session: refold.Session) -> list[str]:
    return [type(recorded.event).__name__ async for recorded in session.events()]


async def events_of(session: refold.Session, kind: type) -> list[Any]:
    return [recorded.event async for recorded in session.events() if isinstance(recorded.event, kind)]


async def abandoned_in(log: EventStore, name: str) -> int:
    events = TOOL_CODEC.decode_all(await log.read_stream(f"tool/{name}"))
    return sum(isinstance(event, ToolCallAbandoned) for event in events)


def shown(messages: Sequence[refold.Message]) -> list[str]:
    """Return a conversation as short lines, one for each block."""
    lines: list[str] = []
    for message in messages:
        for block in message.content:
            match block:
                case refold.TextBlock(text=text):
                    lines.append(f"{message.role}: {text}")
                case refold.ToolUseBlock(name=name):
                    lines.append(f"use {name}")
                case refold.ToolResultBlock():
                    lines.append(f"result: {block.text}")
                case _:
                    lines.append(type(block).__name__)
    return lines


def tell_twice(monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    """Have actors told each message of a kind twice from now on."""
    tell = ActorRef.tell

    def twice(ref: ActorRef, message: Any) -> None:
        for _ in range(2 if isinstance(message, kind) else 1):
            tell(ref, message)

    for name in ("tell", "tell_at_once"):
        monkeypatch.setattr(ActorRef, name, twice)


def assert_accepted(messages: Sequence[refold.Message]) -> None:
    """Check that every provider would take a request with these messages."""
    rules = HistoryRules()
    assert [finding for message in messages for finding in rules.add(message)] == []
    assert rules.open_calls == ()


# Ways to cancel


async def _by_session(session: refold.Session, ready: Callable[[], Any]) -> Any:
    sending = asyncio.create_task(session.send("go"))
    await ready()
    await session.cancel()
    return (await sending).outcome


async def _by_token(session: refold.Session, ready: Callable[[], Any], in_thread: bool = False) -> Any:
    token = refold.CancellationToken()
    sending = asyncio.create_task(session.send("go", cancel=token))
    await ready()
    for reason in ("enough", None):
        if in_thread:
            await asyncio.to_thread(token.cancel, reason)
        else:
            token.cancel(reason)
    return (await sending).outcome


async def _by_task(session: refold.Session, ready: Callable[[], Any]) -> Any:
    sending = asyncio.create_task(session.send("go"))
    await ready()
    sending.cancel()
    await asyncio.sleep(0)
    sending.cancel()  # Once more: it waits for the same end.
    with pytest.raises(asyncio.CancelledError):
        await sending
    return None


async def _by_timeout(session: refold.Session, ready: Callable[[], Any]) -> Any:
    limits: list[asyncio.Timeout] = []

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await session.send("go")

    sending = asyncio.create_task(limited())
    await ready()
    limits[0].reschedule(asyncio.get_running_loop().time())  # It is over now.
    with pytest.raises(TimeoutError):
        await sending
    return None


async def _by_sibling(session: refold.Session, ready: Callable[[], Any]) -> Any:
    failure, tasks = ValueError("of a sibling"), list[asyncio.Task[Any]]()

    async def fail() -> None:
        await ready()
        raise failure

    async def siblings() -> None:
        async with asyncio.TaskGroup() as group:
            tasks[:] = [group.create_task(session.send("go")), group.create_task(fail())]

    with pytest.raises(ExceptionGroup) as caught:
        await siblings()
    assert caught.value.exceptions == (failure,)
    assert [task.cancelled() for task in tasks] == [True, False]
    return None


WAYS_TO_CANCEL: dict[str, Callable[[refold.Session, Callable[[], Any]], Any]] = {
    "session.cancel": _by_session,
    "token": _by_token,
    "token from a thread": partial(_by_token, in_thread=True),
    "task": _by_task,
    "timeout": _by_timeout,
    "a sibling in a group of tasks": _by_sibling,
}
"""Each sends "go" and cancels its run once `ready` returns; it gives None where the caller is cancelled too."""
