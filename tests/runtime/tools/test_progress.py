"""What tools report while they run: who sees it, that it keeps a call alive, and what becomes of it at the end."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from refold import (
    Cancelled,
    Progressed,
    ToolContext,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.codec import RecordedEvent
from refold.events.session.events import ToolCallCompleted
from tests.conformance.sessions import results_of
from tests.runtime.talking import scripted, talking


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - What another thread does sets no event of this loop.
        await asyncio.sleep(0)


def reports_of(items: list[Any], call: str) -> list[object]:
    """Return the reports of a call that came before its result."""
    reports: list[object] = []
    for item in items:
        if isinstance(item, Progressed) and item.call == call:
            reports.append(item.report)
        elif isinstance(item, RecordedEvent) and isinstance(item.event, ToolCallCompleted) and item.event.call == call:
            return reports
    raise AssertionError("the call has no result")


async def test_reports_of_threads_and_coroutines_come_in_order_each_before_the_result_of_its_call() -> None:
    @tool(tier="observe")
    def in_a_thread(name: str, context: ToolContext[None]) -> str:
        for number in range(20):
            context.progress({"name": name, "done": number / 20})
        return name

    @tool(tier="observe")
    async def on_the_loop(name: str, context: ToolContext[None]) -> str:
        for number in range(20):
            context.progress({"name": name, "done": number / 20})
            await asyncio.sleep(0)
        return name

    calls = [use(kind, {"name": f"{kind} {n}"}) for kind in ("in_a_thread", "on_the_loop") for n in range(3)]
    async with talking(calls, say("ok"), tools=[in_a_thread, on_the_loop]) as (session, runtime):
        items = [item async for item in session.stream("go")]
        results = await results_of(session)
        assert len(results) == 6
        for result in results:
            expected = [{"name": result.text, "done": number / 20} for number in range(20)]
            assert reports_of(items, result.tool_use_id) == expected
        assert b"done" not in b"".join([event.data for event in await runtime.store.read_all()])  # None is logged.


def test_threads_that_follow_a_sync_runtime_see_reports_too() -> None:
    @tool
    def work(context: ToolContext[None]) -> str:
        context.progress("half")
        return "done"

    with scripted(use("work"), say("ok"), tools=[work]) as runtime, runtime.session("s").stream("go") as stream:
        assert [item.report for item in stream if isinstance(item, Progressed)] == ["half"]


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("threaded", [True, False])
async def test_a_long_call_lives_as_long_as_it_reports(threaded: bool, reports: bool) -> None:
    clock = ManualClock()
    contexts: list[ToolContext[None]] = []
    going_on, going_on_there = asyncio.Event(), threading.Event()

    @tool(timeout_s=10)
    async def on_the_loop(context: ToolContext[None]) -> str:
        contexts.append(context)
        await going_on.wait()
        return "done"

    @tool(timeout_s=10)
    def in_a_thread(context: ToolContext[None]) -> str:
        contexts.append(context)
        going_on_there.wait(30)
        return "done"

    name = "in_a_thread" if threaded else "on_the_loop"
    async with talking(use(name), say("ok"), tools=[on_the_loop, in_a_thread], clock=clock) as (session, _):
        following = session.follow()
        sending = asyncio.ensure_future(session.send("go"))
        await until(lambda: bool(contexts))
        for number in range(5):
            await clock.advance(9)
            if reports:
                contexts[0].progress(number)
                await anext_report(following)
        going_on.set()
        going_on_there.set()
        assert (await sending).text == "ok"
        (result,) = await results_of(session)
        assert (result.kind, result.is_error) == ((None, False) if reports else ("timeout", True))


async def anext_report(following: Any) -> object:
    async for item in following:
        if isinstance(item, Progressed):
            return item.report
    raise AssertionError("no report came")


async def test_a_cancelled_call_may_still_report_and_that_neither_raises_nor_keeps_it_alive() -> None:
    clock = ManualClock()
    contexts: list[ToolContext[None]] = []
    ended = threading.Event()

    @tool(timeout_s=10)
    def stubborn(context: ToolContext[None]) -> str:
        contexts.append(context)
        ended.wait(30)
        return "too late"

    options: dict[str, Any] = {"clock": clock, "cancel_grace_s": 4, "tool_threads": 2}
    async with talking(use("stubborn"), say("next"), tools=[stubborn], **options) as (session, runtime):
        following = runtime.follow()
        sending = asyncio.ensure_future(session.send("go"))
        await until(lambda: bool(contexts))
        cancelling = asyncio.ensure_future(session.cancel())
        while not sending.done():
            await clock.advance(1)
            contexts[0].progress("still here")
            assert await anext_report(following) == "still here"
        await cancelling
        assert isinstance((await sending).outcome, Cancelled)
        assert clock.monotonic_s() <= 8  # Not one report has put the end off.
        assert contexts[0].cancel.cancelled
        head = await runtime.store.head("session/s")
        contexts[0].progress("after the end")
        assert await anext_report(following) == "after the end"
        assert await runtime.store.head("session/s") == head
        assert (await session.send("more")).text == "next"
        ended.set()


async def test_a_body_that_is_left_behind_may_report_when_all_is_over() -> None:
    contexts: list[ToolContext[None]] = []
    ended = threading.Event()
    raised: list[BaseException] = []
    thread_ended = threading.Event()

    @tool
    def stubborn(context: ToolContext[None]) -> str:
        contexts.append(context)
        ended.wait(30)
        try:
            context.progress("anybody there?")
        except BaseException as error:  # noqa: BLE001 - Any error is shown.
            raised.append(error)
        thread_ended.set()
        return "too late"

    def in_a_loop_of_its_own() -> None:
        async def run() -> None:
            async with scripted(use("stubborn"), tools=[stubborn], cancel_grace_s=0, close_grace_s=0) as runtime:
                asyncio.ensure_future((await runtime.session("s")).send("go")).add_done_callback(_retrieve)
                await until(lambda: bool(contexts))

        asyncio.run(run())

    await asyncio.to_thread(in_a_loop_of_its_own)
    ended.set()
    await asyncio.to_thread(thread_ended.wait, 30)
    assert raised == []


def _retrieve(future: Any) -> None:
    if not future.cancelled():
        future.exception()


async def test_any_object_may_be_a_report_and_nobody_need_listen() -> None:
    class Opaque:
        def __repr__(self) -> str:
            raise RuntimeError("not to be shown")

    reports = [None, 0.5, "half", {"a": [1]}, Opaque()]

    @tool
    async def work(context: ToolContext[None]) -> str:
        for report in reports:
            context.progress(report)
        return "done"

    async with talking(use("work"), say("ok"), use("work"), say("ok"), tools=[work]) as (session, _):
        assert (await session.send("go")).text == "ok"
        items = [item async for item in session.stream("again")]
        assert [item.report for item in items if isinstance(item, Progressed)] == reports
