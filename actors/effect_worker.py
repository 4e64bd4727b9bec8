"""Does the work outside that the actors of one hosted kind ask for.

It is an actor beside them, so that work outlives the restart of whoever asked for it: that one neither loses what the
work brings nor begins it again. The rule: each piece of work that was begun tells its asker its end exactly once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from refold.actors.actor import Actor
from refold.actors.actor_ref import ActorRef
from refold.actors.effects import EffectEnded, tell_end
from refold.actors.errors import ActorStopped
from refold.actors.mailbox import Vital
from refold.actors.supervision import log
from refold.events.core import Effect

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
