"""Reading one image after another through one connection gives what opening each by itself gives, byte for byte."""

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from refold.scenarios.world.disk_model import DiskModel
from refold.scenarios.world.sqlite_shim import (
    OPEN_CREATE,
    OPEN_MAIN_DATABASE,
    FileOperation,
    ShimUnavailable,
    SQLiteShim,
)
from tests.selfcheck.storage.power_loss import PowerLosses, put_files, recorded_run
from tests.selfcheck.storage.recording import LOG_NAME, Recording
from tests.selfcheck.storage.recovery_reader import RecoveryReader
from tests.selfcheck.storage.workload import StorageWorkload

try:
    SQLiteShim.of_process()
except ShimUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

WAL = f"{LOG_NAME}-wal"

PLACE = 2 * 4096 + 4000
"""In a page that is not in the WAL."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return asyncio.run(recorded_run(tmp_path_factory.mktemp("run").resolve(), StorageWorkload(seed=6, steps=10)))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[RecoveryReader]:
    (tmp_path / "standing").mkdir()
    with RecoveryReader(tmp_path / "standing") as reader:
        yield reader
    assert list((tmp_path / "standing").iterdir()) == []


def opened_by_itself(log: Path) -> bytes | None:
    with closing(sqlite3.connect(f"file:{log}?mode=ro&vfs=unix-none", uri=True, isolation_level=None)) as opened:
        opened.execute("PRAGMA locking_mode = EXCLUSIVE")
        try:
            return opened.serialize()
        except sqlite3.Error:
            return None


@pytest.mark.parametrize("syncs", [True, False])
def test_it_reads_of_each_image_what_a_connection_of_its_own_reads(
    run: Recording, reader: RecoveryReader, tmp_path: Path, syncs: bool
) -> None:
    (tmp_path / "images").mkdir()
    compared, contents = 0, set[bytes]()
    for cut in PowerLosses(run, tmp_path / "images", seed=4, syncs=syncs).cut_everywhere(share=0.4):
        content = reader.content(cut.image)
        if content is None:
            continue
        folder = tmp_path / f"{cut.at} {cut.damage}"
        folder.mkdir()
        put_files(folder, cut.image.files)
        plain = opened_by_itself(folder / LOG_NAME)
        if plain is None:  # Its tables make no sense, so that it is opened by itself as every content that is new.
            assert content not in contents
            continue
        assert content == plain
        compared += 1
        contents.add(content)
    assert compared > 100
    assert len(contents) > 10


def with_wal(folder: Path) -> dict[str, bytes]:
    """Return the files of a database, of which a row is in its WAL alone."""
    log = folder / "made.db"
    with closing(sqlite3.connect(log, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE t (x)")
        made.execute("CREATE TABLE other (x)")
        made.execute("INSERT INTO other VALUES (zeroblob(100))")
        made.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        made.execute("INSERT INTO t VALUES ('in the WAL')")
        return {LOG_NAME: log.read_bytes(), WAL: log.with_name("made.db-wal").read_bytes()}


def test_it_trusts_nothing_that_it_has_read_of_the_image_before(reader: RecoveryReader, tmp_path: Path) -> None:
    model = DiskModel(with_wal(tmp_path))
    chance = random.Random(1)
    first = reader.content(model.image("all", chance))
    assert first is not None
    assert b"in the WAL" in first
    model.apply(FileOperation("open", LOG_NAME, 1, flags=OPEN_MAIN_DATABASE))
    model.apply(FileOperation("write", LOG_NAME, 1, PLACE, b"!"))  # Under the very same WAL.
    changed = reader.content(model.image("all", chance))
    assert changed == first[:PLACE] + b"!" + first[PLACE + 1 :]
    model.apply(FileOperation("open", WAL, 2))
    model.apply(FileOperation("truncate", WAL, 2, 0))
    without = reader.content(model.image("all", chance))
    assert without is not None
    assert b"in the WAL" not in without
    assert reader.content(model.image("none", chance)) == first


def test_what_may_have_to_be_rolled_back_and_what_begins_otherwise_is_left_to_others(
    reader: RecoveryReader, tmp_path: Path
) -> None:
    chance = random.Random(1)
    files = with_wal(tmp_path)
    for left in (
        {},
        {WAL: files[WAL]},
        {LOG_NAME: b"", WAL: files[WAL]},
        {LOG_NAME: bytes(8192)},
        {**files, f"{LOG_NAME}-journal": b"x"},
    ):
        assert reader.content(DiskModel(left).image("none", chance)) is None
    model = DiskModel(files)
    assert reader.content(model.image("none", chance)) is not None
    model.apply(FileOperation("open", LOG_NAME, 1, flags=OPEN_MAIN_DATABASE | OPEN_CREATE))
    model.apply(FileOperation("write", LOG_NAME, 1, 16, b"\x20\x00"))
    assert reader.content(model.image("all", chance)) is None, "it says that it has other pages"
    assert reader.content(model.image("none", chance)) is not None
