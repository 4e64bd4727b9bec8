"""The event-sourced shell: a pure core on the outside world.

Read `refold.events.core` first. A message is handled in this order and no other: `admit` it; `evolve` and `react` until
nothing more follows; append the batch and wait until it is durable; reply and publish; reconcile the effects that run
with those that `pending(state)` names. The rules: nobody sees a state that is not durable; state is only ever
rebuilt from the log; and no effect of a state begins before the effects that were cancelled have ended, or the
grace period is over.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from refold.actors.actor import Actor
from refold.actors.clock import Clock, Timer
from refold.actors.errors import ActorStopped
from refold.actors.journal import Journal
from refold.events.codec import EventCodec, RecordedEvent
from refold.events.core import Core, Effect, Plan, Recorded, WaitUntil, evolve_all, plan
from refold.events.errors import CommandRejected, PersistenceError, WrongExpectedVersion
from refold.events.event import Event
from refold.events.ids import EventRef, PayloadHash, StreamName, event_ref
from refold.events.records import Appended, EncodedBatch

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E", bound=Event)

log = logging.getLogger("refold.actors")

CANCEL_GRACE_S = 5.0
"""How long a cancelled effect may take to end before it is abandoned."""

RECORD_RETRY_S = 0.5
"""Pause before the result of an effect is offered again to a log that refused it; it doubles up to 32 times this."""

APPEND_ATTEMPTS_MAX = 3
"""How often a message is admitted anew because its stream had moved on."""


class Performed(msgspec.Struct, frozen=True):
    """The reply to a command."""

    version: int
    """Of the stimulus that the command became; 0 where nothing was to be done."""
    new: bool
    """False where the same command had been recorded before, or nothing was to be done."""


class EffectEnded(msgspec.Struct, frozen=True, kw_only=True):
    """An effect is over: what it brought, as a command, or nothing if it was cancelled in time."""

    key: str
    command: object | None = None
    payloads: Mapping[PayloadHash, bytes] = {}
    attempt: int = 0
    """How often its result was refused by the log."""


class WithPayloads(msgspec.Struct, frozen=True):
    """A command whose large content goes to the payloads."""

    command: object
    payloads: Mapping[PayloadHash, bytes]


class GraceOver(msgspec.Struct, frozen=True):
    """The grace period of the effects that were cancelled then is over."""

    round: int


class EffectsInFlight:
    """Which effects of which streams run in this process.

    It outlives an actor's instance, so that an actor that was restarted in the middle of an effect does not begin
    the effect a second time, and waits for its result.
    """

    def __init__(self) -> None:
        self.draining = False
        """Set once no further effect is to begin."""
        self._by_stream: dict[str, dict[str, Effect]] = {}
        self._idle: asyncio.Future[None] | None = None

    def of(self, stream: str) -> dict[str, Effect]:
        """Return the effects of one stream by key, to be read and changed."""
        return self._by_stream.setdefault(stream, {})

    def forget(self, stream: str) -> None:
        """Drop a stream that has no effects."""
        if not self._by_stream.get(stream):
            self._by_stream.pop(stream, None)

    def count(self) -> int:
        """Return how many effects run, waits not counted."""
        running = (effect for effects in self._by_stream.values() for effect in effects.values())
        return sum(not isinstance(effect, WaitUntil) for effect in running)

    async def drain(self, clock: Clock, grace_s: float) -> None:
        """Let no further effect begin, and return when none runs any more, or after `grace_s` seconds."""
        self.draining = True
        if not self.count():
            return
        self._idle = asyncio.get_running_loop().create_future()
        timer = clock.call_later(grace_s, self._wake)
        await self._idle
        timer.cancel()

    def ended(self) -> None:
        """Note that an effect has ended, its result recorded."""
        if self.draining and not self.count():
            self._wake()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class EventSourcedActor(Actor, Generic[S, C, E]):
    """An actor whose state is folded from the stream of its address.

    Send it commands of its core; the reply is `Performed`, or the refusal. Subclasses give a core and a codec, and
    begin and cancel effects; they override `published`, `settled` and `recovery` where they need to.

    Args:
        core: the four functions.
        codec: of the core's events.
        journal: where batches go.
        in_flight: the effects that run in this process; None = this actor has none.
        cancel_grace_s: seconds that cancelled effects may take to end.
    """

    def __init__(
        self,
        core: Core[S, C, E],
        codec: EventCodec[E],
        journal: Journal,
        *,
        in_flight: EffectsInFlight | None = None,
        cancel_grace_s: float = CANCEL_GRACE_S,
    ) -> None:
        self.core = core
        self.codec = codec
        self.journal = journal
        self.state: S = core.initial()
        self.time = 0
        """Of the last event, microseconds since the epoch."""
        self._in_flight = in_flight if in_flight is not None else EffectsInFlight()
        self._running: dict[str, Effect] = {}
        self._cancelled: dict[str, Effect] = {}
        self._grace: Timer | None = None
        self._grace_round = 0
        self._grace_s = cancel_grace_s
        self._stale = False
        self._timers: dict[str, Timer] = {}

    # What subclasses say

    def begin(self, effect: Any) -> None:
        """Begin an effect; its end must come back as one `EffectEnded`."""
        raise NotImplementedError(f"{type(self).__name__} asks for {effect.key} and does not say how to begin it")

    def due(self, effect: WaitUntil) -> C:
        """Return the command that says that the time of a wait has come."""
        raise NotImplementedError(f"{type(self).__name__} asks for {effect.key} and does not say what it means")

    def cancel(self, effect: Any) -> None:
        """Ask an effect to end; its end must come back as one `EffectEnded` all the same."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to cancel {effect.key}")

    def abandon(self, effect: Any) -> None:
        """Note that an effect ignored its cancellation past the grace period."""

    def published(self, events: Sequence[RecordedEvent[E]]) -> None:
        """See events that have just become durable."""

    def settled(self) -> None:
        """See that the state is durable and nothing of an earlier state is in flight any more."""

    def recovery(self) -> Sequence[C]:
        """Return the commands that let work go on which an earlier process left; asked for at most once a start."""
        return ()

    def preparation(self, command: C) -> Sequence[C]:
        """Return commands to be performed just before `command`, in the same transaction."""
        return ()

    def unrecordable(self, command: C, error: CommandRejected) -> C | None:
        """Return what to record instead of an effect's result that was refused; None = nothing."""
        return None

    # The life of the actor

    @property
    def stream(self) -> StreamName:
        """The stream that the state is folded from: the actor's address."""
        return StreamName(self.address)

    async def on_start(self) -> None:  # type: ignore[override]
        """Fold the state from the log, and let work go on that an earlier process left."""
        self._running = self._in_flight.of(self.stream)
        await self.rebuild()
        if any(effect.key not in self._running for effect in self.core.pending(self.state)):
            recovery = self.recovery()
            if recovery:
                await self.perform(recovery)
        self._reconcile()

    async def on_stop(self) -> None:  # type: ignore[override]
        """Let go of timers, and of effects that run nowhere else."""
        if self._grace is not None:
            self._grace.cancel()
        for key, timer in self._timers.items():
            timer.cancel()
            self._running.pop(key, None)
        self._in_flight.forget(self.stream)

    async def rebuild(self) -> None:
        """Fold the state again from the log.

        Raises:
            PersistenceError: the log cannot be read.
        """
        stored = await self.journal.store.read_stream(self.stream)
        self.state = evolve_all(self.core, self.codec.decode_all(stored))
        self.time = stored[-1].at if stored else 0
        self._stale = False

    async def on_receive(self, message: Any) -> Any:
        """Handle a command, or the end of an effect."""
        kind = type(message)
        if kind is EffectEnded:
            return await self._effect_ended(message)
        if kind is GraceOver:
            return self._grace_over(message)
        if kind is WithPayloads:
            command, payloads = message.command, message.payloads
        else:
            command, payloads = message, None
        performed = await self.perform([*self.preparation(command), command], payloads=payloads)
        self._reconcile()
        return performed

    async def perform(
        self,
        commands: Sequence[C],
        *,
        payloads: Mapping[PayloadHash, bytes] | None = None,
        effect: Effect | None = None,
    ) -> Performed:
        """Admit commands in order, append what follows from all of them in one transaction, and publish it.

        Args:
            commands: at least one; the reply is that of the last.
            payloads: content that they refer to.
            effect: the effect that they are the result of.

        Raises:
            CommandRejected: one of them may not happen now; nothing was recorded of any.
            PersistenceError: nothing is known to be recorded, and the state is as the log says.
        """
        for attempt in range(1, APPEND_ATTEMPTS_MAX + 1):
            try:
                return await self._perform_once(commands, payloads, effect)
            except WrongExpectedVersion:
                if attempt == APPEND_ATTEMPTS_MAX:
                    raise
        raise AssertionError("unreachable")

    async def _perform_once(
        self, commands: Sequence[C], payloads: Mapping[PayloadHash, bytes] | None, effect: Effect | None
    ) -> Performed:
        if self._stale:
            await self.rebuild()
        batches: list[EncodedBatch] = []
        plans: list[Plan[S, E]] = []
        performed = Performed(0, False)
        version = self.core.version(self.state)
        try:
            for command in commands:
                planned = plan(self.core, self.state, command, self._now())
                if isinstance(planned, Recorded):
                    performed = Performed(planned.version, False)
                    continue
                self.state = planned.state
                batches.append(self._encoded(planned, effect))
                plans.append(planned)
                performed = Performed(batches[-1].expected_version + 1, True)
            if not batches:
                return performed
            appended = await self.journal.append(batches, payloads)
        except BaseException as error:
            if not isinstance(error, CommandRejected) or self.core.version(self.state) != version:
                self._stale = True
                await self.rebuild()
            raise
        self.published(self._recorded(batches, plans, appended))
        return performed

    def _now(self) -> int:
        self.time = max(self.system.clock.now_us(), self.time)
        return self.time

    def _encoded(self, planned: Plan[S, E], effect: Effect | None) -> EncodedBatch:
        encode = self.codec.encode
        return EncodedBatch(
            stream=self.stream,
            expected_version=self.core.version(planned.state) - len(planned.events),
            at=planned.events[0].at,
            events=tuple([encode(event) for event in planned.events]),
            pending=tuple([wanted.key for wanted in self.core.pending(planned.state)]),
            correlation=event_ref(self.stream, effect.correlation) if effect is not None else None,
            causation=event_ref(self.stream, effect.causation) if effect is not None else None,
        )

    def _recorded(
        self, batches: Sequence[EncodedBatch], plans: Sequence[Plan[S, E]], appended: Sequence[Appended]
    ) -> list[RecordedEvent[E]]:
        recorded: list[RecordedEvent[E]] = []
        for batch, planned, place in zip(batches, plans, appended, strict=True):
            first = batch.expected_version + 1
            stimulus: EventRef = event_ref(batch.stream, first)
            recorded.extend(
                RecordedEvent(
                    stream=batch.stream,
                    version=first + offset,
                    position=place.position + offset,
                    time=batch.at,
                    event=event,
                    batch=first,
                    correlation=batch.correlation or stimulus,
                    causation=stimulus if offset else batch.causation,
                )
                for offset, event in enumerate(planned.events)
            )
        return recorded

    # Effects

    async def _effect_ended(self, message: EffectEnded) -> None:
        effect = self._running.get(message.key) or self._cancelled.get(message.key)
        if message.command is not None:
            try:
                await self._record_result(message, effect)
            except PersistenceError as error:
                # The work is done and must not be done again: it stays marked as running until it is recorded.
                log.warning("%s: the result of %s is not recorded yet: %s", self.address, message.key, error)
                again = msgspec.structs.replace(message, attempt=message.attempt + 1)
                self._tell_later(RECORD_RETRY_S * 2 ** min(message.attempt, 5), again)
                return
        self._running.pop(message.key, None)
        self._cancelled.pop(message.key, None)
        self._timers.pop(message.key, None)
        self._reconcile()
        self._in_flight.ended()

    async def _record_result(self, message: EffectEnded, effect: Effect | None) -> None:
        command: Any = message.command
        try:
            await self.perform([command], payloads=message.payloads, effect=effect)
        except CommandRejected as error:
            log.warning("%s: the result of %s is refused: %s", self.address, message.key, error)
            instead = self.unrecordable(command, error)
            if instead is not None:
                await self.perform([instead], effect=effect)

    def _reconcile(self) -> None:
        wanted = {effect.key: effect for effect in self.core.pending(self.state)}
        for key in [key for key in self._running if key not in wanted]:
            effect = self._running.pop(key)
            if isinstance(effect, WaitUntil):
                self._timers.pop(key).cancel()
            else:
                self.cancel(effect)
                self._cancelled[key] = effect
        if self._cancelled:
            if self._grace is None:
                self._grace = self._tell_later(self._grace_s, GraceOver(self._grace_round))
            return
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
            self._grace_round += 1
        for key, effect in wanted.items():
            if key not in self._running and not self._in_flight.draining:
                self._running[key] = effect
                if isinstance(effect, WaitUntil):
                    self._set_timer(effect)
                else:
                    self.begin(effect)
        self.settled()

    def _tell_later(self, delay_s: float, message: object) -> Timer:
        ref, address = self.actor_ref, self.address

        def tell() -> None:
            try:
                ref.tell(message)
            except ActorStopped as error:  # As after a crash: the log says what is to be done at the next start.
                log.info("%s: a %s came after its end: %s", address, type(message).__name__, error)

        return self.system.clock.call_later(delay_s, tell)

    def _set_timer(self, effect: WaitUntil) -> None:
        delay_s = max(0, effect.due_at - self.system.clock.now_us()) / 1_000_000
        ended = EffectEnded(key=effect.key, command=self.due(effect))
        self._timers[effect.key] = self._tell_later(delay_s, ended)

    def _grace_over(self, message: GraceOver) -> None:
        if message.round != self._grace_round:
            return
        for effect in self._cancelled.values():
            self.abandon(effect)
        self._cancelled.clear()
        self._reconcile()
