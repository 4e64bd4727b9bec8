"""What somebody outside does, once, and what it comes to; see `refold.scenarios.scenario` for the acts.

The rule: whatever they are told is checked before anybody goes on.
"""

import asyncio

from refold.agent_runtime import AgentRuntime
from refold.events.ids import stream_name
from refold.events.session_core import SESSION_KIND
from refold.outcome import RunResult
from refold.scenarios.scenario import Abandon, AnyAct, Cancel, Clear, Decide, Say, Watch
from refold.scenarios.session_watching import Watching
from refold.scenarios.simulated_world import World
from refold.scenarios.simulation_watch import SimulationWatch, marked


async def carry_out(
    act: AnyAct,
    key: str,
    runtime: AgentRuntime,
    world: World,
    watch: SimulationWatch,
    watching: Watching | None,
    *,
    life: int,
) -> str:
    """Return what an act comes to: the name of its run's outcome, or `done`.

    Args:
        act: whose time has come.
        key: of its commands, the same each time.
        runtime: of the process that is asked.
        world: tells the time.
        watch: sees what is told.
        watching: of an act `Watch`, what was seen before.
        life: of that process.

    Raises:
        RefoldError: it was refused, or nobody was told what came of it.
    """
    session = await runtime.session(act.session)
    match act:
        case Say(text=text, times=times):
            return await _told(watch, act, await session.send(marked(act.session, text * times), key=key), life)
        case Cancel():
            await session.cancel(key=key)
        case Abandon(text=text, after_s=after_s):
            sending = asyncio.ensure_future(session.send(marked(act.session, text), key=key))
            done, _ = await asyncio.wait([sending], timeout=after_s)
            if not done:
                sending.cancel()
                await asyncio.wait([sending])
            if not sending.cancelled():
                return await _told(watch, act, sending.result(), life)
            watch.effects.evidence.given_up(act.session, key)
        case Decide(allow=allow):
            for waiting in await session.approvals():
                await session.decide(waiting.call, allow=allow, key=f"{key} {waiting.call}")
        case Clear():
            await session.clear(key=key)
            await watch.cleared(act.session, key)
        case Watch():
            assert watching is not None
            watch.exercised.add("FOLLOW")
            await watching.follow(session, max(0.0, act.at_s + act.for_s - world.now_s()))
            for problem in watching.problems:
                watch.note("FOLLOW", stream_name(SESSION_KIND, session.id), problem)
    return "done"


async def _told(watch: SimulationWatch, act: AnyAct, result: RunResult, life: int) -> str:
    await watch.look_for(act.session, result)
    watch.told(act.session, result, life)
    return type(result.outcome).__name__
