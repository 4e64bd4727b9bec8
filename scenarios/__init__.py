"""Rehearsal: an agent's real runtime under faults, on a simulated machine.

`Simulator` plays a `Scenario` on a deterministic loop; `refold.scenarios.faults` lists what may go wrong,
`refold.scenarios.strategies` draws scenarios for hypothesis, and `ready_scenario` returns one that is written already.
`SessionMachine` is a hypothesis state machine over the public API. `explore_core` tries every short life of a core of
your own. `SQLiteShim` makes SQLite's file operations fail in a test of your own store.

Folders: `plan` (what a scenario is), `world` and `wire` (what is simulated), `monitors` (what is checked), `command`
(`refold simulate`), `ready`. Read `simulator` first.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.scenarios.as_code import scenario_as_code as scenario_as_code
    from refold.scenarios.as_code import scenario_as_test as scenario_as_test
    from refold.scenarios.core_exploration import CoreExploration as CoreExploration
    from refold.scenarios.core_exploration import explore_core as explore_core
    from refold.scenarios.plan.random_scenario import drawn_scenario as drawn_scenario
    from refold.scenarios.plan.scenario import Abandon as Abandon
    from refold.scenarios.plan.scenario import Answer as Answer
    from refold.scenarios.plan.scenario import Call as Call
    from refold.scenarios.plan.scenario import Cancel as Cancel
    from refold.scenarios.plan.scenario import Clear as Clear
    from refold.scenarios.plan.scenario import Decide as Decide
    from refold.scenarios.plan.scenario import Post as Post
    from refold.scenarios.plan.scenario import Respond as Respond
    from refold.scenarios.plan.scenario import Say as Say
    from refold.scenarios.plan.scenario import Scenario as Scenario
    from refold.scenarios.plan.scenario import Watch as Watch
    from refold.scenarios.ready import ready_scenario as ready_scenario
    from refold.scenarios.report import SimulationReport as SimulationReport
    from refold.scenarios.session_machine import SessionMachine as SessionMachine
    from refold.scenarios.shrinking import shrunk as shrunk
    from refold.scenarios.simulator import Simulator as Simulator
    from refold.scenarios.world.disk_model import DiskModel as DiskModel
    from refold.scenarios.world.loop import SimulationError as SimulationError
    from refold.scenarios.world.sqlite_shim import FULL as FULL
    from refold.scenarios.world.sqlite_shim import FileOperation as FileOperation
    from refold.scenarios.world.sqlite_shim import ShimUnavailable as ShimUnavailable
    from refold.scenarios.world.sqlite_shim import SQLiteShim as SQLiteShim
    from refold.scenarios.world.stubs import with_stand_ins as with_stand_ins
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.scenarios.as_code": "scenario_as_code scenario_as_test",
            "refold.scenarios.core_exploration": "CoreExploration explore_core",
            "refold.scenarios.plan.random_scenario": "drawn_scenario",
            "refold.scenarios.plan.scenario": "Abandon Answer Call Cancel Clear Decide Post Respond Say Scenario Watch",
            "refold.scenarios.ready": "ready_scenario",
            "refold.scenarios.report": "SimulationReport",
            "refold.scenarios.session_machine": "SessionMachine",
            "refold.scenarios.shrinking": "shrunk",
            "refold.scenarios.simulator": "Simulator",
            "refold.scenarios.world.disk_model": "DiskModel",
            "refold.scenarios.world.loop": "SimulationError",
            "refold.scenarios.world.sqlite_shim": "FULL FileOperation ShimUnavailable SQLiteShim",
            "refold.scenarios.world.stubs": "with_stand_ins",
        },
    )
