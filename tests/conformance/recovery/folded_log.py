"""What each stream of a log adds up to, and what its stores answer: `folded_log.py LOG TIME` writes it as JSON."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from refold.actors import ManualClock
from refold.events.core.pure_core import evolve_all
from refold.inspection.kinds import KINDS
from refold.memory import DecayPolicy, EpisodicStore, GraphStore, RecallPolicy, SemanticStore, WorkingMemory
from refold.memory.stream_object import StreamObject
from refold.resilience import CircuitBreaker, Deduplicator
from refold.stores import EventStore, SQLiteStore


def as_json(value: object) -> Any:
    """Return plain data that is equal where two values are."""
    return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))


async def folded(log: EventStore) -> dict[str, Any]:
    """Return the state that each stream adds up to."""
    states: dict[str, Any] = {}
    for head in await log.list_streams():
        kind = KINDS[head.stream.partition("/")[0]]
        events = kind.codec.decode_all(await log.read_stream(head.stream))
        states[head.stream] = as_json(evolve_all(kind.core, events))
    return states


async def answers_of(stores: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stores say when they are asked."""
    return {
        "breaker": as_json(await stores["breaker"].report()),
        "memory": as_json(await stores["memory"].look("boss", "green tea number 3", 3)),
        "memory agents": await stores["memory"].agents(),
        "working": await stores["working"].items(),
        "working text": await stores["working"].prompt_text(),
        "graph": as_json([await stores["graph"].entities(), await stores["graph"].bfs("anna")]),
        "knowledge": as_json([await stores["knowledge"].entry(key) for key in await stores["knowledge"].keys()]),
        "dedup": as_json([await stores["dedup"].status(key) for key in ("invoice-17", "invoice-18", "invoice-19")]),
    }


async def main(log: str, now_us: int) -> None:
    clock = ManualClock(now_us)
    stores: dict[str, StreamObject[Any, Any, Any]] = {
        "memory": EpisodicStore(
            decay=DecayPolicy.exponential(half_life_hours=24), recall=RecallPolicy.hybrid(), capacity=4, clock=clock
        ),
        "working": WorkingMemory(2),
        "graph": GraphStore(),
        "knowledge": SemanticStore(dimension=3),
        "breaker": CircuitBreaker("weather", threshold=2, recovery_s=30, clock=clock),
        "dedup": Deduplicator("payments", ttl_s=3_600, clock=clock),
    }
    async with await SQLiteStore.open(log, read_only=True) as store:
        then = {name: await living.at(store) for name, living in stores.items()}
        found = {"states": await folded(store), "answers": await answers_of(then)}
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
