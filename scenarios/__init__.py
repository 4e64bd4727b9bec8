"""Rehearsal: faults and scenarios.

`Simulator` plays a `Scenario` with an agent's real runtime on a deterministic loop; `refold.scenarios.faults` says what
may go wrong, and `refold.scenarios.strategies` draws scenarios for hypothesis. `exhaustive` tries everything that can
happen to a session within a small scope; `session_rules` says what is checked. `core_exploration` does the same for a
core of the user's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.scenarios.drawing import drawn_scenario as drawn_scenario
    from refold.scenarios.scenario import Abandon as Abandon
    from refold.scenarios.scenario import Answer as Answer
    from refold.scenarios.scenario import Call as Call
    from refold.scenarios.scenario import Cancel as Cancel
    from refold.scenarios.scenario import Clear as Clear
    from refold.scenarios.scenario import Decide as Decide
    from refold.scenarios.scenario import Say as Say
    from refold.scenarios.scenario import Scenario as Scenario
    from refold.scenarios.scenario import Watch as Watch
    from refold.scenarios.scenario_code import scenario_as_code as scenario_as_code
    from refold.scenarios.scenario_code import scenario_as_test as scenario_as_test
    from refold.scenarios.shrinking import shrunk as shrunk
    from refold.scenarios.simulated_loop import SimulationError as SimulationError
    from refold.scenarios.simulation_report import SimulationReport as SimulationReport
    from refold.scenarios.simulator import Simulator as Simulator
    from refold.scenarios.stand_ins import with_stand_ins as with_stand_ins

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
    "Abandon": "refold.scenarios.scenario",
    "Answer": "refold.scenarios.scenario",
    "Call": "refold.scenarios.scenario",
    "Cancel": "refold.scenarios.scenario",
    "Clear": "refold.scenarios.scenario",
    "Decide": "refold.scenarios.scenario",
    "Say": "refold.scenarios.scenario",
    "Scenario": "refold.scenarios.scenario",
    "SimulationError": "refold.scenarios.simulated_loop",
    "SimulationReport": "refold.scenarios.simulation_report",
    "Simulator": "refold.scenarios.simulator",
    "Watch": "refold.scenarios.scenario",
    "drawn_scenario": "refold.scenarios.drawing",
    "scenario_as_code": "refold.scenarios.scenario_code",
    "scenario_as_test": "refold.scenarios.scenario_code",
    "shrunk": "refold.scenarios.shrinking",
    "with_stand_ins": "refold.scenarios.stand_ins",
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
