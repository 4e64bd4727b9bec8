"""The directory of addresses, starting and closing."""

import asyncio
import logging
from typing import Any

import pykka
import pytest

from refold.actors import Actor, ActorStopped, ActorSystem, ManualClock, WouldDeadlock
from refold.events.core.errors import ConfigError


class Named(Actor):
    """Replies with the identifier it was made with and the number of messages so far."""

    def __init__(self, identifier: str) -> None:
        self.identifier = identifier
        self.count = 0

    def on_receive(self, message: Any) -> Any:
        self.count += 1
        return self.identifier, self.count


class Waiting(Actor):
    """Waits for the events that it is sent."""

    async def on_receive(self, message: asyncio.Event) -> str:
        await message.wait()
        return "waited"


async def test_a_registered_kind_is_started_by_its_first_message(system: ActorSystem) -> None:
    system.register("named", Named)
    assert system.ref("named/alice").is_alive()
    assert system.live() == ()
    assert await system.ref("named/alice").ask("hello", block=False) == ("alice", 1)
    assert await system.ref("named/a/b/c").ask("hello", block=False) == ("a/b/c", 1)
    assert await system.ref("named/alice").ask("hello", block=False) == ("alice", 2)
    assert system.live() == ("named/alice", "named/a/b/c")


async def test_a_message_after_a_clean_stop_starts_a_fresh_instance(system: ActorSystem) -> None:
    system.register("named", Named)
    ref = system.ref("named/alice")
    assert await ref.ask("hello", block=False) == ("alice", 1)
    before = ref.ask("before the stop", block=False)
    stopped = ref.stop(block=False)
    after = [ref.ask("after the stop", block=False) for _ in range(2)]
    assert await before == ("alice", 2)
    assert await stopped
    assert [await answer for answer in after] == [("alice", 1), ("alice", 2)]
    await ref.stop(block=False)
    assert system.live() == ()
    ref.tell("wake up")
    assert await ref.ask("hello", block=False) == ("alice", 2)


async def test_stopping_what_was_never_started_starts_nothing() -> None:
    made: list[str] = []

    def make(identifier: str) -> Actor:
        made.append(identifier)
        return Named(identifier)

    async with ActorSystem() as system:
        system.register("named", make)
        assert await system.ref("named/alice").stop(block=False) is False
        system.ref("named/bob").tell("hello")
        assert await system.ref("named/bob").stop(block=False, now=True) is True
    assert made == []


async def test_an_address_without_actor_and_kind_is_refused_at_once(system: ActorSystem) -> None:
    system.register("named", Named)
    for address in ("unknown/alice", "named", "named/", "/"):
        ref = system.ref(address)
        assert not ref.is_alive()
        with pytest.raises(ActorStopped, match="nobody is there"):
            await ref.ask("hello", block=False)
        with pytest.raises(ActorStopped, match="register its kind"):
            ref.tell("hello")


async def test_a_kind_is_a_word_and_is_registered_once(system: ActorSystem) -> None:
    system.register("named", Named)
    for kind in ("named", "", "a/b"):
        with pytest.raises(ConfigError):
            system.register(kind, Named)


async def test_an_explicit_start_has_the_given_address_or_a_made_up_one(system: ActorSystem) -> None:
    ref = await system.start(Named, "alice", address="people/alice")
    assert ref.address == "people/alice"
    assert await ref.ask("hello", block=False) == ("alice", 1)
    with pytest.raises(ConfigError, match="in use"):
        await system.start(Named, "bob", address="people/alice")
    assert [(await system.start(Named, "x")).address for _ in range(2)] == ["Named/1", "Named/2"]


async def test_two_systems_live_side_by_side() -> None:
    async with ActorSystem() as one, ActorSystem() as two:
        for system in (one, two):
            system.register("named", Named)
        assert one.ref("named/alice") != two.ref("named/alice")
        assert await one.ref("named/alice").ask("hello", block=False) == ("alice", 1)
        assert await two.ref("named/alice").ask("hello", block=False) == ("alice", 1)
        await one.close()
        assert not one.ref("named/alice").is_alive()
        assert await two.ref("named/alice").ask("hello", block=False) == ("alice", 2)
        assert pykka.ActorRegistry.get_all() == []


async def test_an_async_actor_has_no_task_once_it_is_idle(system: ActorSystem) -> None:
    ref = await system.start(Waiting)
    gate = asyncio.Event()
    answer = ref.ask(gate, block=False)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 2
    gate.set()
    await answer
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_system_is_made_inside_a_loop_with_settings_that_can_work() -> None:
    with pytest.raises(ConfigError, match="running event loop"):
        await asyncio.to_thread(ActorSystem)
    with pytest.raises(ConfigError, match="ask_timeout_s"):
        ActorSystem(ask_timeout_s=0)
    with pytest.raises(ConfigError, match="restarts_max"):
        ActorSystem(restarts_max=-1)


async def test_closing_drains_mailboxes_and_then_refuses_everything() -> None:
    system = ActorSystem()
    system.register("named", Named)
    ref = system.ref("named/alice")
    answers = [ref.ask("hello", block=False) for _ in range(200)]
    assert await system.close() == ()
    assert [(await answer)[1] for answer in answers] == list(range(1, 201))
    with pytest.raises(ActorStopped, match="closed"):
        ref.tell("hello")
    with pytest.raises(ActorStopped, match="closed"):
        await ref.ask("hello", block=False)
    with pytest.raises(ActorStopped, match="closing"):
        await system.start(Named, "bob")
    assert not ref.is_alive()
    assert await system.close() == ()


async def test_closing_stops_what_was_started_first_last() -> None:
    stopped: list[str] = []

    class Service(Actor):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_receive(self, message: Any) -> str:
            return f"{self.name} still works"

        async def on_stop(self) -> None:
            if self.name != "journal":
                answer = await self.system.ref("service/journal").ask("write this", block=False)
                stopped.append(f"{self.name}: {answer}")
            else:
                stopped.append("journal")

    async with ActorSystem() as system:
        system.register("session", Service)
        await system.start(Service, "journal", address="service/journal")
        await system.start(Service, "index", address="service/index")
        system.ref("session/alice").tell("hello")
    assert stopped == ["alice: journal still works", "index: journal still works", "journal"]


async def test_closing_cancels_what_does_not_end_within_the_grace_period(clock: ManualClock) -> None:
    system = ActorSystem(clock=clock)
    ref = await system.start(Waiting)
    hanging = ref.ask(asyncio.Event(), block=False)
    queued = ref.ask(asyncio.Event(), block=False)
    closing = asyncio.create_task(system.close(2))
    await clock.advance(1.9)
    assert not closing.done()
    assert not hanging.ready()
    await clock.advance(0.1)
    assert closing.done()
    assert await closing == ()
    for answer in (hanging, queued):
        with pytest.raises(ActorStopped):
            await answer


async def test_closing_abandons_and_names_what_never_ends(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(Actor):
        async def on_stop(self) -> None:
            await asyncio.Event().wait()

    clock = ManualClock()
    system = ActorSystem(clock=clock)
    await system.start(Hanging, address="bad/1")
    await system.start(Waiting, address="good/1")
    closing = asyncio.create_task(system.close(2))
    await clock.advance(3)
    assert await closing == ("bad/1",)
    assert "bad/1" in caplog.text
    await clock.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_closing_that_is_cancelled_leaves_nobody_waiting() -> None:
    system = ActorSystem()
    ref = await system.start(Waiting)
    answer = ref.ask(asyncio.Event(), block=False)
    closing = asyncio.create_task(system.close(1000))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ActorStopped):
        await answer
    assert system.live() == ()


async def test_closing_inside_a_handler_is_refused(system: ActorSystem) -> None:
    class Closer(Actor):
        async def on_receive(self, message: Any) -> Any:
            return await self.system.close()

    ref = await system.start(Closer)
    with pytest.raises(WouldDeadlock, match="Closer/1"):
        await ref.ask("close", block=False)
    assert ref.is_alive()


async def test_nothing_is_logged_per_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="refold")
    async with ActorSystem() as system:
        system.register("named", Named)
        for _ in range(10):
            await system.ref("named/alice").ask("hello", block=False)
    assert caplog.records == []
