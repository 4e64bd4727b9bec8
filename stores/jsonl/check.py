"""Whether the lines of a text log are what a writer has written, checked one after another.

Read `refold.stores.jsonl.format` first. The rules it protects: nothing is taken from a file before it was found
whole: each batch follows the last one of its stream and hashes to its chain, positions increase, each payload is what
its name says, an export is complete. What is wrong is told with the number of its line. `complete_appends` stops at the
first line that is wrong; `find_damage` names all of them, and checks what follows a refused line as if that line had
been right, so that one fault is told once.
"""

import copy
import gzip
import hashlib
import itertools
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import EncodedBatch, Snapshot, first_chain, next_chain
from refold.stores.append_rules import POSITION_MAX, check_append, check_snapshot
from refold.stores.event_store import Tombstone
from refold.stores.forked import begins_behind, origin_in
from refold.stores.jsonl.format import (
    LINE_BYTES_MAX,
    LOG_IN_BUNDLE,
    BatchLine,
    EndLine,
    HeaderLine,
    Line,
    PayloadLine,
    SnapshotLine,
    TombstoneLine,
    decoded,
    decoded_header,
    digest_of,
)
from refold.stores.sqlite.file import BUNDLE_SUFFIX

_logger = logging.getLogger("refold.stores")

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
        self.size_bytes = 0
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
    """Checks the lines of one log, from the header on; the caller has the ends of streams from the lines before."""

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
        self._blank = 0

    @property
    def lines(self) -> int:
        return self._place.line

    @property
    def size_bytes(self) -> int:
        return self._place.size_bytes

    @property
    def in_append(self) -> bool:
        return self._before_append is not None

    @property
    def may_end_torn(self) -> bool:
        """Whether the lines come from a store that wrote them one append at a time, and may have died in one."""
        header = self._place.header
        return header is not None and (not header.export or self._place.ended)

    @property
    def header(self) -> HeaderLine | None:
        return self._place.header

    def take(self, data: bytes) -> Checked:
        """Return what is in the next line, given with its end, or raise LogFormatError and take nothing."""
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

        For a scan that looks for all that is wrong; what is said of the lines that follow is meant beside this one.
        """
        if self._place.header is None:
            raise ValueError("the header cannot be skipped")
        place = self._place
        self._before_append = None
        self._heads.clear()
        self._payloads.clear()
        self._count(data)
        line = _decoded_or_none(data)
        if isinstance(line, EndLine):
            place.ended = True
        if not isinstance(line, BatchLine):
            return None
        if place.position < line.position <= POSITION_MAX - len(line.events):
            place.position = line.position + len(line.events) - 1
        return line

    def pass_blank(self, data: bytes) -> bool:
        """Go on behind a line if nothing is in it, and tell whether that was so.

        An editor leaves such lines; they are in no append and in no digest.
        """
        if data.strip():
            return False
        self._place.line += 1
        self._place.size_bytes += len(data)
        self._blank += 1
        return True

    def give_up_append(self) -> None:
        """Go back to before the append that is not complete."""
        if self._before_append is not None:
            self._place, self._before_append = self._before_append, None
            self._heads.clear()
            self._payloads.clear()

    def leave_out_torn_end(self) -> None:
        """Go back to before the append that is not complete, and say so in the log of the process."""
        self.give_up_append()
        _logger.warning(
            "what follows line %d of %s is no complete append, as a writer leaves that died; it is left out",
            self.lines,
            self._name,
        )

    def finish(self) -> None:
        if self._place.header is None:
            raise LogFormatError(f"{self._name} is empty, so it is no log")
        if self.in_append or (self._place.header.export and not self._place.ended):
            raise self.damaged("it is missing: the file was cut short; export the log again")
        if self._blank:
            _logger.warning("blank lines of %s are skipped: %d", self._name, self._blank)

    def damaged(self, what: str) -> LogFormatError:
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
        head = self._head(stream)
        if head is not None:
            version, before = head
        else:
            place = origin_in(batch, batch.expected_version + 1)
            version, before = begins_behind(place, self._version_of), first_chain(stream)
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

    def _head(self, stream: str) -> tuple[int, bytes] | None:
        return self._heads.get(stream) or self.find_head(stream)

    def _version_of(self, stream: str) -> int:
        head = self._head(stream)
        return head[0] if head is not None else 0

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
        place.size_bytes += len(data)
        if place.header is not None and place.header.export and not place.ended:
            place.digest.update(data.rstrip(b" \t\r\n") + b"\n")  # As it was written.


def _check_tombstone(tombstone: Tombstone) -> None:
    """Refuse what no stream can have been; return if it can."""
    # A stream that ended so could have gone on: with this batch.
    going_on = EncodedBatch(
        stream=tombstone.stream, expected_version=tombstone.version, at=tombstone.at, events=(b"{}",)
    )
    check_append((going_on,), {})
    if not 0 < tombstone.position <= POSITION_MAX:
        raise ValueError(f"a tombstone has position {tombstone.position}")


def complete_appends(check: LinesCheck, source: BinaryIO) -> Iterator[list[Checked]]:
    """Give what each append holds, one append after the other; another line counts as an append of its own.

    Early versions of Refold wrote logs as text while they ran. One that died left half an append at the end, which was
    never acknowledged and is left out. The caller keeps what is given, so that the check finds it again.
    """
    append: list[Checked] = []
    lines = _lines(source)
    torn = False
    for data in lines:
        if check.pass_blank(data):
            continue
        try:
            append.append(check.take(data))
        except LogFormatError:
            torn = check.may_end_torn and _is_torn(data, lines)
            if not torn:
                raise
            break
        if not check.in_append:
            yield append
            append = []
    if torn or (check.in_append and check.may_end_torn):
        check.leave_out_torn_end()
    check.finish()


def _is_torn(refused: bytes, following: Iterator[bytes]) -> bool:
    """Whether a refused line and those that follow can be half an append, as a dead writer or a power cut leaves it.

    A file system may make a file longer before it has written the content; the hole then reads as NUL characters,
    which no line has. After a hole the append may have its last line, and nothing else may follow.
    """
    if not refused.endswith(b"\n") and len(refused) <= LINE_BYTES_MAX:
        return True
    holes = False
    for data in itertools.chain([refused], following):
        if b"\0" in data:
            holes = True
        elif data.endswith(b"\n"):
            line = _decoded_or_none(data)
            if not (isinstance(line, BatchLine | PayloadLine) and line.more):
                ends_append = isinstance(line, BatchLine | PayloadLine | SnapshotLine)
                return holes and ends_append and next(following, None) is None
    return holes


class DamagedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that is not what it has to be."""

    message: str
    """What is wrong with which line."""
    stream: str = ""
    """Whose batch it is, where that can be told."""
    version: int = 0
    """Of the first event of that batch."""
    position: int | None = None
    """Of that event."""


class LinesFound(msgspec.Struct, kw_only=True):
    """What a file holds."""

    streams: dict[str, tuple[int, bytes]]
    """The version and the chain of each."""
    batches: int = 0
    events: int = 0
    payloads: int = 0


def find_damage(path: Path) -> tuple[LinesFound, list[DamagedLine]]:
    """Return what a file of JSON Lines holds, and all lines that are wrong, in order.

    It blocks; run it in a thread.

    Raises:
        LogFormatError: the file is no log in this form, or comes from a newer Refold.
    """
    try:
        with open_lines(path) as file:
            return _Scan(path).run(file)
    except OSError as error:
        raise PersistenceError(f"the log {path} cannot be read: {error.strerror}") from error


class _Scan:
    """One reading of a file."""

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        self._found = LinesFound(streams={})
        self._payloads: set[PayloadHash] = set()
        self._damage: list[DamagedLine] = []
        self._check = LinesCheck(self._name, self._found.streams.get, self._payloads.__contains__)

    def run(self, file: BinaryIO) -> tuple[LinesFound, list[DamagedLine]]:
        last = b""
        for data in _lines(file):
            if self._check.pass_blank(data):
                continue
            if not data.endswith(b"\n") and self._check.may_end_torn:
                break  # A writer that died leaves half a line.
            self._take(data)
            last = data
        if last.endswith(b"\n") or not last:
            self._finish()
        return self._found, self._damage

    def _take(self, data: bytes) -> None:
        try:
            checked = self._check.take(data)
        except LogFormatError as error:
            if self._check.header is None:
                raise
            self._note(data, error)
            return
        if isinstance(checked, CheckedBatch):
            batch = checked.batch
            self._add(batch.stream, batch.expected_version + len(batch.events), checked.chain, len(batch.events))
        elif isinstance(checked, CheckedPayload):
            self._payloads.add(checked.hash)
            self._found.payloads += 1

    def _add(self, stream: str, version: int, chain: bytes, events: int) -> None:
        self._found.streams[stream] = (version, chain)
        self._found.batches += 1
        self._found.events += events

    def _note(self, data: bytes, error: LogFormatError) -> None:
        is_end = isinstance(_decoded_or_none(data), EndLine)
        line = self._check.skip(data)
        if is_end and self._damage:
            return  # It counts and digests the lines before, of which it is known that they are not what they were.
        message = str(error).removeprefix(f"{self._name}, ")
        if line is None:
            self._damage.append(DamagedLine(message=message))
            return
        self._damage.append(
            DamagedLine(message=message, stream=line.stream, version=line.version, position=line.position)
        )
        self._go_on_from(line)

    def _go_on_from(self, line: BatchLine) -> None:
        """Take a batch at its word, so that those that follow it are compared with it and not with the one before."""
        try:
            chain = digest_of(line.chain)
        except ValueError:
            return  # Nothing can follow it.
        if line.version >= 1 and line.events:
            self._add(line.stream, line.version + len(line.events) - 1, chain, len(line.events))

    def _finish(self) -> None:
        """Half an append at the end is what a writer leaves that died."""
        if self._check.may_end_torn:
            self._check.give_up_append()
        try:
            self._check.finish()
        except LogFormatError as error:
            if self._check.header is None:
                raise
            self._damage.append(DamagedLine(message=str(error).removeprefix(f"{self._name}, ")))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Give the lines of a file; of one that is longer than lines may be, the beginning."""
    try:
        while data := file.readline(LINE_BYTES_MAX + 1):
            yield data
            while not data.endswith(b"\n") and len(data) > LINE_BYTES_MAX:
                data = file.readline(LINE_BYTES_MAX + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise LogFormatError(f"{getattr(file, 'name', 'the file')} is compressed and damaged: {error}") from error


def open_lines(path: Path) -> BinaryIO:
    """Open a text log, which is compressed where its name ends in `.gz`, and in an archive where it is a bundle."""
    name = path.name.lower()
    if name.endswith(BUNDLE_SUFFIX):
        try:
            with zipfile.ZipFile(path) as archive:  # What is opened in it keeps the file open.
                return cast("BinaryIO", archive.open(LOG_IN_BUNDLE))
        except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError) as error:
            raise LogFormatError(f"{path} is no bundle: {error}") from error
    return cast("BinaryIO", gzip.open(path, "rb")) if name.endswith(".gz") else path.open("rb")


def _decoded_or_none(data: bytes) -> Line | None:
    try:
        return decoded(data)
    except ValueError:
        return None
