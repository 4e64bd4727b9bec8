"""What is on a disk after a power cut: all that was synced, and anything or nothing of the rest.

A `DiskModel` is told every operation, in order, and can give at any moment the files as they could be found after the
power went off then. Its rules, which are those that SQLite counts on (https://www.sqlite.org/atomiccommit.html):

- What a sync has covered is there. Each write since may be there, or not, or in part, or as garbage or zeros within its
  own range; bytes beside a write do not change.
- A sync that fails is the last that is heard of the writes before it: later syncs succeed and do not cover them, unless
  they are written again, while every reader still gets them (https://lwn.net/Articles/752063/).
- A name that was made, removed or changed is so for certain once the folder was synced. SQLite does that at the first
  sync through each handle of a WAL or journal that it may create, even if the file was there already, and after a
  deletion where it says so. Until then each change of a name may have taken effect or not.

Time passes in operations only, so that the model of a recorded run can stop at each of them (`power_loss`).
"""

import random
from collections.abc import Mapping, Sequence
from os.path import basename
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from refold.scenarios.world.sqlite_shim import OPEN_CREATE, OPEN_MAIN_JOURNAL, OPEN_WAL, FileOperation

DiskDamage: TypeAlias = Literal["none", "all", "subset", "prefix", "torn_head", "torn_tail", "garbage", "zeros"]
"""What becomes of what was not synced: lost, kept, some of it in any combination, the first part, or some of it with
one write of which only the beginning or the end is there, or whose end is garbage or zeros."""

DAMAGES: Final[tuple[DiskDamage, ...]] = get_args(DiskDamage)

SECTOR_BYTES: Final = 512

PAGE_BYTES: Final = 4096
"""Of the system's cache of files."""

_Selection: TypeAlias = tuple[int, ...]

_WriteOrSize: TypeAlias = tuple[int, bytes | None]
"""Where and what was written; or the new size and None."""

_Source: TypeAlias = tuple[bytearray, Sequence[_WriteOrSize]]
"""What a file is made of: what is certain of it, and writes after that."""


class DiskImage:
    """The files as they are found after a power cut, put together when they are asked for.

    It belongs to the model: use it before the model is told of anything more.
    """

    __slots__ = ("_made", "_sources", "parts")

    def __init__(self, sources: Mapping[str, "_Source"], parts: Mapping[str, tuple[object, ...]]) -> None:
        self.parts = parts
        """For each file what it is made of; equal parts are equal contents, also in images of other moments."""
        self._sources = sources
        self._made: dict[str, bytes | bytearray] = {}

    def content(self, name: str) -> bytes | bytearray:
        made = self._made.get(name)
        if made is None:
            made, writes = self._sources[name]
            if writes:
                made = bytearray(made)
                _write(made, writes)
            self._made[name] = made
        return made

    @property
    def files(self) -> Mapping[str, bytes | bytearray]:
        return {name: self.content(name) for name in self.parts}

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is equal for equal images of one model."""
        return tuple(self.parts.items())


class Renamed(NamedTuple):
    """A file got another name, in place of the one that had it."""

    old: str
    new: str


class SyncFailed(NamedTuple):
    """A sync through a handle gave an error. The system then takes what was to be synced for written, and it is not."""

    handle: int


class WrittenAgain(NamedTuple):
    """All that a file gives its readers was written over itself, and that was synced."""

    name: str


class FolderSynced(NamedTuple):
    """The program that uses the files has synced their folder by itself."""


class _Content:
    """A file under any name."""

    __slots__ = ("cache", "durable", "durable_part", "forgotten", "generation", "number", "pending")

    def __init__(self, number: int, durable: bytes = b"") -> None:
        self.number = number
        self.durable = bytearray(durable)
        self.generation = 0
        self.durable_part: tuple[object, ...] = (number,)
        """What `durable` is made of: the one before, and so many writes after that."""
        self.pending: list[_WriteOrSize] = []
        self.cache = bytearray()
        """What a reader of the file gets, once a sync has failed."""
        self.forgotten: list[tuple[int, int]] = []
        """Begin and end of what was written, is what readers get, and is not going to the disk any more."""

    def write(self, offset: int, data: bytes | None) -> None:
        if self.forgotten:
            _write(self.cache, [(offset, data)])
            if data is None:
                self.forgotten = [(begin, min(end, offset)) for begin, end in self.forgotten if begin < offset]
            else:
                self._remember(offset - offset % PAGE_BYTES, offset + len(data) + -(offset + len(data)) % PAGE_BYTES)
        self.pending.append((offset, data))

    def _remember(self, first: int, last: int) -> None:
        """Write again what was forgotten of these pages: the system writes whole ones."""
        still: list[tuple[int, int]] = []
        for begin, end in self.forgotten:
            low, high = max(begin, first), min(end, last)
            if low >= high:
                still.append((begin, end))
                continue
            self.pending.append((low, bytes(self.cache[low:high])))
            still += [part for part in ((begin, low), (high, end)) if part[0] < part[1]]
        self.forgotten = still

    def settle(self) -> None:
        if self.pending:
            _write(self.durable, self.pending)
            self.durable_part = self.part(tuple(range(len(self.pending))))
            self.pending = []
            self.generation += 1

    def part(self, chosen: _Selection, *torn: object) -> tuple[object, ...]:
        """Return what the file is made of with some of the writes; the first few, if it is they, by their count."""
        if torn or (chosen and chosen[-1] >= len(chosen)):
            return (self.number, self.generation, chosen, *torn)
        return (self.number, self.generation, len(chosen)) if chosen else self.durable_part

    def write_again(self) -> None:
        for begin, end in self.forgotten:
            self.pending.append((begin, bytes(self.cache[begin:end])))
        self.forgotten = []
        self.settle()

    def fail_to_settle(self) -> None:
        if not self.forgotten:
            self.cache = bytearray(self.durable)
            _write(self.cache, self.pending)
        self.forgotten += [(offset, offset + len(data)) for offset, data in self.pending if data]
        self.pending = []
        self.generation += 1


DiskOperation: TypeAlias = FileOperation | Renamed | SyncFailed | WrittenAgain | FolderSynced


class DiskModel:
    """A disk, and what of it is certain.

    Args:
        files: what is on it already, by name.
        syncs: False = a disk that lies: it says that it has synced, and has not.
    """

    def __init__(self, files: Mapping[str, bytes | bytearray] | None = None, *, syncs: bool = True) -> None:
        self.folder_syncs = 0
        """How often the folder was synced."""
        self._syncs = syncs
        self._made = 0
        self._names = {name: self._new(content) for name, content in (files or {}).items()}
        self._certain_names = dict(self._names)
        self._name_changes: list[tuple[str | None, str | None, _Content | None]] = []
        """What name went, what name came, and for which file."""
        self._handles: dict[int, _Content] = {}
        self._folder_is_synced_by: set[int] = set()

    def apply(self, operation: DiskOperation) -> None:
        """Take note of an operation that has happened."""
        match operation:
            case SyncFailed(handle=handle):
                self._handles[handle].fail_to_settle()
            case WrittenAgain(name=name):
                if self._syncs:
                    self._names[name].write_again()
            case FolderSynced():
                if self._syncs:
                    self._sync_folder()
            case Renamed(old=old, new=new):
                content = self._names[new] = self._names.pop(old)
                self._name_changes.append((old, new, content))
            case _:
                self._apply_to_file(operation)

    def _apply_to_file(self, operation: FileOperation) -> None:
        kind, path, handle, offset, content_bytes, flags = operation
        match kind:
            case "write":
                self._handles[handle].write(offset, content_bytes)
            case "sync":
                self._sync(handle)
            case "truncate":
                self._handles[handle].write(offset, None)
            case "open":
                self._open(basename(path), handle, flags)
            case "create":
                name = basename(path)
                content = self._names[name] = self._handles[handle] = self._new()
                self._name_changes.append((None, name, content))
            case "delete":
                name = basename(path)
                if self._names.pop(name, None) is not None:
                    self._name_changes.append((name, None, None))
                if flags and self._syncs:
                    self._sync_folder()
            case "close":
                self._handles.pop(handle, None)
            case "read":
                return

    @property
    def is_certain(self) -> bool:
        """Whether all there is would survive, so that a power cut now leaves one image only."""
        return not self._name_changes and not any(content.pending for content in self._names.values())

    def restarted(self) -> None:
        """Take note that the process is gone and has closed its files; what the system has not synced, it still has."""
        self._handles.clear()
        self._folder_is_synced_by.clear()

    def image(self, damage: DiskDamage, chance: random.Random) -> DiskImage:
        """Return the files after a power cut at this moment.

        Args:
            damage: what becomes of what was not synced.
            chance: draws what the damage leaves open.
        """
        sources: dict[str, _Source] = {}
        parts: dict[str, tuple[object, ...]] = {}
        for name, content in self._names_after(damage, chance).items():
            writes: Sequence[_WriteOrSize] = ()
            part = content.durable_part
            if content.pending:
                writes, part = _left_of(content, damage, chance)
            sources[name] = content.durable, writes
            parts[name] = part
        return DiskImage(sources, parts)

    def _new(self, content: bytes | bytearray = b"") -> _Content:
        self._made += 1
        return _Content(self._made, bytes(content))

    def _open(self, name: str, handle: int, flags: int) -> None:
        if name in self._names:
            self._handles[handle] = self._names[name]
        if flags & OPEN_CREATE and flags & (OPEN_WAL | OPEN_MAIN_JOURNAL):
            self._folder_is_synced_by.add(handle)

    def _sync(self, handle: int) -> None:
        if not self._syncs:
            return
        self._handles[handle].settle()
        if handle in self._folder_is_synced_by:
            self._folder_is_synced_by.discard(handle)
            self._sync_folder()

    def _sync_folder(self) -> None:
        self.folder_syncs += 1
        self._certain_names = dict(self._names)
        self._name_changes = []

    def _names_after(self, damage: DiskDamage, chance: random.Random) -> dict[str, _Content]:
        if not self._name_changes or damage == "none":
            return self._certain_names
        if damage == "all":
            return self._names
        names = dict(self._certain_names)
        kept = chance.choice((0.0, 0.5, 0.5, 1.0))
        for old, new, content in self._name_changes:
            if chance.random() >= kept:
                continue
            if old is not None:
                names.pop(old, None)
            if new is not None and content is not None:
                names[new] = content
        return names


def _left_of(
    content: _Content, damage: DiskDamage, chance: random.Random
) -> tuple[list[_WriteOrSize], tuple[object, ...]]:
    """Return what is left of writes that were not synced, and what the file is made of with them."""
    pending = content.pending
    count = len(pending)
    torn: tuple[int, int, DiskDamage] | tuple[()] = ()
    writes = list(pending)
    match damage:
        case "none":
            chosen: _Selection = ()
        case "all":
            chosen = tuple(range(count))
        case "prefix":
            chosen = tuple(range(chance.randrange(count + 1)))
        case "subset":
            chosen = tuple(index for index in range(count) if chance.random() < 0.5)
        case "torn_head" | "torn_tail" | "garbage" | "zeros":
            chosen = tuple(index for index in range(count) if chance.random() < 0.7)
            tearable = [index for index in chosen if pending[index][1]]
            if tearable:
                index = chance.choice(tearable)
                torn = index, _torn(writes, index, damage, chance), damage
                if writes[index] == pending[index]:
                    torn = ()
                elif not writes[index][1]:
                    torn, chosen = (), tuple(each for each in chosen if each != index)
    result = [writes[index] for index in chosen]
    if not torn:
        return result, content.part(chosen)
    return result, content.part(chosen, torn, chance.random() if damage == "garbage" else 0)


def _torn(writes: list[_WriteOrSize], index: int, damage: DiskDamage, chance: random.Random) -> int:
    """Damage one of the writes, mostly at the border of a sector, and return after how many of its bytes."""
    offset, data = writes[index]
    assert data is not None
    cut = chance.randrange(len(data) + 1)
    if chance.random() < 0.7:
        cut -= cut % SECTOR_BYTES
    match damage:
        case "torn_head":
            writes[index] = offset, data[:cut]
        case "torn_tail":
            writes[index] = offset + cut, data[cut:]
        case "garbage":
            writes[index] = offset, data[:cut] + chance.randbytes(len(data) - cut)
        case _:
            writes[index] = offset, data[:cut] + bytes(len(data) - cut)
    return cut


def _write(target: bytearray, writes: Sequence[_WriteOrSize]) -> None:
    for offset, data in writes:
        if data is None:
            if len(target) > offset:
                del target[offset:]
            else:
                target.extend(bytes(offset - len(target)))
        else:
            if len(target) < offset:
                target.extend(bytes(offset - len(target)))
            target[offset : offset + len(data)] = data
