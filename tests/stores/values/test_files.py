"""The backend in a folder: names, what a crash leaves, and what else lies in the folder."""

import asyncio
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.events.core.errors import ConfigError, PersistenceError
from refold.stores import FileBackend
from refold.stores.values.files import NAME_CHARACTERS_MAX, name_of


class Crash(BaseException):
    """The process ends here, as far as can be played in one process."""


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncGenerator[FileBackend, None]:
    backend = FileBackend(tmp_path)
    yield backend
    await backend.close()


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_value_lies_as_it_is_in_a_private_file_that_other_programs_find(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    backend = FileBackend(folder)
    await backend.save("session/Alice.json", b'{"a": 1}')
    file = folder / "session%2f%41lice.json"
    assert file.read_bytes() == b'{"a": 1}'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files_in(folder) == {file.name}
    await backend.close()


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
@settings(max_examples=100)
def test_case_l09_names_of_files_differ_where_keys_do_and_lead_nowhere(first: str, second: str) -> None:
    names = []
    for key in (first, second):
        name = name_of(key.encode(errors="replace"))
        names.append(name)
        assert name == name.lower()
        assert name.isascii()
        assert len(name) <= NAME_CHARACTERS_MAX
        assert "/" not in name
        assert "\0" not in name
        assert name[0] != "."
    same = first.encode(errors="replace") == second.encode(errors="replace")
    assert (names[0] == names[1]) is same


@pytest.mark.parametrize("key", ["../outside", "/outside", "a/../../outside", "..", ".", "a\0/../outside", "x" * 300])
async def test_no_key_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "values"
    (tmp_path / "outside").write_bytes(b"not yours")
    backend = FileBackend(folder)
    assert await backend.load(key) is None
    await backend.save(key, b"mine")
    assert await backend.load(key) == b"mine"
    await backend.delete(key)
    assert files_in(tmp_path) == {"outside", "values"}
    assert files_in(folder) == set()
    assert (tmp_path / "outside").read_bytes() == b"not yours"
    await backend.close()


async def test_links_are_neither_read_nor_written_through(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    folder = tmp_path / "values"
    folder.mkdir()
    (folder / "key").symlink_to(secret)
    backend = FileBackend(folder)
    assert await backend.exists("key") is False
    assert await backend.list_keys() == []
    with pytest.raises(PersistenceError, match=r"'key' cannot be read from .*values: key is a symbolic link"):
        await backend.load("key")
    await backend.save("key", b"mine")
    assert await backend.load("key") == b"mine"
    assert secret.read_bytes() == b"not yours"
    await backend.close()


async def test_what_is_no_regular_file_is_refused_and_never_waited_for(backend: FileBackend, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for key in ("pipe", "folder"):
        assert await backend.exists(key) is False
        with pytest.raises(PersistenceError, match=f"'{key}' cannot be read"):
            await backend.load(key)
    with pytest.raises(PersistenceError, match="'folder' could not be saved"):
        await backend.save("folder", b"1")
    with pytest.raises(PersistenceError, match="'folder' could not be deleted"):
        await backend.delete("folder")
    assert await backend.list_keys() == []
    assert files_in(tmp_path) == {"pipe", "folder"}


async def test_files_that_cannot_be_of_a_key_are_left_alone(backend: FileBackend, tmp_path: Path) -> None:
    others = ["README.md", ".hidden", "%zz", "%41%4A", "%ff%fe", "=short", "=" + "0" * 64, "x" * 150, "a b"]
    for name in others:
        (tmp_path / name).write_bytes(b"9\n")
    assert await backend.list_keys() == []
    await backend.save("mine", b"1")
    assert await backend.list_keys() == ["mine"]
    assert files_in(tmp_path) == {*others, "mine"}


async def test_a_long_key_is_kept_in_its_file_and_checked(backend: FileBackend, tmp_path: Path) -> None:
    key = "é" * 500
    await backend.save(key, b"1\nvalue")
    file = tmp_path / f"={hashlib.sha256(key.encode()).hexdigest()}"
    assert file.read_bytes() == b"1000\n" + key.encode() + b"1\nvalue"
    for damaged in (b"", b"1000", b"1000\nother", b"-1\nx", b"99999999\n" + key.encode()):
        file.write_bytes(damaged)
        assert await backend.list_keys() == []
        with pytest.raises(PersistenceError, match="damaged"):
            await backend.load(key)
    await backend.save(key, b"again")
    assert await backend.load(key) == b"again"


@pytest.mark.parametrize(("point", "kept"), [("save.written", b"old"), ("save.renamed", b"new")])
async def test_a_save_that_fails_leaves_the_old_value_or_the_new_one_and_nothing_else(
    tmp_path: Path, point: str, kept: bytes
) -> None:
    armed = False

    def fault(reached: str) -> None:
        if armed and reached == point:
            raise Crash

    backend = FileBackend(tmp_path, fault=fault)
    await backend.save("key", b"old")
    armed = True
    with pytest.raises(Crash):
        await backend.save("key", b"new")
    armed = False
    assert await backend.load("key") == kept
    assert files_in(tmp_path) == {"key"}
    await backend.close()


async def test_a_full_disk_is_told_with_the_key_and_the_folder(tmp_path: Path) -> None:
    def fault(reached: str) -> None:
        if reached == "save.written":
            raise OSError(28, "No space left on device")

    backend = FileBackend(tmp_path, fault=fault)
    with pytest.raises(PersistenceError, match=r"'a/b' could not be saved in .*: No space left on device") as caught:
        await backend.save("a/b", b"1")
    assert str(tmp_path) in str(caught.value)
    assert caught.value.outcome_unknown is False
    assert files_in(tmp_path) == set()
    await backend.close()


async def test_a_disk_that_hangs_stops_neither_the_loop_nor_the_caller(tmp_path: Path) -> None:
    going_on = threading.Event()

    def fault(reached: str) -> None:
        if reached == "save.written":
            going_on.wait(30)

    backend = FileBackend(tmp_path, timeout_s=0.01, fault=fault)
    try:
        with pytest.raises(PersistenceError, match="takes longer than") as caught:
            await backend.save("key", b"1")
        assert caught.value.outcome_unknown is True
    finally:
        going_on.set()
    patient = FileBackend(tmp_path)
    while await patient.load("key") is None:  # noqa: ASYNC110 - Another thread's file.
        await asyncio.sleep(0)
    await backend.close()
    await patient.close()


async def test_what_is_begun_first_for_a_key_takes_effect_first(backend: FileBackend) -> None:
    saving = [asyncio.ensure_future(backend.save("key", str(number).encode())) for number in range(20)]
    loading = asyncio.ensure_future(backend.load("key"))
    deleting = asyncio.ensure_future(backend.delete("key"))
    assert await loading == b"19"
    await asyncio.gather(*saving, deleting)
    assert await backend.load("key") is None


async def test_threads_end_with_the_backend_and_one_that_is_closed_refuses(tmp_path: Path) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("refold-values")]

    backend = FileBackend(tmp_path)
    assert threads() == []
    await backend.batch_save({str(number): b"1" for number in range(20)})
    assert 1 <= len(threads()) <= 4
    await backend.close()
    assert threads() == []
    for call in (backend.load("1"), backend.save("1", b""), backend.delete("1"), backend.exists("1")):
        with pytest.raises(PersistenceError, match="closed"):
            await call
    dropped = FileBackend(tmp_path)
    await dropped.load("1")
    left = threads()
    del dropped
    for thread in left:
        thread.join(10)
    assert threads() == []


async def test_a_backend_goes_on_in_another_loop_and_in_a_thread(backend: FileBackend) -> None:
    await backend.save("key", b"1")
    loaded: list[bytes | None] = []
    thread = threading.Thread(target=lambda: loaded.append(asyncio.run(backend.load("key"))))
    thread.start()
    while thread.is_alive():  # noqa: ASYNC110 - A thread's end sets no event.
        await asyncio.sleep(0)
    assert loaded == [b"1"]


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    for path in ("", "a\0b"):
        with pytest.raises(ConfigError):
            FileBackend(path)

    async def use() -> None:
        (tmp_path / "file").write_bytes(b"")
        backend = FileBackend(tmp_path / "file")
        with pytest.raises(PersistenceError, match="could not be saved"):
            await backend.save("key", b"1")
        with pytest.raises(PersistenceError, match="cannot be listed"):
            await backend.list_keys()
        await backend.close()

    asyncio.run(use())


# Other processes.

WRITER = """
import asyncio, os, signal, sys
from refold.stores import FileBackend
folder, number, at = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def fault(point):
    if point == at:
        os.kill(os.getpid(), signal.SIGKILL)
async def main():
    backend = FileBackend(folder, fault=fault)
    print("ready", flush=True)
    count = 0
    while count < int(sys.argv[4]):
        count += 1
        await backend.save("key", b"%d " % number * (10_000 + count))
        if count == 1:
            print("saved", flush=True)
    await backend.close()
asyncio.run(main())
"""


def writer(folder: Path, number: int, at: str = "", count: int = 1) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-P", "-c", WRITER, str(folder), str(number), at, str(count)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def is_whole(value: bytes | None) -> bool:
    return value is not None and len(value) > 20_000 and set(value.split()) in ({b"1"}, {b"2"}, {b"0"})


@pytest.mark.parametrize(("at", "kept"), [("save.written", b"old"), ("save.renamed", b"1 " * 10_001)])
async def test_a_process_killed_inside_a_save_leaves_the_old_value_or_the_new_one(
    tmp_path: Path, at: str, kept: bytes
) -> None:
    before = FileBackend(tmp_path)
    await before.save("key", b"old")
    with writer(tmp_path, 1, at) as process:
        assert process.wait(30) == -signal.SIGKILL
    left = files_in(tmp_path) - {"key"}
    assert len(left) == (1 if at == "save.written" else 0)
    assert await before.load("key") == kept
    assert await before.list_keys() == ["key"]  # What is unfinished is ignored by one that has cleaned up before.
    assert files_in(tmp_path) - {"key"} == left
    after = FileBackend(tmp_path)
    assert await after.list_keys() == ["key"]  # And cleaned up by the next.
    assert files_in(tmp_path) == {"key"}
    await before.close()
    await after.close()


async def test_what_a_living_writer_has_begun_is_not_cleaned_up(tmp_path: Path) -> None:
    written, going_on = threading.Event(), threading.Event()

    def fault(reached: str) -> None:
        if reached == "save.written":
            written.set()
            going_on.wait(30)

    slow, other = FileBackend(tmp_path, fault=fault), FileBackend(tmp_path)
    saving = asyncio.ensure_future(slow.save("slow", b"1"))
    while not written.is_set():  # noqa: ASYNC110 - A thread's event.
        await asyncio.sleep(0)
    await other.save("quick", b"2")  # The first thing that it does is to clean up.
    assert await other.list_keys() == ["quick"]
    going_on.set()
    await saving
    assert await other.list_keys() == ["quick", "slow"]
    await slow.close()
    await other.close()


@pytest.mark.slow
async def test_two_processes_that_write_one_key_leave_one_whole_value(backend: FileBackend, tmp_path: Path) -> None:
    await backend.save("key", b"0 " * 20_000)
    with writer(tmp_path, 1, count=150) as first, writer(tmp_path, 2, count=150) as second:
        while first.poll() is None or second.poll() is None:
            assert is_whole(await backend.load("key"))
            await backend.save("other", b"1")
    assert (first.returncode, second.returncode) == (0, 0)
    assert is_whole(await backend.load("key"))
    assert files_in(tmp_path) == {"key", "other"}


async def test_a_forked_child_uses_threads_of_its_own(backend: FileBackend, tmp_path: Path) -> None:
    script = f"""
import asyncio, os
from refold.stores import FileBackend
backend = FileBackend({str(tmp_path)!r})
asyncio.run(backend.save("parent", b"1"))
child = os.fork()
if child == 0:
    asyncio.run(backend.save("child", b"2"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(backend.save("parent", b"3"))
"""
    await asyncio.to_thread(subprocess.run, [sys.executable, "-P", "-c", script], check=True, timeout=30)
    assert await backend.batch_load(["parent", "child"]) == [b"3", b"2"]
