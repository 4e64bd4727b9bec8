"""A thread of its own for the blocking work of one open file.

The rule it protects: a disk that hangs neither stops the event loop nor keeps the process from ending. So the thread
is a daemon; and it runs one piece of work at a time, in the order given.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from refold.events.core.errors import PersistenceError
from refold.stores.sqlite.connection import settled

T = TypeVar("T")

_logger = logging.getLogger("refold.stores")


class FileThread:
    """Runs functions in a thread that begins with the first of them."""

    def __init__(self, name: str) -> None:
        """Make one.

        Args:
            name: the thread's name, for those who look at a process.
        """
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue `work` for the thread; the future gets its result, and cancelling the future does not stop it.

        Raises:
            PersistenceError: the thread was closed.
        """
        if self._closing:
            raise PersistenceError(f"{self._name} is closed; open it again")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(lambda: _settle(loop, future, work))
        return future

    async def close(self, *, timeout_s: float | None = None) -> None:
        """End the thread once all that is queued has run, and wait for that, even if the caller is cancelled.

        Args:
            timeout_s: longest wait; then the thread ends by itself whenever it gets that far.
        """
        if self._closing:
            return
        if self._thread is None:
            self._closing = True
            return
        last = self.submit(lambda: self._queue.put(None))
        self._closing = True
        try:
            await settled(last, timeout_s=timeout_s)
        except TimeoutError:
            _logger.warning("closing %s takes longer than %s s; it goes on in the background", self._name, timeout_s)
        else:
            self._thread.join()

    def end(self) -> None:
        """Have the thread end once all that is queued has run; nobody waits for that."""
        self._closing = True
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # It may hold what ends this thread when nobody else holds it any more.


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], work: Callable[[], T]) -> None:
    """Run `work` and tell its outcome to the loop, if there is still one."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - whoever waits for the work gets it
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
