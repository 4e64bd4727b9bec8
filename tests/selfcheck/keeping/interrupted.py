"""What is done to a whole log, or a session of it, interrupted: by SIGKILL, by a full disk, and by cancellation.

A work is done in a forked child, which dies at the nth moment of a kind: before an SQL statement, before SQLite writes,
syncs, cuts or deletes a file, or before Python opens, renames or removes one. Then the log is looked at as a restart
finds it: it is sound, and each session is there, whole, or is deleted, with all that belongs to it; a fork, and what
takes a conversation back, is there whole or not at all. The same work is
done once more, and must complete what was begun; nothing of what is deleted is in any file then but archives.
"""

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, get_args

from refold.events.core.errors import PersistenceError
from refold.events.core.records import StoredEvent
from refold.inspection.check import check_log
from refold.keeping import compact, delete_session, retain
from refold.remote.client import give
from refold.remote.rows import InboxCommand, InboxFork, InboxRewind
from refold.scenarios.world import sqlite_shim
from refold.scenarios.world.sqlite_shim import FileOperation, SQLiteShim
from refold.stores import SQLiteStore
from refold.stores.jsonl.check import find_damage
from tests.runtime.keeping.talks import found, talked
from tests.selfcheck.storage.disk_errors import FOR_EVER, DiskError, FailingDisk

LOG: Final = "events.db"
ARCHIVES: Final = "archives"
SESSIONS: Final = ("alice", "bob", "carol")

Moment = Literal["statement", "operation", "file"]
MOMENTS: Final[tuple[Moment, ...]] = get_args(Moment)

Do = Callable[[Path], Coroutine[Any, Any, object]]


class Work(NamedTuple):
    """What is done to the log in a folder, and which sessions are deleted once it is done."""

    do: Do
    deleted: tuple[str, ...]
    archived: bool = False
    made: str = ""
    """The stream that has one event more once it is done, behind those of `session/alice`; empty = none has."""


def _given(command: InboxCommand) -> Do:
    return lambda folder: give(folder / LOG, "alice", command, key="k")


WORKS: Final[Mapping[str, Work]] = {
    "delete": Work(lambda folder: delete_session(folder / LOG, "alice"), ("alice",)),
    "retain": Work(lambda folder: retain(folder / LOG, timedelta(0)), SESSIONS),
    "archive": Work(lambda folder: retain(folder / LOG, timedelta(0), archive=folder / ARCHIVES), SESSIONS, True),
    "compact": Work(lambda folder: compact(folder / LOG), ()),
    "fork": Work(_given(InboxFork(name="dora", model="other")), (), made="session/dora"),
    "rewind": Work(_given(InboxRewind()), (), made="session/alice"),
}

CASES: Final = [
    (name, moment) for name, work in WORKS.items() for moment in MOMENTS if moment != "file" or work.archived
]

Streams = Mapping[str, Sequence[StoredEvent]]


class Original(NamedTuple):
    """A folder with a log, of which each interruption gets a copy, and what is in it."""

    folder: Path
    streams: Streams


def original(folder: Path) -> Original:
    """Make the log that is worked on: three sessions with children, and room in its file that a fourth one left."""
    folder.mkdir()
    (folder / ARCHIVES).mkdir()
    talked(folder / LOG, *SESSIONS, "zoe")
    asyncio.run(delete_session(folder / LOG, "zoe"))
    return Original(folder, asyncio.run(_streams(folder / LOG)))


def killed_at(original: Original, folder: Path, work: Work, moment: Moment, nth: int) -> bool:
    """Kill the work at its nth moment, check what is left, do it again, and return whether it got that far."""
    _copy(original, folder)
    reached = _died(work.do, folder, moment, nth)
    _check(original, folder, work, done=not reached)
    _done_again(original, folder, work)
    return reached


def full_disk_at(original: Original, folder: Path, work: Work, nth: int) -> bool:
    """Let the disk be full from the nth write on, check what is left, do it again, and return whether that was met."""
    _copy(original, folder)
    disk = FailingDisk(DiskError("write", "ENOSPC", sqlite_shim.FULL, nth, FOR_EVER))
    told = False
    with SQLiteShim.of_process().attached(folder, disk):
        try:
            asyncio.run(_run(work.do, folder))
        except PersistenceError:
            told = True
    # A fork that is there is done, also where what follows, such as emptying the WAL, is not.
    assert told or not disk.failed or work.made
    _check(original, folder, work, done=not told)
    _done_again(original, folder, work)
    return bool(disk.failed)


def cancelled_at(original: Original, folder: Path, work: Work, step: int) -> None:
    """Cancel the work after so many steps of the loop, check what is left, and do it again."""
    _copy(original, folder)

    async def cancel() -> None:
        task = asyncio.ensure_future(work.do(folder))
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    asyncio.run(cancel())
    _check(original, folder, work, done=False)
    _done_again(original, folder, work)


def _copy(original: Original, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original.folder, folder)


async def _run(do: Do, folder: Path) -> None:
    await do(folder)


def _done_again(original: Original, folder: Path, work: Work) -> None:
    asyncio.run(_run(work.do, folder))
    _check(original, folder, work, done=True)
    for session in work.deleted:
        assert all(name.startswith(f"{LOG}-") for name in found(folder, session)), found(folder, session)
    if work.archived:
        archives = [find_damage(path) for path in (folder / ARCHIVES).iterdir()]
        assert not any(damage for _, damage in archives)
        for stream, events in original.streams.items():
            if _whose(stream) in work.deleted:
                assert any(held.streams.get(stream, (0,))[0] == len(events) for held, _ in archives), stream


def _check(original: Original, folder: Path, work: Work, *, done: bool) -> None:
    """Compare a log with the original: all that it has is as it was, and families are there whole or not at all."""
    log = folder / LOG
    report = asyncio.run(check_log(log))
    assert report.problems == ()
    assert asyncio.run(_damage(log)) == []
    now = dict(asyncio.run(_streams(log)))
    before = original.streams["session/alice"]
    made = now.pop(work.made, None)
    assert made is not None or not (work.made and done)
    if made is not None:
        assert made[: len(before)] == before
        assert len(made) == len(before) + 1 or (made == before and not done)
        now["session/alice"] = before
    assert now.get("session/alice") == before or "alice" in work.deleted
    assert all(original.streams[stream] == events for stream, events in now.items())
    gone = original.streams.keys() - now.keys()
    assert gone <= set(report.deleted_streams)
    families = {_whose(stream) for stream in gone}
    assert families <= set(work.deleted)
    assert not families & {_whose(stream) for stream in now}, "a family was cut"
    if done:
        assert families == set(work.deleted)


def _whose(stream: str) -> str:
    kind, name, *_ = stream.split("/")
    return name if kind == "session" else stream


async def _streams(log: Path) -> Streams:
    async with await SQLiteStore.open(log, read_only=True) as store:
        return {head.stream: await store.read_stream(head.stream) for head in await store.list_streams()}


async def _damage(log: Path) -> list[str]:
    async with await SQLiteStore.open(log, read_only=True) as store:
        return await store.find_damage()


def moments_of(original: Original, folder: Path, work: Work, moment: Moment) -> int:
    """Return how many moments of a kind the work has."""
    _copy(original, folder)
    reading, writing = os.pipe()
    child = _forked()
    if child == 0:
        _be_worker(work.do, folder, moment, 0, writing)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        return int(pipe.read())


def _died(do: Do, folder: Path, moment: Moment, nth: int) -> bool:
    child = _forked()
    if child == 0:
        _be_worker(do, folder, moment, nth, None)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, status
    return os.WIFSIGNALED(status)


def _forked() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_worker(do: Do, folder: Path, moment: Moment, nth: int, pipe: int | None) -> NoReturn:
    """Do the work in a forked child, and die at its nth moment; never return."""
    seen = 0

    def met() -> None:
        nonlocal seen
        seen += 1
        if seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        if moment == "statement":
            _watch_statements(met)
            asyncio.run(_run(do, folder))
        elif moment == "operation":
            with SQLiteShim.of_process().attached(folder, lambda operation: _seen(operation, met)):
                asyncio.run(_run(do, folder))
        else:
            _watch_files(folder, met)
            asyncio.run(_run(do, folder))
        if pipe is not None:
            os.write(pipe, str(seen).encode())
        code = 0
    finally:
        os._exit(code)


def _watch_statements(met: Callable[[], None]) -> None:
    connect = sqlite3.connect

    def watched(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **named)
        connection.set_trace_callback(lambda _: met())
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]


def _seen(operation: FileOperation, met: Callable[[], None]) -> int:
    if operation.kind in ("create", "write", "truncate", "sync", "delete"):
        met()
    return 0


def _watch_files(folder: Path, met: Callable[[], None]) -> None:
    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove") and str(given[0]).startswith(str(folder)):
            met()

    sys.addaudithook(hook)
