"""Letting idle actors go, so that what lies in memory is what is busy and not what exists.

Read `refold.actors.actor_cell` first. An actor that `may_passivate` is stopped when it has been idle for a while, or
when more actors live than may and it has been idle longest; its address stays, and the next message there makes a new
instance. The rules protected here: only an actor at rest is let go, in the order in which they came to rest; and while
nothing is idle there is no timer.
"""

from typing import TYPE_CHECKING

from refold.actors.clock import Clock, Timer
from refold.actors.reply import TIMER_RESOLUTION_S

if TYPE_CHECKING:
    from refold.actors.actor_cell import ActorCell


class Passivation:
    """The idle actors of one system that may be let go, longest idle first.

    Args:
        clock: what idle time is measured on.
        after_s: seconds at rest after which an actor is let go; None = never for that reason.
        live_max: most actors that live before idle ones are let go; None = any number.
    """

    def __init__(self, clock: Clock, after_s: float | None, live_max: int | None) -> None:
        self._clock = clock
        self._after_s = after_s
        self._live_max = live_max
        self._idle: dict[ActorCell, float] = {}  # when each came to rest, on the monotonic clock
        self._timer: Timer | None = None
        self.going = 0
        """Actors that are being let go now."""
        self.count = 0
        """Actors that were let go so far."""

    def rested(self, cell: "ActorCell", live: int) -> None:
        """Note that an actor that may be let go has nothing to do, `live` actors living now."""
        self._idle[cell] = self._clock.monotonic_s() if self._after_s is not None else 0.0
        self.make_room(live)
        if self._timer is None and self._after_s is not None and self._idle:
            self._timer = self._clock.call_later(self._after_s, self._look)

    def woken(self, cell: "ActorCell") -> None:
        """Note that an actor, at rest or not, has something to do, or is over."""
        self._idle.pop(cell, None)

    def make_room(self, live: int) -> None:
        """Let actors go, longest idle first, until no more live than may, or none is idle."""
        while self._live_max is not None and live - self.going > self._live_max and self._idle:
            self._let_go(next(iter(self._idle)))

    def end(self) -> None:
        """Let nobody go any more."""
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _let_go(self, cell: "ActorCell") -> None:
        del self._idle[cell]
        self.going += 1
        self.count += 1
        cell.passivate()

    def _look(self) -> None:
        """Let those go whose time is over, and look again when that of the next one is."""
        self._timer = None
        if self._after_s is None:
            return
        now_s = self._clock.monotonic_s()
        while self._idle:
            cell, rested_s = next(iter(self._idle.items()))
            remaining_s = rested_s + self._after_s - now_s
            if remaining_s > TIMER_RESOLUTION_S:
                self._timer = self._clock.call_later(remaining_s, self._look)
                return
            self._let_go(cell)
