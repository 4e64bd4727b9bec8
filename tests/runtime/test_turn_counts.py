"""What a turn and an idle session cost that does not depend on the machine; it may fall, and rises only on purpose."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tracemalloc
from pathlib import Path

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool
from refold.options import RuntimeOptions

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "one_turn.py"

MOST = {
    "session": {"tasks": 5, "iterations": 23, "commits": 4, "bytes": 1339, "calls": 1850},
    "fresh": {"tasks": 5, "iterations": 26, "commits": 4, "bytes": 1326, "calls": 2075},
    "at_once": {"tasks": 6, "bytes": 1338, "calls": 1510},
}
"""For each turn with a tool: in one session, in a fresh one each, and in many at once, whose callers have tasks too."""

IDLE_BYTES = 4_000
"""Of an idle session."""

FILES = 52
"""That a reader enters who follows a plain answer from `Session.send` to its result."""


def test_no_count_of_a_turn_has_risen() -> None:
    quiet = {**os.environ, "PYTHONASYNCIODEBUG": ""}
    command = [sys.executable, "-P", str(BENCHMARK), "--counts"]
    counts = json.loads(subprocess.run(command, env=quiet, stdout=subprocess.PIPE, check=True).stdout)
    same_calls = sys.version_info[:2] == (3, 11)  # Of asyncio's own functions, and of comprehensions.
    risen = {
        (way, name): (counts[way][name], most)
        for way, each in MOST.items()
        for name, most in each.items()
        if counts[way][name] > most and (name != "calls" or same_calls)
    }
    assert risen == {}


def test_no_more_files_are_entered_for_a_plain_answer() -> None:
    command = [sys.executable, "-P", str(BENCHMARK.with_name("journeys.py")), "send"]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(shown.split()[1]) <= FILES, shown


async def test_no_session_that_is_idle_holds_more(tmp_path: Path) -> None:
    """Of Python's memory, in bytes: each was folded from one run in the log, and its agent has 20 tools."""
    names, log = [str(number) for number in range(30)], tmp_path / "events.db"

    def forecast(city: str) -> str:
        return city

    def runtime() -> AgentRuntime:
        provider = ScriptedProvider([say("Sunny.")] * len(names))
        tools = [tool(name=f"tool_{number}")(forecast) for number in range(20)]
        quiet = RuntimeOptions(log=log, durability="normal", inbox_poll_s=0)  # Nothing of its own happens meanwhile.
        return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=tools, **quiet)

    async with runtime() as opened:
        for name in names:
            await (await opened.session(name)).send("Weather in Lisbon?")
    async with runtime() as opened:
        held = list[int]()
        tracemalloc.start()
        try:
            for name in names:
                await (await opened.session(name)).history()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    each = statistics.median(after - before for before, after in itertools.pairwise(held[10:]))
    assert each <= IDLE_BYTES or sys.version_info[:2] != (3, 11)  # Others have objects of other sizes.
