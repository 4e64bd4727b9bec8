"""The effects that run in this process beside event-sourced actors.

Read `refold.events.core.pure_core` for what an effect is. `EffectsInFlight` outlives an actor's instance. The rule it
protects: an actor that is restarted in the middle of an effect neither begins it a second time nor loses what it
brought.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import msgspec

from refold.actors.kernel.clock import Clock, Timer
from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.ref import ActorRef, System
from refold.actors.shell.messages import Along, Cause, EffectEnded
from refold.events.core.errors import LogFormatError, LogInUse, PersistenceError
from refold.events.core.pure_core import Effect, Wait, WaitUntil

log = logging.getLogger("refold.actors")

R = TypeVar("R")

CANCEL_GRACE_S = 5.0
"""How long cancelled work may take to end before it is abandoned."""

RECORD_RETRY_S = 0.5
"""Pause before what the log refused is offered to it again; it doubles up to 32 times this."""


def retry_pause_s(attempt: int) -> float:
    return RECORD_RETRY_S * (1 << min(attempt, 5))


async def once_log_allows(
    attempt: Callable[[], Awaitable[R]],
    clock: Clock,
    what: str,
    errors: tuple[type[Exception], ...] = (PersistenceError,),
) -> R:
    """Return what `attempt` does, which is made again while the log fails, but not where the log is damaged."""
    failures = 0
    while True:
        try:
            return await attempt()
        except LogFormatError:
            raise
        except errors as error:
            log.warning("%s waits: %s", what, error)
            await clock.sleep(retry_pause_s(failures))
            failures += 1


class CallUnderWay:
    """The call of a session that the code here carries out; what its breakers find is recorded with its end."""

    def __init__(self, system: System, cause: Cause | None) -> None:
        """Begin one that an event asked for, which is given with what it goes back to; None = it is not known."""
        self.system = system
        """Where the session lives; what lives in another one has another log."""
        self.cause = cause
        self.along: list[Along] = []
        self.over = False
        """Whether its end was told, so that what is found from now on is recorded by itself."""

    def end(self) -> tuple[Along, ...]:
        """Return what is to be recorded with the end of the call, which is about to be told."""
        self.over = True
        along, self.along = self.along, []
        return tuple(along)


call_under_way: ContextVar[CallUnderWay | None] = ContextVar("call_under_way", default=None)
"""Set while a provider or a tool is called for a session, and in what they begin."""


def tell_end(asker: ActorRef, ended: EffectEnded) -> None:
    """Have the end of an effect taken to the actor that asked for it, as its system does that."""
    try:
        asker.system.courier(asker, ended)
    except ActorStopped as error:  # As after a crash: the log says what is to be done at the next start.
        log.info("%s: the end of %s came too late: %s", asker.address, ended.key, error)


class StreamEffects(msgspec.Struct, eq=False):
    """The effects of one stream, by key: its actor changes them, and each instance finds what the last one left."""

    recovered: bool = False
    """Whether the work that an earlier process left was seen to, so that an actor that was let go goes on."""
    blocked: frozenset[str] = frozenset()
    """Those that begin only once a command lets the work of an earlier process go on."""
    running: dict[str, Effect] = {}
    """Those that the state wants, results that are not recorded yet included."""
    cancelled: dict[str, Effect] = {}
    """Those that were asked to end and have not ended."""
    unrecorded: dict[str, EffectEnded] = {}
    """What ended effects brought and the log has refused so far."""
    ends: dict[str, int] = {}
    """How often in a row work that is still wanted has ended without a recorded result."""
    backing_off: frozenset[str] = frozenset()
    """Work that has ended, is still wanted, and begins again after a pause."""
    timers: dict[str, Timer] = {}
    """Of waits, of pauses and of results that are offered again, by the key of what they are for."""
    ends_of_pauses: dict[str, float] = {}
    """When waits that are pauses end at the latest, in seconds of the clock that is never set, by key."""
    published_to: int | None = None
    """Version up to which events are published, where the log may have more of which nobody knows; None = up to its
    end."""
    grace: Timer | None = None
    """Of the grace period of `cancelled`."""
    grace_number: int = 0
    """Of the grace period that runs or comes next; a timer of an earlier one means nothing any more."""

    def has(self, key: str) -> bool:
        return key in self.running or key in self.blocked or key in self.backing_off

    def ended(self, key: str, *, recorded: bool) -> None:
        self.unrecorded.pop(key, None)
        self.running.pop(key, None)
        self.cancelled.pop(key, None)
        self.forget_timer(key)
        self.ends[key] = 0 if recorded else self.ends.get(key, 0) + 1

    def no_longer_wanted(self, wanted: Collection[str]) -> list[Effect]:
        """Forget what is wanted no more, and return the work among it that runs, which counts as cancelled now."""
        for key in [key for key in self.ends if key not in wanted]:
            del self.ends[key]
            if key in self.backing_off:
                self.backing_off -= {key}
                self.forget_timer(key)
        if self.blocked:
            self.blocked = self.blocked.intersection(wanted)
        stopping: list[Effect] = []
        for key in [key for key in self.running if key not in wanted]:
            effect = self.running.pop(key)
            if isinstance(effect, Wait):
                self.forget_timer(key)
                self.unrecorded.pop(key, None)  # That its time has come is in the log, or means nothing any more.
            else:
                self.cancelled[key] = effect
                stopping.append(effect)
        return stopping

    def end_grace(self) -> None:
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None
            self.grace_number += 1

    def at_rest(self) -> bool:
        """Return whether a new instance would know all that this one does, and nothing goes on but waits."""
        if self.grace is not None or self.backing_off or self.ends or self.cancelled or self.unrecorded:
            return False
        return not self.carried_out()

    def let_go(self) -> None:
        """Let go of what belongs to an instance that is over: the next one sets its own timers and recovers."""
        self.end_grace()
        for key, timer in self.timers.items():
            timer.cancel()
            if isinstance(self.running.get(key), WaitUntil):
                del self.running[key]
        self.blocked = self.backing_off = frozenset()
        for own in (self.timers, self.ends_of_pauses, self.ends):
            own.clear()
        self.recovered = False

    def set_timer(self, key: str, timer: Timer) -> None:
        """Keep the timer of a key, in place of one that it has."""
        before = self.timers.get(key)
        if before is not None:
            before.cancel()
        self.timers[key] = timer

    def forget_timer(self, key: str) -> None:
        self.ends_of_pauses.pop(key, None)
        timer = self.timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def carried_out(self) -> bool:
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
        return self._by_stream.setdefault(stream, StreamEffects())

    def forget(self, stream: str) -> None:
        effects = self._by_stream.get(stream)
        if effects is None or effects.published_to is not None:
            return
        if effects.running or effects.cancelled or effects.unrecorded or effects.blocked:
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
        if self.draining and not self.count():
            self._wake()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
