"""A broken promise to take away: the smallest scenario that breaks it, as code, as a file, and as a log."""

from pathlib import Path

import msgspec

from refold.events.errors import ConfigError, PersistenceError
from refold.scenarios.scenario import Scenario
from refold.scenarios.scenario_code import scenario_as_code, scenario_as_test
from refold.scenarios.shrinking import RUNS_MAX, shrunk
from refold.scenarios.simulation_report import SimulationReport
from refold.scenarios.simulation_watch import Broken
from refold.scenarios.simulator import Simulator
from refold.scenarios.sweep import quietly


class SavedViolation(msgspec.Struct, frozen=True, kw_only=True):
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
    log: str
    """Path of its log."""
    file: str
    """Path of the scenario as JSON, which `refold simulate --scenario` plays."""
    test: str | None
    """Path of a module with a test that plays it; None where the agent has no name."""


def save_violation(
    simulator: Simulator,
    report: SimulationReport,
    folder: Path,
    name: str,
    *,
    agent: str | None = None,
    own_tools: bool = True,
    tries_max: int = RUNS_MAX,
) -> SavedViolation:
    """Shrink a scenario that breaks a promise, and save what is left of it.

    Args:
        simulator: plays it.
        report: of the scenario; a promise is broken.
        folder: where files go; made if it is not there. Nothing in it is written over.
        name: how the files' names begin, such as `seed-17`.
        agent: `module:attribute`, for the test.
        own_tools: whether the bodies of its own tools ran.
        tries_max: how many smaller scenarios are tried at most.

    Raises:
        PersistenceError: a file cannot be written.
    """
    tries = 0

    def play(scenario: Scenario) -> SimulationReport:
        nonlocal tries
        tries += 1
        return quietly(simulator, scenario)

    smallest = shrunk(play, report, runs_max=tries_max)
    stem = free_stem(folder, name)
    log, file = folder / f"{stem}.db", folder / f"{stem}.json"
    simulator.save_log(smallest.scenario, log)
    _write(file, msgspec.json.format(msgspec.json.encode(smallest.scenario)).decode() + "\n")
    test: Path | None = None
    if agent is not None:
        test = folder / f"test_{stem.replace('-', '_')}.py"
        _write(test, scenario_as_test(smallest.scenario, agent, stem.replace("-", "_"), own_tools=own_tools))
    return SavedViolation(
        broken=smallest.broken[0],
        scenario=smallest.scenario,
        original=report.scenario,
        tries=tries,
        code=scenario_as_code(smallest.scenario),
        log=str(log),
        file=str(file),
        test=str(test) if test is not None else None,
    )


def read_scenario(path: Path) -> Scenario:
    """Return the scenario that a file holds as JSON.

    Raises:
        ConfigError: the file cannot be read, or holds no scenario.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scenario)
    except OSError as error:
        raise ConfigError(f"the scenario {path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} holds no scenario: {error}") from error


def free_stem(folder: Path, name: str) -> str:
    """Return how files in a folder may be named so that none is there yet; the folder is made if it is not there.

    Raises:
        PersistenceError: there can be no such folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.stem for path in folder.iterdir()}
    except OSError as error:
        raise PersistenceError(f"nothing can be saved in {folder}: {error.strerror}") from error
    stem, number = name, 1
    while stem in taken:
        number += 1
        stem = f"{name}-{number}"
    return stem


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PersistenceError(f"{path} cannot be written: {error.strerror}") from error
