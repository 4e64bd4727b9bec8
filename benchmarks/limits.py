"""Load at the limits: inputs that wait in one session, sessions and open runs of one runtime, large results of a tool.

Run: nice python -P benchmarks/limits.py [inputs | sessions | runs | results] [count ...]

Each count is measured in a process of its own. Seconds are CPU time of the process, all threads, so that other
programs on the machine count little; `wall_s` is the time that passed. `peak_mb` is the process's largest memory.

`inputs`: so many inputs are sent at once to a session whose model does not answer. `accepted_s`: until all are in the
log; `runs_s`: until the model has answered all; `reopened_s`: until a new runtime has answered the first question to a
session with that many inputs waiting.
`sessions`: so many sessions get one input each; `runs_s`: until all are answered; `reopened_s`: until a new runtime has
answered a question to each.
`runs`: so many sessions have a run whose model does not answer when their runtime is closed; `resumed_s`: until a new
runtime has opened the log, asked the model in each of them again, and recorded its answer and the end of the run.
`results`: a tool returns a text, a text that is not ASCII, or an array of objects, of so many megabytes. `taken`: with
`result_bytes_max=None`; `secrets`: also with five values to redact; `refused`: with the default limit, 8 MiB. `stall`:
the longest CPU time of the loop's thread in which nothing else had the loop, in ms; `wall`: the longest time that
passed meanwhile. Medians of three. `bare_ms`: how long the loop waits for `json.dumps` of the value in a thread.
"""

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from refold import AgentConfig, AgentRuntime, ModelRequest, ScriptedProvider, Session, say, tool, use
from refold.actors.kernel.clock import SystemClock


class Gated:
    """A model that answers once it is let."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = 0

    async def answer(self, request: ModelRequest) -> str:
        self.asked += 1
        await self.gate.wait()
        return "done"


def runtime_of(log: Path, provider: Any, **options: Any) -> AgentRuntime:
    return AgentRuntime(AgentConfig(model="m"), provider=provider, log=log, close_grace_s=0, **options)


class Clock:
    """Seconds of CPU, and the seconds that passed, since it was made."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self, name: str) -> dict[str, float]:
        cpu_s, wall_s = time.process_time() - self._cpu, time.perf_counter() - self._wall
        self.begin()
        return {f"{name}_s": cpu_s, f"{name}_wall_s": wall_s}


async def inputs(count: int, folder: Path) -> dict[str, float]:
    model, found = Gated(), dict[str, float]()
    async with runtime_of(folder / "events.db", model.answer) as runtime:
        session = await runtime.session("s")
        clock = Clock()
        sending = [asyncio.create_task(session.send(f"input {number}")) for number in range(count)]
        await all_wait(session, sending)
        found |= clock.read("accepted")
        model.gate.set()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        found |= clock.read("runs")
        found["refused"] = sum(isinstance(each, Exception) for each in ended)
    model.gate.clear()
    async with runtime_of(folder / "again.db", model.answer) as runtime:
        session = await runtime.session("s")
        sending = [asyncio.create_task(session.send(f"input {number}")) for number in range(count)]
        await all_wait(session, sending)
    await asyncio.gather(*sending, return_exceptions=True)
    clock = Clock()
    async with runtime_of(folder / "again.db", model.answer) as runtime:
        await (await runtime.session("s")).history()
        return found | clock.read("reopened")


async def all_wait(session: Session, sending: list[asyncio.Task[Any]]) -> None:
    """Return when all inputs wait, but for the one that is being answered and those that were refused."""
    while True:
        await SystemClock().sleep(0.1)
        refused = sum(task.done() for task in sending)
        if await session._access.read(lambda state: len(state.queue), vital=True) >= len(sending) - refused - 1:
            return


async def sessions(count: int, folder: Path) -> dict[str, float]:
    async with runtime_of(folder / "events.db", lambda prompt: "done") as runtime:
        clock = Clock()
        opened = [await runtime.session(f"s{number}") for number in range(count)]
        ended = await asyncio.gather(*(session.send("hello") for session in opened), return_exceptions=True)
        found = clock.read("runs")
        found["refused"] = sum(isinstance(each, Exception) for each in ended)
    clock = Clock()
    async with runtime_of(folder / "events.db", lambda prompt: "done") as runtime:
        for number in range(count):
            await (await runtime.session(f"s{number}")).history()
        return found | clock.read("reopened")


async def runs(count: int, folder: Path) -> dict[str, float]:
    model, log = Gated(), folder / "events.db"
    async with runtime_of(log, model.answer) as runtime:
        opened = [await runtime.session(f"s{number}") for number in range(count)]
        sending = [asyncio.create_task(session.send("hello")) for session in opened]
        while model.asked < count:
            await SystemClock().sleep(0.1)
    await asyncio.gather(*sending, return_exceptions=True)
    model.gate.set()
    clock = Clock()
    async with runtime_of(log, model.answer) as runtime:
        while await runtime.store.list_streams(prefix="session/", limit=1, with_pending=True):
            await SystemClock().sleep(0.1)
        return clock.read("resumed")


async def stall_of(work: Awaitable[object]) -> tuple[float, float]:
    """Return the longest time, in ms, for which a task beside `work` did not get the loop: of CPU, and in all."""
    longest_cpu_s = longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_cpu_s, longest_s
        while True:
            begun_cpu, begun = time.thread_time(), time.perf_counter()
            await asyncio.sleep(0)
            longest_cpu_s = max(longest_cpu_s, time.thread_time() - begun_cpu)
            longest_s = max(longest_s, time.perf_counter() - begun)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await work
    watching.cancel()
    return longest_cpu_s * 1000, longest_s * 1000


def exporting(value: object) -> Any:
    @tool(tier="observe", effect="pure")
    async def export() -> object:
        return value

    return export


SECRETS = tuple(f"secret-value-{number}-{letter * 8}" for number, letter in enumerate("abcde"))
WAYS: dict[str, dict[str, Any]] = {
    "taken": {"result_bytes_max": None},
    "secrets": {"result_bytes_max": None, "redact": SECRETS},
    "refused": {"result_bytes_max": 8 * 1024 * 1024},
}


async def results(megabytes: int, folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    values: dict[str, object] = {
        "text": "tea \n" * (megabytes * 200_000),
        "unicode": "té \n" * (megabytes * 200_000),
        "rows": [{"number": number, "name": "tea"} for number in range(megabytes * 32_000)],
    }
    for kind, value in values.items():
        found[f"{kind}_bare_ms"] = (await stall_of(asyncio.to_thread(json.dumps, value)))[1]
        for way, options in WAYS.items():
            stalls: list[tuple[float, float]] = []
            for number in range(3):
                script = ScriptedProvider([use("export", {}), say("done")])
                log = folder / f"{kind}_{way}_{number}.db"
                async with runtime_of(log, script, tools=[exporting(value)], **options) as runtime:
                    session = await runtime.session("s")
                    stalls.append(await stall_of(session.send("go")))
                log.unlink()
            cpu_ms, wall_ms = zip(*stalls, strict=True)
            found[f"{kind}_{way}_stall_ms"] = statistics.median(cpu_ms)
            found[f"{kind}_{way}_wall_ms"] = statistics.median(wall_ms)
    return found


KINDS = {"inputs": inputs, "sessions": sessions, "runs": runs, "results": results}


def measure(kind: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        row = asyncio.run(KINDS[kind](count, Path(folder)))
    row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(row))


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], int(sys.argv[3]))
        return
    for kind in [sys.argv[1]] if len(sys.argv) > 1 else list(KINDS):
        counts = [int(count) for count in sys.argv[2:]] or ([1, 4, 8, 100] if kind == "results" else [1_000, 10_000])
        first: dict[str, float] = {}
        for count in counts:
            command = [sys.executable, "-P", __file__, "--one", kind, str(count)]
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
            shown = {name: round(value, 2) for name, value in row.items()}
            ratio = {name: round(value / first[name], 1) for name, value in row.items() if first.get(name)}
            print(json.dumps({"kind": kind, "count": count, **shown, "times_the_first": ratio}), flush=True)
            first = first or row


if __name__ == "__main__":
    main()
