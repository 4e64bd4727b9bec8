"""Scenarios are played on the real runtime: the same seed gives the same log, faults happen, promises are kept."""

import gc
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import msgspec
import pytest

from refold import (
    Agent,
    AgentConfig,
    ConfigError,
    Deny,
    HookContext,
    Message,
    Middleware,
    RunContext,
    ScriptedProvider,
    TreeBudget,
    guardrail,
    handoff,
)
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.random_scenario import drawn_scenario
from refold.scenarios.plan.scenario import Abandon, Cancel, Clear, Post, Say, Scenario
from refold.scenarios.simulator import Simulation, Simulator
from tests.scenarios.full_agent import full_agent
from tests.scenarios.rehearsed import agent, played

WIRES = ("openai", "anthropic")


def test_without_faults_everything_is_said_and_answered() -> None:
    report = played()
    assert (report.lives, report.happened) == (1, ())
    assert report.outcomes[0] == "Completed"
    assert all(report.outcomes)
    assert report.exercised == (
        "APPROVAL", "CANCEL", "CHECK", "DURABLE", "EFFECTS", "ERROR", "EVIDENCE", "FOLLOW",
        "INV0", "INV1", "INV2", "INV3", "INV4", "INV5", "INV6", "INV7", "LIVENESS", "ONCE", "PROMPT",
    )  # fmt: skip


def test_a_rehearsal_leaves_no_database_open() -> None:
    def open_databases() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if isinstance(each, sqlite3.Connection) and is_open(each)}

    before = open_databases()
    simulation = Simulation(agent, Scenario(acts=(Say(session="a"), Post(session="a", at_s=1))), None)
    assert simulation.run().outcomes == ("Completed", "Done")
    assert open_databases() <= before


def is_open(database: sqlite3.Connection) -> bool:
    try:
        return database.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False


def depending_agent(seen: list[str]) -> Agent:
    """Return an agent that says in `seen` what its functions depend on, and when that is opened and closed."""

    @asynccontextmanager
    async def open_shop() -> AsyncIterator[str]:
        seen.append("opens")
        yield f"shop {seen.count('opens')}"
        seen.append("closes")

    def prompt(context: RunContext[str]) -> str:
        seen.append(f"prompt {context.deps}")
        return f"You work at {context.deps}."

    return msgspec.structs.replace(
        agent(),
        deps=open_shop,
        config=AgentConfig(model="m", system_prompt=prompt),
        policy=lambda call: seen.append(f"policy {call.deps}"),
    )


def test_each_life_opens_what_the_agent_depends_on_anew_and_its_functions_see_it() -> None:
    acts = tuple(Say(session="a", at_s=at_s) for at_s in (0, 30, 60))
    scenario = Scenario(acts=acts, faults=(faults.Close(at_s=25), faults.Crash(at_s=55)))
    seen: tuple[list[str], list[str]] = [], []
    first, second = (Simulator(depending_agent(each)).run(scenario) for each in seen)
    first.raise_if_broken()
    assert (first.lives, first.digest) == (3, second.digest)
    assert seen[0] == seen[1]
    assert {"prompt shop 1", "policy shop 1", "prompt shop 2", "prompt shop 3"} <= set(seen[0])
    assert [line for line in seen[0] if " " not in line] == ["opens", "closes", "opens", "opens", "closes"]


@pytest.mark.parametrize("deps", [lambda: 1 / 0, lambda: socket.create_connection(("127.0.0.1", 9))])
def test_deps_that_cannot_be_opened_are_an_error_of_the_caller_and_break_no_promise(deps: object) -> None:
    with pytest.raises(ConfigError, match=r"the deps of the agent .* cannot be opened"):
        Simulator(msgspec.structs.replace(agent(), deps=deps)).run(Scenario(acts=(Say(session="a"),)))


FAULTS: tuple[AnyFault, ...] = (
    faults.AppendFails(nth=4),
    faults.AppendFails(nth=4, committed=True),
    faults.AppendIsSlow(nth=4),
    faults.ReadFails(nth=3),
    faults.CrashAtAppend(nth=5),
    faults.CrashAtAppend(nth=5, committed=True),
    faults.CrashAtStep(nth=200),
    faults.CrashInTool(nth=1),
    faults.ActorFails(nth=2),
    faults.SessionFails(at_s=2, session="a"),
    faults.LogIsGone(at_s=1, for_s=3),
    faults.LogIsGone(at_s=1, for_s=3, committed=True),
    faults.Crash(at_s=3),
    faults.Close(at_s=3),
)

IN_MEMORY: tuple[AnyFault, ...] = (
    *FAULTS,
    faults.ProviderRefuses(nth=2),
    faults.ProviderRefuses(nth=1, kind="auth", retryable=False),
    faults.ProviderDrops(nth=2),
    faults.ProviderStalls(nth=1, seconds=500),
    faults.ProviderBabbles(nth=1),
    faults.ToolRaises(nth=1),
    faults.ToolIsSlow(nth=1, seconds=100),
    faults.ToolHangs(nth=1),
    faults.ToolReturnsGarbage(nth=1),
    faults.AppendFails(nth=4, appends=8),
    faults.CancelAtStep(nth=150, session="a"),
    faults.ClockJumps(at_s=3, seconds=-86_400),
    faults.ClockJumps(at_s=3, seconds=86_400),
)

ON_A_DISK: tuple[AnyFault, ...] = (
    *FAULTS,
    *(faults.PowerCut(nth=150, damage=damage) for damage in get_args(faults.Damage)),
    faults.DiskError(nth=150),
    faults.DiskError(nth=150, kind="ENOSPC", operations=20),
    faults.DiskFails(at_s=1, for_s=3),
    faults.DiskFails(at_s=1, for_s=3, syncs_only=True),
)

END_A_LIFE = (
    faults.CrashAtAppend | faults.CrashAtStep | faults.CrashInTool | faults.Crash | faults.Close | faults.PowerCut
)


@pytest.mark.parametrize(
    ("fault", "playing"),
    [
        *((fault, {"streaming": streaming}) for fault in IN_MEMORY for streaming in (True, False)),
        *((fault, {"store": "sqlite"}) for fault in ON_A_DISK),
    ],
    ids=repr,
)
def test_each_kind_of_fault_happens_and_breaks_nothing(fault: AnyFault, playing: Any) -> None:
    report = played(fault, **playing)
    assert report.happened == (fault,)
    assert report.lives == (2 if isinstance(fault, END_A_LIFE) else 1)


@pytest.mark.parametrize(
    ("make", "seeds", "drawing"),
    [
        (agent, range(6), {}),
        (agent, range(12), {"snapshots": True}),
        (agent, range(3), {"store": "sqlite"}),
        *((agent, range(3), {"wire": wire}) for wire in WIRES),
        *((full_agent, range(1), {"wire": wire}) for wire in ("none", *WIRES)),
        *(pytest.param(agent, range(2_000, 2_015), {"wire": wire}, marks=pytest.mark.slow) for wire in WIRES),
        *(
            pytest.param(full_agent, range(3_000, 3_004), {"wire": wire}, marks=pytest.mark.slow)
            for wire in ("none", *WIRES)
        ),
    ],
)
def test_drawn_scenarios_break_nothing(make: Callable[..., Agent], seeds: range, drawing: Any) -> None:
    happened = set[str]()
    for seed in seeds:
        report = Simulator(make(streaming=seed % 3 != 1)).run(drawn_scenario(seed, **drawing))
        report.raise_if_broken()
        happened |= {fault.how for fault in report.happened if isinstance(fault, faults.SnapshotGoesWrong)}
    assert happened == ({"lost", "damaged", "crash"} if "snapshots" in drawing else set())


FEW_AND_MANY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["few", "many"])
"""Of many places in time, every day some."""


@FEW_AND_MANY
def test_a_cancel_may_come_before_any_step_also_of_a_process_that_dies_then(every: int) -> None:
    cancelled = 0
    for nth in range(40, 360, 16 * every):
        report = played(faults.CancelAtStep(nth=nth, session="a"), faults.CrashAtStep(nth=nth + 3))
        assert report.lives == 2
        cancelled += report.outcomes[0] == "Cancelled"
    assert cancelled > 3 // every


@FEW_AND_MANY
def test_a_cancel_may_meet_the_failure_of_a_model_or_an_input_that_follows_at_once(every: int) -> None:
    acts = (Say(session="a"), Say(session="a", text="go on"))
    for nth in range(34, 74, 2 * every):
        planned = (faults.ProviderRefuses(nth=1), faults.CancelAtStep(nth=nth, session="a"))
        Simulator(agent()).run(Scenario(acts=acts, faults=planned)).raise_if_broken()


def test_a_session_is_cleared_before_its_first_run_and_between_runs_also_where_the_process_dies() -> None:
    acts = (
        Clear(session="a"),
        Say(session="a", at_s=20),
        Clear(session="a", at_s=200),
        Say(session="a", text="go on", at_s=210),
    )
    report = Simulator(agent()).run(Scenario(acts=acts, faults=(faults.Crash(at_s=100),)))
    report.raise_if_broken()
    assert (report.outcomes, report.lives) == (("done", "Completed", "done", "Completed"), 2)


def test_who_has_lost_the_log_takes_what_another_has_cleared_for_its_own() -> None:
    scenario = Scenario(
        acts=(Say(session="a", at_s=1), Clear(session="a", at_s=109)), faults=(faults.SecondRuntime(at_s=1),)
    )
    report = Simulator(agent()).run(scenario)
    report.raise_if_broken()
    assert report.outcomes == ("Completed", "done")


@FEW_AND_MANY
def test_who_has_lost_the_log_tells_what_another_has_cancelled(every: int) -> None:
    cancelled = 0
    for tenth in range(300, 340, 3 * every):
        scenario = Scenario(
            acts=(Say(session="a", at_s=30), Cancel(session="a", at_s=tenth / 10)),
            faults=(faults.SecondRuntime(at_s=9),),
        )
        report = Simulator(agent()).run(scenario)
        report.raise_if_broken()
        cancelled += report.outcomes[0] == "Cancelled"
    assert cancelled > 3 // every


def test_a_cancel_that_a_full_disk_keeps_away_may_come_too_late() -> None:
    scenario = Scenario(
        acts=(Abandon(session="a", at_s=15, after_s=1),), faults=(faults.DiskIsFull(at_s=16, for_s=200),)
    )
    Simulator(agent()).run(scenario).raise_if_broken()


def test_a_log_that_is_too_slow_to_be_opened_is_tried_again() -> None:
    slow = (faults.AppendIsSlow(nth=1, seconds=20), faults.AppendIsSlow(nth=1, seconds=20))
    report = Simulator(agent()).run(Scenario(acts=(Say(session="a"),), faults=slow))
    report.raise_if_broken()
    assert (report.outcomes, report.lives) == (("Completed",), 2)


def test_a_late_answer_of_a_dead_process_is_recorded_in_its_place_and_the_one_that_follows_beside_it() -> None:
    for nth in range(2, 14, 2):
        planned = (faults.Close(at_s=9), faults.LateReply(nth=nth, seconds=10))
        scenario = Scenario(acts=(Say(session="a", at_s=5), Say(session="b", at_s=6)), faults=planned)
        Simulator(agent()).run(scenario).raise_if_broken()


@pytest.mark.parametrize("at_s", [20, 139, 200])
def test_what_is_under_way_when_a_process_dies_late_is_owed_by_nobody(at_s: float) -> None:
    for nth in range(1, 6):
        planned = (faults.Crash(at_s=at_s), faults.LateReply(nth=nth, seconds=300))
        Simulator(agent()).run(Scenario(acts=(Say(session="a"),), faults=planned)).raise_if_broken()


class Strict(Middleware):
    """Refuses what somebody says, and what a tool brings."""

    def on_user_message(self, context: HookContext, content: object) -> None:
        if context.session == "refused":
            raise ValueError("no")

    def on_tool_result(self, context: HookContext, result: object) -> None:
        raise ValueError("not that")


def test_hooks_that_raise_break_no_promise() -> None:
    strict = msgspec.structs.replace(agent(), middleware=[Strict()])
    outcomes = set()
    for seed in range(4):
        acts = (Say(session="refused"), Say(session="a"))
        report = Simulator(strict).run(Scenario(acts=acts, seed=seed))
        report.raise_if_broken()
        outcomes.add(report.outcomes)
    assert ("refused", "Failed") in outcomes <= {("refused", "Failed"), ("refused", "Completed")}


def team() -> Agent:
    """Return an agent that hands conversations to one with a subagent, which hands them back; both have guardrails."""

    @guardrail
    def on_input(_: RunContext[Any], said: Message) -> Deny | None:
        return Deny("long") if len(said.text) % 3 == 0 else None

    @guardrail
    def on_output(_: RunContext[Any], said: str) -> Deny | None:
        return Deny() if len(said) % 4 == 0 else None

    def member(name: str, **parts: Any) -> Agent:
        return Agent(name=name, config=AgentConfig(model="m"), provider=ScriptedProvider([]), **parts)

    helper = member("helper").as_tool(tier="observe", concurrency=1)
    second = member("second", tools=[helper], handoffs=["first"], output_guardrails=[on_output])
    first = member("first", handoffs=[handoff(second, history="input")], input_guardrails=[on_input])
    return msgspec.structs.replace(first, config=AgentConfig(model="m", tree_budget=TreeBudget(turns=20)))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))])
def test_agents_that_work_together_keep_their_promises_under_faults(seed: int) -> None:
    Simulator(team).run(drawn_scenario(seed)).raise_if_broken()
