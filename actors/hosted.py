"""What stands behind a user's own core: the port that has its work done, and the worker that does it.

Read `refold.actors.shell.event_sourced` first. The rules: work that `pending` names is begun, done again after a pause
where it ended without a result, and cancelled when it is no longer named; each piece of work that was begun tells its
asker its end exactly once; and nobody outside holds a part of the state.
"""

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import msgspec

from refold.actors.kernel.actor import Actor
from refold.actors.kernel.ref import ActorRef, Vital
from refold.actors.kernel.supervision import RestartPolicy
from refold.actors.shell.effect_port import EffectPort
from refold.actors.shell.effects import tell_end
from refold.actors.shell.messages import CancelEffect, EffectEnded, Envelope
from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.codec import RecordedEvent
from refold.events.core.errors import ConfigError, CoreFailed, quoted
from refold.events.core.pure_core import C, E, Effect, WaitUntil

log = logging.getLogger("refold.actors")

Perform = Callable[[Any], Awaitable[object | None]]
"""Does one piece of work and returns the command that tells what it brought; None = there is nothing to record."""

Failed = Callable[[Effect, Exception], object | None]
"""Returns the command that says that work failed; None = there is nothing to record."""


class HostedPort(EffectPort[S, C, E]):
    """Has the work done that a user's core asks for, and contains the faults of that core."""

    pauses: ClassVar[RestartPolicy | None] = RestartPolicy()  # They grow as before an actor's restarts.

    def __init__(
        self,
        core: CheckedCore[S, C, E],
        worker: ActorRef | None = None,
        on_event: Callable[[RecordedEvent[E]], object] | None = None,
        *,
        cancel_grace_s: float,
        lasting: bool = False,
    ) -> None:
        self._core = core
        self._worker = worker
        self._on_event = on_event
        self.cancel_grace_s = cancel_grace_s
        self.lasting = lasting

    def begin(self, effect: Effect) -> bool:
        if self._worker is None:
            self.report(ConfigError(f"{self.actor.address} asks for {effect.key}, and was hosted without `perform`"))
            return False
        self._worker.tell(BeginWork(self.actor.actor_ref, copy.deepcopy(effect)))
        return True

    def cancel(self, effect: Effect) -> None:
        assert self._worker is not None  # Or it had not begun.
        self._worker.tell(CancelEffect(self.actor.address, effect.key))

    def abandon(self, effect: Effect) -> None:
        log.warning("%s: %s does not end, though it was cancelled; it is left alone", self.actor.address, effect.key)

    def due(self, effect: WaitUntil) -> C | None:
        try:
            return self._core.due(effect)
        except CoreFailed as error:
            self.report(error)
            return None

    def failed(self, effect: Effect | None, command: C, error: Exception) -> C | None:
        self.report(error)
        try:
            return self._core.failed(effect, error) if effect is not None else None
        except CoreFailed as second_error:
            self.report(second_error)
            return None

    def prepared(self, envelope: Envelope) -> Sequence[C]:
        commands: Sequence[Any] = super().prepared(envelope)
        for command in commands:
            if not self._core.takes(command):
                names = ", ".join(cls.__name__ for cls in self._core.command_types)
                raise ConfigError(
                    f"{self.actor.address} takes the commands of {self._core.name} ({names}), not {quoted(command)}"
                )
        return commands

    def published(self, events: Sequence[RecordedEvent[E]]) -> None:
        if self._on_event is None:
            return
        for recorded in events:
            try:
                self._on_event(msgspec.structs.replace(recorded, event=copy.deepcopy(recorded.event)))
            except Exception as error:  # noqa: BLE001 - the listener's own code
                self.report(error)


class BeginWork(Vital, frozen=True):
    """Do a piece of work, unless it is being done."""

    asker: ActorRef
    effect: Effect


class _Piece:
    def __init__(self, message: BeginWork) -> None:
        self.asker = message.asker
        self.effect = message.effect
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.cancelled = False


class EffectWorker(Actor):
    """Runs each piece of work of one hosted kind as a task of its own.

    It is an actor beside those that ask, so that work outlives the restart of its asker, which then neither loses what
    the work brings nor begins it again.
    """

    def __init__(self, perform: Perform, failed: Failed) -> None:
        self._perform = perform
        self._failed = failed
        self._pieces: dict[tuple[str, str], _Piece] = {}

    def on_receive(self, message: Any) -> Any:
        match message:
            case BeginWork(asker=asker, effect=effect):
                place = (asker.address, effect.key)
                if place not in self._pieces:  # Else it was cancelled and goes on; it will tell its end.
                    piece = self._pieces[place] = _Piece(message)
                    piece.task = self.spawn(self._work(piece, place), name=f"{asker.address} {effect.key}")
            case CancelEffect(asker=address, key=key):
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
                command = self._failure(piece, RuntimeError(f"the work let {quoted(error, 1_000)} out by itself"))
        except Exception as error:  # noqa: BLE001 - the border to the user's code
            command = self._failure(piece, error)
        except (KeyboardInterrupt, GeneratorExit):  # The interpreter or the loop ends.
            raise
        except BaseException as error:  # noqa: BLE001 - such as SystemExit, which must end neither the loop nor the wait
            command = self._failure(piece, RuntimeError(f"the work let {quoted(error, 1_000)} out"))
        finally:
            del self._pieces[place]
        tell_end(piece.asker, EffectEnded(key=piece.effect.key, command=command))

    def _failure(self, piece: _Piece, error: Exception) -> object | None:
        try:
            command = self._failed(piece.effect, error)
        except Exception as second_error:  # noqa: BLE001 - the border to the user's code
            command, error = None, second_error
        if command is None:
            self.system.supervisor.report(piece.asker.address, error, "background")
        return command
