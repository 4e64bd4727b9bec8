"""What is whole in a damaged log becomes a new log; the damaged one is only read.

Of each stream the batches are taken from its first on, as long as each of them hashes to its digest, is at a position
of its own behind those before it, and refers to no payload that is lost: up to the first damage. Rows are looked for in
all pages (`pages`), so that damaged trees, indexes and lists of streams lose nothing by themselves. What is found goes
through the form of exports and `refold.stores.jsonl.importing`, which checks all of it once more and makes the log.
Tombstones and values of `SQLiteBackend` have no digests: they are taken as they are found. A stream that was deleted
stays deleted.
"""

import asyncio
import hashlib
import itertools
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from refold.events.core.errors import LogInUse, PersistenceError
from refold.events.core.ids import EventRef, PayloadHash, StreamName
from refold.events.core.records import EncodedBatch, first_chain, next_chain
from refold.stores.append_rules import POSITION_MAX, check_append
from refold.stores.event_store import TellProgress, Tombstone, untold
from refold.stores.guarding.log_place import acknowledged
from refold.stores.guarding.trusted_files import require_log_trusted
from refold.stores.jsonl.format import FORMAT, EndLine, HeaderLine, batch_line, encoded, payload_line, tombstone_line
from refold.stores.jsonl.importing import import_log
from refold.stores.keeping.pages import LogPages, Row, RowPlace
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.inbox import InboxFile
from refold.stores.sqlite.new_log import new_log
from refold.stores.sqlite.ownership import log_owner
from refold.stores.sqlite.store import SQLiteStore
from refold.stores.values.sqlite import SQLiteBackend

NAMES_TRIED_MAX: Final = 16
"""Names, and contents of one event, that are tried where several are found."""

PayloadsOf = Callable[[StreamName, bytes], Iterable[PayloadHash]]
"""Returns the payloads that an event of a stream cannot be understood without."""

_SCRATCH: Final = """
    CREATE TABLE events (stream, version, position, batch, image, page, cell);
    CREATE TABLE names (id, name, UNIQUE (id, name));
    CREATE TABLE ends (name PRIMARY KEY, version);
    CREATE TABLE payloads (hash PRIMARY KEY, image, page, cell);
    CREATE TABLE tombstones (position PRIMARY KEY, name, version, chain, at);
    CREATE TABLE kept (key PRIMARY KEY, value);
    CREATE TABLE batches (position PRIMARY KEY, last, stream, name, size, offset, length);
"""


class CutStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of which not all could be saved."""

    stream: str
    """Its name; where that is lost, `"?/"` and its number in the file."""
    kept: int
    """Its last version in the new log; 0 = nothing of it is there."""
    lost_to: int
    """The last version that it is known to have had."""
    reason: str


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was saved of a log, and what is lost."""

    log: str
    new: str
    streams: int
    """In the new log."""
    batches: int
    events: int
    payloads: int
    tombstones: int
    values: int
    """Of `SQLiteBackend`."""
    cut: tuple[CutStream, ...] = ()
    """Streams that lost events, in order of their names."""
    lost_payloads: tuple[str, ...] = ()
    """Hashes of payloads that kept or lost events refer to."""
    lost_to: int = 0
    """Up to this position had been acknowledged, and nothing is there behind an earlier one; 0 = the end is there."""
    lost_pages: int = 0
    """Pages that are missing at the end of the file."""
    inbox_waiting: int | None = 0
    """Commands that wait in the inbox beside the damaged log, where they stay; None = it cannot be read."""

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be lost."""
        return not (self.cut or self.lost_payloads or self.lost_to or self.lost_pages or self.inbox_waiting is None)


async def repair_log(
    log: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    payloads_of: PayloadsOf,
    progress: TellProgress = untold,
) -> RepairReport:
    """Save what is whole of a log in a new log, and say what is lost; nothing of the log is changed.

    Args:
        log: the damaged log, which no runtime has open.
        new: path of the new log. Nothing may be there, or an empty file.
        payloads_of: which payloads an event needs; one that cannot be decoded needs none.
        progress: called from time to time, in another thread, with what is counted, how many are done, and of how many.

    Raises:
        ConfigError: a path names no file, or something is at that of the new log.
        LogInUse: a runtime owns the log.
        PersistenceError: the log cannot be read, or the new one cannot be made.
    """
    sqlite_file.require_path(log)
    sqlite_file.require_no_text_log(log)
    path = sqlite_file.resolved(log)
    sqlite_file.require_readable(path)
    require_log_trusted(path, writing=False)
    owner = log_owner(path)
    if owner is not None:
        raise LogInUse(str(path), pid=owner.pid, host=owner.host)
    async with new_log(new) as unfinished:
        with (
            tempfile.TemporaryDirectory(prefix="refold-repair-", dir=unfinished.parent) as folder,
            tempfile.TemporaryFile(dir=folder) as lines,
        ):
            try:
                salvage = await asyncio.to_thread(_salvaged, path, lines, folder, payloads_of, progress)
            except OSError as error:
                raise PersistenceError(f"the log {path} cannot be repaired: {error.strerror}") from error
            made = Path(folder, "events.db")
            report = await import_log(lines, f"what is whole of {path}", made, progress=progress)
            await _keep_values(made, salvage.values)
            os.replace(made, unfinished)
    return msgspec.structs.replace(
        salvage.report,
        new=os.fspath(sqlite_file.absolute(new)),
        streams=report.streams,
        batches=report.batches,
        events=report.events,
        payloads=report.payloads,
        inbox_waiting=await asyncio.to_thread(_waiting, path),
    )


class _Salvaged(msgspec.Struct, frozen=True):
    report: RepairReport
    values: list[tuple[bytes, bytes]]


async def _keep_values(log: Path, values: list[tuple[bytes, bytes]]) -> None:
    if not values:
        return
    async with await SQLiteStore.open(log, durability="normal") as store:
        backend = SQLiteBackend(store)
        for key, value in values:
            await backend.save(key.decode(), value)


def _waiting(log: Path) -> int | None:
    """Return how many commands wait in a log's inbox, as a copy of it says; None where it cannot be read."""
    inbox = InboxFile(log).path
    if not inbox.exists():
        return 0
    with tempfile.TemporaryDirectory(prefix="refold-") as folder:
        copy = Path(folder, "inbox")
        try:
            for suffix in ("-journal", ""):
                source = inbox.with_name(inbox.name + suffix)
                if source.exists():
                    copy.with_name(copy.name + suffix).write_bytes(source.read_bytes())
            with closing(sqlite3.connect(copy)) as connection:
                lines = connection.execute("PRAGMA integrity_check(1)").fetchall()
                (waiting,) = connection.execute("SELECT count(*) FROM commands WHERE outcome IS NULL").fetchone()
        except (OSError, sqlite3.Error):
            return None if inbox.stat().st_size else 0
    return int(waiting) if lines == [("ok",)] else None


def _salvaged(log: Path, lines: BinaryIO, folder: str, payloads_of: PayloadsOf, progress: TellProgress) -> _Salvaged:
    with (
        closing(LogPages(log)) as pages,
        closing(sqlite3.connect(Path(folder, "scratch"), isolation_level=None)) as scratch,
        tempfile.TemporaryFile(dir=folder) as spool,
    ):
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY"):
            scratch.execute(f"PRAGMA {pragma}")
        scratch.executescript(_SCRATCH)
        return _Salvage(log, pages, scratch, spool, payloads_of).run(lines, progress)


class _Salvage:
    """One reading of a damaged log, in a thread; what was found is noted in a temporary database."""

    def __init__(
        self, log: Path, pages: LogPages, scratch: sqlite3.Connection, spool: BinaryIO, payloads_of: PayloadsOf
    ) -> None:
        self._log = log
        self._spool = spool
        self._pages = pages
        self._scratch = scratch
        self._payloads_of = payloads_of
        self._removed_position = 0
        self._cut: list[CutStream] = []
        self._kept: dict[str, int] = {}
        """The last version of each stream that is kept."""
        self._origins: dict[int, tuple[str, int]] = {}
        """Of the forks among the streams: what each goes on from."""
        self._lost_payloads: set[str] = set()

    def run(self, lines: BinaryIO, progress: TellProgress) -> _Salvaged:
        self._scratch.execute("BEGIN")
        for row in self._pages.rows(progress):
            self._note(row)
        self._scratch.execute("CREATE INDEX by_stream ON events (stream, version)")
        end = self._last_position()
        self._drop_deleted()
        streams = self._scratch.execute("SELECT DISTINCT stream FROM events ORDER BY stream").fetchall()
        for done, (stream,) in enumerate(streams):
            progress("streams", done, len(streams))
            self._take_stream(stream)
        self._drop_forks()
        self._note_missing_streams()
        self._note_missing_payloads()
        said = acknowledged(self._log)
        lost_to = said.last if said is not None and said.last > end else 0
        # Positions of what is lost are not used again.
        tombstones = self._write(lines, max(self._removed(), lost_to, end if self._cut else 0))
        values: list[tuple[bytes, bytes]] = self._scratch.execute("SELECT key, value FROM kept").fetchall()
        report = RepairReport(
            log=str(self._log),
            new="",
            streams=0,
            batches=0,
            events=0,
            payloads=0,
            tombstones=tombstones,
            values=len(values),
            cut=tuple(sorted(self._cut, key=lambda cut: cut.stream)),
            lost_payloads=tuple(sorted(self._lost_payloads)),
            lost_to=lost_to,
            lost_pages=self._pages.lost_pages,
        )
        return _Salvaged(report, values)

    # What is in the pages

    def _note(self, row: Row) -> None:
        """Note what a row is, going by its columns; it is believed later."""
        types, values, place = row.types, row.values, row.place
        note = self._scratch.execute
        if row.rowid is None:
            if types == "ti":
                note("INSERT OR IGNORE INTO names VALUES (?, ?)", (values[1], values[0]))
        elif len(types) == 10 and types.startswith("niiiit"):
            note("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", (*values[1:3], row.rowid, values[3], *place))
        elif types == "ntibt":
            note("INSERT OR IGNORE INTO names VALUES (?, ?)", (row.rowid, values[1]))
            note(
                "INSERT INTO ends VALUES (?, ?) ON CONFLICT DO UPDATE SET version = max(version, excluded.version)",
                (values[1], values[2]),
            )
        elif types == "ntibi":
            if self._is_name(values[1]) and isinstance(values[3], bytes) and len(values[3]) == 32:
                note("INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?, ?)", (row.rowid, *values[1:]))
        elif types == "tb":
            if isinstance(values[1], bytes) and hashlib.sha256(values[1]).hexdigest().encode() == values[0]:
                note("INSERT OR IGNORE INTO payloads VALUES (?, ?, ?, ?)", (values[0], *place))
        elif types == "bb":
            if self._is_name(values[0]):
                note("INSERT OR REPLACE INTO kept VALUES (?, ?)", values)
        elif types == "nii" and isinstance(values[2], int) and 0 <= values[2] <= POSITION_MAX:
            self._removed_position = max(self._removed_position, values[2])

    @staticmethod
    def _is_name(value: object) -> bool:
        if not isinstance(value, bytes) or not value or b"\0" in value:
            return False
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
        return True

    def _last_position(self) -> int:
        (last,) = self._scratch.execute(
            "SELECT max(position) FROM events WHERE position BETWEEN 1 AND ?", (POSITION_MAX,)
        ).fetchone()
        return max(last or 0, self._removed_position)

    def _removed(self) -> int:
        """Return the highest position that is known to have been removed."""
        (last,) = self._scratch.execute("SELECT max(position) FROM tombstones").fetchone()
        return max(self._removed_position, last or 0)

    def _drop_deleted(self) -> None:
        """Forget the streams that a tombstone names: what is left of them in old pages was deleted."""
        deleted = "SELECT id FROM names WHERE name IN (SELECT name FROM tombstones)"
        self._scratch.execute(f"DELETE FROM events WHERE stream IN ({deleted})")  # noqa: S608 - written here
        self._scratch.execute("DELETE FROM ends WHERE name IN (SELECT name FROM tombstones)")

    # Streams

    def _take_stream(self, stream: int) -> None:
        """Note the batches of a stream, up to the first damage."""
        names = [
            name.decode()
            for (name,) in self._scratch.execute(
                "SELECT name FROM names WHERE id = ? LIMIT ?", (stream, NAMES_TRIED_MAX)
            )
            if self._is_name(name)
        ]
        (last,) = self._scratch.execute("SELECT max(version) FROM events WHERE stream = ?", (stream,)).fetchone()
        name, reason, kept = "", "its name is lost", self._begins_behind(stream)
        chain, last_position = b"", 0
        while True:
            for tried in [name] if name else names:
                batch, why = self._batch(tried, stream, kept, chain or first_chain(tried), last_position)
                if batch is not None:
                    name = tried
                    break
                reason = why
            else:
                break
            position, taken, chain = batch
            line, size = batch_line(taken, position, chain), len(taken.events)
            self._scratch.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)",
                (position, position + size - 1, stream, name, size, self._spool.tell(), len(line)),
            )
            self._spool.write(line)
            kept, last_position = kept + size, position + size - 1
        said = name or (names[0] if len(names) == 1 else f"?/{stream}")
        (end,) = self._scratch.execute("SELECT max(version) FROM ends WHERE name = ?", (said.encode(),)).fetchone()
        self._scratch.execute("DELETE FROM ends WHERE name = ?", (said.encode(),))
        if name:
            self._kept[name] = kept
        if kept < max(end or 0, last):
            kept = kept if name else 0
            self._cut.append(CutStream(stream=said, kept=kept, lost_to=max(end or 0, last), reason=reason))

    def _begins_behind(self, stream: int) -> int:
        """Return the version behind which the first batch of a stream stands, if it is that of a fork; else 0."""
        (first,) = self._scratch.execute(
            "SELECT min(version) FROM events WHERE stream = ? AND version > 0", (stream,)
        ).fetchone()
        for _, row in self._events(stream, first, first) if first else ():
            correlation, causation = row.values[6], row.values[7]
            if first > 1 and isinstance(causation, bytes) and causation == correlation:
                origin, _, version = causation.rpartition(b"@")
                if origin and version == b"%d" % (first - 1):
                    self._origins[stream] = origin.decode(errors="replace"), first - 1
                    return int(first) - 1
        return 0

    def _drop_forks(self) -> None:
        """Leave out the forks of which the beginning is lost, and those that go on from these."""
        while lost := {
            stream: origin for stream, (origin, version) in self._origins.items() if self._kept.get(origin, 0) < version
        }:
            for stream, origin in lost.items():
                del self._origins[stream]
                rows = self._scratch.execute("SELECT DISTINCT name FROM batches WHERE stream = ?", (stream,)).fetchall()
                for (name,) in rows:
                    reason = f"what it goes on from, in {origin}, is lost"
                    self._cut.append(CutStream(stream=name, kept=0, lost_to=self._kept.pop(name), reason=reason))
                self._scratch.execute("DELETE FROM batches WHERE stream = ?", (stream,))

    def _batch(
        self, name: str, stream: int, version: int, chain: bytes, after_position: int
    ) -> tuple[tuple[int, EncodedBatch, bytes] | None, str]:
        """Return the position of the batch behind a version, the batch and its digest; else None, and why not."""
        first = version + 1
        candidates = self._events(stream, first, first)
        if not candidates:
            return None, f"version {first} is lost"
        reason = f"the batch of version {first} is not what was appended"
        for position, row in candidates:
            size = 1
            following: list[list[tuple[int, Row]]] = []
            while found := self._events(stream, first + size, first):
                following.append(found)
                size += 1
            for rest in itertools.islice(itertools.product(*following), NAMES_TRIED_MAX):
                batch, after = self._as_batch(name, first, row, [event for _, event in rest]), b""
                if batch is not None:
                    after = next_chain(chain, batch)
                if batch is None or after != row.values[8]:
                    continue
                if [place for place, _ in rest] != list(range(position + 1, position + size)):
                    reason = f"the batch of version {first} is not at its place"
                    continue
                lacking = self._lacking(batch)
                if lacking:
                    self._lost_payloads.update(lacking)
                    return None, f"the payload {min(lacking)} of version {first} is lost"
                if after_position < position and self._is_free(position, position + size - 1):
                    return (position, batch, after), ""
                reason = f"the batch of version {first} is not at its place"
        return None, reason

    def _events(self, stream: int, version: int, batch: int) -> list[tuple[int, Row]]:
        """Return the different rows that are found of an event."""
        found: dict[tuple[object, ...], tuple[int, Row]] = {}
        for position, *place in self._scratch.execute(
            "SELECT position, image, page, cell FROM events WHERE stream = ? AND version = ? AND batch = ?",
            (stream, version, batch),
        ).fetchall():
            row = self._pages.row(RowPlace(*place))
            if row is not None:
                found.setdefault((position, row.types, *row.values), (position, row))
        return list(found.values())[:NAMES_TRIED_MAX]

    def _as_batch(self, name: str, first: int, head: Row, rest: list[Row]) -> EncodedBatch | None:
        """Return rows as what was appended; None where it cannot have been."""
        if head.types[6] not in "tn" or head.types[7] not in "tn" or head.types[8:] != "bt":
            return None
        _, _, _, _, at, data, correlation, causation, _, pending = head.values
        try:
            batch = EncodedBatch(
                stream=StreamName(name),
                expected_version=first - 1,
                at=_integer(at),
                events=(_bytes(data), *(_bytes(row.values[5]) for row in rest)),
                pending=tuple(_bytes(pending).decode().split(" ")) if pending else (),
                correlation=_reference(correlation, name),
                causation=_reference(causation, name),
            )
            check_append((batch,), {})
        except (TypeError, ValueError, IndexError):
            return None
        return batch if all(row.values[4] == at for row in rest) else None

    def _lacking(self, batch: EncodedBatch) -> set[PayloadHash]:
        return {
            payload
            for data in batch.events
            for payload in self._payloads_of(batch.stream, data)
            if not self._scratch.execute("SELECT 1 FROM payloads WHERE hash = ?", (payload.encode(),)).fetchone()
        }

    def _is_free(self, first: int, last: int) -> bool:
        if not 0 < first <= last <= POSITION_MAX:
            return False
        before = self._scratch.execute(
            "SELECT last FROM batches WHERE position <= ? ORDER BY position DESC LIMIT 1", (last,)
        ).fetchone()
        return before is None or before[0] < first

    def _note_missing_streams(self) -> None:
        """Note the streams of which only the end is known."""
        for name, version in self._scratch.execute("SELECT name, version FROM ends").fetchall():
            shown = name.decode(errors="replace")
            kept = self._scratch.execute("SELECT 1 FROM batches WHERE name = ?", (shown,)).fetchone()
            if not kept and isinstance(version, int) and version > 0:
                self._cut.append(CutStream(stream=shown, kept=0, lost_to=version, reason="its events are lost"))

    def _note_missing_payloads(self) -> None:
        """Note payloads of which only the entry in an index is there."""
        entries = self._scratch.execute(
            "SELECT name FROM names WHERE length(name) = 64 AND name NOT IN (SELECT hash FROM payloads)"
        ).fetchall()
        self._lost_payloads.update(
            name.decode() for (name,) in entries if isinstance(name, bytes) and not name.strip(b"0123456789abcdef")
        )

    # The new log

    def _write(self, lines: BinaryIO, removed_position: int) -> int:
        digest = hashlib.sha256()

        def write(line: bytes) -> None:
            digest.update(line)
            lines.write(line)

        write(encoded(HeaderLine(format=FORMAT, export=True, removed_position=removed_position)))
        payloads = batches = events = tombstones = 0
        for name, *place in self._scratch.execute("SELECT hash, image, page, cell FROM payloads ORDER BY hash"):
            row = self._pages.row(RowPlace(*place))
            assert row is not None
            write(payload_line(PayloadHash(name.decode()), _bytes(row.values[1])))
            payloads += 1
        for position, name, version, chain, at in self._scratch.execute("SELECT * FROM tombstones ORDER BY position"):
            stream = StreamName(name.decode())
            write(tombstone_line(Tombstone(position=position, stream=stream, version=version, chain=chain, at=at)))
            tombstones += 1
        for offset, length, size in self._scratch.execute("SELECT offset, length, size FROM batches ORDER BY position"):
            self._spool.seek(offset)
            write(self._spool.read(length))
            batches += 1
            events += size
        write(encoded(EndLine(batches=batches, events=events, payloads=payloads, sha256=digest.hexdigest())))
        lines.seek(0)
        return tombstones


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("it is no text")
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("it is no integer")
    return value


def _reference(value: object, name: str) -> EventRef | None:
    if value is None:
        return None
    text = _bytes(value).decode()
    return EventRef(name + text if text[0] == "@" else text)
