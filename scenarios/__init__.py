"""Rehearsal: faults and scenarios.

`Simulator` plays a `Scenario` with an agent's real runtime on a deterministic loop; `refold.scenarios.faults` says what
may go wrong, and `refold.scenarios.strategies` draws scenarios for hypothesis. `exhaustive` tries everything that can
happen to a session within a small scope; `rules` says what is checked. `core_exploration` does the same for a
core of the user's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.scenarios.as_code import scenario_as_code as scenario_as_code
    from refold.scenarios.as_code import scenario_as_test as scenario_as_test
    from refold.scenarios.command.stubs import with_stand_ins as with_stand_ins
    from refold.scenarios.plan.random_scenario import drawn_scenario as drawn_scenario
    from refold.scenarios.plan.scenario import Abandon as Abandon
    from refold.scenarios.plan.scenario import Answer as Answer
    from refold.scenarios.plan.scenario import Call as Call
    from refold.scenarios.plan.scenario import Cancel as Cancel
    from refold.scenarios.plan.scenario import Clear as Clear
    from refold.scenarios.plan.scenario import Decide as Decide
    from refold.scenarios.plan.scenario import Say as Say
    from refold.scenarios.plan.scenario import Scenario as Scenario
    from refold.scenarios.plan.scenario import Watch as Watch
    from refold.scenarios.report import SimulationReport as SimulationReport
    from refold.scenarios.shrinking import shrunk as shrunk
    from refold.scenarios.simulator import Simulator as Simulator
    from refold.scenarios.world.loop import SimulationError as SimulationError

__all__ = [
    "Abandon",
    "Answer",
    "Call",
    "Cancel",
    "Clear",
    "Decide",
    "Say",
    "Scenario",
    "SimulationError",
    "SimulationReport",
    "Simulator",
    "Watch",
    "drawn_scenario",
    "scenario_as_code",
    "scenario_as_test",
    "shrunk",
    "with_stand_ins",
]

_HOMES = {
    "Abandon": "refold.scenarios.plan.scenario",
    "Answer": "refold.scenarios.plan.scenario",
    "Call": "refold.scenarios.plan.scenario",
    "Cancel": "refold.scenarios.plan.scenario",
    "Clear": "refold.scenarios.plan.scenario",
    "Decide": "refold.scenarios.plan.scenario",
    "Say": "refold.scenarios.plan.scenario",
    "Scenario": "refold.scenarios.plan.scenario",
    "SimulationError": "refold.scenarios.world.loop",
    "SimulationReport": "refold.scenarios.report",
    "Simulator": "refold.scenarios.simulator",
    "Watch": "refold.scenarios.plan.scenario",
    "drawn_scenario": "refold.scenarios.plan.random_scenario",
    "scenario_as_code": "refold.scenarios.as_code",
    "scenario_as_test": "refold.scenarios.as_code",
    "shrunk": "refold.scenarios.shrinking",
    "with_stand_ins": "refold.scenarios.command.stubs",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
