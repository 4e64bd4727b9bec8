"""The breaker actor: one circuit, by name, for everything in its runtime that asks under that name.

Its address and stream are `breaker/<name>`. Who asks cannot wait for a disk, and nothing that is found may be lost. So
it decides at once, by its core, on a state that is ahead of its log by what is on its way there, in order. What the end
of a session's call brings goes to the log in the transaction of that end, with it as its cause; all else goes at once.
(Of calls that end at one moment, what one brought may have to go with the end of another; its cause is then the event
that began its call.)

The rules: no call waits for what it brings to be durable; and a log that fails stops no call. The state then goes on in
memory, and what the log lacks is decided anew, on what the log has, when it can be written again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from refold.actors.kernel.actor import Actor
from refold.actors.kernel.clock import Timer
from refold.actors.kernel.ref import Vital
from refold.actors.kernel.reply import ActorFuture
from refold.actors.shell.effects import CallUnderWay, retry_pause_s
from refold.actors.shell.folded_stream import FoldedStream
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import Cause, Envelope, Performed, Query, QueryResult, answer_to
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import StreamName, kind_and_identifier
from refold.events.core.pure_core import Recorded
from refold.events.core.records import EncodedBatch
from refold.events.kinds.breaker import (
    BREAKER_CORE,
    BreakerCommand,
    BreakerState,
    EndCall,
    Permit,
    TakeUp,
    asked,
    permit_of,
)

log = logging.getLogger("refold.resilience")


class OfCircuit(Vital, frozen=True):
    """Ask the circuit something from outside its loop; the reply is what `ask` returns or raises, at once."""

    ask: "Callable[[BreakerActor], Any]"


class _Finding:
    """What was found and is not known to be in the log."""

    def __init__(self, command: BreakerCommand, cause: Cause | None, loop: asyncio.AbstractEventLoop) -> None:
        self.command = command
        self.cause = cause
        self.batch: EncodedBatch | None = None
        """What was decided from it; None = nothing yet, since the log is being read."""
        self.held = False
        """Whether it waits for the end of the call that found it."""
        self.offered = False
        """Whether it was to be written, and is not known to have been."""
        self.durable: ActorFuture[Performed] = ActorFuture(loop)
        """Of the last attempt to write it."""


class BreakerActor(Actor):
    """Decides for one circuit. Its methods are for the loop's own thread; other threads send it an `OfCircuit`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._log = FoldedStream(BREAKER_CORE, BREAKER_CORE.codec, journal)
        self._findings: list[_Finding] = []
        """In the order of the stream."""
        self._writes = 0
        """How many transactions with findings are under way."""
        self._failures = 0
        """How often in a row the log failed."""
        self._recovering = asyncio.Lock()
        self._reading = False
        self._retry: Timer | None = None
        self._stopped = False
        self._taken_up = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> BreakerState:
        """What holds now, of which the last events may not be durable yet; to look at only."""
        return self._log.state

    # What is asked

    def begin(self, call: CallUnderWay | None) -> Permit:
        """Let a call of a session, or of none, through.

        That it is a probe is recorded at once, so that a process that dies of it leaves a trace.
        """
        stream = self._log.name
        probe = asked(self.state, kind_and_identifier(stream)[1], self.system.clock.now_us(), stream=stream)
        permit = permit_of(self.state, probe)
        if probe is not None:
            self.note(probe, call)
        return permit

    def end(self, command: EndCall, call: CallUnderWay | None) -> ActorFuture[Performed] | None:
        """Take note of how a call ended; return what to wait for, as `note` does. In a session nobody waits."""
        if call is None or call.over or call.system is not self.system:
            return self.note(command, call)
        finding = self._found(command, call)
        if finding is not None:
            finding.held = True
            call.along.append(_FindingAlong(self, finding))
        return None

    def note(self, command: BreakerCommand, call: CallUnderWay | None = None) -> ActorFuture[Performed] | None:
        """Perform a command; return what to wait for until what follows from it is durable.

        None = nothing follows, or the log fails, so that nobody knows how long that would take.
        """
        finding = self._found(command, call)
        if finding is None:
            return None
        self.write(finding)
        return finding.durable if finding.offered else None

    def take_up(self, command: TakeUp) -> ActorFuture[Performed] | None:
        """Go on with what was before; return what to wait for, as `note` does.

        Only one process has the log at a time. So the probe that the log has under way when the first breaker comes is
        of a process that is gone: it gives up its slot.
        """
        state, is_first = self.state, not self._taken_up
        self._taken_up = True
        if is_first and state.probe_since is not None:
            permit = Permit(state.generation, state.probe)
            return self.note(EndCall(permit=permit, end="neither", ended_at=self.system.clock.now_us()))
        return self.note(command)

    def on_receive(self, message: object) -> Any:
        match message:
            case OfCircuit(ask=ask):
                return ask(self)
            case Query():
                return self._answer(message)
            case Envelope():
                return self._perform(message)
            case _:
                return self._perform(Envelope(message))

    async def _answer(self, query: Query) -> QueryResult:
        await self._all_durable()
        return (await answer_to(query, self.state))[0]

    async def _perform(self, envelope: Envelope) -> Performed | list[Performed]:
        single = not isinstance(envelope.command, tuple)
        commands: Sequence[BreakerCommand] = (envelope.command,) if single else envelope.command
        await self._all_durable()
        found = [self._found(command, cause=envelope.cause) for command in commands]
        self.write(None)
        performed = [await finding.durable if finding is not None else Performed(0, False) for finding in found]
        return performed[0] if single else performed

    # The way to the log

    def _found(
        self, command: BreakerCommand, call: CallUnderWay | None = None, cause: Cause | None = None
    ) -> _Finding | None:
        """Decide on the present state; return what is to be written, None = nothing follows."""
        if call is not None and call.system is self.system:
            cause = call.cause
        finding = _Finding(command, cause, self.system.loop)
        if self._reading:
            self._findings.append(finding)
        else:
            before = self.state.opened
            if not self._decide(finding):
                return None
            tell_opened(self.address, self.state, before)
        return finding

    def _decide(self, finding: _Finding) -> bool:
        decided = self._log.decide(finding.command, cause=finding.cause)
        if isinstance(decided, Recorded):
            finding.durable.settle(Performed(decided.version, False))
            return False
        finding.batch = decided[0]
        self._findings.append(finding)
        return True

    def write(self, last: _Finding | None) -> None:
        """Write what was found up to `last`; None = all of it."""
        taken = self.take(last)
        if taken:
            # Where other code cancels the task before its first step, nobody else would settle it.
            self._begin(self._write(taken)).add_done_callback(lambda _: self.settle(taken, asyncio.CancelledError()))

    def take(self, last: _Finding | None) -> list[_Finding]:
        """Return what is to be written up to `last`, which counts as offered now; None = all of it."""
        taken: list[_Finding] = []
        if self._log.stale:
            return taken
        for finding in self._findings:
            if not finding.offered:
                finding.offered = True
                taken.append(finding)
                if finding.durable.ready():  # It was offered before, in vain.
                    finding.durable = ActorFuture(self.system.loop)
            if finding is last:
                break
        self._writes += bool(taken)
        return taken

    async def _write(self, taken: list[_Finding]) -> None:
        failure: BaseException | None = None
        try:
            await self._journal.append(batches_of(taken))
        except PersistenceError as error:
            failure = error
        except BaseException as error:
            failure = error
            raise
        finally:
            self.settle(taken, failure)

    def settle(self, offered: list[_Finding], failure: BaseException | None) -> None:
        """Learn what became of what was taken, and empty it; None = it is durable."""
        taken = offered.copy()
        offered.clear()
        if not taken:
            return
        self._writes -= 1
        if failure is None:
            self._failures = 0
            self._findings = [finding for finding in self._findings if finding not in taken]
            batches = batches_of(taken)
            for finding, batch in zip(taken, batches, strict=True):
                finding.durable.settle(Performed(batch.expected_version + 1, True))
            self._log.became_durable(batches)
        else:
            log.warning("%s: what was found is not recorded yet: %s", self.address, failure)
            self._log.stale = True
            for finding in taken:
                finding.durable.settle(error=failure)
        if self._log.stale:
            self._recover_later()

    async def _all_durable(self) -> None:
        while self._findings or self._log.stale:
            under_way = next((finding for finding in self._findings if not finding.durable.ready()), None)
            if under_way is not None and under_way.offered:
                await under_way.durable
            elif self._log.stale:
                await self._recover()
            else:
                self.write(None)

    # Recovery

    async def on_start(self) -> None:
        self._log.open(StreamName(self.address), self.system.clock)
        await self._try_to_recover()

    async def on_stop(self) -> None:
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        try:
            await self._all_durable()
        except PersistenceError as error:
            log.warning("%s: what was found last is not recorded: %s", self.address, error)
        self._log.rest()

    def _recover_later(self) -> None:
        if self._retry is None and not self._stopped:
            self._retry = self.system.clock.call_later(
                retry_pause_s(self._failures), lambda: self._begin(self._try_to_recover())
            )
            self._failures += 1

    async def _try_to_recover(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        try:
            await self._recover()
        except PersistenceError as error:
            log.warning("%s cannot be read, and goes on in memory: %s", self.address, error)
            if not isinstance(error, LogFormatError):
                self._recover_later()

    async def _recover(self) -> None:
        """Read the log, while nothing is written, and decide anew what it lacks."""
        async with self._recovering:
            if self._writes or not self._log.stale:
                return
            self._reading = True
            try:
                await self._log.fold()
            finally:
                self._reading = False
            self._decide_anew()

    def _decide_anew(self) -> None:
        found, self._findings = self._findings, []
        for finding in found:
            batch = finding.batch
            if finding.offered and batch is not None and batch.expected_version < self._log.version:
                finding.durable.settle(Performed(batch.expected_version + 1, True))
            else:
                finding.offered = False
                self._decide(finding)
        free = [finding for finding in self._findings if not finding.held]
        if free:
            self.write(free[-1])

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self.system.loop.create_task(work, name=self.address)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() and self._log.stale:
            self._recover_later()


class _FindingAlong:
    """A finding that waits for the end of the call that brought it; see `refold.actors.shell.messages.Along`."""

    def __init__(self, actor: BreakerActor, finding: _Finding) -> None:
        self._actor = actor
        self._finding = finding
        self._taken: list[_Finding] = []

    def take(self, cause: Cause) -> Sequence[EncodedBatch]:
        finding = self._finding
        if finding.batch is not None and finding.held and not finding.offered:
            finding.cause = cause
            finding.batch = msgspec.structs.replace(finding.batch, causation=cause[0], correlation=cause[1])
            self._taken = self._actor.take(finding)
        return batches_of(self._taken)

    def settle(self, *, written: bool) -> None:
        taken, self._taken = self._taken, []
        failure = None if written else PersistenceError("the transaction with it failed", outcome_unknown=True)
        self._actor.settle(taken, failure)

    def release(self) -> None:
        finding = self._finding
        finding.held = False
        if not finding.offered:
            self._actor.write(finding)


def batches_of(findings: Sequence[_Finding]) -> list[EncodedBatch]:
    batches: list[EncodedBatch] = []
    for finding in findings:
        assert finding.batch is not None
        batches.append(finding.batch)
    return batches


def tell_opened(stream: str, state: BreakerState, opened: int) -> None:
    """Say in the log of the process that a circuit has opened, where it has since `opened`."""
    if state.opened != opened:
        log.warning("%s opens after %d failures in a row: %s", stream, state.failures, state.error)
