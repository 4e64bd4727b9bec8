"""The agent's own tools, run inside a simulation: their bodies are counted, take time, and go wrong as planned.

A plain function is called on the loop, since a simulation has no threads; so what it blocks on blocks everything.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence

from refold.actors.calls.tool_context import ToolContext
from refold.agents.agent import SubagentTool
from refold.events.core.errors import ToolError
from refold.events.core.ids import AgentId, SessionId
from refold.scenarios import faults
from refold.scenarios.plan.world import Body, World
from refold.tools.tool import Tool, ToolBody

ODD_TEXT = (
    "\0 ends C, \r\n a line, \x1b[2J a screen; "
    "\u202eturned\u202c \u0645\u0631\u062d\u0628\u0627 \U0001f469\u200d\U0001f680\ufeff"
)

GARBAGE = {"number": math.nan, "text": "half a \ud83d character", "deep": [{"set": {1, 2}}]}


def simulated_tools(tools: Sequence[Tool[..., object]], world: World, agent: AgentId) -> tuple[Tool[..., object], ...]:
    return tuple(_simulated(tool, world, agent) for tool in tools)


def _simulated(tool: Tool[..., object], world: World, agent: AgentId) -> Tool[..., object]:
    life = world.life

    async def carry_out(body: ToolBody, values: dict[str, object], context: ToolContext[object]) -> object:
        seen = Body(
            session=SessionId(str(context.session)),
            call=str(context.call),
            agent=agent,
            tool=tool.spec,
            life=life,
            is_subagent=isinstance(tool, SubagentTool),
            concurrency=tool.rules.concurrency,
            limited_per_session=tool.rules.per_session,
            arguments=values,
        )
        return await _carry_out(seen, lambda: body(values, context), world)

    return tool.carried_out_by(carry_out)


async def _carry_out(body: Body, run: Callable[[], object], world: World) -> object:
    chance = world.chance(f"tool {body.tool.name}")
    due = world.plan.count("tool", [body.session])
    body.ignores_cancellation = any(isinstance(fault, faults.ToolHangs) for fault in due)
    world.bodies.append(body)
    world.on_body(body)
    try:
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        for fault in due:
            if isinstance(fault, faults.ToolIsSlow):
                await asyncio.sleep(fault.seconds)
            elif isinstance(fault, faults.ToolHangs):
                await _hang(world, body, fault.seconds)
        result = run()
        if inspect.isawaitable(result):
            result = await result
        body.returned = body.running
        for fault in due:
            if isinstance(fault, faults.CrashInTool):
                world.die()
                await asyncio.get_running_loop().create_future()
            if isinstance(fault, faults.ToolRaises):
                raise ToolError("the simulated tool failed after its work", kind="transient")
            if isinstance(fault, faults.ToolReturnsGarbage):
                return GARBAGE
            if isinstance(fault, faults.ToolReturnsHuge):
                return "huge " * (fault.characters // 5)
            if isinstance(fault, faults.ToolReturnsOddText):
                return ODD_TEXT
        return result
    finally:
        if body.running:
            body.running, body.ended_s = False, world.now_s()


async def _hang(world: World, body: Body, seconds: float) -> None:
    end_s = world.now_s() + seconds
    while world.now_s() < end_s:
        try:
            await asyncio.sleep(end_s - world.now_s())
        except asyncio.CancelledError:  # Ignoring it is what this fault does, as long as there is a process.
            if not body.running:
                raise
