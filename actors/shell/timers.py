"""The timers of an event-sourced actor, and what it does when one of them has run out.

Read `refold.actors.shell.event_sourced` first. A timer knows the actor's address and not the instance that set it. What
it brings is a message, which the instance that there is then handles in its turn. The rule: a timer that has run out
says only that the time may have come. Its message may have waited behind others that changed everything, so what is to
be done is decided anew, on a durable state and by the clocks as they are by then.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import msgspec

from refold.actors.kernel.clock import Clock, Timer
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.reply import TIMER_RESOLUTION_S
from refold.actors.shell.effect_port import EffectPort, Shell
from refold.actors.shell.effects import RECORD_RETRY_S, StreamEffects, retry_pause_s
from refold.actors.shell.messages import EffectEnded, Envelope, Later, Wake, teller
from refold.events.core.errors import PersistenceError
from refold.events.core.pure_core import WaitUntil

log = logging.getLogger("refold.actors")

LOOK_AT_CLOCK_S = 60.0
"""How often a wait looks at the wall clock, which may be set."""


class TimedShell(Shell, Protocol):
    """As much of its actor as its timers need to know."""

    async def effect_ended(self, ended: EffectEnded) -> None: ...
    async def try_to_recover(self, attempt: int) -> None: ...
    async def require_durable_state(self) -> None: ...
    def reconcile(self, backed_off: str = "") -> None: ...
    def abandon_cancelled(self) -> None: ...


class Timers:
    """Sets the timers of one stream; those that an earlier instance has set are still there."""

    __slots__ = ("_effects", "_port", "_shell", "_will_recover")  # There is one for each session in memory.

    def __init__(self, shell: TimedShell, port: EffectPort[Any, Any, Any], effects: StreamEffects) -> None:
        self._shell, self._port, self._effects = shell, port, effects
        self._will_recover = False

    @property
    def _clock(self) -> Clock:
        return self._shell.system.clock

    @property
    def _ref(self) -> ActorRef:
        return self._shell.actor_ref

    async def handle(self, message: Later) -> None:
        """Do what a timer has run out for; after a pause, where the log fails."""
        try:
            await getattr(self, message.do)(*message.given)
        except PersistenceError:
            self.tell_again(message)

    def _later(self, delay_s: float, do: Callable[..., Awaitable[None]], *given: Any) -> Timer:
        return self._clock.call_later(delay_s, teller(self._ref, Later(do.__name__, given)))

    # Second attempts at what no asker waits for

    def tell_again(self, message: object) -> None:
        """Have a message handled after a pause, unless an asker gets an error by which to know that it was not.

        It is for a handler that other code has cancelled, or that the log has failed.
        """
        match message:
            case EffectEnded():
                self.offer_again(message)
            case Later() | Wake() | Envelope(insist=True):
                self._clock.call_later(RECORD_RETRY_S, teller(self._ref, message))
            case _:
                pass

    def offer_again(self, ended: EffectEnded) -> None:
        """Keep what an effect brought and the log has refused, and offer it to the log once more."""
        self.offer_later(msgspec.structs.replace(ended, attempt=ended.attempt + 1))

    def offer_later(self, ended: EffectEnded) -> None:
        """Have what an effect brought, and an earlier instance could not record, offered to the log."""
        self._effects.unrecorded[ended.key] = ended
        offer = teller(self._ref, ended)
        self._effects.set_timer(ended.key, self._clock.call_later(retry_pause_s(ended.attempt - 1), offer))

    async def insist(self, envelope: Envelope, attempt: int = 0) -> None:
        """Have a message handled, again and again while the log fails."""
        try:
            await self._shell.receive(envelope)
        except PersistenceError as error:
            log.warning("%s: a %s is not recorded yet: %s", self._ref.address, type(envelope.command).__name__, error)
            self._later(retry_pause_s(attempt), self.insist, envelope, attempt + 1)

    def recover_later(self, attempt: int) -> None:
        """Have the log read again, once for all who want that meanwhile."""
        if not self._will_recover:
            self._will_recover = True
            self._later(retry_pause_s(attempt), self._recover, attempt + 1)

    async def _recover(self, attempt: int) -> None:
        self._will_recover = False
        await self._shell.try_to_recover(attempt)

    # Waits

    def set_for(self, wait: WaitUntil, stream_time: int) -> None:
        """Have the shell told when the time of a wait has come; the stream's time never goes back."""
        # There are two clocks. `due_at` is a date, and where the wall clock is set, it moves nearer or away. A pause
        # is a length of time: it ends on the clock that is never set as well. That end is noted when the pause begins,
        # beside the effects, where it outlives an instance that is let go.
        if wait.pause:
            left_s = max(0, wait.due_at - max(self._clock.now_us(), stream_time)) / 1_000_000
            self._effects.ends_of_pauses[wait.key] = self._clock.monotonic_s() + left_s
        if wait.key not in self._effects.unrecorded:  # Else its end has come, and is offered to the log later.
            self._look_later(wait)

    def _look_later(self, wait: WaitUntil) -> None:
        # Without `self` in the functions below: an actor that is let go while it waits would stay in memory, with its
        # state.
        effects, clock = self._effects, self._clock
        may_have_come = teller(self._ref, Later(self._look_at_clock.__name__, (wait.key,)))

        def look() -> None:
            if _left_s(wait, effects, clock) < TIMER_RESOLUTION_S:
                may_have_come()
            else:  # A timer counts seconds; but the wall clock may be set, and the machine may sleep.
                set_timer()

        def set_timer() -> None:
            delay_s = min(_left_s(wait, effects, clock), LOOK_AT_CLOCK_S)
            effects.set_timer(wait.key, clock.call_later(delay_s, look))

        set_timer()

    async def _look_at_clock(self, key: str) -> None:
        await self._shell.require_durable_state()
        wait = self._effects.running.get(key)
        if isinstance(wait, WaitUntil) and key not in self._effects.unrecorded:
            if self._has_come(wait):
                await self.time_has_come(wait)
            else:
                self._look_later(wait)

    async def time_has_come(self, wait: WaitUntil) -> None:
        """Have it recorded that the time of a wait has come."""
        command = self._port.due(wait)
        if command is None and self._port.pauses is None:  # It cannot be told now what is due: it is asked again.
            self._effects.set_timer(wait.key, self._later(LOOK_AT_CLOCK_S, self._look_at_clock, wait.key))
            return
        await self._shell.effect_ended(EffectEnded(key=wait.key, command=command))

    def overdue(self) -> Iterator[WaitUntil]:
        """Yield the waits whose time has come, earliest first, as far as they run when it is their turn."""
        waits = [effect for effect in self._effects.running.values() if isinstance(effect, WaitUntil)]
        for wait in sorted(waits, key=lambda wait: wait.due_at):
            if wait.key in self._effects.running and self._has_come(wait):
                yield wait

    def _has_come(self, wait: WaitUntil) -> bool:
        return _left_s(wait, self._effects, self._clock) < TIMER_RESOLUTION_S

    # Pauses before work begins again, and grace periods

    def back_off(self, key: str) -> None:
        """Have work that has ended, and is wanted still, begin again after a pause."""
        assert self._port.pauses is not None
        self._effects.backing_off |= {key}
        pause_s = self._port.pauses.pause_s(self._effects.ends[key] + 1)
        self._effects.set_timer(key, self._later(pause_s, self._end_pause, key))

    async def _end_pause(self, key: str) -> None:
        await self._shell.require_durable_state()
        if key in self._effects.backing_off:
            self._effects.backing_off -= {key}
            self._effects.forget_timer(key)
            self._shell.reconcile(backed_off=key)

    def begin_grace(self) -> None:
        """Let work that was cancelled take only so long to end, unless the time runs already."""
        if self._effects.grace is None:
            number = self._effects.grace_number
            self._effects.grace = self._later(self._port.cancel_grace_s, self._end_grace, number)

    async def _end_grace(self, number: int) -> None:
        if number != self._effects.grace_number:  # The work it was for has ended, and a later period may run.
            return
        await self._shell.require_durable_state()
        self._shell.abandon_cancelled()


def _left_s(wait: WaitUntil, effects: StreamEffects, clock: Clock) -> float:
    left_s = (wait.due_at - clock.now_us()) / 1_000_000
    end_s = effects.ends_of_pauses.get(wait.key)
    return left_s if end_s is None else min(left_s, end_s - clock.monotonic_s())
