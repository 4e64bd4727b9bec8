"""What a tool leaves behind when its call has ended, and what becomes of the context that it took along."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from refold import ConfigError, Progressed, RunHandle, Session, ToolContext, say, tool, use
from tests.conformance.sessions import results_of
from tests.runtime.talking import talking

USES: dict[str, Callable[[ToolContext[None]], object]] = {
    "ask": lambda context: context.ask("Where?"),
    "finish": lambda context: context.finish("done"),
}


@pytest.mark.parametrize("used", USES)
@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_a_context_that_outlives_its_call_says_so_at_once(used: str, ends: str) -> None:
    contexts: list[ToolContext[None]] = []

    @tool
    async def leak(context: ToolContext[None]) -> str:
        contexts.append(context)
        if ends == "raises":
            raise ValueError("no")
        return "yes"

    async with talking(use("leak"), say("ok"), tools=[leak]) as (session, _):
        assert (await session.send("go")).text == "ok"
        (context,) = contexts
        with pytest.raises(
            ConfigError, match=rf"the call {context.call} is over, and its context can neither ask nor finish"
        ):
            USES[used](context)
        assert context.idempotency_key == f"s/{context.call}"  # What it knows, it still tells.
        with pytest.raises(ConfigError, match="is over"):
            await asyncio.to_thread(USES[used], context)


async def test_what_a_tool_has_begun_goes_on_and_reports_when_its_call_has_ended() -> None:
    ended = asyncio.Event()
    left: list[asyncio.Task[bool]] = []

    @tool
    async def begin(context: ToolContext[None]) -> str:
        async def build() -> bool:
            await ended.wait()
            context.progress("half")
            return context.cancel.cancelled

        left.append(asyncio.create_task(build()))
        return "begun"

    async with talking(use("begin"), say("ok"), tools=[begin]) as (session, _):
        following = session.follow()
        assert (await session.send("go")).text == "ok"
        ended.set()
        assert await left[0] is False
        async for item in following:
            if isinstance(item, Progressed):
                assert item.report == "half"
                break


@pytest.mark.parametrize("asks", ["after the call", "before its end", "earlier, and awaits later"])
async def test_a_task_that_a_tool_leaves_behind_is_told_that_it_gets_no_answer(asks: str) -> None:
    left: list[asyncio.Task[str]] = []
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def leave(context: ToolContext[None]) -> str:
        async def ask() -> str:
            begun.set()
            if asks == "after the call":
                await ended.wait()
            question = context.ask("Where?")
            if asks == "earlier, and awaits later":
                await ended.wait()
            return await question

        left.append(asyncio.ensure_future(ask()))
        await begun.wait()
        return "left"

    @tool(effect="pure")
    async def leave_and_wait(context: ToolContext[None]) -> str:
        async def ask() -> str:
            return await context.ask("Where?")

        left.append(asyncio.ensure_future(ask()))
        await asyncio.Event().wait()
        return "not reached"

    name = "leave_and_wait" if asks == "before its end" else "leave"
    async with talking(use(name), say("ok"), tools=[leave, leave_and_wait]) as (session, _):
        run = await session.submit("go")
        if asks == "before its end":  # The question ends the body and is recorded; what is left behind is told.
            await _questions_of(session)
        else:
            assert (await run.result()).text == "ok"
        ended.set()
        with pytest.raises(ConfigError, match="is over"):
            await left[0]


async def test_a_loop_of_its_own_in_the_thread_of_a_plain_tool_may_ask() -> None:
    begun = 0

    @tool(effect="pure")
    def plain(context: ToolContext[None]) -> str:
        async def ask() -> str:
            return await context.ask("Where?")

        nonlocal begun
        begun += 1
        return asyncio.run(ask())

    async with talking(use("plain"), say("ok"), tools=[plain]) as (session, _):
        run: RunHandle[Any] = await session.submit("go")
        (question,) = await _questions_of(session)
        await session.answer(question, "There.")
        assert (await run.result()).text == "ok"
        assert [result.text for result in await results_of(session)] == ["There."]
        assert begun == 2


async def test_a_thread_that_a_tool_leaves_behind_is_told_that_it_gets_no_answer() -> None:
    ended = threading.Event()
    raised: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @tool
    def leave(context: ToolContext[None]) -> str:
        loop = raised.get_loop()

        def ask() -> None:
            ended.wait(30)
            try:
                context.ask("Where?").get()
            except BaseException as error:  # noqa: BLE001 - Any error is shown.
                loop.call_soon_threadsafe(raised.set_result, error)

        threading.Thread(target=ask, daemon=True).start()
        return "left"

    async with talking(use("leave"), say("ok"), tools=[leave]) as (session, _):
        assert (await session.send("go")).text == "ok"
        ended.set()
        error = await raised
        assert isinstance(error, ConfigError)
        assert "is over" in str(error)


@pytest.mark.parametrize("caught", [False, True])
async def test_a_thread_that_a_cancelled_tool_could_not_await_sees_that_and_ends_in_order(caught: bool) -> None:
    begun, body_ended, ended = asyncio.Event(), threading.Event(), threading.Event()
    seen: list[object] = []

    @tool
    async def work(context: ToolContext[None]) -> str:
        loop = asyncio.get_running_loop()

        def steps() -> None:
            loop.call_soon_threadsafe(begun.set)
            body_ended.wait(30)
            try:
                context.progress("half")
                seen.append(context.cancel.cancelled)
            except BaseException as error:  # noqa: BLE001 - Any error is shown.
                seen.append(error)
            ended.set()

        try:
            await asyncio.to_thread(steps)
        except asyncio.CancelledError:
            if not caught:
                raise
        return "stopped"

    async with talking(use("work"), tools=[work]) as (session, _):
        run = await session.submit("go")
        await begun.wait()
        await run.cancel()
        await run.result()
        body_ended.set()
        await asyncio.to_thread(ended.wait, 30)
        assert seen == [True]


async def test_a_loop_in_a_thread_of_an_async_tool_may_ask_beside_its_body() -> None:
    raised: list[BaseException] = []

    @tool(effect="pure")
    async def both(context: ToolContext[None]) -> str:
        async def ask(question: str) -> str:
            return await context.ask(question)

        def in_a_thread() -> None:
            try:
                asyncio.run(ask("And where not?"))
            except BaseException as error:  # noqa: BLE001 - Any error is shown.
                raised.append(error)

        try:
            return await context.ask("Where?")
        finally:
            await asyncio.to_thread(in_a_thread)

    async with talking(use("both"), say("ok"), tools=[both]) as (session, _):
        await session.submit("go")
        (question,) = await _questions_of(session)
        assert question.question == "Where?"
        assert [type(error) for error in raised] == [asyncio.CancelledError]


async def _questions_of(session: Session[Any]) -> Any:
    while not (questions := await session.questions()):  # noqa: ASYNC110 - What another thread does sets no event.
        await asyncio.sleep(0)
    return questions
