"""Every ask comes to an end, for any way actors treat each other, and a closed system leaves nothing behind."""

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import pytest

from refold.actors import Actor, ActorFuture, ActorSystem, ManualClock
from refold.events.core.errors import CommandRejected, RefoldError

STARTED = ("started/a", "started/b")
ADDRESSES = (*(f"node/{name}" for name in "abcdefgh"), *STARTED)


class Order(msgspec.Struct, frozen=True):
    """What a node is to do, and whom it is to send what is left of it."""

    what: tuple[tuple[str, str], ...]


class Node(Actor):
    """Does what its orders say."""

    def __init__(self, chance: random.Random, shed: bool) -> None:
        self.chance = chance
        self.mailbox_capacity = 2 if shed else None
        self.handler_timeout_s = chance.choice([None, None, 3.0])

    def may_passivate(self) -> bool:
        return True

    async def on_start(self) -> None:
        await asyncio.sleep(0)
        if self.chance.random() < 0.1:
            raise RuntimeError("cannot start today")

    async def on_receive(self, message: Order) -> object:
        if not message.what:
            return "done"
        (action, address), rest = message.what[0], Order(message.what[1:])
        ref = self.system.ref(address)
        match action:
            case "ask":
                return await ref.ask(rest, block=False, timeout=self.chance.choice([None, 1.0]))
            case "tell":
                ref.tell(rest)
            case "fail":
                raise ValueError("as ordered")
            case "refuse":
                raise CommandRejected("as ordered")
            case "hang":
                await asyncio.Event().wait()
            case "cancelled":
                raise asyncio.CancelledError
            case "exit":
                raise SystemExit
            case "stop":
                ref.stop(block=False)
            case "stop now":
                ref.stop(block=False, now=True)
            case "await stop":
                await ref.stop(block=False)
            case "sleep":
                await self.system.clock.sleep(self.chance.choice([0.5, 5.0, 1e6]))
            case "child":
                child = await self.start_child(Node, self.chance, False)
                return await child.ask(rest, block=False)
            case "work":
                self.spawn(self.work(address, rest))
        return action

    async def work(self, address: str, rest: Order) -> None:
        await self.system.ref(address).ask(rest, block=False)

    async def on_stop(self) -> None:
        await asyncio.sleep(0)


ACTIONS = (
    *("ask", "ask", "ask", "tell", "fail", "refuse", "cancelled", "exit", "hang"),
    *("stop", "stop now", "await stop", "sleep", "child", "work"),
)
EXPECTED = (RefoldError, RuntimeError, ValueError, TimeoutError)


@pytest.mark.parametrize("seed", range(12))
async def test_every_ask_ends(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    chance = random.Random(seed)
    clock = ManualClock()
    system = ActorSystem(
        clock=clock,
        ask_timeout_s=10,
        restarts_max=chance.choice([0, 1, 5]),
        passivate_after_s=chance.choice([None, 2]),
        live_max=chance.choice([None, 3]),
        mailbox_capacity=chance.choice([2, 10_000]),
    )
    shed = chance.random() < 0.3
    system.register("node", lambda _: Node(chance, shed))
    for address in STARTED:
        with contextlib.suppress(RuntimeError):  # It cannot start today.
            await system.start(Node, chance, shed, address=address)
    asked: list[ActorFuture[Any]] = []
    for _ in range(60):
        steps = tuple((chance.choice(ACTIONS), chance.choice(ADDRESSES)) for _ in range(chance.randrange(6)))
        asked.append(system.ref(chance.choice(ADDRESSES)).ask(Order(steps), block=False))
        if chance.random() < 0.3:
            await clock.advance(chance.choice([0, 0.5, 4]))
        if chance.random() < 0.2:
            asked.append(system.ref(chance.choice(ADDRESSES)).stop(block=False, now=chance.random() < 0.5))
        if chance.random() < 0.1:
            for address in ADDRESSES:
                system.forgive(address)
    if chance.random() < 0.5:
        await clock.advance(30)
        assert all(future.ready() for future in asked)  # By its end or its timeout.
    closing = asyncio.ensure_future(system.close())
    await clock.advance(10)
    assert await closing == ()
    assert all(future.ready() for future in asked)
    for future in asked:
        try:
            assert await future in ("done", True, False, *ACTIONS)
        except EXPECTED:
            continue
    assert system.live() == ()
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
