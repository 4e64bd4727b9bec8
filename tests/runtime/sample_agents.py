"""Agents of a user, which tests of commands load as the module `agents` of a working directory."""

import asyncio
import os
import sys
from typing import Any

from refold import (
    Agent,
    AgentConfig,
    Allow,
    ModelRequest,
    ProviderError,
    RetryPolicy,
    ScriptedProvider,
    TextBlock,
    ToolError,
    cut,
    say,
    tool,
    use,
)

config = AgentConfig(model="m")


def tell(*words: str) -> None:
    sys.stderr.write(" ".join(words) + "\n")
    sys.stderr.flush()


@tool(tier="confirm", action=lambda amount: f"pay up to {amount}")
def pay(amount: int) -> str:
    return f"paid {amount}"


@tool(tier="observe", effect="pure")
def look(name: str) -> str:
    return "seen"


@tool(tier="observe", effect="pure")
async def wait(word: str) -> str:
    tell("working", word)
    await asyncio.Event().wait()
    return word


@tool(tier="observe", effect="once")
async def stay(word: str) -> str:
    """Go on for ever, even when it is cancelled."""
    tell("working", word)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            tell("staying")


@tool(tier="observe", effect="once")
async def die(word: str) -> str:
    os._exit(9)


rung: list[str] = []


@tool(effect="pure", retries=RetryPolicy(base_s=0.001, jitter=0))
async def ring(name: str) -> str:
    """Be heard the second time."""
    rung.append(name)
    if rung.count(name) < 2:
        raise ToolError("nobody answers", kind="transient")
    return f"{name} answers"


def answer(request: ModelRequest) -> Any:
    """Do what the first word of the input says, and count the messages."""
    last = request.messages[-1].content[-1]
    if not isinstance(last, TextBlock):
        return say("Done.")
    match last.text.split()[0]:
        case "pay":
            return [use("pay", {"amount": 3})] * last.text.count("pay")
        case "wait" | "stay" | "die" as name:
            return use(name, {"word": "a"})
        case "both":
            return [use("wait", {"word": "a"}), use("wait", {"word": "b"})]
        case "fail":
            raise ProviderError("no such model", kind="invalid_request")
        case "lines":
            return say("Several lines\nof an answer.")
        case "look":
            return [TextBlock(text="I look."), use("look", {"name": "it"})]
        case "model":
            return say(request.model)
        case "hostile":
            return say("a\x1b]0;title\x07b \x1b[2Jc")
        case _:
            return say(f"{len(request.messages)} {last.text}")


async def allow(session: object, request: object) -> Allow:
    return Allow()


def agent_of(*script: Any, settings: AgentConfig = config, **more: Any) -> Agent:
    return Agent(config=settings, provider=ScriptedProvider(script), tools=[pay, look, wait, stay, die], **more)


ringing = Agent(config=config, provider=ScriptedProvider([use("ring", {"name": "Ann"}), say("Done.")]), tools=[ring])
plain = agent_of(*[answer] * 99)
streams = AgentConfig(model="m", streaming=True)
streaming = agent_of(*[answer] * 99, settings=streams)
breaking = agent_of(cut(say("a long answer"), after=1), settings=streams)
decided = agent_of(*[answer] * 99, approval=allow)
counting = agent_of(*[lambda request: say(f"{len(request.messages)} messages")] * 9)
paying_again = agent_of(*[use("pay", {"amount": 4}), say("All paid.")] * 2)
failing = agent_of(*[ProviderError("no such model", kind="invalid_request")] * 9)
holder = [plain]
