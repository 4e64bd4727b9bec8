"""The one contract of an event-sourced actor: a state, commands, events, and a class of four pure functions.

    admit(state, command)  -> stimulus event, or a refusal       may this happen now?
    evolve(state, event)   -> state                              what is true after it?
    react(state, event)    -> consequence events                 what do we decide from it?
    pending(state)         -> effects that should be in flight   what work must be going on now?

`plan` takes a command through the first three and gives the batch to append; `replan` does the same from a recorded
stimulus, which is all that `core` replay needs. The session, tools, the runtime, memories and a user's own actors are
all written in this way:

    class Deposited(Event, frozen=True, kw_only=True, tag="account.deposited.v1"):
        amount: int

    class Account(State):
        balance: int = 0

    class Bank(PureCore[Account, Deposit | Withdraw, Deposited | Withdrawn]):
        def admit(self, state, command): ...
        def evolve(self, state, event): ...

The rule: a core is pure. It reads no clock (an event's time is `event.at`), no randomness and no world; identifiers
derive from `state.version`; and it changes nothing but the state that `evolve` is given. So the same state and the same
stimulus always give the same batch. `refold.events.core.checked_core` holds a user's core to that rule; the session's
runs without those checks. Times are integers, microseconds since the epoch, UTC; `SECOND_US` is a second.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import force_setattr

from refold.events.core.cleaning import error_words
from refold.events.core.codec import Upcaster
from refold.events.core.errors import ConfigError, CoreFailed, LogFormatError
from refold.events.core.event import Event

CONSEQUENCES_MAX = 100_000
"""Most events of one batch; a core that decides more is taken to be circling."""


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work outside that a state asks for. Two effects with one key are the same work."""

    idle: ClassVar[bool] = False
    """Whether it only waits, so that nobody need wait for its end."""

    key: str
    """Names the work in the log and in the process; without spaces."""
    causation: int = 0
    """Version of the event that asked for it; 0 = that of the stimulus after which it was first wanted."""
    correlation: int = 0
    """Version of the input that it goes back to; 0 = that of the same stimulus."""


class Wait(Effect, frozen=True, kw_only=True):
    """Wait for a command from outside; nothing is begun for it and nothing ended."""

    idle: ClassVar[bool] = True


class WaitUntil(Wait, frozen=True, kw_only=True):
    """Report when a time has come; the shell does this by itself.

    `WaitUntil(key="reminder", due_at=event.at + 5 * SECOND_US)` comes five seconds after that event.
    """

    due_at: int
    """Microseconds since the epoch, UTC: the unit of `Event.at`."""
    pause: bool = False
    """A length of time counts, not the calendar: the wait also ends when so much time has passed on a wall clock that
    was set back."""


DIGEST_MARK = "="
"""Begins the digest that stands beside the keys of pending effects in the log; a key never begins so."""

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=lambda value: type(value).__name__).encode


def noted(effects: Sequence[Effect], before: Iterable[str]) -> tuple[str, ...]:
    """Return what the log notes of pending effects: their keys, then a digest of what the new ones are.

    So that a replay compares the effects and not only their keys. One that can be written in no JSON has no digest.
    """
    if not effects:
        return ()
    keys, known = tuple([effect.key for effect in effects]), frozenset(before)
    new = [(type(effect).__name__, effect) for effect in effects if effect.key not in known]
    if not new:
        return keys
    try:
        return (*keys, DIGEST_MARK + hashlib.sha256(_encode(new)).hexdigest()[:8])
    except (TypeError, ValueError, RecursionError):
        return keys


def keys_of(pending: Sequence[str]) -> tuple[str, ...]:
    return tuple([key for key in pending if not key.startswith(DIGEST_MARK)])


class Recorded(msgspec.Struct, frozen=True):
    """What `admit` answers where the command has been recorded before: nothing more is to be done."""

    version: int
    """Of the stimulus that it became then; 0 where there was nothing to do and nothing was recorded."""


class RecordedKey(msgspec.Struct, gc=False):
    """A key under which a command was recorded."""

    version: int
    """Of the event that the command became."""
    digest: str
    """Of the command, so that another one under the same key is refused."""


class Versioned(Protocol):
    """Any state: it knows how many events it has evolved through."""

    version: int


class State(msgspec.Struct, kw_only=True):
    """What an actor's events add up to; subclass it with fields that all have defaults.

    `evolve` may change it, or replace it by `msgspec.structs.replace(state, ...)`.
    """

    version: int = 0
    """Of the last event; counted by Refold. Inside `evolve` and `react` it is that of the event they are given."""
    keys: dict[str, RecordedKey] = {}
    """The keys of keyed commands that were recorded; kept by Refold."""


class KeyedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that may be sent twice and takes effect once: base of a user's own commands, which are frozen too.

    The same key gets the first outcome, also after a restart; the same key on another command is refused. What it
    becomes must be a `KeyedEvent`.
    """

    beside_content: ClassVar[frozenset[str]] = frozenset()
    """Fields that do not count where two commands with one key are compared."""

    key: str | None = None
    """Chosen by the sender; None = this command is sent once."""


class CommandKey(msgspec.Struct, frozen=True):
    """The key of the command that an event came from."""

    key: str
    digest: str
    """Of the command."""


class KeyedEvent(Event, frozen=True, kw_only=True):
    """An event that a `KeyedCommand` becomes: base of a user's own."""

    command: CommandKey | None = None
    """Set by Refold."""


S = TypeVar("S", bound=Versioned)
C = TypeVar("C")
E = TypeVar("E", bound=Event)


class PureCore(ABC, Generic[S, C, E]):
    """One kind of actor's pure functions; subclass it as `PureCore[StateType, CommandTypes, EventTypes]`.

    Commands are frozen Structs; events derive from `Event`, each with a tag of its own, and are never changed once
    they are in a log: add fields with defaults, or a new tag and an upcaster.
    """

    upcasters: ClassVar[Mapping[str, tuple[str, Upcaster]]] = {}
    """From an event's tag of the past to the next tag, and the function that makes the step."""
    fold_version: ClassVar[int] = 0
    """Names what `evolve` does, so that a snapshot of a state that another one made is ignored: raise it whenever the
    same events would add up to another state. 0, the default: no snapshots are kept, and each opening folds all."""

    def initial(self) -> S:
        """Return the state before the first event: the defaults of its class."""
        state: S = types_of(type(self))[0]()
        return state

    def version(self, state: S) -> int:
        """Return how many events `state` has evolved through."""
        return state.version

    @abstractmethod
    def admit(self, state: S, command: C) -> E | Recorded:
        """Return the event that `command` becomes, or `Recorded` where there is nothing to do.

        It must not change `state`, also where it refuses: the log would not know of it. What it decides is recorded as
        that event, and the command is not, so replay never asks it again.

        Raises:
            CommandRejected: it may not happen now; nothing is recorded, and the sender is told.
        """

    @abstractmethod
    def evolve(self, state: S, event: E) -> S:
        """Return what is true after `event`; it may change `state`, which its caller owns. It never refuses."""

    def react(self, state: S, event: E) -> Sequence[E]:
        """Return what follows from `event`, which `state` already includes, oldest first; `state` is not changed."""
        return ()

    def pending(self, state: S) -> Sequence[Effect]:
        """Return the work that should be going on, in a fixed order; what is no longer returned is cancelled.

        It must not change `state`. A `WaitUntil` is due at microseconds since the epoch, UTC, such as
        `state.asked_at + 5 * SECOND_US` where `evolve` noted `state.asked_at = event.at`.
        """
        return ()

    def due(self, effect: WaitUntil) -> C:
        """Return the command that says that the time of `effect` has come."""
        raise NotImplementedError(f"{type(self).__name__} waits for {effect.key} and has no `due` to say what it means")

    def failed(self, effect: Effect, error: Exception) -> C | None:
        """Return the command that says that the work of `effect` raised `error`, or brought what was refused.

        None, the default: there is nothing to record; the failure is reported, and work that `pending` still
        returns is done again after a growing pause.
        """
        return None


@lru_cache(maxsize=256)
def types_of(core: type[PureCore[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Return the three types that a core's class was made with."""
    for cls in core.__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            arguments = get_args(base)
            if get_origin(base) is PureCore and len(arguments) == 3 and not any(map(_is_open, arguments)):
                return arguments[0], arguments[1], arguments[2]
    raise ConfigError(
        f"{core.__name__} must say its types: class {core.__name__}(PureCore[StateType, CommandTypes, EventTypes])"
    )


def _is_open(argument: object) -> bool:
    return isinstance(argument, TypeVar | str) or not (hasattr(argument, "__mro__") or get_args(argument))


class Plan(msgspec.Struct, Generic[S, E], frozen=True):
    """A batch that is decided and not yet appended."""

    state: S
    """After the batch."""
    events: tuple[E, ...]
    """Stimulus first, each stamped with the batch's time."""


def plan(
    core: PureCore[S, C, E], state: S, command: C, at: int, recorded: Callable[[E], E] | None = None
) -> Plan[S, E] | Recorded:
    """Decide what `command` causes in `state`, which is used up: go on from the returned one, or fold anew.

    Args:
        core: the four functions.
        state: owned by the caller.
        command: what arrived.
        at: microseconds since the epoch, UTC; not before the state's last event.
        recorded: returns an event as the log is to have it, so that the state evolves through what is recorded; in the
            order of the batch. None = it is recorded unchanged.

    Raises:
        CommandRejected: nothing is to be recorded, and `state` is unchanged.
        CoreFailed: a function of a user's core failed, or the consequences do not end.
    """
    stimulus = core.admit(state, command)
    if isinstance(stimulus, Recorded):
        return stimulus
    return replan(core, state, stimulus, at, recorded)


def replan(
    core: PureCore[S, C, E], state: S, stimulus: E, at: int, recorded: Callable[[E], E] | None = None
) -> Plan[S, E]:
    """Decide what follows from `stimulus`: each event is followed by what it causes before its next sibling is."""
    # A stack, so that the batch is in depth-first order: `react` never sees a state that lacks the consequences of an
    # older sibling, and a decision is never taken from a state that is out of date. With a queue it would be: a person
    # allows a call and all like it, so two decisions follow. Each is asked what comes next before what the other one
    # causes is true, and both answer that the same call starts.
    # Live and in replay alike, the batch follows from the stimulus alone; that is why the log records commands only as
    # what they became.
    events: list[E] = []
    waiting: list[E] = [stimulus]
    evolve, react = core.evolve, core.react
    while waiting:
        event = waiting.pop() if recorded is None else recorded(waiting.pop())
        force_setattr(event, "at", at)  # Ours alone until the batch is decided.
        state = evolve(state, event)
        events.append(event)
        if consequences := react(state, event):
            waiting.extend(reversed(consequences))
        if len(events) > CONSEQUENCES_MAX:
            name = getattr(core, "name", type(core).__name__)
            raise CoreFailed(
                f"{name}.react is circling: a {type(stimulus).__name__} has more than {CONSEQUENCES_MAX:,} consequences"
            )
    return Plan(state, tuple(events))


def evolve_all(core: PureCore[S, C, E], events: Iterable[E], state: S | None = None) -> S:
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
        said = str(error) if plain else error_words(error)
        raise LogFormatError(
            f"version {version} contradicts the events before it: {said}; `refold check` says where"
        ) from error
    return current


def content_digest(content: object) -> str:
    """Return the digest under which a keyed command's content is remembered."""
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:32]
