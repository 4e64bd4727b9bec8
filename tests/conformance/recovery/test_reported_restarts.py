"""Cases N and M of the reported faults: what is the same when it is done again, and that a log has one owner.

What a crash leaves in the middle of a step, N09, and of a call that crashes every process, M09, is in
`test_crash_recovery`.
"""

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from refold import ActorStopped, LogInUse, ModelRequest, Session, say, tool, use
from refold.events.session.events import InputQueued, RunStarted, ToolCallCompleted
from refold.events.session.invariants import check_history
from refold.replay import replay
from refold.stores import EventStore
from tests.conformance.cases import Case, Step, as_tests
from tests.conformance.crashes import assert_sound_file, runtime_on
from tests.conformance.sessions import events_of, opened, session_in, types_of
from tests.conformance.steps import begin, begun, ends, let_go, recorded, until


async def assert_replayed_alike(log: EventStore | Path) -> None:
    assert await replay(log, level="core") == await replay(log, level="core")


# N01, N03: the order in the log is the order


def let_go_apart(order: str) -> list[Step]:
    return [step for place, name in enumerate(order, 1) for step in (let_go(name), until("ToolCallCompleted", place))]


CASES = {
    f"case N01: parallel results are recorded as they end and shown in the order of their calls, {order} {tick}": Case(
        [[use("park", {"name": name}) for name in "abc"], say("ok")],
        [
            [begin("go", key="k"), begun(3), *([let_go(*order)] if tick == "in one tick" else let_go_apart(order))],
            [ends("ok"), recorded(ToolCallCompleted, "content", *(f"{name} returned" for name in order))],
        ],
        results=[f"{name} returned" for name in "abc"],
    )
    for order in map("".join, itertools.permutations("abc"))
    for tick in ("apart", "in one tick")
}


test_restarts, test_restarts_with_a_crash_after_each_commit = as_tests(CASES)


async def inputs_in_order(session: Session) -> list[str]:
    """Return the inputs in the order accepted, in which their runs began."""
    accepted = [recorded async for recorded in session.events() if isinstance(recorded.event, InputQueued)]
    assert [event.input for event in await events_of(session, RunStarted)] == [each.version for each in accepted]
    return ["".join(getattr(block, "text", "") for block in each.event.content) for each in accepted]  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("second", ["send", "cancel", "both"])
@pytest.mark.parametrize("at", range(1, 12))
async def test_case_n03_what_arrives_at_any_event_of_a_run_has_one_place_in_the_log(
    log: EventStore, at: int, second: str
) -> None:
    @tool
    async def work() -> str:
        return "worked"

    def answer(request: ModelRequest) -> Any:
        return use("work") if request.messages[-1].text == "first" else "fine"

    others: list[asyncio.Task[Any]] = []
    async with opened(log, *[answer] * 6, tools=[work]) as (runtime, session):

        def arrive(recorded: Any) -> None:
            if recorded.version == at:
                if second in ("send", "both"):
                    others.append(asyncio.create_task(session.send("second")))
                if second in ("cancel", "both"):
                    others.append(asyncio.create_task(session.cancel()))

        runtime.subscribe(arrive)
        await session.send("first")
        await asyncio.gather(*others)
        inputs = ["first"] if second == "cancel" else ["first", "second"]
        assert await inputs_in_order(session) == inputs
        assert check_history(await session.history()) == []
        types = await types_of(session)
        assert sum(types.count(kind) for kind in ("RunCompleted", "RunCancelled")) == len(inputs)
    await assert_replayed_alike(log)


# M03: one runtime owns a log


async def test_case_m03_a_second_runtime_is_refused_while_the_first_is_in_a_tool_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    path, begun, gate = tmp_path / "events.db", asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "worked"

    async with session_in(runtime_on(path, use("work"), say("done"), say("more"), tools=[work])) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        with pytest.raises(LogInUse, match=str(os.getpid())):
            await runtime_on(path, say("x"), wait_for_log_s=0).__aenter__()
        gate.set()
        assert (await sending).text == "done"
        assert (await session.send("again")).text == "more"
    async with runtime_on(path, say("third"), wait_for_log_s=0) as third:
        session = await third.session("s", restore=True)
        assert (await session.send("and again")).text == "third"
        texts = [message.text for message in await session.history() if message.text]
        assert texts == ["go", "done", "again", "more", "and again", "third"]
    await assert_sound_file(path)


async def test_case_m03_a_second_runtime_that_may_wait_takes_the_log_over_and_goes_on(tmp_path: Path) -> None:
    path, begun, gate = tmp_path / "events.db", asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "worked"

    first = runtime_on(path, use("work"), tools=[work], close_grace_s=0)
    async with first:
        sending = asyncio.create_task((await first.session("s")).send("go", key="k"))
        await begun.wait()
        second = runtime_on(path, say("done"), tools=[work], wait_for_log_s=60)
        opening = asyncio.create_task(second.open())
        await asyncio.sleep(0)
        assert not opening.done()
        await first.close()
        gate.set()
        await opening
    with pytest.raises(ActorStopped):
        await sending
    assert (await (await second.session("s")).send("go", key="k")).text == "done"
    await second.close()
    await assert_sound_file(path)
