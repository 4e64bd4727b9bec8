"""Record a sample log of model calls that took a while, and whose requests user code had changed; kept here for ever.

See `record.py` for how it is run.
"""

import asyncio
from pathlib import Path

import msgspec

import refold
from refold.actors import ManualClock
from refold.providers.scripted import ScriptItem


class Long(refold.Middleware):
    """Says more behind the prompt than an event holds."""

    def on_pre_llm(self, context: refold.HookContext, request: refold.ModelRequest) -> refold.ModelRequest:
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt} {'Be kind. ' * 40}")


def guide(*script: ScriptItem) -> refold.Agent:
    return refold.Agent(
        config=refold.AgentConfig(model="m", system_prompt="Guide."),
        provider=refold.ScriptedProvider(script),
        middleware=[Long()],
        context=refold.Summarising(200),
    )


async def record(log: Path) -> None:
    """Write the log."""
    clock = ManualClock()

    def slowly(said: str) -> ScriptItem:
        async def answer(request: refold.ModelRequest) -> str:
            await clock.sleep(0.5)
            return said

        return answer

    agent = guide(slowly("A story. " * 100), slowly("They told a story."), slowly("Yes."))
    async with refold.AgentRuntime(agent, log=log, clock=clock, inbox_poll_s=0) as runtime:
        session = await runtime.session("alice")
        for text in ("Tell me a story.", "Is it true?"):
            sending = asyncio.create_task(session.send(text))
            while not sending.done():
                await clock.settle()
                await clock.advance(0.01)
            await sending
