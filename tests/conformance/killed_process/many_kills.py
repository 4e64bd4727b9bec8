"""Logs on which child after child is killed, two logs side by side, and what all that came to."""

import asyncio
import itertools
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random

import msgspec

from tests.conformance.killed_process.life import LEFT_ALONE, ORDER_DESK, Ending, Life, drawn_ending, live
from tests.conformance.killed_process.log_inspection import LogInspector, Standing
from tests.conformance.killed_process.work_plan import Durability, WorkPlan, drawn_plan, write_plan

SESSIONS = 6
ERRANDS = 10
KILLS_PER_LOG = 10

LOGS_AT_ONCE = 2

PLANTED = "tests.conformance.killed_process.planted"


class Figures(msgspec.Struct):
    """What was done and found."""

    kills: int = 0
    """Only those that hit a living child."""
    phases: Counter[str] = msgspec.field(default_factory=Counter)
    """What was going on when they hit; a kill counts for each of them."""
    closes: int = 0
    """Lives that ended as in a deploy."""
    logs: int = 0
    """Those whose work was done in the end."""
    lives: int = 0
    events: int = 0
    acknowledgements: int = 0
    faults: list[str] = msgspec.field(default_factory=list)
    """Each with the log and the life that it was found after."""

    def add(self, life: Life, standing: Standing) -> None:
        """Count one life."""
        self.lives += 1
        self.acknowledgements += len(life.witness)
        self.closes += life.closed
        if life.done:
            self.logs += 1
            self.events += standing.events
        if life.killed:
            self.kills += 1
            self.phases.update(phases_of(life, standing))

    def __str__(self) -> str:
        hit = ", ".join(f"{phase} {count:,}" for phase, count in sorted(self.phases.items()))
        return (
            f"kills {self.kills:,} ({hit}), orderly closes {self.closes:,}, lives {self.lives:,}, "
            f"logs done {self.logs:,}, events {self.events:,}, lines of witness {self.acknowledgements:,}, "
            f"faults {len(self.faults):,}"
        )


def phases_of(life: Life, standing: Standing) -> list[str]:
    """Return what was going on when a kill hit."""
    if not life.words["opening"]:
        return ["starting"]
    if not life.words["open"]:
        return ["opening the log"]
    found = {
        "in a tool": life.bodies_under_way() > 0,
        "model asked": standing.models_asked > 0,
        "waiting for approval": standing.awaiting_approval > 0,
        "closing": life.words["closing"] > 0,
    }
    return [phase for phase, holds in found.items() if holds] or ["otherwise"]


async def kill_many(
    folder: Path,
    *,
    kills: int,
    seed: int,
    kills_per_log: int = KILLS_PER_LOG,
    fault: str | None = None,
    report: Callable[[Figures], object] = lambda figures: None,
) -> Figures:
    """Kill at least so many children, or stop at the first fault, and return the figures.

    Logs without a fault are removed from `folder` when their work is done. After `kills_per_log`, a log's child is left
    alone until its work is done. `fault` is planted into the child; `report` is called after each life.
    """
    figures = Figures()
    numbers = itertools.count(1)

    async def work() -> None:
        while figures.kills < kills and not figures.faults:
            number = next(numbers)
            random = Random(f"{seed} {number}")
            durability: Durability = "normal" if number % 2 == 0 else "full"
            plan = drawn_plan(random, durability=durability, counters=SESSIONS, errands=ERRANDS)
            place = folder / f"log-{number}"
            endings = drawn_endings(random, kills_per_log)
            async with aclosing(lives_on_one_log(place, plan, endings, fault)) as lives:
                async for life, standing in lives:
                    figures.add(life, standing)
                    figures.faults += [f"{place}, life {life.number}: {found}" for found in standing.faults]
                    report(figures)
                    if figures.faults:  # On this log, or on the one beside.
                        return
            await asyncio.to_thread(shutil.rmtree, place)

    async with asyncio.TaskGroup() as group:
        for _ in range(LOGS_AT_ONCE):
            group.create_task(work())
    return figures


async def lives_on_one_log(
    place: Path, plan: WorkPlan, endings: Sequence[Ending], fault: str | None
) -> AsyncGenerator[tuple[Life, Standing], None]:
    """Start the child on a new log again and again, until all its work is done or something is wrong.

    Yields each life with how the log stood after it. After the last of `endings` the child is left alone.
    """
    log, written_plan = place / "events.db", place / "plan.json"
    write_plan(plan, written_plan)
    inspector = LogInspector(log, plan)
    child = [ORDER_DESK] if fault is None else [PLANTED, fault]
    for number, ending in enumerate([*endings, LEFT_ALONE], 1):
        life = await live([*child, str(log), str(written_plan)], place, number, ending)
        # In a thread, so that a child on another log is killed in time.
        standing = await asyncio.to_thread(asyncio.run, inspector.inspect(life))
        yield life, standing
        if life.done or standing.faults:
            return


def drawn_endings(random: Random, kills: int) -> list[Ending]:
    """Draw lives that end too early, `kills` of them by SIGKILL."""
    endings: list[Ending] = []
    while sum(ending.kills for ending in endings) < kills:
        endings.append(drawn_ending(random, first=not endings))
    return endings
