"""The log that a connection keeps open between its calls: it is noticed nowhere, but in the time that a call takes."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.remote import kept_log
from tests.runtime.remote.conftest import begun


def readers(folder: Path) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(f"file:{folder}/")]


async def test_calls_of_one_loop_share_one_handle_that_ends_with_the_loop(log: Path) -> None:
    await begun(log, "a")

    async def calls() -> None:
        connections = [refold.connect(log) for _ in range(5)]
        await asyncio.gather(*(connection.sessions() for connection in connections))
        assert len(readers(log.parent)) == 1
        await connections[0].session("a").history()
        assert len(readers(log.parent)) == 1

    await asyncio.to_thread(lambda: asyncio.run(calls()))
    assert readers(log.parent) == []


async def test_a_handle_that_is_not_used_is_closed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await begun(log, "a")
    monkeypatch.setattr(kept_log, "KEPT_S", 0.01)
    assert await refold.connect(log).sessions() == ["a"]
    while readers(log.parent):  # noqa: ASYNC110 - it ends by itself
        await asyncio.sleep(0)
    assert await refold.connect(log).sessions() == ["a"]


async def test_so_many_logs_stay_open_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await begun(tmp_path / "0.db", "a")
    monkeypatch.setattr(kept_log, "KEPT_MAX", 2)
    for number in range(1, 5):
        shutil.copy(tmp_path / "0.db", tmp_path / f"{number}.db")
        assert await refold.connect(tmp_path / f"{number}.db").sessions() == ["a"]
    while len(readers(tmp_path)) > 2:  # noqa: ASYNC110 - they are being closed
        await asyncio.sleep(0)
    assert await refold.connect(tmp_path / "1.db").sessions() == ["a"]


def replaced(log: Path, other: Path) -> None:
    os.replace(other, log)


def removed(log: Path, other: Path) -> None:
    log.unlink()


def made_no_log(log: Path, other: Path) -> None:
    log.unlink()
    log.write_text("no log")


def put_beside(log: Path, other: Path) -> None:
    log.with_name(log.name + "-journal").mkdir()


def linked_elsewhere(log: Path, other: Path) -> None:
    log.unlink()
    log.symlink_to(other)


CHANGES: list[tuple[Callable[[Path, Path], object], list[str] | str]] = [
    (replaced, ["b"]),
    (removed, "does not exist"),
    (made_no_log, "not a Refold log"),
    (put_beside, "journal"),
    (linked_elsewhere, "symbolic link"),
]


@pytest.mark.parametrize(("change", "then"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
async def test_what_lies_at_the_path_is_looked_at_before_each_use(
    log: Path, change: Callable[[Path, Path], object], then: list[str] | str
) -> None:
    other = log.with_name("other.db")
    await begun(log, "a")
    await begun(other, "b")
    connection = refold.connect(log)
    assert await connection.sessions() == ["a"]
    change(log, other)
    if isinstance(then, str):
        with pytest.raises(refold.PersistenceError, match=then):
            await connection.sessions()
    else:
        assert await connection.sessions() == then


async def test_a_child_opens_the_log_that_its_parent_has_kept_open(log: Path) -> None:
    await begun(log, "a")
    connection = refold.connect(log)
    assert await connection.sessions() == ["a"]
    child = os.fork()
    if child == 0:
        asyncio.events._set_running_loop(None)
        os._exit(7 if asyncio.run(connection.sessions()) == ["a"] else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert await connection.sessions() == ["a"]
