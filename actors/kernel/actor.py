"""What a user subclasses: an actor that lives on an event loop, without a thread and, while idle, without a task.

It is a `pykka.Actor`: the same hooks and the same refs, except that every hook may be `async def`, that
`ActorSystem` starts it instead of a class method, and that it is in no global registry. Read
`refold.actors.kernel.cell` for what happens to it, message by message.

The rule it protects: everything that belongs to an address and must outlive one instance (mailbox, children, restart
count) is in the cell, and nothing of it in the actor, so that a restart is a new instance and nothing more.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import pykka

from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.ref import ActorRef, System
from refold.actors.kernel.reply import ActorFuture, Reply
from refold.actors.kernel.supervision import Dependents, log
from refold.events.core.errors import ConfigError

R = TypeVar("R")


class Cell(Protocol):
    """As much of its cell as an actor needs to know."""

    @property
    def address(self) -> str: ...
    @property
    def system(self) -> System: ...
    @property
    def actor(self) -> "Actor | None": ...
    @property
    def open(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def dependents(self) -> Dependents: ...
    def take_along(self, wanted: Callable[[object], bool], most: int) -> list[tuple[Any, Reply]]: ...
    async def start_child(
        self, factory: "Callable[..., Actor]", args: tuple[Any, ...], kwargs: dict[str, Any], address: str | None
    ) -> ActorRef: ...


if TYPE_CHECKING:

    class _PykkaActor:
        """`pykka.Actor` without the types of its hooks, which say that no hook may be `async def`."""

        def _handle_receive(self, message: Any) -> Any: ...

else:
    _PykkaActor = pykka.Actor


class Actor(_PykkaActor):
    """One message at a time, in the order of arrival; override `on_receive`, and the other hooks as needed.

    A message is passed by reference: send frozen Structs, so that nothing a receiver does is visible to the sender.

    What an error does. A `RefoldError` is a refusal: the asker gets it, or the message is parked where nobody asked
    (see `ActorSystem.parked`), and the actor goes on unchanged. Any other error is a failure: the asker, if there is
    one, gets it, and the actor is replaced by a new instance from the same factory (see
    `refold.actors.kernel.supervision`), which then handles the messages that were queued. `CancelledError` or
    `SystemExit` let out by a handler are failures like any other; its asker gets ActorStopped, so that the error cannot
    act on the asker too.

    `__init__` must not touch `address`, `system` or `actor_ref`: they are there from `on_start` on.
    """

    mailbox_capacity: int | None = None
    """Most messages that may wait for it; the next one is refused with BackpressureShed. None = the system's."""
    handler_timeout_s: float | None = None
    """Seconds after which a handler that still waits is cancelled and has failed with TimeoutError; None = never."""

    _cell: Cell

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Make an instance; calling it from a subclass is allowed and not needed."""

    @property
    def address(self) -> str:
        """Where messages for this actor go, such as `"session/alice"`; it survives restarts."""
        return self._cell.address

    @property
    def system(self) -> System:
        """The system it runs in."""
        return self._cell.system

    @property
    def actor_ref(self) -> ActorRef:
        """A ref to itself, to give to others. Awaiting an ask of oneself raises AskCycle."""
        return self._cell.system.ref(self._cell.address)

    @property
    def actor_urn(self) -> str:
        """The address, under pykka's name for it."""
        return self._cell.address

    @property
    def lives(self) -> bool:
        """Whether this instance handles messages: it has not been replaced, and no stop is under way."""
        return self._cell.actor is self and self._cell.open

    @property
    def actor_stopped(self) -> threading.Event:
        """An event that says whether this instance is over; made when asked for, so ask again, do not keep it."""
        event = threading.Event()
        if self._cell.actor is not self:
            event.set()
        return event

    def __str__(self) -> str:
        """Return the class and, once there is one, the address."""
        cell: Cell | None = getattr(self, "_cell", None)
        return f"{type(self).__name__} ({cell.address if cell is not None else 'not started'})"

    def on_start(self) -> Any:
        """Prepare the instance, before its first message. May be `async def`.

        If it raises, nothing more of this instance is called. `ActorSystem.start` raises the error to its caller;
        at a start by a first message or a restart it counts as a failure, and the message waits.
        """

    def on_receive(self, message: Any) -> Any:
        """Handle one message and return the reply. May be `async def`; other actors run while it awaits.

        As in pykka, the default logs a warning and replies None; call it for messages that you do not know.
        """
        log.warning("%s has no use for a message of type %s", self, type(message).__qualname__)

    def on_stop(self) -> Any:
        """Clean up after the last message, children and background work being over. May be `async def`.

        Not called after a failure; `on_failure` is. An error is reported, and the actor stops nevertheless.
        """

    def on_passivate(self) -> Any:
        """Clean up where the actor stops for having been idle, and its next message makes a new one.

        Called instead of `on_stop`, which is what the default does. May be `async def`.
        """
        return self.on_stop()

    def may_passivate(self) -> bool:
        """Return whether this actor may be stopped now, when it is idle, and made anew by its next message.

        Asked each time it comes to rest; True only where a new instance would know all that this one knows, and
        nothing goes on but what survives it. The default is False. It matters for actors of a registered kind only.
        """
        return False

    def expects_more(self) -> bool:
        """Return whether another message is sure to come: the end of work that goes on outside.

        Asked when none is left; then the task that handles messages waits for it, so that it need not be made anew.
        """
        return False

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        """Clean up after a failure in a message, before the instance is replaced. May be `async def`."""

    def on_cancelled(self) -> None:
        """Say what becomes of the work of this instance, which ends: other code has cancelled the task that it ran in.

        Nothing more of the instance is called; the next message makes a new one. Must be a plain function.
        """

    def take_along(self, wanted: Callable[[object], bool], most: int) -> list[tuple[Any, Reply]]:
        """Take the next messages out of the mailbox, to handle them together with the one that is handled now.

        Only asked messages are taken, in order, up to the first that is not wanted. Settle each reply; where the
        handler raises instead, what was not settled gets the error that the asker of the first message gets.

        Args:
            wanted: tells whether a message can be handled along with the present one.
            most: of them.
        """
        return self._cell.take_along(wanted, most)

    def spawn(
        self, work: Coroutine[Any, Any, R], *, name: str = "work", over: Callable[[], object] | None = None
    ) -> asyncio.Task[R]:
        """Run a coroutine beside the mailbox, until it ends or this instance stops or restarts.

        The task is held, cancelled and awaited with the instance. Its error, if it has one, is logged and reported
        and does not restart the actor; awaiting the task raises it as well. Send its result to `actor_ref`: state
        should change in handlers only.

        Args:
            name: for logs and debuggers, after the address.
            over: called on the loop when the task has ended, also where it was cancelled before its first step, once
                its error was reported; it must not raise.

        Raises:
            ActorStopped: this instance is over; `work` was closed.
        """
        cell = self._cell
        if cell.closed or (cell.actor is not self and cell.actor is not None):
            work.close()
            raise ActorStopped(cell.address, f"this instance is over, and its background work {name!r} was not begun")
        return cell.dependents.spawn(work, name, over)

    async def start_child(
        self, factory: Callable[..., "Actor"], *args: Any, address: str | None = None, **kwargs: Any
    ) -> ActorRef:
        """Start an actor that stops before this one does, and with each restart of it; see `ActorSystem.start`."""
        return await self._cell.start_child(factory, args, kwargs, address)

    def stop(self) -> None:
        """Stop after the messages that are queued now."""
        self.actor_ref.stop(block=False)

    @classmethod
    def start(cls, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse: an actor runs in a system.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{cls.__name__} runs in an ActorSystem; write `await system.start({cls.__name__}, ...)`")

    @staticmethod
    def _create_future() -> ActorFuture[Any]:
        return ActorFuture()

    @staticmethod
    def _create_actor_inbox() -> NoReturn:
        raise NotImplementedError("the mailbox belongs to the address; send messages through a ref")

    def _start_actor_loop(self) -> NoReturn:
        raise NotImplementedError("an actor has no loop of its own; start it with ActorSystem.start")
