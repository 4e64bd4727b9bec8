"""Reads one image after another through one connection, and has SQLite recover each as if it had just been opened.

To open a database, look through its schema and close it takes three times as long as to recover its WAL and read all
its pages. So the files of each image are written over those of the one before, and the index of the WAL, which lies in
shared memory, is wiped: that is what the first process finds that opens a log after all others are gone. SQLite then
recovers the WAL from its first frame, and trusts nothing that it has read of the files before
(https://www.sqlite.org/walformat.html, "Recovery").

The rule it protects: what is read here is only compared with what was read of other images in the plain way
(`tests.selfcheck.storage.recovered_reader`). An image with a journal, with another header, or that SQLite cannot read,
and each content that is new, is opened by itself.
"""

import mmap
import os
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from refold.scenarios.world.disk_model import DiskImage
from refold.stores.sqlite.file import file_uri
from tests.selfcheck.storage.recording import LOG_NAME

_WAL: Final = f"{LOG_NAME}-wal"
_JOURNAL: Final = f"{LOG_NAME}-journal"
_INDEX: Final = f"{LOG_NAME}-shm"

INDEX_HEADER_BYTES: Final = 136
"""Two copies of the header of the WAL's index, and what is known of checkpoints and readers."""

HEADER_BYTES: Final = 24
"""Of a database file, up to what changes with each transaction: what a connection looks at when it is opened."""

_WITH_WAL: Final = b"SQLite format 3\0", b"\2\2"
"""How a file begins, and its bytes 18 and 19, if SQLite looks for a WAL beside it."""


class RecoveryReader:
    """The connection and its files; use it as `with RecoveryReader(...)`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}
        """A descriptor for each file, open as long as the connection: to close one would drop SQLite's locks."""
        self._parts: dict[str, tuple[object, ...] | None] = {}
        self._header = b""
        self._connection: sqlite3.Connection | None = None
        self._index: mmap.mmap | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def content(self, image: DiskImage) -> bytes | None:
        """Return the whole database that SQLite makes of an image, or None if it has to be opened in the plain way."""
        if _JOURNAL in image.parts or not self._accepts(image):
            return None
        try:
            self._put(LOG_NAME, image)
            self._put(_WAL, image)
            if self._connection is None:
                return self._read_first()
            assert self._index is not None
            self._index[:INDEX_HEADER_BYTES] = bytes(INDEX_HEADER_BYTES)
            return self._connection.serialize()
        except sqlite3.Error:  # What it says of the image is said by a connection of its own.
            self.close()
            return None

    def close(self) -> None:
        """Close the connection and remove the files; the next image opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._index is not None:
            self._index.close()
            self._index = None
        for descriptor in self._files.values():
            os.close(descriptor)
        for name in (*self._files, _INDEX):
            (self._folder / name).unlink(missing_ok=True)
        self._files, self._parts, self._header = {}, {}, b""

    def _accepts(self, image: DiskImage) -> bool:
        part = image.parts.get(LOG_NAME)
        if part is None:
            return False
        if part == self._parts.get(LOG_NAME):
            return True
        header = bytes(image.content(LOG_NAME)[:HEADER_BYTES])
        if self._header:
            return header == self._header
        return (header[:16], header[18:20]) == _WITH_WAL

    def _put(self, name: str, image: DiskImage) -> None:
        """Write a file over the one before, unless it is the same; no WAL is an empty one."""
        part = image.parts.get(name)
        if name not in self._files:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._files[name] = os.open(self._folder / name, flags, 0o600)
        elif part == self._parts[name]:
            return
        content = image.content(name) if part is not None else b""
        descriptor = self._files[name]
        written = os.pwrite(descriptor, content, 0)
        assert written == len(content)
        os.ftruncate(descriptor, written)
        self._parts[name] = part

    def _read_first(self) -> bytes:
        uri = file_uri(self._folder / LOG_NAME, "mode=ro&vfs=unix")
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        content = self._connection.serialize()
        index = os.open(self._folder / _INDEX, os.O_RDWR | os.O_CLOEXEC)
        self._files[_INDEX] = index
        self._index = mmap.mmap(index, 0)
        self._header = os.pread(self._files[LOG_NAME], HEADER_BYTES, 0)
        return content
