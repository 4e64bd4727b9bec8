"""The rows of a log's file, read page by page without SQLite, also where SQLite finds the file malformed.

The form is SQLite's (https://www.sqlite.org/fileformat2.html). No tree is followed: every page that looks like a leaf
is read, and its rows are told apart by the types of their columns. So no page costs more than its own rows. What is
found may be old, foreign or wrong; who uses it (`repair`) believes only what digests prove.

The pages are those of the file, with those of the WAL over them: first as SQLite takes them, up to the first frame that
is damaged, and then also what stands behind that, which SQLite never reads. The files are opened for reading only.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from refold.stores.append_rules import BYTES_MAX
from refold.stores.event_store import TellProgress, untold
from refold.stores.guarding.log_place import FRAME_HEADER_BYTES, HEADER_BYTES, WalHeader, committed_frames, wal_header
from refold.stores.sqlite.file import PAGE_BYTES

PAGES_COUNTED_MAX: Final = 1 << 24
"""Beyond so many pages, 64 GiB, it is not counted how many are missing."""

PAGE_SIZES: Final = (PAGE_BYTES, 4096)
"""Of the logs that Refold makes, and of those that it made before."""

_PAGES_LOOKED_AT: Final = 64

_MAGIC: Final = b"SQLite format 3\0"
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 13, 10, 2
_KINDS: Final = (_INDEX_INTERIOR, 5, _INDEX_LEAF, _TABLE_LEAF)
_ROW_BYTES_MAX: Final = BYTES_MAX + 65536
_INTEGERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FRAME: Final = struct.Struct(">6I")

Value: TypeAlias = int | float | bytes | None
"""Of a column; texts are bytes. A text of another type than a blob has its letter in `Row.types`."""


class RowPlace(NamedTuple):
    """Where a row is: which pages are meant, the page, and which of its cells."""

    image: int
    page: int
    cell: int


class Row(NamedTuple):
    """A row of a table, or an entry of an index."""

    rowid: int | None
    """None in an index."""
    types: str
    """One letter per column: n (null), i (integer), f (floating), t (text), b (blob)."""
    values: Sequence[Value]
    place: RowPlace


class MalformedPage(ValueError):
    """A page, or a row in it, makes no sense."""


class LogPages:
    """The pages of one log; close it with `close`."""

    def __init__(self, log: Path) -> None:
        wal = log.with_name(log.name + "-wal")
        self._descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._descriptor).st_size
            header = os.pread(self._descriptor, 100, 0)
            data = wal.read_bytes() if wal.exists() else b""
        except OSError:
            self.close()
            raise
        form = wal_header(data) or _assumed(data)
        self.page_bytes = form.page_bytes if form is not None else _page_bytes(header, self._descriptor)
        self._usable = self.page_bytes - (header[20] if len(header) > 20 and header[20] < 64 else 0)
        committed = {frame.page: frame.content for frame in committed_frames(data)}
        beyond = _all_frames(data, form) if form is not None else {}
        self._images = [committed]
        if beyond != committed:
            self._images.append(beyond)
        first = committed.get(1, header)
        said = int.from_bytes(first[28:32], "big") if first.startswith(_MAGIC) else 0
        behind = range(self._size // self.page_bytes + 1, min(said, PAGES_COUNTED_MAX) + 1)
        self.lost_pages = sum(page not in beyond and page not in committed for page in behind)
        """Pages that the file must have had, and that are missing at its end."""

    def close(self) -> None:
        os.close(self._descriptor)

    def rows(self, progress: TellProgress = untold) -> Iterator[Row]:
        """Give the rows and entries of all pages that make sense, without the ends of those that are long."""
        for image, overlay in enumerate(self._images):
            pages = range(1, max(self._size // self.page_bytes, *overlay, 0) + 1) if not image else sorted(overlay)
            for page in pages:
                progress("pages" if not image else "older pages", page, pages[-1])
                content = self._page(image, page)
                for cell in range(self._cells(content, page)[1]):
                    row = self._row(content, RowPlace(image, page, cell))
                    if row is not None:
                        yield row

    def row(self, place: RowPlace) -> Row | None:
        """Return one row; None where it makes no sense."""
        return self._row(self._page(place.image, place.page), place)

    def _row(self, page: bytes, place: RowPlace) -> Row | None:
        kind, count, first = self._cells(page, place.page)
        if place.cell >= count:
            return None
        try:
            (offset,) = struct.unpack_from(">H", page, first + 2 * place.cell)
            if kind == _INDEX_INTERIOR:
                offset += 4
            length, offset = _varint(page, offset)
            rowid: int | None = None
            if kind == _TABLE_LEAF:
                number, offset = _varint(page, offset)
                rowid = number - (1 << 64) if number >> 63 else number
            body = self._body(place.image, page, offset, length, is_table=kind == _TABLE_LEAF)
            types, values = _record(body)
        except (struct.error, IndexError, MalformedPage):  # Nothing says that it ever was a row.
            return None
        return Row(rowid, types, values, place)

    def _cells(self, page: bytes, number: int) -> tuple[int, int, int]:
        """Return the kind of a page, how many rows it has, and where their list begins."""
        begin = 100 if number == 1 else 0
        if len(page) < self.page_bytes or page[begin] not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return 0, 0, 0
        count = min(page[begin + 3] << 8 | page[begin + 4], self.page_bytes // 4)
        return page[begin], count, begin + (12 if page[begin] == _INDEX_INTERIOR else 8)

    def _page(self, image: int, number: int) -> bytes:
        found = self._images[image].get(number)
        if found is not None:
            return found
        try:
            return os.pread(self._descriptor, self.page_bytes, (number - 1) * self.page_bytes)
        except OSError:  # A disk that cannot read this page may have others.
            return b""

    def _body(self, image: int, page: bytes, offset: int, length: int, *, is_table: bool) -> bytes:
        if length > _ROW_BYTES_MAX:
            raise MalformedPage("a row is longer than any")
        usable = self._usable
        most = usable - 35 if is_table else (usable - 12) * 64 // 255 - 23
        if length <= most:
            body = page[offset : offset + length]
        else:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (length - least) % (usable - 4)
            local = local if local <= most else least
            parts = [page[offset : offset + local]]
            (following,) = struct.unpack_from(">I", page, offset + local)
            missing = length - local
            while missing > 0:
                overflow = self._page(image, following) if following else b""
                if len(overflow) < self.page_bytes:
                    raise MalformedPage("the end of a row is missing")
                parts.append(overflow[4 : 4 + min(missing, usable - 4)])
                missing -= usable - 4
                (following,) = struct.unpack_from(">I", overflow, 0)
            body = b"".join(parts)
        if len(body) != length:
            raise MalformedPage("a row is cut")
        return body


def _page_bytes(header: bytes, descriptor: int) -> int:
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    is_header = header.startswith(_MAGIC) and size >= 512 and not size & (size - 1)
    return size if is_header else _likely_page_bytes(descriptor)


def _likely_page_bytes(descriptor: int) -> int:
    """Return the size of a file's pages by where they begin: with the larger size, nothing begins in the middle."""
    large, small = PAGE_SIZES
    begins = (os.pread(descriptor, 8, small + number * large) for number in range(1, _PAGES_LOOKED_AT))
    middles = [begin for begin in begins if len(begin) == 8]
    pages = sum(begin[0] in _KINDS and int.from_bytes(begin[3:5], "big") < small // 4 for begin in middles)
    return small if 2 * pages > len(middles) else large


def _assumed(wal: bytes) -> WalHeader | None:
    """Return what the header of a WAL must have said that is damaged, going by its first frames."""
    for size in PAGE_SIZES:
        second = HEADER_BYTES + FRAME_HEADER_BYTES + size
        if len(wal) < second:
            continue
        salts = _FRAME.unpack_from(wal, HEADER_BYTES)[2:4]
        if len(wal) < second + FRAME_HEADER_BYTES or _FRAME.unpack_from(wal, second)[2:4] == salts:
            return WalHeader(size, salts, (0, 0), "<")
    return None


def _all_frames(wal: bytes, form: WalHeader) -> dict[int, bytes]:
    """Return the last content of each page, of frames that belong to the WAL by their salts alone."""
    found: dict[int, bytes] = {}
    for offset in range(HEADER_BYTES, len(wal) - form.frame_bytes + 1, form.frame_bytes):
        page, _, *salts, _, _ = _FRAME.unpack_from(wal, offset)
        if (salts[0], salts[1]) == form.salts and 0 < page < 1 << 31:
            found[page] = wal[offset + FRAME_HEADER_BYTES : offset + form.frame_bytes]
    return found


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[offset]
        offset += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, offset
    return value << 8 | data[offset], offset + 1


def _record(body: bytes) -> tuple[str, list[Value]]:
    """Return the types and the values of a row's columns."""
    header, offset = _varint(body, 0)
    if not 0 < header <= len(body):
        raise MalformedPage("a row has no header")
    types: list[str] = []
    values: list[Value] = []
    at = header
    while offset < header:
        kind, offset = _varint(body, offset)
        value: Value = None
        letter, size = "n", 0
        if kind in _INTEGERS:
            letter, size = "i", _INTEGERS[kind]
            value = int.from_bytes(body[at : at + size], "big", signed=True)
        elif kind == 7:
            letter, size = "f", 8
        elif kind in (8, 9):
            letter, value = "i", kind - 8
        elif kind >= 12:
            letter, size = ("b", (kind - 12) // 2) if kind % 2 == 0 else ("t", (kind - 13) // 2)
            value = body[at : at + size]
        elif kind:
            raise MalformedPage("a column has a type that is none")
        at += size
        types.append(letter)
        values.append(value)
    if at != len(body):
        raise MalformedPage("a row is longer or shorter than its columns")
    return "".join(types), values
