"""A session for threads, with its streams and subscriptions: the same commands and questions, each of which blocks.

Read `refold.sessions.session` for what each of them does, `refold.sessions.stream` and `refold.publishing.subscription`
for what is yielded, and `refold.actors.loop_thread` for the thread. The rules: nothing is decided here; and what
stands behind a face is touched on its loop's thread only, as long as that runs; afterwards what had come is still
yielded.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack, cast, overload

from refold.actors.cancellation import CancellationToken
from refold.actors.kernel.errors import ActorStopped
from refold.actors.loop_thread import (
    AlreadyClosed,
    LoopThread,
    blocking,
    blocking_face,
    next_or_none,
    run_on_loop,
)
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import Json
from refold.events.core.ids import RunId, SessionId
from refold.events.session.events import SessionEvent
from refold.publishing.event_bus import EndedRun
from refold.publishing.notifications import Published, RecordedSessionEvent
from refold.publishing.subscription import CAPACITY
from refold.sessions.inputs import Input, RunOverrides, StreamOptions, SubmitOptions
from refold.sessions.outcome import RunResult
from refold.sessions.run_handle import RunHandle
from refold.sessions.session import EVENTS_PAGE, Session
from refold.sessions.stream import RunStream
from refold.type_parameters import Out_co

T = TypeVar("T")


class Reader(Protocol):
    """What a reader of events has of one: a `Subscription`, a `RunReader`, or that of a connection."""

    session: SessionId | None

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Published: ...

    async def aclose(self) -> None: ...


class ReaderOfRun(Reader, Protocol):
    """One that reads a run."""

    @property
    def place(self) -> str: ...

    @property
    def partial_output(self) -> Json: ...

    @property
    def ended(self) -> EndedRun | None: ...


class SyncItems:
    """Yields what comes to a stream or a reader on the loop of another thread; for one thread at a time."""

    def __init__(self, loop_thread: LoopThread, items: "RunStream[Any] | Reader") -> None:
        self.loop_thread = loop_thread
        self._items = items

    def close(self) -> None:
        """Leave: nothing more is taken or yielded. From any thread, any number of times."""
        with suppress(AlreadyClosed):
            self.loop_thread.run(self._items.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Published:
        item = _next_or_none(self.loop_thread, self._items)
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
        self.loop_thread.begin(self._items.aclose)  # Not here: it belongs to the loop's thread.


class SyncRunStream(SyncItems, Generic[Out_co]):
    """The events of one run and what passes by; an iterator and a context manager.

    Made by `SyncSession.stream`. For one thread at a time. Who leaves early cancels the run: inside `with`, or with
    `close`, that is durable before the thread goes on; where the iterator is just dropped, it is done soon.
    """

    def __init__(self, loop_thread: LoopThread, stream: RunStream[Out_co]) -> None:
        super().__init__(loop_thread, stream)
        self.asynchronous = stream

    @property
    def run(self) -> RunId | None:
        """The run, once its input is durable; None before."""
        return self.asynchronous.run

    @property
    def result(self) -> RunResult[Out_co]:
        """How the run ended; to be read when the stream is at its end, or has been left.

        Raises:
            ConfigError: the run has not ended, or how it ended is not known here.
        """
        return self.asynchronous.result

    @property
    def partial_output(self) -> Json:
        """What the model has said so far in the answer that is streamed; see `RunStream.partial_output`."""
        return self.asynchronous.partial_output

    def close(self) -> None:
        """Leave the stream; if the run has not ended, cancel it, and return when that is durable.

        Another caller with the same key keeps the run going. A log that refuses holds nobody longer than twice the
        cancel grace. Where the runtime is closed there is nothing to leave.
        """
        super().close()

    def __next__(self) -> Published:
        with self._left_if_interrupted():
            return super().__next__()

    def __enter__(self) -> Self:
        with self._left_if_interrupted():
            self.loop_thread.run(self.asynchronous.__aenter__)
        return self

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


class SyncSubscription(SyncItems):
    """Yields what happens in one session, or in all: `for item in subscription`; also a context manager.

    Made by `SyncSession.follow` and `SyncRuntime.follow`, from which moment it sees everything. For one thread at a
    time, which waits for the next item as long as it takes; it ends when the runtime closes, or another thread calls
    `close`. Read `Subscription` for what it yields.
    """

    def __init__(self, loop_thread: LoopThread, subscription: Reader) -> None:
        super().__init__(loop_thread, subscription)
        self.asynchronous = subscription

    @property
    def session(self) -> SessionId | None:
        """The session that it follows; None = all."""
        return self.asynchronous.session


def paged(thread: LoopThread, events: AsyncIterator[RecordedSessionEvent]) -> Iterator[RecordedSessionEvent]:
    """Yield the events that come of a generator of a thread's loop."""

    async def next_page() -> list[RecordedSessionEvent]:
        page: list[RecordedSessionEvent] = []
        while len(page) < EVENTS_PAGE and (event := await next_or_none(events)) is not None:
            page.append(event)
        return page

    try:
        while page := thread.run(next_page):
            yield from page
    finally:
        if isinstance(events, AsyncGenerator):
            thread.begin(events.aclose)  # Not waited for: a generator that is let go of ends in any thread.


def _next_or_none(loop_thread: LoopThread, items: RunStream[Any] | Reader) -> Published | None:
    try:
        return loop_thread.run(lambda: next_or_none(items))
    except AlreadyClosed:
        if loop_thread.ended_by is not None or (isinstance(items, RunStream) and items.run is None):
            raise
        return _left_over(items)


def _left_over(items: RunStream[Any] | Reader) -> Published | None:
    """Return the next of what came before the runtime closed; raise ActorStopped if the log has to be read."""
    taking = next_or_none(items)
    try:
        taking.send(None)
    except StopIteration as returned:
        item: Published | None = returned.value
        return item
    taking.close()
    raise ActorStopped("runtime/log", "the runtime closed before its reader had caught up; the log has the rest")


class SyncRunReader(SyncSubscription):
    """What happens in a run; made by `SyncRunHandle.stream`. Who leaves it changes nothing."""

    def __init__(self, loop_thread: LoopThread, reader: ReaderOfRun) -> None:
        super().__init__(loop_thread, reader)
        self._reader = reader

    @property
    def place(self) -> str:
        """Where the reader is; see `RunReader.place`."""
        return self._reader.place

    @property
    def ended(self) -> EndedRun | None:
        """How the run has ended, once its end was read."""
        return self._reader.ended

    @property
    def partial_output(self) -> Json:
        """What there is of the answer that is streamed; see `RunReader.partial_output`."""
        return self._reader.partial_output


class SyncRunHandle(Generic[Out_co]):
    """One run, for threads; get it from `SyncSession.submit`, `SyncSession.run` or `SyncRuntime.run`."""

    def __init__(self, loop_thread: LoopThread, handle: RunHandle[Out_co]) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = handle

    @property
    def id(self) -> str:
        """What `SyncRuntime.run` finds it by, in any process."""
        return self.asynchronous.id

    @property
    def session(self) -> SessionId:
        """The id of its session."""
        return self.asynchronous.session

    @property
    def run(self) -> RunId:
        """Its id within the session."""
        return self.asynchronous.run

    result = blocking(RunHandle[Out_co].result)
    cancel = blocking(RunHandle.cancel)
    status = blocking(RunHandle.status)

    def stream(self, after: str | int = 0, *, capacity: int = CAPACITY) -> SyncRunReader:
        """Return an iterator of what happened in the run, and then of what happens; see `RunHandle.stream`."""
        handle = self.asynchronous
        return SyncRunReader(
            self.loop_thread, run_on_loop(self.loop_thread, lambda: handle.stream(after, capacity=capacity))
        )


class SyncSession(Generic[Out_co]):
    """One conversation of a `SyncRuntime`; get it from `SyncRuntime.session`. For any number of threads.

    What `Session` says of the task that awaits holds for the thread that calls: KeyboardInterrupt, or what else a
    signal handler raises, cancels the run, and is raised when that is durable, or when twice the cancel grace and the
    close grace are over. A thread cannot be cancelled from outside; give its `send` a `CancellationToken`.

    `on_event` is called on the loop's thread, and must return quickly. Every method raises WouldDeadlock there, and
    in a thread that runs an event loop, which it would stop.
    """

    def __init__(self, loop_thread: LoopThread, session: Session[Out_co]) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = session

    @property
    def id(self) -> SessionId:
        """Its id in the log."""
        return self.asynchronous.id

    def _repr_html_(self) -> str | None:
        return self.asynchronous._repr_html_()  # pyright: ignore[reportPrivateUsage]

    send = blocking(Session[Out_co].send)
    remind = blocking(Session.remind)
    next_turn = blocking(Session[Out_co].next_turn)
    step = next_turn
    cancel = blocking(Session.cancel)
    decide = blocking(Session.decide)
    answer = blocking(Session.answer)
    questions = blocking(Session.questions)
    approvals = blocking(Session.approvals)
    resume = blocking(Session.resume)
    import_history = blocking(Session.import_history)
    clear = blocking(Session.clear)
    rewind = blocking(Session.rewind)
    set_aside = blocking(Session.set_aside)
    take_back = blocking(Session.take_back)
    history = blocking(Session.history)
    checkpoint = blocking(Session.checkpoint)
    payload = blocking(Session.payload)
    spent = blocking(Session.spent)
    metadata = blocking(Session.metadata)
    describe = blocking(Session.describe)
    steps = blocking(Session.steps)
    statistics = blocking(Session.statistics)
    state_at = blocking(Session.state_at)

    children = blocking_face(
        Session.children,
        lambda face, found: [SyncSession(face.loop_thread, child) for child in found],
        "list[SyncSession[Any]]",
    )
    fork = blocking_face(
        Session[Out_co].fork, lambda face, made: SyncSession(face.loop_thread, made), "SyncSession[Out_co]"
    )
    run = blocking_face(
        Session[Out_co].run, lambda face, run: SyncRunHandle(face.loop_thread, run), "SyncRunHandle[Out_co]"
    )

    @overload
    def stream(self, content: Input, *, output_type: type[T], **options: Unpack[StreamOptions]) -> SyncRunStream[T]: ...

    @overload
    def stream(
        self, content: Input, *, output_type: None = None, **options: Unpack[StreamOptions]
    ) -> SyncRunStream[Out_co]: ...

    def stream(
        self,
        content: Input,
        *,
        cancel: CancellationToken | None = None,
        key: str | None = None,
        deps: object = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> SyncRunStream[Any]:
        """Send an input and return an iterator of what happens in its run, as it happens.

        Use it as `with session.stream("…") as stream:` and `for item in stream:`. Read `Session.stream` for what it
        yields and raises. Who leaves before the end cancels the run.
        """
        own = cast("type[Any]", output_type)  # There are too many unions for mypy to find the overload.
        streaming = self.asynchronous.stream(content, cancel=cancel, key=key, deps=deps, output_type=own, **options)
        return SyncRunStream(self.loop_thread, streaming)

    @overload
    def submit(self, content: Input, *, output_type: type[T], **options: Unpack[SubmitOptions]) -> SyncRunHandle[T]: ...

    @overload
    def submit(
        self, content: Input, *, output_type: None = None, **options: Unpack[SubmitOptions]
    ) -> SyncRunHandle[Out_co]: ...

    def submit(
        self,
        content: Input,
        *,
        key: str | None = None,
        at: datetime | None = None,
        now: bool = False,
        deps: object = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> SyncRunHandle[Any]:
        """Send an input and return its run as soon as the input is durable; see `Session.submit`."""
        sent = partial(
            self.asynchronous.submit, content, key=key, at=at, now=now, deps=deps, output_type=output_type, **options
        )
        return SyncRunHandle(self.loop_thread, self.loop_thread.run(sent))

    def events(self, *, after_version: int = 0) -> Iterator[RecordedEvent[SessionEvent]]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now."""
        return paged(self.loop_thread, self.asynchronous.events(after_version=after_version))

    def follow(self, *, after_version: int | None = None, capacity: int = CAPACITY) -> SyncSubscription:
        """Return an iterator of what happens in this session, as it happens; see `Session.follow`.

        Raises:
            ConfigError: an argument makes no sense.
            ActorStopped: the runtime is closed.
        """
        session = self.asynchronous
        subscription = run_on_loop(
            self.loop_thread, lambda: session.follow(after_version=after_version, capacity=capacity)
        )
        return SyncSubscription(self.loop_thread, subscription)
