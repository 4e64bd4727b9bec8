"""One address: its mailbox, its present instance, and what happens when a message is handled.

Read `refold.actors.kernel.actor` first. A cell outlives its instances: refs lead to it, and a restart changes only
`actor`. It lives on the loop's thread only; other threads hand their messages to the system, which puts them here.

How it runs. A message put into an idle mailbox schedules one *activation*, a callback of the loop, which handles
messages until none is left. A handler that returns without waiting costs no more than that. As soon as something has
to wait (an async handler, a start, a failure, a stop), a task takes over, goes on with the mailbox, and ends when
the mailbox is empty and the actor says of no work that its end is to come: an idle actor has neither task nor queue.

The rules protected here: one message at a time, in order of arrival; an error of any class
stops at this border, except KeyboardInterrupt and the cancellation of our own task; every asker gets an answer.
"""

# What a hook returns is Any, and `isinstance` cannot tell what a coroutine of it will result in.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from types import CoroutineType
from typing import Any, Final, Protocol, TypeVar

from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr

from refold.actors.kernel.actor import Actor
from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.ref import START, STOP, ActorRef, Mailbox, Signal, System
from refold.actors.kernel.reply import Handling, Reply, current_handling
from refold.actors.kernel.supervision import Dependents, Moment, ParkedMessage, Passivation, log
from refold.events.core.cleaning import error_words
from refold.events.core.errors import LogFormatError, RefoldError

R = TypeVar("R")

MESSAGES_PER_ACTIVATION = 64
"""Messages that one actor handles before the rest of the loop goes on."""


_SPECIAL: Final = frozenset((Signal, ProxyCall, ProxyGetAttr, ProxySetAttr))
"""Types of messages that are not for `on_receive`."""

Work = Coroutine[Any, Any, None]


class _Interrupted(BaseException):
    """The cell waits no longer, since `request_stop(now=True)` was called; STOP is next in its mailbox."""


class CellSystem(System, Protocol):
    """`ActorSystem` as its cells see it."""

    context: Context
    passivation: Passivation

    def remember_failed(self, address: str, reason: str) -> None: ...
    def replace(self, cell: "ActorCell") -> "ActorCell | None": ...
    async def start_under(
        self,
        parent: "ActorCell | None",
        factory: Callable[..., Actor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        address: str | None,
    ) -> ActorRef: ...


class ActorCell(Mailbox[CellSystem]):
    """The mailbox and the life of one address."""

    __slots__ = (
        "_along",
        "_dependents",
        "_factory",
        "_interrupted",
        "_next",
        "_passivating",
        "_restarts_s",
        "_stop_now",
        "_task",
        "_waits",
        "actor",
        "closed",
        "explicit",
        "open",
        "parent",
    )
    handling: Handling | None

    def __init__(
        self,
        system: CellSystem,
        address: str,
        factory: Callable[[str], Actor],
        parent: "ActorCell | None" = None,
        *,
        explicit: bool = False,
    ) -> None:
        super().__init__(system, address)
        self.parent = parent
        """Whose child it is; it stops first."""
        self.explicit = explicit
        """Whether it was started by a call of `start`, not by a message."""
        self.actor: Actor | None = None
        """The instance that handles messages; None before its start, between restarts and after the end."""
        self.open = True
        """Whether it takes messages as a matter of course: no stop was requested."""
        self.closed = False
        """Whether this life of the address is over; refs then look for a new cell."""
        self._factory = factory
        self._along: list[Reply] = []  # to messages that are handled together with the present one
        self._task: asyncio.Task[None] | None = None  # held here, since the loop holds tasks weakly
        self._next: asyncio.Future[None] | None = None  # what the task waits for while nothing is to be handled
        self._passivating = False  # it stops for being idle
        self._waits = False  # its handlers were async of late: activations go straight to a task
        self._stop_now = False  # nothing that can be interrupted is to be waited for any more
        self._interrupted = False  # the task was cancelled for that reason
        self._dependents: Dependents | None = None
        self._restarts_s: list[float] | None = None

    def request_stop(self, *, now: bool, reply: Reply | None = None) -> Reply:
        """Stop after the messages that are queued, or `now`; return the reply, which becomes True when it is done.

        Stopping now answers what is queued with ActorStopped and cancels a handler that waits, except where that
        handler itself is the caller: it may return first.
        """
        self.open = False
        if reply is None:
            reply = Reply(self.system.loop, self.address)
        if self.closed:
            reply.settle(True)
            return reply
        if now:
            self._stop_now = True
            self._refuse_messages("it was stopped before it handled the message; nothing was done")
        self.put(STOP, reply)
        if now:
            self._interrupt()
        return reply

    def passivate(self) -> None:
        """Let the actor, which is at rest, go; what arrives from now on is for its next life."""
        self.open = False
        self._passivating = True
        self.put(STOP, None)

    def _interrupt(self) -> None:
        """Cancel the hook that waits now, unless it is the caller's own or must not be interrupted."""
        if self.handling is None or not self.handling.interruptible or self._interrupted:
            return
        task = self._task
        if task is not None and task is not asyncio.current_task():
            self._interrupted = True
            task.cancel()

    def _rest(self) -> None:
        self._queue = None
        self._running = False
        actor = self.actor
        if actor is None or self.explicit or self.parent is not None or not self.open:
            return  # The next message could not make it anew.
        try:
            rests = actor.may_passivate()
        except Exception as error:  # noqa: BLE001 - the actor's border
            self.system.supervisor.report(self.address, error, "background")
            return
        if rests and (self._dependents is None or not self._dependents.busy()):
            self.system.passivation.rested(self, self.system.live_count())

    # Handling messages

    def take_along(self, wanted: Callable[[object], bool], most: int) -> list[tuple[Any, Reply]]:
        taken: list[tuple[Any, Reply]] = []
        queue = self._queue
        while queue and len(taken) < most:
            message, reply = queue[0]
            if reply is None or reply.withdrawn or not wanted(message):
                break
            queue.popleft()
            taken.append((message, reply))
        self._along = [reply for reply in self._along if not reply.ready()]
        self._along += [reply for _, reply in taken]
        return taken

    def _fail_along(self, error: Exception) -> None:
        along, self._along = self._along, []
        for reply in along:
            reply.settle(error=error)

    def put_at_once(self, message: object) -> None:
        """Add a message as `put` does; where the actor is at rest, and need not wait for it, it is handled by then."""
        if self._running or self._waits or self.actor is None or self._next is not None:
            self.put(message, None)
            return
        self._queue = deque([(message, None)])
        self._running = True
        self.system.passivation.woken(self)
        self.system.context.copy().run(self._activate)

    def _schedule(self) -> None:
        self.system.passivation.woken(self)
        if self._next is not None:
            if not self._next.done():
                self._next.set_result(None)
        elif self._waits:
            self._continue_in_task()
        else:
            self.system.loop.call_soon(self._activate, context=self.system.context.copy())

    def _activate(self) -> None:
        """Handle messages until none is left, one has to wait, or the rest of the loop has waited long enough."""
        # A task for each message would cost more than most handlers do, so they are called here, in a callback of the
        # loop. One that has to wait returns a coroutine, which has not taken its first step, so that a task can begin
        # it as if it had been called there. From then on only the task may handle messages, or two would be handled at
        # a time. So every way to a task returns at once; `_running` stays set, by which a message that comes before the
        # task's first step is only queued; and the task goes on with the same queue.
        actor, queue = self.actor, self._queue
        if actor is None:
            self._continue_in_task()
            return
        for _ in range(MESSAGES_PER_ACTIVATION):
            if not queue:
                self._rest()
                return
            message, reply = queue.popleft()
            if type(message) in _SPECIAL or (reply is not None and reply.withdrawn):
                self._continue_in_task(self._take_special(message, reply), reply)
                return
            try:
                result = actor.on_receive(message)
            except KeyboardInterrupt as error:
                self._end_by(error, reply)
                raise
            except BaseException as error:  # noqa: BLE001 - the actor's border
                self._continue_in_task(self._contain(error, message, reply), reply)
                return
            if isinstance(result, CoroutineType):
                self._waits = True
                self._continue_in_task(self._conclude(result, message, reply), reply, message, result)
                return
            if reply is not None:
                reply.settle(result)
        self._schedule()

    def _continue_in_task(
        self, first: Work | None = None, reply: Reply | None = None, message: object = None, handler: Any = None
    ) -> None:
        system = self.system
        work = self._run(first, reply)
        self._task = system.loop.create_task(work, name=self.address, context=system.context.copy())
        self._task.add_done_callback(partial(self._ended_unbegun, (work, first, handler), message, reply))

    def _ended_unbegun(self, unbegun: tuple[Any, ...], message: object, reply: Reply | None, task: Any) -> None:
        """Where other code cancelled our task before its first step: end as where that happens later."""
        if task.cancelled() and task is self._task and not self.closed:
            for work in filter(None, unbegun):
                work.close()
            if unbegun[-1] is not None and self._queue is not None:  # No step of its handler was taken.
                self._queue.appendleft((message, reply))
                reply = None
            self._end_by(CancelledError(), reply)

    async def _run(self, first: Work | None, reply: Reply | None) -> None:
        """Handle messages until none is left and none is sure to come; what has to wait does so here."""
        while True:
            try:
                if first is not None:
                    await first
                    first = None
                handled = 0
                while self._queue:
                    handled += 1
                    if handled % MESSAGES_PER_ACTIVATION == 0:
                        await asyncio.sleep(0)
                    message, reply = self._queue.popleft()
                    actor = self.actor
                    if actor is None or type(message) in _SPECIAL or (reply is not None and reply.withdrawn):
                        await self._take_special(message, reply)
                        continue
                    try:
                        result = actor.on_receive(message)
                        if isinstance(result, CoroutineType):
                            result = await self._handled(result, actor)
                        else:
                            self._waits = False
                    except BaseException as error:  # noqa: BLE001 - the actor's border
                        await self._contain(error, message, reply)
                    else:
                        if reply is not None:
                            reply.settle(result)
            except BaseException as error:
                self._end_by(error, reply)
                raise
            if not self._expects_more():
                self._task = None
                self._rest()
                return
            await self._until_next()

    def _expects_more(self) -> bool:
        if self.actor is None or not self.open:
            return False
        try:
            return self.actor.expects_more()
        except Exception as error:  # noqa: BLE001 - the actor's border
            self.system.supervisor.report(self.address, error, "background")
            return False

    async def _until_next(self) -> None:
        """Wait for the next message. Nothing is handled meanwhile, so that other code may cancel the task."""
        self._queue = None
        self._running = False
        self._next = self.system.loop.create_future()
        try:
            await self._next
        except CancelledError:
            if not self.closed:
                self._task = self._next = None
                if self._running:
                    self._schedule()
            raise
        self._next = None

    async def _take_special(self, message: object, reply: Reply | None) -> None:
        if reply is not None and reply.withdrawn:
            return
        if message is STOP:
            await self._stop(reply)
        elif message is START:
            await self._start_for(reply)
        elif self.actor is None:
            if self._queue is not None:
                self._queue.appendleft((message, reply))
            await self._start_on_message()
        else:
            await self._conclude(self._carry_out(message), message, reply)

    async def _conclude(self, handler: Coroutine[Any, Any, object], message: object, reply: Reply | None) -> None:
        assert self.actor is not None
        try:
            result = await self._handled(handler, self.actor)
        except BaseException as error:  # noqa: BLE001 - the actor's border
            await self._contain(error, message, reply)
        else:
            if reply is not None:
                reply.settle(result)

    async def _carry_out(self, message: object) -> object:
        assert self.actor is not None
        result = self.actor._handle_receive(message)  # pyright: ignore[reportPrivateUsage] - of pykka.Actor
        return await result if isinstance(result, CoroutineType) else result

    def _handled(self, handler: Coroutine[Any, Any, object], actor: Actor) -> Coroutine[Any, Any, object]:
        limit_s = actor.handler_timeout_s
        return self._wait(handler) if limit_s is None else self._wait_for(handler, limit_s)

    async def _wait_for(self, handler: Coroutine[Any, Any, object], limit_s: float) -> object:
        """Await a message's handler for so many seconds."""
        over = False

        def end() -> None:
            nonlocal over
            over = True
            self._interrupt()

        timer = self.system.clock.call_later(limit_s, end)
        try:
            return await self._wait(handler)
        except _Interrupted:
            if not over or self._stop_now:
                raise
            raise TimeoutError(
                f"{self.address} was interrupted, since it had not handled a message within {limit_s:g} s"
            ) from None
        finally:
            timer.cancel()

    async def _wait(self, hook: Coroutine[Any, Any, R], *, interruptible: bool = True) -> R:
        """Await a hook, visible to the search for circles and, if so wished, open to `request_stop(now=True)`."""
        if self._stop_now and interruptible:
            hook.close()
            raise _Interrupted
        handling = self.handling = Handling(self)
        if not interruptible:
            handling.interruptible = False
        current_handling.set(handling)
        try:
            return await hook
        except CancelledError:
            if self._interrupted:
                raise _Interrupted from None
            raise
        finally:
            self.handling = None
            if self._interrupted and self._task is not None:
                self._interrupted = False
                self._task.uncancel()

    # Failing

    async def _contain(self, error: BaseException, message: object, reply: Reply | None) -> None:
        """Answer for a handler that raised: a refusal ends here, a failure restarts the actor."""
        # pykka lets a BaseException out of its loop: every actor stops, and the asker waits for ever. Here it ends, and
        # only what the interpreter or the owner of our task wants passes on.
        if self._passes(error):
            raise error
        if isinstance(error, _Interrupted):
            stopped = ActorStopped(self.address, "it was stopped while it handled the message")
            self._fail_along(stopped)
            if reply is not None:
                reply.settle(error=stopped)
            return
        # Askers are told before the restart and not after it. Its pauses grow; and the new instance may ask, in
        # `on_start`, the very actor that waits here for its answer and handles nothing until it has it.
        self._fail_along(self._for_asker(error))
        if reply is not None:
            reply.settle(error=self._for_asker(error))
        elif isinstance(error, RefoldError):
            self.system.set_aside(self.address, message, f"the actor refused it: {error_words(error)}")
        else:
            reason = f"the actor failed on it: {error_words(error)}"
            self.system.supervisor.parked.append(ParkedMessage(address=self.address, message=message, reason=reason))
        # A refusal is an answer that the handler chose. Were it a failure, one caller with wrong arguments could
        # restart the actor of all others, and have it stopped for failing too often.
        if isinstance(error, RefoldError):
            return
        failed, self.actor = self.actor, None
        # What the instance knows cannot be trusted, so nothing reaches it now; the mailbox waits for the next one.
        if failed is not None:
            await self._call_on_failure(failed, error)
        await self._recover(error, "message")

    def _passes(self, error: BaseException) -> bool:
        """Return whether an error is no failure of the actor: the interpreter or our task's owner wants an end."""
        if isinstance(error, CancelledError):
            return self._task is not None and self._task.cancelling() > 0
        return isinstance(error, KeyboardInterrupt)

    def _for_asker(self, error: BaseException) -> Exception:
        """Return the error itself, or ActorStopped for one that would act on the asker, such as CancelledError."""
        if isinstance(error, Exception):
            return error
        stopped = ActorStopped(self.address, f"it let {error_words(error)} out; whether it had an effect is unknown")
        stopped.__cause__ = error
        return stopped

    async def _call_on_failure(self, failed: Actor, error: BaseException) -> None:
        try:
            result = failed.on_failure(type(error), error, error.__traceback__)
            if isinstance(result, CoroutineType):
                await self._wait(result)
        except _Interrupted:
            return
        except BaseException as second_error:
            if self._passes(second_error):
                raise
            self.system.supervisor.report(self.address, second_error, "failure")

    async def _recover(self, error: BaseException, during: Moment) -> None:
        """Start new instances until one stands or the supervisor has had enough; the mailbox waits meanwhile."""
        if self._restarts_s is None:
            self._restarts_s = []
        while not self.closed:
            await self._end_dependents(now=True)
            pause_s = self.system.supervisor.judge(self.address, error, during, self._restarts_s)
            if pause_s is None:
                why = "its log is damaged" if isinstance(error, LogFormatError) else "it failed too often"
                reason = f"{why} and it was stopped; the last failure was {error_words(error)}"
                self.system.remember_failed(self.address, reason)
                self._close(reason)
                return
            try:
                await self._wait(self.system.clock.sleep(pause_s))
                await self._begin()
                return
            except _Interrupted:
                await self._end_dependents(now=True)
                return
            except BaseException as next_error:
                if self._passes(next_error):
                    raise
                error, during = next_error, "start"

    def _end_by(self, error: BaseException, reply: Reply | None) -> None:
        """End with our task or our loop: answer every asker, leave nothing behind that claims to live."""
        reason = f"its event loop or task was ended by {error_words(error)}"
        if isinstance(error, CancelledError) and self.actor is not None:
            log.info("the task of actor %s was cancelled, by other code or with its loop", self.address)
            self.actor.on_cancelled()
        self._fail_along(ActorStopped(self.address, reason))
        if reply is not None:
            reply.settle(error=ActorStopped(self.address, reason))
        if self._task is not None and not isinstance(error, CancelledError):
            self._task.add_done_callback(asyncio.Task[None].exception)  # it is on its way to the loop: no second report
        self.abandon(reason)

    def abandon(self, reason: str) -> None:
        if self._dependents is not None:
            self._dependents.cancel_tasks()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._close(reason)

    # Starting and stopping

    async def _begin(self) -> None:
        actor = self._factory(self.address.partition("/")[2])
        actor._cell = self  # pyright: ignore[reportPrivateUsage] - from `on_start` on the actor is ours
        if actor.mailbox_capacity is not None:
            self.capacity = actor.mailbox_capacity
        result = actor.on_start()
        if isinstance(result, CoroutineType):
            await self._wait(result)
        if not self.closed:
            self.actor = actor

    async def _start_for(self, reply: Reply | None) -> None:
        try:
            await self._begin()
        except BaseException as raised:
            error = raised
            if self._passes(error):
                raise
            await self._end_dependents(now=True)
            if isinstance(error, _Interrupted):
                error = ActorStopped(self.address, "it was stopped while it started")
            self._close(f"it did not start: {error_words(error)}")
            if reply is not None:
                reply.settle(error=self._for_asker(error))
        else:
            if reply is not None:
                reply.settle(True)

    async def _start_on_message(self) -> None:
        try:
            await self._begin()
        except _Interrupted:
            await self._end_dependents(now=True)
        except BaseException as error:
            if self._passes(error):
                raise
            await self._recover(error, "start")

    async def _stop(self, reply: Reply | None) -> None:
        await self._end_dependents(now=False)
        if self.actor is not None:
            try:
                result = self.actor.on_passivate() if self._passivating else self.actor.on_stop()
                if isinstance(result, CoroutineType):
                    await self._wait(result, interruptible=False)
            except BaseException as error:
                if self._passes(error):
                    raise
                self.system.supervisor.report(self.address, error, "stop")
            await self._end_dependents(now=True)  # what on_stop itself began
        self._close("it stopped before it handled the message; nothing was done")
        if reply is not None:
            reply.settle(True)

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.open = False
        self.closed = True
        self.actor = None
        if self.parent is not None and self.parent._dependents is not None:
            self.parent._dependents.children.pop(self.address, None)
        self.system.passivation.woken(self)
        if self._passivating:
            self.system.passivation.going -= 1
        heir = self.system.replace(self)
        if heir is None:
            self._refuse_all(reason)
        else:
            self._hand_over(heir)

    # What lives and ends with an instance

    @property
    def dependents(self) -> Dependents:
        """Children and background work, made when first needed."""
        if self._dependents is None:
            self._dependents = Dependents(self.system, self.address)
        return self._dependents

    async def start_child(
        self, factory: Callable[..., Actor], args: tuple[Any, ...], kwargs: dict[str, Any], address: str | None
    ) -> ActorRef:
        return await self.system.start_under(self, factory, args, kwargs, address)

    async def _end_dependents(self, *, now: bool) -> None:
        if self._dependents is not None:
            if self._dependents.children:
                await self._wait(self._dependents.stop_children(now=now), interruptible=False)
            await self._dependents.end_tasks()
            self._dependents = None
