"""The inbox's file: who may make it, what it refuses, and what is in it for how long."""

import asyncio
import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from refold.events.core.errors import CommandRejected, LogFormatError, PersistenceError
from refold.stores import SQLiteStore
from refold.stores.sqlite import inbox as inbox_file
from refold.stores.sqlite.inbox import COMMAND_BYTES_MAX, KEEP_ROWS, KEEP_US, InboxFile, RowName
from tests.stores.conftest import NOBODY, unprivileged


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.db"
    path.touch()
    return path


@pytest.fixture
def inbox(log: Path) -> InboxFile:
    return InboxFile(log)


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


NO_ROW = RowName(1, "s", "k", bytes(32))


async def add(inbox: InboxFile, session: str = "s", key: str = "k", command: bytes = b"{}", at: int = 1) -> RowName:
    return (await inbox.add(session, key, command, at))[0].name


async def test_before_the_first_command_there_is_no_file_and_nothing_waits(inbox: InboxFile) -> None:
    assert await inbox.sessions_waiting() == []
    assert await inbox.waiting("s") == []
    assert (await inbox.rows([NO_ROW])).get(NO_ROW) is None
    assert await inbox.take_back(NO_ROW) is False
    await inbox.finish(NO_ROW, b"", 1)
    assert inbox.signature() is None
    assert not inbox.path.exists()


async def test_the_file_is_for_its_owners_eyes_and_nothing_stays_beside_it(inbox: InboxFile) -> None:
    before = os.umask(0)
    try:
        await add(inbox)
    finally:
        os.umask(before)
    assert inbox.path.name == "events.db.inbox"
    assert stat.S_IMODE(inbox.path.stat().st_mode) == 0o600
    assert sorted(path.name for path in inbox.path.parent.iterdir()) == ["events.db", "events.db.inbox"]


async def test_rows_wait_in_order_until_they_have_an_outcome(inbox: InboxFile) -> None:
    first = await add(inbox, "b", "1", b"first")
    second = await add(inbox, "a", "1", b"second")
    third = await add(inbox, "b", "2", b"third")
    assert await inbox.sessions_waiting() == ["b", "a"]
    assert [(row.name, row.command) for row in await inbox.waiting("b")] == [(first, b"first"), (third, b"third")]
    await inbox.finish(first, b"done", 5)
    await inbox.finish(first, b"done again", 6)
    assert [row.name for row in await inbox.waiting("b")] == [third]
    assert await inbox.sessions_waiting() == ["a", "b"]
    row = (await inbox.rows([first])).get(first)
    assert row is not None
    assert (row.outcome, row.command, row.digest) == (b"done", None, hashlib.sha256(b"first").digest())
    assert await inbox.take_back(first) is False
    assert await inbox.take_back(second) is True
    assert (await inbox.rows([second])).get(second) is None


async def test_a_row_of_a_file_that_was_removed_is_not_taken_for_another_one_with_its_id(inbox: InboxFile) -> None:
    gone = await add(inbox, "s", "a", b"from a")
    inbox.path.unlink()
    other = await add(inbox, "s", "b", b"from b")
    assert other.id == gone.id
    await inbox.finish(gone, b"done", 2)
    assert (await inbox.rows([gone])).get(gone) is None
    assert await inbox.take_back(gone) is False
    assert [row.command for row in await inbox.waiting("s")] == [b"from b"]


async def test_a_key_is_one_command_in_its_session(inbox: InboxFile) -> None:
    row, new = await inbox.add("s", "k", b"one", 1)
    assert new
    assert await inbox.add("s", "k", b"one", 2) == (row, False)
    assert await add(inbox, "other session", "k", b"two") != row.name
    with pytest.raises(CommandRejected, match="key 'k' was used before"):
        await add(inbox, "s", "k", b"two")
    await inbox.finish(row.name, b"done", 3)
    with pytest.raises(CommandRejected, match="key 'k' was used before"):
        await add(inbox, "s", "k", b"two")
    again, new = await inbox.add("s", "k", b"one", 4)
    assert (again.outcome, new) == (b"done", False)


async def test_what_many_add_at_once_is_written_together_and_what_is_wrong_with_one_costs_that_one_only(
    inbox: InboxFile, work_put: list[object]
) -> None:
    keys = [*map(str, range(20)), "same", "same"]
    added = await asyncio.gather(
        *[add(inbox, key=key, command=f"{number}".encode()) for number, key in enumerate(keys)],
        return_exceptions=True,
    )
    opened_at_once = len(work_put)
    assert [type(result) for result in added] == [RowName] * 21 + [CommandRejected]
    assert [row.key for row in await inbox.waiting("s")] == keys[:-1]
    assert opened_at_once < len(keys)  # Each in a transaction of its own would open, work and close.


async def test_who_is_cancelled_while_it_notes_an_outcome_ends_when_that_is_done(inbox: InboxFile) -> None:
    name = await add(inbox)
    noting = asyncio.create_task(inbox.finish(name, b"done", 2))
    await asyncio.sleep(0)
    noting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await noting
    assert (await inbox.rows([name]))[name].outcome == b"done"


async def test_once_a_row_is_being_written_its_caller_learns_that_it_is_there(
    inbox: InboxFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, rows = threading.Event(), threading.Event(), inbox_file._rows

    def held(*arguments: Any, **named: Any) -> Any:
        begun.set()
        go_on.wait()
        return rows(*arguments, **named)

    monkeypatch.setattr(inbox_file, "_rows", held)
    cancelled = asyncio.create_task(add(inbox, key="cancelled"))
    await asyncio.to_thread(begun.wait)
    cancelled.cancel()
    late = asyncio.create_task(inbox.add("s", "late", b"{}", 1, wait_s=0))
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(PersistenceError, match="nothing of this was written"):
        await late
    assert [row.key for row in await inbox.waiting("s")] == ["cancelled"]


async def test_what_people_wrote_is_gone_from_the_file_once_it_is_performed(inbox: InboxFile) -> None:
    number = await add(inbox, command=b"canary" * 5_000)
    assert b"canary" in inbox.path.read_bytes()
    await inbox.finish(number, b"done", 1)
    assert b"canary" not in inbox.path.read_bytes()


async def test_performed_rows_go_after_a_while_and_waiting_ones_never(inbox: InboxFile) -> None:
    old, young, waiting = [await add(inbox, key=key) for key in ("old", "young", "waiting")]
    await inbox.finish(old, b"done", 1_000)
    await inbox.finish(young, b"done", 1_000 + KEEP_US)
    assert (await inbox.rows([old])).get(old) is not None
    last = await add(inbox, key="last")
    await inbox.finish(last, b"done", 1_001 + KEEP_US)
    assert set(await inbox.rows([old, young, waiting, last])) == {young, waiting, last}


async def test_no_more_than_so_many_performed_rows_are_kept(inbox: InboxFile) -> None:
    waiting = await add(inbox, key="waiting")
    with closing(sqlite3.connect(inbox.path)) as connection, connection:
        connection.executemany(
            "INSERT INTO commands (session, key, digest, at, outcome, outcome_at) VALUES ('s', ?, ?, 1, x'00', 1)",
            [(f"k{number}", bytes(32)) for number in range(KEEP_ROWS + 20)],
        )
    last = await add(inbox, key="last")
    await inbox.finish(last, b"done", 1)
    with closing(sqlite3.connect(inbox.path)) as connection:
        [(kept, first)] = connection.execute("SELECT count(*), min(id) FROM commands WHERE outcome IS NOT NULL")
    assert (kept, first) == (KEEP_ROWS, last.id - KEEP_ROWS + 1)
    assert [row.name for row in await inbox.waiting("s")] == [waiting]


async def test_a_command_that_is_too_long_is_refused(inbox: InboxFile) -> None:
    with pytest.raises(CommandRejected, match="takes 16,777,216"):
        await add(inbox, command=b"x" * (COMMAND_BYTES_MAX + 1))
    assert not inbox.path.exists()
    number = await add(inbox, command=b"x" * COMMAND_BYTES_MAX)
    [row] = await inbox.waiting("s")
    assert (row.name, len(row.command or b"")) == (number, COMMAND_BYTES_MAX)


async def test_the_signature_differs_after_a_write(inbox: InboxFile) -> None:
    number = await add(inbox)
    before = inbox.signature()
    assert inbox.signature() == before
    os.utime(inbox.path, ns=(1, 1))  # As if the write had been long ago: two may share one tick of the clock.
    before = inbox.signature()
    await inbox.finish(number, b"done", 1)
    assert inbox.signature() != before


def test_many_processes_put_commands_there_at_once_and_none_is_lost(inbox: InboxFile) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from refold.stores.sqlite.inbox import InboxFile\n"
        "async def main():\n"
        "    inbox = InboxFile(Path(sys.argv[1]))\n"
        "    for number in range(10):\n"
        "        await inbox.add('s', f'{sys.argv[2]}-{number}', b'{}', 1)\n"
        "asyncio.run(main())"
    )
    log = inbox.path.with_name("events.db")
    processes = [subprocess.Popen([sys.executable, "-P", "-c", program, str(log), str(number)]) for number in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert len(asyncio.run(inbox.waiting("s"))) == 40


async def test_a_file_that_another_process_had_no_time_to_fill_is_filled(inbox: InboxFile) -> None:
    inbox.path.touch(mode=0o600)
    assert await inbox.sessions_waiting() == []
    assert inbox.path.stat().st_size == 0
    await add(inbox)
    assert len(await inbox.waiting("s")) == 1


def make_log(path: Path) -> None:
    async def make() -> None:
        async with await SQLiteStore.open(path):
            pass

    asyncio.run(make())


OUR_MARK = f"PRAGMA application_id = {inbox_file.INBOX_APPLICATION_ID}"

NOT_OURS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a text": ("is not an inbox", lambda path: path.write_text("text\n" * 1_000)),
    "another database": ("is not an inbox", lambda path: execute(path, "CREATE TABLE t (x)")),
    "a log": ("is not an inbox", make_log),
    "a newer inbox": (
        "has format 2",
        lambda path: execute(path, "CREATE TABLE t (x)", OUR_MARK, "PRAGMA user_version = 2"),
    ),
    "an inbox with another table": (
        "has other tables",
        lambda path: execute(path, "CREATE TABLE commands (id)", OUR_MARK, "PRAGMA user_version = 1"),
    ),
}


@pytest.mark.parametrize("what", NOT_OURS)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_was(inbox: InboxFile, what: str) -> None:
    said, make = NOT_OURS[what]
    make(inbox.path)
    before = {path.name: path.read_bytes() for path in inbox.path.parent.iterdir()}
    for work in (
        lambda: inbox.add("s", "k", b"{}", 1),
        inbox.sessions_waiting,
        lambda: inbox.finish(NO_ROW, b"", 1),
        lambda: inbox.take_back(NO_ROW),
    ):
        with pytest.raises(LogFormatError, match=said):
            asyncio.run(work())
    assert {path.name: path.read_bytes() for path in inbox.path.parent.iterdir()} == before


def test_the_unfinished_transaction_of_another_programs_file_is_not_rolled_back_by_us(
    inbox: InboxFile, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    execute(other, "CREATE TABLE t (x)", "INSERT INTO t VALUES (zeroblob(100000))")
    with closing(sqlite3.connect(other, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("UPDATE t SET x = randomblob(100000)")
        shutil.copy(other, inbox.path)
        shutil.copy(f"{other}-journal", f"{inbox.path}-journal")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(LogFormatError, match="is not an inbox"):
        asyncio.run(inbox.sessions_waiting())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_process_that_dies_while_it_puts_a_command_there_leaves_the_others(inbox: InboxFile) -> None:
    asyncio.run(add(inbox, key="before"))
    program = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size = 1')\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "for number in range(100):\n"
        '    connection.execute("INSERT INTO commands (session, key, digest, command, at)'
        " VALUES ('s', ?, zeroblob(32), zeroblob(5000), 1)\", (number,))\n"
        "os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program, str(inbox.path)], check=False)
    assert done.returncode == 9
    assert inbox.path.with_name(inbox.path.name + "-journal").exists()
    assert [row.key for row in asyncio.run(inbox.waiting("s"))] == ["before"]
    asyncio.run(add(inbox, key="after"))
    assert [row.key for row in asyncio.run(inbox.waiting("s"))] == ["before", "after"]


async def test_a_trigger_that_somebody_put_into_it_never_runs(inbox: InboxFile) -> None:
    await add(inbox)
    execute(inbox.path, "CREATE TRIGGER t AFTER INSERT ON commands BEGIN DELETE FROM commands; END")
    with pytest.raises(LogFormatError, match="has other tables"):
        await add(inbox, key="another")


async def test_a_damaged_inbox_is_called_that(inbox: InboxFile) -> None:
    await add(inbox)
    data = bytearray(inbox.path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    inbox.path.write_bytes(data)
    with pytest.raises(LogFormatError, match="damaged"):
        await inbox.sessions_waiting()


async def test_links_are_refused(inbox: InboxFile, tmp_path: Path) -> None:
    elsewhere = InboxFile(tmp_path / "elsewhere.db")
    (tmp_path / "elsewhere.db").touch()
    await add(elsewhere)
    inbox.path.symlink_to(elsewhere.path)
    with pytest.raises(PersistenceError, match="symbolic link"):
        await add(inbox)
    inbox.path.unlink()
    inbox.path.symlink_to(tmp_path / "nothing")
    with pytest.raises(PersistenceError, match="symbolic link"):
        await inbox.sessions_waiting()
    inbox.path.unlink()
    inbox.path.hardlink_to(elsewhere.path)
    with pytest.raises(PersistenceError, match="2 names"):
        await add(inbox)
    inbox.path.unlink()
    inbox.path.mkdir()
    with pytest.raises(LogFormatError, match="not a regular file"):
        await add(inbox)


async def test_an_inbox_into_which_everybody_may_write_commands_nobody(inbox: InboxFile) -> None:
    await add(inbox)
    inbox.path.chmod(0o602)
    with pytest.raises(PersistenceError, match="everybody may write"):
        await inbox.sessions_waiting()


async def test_in_a_folder_that_is_read_only_there_is_no_inbox(inbox: InboxFile) -> None:
    await add(inbox)  # Loads what is loaded on first use while this user may read it.
    with unprivileged() as folder:
        there = InboxFile(folder / "events.db")
        (folder / "events.db").touch()
        folder.chmod(0o500)
        try:
            with pytest.raises(PersistenceError, match="cannot be made: Permission denied"):
                await add(there)
            assert await there.sessions_waiting() == []
            folder.chmod(0o700)
            await add(there)
            there.path.chmod(0o400)
            with pytest.raises(PersistenceError, match="cannot be written by this user"):
                await add(there, key="another")
        finally:
            folder.chmod(0o700)


def test_the_inbox_belongs_to_the_logs_owner_whoever_makes_it(log: Path, inbox: InboxFile) -> None:
    if os.getuid() == 0:
        os.chown(log, NOBODY, NOBODY)
    asyncio.run(add(inbox))
    assert (inbox.path.stat().st_uid, inbox.path.stat().st_gid) == (log.stat().st_uid, log.stat().st_gid)


async def test_an_inbox_of_a_third_user_is_refused(inbox: InboxFile) -> None:
    await add(inbox)
    with unprivileged() as folder:
        there = InboxFile(folder / "events.db")
        (folder / "events.db").touch()
        await add(there)
        if os.getuid() == NOBODY:  # Only root can give a file away, and root can be read by nobody: so by its saved id.
            os.seteuid(0)
            os.chown(there.path, NOBODY - 1, NOBODY)
            os.seteuid(NOBODY)
            with pytest.raises(PersistenceError, match="belongs to another user"):
                await there.sessions_waiting()


async def test_rows_of_sessions_are_forgotten_but_those_whose_command_or_outcome_is_kept(inbox: InboxFile) -> None:
    deleting, deleted = await add(inbox, key="a", command=b"delete"), await add(inbox, key="b", command=b"delete")
    said, done = await add(inbox, key="c", command=b"say"), await add(inbox, key="d", command=b"say")
    other = await add(inbox, session="t", command=b"say")
    for name, outcome in ((deleted, b"deleted"), (done, b"done")):
        await inbox.finish(name, outcome, 2)
    assert await inbox.forget(["s"], kept=b"delete") == 2
    assert set(await inbox.rows([deleting, deleted, said, done, other])) == {deleting, deleted, other}


async def test_who_has_no_time_left_leaves_an_inbox_that_others_have_and_nothing_of_his_is_written(
    inbox: InboxFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(inbox, key="first")
    monkeypatch.setattr(inbox_file, "BUSY_S", 10**6)
    with closing(sqlite3.connect(inbox.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        cancelled = asyncio.create_task(add(inbox, key="cancelled"))
        with pytest.raises(PersistenceError, match=r"others had it for 0\.01 s, and nothing of this was written"):
            await inbox.add("s", "late", b"{}", 1, wait_s=0.01)
        assert cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        patient = asyncio.create_task(add(inbox, key="patient"))
        await asyncio.sleep(0)
        other.execute("COMMIT")
    assert (await patient).key == "patient"
    assert [row.key for row in await inbox.waiting("s")] == ["first", "patient"]


async def test_who_reads_and_is_cancelled_leaves_an_inbox_that_others_have(
    inbox: InboxFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(inbox)
    monkeypatch.setattr(inbox_file, "BUSY_S", 10**6)
    with closing(sqlite3.connect(inbox.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inbox.waiting("s"), 0.01)
    assert [row.key for row in await inbox.waiting("s")] == ["k"]


async def test_who_waits_longer_for_an_inbox_asks_more_often_but_not_too_often_and_not_for_ever(
    inbox: InboxFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(inbox, key="first")
    pauses = list[float]()

    class Hurried(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait()
            pauses.append(timeout)
            return self.is_set()

    monkeypatch.setattr(inbox_file, "BUSY_S", 8.0)
    with closing(sqlite3.connect(inbox.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(threading, "Event", Hurried)
        with pytest.raises(PersistenceError, match="locked"):
            await add(inbox, key="late")
        monkeypatch.undo()
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[0] > 3 * pauses[-1]
    assert sum(pauses) == pytest.approx(8.0, abs=0.01)
    assert len(pauses) < 2000  # A process that has the file may have been stopped, and many others wait for it.
    assert (await add(inbox, key="later")).key == "later"
