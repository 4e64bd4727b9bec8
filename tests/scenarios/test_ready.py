"""The ready scenarios: each keeps every promise, and what its story tells is what happens."""

import runpy
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from refold import AgentConfig, ConfigError
from refold.scenarios import faults, ready
from refold.scenarios.ready import (
    cancel_storm,
    clock_backwards,
    crash_during_approval,
    disk_full,
    network_split,
    poisoned_tool,
    provider_brown_out,
    ready_scenario,
    slow_subscriber,
    thundering_restart,
    two_runtimes,
)
from refold.scenarios.ready.playing import main, said_about
from refold.scenarios.report import SimulationReport
from refold.scenarios.simulator import Simulator
from tests.scenarios.rehearsed import agent as another_agent


def played(play: Callable[[], SimulationReport]) -> SimulationReport:
    report = play()
    report.raise_if_broken()
    assert {type(fault).__name__ for fault in report.scenario.faults} == set(report.times)
    return report


def kind(report: SimulationReport, name: str) -> int:
    return report.event_kinds.get(f"{name}.v1", 0)


def test_network_split_costs_calls_and_no_run() -> None:
    report = played(network_split.play)
    assert report.outcomes == ("Completed",) * 3
    assert kind(report, "session.model_interrupted") >= 1
    assert kind(report, "session.model_failed") == kind(report, "session.retry_scheduled") >= 3
    assert report.operations["connect"] > report.operations["model"]  # Some reached nobody.
    assert report.operations["tool"] == kind(report, "session.tool_call_completed") == 6
    assert {"SECRET", "INV7"} <= set(report.exercised)


def test_network_split_ends_runs_of_an_agent_without_patience() -> None:
    impatient = msgspec.structs.replace(network_split.agent(), config=AgentConfig(model="m"))
    assert "Failed" in network_split.play(impatient).outcomes


def test_in_a_brown_out_the_breaker_opens_and_closes_and_nobody_notices() -> None:
    report = played(provider_brown_out.play)
    assert report.outcomes == ("Completed",) * 60
    opened, probes = kind(report, "breaker.opened"), kind(report, "breaker.probe_begun")
    assert opened == 3  # At the beginning, and after each probe that failed.
    assert probes == opened
    assert kind(report, "breaker.closed") == 1
    assert kind(report, "session.model_failed") == 0
    failures = report.times["ProviderBrownOut"]
    assert 3 + (opened - 1) <= failures < 8  # Of some 30 calls that the first provider would have got.
    assert report.operations["model"] == 60 + failures


def test_an_approval_survives_the_crash() -> None:
    report = played(crash_during_approval.play)
    assert report.lives == 2
    assert report.outcomes == ("Completed", "done")
    assert kind(report, "session.tool_approval_requested") == kind(report, "session.tool_approval_decided") == 1
    assert report.operations["tool"] == kind(report, "session.tool_call_completed") == 1


def test_a_poisoned_tool_breaks_no_session() -> None:
    report = played(poisoned_tool.play)
    assert report.happened == report.scenario.faults
    assert report.outcomes == ("Completed",)
    assert kind(report, "session.tool_call_completed") == 2
    assert kind(report, "session.tool_call_failed") == 3
    assert kind(report, "tool.call_abandoned") == 1


def test_on_a_full_disk_work_waits_and_goes_on_once_there_is_space() -> None:
    report = played(disk_full.play)
    assert report.times["DiskIsFull"] >= 10
    assert report.lives == 1
    assert report.outcomes == ("Completed",) * 3
    assert report.operations["tool"] == 6


def test_after_a_cancel_storm_everything_works() -> None:
    report = played(cancel_storm.play)
    outcomes = report.outcomes
    storm, afterwards = outcomes[::5], outcomes[4::5]
    assert afterwards == ("Completed",) * 20
    assert storm.count("Cancelled") + storm.count("done") >= 18
    assert kind(report, "session.run_cancelled") == storm.count("Cancelled") + storm.count("done")
    assert kind(report, "session.tool_call_failed") > 0


@pytest.mark.parametrize("sessions", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_all_runs_go_on_after_a_thundering_restart(sessions: int) -> None:
    simulator = Simulator(thundering_restart.agent)
    report = played(partial(simulator.run, thundering_restart.scenario(sessions)))
    assert report.lives == 2
    assert kind(report, "session.run_resumed") == sessions
    assert report.outcomes == ("Completed",) * sessions
    assert kind(report, "session.tool_call_completed") == sessions


def test_a_clock_that_is_set_back_makes_nobody_wait() -> None:
    report = played(clock_backwards.play)
    assert (report.lives, report.times["ClockJumps"]) == (2, 2)
    assert kind(report, "session.run_resumed") == 1
    assert kind(report, "session.retry_scheduled") == kind(report, "session.timer_fired") == 1
    assert report.outcomes == ("Completed", "Completed")
    assert report.virtual_s < 1_000
    assert "CHECK" in report.exercised


def test_a_slow_subscriber_holds_nobody_up_and_loses_no_event() -> None:
    report = played(slow_subscriber.play)
    [watched] = report.watched
    assert watched.session == "watched"
    others = ("runtime.", "tool.")
    assert watched.events > sum(n for name, n in report.event_kinds.items() if not name.startswith(others)) / 2 - 1
    assert watched.missed > 50
    assert watched.passing >= 1
    alone = Simulator(slow_subscriber.agent).run(slow_subscriber.without_watcher())
    assert (report.digest, report.outcomes[:-1]) == (alone.digest, alone.outcomes)


def test_two_runtimes_do_nothing_twice() -> None:
    report = played(two_runtimes.play)
    assert report.lives == 2
    assert report.outcomes == ("Completed",) * 8
    assert kind(report, "session.run_resumed") == 8
    assert report.operations["tool"] == kind(report, "session.tool_call_started") == 16
    assert kind(report, "session.tool_call_completed") == kind(report, "session.tool_call_failed") == 8
    assert {"ONCE", "INV5", "INV7"} <= set(report.exercised)


@pytest.mark.parametrize("name", ready.NAMES)
def test_each_can_be_played_with_another_agent(name: str) -> None:
    story = ready_scenario(name)
    if name == "thundering_restart":
        Simulator(another_agent()).run(thundering_restart.scenario(20)).raise_if_broken()
    else:
        story.play(another_agent()).raise_if_broken()


def test_each_is_listed_and_tells_its_story() -> None:
    assert len(set(ready.NAMES)) == len(ready.NAMES) == 10
    for name in ready.NAMES:
        story = ready_scenario(name).__doc__
        assert story is not None
        assert "Promised: " in story
        assert "Look at " in story
    assert ready_scenario("disk-full") is disk_full
    with pytest.raises(ConfigError, match="slow_subscriber"):
        ready_scenario("disk_empty")


def test_one_runs_as_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, pytest.warns(RuntimeWarning, match="crash_during_approval"):
        runpy.run_module("refold.scenarios.ready.crash_during_approval", run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert printed.startswith("Crash during approval: ")
    assert "outcomes   Completed 1, done 1\n" in printed


def test_a_broken_promise_is_printed() -> None:
    report = crash_during_approval.play()
    slow = (faults.ProviderStalls(nth=2, seconds=500),)
    broken = Simulator(crash_during_approval.agent).run(
        msgspec.structs.replace(crash_during_approval.scenario(), patience_s=1.0, calm_s=100.0, faults=slow)
    )
    assert "BROKEN     LIVENESS" in said_about("A story.", broken)
    assert "BROKEN" not in said_about("A story.", report)


def test_a_story_is_told_without_what_its_runtimes_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(disk_full.__doc__, disk_full.play)
    written = capsys.readouterr()
    assert (exit_code.value.code, written.err, caplog.text) == (0, "", "")
    assert written.out.startswith("Disk full, then space again")
    assert "\n1 life of the process, " in written.out


@pytest.mark.parametrize("seed", range(3))
def test_two_runtimes_do_nothing_twice_on_the_real_store_either(seed: int) -> None:
    simulator = Simulator(two_runtimes.agent)
    plan = msgspec.structs.replace(two_runtimes.scenario(), store="sqlite", seed=seed)
    report = played(partial(simulator.run, plan))
    assert (report.lives, report.outcomes) == (2, ("Completed",) * 8)
    assert report.operations["tool"] == kind(report, "session.tool_call_started") == 16
    assert {"DURABLE", "ONCE"} <= set(report.exercised)
