"""What becomes of an open run that another configuration, or another version of the code, finds."""

import asyncio
from typing import Any

import pytest

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.events.core.codec import RecordedEvent
from refold.events.session.events import (
    RunCompleted,
    RunFailed,
    RunParked,
    RunResumed,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
)
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import InMemoryStore

hanging: list[str] = []


@tool(tier="observe", effect="pure")
async def look(name: str) -> str:
    """Look; it never ends where the name is in `hanging`."""
    if name in hanging:
        await asyncio.get_running_loop().create_future()
    return f"{name} seen"


def desk(*script: Any, **config: Any) -> Agent:
    return Agent(config=AgentConfig(model="m", **config), provider=ScriptedProvider(script), tools=[look])


async def until(runtime: AgentRuntime, *kinds: type, after: int = 0) -> list[Any]:
    """Return the events of the session up to one of some kinds."""
    found: list[Any] = []
    async with (await runtime.session("s")).follow(after_version=after) as followed:
        async for item in followed:
            if isinstance(item, RecordedEvent):
                found.append(item.event)
                if isinstance(item.event, kinds):
                    break
    return found


async def left_open(**config: Any) -> InMemoryStore:
    """Return a log with a run that was in the middle of a tool when its runtime closed."""
    store = InMemoryStore()
    hanging[:] = ["a"]
    first = desk(use("look", {"name": "a"}), **config)
    async with AgentRuntime(first, log=store, close_grace_s=0, app_version="1") as runtime:
        await (await runtime.session("s")).submit("Go")
        await until(runtime, ToolCallStarted)
    hanging.clear()
    return store


@pytest.mark.parametrize(
    ("before", "config", "version", "ends"),
    [
        ({}, {"system_prompt": "New."}, "1", [ToolCallCompleted, RunCompleted]),
        ({}, {"on_code_change": "park"}, "1", [RunParked]),  # The setting itself is a change.
        ({}, {"system_prompt": "New.", "on_code_change": "park"}, "1", [RunParked]),
        ({}, {"system_prompt": "New.", "on_code_change": "fail"}, "1", [ToolCallFailed, RunFailed]),
        ({}, {}, "2", [ToolCallCompleted, RunCompleted]),
        ({"on_code_change": "park"}, {"on_code_change": "park"}, "1", [ToolCallCompleted, RunCompleted]),
        ({"on_code_change": "park"}, {"on_code_change": "park"}, "2", [RunParked]),
    ],
)  # fmt: skip
async def test_what_becomes_of_an_open_run(
    before: dict[str, Any], config: dict[str, Any], version: str, ends: list[type]
) -> None:
    store = await left_open(**before)
    agent = desk(say("Done."), **config)
    async with AgentRuntime(agent, log=store, app_version=version) as runtime:
        events = await until(runtime, RunCompleted, RunFailed, RunParked)
        resumed = next(place for place, event in enumerate(events) if isinstance(event, RunResumed))
        assert events[resumed].code_changed == ((before, "1") != (config, version))
        assert [type(event) for event in events[resumed + 1 :] if type(event) in (*ends, RunCompleted)] == ends
        match events[-1]:
            case RunFailed(kind=kind):
                assert (kind, events[-2].kind) == ("code_changed", "crashed")
            case RunParked(reason=reason):
                assert reason.endswith("is another one than when the run was open before. Resume or cancel it")
                await (await runtime.session("s")).resume()
                assert isinstance((await until(runtime, RunCompleted, after=len(events)))[-1], RunCompleted)
    assert (await check_log(store)).problems == ()
    (await replay(store)).raise_for_divergence()
