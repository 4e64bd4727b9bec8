"""How an approval handler is called: async ones on the loop, all others in a thread, which may be left behind."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from refold import Allow, Deny, RunId, SessionId, ToolApprovalRequested, ToolCallId
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import asking

SESSION = SessionId("s")
REQUEST = ToolApprovalRequested(run=RunId("run_3"), call=ToolCallId("call_6_0"), tool="pay", input={"amount": 1})


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPool]:
    made = ThreadPool(2, name="test-approval")
    yield made
    made.close()


async def asked(handler: Any, pool: ThreadPool) -> object:
    ask = asking(handler, pool)
    assert ask is not None
    return await ask(SESSION, REQUEST)


class Office:
    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    async def method(self, session: str, request: ToolApprovalRequested) -> object:
        self.threads.append(threading.current_thread())
        return Deny(f"{session} {request.call}")

    def plain(self, session: str, request: ToolApprovalRequested) -> object:
        self.threads.append(threading.current_thread())
        return Allow()

    def returns_awaitable(self, session: str, request: ToolApprovalRequested) -> object:
        return self.method(session, request)


class AsyncOffice(Office):
    async def __call__(self, session: str, request: ToolApprovalRequested) -> object:
        return await self.method(session, request)


async def test_without_a_handler_there_is_nobody_to_ask(pool: ThreadPool) -> None:
    assert asking(None, pool) is None


async def test_async_handlers_of_every_kind_are_called_on_the_loop(pool: ThreadPool) -> None:
    office = AsyncOffice()
    for handler in (office.method, office, partial(office.method), office.returns_awaitable):
        assert await asked(handler, pool) == Deny("s call_6_0")
    assert set(office.threads) == {threading.current_thread()}


async def test_plain_handlers_are_called_in_a_thread_with_the_context_of_the_caller(pool: ThreadPool) -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word")
    word.set("given")
    found: list[str] = []

    def handler(session: str, request: ToolApprovalRequested) -> object:
        found.append(word.get())
        return Allow()

    office = Office()
    assert await asked(office.plain, pool) == Allow()
    assert await asked(handler, pool) == Allow()
    assert office.threads[0].name.startswith("test-approval")
    assert found == ["given"]


async def test_what_a_plain_handler_raises_is_raised(pool: ThreadPool) -> None:
    def handler(session: str, request: ToolApprovalRequested) -> object:
        raise LookupError("nobody home")

    with pytest.raises(LookupError, match="nobody home"):
        await asked(handler, pool)


async def test_a_plain_handler_that_is_not_wanted_any_more_is_left_behind_by_name(pool: ThreadPool) -> None:
    begun, go_on, over = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def handler(session: str, request: ToolApprovalRequested) -> object:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(60)
        loop.call_soon_threadsafe(over.set)
        return Allow()

    work = asyncio.create_task(asked(handler, pool))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert pool.abandoned == ("s/call_6_0",)
    assert await asked(Office().plain, pool) == Allow()  # Its thread has been replaced.
    go_on.set()
    await over.wait()
