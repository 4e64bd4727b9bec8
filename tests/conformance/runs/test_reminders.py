"""Inputs that come again and again: one run per due time, over restarts and jumps of the clock."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refold import CommandRejected, ConfigError, Session, say
from refold.actors import ManualClock
from refold.events.session.events import InputQueued, RunCompleted, TimerFired
from refold.inspection.session_view import view_session
from refold.sessions.inputs import first_time, next_time, repeat_of
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, dying, events_of, opened

HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 3, 28, 8, 30, tzinfo=UTC)


def us(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def clock_at(moment: datetime) -> ManualClock:
    return ManualClock(us(moment))


@asynccontextmanager
async def reminded(store: Any, clock: ManualClock, **options: Any) -> AsyncIterator[Session]:
    script = options.pop("script", [say("Done.")] * 50)
    async with opened(store, *script, clock=clock, **options) as (_, session):
        yield session


async def passed(clock: ManualClock, session: Session, seconds: float, runs: int) -> list[int]:
    """Let time pass, step by step, until so many runs have ended; return when their inputs were queued."""
    await clock.advance(seconds)
    while len(await events_of(session, RunCompleted)) < runs:
        await clock.advance(0)
    return [event.at for event in await events_of(session, InputQueued)]


async def test_each_due_time_has_one_run_of_its_own(memory: InMemoryStore) -> None:
    clock = clock_at(BEGIN)
    async with reminded(memory, clock) as session:
        name = await session.remind("Look at the oven.", every=HOUR, key="k", max_turns=2)
        assert name == "run_3"
        for hour in range(1, 4):
            times = await passed(clock, session, 3600, hour)
            assert times == [us(BEGIN + HOUR * past) for past in range(1, hour + 1)]
        queued = await events_of(session, InputQueued)
        assert [(event.reminder, event.options and event.options.max_turns, event.key) for event in queued] == [
            (3, 2, None)
        ] * 3
        assert await session.remind("Look at the oven.", every=HOUR, key="k", max_turns=2) == name
        for other in ({"every": HOUR * 2}, {"every": "0 * * * *"}, {"at": BEGIN + HOUR}):
            with pytest.raises(CommandRejected, match="'k'"):
                await session.remind("Look at the oven.", key="k", max_turns=2, **other)
        shown = (await view_session(memory, "s")).queue
        assert [(it.run, it.due_at, it.every) for it in shown] == [(name, us(BEGIN + HOUR * 4), repeat_of(HOUR, "UTC"))]
        await session.cancel(run=name)
        assert (await view_session(memory, "s")).queue == ()
        await clock.advance(7200)
        assert len(await events_of(session, InputQueued)) == 3
        for no_run in (session.run(name), session.run(key="k")):  # They name no run of its own.
            with pytest.raises(ConfigError, match="no run"):
                await no_run


async def test_of_times_that_passed_while_no_runtime_was_open_one_run_begins(memory: InMemoryStore) -> None:
    clock = clock_at(BEGIN)
    async with reminded(memory, clock) as session:
        await session.remind("Look.", every=HOUR)
    away = clock_at(BEGIN + HOUR * 5 + timedelta(minutes=10))
    async with reminded(memory, away) as session:
        assert await passed(away, session, 0, 1) == [us(BEGIN + HOUR * 5 + timedelta(minutes=10))]
        [fired] = await events_of(session, TimerFired)
        assert fired.next_at == us(BEGIN + HOUR * 6)
        assert len(await passed(away, session, 50 * 60, 2)) == 2


async def test_a_crash_repeats_no_due_time_and_loses_none(memory: InMemoryStore) -> None:
    clock = clock_at(BEGIN)
    held = HeldAnswer("never")
    async with dying(memory, held, clock=clock) as (_, session):
        await session.remind("Look.", every=HOUR)
        await clock.advance(3600)
        await held.asked.wait()
    async with reminded(memory, clock) as session:
        assert len(await passed(clock, session, 0, 1)) == 1
        assert len(await passed(clock, session, 3600, 2)) == 2


async def test_a_reminder_whose_time_comes_while_the_log_cannot_be_read_comes_later(
    memory: InMemoryStore,
) -> None:
    clock, store, failures = clock_at(BEGIN), FailingStore(memory), list[Any]()
    async with reminded(store, clock, on_failure=failures.append) as session:
        await session.remind("Look.", every=HOUR)
        await clock.advance(600)  # The session is not in memory any more.
        store.fail_reads(lambda: OSError(5, "Input/output error"), of="session/s")
        await clock.advance(3600)
        store.mend()
        await passed(clock, session, 60, 1)
        [fired] = await events_of(session, TimerFired)
        assert (fired.next_at, failures) == (us(BEGIN + HOUR * 2), [])


async def test_a_clock_that_is_put_back_or_forward_repeats_no_due_time(memory: InMemoryStore) -> None:
    clock = clock_at(BEGIN)
    async with reminded(memory, clock) as session:
        await session.remind("Look.", every=HOUR)
        await passed(clock, session, 3600, 1)
        clock.jump(-2 * 3600)
        await clock.advance(2 * 3600 + 1800)  # It is half past the first due time again.
        assert len(await events_of(session, InputQueued)) == 1
        await passed(clock, session, 1800, 2)
        clock.jump(5 * 3600 + 60)
        assert len(await passed(clock, session, 60, 3)) == 3
        [due] = (await session.state_at()).scheduled
        assert due.due_at == us(BEGIN + HOUR * 8)


async def test_a_reminder_that_still_waits_for_its_turn_is_not_queued_twice(memory: InMemoryStore) -> None:
    clock, held = clock_at(BEGIN), HeldAnswer("At last.")
    async with reminded(memory, clock, script=[held, *[say("Done.")] * 9]) as session:
        sending = asyncio.create_task(session.send("A long piece of work."))
        await held.asked.wait()
        await session.remind("Look.", every=HOUR)
        for _ in range(5):
            await clock.advance(3600)
        while len(await events_of(session, TimerFired)) < 5:
            await clock.advance(0)
        assert sum(event.reminder > 0 for event in await events_of(session, InputQueued)) == 1
        held.gate.set()
        await sending
        assert len(await passed(clock, session, 3600, 3)) == 3


async def test_reminders_beside_each_other_keep_their_times(memory: InMemoryStore) -> None:
    clock = clock_at(BEGIN)
    async with reminded(memory, clock) as session:
        await session.remind("Every hour.", every="0 * * * *")
        await session.remind("At nine in Berlin.", every="0 9 * * *", zone="Europe/Berlin")
        await session.remind("Once.", at=BEGIN + HOUR)
        for runs in (1, 2, 3):
            await passed(clock, session, 1800, runs)
        said = [event.content[0].text for event in await events_of(session, InputQueued)]
        assert said == ["Every hour.", "Once.", "Every hour."]
        assert sorted(entry.due_at for entry in (await session.state_at()).scheduled) == [
            us(datetime(2026, 3, 28, 11, tzinfo=UTC)),
            us(datetime(2026, 3, 29, 7, tzinfo=UTC)),
        ]


TIMES = [
    ("0 9 * * 1-5", "Europe/Lisbon", "2026-03-27T10:00+00:00", "2026-03-30T08:00+00:00"),  # Summer time has begun.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+00:00", "2026-03-29T01:00+00:00"),  # There is no half past two.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T23:00+00:00", "2026-10-25T00:30+00:00"),  # There are two, and one run.
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30+00:00", "2026-10-26T01:30+00:00"),
    ("*/15 * * * *", "UTC", "2026-01-01T00:15+00:00", "2026-01-01T00:30+00:00"),
]


@pytest.mark.parametrize(("cron", "zone", "after", "expected"), TIMES)
def test_a_cron_line_is_due_as_in_its_time_zone(cron: str, zone: str, after: str, expected: str) -> None:
    begin = us(datetime.fromisoformat(after))
    assert next_time(repeat_of(cron, zone), begin, begin) == us(datetime.fromisoformat(expected))
    assert first_time(repeat_of(cron, zone), begin) == us(datetime.fromisoformat(expected))


WRONG: list[dict[str, Any]] = [
    {},
    {"every": timedelta(0)},
    {"every": timedelta(days=100_000)},
    {"every": 60},
    {"every": "tomorrow"},
    {"every": "0 0 31 2 *"},
    {"every": "* * * * * *"},
    {"every": "0 9 * * *", "zone": "Mars/Olympus"},
    {"every": "0 9 * * *", "zone": "../etc"},
    {"every": "0 9 * * *", "zone": 1},
    {"at": datetime(2026, 1, 1)},  # noqa: DTZ001 - It has no time zone.
]


@pytest.mark.parametrize("given", WRONG, ids=str)
async def test_what_is_no_time_is_refused_and_nothing_recorded(memory: InMemoryStore, given: dict[str, Any]) -> None:
    async with opened(memory) as (_, session):
        with pytest.raises(ConfigError):
            await session.remind("Look.", **given)
        assert await session.metadata() is None


async def test_a_cron_line_waits_for_a_process_that_can_read_it_and_holds_nothing_up(
    memory: InMemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = clock_at(BEGIN)
    async with reminded(memory, clock) as session:
        name = await session.remind("Look.", every="0 * * * *")
        await session.remind("Once.", at=BEGIN + timedelta(minutes=31))
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "cronsim", None)
            with pytest.raises(ConfigError, match=r"refold\[cron\]"):
                await session.remind("Look.", every="0 * * * *")
            await clock.advance(1800)
            assert len(await passed(clock, session, 60, 1)) == 1
        assert "a reminder is due and waits" in caplog.text
        [queued] = await events_of(session, InputQueued)
        assert (queued.reminder, queued.at) == (0, us(BEGIN + timedelta(minutes=31)))
        [again] = (await view_session(memory, "s")).queue
        assert (again.run, again.due_at) == (name, us(BEGIN + timedelta(minutes=90)))
        late, *_ = await events_of(session, TimerFired)
        assert (late.next_at, late.put_off) == (
            again.due_at,
            "cron lines need the package cronsim: pip install 'refold[cron]'",
        )
        assert len(await passed(clock, session, 3600, 2)) == 2
        [due] = (await session.state_at()).scheduled
        assert due.due_at == us(BEGIN + timedelta(minutes=150))


async def test_a_snapshot_keeps_what_is_due(memory: InMemoryStore) -> None:
    clock = clock_at(BEGIN)
    for runs in (1, 2):
        async with reminded(memory, clock, snapshot_every=1) as session:
            if runs == 1:
                await session.remind("Look.", every=HOUR)
            assert len(await passed(clock, session, 3600, runs)) == runs
