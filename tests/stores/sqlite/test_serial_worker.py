"""One thread per file: in order, off the loop, and gone when it is closed."""

import asyncio
import threading
from functools import partial

import pytest

from refold.events.core.errors import PersistenceError
from refold.stores.sqlite.serial_worker import FileThread


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_work_runs_in_order_in_one_daemon_thread() -> None:
    thread = FileThread("refold test order")
    assert named("refold test order") == [], "it begins with the first work"
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return threading.get_ident()

    futures = [thread.submit(partial(work, number)) for number in range(9)]
    identities = set(await asyncio.gather(*futures))
    assert done == list(range(9))
    assert len(identities) == 1
    assert threading.get_ident() not in identities
    assert [running.daemon for running in named("refold test order")] == [True]
    await thread.close()
    assert named("refold test order") == []


async def test_an_error_reaches_who_waits_and_the_thread_goes_on() -> None:
    thread = FileThread("refold test errors")
    with pytest.raises(ZeroDivisionError):
        await thread.submit(lambda: 1 // 0)
    assert await thread.submit(lambda: 7) == 7
    await thread.close()


async def test_work_of_a_cancelled_caller_runs_to_its_end() -> None:
    thread = FileThread("refold test cancelled")
    begun, released = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        released.wait()
        ended.append(True)

    future = thread.submit(work)
    begun.wait()
    future.cancel()
    released.set()
    await thread.close()
    assert ended == [True]


async def test_closing_waits_for_what_is_queued_but_not_longer_than_asked(caplog: pytest.LogCaptureFixture) -> None:
    thread = FileThread("refold test hanging")
    released = threading.Event()
    thread.submit(released.wait)
    await thread.close(timeout_s=0.01)
    assert "takes longer than 0.01 s" in caplog.text
    await thread.close()
    with pytest.raises(PersistenceError, match="is closed"):
        thread.submit(released.wait)
    [running] = named("refold test hanging")
    released.set()
    running.join()


async def test_a_thread_that_never_began_is_closed_at_once() -> None:
    thread = FileThread("refold test idle")
    await thread.close()
    with pytest.raises(PersistenceError):
        thread.submit(int)


def test_work_that_outlives_its_loop_disturbs_nobody() -> None:
    released = threading.Event()
    thread = FileThread("refold test outlived")

    async def begin() -> None:
        thread.submit(released.wait)

    asyncio.run(begin())
    released.set()

    async def end() -> None:
        assert await thread.submit(lambda: 7) == 7
        await thread.close()

    asyncio.run(end())
