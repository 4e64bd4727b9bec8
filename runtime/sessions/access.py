"""How the handles of a session reach it: its actor while it lives, its log always.

Read `SessionAccess` first. The functions below it check what a user hands to a session: inputs, idempotency keys, times
and ids. The rule: what reaches the actor is checked and clean, and has passed the middleware of its agent.
"""

import copy
import logging
import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeAlias, TypedDict, TypeVar, cast

import msgspec

from refold.actors.agent.subsession import SessionEnvelope
from refold.actors.calls.middleware import HookContext, Hooks, UserBlocks, hook_context
from refold.actors.calls.tool_context import SessionContext, session_context
from refold.actors.calls.validation import checked_block, checked_messages
from refold.actors.calls.verdicts import changed_arguments
from refold.actors.cooperative import in_turns
from refold.actors.effects import Cause, Envelope, Performed, read_state
from refold.actors.kernel.errors import ActorStopped
from refold.context import RuntimeContext
from refold.events.core.cleaning import clean_text
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import (
    DocumentBlock,
    GivenContent,
    ImageBlock,
    Message,
    StoredBlock,
    TextBlock,
    UserContent,
)
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.core.ids import (
    AgentId,
    PayloadHash,
    RunId,
    SessionId,
    StreamName,
    checked_identifier,
    stream_name,
)
from refold.events.model.configuration import AgentConfig, RunOptions
from refold.events.model.payloads import restored, spill, spill_in_steps, without_secrets
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.events.session.commands import (
    AllowTurn,
    AnswerQuestion,
    CancelRun,
    DecideApproval,
    DescribeSession,
    ImportHistory,
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
from refold.publishing.subscription import Admit
from refold.sessions.outcome import OwnType, RunResult, result_of
from refold.sessions.structured_output import output_schema, run_instruction, value_problem
from refold.stores.event_store import EventStore
from refold.stores.folding import Fold

Input: TypeAlias = str | GivenContent | Sequence[str | GivenContent]
"""What can be sent: text, a block, or several of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

KEY_BYTES_MAX = 512
"""Longest idempotency key, in UTF-8 bytes."""


def input_content(content: Input) -> tuple[tuple[UserContent, ...], dict[PayloadHash, bytes]]:
    """Return what is recorded of an input, and the payloads of what is large in it; raises as `input_blocks`."""
    return spill(input_blocks(content))


def require_size(content: Sequence[UserContent], bytes_max: int | None) -> None:
    """Refuse an input that is too large.

    Raises:
        CommandRejected: it has more than `bytes_max` bytes.
    """
    size = sum(map(_size_of, content))
    if bytes_max is not None and size > bytes_max:
        raise CommandRejected(
            f"the input has {size:,} bytes; {bytes_max:,} are accepted (the runtime's `input_bytes_max`)"
        )


def _size_of(block: UserContent) -> int:
    match block:
        case TextBlock(text=text):
            return len(text) if text.isascii() else len(text.encode())
        case StoredBlock(bytes=size):
            return size
        case _:
            return len(block.data)


def input_blocks(content: Input) -> list[GivenContent]:
    """Return the blocks of an input, checked and clean; raise CommandRejected if it is empty, or not text or blocks."""
    if isinstance(content, str | GivenContent):
        parts: Sequence[object] = [content]
    elif isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
        parts = content
    else:
        raise CommandRejected(f"an input is text or blocks, not {type(content).__name__}")
    blocks: list[GivenContent] = []
    for place, part in enumerate(parts):
        if isinstance(part, ImageBlock | DocumentBlock):
            blocks.append(checked_block(part, f"content[{place}]"))
        elif isinstance(part, str | TextBlock):
            text = part if isinstance(part, str) else checked_block(part, f"content[{place}]").text
            if text.strip():
                blocks.append(TextBlock(text=clean_text(str.__str__(text))))
        else:
            raise CommandRejected(f"an input is text or blocks, not {type(part).__name__}")
    if not blocks:
        raise CommandRejected("the input is empty; send some text")
    return blocks


class RunOverrides(TypedDict, total=False):
    """What `Session.send` and the like take for one run, recorded with its input; None = as the agent has it.

    The run keeps it when it is resumed, also by another process. A reply to a key counts it to the content.
    """

    model: str | None
    """The provider's name of the model."""
    max_turns: int | None
    """Most model calls of the run, >= 1."""
    max_tokens: int | None
    """Most output tokens of one answer, >= 1."""
    temperature: float | None
    """0 to 2."""
    tools: Collection[str] | None
    """Names of those of the agent's tools that the model is offered, and may call."""
    output_type: type[Any] | None
    """What the final answer must be, as JSON, as `Agent.output_type`; `RunResult.parsed` reads it."""


def run_options(given: RunOverrides) -> RunOptions | None:
    """Return what is recorded of overrides, None of none.

    Raises:
        ConfigError: a name or a value makes no sense.
    """
    fields: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if not fields:
        return None
    unknown = sorted(fields.keys() - RunOverrides.__annotations__.keys())
    if unknown:
        known = ", ".join(sorted(RunOverrides.__annotations__))
        raise ConfigError(f"a run has no option {unknown[0]!r:.80}; it has {known}")
    output_type = cast("type[object] | None", fields.pop("output_type", None))
    form = (output_schema(output_type), run_instruction(output_type)) if output_type is not None else (None, None)
    tools = fields.pop("tools", None)
    if tools is not None:
        names = cast("Collection[object]", tools) if isinstance(tools, Collection) else ()
        if not isinstance(tools, Collection) or isinstance(tools, str) or not all(isinstance(it, str) for it in names):
            raise ConfigError(f"tools must be names of the agent's tools, not {tools!r:.80}")
        tools = tuple(sorted(set(cast("Collection[str]", tools))))
    try:
        checked = AgentConfig(**cast("dict[str, Any]", {"model": "any", **fields}))
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("AgentConfig.")) from None
    # As the log gives it back: a temperature of 1 is 1.0, in the first request too.
    more = {"tools": tools, "output_schema": form[0], "output_instruction": form[1]}
    return msgspec.convert({name: getattr(checked, name) for name in fields} | more, RunOptions)


def import_command(messages: Sequence[Message], key: str | None) -> tuple[ImportHistory, dict[PayloadHash, bytes]]:
    """Return the command that imports messages, and the payloads of what is large in them; or raise CommandRejected."""
    kept: list[Message] = []
    payloads: dict[PayloadHash, bytes] = {}
    for message in checked_messages(messages):
        content, large = spill(message.content)
        kept.append(Message(message.role, content))
        payloads.update(large)
    return ImportHistory(messages=tuple(kept), key=checked_key(key)), payloads


def checked_key(key: str | None) -> str | None:
    """Return an idempotency key in its recorded form, or raise CommandRejected."""
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(clean_text(key).encode()) > KEY_BYTES_MAX:
        raise CommandRejected(f"a key is text of 1 to {KEY_BYTES_MAX} UTF-8 bytes, not {key!r:.60}")
    return clean_text(key)


def checked_time(at: datetime) -> int:
    """Return a moment in microseconds since the epoch, or raise ConfigError."""
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise ConfigError(f"a time must be a datetime with a time zone, such as datetime.now(UTC), not {at!r:.80}")
    return (at - _EPOCH) // timedelta(microseconds=1)


def checked_name(name: str, what: str) -> str:
    """Return the id of a run or a call as it can be looked for, or raise CommandRejected."""
    if not isinstance(name, str):
        raise CommandRejected(f"{what} must be the id of a {what} as text, not {name!r:.80}")
    return clean_text(name[:KEY_BYTES_MAX])


def checked_flag(value: bool, what: str) -> bool:
    """Return a choice between yes and no, or raise CommandRejected."""
    if not isinstance(value, bool):
        raise CommandRejected(f"{what} must be True or False, not {value!r:.80}")
    return value


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
        """Take note whose the session is; None = it has not begun, or has no user yet.

        Raises:
            CommandRejected: it is another user's.
        """
        if self.is_checked or user is None:
            return
        if user != self.user:
            raise CommandRejected(f"session {self.session!r} is another user's; use a session of user {self.user!r}")
        self.is_checked = True

    async def require(self, store: EventStore) -> None:
        """Do as `check`, by the log, which is read until it is known whose the session is.

        Raises:
            CommandRejected: it is another user's.
            PersistenceError: the log cannot be read.
        """
        if not self.is_checked:
            found = Fold(stream_name(SESSION_KIND, self.session), SESSION_CORE, SESSION_CODEC)
            await found.read(store)
            self.check(found.state.user)


def describe_command(user: str | None, metadata: Mapping[str, str | None] | None) -> DescribeSession | None:
    """Return the command that says whose a session is; None where nothing is said.

    Raises:
        ConfigError: the user cannot be one, or the metadata is no mapping of texts to texts or None.
    """
    if user is not None:
        checked_identifier(user, "user")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigError(f"metadata is a mapping of texts to texts, not {metadata!r:.80}")
    checked: dict[str, str | None] = {}
    for key, value in (metadata or {}).items():
        if not (isinstance(key, str) and key and (value is None or isinstance(value, str))):
            raise ConfigError(f"metadata maps texts to texts, or to None to drop one, not {key!r:.60} to {value!r:.60}")
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
    """Return an input in its sent form, with the one that was given beside it where they differ, and their payloads.

    Raises:
        AgentLoopError: middleware failed; nothing is sent.
        CommandRejected: what middleware made of it is empty, or cannot be recorded.
    """
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

    def of_run(self, deps: object, given: RunOverrides) -> Self:
        """Return the same access, for a run that depends on something, or whose answer is of a type of its own.

        Raises:
            ConfigError: the log is shared, and `deps` would stay in this process.

        Args:
            deps: None = it depends on what its session does.
            given: what it does otherwise than its agent.
        """
        access, output_type = copy.copy(self), given.get("output_type")
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
        return self if own in (None, agents) else self.of_run(None, {"output_type": OwnType})

    async def read(self, question: Callable[[SessionState], T], *, vital: bool = False) -> T:
        """Return what the actor's durable state answers; the answer is the caller's own.

        Raises:
            ActorStopped: the runtime is closed, or the session has failed.
            BackpressureShed: too many messages wait, and this one is not vital.
            CommandRejected: the session is another user's.
        """
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
        await self.named.require(self.context.store)
        yield
        await self.named.require(self.context.store)

    async def recorded_after(self, session: SessionId, version: int, limit: int) -> list[RecordedSessionEvent]:
        """As `RuntimeContext.recorded_after`; raises CommandRejected where the session is another user's."""
        page = await self.context.recorded_after(session, version, limit)
        await self.named.require(self.context.store)
        return page

    def admission(self) -> Admit | None:
        """Return what is asked before a reader who follows the session has an item; None = nothing is to be asked.

        It raises CommandRejected where the session is another user's. The log is looked at once; behind that, what
        gives the session to a user is among the items.
        """
        looked = False

        async def admit(item: Published | None) -> None:
            nonlocal looked
            if not looked:
                await self.named.require(self.context.store)
                looked = True
            elif isinstance(item, RecordedEvent) and isinstance(item.event, SessionDescribed):
                self.named.check(item.event.user)

        return admit if self.named.user is not None else None

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
            content, more = await in_turns(spill_in_steps(command.content))  # What is replaced already stays.
            if more:
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
