"""A broken promise to take away: the smallest scenario that breaks it, as code, as a file, and as a log."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import msgspec

from refold.events.core.errors import ConfigError, PersistenceError, RefoldError
from refold.scenarios.as_code import scenario_as_code, scenario_as_test
from refold.scenarios.monitors.monitor import Broken
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.report import SimulationReport
from refold.scenarios.shrinking import RUNS_MAX, shrunk
from refold.scenarios.simulator import Simulator
from refold.scenarios.sweep import quiet, quietly
from refold.scenarios.workers import Interrupted

SCENARIO_BYTES_MAX = 16_000_000
"""A file that is longer is not read as a scenario."""


class FailureArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest scenario that was found to break a promise, and where it lies."""

    broken: Broken
    """What it breaks."""
    scenario: Scenario
    original: Scenario
    """What it was shrunk from."""
    tries: int
    """How many smaller scenarios were tried."""
    code: str
    """Python that assigns it to `scenario`."""
    log: str | None
    """Path of its log."""
    file: str | None
    """Path of the scenario as JSON, which `refold simulate --scenario` plays."""
    test: str | None
    """Path of a module with a test that plays it; None where the agent has no name."""
    unsaved: str | None = None
    """Why not all of it could be saved; what could not has no path."""


def save_failure(
    simulator: Simulator,
    report: SimulationReport,
    folder: Path,
    name: str,
    *,
    agent: str | None = None,
    own_tools: bool = True,
    tries_max: int = RUNS_MAX,
    tried: Callable[[int], object] = lambda tries: None,
) -> FailureArtifact:
    """Shrink a scenario that breaks a promise, and save what is left of it.

    Nothing in the folder, which is made if it is not there, is written over. `tried` is told how many smaller scenarios
    have been tried, each time, and `agent` is `module:attribute`, for the test.
    """
    tries, best = 0, report

    def play(scenario: Scenario) -> SimulationReport:
        nonlocal tries, best
        tries += 1
        tried(tries)
        played = quietly(simulator, scenario)
        if played.broken and played.broken[0].rule == report.broken[0].rule:
            best = played
        return played

    try:
        smallest = shrunk(play, report, runs_max=tries_max)
    except Interrupted:  # A smaller one is not waited for.
        smallest = best
    log = file = test = unsaved = None
    try:
        stem = reserved_stem(folder, name, smallest.scenario)
        file = str(folder / f"{stem}.json")
        if agent is not None:
            path = folder / f"{_test_stem(stem)}.py"
            path.write_text(scenario_as_test(smallest.scenario, agent, _test_name(stem), own_tools=own_tools), "utf-8")
            test = str(path)
        with quiet():
            simulator.save_log(smallest.scenario, folder / f"{stem}.db")
        log = str(folder / f"{stem}.db")
    except RefoldError as error:
        unsaved = str(error)
    except OSError as error:
        unsaved = f"{folder}: {error.strerror}"
    return FailureArtifact(
        broken=smallest.broken[0],
        scenario=smallest.scenario,
        original=report.scenario,
        tries=tries,
        code=scenario_as_code(smallest.scenario),
        log=log,
        file=file,
        test=test,
        unsaved=unsaved,
    )


def read_scenario(path: Path) -> Scenario:
    """Return the scenario that a file holds as JSON."""
    try:
        with path.open("rb") as file:
            text = file.read(SCENARIO_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the scenario {path} cannot be read: {error.strerror}") from error
    if len(text) > SCENARIO_BYTES_MAX:
        raise ConfigError(f"{path} holds no scenario: it is longer than {SCENARIO_BYTES_MAX:,} bytes")
    try:
        return msgspec.json.decode(text, type=Scenario)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{path} holds no scenario: {error}") from error


def reserved_stem(folder: Path, name: str, scenario: Scenario) -> str:
    """Save a scenario as JSON, and return how the files beside it may be named; no other caller gets the same name."""
    text = msgspec.json.format(msgspec.json.encode(scenario)).decode() + "\n"
    stem = free_stem(folder, name)
    while True:
        try:
            with (folder / f"{stem}.json").open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:  # Another process has been quicker.
            stem = free_stem(folder, name)
        except OSError as error:
            raise PersistenceError(f"{folder / stem}.json cannot be written: {error.strerror}") from error
        else:
            return stem


def check_folder(folder: Path) -> None:
    """Make a folder if it is not there, before there is anything to be saved in it."""
    free_stem(folder, "any")
    try:
        with TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise PersistenceError(f"nothing can be saved in {folder}: {error.strerror}") from error


def free_stem(folder: Path, name: str) -> str:
    """Return how files in a folder may be named so that none is there yet; the folder is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.stem for path in folder.iterdir()}
    except OSError as error:
        raise PersistenceError(f"nothing can be saved in {folder}: {error.strerror}") from error
    stem, number = name, 1
    while {stem, _test_stem(stem)} & taken:
        number += 1
        stem = f"{name}-{number}"
    return stem


def _test_stem(stem: str) -> str:
    return f"test_{_test_name(stem)}"


def _test_name(stem: str) -> str:
    return re.sub(r"\W", "_", stem)
