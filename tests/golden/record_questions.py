"""Record a sample log of people's answers: to a tool's question, and to what it left for later; kept here for ever.

See `record.py` for how it is run.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refold import Agent, AgentConfig, AgentRuntime, DeferredResult, ScriptedProvider, ToolContext, tool, use
from refold.actors import ManualClock
from refold.events.core.codec import RecordedEvent
from refold.events.session.events import QuestionAsked
from refold.providers.scripted import ScriptItem
from refold.sessions.session import Session


@tool(tier="observe", effect="pure")
async def deliver(context: ToolContext[Any]) -> str:
    """Deliver the parcel."""
    street = await context.ask("To which street?", type=str)
    return f"to {street}, number {await context.ask('Which number?', type=int)}"


@tool(tier="observe", effect="pure")
async def weigh() -> DeferredResult:
    """Have the parcel weighed."""
    return DeferredResult("the weight", float)


def clerk(script: Sequence[ScriptItem] = ()) -> Agent:
    provider = ScriptedProvider(list(script))
    return Agent(name="clerk", config=AgentConfig(model="m"), provider=provider, tools=[deliver, weigh])


ANSWERS: Sequence[Mapping[str, Any]] = ({"value": "Rosenweg"}, {"value": 5}, {"value": 2.5}, {"error": "no scales"})


async def answer(session: Session[Any]) -> None:
    """Answer what is asked, in order."""
    waiting = iter(ANSWERS)
    async with session.follow() as items:
        async for item in items:
            event = item.event if isinstance(item, RecordedEvent) else None
            if isinstance(event, QuestionAsked):
                await session.answer(event.call, **next(waiting))


async def record(log: Path) -> None:
    """Write the log."""
    asking: list[ScriptItem] = [use("deliver"), "Sent.", use("weigh"), "Two kilos.", use("weigh"), "It is not known."]
    async with AgentRuntime(clerk(asking), log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        session = await runtime.session("first")
        answering = asyncio.ensure_future(answer(session))
        for text in ("Send it", "How heavy is it?", "And now?"):
            await session.send(text)
        answering.cancel()
