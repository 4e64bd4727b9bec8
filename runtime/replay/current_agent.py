"""An agent as today's code has it, for a replay: all of it that decides, and nothing that acts.

Its provider is never asked, its tools give what was recorded of them, and its memories are those of the log at the
place that is done again. `input_now`, `answer_now` and `result_now` return the event that would be recorded today, in
the state in which the recorded one was: what user code was given is in the log, whether it changed it or not.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeGuard, cast

import msgspec

from refold.actors.calls.middleware import CallRefused, HookContext, Hooks
from refold.actors.calls.questions import CallFailed
from refold.actors.calls.recall import Recalling, Remembered, seen_in
from refold.actors.calls.request import RequestMaker, WantedRequest
from refold.actors.calls.results import DEFAULT_RESULT_LIMIT, WithLimit, failure, result_content
from refold.actors.calls.tool_context import SessionContext, ToolContext
from refold.actors.calls.validation import checked_response
from refold.actors.calls.verdicts import AnswerRules
from refold.actors.cancellation import CancellationToken
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import AgentTool, AnyAgent, HandoffTool
from refold.agents.middleware_tools import HookedTools
from refold.agents.opened_deps import is_opened_first
from refold.agents.redact import redaction_of_agents
from refold.agents.skill import LOAD_SKILL
from refold.events.core.cleaning import Unrecordable
from refold.events.core.content import (
    AnswerContent,
    ErrorKind,
    GivenContent,
    JsonObject,
    Message,
    ResultContent,
    StoredBlock,
    TextBlock,
    ToolUseBlock,
    text_of,
    tool_uses,
)
from refold.events.core.errors import AgentLoopError, ToolError
from refold.events.core.ids import AgentId, PayloadHash, StreamName
from refold.events.core.records import StoredEvent
from refold.events.model.configuration import (
    CORE_VERSION,
    AgentConfiguration,
    CodeIdentity,
    ToolSpec,
    configuration_of,
    configured_for,
)
from refold.events.model.context_window import summary_messages
from refold.events.model.messages import (
    ModelRequest,
    ModelResponse,
    Prepared,
    RequestReference,
)
from refold.events.model.payloads import restored, stored_hashes, whole_block
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.events.session import events as ev
from refold.events.session.commands import RecordModelResponse, RecordToolResult, SendInput
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.state import SessionState, TurnCall, find_call
from refold.lineage.recorded import as_given
from refold.memory.stream_object import StreamObject
from refold.replay.comparing import Accepts
from refold.replay.core_replay import CoreReplay
from refold.sessions.access import hooked_input
from refold.sessions.structured_output import NOT_ACCEPTED, schema_problem
from refold.stores.event_store import EventStore
from refold.tools.dry_run import NotComparable, NotOpened
from refold.version import __version__

OUTPUT_CHECK_BEGINS = ("The answer is not a JSON value", NOT_ACCEPTED)
"""How the words begin with which an answer of the wrong type, or one that a validator does not accept, is rejected;
others are the provider's."""

HIDDEN = "middleware changed what the tool gave, which the log does not have; Agent(keep_originals=True) keeps it"
"""Why such a result is not compared."""

MADE_UP = ("The tool ran, and its result cannot be recorded: ", "The tool's result cannot be recorded: ")
"""How failures begin whose result is not known any more."""


class LogParts:
    """A log, and the prompts and schemas of today's agent, which it may not have."""

    def __init__(self, store: EventStore, own: dict[PayloadHash, bytes]) -> None:
        self._store = store
        self._own = own

    @property
    def name(self) -> str:
        """The log's name."""
        return self._store.name

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        """Return those payloads that there are."""
        wanted = list(hashes)
        own = {name: self._own[name] for name in wanted if name in self._own}
        return own | await self._store.read_payloads([name for name in wanted if name not in own])


class PastRecalling(Recalling):
    """Asks an agent's memories as they were at a place of a log. Places are given in order."""

    def __init__(self, store: EventStore, agent: AnyAgent) -> None:
        super().__init__(None, None)
        self._store = store
        self._agent = agent
        self._then: dict[str, StreamObject[Any, Any, Any]] = {}
        """The parts of its memories that were asked last, by the field of the agent."""

    @property
    def not_of_the_log(self) -> str | None:
        """Why its memories cannot be asked, in words; None = they can."""
        for field in ("memory", "working_memory"):
            given = getattr(self._agent, field)
            if given is not None and not _is_of_the_log(given):
                return f"the agent's {field} is not one of the log, so that it cannot be asked what it held then"
        return None

    async def lacks(self) -> str | None:
        """Return which stream of what was asked last the log lacks, though streams were left out of it, in words."""
        removed = getattr(self._store, "removed_position", None)  # Stores of users need not know.
        for part in self._then.values():
            if await self._store.head(part.stream) is None and removed is not None and await removed():
                return f"the log lacks the stream {part.stream}, as an export of some streams does"
        return None

    async def go(self, position: int, at: int, context: SessionContext) -> bool:
        """Go to a place; return whether anything that the session sees is another since the last one.

        Args:
            position: of the last event that is to be known, whichever stream's it is.
            at: the time of the place, in microseconds since the epoch, UTC.
            context: of the session.
        """
        changed = False
        for field in ("memory", "working_memory"):
            given = getattr(self._agent, field)
            if not _is_of_the_log(given):
                continue
            seen = seen_in(given, context)
            then = self._then.get(field)
            if then is not None and then.stream == seen.stream:
                changed = await then.move_on(self._store, position, at) or changed
            else:
                self._then[field] = await seen.at(self._store, position=position)
                setattr(self, f"_{field}", self._then[field])
                changed = True
        return changed


class GivenRecalling(Recalling):
    """Says that what was recorded is remembered."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.recorded = Remembered()

    async def remembered(self, configuration: AgentConfiguration, query: str, context: SessionContext) -> Remembered:
        """Return what was recorded."""
        return self.recorded


class RecordedBodies(HookedTools):
    """Tools whose bodies are not run: they give what was recorded of them."""

    def __init__(self, agent: AnyAgent, hooks: Hooks, redaction: Redaction) -> None:
        super().__init__(agent, hooks, ThreadPool(name="never used"), redaction, keeps=True)
        self._recorded: object = None

    async def give(self, name: str, arguments: JsonObject, context: ToolContext[object], recorded: object) -> object:
        """Return what comes of a recorded value, or of a recorded error, between the hooks.

        Raises:
            Exception: as `HookedTools.run`.
        """
        self._recorded = recorded
        return await self.run(name, arguments, context)

    async def _value(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        if isinstance(self._recorded, Exception):
            raise self._recorded
        tool = self.get(name)
        limit = tool.result_limit if tool is not None else DEFAULT_RESULT_LIMIT
        return self._recorded if limit == DEFAULT_RESULT_LIMIT else WithLimit(self._recorded, limit)


class RequestPair(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded request, and what the one of today is made from."""

    request: ModelRequest
    reference: RequestReference
    prepared: Prepared
    """What had been done to it."""
    wanted: WantedRequest


class CurrentAgent:
    """What of an agent decides.

    Args:
        agent: today's.
        store: the log.
        deps: what its functions depend on.
        taken_out: of the log, after it was recorded.
    """

    def __init__(self, agent: AnyAgent, store: EventStore, deps: object, taken_out: Redaction = NOTHING_SECRET) -> None:
        self.agent = agent
        self.deps = deps
        self.provider = agent.answering()
        """What its requests go to; it is only asked what would leave."""
        self.hooks = agent.hooks() or Hooks(())
        self.redaction = Redaction(others=[redaction_of_agents([agent]), taken_out])
        self.tools = RecordedBodies(agent, self.hooks, self.redaction)
        self.specs = self.redaction.value(self.tools.specs())
        self.configuration, own = configuration_of(
            self.redaction.value(agent.told_config()),
            agent=AgentId(agent.name),
            tools=self.specs,
            code=CodeIdentity(refold=__version__, core=CORE_VERSION),
            builds_requests=agent.builds_requests,
            output_schema=agent.output_schema(),
        )
        self.output_check = output_check = agent.output_check()
        self.rules = AnswerRules(self.tools, agent.policy, output_check, agent.config.recovery_function, schema_problem)
        self.guardrails = agent.guardrails()
        self.given = GivenRecalling()
        self.parts = LogParts(store, own)
        self.requests = RequestMaker(
            self.parts,
            prompt=agent.config.prompt_function,
            offer=agent.offer,
            recalling=self.given,
            window=agent.context,
            hooks=agent.hooks(),
            redaction=self.redaction,
        )

    async def parts_of(self, recorded: AgentConfiguration) -> tuple[str, tuple[ToolSpec, ...]]:
        """Return the system prompt and the tools of a recorded configuration.

        Raises:
            LogFormatError: the log lacks them.
        """
        return await self.requests.prompt_and_tools(recorded)

    @property
    def remembers(self) -> bool:
        """Whether it has memories that enter its requests."""
        return self.agent.memory is not None or self.agent.working_memory is not None

    def instructions(self, call: TurnCall) -> str | None:
        """Return what a call that reads a skill gives today; None = it reads none."""
        named = call.input.get("name") if call.name == LOAD_SKILL else None
        return next((skill.instructions for skill in self.agent.skills if skill.name == named), None)

    def in_place_of(self, recorded: AgentConfiguration) -> AgentConfiguration:
        """Return today's configuration under the recorded one's name, so that only what it says makes a difference."""
        return msgspec.structs.replace(
            self.configuration, agent=recorded.agent, code=recorded.code, fingerprint=recorded.fingerprint
        )


class CurrentDecisions(CoreReplay[SessionState, ev.SessionEvent]):
    """Decides a session again as if today's configuration had been in force all along."""

    def __init__(
        self, stream: StreamName, first: CurrentAgent, others: Callable[[str], CurrentAgent | None], accepts: Accepts
    ) -> None:
        super().__init__(stream, SESSION_CORE, SESSION_CODEC, accepts)
        self._first = first
        self._others = others
        self._same_prices = True
        self.admits = False  # Commands were admitted under the recorded configuration.

    def _decoded(self, batch: Sequence[StoredEvent]) -> list[ev.SessionEvent]:
        return [self._in_place(event) for event in super()._decoded(batch)]

    def _in_place(self, event: ev.SessionEvent) -> ev.SessionEvent:
        match event:
            case ev.AgentConfigured(configuration=configuration):
                now = self._now(configuration)
                self._same_prices = now.prices == configuration.prices
                return msgspec.structs.replace(event, configuration=now)
            case ev.ToolCallCompleted(handoff=handoff) if handoff is not None:
                handoff = msgspec.structs.replace(handoff, configuration=self._now(handoff.configuration))
                return msgspec.structs.replace(event, handoff=handoff)
            case _:
                return event

    def _now(self, recorded: AgentConfiguration) -> AgentConfiguration:
        return (self._others(recorded.agent) or self._first).in_place_of(recorded)

    def _counted_alike(self, recorded: ev.SessionEvent, now: ev.SessionEvent) -> ev.SessionEvent:
        """Return an event of now likewise; what a run costs by other prices decides nothing but budgets."""
        now = super()._counted_alike(recorded, now)
        if self._same_prices or not isinstance(now, ev.TerminalEvent) or now.totals is None:
            return now
        cost = recorded.totals.cost if isinstance(recorded, ev.TerminalEvent) and recorded.totals else 0.0
        return msgspec.structs.replace(now, totals=msgspec.structs.replace(now.totals, cost=cost))


def replayed_deps(agent: AnyAgent, main: AnyAgent, given: object) -> object:
    """Return what an agent's functions depend on in a replay: what is given for that, or a value that is there."""
    shares = agent is main or agent.deps is None or agent.deps is main.deps
    if given is not None and shares:
        return given
    own = main.deps if shares else agent.deps
    if own is not None and not is_opened_first(own):
        return own
    return NotOpened(f"the deps of the agent {agent.name!r}, which a replay has only where it is given some (`deps`)")


def require_remembering(recalling: PastRecalling) -> None:
    """Return where memories can be asked.

    Raises:
        NotComparable: they cannot.
    """
    if (why := recalling.not_of_the_log) is not None:
        raise NotComparable(why)


async def input_now(
    event: ev.InputQueued | ev.TimerSet, current: CurrentAgent, where: HookContext, store: EventStore
) -> ev.InputQueued | ev.TimerSet:
    """Return an input as it would be recorded today.

    Raises:
        AgentLoopError: middleware failed.
        CommandRejected: what it made of the input cannot be sent.
    """
    given = SendInput(content=event.original or event.content, key=event.key, options=event.options)
    payloads = await store.read_payloads(stored_hashes([Message("user", given.content)]))
    command, _ = await hooked_input(current.hooks, where, given, payloads, current.redaction)
    return msgspec.structs.replace(event, content=command.content, original=command.original)


async def answer_now(
    event: ev.ModelResponded,
    own: tuple[AnswerContent, ...] | None,
    state: SessionState,
    where: HookContext,
    current: CurrentAgent,
    offered: Sequence[ToolSpec],
    store: EventStore,
) -> ev.SessionEvent:
    """Return an answer as it would be recorded today.

    Args:
        event: as recorded.
        own: the model's own answer, where middleware changed it.
        state: before it.
        where: whose answer it is.
        current: the agent.
        offered: the tools that the model would be offered today.
        store: the log.

    Raises:
        AgentLoopError: middleware failed.
    """
    message = Message("assistant", own if own is not None else event.content)
    whole = restored(message, await store.read_payloads(stored_hashes([message]))).content
    by_provider = own is None and not event.rejected.startswith(OUTPUT_CHECK_BEGINS)
    response = ModelResponse(
        content=tuple(map(as_given, cast("tuple[AnswerContent, ...]", whole))),
        stop_reason=event.stop_reason,
        usage=event.usage,
        model=event.model,
        stop_details=event.stop_details,
        rejected=event.rejected if by_provider else "",
    )
    changed = await current.hooks.post_llm(where, checked_response(response))
    answer = await current.rules.answer(changed, where, current.specs, offered)
    configuration = configured_for(current.configuration, state.run.options if state.run else None)
    rejected = await current.rules.rejection(changed, where, configuration)
    now = SESSION_CORE.admit(
        state,
        RecordModelResponse(
            run=event.run,
            turn=event.turn,
            content=answer.content,
            stop_reason=changed.stop_reason,
            usage=event.usage,
            request=event.request,
            model=event.model,
            verdicts=answer.verdicts,
            rejected=rejected,
            trip=None if rejected else await current.guardrails.on_output(changed, where, configuration),
            stop_details=changed.stop_details,
            refused=event.refused,
        ),
    )
    if not isinstance(now, ev.ModelResponded):
        raise NotComparable("the answer was not waited for")
    return _with_old_faults(event, now)


def summary_now(event: ev.ContextPrepared) -> tuple[Message, ...]:
    """Return what would stand today for the messages of which a model made the recorded summary."""
    said = event.summary[0].content[0] if event.summary else None
    if not isinstance(said, TextBlock):  # Kept apart, since it is long.
        return event.summary
    return summary_messages(said.text.partition("\n\n")[2], event.summary[1] if len(event.summary) > 1 else None)


def _with_old_faults(recorded: ev.ModelResponded, now: ev.ModelResponded) -> ev.ModelResponded:
    """Return today's answer with the recorded words about arguments that are no JSON: the log keeps a part of them."""
    uses, others = tool_uses(recorded.content), tool_uses(now.content)
    if len(uses) != len(others) or all(use.malformed_input is None for use in uses):
        return now
    verdicts = list(now.verdicts)
    same: dict[str, ToolUseBlock] = {}
    for place, (use, other) in enumerate(zip(uses, others, strict=True)):
        if use.malformed_input is not None and verdicts[place].verdict == recorded.verdicts[place].verdict:
            verdicts[place], same[other.id] = recorded.verdicts[place], use
    content = tuple(same.get(block.id, block) if isinstance(block, ToolUseBlock) else block for block in now.content)
    return msgspec.structs.replace(now, content=content, verdicts=tuple(verdicts))


RecordedResult: TypeAlias = ev.ToolCallCompleted | ev.ToolAttemptFailed | ev.ToolCallFailed
"""What a body's end is recorded as."""


class ResultNow(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call today."""

    call: JsonObject
    refused_then: str | None
    """Why its body did not run; None = it ran."""
    refused: str | None
    """The same today."""
    event: RecordedResult | None = None
    """Its result as it would be recorded today; None = there is none to compare."""
    missed: str | None = None
    """Why there is none."""


def result_now(
    event: RecordedResult,
    state: SessionState,
    of: SessionContext,
    current: CurrentAgent,
    store: EventStore,
) -> Callable[[], Awaitable[ResultNow]] | None:
    """Return what does the end of a call again; None where no code but Refold's had a hand in it."""
    call = find_call(state, event.call)
    kind = None if isinstance(event, ev.ToolCallCompleted) else event.kind
    if call is None or not _of_the_body(event, call, current):
        return None
    found = call

    async def again() -> ResultNow:
        context: ToolContext[object] = ToolContext(
            call=event.call,
            session=of.session,
            deps=current.deps,
            cancel=CancellationToken(),
            report=lambda _: None,
            session_context=of,
        )
        said = await _whole(event.original if event.original is not None else event.content, store)
        refused_then = text_of(said) if kind == "denied" else None
        shown: JsonObject = {"tool": found.name, "input": found.input}
        recorded: object = (current.instructions(found) if kind is None else None) or said or None
        if kind is not None:
            recorded = CallFailed(text_of(said), result_kind=kind)
        elif isinstance(event, ev.ToolCallCompleted) and event.ends_run:
            context.finished = text_of(said)
        if isinstance(event, ev.ToolCallCompleted) and event.handoff is not None:
            tool = current.tools.get(found.name)
            same = isinstance(tool, HandoffTool) and tool.agent_name == event.handoff.agent
            context.handoff = event.handoff if same else None
        missed: str | None = None
        command: RecordToolResult | None = None
        try:
            command = await _command(found, context, current, recorded)
        except CallRefused as error:
            if error.broken:
                raise NotComparable(str(error)) from error
            return ResultNow(call=shown, refused_then=refused_then, refused=str(error))
        except AgentLoopError as error:
            missed = str(error)
        if event.hidden and refused_then is None:
            missed = HIDDEN
        if refused_then is not None or missed is not None:
            return ResultNow(call=shown, refused_then=refused_then, refused=None, missed=missed)
        assert command is not None
        now = SESSION_CORE.admit(state, command)
        if not isinstance(now, RecordedResult):
            raise NotComparable("the result was not waited for")
        if not isinstance(now, ev.ToolCallCompleted) and now.original is not None and text_of(said).startswith(MADE_UP):
            return ResultNow(
                call=shown, refused_then=None, refused=None, missed="the log does not have what the tool gave"
            )
        return ResultNow(call=shown, refused_then=None, refused=None, event=now)

    return again


def _of_the_body(event: RecordedResult, call: TurnCall, current: CurrentAgent) -> bool:
    """Tell whether a result is what a body, or middleware before it, made."""
    if isinstance(event, ev.ToolCallCompleted):
        return True
    if isinstance(event, ev.ToolAttemptFailed):
        return event.kind == "transient"
    if not event.started or event.broken or not call.started:
        return False
    if event.kind == "denied":  # By a person after a crash; or a tool's that leads to another agent.
        return call.approval != "denied" and not isinstance(current.tools.get(call.name), AgentTool)
    # A transient failure would have been that of an attempt: this one is what an attempt that was not made is told as.
    return event.kind == "permanent" or (event.kind == "transient" and call.failure is None)


async def _command(
    call: TurnCall, context: ToolContext[object], current: CurrentAgent, recorded: object
) -> RecordToolResult:
    """Return what would be recorded of a call, as `refold.actors.agent.tool` makes it."""
    content: tuple[ResultContent, ...]
    kind: ErrorKind | None = None
    try:
        value = await current.tools.give(call.name, call.input, context, recorded)
        finished = context.finished
        content, _ = result_content(value if finished is None else WithLimit(finished, None), current.redaction)
    except ToolError as error:
        content, kind = failure(error, current.redaction)
    except Unrecordable as error:
        content, kind = (TextBlock(text=f"{MADE_UP[0]}{error}"),), "permanent"
    return RecordToolResult(
        call=call.id,
        content=content,
        kind=kind,
        ends_run=kind is None and context.finished is not None,
        handoff=context.handoff if kind is None else None,
        original=context.original[0],
        again=kind == "transient",
    )


async def _whole(content: Sequence[ResultContent], store: EventStore) -> tuple[GivenContent, ...]:
    """Return a result with all of what was cut, or kept apart.

    Raises:
        LogFormatError: a payload is missing or damaged.
    """
    stored = [block.hash for block in content if isinstance(block, StoredBlock)]
    payloads = await store.read_payloads(stored) if stored else {}
    return tuple(
        cast("GivenContent", whole_block(block.hash, payloads)) if isinstance(block, StoredBlock) else block
        for block in content
    )


def _is_of_the_log(memory: object) -> TypeGuard[StreamObject[Any, Any, Any]]:
    return isinstance(memory, StreamObject)
