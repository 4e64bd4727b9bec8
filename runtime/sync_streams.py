"""A run as a stream, and a subscription, for a thread that reads them with `for`.

Read `refold.run_stream` and `refold.subscription` for what they yield. The rule: what stands behind a face is touched
on its loop's thread only, as long as that runs; afterwards what had come is still yielded.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from refold.actors.errors import ActorStopped
from refold.events.ids import RunId, SessionId
from refold.loop_thread import AlreadyClosed, LoopThread
from refold.outcome import RunResult
from refold.published import Published
from refold.run_stream import RunStream
from refold.subscription import Subscription


class SyncRunStream:
    """The events of one run and what passes by; an iterator and a context manager.

    Made by `SyncSession.stream`. For one thread at a time. Who leaves early cancels the run: inside `with`, or with
    `close`, that is durable before the thread goes on; where the iterator is just dropped, it is done soon.
    """

    def __init__(self, loop_thread: LoopThread, stream: RunStream) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = stream

    @property
    def run(self) -> RunId | None:
        """The run, once its input is durable; None before."""
        return self.asynchronous.run

    @property
    def result(self) -> RunResult:
        """How the run ended; to be read when the stream is at its end, or has been left.

        Raises:
            ConfigError: the run has not ended, or how it ended is not known here.
        """
        return self.asynchronous.result

    def close(self) -> None:
        """Leave the stream; if the run has not ended, cancel it, and return when that is durable.

        Another caller with the same key keeps the run going. A log that refuses holds nobody longer than twice the
        cancel grace. Where the runtime is closed there is nothing to leave.
        """
        with suppress(AlreadyClosed):
            self.loop_thread.run(self.asynchronous.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Published:
        with self._left_if_interrupted():
            item = _next_or_none(self.loop_thread, self.asynchronous)
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        with self._left_if_interrupted():
            self.loop_thread.run(self.asynchronous.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.loop_thread.begin(self.asynchronous.aclose)  # Not here: it belongs to the loop's thread.

    @contextmanager
    def _left_if_interrupted(self) -> Generator[None, None, None]:
        """Leave when this thread is interrupted, since the error's traceback may keep the stream from being dropped."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.close()
            raise


class SyncSubscription:
    """Yields what happens in one session, or in all: `for item in subscription`; also a context manager.

    Made by `SyncSession.follow` and `SyncRuntime.follow`, from which moment it sees everything. For one thread at a
    time, which waits for the next item as long as it takes; it ends when the runtime closes, or another thread calls
    `close`. Read `Subscription` for what it yields.
    """

    def __init__(self, loop_thread: LoopThread, subscription: Subscription) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = subscription

    @property
    def session(self) -> SessionId | None:
        """The session that it follows; None = all."""
        return self.asynchronous.session

    def close(self) -> None:
        """Leave: nothing more is taken or yielded. From any thread, any number of times."""
        with suppress(AlreadyClosed):
            self.loop_thread.run(self.asynchronous.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Published:
        item = _next_or_none(self.loop_thread, self.asynchronous)
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.loop_thread.begin(self.asynchronous.aclose)


async def _taken(items: RunStream | Subscription) -> Published | None:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return None


def _next_or_none(loop_thread: LoopThread, items: RunStream | Subscription) -> Published | None:
    try:
        return loop_thread.run(lambda: _taken(items))
    except AlreadyClosed:
        if loop_thread.ended_by is not None or (isinstance(items, RunStream) and items.run is None):
            raise
        return _left_over(items)


def _left_over(items: RunStream | Subscription) -> Published | None:
    """Return the next of what had come before the runtime closed; nothing of that has to be waited for.

    Raises:
        ActorStopped: it would have to be read from the log, which is closed.
    """
    taking = _taken(items)
    try:
        taking.send(None)
    except StopIteration as returned:
        item: Published | None = returned.value
        return item
    taking.close()
    raise ActorStopped("runtime/log", "the runtime closed before its reader had caught up; the log has the rest")
