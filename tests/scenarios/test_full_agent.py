"""Scenarios with an agent that has all that agents can have: memories, breakers, subagents, middleware and the rest."""

import asyncio
from pathlib import Path

import pytest

from refold import Agent, AgentConfig, AgentRuntime, RetryPolicy, ScriptedProvider, Tool, ToolError, tool
from refold.memory import GraphStore, WorkingMemory
from refold.resilience import CircuitBreaker
from refold.scenarios import Answer, Call, Say, Scenario, Simulator, faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.scenario import WireName
from tests.scenarios.full_agent import full_agent


def test_what_an_agent_had_in_memory_ends_with_the_simulation() -> None:
    breaker = CircuitBreaker("post", threshold=1, recovery_s=80_000.0)
    seen: list[str] = []

    @tool(effect="pure", breaker=breaker)
    async def post() -> str:
        """Post."""
        seen.append(breaker.report().get().phase)
        raise ValueError("never")

    agent = Agent(config=AgentConfig(model="m", retry=RetryPolicy()), provider=ScriptedProvider([]), tools=[post])
    acts = tuple(Say(session=f"s{number}", at_s=float(number)) for number in range(5))
    for _ in range(2):
        seen.clear()
        Simulator(agent).run(Scenario(acts=acts, seed=3)).raise_if_broken()
        assert seen == ["closed"]


def test_the_answers_fit_what_is_asked_of_them() -> None:
    report = Simulator(full_agent()).run(Scenario(acts=tuple(Say(session=f"s{number}") for number in range(4))))
    report.raise_if_broken()
    assert "Completed" in report.outcomes


def test_an_agent_may_be_a_subagent_of_its_own() -> None:
    tools: list[Tool[..., object]] = []
    agent = Agent(config=AgentConfig(model="m", max_turns=1), provider=ScriptedProvider([]), tools=tools)
    tools.append(agent.as_tool(name="again"))
    report = Simulator(agent).run(Scenario(acts=(Say(session="a"),)))
    report.raise_if_broken()
    assert report.operations["tool"]


def test_memories_are_asked_without_a_thread() -> None:
    graph = GraphStore(scope="agent")
    working = WorkingMemory(5, scope="agent")

    @tool(effect="pure", tier="observe")
    async def groups() -> int:
        """Tell how many groups there are."""
        await graph.add_entity("Anna")
        await working.set("seen", "Anna")
        return len(await graph.communities())

    agent = Agent(
        config=AgentConfig(model="m", retry=RetryPolicy()),
        provider=ScriptedProvider([]),
        tools=[groups],
        graph=graph,
        working_memory=working,
    )
    report = Simulator(agent).run(Scenario(acts=tuple(Say(session=f"s{number}") for number in range(3))))
    report.raise_if_broken()
    assert report.operations["tool"]


def remembering(told: set[str]) -> Agent:
    """Return an agent that writes into a memory and a graph, notes what they have taken, and has a breaker."""
    graph, working = GraphStore(), WorkingMemory(20)

    @tool(effect="idempotent")
    async def keep(name: str) -> str:
        """Keep a name."""
        await graph.add_entity(name)
        told.add(f"graph {name}")
        await working.set(name, "kept")
        told.add(f"working {name}")
        return "kept"

    @tool(effect="pure", breaker=CircuitBreaker("post", threshold=2, recovery_s=80_000.0))
    async def post() -> str:
        """Post."""
        raise ToolError("the post is closed", kind="transient")

    return Agent(
        config=AgentConfig(model="m", retry=RetryPolicy()),
        provider=ScriptedProvider([]),
        tools=[keep, post],
        graph=graph,
        working_memory=working,
    )


CRASHES = tuple(faults.CrashAtAppend(nth=nth, committed=bool(nth % 2)) for nth in range(4, 22, 3))


@pytest.mark.parametrize("crash", [(), *((crash,) for crash in CRASHES), CRASHES], ids=str)
async def test_memories_graphs_and_breakers_are_as_the_last_process_was_told(
    crash: tuple[AnyFault, ...], tmp_path: Path
) -> None:
    told: set[str] = set()
    names = ("Anna", "Bert", "Carl")
    answers = tuple(Answer(calls=(Call("keep", {"name": name}), Call("post"))) for name in names)
    scenario = Scenario(acts=(Say(session="s"),), script=answers, faults=crash)
    report = await asyncio.to_thread(Simulator(lambda: remembering(told)).save_log, scenario, tmp_path / "events.db")
    report.raise_if_broken()
    assert told == {f"{kind} {name}" for kind in ("graph", "working") for name in names}
    async with AgentRuntime(agent := remembering(set()), log=tmp_path / "events.db"):
        assert isinstance(agent.graph, GraphStore)
        assert isinstance(agent.working_memory, WorkingMemory)
        assert {node.id for node in await agent.graph.entities()} == set(names)
        assert [await agent.working_memory.get(name) for name in names] == ["kept"] * 3
        breaker = next(each.rules.breaker for each in agent.tools if isinstance(each.rules.breaker, CircuitBreaker))
        assert breaker.report().get().phase == "half_open"  # It was opened long ago, by the clock of the simulation.


@pytest.mark.parametrize("wire", ["none", "openai"])
def test_a_model_that_is_told_tools_in_text_calls_them(wire: WireName) -> None:
    @tool(tier="observe", effect="pure")
    async def look(city: str) -> str:
        """Look at a city."""
        return f"{city} is fine"

    config = AgentConfig(model="m", retry=RetryPolicy(), protocol="react", streaming=True, max_turns=50)
    agent = Agent(config=config, provider=ScriptedProvider([]), tools=[look])
    acts = tuple(Say(session=f"s{number}") for number in range(4))
    planned = (faults.ProviderDrops(nth=2), faults.ProviderBabbles(nth=4), faults.Crash(at_s=3.0))
    report = Simulator(agent).run(Scenario(acts=acts, faults=planned, wire=wire))
    report.raise_if_broken()
    assert set(report.outcomes) == {"Completed"}
    assert report.operations["tool"] > 2
