"""The queue of one address, which holds what waits for its actor, and the queue by which other threads reach a loop.

`refold.actors.kernel.cell` handles what lies in a mailbox. The rules: an idle mailbox has no queue and nothing
scheduled; a full one refuses what comes last, and its sender is told; what leaves a mailbox unhandled is answered, or
parked if nobody asked. To wake a loop from outside costs a system call, so the first thread to enter something wakes
the loop, and the others only add to the queue; a wake-up runs what entered before it, in order of entering.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.reply import Handling, Reply
from refold.events.core.errors import BackpressureShed


class MailSystem(Protocol):
    """As much of an actor system as a mailbox needs to know."""

    mailbox_capacity: int

    def note_shed(self) -> None: ...
    def set_aside(self, address: str, message: object, reason: str) -> None: ...


S = TypeVar("S", bound=MailSystem)


class Signal:
    """A message of the kernel to a cell: `START` or `STOP`."""

    __slots__ = ()


START: Final = Signal()
"""The first envelope of a cell that is started explicitly: start the instance, and reply when that is done."""
STOP: Final = Signal()
"""Stop when this is reached, and reply True when stopped."""

Envelope = tuple[object, Reply | None]
"""A message and, if it was asked, where its answer goes."""


class Vital(msgspec.Struct, frozen=True):
    """A message that a full mailbox takes, since it belongs to work that was accepted before."""

    def is_vital(self) -> bool:
        """Return whether it does; a subclass may leave that to the sender."""
        return True


def is_vital(message: object) -> bool:
    """Return whether a full mailbox takes a message."""
    return type(message) is Signal or (isinstance(message, Vital) and message.is_vital())


class Mailbox(Generic[S]):
    """Envelopes in order of arrival. Only on the system's loop."""

    __slots__ = ("_queue", "_running", "address", "capacity", "handling", "system")

    def __init__(self, system: S, address: str) -> None:
        self.system = system
        self.address = address
        self.capacity = system.mailbox_capacity
        """Most messages that may wait."""
        self.handling: Handling | None = None
        """The hook of the actor that is being awaited, if one is."""
        self._queue: deque[Envelope] | None = None  # None while idle: an empty deque takes 624 bytes
        self._running = False  # whether an activation is scheduled or under way

    def put(self, message: object, reply: Reply | None) -> None:
        """Add a message at the end, and have it handled.

        Raises:
            BackpressureShed: as many messages as may wait do so, and this one is not vital.
        """
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        elif len(queue) >= self.capacity and not is_vital(message):
            self.system.note_shed()
            raise BackpressureShed(len(queue), self.capacity, of=self.address)
        if reply is not None:
            reply.answerer = self
        queue.append((message, reply))
        if not self._running:
            self._running = True
            self._schedule()

    def depth(self) -> int:
        """Return how many messages wait; a good guess in any thread."""
        queue = self._queue
        return len(queue) if queue is not None else 0

    def has_messages(self) -> bool:
        return any(type(message) is not Signal for message, _ in self._queue or ())

    def _schedule(self) -> None:
        raise NotImplementedError

    def _hand_over(self, heir: "Mailbox[S]") -> None:
        """Give users' messages to the address's next life; who wanted this one stopped has got that."""
        queue, self._queue = self._queue or deque(), None
        heir.capacity, capacity = len(queue) + heir.capacity, heir.capacity  # What was taken once has a place.
        for message, reply in queue:
            if type(message) is not Signal:
                heir.put(message, reply)
            elif reply is not None:
                reply.settle(True)
        heir.capacity = capacity

    def _refuse_messages(self, reason: str) -> None:
        for _ in range(len(self._queue or ())):
            assert self._queue is not None
            message, reply = self._queue.popleft()
            if type(message) is Signal:
                self._queue.append((message, reply))
            else:
                self._refuse(message, reply, reason)

    def _refuse_all(self, reason: str) -> None:
        """Answer everything that waits with ActorStopped, except what only wanted the stop."""
        while self._queue:
            message, reply = self._queue.popleft()
            if message is STOP and reply is not None:
                reply.settle(True)
            else:
                self._refuse(message, reply, reason)

    def _refuse(self, message: object, reply: Reply | None, reason: str) -> None:
        if reply is not None:
            reply.settle(error=ActorStopped(self.address, reason))
        else:
            self.system.set_aside(self.address, message, reason)


class CrossThreadQueue:
    """What any thread enters, for one event loop to run."""

    def __init__(self, loop: AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self._entered: deque[Callable[[], None]] = deque()
        self._woken = False

    def enter(self, action: Callable[[], None]) -> bool:
        """Have the loop run `action` soon, which must not raise; return False if the loop is closed."""
        self._entered.append(action)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run, context=self._context)
            except RuntimeError:
                self._woken = False
                return False
        return True

    def _run(self) -> None:
        self._woken = False  # before looking at the queue: a thread that comes later wakes the loop again
        for _ in range(len(self._entered)):
            self._entered.popleft()()
