"""Load at the limits: inputs that wait in one session, sessions of one runtime, and large results of a tool.

Run: python -P benchmarks/limits.py [inputs | sessions | results] [count ...]

`inputs`: so many inputs are sent at once to a session whose model does not answer. `accepted_s`: until all are in the
log; `runs_s`: until the model has answered all; `reopened_s`: until a new runtime has answered the first question to a
session with that many inputs waiting. `sessions`: so many sessions get one input each; `runs_s`: until all are
answered.
`results`: a tool returns a text, or an array of objects, of so many megabytes, with `result_bytes_max=None`.
`stall_ms`: the longest time in which nothing else had the loop; `bare_ms`: that of `json.dumps` of the same value in a
thread. `refused_stall_ms`: the same with the default limit, which refuses more than 8 MiB.
"""

import asyncio
import json
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

    async def answer(self, request: ModelRequest) -> str:
        await self.gate.wait()
        return "done"


def runtime_of(log: Path, provider: Any, **options: Any) -> AgentRuntime:
    return AgentRuntime(AgentConfig(model="m"), provider=provider, log=log, close_grace_s=0, **options)


async def inputs(count: int, folder: Path) -> dict[str, float]:
    model = Gated()
    async with runtime_of(folder / "events.db", model.answer) as runtime:
        session = await runtime.session("s")
        begun = time.perf_counter()
        sending = [asyncio.create_task(session.send(f"input {number}")) for number in range(count)]
        await all_wait(session, count)
        accepted_s = time.perf_counter() - begun
        model.gate.set()
        begun = time.perf_counter()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        refused = sum(isinstance(each, Exception) for each in ended)
        runs_s = time.perf_counter() - begun
    model.gate.clear()
    async with runtime_of(folder / "again.db", model.answer) as runtime:
        session = await runtime.session("s")
        sending = [asyncio.create_task(session.send(f"input {number}")) for number in range(count)]
        await all_wait(session, count)
    await asyncio.gather(*sending, return_exceptions=True)
    begun = time.perf_counter()
    async with runtime_of(folder / "again.db", model.answer) as runtime:
        await (await runtime.session("s")).history()
        reopened_s = time.perf_counter() - begun
    return {"accepted_s": accepted_s, "runs_s": runs_s, "reopened_s": reopened_s, "refused": refused}


async def all_wait(session: Session, count: int) -> None:
    """Return when all inputs but the one that is being answered wait."""
    while await session._access.read(lambda state: len(state.queue)) < count - 1:
        await SystemClock().sleep(0.01)


async def sessions(count: int, folder: Path) -> dict[str, float]:
    async with runtime_of(folder / "events.db", lambda prompt: "done") as runtime:
        begun = time.perf_counter()
        opened = [await runtime.session(f"s{number}") for number in range(count)]
        await asyncio.gather(*(session.send("hello") for session in opened))
        return {"runs_s": time.perf_counter() - begun}


async def stall_of(work: Awaitable[object]) -> float:
    """Return the longest time, in milliseconds, for which a task beside `work` did not get the loop."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - begun)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await work
    watching.cancel()
    return longest_s * 1000


def exporting(value: object) -> Any:
    @tool(tier="observe", effect="pure")
    async def export() -> object:
        return value

    return export


async def results(megabytes: int, folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    values: dict[str, object] = {
        "text": "tea \n" * (megabytes * 200_000),
        "rows": [{"number": number, "name": "tea"} for number in range(megabytes * 32_000)],
    }
    for kind, value in values.items():
        found[f"{kind}_bare_ms"] = await stall_of(asyncio.to_thread(json.dumps, value))
        for name, limit in ((f"{kind}_stall_ms", None), (f"{kind}_refused_stall_ms", 8 * 1024 * 1024)):
            script = ScriptedProvider([use("export", {}), say("done")])
            log = folder / f"{name}.db"
            async with runtime_of(log, script, tools=[exporting(value)], result_bytes_max=limit) as runtime:
                session = await runtime.session("s")
                found[name] = await stall_of(session.send("go"))
    return found


def main() -> None:
    kinds = {"inputs": inputs, "sessions": sessions, "results": results}
    wanted = [sys.argv[1]] if len(sys.argv) > 1 else list(kinds)
    for kind in wanted:
        counts = [int(count) for count in sys.argv[2:]] or ([1, 4, 100] if kind == "results" else [1_000, 10_000])
        first: dict[str, float] = {}
        for count in counts:
            with tempfile.TemporaryDirectory() as folder:
                row = asyncio.run(kinds[kind](count, Path(folder)))
            shown = {name: round(value, 2) for name, value in row.items()}
            ratio = {name: round(value / first[name], 1) for name, value in row.items() if first.get(name)}
            print(json.dumps({"kind": kind, "count": count, **shown, "times_the_first": ratio}), flush=True)
            first = first or row


if __name__ == "__main__":
    main()
