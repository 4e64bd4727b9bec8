"""A log goes into JSON Lines and comes back the same, and nothing else than a whole export becomes a log."""

import asyncio
import hashlib
import io
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, closing
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError, RefoldError
from refold.events.core.ids import StreamName
from refold.events.core.records import EncodedBatch
from refold.stores import InMemoryStore, SQLiteStore
from refold.stores.event_store import EventStore, WholeLog
from refold.stores.jsonl.check import find_damage
from refold.stores.jsonl.export import exported_lines
from refold.stores.jsonl.importing import import_log
from refold.stores.past_state import last_position, position_before_last
from refold.stores.sample_batches import batch, payload


async def export(store: WholeLog, **options: object) -> bytes:
    async with aclosing(exported_lines(store, **options)) as lines:  # type: ignore[arg-type]
        return b"".join([line async for line in lines])


async def export_of(log: Path) -> bytes:
    async with await SQLiteStore.open(log, read_only=True) as store:
        return await export(store)


async def everything(store: EventStore) -> object:
    return await store.read_all(limit=10**6), await store.list_streams()


async def fill(store: EventStore) -> None:
    """Append something of everything that a batch can have."""
    text = EncodedBatch(stream=StreamName("note/\u2028\x85"), expected_version=0, at=-5, events=(b"", b"\n\0", b'"x"'))
    await store.append(
        [batch("session/a", 0, 3, pending=("model:1", "ü"), correlation="session/b@1", causation="session/a@1"), text],
        payload(b"") | payload(b"\xff\x00binary") | payload("Übung ✓".encode()),
    )
    await store.append([batch("session/ü/b", 0, at=2**63 - 1), batch("session/a", 3, at=-(2**63), pending=("x",))])
    await store.append([batch("session/ü/b", 1, 600)], payload(b"\x01" * 5000))


def execute(log: Path, *statements: str) -> None:
    with closing(sqlite3.connect(log)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
async def lines(tmp_path: Path) -> AsyncIterator[bytes]:
    folder = tmp_path / "source"
    folder.mkdir()
    async with await SQLiteStore.open(folder / "events.db") as store:
        await fill(store)
        yield await export(store)


def resealed(lines: Sequence[bytes]) -> bytes:
    """Return an export whose last line agrees with those before."""
    body = b"".join(lines[:-1])
    batches = [line for line in lines if b'"line":"batch"' in line]
    counts = b'{"line":"end","batches":%d,"events":608,"payloads":%d,"sha256":"%s"}\n'
    payloads = sum(b'"line":"payload"' in line for line in lines)
    return body + counts % (len(batches), payloads, hashlib.sha256(body).hexdigest().encode())


# Whole and the same.


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_comes_back_is_what_went_out(tmp_path: Path, kind: str) -> None:
    store = InMemoryStore() if kind == "memory" else await SQLiteStore.open(tmp_path / "source.db")
    await fill(store)
    first = await export(store)
    log = tmp_path / "copy.db"
    report = await import_log(io.BytesIO(first), "x", log)
    assert (report.streams, report.batches, report.events, report.payloads) == (3, 5, 608, 4)
    async with await SQLiteStore.open(log, read_only=True) as copy:
        assert await everything(copy) == await everything(store)
        assert await copy.find_damage() == []
        assert await export(copy) == first
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    await store.close()


@pytest.mark.parametrize("blank", [b"\n", b" \t\n", b"\r\n", b"\n\n\n"])
async def test_blank_lines_are_skipped_wherever_an_editor_left_them(
    tmp_path: Path, lines: bytes, blank: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    every = lines.splitlines(keepends=True)
    for place in [0, 1, len(every) // 2, len(every)]:
        text = tmp_path / f"{place}.jsonl"
        text.write_bytes(b"".join([*every[:place], blank, *every[place:]]))
        assert find_damage(text)[1] == []
        assert "are skipped" in caplog.records[-1].getMessage()
        with text.open("rb") as source:
            await import_log(source, "x", tmp_path / f"{place}.db")
        assert await export_of(tmp_path / f"{place}.db") == lines
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(every[0] + b"\n" + every[1].replace(b"a", b"b") + b"".join(every[2:]))
    assert find_damage(damaged)[1][0].message.startswith("line 3: ")


@pytest.mark.parametrize("changed", [slice(None), slice(0, 1), slice(3, None, 2)], ids=["all", "the header", "some"])
@pytest.mark.parametrize("end", [b"\r\n", b" \t\n", b" \r\n"], ids=["Windows", "white space", "both"])
async def test_white_space_and_line_ends_of_windows_are_read_as_what_was_written(
    tmp_path: Path, lines: bytes, changed: slice, end: bytes
) -> None:
    every = lines.splitlines(keepends=True)
    every[changed] = [line.replace(b"\n", end) for line in every[changed]]
    text = tmp_path / "log.jsonl"
    text.write_bytes(b"".join(every))
    assert find_damage(text)[1] == []
    await import_log(io.BytesIO(b"".join(every)), "x", tmp_path / "copy.db")
    assert await export_of(tmp_path / "copy.db") == lines
    with pytest.raises(LogFormatError, match="cut short"):
        await import_log(io.BytesIO(b"".join(every)[:-1]), "x", tmp_path / "other.db")


async def test_an_empty_log_comes_back(tmp_path: Path) -> None:
    first = await export(InMemoryStore())
    await import_log(io.BytesIO(first), "x", tmp_path / "copy.db")
    assert await export_of(tmp_path / "copy.db") == first


async def test_removed_positions_and_tombstones_come_back(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    async with await SQLiteStore.open(log) as store:
        await fill(store)
    digest = "00" * 32
    execute(
        log,
        "DELETE FROM events WHERE stream = (SELECT id FROM streams WHERE name = 'session/ü/b')",
        "DELETE FROM streams WHERE name = 'session/ü/b'",
        "UPDATE log SET removed_position = 608",
        f"INSERT INTO tombstones VALUES (609, 'session/ü/b', 601, X'{digest}', 17)",
    )
    first = await export_of(log)
    assert b'"removed_position":608' in first
    assert b'"line":"tombstone"' in first
    await import_log(io.BytesIO(first), "x", tmp_path / "copy.db")
    assert await export_of(tmp_path / "copy.db") == first
    async with await SQLiteStore.open(tmp_path / "copy.db") as copy:
        [place] = await copy.append([batch("session/a", 4)])
        assert place.position == 609, "a position is never used twice"


async def test_some_streams_keep_their_positions(tmp_path: Path) -> None:
    store = InMemoryStore()
    await fill(store)
    part = await export(store, streams={"session/ü/b"}, payloads=set())
    report = await import_log(io.BytesIO(part), "x", tmp_path / "copy.db")
    assert (report.partial, report.streams, report.payloads) == (True, 1, 0)
    async with await SQLiteStore.open(tmp_path / "copy.db") as copy:
        assert await copy.read_all(limit=1000) == await store.read_stream("session/ü/b")
        [place] = await copy.append([batch("session/a", 0)])
        assert place.position == 609, "positions of what was left out are not used again"


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "session/ü"]),
            st.integers(-(2**63), 2**63 - 1),
            st.lists(st.text().map(str.encode), min_size=1, max_size=3),
            st.lists(st.text(st.characters(codec="utf-8", exclude_characters=" \0"), min_size=1), max_size=2),
            st.binary(max_size=20),
        ),
        max_size=6,
    )
)
@settings(max_examples=25)
def test_any_log_comes_back(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, int, list[bytes], list[str], bytes]]
) -> None:
    async def scenario() -> None:
        store = InMemoryStore()
        versions: dict[str, int] = {}
        for name, at, events, pending, content in drawn:
            version = versions.get(name, 0)
            given = EncodedBatch(
                stream=StreamName(name), expected_version=version, at=at, events=tuple(events), pending=tuple(pending)
            )
            await store.append([given], payload(content))
            versions[name] = version + len(events)
        first = await export(store)
        log = tmp_path_factory.mktemp("import") / "copy.db"
        await import_log(io.BytesIO(first), "x", log)
        assert await export_of(log) == first

    asyncio.run(scenario())


# While a writer has the log open.


async def test_what_is_appended_meanwhile_is_left_out_and_payloads_are_all_there() -> None:
    store = InMemoryStore()
    await fill(store)
    expected = await export(store)
    kept = bytearray()
    async with aclosing(exported_lines(store)) as lines:
        version = 0
        async for line in lines:
            kept += line
            assert version < 1000, "it follows the log for ever"
            await store.append([batch("session/new", version)], payload(b"%d" % version))
            version += 1
    batches = [line for line in kept.splitlines() if b'"batch"' in line]
    assert batches == [line for line in expected.splitlines() if b'"batch"' in line]


async def test_an_export_beside_a_writer_is_a_whole_log(tmp_path: Path, log: Path) -> None:
    async with await SQLiteStore.open(log, durability="normal") as owner:
        done = False

        async def write() -> int:
            version = 0
            while not done and version < 4_000:
                given = [batch("session/a", version, 2), batch("session/b", version, 2)]
                await owner.append(given, payload(b"%d" % version))
                version += 2
            return version

        writing = asyncio.ensure_future(write())
        seen = 0
        async with await SQLiteStore.open(log, read_only=True) as reader:
            for number in range(4):
                exported = await export(reader)
                report = await import_log(io.BytesIO(exported), "x", tmp_path / f"copy{number}.db")
                assert report.events >= seen
                assert report.payloads * 4 >= report.events
                seen = report.events
        done = True
        assert await writing * 2 >= seen > 0


# What is no whole export.


def without(line: int) -> Callable[[list[bytes]], bytes]:
    return lambda lines: b"".join([*lines[:line], *lines[line + 1 :]])


def twice(line: int) -> Callable[[list[bytes]], bytes]:
    return lambda lines: b"".join([*lines[: line + 1], *lines[line:]])


def replaced(old: bytes, new: bytes) -> Callable[[list[bytes]], bytes]:
    return lambda lines: resealed(b"".join(lines).replace(old, new, 1).splitlines(keepends=True))


HOSTILE: dict[str, tuple[str, Callable[[list[bytes]], bytes]]] = {
    "nothing": (r"is empty", lambda _: b""),
    "cut in the last line": (r"cut short", lambda lines: b"".join(lines)[:-1]),
    "cut before the last line": (r"cut short", lambda lines: b"".join(lines[:-1])),
    "cut in a line": (r"cut short", lambda lines: b"".join(lines)[:-1000]),
    "without the header": (r"no header", without(0)),
    "without a payload": (r"the export has", without(2)),
    "without a batch": (r"a line is missing, or twice", without(5)),
    "the header twice": (r"second header", twice(0)),
    "a payload twice": (r"second time", lambda lines: resealed([*lines[:2], lines[1], *lines[2:]])),
    "a batch twice": (r"a line is missing, or twice", lambda lines: resealed([*lines[:6], lines[5], *lines[6:]])),
    "the end twice": (r"ends where none is", lambda lines: b"".join([*lines, lines[-1]])),
    "batches in another order": (
        r"follows position",
        lambda lines: resealed([*lines[:7], lines[8], lines[7], *lines[9:]]),
    ),
    "an edited event": (r"chain", replaced(b'"n":2', b'"n":7')),
    "an edited time": (r"chain", replaced(b'"at":-5', b'"at":-6')),
    "an edited position": (r"follows position", replaced(b'"position":7,', b'"position":6,')),
    "a position beyond all": (r"follows position", replaced(b'"position":1,', b'"position":9223372036854775807,')),
    "a number of more than 64 bits": (r"64 bits", replaced(b'"at":-5', b'"at":99999999999999999999')),
    "an edited payload": (r"does not hash to its key", replaced("Übung".encode(), b"Ubung")),
    "an edited digest": (
        r"do not hash",
        lambda lines: b"".join([*lines[:-1], lines[-1].replace(b'"sha256":"', b'"sha256":"0')]),
    ),
    "other counts": (
        r"the export has",
        lambda lines: b"".join([*lines[:-1], lines[-1].replace(b'"events":6', b'"events":7')]),
    ),
    "a byte order mark": (r"byte order mark", lambda lines: b"\xef\xbb\xbf" + b"".join(lines)),
    "another encoding": (r"no header", lambda lines: b"".join(lines).decode().encode("utf-16")),
    "not UTF-8": (r"utf-8", replaced("Übung".encode(), b"\xdcbung")),
    "a NUL": (r"malformed", replaced(b'"n":2', b'"n":\0')),
    "deep nesting": (
        r"nested|truncated|malformed|Invalid|Expected",
        lambda lines: b"".join([*lines[:3], b'{"line":' + b"[" * 10**6 + b"\n", *lines[3:]]),
    ),
    "deep nesting in the header": (r"no header", lambda lines: b'{"line":' + b"[" * 10**6 + b"\n"),
    "a huge line without an end": (r"cut short", lambda lines: lines[0] + b'{"line":"payload","text":"' + b"a" * 10**7),
    "a newer format": (r"install a newer one", replaced(b'"format":1', b'"format":2')),
    "a newer format that means something else": (
        r"install a newer one",
        lambda _: b'{"line":"refold.log","format":2,"codec":["zstd"]}\n\x28\xb5',
    ),
    "SQLite": (r"no header", lambda _: b"SQLite format 3\0" + bytes(1000)),
    "other JSON": (r"no header", lambda _: b'{"role":"user","content":"hi"}\n'),
    "a tombstone beyond all": (
        r"position",
        lambda lines: resealed(
            [
                *lines[:3],
                b'{"line":"tombstone","position":%d,"stream":"a","version":1,"chain":"%s","at":0}\n'
                % (2**70, b"0" * 64),
                *lines[3:],
            ]
        ),
    ),
    "a tombstone twice": (
        r"tombstone",
        lambda lines: resealed(
            [
                *lines[:3],
                *[b'{"line":"tombstone","position":1,"stream":"a","version":1,"chain":"%s","at":0}\n' % (b"0" * 64)]
                * 2,
                *lines[3:],
            ]
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
async def test_what_is_no_whole_export_is_refused_with_its_line_and_leaves_nothing(
    tmp_path: Path, lines: bytes, what: str
) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    said, make = HOSTILE[what]
    wrong = make(lines.splitlines(keepends=True))
    assert wrong != lines
    with pytest.raises(LogFormatError, match=rf"^some\.jsonl(, line \d+:)? .*({said})"):
        await import_log(io.BytesIO(wrong), "some.jsonl", folder / "copy.db")
    assert os.listdir(folder) == []


@given(st.data())
@settings(max_examples=40)
def test_a_changed_byte_is_found_wherever_it_is(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    async def scenario() -> None:
        store = InMemoryStore()
        given = [batch("session/a", 0, 2, pending=("x",)), batch("session/ü", 0)]
        await store.append(given, payload(b"prompt") | payload(b"\xff"))
        lines = await export(store)
        place = data.draw(st.integers(0, len(lines) - 1))
        byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != lines[place]))
        wrong = lines[:place] + bytes([byte]) + lines[place + 1 :]
        log = tmp_path_factory.mktemp("import") / "copy.db"
        try:
            await import_log(io.BytesIO(wrong), "x", log)
        except RefoldError:
            assert os.listdir(log.parent) == []
        else:
            # White space, or an escape, that means the same in the last line, which nothing digests.
            assert await export_of(log) == lines

    asyncio.run(scenario())


# Where the new log is to be.


@pytest.mark.parametrize("what", ["a log", "another file", "a folder", "a link", "a WAL", "another import"])
async def test_what_is_there_is_left_alone(tmp_path: Path, lines: bytes, what: str) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    log = folder / "copy.db"
    match what:
        case "a log":
            async with await SQLiteStore.open(log):
                pass
        case "another file":
            log.write_text("precious")
        case "a folder":
            log.mkdir()
        case "a link":
            log.symlink_to("elsewhere")
        case "a WAL":
            log.with_name("copy.db-wal").write_text("precious")
        case _:
            log.with_name("copy.db.making").write_text("precious")
    before = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(RefoldError):
        await import_log(io.BytesIO(lines), "x", log)
    assert {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()} == before


async def test_an_empty_file_may_be_there(tmp_path: Path, lines: bytes) -> None:
    log = tmp_path / "copy.db"
    log.touch()
    await import_log(io.BytesIO(lines), "x", log)
    assert await export_of(log) == lines


@pytest.mark.parametrize(
    ("name", "error"), [("copy.jsonl", ConfigError), ("", ConfigError), ("no/x.db", PersistenceError)]
)
async def test_a_name_that_cannot_be_is_refused(
    tmp_path: Path, lines: bytes, name: str, error: type[RefoldError]
) -> None:
    with pytest.raises(error):
        await import_log(io.BytesIO(lines), "x", f"{tmp_path}/{name}" if name else "")


async def test_an_import_that_is_cancelled_leaves_nothing(tmp_path: Path, lines: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, lines[:1000])
    folder = tmp_path / "target"
    folder.mkdir()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        importing = asyncio.ensure_future(import_log(source, "x", folder / "copy.db"))
        while not (folder / "copy.db.making").exists():  # noqa: ASYNC110 - it is made by another thread
            await asyncio.sleep(0)
        importing.cancel()
        sink.close()
        with pytest.raises((asyncio.CancelledError, LogFormatError)):
            await importing
    assert os.listdir(folder) == []


# Damaged logs.


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM events WHERE position = 2",
        "UPDATE events SET version = 99 WHERE position = 3",
        "UPDATE events SET at = 99 WHERE position = 3",
        "UPDATE payloads SET data = X'00' WHERE hash LIKE 'e3b0%'",
        "UPDATE events SET chain = NULL WHERE position = 1",
    ],
)
async def test_a_damaged_log_is_not_exported(tmp_path: Path, damage: str) -> None:
    log = tmp_path / "log.db"
    async with await SQLiteStore.open(log) as store:
        await fill(store)
    execute(log, damage)
    with pytest.raises(LogFormatError):
        await export_of(log)


# Positions.


@pytest.mark.parametrize("count", [0, 1, 2, 5, 607, 608, 609, 5000])
async def test_the_last_events_are_found_whatever_positions_are_missing(tmp_path: Path, count: int) -> None:
    log = tmp_path / "log.db"
    async with await SQLiteStore.open(log) as store:
        assert await last_position(store) == 0
        assert await position_before_last(store, count) == 0
        await fill(store)
    execute(log, "DELETE FROM events WHERE position BETWEEN 3 AND 9 OR position BETWEEN 100 AND 600")
    async with await SQLiteStore.open(log, read_only=True) as store:
        positions = [event.position for event in await store.read_all()]
        assert await last_position(store) == 608
        after = await position_before_last(store, count)
        assert (
            [position for position in positions if position > after] == positions[len(positions) - count :][-count:]
            or (count == 0 and after == 608)
            or (count >= len(positions) and after == 0)
        )
