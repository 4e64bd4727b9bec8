"""Record a sample log of forks, of a fork of one, and of a conversation that was taken back; kept here for ever.

See `record.py` for how it is run.
"""

from collections.abc import Sequence
from pathlib import Path

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.actors import ManualClock
from refold.providers.scripted import ScriptItem


@tool(effect="once")
async def charge(amount: int) -> str:
    """Charge an amount."""
    return f"charged {amount}"


def clerk(script: Sequence[ScriptItem] = ()) -> Agent:
    return Agent(name="clerk", config=AgentConfig(model="m"), provider=ScriptedProvider(list(script)), tools=[charge])


async def record(log: Path) -> None:
    """Write the log."""
    script: list[ScriptItem] = [
        use("charge", {"amount": 3}),
        say("Paid."),
        say("Bye."),
        say("It was refused."),
        say("Other."),
        say("?"),
    ]
    async with AgentRuntime(clerk(script), log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        session = await runtime.session("first", user="u")
        await session.send("Pay")
        await session.send("Thanks")
        fork = await session.fork(8, results={"call_7_0": "refused"}, name="refused")
        await fork.resume()
        await (await fork.run("run_4")).result()
        other = await (await fork.fork(name="other", model="small", system_prompt="Be brief.")).fork(6, name="cut")
        await other.send("Again")
        await session.rewind()
        await session.send("And now?")
