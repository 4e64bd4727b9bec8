"""Reads a log that is found after a power cut, with plain SQLite and not with the store that wrote it.

SQLite recovers the WAL as usual; only locks and shared memory are left out, since no other process has the
file open. Nothing is written. To read every row of every image would take most of the time, so the content of the
recovered database, byte for byte, is compared with what was looked through before: what is equal is equally right.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from refold.stores.sqlite.file import file_uri
from tests.selfcheck.storage.expected_log import ExpectedLog, FoundLog

_OPTIONS = "mode=ro&vfs=unix-none"

_EVENTS = """
    SELECT position, name, events.version, batch, at, data,
        CASE WHEN correlation LIKE '@%' THEN name || correlation ELSE correlation END,
        CASE WHEN causation LIKE '@%' THEN name || causation ELSE causation END,
        events.chain, events.pending
    FROM events LEFT JOIN streams ON streams.id = events.stream ORDER BY position
"""
_SNAPSHOTS = """
    SELECT name, snapshots.version, snapshots.chain, fold_version, state
    FROM snapshots LEFT JOIN streams ON streams.id = snapshots.stream ORDER BY name
"""


class Recovered(NamedTuple):
    """What became of a log."""

    step: int | None
    """The step after which it is as it was found; None if it is wrong."""
    problem: str = ""


class RecoveredLogs:
    """Reads one log after another, and remembers what those of each step look like."""

    def __init__(self, expected: ExpectedLog, *, openings_count: bool = True) -> None:
        self._expected = expected
        self._openings_count = openings_count
        self._sound: dict[int, list[bytes]] = {}
        self._uris: dict[Path, str] = {}
        self.examined = 0
        """How many were looked through row by row."""

    def read(self, log: Path, *, asked: int) -> Recovered:
        """Return what a log is; that it holds what it has to is for the caller to judge.

        Args:
            log: the file, which no other process uses.
            asked: the last step that the store was asked for: the most likely one, where to look first.
        """
        uri = self._uris.get(log) or self._uris.setdefault(log, file_uri(log, _OPTIONS))
        try:
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as opened:
                opened.execute("PRAGMA locking_mode = EXCLUSIVE")
                content = opened.serialize()
                known = self.known(content, asked=asked)
                if known is not None:
                    return known
                recovered = self._examine(opened)
        except sqlite3.Error as error:
            return Recovered(None, f"SQLite says: {error} ({getattr(error, 'sqlite_errorname', '')})")
        if recovered.step is not None:
            self._sound.setdefault(recovered.step, []).append(content)
        return recovered

    def known(self, content: bytes, *, asked: int) -> Recovered | None:
        """Return what a log is whose content, byte for byte, was looked through before; else None."""
        for step in range(asked, -1, -1):
            if content in self._sound.get(step, ()):
                return Recovered(step)
        return None

    def _examine(self, opened: sqlite3.Connection) -> Recovered:
        self.examined += 1
        damage = opened.execute("PRAGMA integrity_check").fetchall()
        if damage != [("ok",)]:
            return Recovered(None, f"SQLite finds damage: {damage[0][0]}")
        found = found_log(opened)
        step = self._expected.step_of(found, openings_count=self._openings_count)
        return Recovered(step, "" if step is not None else self._expected.difference(found))


def found_log(opened: sqlite3.Connection) -> FoundLog:
    """Return what the tables of a log hold."""
    (incarnation,) = opened.execute("SELECT incarnation FROM log").fetchone()
    return FoundLog(
        incarnation=incarnation,
        events=opened.execute(_EVENTS).fetchall(),
        heads=opened.execute("SELECT name, version, chain, pending FROM streams ORDER BY name").fetchall(),
        payloads=opened.execute("SELECT hash, data FROM payloads ORDER BY hash").fetchall(),
        snapshots=opened.execute(_SNAPSHOTS).fetchall(),
    )
