"""Plays drawn scenarios with the package that is imported until a rule is broken, and says which, as JSON.

    PYTHONPATH=COPY:. python -P -m tests.planted_faults.sweep SEEDS [WORLD] [FIRST SEED]

`tests.planted_faults.rehearsing` runs it on copies of the package that have a fault in them.
"""

import logging
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

import refold
from refold import Agent, AgentConfig, RetryPolicy, ScriptedProvider, ToolContext, tool
from refold.resilience import CircuitBreaker
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.random_scenario import drawn_scenario
from refold.scenarios.plan.scenario import AnyAct, Cancel, Clear, Say, Scenario, StoreName, WireName
from refold.scenarios.simulator import Simulator
from tests.planted_faults.aims import AIMS, aimed_scenario
from tests.planted_faults.faults import WorldName
from tests.selfcheck.storage.rehearsal import rehearse_storage
from tests.selfcheck.storage.tasks import error_tasks, power_tasks

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


def rehearsed_scenario(seed: int, named: WorldName) -> Scenario:
    """Return a scenario: of three seeds one with any faults, one with few kinds, and one that is aimed."""
    world = WORLDS[named]
    number, kind = divmod(seed, 3)
    if kind == 2 and named in AIMS:
        return aimed_scenario(number, AIMS[named])
    narrow = kind == 1
    drawn = drawn_scenario(
        number,
        sessions=2 + number % 3,
        acts=6 + number % 7,
        faults_max=0 if narrow and number % 6 == 5 else 4 + number % 7,
        store=world.store,
        wire=world.wire,
    )
    chance = random.Random(f"{'narrow' if narrow else 'more'} of {number}")
    return _narrowed(drawn, number, world, chance) if narrow else _widened(drawn, chance)


def _widened(drawn: Scenario, chance: random.Random) -> Scenario:
    """Return a scenario with a few more faults that happen early."""
    more = _few(EARLY, chance)
    passivate_after_s = chance.choice((60.0, 60.0, 0.2))
    return msgspec.structs.replace(drawn, faults=(*drawn.faults, *more), passivate_after_s=passivate_after_s)


def _narrowed(drawn: Scenario, number: int, world: World, chance: random.Random) -> Scenario:
    """Return a scenario in which one kind of trouble comes together, or clients ask once only."""
    more = _few(TOGETHER_WITH if world.wire == "none" or number % 2 else EARLY_ON_THE_WIRE, chance)
    acts = tuple(
        msgspec.structs.replace(act, insists=chance.random() < 0.5) if isinstance(act, Say) and number % 3 == 1 else act
        for act in drawn.acts
    )
    quiet = number % 6 == 5
    return msgspec.structs.replace(
        drawn,
        acts=(*acts, *_later(number, chance), *(_cancels(chance) if quiet else ())),
        faults=(*drawn.faults, *(() if quiet else more), *_together(number, chance)),
        passivate_after_s=chance.choice((60.0, 60.0, 0.2)),
        patience_s=1_500.0 if number % 4 == 1 and world.wire == "none" else drawn.patience_s,
        snapshot_every=chance.choice((1, 3, 10)) if number % 2 else drawn.snapshot_every,
    )


def _few(kinds: Sequence[Callable[[random.Random], AnyFault]], chance: random.Random) -> tuple[AnyFault, ...]:
    return tuple(chance.choice(kinds)(chance) for _ in range(chance.randint(0, 3)))


def _cancels(chance: random.Random) -> tuple[AnyAct, ...]:
    """Return many cancellations, to look at who is told how soon where nothing goes wrong."""
    return tuple(
        Cancel(session=f"s{chance.randrange(3)}", at_s=round(chance.uniform(0, 80), 2))
        for _ in range(chance.randint(4, 12))
    )


def _later(seed: int, chance: random.Random) -> tuple[AnyAct, ...]:
    """Return what is said once all is quiet, in a conversation that was begun anew."""
    if seed % 5 not in (2, 3):
        return ()
    began_s = chance.uniform(100, 400)
    again = (Clear(session="s0", at_s=began_s), Say(session="s0", at_s=began_s + 5.0, text="hello"))
    return (Say(session="s0", at_s=began_s - 40.0), *again)


def _together(seed: int, chance: random.Random) -> tuple[AnyFault, ...]:
    """Return faults that hit only together."""
    match seed % 6:
        case 1:  # Large results that share a transaction with others.
            huge = (faults.ToolReturnsHuge(nth=nth, characters=70_000 + nth) for nth in range(1, 9))
            slow = (faults.AppendIsSlow(nth=nth, seconds=3.0) for nth in range(5, 30, 3))
            return (*huge, *slow)
        case 2:  # A log that cannot be read as a process starts.
            first = chance.randint(1, 12)
            reads = (faults.ReadFails(nth=nth) for nth in range(first, first + chance.randint(2, 8)))
            return (faults.Crash(at_s=chance.uniform(3, 30)), *reads)
        case 3:  # Actors that fail again and again.
            return tuple(faults.ActorFails(nth=nth) for nth in sorted(chance.sample(range(1, 40), 8)))
        case 4:  # Bodies that go on for some time after they were cancelled.
            return tuple(faults.ToolHangs(nth=nth, seconds=chance.choice((8.0, 150.0))) for nth in range(1, 5))
        case 5 if seed % 12 == 5:
            return (faults.ToolHangs(nth=chance.randint(1, 4), seconds=60.0),)
        case _:
            return ()


EARLY: tuple[Callable[[random.Random], AnyFault], ...] = (
    lambda chance: faults.ToolHangs(nth=chance.randint(1, 6)),
    lambda chance: faults.ToolReturnsHuge(nth=chance.randint(1, 6)),
    lambda chance: faults.ReadFails(nth=chance.randint(1, 10)),
    lambda chance: faults.AppendIsSlow(nth=chance.randint(1, 25), seconds=chance.choice((0.5, 5.0))),
    lambda chance: faults.AppendFails(nth=chance.randint(1, 25), committed=chance.random() < 0.5),
)
TOGETHER_WITH: tuple[Callable[[random.Random], AnyFault], ...] = (
    *EARLY,
    lambda chance: faults.ToolHangs(nth=chance.randint(1, 6), seconds=chance.choice((8.0, 40.0, 150.0))),
    lambda chance: faults.ActorFails(nth=chance.randint(1, 20)),
)
"""Those, and what gives eyes for more."""

EARLY_ON_THE_WIRE: tuple[Callable[[random.Random], AnyFault], ...] = (
    lambda chance: faults.HostFails(
        nth=chance.randint(1, 8), status=chance.choice((500, 502)), page=chance.random() < 0.7
    ),
    lambda chance: faults.ResponseStalls(nth=chance.randint(1, 8), seconds=4_000.0, begun=chance.random() < 0.5),
    lambda chance: faults.HostIsFull(nth=chance.randint(1, 8), retry_after_s=60),
    lambda chance: faults.CallsShareIndex(nth=chance.randint(1, 8)),
    lambda chance: faults.ResponseBreaks(nth=chance.randint(1, 8), begun=chance.random() < 0.5),
)
"""Faults that drawn scenarios have later in a simulation, when less goes on."""


def sweep(seeds: int, named: WorldName, first: int = 0) -> Found:
    """Play the scenarios of some seeds, up to the first that breaks a rule."""
    package, began = str(Path(refold.__file__).parent), time.monotonic()
    rules: tuple[str, ...] = ()
    message, played, world = "", 0, WORLDS[named]
    for seed in range(first, first + seeds):
        played += 1
        try:
            rules, message = _rehearse_storage(seed, world) if world.storage else _simulate(seed, named)
        except Exception as error:  # noqa: BLE001 - what a fault makes of the package
            traceback.print_exc()
            rules, message = ("ERROR",), f"{type(error).__name__}: {error}"
        if rules:
            break
    return Found(package=package, seeds=played, seconds=time.monotonic() - began, rules=rules, message=message)


def _simulate(seed: int, named: WorldName) -> tuple[tuple[str, ...], str]:
    streaming = seed // 3 % 2 == 0
    report = Simulator(rehearsed_agent(streaming=streaming)).run(rehearsed_scenario(seed, named))
    return tuple(sorted({broken.rule for broken in report.broken})), str(report.broken[0]) if report.broken else ""


def _rehearse_storage(seed: int, world: World) -> tuple[tuple[str, ...], str]:
    tasks = power_tasks(IMAGES, seed) if world.storage == "power" else error_tasks(DISK_ERRORS, seed)
    found = rehearse_storage([*tasks])
    violated = {judged.promise for judged in found.judgements() if judged.verdict == "violated"}
    return tuple(sorted(violated)), next(iter(found.all_problems()), "")


def main(arguments: list[str]) -> None:
    """Sweep, and print what came of it."""
    logging.disable(logging.CRITICAL)
    seeds, world, first = (*arguments, *("memory", "0")[len(arguments) - 1 :])
    found = sweep(int(seeds), msgspec.convert(world, WorldName), int(first))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
