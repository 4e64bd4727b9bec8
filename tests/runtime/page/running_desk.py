"""A runtime for the page to look at: `python -m tests.runtime.page.running_desk LOG`, until its stdin ends."""

import asyncio
import sys

from refold import AgentConfig, AgentRuntime, ScriptedProvider, ToolContext, say, tool, use
from refold.events.core.content import ToolResultBlock
from refold.events.model.messages import ModelRequest, ModelResponse


@tool(tier="confirm")
async def pay(amount: int, to: str) -> str:
    """Pay."""
    return f"paid {amount} to {to}"


@tool(tier="act", effect="pure")
async def book(context: ToolContext[None]) -> str:
    """Book."""
    return str(await context.ask("Which name is the booking for?", type=str))


def confirmed(request: ModelRequest) -> ModelResponse:
    [*_, block] = request.messages[-1].content
    assert isinstance(block, ToolResultBlock)
    return say(f"Done for {block.content[0].text}.")  # type: ignore[union-attr]


async def main(log: str) -> None:
    payments = [use("pay", {"amount": 25, "to": to}) for to in ("Boat", "Taxi\u202e")]
    provider = ScriptedProvider([*payments, use("book", {}), confirmed])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[pay, book], log=log) as runtime:
        session = await runtime.session("s", user="maria")
        sent = asyncio.ensure_future(session.send("Pay and book."))
        sys.stdout.write("running\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        sent.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
