"""The JSON Lines store: the shared contract, and what only a file of lines has."""

# The loop of a test waits for nothing else.
# ruff: noqa: ASYNC240

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold.events.core.errors import ConfigError, LogFormatError, LogInUse, PersistenceError
from refold.events.core.ids import StreamName
from refold.events.core.records import EncodedBatch, Snapshot, StoredEvent
from refold.stores import EventStore, JsonLinesStore
from refold.stores.conformance import EventStoreConformance
from refold.stores.sample_batches import batch, expected_events, payload


class TestJsonLinesStore(EventStoreConformance):
    @pytest.fixture(autouse=True)
    def log(self, tmp_path: Path) -> None:
        self.path = tmp_path / "events.jsonl"

    async def make_store(self) -> EventStore:
        return await JsonLinesStore.open(self.path)

    async def reopen_store(self, store: EventStore) -> EventStore:
        await store.close()
        return await JsonLinesStore.open(self.path)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def open_store(log: Path, **options: object) -> "asyncio.Future[JsonLinesStore]":
    return asyncio.ensure_future(JsonLinesStore.open(log, wait_for_log_s=0, **options))  # type: ignore[arg-type]


async def written(log: Path, appends: int = 3) -> list[int]:
    """Write a log of some appends, each of a payload and two batches, and return where each append ends."""
    ends: list[int] = []
    async with await open_store(log) as store:
        ends.append(log.stat().st_size)
        for number in range(appends):
            batches = [batch("session/a", 2 * number, 2), batch("session/ü", number, pending=("model",))]
            await store.append(batches, payload(b"payload %d" % number))
            ends.append(log.stat().st_size)
    return ends


@contextmanager
def changed(log: Path, old: bytes, new: bytes) -> Iterator[None]:
    data = log.read_bytes()
    assert data.count(old) >= 1
    log.write_bytes(data.replace(old, new, 1))
    yield
    log.write_bytes(data)


# What the file is.


async def test_a_log_is_lines_that_people_can_read(log: Path) -> None:
    async with await open_store(log) as store:
        event = '{"type":"note.v1","text":"Übung 𝄞 日本"}'.encode()
        text = batch("note/ü", 0)
        given = EncodedBatch(stream=text.stream, expected_version=0, at=5, events=(event, b"not json\n"))
        [place] = await store.append([given], payload("Sei kurz. ✓".encode()) | payload(b"\xff\0"))
    header, *lines, last = log.read_text(encoding="utf-8").splitlines()
    assert json.loads(header) == {"line": "refold.log", "format": 1}
    assert json.loads(lines[0])["text"] == "Sei kurz. ✓"
    assert json.loads(lines[1])["base64"] == "/wA="
    assert all(json.loads(line)["more"] for line in lines)
    assert event.decode() in last
    assert json.loads(last) == {
        "line": "batch",
        "position": 1,
        "stream": "note/ü",
        "version": 1,
        "at": 5,
        "events": [{"type": "note.v1", "text": "Übung 𝄞 日本"}, "not json\n"],
        "chain": place.chain.hex(),
    }


async def test_only_its_owner_may_read_a_log(log: Path) -> None:
    await written(log)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert sorted(os.listdir(log.parent)) == ["events.jsonl", "events.jsonl.lock"]


async def test_an_empty_file_becomes_a_log(log: Path) -> None:
    log.touch()
    assert len(await written(log)) == 4


async def test_a_payload_is_written_once(log: Path) -> None:
    async with await open_store(log) as store:
        await store.append([batch("session/a", 0)], payload(b"prompt"))
        size = log.stat().st_size
        assert await store.append([], payload(b"prompt")) == []
        assert log.stat().st_size == size
        await store.append([batch("session/a", 1)], payload(b"prompt"))
    assert log.read_bytes().count(b'"payload"') == 1


async def test_what_was_open_stays_readable_while_a_large_batch_is_paged(log: Path) -> None:
    async with await open_store(log) as store:
        given = [batch("session/a", 0, 700), batch("session/b", 0, 1), batch("session/a", 700, 2)]
        events = expected_events(given, await store.append(given))
        paged: list[StoredEvent] = []
        while page := await store.read_all(after_position=paged[-1].position if paged else 0, limit=150):
            paged += page
        assert paged == events
        assert [event.version for event in await store.read_stream("session/a", after_version=699, limit=3)] == [
            700,
            701,
            702,
        ]


# Who may write.


async def test_one_owner_at_a_time(log: Path) -> None:
    async with await open_store(log) as store:
        with pytest.raises(LogInUse) as refused:
            await open_store(log)
        assert refused.value.pid == os.getpid()
        await store.append([batch("session/a", 0)])
    async with await open_store(log) as store:
        await store.append([batch("session/a", 1)])


async def test_who_only_reads_writes_nothing(log: Path) -> None:
    await written(log)
    before = log.read_bytes()
    async with await open_store(log, read_only=True) as store:
        assert len(await store.read_all()) == 9
        with pytest.raises(PersistenceError, match="reading only"):
            await store.append([batch("session/a", 6)])
        snapshot = Snapshot(stream=StreamName("session/a"), version=1, chain=b"", fold_version=1, state=b"")
        with pytest.raises(PersistenceError, match="reading only"):
            await store.save_snapshot(snapshot)
    assert log.read_bytes() == before


async def test_a_reader_sees_what_the_owner_appends(log: Path) -> None:
    async with await open_store(log) as owner, await open_store(log, read_only=True) as reader:
        assert await reader.read_all() == []
        for version in range(5):
            given = [batch("session/a", version), batch("session/b", version)]
            await owner.append(given, payload(b"%d" % version))
            assert len(await reader.read_all()) == 2 * version + 2
            assert await reader.read_payloads(payload(b"%d" % version)) == payload(b"%d" % version)
        assert await reader.list_streams() == await owner.list_streams()


async def test_a_reader_leaves_half_an_append_where_it_is_and_sees_it_once_it_is_whole(log: Path) -> None:
    ends = await written(log)
    whole = log.read_bytes()
    async with await open_store(log, read_only=True) as reader:
        for cut in (ends[-2] + 1, ends[-1] - 1):
            log.write_bytes(whole[:cut])
            assert len(await reader.read_all()) == 6
            assert log.stat().st_size == cut
        log.write_bytes(whole)
        assert len(await reader.read_all()) == 9


async def test_a_reader_follows_a_writer_that_took_an_append_back(log: Path) -> None:
    ends = await written(log)
    other = log.with_name("other.jsonl")
    async with await open_store(log, read_only=True) as reader:
        assert (await reader.read_all())[-1].stream == "session/ü"
        os.truncate(log, ends[-2])
        async with await open_store(log) as owner:
            await owner.append([batch("session/c", 0, 40)])
        assert [event.stream for event in (await reader.read_all())[6:]] == ["session/c"] * 40
        await written(other, 1)
        other.rename(log)
        assert len(await reader.read_all()) == 3
        log.unlink()
        with pytest.raises(PersistenceError, match="No such file"):
            await reader.read_all()


async def test_a_log_that_somebody_else_wrote_to_is_not_written_any_more(log: Path) -> None:
    async with await open_store(log) as store:
        await store.append([batch("session/a", 0)])
        with log.open("ab") as other:
            other.write(b"{}\n")
        with pytest.raises(LogInUse):
            await store.append([batch("session/a", 1)])


async def test_a_log_that_was_moved_away_is_not_written_until_it_is_back(log: Path) -> None:
    away = log.with_name("away")
    async with await open_store(log) as store:
        await store.append([batch("session/a", 0)])
        log.rename(away)
        with pytest.raises(PersistenceError, match="deleted or renamed"):
            await store.append([batch("session/a", 1)])
        log.write_bytes(away.read_bytes())
        with pytest.raises(PersistenceError, match="replaced"):
            await store.append([batch("session/a", 1)])
        with pytest.raises(PersistenceError, match="replaced"):
            await store.read_all()
        away.rename(log)
        await store.append([batch("session/a", 1)])
        assert len(await store.read_all()) == 2


async def test_an_append_to_a_log_that_is_moved_away_meanwhile_is_in_doubt(log: Path) -> None:
    def move(point: str) -> None:
        if point == "append.inserted":
            log.rename(log.with_name("away"))

    async with await open_store(log, fault=move) as store:
        with pytest.raises(PersistenceError, match="deleted or renamed") as refused:
            await store.append([batch("session/a", 0)])
        assert refused.value.outcome_unknown


def test_an_owner_whose_loop_is_gone_gives_way_and_writes_nothing_more(log: Path) -> None:
    abandoned = asyncio.run(JsonLinesStore.open(log))

    async def scenario() -> None:
        async with await open_store(log) as owner:
            with pytest.raises(PersistenceError, match="another event loop"):
                await abandoned.append([batch("session/a", 0)])
            await owner.append([batch("session/a", 0)])

    asyncio.run(scenario())


# What a crash leaves.


@pytest.mark.slow
async def test_wherever_a_file_is_cut_what_is_left_is_whole_appends(log: Path) -> None:
    ends = await written(log)
    whole = log.read_bytes()
    reader = await open_store(log, read_only=True)
    last_line_ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")][-3:]
    for cut in [*range(ends[0], ends[-2], 61), *range(ends[-2], ends[-1] + 1)]:
        log.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends[1:])
        assert len(await reader.read_all()) == 3 * kept
        assert log.stat().st_size == cut
        if cut % 9 == 0 or any(abs(cut - end) <= 2 for end in last_line_ends):
            async with await open_store(log, durability="normal") as store:
                assert log.stat().st_size == ends[kept]
                assert len(await store.read_all()) == 3 * kept
            async with await open_store(log, read_only=True) as store:
                assert len(await store.read_all()) == 3 * kept
    await reader.close()


async def test_a_file_that_is_cut_in_its_header_is_no_log_and_left_as_it_is(log: Path) -> None:
    header = (await written(log, 0))[0]
    whole = log.read_bytes()
    for cut in range(1, header):
        log.write_bytes(whole[:cut])
        for read_only in (True, False):
            with pytest.raises(LogFormatError, match="line 1"):
                await open_store(log, read_only=read_only)
        assert log.read_bytes() == whole[:cut]


async def test_the_next_owner_goes_on_where_the_last_whole_append_ends(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = await written(log)
    os.truncate(log, ends[-1] - 1)
    async with await open_store(log) as store:
        [place] = await store.append([batch("session/a", 4)])
        assert place.position == 7
    assert "are cut off" in caplog.text
    async with await open_store(log) as store:
        assert len(await store.read_all()) == 7


@pytest.mark.parametrize("begin", [1, 40, 200])
async def test_an_append_with_holes_as_a_power_cut_leaves_them_is_cut_off(log: Path, begin: int) -> None:
    ends = await written(log)
    whole = log.read_bytes()
    for length in (1, 30, ends[-1] - ends[-2] - begin):
        hole = ends[-2] + begin
        torn = whole[:hole] + bytes(length) + whole[hole + length :]
        log.write_bytes(torn)
        async with await open_store(log, read_only=True) as store:
            assert len(await store.read_all()) == 6
        async with await open_store(log) as store:
            assert len(await store.read_all()) == 6
            await store.append([batch("session/a", 4)])


async def test_a_hole_before_whole_appends_is_damage(log: Path) -> None:
    ends = await written(log)
    whole = log.read_bytes()
    log.write_bytes(whole[: ends[1] + 10] + bytes(20) + whole[ends[1] + 30 :])
    for read_only in (True, False):
        with pytest.raises(LogFormatError, match="line 5:"):
            await open_store(log, read_only=read_only)
    assert log.stat().st_size == len(whole)


# Damage.


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"n":3', b'"n":4', "line 6: the batch of stream 'session/a' does not hash to its chain"),
        (b'"version":3', b'"version":4', "line 6: version 4 of stream 'session/a' follows version 2"),
        (b'"position":4', b'"position":3', "line 6: position 3 follows position 3"),
        (b"payload 1", b"payload X", "line 5: the payload '.*' does not hash"),
        (b'"pending":["model"]', b'"pending":[]', "line 4: the batch of stream 'session/ü' does not hash"),
        (b'"chain":"', b'"chain":"x', "line 3: "),
        (b'"line":"payload"', b'"line":"other"', "line 2: Invalid value 'other'"),
        (b'"at":', b'"extra":1,"at":', "line 3: Object contains unknown field `extra`"),
        (b',"more":true}\n', b"}\r\n", "line 2: it ends with CR LF"),
        (b"payload 1", b"payload \xff", "line 5: 'utf-8' codec can't decode"),
        (b'{"line":"refold.log"', b'\xef\xbb\xbf{"line":"refold.log"', "line 1: it begins with a byte order mark"),
        (b'"format":1', b'"format":2', "line 1: the log has format 2, and this Refold reads up to 1"),
        (b'"format":1', b'"format":0', "line 1: the header is damaged"),
        (b'"format":1', b'"form":1', "line 1: it is no header of a Refold log"),
        (b'"refold.log"', b'"other.log"', "line 1: it is no header of a Refold log"),
    ],
)
async def test_damage_is_told_with_its_line_and_left_as_it_is(log: Path, old: bytes, new: bytes, said: str) -> None:
    await written(log)
    with changed(log, old, new):
        data = log.read_bytes()
        for read_only in (True, False):
            with pytest.raises(LogFormatError, match=said):
                await open_store(log, read_only=read_only)
        assert log.read_bytes() == data


async def test_a_line_that_is_gone_or_there_twice_is_told(log: Path) -> None:
    await written(log)
    lines = log.read_bytes().splitlines(keepends=True)
    for wrong in (
        [*lines[:3], *lines[4:]],
        [*lines[:5], lines[4], *lines[5:]],
        [*lines, lines[-1]],
        [*lines, lines[1]],
    ):
        log.write_bytes(b"".join(wrong))
        with pytest.raises(LogFormatError, match="line "):
            await open_store(log)


async def test_a_file_that_changes_while_it_is_open_is_told(log: Path) -> None:
    await written(log)
    async with await open_store(log, read_only=True) as store:
        with changed(log, b'"position":1,', b'"position":9,'), pytest.raises(LogFormatError, match="at byte"):
            await store.read_all()
        assert len(await store.read_all()) == 9


@pytest.mark.parametrize("what", ["missing", "empty", "folder", "missing folder"])
async def test_what_is_no_file_is_refused(log: Path, what: str) -> None:
    match what:
        case "empty":
            log.touch()
        case "folder":
            log.mkdir()
        case "missing folder":
            log = log / "nowhere.jsonl"
        case _:
            pass
    with pytest.raises(PersistenceError):
        await open_store(log, read_only=True)
    assert not log.with_name(log.name + ".lock").exists()


@pytest.mark.parametrize("name", ["", "a\0b", "\ud83d"])
async def test_what_names_no_file_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        await JsonLinesStore.open(name)


# Appends that fail.


class Crash(BaseException):
    pass


@pytest.mark.parametrize(("point", "kept"), [("append.begun", 0), ("append.inserted", 0), ("append.committed", 2)])
async def test_an_append_that_fails_at_a_point_is_in_the_log_or_leaves_nothing(
    log: Path, point: str, kept: int
) -> None:
    armed = [True]

    def fail(reached: str) -> None:
        if armed[0] and reached == point:
            raise Crash

    async with await open_store(log, fault=fail) as store:
        size = log.stat().st_size
        with pytest.raises(Crash):
            await store.append([batch("session/a", 0, 2)])
        assert (log.stat().st_size > size) == (kept > 0)
        assert len(await store.read_all()) == kept
        armed[0] = False
        await store.append([batch("session/a", kept)])
    async with await open_store(log) as store:
        assert len(await store.read_all()) == kept + 1


async def test_an_append_that_the_disk_fails_is_taken_back(log: Path) -> None:
    armed = [True]

    def fail(reached: str) -> None:
        if armed[0] and reached == "append.inserted":
            armed[0] = False
            raise OSError(errno.EIO, "Input/output error")

    async with await open_store(log, fault=fail) as store:
        size = log.stat().st_size
        with pytest.raises(PersistenceError, match="Input/output error") as refused:
            await store.append([batch("session/a", 0)])
        assert not refused.value.outcome_unknown
        assert log.stat().st_size == size
        await store.append([batch("session/a", 0)])


@pytest.mark.parametrize(("whole", "kept"), [(True, 2), (False, 1)])
async def test_an_append_that_cannot_be_taken_back_is_in_doubt_and_settled_before_the_next_read_or_append(
    log: Path, whole: bool, kept: int
) -> None:
    armed = [False]

    def fail(reached: str) -> None:
        if armed[0] and reached == "append.inserted":
            armed[0] = False
            [descriptor] = writing_descriptors(log)
            if whole:
                os.write(descriptor, b"\n")
            os.close(descriptor)

    async with await open_store(log, fault=fail) as store:
        await store.append([batch("session/a", 0)])
        armed[0] = True
        with pytest.raises(PersistenceError, match="Bad file descriptor") as refused:
            await store.append([batch("session/a", 1)])
        assert refused.value.outcome_unknown
        assert len(await store.read_all()) == kept
        await store.append([batch("session/a", kept)])
    async with await open_store(log) as store:
        assert len(await store.read_all()) == kept + 1


def writing_descriptors(log: Path) -> list[int]:
    """Return the descriptors through which this process may write a file."""
    found: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == str(log) and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_RDWR:
                found.append(int(name))
    return found


async def test_an_append_that_hangs_is_in_doubt_and_nothing_is_begun_after_it(log: Path) -> None:
    released = threading.Event()

    def hang(reached: str) -> None:
        if reached == "append.inserted":
            released.wait()

    store = await open_store(log, fault=hang, append_timeout_s=0.01)
    with pytest.raises(PersistenceError, match="takes longer than") as refused:
        await store.append([batch("session/a", 0)])
    assert refused.value.outcome_unknown
    with pytest.raises(PersistenceError, match="still hangs") as refused:
        await store.append([batch("session/a", 0)])
    assert not refused.value.outcome_unknown
    assert await store.read_all() == [], "who reads does not wait for who writes"
    released.set()
    while not await store.read_all():  # noqa: ASYNC110 - a thread's end sets no event
        await asyncio.sleep(0)
    await store.append([batch("session/a", 1)])
    await store.close()
    async with await open_store(log) as store:
        assert len(await store.read_all()) == 2


@pytest.mark.slow
async def test_a_batch_that_makes_too_long_a_line_is_refused(log: Path) -> None:
    control = "\x01" * (100 * 1024 * 1024)
    async with await open_store(log) as store:
        event = EncodedBatch(stream=StreamName("note/a"), expected_version=0, at=0, events=(control.encode(),))
        with pytest.raises(ValueError, match="one line of it would have"):
            await store.append([event])
        await store.append([batch("note/a", 0)])


async def test_a_forked_child_may_not_use_its_parents_store(log: Path) -> None:
    async with await open_store(log) as store:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                coroutine = store.append([batch("session/a", 0)])
                coroutine.send(None)
            except PersistenceError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)  # noqa: ASYNC222
        assert b"forked" in os.read(reading, 10_000)
        os.close(reading)
        await store.append([batch("session/a", 0)])


@pytest.mark.parametrize("read_only", [True, False])
async def test_an_opening_that_is_cancelled_leaves_the_log_to_others(log: Path, read_only: bool) -> None:
    threads = set(threading.enumerate())
    async with await open_store(log, durability="normal") as store:
        for version in range(0, 3000, 1000):
            await store.append([batch("session/a", version, 1000)])
    for steps in range(0, 40, 3):
        opening = open_store(log, read_only=read_only)
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()
    async with await open_store(log) as store:
        assert len(await store.read_all(limit=5000)) == 3000
    assert set(threading.enumerate()) <= threads
