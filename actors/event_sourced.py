"""The event-sourced shell: a pure core on the outside world.

Read `refold.events.core.contract` first. A message is handled in this order and no other: `admit` it; `evolve` and
`react` until nothing more follows; append the batch and wait until it is durable; reply and publish; reconcile the
effects that run with those that `pending(state)` names. The rules: nobody sees a state that is not durable; state is
only ever rebuilt from the log; and no effect of a state begins before the effects that were cancelled have ended, or
the grace period is over.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from refold.actors.effects import (
    EffectEnded,
    EffectsInFlight,
    GraceOver,
    LookAtClock,
    OfferResult,
    PauseOver,
    StreamEffects,
    TakeUp,
    WithPayloads,
)
from refold.actors.folded_actor import C, E, FoldedActor, Performed, S
from refold.actors.journal import Journal
from refold.actors.kernel.clock import Timer
from refold.actors.kernel.errors import ActorStopped
from refold.events.core.codec import EventCodec
from refold.events.core.contract import Core, Effect, Wait, WaitUntil
from refold.events.core.errors import CommandRejected, CoreFailed, LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash

log = logging.getLogger("refold.actors")

CANCEL_GRACE_S = 5.0
"""How long a cancelled effect may take to end before it is abandoned."""

RECORD_RETRY_S = 0.5
"""Pause before the result of an effect is offered again to a log that refused it; it doubles up to 32 times this."""


class EventSourcedActor(FoldedActor[S, C, E]):
    """An actor whose state is folded from the stream of its address.

    Send it commands of its core; the reply is `Performed`, or the refusal. Subclasses give a core and a codec, and
    begin and cancel effects; they override `published`, `settled` and `recovery` where they need to. For a core of the
    application's own, `EventSourcedSystem.host` needs no subclass.

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
        super().__init__(core, codec, journal)
        self._in_flight = in_flight if in_flight is not None else EffectsInFlight()
        self._effects = StreamEffects()
        self._grace: Timer | None = None
        self._grace_round = 0
        self._grace_s = cancel_grace_s
        self._taken_up = False
        """Whether the log has been read, and the work that it asks for goes on."""
        self._will_take_up = False
        """Whether a message is on its way that has the log read."""
        self._ends: dict[str, int] = {}
        """How often in a row work that is still wanted has ended without a recorded result."""
        self._resting: set[str] = set()
        """Work that has ended, is still wanted, and begins again after a pause."""

    # What subclasses say

    def begin(self, effect: Any) -> None:
        """Begin an effect; its end must come back as one `EffectEnded`."""
        raise NotImplementedError(f"{type(self).__name__} asks for {effect.key} and does not say how to begin it")

    def due(self, effect: WaitUntil) -> C | None:
        """Return the command that says that the time of a wait has come; None = there is nothing to record."""
        raise NotImplementedError(f"{type(self).__name__} asks for {effect.key} and does not say what it means")

    def cancel(self, effect: Any) -> None:
        """Ask an effect to end; its end must come back as one `EffectEnded` all the same."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to cancel {effect.key}")

    def abandon(self, effect: Any) -> None:
        """Note that an effect ignored its cancellation past the grace period."""

    def settled(self) -> None:
        """See that the state is durable and nothing of an earlier state is in flight any more."""

    def recovery(self) -> Sequence[C] | None:
        """Return the commands that let work go on which an earlier process left; None = it waits for one that does."""
        return ()

    def resumes(self, command: C) -> bool:
        """Tell whether `command` lets work go on that has waited since the start."""
        return False

    def waits_for_recovery(self, effect: Any) -> bool:
        """Tell whether an effect begins only once work goes on which an earlier process left."""
        return True

    def preparation(self, command: C) -> Sequence[C]:
        """Return commands to be performed just before `command`, in the same transaction."""
        return ()

    def unrecordable(self, command: C, reason: str) -> C | None:
        """Return what to record instead of an effect's result that was refused; None = nothing."""
        return None

    def instead(self, effect: Effect | None, command: C, error: Exception) -> C | None:
        """Return what to record instead of an effect's result that was refused or cannot be understood; None = nothing.

        Args:
            effect: None where it is not known any more.
            command: its result.
            error: why it cannot be recorded.
        """
        return self.unrecordable(command, str(error) if isinstance(error, CommandRejected) else type(error).__name__)

    def pause_s(self, effect: Any, ends: int) -> float:
        """Return how many seconds to wait before work begins again that is still wanted though it has ended.

        Args:
            effect: the work.
            ends: how often in a row it has ended without a recorded result; 0 = its last result was recorded.
        """
        return 0.0

    def wanted(self) -> Sequence[Effect]:
        """Return the work that should be in flight."""
        return self.core.pending(self.state)

    # The life of the actor

    async def on_start(self) -> None:
        """Fold the state from the log, and let work go on that an earlier process left.

        Where the log cannot be read now, that is tried again later and by every message.
        """
        self._effects = self._in_flight.of(self.stream)
        await self._try_to_take_up(0)

    async def _try_to_take_up(self, attempt: int) -> None:
        if self._taken_up and not self._stale:
            return
        try:
            if self._taken_up:
                await self.rebuild()
                self._reconcile()
            else:
                await self._take_up()
        except (CoreFailed, LogFormatError) as error:  # It will be no better the next time; each message says so.
            log.error("%s cannot be read: %s", self.stream, error)
        except PersistenceError as error:
            log.warning("%s waits, since its log fails: %s", self.stream, error)
            self._take_up_later(attempt)

    def _distrust_state(self) -> None:
        """Have the log read again, since it may ask for work that nobody has begun."""
        self._stale = True
        self._take_up_later(0)

    def _take_up_later(self, attempt: int) -> None:
        """Have the log read after a pause, whether or not a message comes."""
        if not self._will_take_up:
            self._will_take_up = True
            self._tell_later(RECORD_RETRY_S * 2 ** min(attempt, 5), TakeUp(attempt + 1))

    async def _take_up(self) -> None:
        await self._fold()
        self._published = self.core.version(self.state)
        wanted = self.wanted()
        self._taken_up = True
        if wanted and not self._effects.taken_up and not self._effects.carried_out():
            recovery = self.recovery()
            if recovery is None:
                self._effects.held = {effect.key for effect in wanted if self.waits_for_recovery(effect)}
            elif recovery:
                try:
                    await self.perform(recovery)
                except BaseException:
                    self._taken_up = False
                    raise
        self._effects.taken_up = True
        for message in self._effects.unrecorded.values():
            self._offer_later(message)
        self._reconcile()

    def may_passivate(self) -> bool:
        """Return whether the log says all that this instance knows, and nothing goes on but waits."""
        effects = self._effects
        if not self._taken_up or self._stale or self._grace is not None or self._resting or self._ends:
            return False
        if effects.cancelled or effects.unrecorded:
            return False
        return all(effect.idle for effect in effects.running.values())

    def on_passivate(self) -> None:
        """Leave what the actor waits for as it is: a time that comes, or a message, makes a new instance."""
        self._in_flight.forget(self.stream)

    async def on_stop(self) -> None:
        """Let go of timers, and of effects that run nowhere else."""
        self._let_go()

    def on_failure(self, *_error: object, **_error_by_name: object) -> None:
        """Let go as at a stop: the next instance sets its own timers."""
        self._let_go()

    def _let_go(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        for key, timer in self._effects.timers.items():
            timer.cancel()
            if isinstance(self._effects.running.get(key), WaitUntil):
                del self._effects.running[key]
        self._effects.timers.clear()
        self._effects.ends_of_pauses.clear()
        self._effects.held.clear()
        self._effects.taken_up = False
        self._in_flight.forget(self.stream)

    async def require_durable_state(self) -> None:
        """See to it that `state` is as the log says, whatever failed before.

        Raises:
            PersistenceError: the log cannot be read.
        """
        if not self._taken_up:
            await self._take_up()
        elif self._stale:
            await self.rebuild()

    async def _rebuild_after(self, error: BaseException) -> None:
        self._in_flight.append_failed(error)
        await super()._rebuild_after(error)

    async def on_receive(self, message: Any) -> Any:
        """Handle a command, or the end of an effect."""
        if type(message) is EffectEnded:
            return await self._effect_ended(message)
        if type(message) is OfferResult:
            return await self._offer_again(message.key)
        if type(message) is GraceOver:
            return await self._grace_over(message)
        if type(message) is LookAtClock:
            return await self._look_at_clock(message.key)
        if type(message) is TakeUp:
            self._will_take_up = False
            return await self._try_to_take_up(message.attempt)
        if type(message) is PauseOver:
            return await self._pause_over(message.key)
        command, payloads = message, None
        if type(message) is WithPayloads:
            command, payloads = cast("C", message.command), message.payloads
        performed = await self._commanded(lambda: [*self.preparation(command), command], payloads)
        return performed[-1]

    async def _commanded(
        self,
        given: Callable[[], Sequence[C]],
        payloads: Mapping[PayloadHash, bytes] | None = None,
        called: str = "",
    ) -> list[Performed]:
        """Perform commands that came from outside, and see to the work that is wanted then.

        Args:
            given: returns the commands, the one that was sent last, once the state is durable.
            payloads: see `perform_each`.
            called: see `perform_each`.
        """
        for key in list(self._effects.unrecorded):  # It ended before this message came.
            await self._offer_again(key)
        await self.require_durable_state()
        await self._end_overdue_waits()
        commands = given()
        try:
            performed = await self.perform_each(commands, payloads=payloads, called=called)
        except PersistenceError:
            if not self._stale:
                self._reconcile()  # What the log holds all the same goes on.
            else:
                self._take_up_later(0)
            raise
        if self.resumes(commands[-1]):
            self._effects.held.clear()
        self._reconcile()
        return performed

    def goes_on(self) -> bool:
        """Tell whether there is work in flight, all of it in this process."""
        wanted = self.wanted()
        return bool(wanted) and all(effect.key in self._effects.running for effect in wanted)

    # Effects

    async def _effect_ended(self, message: EffectEnded) -> None:
        key, effects, recorded = message.key, self._effects, False
        if message.command is not None or message.evidence is not None:
            version = self.core.version(self.state)
            try:
                await self.require_durable_state()
                version = self.core.version(self.state)
                recorded = await self._record_result(message, effects.running.get(key) or effects.cancelled.get(key))
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
        self._effects.forget_timer(key)
        self._ends[key] = 0 if recorded else self._ends.get(key, 0) + 1
        self._reconcile()
        self._in_flight.ended()

    async def _offer_again(self, key: str) -> None:
        message = self._effects.unrecorded.get(key)
        if message is not None:
            await self._effect_ended(message)

    def _offer_later(self, message: EffectEnded) -> None:
        key = message.key
        self._effects.forget_timer(key)
        pause_s = RECORD_RETRY_S * 2 ** min(message.attempt - 1, 5)
        self._effects.timers[key] = self._tell_later(pause_s, OfferResult(key))

    async def _end_overdue_waits(self) -> None:
        """Record the times that have come, so that what arrives after them finds them passed."""
        waits = [effect for effect in self._effects.running.values() if isinstance(effect, WaitUntil)]
        for effect in sorted(waits, key=lambda wait: wait.due_at):
            if effect.key in self._effects.running and self._effects.has_come(effect, self.system.clock):
                await self._effect_ended(EffectEnded(key=effect.key, command=self.due(effect)))

    async def _record_result(self, message: EffectEnded, effect: Effect | None) -> bool:
        """Record what an effect brought, or something instead; return whether it was that itself."""
        commands: list[Any] = [command for command in (message.evidence, message.command) if command is not None]
        try:
            # An append whose outcome is unknown may take effect late. That a wait is over may be told twice.
            in_doubt = message.attempt > 0 and not isinstance(effect, WaitUntil)
            await self.perform(commands, payloads=message.payloads, effect=effect, in_doubt=in_doubt)
        except PersistenceError:
            raise
        except CommandRejected as error:
            return await self._record_instead(message, error, effect)
        except Exception as error:  # A result of a shape that nobody foresaw: its effect has ended all the same.
            log.exception("%s: the result of %s cannot be understood", self.address, message.key)
            return await self._record_instead(message, error, effect)
        return True

    async def _record_instead(self, message: EffectEnded, error: Exception, effect: Effect | None) -> bool:
        if message.evidence is not None:  # It goes first: the effect's end matters more.
            return await self._record_result(msgspec.structs.replace(message, evidence=None), effect)
        command: Any = message.command
        instead = self.instead(effect, command, error) if command is not None else None
        level = logging.INFO if instead is None else logging.WARNING
        log.log(level, "%s: what %s brought is refused: %s", self.address, message.key, error)
        if instead is not None:
            await self.perform([instead], effect=effect)
        return False

    def _reconcile(self, rested: str = "") -> None:
        """Cancel work that is not wanted any more, and begin what is wanted, first of all what has had its pause."""
        try:
            wanted = {effect.key: effect for effect in self.wanted()}
        except CoreFailed:
            self._distrust_state()
            raise
        for key in [key for key in self._ends if key not in wanted]:
            del self._ends[key]
            if key in self._resting:
                self._resting.remove(key)
                self._effects.forget_timer(key)
        running, cancelled = self._effects.running, self._effects.cancelled
        self._effects.held.intersection_update(wanted)
        for key in [key for key in running if key not in wanted]:
            effect = running.pop(key)
            if isinstance(effect, Wait):
                self._effects.forget_timer(key)
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
            if key in running or key in self._effects.held or key in self._resting or self._in_flight.draining:
                continue
            if key in self._ends and key != rested and (pause_s := self.pause_s(effect, self._ends[key])) > 0:
                self._resting.add(key)
                self._effects.timers[key] = self._tell_later(pause_s, PauseOver(key))
                continue
            running[key] = effect
            if isinstance(effect, WaitUntil):
                self._set_timer(effect)
            elif not isinstance(effect, Wait):
                self.begin(effect)
        self.settled()

    def _tell_later(self, delay_s: float, message: object) -> Timer:
        return self.system.clock.call_later(delay_s, self._teller(message))

    def _teller(self, message: object) -> Callable[[], None]:
        """Return what tells this actor a message, whichever instance there is then."""
        ref, address = self.actor_ref, self.address

        def tell() -> None:
            try:
                ref.tell(message)
            except ActorStopped as error:  # As after a crash: the log says what is to be done at the next start.
                log.info("%s: a %s came after its end: %s", address, type(message).__name__, error)

        return tell

    def _set_timer(self, effect: WaitUntil) -> None:
        self._effects.set_timer(effect, self.system.clock, self.time, self._teller(LookAtClock(effect.key)))

    async def _look_at_clock(self, key: str) -> None:
        effect = self._effects.running.get(key)
        if not isinstance(effect, WaitUntil) or key in self._effects.unrecorded:
            return
        if self._effects.has_come(effect, self.system.clock):
            await self._effect_ended(EffectEnded(key=key, command=self.due(effect)))
        else:
            self._set_timer(effect)

    async def _pause_over(self, key: str) -> None:
        try:
            await self.require_durable_state()
        except PersistenceError:
            self._effects.timers[key] = self._tell_later(RECORD_RETRY_S, PauseOver(key))
            return
        if key in self._resting:
            self._resting.remove(key)
            self._effects.forget_timer(key)
            self._reconcile(rested=key)

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
