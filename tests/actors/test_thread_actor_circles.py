"""Circles that go through a thread actor, which blocks its thread where ours would await: nobody waits for ever."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from refold import AskCycle, AskTimeout
from refold.actors import Actor, ActorRef, ActorSystem, ManualClock
from tests.actors.contract.worlds import RefoldWorld

LONG_S = 30


class Relay(Actor):
    """Asks along a path of refs and bridges; counts what it handles."""

    def __init__(self) -> None:
        self.handled = 0

    async def on_receive(self, message: Any) -> Any:
        self.handled += 1
        if not isinstance(message, tuple):
            return self.handled if message == "count" else message
        target, *rest = message
        onward = tuple(rest) if len(rest) > 1 else rest[0]
        if isinstance(target, ActorRef):
            return await target.ask(onward, block=False)
        return await self.system.bridge(target).ask(onward)


class ThreadRelay(pykka.ThreadingActor):
    """Asks along a path of refs, blocking; counts what it handles; says when it has begun, and waits for its gate."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.begun = threading.Event()
        self.handled = 0

    def on_receive(self, message: Any) -> Any:
        self.handled += 1
        self.begun.set()
        self.gate.wait(LONG_S)
        if not isinstance(message, tuple):
            return self.handled if message == "count" else message
        target, *rest = message
        return target.ask(tuple(rest) if len(rest) > 1 else rest[0])


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def thread_relays(gate: threading.Event) -> Iterator[list[Any]]:
    refs = [ThreadRelay.start(gate) for _ in range(2)]
    yield refs
    gate.set()
    for ref in refs:
        ref.stop()


async def test_a_circle_of_one_of_ours_and_a_thread_actor_is_found(
    thread_relays: list[Any], gate: threading.Event
) -> None:
    gate.set()
    async with ActorSystem(clock=ManualClock()) as system:
        ours, thread = await system.start(Relay), thread_relays[0]
        with pytest.raises(AskCycle, match=r"ThreadRelay.* -> Relay/1 -> ThreadRelay"):
            await ours.ask((thread, ours, "never handled"), block=False)
        assert await ours.ask("count", block=False) == 2
        assert await system.bridge(thread).ask("count") == 2


async def test_a_circle_through_two_thread_actors_is_found_where_ours_stand_between_them(
    thread_relays: list[Any], gate: threading.Event
) -> None:
    gate.set()
    async with ActorSystem(clock=ManualClock()) as system:
        one, two = await system.start(Relay), await system.start(Relay)
        first, second = thread_relays
        with pytest.raises(AskCycle):
            await one.ask((first, two, second, one, "never handled"), block=False)


async def test_waiting_for_a_thread_actor_that_waits_for_the_one_who_waits_is_found(
    thread_relays: list[Any], gate: threading.Event
) -> None:
    """The message that would close the circle is queued behind another, and is never handled."""
    gate.set()
    thread = thread_relays[0]
    turn = asyncio.Event()

    class Between(Relay):
        async def on_receive(self, message: Any) -> Any:
            answer = message.ask("handled in the end", block=False)
            turn.set()
            return await answer

    class Late(Relay):
        async def on_receive(self, message: Any) -> Any:
            if isinstance(message, tuple):
                await turn.wait()
            return await super().on_receive(message)

    async with ActorSystem(clock=ManualClock()) as system:
        late, between = await system.start(Late), await system.start(Between)
        waits = late.ask((thread, "never handled"), block=False)
        blocks = system.bridge(thread).ask((between, late))
        with pytest.raises(AskCycle):
            await waits
        assert await blocks == "handled in the end"
        assert await system.bridge(thread).ask("count") == 2


async def test_many_who_wait_for_one_thread_actor_are_no_circle(
    thread_relays: list[Any], gate: threading.Event
) -> None:
    gate.set()
    async with ActorSystem(clock=ManualClock()) as system:
        one, two, thread = await system.start(Relay), await system.start(Relay), thread_relays[0]
        answers = [one.ask((thread, two, number), block=False) for number in range(20)]
        more = [system.bridge(thread).ask((two, number)) for number in range(20)]
        assert [await answer for answer in answers] == list(range(20))
        assert [await answer for answer in more] == list(range(20))


async def test_a_circle_that_cannot_be_seen_ends_in_time(thread_relays: list[Any], gate: threading.Event) -> None:
    """One thread actor asks the other through pykka's own ref, which says nothing of who waits."""
    clock = ManualClock()
    async with ActorSystem(clock=clock, ask_timeout_s=30) as system:
        ours = await system.start(Relay)
        first, second = thread_relays
        begun = second.proxy().begun.get()
        answer = ours.ask((first, second, ours, "handled when it is too late"), block=False)
        gate.set()
        await asyncio.to_thread(begun.wait, LONG_S)
        await clock.advance(30)
        with pytest.raises(AskTimeout):
            await answer
        assert await ours.ask("still there", block=False) == "still there"


async def test_a_thread_actor_is_no_part_of_what_it_handled_before(
    thread_relays: list[Any], gate: threading.Event
) -> None:
    gate.set()
    async with ActorSystem(clock=ManualClock()) as system:
        ours, thread = await system.start(Relay), thread_relays[0]
        assert await system.bridge(thread).ask((ours, "first")) == "first"
        assert await asyncio.to_thread(thread.ask, (ours, "asked by a thread")) == "asked by a thread"
        assert await ours.ask((thread, "second"), block=False) == "second"


async def test_what_a_thread_actor_began_is_no_part_of_what_it_handles_later(gate: threading.Event) -> None:
    go, busy = threading.Event(), threading.Event()
    answers: list[Any] = []

    class Starter(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            if callable(message):
                thread = threading.Thread(target=contextvars.copy_context().run, args=(message,))
                thread.start()
                return thread
            busy.set()
            return gate.wait(LONG_S)

    starter: Any = Starter.start()
    async with ActorSystem(clock=ManualClock()) as system:
        ours = await system.start(Relay)

        def ask_later() -> None:
            go.wait(LONG_S)
            try:
                answers.append(ours.ask("asked by what it began"))
            except AskCycle as error:
                answers.append(error)

        thread = await system.bridge(starter).ask(ask_later)
        starter.tell("wait")
        await asyncio.to_thread(busy.wait, LONG_S)
        waits = ours.ask((starter, "wait"), block=False)
        for _ in range(5):
            await asyncio.sleep(0)
        go.set()
        for _ in range(50):  # turns in which its ask arrives; correct code does not need them
            await asyncio.to_thread(ours.is_alive)
        gate.set()
        assert await waits is True
        await asyncio.to_thread(thread.join)
        assert answers == ["asked by what it began"]
    await asyncio.to_thread(starter.stop)


def test_a_circle_through_two_systems_ends(request: pytest.FixtureRequest) -> None:
    clock = ManualClock()
    here, there = RefoldWorld(clock=clock, ask_timeout_s=30), RefoldWorld()
    for world in (here, there):
        request.addfinalizer(world.end)
    begun = threading.Event()

    class Here(Actor):
        async def on_receive(self, message: Any) -> Any:
            return await message.ask(self.actor_ref, block=False) if isinstance(message, ActorRef) else message

    class There(Actor):
        async def on_receive(self, message: Any) -> Any:
            answer = message.ask("closes the circle", block=False)
            begun.set()
            return await answer

    one, other = here.run(here.system.start(Here)), there.run(there.system.start(There))
    answer = one.ask(other, block=False)
    assert begun.wait(LONG_S)
    here.run(clock.advance(30))
    with pytest.raises((AskCycle, AskTimeout)):
        answer.get(timeout=LONG_S)
    assert one.ask("still there") == "still there"
