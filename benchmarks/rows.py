"""The rows of the table that `all.py` writes: how Refold does a work, and what it is held against in the same run.

Each function measures a few rows, in a process of its own. CPU time is that of all threads, which other programs on the
machine disturb less than the time that passes; a row that says `passed` has that time, as its work is to wait.
"""

import asyncio
import random
import resource
import string
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from benchmarks import actors, appends, fold, growth, import_time, limits, one_turn, replay
from refold import AgentConfig, AgentRuntime, ScriptedProvider, say

P = ParamSpec("P")
R = TypeVar("R")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """How much a work takes, or how much of it is done."""

    work: str
    measured: float
    unit: str
    limit: float | None = None
    """What the same run measured of the least that could do it, or of a peer, in the same unit; None: nothing."""
    beside: str = ""
    """What `limit` is of."""
    goal: float
    """Of the ratio to the limit, or of what is measured where there is none; the most."""
    at_least: bool = False
    """The goal is the least."""
    smaller: bool = False
    """The work has fewer events, sessions or vectors than the goal is for."""

    @property
    def ratio(self) -> float | None:
        return None if self.limit is None else self.measured / self.limit

    @property
    def reached(self) -> bool:
        value = self.measured if self.ratio is None else self.ratio
        return value >= self.goal if self.at_least else value <= self.goal


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each work is done."""

    rounds: int
    turns: int
    at_once: int = 200
    crowd: tuple[int, int] = (10, 2_000)
    folds: tuple[int, ...] = (10_000, 200)
    idle: int = 100_000
    messages: int
    appends: int
    kilobyte_turns: int = 200
    readers: int = 1_000
    vectors: int = 100_000
    open_runs: int = 10_000
    replays: tuple[int, int] = (1_000, 10_000)


FULL = Sizes(rounds=3, turns=200, messages=200_000, appends=12_800)
QUICK = Sizes(
    rounds=1,
    turns=60,
    crowd=(10, 500),
    folds=(2_000, 200),
    idle=3_000,
    messages=20_000,
    appends=6_400,
    readers=300,
    vectors=2_000,
    open_runs=500,
    replays=(500, 2_000),
)


def turn(sizes: Sizes) -> list[Row]:
    """One turn with a tool, durable FULL, beside the same events in the same commits by hand."""
    each = one_turn.cpu(sizes.turns, sizes.at_once, sizes.rounds)
    counted = one_turn.counts_of("session", 3, calls=False)
    hand, together = each["by_hand"], each["at_once_by_hand"]
    return [
        row_by_hand("one tool turn in a session", each["turn"], "ms CPU", hand, 1.5),
        row_by_hand("one tool turn, with its disk", each["passed"], "ms passed", each["by_hand_passed"], 1.5),
        row_by_hand("one tool turn in a new session", each["fresh"], "ms CPU", hand, 1.5),
        Row(work="tasks of a turn", measured=counted["tasks"], unit="tasks", goal=5),
        row_by_hand(f"a turn of {sizes.at_once} sessions at once", each["at_once"], "ms CPU", together, 4),
    ]


def row_by_hand(work: str, measured: float, unit: str, limit: float, goal: float, *, smaller: bool = False) -> Row:
    return Row(work=work, measured=measured, unit=unit, limit=limit, beside="by hand", goal=goal, smaller=smaller)


def crowd(sizes: Sizes) -> list[Row]:
    """Whether a turn costs the same in a crowd."""
    few, many = (growth.at_once(count)["Refold"] for count in sizes.crowd)
    return [
        Row(
            work=f"a turn of {sizes.crowd[1]:,} sessions at once",
            measured=many,
            unit="ms CPU",
            limit=few,
            beside=f"of {sizes.crowd[0]}",
            goal=1.25,
            smaller=sizes.crowd[1] < FULL.crowd[1],
        )
    ]


def folds(sizes: Sizes) -> list[Row]:
    """Folding a session from its rows."""
    rows = []
    for events, full, goal in zip(sizes.folds, FULL.folds, (1.2, 1.6), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(fold.write(Path(folder, "events.db"), events))
            each = asyncio.run(fold.measure(Path(folder, "events.db")))
        work = f"fold of {events:,} events"
        rows.append(row_by_hand(work, each["opened_ms"], "ms CPU", each["by_hand_ms"], goal, smaller=events < full))
    return rows


def idle(sizes: Sizes) -> list[Row]:
    """What an idle session takes."""
    actor = actors.measured_apart("actors", sizes.idle)
    live = actors.measured_apart("sessions_all_live", sizes.idle)
    by_default = actors.measured_apart("sessions", sizes.idle)
    smaller = sizes.idle < FULL.idle
    us = live["seconds"] / sizes.idle * 1e6
    bare = f"(a bare actor: {actor['bytes_each']:,.0f} B)"
    return [
        Row(
            work=f"memory of each of {sizes.idle:,} idle sessions, {which} {bare}",
            measured=session["bytes_each"],
            unit="B",
            goal=700,
            smaller=smaller,
        )
        for which, session in (("one of ten live, as `live_max` has it", by_default), ("all live", live))
    ] + [
        Row(work=f"opening each of {sizes.idle:,} sessions", measured=us, unit="us CPU", goal=20, smaller=smaller),
    ]


def threads(sizes: Sizes) -> list[Row]:
    """Messages to an actor from another thread, beside those to a thread actor."""
    rounds = [
        (actors.of_refold_from_thread(sizes.messages), actors.of_pykka(sizes.messages)) for _ in range(sizes.rounds)
    ]
    ours, peers = (actors.best(list(column)) for column in zip(*rounds, strict=True))
    return [
        Row(
            work=f"{name} from another thread",
            measured=ours[name],
            unit="per second, passed",
            limit=peers[name],
            beside="pykka",
            goal=goal,
            at_least=True,
        )
        for name, goal in (("ask", 2.0), ("tell", 2.5))
    ]


def handlers(sizes: Sizes) -> list[Row]:
    """Messages to a handler that is `async def`, beside one task and one deque."""
    ours = actors.best([asyncio.run(actors.of_refold(sizes.messages, actors.CountingAsync)) for _ in range(3)])
    limit = actors.best([asyncio.run(actors.of_limit(sizes.messages)) for _ in range(3)])
    return [
        Row(
            work="tell to an `async def` handler",
            measured=ours["tell"],
            unit="per second of CPU",
            limit=limit["tell"],
            beside="one task, one deque",
            goal=0.3,
            at_least=True,
        )
    ]


def appended(sizes: Sizes) -> list[Row]:
    """Durable appends, beside `executemany` of as many events a transaction."""
    each = appends.measured(sizes.appends, "full", sizes.rounds)
    return [
        Row(
            work=work,
            measured=each[f"{name}_{per}"],
            unit=unit,
            limit=each[f"batched_{per}"],
            beside="bare `executemany`",
            goal=goal,
            at_least=True,
        )
        for work, name, goal in (
            ("append through a hosted core", "hosted", 0.5),
            ("append through the journal", "refold", 0.85),
        )
        for per, unit in (("per_s", "events per second of CPU"), ("per_s_passed", "events per second, passed"))
    ]


def log_bytes(sizes: Sizes) -> list[Row]:
    """The bytes of a log whose inputs and answers have 1 kB each."""

    async def written(log: Path, snapshot_every: int | None) -> int:
        draw = random.Random(1)
        texts = ["".join(draw.choices(string.ascii_letters + " ", k=1_000)) for _ in range(2 * sizes.kilobyte_turns)]
        provider, config = ScriptedProvider([say(text) for text in texts[::2]]), AgentConfig(model="m")
        async with AgentRuntime(
            config, provider=provider, log=log, durability="normal", snapshot_every=snapshot_every
        ) as runtime:
            session = await runtime.session("s")
            for text in texts[1::2]:
                await session.send(text)
        return sum(map(len, texts))

    rows = []
    for words, snapshot_every in (("", None), (", and its snapshots", 1_000)):
        with tempfile.TemporaryDirectory() as folder:
            payload = asyncio.run(written(Path(folder, "events.db"), snapshot_every))
            size = Path(folder, "events.db").stat().st_size
        work = f"log of {sizes.kilobyte_turns} turns of 1 kB messages{words}"
        smaller = sizes.kilobyte_turns < FULL.kilobyte_turns
        rows.append(Row(work=work, measured=size, unit="B", limit=payload, beside="payload", goal=1.6, smaller=smaller))
    return rows


def imports(sizes: Sizes) -> list[Row]:
    """Importing Refold, beside the libraries that it stands on, both over bare Python."""
    each = import_time.measured(4 * sizes.rounds)
    return [
        Row(
            work="import of AgentRuntime, AgentConfig, tool",
            measured=each["refold_agent"],
            unit="ms CPU",
            limit=each["pykka_msgspec_sqlite3"],
            beside="its libraries",
            goal=1.6,
        )
    ]


def readers(sizes: Sizes) -> list[Row]:
    """A turn of a session that many follow."""
    return [
        Row(
            work=f"a turn that {sizes.readers:,} readers follow",
            measured=growth.readers(sizes.readers)["Refold"],
            unit="ms CPU",
            limit=growth.readers(0)["Refold"],
            beside="no reader",
            goal=2,
            smaller=sizes.readers < FULL.readers,
        )
    ]


def vectors(sizes: Sizes) -> list[Row]:
    """Facts with embeddings of 384 dimensions: the log, and what opening it takes."""
    count, smaller = sizes.vectors, sizes.vectors < FULL.vectors
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "events.db")
        apart(growth.write_vectors, log, count)
        payload = count * growth.DIMENSIONS * 4
        found = growth.opened_vectors(log, count)
        size = log.stat().st_size
    rows = [
        Row(work=work, measured=found[name], unit="ms CPU", goal=goal, smaller=smaller)
        for work, name, goal in (
            (f"first answer after opening {count:,} vectors", "first answer", 1_000),
            ("longest stall around a put and a question", "stall", 50),
        )
    ]
    return rows + [
        Row(
            work=f"{what} of {count:,} vectors",
            measured=value,
            unit="B",
            limit=payload,
            beside="the vectors",
            goal=goal,
            smaller=smaller,
        )
        for what, value, goal in (("memory", found["memory"], 1.5), ("log", size, 1.3))
    ]


def open_runs(sizes: Sizes) -> list[Row]:
    """Runs that were under way when their runtime ended."""
    with tempfile.TemporaryDirectory() as folder:
        each = asyncio.run(limits.runs(sizes.open_runs, Path(folder)))
    return [
        Row(
            work=f"resuming each of {sizes.open_runs:,} open runs",
            measured=each["resumed_s"] / sizes.open_runs * 1000,
            unit="ms CPU",
            goal=2,
            smaller=sizes.open_runs < FULL.open_runs,
        )
    ]


def replays(sizes: Sizes) -> list[Row]:
    """Replay at its levels, and whether it costs the same for each event of a long session."""
    with tempfile.TemporaryDirectory() as folder:
        short, long = (replay.measure(Path(folder), events, sizes.rounds) for events in sizes.replays)
    count, smaller = sizes.replays[1], sizes.replays[1] < FULL.replays[1]
    unit = "events per second of CPU"
    return [
        Row(work=f"{level} replay", measured=long[level], unit=unit, goal=goal, at_least=True, smaller=smaller)
        for level, goal in (("core", 150_000), ("decide", 20_000))
    ] + [
        Row(
            work=f"decide replay with hooks of {count:,} events",
            measured=long["decide"],
            unit=unit,
            limit=short["decide"],
            beside=f"of {sizes.replays[0]:,}",
            goal=0.8,
            at_least=True,
            smaller=smaller,
        )
    ]


ROWS: dict[str, Callable[[Sizes], list[Row]]] = {
    work.__name__: work
    for work in (
        turn,
        crowd,
        folds,
        idle,
        threads,
        handlers,
        appended,
        log_bytes,
        imports,
        readers,
        vectors,
        open_runs,
        replays,
    )
}


def with_peers(rows: list[Row], peers: dict[str, dict[str, float]]) -> list[Row]:
    """Return a row for each work of ours that a peer does, which `peers.py` has measured in the same run."""
    return [
        Row(work=row.work, measured=row.measured, unit=row.unit, limit=each[work], beside=peer, goal=1)
        for row in rows
        for work in [next((word for word in ("in a session", "at once") if row.work.endswith(word)), "")]
        if row.beside == "by hand"
        for peer, each in peers.items()
        if work in each
    ]


def apart(work: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """Return what `work` gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *args, **options).result()


def spent_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
