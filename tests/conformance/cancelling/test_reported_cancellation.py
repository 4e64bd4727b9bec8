"""Cases G of the reported faults: in which task a tool is cancelled, and what has ended when the caller is told.

What is durable then, G07 and M04, is with every place at which a run is cancelled in `test_cancellation`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import refold
from refold.events.core.content import CANCELLED_TEXT
from refold.stores import EventStore
from tests.conformance.sessions import TERMINAL, WAYS_TO_CANCEL, opened, results_of, session_in, types_of

WAYS = ("session.cancel", "token", "task")


# G01, G04: the tool's task ends before the run is said to have ended


class Work:
    """What the body of a tool does: it says that it has begun, and what it has cleaned up once it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cleaned: list[str] = []
        self.ticks = 0

    async def ticks_for_ever(self) -> None:
        try:
            while True:
                self.ticks += 1
                self.begun.set()
                await asyncio.sleep(0)
        finally:
            self.cleaned.append("ticks for ever")

    async def has_children(self) -> None:
        async def child(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(5):
                    await asyncio.sleep(0)
                self.cleaned.append(name)

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(child(name))
            await asyncio.sleep(0)
            self.begun.set()

    async def _waits(self, manners: str) -> None:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.cleaned.append(manners)

    async def reraises(self) -> None:
        await self._waits("reraises")

    async def swallows_as_exception(self) -> None:
        try:
            await self._waits("swallows as exception")
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.sleep(0)
            raise

    async def swallows_and_returns(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._waits("swallows and returns")

    async def raises_another(self) -> None:
        try:
            await self._waits("raises another")
        except asyncio.CancelledError:
            raise ValueError("in the cleaning") from None

    async def cleans_up_slowly(self) -> None:
        try:
            await self._waits("cleans up")
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            self.cleaned.append("slowly")


MANNERS: dict[Callable[[Work], Awaitable[None]], list[str]] = {
    Work.ticks_for_ever: ["ticks for ever"],
    Work.has_children: ["a", "b", "c"],
    Work.reraises: ["reraises"],
    Work.swallows_as_exception: ["swallows as exception"],
    Work.swallows_and_returns: ["swallows and returns"],
    Work.raises_another: ["raises another"],
    Work.cleans_up_slowly: ["cleans up", "slowly"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("manners", "cleaned"), MANNERS.items(), ids=[each.__name__ for each in MANNERS])
async def test_case_g01_g04_the_tools_task_and_its_children_are_over_before_the_caller_is_told_that_its_run_is(
    log: EventStore, manners: Callable[[Work], Awaitable[None]], cleaned: list[str], way: str
) -> None:
    made, tasks = Work(), list[asyncio.Task[Any] | None]()

    @refold.tool
    async def work() -> str:
        tasks.append(asyncio.current_task())
        await manners(made)
        return "as if nothing had been"

    async with opened(log, refold.use("work"), refold.say("after"), tools=[work]) as (_, session):
        outcome = await WAYS_TO_CANCEL[way](session, made.begun.wait)
        assert outcome == (None if way == "task" else refold.Cancelled())
        assert [task is not None and task.done() for task in tasks] == [True]
        assert sorted(made.cleaned) == cleaned
        ticks = made.ticks
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT]
        assert [kind for kind in await types_of(session) if kind in TERMINAL] == ["RunCancelled"]
        assert (await session.send("more")).text == "after"
        assert made.ticks == ticks, "nothing ticks on"


async def test_case_g04_a_second_cancel_in_the_cleaning_of_the_first_changes_nothing(log: EventStore) -> None:
    begun, cleaning, gate, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()

    @refold.tool
    async def work() -> str:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await gate.wait()
            cleaned.append("done")
        return "unreachable"

    async with opened(log, refold.use("work"), refold.say("after"), tools=[work]) as (_, session):
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
@pytest.mark.parametrize("end", ["returns", "raises", "times out", "the runtime closes", *WAYS])
async def test_case_g05_a_tool_leaves_what_it_opened_in_the_task_that_opened_it(
    log: EventStore, kind: str, end: str
) -> None:
    begun, seen = asyncio.Event(), list[str]()

    @refold.tool
    async def connect() -> str:
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

    script = refold.use("connect"), refold.say("done"), refold.say("after")
    async with opened(log, *script, tools=[connect], close_grace_s=0) as (runtime, session):
        if end == "the runtime closes":
            sending = asyncio.create_task(session.send("go"))
            await begun.wait()
            await runtime.close()
            assert seen == ["entered", "left"]
            await asyncio.wait([sending])
            return
        if end in WAYS:
            await WAYS_TO_CANCEL[end](session, begun.wait)
            assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT]
        else:
            assert (await session.send("go")).text == "done"
            (result,) = [block.text for block in await results_of(session)]
            expected = {"returns": "used", "raises": "of the tool", "times out": "TimeoutError"}[end]
            assert expected in result or "ExceptionGroup" in result
            assert "different task" not in result
        assert seen == ["entered", "left"]
        assert (await session.send("more")).text in ("done", "after")


@pytest.mark.parametrize("streaming", [False, True])
async def test_case_g05_a_provider_leaves_what_it_opened_in_the_task_that_opened_it(
    log: EventStore, streaming: bool
) -> None:
    begun, seen = asyncio.Event(), list[str]()

    class Connects(refold.ScriptedProvider):
        async def complete(self, request: refold.ModelRequest) -> Any:
            async with generated_scope(seen):
                response = await super().complete(request)
                if len(self.requests) == 2:
                    begun.set()
                    await asyncio.Event().wait()
                return response

        async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
            async with Scope(seen):
                async for item in super().stream(request):
                    yield item

    provider = Connects([refold.say("one"), refold.say("two"), refold.say("three")])
    config = refold.AgentConfig(model="m", streaming=streaming)
    async with session_in(refold.AgentRuntime(config, provider=provider, log=log)) as (_, session):
        assert (await session.send("go")).text == "one"
        assert await WAYS_TO_CANCEL["session.cancel"](session, begun.wait) == refold.Cancelled()
        assert (await session.send("go")).text == "three"
    each = 6 if streaming else 3
    assert (seen.count("entered"), seen.count("left")) == (each, each)


# G07: durable first
