"""Tools that are registered and removed while a runtime is open."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold import AgentConfig, AgentRuntime, ModelRequest, ScriptedProvider, Tool, say, tool, use
from refold.events.core.content import ToolResultBlock, text_of
from refold.inspection.check import check_log
from refold.replay import replay


def named(name: str) -> Tool[..., Any]:
    @tool(name=name, tier="observe", effect="pure")
    async def look(at: str) -> str:
        """Look."""
        return f"{name} saw {at}"

    return look


def tools_of(requests: list[ModelRequest]) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in requests]


async def test_an_input_finds_the_tools_that_there_are_when_it_is_sent(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    provider = ScriptedProvider(
        [say("First."), use("second", {"at": "x"}), say("Seen."), use("first", {"at": "x"}), say("No."), say("All.")]
    )
    async with AgentRuntime(
        AgentConfig(model="m"), provider=provider, tools=[named("first")], log=log, inbox_poll_s=0
    ) as runtime:
        session = await runtime.session("alice")
        await session.send("one")
        runtime.tools.register(named("second"))
        await session.send("two")
        removed = runtime.tools.remove("first")
        await session.send("three")
        runtime.tools.register(removed)
        await (await runtime.session("bob")).send("four")
        results = [
            text_of(block.content)
            for message in await session.history()
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]
        assert results[0] == "second saw x"
        assert "no tool 'first'" in results[1]
    assert tools_of(provider.requests) == [
        ["first"],
        ["first", "second"],
        ["first", "second"],
        ["second"],
        ["second"],
        ["first", "second"],
    ]
    report = await check_log(log)
    assert (report.problems, (await replay(log)).divergences) == ((), ())


async def test_threads_register_tools_and_a_sync_runtime_finds_them() -> None:
    provider = ScriptedProvider([use("later", {"at": "x"}), say("Seen.")])

    def work() -> list[list[str]]:
        with AgentRuntime(AgentConfig(model="m"), provider=provider) as runtime:
            runtime.tools.register(named("later"))
            assert runtime.session("alice").send("one").text == "Seen."
        return tools_of(provider.requests)

    assert await asyncio.to_thread(work) == [["later"], ["later"]]


async def test_a_run_that_goes_on_keeps_the_tools_that_it_began_with() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @tool(tier="observe", effect="pure")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await gate.wait()
        return "waited"

    provider = ScriptedProvider([use("wait", {}), say("Done."), say("And on.")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[wait], inbox_poll_s=0) as runtime:
        session = await runtime.session("alice")
        running = asyncio.ensure_future(session.send("one"))
        await begun.wait()
        runtime.tools.register(named("later"))
        await runtime.tools_in_force()
        gate.set()
        await running
        await session.send("two")
    assert tools_of(provider.requests) == [["wait"], ["wait"], ["later", "wait"]]


@pytest.mark.parametrize("registered", [0, 3])
async def test_a_runtime_that_closes_waits_for_no_tools(registered: int) -> None:
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), inbox_poll_s=0) as runtime:
        for number in range(registered):
            runtime.tools.register(named(f"tool_{number}"))
    runtime.tools.register(named("after_the_end"))
    assert len(runtime.tools) == registered + 1
