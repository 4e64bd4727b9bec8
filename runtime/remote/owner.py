"""The owner's side of the inbox: a runtime performs what other processes ask of it.

Every poll looks at what the file system says of the file, and opens it only where that has changed, or some seconds
have gone by. Each session with rows gets a task that performs them in order, so no session waits for another one. The
rules: a row is noted as performed after it is in the log, under a key that tells the session if it comes again; what
is wrong with a row costs that row only; what is wrong with the file is logged and counted, and costs the runtime
nothing.
"""

import asyncio
import logging
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from refold.actors.agent.subsession import SessionEnvelope, children_prefix
from refold.actors.calls.middleware import hook_context
from refold.actors.calls.tool_context import session_context
from refold.actors.effects import Performed, read_state
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.supervision import Background
from refold.context import RuntimeContext
from refold.events.core.errors import AgentLoopError, CommandRejected, ConfigError, PersistenceError
from refold.events.core.ids import SessionId, checked_identifier, stream_name
from refold.events.session.commands import AnswerQuestion, DecideApproval, ResumeRun, SendInput
from refold.events.session.core import SESSION_KIND
from refold.keeping.deletion import delete_in
from refold.lineage.fork import fork_in
from refold.remote.bell import Bell
from refold.remote.client import done, stir_watches
from refold.remote.follow import Changes
from refold.remote.listener import Alarm
from refold.remote.protocol import (
    Done,
    Inbox,
    InboxAllowTurn,
    InboxAnswer,
    InboxCancel,
    InboxClear,
    InboxDecide,
    InboxDelete,
    InboxDescribe,
    InboxEntry,
    InboxFork,
    InboxImport,
    InboxOutcome,
    InboxResume,
    InboxSend,
    Refused,
    SessionRow,
    described_by,
    encoded_outcome,
    entry_of,
    key_in_session,
    named_content,
    session_command,
)
from refold.sessions.access import as_described, hooked_input, require_fitting, require_size, require_unredacted
from refold.stores.sqlite.inbox import InboxFile

log = logging.getLogger("refold.inbox")

ABOUT_ACCEPTED_WORK: Final = (InboxAllowTurn, InboxAnswer, InboxCancel, InboxDecide, InboxResume)
"""Commands that wait for no middleware which thinks about an input before them."""

LOOK_ANYWAY_S: Final = 5.0
"""After so long the file is opened though nothing seems to have changed: for clocks of file systems that are coarse,
and for rows that the log refused for a while."""


class InboxReader:
    """Performs the rows of one log's inbox in the runtime that owns the log.

    Args:
        context: of a runtime that is open on this event loop.
        log_path: the log's absolute path.
        session: perform rows of this session and its children only, and leave the others to another runtime; None = of
            all.
        file: the inbox's; None = the one beside the log.
    """

    def __init__(
        self,
        context: RuntimeContext,
        log_path: Path,
        *,
        session: str | None = None,
        file: InboxFile | None = None,
    ) -> None:
        self.failures = 0
        """How often the inbox could not be read or written, or a row broke something."""
        self._context = context
        shared = context.settings.allow_shared_folder
        self._inbox = Inbox(log_path, context.system.clock, allow_shared_folder=shared, file=file)
        self._only = session
        self._working: dict[str, Background] = {}
        """Its work by session."""
        self._watching: Background | None = None
        self._changes = Changes(self._inbox.file.signature, context.system.clock, LOOK_ANYWAY_S)
        self._alarm = Alarm(context.system.clock)
        self.bell: Bell | None = None
        """Tells other processes that an outcome stands in the inbox."""
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session: one command at a time of those that are given directly, in the order in which they came."""
        self._looking = asyncio.Lock()
        self._behind: set[str] = set()
        """Sessions with rows that are not all performed: they have a task, or wait for the next look."""
        self._complaint = ""

    def start(self, poll_s: float) -> None:
        """Look now, and then every `poll_s` seconds of the runtime's clock, until `stop`."""
        self._watching = self._context.system.background("inbox", lambda: self._watch(poll_s))

    async def stop(self) -> None:
        """Begin nothing more, and return once nothing of it runs; what was not noted is found under its key later."""
        parts = [part for part in (self._watching, *self._working.values()) if part is not None]
        for part in parts:
            part.end()
        for part in parts:
            await part.wait()

    async def perform_waiting(self) -> None:
        try:
            await self._look()
        except PersistenceError as error:
            self._failed(error)
        while self._working:
            await next(iter(self._working.values())).wait()

    async def _watch(self, poll_s: float) -> None:
        while True:
            await self._look_if_due()
            await self._alarm.wait(poll_s)

    async def _look_if_due(self) -> None:
        try:
            async with self._looking:
                if self._changes.are_due():
                    await self._look()
        except PersistenceError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - nothing in that file may keep the runtime from listening
            self._broke(error, "looking into the inbox")

    def look(self) -> None:
        """Look at once: a command was put there."""
        self._changes.expect()
        self._alarm.ring()

    async def _look(self) -> None:
        """Give each session with rows a task, unless it has one."""
        sessions = await self._inbox.file.sessions_waiting()
        self._complaint = ""
        self._behind.intersection_update(sessions)  # What was waited for may have been deleted.
        only = self._only
        for session in sessions:
            ours = only is None or session == only or session.startswith(children_prefix(only))
            if ours and session not in self._working:
                self._behind.add(session)
                self._working[session] = self._context.system.background(
                    f"inbox of {session}",
                    partial(self._perform_all, session),
                    partial(self._working.__delitem__, session),
                )

    async def _perform_all(self, session: str) -> None:
        """Perform the rows of a session in order; the first one that must wait lets those behind it wait."""
        try:
            while rows := await self._inbox.waiting(session):
                for entry in rows:
                    await self._inbox.finish(entry, await self._perform(entry))
                    self._noted()
            self._behind.discard(session)
        except (PersistenceError, AskTimeout) as error:  # It is tried again: whether it is in the log, its key tells.
            self._failed(error)
        except ActorStopped as error:
            log.info("commands to session %s wait for the next look, or for the next runtime: %s", session, error)
            self._changes.expect()
        except Exception as error:  # noqa: BLE001 - the other sessions have tasks of their own, and go on
            self._broke(error, f"the commands to session {session}")

    async def perform_given(self, session: str, key: str, command: bytes) -> bytes:
        """Perform a command that another process gives directly, and return its outcome as in the inbox.

        Empty = it is not done now, or that is not known; then it comes through the inbox, under the same key.
        """
        entry = entry_of(session, key, command)
        if entry is None or self._watching is None or self._watching.is_over:
            return b""
        await self._look_if_due()
        if session in self._behind:
            return b""  # It comes behind the rows that the session has already.
        line = self._lines.setdefault(session, asyncio.Lock())
        try:
            async with line if not isinstance(entry.command, ABOUT_ACCEPTED_WORK) else nullcontext():
                return encoded_outcome(await self._perform(entry))
        except (PersistenceError, AskTimeout, ActorStopped) as error:
            log.debug("a command to session %s goes through the inbox: %s", session, error)
            return b""

    def _noted(self) -> None:
        stir_watches(self._inbox.file.path)  # Callers of this process, who asked when another one was the owner.
        if self.bell is not None:
            self.bell.noted()

    async def _perform(self, entry: InboxEntry) -> InboxOutcome:
        """Return what came of a row, once that is durable.

        Raises:
            PersistenceError: the log does not take it now.
            AskTimeout: the session does not answer.
            ActorStopped: the runtime closes, or other code cancelled the session's task.
        """
        if isinstance(entry.command, Refused) or entry.command is None:
            return entry.command or Refused(message="the row holds no command")
        try:
            if isinstance(entry.command, InboxDelete):
                self._context.require_open()
                cancel, forks = entry.command.cancel, entry.command.forks
                return await delete_in(self._context, entry.session, cancel=cancel, forks=forks, row=entry.name)
            if isinstance(entry.command, InboxFork):
                self._context.require_open()
                made = await fork_in(self._context, entry.session, entry.command.wanted)
                return Done(version=made.version, new=bool(made.stored))
            return await self._perform_command(entry.session, entry.command, entry.key)
        except (PersistenceError, AskTimeout):
            raise
        except ActorStopped as error:
            self._context.require_open()
            if self._context.system.unreachable_because(f"{SESSION_KIND}/{entry.session}") is None:
                raise  # Other code cancelled its task: it is tried again, and the key tells whether it is in the log.
            return Refused(message=str(error))  # The session has failed for good.
        except (AgentLoopError, CommandRejected, ConfigError) as error:
            return Refused(message=str(error))
        except Exception as error:  # noqa: BLE001 - one row must not stop the others
            self._broke(error, f"a command to session {entry.session}")
            return Refused(message=f"it broke: {type(error).__name__}: {error!s:.200}")

    async def _perform_command(self, session: SessionId, command: SessionRow, key: str) -> InboxOutcome:
        context = self._context
        stream = stream_name(SESSION_KIND, checked_identifier(session, "session id"))
        context.require_open()
        if (
            not isinstance(command, InboxSend | InboxDescribe | InboxImport | InboxClear)
            and await context.store.head(stream) is None
        ):
            return Refused(message=f"the log has no session {session!r}")
        ref = context.system.ref(stream)
        agent, key, of = await read_state(  # Vital, since its sender has the row's receipt.
            ref,
            lambda state: (state.agent, key_in_session(state.keys, key), session_context(session, (), state)),
            vital=True,
        )
        if agent is not None and agent not in context.agents and not isinstance(command, InboxCancel):
            return Refused(
                message=f"session {session!r} is one of agent {agent!r}, and the runtime that owns the log runs agent "
                f"{context.agents[0]!r}"
            )
        asked, payloads = session_command(command, key, await named_content(context.store, session, command))
        hooks = context.hooks_of(agent)
        if isinstance(asked, ResumeRun):
            asked = msgspec.structs.replace(asked, tools=context.tools_of(None).names())
        if isinstance(asked, SendInput):
            require_size(asked.content, context.settings.input_bytes_max)
        if isinstance(asked, DecideApproval | AnswerQuestion):
            await require_fitting(context, stream, asked)
        described = described_by(command)
        if isinstance(asked, SendInput) and hooks is not None:
            where = hook_context(as_described(of, described), deps=context.dependencies.of(session, None, agent))
            asked, payloads = await hooked_input(hooks, where, asked, payloads, context.journal.redaction)
        require_unredacted(described, context.journal.redaction)
        envelope = SessionEnvelope(asked, payloads or {}, vital=True, describes=described)
        performed = await ref.ask(envelope, block=False)
        assert isinstance(performed, Performed)
        return await done(
            context.store, session, command, performed.version, performed.new, getattr(performed, "run", None)
        )

    def _broke(self, error: Exception, what: str) -> None:
        self.failures += 1
        log.error("the inbox of %s: %s broke", self._context.store.name, what, exc_info=error)

    def _failed(self, error: Exception) -> None:
        """Count an error, and log it if it is not the one that was logged last."""
        self.failures += 1
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("the inbox of %s: %s", self._context.store.name, error)
