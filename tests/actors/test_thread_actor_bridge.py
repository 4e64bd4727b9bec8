"""Our actors and pykka's thread actors talk to each other, and nobody's loop freezes."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from refold.actors.actor import Actor
from refold.actors.actor_ref import ActorRef
from refold.actors.actor_system import ActorSystem
from refold.actors.clock import ManualClock
from refold.actors.errors import ActorStopped, AskTimeout


class Slow(pykka.ThreadingActor):
    """Answers once its gate is open; passes refs a message; raises an error it is sent."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.seen: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, ActorRef):
            message.tell("told from a thread actor")
            return message.ask("asked from a thread actor")
        if isinstance(message, Exception):
            raise message
        self.gate.wait(30)
        self.seen.append(message)
        return self.seen


class Echo(Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def on_receive(self, message: Any) -> Any:
        await asyncio.sleep(0)
        self.seen.append(message)
        return list(self.seen)


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def slow(gate: threading.Event) -> Iterator[pykka.ActorRef[Slow]]:
    ref = Slow.start(gate)
    yield ref
    gate.set()
    ref.stop()


async def test_a_thread_actor_uses_our_refs_as_they_are(slow: pykka.ActorRef[Slow]) -> None:
    async with ActorSystem() as system:
        echo = await system.start(Echo)
        answer = await system.bridge(slow).ask(echo)
        assert answer == ["told from a thread actor", "asked from a thread actor"]


async def test_asking_a_thread_actor_does_not_stop_the_loop(slow: pykka.ActorRef[Slow], gate: threading.Event) -> None:
    class Asker(Actor):
        async def on_receive(self, message: Any) -> Any:
            return await self.system.bridge(slow).ask(message)

    async with ActorSystem() as system:
        asker = await system.start(Asker)
        echo = await system.start(Echo)
        answer = asker.ask("slow question", block=False)
        assert await echo.ask("the loop goes on", block=False) == ["the loop goes on"]
        assert not answer.ready()
        gate.set()
        assert await answer == ["slow question"]


async def test_a_told_message_arrives_and_errors_come_back(slow: pykka.ActorRef[Slow], gate: threading.Event) -> None:
    gate.set()
    async with ActorSystem() as system:
        bridge = system.bridge(slow)
        bridge.tell("first")
        assert await bridge.ask("second") == ["first", "second"]
        with pytest.raises(ValueError, match="broken"):
            await bridge.ask(ValueError("broken"))


async def test_a_late_answer_does_not_hurt_the_thread_actor(slow: pykka.ActorRef[Slow], gate: threading.Event) -> None:
    clock = ManualClock()
    async with ActorSystem(clock=clock) as system:
        bridge = system.bridge(slow)
        answer = bridge.ask("slow question", timeout=1)
        failed = bridge.ask(ValueError("nobody waits for this"), timeout=1)
        await clock.advance(1)
        for late in (answer, failed):
            with pytest.raises(AskTimeout):
                await late
        gate.set()
        assert await bridge.ask("another") == ["slow question", "another"]


async def test_a_thread_actor_that_has_stopped_is_refused(slow: pykka.ActorRef[Slow], gate: threading.Event) -> None:
    gate.set()
    async with ActorSystem() as system:
        bridge = system.bridge(slow)
        await asyncio.to_thread(slow.stop)
        with pytest.raises(ActorStopped, match="Slow"):
            bridge.tell("hello")
        with pytest.raises(ActorStopped, match="Slow"):
            await bridge.ask("hello")
