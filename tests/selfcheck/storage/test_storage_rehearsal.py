"""The command that rehearses storage: what it counts, what it says, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from refold.actors import ManualClock
from refold.events.core.errors import ConfigError
from refold.scenarios.world.sqlite_shim import ShimUnavailable, SQLiteShim
from tests.selfcheck.storage import tasks
from tests.selfcheck.storage.properties import PROMISES, StorageFindings
from tests.selfcheck.storage.rehearsal import as_text, rehearse_storage

ROOT = Path(__file__).resolve().parents[3]


def verdicts(findings: StorageFindings) -> dict[str, str]:
    return {judgement.promise: judgement.verdict for judgement in findings.judgements()}


def test_what_was_not_put_to_the_test_is_said_to_be_not_exercised() -> None:
    assert verdicts(StorageFindings()) == dict.fromkeys(PROMISES, "not exercised")


def test_each_promise_is_violated_by_what_breaks_it() -> None:
    broken = StorageFindings()
    power = broken.power
    for tally in (power.first, power.recovering, broken.normal.first, broken.lying.first, broken.forgotten):
        tally.cuts = tally.images = 10
    broken.normal.runs = broken.lying.runs = 1
    broken.forgotten.lost = 1
    broken.power.first.lost = broken.power.first.unasked = broken.power.recovering.damaged = 1
    broken.normal.first.damaged = 1
    broken.power.reopened, broken.power.not_usable = 2, 1
    broken.errors.runs = broken.errors.met = broken.errors.met_once = broken.errors.told = (
        broken.errors.acknowledged
    ) = 9
    broken.errors.broken.update(("typed", "outcome", "kept", "goes-on", "clean"))
    broken.kills.kills = broken.kills.acknowledged = 9
    broken.kills.lost = 1
    broken.kills.broken.update(("clean",))
    assert verdicts(broken) == dict.fromkeys(PROMISES, "violated")


def test_a_rehearsal_that_sees_nothing_where_something_must_be_is_itself_in_the_wrong() -> None:
    findings = StorageFindings()
    findings.normal.first.cuts = findings.lying.first.images = 1_000
    findings.normal.runs = findings.lying.runs = 1
    said = verdicts(findings)
    assert (said["sees-loss"], said["sees-damage"]) == ("violated", "violated")


def test_findings_add_up() -> None:
    one = StorageFindings()
    one.power.first.images, one.power.recovering.images, one.normal.first.images = 3, 4, 5
    one.errors.by_kind["write EIO"] = one.kills.lost = 2
    two = StorageFindings()
    two.add(one)
    two.add(one)
    assert (two.images, two.errors.by_kind["write EIO"], two.kills.lost) == (24, 4, 4)


def test_what_is_done_follows_from_what_is_wanted() -> None:
    cuts = [task for task in tasks.power_tasks(6_000, 7) if isinstance(task, tasks.CutPower)]
    assert [(task.seed, task.share, task.durability, task.syncs) for task in cuts] == [
        (7, 1.0, "full", True),
        (7, 1.0, "normal", True),
        (7, 1.0, "full", False),
        (8, 1.0, "full", True),
    ]
    failing = list(tasks.error_tasks(510, 7))
    assert len({task for task in failing if isinstance(task, tasks.LoseSyncs)}) == 51
    faults = [task for task in failing if isinstance(task, tasks.FailDisk)]
    assert sum(task.count for task in faults) == 510
    assert {task.seed for task in faults} == {7, 8}
    kills = [task for task in tasks.kill_tasks(41, 7) if isinstance(task, tasks.KillWriters)]
    assert sum(task.kills for task in kills) == 41
    assert [list(tasks.power_tasks(0, 1)), list(tasks.error_tasks(0, 1)), list(tasks.kill_tasks(0, 1))] == [[], [], []]


def test_a_problem_is_met_again_by_the_words_that_it_ends_with() -> None:
    try:
        SQLiteShim.of_process()
    except ShimUnavailable as error:
        pytest.skip(str(error))
    found = tasks.run_task(tasks.CutPower(seed=9, share=0.1, durability="normal"))
    problems = found.normal.first.problems
    assert len(problems) > 1, "of the appends that this durability loses"
    for problem in problems[:2]:
        words = problem.partition("--only '")[2].removesuffix("'")
        assert problem in tasks.run_task(tasks.task_again(words)).normal.first.problems
    report = rehearse_storage(
        images=9, errors=9, kills=9, seed=9, jobs=9, clock=ManualClock(), progress=lambda line: None, only=words
    )
    assert {judgement.promise for judgement in report.judgements if judgement.judged} == {"normal-whole"}


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ("power 86 44", tasks.CutPower(seed=86, share=1.0, only=44)),
        ("normal 1 2", tasks.CutPower(seed=1, share=1.0, durability="normal", only=2)),
        ("lying 1 2", tasks.CutPower(seed=1, share=1.0, syncs=False, only=2)),
        ("errors 3 120", tasks.FailDisk(seed=3, first=120, count=1)),
        ("syncs 3 12", tasks.LoseSyncs(seed=3, number=12)),
        ("kills 7 25", tasks.KillWriters(seed=7, kills=25)),
    ],
)
def test_words_name_one_piece(words: str, task: object) -> None:
    assert tasks.task_again(words) == task


@pytest.mark.parametrize("words", ["", "power 86", "power x 1", "power 1 -1", "kills 7", "sleep 1 2"])
def test_other_words_name_none(words: str) -> None:
    with pytest.raises(ConfigError, match="names no piece of the rehearsal"):
        tasks.task_again(words)


def test_a_small_rehearsal_says_that_every_promise_holds() -> None:
    report = rehearse_storage(
        images=40, errors=2, kills=2, seed=1, jobs=1, clock=ManualClock(), progress=lambda line: None
    )
    said = {judgement.promise: judgement.verdict for judgement in report.judgements}
    exercised = {promise for promise, verdict in said.items() if verdict != "not exercised"}
    if report.not_exercised_because:
        assert exercised == {"kill-kept", "kill-clean"}
    else:
        assert exercised >= set(PROMISES) - {"power-usable", "power-again", "kill-kept"}
    assert {said[promise] for promise in exercised} == {"hold"}
    text = "\n".join(as_text(report))
    assert all(f"\n{promise} " in text for promise in PROMISES)
    assert "kill -9: 2 processes" in text


@pytest.mark.slow
def test_the_command_uses_processes_and_gives_json() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.selfcheck.storage", "--json"),
            *("--images=300", "--errors=4", "--kills=2", "--jobs=2", "--seed=3"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["seed"], report["jobs"], report["findings"]["kills"]["kills"]) == (3, 2, 2)
    assert [judgement["promise"] for judgement in report["judgements"]] == list(PROMISES)
