"""How the handles of a session reach it: its actor while it lives, its log always.

Read `SessionAccess` first. The functions below it check what a user hands to a session: inputs, idempotency keys, times
and ids. The rule: what reaches the actor is checked and clean, and has passed the middleware of its agent.
"""

import copy
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar, cast

import msgspec

from refold.actors.agent.subsession import SessionEnvelope
from refold.actors.calls.context import HookContext, SessionContext, hook_context, session_context
from refold.actors.calls.middleware import Hooks, UserBlocks
from refold.actors.calls.policy import changed_arguments, require_read_as_given
from refold.actors.kernel.errors import ActorStopped
from refold.actors.shell.cooperative import in_turns
from refold.actors.shell.messages import Cause, Envelope, Performed, read_state
from refold.context import RuntimeContext
from refold.events.core.cleaning import INTEGER_MAX, INTEGER_MIN, clean_text
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import (
    Message,
)
from refold.events.core.errors import CommandRejected, ConfigError, RefoldError, quoted, unquoted
from refold.events.core.ids import (
    AgentId,
    PayloadHash,
    RunId,
    SessionId,
    StreamName,
    checked_identifier,
    kind_and_identifier,
    stream_name,
)
from refold.events.model.configuration import RunOptions, ToolSpec
from refold.events.model.payloads import may_be_large, restored, spill_in_steps, without_secrets
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.events.session.commands import (
    AllowTurn,
    AnswerQuestion,
    CancelRun,
    DecideApproval,
    DescribeSession,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import QuestionAsked, SessionDescribed, SessionEvent, SessionOpened
from refold.events.session.state import FinishedRun, SessionState, find_call, question_id
from refold.inspection.log_reading import content_by_hash
from refold.options import Settings
from refold.publishing.notifications import Published, RecordedSessionEvent
from refold.publishing.subscription import Admit, FollowableSession
from refold.sessions.inputs import KEY_BYTES_MAX, input_blocks, require_size
from refold.sessions.outcome import OwnType, RunResult, result_of
from refold.sessions.structured_output import output_schema, value_problem
from refold.stores.event_store import EventStore
from refold.stores.folding import Fold
from refold.tools.schema import InputSchema


def checked_name(name: str, what: str) -> str:
    """Return the id of a run or a call as it can be looked for, or raise CommandRejected."""
    if not isinstance(name, str):
        raise CommandRejected(f"{what} must be the id of a {what} as text, not {unquoted(name)}")
    return clean_text(name[:KEY_BYTES_MAX])


def checked_flag(value: bool, what: str) -> bool:
    """Return a choice between yes and no, or raise CommandRejected."""
    if not isinstance(value, bool):
        raise CommandRejected(f"{what} must be True or False, not {unquoted(value)}")
    return value


def checked_version(version: int, what: str = "version") -> int:
    """Return a version of a session as it can be looked for, or raise ConfigError."""
    if type(version) is not int or not INTEGER_MIN <= version <= INTEGER_MAX:
        raise ConfigError(f"{what} must be a version of the session, an integer, not {quoted(version)}")
    return version


class SessionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a session is, what the application says of it, and what was so when it began."""

    session: SessionId
    agent: AgentId
    opened_at: int
    """Microseconds since the epoch, UTC."""
    graph_entities: int | None
    """How many entities it saw of the agent's graph; None = there was no graph, or that was not known."""
    user: str | None = None
    """None = no user was named."""
    metadata: dict[str, str] = {}
    """The present one."""


def metadata_in(
    first: RecordedEvent[SessionEvent], session: SessionId, user: str | None, metadata: dict[str, str]
) -> SessionMetadata | None:
    event = first.event
    if not isinstance(event, SessionOpened):
        return None
    return SessionMetadata(
        session=session,
        agent=event.agent,
        opened_at=first.time,
        graph_entities=event.graph_entities,
        user=user,
        metadata=metadata,
    )


class NamedUser:
    """The user whom a handle names, and what it says of its session; shared by all that is made of the handle."""

    def __init__(self, session: SessionId, said: DescribeSession | None) -> None:
        self.session = session
        self.said = said
        """Recorded with the next command; None = nothing."""
        self.user = said.user if said is not None else None
        self.is_checked = self.user is None
        """Whether no user is named, or the session is known to be that user's, which it stays."""

    def check(self, user: str | None) -> None:
        """Take note whose the session is; None = it has not begun, or has no user yet."""
        if self.is_checked or user is None:
            return
        if user != self.user:
            raise CommandRejected(
                f"session {self.session!r} is another user's; use a session of the user that you name"
            )
        self.is_checked = True

    async def require(self, store: EventStore) -> None:
        """Do as `check`, by the log, which is read until it is known whose the session is."""
        if not self.is_checked:
            found = Fold(stream_name(SESSION_KIND, self.session), SESSION_CORE, SESSION_CODEC)
            await found.read(store)
            self.check(found.state.user)

    def admission(self, store: Callable[[], EventStore]) -> Admit | None:
        """Return what is asked before a reader who follows the session has an item; None = nothing is to be asked.

        It raises CommandRejected where the session is another user's. The log is looked at once; behind that, what
        gives the session to a user is among the items.
        """
        looked = False

        async def admit(item: Published | None) -> None:
            nonlocal looked
            if not looked:
                await self.require(store())
                looked = True
            elif isinstance(item, RecordedEvent) and isinstance(item.event, SessionDescribed):
                self.check(item.event.user)

        return admit if self.user is not None else None


def describe_command(user: str | None, metadata: Mapping[str, str | None] | None) -> DescribeSession | None:
    """Return the command that says whose a session is; None where nothing is said."""
    if user is not None:
        checked_identifier(user, "user")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigError(f"metadata is a mapping of texts to texts, not {unquoted(metadata)}")
    checked: dict[str, str | None] = {}
    for key, value in (metadata or {}).items():
        if not (isinstance(key, str) and key and (value is None or isinstance(value, str))):
            name = "an empty text" if key == "" else type(key).__name__
            raise ConfigError(
                f"metadata maps texts to texts, or to None to drop one, not {name} to {type(value).__name__}"
            )
        checked[clean_text(key)] = clean_text(value) if value is not None else None
    return DescribeSession(user=user, metadata=checked) if user is not None or checked else None


def require_unredacted(described: DescribeSession | None, redaction: Redaction) -> None:
    """Raise ConfigError where what is said of a session must not be recorded: other users would look the same."""
    if described is not None and redaction and redaction.command(described) != described:
        raise ConfigError(
            "the user or the metadata of a session holds what the agent's `redact` names, and would not be recorded as "
            "given; name users by an id that is no secret"
        )


def as_described(of: SessionContext, described: DescribeSession | None) -> SessionContext:
    """Return a session's context with what is about to be recorded of it."""
    if described is None:
        return of
    metadata = {name: value for name, value in {**of.metadata, **described.metadata}.items() if value is not None}
    return msgspec.structs.replace(of, user=described.user or of.user, metadata=metadata)


async def hooked_input(
    hooks: Hooks,
    where: HookContext,
    command: SendInput,
    payloads: dict[PayloadHash, bytes],
    redaction: Redaction = NOTHING_SECRET,
) -> tuple[SendInput, dict[PayloadHash, bytes]]:
    """Return an input in its sent form, with the one that was given beside it where they differ, and their payloads."""
    if redaction:
        changed, kept = await in_turns(without_secrets(redaction, [command], payloads))
        command = changed[0]
        command, payloads = redaction.command(command), dict(kept)
    given = cast("UserBlocks", restored(Message("user", command.content), payloads).content)
    content, more = await in_turns(spill_in_steps(await hooks.user_message(where, given, input_blocks)))
    if content == command.content:
        return command, payloads
    return msgspec.structs.replace(command, content=content, original=command.content), {**payloads, **more}


T = TypeVar("T")

log = logging.getLogger("refold.runtime")

ABOUT_ACCEPTED_WORK = (AllowTurn, AnswerQuestion, CancelRun, DecideApproval, ResumeRun)
"""Commands that let go on or end what was accepted before: the very load that fills a mailbox must not stop them."""


class SessionAccess:
    """Takes commands and questions to one session of a runtime."""

    def __init__(
        self,
        context: RuntimeContext,
        session: SessionId,
        output_type: type[object] | None = None,
        deps: object = None,
        described: DescribeSession | None = None,
    ) -> None:
        self.context = context
        self.deps = deps
        """What its runs depend on; None = on what they do anyway."""
        self.output_type = output_type
        """What the answers of its agent are; None = text."""
        self._is_own_type = False
        """Whether that is of a run, whichever agent answers."""
        self.session = session
        self.named = NamedUser(session, described)
        self.stream = stream_name(SESSION_KIND, session)

    def of_run(self, deps: object, output_type: type[object] | None) -> Self:
        """Return the same access, for a run that depends on something, or whose answer is of a type of its own.

        Args:
            deps: None = it depends on what its session does.
            output_type: what its answer must be; None = what its agent's are.
        """
        access = copy.copy(self)
        require_no_own_deps(self.context.settings, deps)
        access.deps = self.deps if deps is None else deps
        if output_type is not None:
            access.output_type, access._is_own_type = output_type, True
        return access

    async def result(self, finished: FinishedRun) -> RunResult[Any]:
        """Return what a caller is told of a finished run, whose answer may be another agent's by then."""
        output_type = self.output_type
        if finished.agent is not None and not self._is_own_type:
            output_type = self.context.output_types.get(finished.agent)
        return await result_of(finished, self.context.store, output_type)

    def of_session(self, session: SessionId) -> "SessionAccess":
        """Return access to another session for the same user."""
        return SessionAccess(self.context, session, described=describe_command(self.named.user, None))

    async def of_session_below(self, session: SessionId) -> "SessionAccess":
        """Return access to a session that a call began; its runs have the same `deps`, or those of their own agent."""
        below = self.of_session(session)
        agent = await below.read(lambda state: state.agent, vital=True)
        below.deps = self.deps if agent not in self.context.dependencies.of_agents else None
        return below

    def of_found(self, options: RunOptions | None) -> Self:
        """Return the same access, for a run that was found and has recorded options of its own, or none."""
        own = options.output_schema if options is not None else None
        agents = output_schema(self.output_type) if self.output_type is not None else None
        return self if own in (None, agents) else self.of_run(None, OwnType)

    async def read(self, question: Callable[[SessionState], T], *, vital: bool = False) -> T:
        """Return what the actor's durable state answers; the answer is the caller's own."""
        self.context.require_open()
        if self.named.is_checked:
            return await self.context.reach.read(self.stream, question, vital=vital)
        user, answer = await self.context.reach.read(
            self.stream, lambda state: (state.user, question(state)), vital=vital
        )
        self.named.check(user)
        return answer

    @asynccontextmanager
    async def own(self) -> AsyncGenerator[None]:
        """Raise CommandRejected where the session is another user's, before the log is read inside, or by then."""
        with self.context.reading():
            await self.named.require(self.context.store)
            yield
            await self.named.require(self.context.store)

    async def recorded_after(self, session: SessionId, version: int, limit: int) -> list[RecordedSessionEvent]:
        """As `RuntimeContext.recorded_after`; raises CommandRejected where the session is another user's."""
        version = checked_version(version, "after_version")
        with self.context.reading():
            page = await self.context.recorded_after(session, version, limit)
            await self.named.require(self.context.store)
        return page

    def followed(self) -> FollowableSession:
        """Return what readers of the session follow."""
        admit = self.named.admission(lambda: self.context.store)
        begin_wait = partial(self.context.tool_waits.begin, self.context.system, self.session)
        return FollowableSession(self.session, self.context.event_bus, self.recorded_after, admit, begin_wait)

    async def ask(self, command: SessionCommand, payloads: dict[PayloadHash, bytes] | None = None) -> Performed:
        """Return when a command is accepted and durable.

        Raises:
            CommandRejected: the session refuses it.
            AgentLoopError: middleware failed on an input.
            PersistenceError: it could not be recorded.
            ActorStopped: the runtime is closed, or the session has failed.
            BackpressureShed: too many messages wait, and this one is not about a run that was accepted before.
        """
        self.context.require_open()
        if isinstance(command, SendInput):
            require_size(command.content, self.context.settings.input_bytes_max)
            if any(map(may_be_large, command.content)):
                content, more = await in_turns(spill_in_steps(command.content))  # What is replaced already stays.
                command, payloads = msgspec.structs.replace(command, content=content), {**(payloads or {}), **more}
            await self.context.tools_in_force()
        if isinstance(command, SendInput) and self.context.has_hooks:
            agent, of = await self.read(lambda state: (state.agent, session_context(self.session, (), state)))
            hooks = self.context.hooks_of(agent)
            if hooks is not None:
                deps = self.context.dependencies.of(self.session, None, agent) if self.deps is None else self.deps
                where = hook_context(as_described(of, self.named.said), deps=deps)
                redaction = self.context.journal.redaction
                command, payloads = await hooked_input(hooks, where, command, payloads or {}, redaction)
                self.context.require_open()
        if isinstance(command, DecideApproval | AnswerQuestion):
            async with self.own():
                await require_fitting(self.context, self.stream, command)
        described = self.named.said
        require_unredacted(described, self.context.journal.redaction)
        require_unredacted(command if isinstance(command, DescribeSession) else None, self.context.journal.redaction)
        vital = isinstance(command, ABOUT_ACCEPTED_WORK)
        envelope = SessionEnvelope(command, payloads or {}, vital=vital, deps=self.deps, describes=described)
        # Where ten thousand sessions are sent to at once, the last of them waits long for the log, which sets its own
        # limits to each write; its input is in a mailbox, and to say otherwise would have it sent again.
        timeout_s = math.inf if isinstance(command, SendInput) else None
        performed = await self.context.reach.ask(self.stream, envelope, timeout_s=timeout_s)
        if described is not None:  # Said once: what is said of the session elsewhere stays.
            self.named.said = describe_command(described.user, None)
        if isinstance(command, DescribeSession) and command.user == self.named.user:
            self.named.check(command.user)  # That is durable.
        return performed

    def cancel_surely(self, command: CancelRun) -> None:
        """Have a run cancelled, also where the log refuses at first; from any thread."""
        self._insist(command)

    def _insist(self, command: CancelRun, cause: Cause | None = None) -> None:
        try:
            self.context.reach.tell(self.stream, Envelope(command, vital=True, insist=True, cause=cause))
        except ActorStopped as error:
            log.info("session %s: a cancellation came too late: %s", self.session, error)

    async def state_at(self, version: int | None = None) -> SessionState:
        """As `Session.state_at`."""
        version = version if version is None else checked_version(version)
        fold = Fold(self.stream, SESSION_CORE, SESSION_CODEC)
        async with self.own():
            await fold.read(self.context.store, version=version, sealed=False)
        return fold.state

    async def payload(self, name: PayloadHash | str) -> bytes:
        """As `Session.payload`."""
        self.context.require_open()
        async with self.own():
            return await content_by_hash(self.context.store, self.stream, name)


def require_no_own_deps(settings: Settings, deps: object) -> None:
    """Raise ConfigError where a session or a run has deps of its own, and another process may run it."""
    if settings.share and deps is not None:
        raise ConfigError("deps of a session or a run stay in this process, and its log is shared; use Agent.deps")


def require_answer(question: QuestionAsked | None, command: AnswerQuestion) -> None:
    """Raise CommandRejected, with the schema, where an answer does not fit what is asked; nothing is recorded then."""
    if question is None or command.error is not None or command.number not in (None, question.number):
        return  # The session knows best what to say.
    problem = value_problem(command.answer, question.answer_schema)
    if problem is not None:
        schema = msgspec.json.encode(question.answer_schema).decode()
        named = question_id(question.call, question.number)
        raise CommandRejected(f"{named} waits on, since the answer does not fit: {problem}. Its schema: {schema:.2000}")


def question_of(state: SessionState, command: AnswerQuestion) -> QuestionAsked | None:
    """Return what the call of an answer waits to be told, if it waits for that, and was not told under the same key."""
    if command.key in state.keys:
        return None
    call, turn = find_call(state, command.call), state.turn
    return call.question if call is not None and turn is not None and call.id in turn.asking else None


async def require_fitting(context: RuntimeContext, session: StreamName, command: SessionCommand) -> None:
    """Raise CommandRejected where what a person gives a call does not fit: other arguments its tool, or an answer."""
    if isinstance(command, AnswerQuestion):
        require_answer(
            await context.reach.read(session, lambda state: question_of(state, command), vital=True), command
        )
    if not isinstance(command, DecideApproval) or command.input is None:
        return
    agent, tool = await context.reach.read(
        session, lambda state: (state.agent, _tool_to_approve(state, command)), vital=True
    )
    if tool is not None:  # Else the session knows best what to say.
        changed_arguments(context.tools_of(agent), tool, command.input)


async def require_recorded_fit(store: EventStore, state: SessionState, command: SessionCommand) -> None:
    """As `require_fitting`, where no runtime owns the log: by the schemas that it has of tools and of answers."""
    if isinstance(command, AnswerQuestion):
        require_answer(question_of(state, command), command)
    if not isinstance(command, DecideApproval) or command.input is None or state.configuration is None:
        return
    name, schemas = _tool_to_approve(state, command), state.configuration.tool_schemas
    recorded = (await store.read_payloads([schemas])).get(schemas, b"[]")
    for spec in msgspec.json.decode(recorded, type=list[ToolSpec]):
        if spec.name == name:
            schema = InputSchema(spec.input_schema, tool=spec.name, bounds=True)
            fitting = schema.repaired(command.input)
            problem = schema.problem(fitting)
            if problem is not None:
                raise CommandRejected(f"the call waits on, since its new arguments cannot be used. {problem}")
            require_read_as_given(spec.name, fitting, command.input)


def _tool_to_approve(state: SessionState, command: DecideApproval) -> str | None:
    call = find_call(state, command.call)
    return call.name if call is not None and call.approval == "requested" else None


async def cancel_runs_of(context: RuntimeContext, session: SessionId, reason: str) -> None:
    """Cancel the run of a session that is under way, and those that begin in its place."""
    ref = context.system.ref(stream_name(SESSION_KIND, session))
    while (run := await read_state(ref, _open_run, vital=True)) is not None:  # Behind all that waits in the mailbox.
        with context.event_bus.follow(session) as follower:
            await ref.ask(Envelope(CancelRun(run=run, reason=reason), vital=True), block=False)
            await follower.ended(run)


def _open_run(state: SessionState) -> RunId | None:
    return state.run.id if state.run is not None else None


async def cancel_open_runs(context: RuntimeContext) -> None:
    """Cancel the runs of all sessions, since the runtime closes."""
    heads = await context.store.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True)
    working = [SessionId(kind_and_identifier(head.stream)[1]) for head in heads]
    waiting = context.event_bus.open_sessions()  # For a person, say: such a run has no effect in flight.
    live = [
        SessionId(identifier)
        for kind, identifier in map(kind_and_identifier, context.system.live())
        if kind == SESSION_KIND
    ]
    for session in dict.fromkeys([*working, *waiting, *live]):
        try:
            await cancel_runs_of(context, session, "the runtime closes")
        except RefoldError as error:  # It must not keep the runs of other sessions open.
            log.warning("the run of session %s is not cancelled and stays open: %s", session, error)
