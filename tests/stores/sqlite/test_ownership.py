import asyncio
import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.events.core.errors import LogInUse, PersistenceError
from refold.events.core.records import Snapshot
from refold.stores import LogOwner, SQLiteStore, batch, log_owner

OWNER = """
import asyncio, sys
from refold.stores import SQLiteStore

async def main():
    async with await SQLiteStore.open(sys.argv[1]):
        print("open", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""

EMPTYING = """
import fcntl, sys

with open(sys.argv[1], "r+b") as index:
    fcntl.lockf(index, fcntl.LOCK_EX, 2, 120)  # WAL_WRITE_LOCK and WAL_CKPT_LOCK: https://sqlite.org/walformat.html
    print("locked", flush=True)
    sys.stdin.read()
"""

FORKING = """
import asyncio, os, sys
from refold.events.core.errors import PersistenceError
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch

def refusal(call):
    try:
        call.send(None)
    except PersistenceError as error:
        return str(error)
    return "nothing was refused"

async def main():
    store = await SQLiteStore.open(sys.argv[1])
    await store.append([batch("session/a", 0)])
    pid = os.fork()
    if pid == 0:
        code = 0
        for call in (store.append([batch("session/a", 1)]), store.read_all(), store.head("session/a")):
            said = refusal(call)
            if "forked" not in said or str(os.getppid()) not in said:
                code = 1
        try:
            store.close().send(None)
        except StopIteration:
            pass
        else:
            code = 2
        os._exit(code)
    print("child", os.waitpid(pid, 0)[1], flush=True)
    await store.append([batch("session/a", 1)])
    print("events", len(await store.read_all()), flush=True)
    await store.close()

asyncio.run(main())
"""

FORGETFUL = """
import asyncio, sys
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch

async def main():
    global kept
    kept = await SQLiteStore.open(sys.argv[1], wait_for_log_s=0)
    await kept.append([batch("session/a", 0)])
    await kept.read_all()

asyncio.run(main())
"""


def run(script: str, log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", script, str(log)], capture_output=True, text=True, timeout=60, check=False
    )


@contextlib.contextmanager
def owner_process(log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that owns the log until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", OWNER, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


async def test_a_second_process_is_refused_with_the_owners_pid_and_host_and_may_read(log: Path) -> None:
    with owner_process(log) as owner:
        with pytest.raises(LogInUse) as refusal:
            await SQLiteStore.open(log, wait_for_log_s=0)
        assert (refusal.value.pid, refusal.value.host) == (owner.pid, socket.gethostname())
        assert str(owner.pid) in str(refusal.value)
        assert not hasattr(refusal.value, "__notes__")
        assert log_owner(log) == LogOwner(pid=owner.pid, host=socket.gethostname())
        async with await SQLiteStore.open(log, read_only=True) as store:
            assert await store.read_all() == []


async def test_a_log_whose_owner_was_killed_is_free_at_once(log: Path) -> None:
    with owner_process(log) as owner:
        owner.kill()
        owner.wait()
        assert log_owner(log) is None
        async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
            assert await store.read_all() == []


async def test_an_opening_waits_for_the_owner_of_another_process_to_leave(log: Path) -> None:
    with owner_process(log) as owner:
        opening = asyncio.ensure_future(SQLiteStore.open(log, wait_for_log_s=60))
        await asyncio.sleep(0)
        assert owner.stdin is not None
        owner.stdin.close()
        async with await opening as store:
            assert log_owner(log) == LogOwner(pid=os.getpid(), host=socket.gethostname())
            await store.append([batch("session/a", 0)])


async def test_case_m03_a_second_store_of_this_process_is_refused(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    async with await SQLiteStore.open(log) as store:
        for path in (log, tmp_path / "folder" / "events.db", "events.db"):
            with pytest.raises(LogInUse) as refusal:
                await SQLiteStore.open(path, wait_for_log_s=0)
            assert (refusal.value.pid, refusal.value.host) == (os.getpid(), socket.gethostname())
            assert any("this very process" in note for note in refusal.value.__notes__)
        assert log_owner(log) == LogOwner(pid=os.getpid(), host=socket.gethostname())
        assert "LogInUse" in run(FORGETFUL, log).stderr, "looking at the lock must not release it"
        await store.append([batch("session/a", 0)])
    assert log_owner(log) is None


async def test_an_opening_waits_for_a_store_of_this_process_to_close(log: Path) -> None:
    first = await SQLiteStore.open(log)
    opening = asyncio.ensure_future(SQLiteStore.open(log, wait_for_log_s=60))
    await asyncio.sleep(0)
    await first.close()
    async with await opening as second:
        await second.append([batch("session/a", 0)])


async def test_an_opening_that_is_cancelled_while_it_waits_leaves_the_owner_alone(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        opening = asyncio.ensure_future(SQLiteStore.open(log, wait_for_log_s=60))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await store.append([batch("session/a", 0)])


def test_a_forked_child_can_neither_read_nor_write_and_its_parent_goes_on(tmp_path: Path) -> None:
    done = run(FORKING, tmp_path / "events.db")
    assert done.stdout == "child 0\nevents 2\n", done.stderr


async def test_case_f10_a_store_that_is_never_closed_does_not_keep_the_process(log: Path) -> None:
    assert run(FORGETFUL, log).returncode == 0
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        assert len(await store.read_all()) == 1


async def test_an_owner_whose_lock_file_was_removed_writes_nothing_beside_the_next(tmp_path: Path, log: Path) -> None:
    stale = await SQLiteStore.open(log)
    (place,) = await stale.append([batch("session/a", 0)])
    snapshot = Snapshot(stream=place.stream, version=1, chain=place.chain, fold_version=1, state=b"")
    (tmp_path / "events.db.lock").unlink()
    async with await SQLiteStore.open(log) as owner:
        with pytest.raises(LogInUse):
            await stale.append([batch("session/a", 1)])
        with pytest.raises(LogInUse):
            await stale.save_snapshot(snapshot)
        with pytest.raises(LogInUse):
            await stale.reopen()
        with pytest.raises(LogInUse):
            await stale.append([batch("session/a", 1)])
        await owner.append([batch("session/a", 1)])
        assert len(await owner.read_all()) == 2
        assert await owner.load_snapshot("session/a") is None
        await stale.close()
        await owner.append([batch("session/a", 2)])


@pytest.mark.parametrize("knows", [False, True])
async def test_an_owner_that_closes_leaves_the_wal_of_the_next_one_alone(log: Path, knows: bool) -> None:
    stale = await SQLiteStore.open(log)
    await stale.append([batch("session/a", 0)])
    log.with_name(f"{log.name}.lock").unlink()
    async with await SQLiteStore.open(log) as owner:
        await owner.append([batch("session/a", 1)])
        if knows:
            with pytest.raises(LogInUse):
                await stale.append([batch("session/a", 2)])
        wal = log.with_name(f"{log.name}-wal").read_bytes()
        await stale.close()
        assert wal == log.with_name(f"{log.name}-wal").read_bytes() != b""  # It may be about to write there.
        await owner.append([batch("session/a", 2)])
        assert len(await owner.read_all()) == 3


async def test_an_owner_who_cannot_look_at_the_lock_file_says_so_and_leaves_nothing_open(log: Path) -> None:
    stale = await SQLiteStore.open(log)
    await stale.append([batch("session/a", 0)])
    lock = log.with_name(f"{log.name}.lock")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(PersistenceError, match=r"events\.db\.lock is not a regular file"):
        await stale.close()
    assert not [thread for thread in threading.enumerate() if str(log) in thread.name]
    lock.rmdir()
    async with await SQLiteStore.open(log) as owner:
        assert len(await owner.read_all()) == 1


async def test_a_lock_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.db.lock").mkdir()
    with pytest.raises(PersistenceError, match=r"events\.db\.lock"):
        await SQLiteStore.open(tmp_path / "events.db")
    (tmp_path / "events.db.lock").rmdir()
    (tmp_path / "events.db.lock").symlink_to("elsewhere")
    with pytest.raises(PersistenceError, match=r"events\.db\.lock"):
        await SQLiteStore.open(tmp_path / "events.db")
    assert not (tmp_path / "events.db").exists()


async def test_a_lock_file_without_a_name_in_it_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "events.db.lock").write_bytes(b"\xff not JSON")
    async with await SQLiteStore.open(tmp_path / "events.db"):
        assert log_owner(tmp_path / "events.db") == LogOwner(pid=os.getpid(), host=socket.gethostname())


def test_a_log_that_was_never_opened_has_no_owner(tmp_path: Path) -> None:
    assert log_owner(tmp_path / "events.db") is None
    assert list(tmp_path.iterdir()) == []


async def test_each_opening_for_writing_is_a_new_incarnation(log: Path) -> None:
    for incarnation in (1, 2, 3):
        async with await SQLiteStore.open(log):
            pass
        async with await SQLiteStore.open(log, read_only=True):
            pass
        with contextlib.closing(sqlite3.connect(log)) as connection:
            assert connection.execute("SELECT incarnation FROM log").fetchone() == (incarnation,)


def test_a_store_that_its_event_loop_left_open_does_not_keep_the_log_in_the_same_process(log: Path) -> None:
    abandoned: list[SQLiteStore] = []

    async def open_and_forget() -> None:
        abandoned.append(await SQLiteStore.open(log, wait_for_log_s=0))
        await abandoned[-1].append([batch("session/a", 0)])

    async def open_again() -> None:
        assert log_owner(log) == LogOwner(pid=os.getpid(), host=socket.gethostname())
        async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
            await store.append([batch("session/a", 1)])
            with pytest.raises(LogInUse):
                await abandoned[0].append([batch("session/a", 2)])
            await abandoned[0].close()
            assert "LogInUse" in run(FORGETFUL, log).stderr, "closing the one before must not release the lock"
            await store.append([batch("session/a", 2)])
            assert len(await store.read_all()) == 3
        assert log_owner(log) is None

    asyncio.run(open_and_forget())
    assert "LogInUse" in run(FORGETFUL, log).stderr
    asyncio.run(open_again())


async def test_a_former_owner_is_told_that_the_log_is_in_use_where_the_next_one_has_emptied_the_wal(log: Path) -> None:
    async with await SQLiteStore.open(log) as former:
        await former.append([batch("session/a", 0)])
        log.with_name(f"{log.name}.lock").unlink()
        async with await SQLiteStore.open(log) as owner:
            assert await owner.empty_wal()
            await owner.append([batch("session/a", 1)])
            for _ in range(2):
                with pytest.raises(LogInUse):
                    await former.append([batch("session/a", 2)])
            await owner.append([batch("session/a", 2)])


async def test_an_owner_waits_for_a_former_one_that_is_just_emptying_the_wal(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        assert await store.empty_wal()
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", EMPTYING, f"{log}-shm", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert other.stdout is not None
        assert await other.stdout.readline() == b"locked\n"
        appending = asyncio.create_task(store.append([batch("session/a", 1)]))
        await asyncio.sleep(0.05)  # It asks how many frames there are, which is not told now, and waits.
        await other.communicate(b"")
        await appending
        await store.append([batch("session/a", 2)])
