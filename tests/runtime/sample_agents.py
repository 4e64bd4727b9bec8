"""Agents of a user, which tests of commands load as the module `agents` of a working directory."""

import asyncio
import dataclasses
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import refold

config = refold.AgentConfig(model="m")


def tell(*words: str) -> None:
    sys.stderr.write(" ".join(words) + "\n")
    sys.stderr.flush()


@refold.tool(tier="confirm", action=lambda amount: f"pay up to {amount}")
def pay(amount: int) -> str:
    return f"paid {amount}"


@refold.tool(tier="observe", effect="pure")
def look(name: str) -> str:
    return "seen"


@refold.tool(tier="observe", effect="pure")
async def wait(word: str) -> str:
    tell("working", word)
    await asyncio.Event().wait()
    return word


@refold.tool(tier="observe", effect="once")
async def stay(word: str) -> str:
    """Go on for ever, even when it is cancelled."""
    tell("working", word)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            tell("staying")


@refold.tool(tier="observe", effect="once")
async def die(word: str) -> str:
    os._exit(9)


rung: list[str] = []


@refold.tool(effect="pure", retries=refold.RetryPolicy(base_s=0.001, jitter=0))
async def ring(name: str) -> str:
    """Be heard the second time."""
    rung.append(name)
    if rung.count(name) < 2:
        raise refold.ToolError("nobody answers", kind="transient")
    return f"{name} answers"


def answer(request: refold.ModelRequest) -> Any:
    """Do what the first word of the input says, and count the messages."""
    last = request.messages[-1].content[-1]
    if not isinstance(last, refold.TextBlock):
        return refold.say("Done.")
    match last.text.split()[0]:
        case "pay":
            return [refold.use("pay", {"amount": 3})] * last.text.count("pay")
        case "wait" | "stay" | "die" as name:
            return refold.use(name, {"word": "a"})
        case "both":
            return [refold.use("wait", {"word": "a"}), refold.use("wait", {"word": "b"})]
        case "fail":
            raise refold.ProviderError("no such model", kind="invalid_request")
        case "lines":
            return refold.say("Several lines\nof an answer.")
        case "look":
            return [refold.TextBlock(text="I look."), refold.use("look", {"name": "it"})]
        case "model":
            return refold.say(request.model)
        case "hostile":
            return refold.say("a\x1b]0;title\x07b \x1b[2Jc")
        case _:
            return refold.say(f"{len(request.messages)} {last.text}")


@asynccontextmanager
async def open_desk() -> AsyncIterator[str]:
    tell("desk opens")
    yield "the desk"
    tell("desk closes")


@asynccontextmanager
async def closed_desk() -> AsyncIterator[str]:
    raise OSError("no desk")
    yield ""


@refold.tool(tier="observe", effect="pure")
def whose(context: refold.ToolContext[str]) -> str:
    return context.deps


def saying_whose(deps: object) -> refold.Agent:
    """Return an agent that says what its tool said."""
    told: list[Any] = [
        refold.use("whose", {}),
        lambda request: refold.say(request.messages[-1].content[0].content[0].text),
    ]
    return refold.Agent(
        config=refold.AgentConfig(model="m", system_prompt=lambda context: f"You work at {context.deps}."),
        provider=refold.ScriptedProvider(told * 2),
        tools=[whose],
        deps=deps,
    )


at_a_desk, at_no_desk, at_a_closed_desk = saying_whose(open_desk), saying_whose(None), saying_whose(closed_desk)


async def allow(session: object, request: object) -> refold.Allow:
    return refold.Allow()


def agent_of(*script: Any, settings: refold.AgentConfig = config, **more: Any) -> refold.Agent:
    return refold.Agent(
        config=settings, provider=refold.ScriptedProvider(script), tools=[pay, look, wait, stay, die], **more
    )


ringing = refold.Agent(
    config=config,
    provider=refold.ScriptedProvider([refold.use("ring", {"name": "Ann"}), refold.say("Done.")]),
    tools=[ring],
)
plain = agent_of(*[answer] * 99)
streams = refold.AgentConfig(model="m", streaming=True)
streaming = agent_of(*[answer] * 99, settings=streams)
breaking = agent_of(
    refold.cut(refold.say("a long answer"), after=1), settings=refold.AgentConfig(model="m", streaming=True, retry=None)
)
decided = agent_of(*[answer] * 99, approval=allow)
counting = agent_of(*[lambda request: refold.say(f"{len(request.messages)} messages")] * 9)
paying_again = agent_of(*[refold.use("pay", {"amount": 4}), refold.say("All paid.")] * 2)
failing = agent_of(*[refold.ProviderError("no such model", kind="invalid_request")] * 9)
holder = [plain]

RULES = (
    "You keep the desk of a hotel. "
    + "Ask before you promise a room. " * 6
    + "Answer in two sentences. Be kind to all who ask."
)


def desk_of(prompt: str = RULES, **more: Any) -> refold.Agent:
    """Return an agent that is recorded as `desk`, and replayed as what it was changed into."""
    settings = refold.AgentConfig(model="m", system_prompt=prompt, max_turns=more.pop("max_turns", 9))
    return refold.Agent(
        name="desk",
        config=settings,
        provider=refold.ScriptedProvider([answer] * 99),
        tools=more.pop("tools", [pay, look]),
        **more,
    )


class Strictly(refold.Middleware):
    def on_tool_call(self, context: refold.HookContext, call: refold.ToolCall) -> refold.Deny:
        return refold.Deny("not today")


desk = desk_of()
desk_decided = desk_of(approval=allow)
desk_reworded = desk_of(RULES.replace("two", "three"))
desk_without_pay = desk_of(RULES.replace("two", "three"), tools=[look], max_turns=1)
desk_strict = desk_of(middleware=[Strictly()])


def watched(call: refold.ProposedCall) -> refold.Allow:
    return refold.Allow()


desk_watched = desk_of(policy=watched)


@dataclasses.dataclass
class Address:
    street: str
    number: int


@refold.tool(tier="observe", effect="pure")
async def deliver(context: refold.ToolContext[Any]) -> str:
    note = await context.ask("What stands on it?")
    address = await context.ask("Which address?", type=Address)
    return f"{note!r} to {address.street} {address.number}"


def courier(request: refold.ModelRequest) -> Any:
    """Answer a result with it, `ask` with a helper that delivers, and anything else by delivering."""
    last = request.messages[-1].content[-1]
    if isinstance(last, refold.ToolResultBlock):
        return refold.say(last.text)
    return refold.use("helper", {"task": "it"}) if request.messages[-1].text == "ask" else refold.use("deliver", {})


def clerk_says(request: Any) -> Any:
    if len(request.messages) == 1:
        return refold.use("pay", {"amount": 7})
    return refold.say(f"It says: {request.messages[-1].content[0].text}")


def boss_says(request: Any) -> Any:
    if len(request.messages) == 1:
        return refold.use("clerk", {"task": "Pay it."})
    return refold.say(f"Done: {request.messages[-1].content[0].text}")


clerk = refold.Agent(name="clerk", config=config, provider=refold.ScriptedProvider([clerk_says] * 9), tools=[pay])
boss = refold.Agent(
    name="boss", config=config, provider=refold.ScriptedProvider([boss_says] * 9), tools=[clerk.as_tool()]
)
helper = refold.Agent(name="helper", config=config, provider=refold.ScriptedProvider([courier] * 9), tools=[deliver])
asking = refold.Agent(
    name="asking", config=config, provider=refold.ScriptedProvider([courier] * 9), tools=[deliver, helper.as_tool()]
)
