"""Agents of a stall and what they became, which tests of replays and trials load as `stalls` of a working directory."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

from refold import (
    Agent,
    AgentConfig,
    Deny,
    ModelRequest,
    ModelResponse,
    Price,
    ProposedCall,
    ScriptedProvider,
    TextBlock,
    Tool,
    Usage,
    tool,
    use,
)
from refold.providers.scripted import ScriptedAnswer

PRICES = {"m": Price(input=1, output=1)}


@tool(effect="pure")
async def stock(item: str) -> str:
    """How many."""
    return item + ": 3"


@tool(name="stock", description="How many.", effect="pure")
async def other_stock(item: str) -> str:
    return item + ": 4"


@tool(effect="once")
async def charge(item: str) -> str:
    """Charge for something."""
    return "charged for " + item


def counting(text: str, calls: int, name: str) -> Callable[[ModelRequest], ScriptedAnswer]:
    """Return a model that calls a tool so many times, and answers then; the answer takes half a million tokens."""

    def answer(request: ModelRequest) -> ScriptedAnswer:
        if sum(message.role == "assistant" for message in request.messages) < calls:
            return use(name, {"item": "tea"})
        return ModelResponse(content=(TextBlock(text=text),), usage=Usage(output_tokens=500_000))

    return answer


def agent(
    text: str = "Three.",
    *,
    calls: int = 1,
    counts: Tool[..., Any] = stock,
    prices: Mapping[str, Price] = PRICES,
    **more: Any,
) -> Agent:
    config = AgentConfig(model="m", system_prompt=more.pop("prompt", "Be brief."), prices=dict(prices))
    return Agent(
        config=config, tools=[counts], provider=ScriptedProvider([counting(text, calls, counts.name)] * 99), **more
    )


def refuse(call: ProposedCall) -> Deny:
    return Deny("no")


async def never(request: ModelRequest) -> ModelResponse:
    sys.stdout.write("asked\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().create_future()
    raise AssertionError


then, again, changed = agent(), agent("Three of them."), agent(counts=other_stock)
unpriced, judged = agent(prices={}), agent(policy=refuse)
charged = agent("<b>Done</b>.", counts=charge)
charged_twice = agent(calls=2, counts=charge, prompt="Be kind.")
charged_kindly = agent("<script>alert(1)</script>.", counts=charge, prompt="Be kind.")
hanging = Agent(config=AgentConfig(model="m"), provider=never, tools=[charge])
