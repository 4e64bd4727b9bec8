"""A runtime for threads: `with AgentRuntime(...) as runtime` gives one, whose loop runs in a thread of its own.

Read `refold.agent_runtime` for what each method does, `refold.sync.loop_thread` for the thread, and
`refold.sync.runtime` for the sessions. The rule: it is the same runtime, reached from outside; nothing is decided here.

A session for threads: the same commands and questions as `Session`, each of which blocks until it is answered.

Read `refold.sessions.session` for what each of them does. Any number of threads may use one SyncSession at once.

A run as a stream, and a subscription, for a thread that reads them with `for`.

Read `refold.sessions.stream` and `refold.sessions.subscription` for what they yield. The rule: what stands behind a
face is touched on its loop's thread only, as long as that runs; afterwards what had come is still yielded.
"""

import atexit
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Self

from refold.actors.cancellation import CancellationToken
from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.system import ActorSystem
from refold.agent_runtime import AgentRuntime
from refold.agents.agent import Agent
from refold.agents.skill import Skill
from refold.events.core.codec import RecordedEvent
from refold.events.core.ids import RunId, SessionId
from refold.events.session.events import SessionEvent
from refold.metrics.live import SyncMetrics
from refold.options import Settings
from refold.sessions.access import Input
from refold.sessions.event_bus import Subscriber
from refold.sessions.notifications import Published
from refold.sessions.outcome import RunResult
from refold.sessions.session import EVENTS_PAGE, Session
from refold.sessions.stream import RunStream
from refold.sessions.subscription import CAPACITY, Subscription
from refold.sessions.turn_checkpoints import StepSnapshots
from refold.sync.loop_thread import AlreadyClosed, LoopThread, blocking, run_on_loop
from refold.tools.registry import ToolRegistry


class SyncRunStream:
    """The events of one run and what passes by; an iterator and a context manager.

    Made by `SyncSession.stream`. For one thread at a time. Who leaves early cancels the run: inside `with`, or with
    `close`, that is durable before the thread goes on; where the iterator is just dropped, it is done soon.
    """

    def __init__(self, loop_thread: LoopThread, stream: RunStream) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = stream

    @property
    def run(self) -> RunId | None:
        """The run, once its input is durable; None before."""
        return self.asynchronous.run

    @property
    def result(self) -> RunResult:
        """How the run ended; to be read when the stream is at its end, or has been left.

        Raises:
            ConfigError: the run has not ended, or how it ended is not known here.
        """
        return self.asynchronous.result

    def close(self) -> None:
        """Leave the stream; if the run has not ended, cancel it, and return when that is durable.

        Another caller with the same key keeps the run going. A log that refuses holds nobody longer than twice the
        cancel grace. Where the runtime is closed there is nothing to leave.
        """
        with suppress(AlreadyClosed):
            self.loop_thread.run(self.asynchronous.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Published:
        with self._left_if_interrupted():
            item = _next_or_none(self.loop_thread, self.asynchronous)
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        with self._left_if_interrupted():
            self.loop_thread.run(self.asynchronous.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.loop_thread.begin(self.asynchronous.aclose)  # Not here: it belongs to the loop's thread.

    @contextmanager
    def _left_if_interrupted(self) -> Generator[None, None, None]:
        """Leave when this thread is interrupted, since the error's traceback may keep the stream from being dropped."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.close()
            raise


class SyncSubscription:
    """Yields what happens in one session, or in all: `for item in subscription`; also a context manager.

    Made by `SyncSession.follow` and `SyncRuntime.follow`, from which moment it sees everything. For one thread at a
    time, which waits for the next item as long as it takes; it ends when the runtime closes, or another thread calls
    `close`. Read `Subscription` for what it yields.
    """

    def __init__(self, loop_thread: LoopThread, subscription: Subscription) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = subscription

    @property
    def session(self) -> SessionId | None:
        """The session that it follows; None = all."""
        return self.asynchronous.session

    def close(self) -> None:
        """Leave: nothing more is taken or yielded. From any thread, any number of times."""
        with suppress(AlreadyClosed):
            self.loop_thread.run(self.asynchronous.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Published:
        item = _next_or_none(self.loop_thread, self.asynchronous)
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.loop_thread.begin(self.asynchronous.aclose)


async def _taken(items: RunStream | Subscription) -> Published | None:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return None


def _next_or_none(loop_thread: LoopThread, items: RunStream | Subscription) -> Published | None:
    try:
        return loop_thread.run(lambda: _taken(items))
    except AlreadyClosed:
        if loop_thread.ended_by is not None or (isinstance(items, RunStream) and items.run is None):
            raise
        return _left_over(items)


def _left_over(items: RunStream | Subscription) -> Published | None:
    """Return the next of what had come before the runtime closed; nothing of that has to be waited for.

    Raises:
        ActorStopped: it would have to be read from the log, which is closed.
    """
    taking = _taken(items)
    try:
        taking.send(None)
    except StopIteration as returned:
        item: Published | None = returned.value
        return item
    taking.close()
    raise ActorStopped("runtime/log", "the runtime closed before its reader had caught up; the log has the rest")


class SyncSession:
    """One conversation of a `SyncRuntime`; get it from `SyncRuntime.session`. For any number of threads.

    What `Session` says of the task that awaits holds for the thread that calls: KeyboardInterrupt, or what else a
    signal handler raises, cancels the run, and is raised when that is durable, or when twice the cancel grace and the
    close grace are over. A thread cannot be cancelled from outside; give its `send` a `CancellationToken`.

    `on_event` is called on the loop's thread, and must return quickly. Every method raises WouldDeadlock there, and
    in a thread that runs an event loop, which it would stop.
    """

    def __init__(self, loop_thread: LoopThread, session: Session, runtime: AgentRuntime) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = session
        self._runtime = runtime

    @property
    def id(self) -> SessionId:
        """Its id in the log."""
        return self.asynchronous.id

    send = blocking(Session.send)
    remind = blocking(Session.remind)
    step = blocking(Session.step)
    cancel = blocking(Session.cancel)
    decide = blocking(Session.decide)
    approvals = blocking(Session.approvals)
    resume = blocking(Session.resume)
    import_history = blocking(Session.import_history)
    clear = blocking(Session.clear)
    history = blocking(Session.history)
    checkpoint = blocking(Session.checkpoint)
    payload = blocking(Session.payload)
    spent = blocking(Session.spent)
    metadata = blocking(Session.metadata)
    steps = blocking(Session.steps)
    statistics = blocking(Session.statistics)
    state_at = blocking(Session.state_at)

    def children(self) -> "list[SyncSession]":
        """Return the sessions that calls of subagents in this one began, in order of their names.

        Raises:
            PersistenceError: the log cannot be read.

        This blocks the calling thread. An interrupt, such as Ctrl-C, counts as the cancellation of its task.
        """
        found = self.loop_thread.run(self.asynchronous.children)
        return [SyncSession(self.loop_thread, child, self._runtime) for child in found]

    def stream(
        self, content: Input, *, cancel: CancellationToken | None = None, key: str | None = None
    ) -> SyncRunStream:
        """Send an input and return an iterator of what happens in its run, as it happens.

        Use it as `with session.stream("…") as stream:` and `for item in stream:`. Read `Session.stream` for what it
        yields and raises. Who leaves before the end cancels the run.
        """
        return SyncRunStream(self.loop_thread, self.asynchronous.stream(content, cancel=cancel, key=key))

    def events(self, *, after_version: int = 0) -> Iterator[RecordedEvent[SessionEvent]]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now."""
        version = after_version
        while page := self.loop_thread.run(partial(self._runtime.recorded_after, self.id, version, EVENTS_PAGE)):
            yield from page
            if len(page) < EVENTS_PAGE:
                return
            version = page[-1].version

    def follow(self, *, after_version: int | None = None, capacity: int = CAPACITY) -> SyncSubscription:
        """Return an iterator of what happens in this session, as it happens; see `Session.follow`.

        Raises:
            ConfigError: an argument makes no sense.
            ActorStopped: the runtime is closed.
        """
        session = self.asynchronous
        subscription = run_on_loop(
            self.loop_thread, lambda: session.follow(after_version=after_version, capacity=capacity)
        )
        return SyncSubscription(self.loop_thread, subscription)


class SyncRuntime:
    """An open `AgentRuntime` for code without a loop: `with AgentRuntime(...) as runtime`. For any number of threads.

    Tools, providers and handlers run as they do in the other face: async ones on the loop's thread, plain ones in
    threads of their own, all with the context variables of where the runtime was opened. A plain tool may use the
    sessions here; one of async code is to `await` those of `asynchronous`.

    A runtime that is still open when the interpreter ends, as one that a web server holds, is closed by `atexit`, after
    the threads that are no daemons have ended.
    """

    def __init__(self, runtime: AgentRuntime) -> None:
        """Open `runtime` on a loop of its own; `with` is the usual way to do so.

        Raises:
            WouldDeadlock: an event loop runs in this thread; write `async with`.
            ConfigError: the runtime has been open already.
            LogInUse: another runtime has the log.
        """
        options = runtime.options
        patience_s = 2 * options.cancel_grace_s + options.close_grace_s
        self.asynchronous = runtime
        self.loop_thread = LoopThread(runtime, name="refold-loop", patience_s=patience_s)
        self.loop_thread.start()
        atexit.register(self._close_at_exit)

    @property
    def agent(self) -> Agent:
        """The agent that it runs."""
        return self.asynchronous.agent

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The agents that it runs, by name: the main one, and those that its tools lead to."""
        return self.asynchronous.agents

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self.asynchronous.is_closing

    @property
    def options(self) -> Settings:
        """Its settings."""
        return self.asynchronous.options

    @property
    def tools(self) -> ToolRegistry:
        """The agent's tools."""
        return self.asynchronous.tools

    @property
    def system(self) -> ActorSystem:
        """The actors; their refs are good in every thread, with a blocking `ask` outside the loop's."""
        return self.asynchronous.system

    @property
    def metrics(self) -> SyncMetrics:
        """Figures about all that is in the log."""
        return SyncMetrics(self.asynchronous.metrics)

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The agent's skills, in name order."""
        return self.asynchronous.skills

    @property
    def step_snapshots(self) -> StepSnapshots | None:
        """Writes checkpoints after turns, and counts them; None where the option is not set."""
        return self.asynchronous.step_snapshots

    @property
    def commits(self) -> int:
        """Transactions that were written to the log since the runtime opened."""
        return self.asynchronous.commits

    forget = blocking(AgentRuntime.forget)
    sessions = blocking(AgentRuntime.sessions)
    recorded_after = blocking(AgentRuntime.recorded_after)
    tools_in_force = blocking(AgentRuntime.tools_in_force)

    def session(self, session_id: str | None = None, *, restore: bool = False) -> SyncSession:
        """Return a session: a new one, or one that is in the log.

        Args:
            session_id: any text of 1 to 512 UTF-8 bytes without NUL; None = a new id is made.
            restore: the session must be in the log.

        Raises:
            ConfigError: the id cannot be one, or `restore` is set and the log has no such session.
            ActorStopped: the runtime is closed.
        """
        found = self.loop_thread.run(lambda: self.asynchronous.session(session_id, restore=restore))
        return SyncSession(self.loop_thread, found, self.asynchronous)

    def subscribe(self, subscriber: Subscriber, *, session: str | None = None) -> Callable[[], None]:
        """Call `subscriber` on the loop's thread with each event of one session, or of all; return what ends that.

        Events are durable when they are passed on. What the subscriber raises is logged and counted; it must return
        quickly, since everything else waits for it. What ends it may be called in any thread, and when all is over.
        """
        unsubscribe = run_on_loop(self.loop_thread, lambda: self.asynchronous.subscribe(subscriber, session=session))

        def end() -> None:
            with suppress(AlreadyClosed):  # The runtime is closed, and tells nobody any more.
                run_on_loop(self.loop_thread, unsubscribe)

        return end

    def follow(self, *, capacity: int = CAPACITY) -> SyncSubscription:
        """Return an iterator of what happens in all sessions from now on; see `AgentRuntime.follow`.

        Raises:
            ConfigError: the capacity is none.
            ActorStopped: the runtime is closed.
        """
        subscription = run_on_loop(self.loop_thread, lambda: self.asynchronous.follow(capacity=capacity))
        return SyncSubscription(self.loop_thread, subscription)

    def close(self, *, cancel: bool = False) -> None:
        """End the runtime, its loop and its thread; from any thread but that one, and any number of times.

        Who waits in another thread gets ActorStopped. A second call waits for the first. In a forked child there is
        nothing to end, and nothing happens.

        Args:
            cancel: end open runs as cancelled, instead of leaving them open, to go on at the next start.
        """
        if not self.loop_thread.is_ours:
            return
        try:
            with suppress(AlreadyClosed):  # It has ended already.
                self.loop_thread.run(lambda: self.asynchronous.close(cancel=cancel))
        finally:
            self.loop_thread.stop()
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close()
