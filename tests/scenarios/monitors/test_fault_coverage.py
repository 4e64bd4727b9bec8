"""It is told which faults met sessions doing what, and the log of a simulation can be saved as a file."""

import asyncio
from pathlib import Path

import pytest

from refold.events.core.errors import ConfigError
from refold.inspection.check import check_log
from refold.replay import replay
from refold.scenarios import Cancel, Say, Scenario, Simulator, faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.monitor import SITUATIONS, Situation
from tests.scenarios.rehearsed import agent

ACTS = (Say(session="a"), Say(session="a", at_s=1), Say(session="b", at_s=2), Say(session="b", at_s=400.0))


def met(*planned: AnyFault, seed: int = 1) -> dict[tuple[str, Situation], int]:
    report = Simulator(agent()).run(Scenario(acts=ACTS, faults=planned, seed=seed))
    report.raise_if_broken()
    return {(meeting.fault, meeting.situation): meeting.times for meeting in report.met}


def test_a_refused_model_call_meets_the_session_whose_it_is() -> None:
    assert met(faults.ProviderRefuses(nth=1)) == {("ProviderRefuses", "model call open"): 1}


def test_a_crash_meets_every_session() -> None:
    assert met(faults.Crash(at_s=300.0)) == {("Crash", "idle"): 2}


def test_a_second_crash_meets_sessions_that_are_recovering() -> None:
    times = met(faults.ProviderStalls(nth=1, seconds=100), faults.Crash(at_s=5.0), faults.Crash(at_s=5.0))
    assert times["Crash", "model call open"] >= 1
    assert times["Crash", "recovering"] >= 1


def test_every_situation_is_met_sooner_or_later() -> None:
    found: set[Situation] = set()
    for seed in range(6):
        jumps = tuple(faults.ClockJumps(at_s=at / 2, seconds=1) for at in range(120))
        refused = tuple(faults.ProviderRefuses(nth=nth, kind="overloaded") for nth in range(2, 5))
        scenario = Scenario(acts=(*ACTS, Cancel(session="a", at_s=30)), faults=(*jumps, *refused), seed=seed)
        report = Simulator(agent()).run(scenario)
        found.update(meeting.situation for meeting in report.met)
    assert set(SITUATIONS) - found <= {"parked", "recovering", "otherwise", "awaiting answer"}


def test_nothing_is_met_where_nothing_happens() -> None:
    assert met(faults.CrashAtAppend(nth=5_000)) == {}


def test_the_log_is_saved_as_it_is_and_opens_everywhere(tmp_path: Path) -> None:
    scenario = Scenario(acts=ACTS, faults=(faults.CrashAtAppend(nth=6, committed=True),), seed=4)
    path = tmp_path / "simulated.db"
    report = Simulator(agent()).save_log(scenario, path)
    assert report == Simulator(agent()).run(scenario)
    checked, replayed = asyncio.run(check_log(path)), asyncio.run(replay(path))
    assert (checked.sound, checked.events, checked.streams > 2) == (True, report.events, True)
    assert replayed.divergence is None
    with pytest.raises(ConfigError, match="is there already"):
        Simulator(agent()).save_log(scenario, path)
