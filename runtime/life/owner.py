"""What a runtime does for its log while it owns it, beside the work of its actors: one object for each time.

It records its start, has go on what an earlier runtime has left (`refold.life.takeover`), performs what other
processes ask for, rings their bell, puts changed tools in force and, where the log is shared, watches its lock. The
rule: all of it ends, on every path, before the actors that it speaks to do.
"""

from functools import partial

from refold.actors.hosting import Host
from refold.actors.kernel.supervision import Background
from refold.actors.shell.event_sourced import EventSourcedActor
from refold.actors.thread_pool import ThreadPool
from refold.bell.owner_end import Bell, bell_of
from refold.context import RuntimeContext
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_CORE, RUNTIME_STREAM, RuntimeStarted
from refold.events.model.configuration import CORE_VERSION, CodeIdentity
from refold.life.takeover import ended_in_order, take_up
from refold.options import log_path
from refold.remote.changing import watch_lock
from refold.remote.owner import InboxReader
from refold.running_agents import LateTools, RunningAgents
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.store import SQLiteStore
from refold.version import __version__


class OwnersLife:
    """The life of a runtime as the owner of its log; see the module.

    Args:
        context: of a runtime that is open, and owns its log.
        agents: that it runs.
    """

    def __init__(self, context: RuntimeContext, agents: RunningAgents) -> None:
        self._context = context
        self._agents = agents
        self._resuming: Background | None = None
        self._watching_lock: Background | None = None
        self.late: LateTools | None = None
        """Puts changed tools in force; None = nothing has begun yet."""
        self._inbox: InboxReader | None = None
        self._bell: Bell | None = None

    async def begin(self, host: Host, approval_pool: ThreadPool) -> None:
        """Record the start of the runtime, and begin everything; where it fails, `stop` ends what has begun."""
        context, agents, options = self._context, self._agents, self._context.settings
        store, journal, system = context.store, context.journal, context.system
        code = CodeIdentity(refold=__version__, core=CORE_VERSION, app=options.app_version)
        after_order = await ended_in_order(store)
        settings = await agents.settings(journal, code, options, after_order=after_order)

        async def renew() -> None:
            settings.update(await agents.settings(journal, code, options, after_order=after_order))

        agents.register(context, settings, approval_pool)
        note = await system.start(EventSourcedActor, RUNTIME_CORE, RUNTIME_CODEC, journal, address=RUNTIME_STREAM)
        await note.ask(RuntimeStarted(code=code), block=False)
        self.late = await agents.attach(host, renew)
        context.hosted.of_memories = agents.cores_of_memories()
        path = log_path(options)
        if options.share:
            assert isinstance(store, SQLiteStore)
            self._watching_lock = system.background("watch the lock", partial(watch_lock, store, journal, system.clock))
        if path is not None and options.inbox_poll_s:
            assert isinstance(store, SQLiteStore)
            inbox = self._inbox = InboxReader(context, absolute(path))
            context.hosted.changed = inbox.look
            inbox.bell = self._bell = await bell_of(
                store, absolute(path), context.event_bus, rung=inbox.look, perform=inbox.perform_given
            )
        self._resuming = system.background("resume open runs", partial(take_up, context, agents, note))
        if self._inbox is not None:
            self._inbox.start(options.inbox_poll_s)

    async def take_no_commands(self) -> None:
        """Perform nothing more that other processes ask for."""
        if self._inbox is not None:
            await self._inbox.stop()

    async def stop(self) -> None:
        """End everything but the bell, and return once nothing of it runs; any number of times."""
        for part in (self._watching_lock, self._inbox, self._resuming):
            if part is not None:
                await part.stop()
        if self.late is not None:
            await self.late.end()

    def hang_up(self) -> None:
        """Tell those who listen that this process has the log no more."""
        if self._bell is not None:
            self._bell.close()
