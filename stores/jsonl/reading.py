"""How lines are read from a file: in order while it is taken in, and one by one where they are asked for.

Read `refold.stores.jsonl.check` first. The rules it protects: only complete appends are taken in, whatever a
writer that works beside us, or one that died, has left at the end; and a line that is asked for is the one that was
taken in, or an error.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Snapshot, StoredEvent
from refold.stores.append_rules import INTEGER_MAX
from refold.stores.jsonl.check import CheckedPayload, LinesCheck
from refold.stores.jsonl.format import (
    LINE_BYTES_MAX,
    BatchLine,
    Line,
    PayloadLine,
    SnapshotLine,
    decoded,
    event_of,
)
from refold.stores.jsonl.index import BatchPlace, LogIndex, Placed, Span

T = TypeVar("T")

_BUFFER_BYTES: Final = 1024 * 1024

_TAIL_BYTES: Final = 256
"""So many bytes before the end are remembered, to tell whether the file still goes on where we have come to."""

_BATCHES_PER_LOOK: Final = 256
"""So many batches are looked up in the index at a time."""


class TakenIn:
    """A file of JSON Lines as far as it was taken into an index."""

    def __init__(self, log: Path, index: LogIndex, given_up: threading.Event) -> None:
        """Begin with a file of which nothing was taken in.

        Args:
            log: the file, for errors.
            index: gets to know what is taken in.
            given_up: set by whoever does not wait any longer; then taking in stops.
        """
        self._log = log
        self._index = index
        self._given_up = given_up
        self.check = LinesCheck(str(log), index.find_head, index.has_payload)
        self.end = 0
        """Bytes that were taken in: the end of the last complete append."""
        self._tail = b""

    def take_in(self, descriptor: int) -> None:
        """Take in all complete appends after `end`; what follows them is left, be it half a line or half an append.

        Raises:
            LogFormatError: a line is damaged, or is none that a writer can have left there.
            PersistenceError: nobody waits for it any longer.
            OSError: the file cannot be read.
        """
        # A new buffer each time: in an old one may stand what a writer has cut off since.
        with open(descriptor, "rb", buffering=_BUFFER_BYTES, closefd=False) as file:
            file.seek(self.end)
            try:
                self._take_in(file)
            except LogFormatError:
                self.check.give_up_append()
                file.seek(self.end)
                if not _is_torn(file):
                    raise
        self.check.give_up_append()
        self.check.finish()
        self.remember_tail(descriptor)

    def _take_in(self, file: BinaryIO) -> None:
        offset = self.end
        append: list[Placed] = []
        while (data := file.readline(LINE_BYTES_MAX + 1)).endswith(b"\n") or len(data) > LINE_BYTES_MAX:
            if self._given_up.is_set():
                raise PersistenceError(f"the log {self._log} was closed while it was read")
            checked = self.check.take(data)
            if isinstance(checked, CheckedPayload):
                checked = CheckedPayload(checked.hash, b"")
            append.append(Placed(checked, Span(offset, len(data))))
            offset += len(data)
            if not self.check.in_append:
                self._index.add(append)
                append.clear()
                self.end = offset
        if data and self.check.header is None:
            raise self.check.damaged("it is no header of a Refold log in JSON Lines; name another file")

    def appended(self, placed: Iterable[Placed], end: int, descriptor: int) -> None:
        """Take in what was just written up to `end`."""
        self._index.add(placed)
        self.end = end
        self.remember_tail(descriptor)

    def share(self, index: LogIndex) -> None:
        """Go on with another index that holds the same."""
        self._index = index
        self.check.find_head = index.find_head
        self.check.find_payload = index.has_payload

    def remember_tail(self, descriptor: int) -> None:
        """Remember how the file looks before `end`."""
        self._tail = os.pread(descriptor, min(self.end, _TAIL_BYTES), max(self.end - _TAIL_BYTES, 0))

    def is_continued_by(self, descriptor: int) -> bool:
        """Whether a file still has, up to `end`, what was taken in, as far as the last bytes tell."""
        return os.pread(descriptor, len(self._tail), self.end - len(self._tail)) == self._tail


def _is_torn(file: BinaryIO) -> bool:
    """Whether what follows can be one append that the power left: it has holes, and nothing else comes after it.

    A file system may make a file longer before it has written the content; the hole then reads as NUL characters,
    which no line has.
    """
    holes = False
    while data := file.readline(LINE_BYTES_MAX + 1):
        if b"\0" in data:
            holes = True
        elif data.endswith(b"\n") and not _goes_on(data):
            return holes and _ends_append(data) and not file.read(1)
    return holes


def _goes_on(data: bytes) -> bool:
    try:
        line = decoded(data)
    except ValueError:
        return False
    return isinstance(line, BatchLine | PayloadLine) and line.more


def _ends_append(data: bytes) -> bool:
    try:
        return isinstance(decoded(data), BatchLine | PayloadLine | SnapshotLine)
    except ValueError:
        return False


class LineReader:
    """Reads what an index knows from an open file; all methods run in the reading thread."""

    def __init__(self, log: Path, index: LogIndex) -> None:
        self._log = log
        self._index = index
        self.descriptor = -1
        """The open file; the caller's to open and to close."""

    def read_stream(self, stream: str, after_version: int, limit: int | None) -> list[StoredEvent]:
        """Return the events of one stream after a version, oldest first."""
        return self._events(
            lambda version: self._index.batches_after_version(stream, version, _BATCHES_PER_LOOK),
            after_version,
            limit,
            by_version=True,
        )

    def read_all(self, after_position: int, limit: int) -> list[StoredEvent]:
        """Return the events of all streams after a position, in order of position."""
        return self._events(
            lambda position: self._index.batches_after_position(position, _BATCHES_PER_LOOK),
            after_position,
            limit,
            by_version=False,
        )

    def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        """Return the payloads that are stored, of those asked for."""
        found: dict[PayloadHash, bytes] = {}
        for wanted in hashes:
            span = self._index.payload(wanted)
            if span is None:
                continue
            line = self._line(span)
            if not isinstance(line, PayloadLine) or line.hash != wanted:
                raise self._changed(span)
            found[wanted] = self._valid(span, line.payload)
        return found

    def load_snapshot(self, stream: str) -> Snapshot | None:
        """Return the stream's snapshot, or None."""
        span = self._index.snapshot(stream)
        if span is None:
            return None
        line = self._line(span)
        if not isinstance(line, SnapshotLine) or line.stream != stream:
            raise self._changed(span)
        return self._valid(span, line.snapshot)

    def _events(
        self, places: Callable[[int], list[BatchPlace]], after: int, limit: int | None, *, by_version: bool
    ) -> list[StoredEvent]:
        """Return the events after a version of a stream, or after a position of the log."""
        wanted = INTEGER_MAX if limit is None else limit
        after = max(min(after, INTEGER_MAX), 0)
        events: list[StoredEvent] = []
        while len(events) < wanted:
            before = len(events)
            for place in places(after):
                events += self._batch(place, after, wanted - len(events), by_version=by_version)
                if len(events) >= wanted:
                    break
            if len(events) == before:
                break
            after = events[-1].version if by_version else events[-1].position
        return events

    def _batch(self, place: BatchPlace, after: int, limit: int, *, by_version: bool) -> Iterator[StoredEvent]:
        line = self._line(place.span)
        if not isinstance(line, BatchLine) or line.position != place.position:
            raise self._changed(place.span)
        begin = max(after + 1 - (line.version if by_version else line.position), 0)
        for index in range(begin, min(begin + limit, len(line.events))):
            event = StoredEvent(
                position=line.position + index,
                stream=line.stream,
                version=line.version + index,
                batch=line.version,
                at=line.at,
                data=self._valid(place.span, partial(event_of, line.events[index])),
            )
            if index == 0:
                event = msgspec.structs.replace(
                    event,
                    correlation=line.correlation,
                    causation=line.causation,
                    chain=self._valid(place.span, partial(bytes.fromhex, line.chain)),
                    pending=line.pending,
                )
            yield event

    def _line(self, span: Span) -> Line:
        return self._valid(span, lambda: decoded(self._bytes(span)))

    def _bytes(self, span: Span) -> bytes:
        data = os.pread(self.descriptor, span.length, span.offset)
        while 0 < len(data) < span.length:
            more = os.pread(self.descriptor, span.length - len(data), span.offset + len(data))
            if not more:
                break
            data += more
        return data

    def _valid(self, span: Span, read: Callable[[], T]) -> T:
        try:
            return read()
        except ValueError as error:
            raise self._changed(span, f": {error}") from None

    def _changed(self, span: Span, why: str = "") -> LogFormatError:
        return LogFormatError(
            f"{self._log}: the line at byte {span.offset} is not what it was when the log was opened{why}; restore the "
            "log from a backup"
        )
