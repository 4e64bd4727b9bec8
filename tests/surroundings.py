"""What stands around the code of a document that is a part of a program: what runs before it, and after it."""

AGENT = """
from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use

model = ScriptedProvider([say("Sunny."), say("Still sunny.")])
agent = Agent(config=AgentConfig(model="m", streaming=True), provider=model)
"""

SURROUNDINGS: dict[str, tuple[str, str]] = {
    "host": (
        AGENT
        + """
owner = await AgentRuntime(agent, log="events.db").open()
hosted = await owner.host("show", Show, perform=send_ticket)
""",
        """
assert await hosted.read("hamlet", lambda hall: hall.free) == 98
await owner.close()
""",
    ),
    "asgi": (
        AGENT
        + """
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
""",
        """
app = FastAPI()
async with lifespan(app):
    assert (await (await app.state.runtime.session("alice")).send("Weather?")).output == "Sunny."
""",
    ),
    "wsgi": (
        AGENT
        + """
import threading

from refold import SyncRuntime
""",
        """
assert runtime() is runtime()
assert runtime().session("alice").send("Weather?").output == "Sunny."
runtime().close()
""",
    ),
    "owner": (
        AGENT
        + """
owner = await AgentRuntime(agent, log="events.db").open()
""",
        """
assert (result.output, stream.result.output) == ("Sunny.", "Still sunny.")
await owner.close()
""",
    ),
    "plan": (
        AGENT
        + """
from pathlib import Path

Path("plan.pdf").write_bytes(b"%PDF-1.7")
runtime = await AgentRuntime(agent).open()
session = await runtime.session("alice")
""",
        """
assert [type(block).__name__ for block in (await session.history())[0].content][1:] == ["DocumentBlock", "ImageBlock"]
await runtime.close()
""",
    ),
    "route": (
        AGENT
        + """
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent

from refold import RunHandle, Streamed, TextDelta

app = FastAPI()
runtime = await AgentRuntime(agent).open()


async def run_of(chat: str, run: str) -> RunHandle:
    return await (await runtime.session(chat)).run(run)


Run = Annotated[RunHandle, Depends(run_of)]
""",
        """
handle = await (await runtime.session("alice")).submit("Weather?")
sent = [sent async for sent in events(handle)]
assert [one.event for one in sent] == ["text", "end"]
assert sent[-1].data == "Sunny."
await runtime.close()
""",
    ),
    "child": (
        AGENT
        + """
import asyncio

from refold import subagent


@tool(tier="confirm")
def refund() -> str:
    \"\"\"Pay back.\"\"\"
    return "paid"


child = Agent(
    name="child",
    config=AgentConfig(model="m"),
    provider=ScriptedProvider([use("refund", {}), say("It is paid.")]),
    tools=[refund],
)
parent = Agent(
    config=AgentConfig(model="m"),
    provider=ScriptedProvider([use("child", {"task": "Pay."}), say("Done.")]),
    tools=[subagent(child, description="Pays.")],
)
runtime = await AgentRuntime(parent).open()
session = await runtime.session("alice")
run = await session.submit("Pay.")
while not await session.approvals():
    await asyncio.sleep(0)
""",
        """
assert (await run.result()).output == "Done."
await runtime.close()
""",
    ),
}
