"""The effects that run in this process, beside the actors that asked for them.

Read `refold.events.core.contract` for what an effect is. This outlives an actor's instance. The rule it protects: an
actor that is restarted in the middle of an effect neither begins it a second time nor loses what it brought.

What an event-sourced actor is told beside the commands of its core.

Large content that comes with a command, and what it reminds itself of.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import msgspec

from refold.actors.kernel.clock import Clock, Timer
from refold.actors.kernel.mailbox import Vital
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.reply import TIMER_RESOLUTION_S
from refold.events.core.contract import Effect, WaitUntil
from refold.events.core.errors import LogInUse
from refold.events.core.ids import PayloadHash

log = logging.getLogger("refold.actors")

LOOK_AT_CLOCK_S = 60.0
"""How often a wait looks at the wall clock, which may be set."""


class EffectEnded(Vital, frozen=True, kw_only=True):
    """An effect is over: what it brought, as a command, or nothing if it was cancelled in time."""

    key: str
    command: object | None = None
    evidence: object | None = None
    """A command that tells what there was of it before; recorded in front of `command`, in one transaction."""
    payloads: Mapping[PayloadHash, bytes] = {}
    attempt: int = 0
    """How often its result was refused by the log."""


def tell_end(asker: ActorRef, ended: EffectEnded) -> None:
    """Have the end of an effect taken to the actor that asked for it, as its system does that.

    Raises:
        ActorStopped: nobody at its address takes messages.
    """
    asker.system.courier(asker, ended)


class StreamEffects:
    """The effects of one stream, by key; its actor reads and changes them."""

    __slots__ = ("cancelled", "ends_of_pauses", "held", "running", "taken_up", "timers", "unrecorded")

    def __init__(self) -> None:
        self.taken_up = False
        """Whether the work that an earlier process left was seen to, so that an actor that was let go goes on as it
        was."""
        self.held: set[str] = set()
        """Those that begin only once somebody lets the work of an earlier process go on."""
        self.timers: dict[str, Timer] = {}
        """Of waits and of pauses, by the key of what they are for."""
        self.ends_of_pauses: dict[str, float] = {}
        """When waits that are pauses end at the latest, in seconds of the clock that is never set, by key."""
        self.running: dict[str, Effect] = {}
        """Those that the state wants, results that are not recorded yet included."""
        self.cancelled: dict[str, Effect] = {}
        """Those that were asked to end and have not ended."""
        self.unrecorded: dict[str, EffectEnded] = {}
        """What ended effects brought and the log has refused so far."""

    def set_timer(self, effect: WaitUntil, clock: Clock, time_us: int, due: Callable[[], object]) -> None:
        """Have `due` called when the time of a wait may have come; see `has_come`.

        Args:
            effect: the wait.
            clock: tells the time.
            time_us: of the stream's last event; its time never goes back.
            due: called on the loop.
        """
        key = effect.key
        left_s = max(0, effect.due_at - max(clock.now_us(), time_us)) / 1_000_000
        if effect.pause:
            self.ends_of_pauses.setdefault(key, clock.monotonic_s() + left_s)

        def look() -> None:
            if self.has_come(effect, clock):
                due()
            else:  # A timer counts seconds; but the wall clock may be set, and the machine may sleep.
                self.timers[key] = clock.call_later(min(self._left_s(effect, clock), LOOK_AT_CLOCK_S), look)

        self.timers[key] = clock.call_later(min(self._left_s(effect, clock), LOOK_AT_CLOCK_S), look)

    def has_come(self, effect: WaitUntil, clock: Clock) -> bool:
        """Return whether the time of a wait has come."""
        return self._left_s(effect, clock) < TIMER_RESOLUTION_S

    def _left_s(self, effect: WaitUntil, clock: Clock) -> float:
        left_s = (effect.due_at - clock.now_us()) / 1_000_000
        end_s = self.ends_of_pauses.get(effect.key)
        return left_s if end_s is None else min(left_s, end_s - clock.monotonic_s())

    def forget_timer(self, key: str) -> None:
        """Let go of the timer of a wait or of a pause, if there is one."""
        self.ends_of_pauses.pop(key, None)
        timer = self.timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def carried_out(self) -> bool:
        """Return whether this process works on any of them, waits not counted."""
        return any(not effect.idle for effect in self.running.values())


class EffectsInFlight:
    """Which effects of which streams run in this process."""

    def __init__(self) -> None:
        self.draining = False
        """Set once no further effect is to begin."""
        self._by_stream: dict[str, StreamEffects] = {}
        self._idle: asyncio.Future[None] | None = None
        self._hurried = False
        self._waiting: set[tuple[str, str]] = set()
        """Effects that only wait for effects of another stream, by their own stream and key."""

    def of(self, stream: str) -> StreamEffects:
        """Return the effects of one stream."""
        return self._by_stream.setdefault(stream, StreamEffects())

    def forget(self, stream: str) -> None:
        """Drop a stream that has no effects."""
        effects = self._by_stream.get(stream)
        if effects is None or effects.running or effects.cancelled or effects.unrecorded or effects.held:
            return
        del self._by_stream[stream]

    def count(self) -> int:
        """Return how many effects run, waits not counted."""
        return sum(
            not effect.idle and (stream, effect.key) not in self._waiting
            for stream, effects in self._by_stream.items()
            for effect in effects.running.values()
        )

    @contextmanager
    def only_waiting(self, stream: str, key: str) -> Generator[None, None, None]:
        """Do not count one of the effects that run: it only waits for effects of another stream, which count."""
        self._waiting.add((stream, key))
        self.ended()
        try:
            yield
        finally:
            self._waiting.discard((stream, key))

    def append_failed(self, error: BaseException) -> None:
        """Let no further effect begin once another runtime owns the log: what it asks for then, that one has begun."""
        if isinstance(error, LogInUse) and not self.draining:
            log.error("another runtime has the log, so nothing more begins in this one: %s", error)
            self.draining = True

    async def drain(self, clock: Clock, grace_s: float) -> None:
        """Let no further effect begin, and return when none runs any more, or after `grace_s` seconds."""
        self.draining = True
        if self._hurried or grace_s <= 0 or not self.count():
            return
        self._idle = asyncio.get_running_loop().create_future()
        timer = clock.call_later(grace_s, self._wake)
        try:
            await self._idle
        finally:
            timer.cancel()

    def end(self) -> None:
        """Let go of the timers of actors that were let go themselves."""
        self.draining = True
        for effects in self._by_stream.values():
            for timer in effects.timers.values():
                timer.cancel()
            effects.timers.clear()

    def hurry(self) -> None:
        """Let `drain` return at once: what runs is abandoned."""
        self._hurried = True
        self._wake()

    def ended(self) -> None:
        """Note that effects have ended, their results recorded."""
        if self.draining and not self.count():
            self._wake()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class WithPayloads(msgspec.Struct, frozen=True):
    """A command whose large content goes to the payloads."""

    command: object
    payloads: Mapping[PayloadHash, bytes]


class GraceOver(Vital, frozen=True):
    """The grace period of the effects that were cancelled then is over."""

    round: int


class OfferResult(Vital, frozen=True):
    """Offer the result of an effect to the log again, which refused it."""

    key: str


class LookAtClock(Vital, frozen=True):
    """See whether the time of a wait has come."""

    key: str


class TakeUp(Vital, frozen=True):
    """Try again to read the log, at the beginning of the actor's life or after an append of unknown outcome."""

    attempt: int


class PauseOver(Vital, frozen=True):
    """Work that has ended and is still wanted may begin again."""

    key: str
