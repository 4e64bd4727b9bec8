"""States are kept beside the log, and nobody can tell but by how much is read when a stream is opened."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from refold import AgentRuntime, PersistenceError, ScriptedProvider, say, tool, use
from refold.actors import EventSourcedSystem, ManualClock
from refold.events import Event, PureCore, State
from refold.events.core.records import Snapshot, StoredEvent
from refold.inspection.check import check_log
from refold.inspection.kinds import KINDS
from refold.inspection.log_reading import kind_of
from refold.replay import replay, state_at
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from refold.stores.folding import Fold
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import CONFIG, crash, runtime_of
from tests.golden import record_stores

EVERY = 8


@tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    """Look at something."""
    return f"{what}: seen"


def answers(runs: int) -> list[Any]:
    return [use("look", {"what": "tea"}), say("Tea.")] * runs


class Watched(InMemoryStore):
    """A log that notes what is read of sessions, and whose snapshots fail and hang where a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.loads = 0
        self.saved: list[Snapshot] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        stored = await super().read_stream(stream, after_version=after_version, limit=limit)
        self.read += len(stored) if stream == "session/s" else 0
        return stored

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        self.loads += 1
        return await super().load_snapshot(stream)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        if self.error is not None:
            raise self.error
        if self.gate is not None:
            await self.gate.wait()
        await super().save_snapshot(snapshot)
        if not snapshot.stream.startswith("runtime/"):
            self.saved.append(snapshot)

    async def version(self) -> int:
        head = await self.head("session/s")
        return head.version if head is not None else 0


async def run(store: EventStore, runs: int, **options: Any) -> AgentRuntime:
    """Let session "s" run so many times, and close."""
    runtime = runtime_of(store, *answers(runs), tools=[look], **{"snapshot_every": EVERY, **options})
    async with runtime:
        session = await runtime.session("s")
        for number in range(runs):
            assert (await session.send(f"look {number}")).text == "Tea."
    return runtime


async def told(log: Any) -> tuple[object, ...]:
    """Return what a new runtime knows of session "s"."""
    runtime = AgentRuntime(CONFIG, provider=ScriptedProvider(answers(1)), tools=[look], log=log, snapshot_every=EVERY)
    async with runtime:
        session = await runtime.session("s")
        known = (await session.history(), await session.spent(), await session.state_at())
        assert (await session.send("once more")).text == "Tea."
    return known


async def test_a_session_that_is_opened_again_is_folded_from_its_last_snapshot() -> None:
    store = Watched()
    await run(store, 30)
    assert await store.version() - store.saved[-1].version < EVERY
    versions = [kept.version for kept in store.saved]
    assert versions == sorted(set(versions))
    store.read = 0
    runtime = runtime_of(store, *answers(1), tools=[look], snapshot_every=EVERY)
    async with runtime:
        session = await runtime.session("s")
        assert len(await session.history()) == 4 * 30
        assert store.read <= 2 * EVERY
        assert (await session.send("once more")).text == "Tea."
    assert (await check_log(store)).problems == ()
    (await replay(store, level="core")).raise_for_divergence()


async def test_a_crash_between_an_append_and_its_snapshot_costs_the_rest_of_the_fold() -> None:
    watched, clock = Watched(), ManualClock()
    store = FailingStore(watched)
    runtime = runtime_of(store, *answers(12), tools=[look], snapshot_every=EVERY, close_grace_s=0, clock=clock)
    await runtime.open()
    session = await runtime.session("s")
    for _ in range(6):
        await session.send("look")
    await clock.settle()
    kept = watched.saved[-1].version
    watched.error = PersistenceError("the disk is full")
    for _ in range(3):
        await session.send("look")
    whole = await session.history()
    await crash(runtime, store, clock)
    assert (await watched.load_snapshot("session/s")) == watched.saved[-1]
    assert kept < await watched.version()
    watched.error, watched.read = None, 0
    async with runtime_of(store, *answers(1), tools=[look], snapshot_every=EVERY, alike=False) as again:
        session = await again.session("s")
        assert await session.history() == whole
        assert watched.read <= await watched.version() - kept + 2 * EVERY
        assert (await session.send("once more")).text == "Tea."


DAMAGE = (
    "DELETE FROM snapshots",
    "UPDATE snapshots SET state = zeroblob(length(state))",
    "UPDATE snapshots SET state = substr(state, 1, length(state) - 1)",
    "UPDATE snapshots SET state = CAST(substr(state, 1, 500) || x'00' || substr(state, 502) AS BLOB)",
    "UPDATE snapshots SET fold_version = fold_version + 1",
    "UPDATE snapshots SET version = version - 1",
    "UPDATE snapshots SET version = version + 7",
    "UPDATE snapshots SET chain = zeroblob(32)",
    "UPDATE snapshots SET state = (SELECT max(state) FROM snapshots)",
)


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[object, ...]]:
    log = tmp_path_factory.mktemp("snapshots") / "events.db"
    return log, asyncio.run(written(log))


async def written(log: Path) -> tuple[object, ...]:
    """Write a log of two sessions, and return what is known of the first one."""
    runtime = AgentRuntime(CONFIG, provider=ScriptedProvider(answers(20)), tools=[look], log=log, snapshot_every=EVERY)
    async with runtime:
        for name in ("s", "other"):
            session = await runtime.session(name)
            for number in range(10):
                await session.send(f"{name} {number}")
        session = await runtime.session("s")
        return (await session.history(), await session.spent(), await session.state_at())


@pytest.mark.parametrize("change", DAMAGE)
async def test_without_snapshots_or_with_damaged_ones_everything_is_the_same(
    change: str, long_log: tuple[Path, tuple[object, ...]], tmp_path: Path
) -> None:
    log = Path(shutil.copy(long_log[0], tmp_path / "events.db"))
    with closing(sqlite3.connect(log)) as connection, connection:
        assert connection.execute("SELECT count(*) FROM snapshots").fetchone()[0] >= 3
        connection.execute(change)
    assert await told(log) == long_log[1]
    assert (await check_log(log)).problems == ()
    async with await SQLiteStore.open(log, read_only=True) as store:  # And the next one is good again.
        fold = Fold("session/s", KINDS["session"].core, KINDS["session"].codec)
        await fold.read(store, snapshots_from=1)
        assert fold.snapshot_bytes


async def test_every_kind_of_stream_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    await record_stores.record(log, snapshot_every=1)
    assert (await check_log(log)).problems == ()
    kinds = set[str]()
    async with await SQLiteStore.open(log, read_only=True) as store:
        for head in await store.list_streams():
            kind = KINDS[kind_of(head.stream)]
            kept, whole = [Fold(head.stream, kind.core, kind.codec) for _ in range(2)]
            await kept.read(store, snapshots_from=1)
            await whole.read(store, snapshots_from=None)
            assert (kept.state, kept.causes, kept.at) == (whole.state, whole.causes, whole.at)
            kinds |= {kind_of(head.stream)} if kept.snapshot_bytes else set()
    assert kinds == set(KINDS)


async def test_a_session_that_leaves_memory_is_kept() -> None:
    store, clock = Watched(), ManualClock()
    async with runtime_of(store, *answers(5), tools=[look], snapshot_every=48, clock=clock) as runtime:
        session = await runtime.session("s")
        await session.send("look")
        await clock.advance(61)
        assert store.saved == []  # It is so short that it is folded as fast.
        await session.send("look")
        await clock.advance(61)
        assert [(kept.stream, kept.version) for kept in store.saved] == [("session/s", await store.version())]
        assert runtime.system.instance("session/s") is None
        await session.send("look")
    assert len(store.saved) == 1


@pytest.mark.parametrize("hangs", [False, True])
async def test_no_turn_waits_for_a_snapshot_that_fails_or_hangs_and_nor_does_the_end(hangs: bool) -> None:
    store, clock = Watched(), ManualClock()
    store.error = None if hangs else PersistenceError("the disk is full")
    store.gate = asyncio.Event() if hangs else None
    runtime = runtime_of(store, *answers(9), tools=[look], snapshot_every=2, clock=clock, close_grace_s=7)
    await runtime.open()
    session = await runtime.session("s")
    for _ in range(9):
        await session.send("look")
    closing = asyncio.create_task(runtime.close())
    await clock.advance(6)
    assert closing.done() != hangs
    await clock.advance(1)
    await closing
    assert store.saved == []
    store.gate = None
    assert len(await told(store)) == 3


async def test_none_are_written_or_read_where_the_option_says_none() -> None:
    store = Watched()
    await run(store, 5)
    store.saved.clear()
    store.loads = store.read = 0
    await run(store, 5, snapshot_every=None, alike=False)
    assert (store.saved, store.loads) == ([], 0)
    assert store.read >= 45


# Cores of an application's own


class Counted(Event, frozen=True, kw_only=True, tag="tally.counted.v1"):
    by: int


class Tally(State):
    total: int = 0


class Count(PureCore[Tally, Counted, Counted]):
    """Counts, as its code of today does it."""

    def admit(self, state: Tally, command: Counted) -> Counted:
        return command

    def evolve(self, state: Tally, event: Counted) -> Tally:
        state.total += event.by
        return state


class KeptCount(Count, PureCore[Tally, Counted, Counted]):
    fold_version = 1


class DoubleCount(KeptCount, PureCore[Tally, Counted, Counted]):
    fold_version = 2

    def evolve(self, state: Tally, event: Counted) -> Tally:
        state.total += 2 * event.by
        return state


async def test_an_applications_own_state_is_kept_where_its_core_names_its_fold_and_read_by_the_same_fold_only() -> None:
    store = Watched()

    async def total(core: type[PureCore[Tally, Counted, Counted]], count: int) -> int:
        async with EventSourcedSystem(store, snapshot_every=EVERY) as system:
            tally = await system.host("tally", core)
            for _ in range(count):
                await tally.ask("a", Counted(by=1))
            return await tally.read("a", lambda state: state.total)

    assert await total(Count, 20) == 20
    assert (store.saved, store.loads) == ([], 0)
    assert await total(KeptCount, 20) == 40
    assert {kept.fold_version for kept in store.saved} == {1}
    assert await total(DoubleCount, 0) == 80
    assert await total(DoubleCount, 20) == 120
    assert await total(KeptCount, 0) == 60
    assert (await state_at(store, "tally/a", KeptCount)).total == 60
