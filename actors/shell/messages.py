"""What an event-sourced actor is told, and what it replies.

A sender needs an `Envelope` only where there is something to say beside the command, and a `Query` to look at the
state; the other messages are between the actor and those who work for it.
"""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import msgspec

from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.ref import ActorRef, Vital
from refold.actors.shell.cooperative import ReadPayloads, in_turns
from refold.events.core.ids import EventRef, PayloadHash
from refold.events.core.records import EncodedBatch

log = logging.getLogger("refold.actors")

R = TypeVar("R")

Cause: TypeAlias = tuple[EventRef, EventRef]
"""An event that another stream's batch follows from, and what that event goes back to."""


class Along(Protocol):
    """What another stream has decided, and records in one transaction with a batch that it follows from."""

    def take(self, cause: Cause) -> Sequence[EncodedBatch]:
        """Return what goes into the transaction, which is about to be written; nothing where it is written by itself.

        It is the batch that follows from `cause`, behind earlier ones of its stream that are not written yet.
        """
        ...

    def settle(self, *, written: bool) -> None:
        """Learn what became of it. Where it was not written, it may be taken again."""
        ...

    def release(self) -> None:
        """Have it written by itself, unless it was taken: nothing that it follows from will be written."""
        ...


class Performed(msgspec.Struct, frozen=True):
    """The reply to a command."""

    version: int
    """Of the stimulus that the command became; 0 where nothing was to be done."""
    new: bool
    """False where the same command had been recorded before, or nothing was to be done."""


class Envelope(Vital, frozen=True):
    """A command with what its sender says beside it."""

    command: Any
    """Of the actor's core; or a tuple of several, which are performed in order and in one transaction, or none of them.
    The reply to several is a list."""
    payloads: Mapping[PayloadHash, bytes] = {}
    """Large content that the command refers to."""
    vital: bool = False
    """Whether it is about work that was accepted before, so that a full mailbox must not turn it away."""
    insist: bool = False
    """Whether the actor keeps it and tries again, where the log refuses it; no asker waits for the reply then."""
    cause: Cause | None = None
    """The event of another stream that it follows from."""
    called: str = ""
    """What a refusal calls several commands, to name the one that it is about: `episodes[3]: …`; empty = nothing."""
    along: Sequence[Along] = ()
    """What other streams record in the same transaction, following from the last command."""

    def is_vital(self) -> bool:
        return self.vital


class Query(Vital, frozen=True):
    """Have the actor's state looked at where it is durable; the reply is a `QueryResult`."""

    ask: Callable[[Any], object]
    """Given the state, which it must not change."""
    note: Callable[[Any], object | None] | None = None
    """Given the answer: returns the command that records what was found, or None. No other message comes between, and
    the reply comes when what follows from the command is durable."""
    vital: bool = False
    copied: bool = True
    """Whether the reply is a copy; False where what is found shares nothing with the state that can change."""
    in_steps: bool = False
    """Whether `ask` returns work in steps (`Asking`), between which others have the loop; its result is not copied."""

    def is_vital(self) -> bool:
        return self.vital


class QueryResult(msgspec.Struct, frozen=True):
    """What a query found, or what it raised."""

    value: object = None
    error: Exception | None = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


async def answer_to(query: Query, state: object, read: ReadPayloads | None = None) -> tuple[QueryResult, object | None]:
    """Return what a query finds in a state, and the command that records what was found, if any."""
    try:
        found: Any = query.ask(state)
        if query.in_steps:
            found = await in_turns(found, read=read)
        elif query.copied:
            found = copy.deepcopy(found)
        return QueryResult(found), query.note(found) if query.note is not None else None
    except Exception as error:  # noqa: BLE001 - the asker's own code, whose error is no failure of the actor
        return QueryResult(error=error), None


async def read_state(ref: ActorRef, ask: Callable[[Any], R], *, vital: bool = False, copied: bool = False) -> R:
    """Return what `ask` finds in the durable state of an event-sourced actor, or raise what it raised; see `Query`."""
    answer: QueryResult = await ref.ask(Query(ask, vital=vital, copied=copied), block=False)
    return cast("R", answer.get())


class Wake(Vital, frozen=True):
    """Start the actor if it is not live, so that the work goes on which the log asks for."""


class EffectEnded(Vital, frozen=True, kw_only=True):
    """An effect is over: what it brought, as a command, or nothing if it was cancelled in time."""

    key: str
    command: object | None = None
    evidence: object | None = None
    """A command that tells what there was of it before; recorded in front of `command`, in one transaction."""
    payloads: Mapping[PayloadHash, bytes] = {}
    along: Sequence[Along] = ()
    """What other streams record in the same transaction."""
    attempt: int = 0
    """How often its result was refused by the log."""


class CancelEffect(Vital, frozen=True):
    """End an effect, if it is under way; its asker is told when it has ended."""

    asker: str
    """Address of the actor that asked for it."""
    key: str
    cause: EventRef | None = None
    """The asker's event after which the effect is not wanted any more."""
    abandoned: bool = False
    """Whether it was cancelled before and has not ended in time, so that nobody waits for it any more."""


class Later(Vital, frozen=True):
    """What the actor has told itself to do now, whichever instance it is."""

    do: str
    """Name of a method."""
    given: tuple[Any, ...] = ()


def teller(ref: ActorRef, message: object) -> Callable[[], None]:
    """Return what tells an actor a message now or later, whichever instance there is then."""

    def tell() -> None:
        try:
            ref.tell(message)
        except ActorStopped as error:  # As after a crash: the log says what is to be done at the next start.
            log.info("%s: a %s came after its end: %s", ref.address, type(message).__name__, error)

    return tell
