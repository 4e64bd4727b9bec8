"""Hypothesis draws whole agents: with any tools, behaviours, policies and limits, no promise is broken."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold import Agent, AgentConfig, RetryPolicy
from refold.scenarios import Scenario, Simulator, strategies
from refold.scenarios.plan.agent_plan import AgentPlan, ToolPlan


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.agents(), strategies.scenarios())
def test_any_agent_in_any_scenario_breaks_nothing(agent: Agent, scenario: Scenario) -> None:
    Simulator(agent).run(scenario).raise_if_broken()


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.agents(), strategies.scenarios(script=strategies.scripts(["tool_a", "tool_b"])))
def test_any_agent_with_any_script_breaks_nothing(agent: Agent, scenario: Scenario) -> None:
    Simulator(agent).run(scenario).raise_if_broken()


@given(st.data())
def test_a_drawn_tool_takes_the_arguments_of_its_signature(data: st.DataObject) -> None:
    plan = data.draw(strategies.tool_plans())
    properties = plan.built().spec.input_schema["properties"]
    assert isinstance(properties, dict)
    assert list(properties) == [f"p{place}" for place in range(len(plan.parameters))]
    assert plan.built().spec == plan.built().spec


def test_a_plan_is_code() -> None:
    plan = AgentPlan(tools=(ToolPlan(name="tool_a", parameters=("place", "maybe"), tier="observe"),), policy="asks")
    names = {"AgentPlan": AgentPlan, "ToolPlan": ToolPlan}
    assert eval(repr(plan), {**names, "AgentConfig": AgentConfig, "RetryPolicy": RetryPolicy}) == plan
