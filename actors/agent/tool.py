"""The tool actor: runs the bodies of one tool's calls, for all sessions.

Its address and stream are `tool/<name>`, or `tool/<agent>/<name>` where it is not one of the runtime's main agent; the
stream tells what the tool was defined as and which calls were given up.
A call's body runs beside the mailbox. The rules: a call that is begun twice under one key runs once; each call tells
its session its end exactly once, and a body that outlives that end tells it what it returned, which the session keeps
as evidence. How a call is carried out, see `refold.actors.calls.protocols.ToolRules`: it may wait until fewer bodies
run, which is no silence, and ends at once when the run is cancelled. What is carried out here is one attempt at a call;
whether there is another, the session decides. It is told of a silent one that may be followed by another only when the
body has ended, so that no two run beside each other.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from weakref import WeakValueDictionary

import msgspec

from refold.actors.calls.context import HookContext, SessionContext, running_context
from refold.actors.calls.middleware import CallRefused, ResultLost
from refold.actors.calls.policy import recovery_text
from refold.actors.calls.protocols import CallGuard, CallNotMade, NoSignOfLife, SessionObserver, ToolRules, ToolRunner
from refold.actors.calls.questions import DeferredResult, Questions
from refold.actors.calls.results import RESULT_BYTES_MAX, WithLimit, failure, result_in_steps
from refold.actors.calls.tool_context import CallingTool, Subagents, ToolContext, calling_tool
from refold.actors.cancellation import CancellationToken
from refold.actors.kernel.actor import Actor
from refold.actors.kernel.clock import Timer
from refold.actors.kernel.ref import ActorRef, Vital
from refold.actors.shell.cooperative import in_turns
from refold.actors.shell.effects import CANCEL_GRACE_S, CallUnderWay, call_under_way, retry_pause_s, tell_end
from refold.actors.shell.folded_stream import FoldedStream
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import CancelEffect, EffectEnded, Later, teller
from refold.events.core.cleaning import Unrecordable
from refold.events.core.content import CRASHED_TEXT, ErrorKind, JsonObject, ResultContent, TextBlock
from refold.events.core.errors import (
    CircuitOpen,
    CommandRejected,
    LogFormatError,
    PersistenceError,
    ToolError,
)
from refold.events.core.ids import EventRef, PayloadHash, SessionId, StreamName, ToolCallId, kind_and_identifier
from refold.events.kinds.tool import TOOL_CODEC, TOOL_CORE, AbandonCall, DefineTool, ToolCommand, ToolState
from refold.events.model.configuration import RecoveryFunction
from refold.events.session.commands import RecordQuestion, RecordToolResult
from refold.events.session.events import QuestionAnswered

log = logging.getLogger("refold.tool")


class StartToolCall(Vital, frozen=True, kw_only=True):
    """Run the body for one attempt at a call."""

    key: str
    session: SessionId
    reply_to: ActorRef
    call: ToolCallId
    arguments: JsonObject
    started: EventRef
    """Its ToolCallStarted, which is durable."""
    correlation: EventRef | None = None
    """What that goes back to; None = it is not known."""
    ancestors: tuple[SessionId, ...] = ()
    """The session's parent, the parent's parent and so on."""
    context: SessionContext | None = None
    """Whose session it is; None = it is not known."""
    attempt: int = 1
    answers: tuple[QuestionAnswered, ...] = ()
    """What came of the questions that the call has asked."""
    again: bool = False
    """Whether another attempt may follow."""
    where: HookContext
    """For whom the body is called."""


class RecordFact(Vital, frozen=True):
    """Have a fact about the tool recorded, behind the calls that wait already."""

    fact: ToolCommand


class _Running:
    def __init__(self, message: StartToolCall) -> None:
        self.message = message
        self.token = CancellationToken()
        cause = (message.started, message.correlation or message.started)
        self.of_session = CallUnderWay(message.reply_to.system, cause)
        self.context: ToolContext[object] | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.questions: Questions | None = None
        self.silence: Timer | None = None
        self.patience: Timer | None = None
        self.grace: Timer | None = None
        self.may_be_silent = False
        self.told = False
        """Whether the session has been told that the call is over."""
        self.silent: NoSignOfLife | None = None
        """That it gave no sign of life, where it is to end so that there can be another attempt."""
        self.waits = False
        """Whether it waits for other bodies to end, or for the breaker."""
        self.guard: CallGuard | None = None
        self.ended_by: EventRef | None = None
        """The event of its session that cancelled it."""
        self.slot: asyncio.Semaphore | None = None
        """What it holds of the tool's limit."""

    def free_slot(self) -> None:
        slot, self.slot = self.slot, None
        if slot is not None:
            slot.release()

    def stop_timers(self) -> None:
        for timer in (self.silence, self.patience, self.grace):
            if timer is not None:
                timer.cancel()


class ToolActor(Actor):
    """Runs one tool.

    Args:
        observer: is told what calls report.
        subagents: runs other agents for calls of the tool; None = nobody does.
        cancel_grace_s: how long a cancelled body may go on before it counts as abandoned; one that watches its
            token is left alone for the first half of it.
        result_bytes_max: most bytes of a result that are taken; None = any number.
    """

    def __init__(
        self,
        runner: ToolRunner,
        journal: Journal,
        observer: SessionObserver,
        *,
        subagents: Subagents | None = None,
        recovery: RecoveryFunction | None = None,
        cancel_grace_s: float = CANCEL_GRACE_S,
        result_bytes_max: int | None = RESULT_BYTES_MAX,
    ) -> None:
        self._result_bytes_max = result_bytes_max
        self._recovery = recovery
        self._journal = journal
        self._facts = FoldedStream(TOOL_CORE, TOOL_CODEC, journal)
        self._runner = runner
        self._observer = observer
        self._subagents = subagents
        self._grace_s, self._patience_s = cancel_grace_s, cancel_grace_s / 2
        self._calls: dict[tuple[str, str], _Running] = {}
        self._defined = False
        self._slots: WeakValueDictionary[tuple[SessionId | None, int], asyncio.Semaphore] = WeakValueDictionary()
        """By the session whose calls they are for, None = for all, and their number."""
        """The limit of bodies that run at once, and how many more may."""

    def current_state(self) -> ToolState:
        """Return what its stream adds up to, to look at only."""
        return self._facts.state

    async def on_start(self) -> None:
        self.tool = kind_and_identifier(self.address)[1].rpartition("/")[2]
        self._facts.open(StreamName(self.address), self.system.clock)
        await self._read_facts(0)

    async def _read_facts(self, attempt: int) -> None:
        """Fold what is known of the tool; where the log cannot be read, calls run nevertheless."""
        try:
            if self._facts.stale:
                await self._facts.fold()
        except PersistenceError as error:
            log.warning("%s cannot be read: %s", self.address, error)
            if not isinstance(error, LogFormatError):
                again = Later(self._read_facts.__name__, (attempt + 1,))
                self.system.clock.call_later(retry_pause_s(attempt), teller(self.actor_ref, again))

    def on_receive(self, message: object) -> object:
        match message:
            case StartToolCall():
                self._start(message)
                self._define()
            case CancelEffect():
                running = self._calls.get((message.asker, message.key))
                if running is not None and not message.abandoned:
                    running.ended_by, running.silent = message.cause, None
                    self._cancel(running, "the run was cancelled")
                elif running is not None:
                    running.free_slot()  # Or the calls that wait for it would wait for ever.
                    return self._note(AbandonCall(running.message.started))
            case RecordFact(fact=fact):
                return self._note(fact)
            case Later():
                return self._read_facts(*message.given)
            case _:
                return super().on_receive(message)
        return None

    def on_stop(self) -> None:
        self._facts.rest()

    def on_failure(self, *_error: object, **_error_by_name: object) -> None:
        """End the calls that run as far as their sessions are concerned: what becomes of them is not known."""
        for running in self._calls.values():
            if not running.told:
                self._tell_text(running, CRASHED_TEXT, "crashed", broken=True)

    def on_cancelled(self) -> None:
        self.on_failure()

    def _define(self) -> None:
        """Have it recorded once in a life what the tool is, behind the calls that wait already."""
        spec = self._runner.spec(self.tool)
        if not self._defined and spec is not None:
            self._defined = True
            self.actor_ref.tell(RecordFact(DefineTool(spec)))

    async def _note(self, command: ToolCommand) -> None:
        try:
            await self._facts.perform([command])
        except (PersistenceError, CommandRejected) as error:
            log.warning("%s: %s is not recorded: %s", self.address, type(command).__name__, error)

    def _start(self, message: StartToolCall) -> None:
        place = (message.reply_to.address, message.key)
        if place in self._calls:
            return
        running = self._calls[place] = _Running(message)
        name, unbegun = f"{message.session}/{message.call}", partial(self._unbegun, running, place)
        running.task = self.spawn(self._run(running, place), name=name, over=unbegun)

    def _unbegun(self, running: _Running, place: tuple[str, str]) -> None:
        """Have a call begun again whose task other code has cancelled before its first step."""
        if not running.begun and self._calls.pop(place, None) is not None and not running.told and self.lives:
            self._tell_end(running, EffectEnded(key=running.message.key))

    async def _run(self, running: _Running, place: tuple[str, str]) -> None:
        running.begun = True
        call_under_way.set(running.of_session)
        try:
            if running.token.cancelled:  # Before it began.
                self._tell_cancelled(running)
            elif self._runner.spec(self.tool) is None:
                self._tell_text(running, f"There is no tool {self.tool!r} in this process.", "not_found")
            else:
                value = await self._carried_out(running)
                if running.questions is not None and (deferred := _deferred(value)) is not None:
                    self._tell_asks(running, running.questions.deferred(deferred))
                    return
                finished = running.context.finished if running.context is not None else None
                result = value if finished is None else WithLimit(finished, None)
                in_steps = result_in_steps(result, self._result_bytes_max, self._journal.redaction)
                content, payloads = await in_turns(in_steps, to_the_end=True)
                self._tell(running, content, None, payloads, ends_run=finished is not None)
        except asyncio.CancelledError:
            if running.token.cancelled:
                self._tell_cancelled(running)
            elif running.questions is not None and running.questions.open is not None and not running.told:
                self._tell_asks(running, running.questions.open)
            elif running.told or not self.actor_ref.is_alive():
                raise  # This actor stops, and the call stays open as after a crash.
            else:
                self._tell(running, *failure(RuntimeError("the tool let out a CancelledError of its own")))
        except NoSignOfLife as error:
            self._tell_text(running, error.told, "timeout", again=True)
        except Unrecordable as error:
            self._tell_text(running, f"The tool ran, and its result cannot be recorded: {error}", "permanent")
        except KeyboardInterrupt:
            raise
        except ResultLost as error:
            await self._tell_broken(running, f"The tool ran, and its result is lost: {error}", "crashed", error)
        except CallRefused as error:
            if error.broken:
                await self._tell_broken(running, f"{error}. The call was not run.", "denied", error)
            else:
                self._tell_text(running, str(error), "denied")
        except CallNotMade as error:
            self._tell_text(running, str(error), "shed")
        except BaseException as error:  # The border to user code: its failure is a result for the model.
            if not isinstance(error, ToolError):
                log.warning("%s: call %s of %s raised", self.address, running.message.call, place[0], exc_info=error)
            content, kind = failure(error, self._journal.redaction)
            self._tell(running, content, kind, again=kind == "transient")
        finally:
            running.stop_timers()
            running.free_slot()
            if self._calls.get(place) is running:
                del self._calls[place]

    async def _carried_out(self, running: _Running) -> object:
        rules = self._runner.rules(self.tool)
        await self._enter(running, rules)
        if rules.breaker is None:
            return await self._body(running)
        guard = rules.breaker.guard()
        running.waits = True
        try:
            await guard.begin()
        except CircuitOpen as error:
            raise CallNotMade(self.tool, error) from None
        running.guard, running.waits = guard, False
        try:
            value = await self._body(running)
        except BaseException as error:
            await guard.end(error)
            raise
        await guard.end(None)
        return value

    async def _enter(self, running: _Running, rules: ToolRules) -> None:
        if rules.concurrency is None:
            return
        of = running.message.session if rules.per_session else None
        slot = self._slots.setdefault((of, rules.concurrency), asyncio.Semaphore(rules.concurrency))
        running.waits = True
        await slot.acquire()
        running.slot, running.waits = slot, False

    async def _body(self, running: _Running) -> object:
        message = running.message
        if self._journal.lost:  # Meanwhile: the runtime that has the log carries the call out, and this one ends.
            running.free_slot()
            await asyncio.get_running_loop().create_future()
        running.questions = Questions(
            message.call,
            message.attempt,
            message.answers,
            describe=self._runner.described,
            now_us=self.system.clock.now_us,
            end_body=lambda: self._end_body(running),
        )
        running.context = ToolContext(
            call=message.call,
            session=message.session,
            deps=message.where.deps,
            cancel=running.token.child(),  # What the body cancels by itself ends no run.
            report=lambda report: self._progressed(running, report),
            session_context=message.context,
            questions=running.questions,
        )
        self._listen(running)
        calling = CallingTool(
            self.system,
            message.session,
            context=message.context,
            ancestors=message.ancestors,
            call=message.call,
            started=message.started,
            correlation=message.correlation or message.started,
            subagents=self._subagents,
            listen=lambda wanted: self._listen_again(running, wanted),
            ended_by=lambda: running.ended_by,
        )
        calling_tool.set(calling)
        running_context.set(message.where)
        try:
            return await self._runner.run(self.tool, message.arguments, running.context)
        except (Exception, asyncio.CancelledError):
            if running.silent is not None and self.actor_ref.is_alive():
                raise running.silent from None
            raise
        finally:
            calling.over = True
            running.context.end()

    async def _tell_broken(self, running: _Running, text: str, kind: ErrorKind, error: Exception) -> None:
        """Tell that a call could not be carried out, and what is to become of its run."""
        recovery: str | None = None
        if self._recovery is not None:
            try:
                recovery = await recovery_text(self._recovery, running.message.session, [self.tool], error)
            except asyncio.CancelledError:
                if not running.token.cancelled:
                    raise
                self._tell_cancelled(running)
                return
            text = f"{text}\n{recovery}" if recovery else text
        self._tell(running, (TextBlock(text=text),), kind, broken=True, recovery=recovery)

    def _tell_text(
        self, running: _Running, text: str, kind: ErrorKind, *, broken: bool = False, again: bool = False
    ) -> None:
        self._tell(running, (TextBlock(text=text),), kind, broken=broken, again=again)

    def _tell(
        self,
        running: _Running,
        content: tuple[ResultContent, ...],
        kind: ErrorKind | None,
        payloads: Mapping[PayloadHash, bytes] = MappingProxyType({}),
        *,
        ends_run: bool = False,
        broken: bool = False,
        recovery: str | None = None,
        again: bool = False,
    ) -> None:
        context = running.context
        original, more = context.original if context is not None else (None, {})
        command = RecordToolResult(
            call=running.message.call,
            content=content,
            kind=kind,
            ends_run=ends_run,
            broken=broken,
            recovery=recovery,
            original=original,
            handoff=context.handoff if context is not None and kind is None else None,
            hidden=context is not None and context.hidden,
            attempt=running.message.attempt,
            again=again,
        )
        self._tell_end(running, EffectEnded(key=running.message.key, command=command, payloads={**payloads, **more}))

    def _end_body(self, running: _Running) -> None:
        """Have a body end that has asked; one that runs in a thread ends by itself."""
        task = running.task
        if task is not None and asyncio._get_running_loop() is self.system.loop:  # None in a thread without one.
            task.cancel()

    def _tell_asks(self, running: _Running, question: RecordQuestion) -> None:
        self._tell_end(running, EffectEnded(key=running.message.key, command=question))

    def _tell_cancelled(self, running: _Running) -> None:
        if not running.told:
            self._tell_end(running, EffectEnded(key=running.message.key))

    def _tell_end(self, running: _Running, ended: EffectEnded) -> None:
        running.told = True
        tell_end(running.message.reply_to, msgspec.structs.replace(ended, along=running.of_session.end()))

    def _cancel(self, running: _Running, reason: str) -> None:
        """Show the token first; a body that does not watch it, or watches for too long, has its task cancelled."""
        running.stop_timers()
        running.token.cancel(reason)
        task = running.task
        if task is None or (running.context is None and not running.waits):
            return  # It has not begun, and will see its token when it does.
        if running.context is not None and running.context.watches_cancel:
            running.patience = self.system.clock.call_later(self._patience_s, task.cancel)
        else:
            task.cancel()

    def _listen_again(self, running: _Running, wanted: bool) -> None:
        """Begin anew to wait for a sign of life, or let the body be silent."""
        running.may_be_silent = not wanted
        if not running.told and not running.token.cancelled:
            self._listen(running)

    def _listen(self, running: _Running) -> None:
        spec = self._runner.spec(self.tool)
        if running.silence is not None:
            running.silence.cancel()
        if spec is not None and not running.may_be_silent:
            timeout_s = spec.timeout_s
            running.silence = self.system.clock.call_later(timeout_s, lambda: self._timed_out(running, timeout_s))

    def _timed_out(self, running: _Running, timeout_s: float) -> None:
        """End an attempt that gives no sign of life, with its call or so that there can be another attempt."""
        silence = NoSignOfLife(timeout_s)
        if running.guard is not None:
            running.guard.lose(silence)
        if running.message.again:
            running.silent = silence
        else:
            self._tell_text(running, silence.told, "timeout")
        self._cancel(running, "the call gave no sign of life for too long")
        running.grace = self.system.clock.call_later(self._grace_s, lambda: self._give_up(running))

    def _give_up(self, running: _Running) -> None:
        """Have a body that does not end given up, behind the messages that wait; no other attempt begins beside it."""
        silence, running.silent = running.silent, None
        if silence is not None:
            self._tell_text(running, silence.told, "timeout")
        message = running.message
        teller(self.actor_ref, CancelEffect(message.reply_to.address, message.key, abandoned=True))()

    def _progressed(self, running: _Running, report: object) -> None:
        def publish() -> None:
            if not (running.told or running.waits or running.token.cancelled):
                self._listen(running)
            self._observer.progressed(running.message.session, running.message.call, report)

        try:
            self.system.loop.call_soon_threadsafe(publish)
        except RuntimeError:  # The loop is closed, and the thread of a body that was left behind still reports.
            log.debug("%s: a report of call %s comes after the end", self.address, running.message.call)


def _deferred(value: object) -> DeferredResult | None:
    value = value.value if isinstance(value, WithLimit) else value
    return value if isinstance(value, DeferredResult) else None
