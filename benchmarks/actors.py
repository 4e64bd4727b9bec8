"""Messages per second and the cost of an idle actor, against pykka's thread actors and a bare asyncio task.

Run: python -P benchmarks/actors.py [messages] [idle actors]

`limit` is one asyncio task that takes messages from a deque and, for an ask, settles a future of the loop: nothing that
delivers messages on this loop can be faster; both in messages for each second of CPU time. `pykka` is
`pykka.ThreadingActor`, told and asked from another thread, as `refold_from_thread` is, for each second that passes.
Prints one JSON object; `of_limit` and `of_pykka` are ratios of figures measured in the same run, best of three.
Idle actors are measured in a process of their own, by its resident memory: bare actors that have handled one message;
sessions of an agent that have had one run, all kept in memory; and as many sessions that are known to the log, with
only 1,000 of them live.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pykka

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.actors import Actor, ActorSystem, EventSourcedSystem
from refold.events.core.ids import StreamName
from refold.events.core.records import EncodedBatch
from refold.stores import SQLiteStore

MESSAGE = "a message"
IN_FLIGHT = 100
COPIES_AT_ONCE = 500


class Counting(Actor):
    """Counts messages, and replies with the count."""

    def __init__(self) -> None:
        self.count = 0

    def on_receive(self, message: Any) -> int:
        self.count += 1
        return self.count


class CountingAsync(Actor):
    """The same, with a handler that is `async def` and does not wait."""

    def __init__(self) -> None:
        self.count = 0

    async def on_receive(self, message: Any) -> int:
        self.count += 1
        return self.count


class CountingThread(pykka.ThreadingActor):
    """The same, in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_receive(self, message: Any) -> int:
        self.count += 1
        return self.count


class Limit:
    """One task, one deque: the least that can deliver a message on an event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._queue: deque[tuple[object, asyncio.Future[int] | None]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run())

    def put(self, message: object, reply: "asyncio.Future[int] | None" = None) -> None:
        self._queue.append((message, reply))
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    def ask(self, message: object) -> "asyncio.Future[int]":
        reply: asyncio.Future[int] = self._loop.create_future()
        self.put(message, reply)
        return reply

    async def _run(self) -> None:
        queue = self._queue
        while True:
            while queue:
                _, reply = queue.popleft()
                self.count += 1
                if reply is not None:
                    reply.set_result(self.count)
            self._wake = self._loop.create_future()
            await self._wake


async def told(tell: Callable[[object], None], drained: Callable[[], Awaitable[object]], messages: int) -> float:
    """Return tells per second, until the last one is handled."""
    start = time.process_time()
    for _ in range(messages):
        tell(MESSAGE)
    await drained()
    return messages / (time.process_time() - start)


async def asked(ask: Callable[[object], Awaitable[int]], messages: int) -> float:
    """Return asks per second, one at a time."""
    start = time.process_time()
    for _ in range(messages):
        await ask(MESSAGE)
    return messages / (time.process_time() - start)


async def asked_together(ask: Callable[[object], Awaitable[int]], messages: int) -> float:
    """Return asks per second, `IN_FLIGHT` at a time."""
    start = time.process_time()
    for _ in range(messages // IN_FLIGHT):
        for reply in [ask(MESSAGE) for _ in range(IN_FLIGHT)]:
            await reply
    return messages / (time.process_time() - start)


async def of_refold(messages: int, kind: type[Actor]) -> dict[str, float]:
    async with ActorSystem(mailbox_capacity=messages + 1) as system:
        ref = await system.start(kind)

        def ask(message: object) -> Awaitable[int]:
            return ref.ask(message, block=False)

        return {
            "tell": await told(ref.tell, lambda: ref.ask(MESSAGE, block=False), messages),
            "ask": await asked(ask, messages // 4),
            "ask_100_in_flight": await asked_together(ask, messages // 2),
        }


async def of_limit(messages: int) -> dict[str, float]:
    limit = Limit()
    await asyncio.sleep(0)
    rates = {
        "tell": await told(limit.put, lambda: limit.ask(MESSAGE), messages),
        "ask": await asked(limit.ask, messages // 4),
        "ask_100_in_flight": await asked_together(limit.ask, messages // 2),
    }
    limit.task.cancel()
    await asyncio.wait([limit.task])
    return rates


class Ref(Protocol):
    """What refs of Refold and of pykka have alike."""

    def tell(self, message: Any, /) -> None: ...

    def ask(self, message: Any, /, *, block: bool = True) -> Any: ...


def from_thread(ref: Ref, messages: int) -> dict[str, float]:
    """Return messages per second of an actor that does not live in this thread."""
    start = time.perf_counter()
    for _ in range(messages):
        ref.tell(MESSAGE)
    ref.ask(MESSAGE)
    tell = messages / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(messages // 20):
        ref.ask(MESSAGE)
    ask = messages // 20 / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(messages // 10 // IN_FLIGHT):
        pykka.get_all([ref.ask(MESSAGE, block=False) for _ in range(IN_FLIGHT)])
    together = messages // 10 / (time.perf_counter() - start)
    return {"tell": tell, "ask": ask, "ask_100_in_flight": together}


def of_pykka(messages: int) -> dict[str, float]:
    ref = CountingThread.start()
    rates = from_thread(ref, messages)
    ref.stop()
    return rates


def of_refold_from_thread(messages: int) -> dict[str, float]:
    with EventSourcedSystem(mailbox_capacity=messages + 1) as system:
        return from_thread(system.start(Counting), messages)


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the best rate of each kind."""
    return {name: max(run[name] for run in runs) for name in runs[0]}


def resident_bytes() -> int:
    """Return the memory of this process that is in use."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


async def idle_actors(count: int) -> tuple[float, int]:
    """Return CPU seconds and bytes for actors that have handled one message each."""
    async with ActorSystem(passivate_after_s=None, live_max=None) as system:
        system.register("counting", lambda _: Counting())
        before, start = resident_bytes(), time.process_time()
        for number in range(count):
            system.ref(f"counting/{number}").tell(MESSAGE)
            if number % IN_FLIGHT == 0:
                await asyncio.sleep(0)
        await system.ref(f"counting/{count - 1}").ask(MESSAGE, block=False)
        return time.process_time() - start, resident_bytes() - before


async def prepared_log(path: Path, count: int) -> None:
    """Write a log of so many sessions that have had one run each: one is run, the others are copies of it."""
    template = session_name(0)
    config = AgentConfig(model="scripted")
    async with AgentRuntime(config, provider=ScriptedProvider([say("Good morning.")]), log=path) as runtime:
        await (await runtime.session(template)).send("Hello")
        stored = await runtime.store.read_stream(StreamName(f"session/{template}"))
    batches = [
        (at, [item for item in stored if item.batch == at]) for at in dict.fromkeys(item.batch for item in stored)
    ]
    async with await SQLiteStore.open(path, durability="normal") as store:
        for first in range(1, count, COPIES_AT_ONCE):
            copies = [
                EncodedBatch(
                    stream=StreamName(f"session/{session_name(number)}"),
                    expected_version=version - 1,
                    at=events[0].at,
                    events=tuple(
                        item.data.replace(template.encode(), session_name(number).encode()) for item in events
                    ),
                    pending=events[-1].pending or (),
                )
                for number in range(first, min(first + COPIES_AT_ONCE, count))
                for version, events in batches
            ]
            await store.append(copies, {})


def session_name(number: int) -> str:
    """Return the id of a session in a prepared log."""
    return f"session-number-{number:07}"


async def idle_sessions(count: int, live_max: int | None) -> tuple[float, int]:
    """Return CPU seconds and bytes for sessions that are each read from the log and answered once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.db"
        await prepared_log(path, count)
        provider = ScriptedProvider([])
        async with AgentRuntime(
            AgentConfig(model="scripted"), provider=provider, log=path, live_max=live_max
        ) as runtime:
            await (await runtime.session(session_name(0))).history()
            before, start = resident_bytes(), time.process_time()
            for number in range(count):
                assert len(await (await runtime.session(session_name(number))).history()) == 2
            return time.process_time() - start, resident_bytes() - before


IDLE: dict[str, Callable[[int], Awaitable[tuple[float, int]]]] = {
    "actors": idle_actors,
    "sessions": lambda count: idle_sessions(count, max(1, count // 10)),  # As by default of 100,000.
    "sessions_all_live": lambda count: idle_sessions(count, None),
    "sessions_1000_live": lambda count: idle_sessions(count, 1_000),
}


def measured_apart(what: str, count: int) -> dict[str, float]:
    """Measure idle actors in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", __file__, "--idle", what, str(count)], check=True, capture_output=True, text=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--idle"]:
        count = int(sys.argv[3])
        measure = IDLE[sys.argv[2]]

        async def measured() -> tuple[float, int]:
            return await measure(count)

        seconds, taken = asyncio.run(measured())
        print(json.dumps({"count": count, "seconds": seconds, "bytes_each": taken / count}))
        return
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    limit = best([asyncio.run(of_limit(messages)) for _ in range(3)])
    thread = best([of_pykka(messages) for _ in range(3)])
    report: dict[str, object] = {}
    for name, kind in (("refold", Counting), ("refold_async_handler", CountingAsync)):
        rates = best([asyncio.run(of_refold(messages, kind)) for _ in range(3)])
        report[name] = {
            what: {"per_second": round(rate), "of_limit": round(rate / limit[what], 2)} for what, rate in rates.items()
        }
    rates = best([of_refold_from_thread(messages) for _ in range(3)])
    report["refold_from_thread"] = {
        what: {"per_second": round(rate), "of_pykka": round(rate / thread[what], 2)} for what, rate in rates.items()
    }
    report["limit"] = {what: round(rate) for what, rate in limit.items()}
    report["pykka"] = {what: round(rate) for what, rate in thread.items()}
    report["idle"] = {what: measured_apart(what, count) for what in IDLE}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
