"""Writing a file over itself, so that what its readers get is on the disk."""

import os
from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError
from refold.stores import SQLiteStore, batch
from refold.stores.sqlite.rewrite import BLOCK_BYTES, write_again


@pytest.mark.parametrize("size", [1, 5000, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 77])
def test_a_file_is_the_same_afterwards(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    content = os.urandom(size)
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    before = file.stat()
    assert write_again(file)
    assert file.read_bytes() == content
    assert file.stat().st_ino == before.st_ino
    assert file.stat().st_mtime_ns > 0, "it was written"


def test_a_file_that_is_empty_or_missing_needs_nothing(tmp_path: Path) -> None:
    assert not write_again(tmp_path / "missing")
    (tmp_path / "empty").touch()
    assert not write_again(tmp_path / "empty")


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PersistenceError, match="link cannot be brought to the disk"):
        write_again(tmp_path / "link")


async def test_a_log_is_opened_for_writing_once_its_wal_is_on_the_disk(tmp_path: Path) -> None:
    reached: list[str] = []
    log, other = tmp_path / "events.db", tmp_path / "left.db"
    async with await SQLiteStore.open(log, fault=reached.append) as store:
        await store.append([batch("session/a", 0)])
        assert "opening.wal_synced" not in reached, "a new log has no WAL"
        for suffix in ("", "-wal"):
            other.with_name(f"left.db{suffix}").write_bytes(log.with_name(f"events.db{suffix}").read_bytes())
    reached.clear()
    async with await SQLiteStore.open(other, fault=reached.append) as store:
        assert reached == ["opening.folder_synced", "opening.wal_synced"]
        assert len(await store.read_stream("session/a")) == 1
    reached.clear()
    async with await SQLiteStore.open(other, fault=reached.append):
        assert reached == ["opening.folder_synced"], "a close in order leaves no WAL"
