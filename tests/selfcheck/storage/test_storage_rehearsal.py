"""The command that rehearses storage: what it counts, what it says, and how it ends."""

import io
from pathlib import Path

import pytest

from tests.scenarios.world.reached_sqlite import SHIM as SHIM  # Skipped without it.
from tests.selfcheck.storage import tasks
from tests.selfcheck.storage.properties import PROMISES, StorageFindings
from tests.selfcheck.storage.rehearsal import main, rehearse_storage


def verdicts(findings: StorageFindings) -> dict[str, str]:
    return {judgement.promise: judgement.verdict for judgement in findings.judgements()}


def printed(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(arguments, out), out.getvalue()


def test_what_was_not_put_to_the_test_is_said_to_be_not_exercised() -> None:
    assert verdicts(StorageFindings()) == dict.fromkeys(PROMISES, "not exercised")


def test_each_promise_is_violated_by_what_breaks_it() -> None:
    broken = StorageFindings()
    power = broken.power
    for tally in (power.first, power.recovering, broken.normal.first, broken.lying.first, broken.forgotten):
        tally.cuts = tally.images = 10
    broken.normal.runs = broken.lying.runs = 1  # In which nothing is lost nor damaged, as it should be.
    broken.forgotten.lost = 1
    broken.power.first.lost = broken.power.first.unasked = broken.power.recovering.damaged = 1
    broken.normal.first.damaged = 1
    broken.power.reopened, broken.power.not_usable = 2, 1
    broken.errors.runs = broken.errors.met = broken.errors.met_once = broken.errors.told = (
        broken.errors.acknowledged
    ) = 9
    broken.errors.broken.update(("typed", "outcome", "kept", "goes-on", "clean"))
    assert verdicts(broken) == dict.fromkeys(PROMISES, "violated")


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
    assert [list(tasks.power_tasks(0, 1)), list(tasks.error_tasks(0, 1))] == [[], []]


def test_a_problem_is_met_again_by_the_words_that_it_ends_with() -> None:
    found = tasks.run_task(tasks.CutPower(seed=9, share=0.1, durability="normal"))
    problems = found.normal.first.problems
    assert len(problems) > 1, "of the appends that this durability loses"
    for problem in problems[:2]:
        again = rehearse_storage([tasks.task_again(problem.partition("--only '")[2].removesuffix("'"))])
        assert problem in again.normal.first.problems
        assert {each.promise for each in again.judgements() if each.judged} == {"normal-whole"}


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ("power 86 44", tasks.CutPower(seed=86, share=1.0, only=44)),
        ("normal 1 2", tasks.CutPower(seed=1, share=1.0, durability="normal", only=2)),
        ("lying 1 2", tasks.CutPower(seed=1, share=1.0, syncs=False, only=2)),
        ("errors 3 120", tasks.FailDisk(seed=3, first=120, count=1)),
        ("syncs 3 12", tasks.LoseSyncs(seed=3, number=12)),
    ],
)
def test_words_name_one_piece(words: str, task: object) -> None:
    assert tasks.task_again(words) == task


@pytest.mark.parametrize("arguments", ["--only=power 86", "--only=power x 1", "--only=power 1 -1", "--imagse=1"])
def test_other_words_are_refused(arguments: str) -> None:
    with pytest.raises(SystemExit):
        printed(arguments)


@pytest.mark.parametrize(
    "jobs", [1, pytest.param(2, marks=pytest.mark.slow(seconds=3), id="2, each in a process of its own")]
)
def test_a_small_rehearsal_says_that_every_promise_holds(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3])  # A spawned process imports this package by its name.
    code, text = printed("--images=40", "--errors=2", f"--jobs={jobs}")
    assert code == 0
    said = {words[0]: words[1] for line in text.splitlines() if (words := line.split())[:1] and words[0] in PROMISES}
    assert said.keys() == PROMISES.keys()
    assert {promise for promise, verdict in said.items() if verdict != "hold"} <= {"power-usable", "power-again"}
