"""How long an input and its answer take in the process that owns a log, and in others beside it, by turns in one run.

Run: python -P benchmarks/shared_log.py [rounds]

The owner and a guest are two processes of one program with `share=True`; the third one uses `connect`. Each sends
inputs to a session of its own, one after another, to a model that answers at once; durable FULL. The medians of all
rounds are told, and how many times the owner's they are.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from refold import AgentConfig, AgentRuntime, ScriptedProvider, connect, say

SENDS = 10
"""Inputs that a process sends in its turn."""


def runtime_on(log: Path) -> AgentRuntime:
    provider = ScriptedProvider([say("Hello.")] * 100_000)
    return AgentRuntime(AgentConfig(model="m"), provider=provider, log=log, share=True)


async def times_of(send: Callable[[str], Awaitable[object]]) -> list[float]:
    """Return the milliseconds that each of some inputs took."""
    times: list[float] = []
    for _ in range(SENDS):
        begin = time.perf_counter()
        await send("hello")
        times.append((time.perf_counter() - begin) * 1000)
    return times


async def take_turns(send: Callable[[str], Awaitable[object]]) -> None:
    """Send whenever the parent says so, and say how long it took."""
    await send("hello")
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(*await times_of(send), flush=True)


async def take_part(log: Path, role: str) -> None:
    if role == "connect":
        await take_turns(connect(log).session("connect").send)
        return
    async with runtime_on(log) as runtime:
        assert not runtime.is_owner
        await take_turns((await runtime.session("guest")).send)


async def measure(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.db"
        async with runtime_on(log) as runtime:
            session = await runtime.session("owner")
            await session.send("hello")
            others = {role: await asyncio.to_thread(begun, log, role) for role in ("guest", "connect")}
            times: dict[str, list[float]] = {"owner": [], "guest": [], "connect": []}
            for _ in range(rounds):
                times["owner"] += await times_of(session.send)
                for role, process in others.items():
                    times[role] += map(float, (await asyncio.to_thread(said_by, process, "go on\n")).split())
            for process in others.values():
                process.communicate()
    owner = statistics.median(times["owner"])
    for role, taken in times.items():
        median = statistics.median(taken)
        print(f"{role:8} {median:7.1f} ms  {median / owner:5.2f} times the owner's")


def begun(log: Path, role: str) -> "subprocess.Popen[str]":
    line = [sys.executable, "-P", __file__, str(log), role]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said_by(process, "")
    return process


def said_by(process: "subprocess.Popen[str]", line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(take_part(Path(sys.argv[1]), sys.argv[2]))
    else:
        asyncio.run(measure(int(sys.argv[1]) if sys.argv[1:] else 10))
