"""Streaming, as it is promised: rows A4, A5, A7, B6, B11, B19 and C8 of the features.

Cancelling an answer inside a streamed text or call in every way, B6, is with the other places of `test_cancellation`.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import refold
from refold.events.session.events import ModelInterrupted, RunCancelled
from refold.stores import EventStore
from tests.conformance.sessions import Streams, events_of, opened, types_of

CONFIG = refold.AgentConfig(model="m", streaming=True)


@refold.tool(tier="observe")
async def look(name: str) -> str:
    return f"saw {name}"


def streaming(
    log: EventStore, *script: refold.ScriptItem
) -> AbstractAsyncContextManager[tuple[refold.AgentRuntime, refold.Session]]:
    return opened(log, *script, config=CONFIG, tools=[look])


def name(item: object) -> str:
    return type(item.event if isinstance(item, refold.RecordedEvent) else item).__name__


async def test_a4_a_handler_sees_every_event_of_its_run_in_order(log: EventStore) -> None:
    async with streaming(log, refold.use("look", {"name": "it"}), refold.say("fine"), refold.say("more")) as (
        _,
        session,
    ):
        seen: list[Any] = []
        await session.send("go", on_event=seen.append)
        assert seen == [item async for item in session.events(after_version=2)]
        before = list(seen)
        await session.send("again")
        assert seen == before


async def test_a4_an_exception_of_the_handler_cancels_the_run_and_is_the_callers(log: EventStore) -> None:
    def handle(item: Any) -> None:
        if name(item) == "ToolCallCompleted":
            raise LookupError("of the handler")

    async with streaming(log, refold.use("look", {"name": "it"}), refold.say("fine"), refold.say("after")) as (
        _,
        session,
    ):
        with pytest.raises(LookupError, match="of the handler"):
            await session.send("go", on_event=handle)
        assert len(await events_of(session, RunCancelled)) == 1
        assert (await session.send("more")).outcome == refold.Completed()


async def test_a5_a_run_is_read_as_a_stream(log: EventStore) -> None:
    calling: list[refold.TextBlock | refold.ToolUse] = [
        refold.TextBlock(text="I look."),
        refold.use("look", {"name": "it"}),
    ]
    async with streaming(log, calling, refold.say("It is fine.")) as (_, session), session.stream("go") as stream:
        items = [item async for item in stream]
        assert [item async for item in stream] == []
    names = [name(item) for item in items]
    assert {(item.session, item.run) for item in items if isinstance(item, refold.Streamed)} == {("s", stream.run)}
    answers = [place for place, kind in enumerate(names) if kind == "ModelResponded"]
    pieces = [(place, item) for place, item in enumerate(items) if isinstance(item, refold.Streamed)]
    for turn, place in enumerate(answers, start=1):
        mine = [number for number, item in pieces if item.turn == turn]
        assert mine == list(range(place - len(mine), place))
        assert mine
    texts = [item.delta.text for _, item in pieces if isinstance(item.delta, refold.TextDelta)]
    arguments = [item.delta.partial_json for _, item in pieces if isinstance(item.delta, refold.ToolInputDelta)]
    assert ("".join(texts), "".join(arguments)) == ("I look.It is fine.", '{"name":"it"}')
    assert (names[0], names[-1], stream.result.text) == ("InputQueued", "RunCompleted", "It is fine.")


async def test_a5_b6_leaving_the_loop_inside_a_call_leaves_no_answer_no_call_and_one_cancelled(log: EventStore) -> None:
    answer: list[refold.TextBlock | refold.ToolUse] = [
        refold.TextBlock(text="I look."),
        refold.use("look", {"name": "a long name"}),
    ]
    async with streaming(log, refold.stall(answer, after=2), refold.say("after")) as (_, session):
        async with session.stream("go") as stream:
            async for item in stream:
                if isinstance(item, refold.Streamed) and isinstance(item.delta, refold.ToolInputDelta):
                    break
        assert stream.result.outcome == refold.Cancelled()
        assert [message.role for message in await session.history()] == ["user"]
        assert "tool_use" not in str(await session.history())
        types = await types_of(session)
        assert [types.count(kind) for kind in ("RunCancelled", "ModelResponded", "ToolCallStarted")] == [1, 0, 0]
        assert (await session.send("more")).text == "after"


async def test_a7_a_subscriber_that_lags_learns_what_it_missed_and_loses_no_event(log: EventStore) -> None:
    answer = "x" * 800
    async with streaming(log, refold.say(answer), refold.say(answer)) as (runtime, _):
        one, other = await runtime.session("one"), await runtime.session("other")
        async with one.follow(capacity=5) as slow, runtime.follow() as quick, runtime.follow(capacity=3) as slowest:
            await one.send("go")
            await other.send("go")
            logged = [item async for item in one.events()]
            items = [await anext(slow)]
            while name(items[-1]) != "RunCompleted":
                items.append(await anext(slow))
            assert [item for item in items if isinstance(item, refold.RecordedEvent)] == logged
            missed = sum(item.count for item in items if isinstance(item, refold.Missed))
            assert missed + sum(isinstance(item, refold.Streamed) for item in items) == 100
            assert missed >= 95
            everything = [item for session in (one, other) async for item in session.events()]
            for follower in (quick, slowest):
                seen: list[Any] = []
                while len(seen) < len(everything):
                    item = await anext(follower)
                    seen += [item] if isinstance(item, refold.RecordedEvent) else []
                assert sorted(seen, key=lambda item: item.position) == everything


async def test_b11_a_reader_beside_a_run_sees_started_before_completed_and_nothing_twice(log: EventStore) -> None:
    calls = [refold.use("look", {"name": letter}) for letter in "abc"]
    async with streaming(log, calls, calls, refold.say("fine")) as (_, session):

        async def read(capacity: int) -> list[Any]:
            seen: list[Any] = []
            async with session.follow(after_version=0, capacity=capacity) as follower:
                async for item in follower:
                    seen += [item] if isinstance(item, refold.RecordedEvent) else []
                    await asyncio.sleep(0)
                    if name(item) == "RunCompleted":
                        break
            return seen

        reading = [asyncio.create_task(read(capacity)) for capacity in (1, 2, 7, 1000)]
        await session.send("go")
        logged = [item async for item in session.events()]
        for seen in await asyncio.gather(*reading):
            assert [item.version for item in seen] == list(range(1, len(logged) + 1))
            assert seen == logged
            started: set[str] = set()
            for item in seen:
                if name(item) == "ToolCallStarted":
                    started.add(item.event.call)
                if name(item) == "ToolCallCompleted":
                    assert item.event.call in started


async def test_b19_what_was_streamed_of_a_cancelled_answer_is_evidence_and_its_tokens_count(log: EventStore) -> None:
    usage = refold.Usage(input_tokens=100, output_tokens=50)
    async with streaming(
        log, refold.stall(refold.say("A long answer.", usage=usage), after=1), refold.say("after")
    ) as (_, session):
        async with session.stream("go") as stream:
            async for item in stream:
                if isinstance(item, refold.Streamed) and isinstance(item.delta, refold.TextDelta):
                    break
        (cut_answer,) = await events_of(session, ModelInterrupted)
        assert cut_answer.content == (refold.TextBlock(text="A long a"),)
        assert cut_answer.usage == refold.Usage(input_tokens=100)
        (requested,) = [item async for item in session.events() if name(item) == "ModelRequested"]
        assert cut_answer.asked == requested.version
        assert "A long" not in str(await session.history())
        provider_saw = (await session.send("more")).text
        assert provider_saw == "after"


async def test_c8_a_stream_that_fails_half_way_delivers_the_failure_and_the_half_is_not_history(
    log: EventStore,
) -> None:
    error = refold.ProviderError("overloaded in the middle", kind="overloaded", status=529)
    answer: list[refold.TextBlock | refold.ToolUse] = [
        refold.TextBlock(text="Half an "),
        refold.use("look", {"name": "it"}),
    ]
    async with streaming(log, refold.cut(answer, after=2, error=error), refold.say("after")) as (_, session):
        async with session.stream("go") as stream:
            items = [item async for item in stream]
        assert [name(item) for item in items][-5:] == [
            *("Streamed", "Streamed"),
            *("ModelInterrupted", "ModelFailed", "RunFailed"),
        ]
        assert isinstance(stream.result.outcome, refold.Failed)
        assert "overloaded in the middle" in str(stream.result.outcome.error)
        (evidence,) = await events_of(session, ModelInterrupted)
        text, call = evidence.content
        assert text == refold.TextBlock(text="Half an ")
        assert isinstance(call, refold.ToolUseBlock)
        assert (call.name, call.input, call.malformed_input) == ("look", {}, '{"name":')
        assert [message.role for message in await session.history()] == ["user"]
        assert (await session.send("more")).text == "after"


async def test_c8_an_error_before_anything_came_leaves_no_evidence(log: EventStore) -> None:
    async with streaming(log, refold.ProviderError("refused")) as (_, session):
        assert isinstance((await session.send("go")).outcome, refold.Failed)
        assert await events_of(session, ModelInterrupted) == []


async def test_thinking_is_streamed_and_is_evidence_too(log: EventStore) -> None:
    thinking = Streams(refold.ThinkingDelta("Hm."), refold.ThinkingDelta(" Well."), refold.ProviderError("cut"))
    async with opened(log, provider=thinking, config=CONFIG) as (_, session):
        assert isinstance((await session.send("go")).outcome, refold.Failed)
        (evidence,) = await events_of(session, ModelInterrupted)
        assert evidence.content == (refold.ThinkingBlock(thinking="Hm. Well."),)
