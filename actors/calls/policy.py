"""What is recorded of a model's answer: its content in its kept form, a verdict on each call, why it cannot be used.

All user code of that runs inside the model effect (`refold.actors.agent.model`): the validation of arguments, the
policy, the check of a final answer. What it says becomes part of the recorded verdict, so that a replay needs no
policy, and can ask today's the same; and a policy that fails breaks its call and nothing else.
"""

import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from refold.actors.calls.protocols import ToolRunner
from refold.actors.calls.results import passes
from refold.events.core.cleaning import clean_json, clean_text, error_words, recorded_reason
from refold.events.core.content import JsonObject, TextBlock, ToolUseBlock, tool_uses
from refold.events.core.errors import AgentLoopError, CommandRejected
from refold.events.core.ids import RunId, SessionId
from refold.events.model.configuration import AgentConfiguration, EffectClass, RecoveryFunction, Tier, ToolSpec
from refold.events.model.messages import ModelResponse, ToolUse
from refold.events.model.run_context import RunContext
from refold.events.session.events import Verdict
from refold.events.session.normalise import NormalisedResponse, recorded_answer
from refold.events.session.react import BROKEN_TEXT

log = logging.getLogger("refold.model")


class Allow(msgspec.Struct, frozen=True):
    """The call may run."""

    always: bool = False
    """Said of an approval: later calls of the same action need none in this session."""
    arguments: Mapping[str, object] | None = None
    """Said of an approval: all arguments that the call runs with, in place of the model's; None = with these."""


class Deny(msgspec.Struct, frozen=True):
    """The call does not run."""

    reason: str = ""
    """What the model is told."""


class Ask(msgspec.Struct, frozen=True):
    """A person has to allow the call first."""

    reason: str = ""
    """What that person is told."""


PolicyDecision: TypeAlias = Allow | Deny | Ask
"""What a policy says: `Allow` leaves it to the tool's tier whether a person has to approve."""

Decision: TypeAlias = Allow | Deny
"""What an approval handler says."""


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a model asks for, as a policy sees it: what is shown here is what would run."""

    session: SessionId
    run: RunId
    turn: int
    tool: str
    input: JsonObject
    """The arguments, a copy of the policy's own."""
    tier: Tier
    effect: EffectClass
    deps: Any = None
    """What the application depends on, as `ToolContext.deps`."""


Policy = Callable[[ProposedCall], PolicyDecision | Awaitable[PolicyDecision | None] | None]
"""Says what is to become of a call that a model asks for; None = as `Allow`.

Plain functions run on the loop and must return quickly.
"""

Offer = Callable[[SessionId, ToolSpec], bool]
"""Says whether a model is offered a tool in a session; runs on the loop before each model call."""


def offered_tools(offer: Offer | None, session: SessionId, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    return tools if offer is None else tuple(spec for spec in tools if _is_offered(offer, session, spec))


def _is_offered(offer: Offer, session: SessionId, spec: ToolSpec) -> bool:
    try:
        said: object = offer(session, spec)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # The border to user code, which awaits nothing: a CancelledError is its own.
        raise AgentLoopError(f"the offer of tools failed on {spec.name}: {error_words(error)}") from error
    if inspect.iscoroutine(said):
        said.close()
    if not isinstance(said, bool):
        raise AgentLoopError(f"the offer of tools gave {type(said).__name__} for {spec.name} instead of True or False")
    return said


async def recovery_text(function: RecoveryFunction, session: SessionId, tools: Sequence[str], error: Exception) -> str:
    """Return what a model is told of calls that broke before it is asked again; nothing = the run ends."""
    try:
        said = function(session, tuple(tools), error)
        if inspect.isawaitable(said):
            said = await said
    except BaseException as failure:  # The border to user code: it has decided nothing, so the run does not go on.
        if passes(failure):
            raise
        log.exception("the error_recovery of session %s failed", session)
        return ""
    if not isinstance(said, str | None):
        log.error("the error_recovery of session %s gave %s instead of a text or None", session, type(said).__name__)
    if not isinstance(said, str) or said == "stop":
        return ""
    text = recorded_reason(said)
    return BROKEN_TEXT if said == "retry" or not text.strip() else text


async def policy_verdicts(
    answer: NormalisedResponse,
    policy: Policy | None,
    *,
    where: RunContext[Any],
    tools: Sequence[ToolSpec],
    offered: Sequence[ToolSpec],
) -> NormalisedResponse:
    if not answer.verdicts:
        return answer
    assert where.run is not None
    specs = {spec.name: spec for spec in tools}
    names = {spec.name for spec in offered}
    verdicts: list[Verdict] = []
    for use, verdict in zip(tool_uses(answer.content), answer.verdicts, strict=True):
        spec = specs.get(use.name)
        if verdict.verdict != "allow":
            verdicts.append(verdict)
        elif spec is None or use.name not in names:  # Nobody may decide about a tool that the session does not know.
            verdicts.append(Verdict(verdict="deny", reason=f"The tool {use.name} is not to be used here."))
        elif policy is None:
            verdicts.append(verdict)
        else:
            call = ProposedCall(
                session=where.session,
                run=where.run,
                turn=where.turn,
                tool=use.name,
                input=copy.deepcopy(use.input),
                tier=spec.tier,
                effect=spec.effect,
                deps=where.deps,
            )
            verdicts.append(await _policy_verdict(policy, call, use, verdict))
    return msgspec.structs.replace(answer, verdicts=tuple(verdicts))


async def _policy_verdict(policy: Policy, call: ProposedCall, use: ToolUseBlock, verdict: Verdict) -> Verdict:
    try:
        decision = policy(call)
        if inspect.isawaitable(decision):
            decision = await decision
        return _verdict(decision, use, verdict)
    except BaseException as error:  # The border to user code: nothing is known of the call, so it must not run.
        if passes(error):
            raise
        log.exception("the policy failed on a call of %s in session %s", use.name, call.session)
        return _check_failed(f"The policy failed: {error_words(error)}")


def _verdict(decision: PolicyDecision | None, use: ToolUseBlock, verdict: Verdict) -> Verdict:
    match decision:
        case Allow() if decision.arguments is not None:
            return _check_failed("The policy gave a call other arguments, which only a person who approves it may.")
        case None | Allow():
            return verdict
        case Deny(reason=reason):
            return Verdict(verdict="deny", reason=recorded_reason(reason), action=verdict.action)
        case Ask(reason=reason):
            return Verdict(verdict="ask", reason=recorded_reason(reason), action=verdict.action)
        case _:
            said = type(decision).__name__
            log.error("the policy said %s of a call of %s instead of Allow, Deny, Ask or None", said, use.name)
            return _check_failed(f"The policy gave {said} instead of Allow, Deny or Ask.")


def _check_failed(reason: str) -> Verdict:
    return Verdict(verdict="broken", reason=recorded_reason(reason))


CheckOutput: TypeAlias = Callable[[str, RunContext[Any]], Awaitable[str | None]]
"""Returns why a final answer's text cannot be used, in words for the model, or None where it can; raises what user code
raises that fails on it."""

CheckSchema: TypeAlias = Callable[[str, AgentConfiguration], str | None]
"""Returns the same of an answer whose run has a schema of its own."""

MESSAGE_CHARACTERS_MAX = 2_000
"""An error's text is cut after so many characters before it is recorded."""


def final_text(response: ModelResponse) -> str | None:
    """Return the text of a final answer; None where it calls tools, goes on, or says nothing."""
    if response.stop_reason == "pause_turn":
        return None
    text = ""
    for block in response.content:
        if isinstance(block, ToolUse | ToolUseBlock):
            return None
        if isinstance(block, TextBlock):
            text += block.text
    return text if text.strip() else None


class AnswerRules:
    """What one agent's answers must be."""

    def __init__(
        self,
        tools: ToolRunner,
        policy: Policy | None,
        output_check: CheckOutput | None,
        recovery: RecoveryFunction | None = None,
        schema_check: CheckSchema | None = None,
    ) -> None:
        self._schema_check = schema_check
        self._recovery = recovery
        self._tools = tools
        self._policy = policy
        self._output_check = output_check

    async def answer(
        self, response: ModelResponse, where: RunContext[Any], tools: Sequence[ToolSpec], offered: Sequence[ToolSpec]
    ) -> NormalisedResponse:
        """Return what is recorded of a response, large blocks spilled to payloads."""
        answer = await policy_verdicts(
            recorded_answer(response, self._check),
            self._policy,
            where=where,
            tools=tools,
            offered=offered,
        )
        broken = [verdict for verdict in answer.verdicts if verdict.verdict == "broken"]
        if self._recovery is None or not broken:
            return answer
        named = zip(tool_uses(answer.content), answer.verdicts, strict=True)
        names = [use.name for use, verdict in named if verdict.verdict == "broken"]
        said = await recovery_text(self._recovery, where.session, names, AgentLoopError(broken[0].reason))
        verdicts = tuple(
            msgspec.structs.replace(verdict, recovery=said) if verdict.verdict == "broken" else verdict
            for verdict in answer.verdicts
        )
        return msgspec.structs.replace(answer, verdicts=verdicts)

    async def rejection(
        self, response: ModelResponse, where: RunContext[Any], configuration: AgentConfiguration
    ) -> str:
        """Return why an answer cannot be used as a whole, in words for the model; empty where it can be.

        Where the run has a schema of its own, that alone counts.
        """
        if response.rejected:
            return clean_text(response.rejected)[:MESSAGE_CHARACTERS_MAX]
        text = final_text(response)
        if text is None:
            return ""
        if configuration.output_instruction is not None:
            said = self._schema_check(text, configuration) if self._schema_check is not None else None
            return clean_text(said or "")[:MESSAGE_CHARACTERS_MAX]
        if self._output_check is None:
            return ""
        return clean_text(await self._output_check(text, where) or "")[:MESSAGE_CHARACTERS_MAX]

    def _check(self, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
        return _checked(self._tools, name, arguments)


def _checked(tools: ToolRunner, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
    try:
        return tools.check(name, arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # The border to user code: nothing is known of the call, so it must not run.
        log.exception("the arguments of a call of %s cannot be checked", name)
        return arguments, Verdict(verdict="broken", reason=f"The arguments cannot be checked: {error_words(error)}")


def changed_arguments(tools: ToolRunner, name: str, arguments: object) -> JsonObject:
    """Return the arguments that a person gives a call in place of the model's, as they are recorded.

    A model's arguments are repaired where their meaning is certain; a person's are what they say, so that what was
    approved is what runs.
    """
    given = given_arguments(arguments)
    fitting, verdict = _checked(tools, name, given)
    if verdict.verdict != "allow":
        raise CommandRejected(f"the call waits on, since its new arguments cannot be used. {verdict.reason}")
    require_read_as_given(name, fitting, given)
    return given


def require_read_as_given(name: str, fitting: JsonObject, given: JsonObject) -> None:
    repaired = msgspec.json.encode(fitting)
    if repaired != msgspec.json.encode(given):
        raise CommandRejected(f"the call waits on; {name} would read its new arguments as {repaired.decode():.500}")


def given_arguments(arguments: object) -> JsonObject:
    """Return arguments in a form that can be recorded; or raise CommandRejected."""
    if not isinstance(arguments, Mapping):
        raise CommandRejected(f"the arguments of a call are an object, not {type(arguments).__name__}")
    return cast("JsonObject", clean_json(dict(cast("Mapping[object, object]", arguments)), "arguments"))
