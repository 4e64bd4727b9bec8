"""Plays drawn scenarios with the package that is imported until a promise is broken, and says which, as JSON.

    PYTHONPATH=COPY:. python -P -m tests.planted_faults.sweep SEEDS [FIELD=VALUE …]

`tests.planted_faults.rehearsing` runs it on copies of the package that have a fault in them. The fields are those of
`Scenario` that say in what world it is played, such as `store=sqlite`.
"""

import logging
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

import refold
from refold import Agent, AgentConfig, RetryPolicy, ScriptedProvider, ToolContext, tool
from refold.resilience import CircuitBreaker
from refold.scenarios import faults
from refold.scenarios.drawing import drawn_scenario
from refold.scenarios.faults import AnyFault
from refold.scenarios.scenario import Scenario
from refold.scenarios.simulator import Simulator


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep came to."""

    package: str
    """Where the package lies that was swept."""
    seeds: int
    """That were played, the last one included."""
    seconds: float
    rules: tuple[str, ...] = ()
    """That the last one broke; `ERROR` also for an exception. Empty: every promise was kept."""
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


def rehearsed_scenario(seed: int) -> Scenario:
    """Return a drawn scenario, of one size or another, with a few more faults that happen early."""
    drawn = drawn_scenario(seed, sessions=2 + seed % 3, acts=6 + seed % 7, faults_max=4 + seed % 7)
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


def sweep(seeds: int, world: dict[str, str]) -> Found:
    """Play the scenarios of the first seeds, up to the first that breaks a promise."""
    package, began = str(Path(refold.__file__).parent), time.monotonic()
    rules: tuple[str, ...] = ()
    message, seed = "", 0
    for seed in range(seeds):
        scenario = msgspec.structs.replace(rehearsed_scenario(seed), **world)
        try:
            report = Simulator(rehearsed_agent(streaming=seed % 2 == 0)).run(scenario)
        except Exception as error:  # noqa: BLE001 - whatever a fault makes of the package
            traceback.print_exc()
            rules, message = ("ERROR",), f"{type(error).__name__}: {error}"
        else:
            rules = tuple(sorted({broken.rule for broken in report.broken}))
            message = str(report.broken[0]) if report.broken else ""
        if rules:
            break
    return Found(package=package, seeds=seed + 1, seconds=time.monotonic() - began, rules=rules, message=message)


def main(arguments: list[str]) -> None:
    """Sweep, and print what came of it."""
    logging.disable(logging.CRITICAL)
    seeds, *fields = arguments
    found = sweep(int(seeds), dict(field.split("=", 1) for field in fields))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
