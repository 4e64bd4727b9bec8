"""The last look at a simulation's log, once all is over: is it whole, and does deciding it again give what it holds?"""

from collections.abc import Sequence

from refold.events.errors import PersistenceError
from refold.events.records import StoredEvent
from refold.log_check import check_log
from refold.replay import replay
from refold.scenarios.simulated_disk import SimulatedDisk
from refold.scenarios.simulated_wire import SimulatedWire
from refold.scenarios.simulated_world import World
from refold.scenarios.simulation_watch import SimulationWatch


async def last_look(
    world: World, watch: SimulationWatch, files: SimulatedDisk | None, wire: SimulatedWire | None
) -> Sequence[StoredEvent]:
    """Return all that the log holds, and note what is wrong with it, unless something has been found before.

    Args:
        world: whose log it is.
        watch: takes what is found.
        files: what the log is read from, without faults; None = it is in memory.
        wire: how the model was reached; None = as an object of the process.
    """
    try:
        if files is not None:
            world.disk = await files.open(read_only=True)
        if not watch.broken:
            await _check(world, watch, wire)
        return await world.disk.read_all(limit=10**9)
    except PersistenceError as error:
        if not watch.broken:
            watch.note("DURABLE", "", f"the log cannot be read any more: {error}")
        return ()


async def _check(world: World, watch: SimulationWatch, wire: SimulatedWire | None) -> None:
    await watch.opened()
    watch.over()
    watch.exercised.update(("CHECK", "INV6"))
    for problem in (await check_log(world.disk)).problems:
        watch.note("CHECK", problem.stream, str(problem))
    for divergence in (await replay(world.disk)).divergences:
        if divergence.version > world.recorded.get(divergence.stream, 0):
            watch.note("INV6", divergence.stream, str(divergence))
    if wire is not None:
        await wire.check_log()
