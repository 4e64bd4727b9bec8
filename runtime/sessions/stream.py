"""A run as a stream: what happens in it, as it happens, for one reader who may leave at any time.

The rules: who leaves early cancels the run, and where Python lets us wait (in `async with`, in `aclose`, when the
reading task is cancelled), that is durable before the reader goes on; where it does not (the iterator is dropped), it
is done as soon as the loop turns. What the body of the loop raises passes through unchanged.
"""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self

from refold.actors.cancellation import CancellationToken
from refold.actors.shell.messages import Performed
from refold.events.core.cleaning import error_words
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import Json
from refold.events.core.errors import ConfigError
from refold.events.core.ids import RunId
from refold.events.model.configuration import RunOptions
from refold.events.model.messages import TextDelta, delta_text
from refold.events.session.events import (
    ModelFailed,
    ModelInterrupted,
    ModelRequested,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
)
from refold.publishing.notifications import Missed, Progressed, Published, RecordedSessionEvent, Streamed
from refold.publishing.subscription import Subscription
from refold.sessions.access import SessionAccess
from refold.sessions.inputs import Input
from refold.sessions.outcome import RunResult
from refold.sessions.sent_input import RunEvents, SentInput, begin
from refold.sessions.structured_output import partial_json
from refold.type_parameters import Out_co


class PartialOutput:
    """What has been streamed so far of the answer under way, read from what happens in one run.

    Args:
        is_json: the answer is one JSON value.
    """

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._texts: list[str] = []
        self._turn = 0
        """Which turn's answer it is; 0 = none's, or some of it is missing."""
        self._end = 0
        """Up to which offset of the answer all pieces have been read."""

    def see(self, item: Published) -> None:
        """Take in what has happened in the run."""
        match item:
            case Streamed(turn=turn, offset=offset, delta=delta):
                if offset == 0 and turn == self._turn:
                    self._texts = []
                elif offset != self._end:
                    self._turn = 0
                self._end = offset + len(delta_text(delta))
                if isinstance(delta, TextDelta) and turn == self._turn:
                    self._texts.append(delta.text)
            case Missed():
                self._turn = 0
            case RecordedEvent(event=ModelRequested() | ModelFailed() | ModelInterrupted() as event):
                self._texts, self._turn, self._end = [], event.turn, 0
            case RecordedEvent(event=RunResumed()):
                self._texts, self._end = [], 0
            case _:
                return

    @property
    def value(self) -> Json:
        """As `RunStream.partial_output`."""
        text = "".join(self._texts)
        self._texts = [text]
        if not text or not self._turn:
            return None
        return partial_json(text) if self._is_json else text


class RunStream(Generic[Out_co]):
    """The events of one run and what passes by; an async iterator and an async context manager.

    Made by `Session.stream`.
    """

    def __init__(
        self,
        access: SessionAccess,
        content: Input,
        *,
        cancel: CancellationToken | None,
        key: str | None,
        options: RunOptions | None = None,
    ) -> None:
        self._access = access
        self._content = content
        self._cancel = cancel
        self._key = key
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscription: Subscription | None = None
        self._handle: SentInput | None = None
        self._events: RunEvents | None = None
        self._partial = PartialOutput(is_json=access.output_type is not None)
        self._seen = 0
        """Version of the last event that was looked at."""
        self._started = False
        self._ended = False
        self._over = False

    @property
    def run(self) -> RunId | None:
        """The run, once its input is durable; None before."""
        return self._handle.run if self._handle is not None else None

    @property
    def result(self) -> RunResult[Out_co]:
        """How the run ended; to be read when the stream is at its end, or has been left.

        Raises:
            ConfigError: the run has not ended, or how it ended is not known here.
        """
        if not self._over or self._handle is None or not self._handle.is_done:
            raise ConfigError("the run has not ended yet; read its stream to the end first, then its result")
        failure = self._handle.exception()
        if failure is not None:
            raise ConfigError(f"the stream ended without a result: {error_words(failure)}") from failure
        return self._handle.result()

    @property
    def partial_output(self) -> Json:
        """What the model has said so far in the answer that is streamed; None = nothing yet.

        Where the agent has an `output_type`, it is the JSON value that the text has begun, up to its last piece: plain
        and not checked. The text of an answer to which pieces are `Missed` is not known.
        """
        return self._partial.value

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Published:
        """Return what happens next.

        Raises:
            Exception: as `Session.send`.
        """
        if self._over:
            raise StopAsyncIteration
        try:
            subscription, handle = self._begin()
            if handle.run is None:
                await handle.accepted()
            while not self._has_seen_the_end():
                item = await subscription.take(self._has_all)
                if item is None:
                    break
                if self._shows(item):
                    return item
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._over:  # Left by another task.
            raise StopAsyncIteration
        self._over = True
        subscription.close()
        handle.result()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Leave the stream; if the run has not ended, cancel it, and return when that is durable.

        Another caller with the same key keeps the run going. A log that refuses holds nobody longer than twice the
        cancel grace.
        """
        handle = self._leave()
        if handle is not None:
            handle.abandon()
            await handle.done()

    async def __aenter__(self) -> Self:
        if not self._over:
            self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        handle = self._leave()
        if handle is None or self._loop is None:
            return
        with suppress(RuntimeError):  # The loop is closed: nothing goes on there.
            self._loop.call_soon_threadsafe(handle.abandon)

    def _leave(self) -> SentInput | None:
        """Let go of everything, and return what is still under way."""
        over, self._over = self._over, True
        if self._subscription is not None:
            self._subscription.close()
        return self._handle if not over and self._handle is not None and not self._handle.is_done else None

    def _begin(self) -> tuple[Subscription, SentInput]:
        if self._subscription is not None and self._handle is not None:
            return self._subscription, self._handle
        context = self._access.context
        context.require_open()
        self._loop = asyncio.get_running_loop()
        subscription = Subscription(context.event_bus, context.recorded_after, self._access.session)

        def performed(run: RunId, done: Performed) -> None:
            subscription.wants = lambda item: not isinstance(item, Streamed) or item.run == run
            subscription.go_back(done.version - 1)

        handle = begin(
            self._access,
            self._content,
            cancel=self._cancel,
            key=self._key,
            on_performed=performed,
            options=self._options,
        )
        handle.call_when_done(lambda: subscription.expect(handle.ended_at or 0))
        self._subscription, self._handle = subscription, handle
        return subscription, handle

    def _has_seen_the_end(self) -> bool:
        handle = self._handle
        return handle is not None and handle.is_done and handle.ended_at is not None and self._seen >= handle.ended_at

    def _has_all(self) -> bool:
        """Tell whether nothing more will come: the run's last event was seen, or how it goes on is lost to us."""
        assert self._handle is not None
        return self._has_seen_the_end() or (self._handle.is_done and self._handle.ended_at is None)

    def _shows(self, item: Published) -> bool:
        """Tell whether an item is about the run, and not about what comes before or after it."""
        assert self._handle is not None
        run = self._handle.run
        if run is None or self._ended:
            return False
        match item:
            case Streamed():
                if item.run == run:
                    self._partial.see(item)
                return item.run == run
            case Progressed():
                return self._started
            case Missed():
                self._partial.see(item)
                return self._started
            case RecordedEvent():
                return self._shows_event(run, item)

    def _shows_event(self, run: RunId, recorded: RecordedSessionEvent) -> bool:
        self._seen = recorded.version
        if self._events is None:
            self._events = RunEvents(run)
        if not self._events.include(recorded.version, recorded.event):
            return False
        event = recorded.event
        self._partial.see(recorded)
        self._started = self._started or isinstance(event, RunStarted)
        self._ended = isinstance(event, RunCompleted | RunFailed | RunCancelled)
        return True
