"""A log that is replaced by another file, or removed, while connections and guests have it open."""

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from refold import ActorStopped, PersistenceError, RecordedEvent, connect, use
from refold.actors import SystemClock
from refold.remote import guest as guest_module
from refold.remote.protocol import Inbox
from refold.remote.rows import InboxCancel
from refold.stores.guarding.log_place import HEAD_SUFFIX
from refold.stores.sqlite.ownership import LogOwner, log_owner
from tests.runtime.remote.conftest import begun, runtime_of
from tests.runtime.remote.test_lost_lock import until


def moved(log: Path, to: Path) -> None:
    """Give a log another name, with what belongs to it beside it."""
    for suffix in ("", "-wal", "-shm", HEAD_SUFFIX):
        with suppress(FileNotFoundError):
            os.rename(f"{log}{suffix}", f"{to}{suffix}")


async def test_who_reads_a_log_as_it_is_replaced_is_told_so_and_sees_nothing_of_the_other(log: Path) -> None:
    other = log.with_name("other.db")
    async with runtime_of(log, use("pay", {"amount": 3})) as runtime:
        await (await runtime.session("s")).submit("pay 3", key="k")
        while not await connect(log).approvals():  # noqa: ASYNC110 - another actor brings it about
            await asyncio.sleep(0)
    async with runtime_of(other) as runtime:
        for _ in range(4):  # As many events, and more.
            await (await runtime.session("s")).send("hello")
    run = await connect(log).session("s").run(key="k")
    waiting = asyncio.create_task(run.result())
    reading, seen, come = connect(log).session("s").follow(after_version=0), list[object](), asyncio.Event()

    async def read() -> None:
        async for item in reading:
            seen.append(item)
            come.set()

    task = asyncio.create_task(read())
    await come.wait()
    os.replace(other, log)
    for each in (waiting, task):
        with pytest.raises(PersistenceError, match="replaced by another file while it was open"):
            await each
    said = [item.event.content[0].text for item in seen if type(getattr(item, "event", None)).__name__ == "InputQueued"]  # type: ignore[attr-defined]
    assert said in ([], ["pay 3"])
    async with connect(log).session("s").follow(after_version=0) as again:
        assert isinstance(await anext(again), RecordedEvent)


async def test_a_guest_of_a_log_that_is_replaced_takes_no_other_for_it_and_closes(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = log.with_name("other.db")
    await begun(other, "other")
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(runtime_of(log, use("pay", {"amount": 3}), share=True))
        guest = await stack.enter_async_context(runtime_of(log, share=True))
        run = await (await guest.session("s")).submit("pay 3")
        waiting = asyncio.create_task(run.result())
        moved(log, log.with_name("former.db"))
        os.replace(other, log)
        await owner.close()
        with pytest.raises((ActorStopped, PersistenceError)):
            await waiting
        await until(lambda: guest.is_closing)
        assert "cannot be taken over, and the runtime closes: the log" in caplog.text
    async with runtime_of(log) as runtime:
        assert await runtime.sessions() == ["other"]


async def test_a_guest_of_a_log_that_is_removed_makes_no_other_and_takes_it_once_it_is_put_back(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = list[LogOwner | None]()

    def seen(path: Path) -> LogOwner | None:
        owners.append(log_owner(path))
        return owners[-1]

    monkeypatch.setattr(guest_module, "log_owner", seen)
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(runtime_of(log, share=True))
        guest = await stack.enter_async_context(runtime_of(log, share=True))
        session = await guest.session("s")
        await session.send("hello")
        moved(log, aside := log.with_name("aside.db"))
        await owner.close()
        await until(lambda: guest.is_owner or owners.count(None) > 2)
        assert (log.name in os.listdir(log.parent), guest.is_owner) == (False, False)
        with pytest.raises(PersistenceError, match="No such file"):
            await session.history()
        moved(aside, log)
        await until(lambda: guest.is_owner)
        assert [message.text for message in await session.history()] == ["hello", "Said."]


async def test_an_inbox_is_made_beside_no_log_that_is_not_there(log: Path) -> None:
    inbox = Inbox(log, SystemClock())
    if os.geteuid() == 0:
        with pytest.raises(PersistenceError, match="cannot be given to the log's owner"):
            await inbox.put("s", InboxCancel(), "k")
        assert not inbox.file.path.exists()
