"""Record a sample log of tool calls that are tried again, also by the next process; kept here for ever.

See `record.py` for how it is run.
"""

import asyncio
from pathlib import Path

import refold
from refold.actors import ManualClock


@refold.tool(effect="idempotent", timeout_s=5, retries=refold.RetryPolicy(attempts_max=3))
async def book(context: refold.ToolContext[list[Exception | str]]) -> str:
    """Do what is next, or be silent for ever."""
    if not context.deps:
        await asyncio.Event().wait()
    said = context.deps.pop(0)
    if isinstance(said, Exception):
        raise said
    return said


def clerk(script: list[refold.ScriptItem]) -> refold.Agent:
    return refold.Agent(
        name="clerk", config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider(script), tools=[book]
    )


async def sent(session: refold.Session, text: str, clock: ManualClock) -> None:
    sending = asyncio.create_task(session.send(text))
    while not sending.done():
        await session.state_at()  # When what is being recorded is in the log.
        await clock.advance(0.5)
    await sending


async def record(log: Path) -> None:
    """Write the log."""
    clock = ManualClock()
    agent = clerk(
        [refold.use("book"), refold.say("Booked."), refold.use("book"), refold.say("It is full."), refold.use("book")]
    )
    reset = ConnectionError("reset")
    ends = [reset, TimeoutError("slow"), "booked", reset, reset, reset, reset]
    async with refold.AgentRuntime(agent, log=log, clock=clock, deps=ends, inbox_poll_s=0) as runtime:
        session = await runtime.session("alice")
        await sent(session, "Book it.", clock)
        await sent(session, "Another one.", clock)
        left = asyncio.create_task(session.send("Once more."))
        while (turn := (await session.state_at()).turn) is None or not turn.pausing:
            await clock.settle()
    await asyncio.gather(left, return_exceptions=True)
    agent = clerk([refold.say("It cannot be booked."), refold.say("Bye.")])
    async with refold.AgentRuntime(agent, log=log, clock=clock, deps=[], inbox_poll_s=0) as runtime:
        await sent(await runtime.session("alice"), "Bye.", clock)
