"""What a kind of actor plugs into the event-sourced shell, and what it may use of it.

Read `refold.actors.shell.event_sourced` for when each method is called. The rules: nothing here waits for work, whose
end comes back as one `EffectEnded`; and what is decided from a result is the core's affair, never the port's.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import msgspec

from refold.actors.kernel.ref import ActorRef, System
from refold.actors.kernel.supervision import RestartPolicy
from refold.actors.shell.effects import CANCEL_GRACE_S, StreamEffects
from refold.actors.shell.messages import Envelope, Performed
from refold.events.core.codec import RecordedEvent
from refold.events.core.event import Event
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import Effect, Versioned, WaitUntil
from refold.events.core.records import StoredEvent

S = TypeVar("S", bound=Versioned)
C = TypeVar("C")
E = TypeVar("E", bound=Event)


class Shell(Protocol):
    """As much of its actor as a port needs to know."""

    @property
    def address(self) -> str: ...
    @property
    def actor_ref(self) -> ActorRef: ...
    @property
    def system(self) -> System: ...
    async def receive(self, envelope: Envelope) -> Any:
        """Handle an envelope within the handling of another one, and return the reply."""
        ...


class Recovery(msgspec.Struct, frozen=True):
    """How work goes on that an earlier process left."""

    commands: Sequence[Any] = ()
    """Recorded first."""
    blocked: frozenset[str] = frozenset()
    """Keys of the work that waits for a command of `EffectPort.resumed_by`; all other begins at once."""


class EffectPort(Generic[S, C, E]):
    """Begins and ends the work outside that a core asks for, and says what surrounds its commands.

    One serves one instance of an actor. The defaults are those of a core that asks for no work.
    """

    # Set before anything is called; a port changes nothing of them.
    actor: Shell
    stream: StreamName
    """The actor's, which is its address."""
    state: S
    """Folded from the log; renewed with each batch."""
    effects: StreamEffects
    """What is known of the actor's work."""

    resumed_by: ClassVar[tuple[type, ...]] = ()
    """Commands after which blocked work begins; see `Recovery`."""
    reports: ClassVar[tuple[type[Event], ...]] = ()
    """Events that an effect causes before its end."""
    pauses: ClassVar[RestartPolicy | None] = None
    """How long work rests that has ended and is still wanted; None = it begins again at once."""
    cancel_grace_s: float = CANCEL_GRACE_S
    """How long cancelled work may take to end before it is abandoned."""
    lasting: bool = False
    """Whether the actor stays in memory however long it is idle."""

    # Work

    def begin(self, effect: Any) -> bool:
        """Begin an effect, whose end must come back as one `EffectEnded`; False = nobody here does such work."""
        raise NotImplementedError(f"{self.actor.address} asks for {effect.key} and does not say how to begin it")

    def cancel(self, effect: Any) -> None:
        """Ask an effect to end; its end must come back as one `EffectEnded` as well."""
        raise NotImplementedError(f"{self.actor.address} does not say how to cancel {effect.key}")

    def abandon(self, effect: Any) -> None:
        """Note that an effect ignored its cancellation past the grace period."""

    def due(self, effect: WaitUntil) -> C | None:
        """Return the command that says that the time of a wait has come.

        None = there is nothing to record; a port without `pauses` is asked again after a minute.
        """
        raise NotImplementedError(f"{self.actor.address} asks for {effect.key} and does not say what it means")

    def failed(self, effect: Effect | None, command: C, error: Exception) -> C | None:
        """Return what to record instead of the result `command`, which cannot be recorded; None = nothing.

        The effect is None where it is not known any more. The error is a `CommandRejected`, or what the core raised on
        a result that it does not understand.
        """
        return None

    def recovery(self, wanted: Sequence[Effect]) -> Recovery:
        """Return how work goes on that an earlier process left; by default all of it begins at once."""
        return Recovery()

    # Commands

    def prepared(self, envelope: Envelope) -> Sequence[C]:
        """Return the commands to perform for an envelope, its own last; none = there is nothing to do. May refuse."""
        command = envelope.command
        return cast("tuple[C, ...]", command) if isinstance(command, tuple) else (command,)

    def joins(self, envelope: Envelope) -> bool:
        """Tell whether an envelope may be performed in one transaction with others like it that wait behind it.

        Only for one in which there is always something to do; see `prepared`.
        """
        return False

    async def reply(self, envelope: Envelope, performed: Performed) -> Any:
        """Return the reply to an envelope of one command, once what follows from it is durable."""
        return performed

    # The log

    async def folded(self, first: StoredEvent | None) -> None:
        """Complete a state that was folded, given the stream's first event. Where this fails, it is folded again."""

    def published(self, events: Sequence[RecordedEvent[E]]) -> None:
        """See events that have just become durable, in order and each once."""

    def settled(self) -> None:
        """See that the state is durable and nothing of an earlier state is in flight any more."""

    def report(self, error: Exception) -> None:
        """Have an error known that nobody waits for."""
        self.actor.system.supervisor.report(self.actor.address, error, "background")
