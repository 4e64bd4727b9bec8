"""Record a sample log of guardrails: one that tripped on an input, and one on an answer; kept here for ever.

See `record.py` for how it is run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refold import Agent, AgentConfig, AgentRuntime, Deny, Message, RunContext, ScriptedProvider, guardrail
from refold.actors import ManualClock
from refold.providers.scripted import ScriptItem


@guardrail
def no_cards(context: RunContext[Any], said: Message) -> Deny | None:
    return Deny("a card number") if "4111" in said.text else None


@guardrail
def no_promises(context: RunContext[Any], answer: str) -> Deny | None:
    return Deny() if "promise" in answer else None


def clerk(script: Sequence[ScriptItem] = ()) -> Agent:
    return Agent(
        name="clerk",
        config=AgentConfig(model="m"),
        provider=ScriptedProvider(list(script)),
        input_guardrails=[no_cards],
        output_guardrails=[no_promises],
    )


async def record(log: Path) -> None:
    """Write the log."""
    agent = clerk(["Hello.", "It will come, I promise.", "On Monday, I think."])
    async with AgentRuntime(agent, log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        session = await runtime.session("first")
        for text in ("Hi", "My card is 4111", "When will it come?", "When?"):
            await session.send(text)
