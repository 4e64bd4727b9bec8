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
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from refold.actors.agent.subsession import SessionEnvelope, children_prefix
from refold.actors.calls.context import hook_context, session_context
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.supervision import Background
from refold.actors.shell.messages import Performed, read_state
from refold.bell.owner_end import Bell
from refold.context import RuntimeContext
from refold.events.core.cleaning import error_words
from refold.events.core.errors import AgentLoopError, CommandRejected, ConfigError, CoreFailed, PersistenceError
from refold.events.core.ids import SessionId, checked_identifier, stream_name
from refold.events.session.commands import AnswerQuestion, DecideApproval, DescribeSession, ResumeRun, SendInput
from refold.events.session.core import SESSION_KIND
from refold.keeping.deletion import delete_in, delete_user_in
from refold.keeping.retention import retain_in
from refold.lineage.fork import fork_in
from refold.remote import rows
from refold.remote.client import done
from refold.remote.hosted import performed_by_actor
from refold.remote.protocol import (
    Done,
    Inbox,
    InboxEntry,
    InboxOutcome,
    Refused,
    Retained,
    UserDeleted,
    encoded_outcome,
    entry_of,
    key_in_session,
    named_content,
    session_command,
)
from refold.remote.watching import Changes, stir_watches
from refold.sessions.access import NamedUser, as_described, hooked_input, require_fitting, require_unredacted
from refold.sessions.inputs import require_size
from refold.stores.sqlite.inbox import InboxFile

log = logging.getLogger("refold.inbox")

ABOUT_ACCEPTED_WORK: Final = (
    rows.InboxAllowTurn,
    rows.InboxAnswer,
    rows.InboxCancel,
    rows.InboxDecide,
    rows.InboxResume,
)
"""Commands that wait for no middleware which thinks about an input before them."""

LOOK_AGAIN_S: Final = 5.0
"""After so long the file is opened though it does not seem to have changed: rows that the log refused are tried again,
and an owner looks for as long as it lives, more seldom than one who waits (`refold.remote.watching`)."""

LOOK_S: Final = 1.0
"""For so long a look waits for a file that another process has. One that was stopped within a commit has it until it
goes on, and what is given directly must not wait for that."""


class InboxReader:
    """Performs the rows of one log's inbox in the runtime that owns the log.

    Args:
        context: of a runtime that is open on this event loop.
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
        self._context, self._journal = context, context.journal
        shared = context.settings.allow_shared_folder
        self._inbox = Inbox(log_path, context.system.clock, allow_shared_folder=shared, file=file)
        self._only = session
        self._working: dict[str, Background] = {}
        """Its work by session."""
        self._watching: Background | None = None
        self._changes = Changes(self._inbox.file.signature, context.system.clock, LOOK_AGAIN_S)
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
            await self._changes.pause(poll_s)

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
        self._changes.ring()

    async def _look(self) -> None:
        """Give each session with rows a task, unless it has one."""
        sessions = await self._inbox.file.sessions_waiting(wait_s=LOOK_S)
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
            while waiting := await self._inbox.waiting(session):
                for entry in waiting:
                    outcome = await self._perform(entry)
                    if outcome is None:
                        return
                    await self._inbox.finish(entry, outcome)
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
                outcome = await self._perform(entry)
                return encoded_outcome(outcome) if outcome is not None else b""
        except (PersistenceError, AskTimeout, ActorStopped) as error:
            log.debug("a command to session %s goes through the inbox: %s", session, error)
            return b""

    def _noted(self) -> None:
        stir_watches(self._inbox.file.path)  # Callers of this process, who asked when another one was the owner.
        if self.bell is not None:
            self.bell.noted()

    async def _perform(self, entry: InboxEntry) -> InboxOutcome | None:
        """Return what came of a row, once that is durable; None = it waits, since its kind of actor is not hosted yet.

        Raises:
            PersistenceError: the log does not take it now.
            AskTimeout: the session does not answer.
            ActorStopped: the runtime closes, or other code cancelled the session's task.
        """
        if isinstance(entry.command, Refused) or entry.command is None:
            return entry.command or Refused(message="the row holds no command")
        address = f"{SESSION_KIND}/{entry.session}"
        self._context.require_open()
        try:
            if isinstance(entry.command, rows.InboxDelete):
                cancel, forks = entry.command.cancel, entry.command.forks
                return await delete_in(self._context, entry.session, cancel=cancel, forks=forks)
            if isinstance(entry.command, rows.InboxFork):
                await NamedUser(entry.session, entry.describes).require(self._context.store)
                made = await fork_in(self._context, entry.session, entry.command.wanted)
                return Done(version=made.version, new=bool(made.stored))
            if isinstance(entry.command, rows.InboxDeleteUser | rows.InboxRetain):
                return await self._of_whole_log(entry.command)
            if isinstance(entry.command, rows.InboxHosted):
                address = f"{entry.command.kind}/{entry.command.id}"
                performed = await performed_by_actor(self._context.system, self._context.hosted, entry.command)
                return Done(version=performed.version, new=performed.new) if performed is not None else None
            return await self._perform_command(entry.session, entry.command, entry.key, entry.describes)
        except (PersistenceError, AskTimeout):
            raise
        except ActorStopped as error:
            self._context.require_open()
            if self._journal.lost or self._context.system.unreachable_because(address) is None:
                raise  # Other code cancelled its task: it is tried again, and the key tells whether it is in the log.
            return Refused(message=str(error))  # The session has failed for good.
        except (AgentLoopError, CommandRejected, ConfigError, CoreFailed) as error:
            return Refused(message=str(error))
        except Exception as error:  # noqa: BLE001 - one row must not stop the others
            self._broke(error, f"a command to session {entry.session}")
            return Refused(message=f"it broke: {error_words(error):.220}")

    async def _of_whole_log(self, command: rows.InboxDeleteUser | rows.InboxRetain) -> InboxOutcome:
        if isinstance(command, rows.InboxDeleteUser):
            deletion = await delete_user_in(self._context, command.user, cancel=command.cancel)
            return UserDeleted(deletion=msgspec.structs.replace(deletion, user=""))
        age = timedelta(microseconds=command.older_than_us)
        kept = await retain_in(self._context, age, command.statuses, command.archive, dry_run=command.dry_run)
        return Retained(retention=kept)

    async def _perform_command(
        self, session: SessionId, command: rows.SessionRow, key: str, described: DescribeSession | None
    ) -> InboxOutcome:
        context = self._context
        stream = stream_name(SESSION_KIND, checked_identifier(session, "session id"))
        if (
            not isinstance(command, rows.InboxSend | rows.InboxDescribe | rows.InboxImport | rows.InboxClear)
            and await context.store.head(stream) is None
        ):
            return Refused(message=f"the log has no session {session!r}")
        ref = context.system.ref(stream)
        agent, key, of = await read_state(  # Vital, since its sender has the row's receipt.
            ref,
            lambda state: (state.agent, key_in_session(state.keys, key), session_context(session, (), state)),
            vital=True,
        )
        if agent is not None and agent not in context.agents and not isinstance(command, rows.InboxCancel):
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
            try:
                await require_fitting(context, stream, asked)
            except CommandRejected as error:  # Who said it may be gone since.
                log.warning("what a person decided in session %s has no effect: %s", session, error)
                raise
        if isinstance(asked, SendInput) and hooks is not None:
            where = hook_context(as_described(of, described), deps=context.dependencies.of(session, None, agent))
            asked, payloads = await hooked_input(hooks, where, asked, payloads, context.journal.redaction)
        for said in (described, asked):
            require_unredacted(said if isinstance(said, DescribeSession) else None, context.journal.redaction)
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
