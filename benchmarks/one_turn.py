"""One turn with one tool, durable FULL, beside the same events written by hand in the same number of commits.

Run: python -P benchmarks/one_turn.py [turns | --counts | --cpu | --table | --guarded | --redacted]

By hand means: the same JSON, the same tables, four transactions a turn, each one hop through an aiosqlite connection,
and nothing else. The bare line makes the same commits inline, with no second thread.

Counts says what does not depend on the machine, for each turn: tasks, loop iterations, commits, bytes of events, and
calls of Python functions in all threads; of turns with a tool in one session, each in a session of its own, and of
many at once. Cpu compares the CPU time of all threads with that of the same work by hand, by turns in one run, which a
busy machine disturbs less than the time that passes.

The table counts the transactions of such a turn, and those among them that the turn waits for, of an agent whose
requests follow from the log and of one with memories, a window and middleware, whose model answers at once or in 50 ms.

Guarded compares turns in turn, of one session: with a tool and with one that has a circuit breaker, where each call
succeeds and where each fails and is counted.

Redacted compares turns in turn, each in a runtime of its own: with nothing to redact, with 5 and 50 values, and with
5 values and a pattern; of a tool with a short result and of one with 100 KB of prose.
"""

import asyncio
import itertools
import json
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Any

import aiosqlite
import msgspec

from refold import (
    AgentConfig,
    AgentRuntime,
    EpisodicStore,
    HookContext,
    Middleware,
    ModelRequest,
    ScriptedProvider,
    TokenWindow,
    Tool,
    ToolError,
    say,
    tool,
    use,
)
from refold.agents.agent import AgentParts
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.providers.scripted import ScriptedAnswer
from refold.resilience import CircuitBreaker
from refold.stores import InMemoryStore, SQLiteStore

EVENTS = 9
"""Events of one turn with one tool."""

Rows = list[tuple[int, int, int, int, str]]


@tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


def model(request: ModelRequest) -> ScriptedAnswer:
    """Ask for the tool after an input, and answer after its result."""
    return say("Sunny.") if request.messages[-1].text == "" else use("weather", {"city": "Lisbon"})


async def through_refold(log: Path, turns: int) -> tuple[list[float], float, float]:
    """Return the milliseconds of each turn, and CPU milliseconds and commits per turn."""
    provider = ScriptedProvider([model] * (2 * turns + 20))
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[weather], log=log) as runtime:
        session = await runtime.session("s")
        for _ in range(10):
            await session.send("Weather in Lisbon?")
        before, begun = runtime.commits, time.process_time()
        times = []
        for _ in range(turns):
            start = time.perf_counter()
            await session.send("Weather in Lisbon?")
            times.append((time.perf_counter() - start) * 1000)
        return times, (time.process_time() - begun) * 1000 / turns, (runtime.commits - before) / turns


async def batches_of(log: Path, session: str = "s") -> list[Rows]:
    """Return what the runtime wrote for one turn, batch by batch."""
    async with await SQLiteStore.open(log, read_only=True) as store:
        stored = await store.read_stream(f"session/{session}")
    batches: list[Rows] = []
    for item in stored[-EVENTS:]:
        if item.version == item.batch:
            batches.append([])
        batches[-1].append((1, item.version, item.batch, item.at, item.data.decode()))
    return batches


def make(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE events (position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, version INTEGER NOT NULL, "
            "batch INTEGER NOT NULL, time INTEGER NOT NULL, data TEXT NOT NULL, UNIQUE (stream, version))"
        )
    connection.close()


INSERT = "INSERT INTO events (stream, version, batch, time, data) VALUES (?, ?, ?, ?, ?)"


def commit(connection: sqlite3.Connection, rows: Rows, shift: int) -> None:
    """Write one batch in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, [(stream, version + shift, *rest) for stream, version, *rest in rows])
    connection.execute("COMMIT")


async def by_hand(path: Path, batches: list[Rows], turns: int) -> list[float]:
    make(path)
    times = []
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("PRAGMA synchronous=FULL")
        # aiosqlite has no public way to run a whole transaction in one hop, and declares no types for this one.
        run_in_thread: Callable[..., Awaitable[None]] = connection._execute
        for turn in range(turns):
            start = time.perf_counter()
            for rows in batches:
                await run_in_thread(commit, connection._conn, rows, turn * EVENTS)
            times.append((time.perf_counter() - start) * 1000)
    return times


def inline(path: Path, batches: list[Rows], turns: int) -> list[float]:
    make(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    times = []
    for turn in range(turns):
        start = time.perf_counter()
        for rows in batches:
            commit(connection, rows, turn * EVENTS)
        times.append((time.perf_counter() - start) * 1000)
    connection.close()
    return times


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its iterations and its tasks, and the calls of Python functions in all threads that begin after it.

    No timer ends in it: into how many turns the looks of an inbox or of a watchdog fall depends on the machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.iterations = 0
        self.tasks = 0
        self.calls = 0
        self.set_task_factory(self._task)  # type: ignore[arg-type] # The loop that it is given is this one.

    def _run_once(self) -> None:
        self.iterations += 1
        super()._run_once()  # type: ignore[misc] # asyncio declares no types for what it calls in a loop.

    def call_at(  # type: ignore[override] # Its arguments are what its callback takes, which matters nothing here.
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Have `callback` called a day later than it should be."""
        return super().call_at(when + 86_400, callback, *args, context=context)

    def _task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        self.tasks += 1
        return asyncio.Task(work, loop=loop, **options)

    def _called(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.calls += event == "call"

    @contextmanager
    def counted_calls(self) -> Generator[None, None, None]:
        """Count calls inside, in this thread and those that it begins."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def counts_of(way: str, turns: int, *, calls: bool) -> dict[str, float]:
    """Return what a turn costs: in one `session`, in a `fresh` session each, or in as many sessions `at_once`."""

    async def work(log: Path, loop: CountingLoop) -> dict[str, float]:
        provider = ScriptedProvider([model] * (4 * turns + 4))
        async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[weather], log=log) as runtime:
            every = [await runtime.session("s" if way == "session" else f"s{place}") for place in range(turns)]
            await (await runtime.session("s")).send("Weather in Lisbon?")
            if way == "at_once":
                await asyncio.gather(*(session.send("Weather in Lisbon?") for session in every))
            seen = [(loop.tasks, loop.iterations, loop.calls, runtime.commits)]
            if way == "at_once":
                await asyncio.gather(*(session.send("Weather in Lisbon?") for session in every))
                seen.append((loop.tasks, loop.iterations, loop.calls, runtime.commits))
            for session in every if way != "at_once" else ():
                await session.send("Weather in Lisbon?")
                seen.append((loop.tasks, loop.iterations, loop.calls, runtime.commits))
            each = [[b - a for a, b in zip(*both, strict=True)] for both in itertools.pairwise(seen)]
            shared = turns if way == "at_once" else 1
            tasks, iterations, called, commits = (statistics.median(one) / shared for one in zip(*each, strict=True))
        if calls:
            return {"calls": called}
        rows = itertools.chain.from_iterable(await batches_of(log, every[-1].id))
        written = sum(len(row[4]) for row in rows)
        return {"tasks": tasks, "iterations": iterations, "commits": commits, "bytes": written}

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        if not calls:
            return runner.run(work(Path(folder, "refold.db"), loop))
        with loop.counted_calls():
            return runner.run(work(Path(folder, "refold.db"), loop))


def counts(turns: int) -> dict[str, dict[str, float]]:
    """Return what a turn costs, by the way in which turns are taken; of many at once, what is the same each time."""
    found = {}
    for way in ("session", "fresh", "at_once"):
        both = counts_of(way, turns, calls=False) | counts_of(way, turns, calls=True)
        if way == "at_once":
            del both["iterations"], both["commits"]
        found[way] = {name: round(value, 1) for name, value in both.items()}
    return found


async def turns_cpu_ms(log: Path, sessions: int, *, at_once: bool, turns: int = 1) -> float:
    """Return the CPU milliseconds of a turn of each of many sessions, which are new unless they are taken at once."""
    provider = ScriptedProvider([model] * (2 * (turns + 1) * sessions + 2))
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[weather], log=log) as runtime:
        if at_once:
            every = [await runtime.session(f"s{place}") for place in range(sessions)]
            await asyncio.gather(*(session.send("Weather in Lisbon?") for session in every))
        else:
            await (await runtime.session("first")).send("Weather in Lisbon?")
        start = time.process_time()
        for _ in range(turns if at_once else 0):
            await asyncio.gather(*(session.send("Weather in Lisbon?") for session in every))
        for place in range(0 if at_once else sessions):
            await (await runtime.session(f"s{place}")).send("Weather in Lisbon?")
        return (time.process_time() - start) * 1000 / sessions / turns


def cpu(turns: int, sessions: int, rounds: int = 5) -> dict[str, float]:
    """Return the CPU milliseconds of a turn beside those by hand: in one session, in new ones, and in many at once.

    Of one session also the milliseconds that pass.
    """
    measured: list[tuple[float, ...]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            passed, one, _ = asyncio.run(through_refold(Path(folder, "refold.db"), turns))
            batches = asyncio.run(batches_of(Path(folder, "refold.db")))
            start = time.process_time()
            hand_passed = asyncio.run(by_hand(Path(folder, "hand.db"), batches, turns))
            hand = (time.process_time() - start) * 1000 / turns
            fresh = asyncio.run(turns_cpu_ms(Path(folder, "fresh.db"), turns, at_once=False))
            many = asyncio.run(turns_cpu_ms(Path(folder, "many.db"), sessions, at_once=True))
            together_s = asyncio.run(together_by_hand(Path(folder, "together.db"), batches, sessions))
            together = together_s * 1000 / sessions
        passing = statistics.median(passed), statistics.median(hand_passed)
        measured.append((one, hand, one / hand, fresh, fresh / hand, many, together, many / together, *passing))
    names = ["turn", "by_hand", "ratio", "fresh", "fresh_ratio", "at_once", "at_once_by_hand", "at_once_ratio"]
    names += ["passed", "by_hand_passed"]
    medians = (round(statistics.median(column), 3) for column in zip(*measured, strict=True))
    return {**dict(zip(names, medians, strict=True)), "sessions": sessions, "turns": turns}


async def together_by_hand(path: Path, batches: list[Rows], sessions: int) -> float:
    """Write one turn of each of many sessions by hand, and return the CPU seconds.

    Those that wait at the same time share a transaction.
    """
    make(path)
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("PRAGMA synchronous=FULL")
        run_in_thread: Callable[..., Awaitable[None]] = connection._execute
        waiting: list[tuple[Rows, asyncio.Future[None]]] = []

        async def writer() -> None:
            while True:
                await woken.wait()
                woken.clear()
                group, waiting[:] = waiting[:], []
                if group:
                    await run_in_thread(commit, connection._conn, [row for rows, _ in group for row in rows], 0)
                for _, done in group:
                    done.set_result(None)

        async def turn(session: int) -> None:
            for rows in batches:
                done = asyncio.get_running_loop().create_future()
                waiting.append(([(session, *row[1:]) for row in rows], done))
                woken.set()
                await done

        woken = asyncio.Event()
        writing = asyncio.create_task(writer())
        start = time.process_time()
        await asyncio.gather(*(turn(place) for place in range(sessions)))
        writing.cancel()
        return time.process_time() - start


class Watching(Middleware):
    """Is asked about each request and changes it."""

    def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        """Say more behind the prompt."""
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt}\n\nTurn {context.turn}.")


class CountingStore(InMemoryStore):
    """Counts the transactions of sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        """Count a transaction by whether it holds anything but requests in flight."""
        own = [batch.events[0] for batch in batches if batch.stream.startswith("session/")]
        if own:
            in_flight = all(b'"session.request_built.v1"' in first for first in own)
            self.counts["not waited for" if in_flight else "waited for"] += 1
        return await super().append(batches, payloads)


async def counted(*, shaped: bool, pause_s: float) -> dict[str, object]:
    """Return what one turn of an agent costs."""

    async def slow_model(request: ModelRequest) -> ScriptedAnswer:
        await asyncio.sleep(pause_s)
        return model(request)

    memory = EpisodicStore(scope="agent")
    memory.add_episode("agent", "The weather in Lisbon is mostly good", importance=0.9)
    parts: AgentParts = {"tools": [weather]}
    if shaped:
        parts |= {"memory": memory, "context": TokenWindow(10_000), "middleware": [Watching()]}
    store = CountingStore()
    provider = ScriptedProvider([slow_model if pause_s else model] * 4)
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=store, **parts) as runtime:
        session = await runtime.session("s")
        await session.send("Weather in Lisbon?")
        store.counts.clear()
        start = time.perf_counter()
        await session.send("Weather in Lisbon?")
        turn_ms = (time.perf_counter() - start) * 1000
        agent = "memories, window, middleware" if shaped else "plain"
        return {"agent": agent, "answers_ms": pause_s * 1000, **store.counts, "turn_ms": round(turn_ms, 1)}


async def table() -> list[dict[str, object]]:
    """Return a line for each agent and each model."""
    return [await counted(shaped=shaped, pause_s=pause_s) for shaped in (False, True) for pause_s in (0, 0.05)]


def forecast(name: str, breaker: CircuitBreaker | None, *, fails: bool = False) -> Tool[..., object]:
    """Return a tool that always succeeds, or always fails."""

    @tool(name=name, tier="observe", effect="pure", breaker=breaker)
    async def body(city: str) -> str:
        """Forecast for a city."""
        if fails:
            raise ToolError("no route", kind="transient")
        return f"{city}: sunny"

    return body


async def guarded(log: Path, turns: int) -> dict[str, object]:
    """Return the milliseconds of turns with each tool, and how those with a breaker compare to those without."""
    tools = [
        forecast("plain", None),
        forecast("guarded", CircuitBreaker("a")),
        forecast("failing", None, fails=True),
        forecast("failing_guarded", CircuitBreaker("b", threshold=1_000_000), fails=True),
    ]
    measured: dict[str, list[tuple[float, float]]] = {each.name: [] for each in tools}

    def asks_for(request: ModelRequest) -> ScriptedAnswer:
        wanted = request.messages[-1].text
        return use(wanted, {"city": "Lisbon"}) if wanted in measured else say("Sunny.")

    provider = ScriptedProvider([asks_for] * (8 * turns + 80))
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=tools, log=log) as runtime:
        session = await runtime.session("s")
        for turn in range(turns + 10):
            for name in random.sample(sorted(measured), len(measured)):
                start = time.perf_counter(), time.process_time()
                await session.send(name)
                if turn >= 10:
                    end = time.perf_counter(), time.process_time()
                    measured[name].append(((end[0] - start[0]) * 1000, (end[1] - start[1]) * 1000))
    figures: dict[str, object] = {"turns": turns, "durability": "full"}
    for place, clock in enumerate(("turn_ms", "cpu_ms")):
        medians = {name: round(statistics.median(turn[place] for turn in each), 3) for name, each in measured.items()}
        figures[clock] = medians
        figures[f"{clock}_guarded_to_plain"] = round(medians["guarded"] / medians["plain"], 3)
        figures[f"{clock}_failing_guarded_to_failing"] = round(medians["failing_guarded"] / medians["failing"], 3)
    return figures


async def redacted(folder: Path, turns: int) -> dict[str, object]:
    """Return the milliseconds of turns by what is redacted, and how they compare to those where nothing is."""
    values = [f"sk-proj-{random.Random(seed).randbytes(24).hex()}" for seed in range(50)]
    ways: dict[str, list[str | re.Pattern[str]]] = {
        "nothing": [],
        "5 values": list(values[:5]),
        "50 values": list(values),
        "5 values, a pattern": [*values[:5], re.compile(r"\b\d{4}(?:[ -]?\d{4}){3}\b")],
    }
    prose = "The weather in Lisbon is sunny, 21 degrees. " * 2_300

    @tool(tier="observe", effect="pure")
    async def report(city: str) -> str:
        return prose

    def asks_for(request: ModelRequest) -> ScriptedAnswer:
        wanted = request.messages[-1].text
        return use(wanted, {"city": "Lisbon"}) if wanted in ("weather", "report") else say("Sunny.")

    measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
    async with AsyncExitStack() as stack:
        sessions = {}
        for place, (way, rules) in enumerate(ways.items()):
            provider = ScriptedProvider([asks_for] * (4 * turns + 40))
            runtime = AgentRuntime(
                AgentConfig(model="m"),
                provider=provider,
                tools=[weather, report],
                context=TokenWindow(50_000),
                log=folder / f"{place}.db",
                redact=rules,
            )
            sessions[way] = await (await stack.enter_async_context(runtime)).session("s")
        for turn in range(turns + 10):
            for way in random.sample(sorted(sessions), len(sessions)):
                for name in ("weather", "report"):
                    start = time.perf_counter(), time.process_time()
                    await sessions[way].send(name)
                    if turn >= 10:
                        end = time.perf_counter(), time.process_time()
                        each = measured.setdefault((name, way), [])
                        each.append(((end[0] - start[0]) * 1000, (end[1] - start[1]) * 1000))
    figures: dict[str, object] = {"turns": turns, "durability": "full"}
    for (name, way), each in sorted(measured.items()):
        turn_ms, cpu_ms = (statistics.median(column) for column in zip(*each, strict=True))
        plain = statistics.median(cpu for _, cpu in measured[name, "nothing"])
        size = "short result" if name == "weather" else "100 KB result"
        figures[f"{size}, {way}"] = {
            "turn_ms": round(turn_ms, 3),
            "cpu_ms": round(cpu_ms, 3),
            "cpu_to_nothing": round(cpu_ms / plain, 3),
        }
    return figures


def main() -> None:
    """Measure, three rounds, and print the medians."""
    if sys.argv[1:] == ["--redacted"]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(redacted(Path(folder), 60)), indent=2))
        return
    if sys.argv[1:] == ["--guarded"]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(guarded(Path(folder, "refold.db"), 300)), indent=2))
        return
    if sys.argv[1:] == ["--counts"]:
        print(json.dumps(counts(7), indent=2))
        return
    if sys.argv[1:] == ["--cpu"]:
        print(json.dumps(cpu(200, 200), indent=2))
        return
    if sys.argv[1:] == ["--table"]:
        print("\n".join(map(json.dumps, asyncio.run(table()))))
        return
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rounds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            times, _, commits = asyncio.run(through_refold(Path(folder, "refold.db"), turns))
            batches = asyncio.run(batches_of(Path(folder, "refold.db")))
            hand = asyncio.run(by_hand(Path(folder, "hand.db"), batches, turns))
            bare = inline(Path(folder, "bare.db"), batches, turns)
        rounds.append((statistics.median(times), statistics.median(hand), statistics.median(bare), commits))
    refold_ms, hand_ms, bare_ms, commits = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        json.dumps(
            {
                "turn_ms": round(refold_ms, 3),
                "by_hand_ms": round(hand_ms, 3),
                "inline_ms": round(bare_ms, 3),
                "ratio_to_by_hand": round(refold_ms / hand_ms, 2),
                "commits_per_turn": commits,
                "turns": turns,
                "durability": "full",
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
