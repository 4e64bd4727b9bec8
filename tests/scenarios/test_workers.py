"""Work in several processes: outcomes in order, errors told, and no process left over."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from refold import ConfigError
from refold.scenarios.workers import WorkerDied, done_in_processes


def squared(number: int) -> tuple[int, int]:
    """Return the square and the process, and take long for a few."""
    if number == 1:
        sum(range(5_000_000))
    return number * number, os.getpid()


def failing(number: int) -> int:
    """Fail for 2."""
    if number == 2:
        raise ConfigError("two is too many")
    return number


def dying(number: int) -> int:
    """End the process."""
    os._exit(7)


def killed(number: int) -> int:
    """Have the process killed."""
    os.kill(os.getpid(), 9)
    return number


def staying(number: int) -> int:
    """Hold the process for ever, but for the first time."""
    if number == 0:
        return os.getpid()
    while True:
        number += 1


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
def _found_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other processes import this module."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))


def test_outcomes_come_in_the_order_of_the_tasks_and_no_process_is_left() -> None:
    outcomes = list(done_in_processes(squared, iter(range(7)), 2))
    assert [square for square, _ in outcomes] == [number * number for number in range(7)]
    processes = {process for _, process in outcomes}
    assert 1 <= len(processes) <= 2
    assert os.getpid() not in processes
    assert not any(map(is_there, processes))


def test_there_are_no_more_processes_than_tasks() -> None:
    assert len({process for _, process in done_in_processes(squared, iter([3]), 1_000)}) == 1


def test_without_tasks_nothing_is_begun() -> None:
    assert list(done_in_processes(squared, iter([]), 2)) == []


def test_an_error_is_raised_in_its_place() -> None:
    with closing(done_in_processes(failing, iter(range(9)), 1)) as outcomes:
        assert [next(outcomes), next(outcomes)] == [0, 1]
        with pytest.raises(ConfigError, match="two is too many"):
            next(outcomes)


@pytest.mark.parametrize(("work", "words"), [(dying, "ended with exit code 7"), (killed, "was killed by SIGKILL")])
def test_what_a_process_dies_of_is_told(work: Callable[[int], int], words: str) -> None:
    with pytest.raises(WorkerDied, match=f"doing 5 {words}") as told:
        list(done_in_processes(work, iter([5]), 1))
    assert told.value.task == 5


def test_who_waits_no_longer_leaves_no_process_behind_however_busy() -> None:
    endless: Iterator[int] = itertools.count()
    with closing(done_in_processes(staying, endless, 1)) as outcomes:
        process = next(outcomes)
        assert is_there(process)
    assert not is_there(process)
    assert next(endless) <= 4, "tasks are taken shortly before they are begun"
