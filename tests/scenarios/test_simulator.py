"""Scenarios are played on the real runtime: the same seed gives the same log, faults happen, promises are kept."""

import msgspec
import pytest

from refold import Agent, AgentConfig, HookContext, Middleware, RetryPolicy, ScriptedProvider, tool
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.random_scenario import drawn_scenario
from refold.scenarios.plan.scenario import Abandon, Cancel, Clear, Say, Scenario
from refold.scenarios.report import SimulationReport
from refold.scenarios.simulator import Simulator


@tool(tier="observe", effect="pure")
async def look(city: str) -> str:
    """Look at a city."""
    return f"{city} is fine"


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="idempotent")
def write(text: str) -> str:
    """Write, in plain code."""
    return text


@tool(tier="confirm")
async def send(to: str) -> str:
    """Send, once a person agrees."""
    return f"sent to {to}"


def agent(*, streaming: bool = True) -> Agent:
    return Agent(
        config=AgentConfig(model="m", retry=RetryPolicy(), streaming=streaming),
        provider=ScriptedProvider([]),
        tools=[look, pay, write, send],
    )


def played(*planned: AnyFault, seed: int = 1, streaming: bool = True) -> SimulationReport:
    scenario = Scenario(
        acts=(
            Say(session="a", text="hello"),
            Say(session="b", text="hello", at_s=1),
            Say(session="a", text="go on", at_s=5),
            Cancel(session="b", at_s=4),
            Abandon(session="c", at_s=2),
        ),
        faults=planned,
        seed=seed,
    )
    report = Simulator(agent(streaming=streaming)).run(scenario)
    report.raise_if_broken()
    return report


def test_without_faults_everything_is_said_and_answered() -> None:
    report = played()
    assert (report.lives, report.happened) == (1, ())
    assert report.outcomes[0] == "Completed"
    assert all(report.outcomes)
    assert report.exercised == (
        "APPROVAL", "CANCEL", "CHECK", "DURABLE", "EFFECTS", "ERROR", "EVIDENCE", "FOLLOW",
        "INV0", "INV1", "INV2", "INV3", "INV4", "INV5", "INV6", "INV7", "LIVENESS", "ONCE",
    )  # fmt: skip


def test_the_same_scenario_gives_the_same_log_and_another_seed_another_one() -> None:
    planned = (faults.CrashAtAppend(nth=4), faults.Crash(at_s=6), faults.ToolRaises(nth=2))
    assert played(*planned) == played(*planned)
    assert played(*planned).digest != played(*planned, seed=2).digest


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        faults.ProviderRefuses(nth=2),
        faults.ProviderRefuses(nth=1, kind="auth", retryable=False),
        faults.ProviderDrops(nth=2),
        faults.ProviderStalls(nth=1, seconds=500),
        faults.ProviderBabbles(nth=1),
        faults.ToolRaises(nth=1),
        faults.ToolIsSlow(nth=1, seconds=100),
        faults.ToolHangs(nth=1),
        faults.ToolReturnsGarbage(nth=1),
        faults.AppendFails(nth=4),
        faults.AppendFails(nth=4, committed=True),
        faults.AppendFails(nth=4, appends=8),
        faults.AppendIsSlow(nth=4),
        faults.ReadFails(nth=3),
        faults.CrashAtAppend(nth=5),
        faults.CrashAtAppend(nth=5, committed=True),
        faults.CrashAtStep(nth=200),
        faults.CancelAtStep(nth=150, session="a"),
        faults.CrashInTool(nth=1),
        faults.Crash(at_s=3),
        faults.Close(at_s=3),
        faults.ClockJumps(at_s=3, seconds=-86_400),
        faults.ClockJumps(at_s=3, seconds=86_400),
    ],
    ids=repr,
)
def test_each_kind_of_fault_happens_and_breaks_nothing(fault: AnyFault, streaming: bool) -> None:
    report = played(fault, streaming=streaming)
    assert report.happened == (fault,)
    crashed = isinstance(fault, faults.CrashAtAppend | faults.CrashAtStep | faults.CrashInTool | faults.Crash)
    assert report.lives == (2 if crashed or isinstance(fault, faults.Close) else 1)


@pytest.mark.parametrize("snapshots", [False, True])
def test_drawn_scenarios_break_nothing(snapshots: bool) -> None:
    happened = set[str]()
    for seed in range(12 if snapshots else 6):
        report = Simulator(agent()).run(drawn_scenario(seed, snapshots=snapshots))
        report.raise_if_broken()
        happened |= {fault.how for fault in report.happened if isinstance(fault, faults.SnapshotGoesWrong)}
    assert happened == ({"lost", "damaged", "crash"} if snapshots else set())


def test_a_cancel_may_come_before_any_step_also_of_a_process_that_dies_then() -> None:
    cancelled = 0
    for nth in range(40, 360, 16):
        report = played(faults.CancelAtStep(nth=nth, session="a"), faults.CrashAtStep(nth=nth + 3))
        assert report.lives == 2
        cancelled += report.outcomes[0] == "Cancelled"
    assert cancelled > 3


def test_a_cancel_may_meet_the_failure_of_a_model_or_an_input_that_follows_at_once() -> None:
    acts = (Say(session="a"), Say(session="a", text="go on"))
    for nth in range(34, 74, 2):
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


def test_who_has_lost_the_log_tells_what_another_has_cancelled() -> None:
    cancelled = 0
    for tenth in range(300, 340, 3):
        scenario = Scenario(
            acts=(Say(session="a", at_s=30), Cancel(session="a", at_s=tenth / 10)),
            faults=(faults.SecondRuntime(at_s=9),),
        )
        report = Simulator(agent()).run(scenario)
        report.raise_if_broken()
        cancelled += report.outcomes[0] == "Cancelled"
    assert cancelled > 3


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
