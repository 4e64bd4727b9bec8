"""Recalling the right few among many, against plain numpy doing the arithmetic alone.

Run: python -P benchmarks/memory.py [texts] [dimensions]

Best of several rounds, in milliseconds of processor time. `recall_few` looks for words that a few episodes have,
`recall_all` for one that all of them have, `recall_none` for one that none has; `numpy_scores` computes the scores of
all and takes the best. `similar` finds the nearest embeddings; `numpy_similar` multiplies a matrix of unit vectors with
a query and takes the best. `first_recall` and `first_similar` make the arrays, once in a process. `add_us_at_first` and
`add_us_at_last` are microseconds for one more episode among the first and among the last thousand.

`import_s` are the seconds in which that many episodes come into a store that lives on a file, a thousand at a time, and
`…_held_ms` the longest that this, the first question after it, or looking at all of them keeps the loop at a time, in
processor time of its thread.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from refold import (
    AgentConfig,
    AgentRuntime,
    DecayPolicy,
    EpisodicStore,
    NewEpisode,
    RecallPolicy,
    ScriptedProvider,
    SemanticStore,
)
from refold.events.kinds.memory_policies import HOUR_US

ROUNDS = 20
VOCABULARY = 20_000
WORDS_PER_TEXT = 12
BATCH = 1_000
BEST = 5
PERIOD_S = 0.005


def best_ms(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) * 1_000


def filled_memory(texts: int) -> tuple[EpisodicStore, list[float]]:
    """Return a memory of `texts` episodes, and the seconds that each thousand took."""
    draw = random.Random(1)
    words = [f"word{number}" for number in range(VOCABULARY)]
    memory = EpisodicStore(decay=DecayPolicy.exponential(24), recall=RecallPolicy.hybrid(1, 1))
    seconds = []
    for _ in range(texts // BATCH):
        start = time.process_time()
        for _ in range(BATCH):
            memory.add_episode("agent", " ".join(draw.choices(words, k=WORDS_PER_TEXT)), draw.random(), ["every"])
        seconds.append(time.process_time() - start)
    return memory, seconds


def measured_recall(texts: int) -> dict[str, float]:
    memory, seconds = filled_memory(texts)
    first = best_ms(lambda: memory.look("agent", "word1", BEST).get(), rounds=1)
    random_numbers = np.random.default_rng(1)
    importance = random_numbers.random(texts)
    added_at = random_numbers.integers(0, 10**12, texts)
    recalls = np.zeros(texts, dtype=np.int64)

    def plain() -> object:
        age = (10**12 - added_at) / HOUR_US
        score = importance * np.exp2(age / -24.0) + np.power(0.995, age) + recalls / (recalls + 1)
        return np.argpartition(score, texts - BEST)[texts - BEST :]

    limit = best_ms(plain)
    every = best_ms(lambda: memory.look("agent", "every", BEST).get())
    return {
        "add_us_at_first": seconds[0] / BATCH * 1e6,
        "add_us_at_last": seconds[-1] / BATCH * 1e6,
        "first_recall": first,
        "recall_few": best_ms(lambda: memory.look("agent", "word1 word2 word3", BEST).get()),
        "recall_all": every,
        "recall_none": best_ms(lambda: memory.look("agent", "zebra", BEST).get()),
        "numpy_scores": limit,
        "ratio_recall_all_to_numpy": every / limit,
    }


class Watch:
    """Measures for how long at most a loop is held while its block runs."""

    def __init__(self) -> None:
        self.held_ms = 0.0

    async def __aenter__(self) -> "Watch":
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(PERIOD_S)
            self.held_ms = max(self.held_ms, (time.thread_time() - before) * 1_000)


async def measured_import(texts: int, folder: Path) -> dict[str, float]:
    draw = random.Random(1)
    words = [f"word{number}" for number in range(VOCABULARY)]
    episodes = [
        NewEpisode("agent", " ".join(draw.choices(words, k=WORDS_PER_TEXT)), draw.random(), ("every",))
        for _ in range(texts)
    ]
    figures: dict[str, float] = {}
    memory = EpisodicStore()
    async with AgentRuntime(
        AgentConfig(model="m"), provider=ScriptedProvider([]), memory=memory, log=folder / "events.db"
    ):

        async def import_them() -> None:
            for first in range(0, texts, BATCH):
                await memory.add_episodes(episodes[first : first + BATCH])

        asked: dict[str, Callable[[], Awaitable[object]]] = {
            "import": import_them,
            "first_look": lambda: memory.look("agent", "word1"),
            "by_importance": lambda: memory.by_importance("agent"),
            "contents": lambda: memory.contents("agent"),
        }
        for name, ask in asked.items():
            async with Watch() as watch:
                start = time.perf_counter()
                await ask()
                figures[f"{name}_s"] = time.perf_counter() - start
            figures[f"{name}_held_ms"] = watch.held_ms
    return figures


def measured_similarity(texts: int, dimensions: int) -> dict[str, float]:
    vectors = np.random.default_rng(2).standard_normal((texts, dimensions)).astype(np.float32)
    facts = SemanticStore()
    for number, vector in enumerate(vectors):
        facts.put(f"k{number}", "v", embedding=vector)
    query = vectors[texts // 2] + np.float32(0.1)
    first = best_ms(lambda: facts.similar(query, BEST).get(), rounds=1)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def plain() -> object:
        cosines = units @ (query / np.linalg.norm(query))
        return np.argpartition(cosines, texts - BEST)[texts - BEST :]

    limit = best_ms(plain)
    similar = best_ms(lambda: facts.similar(query, BEST).get())
    return {
        "first_similar": first,
        "similar": similar,
        "numpy_similar": limit,
        "ratio_similar_to_numpy": similar / limit,
    }


def main() -> None:
    """Measure and print."""
    texts = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    dimensions = int(sys.argv[2]) if len(sys.argv) > 2 else 384
    with tempfile.TemporaryDirectory() as folder:
        imported = asyncio.run(measured_import(texts, Path(folder)))
    figures = {**imported, **measured_recall(texts), **measured_similarity(texts, dimensions)}
    print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
