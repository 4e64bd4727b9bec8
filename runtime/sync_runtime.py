"""A runtime for threads: `with AgentRuntime(...) as runtime` gives one, whose loop runs in a thread of its own.

Read `refold.agent_runtime` for what each method does, `refold.loop_thread` for the thread, and `refold.sync_session`
for the sessions. The rule: it is the same runtime, reached from outside; nothing is decided here.
"""

import atexit
from collections.abc import Callable, Mapping
from contextlib import suppress

from refold.actors.actor_system import ActorSystem
from refold.agent import Agent
from refold.agent_runtime import AgentRuntime
from refold.loop_thread import AlreadyClosed, LoopThread
from refold.metrics.live import SyncMetrics
from refold.options import Settings
from refold.session_hub import Subscriber
from refold.skill import Skill
from refold.step_snapshots import StepSnapshots
from refold.subscription import CAPACITY
from refold.sync_face import blocking, run_on_loop
from refold.sync_session import SyncSession
from refold.sync_streams import SyncSubscription
from refold.tool_registry import ToolRegistry


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
