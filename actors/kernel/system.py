"""The actor system: the directory of addresses, the way in for other threads, and the end of all actors, in order.

Read `refold.actors.kernel.actor` first, and `refold.actors.kernel.cell` for what happens to a message after delivery.
One system runs on one event loop, that in which it was made; any number of systems live side by side, and nothing is
global. The rules: the system holds every live actor strongly; only the loop's thread touches cells, and messages of
other threads come through one queue that wakes the loop once per burst; and closing never hangs: it names what does
not end, and nobody who waits for that waits on.
"""

import asyncio
import contextvars
import math
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pykka

from refold.actors.kernel.actor import Actor
from refold.actors.kernel.cell import ActorCell
from refold.actors.kernel.clock import Clock, SystemClock, moved_after
from refold.actors.kernel.errors import ActorStopped, WouldDeadlock
from refold.actors.kernel.pykka_bridge import ThreadActorBridge
from refold.actors.kernel.ref import START, ActorRef, CrossThreadQueue, is_vital
from refold.actors.kernel.reply import OpenAsks, Reply, current_handling
from refold.actors.kernel.supervision import (
    ActorFailure,
    Background,
    ParkedMessage,
    Passivation,
    RestartPolicy,
    Supervisor,
    Work,
    log,
)
from refold.events.core.errors import BackpressureShed, ConfigError

R = TypeVar("R")

STOP_NOW_WAIT_S = 1.0
"""How long closing waits, after the grace period, for cancelled handlers to end."""


async def ended_without_fail(end: "asyncio.Task[R]", hurry: Callable[[], object]) -> R:
    """Return what comes of an end that has begun; a caller who is cancelled meanwhile hurries it and still waits."""
    gone: asyncio.CancelledError | None = None
    while not end.done():
        try:
            await asyncio.wait([end])
        except asyncio.CancelledError as error:
            gone = error
            hurry()
    if gone is not None:
        raise gone
    return end.result()


async def stop_all(cells: Mapping[str, ActorCell], clock: Clock, grace_s: float) -> None:
    """Stop the actors of a system; return when all have stopped, or `STOP_NOW_WAIT_S` after the grace period."""
    if not await ends_within(grace_s, clock, _stop_in_order(cells)):
        await ends_within(STOP_NOW_WAIT_S, clock, _stop_now(cells))


async def _stop_in_order(cells: Mapping[str, ActorCell]) -> None:
    """Stop what messages started, all at once; then what was started explicitly, one by one, last started first."""
    roots = [cell for cell in cells.values() if cell.parent is None]
    for stopped in [cell.request_stop(now=False) for cell in roots if not cell.explicit]:
        await stopped
    for cell in reversed(roots):
        if cell.explicit:
            await cell.request_stop(now=False)


async def _stop_now(cells: Mapping[str, ActorCell]) -> None:
    for stopped in [cell.request_stop(now=True) for cell in list(cells.values())]:
        await stopped


async def ends_within(seconds: float, clock: Clock, work: Coroutine[Any, Any, None]) -> bool:
    """Do work for so long, and cancel it then; return whether it has ended by itself."""
    task = asyncio.get_running_loop().create_task(work, name="closing actors")
    over = asyncio.Event()
    timer = clock.call_later(seconds, over.set)
    waiting = asyncio.get_running_loop().create_task(over.wait(), name="closing actors, grace period")
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        ended = task.done()
    finally:
        timer.cancel()
        for ending in (waiting, task):
            ending.cancel()
            await asyncio.wait([ending])
    if ended:
        task.result()
    return ended


class ActorSystem:
    """Actors on the running event loop; `async with ActorSystem() as system:` closes it at the end."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        ask_timeout_s: float = 30.0,
        restarts_max: int = 5,
        restart_window_s: float = 60.0,
        restart_backoff_s: float = 0.1,
        restart_backoff_max_s: float = 10.0,
        close_grace_s: float = 5.0,
        mailbox_capacity: int = 10_000,
        passivate_after_s: float | None = 60.0,
        live_max: int | None = 10_000,
        on_failure: Callable[[ActorFailure], object] | None = None,
    ) -> None:
        """Make a system on the running event loop.

        Args:
            clock: where time comes from; None = the machine's.
            ask_timeout_s: seconds until an unanswered ask ends with AskTimeout, where the ask says nothing else.
            restarts_max: restarts of a failing actor allowed within `restart_window_s`; then it is stopped.
            restart_backoff_s: pause before the first restart in the window; it doubles up to
                `restart_backoff_max_s`.
            close_grace_s: how long leaving `async with` waits for actors to finish; see `close`.
            mailbox_capacity: most messages that may wait for one actor, where its class says nothing else.
            passivate_after_s: how long an actor that `may_passivate` is idle before it is stopped, to be made anew by
                its next message; None = it is not stopped for that.
            live_max: most actors that live before such idle ones are stopped, longest idle first; None = any number.
            on_failure: called on the loop with each failure of any actor.

        Raises:
            ConfigError: no event loop is running, or a setting cannot work.
        """
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "an ActorSystem is made inside a running event loop, in an `async def`; without one, write `with "
                "EventSourcedSystem() as system`, which takes plain actors too"
            ) from None
        if not (ask_timeout_s > 0 and close_grace_s >= 0):
            raise ConfigError("ask_timeout_s must be > 0 and close_grace_s >= 0")
        if mailbox_capacity < 1 or not (passivate_after_s is None or passivate_after_s >= 0):
            raise ConfigError("mailbox_capacity must be >= 1, and passivate_after_s None or >= 0")
        if live_max is not None and live_max < 1:
            raise ConfigError("live_max must be None or >= 1")
        self.clock: Clock = SystemClock() if clock is None else clock
        policy = RestartPolicy(
            restarts_max=restarts_max,
            window_s=restart_window_s,
            backoff_s=restart_backoff_s,
            backoff_max_s=restart_backoff_max_s,
        )
        self.supervisor = Supervisor(policy, self.clock, on_failure)
        self.context = contextvars.copy_context()
        self.context.run(current_handling.set, None)
        self.mailbox_capacity = mailbox_capacity
        self.passivation = Passivation(self.clock, passivate_after_s, live_max)
        self._from_threads = CrossThreadQueue(self.loop, self.context)
        self._ask_timeout_s = ask_timeout_s
        self._close_grace_s = close_grace_s
        self._open_asks = OpenAsks(self.clock)
        self._factories: dict[str, Callable[[str], Actor]] = {}
        self._cells: dict[str, ActorCell] = {}
        self._failed: dict[str, str] = {}
        self._posted: dict[str, int] = {}  # messages of other threads that are on their way, by address
        self._posting = threading.Lock()
        self.courier: Callable[[ActorRef, Any], object] = ActorRef.tell
        """Takes what effects have brought to the actors that asked for them; a simulation's does so twice or late."""
        self.sheds = 0
        """Messages that were turned away because too many waited."""
        self._started = 0
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async with moved_after(error, self.clock):
            await self.close()

    # The directory

    def register(self, kind: str, factory: Callable[[str], Actor]) -> None:
        """Let messages to `"<kind>/<id>"` start an actor there, made by `factory(id)`.

        Raises:
            ConfigError: the kind is empty, contains a slash, or is registered already.
        """
        if not kind or "/" in kind:
            raise ConfigError(f"{kind!r} cannot be a kind of actor; use a word without a slash, such as 'session'")
        if kind in self._factories:
            raise ConfigError(f"the kind {kind!r} is registered already; use another word")
        self._factories[kind] = factory

    def knows(self, kind: str) -> bool:
        """Return whether a kind of actors is registered."""
        return kind in self._factories

    def ref(self, address: str) -> ActorRef:
        """Return a ref to an address; nothing is started, and nobody needs to be there yet. From any thread."""
        return ActorRef(self, address)

    def live(self) -> tuple[str, ...]:
        """Return the addresses that have an actor now (or one being started or restarted), oldest first."""
        return tuple(self._cells)

    def live_count(self) -> int:
        """Return how many addresses have an actor now."""
        return len(self._cells)

    def background(self, name: str, work: Work, /, over: Callable[[], None] | None = None) -> Background:
        """Begin work that must not end before its owner ends it; see `Background`."""
        return Background(name, work, over, self.supervisor.begun_again)

    @property
    def failures(self) -> tuple[ActorFailure, ...]:
        """The last failures of actors, at most 1,000, oldest first."""
        return tuple(self.supervisor.failures)

    @property
    def parked(self) -> tuple[ParkedMessage, ...]:
        """The last told messages that no handler answered, at most 100, oldest first; tell them again if you wish."""
        return tuple(self.supervisor.parked)

    def forgive(self, address: str) -> bool:
        """Let an address that its supervisor stopped be started again; return whether it was stopped so."""
        return self._failed.pop(address, None) is not None

    async def start(
        self, factory: Callable[..., Actor], *args: Any, address: str | None = None, **kwargs: Any
    ) -> ActorRef:
        """Start an actor, and return its ref when its `on_start` is done.

        Args:
            factory: the actor's class, or a function that returns an instance; called again, with the same
                arguments, for each restart.
            address: where it can be reached; None = the factory's name and a number, such as `"Counter/3"`.

        Raises:
            ConfigError: the address is in use.
            ActorStopped: the system is closing.
            Exception: what the factory or `on_start` raised; the actor does not exist then.
        """
        return await self.start_under(None, factory, args, kwargs, address)

    async def start_under(
        self,
        parent: ActorCell | None,
        factory: Callable[..., Actor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        address: str | None,
    ) -> ActorRef:
        """For cells: start an actor that stops with `parent`."""
        if address is None:
            self._started += 1
            address = f"{getattr(factory, '__name__', 'actor')}/{self._started}"
        if address in self._cells:
            raise ConfigError(f"the address {address!r} is in use; stop that actor, or choose another address")
        if self._closing or (parent is not None and parent.closed):
            raise ActorStopped(address, "it was not started, since its system or its parent is closing")
        self._failed.pop(address, None)
        cell = ActorCell(self, address, lambda _: factory(*args, **kwargs), parent, explicit=True)
        self._cells[address] = cell
        if parent is not None:
            parent.dependents.children[address] = cell
        reply = Reply(self.loop, address)
        self._open_asks.add(reply, math.inf)
        cell.put(START, reply)
        await reply
        return self.ref(address)

    def bridge(self, thread_actor: pykka.ActorRef[Any]) -> ThreadActorBridge:
        """Return a way to ask a `pykka.ThreadingActor` that suspends the asking handler, not the loop."""
        return ThreadActorBridge(self, thread_actor)

    # For refs

    def unreachable_because(self, address: str) -> str | None:
        """For refs and cells: return why nobody would take a message for the address, or None if an actor would."""
        cell = self._cells.get(address)
        if cell is not None and (cell.open or (self._factory(address) is not None and not self._closing)):
            return None
        if address in self._failed:
            return f"{self._failed[address]}. system.forgive({address!r}) lets it start again"
        if self._closing:
            return "its actor system is closed or closing"
        if cell is not None:
            return "it is stopping and takes no more messages"
        if self._factory(address) is None:
            return "nobody is there: it stopped or was never started. Start it, or register its kind"
        return None

    def cell_for(self, address: str) -> ActorCell:
        """For refs and cells: return the cell of an address, made if need be; raise ActorStopped if none can be."""
        reason = self.unreachable_because(address)
        if reason is not None:
            raise ActorStopped(address, reason)
        cell = self._cells.get(address)
        if cell is None:
            factory = self._factory(address)
            assert factory is not None
            cell = self._cells[address] = ActorCell(self, address, factory)
            self.passivation.make_room(len(self._cells))
        return cell

    def instance(self, address: str) -> Actor | None:
        """For refs and cells: return the present instance at an address, if there is one."""
        cell = self._cells.get(address)
        return None if cell is None else cell.actor

    def class_at(self, address: str) -> type[Actor]:
        """For refs and cells: return the class of the present instance, or `Actor` while there is none."""
        actor = self.instance(address)
        return Actor if actor is None else type(actor)

    def deliver(self, ref: ActorRef, message: object, reply: Reply, timeout_s: float | None) -> None:
        """For refs and cells: put an asked message into its mailbox, or fail its reply. On the loop only."""
        cell = ref.cell
        if cell is None or not cell.open:
            try:
                cell = ref.cell = self.cell_for(ref.address)
            except ActorStopped as error:
                reply.settle(error=error)
                return
        self.expect(reply, timeout_s)
        try:
            cell.put(message, reply)
        except BackpressureShed as error:
            reply.settle(error=error)
            return
        if reply.waited_for_in is not None:
            reply.waited_for_in.wait_for(reply)

    def expect(self, reply: Reply, timeout_s: float | None) -> None:
        """For refs and cells: have a reply come in time, be it an error; None = `ask_timeout_s`."""
        self._open_asks.add(reply, self._ask_timeout_s if timeout_s is None else timeout_s)

    def stop_address(self, address: str, reply: Reply, *, now: bool) -> None:
        """For refs and cells: stop the actor at an address; the reply is False if there is none. On the loop only."""
        cell = self._cells.get(address)
        if cell is None:
            reply.settle(False)
        else:
            self._open_asks.add(reply, math.inf)
            cell.request_stop(now=now, reply=reply)

    # Other threads

    def post(
        self,
        ref: ActorRef,
        message: object,
        reply: Reply | None,
        timeout_s: float | None = None,
    ) -> None:
        """For refs and cells: send from a thread that is not the loop's; an ask gets the error as its reply."""
        address = ref.address
        cell = self._cells.get(address)
        reason = self.unreachable_because(address) if cell is None or not cell.open else None
        error = ActorStopped(address, reason) if reason is not None else self._count_posted(address, cell, message)
        if error is None and not self._from_threads.enter(
            partial(self._deliver_posted, ref, message, reply, timeout_s)
        ):
            self._uncount_posted(address)
            error = ActorStopped(address, "its event loop is closed")
        if error is not None:
            if reply is None:
                raise error
            reply.settle(error=error)

    def post_stop(self, address: str, reply: Reply, *, now: bool) -> None:
        """For refs and cells: stop an address from a thread that is not the loop's."""
        if not self._from_threads.enter(lambda: self.stop_address(address, reply, now=now)):
            reply.settle(False)

    def _count_posted(self, address: str, cell: ActorCell | None, message: object) -> BackpressureShed | None:
        depth, capacity = (0, self.mailbox_capacity) if cell is None else (cell.depth(), cell.capacity)
        with self._posting:
            posted = self._posted.get(address, 0)
            if depth + posted >= capacity and not is_vital(message):
                self.sheds += 1
                return BackpressureShed(depth + posted, capacity, of=address)
            self._posted[address] = posted + 1
        return None

    def _uncount_posted(self, address: str) -> None:
        with self._posting:
            posted = self._posted.get(address, 0)
            if posted > 1:
                self._posted[address] = posted - 1
            else:
                self._posted.pop(address, None)

    def _deliver_posted(
        self,
        ref: ActorRef,
        message: object,
        reply: Reply | None,
        timeout_s: float | None,
    ) -> None:
        self._uncount_posted(ref.address)
        if reply is not None:
            self.deliver(ref, message, reply, timeout_s)
            return
        try:
            cell = self._cells.get(ref.address)
            if cell is None or not cell.open:
                cell = self.cell_for(ref.address)
            cell.put(message, None)
        except (ActorStopped, BackpressureShed) as error:
            self.set_aside(ref.address, message, str(error))

    # For cells

    def note_shed(self) -> None:
        """For cells: count a message that finds no room in a mailbox."""
        with self._posting:
            self.sheds += 1

    def replace(self, cell: ActorCell) -> ActorCell | None:
        """For refs and cells: take a closed cell out of the directory; return the one that waiting messages start."""
        if self._cells.get(cell.address) is cell:
            del self._cells[cell.address]
        if not cell.has_messages() or self.unreachable_because(cell.address) is not None:
            return None
        return self.cell_for(cell.address)

    def remember_failed(self, address: str, reason: str) -> None:
        """For refs and cells: refuse messages to an address that its supervisor stopped, until it is forgiven."""
        self._failed[address] = reason

    def set_aside(self, address: str, message: object, reason: str) -> None:
        """For refs and cells: log that a told message was not handled, and keep it among those `parked`."""
        log.warning("a message of type %s told to %s is set aside: %s", type(message).__qualname__, address, reason)
        self.supervisor.parked.append(ParkedMessage(address=address, message=message, reason=reason))

    def _factory(self, address: str) -> Callable[[str], Actor] | None:
        kind, slash, identifier = address.partition("/")
        return self._factories.get(kind) if slash and identifier else None

    # The end

    async def close(self, grace_s: float | None = None) -> tuple[str, ...]:
        """Stop all actors; never hangs.

        No actor is started from now on; live ones go on to the end of their mailboxes. First those that messages
        started stop, all at once; then those started by `start`, last started first, so that an actor may rely
        until its end on those started before it. After `grace_s` seconds what is left is stopped now: queued
        messages are answered with ActorStopped and waiting handlers cancelled. What does not end even then,
        within a second, is abandoned.

        Args:
            grace_s: None = the system's `close_grace_s`.

        Returns:
            The addresses that were abandoned, which were also logged; empty if all stopped.

        Raises:
            WouldDeadlock: called inside a handler of this system; nothing was stopped.
        """
        handling = current_handling.get()
        if handling is not None and handling.active() and self._cells.get(handling.cell.address) is handling.cell:
            raise WouldDeadlock(
                f"closing the system inside a handler of {handling.cell.address} would wait for that handler; "
                "let the code that made the system close it"
            )
        self._closing = True
        self.passivation.end()
        try:
            await stop_all(self._cells, self.clock, self._close_grace_s if grace_s is None else grace_s)
        finally:
            abandoned = tuple(self._cells)
            for cell in list(self._cells.values()):
                cell.abandon("its actor system was closed and did not wait for it any longer")
            self.passivation.end()
            self._open_asks.end_all("its actor system was closed before it answered")
        if abandoned:
            log.error("closing abandoned %d actors that did not stop: %s", len(abandoned), ", ".join(abandoned))
        return abandoned
