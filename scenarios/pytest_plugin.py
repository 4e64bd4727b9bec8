"""The pytest marker `refold_scenarios`: a test that is run with many scenarios, each of which must break no promise.

    @pytest.mark.refold_scenarios(agent="app.agents:support", seeds=50)
    def test_support(refold_report):
        assert refold_report.lives < 5          # The promises themselves have been checked by then.

Each seed is a test of its own, `test_support[seed 17]`, that can be run again by its name. The scenario is played
first; if it breaks a promise, the test fails with the smallest scenario that does, as code, and its log is saved. Else
the test runs, and may ask for the fixtures `refold_scenario` and `refold_report` to look at what was played and what
came of it.

A file whose name ends in `.refold` is a test as well: `pytest bug.refold` replays the bundle with the agent that it was
made with, or the one that the setting `refold_agent = "app:agent"` names, and fails where something differs or was not
compared. `bug.expected.json` beside it holds the differences that are meant (`refold replay --write-expect`); one that
does not occur any more fails it, too.

Nothing of Refold, and no asyncio, is imported before a test with the marker, or a bundle, is run.
"""

import inspect
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

if TYPE_CHECKING:
    from refold.agents.loading import AgentSource
    from refold.scenarios.plan.scenario import Scenario
    from refold.scenarios.report import SimulationReport
    from refold.scenarios.simulator import Simulator

MARKER = "refold_scenarios"

AGENT_SETTING = "refold_agent"

SEEDS = 20
"""How many seeds are played if the marker says nothing else."""

SEEDS_MAX = 100_000
"""A test is made of each."""

_FAILURE: pytest.StashKey[str] = pytest.StashKey()
"""Why the scenario of a test failed."""

DRAWN = {"faults_max": "faults"}
"""What `drawn_scenario` takes and the marker calls otherwise."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(agent, seeds={SEEDS}, stand_ins=False, sessions=3, acts=8, faults=6): run the test with as many "
        "scenarios, drawn from seeds, that the agent must live through; seeds may be a number or a collection of them, "
        "agent a refold.Agent, a function without arguments that makes one, or module:attribute of either.",
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(AGENT_SETTING, "module:attribute of the agent that bundles (*.refold) are replayed with", default="")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "BundleFile | None":
    """Take a bundle as a file of one test."""
    if file_path.suffix != ".refold":
        return None
    return BundleFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]


class BundleFile(pytest.File):
    """A bundle."""

    def collect(self) -> Iterable[pytest.Item]:
        return [BundleReplay.from_parent(self, name="replay")]  # pyright: ignore[reportUnknownMemberType]


class BundleReplay(pytest.Item):
    """The replay of a bundle."""

    def runtest(self) -> None:
        """Replay the bundle, and fail where it is not as it was recorded, but for what is meant."""
        import asyncio  # Here, since it would be most of what the plugin costs each run of pytest.

        from refold.agents.loading import load_agent
        from refold.commands.output import safe_text
        from refold.replay import MeantDifferences, read_manifest, replay

        name = self.config.getini(AGENT_SETTING) or read_manifest(self.path).agent
        expected = self.path.with_suffix(".expected.json")
        meant = MeantDifferences.read(expected) if expected.exists() else MeantDifferences()
        report = asyncio.run(replay(self.path, agent=load_agent(name) if name else None, meant=meant))
        lines = [f"changed: {change}" for change in report.changes] if report.divergences else []
        lines += [f"differs: {kind.first}: {kind.said}" for kind in report.kinds]
        lines += [f"expected, and does not occur any more: {each.path}: {each.said or '*'}" for each in report.unmet]
        lines += [f"not compared: {line}" for line in report.missing()] if not lines else []
        if lines:
            pytest.fail(safe_text("\n".join(lines)), pytrace=False)
        report.raise_for_divergence()

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"replay of {self.path.name}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each seed."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None:
        return
    options = _options(marker, metafunc.definition.nodeid)
    seeds = _seeds(options.get("seeds", SEEDS), metafunc.definition.nodeid)
    if "refold_scenario" not in metafunc.fixturenames:
        metafunc.fixturenames.append("refold_scenario")
    metafunc.parametrize("refold_scenario", seeds, ids=[f"seed {seed}" for seed in seeds], indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have the scenario of a marked test played, whether it asks for what comes of it or not."""
    if isinstance(item, pytest.Function) and item.get_closest_marker(MARKER) is not None:
        for name in ("refold_scenario", "refold_report"):
            if name not in item.fixturenames:
                item.fixturenames.append(name)


@pytest.fixture
def refold_scenario(request: pytest.FixtureRequest) -> "Scenario":
    """The scenario that a test with the marker `refold_scenarios` is run with."""
    from refold.scenarios.plan.random_scenario import drawn_scenario

    options = _options_of(request)
    names = {DRAWN.get(name, name): name for name in inspect.signature(drawn_scenario).parameters}
    drawing: dict[str, Any] = {names[name]: value for name, value in options.items() if name in names}
    with _refusals():
        return drawn_scenario(request.param, **drawing)


@pytest.fixture
def refold_report(
    request: pytest.FixtureRequest, refold_scenario: "Scenario", tmp_path_factory: pytest.TempPathFactory
) -> "SimulationReport":
    """What came of the scenario of a test with the marker `refold_scenarios`, played with its agent."""
    from refold.scenarios.simulator import Simulator
    from refold.scenarios.sweep import quietly
    from refold.scenarios.world.stubs import with_stand_ins

    options = _options_of(request)
    source = _source(options["agent"])
    simulator = Simulator(with_stand_ins(source) if options.get("stand_ins", False) else source)
    report = quietly(simulator, refold_scenario)
    if report.broken:
        request.node.stash[_FAILURE] = _failure(simulator, report, tmp_path_factory)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test whose scenario has broken a promise, instead of calling it."""
    if _FAILURE in pyfuncitem.stash:
        pytest.fail(pyfuncitem.stash[_FAILURE], pytrace=False)
    return (yield)


def _refuse(words: str) -> NoReturn:
    """Fail what a marker asks for in a way that cannot be, without a traceback, which would be that of this module."""
    pytest.fail(words, pytrace=False)


@contextmanager
def _refusals() -> Generator[None]:
    from refold.commands.output import safe_text
    from refold.events.core.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        _refuse(safe_text(str(error)))


def _options_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        _refuse(f"{request.fixturename} is for tests with @pytest.mark.{MARKER}(agent=…)")
    return _options(marker, request.node.nodeid)


def _options(marker: pytest.Mark, test: str) -> dict[str, Any]:
    from refold.scenarios.plan.random_scenario import drawn_scenario

    options = dict(marker.kwargs)
    drawing = {DRAWN.get(name, name) for name in inspect.signature(drawn_scenario).parameters if name != "seed"}
    known = {"agent", "seeds", "stand_ins", *drawing}
    unknown = sorted(options.keys() - known)
    if marker.args or unknown or "agent" not in options:
        what = f"does not know {', '.join(unknown)}" if unknown else "is given agent=… and other options by name"
        _refuse(f"{test}: @pytest.mark.{MARKER} {what}; it knows {', '.join(sorted(known))}")
    if not isinstance(options.get("stand_ins", False), bool):
        _refuse(f"{test}: stand_ins=… of @pytest.mark.{MARKER} is True or False")
    return options


def _seeds(given: object, test: str) -> Sequence[int]:
    """Return the seeds that a marker names; a test that would be run with none would say nothing."""
    seeds: Sequence[object] = ()
    if isinstance(given, int) and not isinstance(given, bool):
        seeds = range(min(given, SEEDS_MAX + 1))
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        seeds = tuple(islice(cast("Iterable[object]", given), SEEDS_MAX + 1))
    whole = [seed for seed in seeds if isinstance(seed, int) and not isinstance(seed, bool)]
    if not 1 <= len(whole) == len(seeds) <= SEEDS_MAX:
        _refuse(
            f"{test}: seeds=… of @pytest.mark.{MARKER} is a number from 1 to {SEEDS_MAX:,} or a collection of whole "
            f"numbers, and not {given!r:.80}"
        )
    return whole


def _source(given: "AgentSource | str") -> "AgentSource":
    from refold.agents.loading import checked_source, load_agent_source

    with _refusals():
        if isinstance(given, str):
            return load_agent_source(given)
        return checked_source(given, f"agent=… of @pytest.mark.{MARKER}")


def _failure(simulator: "Simulator", report: "SimulationReport", folders: pytest.TempPathFactory) -> str:
    from refold.scenarios.failure_artifact import save_failure

    saved = save_failure(simulator, report, folders.mktemp("refold"), f"seed-{report.scenario.seed}")
    where = f"Its log is {saved.log}; look into it with `refold show`, `refold check` and `refold replay`."
    return (
        f"{saved.broken}\n\nThis scenario is enough ({saved.tries} smaller ones were tried):\n\n"
        f"{saved.code}\n{where if saved.log is not None else f'Its log is not saved: {saved.unsaved}'}"
    )
