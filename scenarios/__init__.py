"""Rehearsal: faults and scenarios.

`Simulator` plays a `Scenario` with an agent's real runtime on a deterministic loop; `refold.scenarios.faults` says what
may go wrong, and `refold.scenarios.strategies` draws scenarios for hypothesis. `exhaustive` tries everything that can
happen to a session within a small scope; `rules` says what is checked. `core_exploration` does the same for a
core of the user's own.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.scenarios.as_code import scenario_as_code as scenario_as_code
    from refold.scenarios.as_code import scenario_as_test as scenario_as_test
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
    from refold.scenarios.world.stubs import with_stand_ins as with_stand_ins
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.scenarios.as_code": "scenario_as_code scenario_as_test",
            "refold.scenarios.world.stubs": "with_stand_ins",
            "refold.scenarios.plan.random_scenario": "drawn_scenario",
            "refold.scenarios.plan.scenario": "Abandon Answer Call Cancel Clear Decide Say Scenario Watch",
            "refold.scenarios.report": "SimulationReport",
            "refold.scenarios.shrinking": "shrunk",
            "refold.scenarios.simulator": "Simulator",
            "refold.scenarios.world.loop": "SimulationError",
        },
    )
