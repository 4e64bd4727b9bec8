"""What a store does when a write fails, hangs, or is cancelled, at each fault point."""

import asyncio
import contextlib
import functools
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError, WrongExpectedVersion
from refold.events.core.records import Appended, EncodedBatch, Snapshot, StreamHead
from refold.stores import InMemoryStore, SQLiteStore
from refold.stores.guarding.log_place import LogPlace
from refold.stores.sample_batches import batch, payload
from refold.stores.sqlite.append import LogWriter
from refold.stores.sqlite.file import prepare_for_writing
from tests.stores.conftest import files_limited_to

POINTS = ("append.begun", "append.inserted", "append.committed")


class Crash(BaseException):
    """The death of the process, as far as one call can tell."""


class Fault:
    """A fault point that does what it is told at one point, once."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.point = ""
        self.error: BaseException | None = None

    def arm(self, point: str, error: BaseException) -> None:
        self.point, self.error = point, error

    def __call__(self, point: str) -> None:
        self.reached.append(point)
        error = self.error
        if point == self.point and error is not None:
            self.error = None
            raise error


class Gate:
    """A fault point at which the writing thread stays until it is let go."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.closed = False
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, point: str) -> None:
        if point == self.point and self.closed:
            self.reached.set()
            self.open.wait()


def sqlite_error(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"injected {name}")
    error.sqlite_errorname = name
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


def incarnation(log: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{log}?mode=ro", uri=True)) as connection:
        (found,) = connection.execute("SELECT incarnation FROM log").fetchone()
        return int(found)


async def versions(store: SQLiteStore | InMemoryStore) -> list[int]:
    return [event.version for event in await store.read_stream("session/a")]


Append = Callable[[SQLiteStore, Sequence[EncodedBatch]], Coroutine[None, None, list[Appended]]]


async def append_begun(store: SQLiteStore, batches: Sequence[EncodedBatch]) -> list[Appended]:
    """Append as the journal does, without a coroutine of the store."""
    told: asyncio.Future[list[Appended] | BaseException] = asyncio.get_running_loop().create_future()
    assert store.begin_append(batches, {}, told.set_result)
    outcome = await told
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


both_ways = pytest.mark.parametrize("append", [SQLiteStore.append, append_begun])


async def held(
    store: SQLiteStore, gate: Gate, given: EncodedBatch, append: Append = SQLiteStore.append
) -> "asyncio.Future[list[Appended]]":
    """Begin an append, and return once it is held at the gate."""
    gate.closed = True
    appending = asyncio.ensure_future(append(store, [given]))
    assert await settles(gate.reached.is_set)
    return appending


async def test_an_append_passes_every_fault_point_in_order(log: Path) -> None:
    fault = Fault()
    async with await SQLiteStore.open(log, fault=fault) as store:
        fault.reached.clear()
        await store.append([batch("session/a", 0)])
    memory_fault = Fault()
    await InMemoryStore(fault=memory_fault).append([batch("session/a", 0)])
    assert fault.reached == memory_fault.reached == list(POINTS)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("in_memory", [False, True])
async def test_an_append_that_dies_is_in_as_a_whole_or_not_at_all(log: Path, point: str, in_memory: bool) -> None:
    fault = Fault()
    store = InMemoryStore(fault=fault) if in_memory else await SQLiteStore.open(log, fault=fault)
    kept = payload(b"prompt")
    await store.append([batch("session/a", 0)])
    fault.arm(point, Crash())
    with pytest.raises(Crash):
        await store.append([batch("session/a", 1, 2, pending=("model",)), batch("session/b", 0)], kept)
    is_in = point == "append.committed"
    assert await versions(store) == ([1, 2, 3] if is_in else [1])
    assert (await store.head("session/b") is not None) == is_in
    assert (await store.read_payloads(kept) == kept) == is_in
    assert len(await store.list_streams(with_pending=True)) == is_in
    await store.append([batch("session/a", 3 if is_in else 1), batch("session/b", 1 if is_in else 0)])
    await store.close()


@pytest.mark.parametrize("point", ["append.begun", "append.inserted"])
async def test_an_error_before_the_commit_is_certain_and_the_store_goes_on(log: Path, point: str) -> None:
    fault = Fault()
    async with await SQLiteStore.open(log, fault=fault) as store:
        fault.arm(point, sqlite_error("SQLITE_FULL"))
        with pytest.raises(PersistenceError, match=r"session/a.*SQLITE_FULL") as failure:
            await store.append([batch("session/a", 0)])
        assert not failure.value.outcome_unknown
        assert await versions(store) == []
        await store.append([batch("session/a", 0)])
        assert await versions(store) == [1]
        assert incarnation(log) == 1


async def test_a_commit_that_errs_and_took_effect_is_a_success(log: Path) -> None:
    fault = Fault()
    async with await SQLiteStore.open(log, fault=fault) as store:
        fault.arm("append.committed", sqlite_error("SQLITE_FULL"))
        (place,) = await store.append([batch("session/a", 0, 2)])
        assert place.version == 2
        assert await store.head("session/a") == StreamHead(
            stream=place.stream, version=2, chain=place.chain, pending=()
        )
        await store.append([batch("session/a", 2)])


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_IOERR"])
@both_ways
async def test_after_an_io_error_the_outcome_is_unknown_until_the_file_was_opened_anew(
    log: Path, point: str, name: str, append: Append
) -> None:
    fault = Fault()
    async with await SQLiteStore.open(log, fault=fault) as store:
        await store.append([batch("session/a", 0)])
        fault.arm(point, sqlite_error(name))
        with pytest.raises(PersistenceError, match=name) as failure:
            await append(store, [batch("session/a", 1)])
        assert failure.value.outcome_unknown
        assert not store.begin_append([batch("session/a", 1)], {}, print), "the file is to be opened anew first"
        assert incarnation(log) == 1
        is_in = point == "append.committed"
        if is_in:
            with pytest.raises(WrongExpectedVersion):
                await store.append([batch("session/a", 1)])
        else:
            await store.append([batch("session/a", 1)])
        assert incarnation(log) == 2, "the file must be opened anew before anything else is written"
        assert await versions(store) == [1, 2]
        await store.append([batch("session/a", 2)])
        assert incarnation(log) == 2


async def test_reopening_by_hand_ends_the_doubt(log: Path) -> None:
    fault = Fault()
    async with await SQLiteStore.open(log, fault=fault) as store:
        fault.arm("append.inserted", sqlite_error("SQLITE_IOERR_FSYNC"))
        with pytest.raises(PersistenceError):
            await store.append([batch("session/a", 0)])
        await store.reopen()
        assert incarnation(log) == 2
        assert await versions(store) == []
        await store.append([batch("session/a", 0)])
        assert incarnation(log) == 2


async def test_a_real_io_error_loses_nothing_that_was_acknowledged(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        large = {**payload(b"x" * 200_000)}
        with files_limited_to(100_000), pytest.raises(PersistenceError, match="SQLITE_IOERR"):
            await store.append([batch("session/a", 1)], large)
        assert await versions(store) == [1]
        await store.append([batch("session/a", 1)], large)
        assert await versions(store) == [1, 2]
        assert await store.read_payloads(large) == large


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be moved on, so that what takes too long need not take long."""

    jumped_s = 0.0

    def time(self) -> float:
        return super().time() + self.jumped_s


def jump() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.jumped_s += 1000.0


def with_jumping_time(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test on such a loop, and wait for the threads that it gave up before the loop is closed."""

    async def run_to_the_end(**fixtures: object) -> None:
        before = set(threading.enumerate())
        await test(**fixtures)
        assert await settles(lambda: set(threading.enumerate()) <= before)

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(run_to_the_end(**fixtures))

    return run


async def hang(
    store: SQLiteStore, gate: Gate, given: EncodedBatch, append: Append = SQLiteStore.append
) -> PersistenceError:
    """Append until the gate, and wait there for too long."""
    appending = await held(store, gate, given, append)
    gate.closed = False
    jump()
    with pytest.raises(PersistenceError, match="takes longer than") as failure:
        await appending
    return failure.value


@pytest.mark.parametrize("point", POINTS)
@both_ways
@with_jumping_time
async def test_an_append_that_hangs_is_in_doubt_until_the_file_was_opened_anew(
    log: Path, point: str, append: Append, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(point)
    async with await SQLiteStore.open(log, fault=gate) as store:
        await store.append([batch("session/a", 0)])
        assert (await hang(store, gate, batch("session/a", 1), append)).outcome_unknown
        assert await store.head("session/a") is not None, "reads go on meanwhile"
        again = asyncio.ensure_future(store.append([batch("session/a", 1)]))
        while "mode=rw takes longer" not in caplog.text:
            jump()
            await asyncio.sleep(0)
        gate.open.set()
        with pytest.raises(WrongExpectedVersion):
            await again
        assert await versions(store) == [1, 2]
        assert incarnation(log) == 2
        await store.append([batch("session/a", 2)])


@with_jumping_time
async def test_while_something_holds_the_file_it_cannot_be_opened_anew_and_nothing_is_begun(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            reopening = asyncio.ensure_future(store.reopen())
            while not reopening.done():
                jump()
                await asyncio.sleep(0)
            with pytest.raises(PersistenceError, match="takes longer than") as failure:
                await reopening
            assert not failure.value.outcome_unknown
            holder.execute("ROLLBACK")
        await store.reopen()
        await store.append([batch("session/a", 0)])


@with_jumping_time
async def test_an_opening_that_was_given_up_does_not_take_the_log_from_the_one_that_came_after(log: Path) -> None:
    gate = Gate("opening.folder_synced")
    async with await SQLiteStore.open(log, fault=gate) as store:
        gate.closed = True
        before = set(threading.enumerate())
        given_up = asyncio.ensure_future(store.reopen())
        assert await settles(gate.reached.is_set)
        while not given_up.done():
            jump()
            await asyncio.sleep(0)
        with pytest.raises(PersistenceError, match="takes longer than"):
            await given_up
        gate.closed = False
        held_threads = set(threading.enumerate()) - before
        await store.reopen()
        gate.open.set()
        assert await settles(lambda: not any(thread.is_alive() for thread in held_threads))
        await store.append([batch("session/a", 0)])
        await store.reopen()
        await store.append([batch("session/a", 1)])


@with_jumping_time
async def test_an_append_that_hangs_does_not_keep_a_store_from_closing(log: Path) -> None:
    gate = Gate("append.inserted")
    store = await SQLiteStore.open(log, fault=gate)
    await hang(store, gate, batch("session/a", 0))
    closing = asyncio.ensure_future(store.close())
    while not closing.done():
        jump()
        await asyncio.sleep(0)
    await closing
    gate.open.set()
    async with await SQLiteStore.open(log, wait_for_log_s=0) as again:
        await again.append([batch("session/b", 0)])
        assert await versions(again) == [1]


async def test_a_cancelled_append_is_waited_for(log: Path) -> None:
    gate = Gate("append.inserted")
    async with await SQLiteStore.open(log, fault=gate) as store:
        appending = await held(store, gate, batch("session/a", 0))
        appending.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        appending.cancel()
        await asyncio.sleep(0)
        assert not appending.done(), "its outcome is not known yet"
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert await versions(store) == [1]
        await store.append([batch("session/a", 1)])


async def test_an_append_that_waits_for_its_turn_can_be_cancelled_and_is_not_begun(log: Path) -> None:
    gate = Gate("append.inserted")
    async with await SQLiteStore.open(log, fault=gate) as store:
        first = await held(store, gate, batch("session/a", 0))
        second = asyncio.ensure_future(store.append([batch("session/a", 1)]))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.open.set()
        await first
        assert await versions(store) == [1]


async def test_what_comes_while_an_append_was_begun_waits_for_it(log: Path) -> None:
    gate = Gate("append.inserted")
    store = await SQLiteStore.open(log, fault=gate)
    first = await held(store, gate, batch("session/a", 0), append_begun)
    assert not store.begin_append([batch("session/a", 1)], {}, print)
    second = asyncio.ensure_future(store.append([batch("session/a", 1)]))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    gate.closed = False
    gate.open.set()
    assert [place.version for (place,) in await asyncio.gather(first, second)] == [1, 2]
    await closing
    with pytest.raises(PersistenceError, match="closed"):
        store.begin_append([batch("session/a", 2)], {}, print)


def test_a_store_whose_loop_ended_in_the_middle_of_an_append_can_be_closed_on_another(log: Path) -> None:
    gate = Gate("append.inserted")
    with asyncio.Runner() as runner:
        store = runner.run(SQLiteStore.open(log, fault=gate))

        async def begin() -> None:
            gate.closed = True
            assert store.begin_append([batch("session/a", 0)], {}, print)

        runner.run(begin())
    gate.open.set()
    asyncio.run(store.close())
    with contextlib.closing(sqlite3.connect(log)) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (1,)


async def test_a_cancelled_append_that_fails_in_doubt_still_has_the_file_opened_anew(log: Path) -> None:
    gate = Gate("append.inserted")
    fault = Fault()
    fault.arm("append.inserted", sqlite_error("SQLITE_IOERR_FSYNC"))

    def both(point: str) -> None:
        gate(point)
        fault(point)

    async with await SQLiteStore.open(log, fault=both) as store:
        appending = await held(store, gate, batch("session/a", 0))
        appending.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await appending
        await store.append([batch("session/a", 0)])
        assert incarnation(log) == 2


async def test_closing_waits_for_the_append_under_way_even_if_it_is_cancelled(log: Path) -> None:
    gate = Gate("append.inserted")
    store = await SQLiteStore.open(log, fault=gate)
    appending = await held(store, gate, batch("session/a", 0))
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await appending
    async with await SQLiteStore.open(log, wait_for_log_s=0) as again:
        assert await versions(again) == [1]


async def test_case_f10_no_thread_is_left_by_openings_that_fail_or_stores_that_close(log: Path) -> None:
    before = set(threading.enumerate())
    (log.parent / "text").write_text("no log")
    (log.parent / "folder").mkdir()

    async def fails(opening: Awaitable[SQLiteStore]) -> None:
        with pytest.raises(PersistenceError):
            await opening

    store = await SQLiteStore.open(log)
    await fails(SQLiteStore.open(log, wait_for_log_s=0))
    for read_only in (False, True):
        await fails(SQLiteStore.open(log.parent / "text", read_only=read_only))
        await fails(SQLiteStore.open(log.parent / "folder", read_only=read_only))
    await store.append([batch("session/a", 0)])
    await store.close()
    assert await settles(lambda: set(threading.enumerate()) <= before)


async def settles(claim: Callable[[], bool]) -> bool:
    """Whether a claim about other threads comes true; they end a moment after we are told."""
    for _ in range(1_000_000):
        if claim():
            return True
        await asyncio.sleep(0)
    return False


async def test_case_f08_a_wal_that_a_reader_kept_growing_is_reused_when_the_reader_is_gone(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("refold.stores.sqlite.append.APPENDS_PER_LOOK_AT_WAL", 5)
    monkeypatch.setattr("refold.stores.sqlite.append.WAL_BYTES_EXPECTED_MAX", 6_000_000)
    wal = log.with_name("events.db-wal")
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchall()
            for number in range(10):
                await store.append([], payload(bytes([number]) * 1_000_000))
            grown = wal.stat().st_size
            assert grown > 9_000_000
            assert "some reader stays open" in caplog.text
        for number in range(10, 20):
            await store.append([], payload(bytes([number]) * 1_000_000))
            assert wal.stat().st_size <= grown + 2_000_000
    assert not wal.exists()


async def test_case_j14_an_oversize_event_is_refused_for_good(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.stores.append_rules.BYTES_MAX", 1000)
    large = EncodedBatch(stream=batch("session/a", 0).stream, expected_version=0, at=0, events=(b" " * 1001,))
    async with await SQLiteStore.open(log) as store:
        with pytest.raises(ValueError, match="1,001 bytes; a store takes at most 1,000"):
            await store.append([large])
        with pytest.raises(ValueError, match="1,001 bytes; a store takes at most 1,000"):
            await store.append([], payload(b"x" * 1001))
        assert await store.read_all() == []


async def test_a_store_open_for_reading_only_refuses_to_write(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
    snapshot = Snapshot(stream=batch("session/a", 0).stream, version=1, chain=b"", fold_version=1, state=b"")
    async with await SQLiteStore.open(log, read_only=True) as store:
        for call in (store.append([batch("session/a", 1)]), store.save_snapshot(snapshot), store.reopen()):
            with pytest.raises(PersistenceError, match="reading only"):
                await call


async def test_a_snapshot_does_not_wait_for_the_disk_and_the_next_append_does(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
    statements: list[str] = []
    with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as connection:
        incarnation = prepare_for_writing(connection, log, "full")
        writer = LogWriter(connection, log, LogPlace(log), incarnation, lambda point: None)
        connection.set_trace_callback(statements.append)
        writer.save_snapshot(
            Snapshot(stream=batch("session/a", 0).stream, version=1, chain=b"", fold_version=1, state=b"")
        )
        connection.set_trace_callback(None)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert statements.index("PRAGMA synchronous = NORMAL") < statements.index("COMMIT")
    assert statements.index("COMMIT") < statements.index("PRAGMA synchronous = 2")
