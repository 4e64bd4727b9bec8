-- A Refold log, format 1. `refold.stores.sqlite.file` runs this once, in one transaction, and refuses a file whose
-- tables differ from it. Never edit it after a release: write a migration and raise FORMAT_VERSION.

-- One row about the whole log.
CREATE TABLE log (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    -- Raised at each opening for writing. Every append checks it, so that a stale owner can write nothing.
    incarnation INTEGER NOT NULL,
    -- Highest position that was ever removed from `events`, so that no position is used twice.
    removed_position INTEGER NOT NULL
) STRICT;

INSERT INTO log (id, incarnation, removed_position) VALUES (1, 0, 0);

-- One row per stream: its end, updated in the transaction of each append. It is a cache of `events`.
CREATE TABLE streams (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    chain BLOB NOT NULL,
    -- Keys of the effects in flight after the last batch, with a space between.
    pending TEXT NOT NULL
) STRICT;

-- Finds the runs that a restart must take up without reading the log.
CREATE INDEX streams_with_pending ON streams (name) WHERE pending <> '';

-- What happened. `position` orders the log and is never used twice; `version` orders one stream from 1, no gaps.
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    stream INTEGER NOT NULL,
    version INTEGER NOT NULL,
    -- Version of the first event of the batch, which alone has the last four columns.
    batch INTEGER NOT NULL,
    -- Microseconds since the epoch, UTC. For people: nothing is ordered by it.
    at INTEGER NOT NULL,
    -- JSON.
    data TEXT NOT NULL,
    -- References to events, "<stream>@<version>"; of the same stream without its name, "@<version>".
    correlation TEXT,
    causation TEXT,
    -- SHA-256 over the chain before and this batch.
    chain BLOB,
    pending TEXT,
    UNIQUE (stream, version)
) STRICT;

-- The same for people and their tools, with names, tags and readable times. Refold itself never reads it. A view, since
-- a generated column costs time at each insert; and without json_extract(), which older SQLite refuses in the schema of
-- a file that it is told not to trust. The encoder writes the tag first.
CREATE VIEW event_list AS
SELECT
    position,
    name AS stream,
    events.version,
    batch,
    CASE WHEN substr(data, 1, 9) = '{"type":"' THEN substr(data, 10, instr(substr(data, 10), '"') - 1) END AS type,
    strftime('%Y-%m-%dT%H:%M:%S', at / 1000000, 'unixepoch') || printf('.%06dZ', at % 1000000) AS time,
    data,
    CASE WHEN correlation LIKE '@%' THEN name || correlation ELSE correlation END AS correlation,
    CASE WHEN causation LIKE '@%' THEN name || causation ELSE causation END AS causation,
    events.pending
FROM events JOIN streams ON streams.id = events.stream;

-- Large or repeated content, once each, under the lower-case hexadecimal SHA-256 of its bytes.
CREATE TABLE payloads (
    hash TEXT PRIMARY KEY NOT NULL,
    data BLOB NOT NULL
) STRICT;

-- Folded states. A cache: emptying it costs time only. The first part of a long one lies under its stream's id, the
-- others under the negative numbers -(id * 1024 + part), part from 1.
CREATE TABLE snapshots (
    stream INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    chain BLOB NOT NULL,
    fold_version INTEGER NOT NULL,
    state BLOB NOT NULL
) STRICT;

-- Streams that were deleted: what their end was, so that references to them can be told from errors.
CREATE TABLE tombstones (
    position INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    chain BLOB NOT NULL,
    at INTEGER NOT NULL
) STRICT;
