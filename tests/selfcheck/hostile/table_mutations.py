"""Ways in which the rows and tables of an SQLite log can be made to lie; for `tests.selfcheck.hostile`.

A person who has the file can write anything into it, also what the tables' own rules forbid. Half of the logs whose
rows are changed get new digests behind the change, as an expert would make them: then nothing but the meaning of the
events gives them away.
"""

import contextlib
import random
import sqlite3
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path

from refold.events.core.records import batch_of, first_chain, next_chain
from refold.stores.sqlite import read as sqlite_read
from tests.selfcheck.hostile.event_mutations import EVENT_MUTATIONS

Change = Callable[[sqlite3.Connection, random.Random], None]

EXECUTED = "executed"
"""A table that something in a hostile file writes into if anything of it is ever executed."""

WEIRD: tuple[object, ...] = (
    None, 0, -1, 1, 2**31, 2**62, 2**63 - 1, -(2**63), 0.5, float("inf"), "", "@1", "text", "@", " ", "session/", "/",
    b"", b"\0", b"\xff" * 32, b"x" * 32, "x" * 600, "session/alice@1", "session/alice@" + "9" * 5_000, "a b  c",
)  # fmt: skip
"""Values for any column."""

NAMES: tuple[object, ...] = (
    "", "session/", "session", "/", "session/a\0b", "session/../../etc/passwd", "session/" + "x" * 5_000, b"\xff\xfe",
    "session/\N{SNOWMAN}", b"session/\xed\xa0\x80", "unknown/thing", "tool/alice", "runtime/other", "memory/alice",
    "session/bob\x1b[2J", "SESSION/alice", "session/alice ",
)  # fmt: skip
"""Names for streams."""


def changed_tables(log: Path, change: Change, chance: random.Random, *, rechain: bool) -> None:
    """Change the rows or tables of a log."""
    connection = sqlite3.connect(log, isolation_level=None)
    try:
        connection.text_factory = bytes
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("BEGIN")
        change(connection, chance)
        if rechain:
            with contextlib.suppress(sqlite3.Error):  # Rows of which it cannot be done stay as they are.
                _rechain(connection)
        connection.execute("COMMIT")
    finally:
        connection.close()


def has_executed(log: Path) -> bool:
    """Tell whether anything in a hostile file was executed that leaves a trace there."""
    try:
        connection = sqlite3.connect(f"file:{log}?mode=ro", uri=True)
    except sqlite3.Error:
        return False
    try:
        return connection.execute(f"SELECT 1 FROM {EXECUTED}").fetchone() is not None
    except (sqlite3.Error, UnicodeError):
        return False
    finally:
        connection.close()


def _rechain(connection: sqlite3.Connection) -> None:
    """Compute the digests of all batches anew, as far as rows can be read."""
    for stream, name in connection.execute("SELECT id, name FROM streams").fetchall():
        with contextlib.suppress(sqlite_read.MalformedRow, UnicodeError, AttributeError):
            _rechain_stream(connection, stream, name.decode())


def _rechain_stream(connection: sqlite3.Connection, stream: int, name: str) -> None:
    stored = sqlite_read.read_stream(connection, name, 0, None)
    chain = first_chain(name)
    for _, events in groupby(stored, key=lambda event: event.batch):
        batch = list(events)
        chain = next_chain(chain, batch_of(batch))
        connection.execute("UPDATE events SET chain = ? WHERE position = ?", (chain, batch[0].position))
    if stored:
        end = (chain, stored[-1].version, stream)
        connection.execute("UPDATE streams SET chain = ?, version = ? WHERE id = ?", end)


def _some(connection: sqlite3.Connection, table: str, chance: random.Random) -> int:
    """Return the rowid of some row, or 0 where there is none."""
    rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
    return chance.choice(rows) if rows else 0


def mutate_event(name: str) -> Change:
    """Return a change of the JSON of one event, or a few."""

    def change(connection: sqlite3.Connection, chance: random.Random) -> None:
        rows = connection.execute("SELECT position, data FROM events").fetchall()
        others = [data for _, data in rows]
        for position, data in chance.sample(rows, chance.choice((1, 1, 1, 3))):
            mutated = EVENT_MUTATIONS[name](data, chance, others)
            connection.execute("UPDATE events SET data = CAST(? AS TEXT) WHERE position = ?", (mutated, position))

    return change


def _set(table: str, *columns: str) -> Change:
    """Return a change that gives a column of some row a value that fits its type, and nothing else."""

    def change(connection: sqlite3.Connection, chance: random.Random) -> None:
        row = _some(connection, table, chance)
        column = chance.choice(columns)
        statement = f"UPDATE OR REPLACE {table} SET {column} = ? WHERE rowid = {row}"
        _try(connection, chance, [(statement, WEIRD)])

    return change


def _try(connection: sqlite3.Connection, chance: random.Random, tries: list[tuple[str, tuple[object, ...]]]) -> None:
    """Execute one of some statements with some value that the table takes."""
    for _ in range(50):
        statement, values = chance.choice(tries)
        with contextlib.suppress(sqlite3.Error):
            connection.execute(statement, (chance.choice(values),))
            return


def _drop_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(("events", "events", "events", "streams", "payloads", "log", "snapshots"))
    for _ in range(chance.choice((1, 1, 2, 10))):
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (_some(connection, table, chance),))


def _swap_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    column = chance.choice(("data", "chain", "at", "pending", "correlation", "causation"))
    one, two = _some(connection, "events", chance), _some(connection, "events", chance)
    value = f"SELECT {column} FROM events WHERE position = ?"
    [(first,)], [(second,)] = (connection.execute(value, (row,)).fetchall() for row in (one, two))
    for row, given in ((one, second), (two, first)):
        cast = "CAST(? AS TEXT)" if column not in ("chain", "at") else "?"
        connection.execute(f"UPDATE events SET {column} = {cast} WHERE position = ?", (given, row))


def _repeat_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Add events again behind the end of their streams, one or a whole batch."""
    position = _some(connection, "events", chance)
    stream, batch = connection.execute("SELECT stream, batch FROM events WHERE position = ?", (position,)).fetchone()
    (last,) = connection.execute("SELECT max(version) FROM events WHERE stream = ?", (stream,)).fetchone()
    connection.execute(
        """
        INSERT INTO events (stream, version, batch, at, data, correlation, causation, chain, pending)
        SELECT stream, version - batch + ?, ?, at, data, correlation, causation, chain, pending
        FROM events WHERE stream = ? AND batch = ?
        """,
        (last + 1, last + 1, stream, batch),
    )
    connection.execute(
        "UPDATE streams SET version = (SELECT max(version) FROM events WHERE stream = ?) WHERE id = ?", (stream, stream)
    )


def _move_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Give rows other versions, batches, positions or streams, moved by a little or by far."""
    column = chance.choice(("version", "batch", "position", "stream"))
    step = chance.choice((-1, 1, 2, -1_000, 10**6, 2**62))
    where = chance.choice((f"position = {_some(connection, 'events', chance)}", "stream = 7", "position > 40"))
    try:
        connection.execute(f"UPDATE events SET {column} = {column} + ? WHERE {where}", (step,))
    except sqlite3.Error:
        connection.execute(f"DELETE FROM events WHERE {where}")


def _name_stream(connection: sqlite3.Connection, chance: random.Random) -> None:
    row = _some(connection, "streams", chance)
    statement = f"UPDATE streams SET name = CAST(? AS TEXT) WHERE id = {row}"
    _try(connection, chance, [(statement, NAMES)])


def _more_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    statements = [
        ("INSERT INTO streams (name, version, chain, pending) VALUES (CAST(? AS TEXT), 7, x'00', 'model:1')", NAMES),
        ("INSERT INTO payloads (hash, data) VALUES (CAST(? AS TEXT), zeroblob(100000))", NAMES),
        ("INSERT INTO tombstones (position, name, version, chain, at) VALUES (7, CAST(? AS TEXT), 1, x'00', 0)", NAMES),
        ("INSERT INTO log (id, incarnation, removed_position) VALUES (2, ?, 0)", WEIRD),
        ("INSERT INTO events (stream, version, batch, at, data, chain) VALUES (999, 1, 1, ?, '{}', x'00')", WEIRD),
        ("INSERT INTO snapshots (stream, version, chain, fold_version, state) VALUES (3, ?, x'', 1, x'')", WEIRD),
    ]
    _try(connection, chance, statements)


def _change_payload(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Replace a payload's content by JSON of another shape, under its name or under the one that it then has."""
    row = _some(connection, "payloads", chance)
    (data,) = connection.execute("SELECT data FROM payloads WHERE rowid = ?", (row,)).fetchone()
    try:
        name = chance.choice(tuple(EVENT_MUTATIONS))
        mutated = EVENT_MUTATIONS[name](data, chance, [b'{"type":"text","text":"other"}'])
    except (ValueError, LookupError, AttributeError, TypeError):
        mutated = chance.choice((b"", b"null", b"[" * 100_000, chance.randbytes(1_000), b"x" * 2_000_000))
    connection.execute("UPDATE payloads SET data = ? WHERE rowid = ?", (mutated, row))


def _untyped(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Put a value of a wrong type into a column, past the table's own rules, whose text stays as it was."""
    table, columns = chance.choice(
        (
            ("events", ("version", "batch", "at", "data", "correlation", "causation", "chain", "pending", "stream")),
            ("streams", ("name", "version", "chain", "pending")),
            ("payloads", ("hash", "data")),
            ("log", ("incarnation", "removed_position")),
            ("snapshots", ("version", "chain", "fold_version", "state")),
        )
    )
    where = f"rowid = {_some(connection, table, chance)}"
    (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    connection.execute("PRAGMA writable_schema = ON")
    loose = sql.decode().replace("STRICT", "").replace("NOT NULL", "")
    for kind in ("INTEGER", "TEXT", "BLOB"):
        loose = loose if kind == "INTEGER" else loose.replace(f" {kind}", " ")
    _write_schema(connection, table, loose)
    statement = f"UPDATE {table} SET {chance.choice(columns)} = ? WHERE {where}"
    _try(connection, chance, [(statement, WEIRD)])
    _write_schema(connection, table, sql.decode())


def _write_schema(connection: sqlite3.Connection, name: str, sql: str) -> None:
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, name))
    (version,) = connection.execute("PRAGMA schema_version").fetchone()
    connection.execute(f"PRAGMA schema_version = {version + 1}")
    connection.execute("PRAGMA writable_schema = RESET")


TRAPS = (
    "CREATE TRIGGER trap AFTER INSERT ON events BEGIN INSERT INTO executed VALUES (1); END",
    "CREATE TRIGGER trap AFTER UPDATE ON log BEGIN INSERT INTO executed VALUES (1); END",
    "CREATE TRIGGER trap BEFORE UPDATE ON streams BEGIN INSERT INTO executed VALUES (1); END",
    "CREATE TRIGGER trap BEFORE INSERT ON events BEGIN SELECT RAISE(IGNORE); END",
    "CREATE TRIGGER trap INSTEAD OF INSERT ON event_list BEGIN INSERT INTO executed VALUES (1); END",
)

OTHER_OBJECTS = (
    "DROP TABLE payloads", "DROP TABLE snapshots", "DROP TABLE tombstones", "DROP TABLE log", "DROP TABLE events",
    "DROP TABLE streams", "DROP VIEW event_list", "DROP INDEX streams_with_pending",
    "CREATE TABLE more (a, b)", "CREATE VIEW more AS SELECT * FROM events, events, events",
    "ALTER TABLE events ADD COLUMN more TEXT", "ALTER TABLE events RENAME COLUMN at TO time",
    "DROP TABLE log; CREATE VIEW log AS SELECT 1 AS id, 1 AS incarnation, 0 AS removed_position",
    "DROP TABLE payloads; CREATE VIEW payloads AS WITH RECURSIVE n(hash, data) AS "
    "(SELECT 1, x'' UNION ALL SELECT hash + 1, x'' FROM n) SELECT * FROM n",
    "CREATE VIRTUAL TABLE more USING fts5(a)",
    "CREATE INDEX more ON events (data)", "CREATE UNIQUE INDEX more ON events (batch, stream, version, at)",
    "CREATE INDEX more ON events (json(data))", "ANALYZE",
)  # fmt: skip

DEAR_INDEXES = (
    "events (hex(zeroblob(120000000 + version)))",
    "events (hex(zeroblob(100000000)) LIKE '%1%2%3')",
    "streams (printf('%.*c', 200000000, 'x'))",
    "log (hex(zeroblob(125000000 + incarnation)))",
    "events (1) WHERE hex(zeroblob(120000000 + version)) LIKE '%1%'",
    "log (abs(-9223372036854775807 - (incarnation > 0)))",
    "log (json_extract('{', '$.a'))",
    "streams (no_such_function(name))",
)
"""Of an index whose expressions cost much memory or time, or fail, whenever a row is written."""


def _trap(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Put a trigger into the file, openly or under the name of something else."""
    connection.execute(f"CREATE TABLE {EXECUTED} (n)")
    connection.execute(chance.choice(TRAPS))
    disguise = chance.choice((None, None, "type = 'table'", "type = 'view'", "name = 'log'", "tbl_name = 'payloads'"))
    if disguise is not None:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(f"UPDATE sqlite_schema SET {disguise} WHERE name = 'trap'")


def _dear_index(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Have each write compute something dear, in an index that is made cheaply and then said to be another one."""
    index = chance.choice(DEAR_INDEXES)
    table = index.partition(" ")[0]
    connection.execute(f"CREATE INDEX more ON {table} ({'at' if table == 'events' else 'id'})")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'more'", (f"CREATE INDEX more ON {index}",))


def _other_objects(connection: sqlite3.Connection, chance: random.Random) -> None:
    for statement in chance.choice(OTHER_OBJECTS).split("; "):
        try:
            connection.execute(statement)
        except sqlite3.Error:  # SQLite itself lacks it, or refuses it.
            connection.execute("CREATE TABLE IF NOT EXISTS more (a, b)")


def _wrong_roots(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Have a table's content looked for where another's is."""
    names = ["events", "streams", "payloads", "log", "snapshots", "sqlite_autoindex_events_1", "streams_with_pending"]
    one, two = chance.sample(names, 2)
    of_two = f"(SELECT rootpage FROM sqlite_schema WHERE name = '{two}')"
    root = chance.choice((of_two, "0", "1", "-1", "2", "999999", "NULL"))
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(f"UPDATE sqlite_schema SET rootpage = {root} WHERE name = '{one}'")


def _header(connection: sqlite3.Connection, chance: random.Random) -> None:
    pragma = chance.choice(("application_id", "user_version"))
    connection.execute(f"PRAGMA {pragma} = {chance.choice((0, -1, 2, 99, 2**31 - 1))}")


TABLE_MUTATIONS: Mapping[str, Change] = {
    "rows dropped": _drop_rows,
    "rows swapped": _swap_rows,
    "rows repeated": _repeat_rows,
    "rows moved": _move_rows,
    "a column of an event": _set("events", "at", "chain", "pending", "correlation", "causation", "batch", "version"),
    "a column of a stream's end": _set("streams", "version", "chain", "pending", "id"),
    "a column of the log's own row": _set("log", "incarnation", "removed_position", "id"),
    "a column of a snapshot": _set("snapshots", "version", "chain", "fold_version", "state", "stream"),
    "a stream's name": _name_stream,
    "rows more": _more_rows,
    "a payload": _change_payload,
    "a value of a wrong type": _untyped,
    "a trigger": _trap,
    "other tables, views, indexes": _other_objects,
    "an index that is dear": _dear_index,
    "wrong root pages": _wrong_roots,
    "application_id, user_version": _header,
}
"""By name."""
