"""The runtime: an agent with its subagents, one log, and the actors that work for their sessions.

Read `refold.sessions.session` for what a session can do, `refold.actors.agent.session` for the actor behind it, and
`refold.life.lifecycle` for how a runtime opens and ends. `SyncRuntime` is the same runtime for code without a loop. The
rules: a runtime owns its log from `async with` to its end; after a crash in between, the log says where every run
stands, and the next runtime goes on from there.
"""

import atexit
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, Unpack, overload

from refold.actors.calls.policy import Policy
from refold.actors.calls.protocols import Provider
from refold.actors.hosting import Host, SyncHost
from refold.actors.kernel.clock import moved_after
from refold.actors.kernel.system import ActorSystem
from refold.actors.loop_thread import AlreadyClosed, LoopThread, blocking, run_on_loop
from refold.agents.agent import Agent, AgentParts, AnyAgent, agent_of, parts_and_rest
from refold.agents.approval import ApprovalHandler
from refold.agents.skill import Skill, checked_skills
from refold.context import RuntimeContext
from refold.events.core.errors import ConfigError
from refold.events.core.ids import SessionId, checked_identifier, stream_name
from refold.events.model.configuration import AgentConfig
from refold.events.session.core import SESSION_KIND
from refold.inspection.log_reading import require_not_deleted
from refold.inspection.session_view import ListedSession, SessionsWanted, list_names, list_sessions
from refold.keeping.deletion import Deletion, UserDeletion, forget_in
from refold.keeping.retention import ENDED, EndedStatus, Retention
from refold.life.lifecycle import Lifecycle
from refold.metrics.live import SyncMetrics
from refold.options import RuntimeOptions, Settings, checked_options
from refold.providers.function import ProviderFunction
from refold.publishing.event_bus import Subscriber
from refold.publishing.subscription import CAPACITY, Subscription
from refold.sessions.access import describe_command, require_no_own_deps
from refold.sessions.run_handle import RunHandle, run_id_parts
from refold.sessions.session import Session
from refold.sessions.turn_checkpoints import StepSnapshots
from refold.stores.event_store import EventStore
from refold.sync.session import SyncRunHandle, SyncSession, SyncSubscription
from refold.tools.registry import ToolRegistry
from refold.type_parameters import Out_co


class RuntimeArguments(AgentParts[Out_co], RuntimeOptions, Generic[Out_co], total=False):
    """All that `AgentRuntime` takes by keyword beside an `AgentConfig` and its provider."""


class AgentRuntime(Generic[Out_co]):
    """Runs an agent's sessions on one log; use it as `async with AgentRuntime(...) as runtime`.

    Where no event loop runs, `with AgentRuntime(...) as runtime` gives a `SyncRuntime`, on a loop of its own.

    Args:
        agent: the agent's configuration, or a whole `Agent`.
        provider: what answers model requests: a provider, or a function of the prompt or the request, plain or async;
            with an `AgentConfig` only.
        options: those below, all of them optional; times are in seconds. With an `AgentConfig` also the rest of an
            agent, such as `tools`: see `Agent`.
        log: where events go: a path, `":memory:"`, or an open event store, which its owner closes; default
            `":memory:"`, which ends with the runtime.
        durability: `full` (default): what was acknowledged survives power loss. `normal`: it survives a crash of the
            process.
        wait_for_log_s: how long to wait for another runtime to release the log; default 30.
        append_timeout_s: after how long an append counts as hanging; default 30.
        allow_shared_folder: whether the log may lie in a folder where other users may make files, each of which is then
            refused by its name; default False.
        share: whether any number of processes may open the log by this same program: the first one owns it, the others
            reach it through that one, and one of them takes it over when the owner has ended; default False. See
            `is_owner`.
        inbox_poll_s: how often a runtime whose log is a file looks for commands of other processes; default 0.2, 0 =
            never.
        auto_resume: whether runs that an earlier process left open go on by themselves; default True, else
            `Session.resume`.
        app_version: the application's own version, recorded with each run; default None.
        deps: what the application depends on, instead of its agent's `Agent.deps`; opened and closed likewise.
        cancel_grace_s: how long a cancelled effect may take to end before it is abandoned; default 5.
        close_grace_s: how long `close` waits for running effects to reach the log; default 5.
        ask_timeout_s: after how long an unanswered ask fails; default 30.
        mailbox_capacity: most messages that may wait for one actor, such as a session; what comes then is shed; default
            10,000.
        queue_max: most inputs that may wait in one session, for their turn or for their time; the next one is refused
            with `QueueFull`, and nothing of it is recorded; default 10,000, None = any number.
        input_bytes_max: most bytes of one input, texts (in UTF-8), images and documents together; a longer one is
            refused with `CommandRejected`; default 32 MiB, None = any number.
        result_bytes_max: most bytes of one result of a tool, texts and images together. Of a longer one nothing is
            kept: the model is told its size and the limit, and the call has failed for good; default 8 MiB, None = any
            number.
        passivate_after_s: how long a session is idle before it leaves memory; its next message reads it from the log
            again; default 60, None = it stays.
        live_max: most actors in memory before idle sessions are let go, longest idle first; default 10,000, None = any
            number.
        snapshot_every: a state is kept beside the log after so many events of its stream, so that opening it folds no
            more than about so many; default 1,000, None = no such snapshots are kept or used.
        tool_threads: most synchronous tools that run at once; default 32.
        subagent_depth_max: most levels of subagents below a session, whose calls begin children of children; default 5,
            0 = none.
        restarts_max: restarts of a failing actor within `restart_window_s` before it is stopped; default 5.
        restart_window_s: the seconds in which restarts are counted; default 60.
        clock: where time comes from; default None, the machine's.
        session_ids: makes the ids of sessions that are opened without one; default None, random UUIDs.
        on_failure: called with each failure of an actor; default None.
        step_snapshots: where a checkpoint goes after every turn; default None, nowhere.
        backpressure: bounds how many inputs that callers of this process have sent are queued or run at once; the next
            `send` raises `BackpressureShed`, and nothing of it is recorded. What was sent before with its key, runs
            that go on from before a restart, inputs for a later time, those of other processes and those of subagents
            take no place and are never shed. Default None, any number.

    Raises:
        ConfigError: something is missing or cannot work.
    """

    @overload
    def __init__(
        self, agent: AgentConfig, *, provider: Provider | ProviderFunction, **options: Unpack[RuntimeArguments[Out_co]]
    ) -> None: ...
    @overload
    def __init__(self, agent: Agent[Any, Out_co], **options: Unpack[RuntimeOptions]) -> None: ...
    def __init__(
        self,
        agent: AgentConfig | Agent[Any, Out_co] | None = None,
        *,
        provider: Provider | ProviderFunction | None = None,
        **options: Unpack[RuntimeArguments[Out_co]],
    ) -> None:
        parts, rest = parts_and_rest(options)
        self.agent: Agent[Any, Out_co] = agent_of(agent, provider, parts)
        self.provider = self.agent.provider
        self.policy = self.agent.policy
        self.approval = self.agent.approval
        self.options = checked_options(rest)
        self._lifecycle = Lifecycle(self.agent, self.options)
        self.agents = self._lifecycle.agents.agents
        self.tools = self._lifecycle.agents.main.tools
        self.event_bus = self._lifecycle.event_bus
        self.metrics = self._lifecycle.metrics
        self.step_snapshots = self._lifecycle.step_snapshots

    @property
    def context(self) -> RuntimeContext:
        """What its sessions, its inbox and its metrics share of it.

        Raises:
            ConfigError: the runtime is not open.
        """
        return self._lifecycle.context

    @property
    def store(self) -> EventStore:
        """The log.

        Raises:
            ConfigError: the runtime is not open.
        """
        return self.context.store

    @property
    def system(self) -> ActorSystem:
        """The actors.

        Raises:
            ConfigError: the runtime is not open.
        """
        return self.context.system

    @property
    def host(self) -> Host:
        """Hosts event-sourced actors beside the sessions, on the same log: `await runtime.host("book", OrderBook)`.

        Raises:
            ConfigError: the runtime is not open.
        """
        return self._lifecycle.host

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The agent's skills, in name order."""
        return checked_skills(self.agent.skills)

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._lifecycle.is_closing()

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the log; with `share`, another one may."""
        return self._lifecycle.guest is None

    @property
    def commits(self) -> int:
        """Transactions that were written to the log since the runtime opened."""
        return self._lifecycle.commits

    def require_open(self) -> None:
        """Do nothing while the runtime takes commands.

        Raises:
            ConfigError: it has never been open, or belongs to another event loop or the parent process.
            ActorStopped: it is closed or closing.
        """
        self._lifecycle.require_open()

    async def tools_in_force(self) -> None:
        """Return when the tools that were registered or removed so far are so for every input that is sent now."""
        await self._lifecycle.tools_in_force()

    async def open(self) -> Self:
        """Open the runtime where no block can hold it, as in a notebook, and return it; `close` ends it.

        Raises:
            ConfigError: it has been open already, or what its agents depend on cannot be opened.
            LogInUse: another runtime has the log.
            PersistenceError: the log cannot be opened, read or written.
            AskTimeout: the log takes too long to write.
        """
        return await self.__aenter__()

    async def __aenter__(self) -> Self:
        await self._lifecycle.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async with moved_after(error, self.options.clock):
            await self.close()

    def __enter__(self) -> "SyncRuntime[Out_co]":
        self._face = SyncRuntime(self)
        return self._face

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._face.close()

    async def session(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        metadata: Mapping[str, str | None] | None = None,
        restore: bool = False,
        deps: object = None,
    ) -> Session[Out_co]:
        """Return a session: a new one, or one that is in the log.

        Args:
            session_id: any text of 1 to 512 UTF-8 bytes without NUL; None = a new id is made.
            user: whose it is, likewise; what memories hold of one user no other one sees. It is recorded with the first
                input, and stays. None = whose it is in the log, or nobody's.
            metadata: texts by text that the application has to say of it, at most 16 KiB; those of a session in the log
                are changed by it, as by `Session.describe`.
            restore: the session must be in the log.
            deps: what runs depend on that are sent, resumed or decided about by what is returned, instead of what the
                agent does. It is given unchanged, is the caller's to close, and is not recorded. None = as the agent.

        Raises:
            ConfigError: an argument cannot be one, or `restore` is set and the log has no such session, or no more.
            CommandRejected: the session is another user's, or its metadata has too many bytes.
            PersistenceError: the log cannot be read, or changed metadata could not be recorded.
        """
        self.require_open()
        described = describe_command(user, metadata)
        require_no_own_deps(self.options, deps)
        if session_id is None:
            make = self.options.session_ids
            session_id = make() if make is not None else str(uuid.uuid4())
        name = SessionId(checked_identifier(session_id, "session id"))
        session = Session(self.context, name, self.agent.output_type, deps, described)
        stream = stream_name(SESSION_KIND, session.id)
        begun = (restore or described is not None) and await self.store.head(stream) is not None
        if restore and not begun:
            await require_not_deleted(self.store, stream)
            raise ConfigError(f"the log {self.store.name} has no session {session_id!r}")
        if begun:
            await session.describe(user=user, metadata=metadata)
        return session

    async def run(self, run_id: str) -> RunHandle[Out_co]:
        """Return a run of any session in the log, which may be queued, under way, or over.

        Args:
            run_id: what `RunHandle.id` says, such as `alice/run_3`.

        Raises:
            ConfigError: there is no such run.
            PersistenceError: the log cannot be read.
        """
        session, run = run_id_parts(run_id)
        return await (await self.session(session)).run(run)

    async def forget(self, session_id: str) -> None:
        """Let go of what memory holds of a session; the log keeps it, and its next message brings it back.

        Raises:
            CommandRejected: something of it goes on or is waited for.
        """
        self.require_open()
        await forget_in(self.context, session_id)

    async def delete(self, session_id: str, *, cancel: bool = False, forks: bool = False) -> Deletion:
        """Delete a session, and those that its calls began: nothing of what was said can be read in the log any more.

        A tombstone stays, so that the name is not used again; see `refold.keeping.deletion` for what goes along. What
        memories and other streams keep stays, and is named in what is returned. Deleting once more does what an
        interrupted call has left to do.

        Args:
            session_id: its id.
            cancel: end its runs as cancelled first.
            forks: delete its forks with it, and theirs.

        Raises:
            ConfigError: the log has no such session, or is a store that cannot delete.
            CommandRejected: a run is open, the session is a call's, has forks, or went on meanwhile; nothing was done.
            AskCycle: a tool of the session would be cancelled by it.
            PersistenceError: the log failed.
        """
        return await self._lifecycle.of_owner.delete(session_id, cancel=cancel, forks=forks)

    async def delete_user(self, user: str, *, cancel: bool = False) -> UserDeletion:
        """Delete all sessions of a user as `delete` does, with their forks, and what memories hold of that user.

        Sessions of the same user that come later find nothing there and can keep nothing: name a new user then.
        """
        return await self._lifecycle.of_owner.delete_user(user, cancel=cancel)

    async def retain(
        self,
        older_than: timedelta,
        *,
        statuses: Collection[EndedStatus] = ENDED,
        archive: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
    ) -> Retention:
        """Delete the sessions that ended long ago, and archive them first where a folder for that is given.

        Args:
            older_than: how long ago the last event of each, and of those that its calls began, must be.
            statuses: only those whose last run ended so: `completed`, `failed`, `cancelled`, `idle` (it had none).
            archive: folder for a file `<log>-<time>.jsonl.gz`; None = there is none.
            dry_run: change nothing, and return what would be deleted.

        Raises:
            ConfigError: the age is negative, a status is none, or the folder is none; or the log cannot delete.
            PersistenceError: the log or the archive failed; what is in no archive was not deleted.
        """
        return await self._lifecycle.of_owner.retain(older_than, statuses, archive, dry_run=dry_run)

    async def sessions(self, **wanted: Unpack[SessionsWanted]) -> list[SessionId]:
        """Return the ids of all sessions in the log, or of those that are wanted, in code-point order.

        Args:
            wanted: `user`, `status` (one or several), `metadata` (what theirs has), `since` (a time with a zone: their
                last event is not before it); and for pages `limit` and `after`, the last id of the page before.

        Raises:
            ConfigError: what is wanted cannot be, or the runtime is not open.
            PersistenceError: the log cannot be read.
            ActorStopped: the runtime is closed, and its log with it.
        """
        with self.context.reading():
            return await list_names(self.store, **wanted)

    async def list_sessions(self, **wanted: Unpack[SessionsWanted]) -> list[ListedSession]:
        """Return the sessions that are wanted, each with its user, its status and the like; as `sessions`."""
        with self.context.reading():
            return await list_sessions(self.store, **wanted)

    def subscribe(self, subscriber: Subscriber, *, session: str | None = None) -> Callable[[], None]:
        """Call `subscriber` on the loop with each event of one session, or of all; return what ends that.

        Events are durable when they are passed on. What the subscriber raises is logged and counted.
        """
        return self.event_bus.subscribe(subscriber, SessionId(session) if session is not None else None)

    def follow(self, *, capacity: int = CAPACITY) -> Subscription:
        """Return an async iterator of what happens in all sessions from now on; see `Session.follow` for one.

        It yields `RecordedEvent`, `Streamed`, `Progressed` and `Missed`, never slows a run, and loses no event.

        Args:
            capacity: how many items may wait for the reader, >= 1. Pieces of answers and reports of tools that find
                no room are left out, and counted in a `Missed`; events are then read from the log.

        Raises:
            ConfigError: the capacity is none, or the runtime is not open.
            ActorStopped: the runtime is closed.
        """
        self.require_open()
        return Subscription(self.event_bus, self.context.recorded_after, None, capacity=capacity)

    async def close(self, *, cancel: bool = False) -> None:
        """End the runtime; a second call waits for the first, and in a forked child nothing happens.

        Effects that run get the close grace to reach the log; what has not by then is abandoned, and its run is
        left open, to go on at the next start. Who is cancelled meanwhile gives up the grace, not the end.

        Args:
            cancel: end open runs as cancelled instead.

        Raises:
            ConfigError: it is open in another event loop.
        """
        await self._lifecycle.close(cancel=cancel)


class SyncRuntime(Generic[Out_co]):
    """An open `AgentRuntime` for code without a loop: `with AgentRuntime(...) as runtime`. For any number of threads.

    Tools, providers and handlers run as they do in the other face: async ones on the loop's thread, plain ones in
    threads of their own, all with the context variables of where the runtime was opened. A plain tool may use the
    sessions here; one of async code is to `await` those of `asynchronous`.

    A runtime that is still open when the interpreter ends, as one that a web server holds, is closed by `atexit`, after
    the threads that are no daemons have ended.
    """

    def __init__(self, runtime: AgentRuntime[Out_co]) -> None:
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
    def agent(self) -> Agent[Any, Out_co]:
        """The agent that it runs."""
        return self.asynchronous.agent

    @property
    def provider(self) -> Provider:
        """What answers the agent's requests."""
        return self.asynchronous.provider

    @property
    def policy(self) -> Policy | None:
        """What judges the agent's calls; None = nothing."""
        return self.asynchronous.policy

    @property
    def approval(self) -> ApprovalHandler | None:
        """What decides about calls that wait for approval; None = people, by `decide`."""
        return self.asynchronous.approval

    @property
    def agents(self) -> Mapping[str, AnyAgent]:
        """The agents that it runs, by name: the main one, and those that its tools lead to."""
        return self.asynchronous.agents

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self.asynchronous.is_closing

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the log; with `share`, another one may."""
        return self.asynchronous.is_owner

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
    def host(self) -> SyncHost:
        """Hosts event-sourced actors beside the sessions: `books = runtime.host("book", OrderBook)`; see `SyncHost`."""
        return SyncHost(self.loop_thread, run_on_loop(self.loop_thread, lambda: self.asynchronous.host))

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
    delete = blocking(AgentRuntime.delete)
    delete_user = blocking(AgentRuntime.delete_user)
    retain = blocking(AgentRuntime.retain)
    sessions = blocking(AgentRuntime.sessions)
    list_sessions = blocking(AgentRuntime.list_sessions)
    tools_in_force = blocking(AgentRuntime.tools_in_force)

    def session(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        metadata: Mapping[str, str | None] | None = None,
        restore: bool = False,
        deps: object = None,
    ) -> SyncSession[Out_co]:
        """Return a session: a new one, or one that is in the log; see `AgentRuntime.session`."""
        found = self.loop_thread.run(
            lambda: self.asynchronous.session(session_id, user=user, metadata=metadata, restore=restore, deps=deps)
        )
        return SyncSession(self.loop_thread, found)

    def run(self, run_id: str) -> SyncRunHandle[Out_co]:
        """Return a run of any session in the log; see `AgentRuntime.run`.

        Raises:
            ConfigError: there is no such run.
            PersistenceError: the log cannot be read.
        """
        return SyncRunHandle(self.loop_thread, self.loop_thread.run(lambda: self.asynchronous.run(run_id)))

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
