"""A tool call ends once, for every way its body may go: silent, stubborn, gone, or begun twice."""

import asyncio
from typing import Any

import pytest

from refold import Cancelled, ToolContext, say, tool, use
from refold.actors import ManualClock
from refold.actors.agent.tool import StartToolCall
from refold.actors.shell.messages import Later
from refold.events.core.content import CRASHED_TEXT, text_of
from refold.events.kinds.tool import TOOL_CODEC, ToolDefined
from refold.events.session.events import RunCancelled, ToolApprovalRequested, ToolCallFailed, ToolResultLate
from refold.stores import InMemoryStore
from tests.conformance.sessions import Parked, Seen, abandoned_in, events_of, opened, results_of, tell_twice

CALL = use("ignore", {"name": "a"})


async def test_silence_beyond_the_timeout_gives_a_call_up_and_its_late_result_is_evidence(
    memory: InMemoryStore,
) -> None:
    parked, clock = Parked(), ManualClock()

    @tool(name="ignore", timeout_s=10)
    async def stubborn(name: str) -> str:
        return await parked.ignore(name)

    options: dict[str, Any] = {"tools": [stubborn], "clock": clock, "cancel_grace_s": 4}
    async with opened(memory, CALL, say("next"), **options) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await clock.advance(9.9)
        assert await events_of(session, ToolCallFailed) == []
        await clock.advance(0.2)
        (failed,) = await events_of(session, ToolCallFailed)
        assert (failed.kind, "no sign of life for 10 seconds" in text_of(failed.content)) == ("timeout", True)
        assert await abandoned_in(memory, "ignore") == 0
        await clock.advance(100)
        abandoned = await abandoned_in(memory, "ignore")
        parked.gate.set()
        await clock.settle()
        late = [text_of(event.content) for event in await events_of(session, ToolResultLate)]
        assert (abandoned, late, (await sending).text) == (1, ["a returned"], "next")


async def test_a_body_that_watches_its_token_is_left_half_the_grace_and_then_cancelled(memory: InMemoryStore) -> None:
    clock, waiting, cleaned = ManualClock(), asyncio.Event(), asyncio.Event()

    @tool
    async def watch(context: ToolContext[Any]) -> None:
        assert not context.cancel.cancelled
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    options: dict[str, Any] = {"tools": [watch], "clock": clock, "cancel_grace_s": 4, "close_grace_s": 0}
    async with opened(memory, use("watch"), **options) as (runtime, session):
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await waiting.wait()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        await clock.advance(1.9)
        assert not cleaned.is_set()
        await clock.advance(0.2)
        assert cleaned.is_set()
        await cancelling
        assert (await sending).outcome == Cancelled()


async def test_a_call_that_its_tool_is_told_of_twice_runs_once(
    memory: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = Parked()
    tell_twice(monkeypatch, StartToolCall)
    async with opened(memory, use("park", {"name": "a"}), say("done"), tools=[parked.park]) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await session.history()
        parked.gate.set()
        assert (await sending).text == "done"
    assert parked.begun == ["a"]


async def test_the_outcome_of_calls_whose_actor_fails_is_unknown(memory: InMemoryStore) -> None:
    parked = Parked()
    async with opened(memory, use("park", {"name": "a"}), say("done"), tools=[parked.park]) as (runtime, session):
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        runtime.system.ref("tool/park").tell(Later("too many", (1, 2)))
        await sending
        assert [(block.kind, block.text) for block in await results_of(session)] == [("crashed", CRASHED_TEXT)]


async def test_a_tool_that_is_gone_when_its_call_begins_is_not_found(memory: InMemoryStore) -> None:
    @tool(tier="confirm")
    async def pay() -> None: ...

    async with opened(memory, use("pay"), say("done"), tools=[pay]) as (runtime, session):
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        (asked,) = await seen.first(ToolApprovalRequested)
        runtime.tools.remove("pay")
        await session.decide(asked.call, allow=True)
        assert (await sending).text == "done"
        (result,) = await results_of(session)
    assert (result.kind, result.text) == ("not_found", "There is no tool 'pay' in this process.")


async def test_a_tool_is_defined_in_the_log_once_and_again_where_it_differs(memory: InMemoryStore) -> None:
    @tool(name="work")
    async def plain() -> None: ...

    @tool(name="work")
    async def other(number: int = 0) -> None: ...

    for made in (plain, plain, other):
        async with opened(memory, *[use("work"), say("done")] * 2, tools=[made], alike=False) as (_, session):
            for _ in range(2):
                await session.send("go")
    defined = TOOL_CODEC.decode_all(await memory.read_stream("tool/work"))
    assert [type(event) for event in defined] == [ToolDefined] * 2
