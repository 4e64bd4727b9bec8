"""kill -9 at random moments, again and again: what was acknowledged is there, and everything gets done in the end.

The children are real, and so are the kills; `killed_process.order_desk` is the program that is killed, and
`killed_process.log_inspection` says what must hold after each kill. A longer run is one command:

    python -P tests/conformance/killed_process/kill_many.py --kills 1000 --seed 7
"""

from pathlib import Path
from random import Random

import pytest

from tests.conformance.killed_process.many_kills import drawn_endings, kill_many
from tests.conformance.killed_process.work_plan import drawn_plan

KILLS_TO_FIND_A_FAULT = 40
"""Far more than any of the planted faults takes."""


@pytest.mark.slow(seconds=40)
async def test_fifty_kills_hit_every_phase_lose_nothing_and_all_work_is_done_in_the_end(tmp_path: Path) -> None:
    figures = await kill_many(tmp_path, kills=50, seed=7)
    assert figures.faults == []
    assert figures.kills >= 50
    assert figures.logs >= 2
    assert figures.acknowledgements > figures.events > 0
    assert figures.closes >= 1
    hit = {"opening the log", "in a tool", "model asked", "waiting for approval", "closing"}
    assert hit <= figures.phases.keys(), figures


@pytest.mark.parametrize(
    ("fault", "report"),
    [
        pytest.param("acknowledge-early", "is not in the log", id="acknowledged before the commit"),
        pytest.param("run-twice", "once) ran 2 times, which 1 starts allow", id="once run twice"),
        pytest.param("lose-the-tail", "is gone or another event now", id="tail cut off", marks=pytest.mark.slow),
        pytest.param("forget-keys", "once each", id="keys forgotten", marks=pytest.mark.slow),
    ],
)
async def test_a_planted_fault_is_reported(fault: str, report: str, tmp_path: Path) -> None:
    figures = await kill_many(tmp_path, kills=KILLS_TO_FIND_A_FAULT, seed=1, fault=fault)
    assert any(report in found for found in figures.faults), figures.faults or str(figures)


def test_a_seed_repeats_the_plan_and_the_moments_of_the_kills() -> None:
    def drawn(seed: int) -> tuple[object, object]:
        random = Random(seed)
        return drawn_plan(random, durability="full", counters=2, errands=5), drawn_endings(random, 8)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
