"""Agents with a model call that does not end, and a process to be killed in it: `requests_in_flight.py LOG SHAPE`.

It says `in flight` when the call's request is as durable as it gets; what the model was asked is in LOG.asked.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

import refold
from refold.events.session.events import ModelRequested, RequestBuilt
from refold.providers.recorded import json_of
from refold.providers.scripted import ScriptItem

SUMMARISED = 180
"""So many tokens hold two turns and not three."""

INPUT = "Is the tea in Lisbon green?"


@refold.tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    """Look."""
    return f"{what} seen, and {'much ' * 40}besides"


class Adding(refold.Middleware):
    """Says more than a payload's least size behind the prompt, and who is asked."""

    def on_pre_llm(self, context: refold.HookContext, request: refold.ModelRequest) -> refold.ModelRequest:
        return msgspec.structs.replace(request, system_prompt=f"{context.turn} ä\U0001f375 " * 60, temperature=0.5)


class Hanging(refold.Middleware):
    """Is still at work on the request of a turn."""

    def __init__(self, turn: int = 2) -> None:
        self.turn = turn
        self.reached = asyncio.Event()

    async def on_pre_llm(self, context: refold.HookContext, request: refold.ModelRequest) -> None:
        if context.turn == self.turn:
            self.reached.set()
            await asyncio.get_running_loop().create_future()


def remembering() -> dict[str, Any]:
    """Return memories that have something to say; filled again from the log they say no more."""
    memory, working = refold.EpisodicStore(scope="agent"), refold.WorkingMemory(2, scope="agent")
    memory.add_episode("agent", "Tea in Lisbon is green", importance=0.9)
    working.set("city", "Lisbon")
    return {"memory": memory, "working_memory": working}


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "react": {"protocol": "react"},
    "middleware": {"middleware": [Adding()]},
    "window": {"context": refold.TokenWindow(60)},
    "offer": {"offer": lambda session, spec: False},
    "recall": {},
    "summary": {"context": refold.Summarising(SUMMARISED)},
    "unbuilt": {},
}
"""What changes the requests of each agent; `unbuilt` has a hook that is never done with one."""


def before(shape: str) -> list[ScriptItem]:
    """Return what is answered before the call that is in flight."""
    if shape == "react":
        return [refold.say('Thought: I look.\nAction: look\nAction Input: {"what": "tea"}')]
    return [refold.use("look", {"what": "tea"})] * (2 if shape == "summary" else 1)


def agent(shape: str, *script: ScriptItem) -> refold.Agent:
    """Return an agent of a shape, which goes by a script."""
    parts = dict(SHAPES[shape])
    config = refold.AgentConfig(model="m", system_prompt="Serve.", protocol=parts.pop("protocol", "native"))
    if shape == "recall":
        parts |= remembering()
    if shape == "unbuilt":
        parts["middleware"] = [Hanging()]
    return refold.Agent(config=config, provider=refold.ScriptedProvider(script), tools=[look], **parts)


def builds(shape: str) -> bool:
    """Return whether requests of a shape do not follow from what is recorded before."""
    return shape not in ("plain", "react")


async def until_in_flight(session: Any, shape: str, asked: asyncio.Event) -> None:
    """Wait until a session's last model call is in flight, and its request is in the log."""
    await asked.wait()
    calls = 0
    async with session.follow(after_version=0) as followed:
        async for item in followed:
            event = item.event if isinstance(item, refold.RecordedEvent) else None
            calls += isinstance(event, ModelRequested)
            if calls > len(before(shape)) and isinstance(event, RequestBuilt if builds(shape) else ModelRequested):
                return


def note(log: str, request: refold.ModelRequest) -> None:
    Path(f"{log}.asked").write_bytes(msgspec.json.encode(json_of(request)))


async def main(log: str, shape: str) -> None:
    asked = asyncio.Event()

    async def hang(request: refold.ModelRequest) -> str:
        note(log, request)
        asked.set()
        await asyncio.get_running_loop().create_future()
        return ""

    made = agent(shape, *before(shape), hang)
    async with refold.AgentRuntime(made, log=log) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send(INPUT))
        if isinstance(hanging := next(iter(made.middleware), None), Hanging):
            await hanging.reached.wait()
        else:
            await until_in_flight(session, shape, asked)
        sys.stdout.write("in flight\n")
        sys.stdout.flush()
        await sending


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
