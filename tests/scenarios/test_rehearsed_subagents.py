"""An agent's subagents are simulated with it: their models answer, and their tools run or have stand-ins."""

import asyncio
from pathlib import Path

import pytest

from refold import Agent
from refold.events.core.errors import ConfigError
from refold.scenarios import Say, Scenario, Simulator, with_stand_ins
from refold.scenarios.command.log_crashes import CrashSummary, boundaries, crashed_everywhere, sampled
from refold.scenarios.command.log_prefixes import read_recorded_log
from tests.scenarios.rehearsed import parent

ACTS = (Say(session="a"), Say(session="b", at_s=1), Say(session="c", at_s=2))


def test_the_models_and_tools_of_subagents_are_simulated_too() -> None:
    for rehearsed, said in ((parent, "was told"), (with_stand_ins(parent), "was rehearsed")):
        report = Simulator(rehearsed).run(Scenario(acts=ACTS, seed=3))
        report.raise_if_broken()
        assert report.outcomes == ("Completed",) * 3
        assert report.event_kinds["session.opened.v1"] > 3, said
        assert report.event_kinds.get("session.model_failed.v1", 0) == 0


def test_an_agent_that_cannot_run_breaks_no_promise_but_is_refused() -> None:
    twice = Agent(name="child", config=parent.config, provider=parent.provider, tools=parent.tools)
    with pytest.raises(ConfigError, match="two agents are named 'child'"):
        Simulator(twice).run(Scenario(acts=ACTS))


@pytest.mark.parametrize("agent", [with_stand_ins(parent), None], ids=["given", "made of the log"])
def test_a_log_with_sessions_of_subagents_recovers_everywhere(tmp_path: Path, agent: Agent | None) -> None:
    path = tmp_path / "parents.db"
    report = Simulator(with_stand_ins(parent)).save_log(Scenario(acts=ACTS[:1], seed=1), path)
    assert report.event_kinds["session.opened.v1"] > 1
    log = asyncio.run(read_recorded_log(path))
    summary = CrashSummary()
    for trial in crashed_everywhere(log, agent, sampled(boundaries(log), 8)):
        summary.add(trial)
    assert summary.tried.total() > 5
    assert summary.broken == {}
