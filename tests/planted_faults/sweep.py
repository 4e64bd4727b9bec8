"""Plays drawn scenarios with the package that is imported until a rule is broken, and says which, as JSON.

    PYTHONPATH=COPY:. python -P -m tests.planted_faults.sweep SEEDS [WORLD] [FIRST SEED]

`tests.planted_faults.rehearsing` runs it on copies of the package that have a fault in them.
"""

import logging
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

import refold
from refold import Agent, AgentConfig, RetryPolicy, ScriptedProvider, ToolContext, tool
from refold.actors import SystemClock
from refold.resilience import CircuitBreaker
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.random_scenario import drawn_scenario
from refold.scenarios.plan.scenario import Scenario, StoreName, WireName
from refold.scenarios.simulator import Simulator
from tests.planted_faults.faults import WorldName
from tests.selfcheck.storage.rehearsal import rehearse_storage

IMAGES: Final = 200
"""Of power cuts, about, in one rehearsal of storage."""

DISK_ERRORS: Final = 25
"""In one rehearsal of storage."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fault is looked for."""

    store: StoreName = "memory"
    wire: WireName = "none"
    storage: Literal["", "power", "disk"] = ""
    """Instead of the simulator the rehearsal of storage: its power cuts, or its failing disks."""


WORLDS: dict[WorldName, World] = {
    "memory": World(),
    "sqlite": World(store="sqlite"),
    "openai": World(wire="openai"),
    "anthropic": World(wire="anthropic"),
    "power": World(storage="power"),
    "disk": World(storage="disk"),
}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep came to."""

    package: str
    """Where the package lies that was swept."""
    seeds: int
    """That were played, the last one included."""
    seconds: float
    rules: tuple[str, ...] = ()
    """That the last one broke; `ERROR` also for an exception. Empty: every rule holds."""
    message: str = ""


@tool(tier="observe", effect="pure", breaker=CircuitBreaker("looking", threshold=3, recovery_s=20), concurrency=1)
async def look(city: str) -> str:
    """Look at a city."""
    return f"{city} is fine"


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="idempotent", timeout_s=30)
async def book(days: int, context: ToolContext[object]) -> str:
    """Book, and say how it goes on."""
    context.progress(days)
    return f"{days} days"


@tool(effect="idempotent")
def write(text: str) -> str:
    """Write, in plain code."""
    return text


@tool(tier="confirm")
async def send(to: str) -> str:
    """Send, once a person agrees."""
    return f"sent to {to}"


def rehearsed_agent(*, streaming: bool) -> Agent:
    """Return an agent that has a tool of each tier and effect class."""
    return Agent(
        config=AgentConfig(model="m", retry=RetryPolicy(), streaming=streaming, approval_expiry_s=50),
        provider=ScriptedProvider([]),
        tools=[look, pay, book, write, send],
    )


def rehearsed_scenario(seed: int, world: World) -> Scenario:
    """Return a drawn scenario, of one size or another, with a few more faults that happen early."""
    drawn = drawn_scenario(
        seed,
        sessions=2 + seed % 3,
        acts=6 + seed % 7,
        faults_max=4 + seed % 7,
        store=world.store,
        wire=world.wire,
    )
    chance = random.Random(f"more of {seed}")
    more = tuple(chance.choice(EARLY)(chance) for _ in range(chance.randint(0, 3)))
    passivate_after_s = chance.choice((60.0, 60.0, 0.2))
    return msgspec.structs.replace(drawn, faults=(*drawn.faults, *more), passivate_after_s=passivate_after_s)


EARLY: tuple[Callable[[random.Random], AnyFault], ...] = (
    lambda chance: faults.ToolHangs(nth=chance.randint(1, 6)),
    lambda chance: faults.ToolReturnsHuge(nth=chance.randint(1, 6)),
    lambda chance: faults.ReadFails(nth=chance.randint(1, 10)),
    lambda chance: faults.AppendIsSlow(nth=chance.randint(1, 25), seconds=chance.choice((0.5, 5.0))),
    lambda chance: faults.AppendFails(nth=chance.randint(1, 25), committed=chance.random() < 0.5),
)
"""Faults that drawn scenarios have later in a simulation, when less goes on."""


def sweep(seeds: int, named: WorldName, first: int = 0) -> Found:
    """Play the scenarios of some seeds, up to the first that breaks a rule."""
    package, began = str(Path(refold.__file__).parent), time.monotonic()
    rules: tuple[str, ...] = ()
    message, played, world = "", 0, WORLDS[named]
    play = _rehearse_storage if world.storage else _simulate
    for seed in range(first, first + seeds):
        played += 1
        try:
            rules, message = play(seed, world)
        except Exception as error:  # noqa: BLE001 - what a fault makes of the package
            traceback.print_exc()
            rules, message = ("ERROR",), f"{type(error).__name__}: {error}"
        if rules:
            break
    return Found(package=package, seeds=played, seconds=time.monotonic() - began, rules=rules, message=message)


def _simulate(seed: int, world: World) -> tuple[tuple[str, ...], str]:
    streaming = seed % 2 == 0
    report = Simulator(rehearsed_agent(streaming=streaming)).run(rehearsed_scenario(seed, world))
    return tuple(sorted({broken.rule for broken in report.broken})), str(report.broken[0]) if report.broken else ""


def _rehearse_storage(seed: int, world: World) -> tuple[tuple[str, ...], str]:
    images, errors = (IMAGES, 0) if world.storage == "power" else (0, DISK_ERRORS)
    report = rehearse_storage(
        images=images, errors=errors, kills=0, seed=seed, jobs=1, clock=SystemClock(), progress=lambda _line: None
    )
    violated = tuple(sorted({judged.promise for judged in report.judgements if judged.verdict == "violated"}))
    return violated, str(report.problems[0]) if report.problems else ""


def main(arguments: list[str]) -> None:
    """Sweep, and print what came of it."""
    logging.disable(logging.CRITICAL)
    seeds, world, first = (*arguments, *("memory", "0")[len(arguments) - 1 :])
    found = sweep(int(seeds), msgspec.convert(world, WorldName), int(first))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
