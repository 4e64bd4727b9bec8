"""How what a work takes grows with its size; each size is measured in a process of its own, mostly in CPU time.

Each function returns a figure for each line of its plot.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import actors, memory, one_turn, opening
from refold import AgentConfig, AgentRuntime, NewEntry, RecordedEvent, ScriptedProvider, SemanticStore, Session, tool

DIMENSIONS = 384
TURNS = 10
VECTORS_A_PUT = 1_000


async def turn_ms(session: Session, turns: int = TURNS, read_to: Sequence[int] = ()) -> float:
    """Return the CPU milliseconds of a turn, and of its readers; `read_to` has how far each of these has come."""
    await session.send("Weather in Lisbon?")
    start = time.process_time()
    for _ in range(turns):
        await session.send("Weather in Lisbon?")
    while min(read_to, default=0) < max(read_to, default=0):  # noqa: ASYNC110 - an event would cost each reader more
        await asyncio.sleep(0.001)
    return (time.process_time() - start) * 1000 / turns


def events(count: int) -> dict[str, float]:
    """The first answer of a session that has so many events."""

    async def measured(log: Path) -> dict[str, float]:
        await opening.write(log, count)
        first = await opening.opened(log, snapshots=False, count=1)
        await opening.keep(log)
        kept = await opening.opened(log, snapshots=True, count=1)
        return {"from its first event": first["opened_cpu_ms"], "from a snapshot": kept["opened_cpu_ms"]}

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measured(Path(folder, "events.db")))


def sessions(count: int) -> dict[str, float]:
    """Opening each of so many sessions and reading its history, all of them kept in memory."""
    seconds, _ = asyncio.run(actors.idle_sessions(count, None))
    return {"Refold": seconds / count * 1e6}


def payload(size: int) -> dict[str, float]:
    """A turn whose tool returns so many bytes, other ones each time."""
    text = "It will be sunny in Lisbon. " * (size // 28 + 1)
    told = itertools.count(10_000_000)

    @tool(name="weather", tier="observe", effect="pure")
    async def forecast(city: str) -> str:
        return f"{next(told)} {text}"[:size]

    async def measured(folder: Path) -> dict[str, float]:
        async with AgentRuntime(
            AgentConfig(model="m"),
            provider=ScriptedProvider([one_turn.model] * (2 * TURNS + 2)),
            tools=[forecast],
            log=folder / "events.db",
        ) as runtime:
            ours = await turn_ms(await runtime.session("s"))
        batches = await one_turn.batches_of(folder / "events.db")
        if sum(len(row[4]) for row in itertools.chain.from_iterable(batches)) < size:  # It lies beside the events.
            stream, version, batch, at, data = batches[-1][-1]
            batches[-1][-1] = (stream, version, batch, at, data + text[:size])
        start = time.process_time()
        await one_turn.by_hand(folder / "hand.db", batches, TURNS)
        return {"Refold": ours, "by hand": (time.process_time() - start) * 1000 / TURNS}

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measured(Path(folder)))


def readers(count: int) -> dict[str, float]:
    """A turn of a session that so many readers follow."""
    read_to = [0] * count

    async def read(session: Session, place: int) -> None:
        async for item in session.follow():
            read_to[place] = item.version if isinstance(item, RecordedEvent) else read_to[place]

    async def measured(log: Path) -> float:
        provider = ScriptedProvider([one_turn.model] * (2 * TURNS + 2))
        async with AgentRuntime(
            AgentConfig(model="m"), provider=provider, tools=[one_turn.weather], log=log
        ) as runtime:
            session = await runtime.session("s")
            reading = [asyncio.create_task(read(session, place)) for place in range(count)]
            await asyncio.sleep(0)
            taken = await turn_ms(session, read_to=read_to)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            return taken

    with tempfile.TemporaryDirectory() as folder:
        return {"Refold": asyncio.run(measured(Path(folder, "events.db")))}


def tools(count: int) -> dict[str, float]:
    """A turn of an agent that has so many tools."""

    def named(number: int) -> Any:
        @tool(name=f"tool_{number}", tier="observe", effect="pure")
        async def other(city: str) -> str:
            """Something else about a city."""
            return city

        return other

    async def measured(log: Path) -> float:
        provider = ScriptedProvider([one_turn.model] * (2 * TURNS + 2))
        others = [named(number) for number in range(count - 1)]
        async with AgentRuntime(
            AgentConfig(model="m"), provider=provider, tools=[one_turn.weather, *others], log=log
        ) as runtime:
            return await turn_ms(await runtime.session("s"))

    with tempfile.TemporaryDirectory() as folder:
        return {"Refold": asyncio.run(measured(Path(folder, "events.db")))}


def random_vectors(count: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((count, DIMENSIONS)).astype(np.float32)


def write_vectors(log: Path, count: int) -> None:
    """Write a log of a store of facts with so many embeddings."""

    async def written() -> None:
        facts = SemanticStore(scope="agent")
        async with AgentRuntime(
            AgentConfig(model="m"), provider=ScriptedProvider([]), semantic=facts, log=log, durability="normal"
        ):
            entries = [NewEntry(f"k{n}", "v", (), vector) for n, vector in enumerate(random_vectors(count))]
            for first in range(0, count, VECTORS_A_PUT):
                await facts.put_many(entries[first : first + VECTORS_A_PUT])

    asyncio.run(written())


def opened_vectors(log: Path, count: int) -> dict[str, float]:
    """Return what the first question to such a log takes, a later one, a put and its question, and its memory."""
    query = random_vectors(count)[count // 2].copy()

    async def measured() -> dict[str, float]:
        facts = SemanticStore(scope="agent")
        before, start = actors.resident_bytes(), time.process_time()
        async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), semantic=facts, log=log):
            found = await facts.similar(query, 5)
            first_ms = (time.process_time() - start) * 1000
            assert found[0].key == f"k{count // 2}"
            taken = actors.resident_bytes() - before
            start = time.process_time()
            await facts.similar(query, 5)
            later_ms = (time.process_time() - start) * 1000
            async with memory.Watch() as watch:
                await facts.put("one more", "v", embedding=query)
                await facts.similar(query, 5)
        return {"first answer": first_ms, "a later answer": later_ms, "stall": watch.held_ms, "memory": taken}

    return asyncio.run(measured())


def vectors(count: int) -> dict[str, float]:
    """Opening a log of so many embeddings of 384 dimensions until the first answer, and a later answer."""
    with tempfile.TemporaryDirectory() as folder:
        write_vectors(Path(folder, "events.db"), count)
        found = opened_vectors(Path(folder, "events.db"), count)
    return {name: found[name] for name in ("first answer", "a later answer")}


def at_once(count: int) -> dict[str, float]:
    """A turn of each of so many sessions at once."""
    with tempfile.TemporaryDirectory() as folder:
        log, turns = Path(folder, "events.db"), max(1, min(10, 100 // count))
        ours = asyncio.run(one_turn.turns_cpu_ms(log, count, at_once=True, turns=turns))
        batches = asyncio.run(one_turn.batches_of(log, "s0"))
        hand_s = 0.0
        for number in range(turns):
            hand_s += asyncio.run(one_turn.together_by_hand(Path(folder, f"hand-{number}.db"), batches, count))
        return {"Refold": ours, "by hand": hand_s * 1000 / count / turns}


class Growth(NamedTuple):
    """One plot."""

    measure: Callable[[int], dict[str, float]]
    title: str
    along: str
    unit: str
    quick: tuple[int, ...]
    full: tuple[int, ...]


GROWTH = {
    each.measure.__name__: each
    for each in (
        Growth(
            events,
            "Opening a session until its first answer",
            "events of the session",
            "ms of CPU",
            (10, 100, 1_000, 10_000),
            (10, 100, 1_000, 10_000, 100_000),
        ),
        Growth(
            sessions,
            "Opening each of many sessions",
            "sessions, all kept in memory",
            "us of CPU for each",
            (1, 10, 100, 1_000),
            (1, 10, 100, 1_000, 10_000, 100_000),
        ),
        Growth(
            payload,
            "A turn whose tool returns a long text",
            "bytes of the text",
            "ms of CPU for each turn",
            (100, 1_000, 10_000, 100_000, 1_000_000),
            (100, 1_000, 10_000, 100_000, 1_000_000),
        ),
        Growth(
            readers,
            "A turn of a session that is followed",
            "readers",
            "ms of CPU for each turn",
            (0, 1, 10, 100, 1_000),
            (0, 1, 10, 30, 100, 300, 1_000),
        ),
        Growth(
            tools,
            "A turn of an agent with many tools",
            "tools",
            "ms of CPU for each turn",
            (1, 10, 100, 500),
            (1, 5, 10, 50, 100, 200, 500),
        ),
        Growth(
            vectors,
            "Opening a store of facts until its first answer",
            "vectors of 384 dimensions",
            "ms of CPU",
            (1_000, 3_000),
            (1_000, 3_000, 10_000, 30_000, 100_000),
        ),
        Growth(
            at_once,
            "A turn of each of many sessions at once",
            "sessions at once",
            "ms of CPU for each turn",
            (1, 10, 100, 500),
            (1, 10, 50, 200, 500, 1_000, 2_000),
        ),
    )
}
