"""Replies and inputs that come twice, late, or after those who asked are gone: sessions take each once."""

from pathlib import Path

import pytest

from refold.scenarios import faults
from tests.planted_faults.faults import search
from tests.scenarios.rehearsed import ACTS, played


@pytest.mark.parametrize("after_s", [0.0, 1.0, 200.0])
def test_every_reply_may_come_twice(after_s: float) -> None:
    undisturbed = played()
    replies = undisturbed.operations["reply"]
    report = played(*(faults.DuplicateReply(nth=nth, after_s=after_s) for nth in range(1, replies + 1)))
    assert len(report.happened) >= replies - 3
    assert report.outcomes == undisturbed.outcomes


@pytest.mark.parametrize("seconds", [30.0, 300.0])
def test_any_reply_may_come_late(seconds: float) -> None:
    for nth in range(1, 12, 3):
        report = played(faults.LateReply(nth=nth, seconds=seconds))
        assert len(report.happened) == 1
        assert all(report.outcomes)


def test_a_reply_may_come_in_the_next_life_of_the_process() -> None:
    for nth in range(1, 11, 2):
        report = played(faults.LateReply(nth=nth, seconds=20.0), faults.Crash(at_s=6.0))
        assert report.lives == 2
        assert all(report.outcomes)


@pytest.mark.parametrize("after_s", [0.0, 0.2, 30.0, 500.0])
def test_what_is_said_may_come_again_under_its_key(after_s: float) -> None:
    planned = [faults.DuplicateInput(nth=nth, after_s=after_s) for nth in range(1, len(ACTS) + 1)]
    report = played(*planned)
    assert report.happened == tuple(planned)
    assert all(report.outcomes)
    assert "ONCE" in report.exercised


def test_what_is_said_may_come_again_in_the_next_life() -> None:
    planned = [faults.DuplicateInput(nth=nth, after_s=20.0) for nth in range(1, len(ACTS) + 1)]
    report = played(*planned, faults.Crash(at_s=10.0))
    assert report.lives == 2
    assert len(report.happened) == len(planned) + 1


SEARCH = """
import msgspec
from refold.scenarios import Simulator, drawn_scenario, faults
from tests.scenarios.rehearsed import agent
again = tuple(faults.DuplicateInput(nth=nth, after_s=8.0) for nth in range(1, 9))
for seed in range(30):
    report = Simulator(agent()).run(msgspec.structs.replace(drawn_scenario(seed), faults=again))
    if report.broken:
        print(report.broken[0].rule)
        break
else:
    print("none")
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["what is said twice is taken twice", "what is cancelled twice is cancelled twice"])
def test_a_planted_fault_of_messages_is_found(tmp_path: Path, fault: str) -> None:
    done = search(tmp_path, SEARCH, faults=[fault])
    assert done.stdout.split() == ["ONCE"]
