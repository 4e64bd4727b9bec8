"""Work that is done once per key: E4."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from, tuples

from refold import CommandRejected, ConfigError, PersistenceError
from refold.actors import AskCycle, ManualClock
from refold.events.core.pure_core import Plan, plan
from refold.events.kinds.deduplicator import (
    DEDUP_CORE,
    ClaimWork,
    DedupCommand,
    DedupCore,
    DedupState,
    FinishWork,
    ReleaseWork,
)
from refold.resilience import Deduplicator
from refold.scenarios.core_exploration import explore_core
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.resilience.conftest import assert_sound, runtime_of


class Work:
    """Work that says how often it was begun, waits where it is held, and fails where it is told to."""

    def __init__(self, *, held: bool = False) -> None:
        self.begun = 0
        self.cancelled = 0
        self.error: Exception | None = None
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()
        self.leaving = asyncio.Event()
        self.left = asyncio.Event()
        self.left.set()

    async def __call__(self) -> object:
        self.begun += 1
        number = self.begun
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.leaving.set()
            await self.left.wait()
            raise
        if self.error is not None:
            raise self.error
        return {"number": number, "pair": (1, 2)}


def done(number: int) -> dict[str, object]:
    """Return what the execution of a number gives, as JSON has it."""
    return {"number": number, "pair": [1, 2]}


FIRST = done(1)


@pytest.fixture(params=["alone", "log"])
async def dedup(request: pytest.FixtureRequest, clock: ManualClock) -> Any:
    made = Deduplicator("payments", ttl_s=60, clock=clock)
    if request.param == "alone":
        yield made
        return
    log = InMemoryStore()
    async with runtime_of(log, clock, made):
        yield made
    await assert_sound(log)


async def test_e4_a_key_is_new_then_in_progress_then_done_until_its_time_is_over(
    dedup: Deduplicator, clock: ManualClock
) -> None:
    work = Work()
    assert (await dedup.status("k")).status == "new"
    work.gate.clear()
    running = asyncio.create_task(dedup.run("k", work))
    await work.started.wait()
    assert (await dedup.status("k")).status == "in_progress"
    work.gate.set()
    assert await running == FIRST
    status = await dedup.status("k")
    assert (status.status, status.result, status.until - status.since) == ("done", FIRST, 60_000_000)
    await clock.advance(59.9)
    assert await dedup.run("k", work) == FIRST
    assert work.begun == 1
    await clock.advance(0.2)
    assert (await dedup.status("k")).status == "new"
    assert await dedup.run("k", work) == done(2)
    assert (await dedup.run("other", work)) == done(3)


async def callers_of(dedup: Deduplicator, work: Work, number: int) -> list["asyncio.Task[object]"]:
    """Return so many callers of one key, whose work has begun."""
    callers = [asyncio.create_task(dedup.run("k", work)) for _ in range(number)]
    await work.started.wait()
    return callers


async def test_e4_callers_of_one_key_share_one_execution(dedup: Deduplicator) -> None:
    work = Work(held=True)
    callers = await callers_of(dedup, work, 20)
    work.gate.set()
    assert await asyncio.gather(*callers) == [FIRST] * 20
    assert work.begun == 1


async def test_e4_what_fails_is_not_kept_and_everybody_who_waited_is_told(dedup: Deduplicator) -> None:
    work = Work(held=True)
    work.error = OSError("no")
    callers = await callers_of(dedup, work, 3)
    work.gate.set()
    assert [str(error) for error in await asyncio.gather(*callers, return_exceptions=True)] == ["no"] * 3
    assert (await dedup.status("k")).status == "new"
    work.error = None
    assert await dedup.run("k", work) == done(2)


async def test_e4_one_caller_who_is_cancelled_leaves_the_others(dedup: Deduplicator) -> None:
    work = Work(held=True)
    callers = await callers_of(dedup, work, 3)
    callers[0].cancel()
    await asyncio.wait(callers[:1])
    assert callers[0].cancelled()
    work.gate.set()
    assert await asyncio.gather(*callers[1:]) == [FIRST] * 2
    assert (work.begun, work.cancelled) == (1, 0)


async def test_e4_when_nobody_waits_any_more_the_work_is_cancelled_and_the_key_is_new(dedup: Deduplicator) -> None:
    work = Work(held=True)
    callers = await callers_of(dedup, work, 2)
    work.left.clear()
    for caller in callers:
        caller.cancel()
    await work.leaving.wait()
    later = asyncio.create_task(dedup.run("k", work))  # It waits for the end of the first execution.
    await asyncio.sleep(0)
    assert (work.begun, work.cancelled, dedup.waiting("k")) == (1, 1, 0)
    work.gate.set()
    work.left.set()
    await asyncio.wait(callers)
    assert all(caller.cancelled() for caller in callers)
    assert await later == done(2)


async def test_e4_a_result_without_a_json_form_is_an_error_and_not_kept(dedup: Deduplicator) -> None:
    with pytest.raises(CommandRejected):
        await dedup.run("k", lambda: object())
    assert (await dedup.status("k")).status == "new"
    assert await dedup.run("k", lambda: None) is None
    assert (await dedup.status("k")).status == "done"


async def test_e4_what_is_forgotten_is_done_again(dedup: Deduplicator) -> None:
    work = Work()
    assert await dedup.forget("k") is False
    await dedup.run("k", work)
    assert await dedup.forget("k") is True
    assert await dedup.run("k", work) == done(2)


async def test_e4_loops_of_other_threads_share_the_execution(dedup: Deduplicator) -> None:
    work = Work(held=True)
    mine = asyncio.create_task(dedup.run("k", work))
    await work.started.wait()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(dedup.run("k", Work()))))
    thread.start()
    while dedup.waiting("k") < 2:  # noqa: ASYNC110 - it is another thread that has to come
        await asyncio.sleep(0)
    work.gate.set()
    assert await mine == FIRST
    await asyncio.to_thread(thread.join)
    assert found == [FIRST]


async def test_e4_a_result_outlives_the_process(tmp_path: Path, clock: ManualClock) -> None:
    work = Work()
    for _ in range(3):
        dedup = Deduplicator("payments", ttl_s=60)
        async with runtime_of(tmp_path / "events.db", clock, dedup):
            assert await dedup.run("k", work) == FIRST
    assert work.begun == 1


async def test_e4_after_a_crash_in_the_middle_the_key_is_refused_until_its_time_or_until_it_is_forgotten(
    clock: ManualClock,
) -> None:
    log = FailingStore(InMemoryStore())
    work = Work()
    for key in ("k", "other"):
        dedup = Deduplicator("payments", ttl_s=60)
        async with runtime_of(log, clock, dedup):
            work.gate.clear()
            work.started.clear()
            running = asyncio.create_task(dedup.run(key, work))
            await work.started.wait()
            log.fail_appends(lambda: PersistenceError("the machine is off"))
            running.cancel()
            await asyncio.wait([running])
        log.mend()
    work.gate.set()
    again = Deduplicator("payments", ttl_s=60)
    async with runtime_of(log, clock, again):
        assert (await again.status("k")).status == "in_progress"
        with pytest.raises(CommandRejected, match=r"the work 'k' was begun at .* by a process that is gone"):
            await again.run("k", work)
        assert work.begun == 2
        assert await again.forget("k") is True
        assert await again.run("k", work) == done(3)
        await clock.advance(60)
        assert await again.run("other", work) == done(4)


async def test_e4_a_log_that_cannot_take_the_claim_has_the_work_not_begun(clock: ManualClock) -> None:
    log, work, dedup = FailingStore(InMemoryStore()), Work(), Deduplicator("payments")
    async with runtime_of(log, clock, dedup):
        log.fail_appends(lambda: PersistenceError("no space left"))
        with pytest.raises(PersistenceError, match="no space left"):
            await dedup.run("k", work)
        log.mend()
        assert work.begun == 0
        assert await dedup.run("k", work) == FIRST


async def test_e4_what_was_done_before_the_runtime_is_known_in_it_and_the_logs_own_results_stay(
    tmp_path: Path, clock: ManualClock
) -> None:
    first = Deduplicator("payments", clock=clock)
    await first.run("k", lambda: "first")
    async with runtime_of(tmp_path / "events.db", clock, first):
        assert await first.run("k", lambda: "again") == "first"
    second = Deduplicator("payments", clock=clock)
    await second.run("k", lambda: "second")
    await second.run("other", lambda: "other")
    async with runtime_of(tmp_path / "events.db", clock, second):
        assert await second.run("k", lambda: "again") == "first"
        assert await second.run("other", lambda: "again") == "other"


def test_e4_what_cannot_work_is_refused() -> None:
    bad: Any
    for bad in (0, -1, float("inf"), True, "60"):
        with pytest.raises(ConfigError, match="ttl_s"):
            Deduplicator("d", ttl_s=bad)
    with pytest.raises(ConfigError, match="key of work"):
        Deduplicator("d").status("")


def commands_of(state: DedupState) -> list[DedupCommand]:
    now = max((entry.since for entry in state.entries.values()), default=0)
    commands: list[DedupCommand] = []
    for key in ("a", "b"):
        for at in (now, now + 10):
            commands.append(ClaimWork(work_key=key, decided_at=at, until=at + 10))
            commands.append(FinishWork(work_key=key, result="1", decided_at=at, until=at + 10))
        commands.append(ReleaseWork(work_key=key))
    return commands


def test_every_life_of_the_core_is_sound() -> None:
    found = explore_core(DedupCore, commands_of, commands_max=3)
    assert found.counterexample is None, found.counterexample
    assert found.states == 41


@given(lists(tuples(integers(0, 9), sampled_from(["k1", "k2", "k3"]), sampled_from([True, False])), max_size=30))
def test_what_is_over_does_not_stay_in_memory(steps: list[tuple[int, str, bool]]) -> None:
    state, now = DedupState(), 0
    for number, (wait, key, claim) in enumerate(steps):
        now += wait
        name = f"{key} {number}"
        command: DedupCommand = (
            ClaimWork(work_key=name, decided_at=now, until=now + 10)
            if claim
            else FinishWork(work_key=name, result="1", decided_at=now, until=now + 10)
        )
        planned = plan(DEDUP_CORE, state, command, now)
        assert isinstance(planned, Plan)
        state = planned.state
        assert all(entry.until > now for entry in state.entries.values())


async def test_e4_work_that_asks_for_its_own_result_is_told_so_at_once() -> None:
    dedup, other = Deduplicator("payments"), Deduplicator("receipts")

    async def outer() -> object:
        return await other.run("b", inner)

    async def inner() -> object:
        return await dedup.run("a", outer)

    circle = "dedup/payments: a -> dedup/receipts: b -> dedup/payments: a"
    with pytest.raises(AskCycle, match=f"waiting here would never end: {circle}"):
        await dedup.run("a", outer)
    assert await dedup.run("a", lambda: "done") == "done"
