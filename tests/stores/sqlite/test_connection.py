"""One connection on a thread of its own: whole functions in order, and nothing left behind."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from refold.events.core.errors import PersistenceError
from refold.stores.sqlite.connection import SQLiteConnection
from tests.conformance.processes import QUIET


def memory() -> str:
    return "file::memory:"


async def test_transactions_are_begun_by_name_only() -> None:
    connection = await SQLiteConnection.open(memory())
    assert await connection.run(lambda opened: opened.isolation_level) is None
    await connection.close()


async def test_a_closed_connection_refuses_work_and_closes_once() -> None:
    connection = await SQLiteConnection.open(memory())
    last = connection.submit(lambda _: "done")
    await connection.close()
    await connection.close()
    assert await last == "done", "what was queued has run"
    with pytest.raises(PersistenceError, match="closed"):
        connection.submit(lambda _: None)


async def test_a_connection_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(sqlite3.OperationalError):
        await SQLiteConnection.open(f"file:{tmp_path}/missing.db?mode=ro")
    assert set(threading.enumerate()) <= before


async def test_an_opening_that_was_given_up_is_waited_for_while_the_loop_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released = threading.Event(), threading.Event()
    connect: Any = sqlite3.connect
    before, loop = set(threading.enumerate()), asyncio.get_running_loop()

    def slow(*given: Any, **options: Any) -> Any:
        begun.set()
        released.wait()
        return connect(*given, **options)

    monkeypatch.setattr(sqlite3, "connect", slow)
    opening = asyncio.create_task(SQLiteConnection.open(memory()))
    while not begun.is_set():  # noqa: ASYNC110 - A thread sets no event of the loop.
        await asyncio.sleep(0)
    opening.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not vars(loop)["_ready"]
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert set(threading.enumerate()) <= before


LETS_GO = """
import asyncio, gc, os, sqlite3, subprocess, sys, threading
from refold.stores.sqlite.connection import SQLiteConnection

path = sys.argv[1]

def write(connection):
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
    connection.execute("INSERT INTO t VALUES (1)")

if len(sys.argv) > 2:
    write(sqlite3.connect(path, isolation_level=None))
    os._exit(0)

def wait_for(work):
    return asyncio.run_coroutine_threadsafe(work, loop).result()

loop = asyncio.new_event_loop()
thread = threading.Thread(target=loop.run_forever)
thread.start()
connection = wait_for(SQLiteConnection.open(f"file:{path}"))
wait_for(connection.run(write))
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(writing)
    os.read(reading, 1)  # Until the parent has closed the file, and the other process is dead.
    connection = None
    gc.collect()
    os._exit(0)
wait_for(connection.close())
loop.call_soon_threadsafe(loop.stop)
thread.join()
loop.close()
subprocess.run([*sys.orig_argv, "other"], check=True)
assert os.path.getsize(path + "-wal") > 0
os.close(writing)
assert os.waitpid(pid, 0)[1] == 0
last = sqlite3.connect(path)
print(last.execute("SELECT count(*) FROM t").fetchone()[0])
last.close()
"""


def test_a_forked_child_that_lets_go_of_a_connection_does_not_close_it(tmp_path: Path) -> None:
    """Closed there, SQLite takes itself for the last one that has the file, and removes what others have committed."""
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-W",
            "ignore:This process",
            "-W",
            "error::ResourceWarning",
            "-c",
            LETS_GO,
            str(tmp_path / "some.db"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=QUIET,
    )
    assert (done.stdout, done.stderr) == ("2\n", "")
