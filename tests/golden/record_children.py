"""Record a sample log of sessions whose calls wait for a person in the sessions of subagents; kept here for ever.

See `record.py` for how it is run.
"""

import asyncio
from pathlib import Path

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.actors import ManualClock


@tool(tier="confirm", effect="pure")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def boss() -> Agent:
    payer = Agent(
        name="payer",
        config=AgentConfig(model="m"),
        provider=ScriptedProvider([item for n in (1, 2) for item in (use("pay", {"amount": n}), say(f"Paid {n}."))]),
        tools=[pay],
    )
    clerk = Agent(
        name="clerk",
        config=AgentConfig(model="m", run_timeout_s=100),
        provider=ScriptedProvider([use("payer", {"task": "pay one"}), say("It is paid.")]),
        tools=[payer.as_tool()],
    )
    return Agent(
        name="boss",
        config=AgentConfig(model="m", run_timeout_s=100),
        provider=ScriptedProvider(
            [use("clerk", {"task": "have it paid"}), use("payer", {"task": "pay two"}), say("Done."), say("Again.")]
        ),
        tools=[clerk.as_tool(), payer.as_tool()],
    )


async def record(log: Path) -> None:
    """Write the log."""
    clock = ManualClock()
    async with AgentRuntime(boss(), log=log, clock=clock, inbox_poll_s=0) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("See to it."))
        for allow in (True, False):
            await clock.settle()
            while not (waiting := await session.approvals()):
                await clock.settle()
            await clock.settle()  # Those above are told, too, that it waits.
            await clock.advance(1_000)
            await session.decide(waiting[0], allow=allow)
        await sending
        await session.send("And once more.")
