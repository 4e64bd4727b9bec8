"""What came of a scenario that was played.

The log of a simulation as a file, for `refold show`, `refold replay` and `refold check`.

The rule: it is saved unchanged. That its events break the rules of sessions is what makes it worth looking at.
"""

import os
import tempfile

import msgspec

from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.expectations import Watched
from refold.scenarios.monitors.monitor import Broken, FaultCount, RuleVerdict, verdicts_on
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.world.loop import SimulationError
from refold.stores.event_store import WholeLog
from refold.stores.jsonl.export import exported_lines
from refold.stores.jsonl.importing import import_log


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a scenario."""

    scenario: Scenario
    broken: tuple[Broken, ...]
    """The promises that were broken, first one first."""
    exercised: tuple[str, ...]
    """The rules that something was checked for, in order of their names."""
    happened: tuple[AnyFault, ...]
    """Those of the scenario's faults that came to happen."""
    refused: tuple[str, ...] = ()
    """What the agent reached for outside of the simulation and was refused, such as a thread; in order of the words."""
    lives: int
    steps: int
    """Of the loops of all lives."""
    virtual_s: float
    events: int
    event_kinds: dict[str, int] = {}
    """How many events of each type the log has, such as `session.run_resumed.v1`."""
    times: dict[str, int] = {}
    """How often faults of each kind have happened; more than once where they last."""
    watched: tuple[Watched, ...] = ()
    """What each act `Watch` has seen, in their order."""
    operations: dict[str, int]
    """How many model calls, tool bodies, appends, reads and steps there were."""
    outcomes: tuple[str, ...]
    """What each act came to, in their order: `Completed`, `Failed`, `Cancelled`, `refused` or `done`."""
    met: tuple[FaultCount, ...]
    """Which kinds of faults met sessions doing what, and how often."""
    digest: str
    """SHA-256 of the whole log, in hexadecimal: two simulations with one digest have the same log, byte for byte."""

    def verdicts(self) -> dict[str, RuleVerdict]:
        """Return the verdict on each promise, in their order."""
        return verdicts_on([broken.rule for broken in self.broken], self.exercised)

    def raise_if_broken(self) -> None:
        """Return if every promise was kept.

        Raises:
            SimulationError: one was broken; the message names the first, and the scenario.
        """
        if self.broken:
            raise SimulationError(f"{self.broken[0]}\n{self.scenario!r}")


async def save_log(log: WholeLog, path: str | os.PathLike[str]) -> None:
    """Save a log as a new SQLite file.

    Args:
        log: any whole log, open.
        path: of the file; nothing may be there.
    """
    with tempfile.TemporaryFile() as lines:
        async for line in exported_lines(log):
            lines.write(line)
        lines.seek(0)
        await import_log(lines, log.name, path)
