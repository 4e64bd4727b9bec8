"""Record a sample log of a session that agents hand to each other; kept here for ever.

See `record.py` for how it is run.
"""

from collections.abc import Sequence
from pathlib import Path

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, handoff, use
from refold.actors import ManualClock
from refold.providers.scripted import ScriptItem


def front(front_says: Sequence[ScriptItem] = (), billing_says: Sequence[ScriptItem] = ()) -> Agent:
    billing = Agent(
        name="billing",
        config=AgentConfig(model="large", system_prompt="You do the billing."),
        provider=ScriptedProvider(list(billing_says)),
        handoffs=["front"],
    )
    return Agent(
        name="front",
        config=AgentConfig(model="m"),
        provider=ScriptedProvider(list(front_says)),
        handoffs=[handoff(billing, history="input")],
    )


async def record(log: Path) -> None:
    """Write the log."""
    agent = front(
        ["Hello.", use("transfer_to_billing", {"reason": "an invoice"}), "Anything else?"],
        ["It is 7 euros.", use("transfer_to_front")],
    )
    async with AgentRuntime(agent, log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        session = await runtime.session("first")
        for text in ("Hi", "What do I owe?", "Thanks"):
            await session.send(text)
