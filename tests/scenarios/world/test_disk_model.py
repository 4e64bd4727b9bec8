"""What a modelled disk holds after a power cut, and that the model follows what SQLite really asks of the system."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from refold.scenarios.world.disk_model import DAMAGES, DiskDamage, DiskModel, Renamed
from refold.scenarios.world.sqlite_shim import (
    OPEN_CREATE,
    OPEN_MAIN_DATABASE,
    OPEN_WAL,
    FileOperation,
    ShimUnavailable,
    SQLiteShim,
)

WAL_FLAGS = OPEN_CREATE | OPEN_WAL


def opened(name: str, handle: int, flags: int = OPEN_MAIN_DATABASE) -> FileOperation:
    return FileOperation("open", name, handle, flags=flags)


def wrote(handle: int, offset: int, content: bytes) -> FileOperation:
    return FileOperation("write", "", handle, offset, content)


def truncated(handle: int, size: int) -> FileOperation:
    return FileOperation("truncate", "", handle, size)


def synced(handle: int) -> FileOperation:
    return FileOperation("sync", "", handle)


def made(name: str, handle: int, flags: int = WAL_FLAGS) -> tuple[FileOperation, FileOperation]:
    return opened(name, handle, flags), FileOperation("create", name, handle, flags=flags)


def after(model: DiskModel, *operations: FileOperation | Renamed) -> DiskModel:
    for operation in operations:
        model.apply(operation)
    return model


def contents(model: DiskModel, damage: DiskDamage, seed: int = 1) -> dict[str, bytes]:
    return {name: bytes(content) for name, content in model.image(damage, random.Random(seed)).files.items()}


def possible(model: DiskModel, damage: DiskDamage) -> set[bytes | None]:
    return {contents(model, damage, seed).get("log") for seed in range(200)}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_synced_is_there_whatever_the_damage(damage: DiskDamage) -> None:
    model = after(DiskModel({"log": b"old"}), opened("log", 1), wrote(1, 2, b"new"), truncated(1, 4), synced(1))
    assert model.is_certain
    assert possible(model, damage) == {b"olne"}


def test_what_was_not_synced_is_there_or_not_or_in_part_within_its_own_range() -> None:
    model = after(DiskModel({"log": b"........"}), opened("log", 1), wrote(1, 0, b"ab"), wrote(1, 4, b"cd"))
    assert not model.is_certain
    assert possible(model, "none") == {b"........"}
    assert possible(model, "all") == {b"ab..cd.."}
    assert possible(model, "prefix") == {b"........", b"ab......", b"ab..cd.."}
    assert possible(model, "subset") == {b"........", b"ab......", b"....cd..", b"ab..cd.."}
    assert possible(model, "torn_head") >= {b"a.......", b"ab..c..."}
    assert possible(model, "torn_tail") >= {b".b......", b"ab...d.."}
    assert possible(model, "zeros") >= {b"a\0......", b"ab..\0\0.."}
    garbage = possible(model, "garbage")
    assert len(garbage) > 20
    assert {found[2:4] + found[6:] for found in garbage if found is not None} == {b"...."}


def test_a_write_beyond_the_end_leaves_zeros_between_and_a_truncation_may_extend() -> None:
    model = after(DiskModel({"log": b"ab"}), opened("log", 1), wrote(1, 4, b"cd"), truncated(1, 8))
    assert contents(model, "all") == {"log": b"ab\0\0cd\0\0"}


def test_a_disk_that_lies_keeps_nothing_for_certain() -> None:
    model = after(DiskModel({"log": b"old"}, syncs=False), opened("log", 1), wrote(1, 0, b"new"), synced(1))
    assert contents(model, "none") == {"log": b"old"}


def test_a_new_name_is_certain_once_the_folder_was_synced() -> None:
    model = after(DiskModel(), *made("log-wal", 1), wrote(1, 0, b"x"))
    assert contents(model, "none") == {}
    assert contents(model, "all") == {"log-wal": b"x"}
    model.apply(synced(1))
    assert model.is_certain
    assert contents(model, "none") == {"log-wal": b"x"}


def test_a_sync_of_the_database_says_nothing_about_its_name() -> None:
    model = after(DiskModel(), *made("log", 1, OPEN_CREATE | OPEN_MAIN_DATABASE), wrote(1, 0, b"x"), synced(1))
    assert contents(model, "none") == {}


def test_the_first_sync_through_a_wal_handle_syncs_the_folder_even_if_the_file_was_there() -> None:
    model = after(DiskModel({"log": b"l", "log-wal": b"w", "old": b"o"}), FileOperation("delete", "old", 0))
    assert contents(model, "none") == {"log": b"l", "log-wal": b"w", "old": b"o"}
    after(model, opened("log-wal", 1, WAL_FLAGS), synced(1))
    assert contents(model, "none") == {"log": b"l", "log-wal": b"w"}
    model.apply(FileOperation("delete", "log", 0))
    after(model, opened("log-wal", 2, WAL_FLAGS), synced(1))
    assert contents(model, "none") == {"log": b"l", "log-wal": b"w"}, "handle 1 has done it, and handle 2 not yet"
    model.apply(synced(2))
    assert contents(model, "none") == {"log-wal": b"w"}


def test_a_deleted_file_may_come_back_unless_the_folder_was_synced() -> None:
    model = after(DiskModel({"log": b"l"}), FileOperation("delete", "log", 0))
    assert possible(model, "subset") == {b"l", None}
    model = after(DiskModel({"log": b"l"}), FileOperation("delete", "log", 0, flags=1))
    assert possible(model, "subset") == {None}


def test_a_renamed_file_has_its_old_name_or_its_new_one_and_never_both() -> None:
    model = after(DiskModel({"log.new": b"n"}), Renamed("log.new", "log"))
    found = [contents(model, damage, seed) for damage in DAMAGES for seed in range(50)]
    assert {tuple(each) for each in found} == {("log.new",), ("log",)}


def test_writes_go_to_the_file_and_not_to_its_name() -> None:
    model = after(DiskModel(), *made("log.new", 1), Renamed("log.new", "log"), wrote(1, 0, b"late"), synced(1))
    assert contents(model, "all") == {"log": b"late"}


def test_images_with_equal_keys_are_equal() -> None:
    chance = random.Random(3)
    model = after(DiskModel({"log": b""}), opened("log", 1), *made("log-wal", 2))
    seen: dict[tuple[object, ...], dict[str, bytes]] = {}
    repeated = 0
    for _ in range(300):
        model.apply(
            chance.choice(
                (wrote(chance.choice((1, 2)), chance.randrange(8), chance.randbytes(4)), synced(1), synced(2))
            )
        )
        for damage in DAMAGES:
            image = model.image(damage, chance)
            found = {name: bytes(content) for name, content in image.files.items()}
            repeated += image.key in seen
            assert seen.setdefault(image.key, found) == found
    assert repeated > 100


REALITY = """
import asyncio, ctypes, shutil, sys
from pathlib import Path
from refold.scenarios.world.disk_model import DiskModel
from refold.scenarios.world.sqlite_shim import library_of
from tests.selfcheck.storage.recording import Mark, recording
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch

# SQLite lets its calls of the system be replaced: here the opening of a folder, which it does to sync it.
unix = library_of("_sqlite3").sqlite3_vfs_find(b"unix")
Get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
Set = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
OpenFolder = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
address = ctypes.cast(unix, ctypes.c_void_p).value
original = OpenFolder(Get(unix.contents.xGetSystemCall)(address, b"openDirectory"))
recorders = []

def open_folder(path, descriptor):
    recorders[-1].entries.append("folder")
    return original(path, descriptor)

ours = OpenFolder(open_folder)
assert Set(unix.contents.xSetSystemCall)(address, b"openDirectory", ctypes.cast(ours, ctypes.c_void_p).value) == 0

async def live(log, version):
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", version)])
        await store.read_stream("session/a")
        await store.reopen()
        await store.append([batch("session/a", version + 1)])
        for suffix in ("", "-wal"):
            shutil.copy(f"{log}{suffix}", log.parent / "left" / f"{log.name}{suffix}")

def check(entries, files):
    model, syncs = DiskModel(files), 0
    for entry, following in zip(entries, [*entries[1:], None]):
        before = model.folder_syncs
        if entry != "folder" and not isinstance(entry, Mark):
            model.apply(entry)
        assert (following == "folder") == (model.folder_syncs > before), (entry, following)
        syncs += getattr(entry, "kind", "") == "sync"
    return model.folder_syncs, syncs

first = Path(sys.argv[1])
second = first / "left"
(second / "left").mkdir(parents=True)
for folder, version in ((first, 0), (second, 2)):
    files = {path.name: path.read_bytes() for path in folder.glob("events.db*")}
    with recording(folder, seed="1", syncs=True) as recorder:
        recorders.append(recorder)
        asyncio.run(live(folder / "events.db", version))
    print(*sorted(files), *check(recorder.entries, files))
"""


def test_sqlite_syncs_the_folder_exactly_where_the_model_says(tmp_path: Path) -> None:
    try:
        SQLiteShim.of_process()
    except ShimUnavailable as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-c", REALITY, os.path.realpath(tmp_path)],
        cwd=Path(__file__).resolve().parents[3],  # For what it imports of the tests.
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from_nothing, over_a_wal = (line.split() for line in done.stdout.splitlines())
    assert over_a_wal[:2] == ["events.db", "events.db-wal"]
    for line in (from_nothing, over_a_wal):
        folders, syncs = int(line[-2]), int(line[-1])
        assert 2 <= folders < syncs
