"""Tools that are registered and removed while a runtime is open."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold import AgentConfig, AgentRuntime, ModelRequest, ScriptedProvider, Tool, say, tool, use
from refold.inspection.check import check_log
from refold.replay import replay
from tests.conformance.sessions import requests_of, results_of
from tests.runtime.talking import scripted, talking


def named(name: str) -> Tool[..., Any]:
    @tool(name=name, tier="observe", effect="pure")
    async def look(at: str) -> str:
        return f"{name} saw {at}"

    return look


def tools_of(requests: list[ModelRequest]) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in requests]


async def test_an_input_finds_the_tools_that_there_are_when_it_is_sent(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    looks = [use(name, {"at": "x"}) for name in ("second", "first")]
    script = [say("First."), looks[0], say("Seen."), looks[1], say("No."), say("All.")]
    async with talking(*script, tools=[named("first")], log=log, inbox_poll_s=0) as (session, runtime):
        await session.send("one")
        runtime.tools.register(named("second"))
        await session.send("two")
        removed = runtime.tools.remove("first")
        await session.send("three")
        runtime.tools.register(removed)
        await (await runtime.session("bob")).send("four")
        first, second = await results_of(session)
        assert first.text == "second saw x"
        assert "no tool 'first'" in second.text
        offered = tools_of(requests_of(runtime))
    assert offered == [["first"], *[["first", "second"]] * 2, *[["second"]] * 2, ["first", "second"]]
    assert ((await check_log(log)).problems, (await replay(log)).divergences) == ((), ())


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
        begun.set()
        await gate.wait()
        return "waited"

    script = [use("wait", {}), say("Done."), say("And on.")]
    async with talking(*script, tools=[wait], inbox_poll_s=0) as (session, runtime):
        running = asyncio.ensure_future(session.send("one"))
        await begun.wait()
        runtime.tools.register(named("later"))
        await runtime.tools_in_force()
        gate.set()
        await running
        await session.send("two")
        assert tools_of(requests_of(runtime)) == [["wait"], ["wait"], ["later", "wait"]]


@pytest.mark.parametrize("registered", [0, 3])
async def test_a_runtime_that_closes_waits_for_no_tools(registered: int) -> None:
    async with scripted(inbox_poll_s=0) as runtime:
        for number in range(registered):
            runtime.tools.register(named(f"tool_{number}"))
    runtime.tools.register(named("after_the_end"))
    assert len(runtime.tools) == registered + 1
