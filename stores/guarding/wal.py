"""SQLite's write-ahead log as a file: where its transactions end, and whether what was in it is still there.

The form is SQLite's (https://www.sqlite.org/fileformat2.html#the_write_ahead_log): a header, then frames of one page
each, the last of a transaction marked; salts tell the frames of today from those of before the WAL was begun anew, and
a checksum runs through all of them.

SQLite keeps in memory where the WAL ends and never looks at the file again. So a WAL that is cut under a running
process is written on behind a hole, every commit succeeds, and all of it is lost with the process. `WalWatch` looks, at
each commit, whether the end of the last transaction is where it was.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
COUNTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""A WAL that is longer is not added up when a log is opened, which would take seconds."""

_MAGIC: Final = 0x377F0682
_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")


class WalHeader(NamedTuple):
    """What the first bytes of a WAL say."""

    page_bytes: int
    salts: tuple[int, int]
    checksum: tuple[int, int]
    byte_order: str
    """Of the words that the checksums add up, as `struct` has it."""

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER_BYTES + self.page_bytes


class WalFrame(NamedTuple):
    """One page, as a transaction left it."""

    page: int
    ends_transaction: bool
    pages: int
    """Of the database after the transaction, where the frame ends one."""
    content: bytes


def wal_header(data: bytes) -> WalHeader | None:
    """Return what a header says; None where it is none, or damaged."""
    if len(data) < HEADER_BYTES:
        return None
    magic, _, page_bytes, _, salt_1, salt_2, sum_1, sum_2 = _HEADER.unpack(data[:HEADER_BYTES])
    if magic & ~1 != _MAGIC or not 512 <= page_bytes <= 65536 or page_bytes & (page_bytes - 1):
        return None
    order = ">" if magic & 1 else "<"
    if _checksum(data[:24], (0, 0), order) != (sum_1, sum_2):
        return None
    return WalHeader(page_bytes, (salt_1, salt_2), (sum_1, sum_2), order)


def _checksum(data: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def committed_frames(wal: bytes) -> Iterator[WalFrame]:
    """Give the frames of whole transactions, in order, as SQLite would take them when it opens the file."""
    header = wal_header(wal)
    if header is None:
        return
    checksum = header.checksum
    transaction: list[WalFrame] = []
    for offset in range(HEADER_BYTES, len(wal) - header.frame_bytes + 1, header.frame_bytes):
        page, pages, salt_1, salt_2, sum_1, sum_2 = _FRAME.unpack_from(wal, offset)
        content = wal[offset + FRAME_HEADER_BYTES : offset + header.frame_bytes]
        checksum = _checksum(wal[offset : offset + 8] + content, checksum, header.byte_order)
        if (salt_1, salt_2) != header.salts or (sum_1, sum_2) != checksum or not page:
            return
        transaction.append(WalFrame(page, pages > 0, pages, content))
        if pages:
            yield from transaction
            transaction.clear()


class WalCut(Exception):
    """A WAL is not what was written into it."""


class WalWatch:
    """Looks at the WAL of an open log before each transaction and after it; close it with `close`."""

    def __init__(self, path: Path) -> None:
        """Begin with what the file holds now, which must be a WAL that SQLite has open.

        Of a WAL that is longer than `COUNTED_BYTES_MAX` the first transactions are taken for the last ones.

        Raises:
            WalCut: it is no WAL.
            OSError: it cannot be read.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._header: bytes = b""
        self._form: WalHeader | None = None
        self._end = HEADER_BYTES
        self._last = b""
        self._leftover = False
        """Whether frames of today stand behind the end: the next transaction is written over them."""
        try:
            wal = path.read_bytes() if self.size <= COUNTED_BYTES_MAX else b""
            self._begin(sum(1 for _ in committed_frames(wal)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    def is_short(self) -> bool:
        """Tell whether the file is shorter than it was; a checkpoint may have emptied it."""
        return self.size < self._end

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return os.fstat(self._descriptor).st_size

    def after_commit(self) -> None:
        """Look where the WAL ends now.

        Raises:
            WalCut: what was in the WAL, or what was to be written into it, is not there.
            OSError: it cannot be read.
        """
        if self.size:  # Empty after a checkpoint, and nothing was to be written.
            self._look()

    def _begin(self, frames: int) -> None:
        self._header = self._read(0, HEADER_BYTES)
        self._form = wal_header(self._header)
        if self._form is None:
            raise WalCut("its header is gone")
        self._go_to(frames)

    def _look(self) -> None:
        found = self._read(0, HEADER_BYTES)
        if found != self._header:
            form, before = wal_header(found), self._form
            if form is None:
                raise WalCut("its header is gone")
            if before is not None and not self._leftover and self._salts_at(self._end) == before.salts:
                raise WalCut("it is another WAL")  # SQLite has gone on behind what it takes to be there.
            self._header, self._form, self._end, self._last = found, form, HEADER_BYTES, b""
        elif self._last and self._read(self._end - len(self._last), len(self._last)) != self._last:
            raise WalCut("its last transaction is gone")
        self._go_to_next_end()

    def _go_to_next_end(self) -> None:
        """Go to the end of the transaction that was written since the last look.

        That is the first frame which ends one. Those behind it may look as if they were of today, too: a transaction
        that failed has left them there, and the next one is written over them.
        """
        form = self._form
        assert form is not None
        frame = (self._end - HEADER_BYTES) // form.frame_bytes
        most = (self.size - HEADER_BYTES) // form.frame_bytes
        while frame < most:
            _, pages, *salts, _, _ = self._frame_header(frame)
            if tuple(salts) != form.salts:
                return
            frame += 1
            if pages:
                self._go_to(frame)
                return

    def _go_to(self, frames: int) -> None:
        form = self._form
        assert form is not None
        self._end = HEADER_BYTES + frames * form.frame_bytes
        self._last = self._read(self._end - form.frame_bytes, form.frame_bytes) if frames else b""
        self._leftover = self._salts_at(self._end) == form.salts

    def _salts_at(self, offset: int) -> tuple[int, ...]:
        data = os.pread(self._descriptor, FRAME_HEADER_BYTES, offset)
        return _FRAME.unpack(data)[2:4] if len(data) == FRAME_HEADER_BYTES else ()

    def _frame_header(self, frame: int) -> tuple[int, ...]:
        assert self._form is not None
        return _FRAME.unpack(self._read(HEADER_BYTES + frame * self._form.frame_bytes, FRAME_HEADER_BYTES))

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) < length:
            raise WalCut("it was cut")
        return data
