"""The suite has been seen to fail: each fault that names tests, planted into a copy, is found by them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from tests.planted_faults.faults import SHELL_FAULTS, Fault
from tests.planted_faults.planting import ROOT, Edit, copy_package, plant

Verdict = Literal["hold", "violated", "not exercised"]
"""What a test says of a copy: it passed, failed, or came to no outcome, as where it is gone or cannot be imported."""

VERDICT_OF: dict[str, Verdict] = {"PASSED": "hold", "FAILED": "violated"}

ENDLESS_AFTER_S = 200
"""Ends a test that a fault has made endless, which finds nothing; the slowest takes a few seconds."""

ENDED_AFTER_S = 1_200
"""Ends all tests together that are run on one copy."""

QUICK = 2
"""How many of the faults, evenly spread over them, are planted in an everyday run."""

QUICK_FAULTS = SHELL_FAULTS[len(SHELL_FAULTS) // (2 * QUICK) :: len(SHELL_FAULTS) // QUICK]

PARTS = 6
"""In so many parts all named tests are run without a fault, none of which takes long on a slow machine either."""

CONTRACTS = ("conformance.py", "values/conformance.py")
"""Hold tests that classes of the suite take over."""

SERVER = """
import gc, importlib.util, json, os, signal, sys
import anyio.pytest_plugin, httpx, hypothesis, msgspec.inspect, pykka, pytest_asyncio.plugin, rich.console, sqlite3
import pytest, typer.testing, xdist.plugin
assert "refold" not in sys.modules
gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(asked["seconds"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(asked["output"], os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        os.environ["PYTHONPATH"] = asked["folder"]
        sys.path.insert(0, asked["folder"])
        print("imported", importlib.util.find_spec("refold").origin, flush=True)
        code = pytest.main(asked["arguments"])
        sys.stdout.flush()
        os._exit(code)
    os.waitpid(child, 0)
    print("done", flush=True)
"""
"""Runs tests of one copy of the package after another, each in a process of its own that says where the package lies.

What all of them import has been imported before they begin, and collections of garbage need not walk over it.
"""

Pytests: TypeAlias = "Callable[[Path, list[str]], str]"
"""Returns what pytest prints, given a copy of the package and the arguments."""


@pytest.fixture(scope="module")
def pytests() -> Iterator[Pytests]:
    # Only the copy is on the path, and Hypothesis repeats itself in CI.
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONASYNCIODEBUG": "", "CI": "1"}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", SERVER],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run(folder: Path, arguments: list[str]) -> str:
            assert server.stdin is not None
            assert server.stdout is not None
            output = folder / "output"
            asked = {"folder": str(folder), "arguments": arguments, "output": str(output), "seconds": ENDED_AFTER_S}
            server.stdin.write(f"{json.dumps(asked)}\n")
            server.stdin.flush()
            assert server.stdout.readline() == "done\n"
            return output.read_text(encoding="utf-8")

        yield run


def verdicts(pytests: Pytests, folder: Path, tests: Iterable[str]) -> dict[str, Verdict]:
    """Return what each test says of the copy of the package in `folder`."""
    paths = {f"tests/{test}": test for test in tests}
    # Nobody reads what an assertion says, for which pytest would compile the copy of the whole package anew.
    options = ["-n0", "-q", "-rpf", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    options += ["--hypothesis-profile=planted", "-o", f"faulthandler_timeout={ENDLESS_AFTER_S}"]
    printed = pytests(folder, [*options, *paths])
    assert printed.startswith(f"imported {folder}{os.sep}"), printed
    found: dict[str, Verdict] = dict.fromkeys(paths.values(), "not exercised")
    for word, row in re.findall(r"^(PASSED|FAILED) (tests/.+?)(?: - .*)?$", printed, re.MULTILINE):
        for path in {row, row.partition("[")[0]} & paths.keys():
            if found[paths[path]] != "violated":
                found[paths[path]] = VERDICT_OF[word]
    return found


@pytest.mark.slow
def test_each_test_that_is_named_is_there_with_its_row() -> None:
    named = {f"tests/{test}" for fault in SHELL_FAULTS for test in fault.tests}
    files = sorted({test.partition("::")[0] for test in named})
    collect = [sys.executable, "-P", "-m", "pytest", "-n0", "-q", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*collect, *files], cwd=ROOT, capture_output=True, text=True, check=True, timeout=ENDED_AFTER_S
    )
    rows = set(done.stdout.splitlines())
    assert named - rows - {row.partition("[")[0] for row in rows} == set()


def test_each_test_that_is_named_is_a_function_of_its_file_or_of_the_contract_that_it_takes() -> None:
    contracts = "".join((ROOT / "stores" / name).read_text(encoding="utf-8") for name in CONTRACTS)
    for test in {test.partition("[")[0] for fault in SHELL_FAULTS for test in fault.tests}:
        file, *_, name = test.split("::")
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        defined = rf"^(\w+, )*{name}(, \w+)* =|\bdef {name}\("
        assert re.search(defined, source, re.MULTILINE) or f"def {name}(" in contracts, test


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault in QUICK_FAULTS else pytest.mark.slow, id=fault.name)
        for fault in SHELL_FAULTS
    ],
)
def test_a_planted_fault_is_found_by_each_test_that_is_named(fault: Fault, pytests: Pytests, tmp_path: Path) -> None:
    copy_package(tmp_path)
    plant(tmp_path, fault)
    found = verdicts(pytests, tmp_path, fault.tests)
    assert found == dict.fromkeys(fault.tests, "violated")


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("part", range(PARTS))
def test_without_a_fault_every_test_that_is_named_holds(part: int, pytests: Pytests, tmp_path: Path) -> None:
    copy_package(tmp_path)
    every = sorted({test for fault in SHELL_FAULTS for test in fault.tests})
    named = every[len(every) * part // PARTS : len(every) * (part + 1) // PARTS]
    assert verdicts(pytests, tmp_path, named) == dict.fromkeys(named, "hold")


def test_a_test_that_comes_to_no_outcome_exercises_nothing(pytests: Pytests, tmp_path: Path) -> None:
    copy_package(tmp_path)
    named = "class InMemoryStore:"
    plant(tmp_path, Edit(at="refold.stores.memory:InMemoryStore", original=named, planted="class Forgotten:"))
    tests = ("stores/test_memory.py::TestInMemoryStore::test_a_new_store_is_empty", "stores/test_memory.py::gone")
    assert verdicts(pytests, tmp_path, tests) == dict.fromkeys(tests, "not exercised")
