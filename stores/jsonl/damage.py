"""All that is wrong with a file of JSON Lines: what opening it stops at the first of.

Read `refold.stores.jsonl.check` first, whose rules these are. The rule it protects: a line that is refused hides
nothing behind it. What follows is checked as if that line had been right, as far as it says what it was to be, so that
one fault is told once. What needs the whole log, such as whether events could have happened, is not looked at: a log
with a damaged line cannot be read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash
from refold.stores.jsonl.check import CheckedBatch, CheckedPayload, LinesCheck
from refold.stores.jsonl.format import LINE_BYTES_MAX, BatchLine, EndLine, decoded, digest_of


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
        PersistenceError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
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
            if not data.endswith(b"\n") and self._check.header is not None and not self._check.header.export:
                break  # A writer that died leaves half a line; readers look past it.
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
        """Note a line that is wrong, and go on behind it."""
        is_end = _is_end(data)
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
        """Note what is missing at the end; half an append is what a writer leaves that died."""
        header = self._check.header
        if header is None or not header.export:
            self._check.give_up_append()
        try:
            self._check.finish()
        except LogFormatError as error:
            if header is None:
                raise
            self._damage.append(DamagedLine(message=str(error).removeprefix(f"{self._name}, ")))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Give the lines of a file; of one that is longer than lines may be, the beginning."""
    while data := file.readline(LINE_BYTES_MAX + 1):
        yield data
        while not data.endswith(b"\n") and len(data) > LINE_BYTES_MAX:
            data = file.readline(LINE_BYTES_MAX + 1)


def _is_end(data: bytes) -> bool:
    try:
        return isinstance(decoded(data), EndLine)
    except ValueError:
        return False
