"""Text logs are read and imported, those too that early versions wrote while they ran, and never opened for writing."""

import io
import json
import os
from pathlib import Path

import pytest

from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError
from refold.events.core.ids import StreamName
from refold.events.core.records import EncodedBatch
from refold.stores import InMemoryStore, SQLiteStore
from refold.stores.jsonl.check import find_damage
from refold.stores.jsonl.importing import import_log, open_to_read
from refold.stores.sample_batches import batch, payload
from refold.stores.sqlite.file import is_text_log
from tests.stores.jsonl.test_importing import everything, export, export_of

WRITTEN_LIVE = Path(__file__).parents[1] / "golden" / "text-log-1.jsonl"
"""What the last version with such logs wrote: four appends, and a snapshot after the first."""

APPENDS = ((3, 6), (0, 8), (1, 8), (1, 11))
"""Of each append how many payloads it has, and the position of the last event after it."""


def append_ends(whole: bytes) -> list[int]:
    """Return where each append ends, and before them the header."""
    ends, place = [], 0
    for line in whole.splitlines(keepends=True):
        place += len(line)
        if b'"more":true' not in line and b'"snapshot"' not in line:
            ends.append(place)
    return ends


def torn(begin: int, length: int) -> bytes:
    """Return the log with a hole in its last append, as a power cut leaves one."""
    whole = WRITTEN_LIVE.read_bytes()
    hole = append_ends(whole)[-2] + begin
    return whole[:hole] + bytes(length) + whole[hole + length :]


async def last_position_of(data: bytes, log: Path) -> int:
    """Import a log, and return the position of its last event."""
    await import_log(io.BytesIO(data), "x", log)
    async with await SQLiteStore.open(log, read_only=True) as store:
        return max((event.position for event in await store.read_all()), default=0)


@pytest.mark.parametrize(
    ("path", "is_text"),
    [
        ("events.jsonl", True),
        ("EVENTS.JSONL", True),
        (Path(".jsonl"), True),
        ("events.db", False),
        ("events.jsonl.db", False),
        ("jsonl", False),
    ],
)
def test_a_name_that_ends_in_jsonl_is_a_text_log(path: str | os.PathLike[str], is_text: bool) -> None:
    assert is_text_log(path) == is_text


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_text_log_is_not_opened_as_a_log_and_the_error_says_to_import_it(
    tmp_path: Path, read_only: bool
) -> None:
    log = tmp_path / "events.jsonl"
    with pytest.raises(ConfigError, match=rf"`refold import {log} {tmp_path}/events\.db`"):
        await SQLiteStore.open(log, read_only=read_only)
    log.write_bytes(WRITTEN_LIVE.read_bytes())
    log.rename(tmp_path / "events.db")
    with pytest.raises(LogFormatError, match="`refold import` if it is a text log"):
        await SQLiteStore.open(tmp_path / "events.db", read_only=read_only)
    assert os.listdir(tmp_path) == ["events.db"]


async def test_an_export_is_lines_that_people_can_read() -> None:
    store = InMemoryStore()
    event = '{"type":"note.v1","text":"Übung 𝄞 日本"}'.encode()
    given = EncodedBatch(stream=StreamName("note/ü"), expected_version=0, at=5, events=(event, b"not json\n"))
    [place] = await store.append([given], payload("Sei kurz. ✓".encode()) | payload(b"\xff\0"))
    header, *payloads, last, _ = (await export(store)).decode().splitlines()
    assert json.loads(header) == {"line": "refold.log", "format": 1, "export": True}
    kept = [json.loads(line) for line in payloads]
    assert {line.get("text") for line in kept} == {"Sei kurz. ✓", None}
    assert {line.get("base64") for line in kept} == {"/wA=", None}
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


# Reading.


async def test_a_text_log_is_read_under_its_own_name_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = tmp_path / "events.jsonl"
    store = InMemoryStore()
    await store.append([batch("session/a", 0, 3), batch("session/b", 0)], payload(b"prompt"))
    log.write_bytes(await export(store))
    async with open_to_read(log) as copy:
        assert copy.name == str(log)
        assert await everything(copy) == await everything(store)
        assert await export(copy) == log.read_bytes()
        with pytest.raises(PersistenceError, match=r"events\.jsonl is open for reading only"):
            await copy.append([batch("session/a", 3)])
    assert os.listdir(tmp_path) == ["events.jsonl"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda log: None, "does not exist"),
        (lambda log: log.touch(), "is empty, so it is no log"),
        (lambda log: log.mkdir(), "is a folder"),
        (lambda log: log.write_bytes(WRITTEN_LIVE.read_bytes().replace(b'"n":2', b'"n":3')), "line 5: .* its chain"),
        (lambda log: log.write_bytes(b"text\n"), "line 1: it is no header"),
    ],
)
async def test_what_cannot_be_read_is_said_with_its_name(tmp_path: Path, make: object, said: str) -> None:
    log = tmp_path / "events.jsonl"
    make(log)  # type: ignore[operator]
    with pytest.raises(PersistenceError, match=rf"events\.jsonl.*{said}"):
        async with open_to_read(log):
            pass


# What early versions wrote while they ran.


async def test_a_log_that_was_written_live_comes_back_without_its_snapshots(tmp_path: Path) -> None:
    whole = WRITTEN_LIVE.read_bytes()
    assert await last_position_of(whole, tmp_path / "copy.db") == 11
    _, *lines, _ = (await export_of(tmp_path / "copy.db")).splitlines()
    written = whole.replace(b',"more":true', b"").splitlines()[1:]
    assert sorted(lines) == sorted(line for line in written if b'"snapshot"' not in line)
    async with await SQLiteStore.open(tmp_path / "copy.db") as store:
        assert await store.load_snapshot("session/a") is None
        [place] = await store.append([batch("session/a", 6)])
        assert place.position == 12


async def test_an_export_that_was_gone_on_with_comes_back(tmp_path: Path) -> None:
    lines = WRITTEN_LIVE.read_bytes().splitlines(keepends=True)
    await import_log(io.BytesIO(b"".join(lines[:6])), "x", tmp_path / "first.db")
    exported = await export_of(tmp_path / "first.db")
    longer = exported + b"".join(lines[7:])
    assert await last_position_of(longer, tmp_path / "second.db") == 11
    assert await last_position_of(longer[:-1], tmp_path / "third.db") == 8


async def test_wherever_a_log_was_cut_what_is_left_is_whole_appends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = WRITTEN_LIVE.read_bytes()
    header, *ends = append_ends(whole)
    line_ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    near = {end + step for end in line_ends for step in (-2, -1, 0, 1)}
    cuts = sorted(cut for cut in near | set(range(header, len(whole), 197)) if header <= cut <= len(whole))
    for number, cut in enumerate(cuts):
        caplog.clear()
        kept = sum(end <= cut for end in ends)
        expected = APPENDS[kept - 1][1] if kept else 0
        assert await last_position_of(whole[:cut], tmp_path / f"{number}.db") == expected
        snapshot_ends = whole.index(b"\n", whole.index(b'"snapshot"')) + 1
        left_out = cut not in (header, *ends, snapshot_ends)
        assert ("is no complete append" in caplog.text) == left_out


@pytest.mark.parametrize("begin", [1, 40, 200])
async def test_an_append_with_holes_as_a_power_cut_leaves_them_is_left_out(tmp_path: Path, begin: int) -> None:
    whole = WRITTEN_LIVE.read_bytes()
    for length in (1, 30, len(whole) - append_ends(whole)[-2] - begin):
        assert await last_position_of(torn(begin, length), tmp_path / f"{length}.db") == 8


@pytest.mark.parametrize(
    "data",
    [
        torn(40, 5) + b'{"line":"payload","hash":"0","text":"a"}\n',
        torn(-300, 30),
        WRITTEN_LIVE.read_bytes().replace(b'"n":6', b'"n":7'),
        WRITTEN_LIVE.read_bytes()[:-1].replace(b'"n":6', b'"n":7'),
    ],
    ids=["an append follows the hole", "the hole is before the last append", "an edited append", "a cut, edited one"],
)
async def test_what_no_dead_writer_leaves_is_damage(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(LogFormatError, match="line "):
        await last_position_of(data, tmp_path / "copy.db")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("cut", [1, 100, 600])
def test_half_an_append_at_the_end_is_no_damage(tmp_path: Path, cut: int) -> None:
    log = tmp_path / "x.jsonl"
    log.write_bytes(WRITTEN_LIVE.read_bytes()[:-cut])
    found, damage = find_damage(log)
    assert damage == []
    assert found.events >= 8
