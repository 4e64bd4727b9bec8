"""The actor of somebody's own core: what `refold.actors.hosting` puts behind each address of a hosted kind.

Read `refold.actors.event_sourced` first. It adds what a core cannot say itself: who does its work outside, which event
asked for that work, and that a fault of the core costs one message and not the actor. The rules: work that `pending`
names is begun, done again after a pause where it ended without a result, and cancelled when it is no longer named;
nobody outside holds a part of the state.

Does the work outside that the actors of one hosted kind ask for.

It is an actor beside them, so that work outlives the restart of whoever asked for it: that one neither loses what the
work brings nor begins it again. The rule: each piece of work that was begun tells its asker its end exactly once.

Work that takes long and gives the loop back now and then: a generator that yields where others may go on.

A question to a large state is such work (see `refold.actors.hosted.Question`): its actor handles nothing else
until it is answered, so the state stays as it is, and the loop is everybody's between the steps. The rule: what is
found does not depend on where the steps end.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from refold.actors.effects import EffectEnded, EffectsInFlight, tell_end
from refold.actors.event_sourced import EventSourcedActor
from refold.actors.folded_actor import Performed
from refold.actors.journal import Journal
from refold.actors.kernel.actor import Actor
from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.mailbox import Vital
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.supervision import RestartPolicy, log
from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.codec import RecordedEvent
from refold.events.core.contract import Effect, WaitUntil
from refold.events.core.errors import CommandRejected, ConfigError, CoreFailed, PersistenceError, RefoldError
from refold.events.core.ids import EventRef, version_in
from refold.events.core.pure_core import C, E
from refold.events.core.records import StoredEvent

Perform = Callable[[Any], Awaitable[object | None]]
"""Does one piece of work and returns the command that tells what it brought; None = there is nothing to record."""

Failed = Callable[[Effect, Exception], object | None]
"""Returns the command that says that work failed; None = there is nothing to record."""


class BeginWork(Vital, frozen=True):
    """Do a piece of work, unless it is being done."""

    asker: ActorRef
    effect: Effect


class CancelWork(Vital, frozen=True):
    """End a piece of work."""

    asker: str
    """Address."""
    key: str


class _Piece:
    """One piece of work under way."""

    def __init__(self, message: BeginWork) -> None:
        self.asker = message.asker
        self.effect = message.effect
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.cancelled = False


class EffectWorker(Actor):
    """Runs each piece of work as a task of its own.

    Args:
        perform: does the work.
        failed: says what its failure means.
    """

    def __init__(self, perform: Perform, failed: Failed) -> None:
        self._perform = perform
        self._failed = failed
        self._pieces: dict[tuple[str, str], _Piece] = {}

    def on_receive(self, message: Any) -> Any:
        """Begin or end a piece of work."""
        match message:
            case BeginWork(asker=asker, effect=effect):
                place = (asker.address, effect.key)
                if place not in self._pieces:  # Else it was cancelled, goes on all the same, and will tell its end.
                    piece = self._pieces[place] = _Piece(message)
                    piece.task = self.spawn(self._work(piece, place), name=f"{asker.address} {effect.key}")
            case CancelWork(asker=address, key=key):
                piece_or_none = self._pieces.get((address, key))
                if piece_or_none is not None:
                    self._cancel(piece_or_none)
            case _:
                return super().on_receive(message)
        return None

    def _cancel(self, piece: _Piece) -> None:
        piece.cancelled = True
        if piece.begun and piece.task is not None:
            piece.task.cancel()  # A task that is cancelled before its first step would tell nobody its end.

    async def _work(self, piece: _Piece, place: tuple[str, str]) -> None:
        piece.begun = True
        command: object | None = None
        try:
            if not piece.cancelled:
                command = await self._perform(piece.effect)
        except asyncio.CancelledError as error:
            if not piece.cancelled:
                if piece.task is not None and piece.task.cancelling():
                    raise  # This process ends, and the work is done again as after a crash.
                command = self._failure(piece, RuntimeError(f"the work let {error!r} out by itself"))
        except Exception as error:  # noqa: BLE001 - the border to the user's code
            command = self._failure(piece, error)
        except (KeyboardInterrupt, GeneratorExit):  # The interpreter or the loop ends.
            raise
        except BaseException as error:  # noqa: BLE001 - such as SystemExit, which must end neither the loop nor the wait
            command = self._failure(piece, RuntimeError(f"the work let {error!r} out"))
        finally:
            del self._pieces[place]
        try:
            tell_end(piece.asker, EffectEnded(key=piece.effect.key, command=command))
        except ActorStopped as error:  # As after a crash: the log says what is to be done at the next start.
            log.info("%s: the end of %s came too late: %s", piece.asker.address, piece.effect.key, error)

    def _failure(self, piece: _Piece, error: Exception) -> object | None:
        """Return what the failure of work means; where that is nothing to record, it is reported."""
        try:
            command = self._failed(piece.effect, error)
        except Exception as second_error:  # noqa: BLE001 - the border to the user's code
            command, error = None, second_error
        if command is None:
            self.system.supervisor.report(piece.asker.address, error, "background")
        return command


R = TypeVar("R")

PAUSES = RestartPolicy()
"""How the pause grows before work is done again: as before an actor's restarts."""


class Told(msgspec.Struct, frozen=True):
    """A command whose sender waits for no answer: what becomes of it is logged."""

    command: object


class Several(msgspec.Struct, frozen=True):
    """Commands to be performed in order and in one transaction, or none of them; the reply is a list of outcomes."""

    commands: tuple[object, ...]
    """At least one."""
    called: str = ""
    """What a refusal calls them, to name the one that it is about: `episodes[3]: …`; empty = it names none."""


class Question(msgspec.Struct, frozen=True):
    """Have the actor's state looked at; the reply is an `Answer`."""

    ask: Callable[[Any], object]
    """Given the state, which it must not change."""
    note: Callable[[Any], object | None] | None = None
    """Given the answer: returns the command that records what was found, or None. No other message comes between, and
    the reply comes when what follows from the command is durable."""
    in_steps: bool = False
    """Whether `ask` returns `refold.actors.hosted.Steps`, between which the loop is given back. What they find shares
    nothing with the state that can change: it is not copied."""


class Answer(msgspec.Struct, frozen=True):
    """What a question found, a copy that shares nothing with the state; or what it raised."""

    value: object = None
    error: Exception | None = None


class Causes:
    """Which events asked for the work that is pending, for effects that do not say so."""

    def __init__(self) -> None:
        self._causes: dict[str, tuple[int, int]] = {}

    def note(self, keys: Sequence[str], version: int, correlation: EventRef | None) -> None:
        """Note what is pending after the batch of `version`.

        Raises:
            LogFormatError: the correlation names no event.
        """
        origin = version_in(correlation) if correlation is not None else version
        self._causes = {key: self._causes.get(key, (version, origin)) for key in keys}

    def clear(self) -> None:
        """Begin anew."""
        self._causes = {}

    def with_cause(self, effect: Effect) -> Effect:
        """Return `effect` with the versions that it lacks."""
        if effect.causation and effect.correlation:
            return effect
        causation, correlation = self._causes.get(effect.key, (0, 0))
        return msgspec.structs.replace(
            effect,
            causation=effect.causation or causation,
            correlation=effect.correlation or effect.causation or correlation,
        )


class HostedActor(EventSourcedActor[S, C, E], Generic[S, C, E]):
    """An actor that a user's core decides for.

    Args:
        core: the user's core.
        journal: where batches go.
        in_flight: the effects that run in this process.
        worker: does the work that the core asks for; None = nobody does.
        on_event: called with each event once it is durable, in order.
        cancel_grace_s: seconds that cancelled work may take to end.
        lasting: whether it stays in memory however long it is idle.
    """

    def __init__(
        self,
        core: CheckedCore[S, C, E],
        journal: Journal,
        in_flight: EffectsInFlight,
        worker: ActorRef | None,
        on_event: Callable[[RecordedEvent[E]], object] | None,
        cancel_grace_s: float,
        *,
        lasting: bool = False,
    ) -> None:
        super().__init__(core, core.codec, journal, in_flight=in_flight, cancel_grace_s=cancel_grace_s)
        self._lasting = lasting
        self._checked = core
        self._worker = worker
        self._on_event = on_event
        self._causes = Causes()

    def may_passivate(self) -> bool:
        """Return whether memory may let go of it."""
        return not self._lasting and super().may_passivate()

    async def on_receive(self, message: Any) -> Any:
        """Handle a command, a question, or the end of work."""
        if type(message) is Told:
            return await self._told(message.command)
        if type(message) is Question:
            await self.require_durable_state()
            return await self._answered(message)
        if type(message) is Several:
            return await self._several(message)
        if isinstance(message, Vital):
            return await super().on_receive(message)
        return await self._command(message)

    async def _command(self, command: object) -> Any:
        self._check_takes(command)
        try:
            return await super().on_receive(command)
        except CoreFailed as error:
            self._report(error)
            raise

    def _check_takes(self, command: object) -> None:
        if not self._checked.takes(command):
            names = ", ".join(cls.__name__ for cls in self._checked.command_types)
            raise ConfigError(
                f"{self.address} takes the commands of {self._checked.name} ({names}), not {command!r:.80}"
            )

    async def _several(self, several: Several) -> list[Performed]:
        commands: Any = several.commands
        for command in commands:
            self._check_takes(command)
        try:
            return await self._commanded(lambda: commands, called=several.called)
        except CoreFailed as error:
            self._report(error)
            raise

    async def _told(self, command: object) -> None:
        try:
            await self._command(command)
        except (CommandRejected, ConfigError, CoreFailed, PersistenceError) as error:
            self.system.set_aside(self.address, command, str(error))

    async def _answered(self, question: Question) -> Answer:
        try:
            found = question.ask(self.state)
            answer = Answer(await _stepped(found) if question.in_steps else copy.deepcopy(found))
            command = question.note(answer.value) if question.note is not None else None
        except Exception as error:  # noqa: BLE001 - the asker's own code
            return Answer(error=error)
        if command is not None:
            await self._command(command)
        return answer

    def _report(self, error: Exception) -> None:
        self.system.supervisor.report(self.address, error, "background")

    # The log

    async def _fold(self) -> list[StoredEvent]:
        stored = await super()._fold()
        self._causes.clear()
        for item in stored:
            if item.version == item.batch:
                self._causes.note(item.pending or (), item.version, item.correlation)
        return stored

    def published(self, events: Sequence[RecordedEvent[E]]) -> None:
        """Tell the listener, and remember what asked for the work that is pending now."""
        if self._on_event is not None:
            for recorded in events:
                try:
                    self._on_event(msgspec.structs.replace(recorded, event=copy.deepcopy(recorded.event)))
                except Exception as error:  # noqa: BLE001 - the listener's own code
                    self._report(error)
        try:
            keys = [effect.key for effect in self.core.pending(self.state)]
        except CoreFailed:
            self._distrust_state()
            raise
        self._causes.note(keys, events[-1].batch, events[-1].correlation)

    # Work

    def wanted(self) -> Sequence[Effect]:
        """Return the work that should be in flight, each with the event that asked for it."""
        return [self._causes.with_cause(effect) for effect in self.core.pending(self.state)]

    def begin(self, effect: Effect) -> None:
        """Have work done."""
        if self._worker is None:
            self._effects.running.pop(effect.key, None)
            self._effects.held.add(effect.key)
            self._report(ConfigError(f"{self.address} asks for {effect.key}, and was hosted without `perform`"))
        else:
            self._worker.tell(BeginWork(self.actor_ref, copy.deepcopy(effect)))

    def cancel(self, effect: Effect) -> None:
        """Have work ended that is not wanted any more."""
        assert self._worker is not None  # Or it had not begun.
        self._worker.tell(CancelWork(self.address, effect.key))

    def abandon(self, effect: Effect) -> None:
        """Note that work ignores its cancellation."""
        log.warning("%s: %s does not end, though it was cancelled; it is left alone", self.address, effect.key)

    def due(self, effect: WaitUntil) -> C | None:
        """Return the command that says that the time of a wait has come; None = the core fails to say it."""
        try:
            return self._checked.due(effect)
        except CoreFailed as error:
            self._report(error)
            return None

    def instead(self, effect: Effect | None, command: C, error: Exception) -> C | None:
        """Ask the core what the refusal of a result means."""
        self._report(error)
        try:
            return self._checked.failed(effect, error) if effect is not None else None
        except CoreFailed as second_error:
            self._report(second_error)
            return None

    async def _record_instead(self, message: Any, error: Exception, effect: Effect | None) -> bool:
        try:
            return await super()._record_instead(message, error, effect)
        except PersistenceError:
            raise
        except RefoldError as second_error:  # What stands for a refused result is refused as well.
            self._report(second_error)
            return False

    def pause_s(self, effect: Any, ends: int) -> float:
        """Return how long work rests that is still wanted though it has ended."""
        return PAUSES.pause_s(ends + 1)


async def _stepped(steps: Any) -> object:
    """Return what `Steps` find, and give the loop back between them."""
    while True:
        try:
            next(steps)
        except StopIteration as found:
            return found.value
        await asyncio.sleep(0)


T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, R]
"""Work of which each step ends with a yield, and which returns what it found."""

ITEMS_PER_STEP: Final = 500
"""So many small things are done in a step; a few milliseconds."""


def at_once(steps: Steps[R]) -> R:
    """Return what `steps` find, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as found:
            value: R = found.value
            return value


def listed(items: Iterable[T]) -> Steps[list[T]]:
    """Return a list of `items`."""
    found: list[T] = []
    source: Iterator[T] = iter(items)
    for place, item in enumerate(source, 1):
        found.append(item)
        if not place % ITEMS_PER_STEP:
            yield
    return found
