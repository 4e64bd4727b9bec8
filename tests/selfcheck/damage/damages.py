"""What may happen to the files of a log: one page, one row, one index, one cut, some bits, at a drawn place."""

import os
import random
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from refold.stores.sqlite.file import PAGE_BYTES

WAL_HEADER_BYTES, FRAME_BYTES = 32, 24 + PAGE_BYTES

Damage = Callable[[Path, random.Random], None]
"""Changes the file of a log, or the WAL beside it."""


def wal(log: Path) -> Path:
    return log.with_name(log.name + "-wal")


def _overwrite(file: Path, offset: int, data: bytes) -> None:
    """Change a file in its place, as a process that has it open will see it."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)


def _bits(file: Path, chance: random.Random) -> None:
    content = file.read_bytes()
    offset = chance.randrange(len(content))
    _overwrite(file, offset, bytes([content[offset] ^ 1 << chance.randrange(8)]))


def _bytes(file: Path, chance: random.Random) -> None:
    size = file.stat().st_size
    _overwrite(file, chance.randrange(size), chance.randbytes(chance.choice((1, 2, 8, 100))))


def _page(file: Path, chance: random.Random) -> int:
    return chance.randrange(file.stat().st_size // PAGE_BYTES) * PAGE_BYTES


def _zero_page(file: Path, chance: random.Random) -> None:
    _overwrite(file, _page(file, chance), bytes(PAGE_BYTES))


def _zero_part_of_page(file: Path, chance: random.Random) -> None:
    begin = chance.randrange(0, PAGE_BYTES, 512)
    _overwrite(file, _page(file, chance) + begin, bytes(PAGE_BYTES - begin))


def _garbage_page(file: Path, chance: random.Random) -> None:
    _overwrite(file, _page(file, chance), chance.randbytes(PAGE_BYTES))


def _swap_pages(file: Path, chance: random.Random) -> None:
    content, first, second = file.read_bytes(), _page(file, chance), _page(file, chance)
    _overwrite(file, first, content[second : second + PAGE_BYTES])
    _overwrite(file, second, content[first : first + PAGE_BYTES])


def _repeat_page(file: Path, chance: random.Random) -> None:
    content, source = file.read_bytes(), _page(file, chance)
    _overwrite(file, _page(file, chance), content[source : source + PAGE_BYTES])


def _cut(file: Path, chance: random.Random) -> None:
    os.truncate(file, chance.randrange(file.stat().st_size))


def _cut_at_page(file: Path, chance: random.Random) -> None:
    os.truncate(file, _page(file, chance))


def _append(file: Path, chance: random.Random) -> None:
    _overwrite(file, file.stat().st_size, chance.randbytes(chance.choice((1, 100, PAGE_BYTES))))


def _empty_leaf(log: Path, chance: random.Random) -> None:
    """Take all rows out of one leaf, of a table or an index."""
    content = log.read_bytes()
    leaves = [page for page in range(PAGE_BYTES, len(content), PAGE_BYTES) if content[page] in (10, 13)]
    _overwrite(log, chance.choice(leaves) + 3, bytes(2) + PAGE_BYTES.to_bytes(2, "big"))


def _drop_cell(log: Path, chance: random.Random) -> None:
    """Take one row out of one leaf."""
    content = log.read_bytes()
    leaves = [
        page
        for page in range(PAGE_BYTES, len(content), PAGE_BYTES)
        if content[page] in (10, 13) and any(content[page + 3 : page + 5])
    ]
    page = chance.choice(leaves)
    count = int.from_bytes(content[page + 3 : page + 5], "big")
    cells = [content[page + 8 + 2 * cell : page + 10 + 2 * cell] for cell in range(count)]
    del cells[chance.randrange(count)]
    _overwrite(log, page + 3, (count - 1).to_bytes(2, "big"))
    _overwrite(log, page + 8, b"".join(cells))


_ROWS: Final = (
    "DELETE FROM events WHERE position = (SELECT position FROM events ORDER BY random() LIMIT 1)",
    "DELETE FROM events WHERE position > (SELECT position FROM events ORDER BY random() LIMIT 1)",
    "DELETE FROM streams WHERE id = (SELECT id FROM streams ORDER BY random() LIMIT 1)",
    "DELETE FROM payloads WHERE hash = (SELECT hash FROM payloads WHERE length(data) < 20000 ORDER BY random())",
    "DELETE FROM log",
    "UPDATE events SET data = replace(data, 'n', 'm')",
    "UPDATE events SET at = at + 1 WHERE position = (SELECT position FROM events ORDER BY random() LIMIT 1)",
    "UPDATE events SET pending = '' WHERE pending <> ''",
    "UPDATE streams SET pending = ''",
    "UPDATE streams SET pending = 'model:1' WHERE pending = ''",
    "UPDATE streams SET version = version - 1 WHERE id = (SELECT id FROM streams ORDER BY random() LIMIT 1)",
    "UPDATE payloads SET data = x'00'",
    # Not of a whole batch, which leaves all in order.
    "UPDATE events SET position = position + 1000 WHERE position = (SELECT max(position) FROM events)"
    " AND batch < version",
)


def _row(log: Path, chance: random.Random) -> None:
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.create_function("random", 0, lambda: chance.getrandbits(62))
        connection.execute(chance.choice(_ROWS))


def _index(log: Path, chance: random.Random) -> None:
    """Take rows out of an index, or put wrong ones into it, while its table stays."""
    name = chance.choice(("streams_with_pending", "sqlite_autoindex_streams_1", "sqlite_autoindex_events_1"))
    with closing(sqlite3.connect(log)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    page = (root - 1) * PAGE_BYTES
    if chance.randrange(2):
        _overwrite(log, page, bytes([10, 0, 0, 0, 0, PAGE_BYTES >> 8, 0, 0]))
    else:
        _overwrite(log, page + chance.randrange(PAGE_BYTES), chance.randbytes(4))


def _in_wal(damage: Damage) -> Damage:
    return lambda log, chance: damage(wal(log), chance)


def _zero_frame(log: Path, chance: random.Random) -> None:
    frame = chance.randrange((wal(log).stat().st_size - WAL_HEADER_BYTES) // FRAME_BYTES)
    _overwrite(wal(log), WAL_HEADER_BYTES + frame * FRAME_BYTES, bytes(FRAME_BYTES))


def _cut_at_frame(log: Path, chance: random.Random) -> None:
    frame = chance.randrange((wal(log).stat().st_size - WAL_HEADER_BYTES) // FRAME_BYTES)
    os.truncate(wal(log), WAL_HEADER_BYTES + frame * FRAME_BYTES)


_OF_LOG: Mapping[str, Damage] = {
    "bit": _bits,
    "bytes": _bytes,
    "page zeroed": _zero_page,
    "page half zeroed": _zero_part_of_page,
    "page garbage": _garbage_page,
    "pages swapped": _swap_pages,
    "page twice": _repeat_page,
    "leaf emptied": _empty_leaf,
    "row taken out": _drop_cell,
    "index": _index,
    "cut": _cut,
    "cut at a page": _cut_at_page,
    "more bytes": _append,
}
_OF_WAL: Mapping[str, Damage] = {
    "WAL: bit": _in_wal(_bits),
    "WAL: bytes": _in_wal(_bytes),
    "WAL: cut": _in_wal(_cut),
    "WAL: cut at a frame": _cut_at_frame,
    "WAL: frame zeroed": _zero_frame,
    "WAL: emptied": lambda log, _: os.truncate(wal(log), 0),
    "WAL: more bytes": _in_wal(_append),
}

CLOSED: Final[Mapping[str, Damage]] = {**_OF_LOG, "row edited": _row}
"""To a log that was closed in order."""

CRASHED: Final[Mapping[str, Damage]] = {**_OF_LOG, **_OF_WAL, "WAL: removed": lambda log, _: wal(log).unlink()}
"""To a log whose process was killed."""

RUNNING: Final[Mapping[str, Damage]] = {
    **{name: damage for name, damage in _OF_LOG.items() if name not in ("index", "more bytes")},
    **_OF_WAL,
}
"""To a log that a store has open."""
