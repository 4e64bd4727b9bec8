"""The real SQLite store on the simulated loop: disks fail, the power goes, and nothing acknowledged is lost."""

import asyncio
import json
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from refold.commands.cli import app
from refold.events.core.errors import ConfigError, PersistenceError
from refold.inspection.check import check_log
from refold.scenarios import faults, strategies
from refold.scenarios.plan.random_scenario import drawn_scenario
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.report import SimulationReport
from refold.scenarios.simulator import Simulator
from refold.scenarios.world.disk import DAMAGES
from refold.scenarios.world.sqlite_shim import IOERR_FSYNC, FileOperation, SQLiteShim
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch
from tests.planted_faults.faults import search
from tests.scenarios import rehearsed
from tests.scenarios.rehearsed import agent

played = partial(rehearsed.played, store="sqlite")


IN_THE_CALM = 40
"""Operations in the end, when nothing goes wrong any more."""


def operations(report: SimulationReport) -> int:
    return report.operations["disk"] - IN_THE_CALM


def test_a_log_in_a_file_is_played_as_one_in_memory_is() -> None:
    report = played()
    assert (report.lives, report.happened) == (1, ())
    assert all(report.outcomes)
    assert "DURABLE" in report.exercised
    assert operations(report) > 100, "each write, sync, truncation, opening and deletion is counted"


def test_a_power_cut_may_come_at_any_operation() -> None:
    damages = get_args(faults.Damage)
    for nth in range(1, operations(played()), 37):
        report = played(faults.PowerCut(nth=nth, damage=damages[nth % len(damages)]))
        assert report.lives == 2


@pytest.mark.slow
def test_any_operation_may_fail_and_the_power_go_thereafter() -> None:
    for nth in range(1, operations(played()), 53):
        cut = faults.PowerCut(nth=nth + 30)
        report = played(faults.DiskError(nth=nth, kind="EIO" if nth % 2 else "ENOSPC"), cut)
        assert faults.DiskError in map(type, report.happened)


def test_every_damage_of_a_fault_is_one_of_the_model() -> None:
    assert set(DAMAGES) == set(get_args(faults.Damage))


def reached(drawn: Sequence[faults.AnyFault]) -> list[faults.AnyFault]:
    """Return faults without the one that keeps the log out of reach, which is another one for another store."""
    return [each for each in drawn if not isinstance(each, faults.LogIsGone | faults.SessionFails | faults.DiskFails)]


def test_what_is_drawn_for_a_log_in_memory_is_drawn_for_one_in_a_file_and_more() -> None:
    for seed in range(50):
        in_memory, in_file = drawn_scenario(seed), drawn_scenario(seed, store="sqlite")
        assert in_file.acts == in_memory.acts
        drawn, drawn_in_file = reached(in_memory.faults), reached(in_file.faults)
        assert len(in_memory.faults) - len(drawn) == len(in_file.faults) - len(drawn_in_file)
        assert drawn_in_file[: len(drawn)] == drawn
        of_disk = drawn_in_file[len(drawn) :]
        assert 1 <= len(of_disk) <= 4
        assert all(isinstance(fault, faults.PowerCut | faults.DiskError) for fault in of_disk)
    assert drawn_scenario(1, faults_max=0, store="sqlite").faults == ()


@settings(max_examples=5)
@given(strategies.scenarios(store="sqlite"))
def test_any_scenario_breaks_nothing(scenario: Scenario) -> None:
    assert scenario.store == "sqlite"
    Simulator(agent()).run(scenario).raise_if_broken()


class FailingSyncs:
    """A watcher that lets syncs fail while it is told to."""

    def __init__(self) -> None:
        self.failing = False

    def __call__(self, operation: FileOperation) -> int:
        return IOERR_FSYNC if self.failing and operation.kind == "sync" else 0


@pytest.fixture
def syncs(tmp_path: Path) -> Generator[FailingSyncs]:
    syncs = FailingSyncs()
    with SQLiteShim.of_process().attached(tmp_path, syncs):
        yield syncs


def test_a_store_whose_reopening_failed_half_way_is_not_locked_out_of_its_own_log(
    tmp_path: Path, syncs: FailingSyncs
) -> None:
    async def use() -> None:
        async with await SQLiteStore.open(tmp_path / "events.db") as store:
            await store.append([batch("session/a", 0)])
            syncs.failing = True
            with pytest.raises(PersistenceError, match="IOERR"):
                await store.append([batch("session/a", 1)])
            with pytest.raises(PersistenceError, match="cannot be opened for writing"):
                await store.append([batch("session/a", 1)])
            syncs.failing = False
            head = await store.head("session/a")
            assert head is not None
            await store.append([batch("session/a", head.version)])

    asyncio.run(use())


def test_the_command_plays_on_files_too_and_saves_the_file_that_the_last_life_left(tmp_path: Path) -> None:
    agent_name = "tests.scenarios.rehearsed:good"
    result = CliRunner().invoke(
        app, ["simulate", agent_name, "--store", "sqlite", "--seeds", "4", "--acts", "4", "--jobs", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["faults"]["PowerCut"]["happened"] > 0
    assert document["promises"]["DURABLE"]["verdict"] == "hold"
    log = tmp_path / "saved.db"
    report = Simulator(agent()).save_log(drawn_scenario(3, store="sqlite"), log)
    checked = asyncio.run(check_log(log))
    assert (checked.events, checked.problems_found) == (report.events, 0)
    with pytest.raises(ConfigError, match="there already"):
        Simulator(agent()).save_log(drawn_scenario(3, store="sqlite"), log)


SEARCH = """
import msgspec
from refold.scenarios import strategies
from tests.scenarios.searching import smallest_broken
among = strategies.scenarios(store="sqlite").map(lambda scenario: msgspec.structs.replace(scenario, patience_s=5_000.0))
report = smallest_broken(among, examples_max=400)
print("none" if report is None else report.broken[0].rule)
if report is not None:
    print(len(report.scenario.acts), len(report.scenario.faults))
"""

PLANTED = [
    ["an append does not commit", "the writer commits after it has acknowledged"],
    ["what is committed is not synchronised"],
]


@pytest.mark.slow
@pytest.mark.parametrize("together", PLANTED, ids=" and ".join)
def test_a_planted_fault_is_found_and_the_scenario_shrunk(tmp_path: Path, together: list[str]) -> None:
    done = search(tmp_path, SEARCH, faults=together)
    rule, sizes = done.stdout.splitlines()
    assert rule in ("DURABLE", "EVIDENCE")  # What a model brought is lost, too.
    acts, planned = map(int, sizes.split())
    assert acts <= 2
    assert planned <= 2  # Shrinking ends after so many tries.
