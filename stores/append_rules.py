"""What every store refuses to append, so that all of them refuse the same.

Read `refold.stores.event_store` first. The rule it protects: nothing is written that cannot be read back exactly
as it was given, and a refusal comes before anything is written.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from refold.events.core.ids import PayloadHash
from refold.events.core.records import EncodedBatch, Snapshot

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1
"""Integers that a store keeps: those of 64 bits, which is what SQLite has."""

POSITION_MAX: Final = 2**62
"""Beyond what a log can reach, and far enough from 64 bits that no append overflows them."""

BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest event, payload or snapshot, in bytes: a guard against runaway data and against hostile files."""

WAIT_FOR_LOG_S: Final = 30.0
"""Seconds that opening waits for the runtime before to release the log, as in a rolling deploy."""

APPEND_TIMEOUT_S: Final = 30.0
"""Seconds after which an append counts as hanging."""

FaultPoint = Callable[[str], None]
"""Called at the named points of an append, so that a rehearsal can raise, wait or kill the process there.

The points are `append.begun` (nothing is written), `append.inserted` (all is written, nothing is committed) and
`append.committed` (all is committed, nobody is told). An `SQLiteStore` calls it in its writing thread, and also where
it opens the file: once its name is on the disk (`opening.folder_synced`), and, if there is something in the WAL, once
that is, too (`opening.wal_synced`).
"""


def no_fault(point: str) -> None:
    """Let the append go on: the fault point of every store that is not being rehearsed."""


def check_append(batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes]) -> None:
    """Refuse what cannot be stored; return if everything can."""
    for batch in batches:
        _check_batch(batch)
    for payload_hash, payload in payloads.items():
        _check_bytes(payload, f"the payload {payload_hash!r}")
        if hashlib.sha256(payload).hexdigest() != payload_hash:
            raise ValueError(f"the payload {payload_hash!r} does not hash to its key; compute SHA-256 of its bytes")


def check_snapshot(snapshot: Snapshot) -> None:
    what = f"the snapshot of stream {snapshot.stream!r}"
    _check_integer(snapshot.version, what, "version")
    _check_integer(snapshot.fold_version, what, "fold_version")
    _check_bytes(snapshot.chain, what)
    _check_bytes(snapshot.state, what)


def check_limit(limit: int | None) -> None:
    """Refuse a negative limit, which stores would understand in different ways."""
    if limit is not None and limit < 0:
        raise ValueError(f"a limit must be 0 or more, not {limit}")


def _check_batch(batch: EncodedBatch) -> None:
    stream = batch.stream
    _check_text(stream, "a stream name")
    if not batch.events:
        raise ValueError(f"a batch of stream {stream!r} has no events")
    _check_integer(batch.at, stream, "at")
    _check_integer(batch.expected_version, stream, "expected_version")
    if not 0 <= batch.expected_version <= INTEGER_MAX - len(batch.events):
        raise ValueError(f"expected_version of stream {stream!r} is {batch.expected_version:,}; it cannot be")
    for key in batch.pending:
        _check_text(key, "a pending key")
        if " " in key:
            raise ValueError(f"the pending key {key!r} of stream {stream!r} holds a space")
    if batch.correlation is not None:
        _check_reference(batch.correlation, stream)
    if batch.causation is not None:
        _check_reference(batch.causation, stream)
    for event in batch.events:
        if type(event) is not bytes or len(event) > BYTES_MAX:
            _check_bytes(event, "an event")
        if not event.isascii():
            try:
                event.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"an event of stream {stream!r} is not valid UTF-8: {error}") from None


def _check_reference(reference: str, stream: str) -> None:
    _check_text(reference, "an event reference")
    if reference[0] == "@":
        raise ValueError(f"the event reference {reference!r} of stream {stream!r} names no stream")


def _check_text(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")
    if not value or "\0" in value:
        raise ValueError(f"{what} must not be empty or hold a NUL character: {value[:40]!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} holds a lone surrogate: {value[:40]!a}") from None


def _check_integer(value: object, what: str, field: str) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{field} of {what!r} must be an integer, not {type(value).__name__}")
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise ValueError(f"{field} of {what!r} does not fit in 64 bits: {value:,}")


def _check_bytes(value: object, what: str) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}")
    if len(value) > BYTES_MAX:
        raise ValueError(f"{what} has {len(value):,} bytes; a store takes at most {BYTES_MAX:,}")
