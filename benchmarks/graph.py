"""Shortest paths in a graph store against plain networkx, and what adding to it costs.

Run: python -P benchmarks/graph.py [entities] [relationships]

`plain_ms` is networkx alone on a graph that it has already; `known_ms` the store's answer while the graph stays as it
is, and `changed_ms` after a change, when networkx has to be given the graph again; each the mean over the same pairs.
`loop_ms` is what a question about a changed graph takes of the loop's own time. Adding: `before_us` each before a
runtime, `attach_ms` all of them when a runtime takes the graph, `live_us` each in a runtime, many under way at once.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx

from refold import AgentConfig, AgentRuntime, ScriptedProvider
from refold.memory import GraphStore
from refold.memory.graph import copied

PAIRS = 10
LIVE = 2_000


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


async def measure(log: Path, entities: int, relationships: int) -> dict[str, float]:
    """Return the figures that the module describes."""
    draw = random.Random(1)
    names = [f"entity {number}" for number in range(entities)]
    edges = [(draw.choice(names), draw.choice(names), draw.uniform(0, 10)) for _ in range(relationships)]
    plain: nx.DiGraph[str] = nx.DiGraph()
    plain.add_nodes_from(names)
    plain.add_weighted_edges_from(edges)
    graph = GraphStore()

    def fill() -> None:
        for name in names:
            graph.add_entity(name)
        for source, target, weight in edges:
            graph.add_relationship(source, "k", target, weight)

    before_s = seconds(fill)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < PAIRS:
        pair = (draw.choice(names), draw.choice(names))
        if nx.has_path(plain, *pair):
            pairs.append(pair)
    runtime = AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), graph=graph, log=log, inbox_poll_s=0)
    start = time.perf_counter()
    async with runtime:
        attach_s = time.perf_counter() - start
        plain_s = seconds(lambda: [nx.single_source_dijkstra(plain, *pair) for pair in pairs])
        await graph.shortest_path(*pairs[0])
        known_s = changed_s = 0.0
        for pair in pairs:
            start = time.perf_counter()
            await graph.shortest_path(*pair)
            known_s += time.perf_counter() - start
        for number, pair in enumerate(pairs):
            await graph.add_entity(f"one more {number}")
            start = time.perf_counter()
            await graph.shortest_path(*pair)
            changed_s += time.perf_counter() - start
        loop_s = await graph.read(lambda state: min(seconds(lambda: copied(state)) for _ in range(5)))
        start = time.perf_counter()
        await asyncio.gather(*(graph.add_relationship("entity 1", f"k{number}", "entity 2") for number in range(LIVE)))
        live_s = time.perf_counter() - start
    return {
        "entities": entities,
        "relationships": relationships,
        "plain_ms": round(plain_s / PAIRS * 1000, 2),
        "known_ms": round(known_s / PAIRS * 1000, 2),
        "changed_ms": round(changed_s / PAIRS * 1000, 2),
        "ratio_known_to_plain": round(known_s / plain_s, 2),
        "ratio_changed_to_plain": round(changed_s / plain_s, 2),
        "loop_ms": round(loop_s * 1000, 2),
        "before_us": round(before_s / (entities + relationships) * 1e6, 1),
        "attach_ms": round(attach_s * 1000),
        "live_us": round(live_s / LIVE * 1e6, 1),
    }


def main() -> None:
    """Measure and print."""
    sizes = [int(given) for given in sys.argv[1:3]] or [10_000, 50_000]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder, "events.db"), *sizes)), indent=2))


if __name__ == "__main__":
    main()
