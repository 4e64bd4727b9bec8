"""What is saved of a broken promise: by names that nobody else has, and shown even where nothing can be saved."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from refold.scenarios import Say, Scenario, Simulator, drawn_scenario
from refold.scenarios.failure_artifact import read_scenario, reserved_stem, save_failure
from tests.scenarios.rehearsed import made

SCENARIO = Scenario(acts=(Say(session="a"),))


def test_many_that_save_at_once_have_names_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        stems = list(pool.map(lambda _: reserved_stem(tmp_path, "seed-1", SCENARIO), range(24)))
    assert set(stems) == {"seed-1", *(f"seed-1-{number}" for number in range(2, 25))}
    assert all(read_scenario(tmp_path / f"{stem}.json") == SCENARIO for stem in stems)


def test_a_test_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "test_seed_1.py").write_text("mine")
    assert reserved_stem(tmp_path, "seed-1", SCENARIO) == "seed-1-2"


def test_what_was_found_is_told_where_it_cannot_be_saved(tmp_path: Path) -> None:
    simulator = Simulator(made)
    drawn = (drawn_scenario(seed, sessions=1, acts=3, faults_max=0) for seed in range(30))
    report = next(report for report in map(simulator.run, drawn) if report.broken)
    file = tmp_path / "file"
    file.write_text("")
    tried: list[int] = []
    saved = save_failure(simulator, report, file, "it", tries_max=3, tried=tried.append)
    assert (saved.log, saved.file, saved.test) == (None, None, None)
    assert saved.unsaved is not None
    assert "nothing can be saved in" in saved.unsaved
    assert "scenario = Scenario(" in saved.code
    assert tried == list(range(1, saved.tries + 1))
    assert msgspec.json.encode(saved)
