"""An agent as today's code has it, for a replay: all of it that decides, and nothing that acts.

From where the answers of its model, tools and memories come is in `refold.replay.answers`. `input_now`, `answer_now`
and `result_now` return the event that would be recorded today, in the state in which the recorded one was: what user
code was given is in the log, whether it changed it or not.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from refold.actors.agent.guardrails import Guardrails
from refold.actors.calls.context import HookContext, SessionContext
from refold.actors.calls.middleware import CallRefused, Hooks
from refold.actors.calls.policy import AnswerRules
from refold.actors.calls.questions import CallFailed
from refold.actors.calls.request import RequestMaker, WantedRequest
from refold.actors.calls.results import WithLimit, failure, result_content
from refold.actors.calls.tool_context import ToolContext
from refold.actors.calls.validation import checked_response
from refold.agents.agent import AgentTool, AnyAgent, HandoffTool, with_subagents
from refold.agents.opened_deps import is_opened_first
from refold.agents.redact import redaction_of_agents
from refold.agents.skill import LOAD_SKILL
from refold.events.core.cleaning import Unrecordable
from refold.events.core.content import (
    AnswerContent,
    ErrorKind,
    JsonObject,
    Message,
    ResultContent,
    TextBlock,
    ToolUseBlock,
    text_of,
    tool_uses,
)
from refold.events.core.difference import Difference
from refold.events.core.errors import AgentLoopError, ToolError
from refold.events.core.ids import AgentId, PayloadHash, StreamName
from refold.events.core.pure_core import State
from refold.events.core.records import StoredEvent
from refold.events.model.configuration import (
    CORE_VERSION,
    AgentConfiguration,
    CodeIdentity,
    ToolSpec,
    configuration_of,
    configured_for,
)
from refold.events.model.messages import (
    ModelRequest,
    ModelResponse,
    Prepared,
    RequestReference,
)
from refold.events.model.payloads import stored_hashes
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.events.session import events as ev
from refold.events.session.commands import RecordModelResponse, RecordToolResult, SendInput
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.state import SessionState, TurnCall, find_call
from refold.lineage.recorded import as_given, whole_content
from refold.replay.answers.asked import RECORDED, AnswersFrom, AskModel, answer_differences, as_recorded
from refold.replay.answers.bodies import RecordedBodies, call_context
from refold.replay.answers.memories import GivenRecalling
from refold.replay.comparing import Accepts, Comparison
from refold.replay.core_replay import CoreReplay
from refold.replay.findings import Findings
from refold.replay.manifest import BundleManifest
from refold.sessions.access import hooked_input
from refold.sessions.structured_output import NOT_ACCEPTED, schema_problem
from refold.stores.event_store import EventStore
from refold.tools.dry_run import DryRun, NotComparable, NotOpened
from refold.tools.registry import AnyTool
from refold.version import __version__

OUTPUT_CHECK_BEGINS = ("The answer is not a JSON value", NOT_ACCEPTED)
"""How the words begin with which an answer of the wrong type, or one that a validator does not accept, is rejected;
others are the provider's."""

HIDDEN = "middleware changed what the tool gave, which the log does not have; Agent(keep_originals=True) keeps it"
"""Why such a result is not compared."""

TAKING_OUT = "patterns of the bundle"

MADE_UP = ("The tool ran, and its result cannot be recorded: ", "The tool's result cannot be recorded: ")
"""How failures begin whose result is not known any more."""


class LogParts:
    """A log, and the prompts and schemas of today's agent, which it may not have."""

    def __init__(self, store: EventStore, own: dict[PayloadHash, bytes]) -> None:
        self._store = store
        self._own = own

    @property
    def name(self) -> str:
        return self._store.name

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        wanted = list(hashes)
        own = {name: self._own[name] for name in wanted if name in self._own}
        return own | await self._store.read_payloads([name for name in wanted if name not in own])


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
        self.guardrails = agent.guardrails() or Guardrails()
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
        return await self.requests.prompt_and_tools(recorded)

    @property
    def remembers(self) -> bool:
        """Whether it has memories that enter its requests."""
        return self.agent.memory is not None or self.agent.working_memory is not None

    def instructions(self, call: TurnCall) -> str | None:
        """Return what a call that reads a skill gives today; None = it reads none."""
        named = call.input.get("name") if call.name == LOAD_SKILL else None
        return next((skill.instructions for skill in self.agent.skills if skill.name == named), None)

    def context_of(self, call: TurnCall, of: SessionContext, at: int) -> ToolContext[object]:
        """Return what the body of a call of a session is given besides its arguments, at a time of the log."""
        return call_context(call, of, self.deps, describe=self.tools.described, now_us=at)

    def in_place_of(self, recorded: AgentConfiguration) -> AgentConfiguration:
        """Return today's configuration under the recorded one's name, so that only what it says makes a difference."""
        return msgspec.structs.replace(
            self.configuration, agent=recorded.agent, code=recorded.code, fingerprint=recorded.fingerprint
        )


class AgentsReplay:
    """An agent and its subagents, as a replay of what they decide needs them.

    Args:
        answer_s: how many seconds a piece of its code may take, > 0.
        deps: what the agent depends on, opened; None = nothing is opened for it.
        told: is called with the name of a piece of code before it runs, and with none after it.
        bundle: that the log is of; None = it is no bundle.
        answers: from where answers of models and results of tools come.
        ask: asks the model of an agent, by the agent's name; None = none is asked.
    """

    def __init__(
        self,
        store: EventStore,
        agent: AnyAgent,
        answer_s: float,
        deps: object,
        told: Callable[[str], None],
        bundle: BundleManifest | None = None,
        answers: AnswersFrom = RECORDED,
        ask: AskModel | None = None,
    ) -> None:
        self.is_redacted = bundle is not None and bundle.redacted
        taken_out = bundle.redaction if bundle is not None else NOTHING_SECRET
        self.findings = Findings()
        self.comparison = Comparison()
        told(TAKING_OUT if taken_out else "")  # Those of a foreign bundle may be made to take for ever.
        self.answers = answers
        self.ask = ask
        self._agents = {
            each.name: CurrentAgent(each, store, replayed_deps(each, agent, deps), taken_out)
            for each in with_subagents(agent)
        }
        told("")
        self.store = store
        self.dry_run = DryRun(answer_s, told)

    def begin(self, findings: Findings, gone: dict[str, str]) -> None:
        """Set what the sessions that come are counted in.

        Args:
            findings: takes what is compared; says which differences are meant.
            gone: pieces of code that are not run again, and why; those that give no answer are added to it.
        """
        self.findings, self.comparison = findings, Comparison(findings.accepts)
        self.dry_run.gone = gone

    def set_otherwise(self, stream: StreamName, state: State) -> str | None:
        """Return why what lives on the log may decide otherwise today, in words; None = it has the same settings."""
        for current in self._agents.values():
            for store in current.agent.stream_objects():
                if stream == store.stream or stream.startswith(f"{store.stream}/"):
                    words = " and ".join(msgspec.json.encode(command).decode() for command in store.opening(state))
                    return f"{stream} was kept by other settings than today's: {words}" if words else None
        return None

    def current(self, agent: str | None) -> CurrentAgent | None:
        return self._agents.get(agent or "")


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

    def _decoded(self, stored: StoredEvent) -> ev.SessionEvent:
        return self._in_place(super()._decoded(stored))

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
        own: the model's own answer, where middleware changed it.

    Raises:
        AgentLoopError: middleware failed.
    """
    by_provider = own is None and not event.rejected.startswith(OUTPUT_CHECK_BEGINS)
    response = await as_given(store, event, own)
    response = msgspec.structs.replace(response, rejected=event.rejected if by_provider else "")
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


async def answers_beside(
    event: ev.ModelResponded,
    own: tuple[AnswerContent, ...] | None,
    current: CurrentAgent,
    store: EventStore,
    answer: ModelResponse,
) -> tuple[ModelResponse, ModelResponse, Iterator[Difference]]:
    """Return a recorded answer, the one that a model gives today, and how they differ; for `own` see `answer_now`."""
    then = await as_given(store, event, own)
    now = current.redaction.value(answer)
    left, right = (as_recorded(each, current.tools.check) for each in (then, now))
    return then, now, answer_differences(left, right, (then.stop_reason, now.stop_reason))


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


class BodyRan(NamedTuple):
    """What a body gave today."""

    gave: object
    """Its value, or the exception that it raised."""
    context: ToolContext[object]
    """That it was given."""


async def body_now(call: TurnCall, tool: AnyTool, current: CurrentAgent, of: SessionContext, at: int) -> BodyRan:
    """Run the body of a pure tool with the recorded arguments.

    Raises:
        NotComparable: it asks for what the log does not have, or gives its result later.
        CallRefused: it needs deps, and there are none.
    """
    context = current.context_of(call, of, at)
    return BodyRan(await current.tools.run_again(tool, call.input, context), context)


def result_now(
    event: RecordedResult,
    state: SessionState,
    of: SessionContext,
    current: CurrentAgent,
    store: EventStore,
    ran: BodyRan | None = None,
) -> Callable[[], Awaitable[ResultNow]] | None:
    """Return what does the end of a call again; None where no code but Refold's had a hand in it.

    Args:
        ran: what the body gave today; None = what is recorded of it is given.
    """
    call = find_call(state, event.call)
    kind = None if isinstance(event, ev.ToolCallCompleted) else event.kind
    if call is None or not is_of_the_body(event, call, current):
        return None
    found = call

    async def again() -> ResultNow:
        context = ran.context if ran is not None else current.context_of(found, of, state.at)
        said = await whole_content(store, event.original if event.original is not None else event.content)
        refused_then = text_of(said) if kind == "denied" else None
        shown: JsonObject = {"tool": found.name, "input": found.input}
        recorded: object = (current.instructions(found) if kind is None else None) or said or None
        if ran is not None:
            recorded = ran.gave
        elif kind is not None:
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
                raise AgentLoopError(str(error)) from error
            return ResultNow(call=shown, refused_then=refused_then, refused=str(error))
        except AgentLoopError:
            if not event.hidden:  # Else middleware is not given what it was given then.
                raise
        if event.hidden and refused_then is None and ran is None:
            missed = HIDDEN
        if refused_then is not None or missed is not None:
            return ResultNow(call=shown, refused_then=refused_then, refused=None, missed=missed)
        assert command is not None
        if event.hidden:  # What the tool gave was not kept then.
            command = msgspec.structs.replace(command, original=None, hidden=command.original is not None)
        now = SESSION_CORE.admit(state, command)
        if not isinstance(now, RecordedResult):
            raise NotComparable("the result was not waited for")
        failed = ran is None and not isinstance(now, ev.ToolCallCompleted)
        if failed and now.original is not None and text_of(said).startswith(MADE_UP):
            return ResultNow(
                call=shown, refused_then=None, refused=None, missed="the log does not have what the tool gave"
            )
        return ResultNow(call=shown, refused_then=None, refused=None, event=now)

    return again


def is_of_the_body(event: RecordedResult, call: TurnCall, current: CurrentAgent) -> bool:
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
