"""A gate for deploys: which open runs can go on with today's agent, and why the others cannot."""

import asyncio
from typing import Any

import pytest

from refold import Agent, AgentConfig, AgentRuntime, Completed, ScriptedProvider, say, tool, use
from refold.events.core.codec import RecordedEvent
from refold.events.session.events import ToolApprovalRequested, ToolCallStarted
from refold.replay import in_flight
from refold.stores import InMemoryStore

NOT_TAKEN = "tool charge does not take the arguments of call_6_0 any more"
TOO_MANY = "max_turns is 1 and the run has had 1: it would fail at the next one"


@tool(tier="confirm")
async def charge(amount: int) -> str:
    """Charge a card."""
    return f"charged {amount}"


@tool(name="charge", tier="confirm")
async def charge_in(amount: int, currency: str) -> str:
    return f"charged {amount} {currency}"


@tool(tier="observe", effect="pure")
async def look(name: str) -> str:
    await asyncio.get_running_loop().create_future()
    return name


@tool(tier="act", effect="once")
async def send_mail(to: str) -> str:
    await asyncio.get_running_loop().create_future()
    return to


def agent(*script: Any, tools: Any = (charge, look, send_mail), name: str = "support", **config: Any) -> Agent:
    settings = AgentConfig(model="m", **config)
    return Agent(name=name, config=settings, provider=ScriptedProvider(script), tools=list(tools))


@pytest.fixture(scope="module")
def log() -> InMemoryStore:
    """Four sessions: one waits for a person, two were in the middle of a tool, and one has ended."""
    store = InMemoryStore()
    asyncio.run(recorded(store))
    return store


async def recorded(store: InMemoryStore) -> None:
    asking = [use("charge", {"amount": 3}), use("look", {"name": "a"}), use("send_mail", {"to": "a"}), say("Done.")]
    async with AgentRuntime(agent(*asking), log=store, close_grace_s=0) as runtime:
        for session, last in (("asks", ToolApprovalRequested), ("looks", ToolCallStarted), ("mails", ToolCallStarted)):
            talk = await runtime.session(session)
            await talk.submit("Go")
            async with talk.follow(after_version=0) as followed:
                async for item in followed:
                    if isinstance(item, RecordedEvent) and isinstance(item.event, last):
                        break
        assert (await (await runtime.session("ended")).send("Go")).outcome == Completed()


@pytest.mark.parametrize(
    ("changed", "blocked"),
    [
        ({}, []),
        ({"system_prompt": "Another."}, []),
        ({"tools": [look, send_mail]}, [("asks", "tool charge is gone: call_6_0 would end as not_found")]),
        ({"tools": [charge]}, [("looks", "tool look is gone: call_6_0 would end as crashed, its outcome unknown")]),
        (
            {"tools": [charge_in, look]},
            [("asks", f"{NOT_TAKEN}: Missing required field `currency`")],
        ),
        (
            {"max_turns": 1},
            [(name, TOO_MANY) for name in ("asks", "looks", "mails")],
        ),
    ],
)  # fmt: skip
async def test_what_stands_in_the_way_of_open_runs(
    log: InMemoryStore, changed: dict[str, Any], blocked: list[tuple[str, str]]
) -> None:
    report = await in_flight(log, agent=agent(**changed))
    assert (report.runs, report.other_agents) == (3, {})
    assert [(each.session, each.reason) for each in report.blocked] == blocked


async def test_a_run_that_waits_in_a_fork_is_open_too() -> None:
    store = InMemoryStore()
    await recorded(store)
    async with AgentRuntime(agent(), log=store, auto_resume=False, close_grace_s=0) as runtime:
        await (await runtime.session("asks")).fork(keep_run=True, name="fork")
        await (await runtime.session("ended")).fork(name="idle")
    report = await in_flight(store, agent=agent(tools=[look, send_mail]))
    assert (report.runs, [each.session for each in report.blocked]) == (4, ["asks", "fork"])
