"""How often a body may begin whose tool says `once`: once, and once more for each time that a person says so again."""

import pytest

from refold import Agent, AgentConfig, ScriptedProvider, tool
from refold.actors.calls.policy import Ask, ProposedCall
from refold.scenarios import Say, Scenario, SimulationReport, Simulator, faults


@tool(tier="confirm")
async def refund(amount: int) -> str:
    """Pay money back, once a person agrees."""
    return f"refunded {amount}"


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def asks(call: ProposedCall) -> Ask:
    """Let a person judge each call."""
    return Ask(reason="money")


CONFIRMED = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[refund])
ASKED = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[pay], policy=asks)
PLAIN = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[pay])


def played(agent: Agent, nth: int, seed: int) -> SimulationReport:
    """Let the process die when the n-th body has done its work."""
    acts = (Say(session="a"), Say(session="a", at_s=1), Say(session="a", at_s=2))
    return Simulator(agent).run(Scenario(acts=acts, faults=(faults.CrashInTool(nth=nth),), seed=seed))


@pytest.mark.parametrize("agent", [CONFIRMED, ASKED], ids=["confirmed", "asked"])
def test_what_a_person_allows_again_may_run_again(agent: Agent) -> None:
    again = 0
    for seed in range(2):
        for nth in (1, 2, 3):
            report = played(agent, nth, seed)
            report.raise_if_broken()
            again += report.lives > 1
    assert again >= 3


def test_what_nobody_is_asked_about_never_runs_again() -> None:
    for seed in range(3):
        report = played(PLAIN, 1, seed)
        report.raise_if_broken()
        assert ("ONCE" in report.exercised) is (report.lives == 2)
