"""Many inputs of one session: they are recorded together, and refused at once where too many wait."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentRuntime,
    BackpressureShed,
    CommandRejected,
    ConfigError,
    PersistenceError,
    QueueFull,
    RunResult,
    ScriptedProvider,
    Session,
    say,
)
from refold.events.core.content import text_of
from refold.events.session.events import InputQueued, RunStarted
from refold.options import RuntimeOptions
from refold.remote.client import give
from refold.remote.protocol import Refused
from refold.remote.rows import InboxSend
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import CONFIG, HeldAnswer, events_of, opened


def sent(session: Session, count: int, **options: Any) -> "list[asyncio.Task[RunResult]]":
    return [asyncio.create_task(session.send(f"input {number}", **options)) for number in range(count)]


async def test_case_n03_inputs_that_wait_together_share_transactions_and_keep_their_order(
    memory: InMemoryStore,
) -> None:
    async with opened(memory, *[lambda request: f"to {request.messages[-1].text}"] * 200) as (runtime, session):
        results = await asyncio.gather(*sent(session, 200))
        inputs = [(event.version, event.event) async for event in session.events()]
    accepted = [(version, event) for version, event in inputs if isinstance(event, InputQueued)]
    assert [text_of(event.content) for _, event in accepted] == [f"input {number}" for number in range(200)]
    assert [event.input for _, event in inputs if isinstance(event, RunStarted)] == [version for version, _ in accepted]
    assert [result.text for result in results] == [f"to input {number}" for number in range(200)]
    assert len(inputs) <= 5 * 200 + 2
    assert runtime.commits < 2 * 200 + 20  # Two for each run, and few for all inputs.


async def test_of_inputs_that_wait_together_a_refused_one_costs_the_others_nothing(memory: InMemoryStore) -> None:
    async with opened(memory, *[say("done")] * 5) as (_, session):
        await session.send("first", key="k")
        outcomes = await asyncio.gather(
            session.send("a"), session.send("b", key="k"), session.send("c"), session.send("  "), session.send("d"),
            return_exceptions=True,
        )  # fmt: skip
    assert [type(outcome) for outcome in outcomes] == [
        *(RunResult, CommandRejected, RunResult, CommandRejected, RunResult)
    ]


async def test_where_the_log_fails_all_that_were_to_be_recorded_together_learn_of_it(memory: InMemoryStore) -> None:
    store = FailingStore(memory)
    async with opened(store, *[say("done")] * 9, close_grace_s=0) as (_, session):
        await session.send("first")
        store.fail_appends(lambda: PersistenceError("the disk is full"))
        outcomes = Counter(
            type(each).__name__ for each in await asyncio.gather(*sent(session, 8), return_exceptions=True)
        )
        store.mend()
    assert outcomes == {"PersistenceError": 8}


async def test_a_session_takes_as_many_inputs_as_may_wait_and_refuses_the_next_at_once(memory: InMemoryStore) -> None:
    held = HeldAnswer("done")
    async with opened(memory, held, *[say("done")] * 9, queue_max=3) as (_, session):
        running = asyncio.create_task(session.send("first"))
        await held.asked.wait()
        waiting = sent(session, 1, key="k") + sent(session, 1)
        await session.remind("later", at=datetime.now(UTC) + timedelta(days=1))
        for refused in [session.send("more"), session.send("more", now=True), session.next_turn("more")]:
            with pytest.raises(QueueFull, match="3 are waiting and the capacity is 3") as full:
                await refused
            assert isinstance(full.value, BackpressureShed)
        assert (full.value.depth, full.value.capacity) == (3, 3)
        waiting += sent(session, 1, key="k")  # It was accepted before.
        held.gate.set()
        assert {result.text for result in await asyncio.gather(running, *waiting)} == {"done"}
        assert (await session.send("there is room again")).text == "done"
        assert len(await events_of(session, InputQueued)) == 4


async def test_an_input_of_another_process_is_refused_as_well(tmp_path: Path) -> None:
    held, log = HeldAnswer("done"), tmp_path / "events.db"
    options = RuntimeOptions(log=log, queue_max=1, inbox_poll_s=0.01)
    async with AgentRuntime(CONFIG, provider=ScriptedProvider([held, *[say("done")] * 3]), **options) as runtime:
        session = await runtime.session("alice")
        running = sent(session, 1)
        await held.asked.wait()
        running += sent(session, 1)
        await session.history()
        outcome = (await give(log, "alice", InboxSend(text="more"))).outcome
        assert isinstance(outcome, Refused)
        assert "session 'alice' has no room" in outcome.message
        held.gate.set()
        await asyncio.gather(*running)


@pytest.mark.parametrize("wrong", [0, True, "many"])
def test_a_bound_is_a_whole_number(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="queue_max"):
        AgentRuntime(CONFIG, provider=lambda prompt: prompt, queue_max=wrong)
