"""What a policy says about the calls of an answer, before the answer is recorded.

It runs inside the model effect, as all user code does. The rule: what it says becomes part of the recorded verdict, so
a replay needs no policy; and a policy that fails breaks its call and nothing else.
"""

import asyncio
import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from refold.actors.calls.results import error_words
from refold.events.core.cleaning import recorded_reason
from refold.events.core.content import JsonObject, ToolUseBlock, tool_uses
from refold.events.core.errors import AgentLoopError
from refold.events.core.ids import RunId, SessionId
from refold.events.model.configuration import EffectClass, RecoveryFunction, Tier, ToolSpec
from refold.events.model.run_context import RunContext
from refold.events.session.events import Verdict
from refold.events.session.normalise import NormalisedResponse
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
    """Return the tools that a model is offered, in the same order.

    Raises:
        AgentLoopError: `offer` failed, or said neither True nor False.
    """
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
    except KeyboardInterrupt:
        raise
    except BaseException as failure:  # The border to user code: it has decided nothing, so the run does not go on.
        task = asyncio.current_task()
        if isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling():
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
    """Return `answer` with the verdicts that its calls get from the policy."""
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # The border to user code: nothing is known of the call, so it must not run.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
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
