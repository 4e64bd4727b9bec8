"""The four pure functions of an event-sourced actor, and the plan that runs them.

    admit(state, command)  -> stimulus event, or a refusal       may this happen now?
    evolve(state, event)   -> state                              what is true after it?
    react(state, event)    -> consequence events                 what do we decide from it?
    pending(state)         -> effects that should be in flight   what work must be going on now?

`plan` takes a command through the first three and gives the batch to append; `replan` does the same from a
recorded stimulus, which is all that `core` replay needs. The rule: nothing here reads a clock, randomness or
the world, so the same state and the same stimulus always give the same batch.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from refold.events.core.errors import CoreFailed, LogFormatError
from refold.events.core.event import Event

S = TypeVar("S")
C = TypeVar("C", contravariant=True)
E = TypeVar("E", bound=Event)

CONSEQUENCES_MAX = 100_000
"""Most events of one batch; beyond it `react` is taken to be circling."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Work outside that a state asks for. Two effects with one key are the same work."""

    idle: ClassVar[bool] = False
    """Whether it waits and works on nothing, so that nobody need wait for its end."""

    key: str
    """Names the work in the log and in the process; without spaces."""
    causation: int = 0
    """Version of the event that asked for it; 0 = that of the stimulus after which it was first wanted."""
    correlation: int = 0
    """Version of the input that it goes back to; 0 = that of the same stimulus."""


class Wait(Effect, frozen=True, kw_only=True):
    """Wait for a command that somebody may send; nobody has to begin or to end this."""

    idle: ClassVar[bool] = True


class WaitUntil(Wait, frozen=True, kw_only=True):
    """Report when a time has come; the shell does this by itself.

    `WaitUntil(key="reminder", due_at=event.at + 5 * SECOND_US)` comes five seconds after that event.
    """

    due_at: int
    """Microseconds since the epoch, UTC: the unit of `Event.at`."""
    pause: bool = False
    """It is a length of time that counts, and not what the calendar says: where the wall clock is set back, the wait
    ends all the same when so much time has passed."""


class Recorded(msgspec.Struct, frozen=True):
    """What `admit` answers where the command has been recorded before: nothing more is to be done."""

    version: int
    """Of the stimulus that it became then; 0 where there was nothing to do and nothing was recorded."""


class Core(Protocol[S, C, E]):
    """One kind of actor's four functions, and its first state."""

    def initial(self) -> S:
        """Return the state before the first event."""
        ...

    def version(self, state: S) -> int:
        """Return how many events `state` has evolved through."""
        ...

    def admit(self, state: S, command: C) -> E | Recorded:
        """Return the stimulus that `command` becomes, or that it has been recorded before; `state` stays as it is.

        Raises:
            CommandRejected: it may not happen now; nothing is to be recorded.
        """
        ...

    def evolve(self, state: S, event: E) -> S:
        """Return what is true after `event`.

        It may change `state`, which its caller owns, and never fails on an event that the core itself decided.
        """
        ...

    def react(self, state: S, event: E) -> Sequence[E]:
        """Return what follows from `event`, which `state` already includes, oldest first."""
        ...

    def pending(self, state: S) -> Sequence[Effect]:
        """Return the work that should be in flight, in a fixed order."""
        ...


class Plan(msgspec.Struct, Generic[S, E], frozen=True):
    """A batch that is decided and not yet appended."""

    state: S
    """After the batch."""
    events: tuple[E, ...]
    """Stimulus first, each stamped with the batch's time."""


def plan(core: Core[S, C, E], state: S, command: C, at: int) -> Plan[S, E] | Recorded:
    """Decide what `command` causes in `state`, which is used up: whatever comes of the batch, use the returned one.

    Args:
        core: the four functions.
        state: owned by the caller.
        command: what arrived.
        at: microseconds since the epoch, UTC; not before the state's last event.

    Raises:
        CommandRejected: nothing is to be recorded, and `state` is unchanged.
        CoreFailed: a function of a user's core failed, or the consequences do not end.
    """
    stimulus = core.admit(state, command)
    if isinstance(stimulus, Recorded):
        return stimulus
    return replan(core, state, stimulus, at)


def replan(core: Core[S, C, E], state: S, stimulus: E, at: int) -> Plan[S, E]:
    """Decide what follows from `stimulus`: each event is followed by what it causes before its next sibling is.

    Raises:
        CoreFailed: the consequences do not end, or a function of a user's core failed.
    """
    # Depth first: a consequence and all that follows from it come before its next sibling, so that a batch shows each
    # decision next to what it led to. The order is recorded and replay compares it, so it must never change.
    events: list[E] = []
    waiting: list[E] = [stimulus]
    while waiting:
        event = waiting.pop()
        msgspec.structs.force_setattr(event, "at", at)  # Ours alone until the batch is decided.
        state = core.evolve(state, event)
        events.append(event)
        consequences = core.react(state, event)
        if consequences:
            waiting.extend(reversed(consequences))
        if len(events) > CONSEQUENCES_MAX:
            name = getattr(core, "name", type(core).__name__)
            raise CoreFailed(
                f"{name}.react is circling: a {type(stimulus).__name__} has more than {CONSEQUENCES_MAX:,} consequences"
            )
    return Plan(state, tuple(events))


def evolve_all(core: Core[S, C, E], events: Iterable[E], state: S | None = None) -> S:
    """Return the state after `events`, from the beginning or from `state`, which is used up.

    Raises:
        LogFormatError: an event contradicts those before it, so that no core can have decided it.
    """
    current = core.initial() if state is None else state
    evolve = core.evolve
    version = before = core.version(current)
    try:
        for version, event in enumerate(events, before + 1):  # noqa: B007 - for the error
            current = evolve(current, event)
    except (AssertionError, CoreFailed, LookupError, AttributeError, TypeError, ValueError) as error:
        plain = isinstance(error, AssertionError | CoreFailed)
        said = str(error) if plain else f"{type(error).__name__}: {error}"
        raise LogFormatError(
            f"version {version} contradicts the events before it: {said}; `refold check` says where"
        ) from error
    return current
