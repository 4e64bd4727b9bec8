"""A runtime's metrics are those of its log at every moment, cost nothing until asked for, and survive faults."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

import refold
from refold.events.core.errors import BackpressureShed
from refold.events.core.ids import StreamName
from refold.events.core.records import EncodedBatch, StoredEvent
from refold.metrics import LiveCounts, MetricsSnapshot, read_metrics
from refold.metrics.live import BATCHES_WAITING_MAX, EVENTS_PER_PAGE
from refold.providers.scripted import ScriptedAnswer
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer
from tests.runtime.sample_tills import Pay, TillCore
from tests.runtime.talking import talking

CONFIG = refold.AgentConfig(model="m")

GOLDEN = Path(__file__).parents[2] / "golden" / "format-1-core-3.db"


@refold.tool(tier="observe", effect="pure")
async def look(where: str) -> str:
    return f"{where}: nothing"


@refold.tool(tier="act")
async def fail(kind: str) -> str:
    raise refold.ToolError("no", kind="transient")


def model(request: refold.ModelRequest) -> ScriptedAnswer:
    """Do what the input says, and answer after the results."""
    asked = request.messages[-1].text
    match asked:
        case "look":
            return [refold.use("look", {"where": "here"}), refold.use("look", {"where": "there"})]
        case "fail":
            return refold.use("fail", {"kind": "x"})
        case "unknown":
            return refold.use("made_up", {})
        case "break":
            raise refold.ProviderError("down", kind="invalid_request")
        case _:
            return refold.say("Done.")


def runtime_on(log: EventStore | Path | str = ":memory:", name: str = "agent") -> refold.AgentRuntime:
    provider = refold.ScriptedProvider([model] * 500)
    return refold.AgentRuntime(CONFIG, provider=provider, tools=[look, fail], log=log, name=name, inbox_poll_s=0)


async def same_as_log(runtime: refold.AgentRuntime) -> MetricsSnapshot:
    """Return the figures of this moment, which are those of the log."""
    now = await runtime.metrics.snapshot()
    assert now.recorded() == await read_metrics(runtime.store, at=now.position)
    return now


# The figures


async def test_the_figures_at_every_moment_are_those_of_the_log_up_to_that_position() -> None:
    async with runtime_on() as runtime:
        positions = [(await same_as_log(runtime)).position]
        for words in ("a look", "a hello", "b fail", "c unknown", "b break", "b look"):
            name, word = words.split()
            await (await runtime.session(name)).send(word)
            positions.append((await same_as_log(runtime)).position)
        cancelled = refold.CancellationToken()
        cancelled.cancel()
        await (await runtime.session("a")).send("hello", cancel=cancelled)
        found = await same_as_log(runtime)
    assert positions == sorted(set(positions))
    assert (found.sessions, found.active_sessions, found.inputs) == (3, 0, 7)
    assert (found.runs_started, found.runs_completed, found.runs_failed, found.runs_cancelled) == (7, 5, 1, 1)
    assert found.run_failure_kinds == {"provider": 1}
    assert (found.steps, found.model_failures) == (9, 1)
    assert found.tools["look"].calls == found.tools["look"].successes == found.tools["look"].started == 4
    assert found.tools["fail"].failure_kinds == {"transient": 1}
    assert found.tools["(not found)"].failure_kinds == {"not_found": 1}
    assert found.agents["agent"].runs_started == 7
    assert (found.runtimes_started, found.runtimes_closed) == (1, 0)


async def test_a_session_is_active_while_its_run_is_open() -> None:
    think = HeldAnswer("Done.")
    async with talking(think) as (session, runtime):
        sending = asyncio.create_task(session.send("hello"))
        await think.asked.wait()
        assert (await same_as_log(runtime)).active_sessions == 1
        think.gate.set()
        await sending
        assert (await same_as_log(runtime)).active_sessions == 0


async def test_two_runtimes_in_turn_count_the_whole_log(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with runtime_on(log, name="first") as runtime:
        await (await runtime.session("a")).send("look")
        await runtime.metrics.snapshot()
        await (await runtime.session("a")).send("fail")
    first = await runtime.metrics.snapshot()
    assert first.recorded() == await read_metrics(log)
    assert first.runtimes_closed == 1
    async with runtime_on(log, name="second") as runtime:
        await (await runtime.session("b")).send("look")
        second = await same_as_log(runtime)
        assert second.delta(first).tools == {"look": msgspec.structs.replace(first.tools["look"])}
        assert {name: counts.runs_started for name, counts in second.agents.items()} == {"first": 2, "second": 1}
        assert second.live == LiveCounts(commits=runtime.commits)
    assert await read_metrics(log, at=first.position) == first.recorded()


async def test_many_sessions_at_once_and_snapshots_in_between() -> None:
    async with runtime_on() as runtime:

        async def live(number: int) -> None:
            session = await runtime.session(f"s{number}")
            for word in ("look", "fail"):
                await session.send(word)
                await same_as_log(runtime)

        await asyncio.gather(*(live(number) for number in range(8)))
        found = await same_as_log(runtime)
    assert (found.sessions, found.runs_completed, found.tool_calls) == (8, 16, 24)


async def test_actors_of_ones_own_are_counted_by_their_events() -> None:
    async with runtime_on() as runtime:
        tills = await runtime.host("till", TillCore)
        await runtime.metrics.snapshot()
        for amount in range(3):
            await tills.ask("ACME", Pay(amount=amount))
        assert (await same_as_log(runtime)).events["till.paid.v1"] == 3


# What they cost


async def test_nothing_is_read_until_somebody_asks_and_then_once() -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_on(store) as runtime:
        session = await runtime.session("a")
        await session.send("look")
        assert "all" not in store.reads
        await runtime.metrics.snapshot()
        read = store.reads.count("all")
        sessions = [await runtime.session(f"s{number}") for number in range(4)]
        commits = runtime.commits
        while runtime.commits < commits + BATCHES_WAITING_MAX:  # So many wait until they are asked for.
            await asyncio.gather(*(each.send("look") for each in sessions))
        found = await runtime.metrics.snapshot()
        assert store.reads.count("all") == read
        assert found.runs_completed == found.runs_started > 4
        await same_as_log(runtime)


async def test_a_long_log_is_counted_while_sessions_go_on(tmp_path: Path) -> None:
    log = Path(shutil.copy(GOLDEN, tmp_path / "events.db"))
    before = await read_metrics(log)
    assert before.position > EVENTS_PER_PAGE
    async with runtime_on(log) as runtime:
        session = await runtime.session("new")
        counting = runtime.metrics.snapshot()
        await asyncio.gather(*(session.send("look") for _ in range(5)))
        assert (await counting).runs_completed >= before.runs_completed
        await session.send("look")
        assert (await same_as_log(runtime)).delta(before).runs_completed == 6


# Faults, and what leaves no event


async def test_an_append_of_unknown_outcome_is_counted_by_what_became_of_it() -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_on(store) as runtime:
        session = await runtime.session("a")
        await session.send("hello")
        await runtime.metrics.snapshot()
        store.fail_appends(lambda: refold.PersistenceError("disk", outcome_unknown=True), when="after", times=1)
        with pytest.raises(refold.PersistenceError):
            await session.send("look")
        store.fail_appends(lambda: refold.PersistenceError("disk"), of="session/b")
        with pytest.raises(refold.PersistenceError):
            await (await runtime.session("b")).send("look")
        await session.send("hello")
        found = await same_as_log(runtime)
        assert found.live is not None
        assert (found.live.failed_appends, found.inputs, found.sessions) == (2, 3, 1)
        assert (await session.statistics()).append_errors == 1
        assert (await (await runtime.session("c")).statistics()).append_errors == 0


async def test_an_event_of_unknown_outcome_is_counted_also_where_nothing_follows() -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_on(store) as runtime:
        tills = await runtime.host("till", TillCore)
        await runtime.metrics.snapshot()
        store.fail_appends(lambda: refold.PersistenceError("disk", outcome_unknown=True), when="after", of="till")
        with pytest.raises(refold.PersistenceError):
            await tills.ask("ACME", Pay(amount=3))
        assert (await same_as_log(runtime)).events["till.paid.v1"] == 1


async def test_an_event_that_the_journal_was_not_told_of_is_counted_when_the_next_one_shows_the_gap() -> None:
    store = InMemoryStore()
    async with runtime_on(store) as runtime:
        session = await runtime.session("a")
        await session.send("hello")
        await runtime.metrics.snapshot()
        await store.append([EncodedBatch(stream=StreamName("x/y"), expected_version=0, at=1, events=(b"{}",))])
        await session.send("look")
        found = await same_as_log(runtime)
    assert (found.events["(damaged)"], found.runs_completed) == (1, 2)


async def test_what_was_read_from_the_log_before_the_journal_was_told_of_it_counts_once() -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_on(store) as runtime:
        tills = await runtime.host("till", TillCore)
        hold = store.hold_append(len(store.appends) + 1, when="after")
        placing = asyncio.create_task(tills.ask("ACME", Pay(amount=3)))
        await hold.reached.wait()
        assert (await same_as_log(runtime)).events["till.paid.v1"] == 1
        hold.let_go()
        await placing
        await tills.ask("ACME", Pay(amount=4))
        assert (await same_as_log(runtime)).events["till.paid.v1"] == 2


async def test_what_is_written_while_the_log_is_read_is_counted_too() -> None:
    class SlowReads(FailingStore):
        gate = asyncio.Event()
        reached = asyncio.Event()

        async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
            page = await super().read_all(after_position=after_position, limit=limit)
            self.reached.set()
            await self.gate.wait()
            return page

    store = SlowReads(InMemoryStore())
    async with runtime_on(store) as runtime:
        asked = runtime.metrics.snapshot()
        await store.reached.wait()
        await (await runtime.session("a")).send("look")
        store.gate.set()
        assert (await asked).runs_completed == 1
        await same_as_log(runtime)


async def test_a_log_that_cannot_be_read_is_told_and_counted_later() -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_on(store) as runtime:
        store.fail_reads(lambda: OSError("disk"), of="all")
        with pytest.raises(refold.PersistenceError, match="disk"):
            await runtime.metrics.snapshot()
        result = await (await runtime.session("a")).send("look")
        assert result.outcome == refold.Completed()
        store.mend()
        assert (await same_as_log(runtime)).runs_completed == 1


async def test_shed_messages_and_failing_subscribers_are_live_counts() -> None:
    def broken(_: object) -> None:
        raise RuntimeError("no")

    think, store = HeldAnswer("Done."), FailingStore(InMemoryStore())
    async with talking(*[think] * 9, log=store, mailbox_capacity=2) as (session, runtime):
        sending = [asyncio.create_task(session.send("hello"))]
        await think.asked.wait()
        runtime.subscribe(broken)
        hold = store.hold_append(len(store.appends) + 1)
        sending.append(asyncio.create_task(session.send("hello")))
        await hold.reached.wait()
        sending += [asyncio.create_task(session.send("hello")) for _ in range(4)]
        with pytest.raises(BackpressureShed):
            await sending[-1]
        hold.let_go()
        think.gate.set()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        found = await same_as_log(runtime)
    assert sum(isinstance(end, BackpressureShed) for end in ended) == 2
    assert found.live is not None
    assert (found.live.shed_commands, found.inputs) == (2, 4)
    assert found.live.observer_failures == runtime.event_bus.failures > 0


# Who may ask, and when


async def test_other_threads_ask_too_and_the_loops_own_must_not_block() -> None:
    async with runtime_on() as runtime:
        await (await runtime.session("a")).send("look")
        there = await asyncio.to_thread(lambda: runtime.metrics.snapshot().get(timeout=10))
        assert there == await runtime.metrics.snapshot()
        assert runtime.metrics.snapshot().ready()
    async with runtime_on() as runtime:
        with pytest.raises(refold.WouldDeadlock):
            runtime.metrics.snapshot().get()


def test_the_blocking_face_gives_the_figures_themselves(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with runtime_on(log) as runtime:
        runtime.session("a").send("look")
        found = runtime.metrics.snapshot()
        assert found.runs_completed == 1
    after = runtime.metrics.snapshot()
    assert after.delta(found).events == {"runtime.closed.v1": 1}
    assert after.recorded() == asyncio.run(read_metrics(log))


async def test_before_the_beginning_there_are_none_and_after_the_end_those_of_the_end() -> None:
    runtime = runtime_on()
    with pytest.raises(refold.ConfigError, match="not open"):
        runtime.metrics.snapshot()
    async with runtime:
        await (await runtime.session("a")).send("look")
    with pytest.raises(refold.ActorStopped, match="refold metrics"):
        await runtime.metrics.snapshot()


async def test_who_waits_for_the_figures_when_the_runtime_closes_is_told() -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_on(store) as runtime:
        store.fail_reads(store.hold_append(10**6), of="all")
        asked = runtime.metrics.snapshot()
        await asyncio.sleep(0)
    with pytest.raises(refold.ActorStopped):
        await asked


def test_after_the_end_of_the_loop_nobody_waits_for_figures() -> None:
    async def left_open() -> refold.AgentRuntime:
        return await runtime_on().open()

    runtime = asyncio.run(left_open())
    with pytest.raises(refold.ActorStopped):
        runtime.metrics.snapshot().get(timeout=10)


# A log from outside


async def test_a_log_is_read_as_of_any_position_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with runtime_on(log) as runtime:
        await (await runtime.session("a")).send("look")
    async with await SQLiteStore.open(log, read_only=True) as store:
        last = len(await store.read_all())
        assert await read_metrics(store, at=0) == MetricsSnapshot()
        assert [(await read_metrics(store, at=at)).position for at in (1, last)] == [1, last]
        for at in (-1, last + 1):
            with pytest.raises(refold.ConfigError, match=f"no position {at}; its positions are 0 to {last}"):
                await read_metrics(store, at=at)
