"""Logs that were changed, damaged or made up are refused or reported, and are neither obeyed nor dear."""

import asyncio
import io
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from refold.actors import ManualClock
from refold.commands.cli import app
from tests.selfcheck.hostile.rehearsal import KINDS, MEMORY_MAX, Outcome, main, mutate, mutated_log, one_log
from tests.selfcheck.hostile.samples import make_samples
from tests.selfcheck.hostile.table_mutations import TABLE_MUTATIONS, changed_tables, has_executed
from tests.selfcheck.hostile.trial import place_of, try_log


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return asyncio.run(make_samples(tmp_path_factory.mktemp("samples")))


def tried(samples: list[Path], folder: Path, seed: int, numbers: range) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        outcomes.append(one_log(samples, place, seed, number))
    return outcomes


def without_time(outcome: Outcome) -> list[str]:
    """Return the faults, without those that a loaded machine may cause."""
    return [fault for fault in outcome.faults if not fault.startswith("time: ")]


def test_drawn_logs_show_no_fault_and_cost_little(samples: list[Path], tmp_path: Path) -> None:
    outcomes = tried(samples, tmp_path, 1, range(12))
    assert [(outcome.number, without_time(outcome)) for outcome in outcomes if without_time(outcome)] == []
    assert max(outcome.memory for outcome in outcomes) < MEMORY_MAX
    assert Counter(outcome.verdict for outcome in outcomes).keys() >= {"refused", "reported", "sound"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kinds in KINDS.values() for kind in kinds])
def test_no_kind_of_change_shows_a_fault(kind: str, samples: list[Path], tmp_path: Path) -> None:
    sample = samples[1 if kind.startswith("lines") else 0]
    for number in range(3):
        log = tmp_path / f"{number}{sample.suffix}"
        log.write_bytes(sample.read_bytes())
        chance = random.Random(f"{kind} {number}")
        mutate(log, kind, chance)
        assert try_log(log, chance).faults == ()


def test_the_same_number_makes_the_same_log(samples: list[Path], tmp_path: Path) -> None:
    made: list[bytes] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        log, kind, _ = mutated_log(samples, tmp_path / name, 5, 12)
        made.append(kind.encode() + log.read_bytes())
    assert made[0] == made[1]


def test_changed_events_with_new_digests_are_told_by_their_meaning_alone(samples: list[Path], tmp_path: Path) -> None:
    said = ""
    for number in range(4):
        log = tmp_path / f"{number}.db"
        log.write_bytes(samples[0].read_bytes())
        changed_tables(log, TABLE_MUTATIONS["rows repeated"], random.Random(number), rechain=True)
        said += CliRunner().invoke(app, ["check", str(log)]).stdout
    assert "chain " not in said
    assert "invariant " in said


def test_that_something_was_executed_is_seen(samples: list[Path], tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    log.write_bytes(samples[0].read_bytes())
    changed_tables(log, TABLE_MUTATIONS["a trigger"], random.Random(2), rechain=False)
    assert not has_executed(log)
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.execute("INSERT INTO executed VALUES (1)")
    assert has_executed(log)


def test_a_fault_is_told_with_its_place() -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(b"{", type=int)
    assert place_of(raised.value).startswith("ValidationError at ?: ")


@pytest.mark.slow
def test_the_command_prints_a_table_and_exits_with_zero_where_no_log_shows_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3])  # a spawned process imports this package by its name
    out = io.StringIO()
    assert main(["--count=4", "--seed=3"], out, ManualClock()) == 0
    lines = out.getvalue().splitlines()
    assert lines[0].split()[:6] == ["change", "logs", "refused", "reported", "sound", "fault"]
    assert lines[-2].split()[:2] == ["all", "4"]
    assert "4 logs of seed 3" in lines[-1]


def test_one_log_is_shown_with_all_that_came_of_it() -> None:
    out = io.StringIO()
    assert main(["--seed=3", "--only=5"], out, ManualClock()) == 0
    outcome = msgspec.json.decode(out.getvalue(), type=Outcome)
    assert (outcome.number, outcome.faults) == (5, ())


@pytest.mark.parametrize("argument", ["--cuont=8", "--sample=nowhere.db"])
def test_wrong_arguments_are_refused(argument: str) -> None:
    with pytest.raises(SystemExit):
        main([argument], io.StringIO(), ManualClock())
