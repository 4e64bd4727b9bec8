"""A run as a stream: what is yielded, what leaving does, and what becomes of errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import refold
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import HeldAnswer
from tests.runtime.talking import talking

CONFIG = refold.AgentConfig(model="m", streaming=True)


pytestmark = pytest.mark.usefixtures("nothing_is_left_on_the_loop")


def streaming(
    *script: refold.ScriptItem, config: refold.AgentConfig = CONFIG, **options: Any
) -> AbstractAsyncContextManager[tuple[refold.Session, refold.AgentRuntime]]:
    return talking(*script, config=config, **options)


LONG = refold.stall(refold.say("a long answer"), after=1)
"""An answer that does not end."""


def name(item: object) -> str:
    return type(item.event if isinstance(item, refold.RecordedEvent) else item).__name__


def text_of(items: list[Any]) -> str:
    return "".join(
        item.delta.text
        for item in items
        if isinstance(item, refold.Streamed) and isinstance(item.delta, refold.TextDelta)
    )


async def log_of(session: refold.Session) -> list[str]:
    return [name(item) async for item in session.events()]


async def ended(session: refold.Session, event: str) -> None:
    """Wait for an event of the session."""
    async with session.follow(after_version=0) as follower:
        async for item in follower:
            if name(item) == event:
                return


async def test_without_streaming_a_stream_has_events_only() -> None:
    async with streaming(refold.say("hello"), config=refold.AgentConfig(model="m")) as (session, _):
        items = [name(item) async for item in session.stream("hi")]
        assert items == ["InputQueued", "RunStarted", "ModelRequested", "ModelResponded", "RunCompleted"]


async def test_a_stream_shows_its_own_run_only() -> None:
    async with streaming(refold.say("first answer"), refold.say("second answer")) as (session, _):
        first, second = session.stream("one"), session.stream("two")
        both = await asyncio.gather(*(asyncio.create_task(collected(stream)) for stream in (first, second)))
        assert [text_of(items) for items in both] == ["first answer", "second answer"]
        assert [name(items[-1]) for items in both] == ["RunCompleted"] * 2
        assert [first.result.text, second.result.text] == ["first answer", "second answer"]


async def test_a_stream_shows_no_report_of_a_later_run() -> None:
    @refold.tool(tier="act")
    async def work(context: refold.ToolContext[object]) -> str:
        context.progress("of the later run")
        return "done"

    async with streaming(refold.say("first"), refold.use("work"), refold.say("second"), tools=[work]) as (session, _):
        async with session.stream("one") as stream:
            assert name(await anext(stream)) == "InputQueued"
            assert (await session.send("two")).text == "second"
            items = [name(item) async for item in stream]
        assert items[-1] == "RunCompleted"
        assert "Progressed" not in items


async def collected(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


@pytest.mark.parametrize("way", ["break", "return", "error"])
async def test_leaving_inside_async_with_cancels_the_run_at_once(way: str) -> None:
    async def read(session: refold.Session) -> None:
        async with session.stream("hi") as stream:
            async for item in stream:
                if isinstance(item, refold.Streamed):
                    if way == "error":
                        raise LookupError("of the body")
                    if way == "return":
                        return
                    break
        assert stream.result.outcome == refold.Cancelled()

    async with streaming(LONG, refold.say("after")) as (session, _):
        if way == "error":
            with pytest.raises(LookupError, match="of the body"):
                await read(session)
        else:
            await read(session)
        assert "RunCancelled" in await log_of(session)
        assert (await session.send("more")).text == "after"


async def test_a_loop_left_without_async_with_cancels_the_run_as_soon_as_the_loop_turns() -> None:
    async with streaming(LONG, refold.say("after")) as (session, _):
        async for item in session.stream("hi"):
            if isinstance(item, refold.Streamed):
                break
        await ended(session, "RunCancelled")
        assert (await session.send("more")).text == "after"


async def test_closing_the_iterator_cancels_the_run_and_closing_it_twice_changes_nothing() -> None:
    async with streaming(LONG) as (session, _):
        stream = session.stream("hi")
        await anext(stream)
        await stream.aclose()
        assert (await log_of(session))[-1] in ("RunCancelled", "ModelInterrupted")
        await stream.aclose()
        assert [item async for item in stream] == []
        assert stream.result.outcome == refold.Cancelled()


@pytest.mark.parametrize("inside", ["the loop's next", "the loop's body", "no async with"])
async def test_cancelling_the_reading_task_cancels_the_run_and_passes_on(inside: str) -> None:
    stalled = asyncio.Event()

    async def read(items: AsyncIterator[Any]) -> None:
        async for item in items:
            if isinstance(item, refold.Streamed):
                stalled.set()
                if inside == "the loop's body":
                    await asyncio.Event().wait()

    async def read_inside(session: refold.Session) -> None:
        async with session.stream("hi") as stream:
            await read(stream)

    async with streaming(LONG, refold.say("after")) as (session, _):
        reading = asyncio.create_task(read(session.stream("hi")) if inside == "no async with" else read_inside(session))
        await stalled.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert "RunCancelled" in await log_of(session)
        assert (await session.send("more")).text == "after"


async def test_a_token_cancels_the_run_and_the_stream_ends_with_its_terminal_event() -> None:
    token = refold.CancellationToken()
    async with streaming(LONG) as (session, _):
        async with session.stream("hi", cancel=token) as stream:
            items = []
            async for item in stream:
                items.append(name(item))
                if isinstance(item, refold.Streamed):
                    token.cancel("enough")
        assert items[-2:] == ["CancelRequested", "RunCancelled"]
        assert stream.result.outcome == refold.Cancelled()


async def test_a_stream_that_is_cancelled_before_its_turn_ends() -> None:
    token = refold.CancellationToken()
    async with streaming(LONG) as (session, _):
        before = asyncio.create_task(session.send("first"))
        await ended(session, "ModelRequested")
        async with session.stream("second", cancel=token) as stream:
            items = []
            async for item in stream:
                items.append(name(item))
                token.cancel()
        assert items == ["InputQueued", "CancelRequested"]
        assert stream.result.outcome == refold.Cancelled()
        await session.cancel()
        assert (await before).outcome == refold.Cancelled()


async def test_a_key_whose_run_is_over_yields_its_events_from_the_log() -> None:
    log: EventStore = InMemoryStore()
    async with streaming(refold.say("hello"), refold.say("other"), log=log) as (session, _):
        first = await session.send("hi", key="k")
        await session.send("something else")
    async with streaming(log=log) as (session, _):
        async with session.stream("hi", key="k") as stream:
            items = [name(item) async for item in stream]
        assert items == ["InputQueued", "RunStarted", "ModelRequested", "ModelResponded", "RunCompleted"]
        assert stream.result == first


async def test_two_streams_of_one_key_share_the_run_and_leaving_one_only_detaches() -> None:
    answer = HeldAnswer("hello")
    async with streaming(answer) as (session, _):
        one, two = session.stream("hi", key="k"), session.stream("hi", key="k")
        assert name(await anext(one)) == "InputQueued"
        assert [name(await anext(two)) for _ in range(3)] == ["InputQueued", "RunStarted", "ModelRequested"]
        assert one.run == two.run
        await one.aclose()
        with pytest.raises(refold.ConfigError, match="without a result"):
            _ = one.result
        answer.gate.set()
        assert [name(item) async for item in two][-2:] == ["ModelResponded", "RunCompleted"]
        assert two.result.text == "hello"


async def test_a_stream_that_nobody_reads_sends_nothing() -> None:
    async with streaming(refold.say("hello")) as (session, _):
        stream = session.stream("hi")
        with pytest.raises(refold.ConfigError, match="has not ended"):
            _ = stream.result
        await stream.aclose()
        del stream
        assert await log_of(session) == []


async def test_the_result_is_refused_before_the_end() -> None:
    async with streaming(refold.say("hello")) as (session, _), session.stream("hi") as stream:
        await anext(stream)
        with pytest.raises(refold.ConfigError, match="to the end first"):
            _ = stream.result


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        ("", {}, refold.CommandRejected),
        (7, {}, refold.CommandRejected),
        ("hi", {"key": ""}, refold.CommandRejected),
        ("hi", {"cancel": True}, refold.ConfigError),
    ],
)
async def test_what_cannot_be_sent_is_raised_when_the_iteration_begins(
    content: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    async with streaming(refold.say("hello")) as (session, _):
        with pytest.raises(error):
            await anext(session.stream(content, **options))
        with pytest.raises(error):
            async with session.stream(content, **options):
                raise AssertionError("it does not begin")
        assert await log_of(session) == []


async def test_a_refusal_by_the_session_is_raised_in_the_stream() -> None:
    async with streaming(refold.say("hello")) as (session, _):
        await session.send("hi", key="k")
        with pytest.raises(refold.CommandRejected, match="key"):
            await anext(session.stream("something else", key="k"))


async def test_a_runtime_that_closes_is_raised_in_the_stream_and_the_run_stays_open() -> None:
    async with streaming(refold.stall(refold.say("hello there"), after=1), close_grace_s=0) as (session, runtime):
        stream = session.stream("hi")
        while not isinstance(await anext(stream), refold.Streamed):
            continue
        await runtime.close()
        with pytest.raises(refold.ActorStopped):
            await collected(stream)
        with pytest.raises(refold.ActorStopped):
            session.follow()
        with pytest.raises(refold.ActorStopped):
            runtime.follow()
        with pytest.raises(refold.ConfigError, match="without a result"):
            _ = stream.result
        with pytest.raises(refold.ActorStopped):
            await anext(session.stream("hi"))


async def test_the_stream_of_a_run_shows_no_late_evidence_of_the_run_before_it() -> None:
    async with streaming(LONG, refold.say("after")) as (session, _):
        async for item in session.stream("hi"):
            if isinstance(item, refold.Streamed):
                break
        items = [name(item) async for item in session.stream("more")]
        assert "ModelInterrupted" in await log_of(session)
        assert "ModelInterrupted" not in items
        assert items[-1] == "RunCompleted"


async def test_following_ends_when_the_runtime_closes() -> None:
    async with streaming(refold.say("one")) as (session, _):
        await session.send("hi")
        reading = asyncio.create_task(collected(session.follow(after_version=3)))
        await asyncio.sleep(0)
    assert [name(item) for item in await reading] == ["RunStarted", "ModelRequested", "ModelResponded", "RunCompleted"]
