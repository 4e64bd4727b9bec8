"""The one place that writes a log: an append, a snapshot, a deletion, each as one function in the writing thread.

Read `schema.sql` first. The rules it protects: an append is in the log as a whole or not at all; a stale owner
writes nothing; and after an error the log itself is asked whether the append is in before the caller is told.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from refold.events.core.errors import LogFormatError, LogInUse, PersistenceError, StreamDeleted, WrongExpectedVersion
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch, Snapshot, StreamHead, first_chain, next_chain
from refold.stores.append_rules import POSITION_MAX, FaultPoint
from refold.stores.forked import begins_behind, forks_at
from refold.stores.guarding.log_place import Acknowledged, LogPlace
from refold.stores.sqlite.connection import persistence_error, primary_code

HEADS_CACHED_MAX: Final = 20_000
"""Ends of streams that a writer remembers; about 250 bytes each."""

WAL_BYTES_EXPECTED_MAX: Final = 64 * 1024 * 1024
"""Size of a WAL that is checked in as it should be; beyond it the log warns."""

APPENDS_PER_LOOK_AT_WAL: Final = 1000

EMPTYING_TRIES: Final = 20
"""How often it is waited for that another process empties the WAL."""

_logger = logging.getLogger("refold.stores")

_OWN_LOG: Final = """
    SELECT incarnation, max(removed_position, coalesce((SELECT max(position) FROM events), 0)) FROM log
"""
FIND_HEAD: Final = "SELECT id, version, chain, pending FROM streams WHERE name = ?"
ADD_STREAM: Final = "INSERT INTO streams (name, version, chain, pending) VALUES (?, 0, ?, '')"
MOVE_HEAD: Final = "UPDATE streams SET version = ?, chain = ?, pending = ? WHERE id = ?"
ADD_EVENT: Final = """
    INSERT INTO events (position, stream, version, batch, at, data, correlation, causation, chain, pending)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
ADD_PAYLOAD: Final = "INSERT INTO payloads (hash, data) VALUES (?, ?) ON CONFLICT DO NOTHING"
_MEND_PAYLOAD: Final = "UPDATE payloads SET data = ? WHERE hash = ? AND data IS NOT ?"
SNAPSHOT_ROW_BYTES: Final = 256 * 1024
"""A longer snapshot lies in several rows, each written by itself, so that an append waits for none of them long."""

# The first part lies under the stream's id, the others under the negative numbers -(id * 1024 + part).
_KEEP_SNAPSHOT: Final = """
    INSERT OR REPLACE INTO snapshots (stream, version, chain, fold_version, state)
    SELECT CASE WHEN ? THEN -(id * 1024 + ?) ELSE id END, ?, ?, ?, ? FROM streams WHERE name = ?
"""
_DROP_SNAPSHOT_PARTS: Final = """
    DELETE FROM snapshots WHERE stream >= (SELECT -(id * 1024 + 1023) FROM streams WHERE name = ?)
    AND stream <= (SELECT -(id * 1024 + ?) FROM streams WHERE name = ?)
"""

# Made with the first tombstone. It is no part of the schema, so that every Refold reads the file.
INDEX_TOMBSTONES: Final = "CREATE INDEX IF NOT EXISTS tombstones_by_name ON tombstones (name)"
ADD_TOMBSTONE: Final = "INSERT INTO tombstones (position, name, version, chain, at) VALUES (?, ?, ?, ?, ?)"
_IS_DELETED: Final = "SELECT 1 FROM tombstones WHERE name = ?"
_LAST_OF_STREAM: Final = "SELECT max(position) FROM events WHERE stream = ?"
_DELETE_STREAM: Final = (
    "DELETE FROM snapshots WHERE stream = ? OR stream BETWEEN -(? * 1024 + 1023) AND -(? * 1024 + 1)",
    "DELETE FROM events WHERE stream = ?",
    "DELETE FROM streams WHERE id = ?",
)
_NAMES_PAYLOAD: Final = "SELECT 1 FROM events WHERE position > ? AND instr(data, ?) LIMIT 1"
_FORKS: Final = """
    SELECT CAST(causation AS BLOB), version FROM events
    WHERE position > ? AND causation = correlation AND causation NOT LIKE '@%'
"""
_DELETE_PAYLOAD: Final = "DELETE FROM payloads WHERE hash = ?"
_NOTE_REMOVED: Final = "UPDATE log SET removed_position = max(removed_position, ?)"

EventRow = tuple[int, int, int, int, int, str, str | None, str | None, bytes | None, str | None]
_Head = tuple[int, int, bytes, str]
"""The end of a stream: its id, version, chain and pending keys."""

_Outcome = Literal["in", "out", "unknown"]


class LogWriter:
    """Writes one log through one connection; all methods run in that connection's thread."""

    def __init__(
        self, connection: sqlite3.Connection, log: Path, place: LogPlace, incarnation: int, fault: FaultPoint
    ) -> None:
        self._connection = connection
        self._log = log
        self._place = place
        self._incarnation = incarnation
        self._fault = fault
        # Right as long as our incarnation is the log's, since then nobody else writes; emptied after any error.
        self._heads: dict[str, _Head] = {}
        self._wal = log.with_name(log.name + "-wal")
        self._appends = 0

    def append(self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes]) -> list[Appended]:
        """Write everything in one transaction and return where each batch is."""
        connection = self._connection
        appended: list[Appended] = []
        committing = False
        try:
            self._begin()
            self._fault("append.begun")
            heads = self._insert(batches, payloads, appended)
            self._fault("append.inserted")
            committing = True
            connection.execute("COMMIT")
            self._fault("append.committed")
            self._place.require_both(self._log_bytes)
        except sqlite3.Error as error:
            self._raise_unless_in(error, batches, appended if committing else None)
        except BaseException:
            self._forget_and_roll_back()
            raise
        else:
            if len(self._heads) > HEADS_CACHED_MAX:
                self._heads.clear()
            self._heads.update(heads)
            if appended:
                last, batch = appended[-1], batches[-1]
                self._place.acknowledge(Acknowledged(last.position, last.position + len(batch.events) - 1, last.chain))
            self._watch_wal()
        return appended

    def _begin(self) -> None:
        try:
            self._place.require_wal(self._wal_frames)
        except PersistenceError:
            with suppress(sqlite3.Error, LogFormatError):
                self._last_position()  # Raises LogInUse where another process has the log, and has emptied the WAL.
            raise
        self._connection.execute("BEGIN IMMEDIATE")

    def _wal_frames(self) -> int:
        for _ in range(EMPTYING_TRIES):
            try:
                _, frames, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except sqlite3.OperationalError:  # It cannot read what it has written there.
                return 1
            if frames >= 0:
                return int(frames)
            # Another process, which had the log before, is just emptying it, and lets no other write until it has.
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("ROLLBACK")
        raise PersistenceError(f"another process keeps the WAL of {self._log} locked; try again")

    def _log_bytes(self) -> int:
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        (size,) = self._connection.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    def _insert(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes], appended: list[Appended]
    ) -> dict[str, _Head]:
        position = self._last_position() + 1
        heads: dict[str, _Head] = {}
        rows: list[EventRow] = []
        for batch in batches:
            stream = batch.stream
            stream_id, version, chain, _ = heads.get(stream) or self._heads.get(stream) or self._find_or_add(stream)
            if batch.begins_fork and not version:
                version = begins_behind(forks_at(batch), self._version_of)
            elif batch.begins_fork:
                raise WrongExpectedVersion(stream, 0, version)
            if version != batch.expected_version:
                raise WrongExpectedVersion(stream, batch.expected_version, version)
            chain = next_chain(chain, batch)
            pending = " ".join(batch.pending)
            add_rows(rows, batch, stream_id, position, chain, pending)
            version += len(batch.events)
            heads[stream] = (stream_id, version, chain, pending)
            appended.append(Appended(stream=stream, position=position, version=version, chain=chain))
            position += len(batch.events)
        self._execute_for_each(ADD_EVENT, rows)
        self._execute_for_each(MOVE_HEAD, [(*place, stream_id) for stream_id, *place in heads.values()])
        if payloads:
            self._add_payloads(payloads)
        return heads

    def _add_payloads(self, payloads: Mapping[PayloadHash, bytes]) -> None:
        """Add those that are not there, and write anew those whose bytes are others there: these hash to the names."""
        added = self._connection.executemany(ADD_PAYLOAD, payloads.items()).rowcount
        if added == len(payloads):
            return
        rows = [(data, name, data) for name, data in payloads.items()]
        mended = self._connection.executemany(_MEND_PAYLOAD, rows).rowcount
        if mended:
            _logger.warning("%s: %d damaged payloads were given again and are written anew", self._log, mended)

    def _last_position(self) -> int:
        row = self._connection.execute(_OWN_LOG).fetchone()
        if row is None:
            raise LogFormatError(f"the log {self._log} is damaged: its table `log` is empty; restore it from a backup")
        incarnation, position = row
        # The lock file can be removed. Then another process locks a new one and opens the log, which counts the
        # incarnation up. An append compares it inside its write transaction: were it compared before, the other process
        # could open the log between the look and the commit, and both would write on from the same position.
        if incarnation != self._incarnation:
            raise LogInUse(str(self._log), pid=None, host=None)
        if type(position) is not int or not 0 <= position <= POSITION_MAX:
            raise LogFormatError(
                f"the log {self._log} is damaged: its last position is {position!r}; restore it from a backup"
            )
        return position

    def _find_or_add(self, stream: str) -> _Head:
        row: _Head | None = self._connection.execute(FIND_HEAD, (stream,)).fetchone()
        if row is not None:
            if list(map(type, row)) != [int, int, bytes, str]:
                raise LogFormatError(
                    f"the log {self._log} is damaged: the end of stream {stream!r} has a value of another type; "
                    "restore it from a backup"
                )
            return row
        if self._connection.execute(_IS_DELETED, (stream,)).fetchone() is not None:
            raise StreamDeleted(stream)
        chain = first_chain(stream)
        stream_id = self._connection.execute(ADD_STREAM, (stream, chain)).lastrowid
        assert stream_id is not None
        return stream_id, 0, chain, ""

    def _version_of(self, stream: str) -> int:
        return self._stored_end(stream)[0]

    def _watch_wal(self) -> None:
        """Say so, now and then, if the WAL grows without end, which costs disk and makes every read slower."""
        self._appends += 1
        if self._appends % APPENDS_PER_LOOK_AT_WAL:
            return
        size = self._wal.stat().st_size
        if size > WAL_BYTES_EXPECTED_MAX:
            _logger.warning(
                "the WAL of %s has grown to %d bytes: some reader stays open and keeps it from being cut back",
                self._log,
                size,
            )

    def _execute_for_each(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        changed = self._connection.executemany(statement, rows).rowcount if rows else 0
        if changed != len(rows):
            raise sqlite3.IntegrityError(f"{changed} rows changed where {len(rows)} were to change")

    def save_snapshot(self, snapshot: Snapshot, part: int = 0, parts: int = 1) -> None:
        """Keep a part of a snapshot in place of an earlier one's, without a wait for the disk; the first comes last."""
        connection = self._connection
        state = snapshot.state[part * SNAPSHOT_ROW_BYTES : (part + 1) * SNAPSHOT_ROW_BYTES]
        row = (part, part, snapshot.version, snapshot.chain, snapshot.fold_version, state, snapshot.stream)
        try:
            # Losing a cache with the power is no loss, so this commit alone is not synchronised.
            (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
            connection.execute("PRAGMA synchronous = NORMAL")
            try:
                self._begin()
                self._last_position()
                connection.execute(_KEEP_SNAPSHOT, row)
                if part == 0:
                    connection.execute(_DROP_SNAPSHOT_PARTS, (snapshot.stream, parts, snapshot.stream))
                connection.execute("COMMIT")
                self._place.require_both(self._log_bytes)  # Or the next look would take these frames for others'.
            except BaseException:
                self._forget_and_roll_back()
                raise
            finally:
                connection.execute(f"PRAGMA synchronous = {synchronous}")
        except sqlite3.Error as error:
            failed = f"the snapshot of stream {snapshot.stream!r} could not be kept in {self._log}"
            raise persistence_error(error, failed, outcome_unknown=True) from error

    def change_beside(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Change tables beside appends, in one transaction of their own."""
        committing = False
        try:
            self._begin()
            self._last_position()
            work(self._connection)
            committing = True
            self._connection.execute("COMMIT")
            self._place.require_both(self._log_bytes)
        except BaseException as error:
            self._forget_and_roll_back()
            if isinstance(error, sqlite3.Error):
                unknown = committing or primary_code(error) == sqlite3.SQLITE_IOERR
                raise persistence_error(error, f"the change of {self._log} failed", outcome_unknown=unknown) from error
            raise

    def delete_streams(
        self, streams: Sequence[StreamHead], payloads: Iterable[PayloadHash], after_position: int, at: int
    ) -> int:
        """Delete streams and payloads in one transaction, and return how many payloads went; see `ErasableLog`."""
        gone = 0

        def delete(connection: sqlite3.Connection) -> None:
            nonlocal gone
            connection.execute(INDEX_TOMBSTONES)
            for head in streams:
                row = connection.execute(FIND_HEAD, (head.stream,)).fetchone()
                if row is None or (row[1], row[2]) != (head.version, head.chain):
                    raise WrongExpectedVersion(head.stream, head.version, row[1] if row is not None else 0)
                (position,) = connection.execute(_LAST_OF_STREAM, (row[0],)).fetchone()
                for statement in _DELETE_STREAM:
                    connection.execute(statement, (row[0],) * statement.count("?"))
                connection.execute(ADD_TOMBSTONE, (position, head.stream, head.version, head.chain, at))
                connection.execute(_NOTE_REMOVED, (position,))
            # One pass, however many streams: much may have been appended. Forks that are deleted too are gone by now.
            ends = {head.stream.encode(): head for head in streams}
            for causation, version in connection.execute(_FORKS, (after_position,)):
                origin, _, at_version = causation.rpartition(b"@")
                if origin in ends and at_version == b"%d" % (version - 1):
                    head = ends[origin]
                    raise WrongExpectedVersion(head.stream, head.version, head.version)
            for payload in payloads:
                if connection.execute(_NAMES_PAYLOAD, (after_position, payload)).fetchone() is None:
                    gone += connection.execute(_DELETE_PAYLOAD, (payload,)).rowcount

        try:
            self.change_beside(delete)
        finally:
            self._heads.clear()
        return gone

    def empty_wal(self) -> bool:
        """Copy the WAL into the log and empty it, as far as readers let us, without waiting; return whether it is."""
        (busy_timeout,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {busy_timeout}")
        return not busy

    def vacuum(self) -> None:
        # SQLite attaches a copy; in a file, since a log may be larger than memory, which is unlinked once it is open.
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)
        self._connection.execute("PRAGMA temp_store = FILE")
        try:
            self._last_position()
            self._connection.execute("VACUUM")
        finally:
            self._heads.clear()
            self._connection.execute("PRAGMA temp_store = MEMORY")
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)

    def rescue(self) -> bool:
        """Copy the WAL, which has lost its name, into the log; return whether all of it is there now."""
        busy, pages, copied = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return not busy and pages == copied

    def _raise_unless_in(
        self, error: sqlite3.Error, batches: Sequence[EncodedBatch], appended: Sequence[Appended] | None
    ) -> None:
        """Return if the append is in the log in spite of the error, else raise what is known about it."""
        outcome: _Outcome
        try:
            self._forget_and_roll_back()
            outcome = "out" if appended is None else self._outcome(batches, appended)
        except sqlite3.Error:
            outcome = "unknown"
        if primary_code(error) == sqlite3.SQLITE_IOERR:
            # After a failed write or sync the operating system may have dropped pages that it said were written, so
            # what this connection reads proves nothing; only the reopened file does.
            outcome = "unknown"
        if outcome == "in":
            return
        streams = ", ".join(sorted({str(batch.stream) for batch in batches})[:5]) or "payloads only"
        raise persistence_error(
            error, f"the append to {self._log} ({streams}) failed", outcome_unknown=outcome == "unknown"
        ) from error

    def _outcome(self, batches: Sequence[EncodedBatch], appended: Sequence[Appended]) -> _Outcome:
        """Read the ends of the streams again to tell what became of a COMMIT that failed."""
        before: dict[str, int] = {}
        for batch in batches:
            before.setdefault(batch.stream, 0 if batch.begins_fork else batch.expected_version)
        after = {place.stream: (place.version, place.chain) for place in appended}
        found = {stream: self._stored_end(stream) for stream in before}
        if not batches:
            return "unknown"
        if found == after:
            return "in"
        return "out" if all(found[stream][0] == version for stream, version in before.items()) else "unknown"

    def _stored_end(self, stream: str) -> tuple[int, bytes]:
        row = self._connection.execute(FIND_HEAD, (stream,)).fetchone()
        return (row[1], row[2]) if row is not None else (0, first_chain(stream))

    def _forget_and_roll_back(self) -> None:
        self._heads.clear()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def add_rows(
    rows: list[EventRow], batch: EncodedBatch, stream_id: int, position: int, chain: bytes, pending: str
) -> None:
    own = batch.stream + "@"
    correlation, causation = _shortened(batch.correlation, own), _shortened(batch.causation, own)
    first, at, events = batch.expected_version + 1, batch.at, batch.events
    rows.append((position, stream_id, first, first, at, events[0].decode(), correlation, causation, chain, pending))
    for index in range(1, len(events)):
        data = events[index].decode()
        rows.append((position + index, stream_id, first + index, first, at, data, None, None, None, None))


def _shortened(reference: str | None, own: str) -> str | None:
    """Return a reference as the log keeps it: from the `@` on where it is to the stream whose references begin so."""
    return reference[len(own) - 1 :] if reference is not None and reference.startswith(own) else reference
