"""An input on its way to the end of its run: sent, watched and awaited, also when its caller is cancelled.

Read `begin` first, then `SentInput`. The rules: a caller who is cancelled cancels the run, unless another caller waits
for it too, and goes on when that is durable; a log that refuses holds no caller longer than twice the cancel grace; and
the run of an input that becomes durable after its caller has gone is cancelled then.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Self

from refold.actors.agent.session import PerformedInRun
from refold.actors.calls.tool_context import calling_tool
from refold.actors.cancellation import CancellationToken
from refold.actors.kernel.clock import Timer
from refold.actors.kernel.errors import ActorStopped
from refold.actors.shell.messages import Performed
from refold.events.core.cleaning import error_words, recorded_reason
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import PayloadHash, RunId
from refold.events.model.configuration import RunOptions
from refold.events.session.commands import AllowTurn, CancelRun, SendInput
from refold.events.session.events import (
    CancelRequested,
    InputQueued,
    ModelInterrupted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunStarted,
    SessionEvent,
    TimerSet,
)
from refold.events.session.state import FinishedRun, SessionState, awaits_step, run_of_input
from refold.publishing.event_bus import EndedRun, Follower, PausedRun, cancelled_in_queue
from refold.publishing.notifications import RecordedSessionEvent
from refold.sessions.access import SessionAccess
from refold.sessions.inputs import Input, checked_key, checked_time, input_blocks
from refold.sessions.outcome import RunResult

log = logging.getLogger("refold.runtime")

_under_way: set[asyncio.Task[RunResult[Any] | PausedRun]] = set()
"""Held here, since an event loop holds its tasks weakly."""


def begin(
    access: SessionAccess,
    content: Input,
    *,
    cancel: CancellationToken | None,
    key: str | None,
    on_performed: Callable[[RunId, Performed], None] | None = None,
    at: datetime | None = None,
    now: bool = False,
    stepwise: bool = False,
    options: RunOptions | None = None,
    detached: bool = False,
) -> "SentInput":
    """Check what a caller sends, and begin to send it; raises at once what `Session.send` says of wrong arguments."""
    blocks = tuple(input_blocks(content))
    if cancel is not None and not isinstance(cancel, CancellationToken):
        raise ConfigError(f"cancel must be a CancellationToken, not {type(cancel).__name__}")
    if at is not None and now:
        raise ConfigError("an input is either for now or for a later time; give one of at and now")
    due_at = checked_time(at) if at is not None else None
    cancelled = cancel is not None and cancel.cancelled
    command = SendInput(
        content=blocks,
        key=checked_key(key),
        cancelled=cancelled,
        due_at=due_at if not cancelled else None,  # There is nothing to wait for.
        now=now,
        stepwise=stepwise,
        options=options,
    )
    access.context.require_open()
    guard = access.context.settings.backpressure if command.due_at is None else None
    if guard is None or command.key is not None:
        return SentInput(access, command, {}, cancel, on_performed, stepwise=stepwise, detached=detached)
    guard.acquire()
    try:
        handle = SentInput(access, command, {}, cancel, on_performed, stepwise=stepwise, detached=detached)
    except BaseException:
        guard.release()
        raise
    handle.call_when_done(guard.release)
    return handle


class SentInput:
    """An input on its way to the end of its run; made inside the event loop."""

    def __init__(
        self,
        access: SessionAccess,
        command: SendInput | AllowTurn,
        payloads: dict[PayloadHash, bytes],
        cancel: CancellationToken | None,
        on_performed: Callable[[RunId, Performed], None] | None = None,
        *,
        stepwise: bool = False,
        detached: bool = False,
    ) -> None:
        """Begin to send.

        Args:
            access: to its session.
            command: the input, or the permission to take the next turn.
            payloads: what is large in it.
            cancel: cancels the run.
            on_performed: called with the run when the input is durable.
            stepwise: be done, too, when the run waits for its next turn.
            detached: leave the run alone where the loop is torn down, since no caller waits for its end.

        Raises:
            AskCycle: a tool would wait here for a session that waits for that tool.
        """
        waits = calling_tool.get() is not None and not detached
        begin = access.context.tool_waits.begin
        over = begin(access.context.system, access.session, cancels=True) if waits else None
        self.run: RunId | None = None
        """Its run, once the input is durable."""
        self.ended_at: int | None = None
        """Version of the event that ended the run, once it has ended."""
        self._access = access
        self._stepwise = stepwise
        self._detached = detached
        self._key = command.key if isinstance(command, SendInput) else None
        self._on_performed = on_performed
        self._abandoned = False
        self._abandon_run: Callable[[], None] | None = None
        """Called once when this is abandoned, as soon as the run is known."""
        self._patience: Timer | None = None
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run_to_its_end(command, payloads, cancel), name=f"send to {access.stream}")
        self._accepted = loop.create_future()
        self._left = False
        """Whether its caller has waited long enough for the log."""
        self._waiting: list[asyncio.Future[None]] = []
        """Done when this is."""
        if over is not None:
            self.call_when_done(over)  # Before a caller is told.
        _under_way.add(self._task)
        self._task.add_done_callback(self._ended)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: callback())

    @property
    def is_done(self) -> bool:
        """Whether the run has ended, or failed to be sent, or its end cannot be known here."""
        return self._left or self._task.done()

    def abandon(self) -> None:
        """Cancel the run, unless another caller waits for it too."""
        if self._patience is not None or self._task.done():
            return
        context = self._access.context
        self._patience = context.system.clock.call_later(2 * context.settings.cancel_grace_s, self._leave)
        self._abandoned = True
        if self._abandon_run is not None:
            self._abandon_run()

    def _leave(self) -> None:
        if self._accepted.done():
            self._task.cancel()
        else:  # The log may take the input yet, and the task is there to cancel its run.
            self._left = True
            self._wake()

    async def accepted(self) -> None:
        """Return when the input is durable, or has been refused."""
        await asyncio.wait([self._accepted])

    async def done(self) -> None:
        """Return when `is_done`; a caller who is cancelled abandons the run, and still waits."""
        # Not `await self._task`: where its caller is cancelled, that would cancel the task, which alone can cancel the
        # run of an input that is on its way to the log. The run would go on, and spend, with no caller left. So each
        # caller waits on a future of its own, and one who is cancelled stays until the end of the run is recorded, or
        # for as long as `abandon` allows.
        gone: asyncio.CancelledError | None = None
        while not self.is_done:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError as error:
                gone = error
                self.abandon()
        if gone is not None:
            raise gone

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def result(self) -> RunResult[Any]:
        """Return how the run ended, or raise why that is not known; to be called when it is done."""
        outcome = self.turn_result()
        assert isinstance(outcome, RunResult)
        return outcome

    def turn_result(self) -> RunResult[Any] | PausedRun:
        """Return as `result`, or that the run waits for its next turn."""
        if self._left:
            raise asyncio.CancelledError
        return self._task.result()

    def exception(self) -> BaseException | None:
        """Return why `result` raises, if it does."""
        gone = self._left or self._task.cancelled()
        return asyncio.CancelledError() if gone else self._task.exception()

    def _ended(self, task: asyncio.Task[RunResult[Any] | PausedRun]) -> None:
        _under_way.discard(task)
        if self._patience is not None:
            self._patience.cancel()
        if not self._accepted.done():
            self._accepted.set_result(None)
        if not task.cancelled() and (error := task.exception()) is not None:  # Looked at here: its caller may be gone.
            log.debug("an input of %s: %s", self._access.stream, error_words(error))
        self._wake()

    async def _run_to_its_end(
        self, command: SendInput | AllowTurn, payloads: dict[PayloadHash, bytes], cancel: CancellationToken | None
    ) -> RunResult[Any] | PausedRun:
        if isinstance(command, SendInput) and command.key is not None and command.due_at is None:
            await self._take_place_of(command.key)
        with self._access.context.event_bus.follow(self._access.session) as follower:
            performed = await self._access.ask(command, payloads)
            assert isinstance(performed, PerformedInRun)
            run = self.run = performed.run
            if self._on_performed is not None:
                self._on_performed(run, performed)
                self._on_performed = None
            self._accepted.set_result(None)
            finished = await self._wait(run, performed, follower, cancel)
        if isinstance(finished, PausedRun):
            return finished
        self.ended_at = finished.version
        return await self._access.result(finished)

    async def _take_place_of(self, key: str) -> None:
        """Take a place of the runtime's guard, where no input of the key has been sent.

        Sends of one key share a place, so that it is held until the last of them has the result.
        """
        access = self._access
        guard = access.context.settings.backpressure
        if guard is None:
            return
        place = (access.context.system, access.stream, key)
        if await access.read(lambda state: key in state.keys) and not guard.holds(place):
            return  # It is over, or another process or life began it.
        guard.acquire(place)
        self.call_when_done(lambda: guard.release(place))

    async def _wait(
        self, run: RunId, performed: Performed, follower: Follower, cancel: CancellationToken | None
    ) -> FinishedRun | PausedRun:
        # The follower is there since before the input was sent, so the end cannot come between the two; and the handle
        # waits for the follower, not for the actor, so that a restart of the actor costs the caller nothing.
        event_bus, session = self._access.context.event_bus, self._access.session
        event_bus.await_only(session, run, follower)

        def abandon() -> None:
            if event_bus.is_awaited(session, run, besides=follower):
                self._task.cancel()  # It is another caller's run too, and goes on without this caller.
            else:
                self._access.cancel_surely(CancelRun(run=run, reason="the caller was cancelled"))

        def cancel_run() -> None:
            reason = recorded_reason(cancel.reason) if cancel is not None and cancel.reason is not None else None
            self._access.cancel_surely(CancelRun(run=run, reason=reason))

        not_cancelled = cancel.on_cancel(cancel_run) if cancel is not None else None
        self._abandon_run = abandon
        try:
            if self._abandoned:
                abandon()
            ended = None if performed.new else await self._ended_before(run)
            # A run that is ending in this process still has effects in flight: its end is told once they are over.
            if ended is None or event_bus.is_ending(session, run):
                after = (performed.version if performed.new else 0) if self._stepwise else None
                ended = await follower.ended_or_paused(run, after_version=after)
            return ended if isinstance(ended, PausedRun) else await finished_at(self._access, ended)
        except asyncio.CancelledError:
            if not (self._abandoned or self._detached):
                abandon()  # The loop is torn down, and cancels this before its caller.
            raise
        finally:
            self._abandon_run = None
            if not_cancelled is not None:
                not_cancelled()

    async def _ended_before(self, run: RunId) -> EndedRun | PausedRun | None:
        """Return how the run of a repeated input has ended, if it has, or that it waits for its next turn."""

        def ended(state: SessionState) -> EndedRun | PausedRun | None:
            record = state.keys.get(self._key) if self._key is not None else None
            if record is not None and record.terminal:
                return EndedRun(record.terminal, record.finished)
            if record is not None and record.cancelled:
                return EndedRun(record.cancelled, cancelled_in_queue(run, record.cancelled))
            if self._stepwise and state.run is not None and state.run.id == run and awaits_step(state.run):
                return PausedRun(state.run.turns, state.version)
            return None

        return await self._access.read(ended)


async def finished_at(access: SessionAccess, ended: EndedRun) -> FinishedRun:
    """Return how a run ended, from the log where it is not at hand; raise ActorStopped where that is deleted."""
    if ended.finished is not None:
        return ended.finished
    state = await access.state_at(ended.version)
    if not state.version:
        raise ActorStopped(access.stream, "it was deleted")
    finished = state.last_run
    if finished is None or finished.version != ended.version:
        raise LogFormatError(f"version {ended.version} of {access.stream} ends no run")
    return finished


class RunEvents:
    """Tells which of a session's events are about one run."""

    def __init__(self, run: RunId) -> None:
        self.ended: EndedRun | None = None
        """How it ended, once one of its events says that nothing is to be waited for, which may be before its turn."""
        self._run = run
        self._open = False
        self._started_at = 0

    @property
    def is_open(self) -> bool:
        """Whether it is its turn now."""
        return self._open

    def include(self, version: int, event: SessionEvent) -> bool:
        """Take the next event of the session, and return whether it is about the run."""
        run = _named_run(version, event)
        if run == self._run:
            queued = isinstance(event, InputQueued | TimerSet | CancelRequested) and not self._open
            self._open = not isinstance(event, RunCompleted | RunFailed | RunCancelled)
            if queued and getattr(event, "joins", None) is None:
                self._open = False  # Its turn is still to come; until then, what names no run is of the one before.
            if isinstance(event, RunStarted):
                self._started_at = version
            elif isinstance(event, RunCompleted | RunFailed | RunCancelled):
                self.ended = EndedRun(version, None)
            elif not self._started_at and (isinstance(event, CancelRequested) or getattr(event, "cancelled", False)):
                self.ended = EndedRun(version, cancelled_in_queue(self._run, version))
            return True
        if isinstance(event, ModelInterrupted) and 0 < event.asked < self._started_at:
            return False  # Of an answer to an earlier run.
        return run is None and self._open


def _named_run(version: int, event: SessionEvent) -> RunId | None:
    match event:
        case InputQueued(joins=joins, scheduled=scheduled):
            return joins or run_of_input(scheduled or version)
        case TimerSet():
            return run_of_input(version)
        case _:
            run: RunId | None = getattr(event, "run", None)
            return run


class RunWatcher:
    """Calls a handler with the events of one run while it is entered; its first error cancels the run, and is kept."""

    def __init__(
        self, access: SessionAccess, handler: Callable[[RecordedSessionEvent], object], *, reason: str | None = None
    ) -> None:
        self.failure: BaseException | None = None
        self._access = access
        self._handler = handler
        self._reason = reason
        self._early: list[RecordedSessionEvent] = []
        self._run: RunId | None = None
        self._events: RunEvents | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._unsubscribe = self._access.context.event_bus.subscribe(self.see, self._access.session)
        return self

    def __exit__(self, *raised: object) -> None:
        self._unsubscribe()

    def watch(self, run: RunId, performed: Performed) -> None:
        """Begin with the events of `run`, also with those that have come already."""
        self._run = run
        self._events = RunEvents(run)
        early, self._early = self._early, []
        for event in early:
            self.see(event)

    def see(self, recorded: RecordedSessionEvent) -> None:
        if self._events is None:
            self._early.append(recorded)
            return
        if not self._events.include(recorded.version, recorded.event):
            return
        if self.failure is None:
            try:
                answer = self._handler(recorded)
                if inspect.iscoroutine(answer):
                    answer.close()
                    raise ConfigError("on_event must be a plain function that returns quickly, not an async one")
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - The caller's own error: it is raised to the caller.
                self.failure = error
                self._access.cancel_surely(CancelRun(run=self._run, reason=self._reason))
