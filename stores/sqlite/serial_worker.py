"""A thread of its own for the blocking work of one open file or connection, and how to wait for what runs there.

Files of values, SQLite logs and inboxes each have one. The rules it protects: a disk that hangs neither stops the event
loop nor keeps the process from ending, so the thread is a daemon; work runs one piece at a time, in the order given;
and a caller who is cancelled leaves nothing half done.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from refold.events.core.errors import PersistenceError

T = TypeVar("T")

_logger = logging.getLogger("refold.stores")


class Worker(Protocol):
    """Runs functions one at a time, in the order given: a `SerialWorker`, or what stands for one in a simulation."""

    @property
    def name(self) -> str:
        """What errors and warnings call it."""
        ...

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue `work`; the future gets its result, and cancelling the future does not stop it.

        Raises:
            PersistenceError: the worker was ended.
        """
        ...

    def put(self, work: Callable[[], object]) -> None:
        """Queue `work` that nobody waits for and that does not fail; needs no event loop."""
        ...

    def end(self) -> None:
        """Take no more work, and end once all that is queued has run."""
        ...

    def join(self) -> None:
        """Return once nothing of it runs any more; it was ended, and all that was queued has run."""
        ...


class SerialWorker:
    """A `Worker` that is a daemon thread, which begins with the first work.

    Args:
        name: the thread's name, for a look at the process from outside.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    @property
    def name(self) -> str:
        return self._name

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._ended:
            raise PersistenceError(f"{self._name} is closed; open it again")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.put(lambda: _settle(loop, future, work))
        return future

    def put(self, work: Callable[[], object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(work)

    def end(self) -> None:
        self._ended = True
        self._queue.put(None)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def is_alive(self) -> bool:
        """Return whether it still runs, or is going to run, what is queued."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # It may hold what ends this thread when nothing else holds it any more.


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], work: Callable[[], T]) -> None:
    """Run `work` and tell its outcome to the loop, if there is still one."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the caller who waits for the work gets it
        _tell(loop, _set_exception, future, error)
    else:
        _tell(loop, _set_result, future, result)


def _tell(loop: asyncio.AbstractEventLoop, setter: Callable[..., None], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(setter, *arguments)
    except RuntimeError:
        _logger.debug("work on a file ended after its event loop was closed")


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _nothing() -> None:
    """What a worker does last where it has nothing to close."""


async def close_worker(worker: Worker, last: Callable[[], None] = _nothing, *, timeout_s: float | None = None) -> None:
    """End a worker once what is queued and then `last` have run, and wait for that, even if the caller is cancelled.

    Args:
        worker: one that was not ended.
        timeout_s: longest wait; then the worker ends by itself whenever it gets that far.
    """
    closed = worker.submit(last)
    worker.end()
    try:
        await settled(closed, timeout_s=timeout_s)
    except TimeoutError:
        _logger.warning("closing %s takes longer than %s s; it goes on in the background", worker.name, timeout_s)
    finally:
        if closed.done():
            worker.join()  # It has nothing left to do, and the loop may be closed next.


async def settled(future: asyncio.Future[T], *, timeout_s: float | None = None) -> T:
    """Return the result of `future`; a caller who is cancelled meanwhile gets CancelledError once it is there.

    Args:
        timeout_s: longest wait; begins anew when the caller is cancelled.

    Raises:
        TimeoutError: there is no result in time, and the caller was not cancelled. The work goes on.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            _, waiting = await asyncio.wait({future}, timeout=timeout_s)
        except asyncio.CancelledError as error:
            cancelled = error
        else:
            if waiting:
                future.add_done_callback(_retrieve)
                raise cancelled or TimeoutError
    if cancelled is not None:
        _retrieve(future)
        raise cancelled
    return future.result()


def _retrieve(future: asyncio.Future[T]) -> None:
    """Look at the outcome that nobody waits for, so that asyncio does not report it as forgotten."""
    if not future.cancelled():
        future.exception()
