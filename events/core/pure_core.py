"""What a user writes for an event-sourced actor of their own: a state, commands, events, and a class of pure functions.

    class Deposited(Event, frozen=True, kw_only=True, tag="account.deposited.v1"):
        amount: int

    class Account(State):
        balance: int = 0

    class Bank(PureCore[Account, Deposit | Withdraw, Deposited | Withdrawn]):
        def admit(self, state, command): ...
        def evolve(self, state, event): ...

Read `refold.events.core.contract` for the four functions, and `refold.events.core.checked_core` for what is done around
them. The rule: a core is pure. It reads no clock (an event's time is `event.at`), no randomness and no world;
identifiers derive from `state.version`; and it changes nothing but the state that `evolve` is given. Times are
integers, microseconds since the epoch, UTC; `SECOND_US` is a second.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from refold.events.core.codec import Upcaster
from refold.events.core.contract import Effect, Recorded, WaitUntil
from refold.events.core.event import Event


class RecordedKey(msgspec.Struct, frozen=True, gc=False):
    """A key under which a command was recorded."""

    version: int
    """Of the event that the command became."""
    digest: str
    """Of the command, so that another one under the same key is refused."""


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


S = TypeVar("S", bound=State)
C = TypeVar("C")
E = TypeVar("E", bound=Event)


class PureCore(ABC, Generic[S, C, E]):
    """One kind of actor's pure functions; subclass it as `PureCore[StateType, CommandTypes, EventTypes]`.

    Commands are frozen Structs; events derive from `Event`, each with a tag of its own, and are never changed once
    they are in a log: add fields with defaults, or a new tag and an upcaster.
    """

    upcasters: ClassVar[Mapping[str, tuple[str, Upcaster]]] = {}
    """From an event's tag of the past to the next tag, and the function that makes the step."""

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
        """Return what is true after `event`; it may change `state` and return it. It never refuses."""

    def react(self, state: S, event: E) -> Sequence[E]:
        """Return what follows from `event`, which `state` already includes, oldest first; `state` stays as it is."""
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
