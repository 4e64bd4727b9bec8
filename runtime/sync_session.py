"""A session for threads: the same commands and questions as `Session`, each of which blocks until it is answered.

Read `refold.session` for what each of them does. Any number of threads may use one SyncSession at once.
"""

from collections.abc import Iterator
from functools import partial

from refold.actors.cancellation import CancellationToken
from refold.agent_runtime import AgentRuntime
from refold.events.codec import RecordedEvent
from refold.events.ids import SessionId
from refold.events.session_events import SessionEvent
from refold.given_input import Input
from refold.loop_thread import LoopThread
from refold.session import EVENTS_PAGE, Session
from refold.subscription import CAPACITY
from refold.sync_face import blocking, run_on_loop
from refold.sync_streams import SyncRunStream, SyncSubscription


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
