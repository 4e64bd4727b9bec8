"""Replay of a log in SQLite: levels `fold` and `core` against a plain fold, level `decide` by length, and jobs.

Run: nice python -P benchmarks/replay.py [events ...]

Figures are events for each second of CPU time, of this process and its children, so that other programs on the machine
count little; best of three. `plain_fold`: rows read, decoded and folded, without a replay. `decide`: one session, with
middleware that has five hooks; the others are of four sessions. `wall`: events for each second that passed. `child_ms`:
CPU time that a replay at level `decide` of the shortest session takes more than one at level `core`.
"""

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    HookContext,
    Middleware,
    ModelRequest,
    ScriptedProvider,
    say,
    tool,
    use,
)
from refold.events import SESSION_CODEC, fold
from refold.replay import replay
from refold.stores import SQLiteStore

ROUNDS = 3
EVENTS_PER_TURN = 9
SESSIONS = 4


class Hooks(Middleware):
    """Has all hooks, of which two change something."""

    def on_user_message(self, context: HookContext, content: Any) -> str:
        return f"{content[0].text}!"

    def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt} Be brief.")

    def on_post_llm(self, context: HookContext, response: Any) -> None:
        return None

    def on_tool_call(self, context: HookContext, call: Any) -> None:
        return None

    def on_tool_result(self, context: HookContext, result: Any) -> None:
        return None


@tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


def agent_of(turns: int) -> Agent:
    script: list[Any] = [use("weather", {"city": "Lisbon"}), say("Sunny.")] * turns
    config = AgentConfig(model="m", system_prompt="Tell the weather.")
    return Agent(config=config, provider=ScriptedProvider(script), tools=[weather], middleware=[Hooks()])


async def write(log: Path, events: int, sessions: int) -> None:
    """Write sessions of about `events` events in all by running them."""
    turns = max(1, events // EVENTS_PER_TURN // sessions)
    async with AgentRuntime(agent_of(turns * sessions), log=log, durability="normal") as runtime:
        for number in range(sessions):
            session = await runtime.session(f"s{number}")
            for _ in range(turns):
                await session.send("Weather in Lisbon?")


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def best(work: Callable[[], Any], rounds: int = ROUNDS) -> tuple[Any, float, float]:
    """Return what `work` gives, and the least CPU time and time that it took."""
    result, cpu, wall = None, float("inf"), float("inf")
    for _ in range(rounds):
        began_cpu, began = cpu_s(), time.perf_counter()
        result = work()
        cpu, wall = min(cpu, cpu_s() - began_cpu), min(wall, time.perf_counter() - began)
    return result, cpu, wall


def plain_fold(log: Path) -> int:
    async def folded() -> int:
        async with await SQLiteStore.open(log, read_only=True) as store:
            count = 0
            for number in range(SESSIONS):
                stored = await store.read_stream(f"session/s{number}")
                fold(SESSION_CODEC.decode_all(stored))
                count += len(stored)
            return count

    return asyncio.run(folded())


def replayed(log: Path, **options: Any) -> int:
    report = asyncio.run(replay(log, **options))
    report.raise_for_divergence()
    return report.events


def measure(folder: Path, events: int, rounds: int = ROUNDS) -> dict[str, float]:
    many, one = folder / f"many-{events}.db", folder / f"one-{events}.db"
    asyncio.run(write(many, events, SESSIONS))
    asyncio.run(write(one, events, 1))
    figures: dict[str, float] = {}
    works: dict[str, Callable[[], int]] = {
        "plain_fold": lambda: plain_fold(many),
        "fold": lambda: replayed(many, level="fold"),
        "core": lambda: replayed(many, level="core"),
        "core_2_jobs": lambda: replayed(many, level="core", jobs=2),
        "decide": lambda: replayed(one, agent=agent_of(0)),
    }
    for name, work in works.items():
        count, cpu, wall = best(work, rounds)
        figures[name] = round(count / cpu)
        if name.startswith("core"):
            figures[f"{name}_wall"] = round(count / wall)
    figures["core_to_plain_fold"] = round(figures["core"] / figures["plain_fold"], 2)
    return figures


def main() -> None:
    """Write logs, measure, and print."""
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, "short.db")
        asyncio.run(write(short, 1, 1))
        _, core, _ = best(lambda: replayed(short, level="core"))
        _, decide, _ = best(lambda: replayed(short, agent=agent_of(0)))
        figures: dict[str, Any] = {"child_ms": round((decide - core) * 1000, 1)}
        for events in map(int, sys.argv[1:] or ("1000", "10000")):
            figures[f"{events:,} events"] = measure(Path(folder), events)
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
