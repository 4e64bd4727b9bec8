"""A state machine over the public API: it breaks no promise of this agent, and finds and shrinks what was planted."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from refold import Agent
from refold.scenarios import faults
from refold.scenarios.session_machine import SessionMachine
from tests.planted_faults.faults import search
from tests.scenarios.rehearsed import agent

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.filter_too_much]


class OwnMachine(SessionMachine):
    def make_agent(self) -> Agent:
        return agent()


def test_nothing_that_people_and_accidents_do_breaks_a_promise() -> None:
    run_state_machine_as_test(
        OwnMachine, settings=settings(max_examples=5, stateful_step_count=20, suppress_health_check=SLOW_IS_FINE)
    )


@pytest.mark.slow
def test_nothing_breaks_a_promise_in_many_runs() -> None:
    run_state_machine_as_test(
        OwnMachine, settings=settings(max_examples=40, stateful_step_count=30, suppress_health_check=SLOW_IS_FINE)
    )


def test_a_session_lives_through_all_that_a_machine_can_do() -> None:
    machine = OwnMachine()
    machine.begin(seed=3, deviations={})
    machine.send(which=0, text="hello")
    assert machine.expected.said[0].acknowledged
    machine.go_wrong(faults.CrashAtAppend(nth=1, committed=True))
    machine.advance(10.0)
    assert machine.process.world.life == 2
    machine.send_again(which=0)
    machine.send_other_content(which=0)
    machine.advance(120.0)
    machine.decide(which=0, allow=True)
    machine.look_back(which=0)
    machine.open_again(which=0)
    machine.open_again(which=1)  # Nobody has spoken there yet, and the machine expects to be told so.
    machine.set_clock(-86_400.0)
    machine.deploy()
    machine.send(which=0, text="go on")
    machine.cancel(which=0)
    machine.crash()
    machine.look_back(which=0)
    machine.replay()
    machine.every_promise_is_kept()
    machine.teardown()
    first, second = machine.expected.said
    assert first.told is not None
    assert second.told is not None
    assert len(machine.expected.versions("s0")) >= 2
    assert machine.process.world.life >= 4


@pytest.mark.parametrize("step", range(1, 9))
def test_a_process_may_die_at_each_step_also_where_its_loop_was_about_to_end(step: int) -> None:
    machine = OwnMachine()
    machine.begin(seed=0, deviations={})
    machine.advance(1.0)
    machine.go_wrong(faults.CrashAtStep(nth=step))
    machine.advance(1.0)
    machine.every_promise_is_kept()
    machine.teardown()


SEARCH = """
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.scenarios.test_session_machine import OwnMachine
run_state_machine_as_test(OwnMachine, settings=settings(
    max_examples=150, stateful_step_count=12, derandomize=True, database=None, deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
))
"""


@pytest.mark.slow
def test_what_is_acknowledged_before_its_commit_is_found_and_shrunk_to_a_few_calls(tmp_path: Path) -> None:
    done = search(tmp_path, SEARCH, faults=["what is not committed is acknowledged"])
    assert done.returncode != 0
    assert re.search(r"AssertionError: (INV5 session/|the outcome of)", done.stderr), done.stderr
    lines = [line.lstrip(" |") for line in done.stderr.splitlines()]
    calls = [line for line in lines if line.startswith("state.") and "every_promise_is_kept" not in line]
    assert len(calls) <= 6, done.stderr  # Begin, say something, and the end.
