"""What is read from a log: each function is one short read of whole, committed batches, in the reading thread.

Read `schema.sql` first. The connection gives texts as bytes, so that the JSON of an event is not decoded only to be
encoded again. A read ends before it returns: a cursor left open would keep the WAL from ever being cut back.
"""

import re
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from refold.events.core.codec import tag_of
from refold.events.core.ids import EventRef, PayloadHash, StreamName
from refold.events.core.records import Snapshot, StoredEvent, StreamHead
from refold.stores.append_rules import INTEGER_MAX, INTEGER_MIN
from refold.stores.event_store import ListedPayload, Tombstone
from refold.stores.forked import joined, origin_in
from refold.stores.guarding.log_place import Acknowledged
from refold.stores.sqlite.connection import primary_code

READ_STREAM: Final = """
    SELECT position, version, batch, at, data, correlation, causation, chain, pending FROM events
    WHERE stream = (SELECT id FROM streams WHERE name = CAST(? AS TEXT)) AND version > ? ORDER BY version LIMIT ?
"""
READ_ALL: Final = """
    SELECT position, events.version, batch, at, data, correlation, causation, events.chain, events.pending, name
    FROM events LEFT JOIN streams ON streams.id = events.stream WHERE position > ? ORDER BY position LIMIT ?
"""
READ_OUTLINE: Final = READ_STREAM.replace(
    "version > ? ORDER BY version LIMIT ?",
    """(
        version <= ? OR version = ? OR version = (
            SELECT version FROM events
            WHERE stream = (SELECT id FROM streams WHERE name = CAST(? AS TEXT)) AND version BETWEEN ? + 1 AND ? - 1
            AND substr(data, 1, length(?)) = CAST(? AS TEXT) ORDER BY version DESC LIMIT 1
        )
    ) ORDER BY version""",
)
# What is ASCII stands before the tilde.
STREAMS_WITH: Final = """
    SELECT DISTINCT name FROM events JOIN streams ON streams.id = events.stream
    WHERE position > ? AND position <= ? + ? AND data > CAST(? AS TEXT) AND data < CAST(? AS TEXT) || '~'
"""
_LAST_POSITION: Final = "SELECT max(position) FROM events"
_BEGINS_LATER: Final = """
    SELECT name FROM streams WHERE name = CAST(? AS TEXT)
    AND NOT EXISTS (SELECT 1 FROM events WHERE stream = streams.id AND version = 1)
"""
_FIRST_OF_STREAM: Final = """
    SELECT min(version) FROM events WHERE stream = (SELECT id FROM streams WHERE name = CAST(? AS TEXT))
"""
_HEAD: Final = "SELECT name, version, chain, pending FROM streams WHERE name = CAST(? AS TEXT)"

# No name holds the byte 0xFF, so the names that begin with a prefix are those from it up to it and that byte.
LIST_STREAMS: Final = """
    SELECT name, version, chain, pending FROM streams
    WHERE name > CAST(? AS TEXT) AND name >= CAST(? AS TEXT) AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?
"""
LIST_STREAMS_WITH_PENDING: Final = LIST_STREAMS.replace("WHERE", "WHERE pending <> '' AND")
_READ_PAYLOAD: Final = "SELECT data FROM payloads WHERE hash = CAST(? AS TEXT)"
_LIST_PAYLOADS: Final = "SELECT hash, length(data) FROM payloads WHERE hash > CAST(? AS TEXT) ORDER BY hash LIMIT ?"
_REMOVED_POSITION: Final = "SELECT removed_position FROM log"
_LOG_END: Final = "SELECT removed_position, (SELECT max(position) FROM events) FROM log"
_CHAIN_AT: Final = "SELECT chain FROM events WHERE position = ?"
_LIST_TOMBSTONES: Final = """
    SELECT position, name, version, chain, at FROM tombstones WHERE position > ? ORDER BY position LIMIT ?
"""
_FIND_TOMBSTONE: Final = "SELECT position, name, version, chain, at FROM tombstones WHERE name = CAST(? AS TEXT)"
_LOAD_SNAPSHOT: Final = """
    SELECT stream, snapshots.version, snapshots.chain, fold_version, state FROM snapshots
    WHERE stream = (SELECT id FROM streams WHERE name = CAST(? AS TEXT))
"""
_LOAD_SNAPSHOT_PARTS: Final = """
    SELECT state FROM snapshots WHERE stream BETWEEN -(? * 1024 + 1023) AND -(? * 1024 + 1) ORDER BY stream DESC
"""


class MalformedRow(ValueError):
    """A row holds what Refold never writes; the message begins with the row's place."""


_EventRow = tuple[int, int, int, int, bytes, bytes | None, bytes | None, bytes | None, bytes | None]


def read_stream(
    connection: sqlite3.Connection, stream: str, after_version: int, limit: int | None
) -> list[StoredEvent]:
    def read_own(name: StreamName, after: int, most: int | None) -> list[StoredEvent]:
        rows = connection.execute(READ_STREAM, (_text(name), _bounded(after), _limit(most))).fetchall()
        return _stored_events(name, rows)

    own = read_own(StreamName(stream), after_version, limit)
    if not own or own[0].version <= max(after_version, 0) + 1:
        return own
    return joined(own, read_own, stream, after_version, limit)


def names_of_forks(connection: sqlite3.Connection, streams: Sequence[str]) -> set[str]:
    found = (connection.execute(_BEGINS_LATER, (_text(stream),)).fetchone() for stream in streams)
    return {row[0].decode() for row in found if row is not None}


def read_outlines(
    connection: sqlite3.Connection, streams: Sequence[str], first: int, tag: str
) -> list[list[StoredEvent]]:
    beginning = f'{{"type":"{tag}"'.encode()  # The encoder writes the tag first.
    found: list[list[StoredEvent]] = []
    for stream in streams:
        end = head(connection, stream)
        last = end.version if end is not None else 0
        rows = _outline_rows(connection, stream, first, last, beginning)
        events = _stored_events(StreamName(stream), rows)
        found.append(events if not events or events[0].version == 1 else _outline(connection, events, first, tag))
    return found


def _outline_rows(
    connection: sqlite3.Connection, stream: str, first: int, last: int, beginning: bytes
) -> list[_EventRow]:
    name = _text(stream)
    return connection.execute(READ_OUTLINE, (name, first, last, name, first, last, beginning, beginning)).fetchall()


def streams_with(
    connection: sqlite3.Connection, beginning: bytes, after_position: int, positions: int
) -> tuple[list[StreamName], bool]:
    rows = connection.execute(
        STREAMS_WITH, (after_position, after_position, positions, beginning, beginning)
    ).fetchall()
    (last,) = connection.execute(_LAST_POSITION).fetchone()
    return [_stream_name(name) for (name,) in rows], last is not None and last > after_position + positions


def _outline(connection: sqlite3.Connection, found: list[StoredEvent], first: int, tag: str) -> list[StoredEvent]:
    """Return the outline of a fork, given what was found as that of another stream.

    Its first events are its own, and the last one of the type may be of its prefix.
    """
    stream = found[-1].stream
    [begin] = connection.execute(_FIRST_OF_STREAM, (_text(stream),)).fetchone()
    own = read_stream(connection, stream, begin - 1, first)
    if (place := origin_in(own[0], begin)) is None:
        return found
    told = [event for event in (*own, *found[:-1]) if tag_of(event.data) == tag][-1:]
    beginning = f'{{"type":"{tag}"'.encode()
    while not told and place is not None:
        rows = _outline_rows(connection, place.stream, 0, place.version, beginning)
        told = [event for event in _stored_events(place.stream, rows) if tag_of(event.data) == tag][-1:]
        [begin] = connection.execute(_FIRST_OF_STREAM, (_text(place.stream),)).fetchone()
        place = origin_in(read_stream(connection, place.stream, begin - 1, 1)[0], begin)
    outline = [*own, *(event for event in told if event not in own)]
    return outline if outline[-1] == found[-1] else [*outline, found[-1]]


def read_all(connection: sqlite3.Connection, after_position: int, limit: int) -> list[StoredEvent]:
    rows = connection.execute(READ_ALL, (_bounded(after_position), _limit(limit))).fetchall()
    events: list[StoredEvent] = []
    for name, of_one_stream in groupby(rows, key=itemgetter(9)):
        event_rows = [row[:9] for row in of_one_stream]
        if name is None:
            raise MalformedRow(f"the event at position {event_rows[0][0]}: its stream has no name among the streams")
        events += _stored_events(_stream_name(name), event_rows)
    return events


def head(connection: sqlite3.Connection, stream: str) -> StreamHead | None:
    row = connection.execute(_HEAD, (_text(stream),)).fetchone()
    return _stream_head(*row) if row is not None else None


def list_streams(
    connection: sqlite3.Connection, prefix: str, after: str, limit: int | None, with_pending: bool
) -> list[StreamHead]:
    statement = LIST_STREAMS_WITH_PENDING if with_pending else LIST_STREAMS
    first = _text(prefix)
    rows = connection.execute(statement, (_text(after), first, first + b"\xff", _limit(limit))).fetchall()
    return [_stream_head(*row) for row in rows]


def read_payloads(connection: sqlite3.Connection, hashes: Sequence[PayloadHash]) -> dict[PayloadHash, bytes]:
    found: dict[PayloadHash, bytes] = {}
    for wanted in hashes:
        row = connection.execute(_READ_PAYLOAD, (_text(wanted),)).fetchone()
        if row is not None:
            _require_types(row, (bytes,), f"the payload {wanted}")
            found[wanted] = row[0]
    return found


def load_snapshot(connection: sqlite3.Connection, stream: str) -> Snapshot | None:
    row = connection.execute(_LOAD_SNAPSHOT, (_text(stream),)).fetchone()
    if row is None:
        return None
    place = f"the snapshot of stream {stream!r}"
    _require_types(row, (int, int, bytes, int, bytes), place)
    identifier, version, chain, fold_version, state = row
    parts = connection.execute(_LOAD_SNAPSHOT_PARTS, (identifier, identifier)).fetchall()
    for part in parts:
        _require_types(part, (bytes,), place)
    state = b"".join((state, *(part[0] for part in parts))) if parts else state
    return Snapshot(stream=StreamName(stream), version=version, chain=chain, fold_version=fold_version, state=state)


def list_payloads(connection: sqlite3.Connection, after: str, limit: int) -> list[ListedPayload]:
    rows = connection.execute(_LIST_PAYLOADS, (_text(after), _limit(limit))).fetchall()
    for row in rows:
        _require_types(row, (bytes, int), "the hash of a payload")
    return [ListedPayload(PayloadHash(name.decode()), size) for name, size in rows]


def removed_position(connection: sqlite3.Connection) -> int:
    row = connection.execute(_REMOVED_POSITION).fetchone()
    if row is None:
        raise MalformedRow("the table `log`: it is empty")
    _require_types(row, (int,), "the table `log`")
    position: int = row[0]
    return position


def list_tombstones(connection: sqlite3.Connection, after_position: int, limit: int) -> list[Tombstone]:
    return _tombstones(connection.execute(_LIST_TOMBSTONES, (_bounded(after_position), _limit(limit))).fetchall())


def find_tombstone(connection: sqlite3.Connection, stream: str) -> Tombstone | None:
    found = _tombstones(connection.execute(_FIND_TOMBSTONE, (_text(stream),)).fetchmany(1))
    return found[0] if found else None


def _tombstones(rows: Sequence[Sequence[Any]]) -> list[Tombstone]:
    tombstones: list[Tombstone] = []
    for row in rows:
        _require_types(row, (int, bytes, int, bytes, int), f"the tombstone at position {row[0]}")
        position, name, version, chain, at = row
        tombstones.append(Tombstone(position=position, stream=_stream_name(name), version=version, chain=chain, at=at))
    return tombstones


def find_damage(connection: sqlite3.Connection, end: Acknowledged | None) -> list[str]:
    missing = missing_end(connection, end)
    return [*damage_found(connection, "PRAGMA integrity_check"), *([missing] if missing else [])]


_PAGE_NOT_READ = re.compile(r"error code=(\d+)")
"""What a check of SQLite's says of a page that it could not read, among the damages that it found."""


def damage_found(connection: sqlite3.Connection, look: str) -> list[str]:
    """Return what one of SQLite's own checks finds."""
    try:
        rows = connection.execute(look).fetchall()
    except sqlite3.DatabaseError as error:
        if primary_code(error) != sqlite3.SQLITE_CORRUPT:
            raise
        return [str(error)]  # The damage keeps SQLite from going on.
    lines = [line if isinstance(line, str) else line.decode(errors="replace") for (line,) in rows]
    codes = [int(code) for line in lines for code in _PAGE_NOT_READ.findall(line)]
    if any(code & 0xFF == sqlite3.SQLITE_IOERR for code in codes):
        failed = sqlite3.OperationalError("disk I/O error")
        failed.sqlite_errorcode, failed.sqlite_errorname = sqlite3.SQLITE_IOERR_READ, "SQLITE_IOERR_READ"
        raise failed
    return [] if lines == ["ok"] else lines


def end_position(connection: sqlite3.Connection) -> int:
    (position,) = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
    return int(position)


def missing_end(connection: sqlite3.Connection, end: Acknowledged | None) -> str:
    """Return what a log lacks of what had been acknowledged; empty = nothing, or `end` is not known."""
    if end is None:
        return ""
    row = connection.execute(_LOG_END).fetchone()
    last = max((number for number in row or () if type(number) is int), default=0)
    if last < end.last:
        return f"it ends at position {last}, and up to position {end.last} had been acknowledged"
    row = connection.execute(_CHAIN_AT, (end.first,)).fetchone()
    if row is not None and row[0] != end.chain:
        return f"it has another batch at position {end.first} than was acknowledged there"
    return ""


def _stored_events(stream: StreamName, rows: Sequence[_EventRow]) -> list[StoredEvent]:
    """Return the events of rows of one stream; one loop, since restarts read whole sessions."""
    events: list[StoredEvent] = []
    position: object = None
    try:
        for position, version, batch, at, data, correlation, causation, chain, pending in rows:
            # `__class__` instead of `type()`: this line runs for every event of a restart, and is twice as fast so.
            if not (version.__class__ is batch.__class__ is at.__class__ is int and data.__class__ is bytes):
                raise TypeError("a column has a value of another type")
            if version != batch:
                event = StoredEvent(position=position, stream=stream, version=version, batch=batch, at=at, data=data)
            else:
                if chain.__class__ is not bytes:
                    raise TypeError("the first event of a batch has no chain")
                event = StoredEvent(
                    position=position,
                    stream=stream,
                    version=version,
                    batch=batch,
                    at=at,
                    data=data,
                    correlation=None if correlation is None else _lengthened(correlation, stream),
                    causation=None if causation is None else _lengthened(causation, stream),
                    chain=chain,
                    pending=_keys(pending),
                )
            events.append(event)
    except (AttributeError, IndexError, TypeError, UnicodeDecodeError) as error:
        # What is not a text cannot be decoded, and a reference has at least one character.
        raise MalformedRow(f"the event at position {position}: {error}") from error
    return events


def _stream_name(name: object) -> StreamName:
    if type(name) is not bytes:
        raise MalformedRow(f"a stream's name: it is {name!r}, which is no text")
    return StreamName(name.decode())


def _stream_head(name: bytes, version: int, chain: bytes, pending: bytes) -> StreamHead:
    stream = _stream_name(name)
    _require_types((version, chain, pending), (int, bytes, bytes), f"the end of stream {stream!r}")
    return StreamHead(stream=stream, version=version, chain=chain, pending=_keys(pending))


def _require_types(row: Sequence[object], types: Sequence[type], place: str) -> None:
    """Raise if a column has another type: the tables' own checks bind who writes, not who edits the file."""
    if list(map(type, row)) != list(types):
        raise MalformedRow(f"{place}: a column has a value of another type")


@lru_cache(maxsize=1024)
def _keys(pending: bytes) -> tuple[str, ...]:
    """Return the keys kept as one text; few differ, and equal ones share one tuple."""
    text = pending.decode()
    return tuple(text.split(" ")) if text else ()


def _lengthened(reference: bytes, stream: str) -> EventRef:
    """Return a reference as it was given: with the stream's name where the log keeps it without."""
    text = reference.decode()
    return EventRef(stream + text if text[0] == "@" else text)


def _text(name: str) -> bytes:
    """Return a name for `CAST(? AS TEXT)`; one with a lone surrogate, which no stream has, is found nowhere."""
    return name.encode("utf-8", "surrogatepass")


def _bounded(number: int) -> int:
    """Return the 64-bit integer nearest to a number; no version and no position lies beyond."""
    return max(INTEGER_MIN, min(number, INTEGER_MAX))


def _limit(limit: int | None) -> int:
    return INTEGER_MAX if limit is None else _bounded(limit)
