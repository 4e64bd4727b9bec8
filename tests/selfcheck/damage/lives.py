"""Damages of a log between two lives of a simulated process, which then goes on with the damaged log.

A scenario is played on a real SQLite file until its process dies or ends, one of `damages` happens to the file or its
WAL, and the next life starts on it. Before that the damaged files are judged as in `trial`. The promises: where neither
the opening nor a read refuses them and `refold check` says that they are sound, no promise of the scenario is broken;
and where damage is reported of some sessions only, all others go on to their end.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from threading import Thread
from typing import Any

from refold.events.core.ids import SessionId, stream_name
from refold.events.session.core import SESSION_KIND
from refold.inspection.check import check_log
from refold.scenarios import Say, Scenario, faults
from refold.scenarios.simulator import Simulation
from refold.scenarios.world.process import manual_gc
from refold.stores import SQLiteStore
from tests.planted_faults.sweep import rehearsed_agent
from tests.selfcheck.damage.trial import (
    DAMAGES,
    Contents,
    Outcome,
    Repaired,
    Verdict,
    When,
    connect,
    files_of,
    laid,
    read,
    repair_of,
    verdict_on,
)

SESSIONS = 3


class Damaging:
    """Damages the files once, before the process's second life, and judges them."""

    def __init__(self, when: When, damage: str, folder: Path, chance: random.Random) -> None:
        self._when: When = when
        self._damage = damage
        self._folder = folder
        self._chance = chance
        self.verdict: Verdict | None = None
        self.repaired: Repaired = "-"
        self.fault = ""
        self.streams: frozenset[str] | None = None
        """What the check says is damaged; None = more than some streams is, or the log is refused."""

    def __call__(self, log: Path) -> None:
        if self.verdict is None:
            before = _in_thread(lambda: read(laid(files_of(log), self._folder / "before")))
            DAMAGES[self._when][self._damage](log, self._chance)
            damaged = laid(files_of(log), self._folder / "damaged")
            self.verdict = _in_thread(lambda: verdict_on(damaged, [before]))
            if self.verdict in ("refused", "reported"):
                self.repaired, self.fault = _in_thread(lambda: repair_of(damaged, [before]))
            if self.verdict == "reported":
                self.streams = _in_thread(lambda: _damaged_streams(damaged, before))


def damaged_life(number: int, seed: int, folder: Path) -> Outcome:
    """Play a scenario whose log is damaged between two lives.

    Args:
        number: of the damage.
        seed: of all of them.
        folder: an empty one.
    """
    chance = random.Random(f"life {seed} {number}")
    when: When = chance.choice(("closed", "crashed"))
    damage = chance.choice(sorted(DAMAGES[when]))
    at_s = round(chance.uniform(4, 16), 2)
    scenario = Scenario(
        acts=tuple(Say(session=f"s{place}", at_s=place / 2) for place in range(SESSIONS)),
        faults=(faults.Crash(at_s=at_s) if when == "crashed" else faults.Close(at_s=at_s),),
        seed=chance.randrange(1_000),
        calm_s=100.0,
        patience_s=400.0,
        store="sqlite",
    )
    damaging = Damaging(when, damage, folder, chance)
    with manual_gc():
        simulation = Simulation(rehearsed_agent(streaming=False), scenario, None)
        assert simulation.files is not None
        simulation.files.between_lives = damaging
        _leave_out(simulation, damaging)
        report = simulation.run()
    assert damaging.verdict is not None
    fault = damaging.fault
    if damaging.verdict == "no effect" and report.broken:
        fault = f"nobody says that the log is damaged: {report.broken[0]}"
    elif damaging.streams is not None:
        left = [place for place, outcome in enumerate(report.outcomes) if not outcome]
        others = [place for place in left if _stream(place) not in damaging.streams]
        fault = fault or (f"s{others[0]} is not damaged, and has no end: {report.broken}" if others else "")
    return Outcome(
        number=number,
        when=when,
        damage=damage,
        verdict=damaging.verdict,
        repaired=damaging.repaired,
        fault=fault,
    )


def _leave_out(simulation: Simulation, damaging: Damaging) -> None:
    """Have the scenario go on where something is wrong with what is known to be damaged."""
    note = simulation.monitor.note

    def noted(rule: str, stream: str, message: str) -> None:
        known = damaging.streams is not None and stream in damaging.streams
        if not known or rule == "LIVENESS":
            note(rule, stream, message)

    simulation.monitor.note = noted  # type: ignore[method-assign]


def _stream(place: int) -> str:
    return stream_name(SESSION_KIND, SessionId(f"s{place}"))


async def _damaged_streams(log: Path, before: Contents) -> frozenset[str] | None:
    async with await SQLiteStore.open(log, read_only=True, connect=connect) as store:
        problems = (await check_log(store)).problems
    sessions = {_stream(place) for place in range(SESSIONS)}
    named = {problem.stream for problem in problems}
    # A payload lies there once for all streams that refer to it, and is told of the first of them.
    said = "".join(problem.message for problem in problems if problem.kind == "payload")
    lost = [name.encode() for name in before.payloads if name in said]
    named |= {stream for stream, _, _, data in before.log if any(name in data for name in lost)}
    return frozenset(named) if named <= sessions else None


def _in_thread(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on a loop of its own, beside the one of the simulation."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(asyncio.run(work())))
    thread.start()
    thread.join()
    return found[0]
