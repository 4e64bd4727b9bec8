"""A log that fails in every way, under a whole runtime: rows C1 to C5.

One run is taken as the measure: two calls side by side, one alone, a final answer; `UNDISTURBED` is what it records.
For each way the store fails, each effect is begun once, what it brought is recorded once, the log is sound, and
nothing waits for ever. Time is moved by hand.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentRuntime,
    CommandRejected,
    Completed,
    PersistenceError,
    RunResult,
    ScriptedProvider,
    Session,
    Tool,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CRASHED_TEXT
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.agents.delegating import waiting_in
from tests.conformance.crashes import OPENING, assert_sound_file
from tests.conformance.failing_store import FOR_EVER, FailingStore, Hold, MakeError, When
from tests.conformance.sessions import CONFIG, HeldAnswer, assert_sound, results_of, session_in
from tests.stores.conftest import files_limited_to

PATIENT: dict[str, Any] = {"append_timeout_s": 1e6, "ask_timeout_s": 1e6}
"""For tests in which time passes by hand while a thread may still be writing a file."""

INPUT = OPENING + 1

UNDISTURBED = [
    ["SessionOpened"],
    ["AgentConfigured"],
    ["InputQueued", "RunStarted", "ModelRequested"],
    ["ModelResponded", "ToolCallStarted", "ToolCallStarted"],
    ["ToolCallCompleted"],
    ["ToolCallCompleted", "ModelRequested"],
    ["ModelResponded", "ToolCallStarted"],
    ["ToolCallCompleted", "ModelRequested"],
    ["ModelResponded", "RunCompleted"],
]
"""The batches of the measured run. The first three share one append."""

SESSION_APPENDS = len(UNDISTURBED) - 2

APPENDS = OPENING + SESSION_APPENDS + 3
"""All appends of the measured run: two tools are defined beside it, and the end of the runtime is recorded."""


class Crash(BaseException):
    """Something that no `except Exception` catches."""


ERRORS: dict[str, MakeError] = {
    "PersistenceError": lambda: PersistenceError("the disk is full"),
    "outcome unknown": lambda: PersistenceError("the disk went away", outcome_unknown=True),
    "OSError": lambda: OSError(28, "No space left on device"),
    "KeyError": lambda: KeyError("anything"),
    "RecursionError": RecursionError,
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(1),
    "GeneratorExit": GeneratorExit,
    "BaseException": Crash,
}


MEASURED = ([use("look", {"name": "a"}), use("look", {"name": "b"})], use("pay"), say("done"), say("next"))


class Work:
    """The measured run's provider and tools, and what of them was begun; the script may be another one."""

    def __init__(self, *script: Any) -> None:
        self.begun: list[str] = []
        self.provider = ScriptedProvider(script or MEASURED)

        @tool(tier="observe", effect="once")
        async def look(name: str) -> str:
            self.begun.append(f"look {name}")
            return f"saw {name}"

        @tool(tier="act", effect="once")
        async def pay() -> str:
            self.begun.append("pay")
            return "paid"

        self.tools: list[Tool[..., object]] = [look, pay]

    def runtime(self, store: EventStore, clock: ManualClock, **options: Any) -> AgentRuntime:
        settings = PATIENT | options
        return AgentRuntime(CONFIG, provider=self.provider, tools=self.tools, log=store, clock=clock, **settings)


@contextlib.asynccontextmanager
async def at_work(
    store: EventStore, *script: Any, session: str = "s", **options: Any
) -> AsyncIterator[tuple[Work, ManualClock, AgentRuntime, Session]]:
    """Give a runtime that is open, and a session of it."""
    work, clock = Work(*script), ManualClock()
    async with work.runtime(store, clock, **options) as runtime:
        yield work, clock, runtime, await runtime.session(session)


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FailingStore]:
    """A store that fails as it is told, around one that is found sound when the test is over."""
    inner: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield FailingStore(inner)
    await assert_sound(inner)
    await inner.close()


async def batches_of(log: EventStore, stream: str = "session/s") -> list[list[str]]:
    batches: dict[int, list[str]] = {}
    for recorded in SESSION_CODEC.recorded(await log.read_stream(stream)):
        batches.setdefault(recorded.batch, []).append(type(recorded.event).__name__)
    return list(batches.values())


async def texts_of_results(session: Session) -> list[str]:
    return [block.text for block in await results_of(session)]


async def ended(clock: ManualClock, task: asyncio.Task[Any]) -> Any:
    """Return what a task returns, letting time pass until it does, faster and faster."""
    step_s = 0.5
    for _ in range(10_000):
        if task.done():
            return task.result()
        await clock.advance(step_s)
        step_s = min(1.5 * step_s, 16)
    raise AssertionError(f"{task} does not end")


async def closed(clock: ManualClock, runtime: AgentRuntime, *, cancel: bool = False) -> None:
    await ended(clock, asyncio.create_task(runtime.close(cancel=cancel)))


def sending(session: Session, text: str = "go", key: str | None = "k") -> asyncio.Task[RunResult]:
    return asyncio.create_task(session.send(text, key=key))


# C5: how many commits


async def test_c5_the_number_of_commits_of_a_run_is_exact(store: FailingStore) -> None:
    async with at_work(store) as (_, _, runtime, session):
        assert runtime.commits == OPENING
        assert (await session.send("go")).text == "done"
        assert store.commits_of("session/s") == SESSION_APPENDS
    assert await batches_of(store.inner) == UNDISTURBED
    assert len(store.commits) == len(store.appends) == runtime.commits <= APPENDS
    assert store.commits.count(("session/s",) * 3) == 1


@pytest.mark.parametrize(
    ("answers", "commits"),
    [
        ([say("done")], 2),
        ([use("pay"), say("done")], 4),
        ([use("pay"), use("pay"), say("done")], 6),
        ([[use("look", {"name": "a"}), use("look", {"name": "b"})], say("done")], 5),
        ([[use("pay"), use("pay")], say("done")], 5),
        ([use("nothing"), say("done")], 3),
        ([say(""), say("done")], 3),
    ],
    ids=["no tool", "one tool", "two turns", "two beside", "two in order", "no such tool", "asked again"],
)
async def test_c5_every_kind_of_turn_has_its_number_of_commits(answers: Any, commits: int) -> None:
    store = FailingStore(InMemoryStore())
    async with at_work(store, *answers, *answers) as (_, _, _, session):
        assert (await session.send("go")).text == "done"
        assert store.commits_of("session/s") == commits
        assert (await session.send("go")).text == "done"
        assert store.commits_of("session/s") == 2 * commits, "a second run on the session costs the same"


# C1 and C4: one append fails


async def run_over_a_failure(store: FailingStore, at: int, error: MakeError, when: When) -> list[PersistenceError]:
    """Do the measured run while one append fails, and check what must hold; return what its caller was told."""
    work, clock = Work(), ManualClock()
    store.fail_append(at, error, when=when)
    told: list[PersistenceError] = []
    runtime = work.runtime(store, clock)
    if at <= OPENING:
        with pytest.raises(PersistenceError) as not_open:
            await runtime.__aenter__()
        told.append(not_open.value)
        runtime = work.runtime(store, clock)
    async with runtime:
        session = await runtime.session("s")
        seen: list[int] = []
        runtime.subscribe(lambda recorded: seen.append(recorded.version))
        if at == INPUT:
            with pytest.raises(PersistenceError) as refused:
                await session.send("go", key="k")
            told.append(refused.value)
            texts = [message.text for message in await session.history()]
            assert texts[:1] == (["go"] if when == "after" else [])
        result = await ended(clock, sending(session))
        assert (result.outcome, result.text) == (Completed(), "done")
        assert seen == list(range(1, seen[-1] + 1)), "subscribers see each event once, in order"
        assert await texts_of_results(session) == ["saw a", "saw b", "paid"]
        await closed(clock, runtime)
    assert sorted(work.begun) == ["look a", "look b", "pay"]
    assert len(work.provider.requests) == 3
    assert await batches_of(store.inner) == UNDISTURBED
    assert store.commits_of("session/s") == SESSION_APPENDS, "what failed costs no commit"
    return told


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
async def test_c1_an_append_that_fails_costs_its_caller_an_error_and_nothing_else(
    store: FailingStore, at: int, when: When
) -> None:
    name = "PersistenceError" if when == "before" else "outcome unknown"
    told = await run_over_a_failure(store, at, ERRORS[name], when)
    assert len(told) == (at <= INPUT)
    for error in told:
        assert error.outcome_unknown == (when == "after")
        assert "the disk" in str(error)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "KeyError" else pytest.mark.slow)
        for name in ERRORS
        if name not in ("PersistenceError", "outcome unknown")
    ],
)
async def test_c4_a_store_that_raises_anything_at_all_costs_one_message(name: str, at: int, when: When) -> None:
    store = FailingStore(InMemoryStore())
    told = await run_over_a_failure(store, at, ERRORS[name], when)
    assert len(told) == (at <= INPUT)
    for error in told:
        assert error.outcome_unknown, "who knows what a store has done that breaks its contract"
        assert store.name in str(error)
        assert type(ERRORS[name]()).__name__ in str(error)
    await assert_sound(store.inner)


# C1: a log that refuses for a while


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(INPUT + 1, INPUT + SESSION_APPENDS))
async def test_c1_a_result_is_offered_again_until_the_log_takes_it_and_its_work_is_done_once(
    store: FailingStore, at: int, when: When
) -> None:
    async with at_work(store) as (work, clock, runtime, session):
        hold = store.hold_append(at)
        run = sending(session)
        await hold.reached.wait()
        store.fail_appends(ERRORS["outcome unknown"], when=when, times=12)
        hold.let_go()
        result = await ended(clock, run)
        assert (result.outcome, result.text) == (Completed(), "done")
        assert sorted(work.begun) == ["look a", "look b", "pay"]
        await closed(clock, runtime)
    assert await batches_of(store.inner) == UNDISTURBED


async def test_c1_a_refused_result_is_offered_at_growing_intervals_and_at_once_when_somebody_asks() -> None:
    store = FailingStore(InMemoryStore())
    async with at_work(store) as (_, clock, _, session):
        hold = store.hold_append(INPUT + 1)
        store.fail_append(INPUT + 1, ERRORS["PersistenceError"])
        run = sending(session)
        await hold.reached.wait()
        store.fail_appends(ERRORS["PersistenceError"])
        hold.let_go()
        await clock.settle()
        asked = len(store.appends)
        await clock.advance(60)
        assert 5 <= len(store.appends) - asked <= 10
        store.mend()
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide("call_0_0", allow=True)
        assert (await run).text == "done"
    await assert_sound(store.inner)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(INPUT, INPUT + SESSION_APPENDS))
@pytest.mark.parametrize("cancel", [False, True], ids=["close", "close with cancel"])
async def test_c1_a_runtime_closes_over_a_log_that_refuses_and_the_next_one_ends_the_run(
    store: FailingStore, at: int, cancel: bool
) -> None:
    work, clock = Work(), ManualClock()
    runtime = work.runtime(store, clock)
    async with runtime:
        hold = store.hold_append(at)
        run = sending(await runtime.session("s"))
        await hold.reached.wait()
        store.fail_appends(ERRORS["OSError"])
        hold.let_go()
        while len(store.commits) < at:
            await clock.settle()
        await clock.advance(3)
        before = await batches_of(store.inner)
        await closed(clock, runtime, cancel=cancel)
    with pytest.raises(ActorStopped, match="closed"):
        await run
    assert await batches_of(store.inner) == before
    store.mend()
    again = Work(say("resumed"), say("resumed"))
    async with session_in(again.runtime(store, clock)) as (_, session):
        assert (await ended(clock, sending(session))).text == "resumed"
        results = await texts_of_results(session)
    assert again.begun == [], "what had begun once, or was not asked for, is not begun"
    assert set(results) <= {"saw a", "saw b", "paid", CRASHED_TEXT}
    assert len(results) == sum(batch.count("ToolCallStarted") for batch in before)


async def test_c1_a_command_that_fails_may_be_given_again(store: FailingStore) -> None:
    released = asyncio.Event()

    @tool(tier="confirm")
    async def pay() -> str:
        released.set()
        return "paid"

    async def refused(error: MakeError, call: Callable[[], Any]) -> None:
        store.fail_appends(error, times=1)
        with pytest.raises(PersistenceError):
            await call()

    work, clock = Work(use("pay"), say("done"), use("pay"), say("after")), ManualClock()
    work.tools = [pay]
    async with session_in(work.runtime(store, clock)) as (_, session):
        run = sending(session)
        waiting = await waiting_in(session, clock)
        for error in ERRORS.values():
            await refused(error, partial(session.decide, waiting[0].call, allow=True, key="yes"))
            assert [asked.call for asked in await session.approvals()] == [waiting[0].call]
            assert not released.is_set()
        await session.decide(waiting[0].call, allow=True, key="yes")
        assert (await ended(clock, run)).text == "done"
        second = sending(session, "again", None)
        await waiting_in(session, clock)
        for error in ERRORS.values():
            await refused(error, session.cancel)
            assert not second.done()
        await session.cancel()
        assert type((await ended(clock, second)).outcome).__name__ == "Cancelled"


async def test_c1_a_refused_batch_does_not_cost_those_that_share_its_transaction() -> None:
    store = FailingStore(InMemoryStore())
    async with at_work(store, *[say("done")] * 10) as (_, clock, runtime, _):
        sessions = [await runtime.session(f"s{number}") for number in range(8)]
        store.fail_appends(lambda: ValueError("not this one"), of="session/s5")
        runs = [sending(session) for session in sessions]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        assert len({*store.appends[INPUT - 1]}) == 8, "they were written together"
        assert [isinstance(outcome, PersistenceError) for outcome in outcomes] == [n == 5 for n in range(8)]
        store.mend()
        assert (await ended(clock, sending(sessions[5]))).text == "done"
    await assert_sound(store.inner)


# C4: a store that is slow, and one that hangs


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(INPUT, INPUT + SESSION_APPENDS + 2))
async def test_c4_a_slow_store_holds_what_depends_on_it_and_nobody_sees_what_is_not_durable(
    store: FailingStore, at: int, when: When
) -> None:
    async with at_work(store) as (work, clock, runtime, session):
        seen: list[Any] = []
        runtime.subscribe(seen.append)
        hold = store.hold_append(at, when=when)
        run = sending(session)
        await hold.reached.wait()
        await clock.advance(3600)
        assert not run.done()
        durable = len(await store.inner.read_stream("session/s"))
        assert len(seen) <= durable
        started = sum(type(recorded.event).__name__ == "ToolCallStarted" for recorded in seen)
        assert len(work.begun) <= started, "no body runs before its start is durable"
        hold.let_go()
        assert (await ended(clock, run)).text == "done"
    assert await batches_of(store.inner) == UNDISTURBED


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(INPUT, INPUT + SESSION_APPENDS + 2))
async def test_c4_an_append_that_hangs_is_given_up_after_its_timeout_and_nothing_is_done_twice(
    at: int, when: When
) -> None:
    store = FailingStore(InMemoryStore())
    async with at_work(store, append_timeout_s=5) as (work, clock, runtime, session):
        hold = store.hold_append(at, when=when)
        run = sending(session)
        await hold.reached.wait()
        await clock.advance(4.9)
        assert not run.done()
        await clock.advance(0.2)
        if at == INPUT:
            with pytest.raises(PersistenceError, match="takes longer than 5 s") as unknown:
                await run
            assert unknown.value.outcome_unknown
            with pytest.raises(PersistenceError, match="still hangs; nothing was begun") as certain:
                await ended(clock, sending(session, "another", None))
            assert not certain.value.outcome_unknown
        await clock.advance(20)
        assert len(store.appends) == at, "a store has one writer: nothing is begun beside what hangs"
        hold.let_go()
        if at == INPUT:
            run = sending(session)
        assert (await ended(clock, run)).text == "done"
        await closed(clock, runtime)
    assert sorted(work.begun) == ["look a", "look b", "pay"]
    assert await batches_of(store.inner) == UNDISTURBED
    await assert_sound(store.inner)


@pytest.mark.parametrize("at", range(1, APPENDS + 1))
async def test_c4_a_runtime_opens_and_closes_over_a_store_that_hangs_for_ever(at: int) -> None:
    work, store, clock = Work(), FailingStore(InMemoryStore()), ManualClock()
    hold = store.hold_append(at)
    runtime = work.runtime(store, clock, append_timeout_s=5, ask_timeout_s=30)
    opening = asyncio.create_task(runtime.__aenter__())
    if at <= OPENING:
        with pytest.raises(PersistenceError, match="takes longer than 5 s"):
            await ended(clock, opening)
    else:
        await opening
        run = sending(await runtime.session("s"))
        if at < APPENDS:
            await hold.reached.wait()
            await clock.advance(1)
        else:
            assert (await run).text == "done"
        await closed(clock, runtime)
        await asyncio.wait([run])
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    await assert_sound(store.inner)


async def test_c4_a_read_that_hangs_is_given_up_too(store: FailingStore) -> None:
    async with at_work(store, *[say("done")] * 3, append_timeout_s=5) as (_, clock, _, session):
        assert (await session.send("go")).text == "done"
        store.fail_reads(Hold(), of="session/s")
        with pytest.raises(PersistenceError, match="'session/s' cannot be read: it takes longer than 5 s"):
            await ended(clock, asyncio.create_task(session.state_at()))
        store.mend()
        assert (await session.send("more")).text == "done"


# C3: reads that fail


@pytest.mark.parametrize("name", list(ERRORS))
async def test_c3_a_read_that_fails_is_a_persistence_error_that_names_the_stream(
    store: FailingStore, name: str
) -> None:
    async with at_work(store, *[say("done")] * 2, session="a stranger") as (_, _, runtime, session):
        assert (await session.send("go")).text == "done"
        store.fail_reads(ERRORS[name], of="session/")

        async def events() -> list[Any]:
            return [recorded async for recorded in session.events()]

        async def restored() -> Session:
            return await runtime.session("a stranger", restore=True)

        calls: list[Callable[[], Any]] = [session.state_at, events, restored]
        for call in calls:
            with pytest.raises(PersistenceError, match="session/a stranger") as failure:
                await call()
            assert not failure.value.outcome_unknown
        assert [message.text for message in await session.history()] == ["go", "done"], "the live state needs no read"
        store.mend()
        assert (await session.send("more")).text == "done"


@pytest.mark.parametrize("name", list(ERRORS))
async def test_c3_a_state_that_cannot_be_read_again_after_a_failed_append_is_shown_to_nobody(
    store: FailingStore, name: str
) -> None:
    async with at_work(store, *[say("done")] * 2) as (_, clock, _, session):
        assert (await session.send("go")).text == "done"
        store.fail_appends(ERRORS["outcome unknown"], times=1, when="after")
        store.fail_reads(ERRORS[name], of="session/s")
        with pytest.raises(PersistenceError, match="the disk went away"):
            await session.send("more", key="k")
        for _ in range(3):
            with pytest.raises(PersistenceError, match="stream 'session/s' cannot be read"):
                await session.history()
            with pytest.raises(PersistenceError, match="stream 'session/s' cannot be read"):
                await session.send("more", key="k")
        store.mend()
        assert (await ended(clock, sending(session, "more"))).text == "done"
        assert [message.text for message in await session.history()] == ["go", "done", "more", "done"]


@pytest.mark.parametrize("times", [1, 4])
async def test_c3_a_run_that_the_log_has_after_all_goes_on_by_itself_once_the_log_can_be_read(
    store: FailingStore, times: int
) -> None:
    async with at_work(store, say("done")) as (_, clock, runtime, session):
        assert await session.history() == []
        store.fail_appends(ERRORS["outcome unknown"], times=1, when="after")
        store.fail_reads(ERRORS["PersistenceError"], of="session/s", times=times)
        with pytest.raises(PersistenceError):
            await session.send("go")
        seen: list[str] = []
        runtime.subscribe(lambda recorded: seen.append(type(recorded.event).__name__))
        while "RunCompleted" not in seen:
            await clock.advance(1)
            await asyncio.to_thread(str)  # A store in a file works in threads.
        assert (seen[0], seen[-1]) == ("SessionOpened", "RunCompleted")


async def test_c3_a_run_that_was_left_open_goes_on_by_itself_once_the_log_can_be_read(store: FailingStore) -> None:
    held = HeldAnswer(say("never"))
    async with at_work(store, held, close_grace_s=0) as (_, clock, runtime, session):
        run = sending(session)
        await held.asked.wait()
        await closed(clock, runtime)
    await asyncio.wait([run])
    store.fail_reads(ERRORS["PersistenceError"], of="session/s")
    async with at_work(store, say("fine")) as (_, clock, _, session):
        await clock.advance(3)
        store.mend()
        while (last := (await session.state_at()).last_run) is None:
            await clock.advance(1)
        assert last.outcome == "completed"


@pytest.mark.parametrize("times", [1, 2, 3, FOR_EVER])
@pytest.mark.parametrize("name", ["PersistenceError", "OSError", "SystemExit", "CancelledError"])
async def test_c3_a_session_that_cannot_be_loaded_is_loaded_later_or_named_and_others_go_on(
    store: FailingStore, name: str, times: int
) -> None:
    work, clock = Work(say("before"), *[say("done")] * 3), ManualClock()
    async with work.runtime(store, clock) as runtime:
        assert (await (await runtime.session("s")).send("first")).text == "before"
    async with work.runtime(store, clock) as runtime:
        store.fail_reads(ERRORS[name], of="session/s", times=times)
        with contextlib.suppress(PersistenceError):
            await ended(clock, sending(await runtime.session("s")))
        other = await runtime.session("other")
        assert (await ended(clock, sending(other))).text == "done"
        session = await runtime.session("s")
        if times == FOR_EVER:
            with pytest.raises(PersistenceError, match="stream 'session/s' cannot be read"):
                await ended(clock, sending(session))
        else:
            await ended(clock, sending(session))
            assert [message.text for message in await session.history()][:3] == ["first", "before", "go"]
        assert (await ended(clock, sending(other, "more", None))).text == "done"
        await closed(clock, runtime)


@pytest.mark.parametrize("name", ["PersistenceError", "KeyError", "SystemExit"])
@pytest.mark.parametrize("of", ["payloads", "runtime/"])
async def test_c3_a_log_that_cannot_be_read_at_all_cannot_be_opened_and_can_be_later(
    store: FailingStore, of: str, name: str
) -> None:
    work, clock = Work(), ManualClock()
    async with work.runtime(store, clock):
        pass
    store.fail_reads(ERRORS[name], of=of)
    with pytest.raises(PersistenceError):
        await work.runtime(store, clock).__aenter__()
    store.mend()
    async with work.runtime(store, clock) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == "done"


async def test_c3_open_runs_that_cannot_be_listed_go_on_when_they_can(
    store: FailingStore, caplog: pytest.LogCaptureFixture
) -> None:
    work, clock = Work(), ManualClock()
    store.fail_append(INPUT + 1, ERRORS["OSError"])
    async with work.runtime(store, clock, close_grace_s=0) as runtime:
        run = sending(await runtime.session("s"))
        await clock.advance(0.1)
        await closed(clock, runtime)
    with pytest.raises(ActorStopped):
        await run
    store.fail_reads(ERRORS["OSError"], of="list ")
    async with work.runtime(store, clock) as runtime:
        while "what was open in" not in caplog.text:  # The list is asked for in a thread where it is in a file.
            await clock.settle()
        store.mend()
        session, last = await runtime.session("s"), ""
        while last != "RunCompleted":  # Without another message.
            await clock.advance(1)
            *_, last = [type(event.event).__name__ async for event in session.events()]
        await ended(clock, sending(session))


async def test_c3_a_payload_that_cannot_be_read_holds_the_run_until_it_can(store: FailingStore) -> None:
    async with at_work(store, say("done")) as (work, clock, _, session):
        store.fail_reads(ERRORS["SystemExit"], of="payloads")
        sent = sending(session, key=None)
        await clock.advance(60)
        assert work.provider.requests == []
        store.mend()
        assert (await ended(clock, sent)).text == "done"


async def test_c4_a_store_that_gives_no_list_is_contained(store: FailingStore) -> None:
    class Empty(FailingStore):
        broken = False

        async def read_stream(self, *given: Any, **more: Any) -> Any:
            return None if self.broken else await super().read_stream(*given, **more)

        async def append(self, *given: Any, **more: Any) -> Any:
            appended = await super().append(*given, **more)
            return None if self.broken else appended

    broken = Empty(store.inner)
    async with at_work(broken, *[say("done")] * 2) as (_, clock, _, session):
        assert (await session.send("go")).text == "done"
        broken.broken = True
        with pytest.raises(PersistenceError, match="did not say where"):
            await session.send("more", key="k")
        with pytest.raises(PersistenceError, match="stream 'session/s' cannot be read: it gave NoneType, not a list"):
            await session.history()
        broken.broken = False
        assert (await ended(clock, sending(session, "more"))).text == "done"


# C2: what is not essential


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "outcome unknown"])
async def test_c2_observers_that_fail_are_counted_and_logged_and_the_run_goes_on(
    store: FailingStore, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[int]()

    def fails(_: object) -> None:
        raise ERRORS[name]()

    async def is_async(_: object) -> None:
        raise AssertionError("nobody awaits it")

    async with at_work(store, on_failure=fails) as (_, clock, runtime, session):
        for observer in (fails, is_async):
            runtime.subscribe(observer)
            runtime.subscribe(observer, session="s")
        unsubscribe: list[Callable[[], None]] = []
        unsubscribe.append(runtime.subscribe(lambda _: unsubscribe[0]()))
        runtime.subscribe(lambda recorded: seen.append(recorded.version))
        assert (await ended(clock, sending(session))).text == "done"
        assert seen == list(range(1, 18))
        assert runtime.event_bus.failures == 4 * len(seen)
    assert caplog.text.count("a subscriber failed on version") == 4 * len(seen)
    assert await batches_of(store.inner) == UNDISTURBED


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", list(ERRORS))
async def test_c2_what_is_evidence_only_may_be_refused_for_ever(
    store: FailingStore, name: str, when: When, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work(store) as (work, clock, _, session):
        store.fail_appends(ERRORS[name], of="tool/", when=when)
        store.fail_reads(ERRORS[name], of="tool/")
        hold = store.hold_append(INPUT + 1)
        run = sending(session)
        await hold.reached.wait()
        hold.let_go()
        assert (await ended(clock, run)).text == "done"
        assert sorted(work.begun) == ["look a", "look b", "pay"]
    assert "DefineTool is not recorded" in caplog.text
    assert await batches_of(store.inner) == UNDISTURBED


# A file that cannot be written


class Interrupted:
    """A run on a file, in the middle of a tool that does something to the file and returns much."""

    def __init__(self, path: Path, meanwhile: Callable[[], None], clock: ManualClock) -> None:
        self.ran = 0
        self.provider = ScriptedProvider([use("work"), say("done"), say("more")])
        self.clock = clock

        @tool(effect="once", result_limit=None)
        async def work() -> str:
            self.ran += 1
            meanwhile()
            return "x" * 3_000_000

        self.runtime = AgentRuntime(CONFIG, provider=self.provider, tools=[work], log=path, clock=clock)

    async def until_refused(self, caplog: pytest.LogCaptureFixture) -> None:
        """Return once the log has refused the tool's result."""
        while "is not recorded yet" not in caplog.text:
            await self.clock.settle()


async def test_c1_a_disk_that_is_full_for_a_while_loses_nothing_and_does_nothing_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, full = tmp_path / "events.db", contextlib.ExitStack()
    interrupted = Interrupted(path, lambda: full.enter_context(files_limited_to(1_000_000)), ManualClock())
    async with interrupted.runtime as runtime:
        session = await runtime.session("s")
        with full:
            run = sending(session)
            await interrupted.until_refused(caplog)
            assert not run.done()
            with pytest.raises(PersistenceError, match="SQLITE_"):
                await (await runtime.session("another")).send("y" * 3_000_000)
        assert (await ended(interrupted.clock, run)).text == "done"
        assert [len(text) for text in await texts_of_results(session)] == [3_000_000]
        assert (await session.send("more")).text == "more"
    assert interrupted.ran == 1
    await assert_sound_file(path)


async def test_c1_a_log_that_is_renamed_in_the_middle_of_a_run_is_gone_on_with_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, elsewhere = tmp_path / "events.db", tmp_path / "elsewhere.db"
    interrupted = Interrupted(path, lambda: os.rename(path, elsewhere), ManualClock())
    async with interrupted.runtime as runtime:
        session = await runtime.session("s")
        run = sending(session)
        await interrupted.until_refused(caplog)
        with pytest.raises((PersistenceError, ActorStopped), match=r"events\.db"):
            await ended(interrupted.clock, sending(await runtime.session("another"), key=None))
        assert not run.done()
        os.rename(elsewhere, path)
        assert (await ended(interrupted.clock, run)).text == "done"
    assert interrupted.ran == 1
    await assert_sound_file(path)


async def test_c1_a_wal_that_is_deleted_in_the_middle_of_a_run_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    interrupted = Interrupted(path, lambda: os.unlink(f"{path}-wal"), ManualClock())
    async with interrupted.runtime as runtime:
        session = await runtime.session("s")
        assert (await ended(interrupted.clock, sending(session))).text == "done"
        assert (await ended(interrupted.clock, sending(session, "more", None))).text == "more"
    assert interrupted.ran == 1
    await assert_sound_file(path)
    async with await SQLiteStore.open(path, read_only=True) as store:
        assert len(await batches_of(store)) == 8


async def test_c1_a_runtime_closes_though_its_log_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "events.db"
    interrupted = Interrupted(path, lambda: os.rename(path, tmp_path / "elsewhere.db"), ManualClock())
    with contextlib.suppress(PersistenceError):
        async with interrupted.runtime as runtime:
            run = sending(await runtime.session("s"))
            await interrupted.until_refused(caplog)
            await closed(interrupted.clock, runtime)
    with pytest.raises(ActorStopped):
        await run
    assert not path.exists()
