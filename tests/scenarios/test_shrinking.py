"""A scenario that breaks a promise is made as small as it can be, and written as code that can be run."""

from typing import Any

import msgspec
import pytest

from refold import scenarios
from refold.scenarios.monitors.monitor import Broken
from tests.scenarios.rehearsed import good, leaky


def report(scenario: scenarios.Scenario, *rules: str) -> scenarios.SimulationReport:
    return scenarios.SimulationReport(
        scenario=scenario,
        broken=tuple(Broken(rule, "session/a", 0.0, "on purpose") for rule in rules),
        exercised=(),
        happened=scenario.faults,
        lives=1,
        steps=1,
        virtual_s=1.0,
        events=1,
        operations={},
        outcomes=(),
        met=(),
        digest="",
    )


def broken_by_a_cancel_and_a_crash(scenario: scenarios.Scenario) -> scenarios.SimulationReport:
    cancels = any(isinstance(act, scenarios.Cancel) for act in scenario.acts)
    crashes = any(isinstance(fault, scenarios.faults.CrashAtAppend) and fault.nth >= 3 for fault in scenario.faults)
    broken_twice = any(isinstance(act, scenarios.Abandon) for act in scenario.acts)
    rules = (["INV5"] if cancels and crashes else []) or (["INV1"] if broken_twice else [])
    return report(scenario, *rules)


def test_what_is_left_is_what_it_takes() -> None:
    for seed in range(40):
        scenario = scenarios.drawn_scenario(seed, acts=12, faults_max=12)
        first = broken_by_a_cancel_and_a_crash(scenario)
        if not first.broken or first.broken[0].rule != "INV5":
            continue
        assert scenarios.shrunk(broken_by_a_cancel_and_a_crash, first).scenario == scenarios.Scenario(
            acts=(scenarios.Cancel(session="s0"),), faults=(scenarios.faults.CrashAtAppend(nth=3),), deviations={}
        )
        break
    else:
        pytest.fail("no seed draws a cancel and a crash")


def test_another_promise_that_breaks_on_the_way_is_not_gone_after() -> None:
    scenario = scenarios.Scenario(
        acts=(scenarios.Abandon(session="a"), scenarios.Cancel(session="a", at_s=3.5)),
        faults=(scenarios.faults.CrashAtAppend(nth=40),),
        seed=9,
    )
    smallest = scenarios.shrunk(broken_by_a_cancel_and_a_crash, broken_by_a_cancel_and_a_crash(scenario))
    assert smallest.broken[0].rule == "INV5"
    assert smallest.scenario.acts == (scenarios.Cancel(session="s0"),)


def test_no_more_is_tried_than_asked_for() -> None:
    scenario = scenarios.drawn_scenario(3, acts=12, faults_max=12)
    tried: list[scenarios.Scenario] = []

    def play(smaller: scenarios.Scenario) -> scenarios.SimulationReport:
        tried.append(smaller)
        return report(smaller)

    first = report(scenario, "INV5")
    assert scenarios.shrunk(play, first, runs_max=7) is first
    assert len(tried) == 7
    assert scenario not in tried


def test_orders_of_tasks_are_shrunk_to_the_overtakings_that_matter() -> None:
    def play(scenario: scenarios.Scenario) -> scenarios.SimulationReport:
        return report(scenario, *(["INV3"] if (scenario.deviations or {}).get(20) == 2 else []))

    scenario = scenarios.Scenario(acts=(scenarios.Say(session="a"),), deviations={3: 1, 20: 2, 90: 4})
    assert scenarios.shrunk(play, play(scenario)).scenario.deviations == {20: 2}


def test_a_leak_is_shrunk_and_its_code_shows_it_again() -> None:
    simulator = scenarios.Simulator(leaky)
    found = simulator.run(scenarios.drawn_scenario(14, sessions=1, acts=3, faults_max=2))
    assert found.broken
    smallest = scenarios.shrunk(simulator.run, found)
    assert smallest.broken[0].rule == "INV7"
    assert len(smallest.scenario.acts) + len(smallest.scenario.faults) <= 2
    scope: dict[str, Any] = {}
    exec(scenarios.scenario_as_code(smallest.scenario), scope)
    assert scope["scenario"] == smallest.scenario


@pytest.mark.parametrize("seed", range(30))
def test_the_code_of_a_scenario_is_the_scenario(seed: int) -> None:
    scenario = msgspec.structs.replace(
        scenarios.drawn_scenario(seed, acts=5, faults_max=12), deviations={4: 1} if seed % 2 else None, patience_s=9.5
    )
    scope: dict[str, Any] = {}
    exec(scenarios.scenario_as_code(scenario), scope)
    assert scope["scenario"] == scenario


def test_the_code_names_only_what_is_not_the_default() -> None:
    scenario = scenarios.Scenario(
        acts=(scenarios.Say(session='it"s'), scenarios.Cancel(session="b", at_s=2.0)),
        faults=(scenarios.faults.ReadFails(nth=2),),
    )
    assert (
        scenarios.scenario_as_code(scenario)
        == """\
from refold.scenarios import Cancel, Say, Scenario, faults

scenario = Scenario(
    acts=(
        Say(session='it"s'),
        Cancel(session="b", at_s=2.0),
    ),
    faults=(
        faults.ReadFails(nth=2),
    ),
)
"""
    )


def test_a_test_can_be_pasted_as_it_is() -> None:
    scenario = scenarios.Scenario(acts=(scenarios.Say(session="a"),), seed=3)
    for own_tools in (True, False):
        scope: dict[str, Any] = {}
        source = scenarios.scenario_as_test(scenario, "tests.scenarios.rehearsed:good", "it_holds", own_tools=own_tools)
        exec(source, scope)
        scope["test_it_holds"]()
        assert ("with_stand_ins(good)" in source) is not own_tools
    with pytest.raises(scenarios.SimulationError, match="INV7"):
        exec_test(scenarios.scenario_as_test(LEAK, "tests.scenarios.rehearsed:leaky"))


LEAK = scenarios.Scenario(
    acts=(scenarios.Say(session="s0"), scenarios.Cancel(session="s0", at_s=19.0)), seed=1, deviations={}
)


def exec_test(source: str) -> None:
    scope: dict[str, Any] = {}
    exec(source, scope)
    scope["test_promises_hold"]()


def test_a_stand_in_is_the_tool_without_its_body() -> None:
    rehearsed = scenarios.with_stand_ins(good)
    assert [each.spec for each in rehearsed.tools] == [each.spec for each in good.tools]
    scenarios.Simulator(scenarios.with_stand_ins(leaky)).run(LEAK).raise_if_broken()
