"""What a policy and an offer say becomes verdicts; what they get wrong, a broken call or an error with a name.

What sessions do about it is tested in `tests/conformance/test_policies.py`.
"""

import asyncio
from typing import Any

import pytest

from refold.actors.calls.policy import offered_tools, policy_verdicts
from refold.events.core.content import AnswerContent, ToolUseBlock
from refold.events.core.errors import AgentLoopError
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.events.session.events import REASON_CHARACTERS_MAX, Allow, Ask, Deny, ProposedCall, Verdict, recorded_reason
from refold.events.session.normalise import NormalisedResponse

LOOK = ToolSpec(name="look", description="", input_schema={"type": "object"}, tier="observe", effect="pure")
PAY = ToolSpec(name="pay", description="", input_schema={"type": "object"}, tier="confirm")
TOOLS = (LOOK, PAY)
ALLOWED = Verdict(action="look: here")


def call(name: str = "look", **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(""), name=name, input=arguments)


async def verdicts(
    policy: Any, *content: AnswerContent, given: tuple[Verdict, ...] | None = None, offered: Any = TOOLS
) -> list[Verdict]:
    calls = sum(isinstance(block, ToolUseBlock) for block in content)
    answer = NormalisedResponse(
        content=content, verdicts=given if given is not None else (ALLOWED,) * calls, payloads={}
    )
    found = await policy_verdicts(
        answer, policy, session=SessionId("s"), run=RunId("run_3"), turn=2, tools=TOOLS, offered=offered
    )
    assert found.content == content
    return list(found.verdicts)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (None, ALLOWED),
        (Allow(), ALLOWED),
        (Allow(always=True), ALLOWED),
        (Deny("no"), Verdict(verdict="deny", reason="no", action="look: here")),
        (Ask("sure?"), Verdict(verdict="ask", reason="sure?", action="look: here")),
        (True, Verdict(verdict="broken", reason="The policy gave bool instead of Allow, Deny or Ask.")),
    ],
)
async def test_what_a_policy_says_becomes_the_verdict(said: object, verdict: Verdict) -> None:
    async def later(_: ProposedCall) -> object:
        return said

    assert await verdicts(lambda _: said, call()) == [verdict]
    assert await verdicts(later, call()) == [verdict]


@pytest.mark.parametrize("kind", ["ask", "deny", "invalid_arguments", "not_found", "broken"])
async def test_a_verdict_other_than_allow_stays_and_no_policy_is_asked(kind: Any) -> None:
    def policy(_: ProposedCall) -> None:
        raise AssertionError("asked")

    given = Verdict(verdict=kind, reason="as it was")
    assert await verdicts(policy, call(), given=(given,)) == [given]


@pytest.mark.parametrize("policy", [None, lambda _: Allow()])
@pytest.mark.parametrize(("name", "offered"), [("pay", (LOOK,)), ("unknown", TOOLS)])
async def test_a_call_of_a_tool_that_was_not_offered_is_denied(policy: Any, name: str, offered: Any) -> None:
    denied = Verdict(verdict="deny", reason=f"The tool {name} is not to be used here.")
    assert await verdicts(policy, call(), call(name), offered=offered) == [ALLOWED, denied]


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(2), asyncio.CancelledError(), GeneratorExit()])
async def test_a_policy_that_raises_breaks_its_call_and_no_other(error: BaseException) -> None:
    def policy(proposed: ProposedCall) -> None:
        if proposed.input:
            raise error

    first, second = await verdicts(policy, call(n=1), call())
    assert (first.verdict, second) == ("broken", ALLOWED)
    assert first.reason == f"The policy failed: {error!s}" or first.reason.endswith(type(error).__name__)


async def test_an_interrupt_from_the_keyboard_passes_on() -> None:
    def policy(_: ProposedCall) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await _in_a_frame(verdicts(policy, call()))


async def _in_a_frame(work: Any) -> Any:
    return await work


def test_an_offer_that_would_end_the_process_is_an_error_that_names_the_tool() -> None:
    def offer(session: SessionId, spec: ToolSpec) -> bool:
        raise SystemExit(2)

    with pytest.raises(AgentLoopError, match="the offer of tools failed on look"):
        offered_tools(offer, SessionId("s"), TOOLS)


def test_a_reason_is_recorded_as_valid_text_of_bounded_length() -> None:
    assert recorded_reason("x" * 20_000) == "x" * REASON_CHARACTERS_MAX
    assert recorded_reason(object()) == "<object object>", "its address is another in each process"
    assert (recorded_reason(None), recorded_reason(7), recorded_reason("\ud83d")) == ("", "7", "�")
