"""Ways in which the bytes of a log's file can be damaged or made to lie; for `tests.selfcheck.hostile`.

Of a file of SQLite these are bits, pages and the files beside it, of a text log also its lines.
"""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from refold.stores.sqlite.file import PAGE_BYTES
from tests.selfcheck.hostile.event_mutations import EVENT_MUTATIONS

ChangeFile = Callable[[Path, random.Random], None]


def _flip_bits(log: Path, chance: random.Random) -> None:
    data = bytearray(log.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 8, 64, 1_000))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    log.write_bytes(data)


def _flip_in_structure(log: Path, chance: random.Random) -> None:
    """Change bytes where SQLite keeps lengths, offsets and page numbers: at the beginnings of pages."""
    data = bytearray(log.read_bytes())
    page = PAGE_BYTES * chance.randrange(len(data) // PAGE_BYTES)
    for _ in range(chance.choice((1, 2, 4))):
        place = page + chance.randrange(100 if page == 0 else 40)
        data[place] = chance.choice((0, 1, 2, 5, 10, 13, 127, 128, 255, chance.randrange(256)))
    log.write_bytes(data)


def _cut(log: Path, chance: random.Random) -> None:
    data = log.read_bytes()
    size = chance.choice((0, 1, 15, 16, 99, 100, 512, PAGE_BYTES, len(data) - 1, chance.randrange(len(data))))
    log.write_bytes(data[:size])


def _overwrite(log: Path, chance: random.Random) -> None:
    """Overwrite a page, or a few bytes anywhere, with zeros, chance, or another page."""
    data = bytearray(log.read_bytes())
    pages = max(1, len(data) // PAGE_BYTES)
    start, other = (PAGE_BYTES * chance.randrange(pages) for _ in range(2))
    size = chance.choice((PAGE_BYTES, 512, 8))
    data[start : start + size] = chance.choice((bytes(size), chance.randbytes(size), bytes(data[other : other + size])))
    log.write_bytes(data)


def _append(log: Path, chance: random.Random) -> None:
    data = log.read_bytes()
    log.write_bytes(data + chance.choice((b"\0", b"\n", bytes(PAGE_BYTES), chance.randbytes(5_000), data)))


def _no_log(log: Path, chance: random.Random) -> None:
    log.write_bytes(
        chance.choice((b"", b"\n", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(4_080), b"{}", b"PK"))
    )


def _garbage_beside(log: Path, chance: random.Random) -> None:
    """Put a WAL, a journal or shared memory beside the file that it does not belong to."""
    suffix = chance.choice(("-wal", "-wal", "-wal", "-journal", "-shm", "-lock", ".lock", ".inbox"))
    magic = chance.choice(
        (b"", b"\x37\x7f\x06\x82\x00\x2d\xe2\x18\x00\x00\x10\x00", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")
    )
    log.with_name(log.name + suffix).write_bytes(magic + chance.randbytes(chance.choice((0, 20, 32, 5_000, 100_000))))


SQLITE_FILE_MUTATIONS: Mapping[str, ChangeFile] = {
    "bits flipped": _flip_bits,
    "lengths and offsets changed": _flip_in_structure,
    "cut short": _cut,
    "pages overwritten": _overwrite,
    "bytes added": _append,
    "no log at all": _no_log,
    "garbage beside the file": _garbage_beside,
}
"""By name."""


def _lines_changed(change: Callable[[list[bytes], random.Random], None]) -> ChangeFile:
    def mutate(log: Path, chance: random.Random) -> None:
        lines = log.read_bytes().splitlines(keepends=True)
        change(lines, chance)
        log.write_bytes(b"".join(lines))

    return mutate


def _event_in_line(lines: list[bytes], chance: random.Random) -> None:
    """Change the JSON of one event, inside its line."""
    batches = [index for index, line in enumerate(lines) if line.startswith(b'{"line":"batch"')]
    index = chance.choice(batches)
    line = json.loads(lines[index])
    others = [json.dumps(event).encode() for each in batches for event in json.loads(lines[each])["events"]]
    place = chance.randrange(len(line["events"]))
    event = json.dumps(line["events"][place]).encode()
    mutated = EVENT_MUTATIONS[chance.choice(tuple(EVENT_MUTATIONS))](event, chance, others)
    line["events"][place] = "HERE"
    lines[index] = json.dumps(line, separators=(",", ":")).encode().replace(b'"HERE"', mutated) + b"\n"


def _line_itself(lines: list[bytes], chance: random.Random) -> None:
    """Change a field of a line as those of an event are changed."""
    index = chance.randrange(len(lines))
    name = chance.choice(tuple(EVENT_MUTATIONS))
    data = lines[index].replace(b'{"line":', b'{"type":', 1)
    others = [line.replace(b'{"line":', b'{"type":', 1) for line in chance.sample(lines, 3)]
    lines[index] = EVENT_MUTATIONS[name](data, chance, others).replace(b'"type":', b'"line":', 1) + b"\n"


def _lines_moved(lines: list[bytes], chance: random.Random) -> None:
    one, two = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            del lines[one]
        case 1:
            lines.insert(two, lines[one])
        case 2:
            lines[one], lines[two] = lines[two], lines[one]
        case _:
            lines[:] = lines[:one]


def _line_ends(lines: list[bytes], chance: random.Random) -> None:
    index = chance.randrange(len(lines))
    line = lines[index]
    lines[index] = chance.choice(
        (
            line[:-1],
            line[:-1] + b"\r\n",
            line + b"\n",
            b"\xef\xbb\xbf" + line,
            line.replace(b",", b",\n", 1),
            b"x" * 3_000_000 + b"\n",
            b"[" * 100_000 + b"\n",
            b"\0" + line,
        )
    )


LINES_FILE_MUTATIONS: Mapping[str, ChangeFile] = {
    "an event in a line": _lines_changed(_event_in_line),
    "a line": _lines_changed(_line_itself),
    "lines dropped, repeated, swapped": _lines_changed(_lines_moved),
    "line ends and long lines": _lines_changed(_line_ends),
    "bits flipped": _flip_bits,
    "cut short": _cut,
    "bytes overwritten": _overwrite,
    "bytes added": _append,
    "no log at all": _no_log,
}
"""By name."""
