"""What holds for every test run: asyncio's debug mode, bytecode, files, imports, and how hypothesis searches."""

import asyncio
import asyncio.constants
import gc
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# pytest's asyncio_debug reaches the loops that pytest makes; this reaches those of the code under test and of the
# processes that it starts.
os.environ["PYTHONASYNCIODEBUG"] = "1"
# Futures, tasks and handles ask a loop for it only to hold the stack that made them, which took most of the time of a
# run. Every check of the debug mode stays: who calls from another thread is told so, and a coroutine that nobody awaits
# says where it was made, though not by whom.
asyncio.BaseEventLoop.get_debug = lambda self: False  # type: ignore[method-assign]
vars(asyncio.constants)["DEBUG_STACK_DEPTH"] = 1
# The steps of tasks are written in C and cannot be what that check refuses, a coroutine that is given for a function.
_check_callback = vars(asyncio.BaseEventLoop)["_check_callback"]


def _check_unless_step(loop: object, callback: object, method: str) -> None:
    if type(callback).__name__ not in ("TaskStepMethWrapper", "builtin_function_or_method"):
        _check_callback(loop, callback, method)


vars(asyncio)["BaseEventLoop"]._check_callback = _check_unless_step
# It also warns of each step that takes long, on a machine with other work of any step, among what a test has logged.
logging.getLogger("asyncio").addFilter(lambda record: "took %.3f" not in str(record.msg))

# Without bytecode each worker rewrites every test module anew, and each of the hundreds of processes that tests start
# compiles all that it imports. Only `python -B` keeps a run from writing it.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False

# Tests sync files tens of thousands of times, which takes no time in memory. What a disk keeps when its power fails is
# played by a model of one. TMPDIR and `--basetemp` name another place.
MEMORY_FOLDER = Path("/dev/shm")
MEMORY_BYTES_NEEDED = 2 * 2**30
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY_FOLDER, os.W_OK)
    and not os.statvfs(MEMORY_FOLDER).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES_NEEDED
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_FOLDER))

# These can be imported, and nothing else that lies beside them.
for _name in ("benchmarks", "examples"):
    _package = ModuleType(_name)
    _package.__path__ = [str(Path(__file__).parents[1] / _name)]
    sys.modules.setdefault(_name, _package)

# No wall clock decides whether a test passes. Elsewhere examples are drawn anew in each run; a CI run repeats itself.
settings.register_profile(
    "everyday", deadline=None, max_examples=40, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", parent=settings.get_profile("everyday"), derandomize=True, database=None)
# Where a fault is planted, that it is found is enough: the smallest example of it may take a slow disk minutes.
FINDING = (Phase.explicit, Phase.generate)
settings.register_profile("planted", parent=settings.get_profile("ci"), phases=FINDING)
settings.load_profile("ci" if os.environ.get("CI") else "everyday")


FEW_EXAMPLES = 10
"""What a property case marked `in_full` draws, unless `-m` asks for it in full, as `.ci/run` does."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Have one process more than cores in the everyday run, which waits for other processes much of its time."""
    more: bool = config.option.markexpr == "not slow"
    return (os.cpu_count() or 1) + more


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first, so that no worker is left with one of them when the others have nothing more to do."""
    items.sort(key=seconds_of, reverse=True)
    if "in_full" not in config.option.markexpr:
        slow = [item for item in items if isinstance(item, pytest.Function) and item.get_closest_marker("in_full")]
        for test in {item.obj for item in slow}:
            settings(max_examples=FEW_EXAMPLES)(test)


def seconds_of(item: pytest.Item) -> float:
    seconds: float = sum(mark.kwargs.get("seconds", 0) for mark in item.iter_markers("slow"))
    return seconds


def pytest_collection_finish() -> None:
    """Spare each collection of garbage in the run the walk over the tests themselves, which stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def work_put(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """All work that is given to threads for files and SQLite connections from now on."""
    from refold.stores.sqlite.connection import SerialWorker

    given: list[object] = []
    put = SerialWorker.put

    def counted(worker: SerialWorker, work: Callable[[], object]) -> None:
        given.append(work)
        put(worker, work)

    monkeypatch.setattr(SerialWorker, "put", counted)
    return given


@pytest.fixture
async def nothing_is_left_on_the_loop() -> AsyncIterator[None]:
    """Fail a test after which a task is pending, or during which something was reported to the loop."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.all_tasks()
    gc.freeze()  # What was there before need not be looked at below.
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert left == set()
    gc.collect()
    assert reported == []
    loop.set_exception_handler(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a report with the lone surrogates that a test has logged be sent from one process to another."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report
