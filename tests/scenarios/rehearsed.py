"""Agents for the tests of rehearsal, and some of what goes wrong with agents of people."""

import asyncio
import math
import os
import sys
import uuid

import msgspec

from refold import (
    Agent,
    AgentConfig,
    HookContext,
    Message,
    Middleware,
    ModelRequest,
    ModelResponse,
    RetryPolicy,
    ScriptedProvider,
    TextBlock,
    tool,
)
from refold.actors.calls.policy import ProposedCall
from refold.scenarios import Abandon, Cancel, Say, Scenario, SimulationReport, Simulator
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.scenario import AnyAct, StoreName, WireName


@tool(tier="observe", effect="pure")
async def look(city: str) -> str:
    """Look at a city."""
    return f"{city} is fine"


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(tier="observe")
async def loud(who: str) -> str:
    """Print."""
    sys.stdout.write("a tool prints\n")
    return who


@tool(tier="observe")
async def end(who: str) -> str:
    """End the process."""
    os._exit(7)


@tool(tier="observe")
async def stay(who: str) -> str:
    """Hold the loop for ever."""
    sys.stdout.write(f"stays in process {os.getpid()}\n")
    sys.stdout.flush()
    while True:
        math.sqrt(2)


@tool(tier="observe")
async def dice(who: str) -> str:
    """Throw dice that nobody has loaded."""
    return uuid.uuid4().hex


@tool(tier="observe")
async def thread(who: str) -> str:
    """Do it in a thread."""
    return await asyncio.to_thread(str.upper, who)


later: set[asyncio.Task[None]] = set()


@tool
async def notify(who: str) -> str:
    """Tell somebody, and leave a task behind when cancelled meanwhile."""
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        later.add(asyncio.get_running_loop().create_task(asyncio.sleep(1_000_000)))
        raise
    return f"{who} was told"


calls = [0]


@tool(tier="observe")
async def count() -> str:
    """Count, in a place that outlives each scenario, and leave a task behind."""
    calls[0] += 1
    later.add(asyncio.get_running_loop().create_task(asyncio.sleep(1_000_000)))
    return f"{calls[0]} calls"


def made() -> Agent:
    """Return an agent whose tool counts in a place that each agent has for itself, and leaves a task behind."""
    own: list[asyncio.Task[None]] = []

    @tool(tier="observe")
    async def count() -> str:
        """Count."""
        own.append(asyncio.get_running_loop().create_task(asyncio.sleep(1_000_000)))
        return f"{len(own)} calls"

    return Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[count])


async def made_later() -> Agent:
    """Return an agent, too late for those who do not wait."""
    return made()


def made_of_nothing() -> Agent:
    """Return no agent."""
    return Agent(config=AgentConfig(model=""), provider=ScriptedProvider([]))


@tool(effect="idempotent")
def write(text: str) -> str:
    """Write, in plain code."""
    return text


@tool(tier="confirm")
async def send(to: str) -> str:
    """Send, once a person agrees."""
    return f"sent to {to}"


def agent(*, streaming: bool = True) -> Agent:
    """Return an agent with a tool of each kind."""
    config = AgentConfig(model="m", retry=RetryPolicy(), streaming=streaming)
    return Agent(config=config, provider=ScriptedProvider([]), tools=[look, pay, write, send])


ACTS: tuple[AnyAct, ...] = (
    Say(session="a", text="hello"),
    Say(session="b", text="hello", at_s=1),
    Say(session="a", text="go on", at_s=5),
    Cancel(session="b", at_s=4),
    Abandon(session="c", at_s=2),
)


def played(
    *planned: AnyFault,
    acts: tuple[AnyAct, ...] = ACTS,
    seed: int = 1,
    streaming: bool = True,
    store: StoreName = "memory",
    wire: WireName = "none",
) -> SimulationReport:
    """Return what came of a scenario with these faults, which has broken no promise."""
    scenario = Scenario(acts=acts, faults=planned, seed=seed, store=store, wire=wire)
    report = Simulator(agent(streaming=streaming)).run(scenario)
    report.raise_if_broken()
    return report


good = Agent(
    config=AgentConfig(model="m", retry=RetryPolicy(), streaming=True), provider=ScriptedProvider([]), tools=[look, pay]
)
leaky = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[look, notify])
forgetful = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[count])


loudly = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[loud])
ending = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[end])
staying = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[stay])


chancy = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[dice])
threaded = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[thread])


async def never(call: ProposedCall) -> None:
    """Judge no call, ever."""
    await asyncio.Event().wait()


stuck = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[look, pay], policy=never)

child = Agent(name="child", config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[notify])
parent = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[look, child.as_tool()])


class Louder(Middleware):
    """Changes what models are shown, and what they say."""

    def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        """Show a message before the others."""
        before = Message("user", (TextBlock(text="Be brief."),))
        return msgspec.structs.replace(request, messages=(before, *request.messages))

    def on_post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse:
        """Say it louder, and fail where it is long already."""
        if len(response.content) > 1:
            raise ValueError("so much said at once")
        louder = (
            msgspec.structs.replace(block, text=block.text.upper()) if isinstance(block, TextBlock) else block
            for block in response.content
        )
        return msgspec.structs.replace(response, content=tuple(louder))


changed = msgspec.structs.replace(good, middleware=[Louder()])
in_text = msgspec.structs.replace(good, config=AgentConfig(model="m", retry=RetryPolicy(), protocol="react"))
