"""What passes a policy's border; all else that a policy may do is in `tests/conformance/people/test_policies.py`."""

from typing import Any

import pytest

from refold.actors.calls.policy import ProposedCall, policy_verdicts
from refold.events import ToolSpec, ToolUseBlock
from refold.events.core.cleaning import REASON_CHARACTERS_MAX, recorded_reason
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.model.run_context import RunContext
from refold.events.session.events import Verdict
from refold.events.session.normalise import NormalisedResponse

LOOK = ToolSpec(name="look", description="", input_schema={"type": "object"}, tier="observe", effect="pure")


async def test_an_interrupt_from_the_keyboard_passes_on() -> None:
    def policy(_: ProposedCall) -> None:
        raise KeyboardInterrupt

    call = ToolUseBlock(id=ToolCallId(""), name="look", input={})
    answer = NormalisedResponse(content=(call,), verdicts=(Verdict(),), payloads={})
    with pytest.raises(KeyboardInterrupt):
        await _in_a_frame(
            policy_verdicts(
                answer,
                policy,
                where=RunContext(session=SessionId("s"), run=RunId("run_3"), turn=2, deps=None),
                tools=(LOOK,),
                offered=(LOOK,),
            )
        )


async def _in_a_frame(work: Any) -> Any:
    return await work


def test_a_reason_is_recorded_as_valid_text_of_bounded_length() -> None:
    assert recorded_reason("x" * 20_000) == "x" * REASON_CHARACTERS_MAX
    assert recorded_reason(object()) == "<object object>", "its address is another in each process"
    assert (recorded_reason(None), recorded_reason(7), recorded_reason("\ud83d")) == ("", "7", "�")
