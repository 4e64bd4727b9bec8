"""The event-sourced shell: a pure core on the outside world.

Read `refold.events.core` first. A message is handled in this order and no other: `admit` it; `evolve` and `react` until
nothing more follows; append the batch and wait until it is durable; reply and publish; reconcile the effects that run
with those that `pending(state)` names. The rules: nobody sees a state that is not durable; state is only ever
rebuilt from the log; and no effect of a state begins before the effects that were cancelled have ended, or the
grace period is over.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from refold.actors.actor import Actor
from refold.actors.clock import Timer
from refold.actors.effects import EffectEnded, EffectsInFlight, StreamEffects
from refold.actors.errors import ActorStopped
from refold.actors.journal import Journal
from refold.events.codec import EventCodec, RecordedEvent
from refold.events.core import Core, Effect, Plan, Recorded, WaitUntil, evolve_all, plan
from refold.events.errors import CommandRejected, PersistenceError, WrongExpectedVersion
from refold.events.event import Event
from refold.events.ids import EventRef, PayloadHash, StreamName, event_ref
from refold.events.records import Appended, EncodedBatch, StoredEvent

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


class WithPayloads(msgspec.Struct, frozen=True):
    """A command whose large content goes to the payloads."""

    command: object
    payloads: Mapping[PayloadHash, bytes]


class GraceOver(msgspec.Struct, frozen=True):
    """The grace period of the effects that were cancelled then is over."""

    round: int


class OfferResult(msgspec.Struct, frozen=True):
    """Offer the result of an effect to the log again, which refused it."""

    key: str


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
        self._effects = StreamEffects()
        self._held: set[str] = set()
        self._grace: Timer | None = None
        self._grace_round = 0
        self._grace_s = cancel_grace_s
        self._stale = False
        self._published = 0
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

    def recovery(self) -> Sequence[C] | None:
        """Return the commands that let work go on which an earlier process left; None = it waits for one that does."""
        return ()

    def resumes(self, command: C) -> bool:
        """Tell whether `command` lets work go on that has waited since the start."""
        return False

    def preparation(self, command: C) -> Sequence[C]:
        """Return commands to be performed just before `command`, in the same transaction."""
        return ()

    def unrecordable(self, command: C, reason: str) -> C | None:
        """Return what to record instead of an effect's result that was refused; None = nothing."""
        return None

    # The life of the actor

    @property
    def stream(self) -> StreamName:
        """The stream that the state is folded from: the actor's address."""
        return StreamName(self.address)

    async def on_start(self) -> None:
        """Fold the state from the log, and let work go on that an earlier process left."""
        self._effects = self._in_flight.of(self.stream)
        await self._fold()
        self._published = self.core.version(self.state)
        wanted = self.core.pending(self.state)
        if wanted and not self._effects.carried_out():
            recovery = self.recovery()
            if recovery is None:
                self._held = {effect.key for effect in wanted}
            elif recovery:
                await self.perform(recovery)
        for message in self._effects.unrecorded.values():
            self._offer_later(message)
        self._reconcile()

    async def on_stop(self) -> None:
        """Let go of timers, and of effects that run nowhere else."""
        self._let_go()

    def on_failure(self, *_error: object, **_error_by_name: object) -> None:
        """Let go as at a stop: the next instance sets its own timers."""
        self._let_go()

    def _let_go(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        for key, timer in self._timers.items():
            timer.cancel()
            if isinstance(self._effects.running.get(key), WaitUntil):
                del self._effects.running[key]
        self._in_flight.forget(self.stream)

    async def rebuild(self) -> None:
        """Fold the state again from the log, and publish what is in it and was not known to be.

        Raises:
            PersistenceError: the log cannot be read.
        """
        stored = await self._fold()
        unknown = [item for item in stored if item.version > self._published]
        if unknown:
            self._published = unknown[-1].version
            self.published(self.codec.recorded(unknown))

    async def _fold(self) -> list[StoredEvent]:
        self._stale = True
        stored = await self.journal.store.read_stream(self.stream)
        self.state = evolve_all(self.core, self.codec.decode_all(stored))
        self.time = stored[-1].at if stored else 0
        self._stale = False
        return stored

    async def require_durable_state(self) -> None:
        """See to it that `state` is as the log says, whatever failed before.

        Raises:
            PersistenceError: the log cannot be read.
        """
        if self._stale:
            await self.rebuild()

    async def on_receive(self, message: Any) -> Any:
        """Handle a command, or the end of an effect."""
        if type(message) is EffectEnded:
            return await self._effect_ended(message)
        if type(message) is OfferResult:
            return await self._offer_again(message.key)
        if type(message) is GraceOver:
            return await self._grace_over(message)
        for key in list(self._effects.unrecorded):  # It ended before this message came.
            await self._offer_again(key)
        await self.require_durable_state()
        command, payloads = message, None
        if type(message) is WithPayloads:
            command, payloads = cast("C", message.command), message.payloads
        try:
            performed = await self.perform([*self.preparation(command), command], payloads=payloads)
        except PersistenceError:
            if not self._stale:
                self._reconcile()  # What the log holds all the same goes on.
            raise
        if self.resumes(command):
            self._held.clear()
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
        await self.require_durable_state()
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
                await self._rebuild_after(error)
            raise
        self._published = self.core.version(self.state)
        self.published(self._recorded(batches, plans, appended))
        return performed

    async def _rebuild_after(self, error: BaseException) -> None:
        self._stale = True
        try:
            await self.rebuild()
        except PersistenceError as unreadable:  # The next message tries again; this one has an error of its own.
            log.warning("%s cannot be read again after %s: %s", self.stream, type(error).__name__, unreadable)

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

    def goes_on(self) -> bool:
        """Tell whether there is work in flight, all of it in this process."""
        wanted = self.core.pending(self.state)
        return bool(wanted) and all(effect.key in self._effects.running for effect in wanted)

    # Effects

    async def _effect_ended(self, message: EffectEnded) -> None:
        key, effects = message.key, self._effects
        if message.command is not None:
            version = self.core.version(self.state)
            try:
                await self.require_durable_state()
                version = self.core.version(self.state)
                await self._record_result(message, effects.running.get(key) or effects.cancelled.get(key))
            except PersistenceError as error:
                if self._stale or self.core.version(self.state) == version:
                    # The work is done and must not be done again: it stays marked as running until it is recorded.
                    log.warning("%s: the result of %s is not recorded yet: %s", self.address, key, error)
                    effects.unrecorded[key] = msgspec.structs.replace(message, attempt=message.attempt + 1)
                    self._offer_later(effects.unrecorded[key])
                    return
        effects.unrecorded.pop(key, None)
        effects.running.pop(key, None)
        effects.cancelled.pop(key, None)
        self._forget_timer(key)
        self._reconcile()
        self._in_flight.ended()

    async def _offer_again(self, key: str) -> None:
        message = self._effects.unrecorded.get(key)
        if message is not None:
            await self._effect_ended(message)

    def _offer_later(self, message: EffectEnded) -> None:
        key = message.key
        self._forget_timer(key)
        self._timers[key] = self._tell_later(RECORD_RETRY_S * 2 ** min(message.attempt - 1, 5), OfferResult(key))

    def _forget_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _record_result(self, message: EffectEnded, effect: Effect | None) -> None:
        command: Any = message.command
        try:
            await self.perform([command], payloads=message.payloads, effect=effect)
        except PersistenceError:
            raise
        except CommandRejected as error:
            log.warning("%s: the result of %s is refused: %s", self.address, message.key, error)
            await self._record_instead(command, str(error), effect)
        except Exception as error:  # A result of a shape that nobody foresaw: its effect has ended all the same.
            log.exception("%s: the result of %s cannot be understood", self.address, message.key)
            await self._record_instead(command, type(error).__name__, effect)

    async def _record_instead(self, command: C, reason: str, effect: Effect | None) -> None:
        instead = self.unrecordable(command, reason)
        if instead is not None:
            await self.perform([instead], effect=effect)

    def _reconcile(self) -> None:
        wanted = {effect.key: effect for effect in self.core.pending(self.state)}
        running, cancelled = self._effects.running, self._effects.cancelled
        for key in [key for key in running if key not in wanted]:
            effect = running.pop(key)
            if isinstance(effect, WaitUntil):
                self._forget_timer(key)
            else:
                cancelled[key] = effect
                self.cancel(effect)
        if cancelled:
            if self._grace is None:
                self._grace = self._tell_later(self._grace_s, GraceOver(self._grace_round))
            return
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
            self._grace_round += 1
        for key, effect in wanted.items():
            if key not in running and key not in self._held and not self._in_flight.draining:
                running[key] = effect
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

    async def _grace_over(self, message: GraceOver) -> None:
        if message.round != self._grace_round:
            return
        try:
            await self.require_durable_state()
        except PersistenceError:
            self._grace = self._tell_later(RECORD_RETRY_S, message)
            return
        for effect in self._effects.cancelled.values():
            self.abandon(effect)
        self._effects.cancelled.clear()
        self._reconcile()
        self._in_flight.ended()
