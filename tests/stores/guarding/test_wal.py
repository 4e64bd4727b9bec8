"""The watch over a WAL: what failed transactions leave behind is no damage."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from refold.stores.guarding.log_place import WalCut, WalWatch


def wal_after(folder: Path, name: str, before: Path | None, *pages: int) -> Path:
    """Return a database whose WAL goes on behind that of another, with a transaction of so many pages each."""
    path = folder / name
    if before is not None:
        for ending in ("", "-wal"):
            shutil.copy(f"{before}{ending}", f"{path}{ending}")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS t (data BLOB)")
    for many in pages:
        connection.execute("INSERT INTO t VALUES (?)", (name.encode() * 1000 * many,))
    for ending in ("", "-wal"):  # As they are while they are open: closing empties the WAL.
        shutil.copy(f"{path}{ending}", f"{path}.kept{ending}")
    connection.close()
    return folder / f"{name}.kept"


def test_what_a_failed_transaction_left_in_the_wal_is_no_transaction_that_was_lost(tmp_path: Path) -> None:
    first = wal_after(tmp_path, "first", None, 1)
    failed = wal_after(tmp_path, "failed", first, 9)
    second = wal_after(tmp_path, "second", first, 1)
    third = wal_after(tmp_path, "third", second, 1)
    fourth = wal_after(tmp_path, "fourth", third, 1)
    wals = {
        name: Path(f"{path}-wal").read_bytes()
        for name, path in {"first": first, "failed": failed, "second": second, "third": third, "fourth": fourth}.items()
    }
    assert len(wals["failed"]) > len(wals["fourth"])
    watched = tmp_path / "watched-wal"
    watched.write_bytes(wals["failed"])
    watched.write_bytes(wals["first"])
    watch = WalWatch(watched)
    watched.write_bytes(wals["failed"])
    for name in ("second", "third", "fourth"):
        with watched.open("r+b") as file:  # Over what the failed one left.
            file.write(wals[name])
        watch.after_commit()
    with watched.open("r+b") as file:
        file.write(wals["first"] + bytes(len(wals["fourth"]) - len(wals["first"])))
    with pytest.raises(WalCut, match="its last transaction is gone"):
        watch.after_commit()
    watch.close()
