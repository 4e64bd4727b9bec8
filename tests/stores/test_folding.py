"""A fold that begins with a snapshot gives what a fold of all events gives, or does not begin with it."""

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import copy as copied
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.events import Event, PureCore, State
from refold.events.core.codec import EventCodec
from refold.events.core.content import Message, TextBlock
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import EncodedBatch, Snapshot, StoredEvent, batch_of
from refold.events.core.state_codec import SEALED_ITEMS, SealedList
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.state import SessionState
from refold.inspection.kinds import KINDS
from refold.inspection.log_reading import kind_of
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from refold.stores.append_rules import BYTES_MAX
from refold.stores.folding import (
    BYTES_PER_STEP,
    EVENTS_PER_PAGE,
    EVENTS_PER_STEP,
    Causes,
    Fold,
    causes_after,
    state_codec,
)

GOLDEN = sorted((Path(__file__).parent.parent / "golden").glob("format-1-core-4*.db"))


AN_AGENT = next(path for path in GOLDEN if path.stem.endswith("agent"))


class OneSnapshot(InMemoryStore):
    """A log that gives the snapshot that a test puts there, and counts the events that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Snapshot | PersistenceError | None = None
        self.read = 0

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        if isinstance(self.given, PersistenceError):
            raise self.given
        return self.given

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        stored = await super().read_stream(stream, after_version=after_version, limit=limit)
        self.read += len(stored)
        return stored


async def copy(stored: Sequence[StoredEvent]) -> OneSnapshot:
    """Return a log with the same events, whole batches in their order."""
    store = OneSnapshot()
    await append_again(store, stored)
    return store


async def append_again(store: EventStore, stored: Sequence[StoredEvent]) -> None:
    for _, events in groupby(stored, key=lambda item: (item.stream, item.batch)):
        batch = list(events)
        [appended] = await store.append([batch_of(batch)])
        assert appended.chain == batch[0].chain


def of_kind(stream: str) -> Fold[Any, Any]:
    kind = KINDS[kind_of(stream)]
    return Fold(stream, kind.core, kind.codec)


def facts(fold: Fold[Any, Any]) -> tuple[object, ...]:
    return (fold.state, fold.version, fold.at, fold.causes, fold.first)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_from_a_snapshot_at_any_batch_every_kind_folds_to_the_same(golden: Path) -> None:
    async with await SQLiteStore.open(golden, read_only=True) as log:
        store = await copy(await log.read_all(limit=100_000))
    for head in await store.list_streams():
        store.given = None
        stored = await store.read_stream(head.stream)
        whole = of_kind(head.stream)
        await whole.read(store, snapshots_from=None)
        assert whole.state == evolve_all(KINDS[kind_of(head.stream)].core, map(whole._codec.decode, stored))
        causes: Causes = {}
        for item in stored:
            if item.batch == item.version:
                causes = causes_after(causes, item.pending or (), item.version, item.correlation)
        assert whole.causes == causes
        for end in [item.batch - 1 for item in stored if item.batch == item.version > 1] + [head.version]:
            until = of_kind(head.stream)
            await until.read(store, snapshots_from=None, version=end)
            store.given = await until.snapshot()
            assert store.given is not None
            fold = of_kind(head.stream)
            await fold.read(store, snapshots_from=1)
            assert (fold.snapshot_bytes, fold.fresh) == (len(store.given.state), head.version - end)
            assert facts(fold) == facts(whole)
            assert msgspec.msgpack.encode(fold.state) == msgspec.msgpack.encode(whole.state)
            assert await fold.snapshot() == await whole.snapshot()


FOLDS = GOLDEN[0].parent / "text" / "folds.jsonl"


async def test_a_fold_that_gives_another_state_has_another_fold_version_or_shape() -> None:
    """Else snapshots of the old fold would be taken for those of today's; raise `FOLD_VERSION`.

    `REFOLD_WRITE_TRANSCRIPTS=1` records what today's code folds.
    """
    now: dict[tuple[str, ...], str] = {}
    for golden in GOLDEN:
        async with await SQLiteStore.open(golden, read_only=True) as log:
            for head in await log.list_streams():
                fold = of_kind(head.stream)
                await fold.read(log, snapshots_from=None)
                codec = state_codec(fold._core)
                assert codec is not None
                pieces = b"".join(data for _, data in codec.pieces(fold.state))
                place = (golden.stem, head.stream, str(fold._core.fold_version), codec.shape.hex())
                now[place] = hashlib.sha256(pieces).hexdigest()[:16]
    if os.environ.get("REFOLD_WRITE_TRANSCRIPTS"):
        lines = [msgspec.json.encode((*place, digest)).decode() for place, digest in now.items()]
        FOLDS.write_text("\n".join(lines) + "\n")
    recorded = {tuple(line[:4]): line[4] for line in map(msgspec.json.decode, FOLDS.read_bytes().splitlines())}
    known = now.keys() & recorded.keys()
    assert known
    assert {place: now[place] for place in known} == {place: recorded[place] for place in known}


def flipped(place: int) -> Callable[[Snapshot], Snapshot]:
    def damage(snapshot: Snapshot) -> Snapshot:
        state = bytearray(snapshot.state)
        state[place] ^= 1
        return msgspec.structs.replace(snapshot, state=bytes(state))

    return damage


def changed(**fields: Any) -> Callable[[Snapshot], Snapshot]:
    return lambda snapshot: msgspec.structs.replace(snapshot, **fields)


DAMAGE: dict[str, Callable[[Snapshot], Snapshot | PersistenceError]] = {
    "its digest": flipped(3),
    "the length of its header": flipped(33),
    "its header": flipped(60),
    "its state": flipped(-40),
    "its last byte": flipped(-1),
    "empty": changed(state=b""),
    "the digest alone": lambda snapshot: changed(state=snapshot.state[:32])(snapshot),
    "cut": lambda snapshot: changed(state=snapshot.state[:-9])(snapshot),
    "longer": lambda snapshot: changed(state=snapshot.state + b"\0")(snapshot),
    "another FOLD_VERSION": changed(fold_version=SESSION_CORE.fold_version - 1),
    "no FOLD_VERSION": changed(fold_version=0),
    "another chain": changed(chain=b"\1" * 32),
    "an earlier version": lambda snapshot: changed(version=snapshot.version - 1)(snapshot),
    "a later version": lambda snapshot: changed(version=snapshot.version + 1)(snapshot),
    "a version beyond all": changed(version=2**62),
    "a negative version": changed(version=-1),
    "another stream": changed(stream=StreamName("session/other")),
    "the store says it is malformed": lambda _: LogFormatError("a column has a value of another type"),
    "the store cannot read it": lambda _: PersistenceError("the disk failed"),
}


async def a_session() -> OneSnapshot:
    async with await SQLiteStore.open(AN_AGENT, read_only=True) as log:
        heads = await log.list_streams(prefix="session/")
        longest = max(heads, key=lambda head: head.version)
        return await copy(await log.read_stream(longest.stream))


@pytest.mark.parametrize("version", [-1, 0, 1])
async def test_a_version_that_a_damaged_log_names_ends_the_reading(version: int) -> None:
    store = await a_session()
    [head] = await store.list_streams()
    fold = of_kind(head.stream)
    await fold.read(store, version=version)
    assert fold.version == max(version, 0)


async def from_snapshot(store: OneSnapshot) -> tuple[Fold[Any, Any], Fold[Any, Any]]:
    """Return a fold that may use the given snapshot, and one that may not."""
    [head] = await store.list_streams()
    folds = of_kind(head.stream), of_kind(head.stream)
    for fold, snapshots_from in zip(folds, (1, None), strict=True):
        await fold.read(store, snapshots_from=snapshots_from)
    return folds


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_snapshot_that_is_not_what_was_written_is_ignored(damage: str) -> None:
    store = await a_session()
    [head] = await store.list_streams()
    good = of_kind(head.stream)
    await good.read(store, version=head.version)
    made = await good.snapshot()
    assert made is not None
    store.given = made
    fold, whole = await from_snapshot(store)
    assert fold.snapshot_bytes == len(made.state)
    store.given = DAMAGE[damage](made)
    fold, whole = await from_snapshot(store)
    assert (fold.snapshot_bytes, facts(fold)) == (0, facts(whole))
    assert fold.ignored
    assert not whole.ignored


async def test_a_snapshot_of_another_shape_of_state_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await a_session()
    fold, whole = await from_snapshot(store)
    store.given = await fold.snapshot()
    monkeypatch.setattr(state_codec(SESSION_CORE), "shape", b"grown by")
    fold, whole = await from_snapshot(store)
    assert (fold.snapshot_bytes, facts(fold)) == (0, facts(whole))


async def test_a_snapshot_of_events_that_the_log_lost_is_ignored_also_when_others_took_their_place() -> None:
    # As where a backup of the log is put back, and its snapshots are those of the log that was there.
    store = await a_session()
    fold, _ = await from_snapshot(store)
    made = await fold.snapshot()
    [head] = await store.list_streams()
    stored = await store.read_stream(head.stream)
    starts = [item.version for item in stored if item.version == item.batch]
    backup = await copy(stored[: starts[-1] - 1])
    backup.given = made
    fold, whole = await from_snapshot(backup)
    assert (fold.snapshot_bytes, facts(fold)) == (0, facts(whole))
    later = [msgspec.structs.replace(item, at=item.at + 1) for item in stored[starts[-1] - 1 :]]
    for _, events in groupby(later, key=lambda item: item.batch):
        await backup.append([batch_of(list(events))])
    fold, whole = await from_snapshot(backup)
    assert (fold.snapshot_bytes, facts(fold)) == (0, facts(whole))


async def test_a_damaged_row_of_a_file_is_ignored(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    source = await a_session()
    [head] = await source.list_streams()
    made, _ = await from_snapshot(source)
    snapshot = await made.snapshot()
    assert snapshot is not None
    async with await SQLiteStore.open(log) as store:
        await append_again(store, await source.read_stream(head.stream))
        await store.save_snapshot(snapshot)
    for change, used in (("version = version", True), ("state = zeroblob(length(state))", False)):
        with closing(sqlite3.connect(log)) as connection, connection:
            connection.execute(f"UPDATE snapshots SET {change}")
        async with await SQLiteStore.open(log, read_only=True) as store:
            fold = of_kind(head.stream)
            await fold.read(store, snapshots_from=1)
        assert (fold.snapshot_bytes > 0, facts(fold)) == (used, facts(made))


async def test_a_place_before_the_snapshot_is_folded_from_the_beginning() -> None:
    store = await a_session()
    [head] = await store.list_streams()
    stored = await store.read_stream(head.stream)
    fold, _ = await from_snapshot(store)
    store.given = await fold.snapshot()
    for item in stored:
        for version, position in ((item.version, None), (None, item.position)):
            then = of_kind(head.stream)
            await then.read(store, snapshots_from=1, version=version, position=position)
            assert then.version == item.version
            assert (then.snapshot_bytes > 0) == (item.version == head.version)
            assert then.state == evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(stored[: item.version]))
    behind = of_kind(head.stream)
    assert await behind.read(store, snapshots_from=1, after=head.version - 2) == stored[-2:]


# Nobody waits for a long fold


class Counted(Event, frozen=True, kw_only=True, tag="count.counted.v1"):
    text: str = ""


class Seen(State):
    turns: list[int] = []
    """Of the loop, in which each event was folded."""


class Turns(PureCore[Seen, Counted, Counted]):
    """Notes in which turn of the loop it folds an event."""

    fold_version = 1

    def __init__(self) -> None:
        self.turn = 0

    def admit(self, state: Seen, command: Counted) -> Counted:
        return command

    def evolve(self, state: Seen, event: Counted) -> Seen:
        state.version += 1
        state.turns.append(self.turn)
        return state

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


COUNTS = EventCodec([Counted])


@pytest.mark.parametrize(
    ("events", "length", "most"),
    [
        (2 * EVENTS_PER_PAGE + 17, 0, EVENTS_PER_STEP),
        (40, BYTES_PER_STEP // 4, 4),
        (3, 2 * BYTES_PER_STEP, 1),
    ],
)
async def test_others_have_the_loop_while_a_long_stream_is_folded_or_kept(events: int, length: int, most: int) -> None:
    store, core = InMemoryStore(), Turns()
    data = COUNTS.encode(Counted(text="x" * min(length, 900_000)))
    batch = EncodedBatch(stream=StreamName("count/a"), expected_version=0, at=1, events=(data,) * events)
    await store.append([batch])
    counting = asyncio.create_task(core.count())
    fold = Fold("count/a", core, COUNTS)
    await fold.read(store)
    counting.cancel()
    steps = [len(list(of_turn)) for _, of_turn in groupby(fold.state.turns)]
    assert (sum(steps), max(steps)) == (events, most)


def said(number: int) -> Message:
    return Message("user", (TextBlock(text=f"{number} " + "x" * 900),))


async def test_others_have_the_loop_while_a_long_history_is_written_and_read_and_what_is_not_read_stays_as_it_was() -> (
    None
):
    store, core = OneSnapshot(), Turns()
    events = tuple(SESSION_CODEC.encode(event) for event in [_imported(1_000), _imported(1_000), _imported(17)])
    stream = StreamName("session/long")
    await store.append([EncodedBatch(stream=stream, expected_version=0, at=1, events=events[:2])])
    fold = of_kind(stream)
    await fold.read(store)
    counting = asyncio.create_task(core.count())
    await asyncio.sleep(0)
    core.turn = 0
    store.given = await fold.snapshot()
    assert store.given is not None
    assert core.turn >= len(store.given.state) // BYTES_PER_STEP
    await store.append([EncodedBatch(stream=stream, expected_version=2, at=1, events=events[2:])])
    core.turn = store.read = 0
    later = of_kind(stream)
    await later.read(store, snapshots_from=1)
    assert core.turn >= len(store.given.state) // BYTES_PER_STEP
    counting.cancel()
    assert store.read <= 4
    messages = later.state.messages
    assert isinstance(messages, SealedList)
    assert (len(messages), messages[-1], messages[1_999], messages[-2_000]) == (2_017, said(16), said(999), said(17))
    kept = await later.snapshot()
    whole = of_kind(stream)
    await whole.read(store, snapshots_from=None)
    assert kept == await whole.snapshot()
    opened = of_kind(stream)
    await opened.read(store, snapshots_from=1, sealed=False)
    assert type(opened.state.messages) is list
    assert opened.state == whole.state == later.state


def _imported(count: int) -> Any:
    from refold.events.session.events import HistoryImported

    return HistoryImported(messages=tuple(map(said, range(count))), digest="d")


async def test_a_state_that_is_too_long_for_the_store_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await a_session()
    fold, _ = await from_snapshot(store)
    assert await fold.snapshot() is not None
    monkeypatch.setattr("refold.stores.folding.BYTES_MAX", 100)
    assert BYTES_MAX > 100
    assert await fold.snapshot() is None


# A list whose beginning is encoded


@pytest.mark.parametrize("length", [0, 1, SEALED_ITEMS - 1, SEALED_ITEMS, SEALED_ITEMS + 1, 3 * SEALED_ITEMS])
def test_a_sealed_list_is_like_the_list_that_it_was_made_of(length: int) -> None:
    plain = list(range(length))
    lines = msgspec.json.Encoder().encode_lines
    encoded = [lines(plain[first : first + SEALED_ITEMS]) for first in range(0, length, SEALED_ITEMS)]
    whole = [piece for piece in encoded if piece.count(b"\n") == SEALED_ITEMS]
    decode = msgspec.json.Decoder(int).decode_lines

    def sealed() -> SealedList[int]:
        return SealedList(decode, [*whole], plain[len(whole) * SEALED_ITEMS :])

    assert sealed() == plain
    assert plain == sealed()
    assert list(sealed().pieces()) == encoded
    assert sealed() != [*plain, 0]
    assert list(reversed(sealed())) == plain[::-1]
    assert repr(sealed()) == repr(plain)
    assert [copy_of(sealed()) for copy_of in (copied, deepcopy)] == [plain, plain]
    for place in {0, 1, length // 2, length - 1, length, -1, -length, -length - 1}:
        for both in (plain, sealed()):
            if -length <= place < length:
                assert both[place] == plain[place]
            else:
                with pytest.raises(IndexError):
                    both[place]
        assert sealed()[place:] == plain[place:]
        assert sealed()[:place] == plain[:place]
    grown = sealed()
    grown.append(-1)
    grown.extend([-2, -3])
    assert (len(grown), grown[-3:], bool(sealed())) == (length + 3, [-1, -2, -3], bool(plain))
    assert grown == [*plain, -1, -2, -3]
    for origin in (sealed(), SealedList[int](decode, [], [*plain])):
        for count in {0, length // 2, max(length - 1, 0), length}:
            begun = origin.beginning(count)
            again = begun.beginning(count // 2)
            origin.append(-1)
            begun.extend([-2, -3])
            assert [*begun] == [*plain[:count], -2, -3]
            assert [*again] == plain[: count // 2]
            assert b"".join(begun.pieces()) == lines([*plain[:count], -2, -3])
    with pytest.raises(TypeError, match="grows at its end"):
        grown.insert(0, 1)
    with pytest.raises(TypeError, match="never changed"):
        grown[0] = 1
    with pytest.raises(TypeError, match="never changed"):
        del grown[0]


def test_the_beginning_of_a_history_copies_less_than_a_piece_of_it() -> None:
    class Watched(list[int]):
        taken = 0

        def __getitem__(self, place: Any) -> Any:
            self.taken += 1
            return super().__getitem__(place)

    items = Watched(range(40_000))
    begun = SealedList[int](msgspec.json.Decoder(int).decode_lines, [], items).beginning(39_999)
    assert (len(begun), items.taken < SEALED_ITEMS) == (39_999, True)
    assert (begun[-1], begun[20_000]) == (39_998, 20_000)


def test_messages_of_a_new_session_are_a_list() -> None:
    assert type(SessionState().messages) is list
