"""How an input is sent: its run is begun, watched, and awaited to its end, whatever happens to the caller meanwhile.

One turn of a run at a time, for whoever wants to look, or to decide, between two turns.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import datetime

import msgspec

from refold.actors.agent.session import PerformedInRun
from refold.actors.calls.tool_context import require_other_session
from refold.actors.cancellation import CancellationToken
from refold.actors.effects import Performed
from refold.actors.kernel.clock import Timer
from refold.events.core.content import ToolResultBlock, ToolUseBlock, text_of, tool_uses
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import PayloadHash, RunId
from refold.events.model.spending import Usage
from refold.events.session.commands import AllowTurn, CancelRun, SendInput
from refold.events.session.events import (
    CancelRequested,
    InputQueued,
    ModelInterrupted,
    ModelResponded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunStarted,
    TimerSet,
    ToolCallCompleted,
    ToolCallFailed,
    recorded_reason,
)
from refold.events.session.state import FinishedRun, SessionState, awaits_step, run_of_input
from refold.publishing.event_bus import EndedRun, Follower, PausedRun, cancelled_in_queue
from refold.publishing.notifications import Recorded
from refold.sessions.access import Input, SessionAccess, checked_key, checked_time, input_content
from refold.sessions.outcome import RunResult, result_of

log = logging.getLogger("refold.runtime")

_under_way: set[asyncio.Task[RunResult | PausedRun]] = set()
"""Held here, since an event loop holds its tasks weakly."""


class RunEvents:
    """Tells which of a session's events are about one run."""

    def __init__(self, run: RunId) -> None:
        self._run = run
        self._open = False
        self._started_at = 0

    def include(self, recorded: Recorded) -> bool:
        """Tell it of the next event."""
        event = recorded.event
        run = _named_run(recorded)
        if run == self._run:
            queued = isinstance(event, InputQueued | TimerSet | CancelRequested) and not self._open
            self._open = not isinstance(event, RunCompleted | RunFailed | RunCancelled)
            if queued and getattr(event, "joins", None) is None:
                self._open = False  # Its turn is still to come; until then, what names no run is of the one before.
            if isinstance(event, RunStarted):
                self._started_at = recorded.version
            return True
        if isinstance(event, ModelInterrupted) and 0 < event.asked < self._started_at:
            return False  # Of an answer to an earlier run.
        return run is None and self._open


def _named_run(recorded: Recorded) -> RunId | None:
    """Return the run that an event names or makes, if it does."""
    match recorded.event:
        case InputQueued(joins=joins, scheduled=scheduled):
            return joins or run_of_input(scheduled or recorded.version)
        case TimerSet():
            return run_of_input(recorded.version)
        case event:
            run: RunId | None = getattr(event, "run", None)
            return run


class RunWatcher:
    """Calls a handler with the events of one run, and keeps its error."""

    def __init__(self, handler: Callable[[Recorded], object]) -> None:
        self.failure: BaseException | None = None
        self._handler = handler
        self._early: list[Recorded] | None = []
        self._events: RunEvents | None = None
        self._on_failure: Callable[[], None] | None = None

    def watch(self, run: RunId, on_failure: Callable[[], None]) -> None:
        """Begin with the events of `run`; some of them may have come already."""
        self._events = RunEvents(run)
        self._on_failure = on_failure
        early, self._early = self._early or [], None
        for event in early:
            self.see(event)

    def see(self, recorded: Recorded) -> None:
        """Pass an event on if it belongs to the run."""
        if self._early is not None:
            self._early.append(recorded)
            return
        if self._events is None or not self._events.include(recorded):
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
                if self._on_failure is not None:
                    self._on_failure()


class Sent:
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
    ) -> None:
        """Begin to send.

        Args:
            access: to its session.
            command: the input, or the leave to take the next turn.
            payloads: what is large in it.
            cancel: cancels the run.
            on_performed: called when the input is durable, with its run.
            stepwise: be done, too, when the run waits for its next turn.
        """
        self.run: RunId | None = None
        """Its run, once the input is durable."""
        self.ended_at: int | None = None
        """Version of the event that ended the run, once it has ended."""
        self._access = access
        self._stepwise = stepwise
        self._key = command.key if isinstance(command, SendInput) else None
        self._on_performed = on_performed
        self._given_up = CancellationToken()
        self._patience: Timer | None = None
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run_to_its_end(command, payloads, cancel), name=f"send to {access.stream}")
        self._begun = loop.create_future()
        _under_way.add(self._task)
        self._task.add_done_callback(self._done)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` when nothing more will come of it."""
        self._task.add_done_callback(lambda _: callback())

    @property
    def done(self) -> bool:
        """Whether the run has ended, or nothing will come of it."""
        return self._task.done()

    def give_up(self) -> None:
        """Cancel the run, unless another caller waits for it too; a log that refuses for ever holds nobody."""
        if self._patience is not None or self._task.done():
            return
        context = self._access.context
        self._patience = context.system.clock.call_later(2 * context.settings.cancel_grace_s, self._task.cancel)
        self._given_up.cancel()

    async def begun(self) -> None:
        """Return when the input is durable, or has been refused."""
        await asyncio.wait([self._begun])

    async def over(self) -> None:
        """Return when nothing more will come of it; a caller who is cancelled gives it up, and waits all the same."""
        gone: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError as error:
                gone = error
                self.give_up()
        if gone is not None:
            raise gone

    def result(self) -> RunResult:
        """Return how the run ended, or raise why that is not known; to be called when it is done."""
        outcome = self.outcome()
        assert isinstance(outcome, RunResult)
        return outcome

    def outcome(self) -> RunResult | PausedRun:
        """Return as `result`, or that the run waits for its next turn."""
        return self._task.result()

    def failure(self) -> BaseException | None:
        """Return why it is not known how the run ended, if so; to be called when it is done."""
        return asyncio.CancelledError() if self._task.cancelled() else self._task.exception()

    def _done(self, task: asyncio.Task[RunResult | PausedRun]) -> None:
        _under_way.discard(task)
        if self._patience is not None:
            self._patience.cancel()
        if not self._begun.done():
            self._begun.set_result(None)
        if not task.cancelled() and task.exception() is not None:  # Looked at here: its caller may be gone.
            log.debug("an input of %s: %r", self._access.stream, task.exception())

    async def _run_to_its_end(
        self, command: SendInput | AllowTurn, payloads: dict[PayloadHash, bytes], cancel: CancellationToken | None
    ) -> RunResult | PausedRun:
        with self._access.context.event_bus.follow(self._access.session) as follower:
            performed = await self._access.ask(command, payloads)
            assert isinstance(performed, PerformedInRun)
            run = self.run = performed.run
            if self._on_performed is not None:
                self._on_performed(run, performed)
                self._on_performed = None
            self._begun.set_result(None)
            finished = await self._wait(run, performed, follower, cancel)
        if isinstance(finished, PausedRun):
            return finished
        self.ended_at = finished.version
        return await result_of(finished, self._access.context.store)

    async def _wait(
        self,
        run: RunId,
        performed: Performed,
        follower: Follower,
        cancel: CancellationToken | None,
    ) -> FinishedRun | PausedRun:
        forget: list[Callable[[], None]] = []
        follower.awaited = run

        def give_up() -> None:
            if self._access.context.event_bus.is_awaited(self._access.session, run, besides=follower):
                self._task.cancel()  # It is somebody else's run too, and goes on without this caller.
            else:
                self._access.cancel_surely(CancelRun(run=run, reason="the caller was cancelled"))

        if cancel is not None:
            forget.append(
                cancel.on_cancel(lambda: self._access.cancel_surely(CancelRun(run=run, reason=_reason_of(cancel))))
            )
        forget.append(self._given_up.on_cancel(give_up))
        try:
            if not performed.new:
                before = await self._ended_before(run, self._key)
                ending = self._access.context.event_bus.is_ending(self._access.session, run)
                if before is not None and not ending:
                    return before if isinstance(before, PausedRun) else await self._finished(before)
            if not self._stepwise:
                return await self._finished(await follower.ended(run))
            after = performed.version if performed.new else 0
            ended = await follower.ended_or_paused(run, after_version=after)
            return ended if isinstance(ended, PausedRun) else await self._finished(ended)
        except asyncio.CancelledError:
            if not self._given_up.cancelled:
                give_up()  # The loop is torn down, and cancels this before its caller.
            raise
        finally:
            for take_back in forget:
                take_back()

    async def _ended_before(self, run: RunId, key: str | None) -> EndedRun | PausedRun | None:
        """Return how a run of an input with a key has ended, if it has, or that it waits for its next turn."""

        def ended(state: SessionState) -> EndedRun | PausedRun | None:
            record = state.keys.get(key) if key is not None else None
            if record is not None and record.terminal:
                return EndedRun(record.terminal, record.finished)
            if record is not None and record.cancelled:
                return EndedRun(record.cancelled, cancelled_in_queue(run, record.cancelled))
            if self._stepwise and state.run is not None and state.run.id == run and awaits_step(state.run):
                return PausedRun(state.run.turns, state.version)
            return None

        return await self._access.read(ended)

    async def _finished(self, ended: EndedRun) -> FinishedRun:
        if ended.finished is not None:
            return ended.finished
        finished = (await self._access.state_at(ended.version)).last_run
        if finished is None or finished.version != ended.version:
            raise LogFormatError(f"version {ended.version} of {self._access.stream} ends no run")
        return finished


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
) -> Sent:
    """Check what a caller sends, and begin to send it.

    Raises:
        CommandRejected: the input is empty or cannot be recorded.
        ConfigError: the runtime is not open, or `cancel` is no token, or `at` has no time zone or a token or `now`
            beside it.
        ActorStopped: the runtime is closed.
        AskCycle: a tool of the session sends to it, and would wait for itself.
    """
    require_other_session(access.context.system, access.session)
    blocks, payloads = input_content(content)
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
    )
    access.context.require_open()
    return Sent(access, command, payloads, cancel, on_performed, stepwise=stepwise)


async def send(
    access: SessionAccess,
    content: Input,
    *,
    cancel: CancellationToken | None,
    key: str | None,
    on_event: Callable[[Recorded], object] | None,
    at: datetime | None,
    now: bool,
) -> RunResult:
    """Do as `Session.send` says."""
    if on_event is None:
        sent = begin(access, content, cancel=cancel, key=key, at=at, now=now)
        await sent.over()
        return sent.result()
    if inspect.iscoroutinefunction(on_event):
        raise ConfigError("on_event must be a plain function that returns quickly, not an async one")
    watcher = RunWatcher(on_event)

    def watch(run: RunId, performed: Performed) -> None:
        watcher.watch(run, lambda: access.cancel_surely(CancelRun(run=run, reason="on_event raised")))

    sent = begin(access, content, cancel=cancel, key=key, on_performed=watch, at=at, now=now)
    unsubscribe = access.context.event_bus.subscribe(watcher.see, access.session)
    try:
        await sent.over()
    finally:
        unsubscribe()
    result = sent.result()
    if watcher.failure is not None:
        raise watcher.failure
    return result


async def remind(access: SessionAccess, content: Input, *, at: datetime, key: str | None) -> RunId:
    """Do as `Session.remind` says."""
    blocks, payloads = input_content(content)
    command = SendInput(content=blocks, key=checked_key(key), due_at=checked_time(at))
    performed = await access.ask(command, payloads)
    assert isinstance(performed, PerformedInRun)
    return performed.run


def _reason_of(token: CancellationToken) -> str | None:
    return recorded_reason(token.reason) if token.reason is not None else None


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn came to."""

    run: RunId
    events: tuple[Recorded, ...]
    """What happened in it, oldest first."""
    result: RunResult | None
    """How the run ended, if it has; None = its next turn waits for `Session.step`."""

    @property
    def text(self) -> str:
        """What the model said in the turn; a text of more than 64 KiB is in `Session.history` only."""
        return "".join(text_of(item.event.content) for item in self.events if isinstance(item.event, ModelResponded))

    @property
    def usage(self) -> Usage:
        """The tokens of the turn's model call, interrupted attempts of it included."""
        answers = (item.event for item in self.events if isinstance(item.event, ModelResponded | ModelInterrupted))
        return sum((answer.usage for answer in answers), Usage())

    @property
    def calls(self) -> list[tuple[ToolUseBlock, ToolResultBlock]]:
        """The tool calls that were answered in the turn, with their results, in the order of the calls."""
        results: dict[str, ToolResultBlock] = {}
        for item in self.events:
            event = item.event
            if isinstance(event, ToolCallCompleted):
                results[event.call] = ToolResultBlock(tool_use_id=event.call, content=event.content)
            elif isinstance(event, ToolCallFailed):
                results[event.call] = ToolResultBlock(
                    tool_use_id=event.call, content=event.content, is_error=True, kind=event.kind
                )
        answers = (item.event for item in self.events if isinstance(item.event, ModelResponded))
        return [(use, results[use.id]) for answer in answers for use in tool_uses(answer.content) if use.id in results]


async def step(access: SessionAccess, content: Input | None, key: str | None) -> TurnResult:
    """Do as `Session.step` says."""
    if content is None and key is not None:
        raise ConfigError("a key of step is that of its input; give an input too, or no key")
    seen: list[Recorded] = []
    watcher = RunWatcher(seen.append)

    def watch(run: RunId, performed: Performed) -> None:
        watcher.watch(run, lambda: access.cancel_surely(CancelRun(run=run)))

    unsubscribe = access.context.event_bus.subscribe(watcher.see, access.session)
    try:
        if content is not None:
            sent = begin(access, content, cancel=None, key=key, on_performed=watch, stepwise=True)
        else:
            require_other_session(access.context.system, access.session)
            access.context.require_open()
            sent = Sent(access, AllowTurn(), {}, None, watch, stepwise=True)
        await sent.over()
    finally:
        unsubscribe()
    ended = sent.outcome()
    assert sent.run is not None
    return TurnResult(run=sent.run, events=tuple(seen), result=ended if isinstance(ended, RunResult) else None)
