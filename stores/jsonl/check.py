"""Whether the lines of a log are what a writer has written, checked one after another.

Read `refold.stores.jsonl.format` first. The rule it protects: nothing is taken from a file before it was found
whole: each batch follows the last one of its stream and hashes to its chain, positions increase, each payload is what
its name says, an export is complete. What is wrong is told with the number of its line.
"""

import copy
import hashlib
from collections.abc import Callable
from typing import Final, NamedTuple

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import EncodedBatch, Snapshot, first_chain, next_chain
from refold.stores.append_rules import check_append, check_snapshot
from refold.stores.event_store import Tombstone
from refold.stores.jsonl.format import (
    BatchLine,
    EndLine,
    HeaderLine,
    PayloadLine,
    SnapshotLine,
    TombstoneLine,
    decoded,
    decoded_header,
    digest_of,
)

POSITION_MAX: Final = 2**62
"""Beyond what a log can reach, and far enough from 64 bits that no append overflows them."""

FindHead = Callable[[str], tuple[int, bytes] | None]
"""Returns a stream's version and chain after the last complete append, or None where there is no such stream."""


FindPayload = Callable[[PayloadHash], bool]
"""Returns whether a payload was in the lines before, those of an append that is not complete left out."""


class CheckedBatch(NamedTuple):
    """A batch that agrees with those before it."""

    position: int
    batch: EncodedBatch
    chain: bytes


class CheckedPayload(NamedTuple):
    """A payload that hashes to its key."""

    hash: PayloadHash
    data: bytes


Checked = HeaderLine | CheckedBatch | CheckedPayload | Snapshot | Tombstone | EndLine


class _Place:
    """How far a check has come."""

    def __init__(self) -> None:
        self.line = 0
        self.position = 0
        self.batches = 0
        self.events = 0
        self.payloads = 0
        self.header: HeaderLine | None = None
        self.ended = False
        self.digest = hashlib.sha256()

    def copied(self) -> "_Place":
        other = copy.copy(self)
        other.digest = self.digest.copy()
        return other


class LinesCheck:
    """Checks the lines of one log, from the header on.

    Args:
        name: what errors call the file.
        find_head: the ends of streams, as the caller has them from the lines that were taken.
        find_payload: the payloads, likewise.
    """

    def __init__(self, name: str, find_head: FindHead, find_payload: FindPayload) -> None:
        self._name = name
        self.find_head = find_head
        self.find_payload = find_payload
        self._place = _Place()
        self._before_append: _Place | None = None
        self._heads: dict[str, tuple[int, bytes]] = {}
        """Ends of streams after the lines of an append that is not complete."""
        self._payloads: set[PayloadHash] = set()
        """Payloads of that append."""

    @property
    def lines(self) -> int:
        """How many lines were taken."""
        return self._place.line

    @property
    def position(self) -> int:
        """Highest position that was met, or that the header names as removed: none up to it may be used again."""
        header = self._place.header
        return max(self._place.position, header.removed_position if header is not None else 0)

    @property
    def in_append(self) -> bool:
        """Whether the last line was one of an append that goes on."""
        return self._before_append is not None

    @property
    def header(self) -> HeaderLine | None:
        """The first line, once it was taken."""
        return self._place.header

    def take(self, data: bytes) -> Checked:
        """Return what is in the next line.

        Args:
            data: the line, with its end.

        Raises:
            LogFormatError: it is not what has to follow; the message names the line. Nothing was taken.
        """
        place = self._place
        if place.header is None:
            place.header = header = decoded_header(data, self._name)
            self._count(data)
            return header
        try:
            return self._take(data)
        except (ValueError, TypeError) as error:
            raise self.damaged(str(error)) from None

    def skip(self, data: bytes) -> BatchLine | None:
        """Go on behind a line that was refused, as if it had been right, and return it if it can be read as a batch.

        For whoever looks for all that is wrong; what is said of the lines that follow is meant beside this one.
        """
        if self._place.header is None:
            raise ValueError("the header cannot be skipped")
        place = self._place
        self._before_append = None
        self._heads.clear()
        self._payloads.clear()
        self._count(data)
        try:
            line = decoded(data)
        except ValueError:
            return None
        if isinstance(line, EndLine):
            place.ended = True
        if not isinstance(line, BatchLine):
            return None
        if place.position < line.position <= POSITION_MAX - len(line.events):
            place.position = line.position + len(line.events) - 1
        return line

    def give_up_append(self) -> None:
        """Go back to before the append that is not complete."""
        if self._before_append is not None:
            self._place, self._before_append = self._before_append, None
            self._heads.clear()
            self._payloads.clear()

    def finish(self) -> None:
        """Return if the lines may end here.

        Raises:
            LogFormatError: something is missing.
        """
        if self._place.header is None:
            raise LogFormatError(f"{self._name} is empty, so it is no log")
        if self.in_append or (self._place.header.export and not self._place.ended):
            raise self.damaged("it is missing: the file was cut short; export the log again")

    def damaged(self, what: str) -> LogFormatError:
        """Return the error for the next line."""
        return LogFormatError(f"{self._name}, line {self._place.line + 1}: {what}")

    def _take(self, data: bytes) -> Checked:
        place = self._place
        line = decoded(data)
        more = isinstance(line, BatchLine | PayloadLine) and line.more
        if self.in_append and not isinstance(line, BatchLine | PayloadLine):
            raise ValueError("the append of the lines before is not complete")
        before = place.copied() if more and not self.in_append else self._before_append
        checked: Checked
        match line:
            case BatchLine():
                checked = self._batch(line)
                place.position = checked.position + len(checked.batch.events) - 1
                place.batches += 1
                place.events += len(checked.batch.events)
                version = checked.batch.expected_version + len(checked.batch.events)
                self._heads[checked.batch.stream] = (version, checked.chain)
            case PayloadLine():
                checked = CheckedPayload(line.hash, line.payload())
                check_append((), {checked.hash: checked.data})
                if checked.hash in self._payloads or self.find_payload(checked.hash):
                    raise ValueError(f"the payload {checked.hash} is there for the second time")
                self._payloads.add(checked.hash)
                place.payloads += 1
            case SnapshotLine():
                checked = line.snapshot()
                check_snapshot(checked)
            case TombstoneLine():
                checked = line.tombstone()
                _check_tombstone(checked)
            case EndLine():
                self._end(line)
                checked = line
                place.ended = True
            case HeaderLine():
                raise ValueError("there is a second header")
        self._count(data)
        self._before_append = before if more else None
        if not more:
            self._heads.clear()
            self._payloads.clear()
        return checked

    def _batch(self, line: BatchLine) -> CheckedBatch:
        batch, chain = line.batch(), digest_of(line.chain)
        check_append((batch,), {})
        stream = batch.stream
        head = self._heads.get(stream) or self.find_head(stream)
        version, before = head if head is not None else (0, first_chain(stream))
        if batch.expected_version != version:
            raise ValueError(
                f"version {line.version} of stream {stream!r} follows version {version}; a line is missing, or twice"
            )
        if not self._place.position < line.position <= POSITION_MAX:
            raise ValueError(f"position {line.position} follows position {self._place.position}")
        if next_chain(before, batch) != chain:
            raise ValueError(
                f"the batch of stream {stream!r} does not hash to its chain: it, or one before, was edited"
            )
        return CheckedBatch(line.position, batch, chain)

    def _end(self, line: EndLine) -> None:
        place = self._place
        if place.header is None or not place.header.export or place.ended:
            raise ValueError("an export ends where none is")
        if (line.batches, line.events, line.payloads) != (place.batches, place.events, place.payloads):
            raise ValueError(
                f"the export has {line.batches:,} batches, {line.events:,} events and {line.payloads:,} payloads, and "
                f"before this line there are {place.batches:,}, {place.events:,} and {place.payloads:,}"
            )
        if line.sha256 != place.digest.hexdigest():
            raise ValueError("the lines before do not hash to what the export says: one was edited")

    def _count(self, data: bytes) -> None:
        place = self._place
        place.line += 1
        if place.header is not None and place.header.export and not place.ended:
            place.digest.update(data)


def _check_tombstone(tombstone: Tombstone) -> None:
    """Refuse what no stream can have been; return if it can.

    Raises:
        ValueError: a number or the name cannot be.
    """
    # A stream that ended so could have gone on: with this batch.
    going_on = EncodedBatch(
        stream=tombstone.stream, expected_version=tombstone.version, at=tombstone.at, events=(b"{}",)
    )
    check_append((going_on,), {})
    if not 0 < tombstone.position <= POSITION_MAX:
        raise ValueError(f"a tombstone has position {tombstone.position}")
