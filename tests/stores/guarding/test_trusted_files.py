"""Files beside a log, and their folder: whose they must be before SQLite may see them. Other users are real ones."""

import asyncio
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.inspection.scan import SoughtSecrets, scan_log
from refold.stores import SQLiteStore, batch
from refold.stores.guarding.trusted_files import require_log_trusted
from refold.stores.sqlite.inbox import InboxFile

OTHER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
BESIDE = ("-wal", "-shm", "-journal", ".lock", ".inbox", ".inbox-wal", ".inbox-shm", ".inbox-journal")
READ_WITH_LOG = ("-wal", "-shm", "-journal", ".lock")
SHARED = 0o1777


async def made(log: Path) -> Path:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
    return log


def beside(log: Path, suffix: str) -> Path:
    return log.with_name(log.name + suffix)


def as_other_user(work: Callable[[], object]) -> str:
    """Do something in a process of another user, who is in no group of ours; return what it raised."""
    reading, writing = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # That other threads do not run there is as well.
        child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            work()
        except BaseException as error:  # noqa: BLE001 - it is told to the parent
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        raised = told.read().decode()
    os.waitpid(child, 0)
    return raised


async def use(log: Path) -> None:
    async with AgentRuntime(
        AgentConfig(model="m"), provider=ScriptedProvider([say("Hi.")]), log=log, allow_shared_folder=True
    ):
        pass


async def read(log: Path) -> None:
    async with await SQLiteStore.open(log, read_only=True) as store:
        await store.read_all()


async def command(log: Path) -> None:
    await InboxFile(log, allow_shared_folder=True).add("a", "key", b"{}", 1)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder where every user may make files, in one that they may enter."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o711)
        folder = Path(above, "shared")
        folder.mkdir()
        folder.chmod(SHARED)
        yield folder


@AS_ROOT
@pytest.mark.parametrize("suffix", BESIDE)
async def test_what_another_user_puts_beside_a_log_is_refused_by_name_and_left_there(shared: Path, suffix: str) -> None:
    log = shared / "events.db"
    async with await SQLiteStore.open(log, allow_shared_folder=True) as store:
        await store.append([batch("session/a", 0)])
    beside(log, suffix).unlink(missing_ok=True)
    assert not as_other_user(lambda: beside(log, suffix).write_text("forged"))
    for way in (use, *([read] if suffix in READ_WITH_LOG else []), *([command] if ".inbox" in suffix else [])):
        with pytest.raises(PersistenceError, match=rf"events\.db{suffix} belongs to another user \({OTHER}\)"):
            await way(log)
    assert beside(log, suffix).read_text() == "forged"


@AS_ROOT
async def test_the_wal_of_another_user_never_becomes_the_log(shared: Path, tmp_path: Path) -> None:
    forged = shared / "forged" / "events.db"
    forged.parent.mkdir()
    async with await SQLiteStore.open(forged) as store:
        await store.append([batch("session/forged", 0)])
        wal = beside(forged, "-wal").read_bytes()
    log = shared / "events.db"
    log.write_bytes((await made(tmp_path / "events.db")).read_bytes())
    beside(forged, ".copy").write_bytes(wal)
    beside(forged, ".copy").chmod(0o644)
    assert not as_other_user(lambda: shutil.copyfile(beside(forged, ".copy"), beside(log, "-wal")))
    for way in (use, read):
        with pytest.raises(PersistenceError, match=r"events\.db-wal belongs"):
            await way(log)


@AS_ROOT
async def test_a_log_of_another_user_is_read_and_never_written(shared: Path) -> None:
    theirs = shared / "events.db"
    ours = await made(shared.parent / "events.db")
    ours.chmod(0o644)
    assert not as_other_user(lambda: shutil.copyfile(ours, theirs))
    await read(theirs)
    with pytest.raises(PersistenceError, match=r"events\.db belongs to another user"):
        await use(theirs)


def made_for_everybody(path: Path) -> None:
    path.touch()
    path.chmod(0o602)


PLANTED: dict[str, tuple[type[PersistenceError], str, Callable[[Path], object]]] = {
    "a link": (PersistenceError, "is a symbolic link", lambda path: path.symlink_to("/etc/hostname")),
    "a link to nothing": (PersistenceError, "is a symbolic link", lambda path: path.symlink_to("nowhere")),
    "a folder": (LogFormatError, "is not a regular file", Path.mkdir),
    "a pipe": (LogFormatError, "is not a regular file", os.mkfifo),
    "two names": (PersistenceError, "has 2 names", lambda path: path.hardlink_to(path.with_name("other"))),
    "writable by everybody": (PersistenceError, "everybody may write", made_for_everybody),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("suffix", ["-wal", "-journal", ".inbox", ".inbox-journal"])
async def test_what_is_no_plain_file_of_ours_beside_a_log_is_refused(log: Path, suffix: str, what: str) -> None:
    error, words, plant = PLANTED[what]
    await made(log)
    log.with_name("other").touch()
    plant(beside(log, suffix))
    with pytest.raises(error, match=rf"events\.db{suffix} {words}|{words}.*events\.db{suffix}"):
        await use(log)


@pytest.mark.parametrize("mode", [SHARED, 0o777, 0o703])
async def test_a_folder_where_others_may_make_files_is_refused_unless_the_caller_allows_it(
    log: Path, mode: int
) -> None:
    await made(log)
    log.parent.chmod(mode)
    try:
        with pytest.raises(PersistenceError, match=r"allow_shared_folder=True"):
            await SQLiteStore.open(log)
        with pytest.raises(PersistenceError, match=r"may be written by everybody"):
            await InboxFile(log).add("a", "key", b"{}", 1)
        await use(log)
        await command(log)
        await read(log)  # What only reads needs no leave: it believes no file of another user.
    finally:
        log.parent.chmod(0o700)


@AS_ROOT
@pytest.mark.parametrize(("group", "refused"), [(100, True), (54321, True), (0, False)])
async def test_a_folder_that_a_group_may_write_is_refused_where_others_may_be_in_the_group(
    log: Path, group: int, refused: bool
) -> None:
    await made(log)
    os.chown(log.parent, -1, group)
    log.parent.chmod(0o770)
    if not refused:
        await made(log.with_name("other.db"))
        return
    with pytest.raises(PersistenceError, match=rf"may be written by a group \(mode 770, group .*{group}\)"):
        await SQLiteStore.open(log)


@AS_ROOT
async def test_root_acts_for_the_owner_of_the_folder_and_a_user_for_nobody_else(shared: Path) -> None:
    home = shared / "home"
    assert not as_other_user(home.mkdir)
    await made(home / "events.db")
    assert not as_other_user(beside(home / "events.db", ".inbox").touch)
    await use(home / "events.db")
    log = shared / "third" / "events.db"
    log.parent.mkdir()
    os.chown(log.parent, OTHER + 1, -1)
    assert "belongs to another user" in as_other_user(lambda: require_log_trusted(log, writing=True))


@AS_ROOT
async def test_a_log_that_root_was_killed_with_is_its_owners_and_its_readers_as_before(shared: Path) -> None:
    home = shared / "home"
    home.mkdir(mode=0o755)
    log = await made(home / "events.db")
    log.chmod(0o644)
    beside(log, ".lock").unlink()
    os.chown(log, OTHER, OTHER)
    os.chown(home, OTHER, OTHER)
    store = await SQLiteStore.open(log)
    try:
        await store.append([batch("session/b", 0)])
        for suffix in ("-wal", ".head", ".lock"):
            status = beside(log, suffix).stat()
            assert (status.st_uid, status.st_gid) == (OTHER, OTHER), suffix
        for suffix in ("-wal", ".head"):
            assert beside(log, suffix).stat().st_mode & 0o777 == 0o644, suffix
    finally:
        await store.close()


def readable(path: Path, mode: int = 0o644) -> None:
    path.chmod(mode)


def copied_as_after_a_crash(ours: Path, log: Path, unreadable: Sequence[str]) -> None:
    for suffix in ("", "-wal", "-shm", ".lock"):
        shutil.copyfile(beside(ours, suffix), beside(log, suffix))
        beside(log, suffix).chmod(0o600 if suffix in (*unreadable, ".lock") else 0o644)


@AS_ROOT
@pytest.mark.parametrize(
    ("unreadable", "told"),
    [
        (
            ("-wal", "-shm"),
            r"events\.db-wal, which holds .* belongs to root, 0 \(mode 600\), and this user may",
        ),
        (("-shm",), r"events\.db-shm, without which .* belongs to root, 0 \(mode 600\)"),
        ((), ""),
    ],
)
async def test_a_reader_is_told_which_file_of_a_crashed_log_it_may_not_read(
    shared: Path, unreadable: tuple[str, ...], told: str
) -> None:
    readable(shared, 0o755)
    log, ours = shared / "events.db", shared.parent / "events.db"
    async with await SQLiteStore.open(ours) as store:
        await store.append([batch("session/a", 0)])
        copied_as_after_a_crash(ours, log, unreadable)
    raised = as_other_user(lambda: asyncio.run(read(log)))
    assert re.search(told, raised) if told else not raised


@AS_ROOT
async def test_a_scan_looks_at_what_its_user_may_read_and_names_the_rest(shared: Path) -> None:
    log = shared / "events.db"
    async with await SQLiteStore.open(log, allow_shared_folder=True) as store:
        await store.append([batch("session/a", 0)])
    readable(log)
    await command(log)

    def scan() -> None:
        report = asyncio.run(scan_log(log, SoughtSecrets({}, {})))
        seen = [why.partition(" belongs")[0] for why in report.not_seen]
        assert (report.events, report.incomplete, seen) == (1, True, [f"{log}.inbox", f"{log}.lock"])

    await scan_log(log, SoughtSecrets({}, {}))  # Another user may not load modules.
    assert not as_other_user(scan)
