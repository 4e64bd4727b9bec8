"""Idle actors are let go, and nobody who talks to them can tell."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from refold.actors import Actor, ActorRef, ActorStopped, ActorSystem, ManualClock
from refold.events.core.errors import ConfigError


class Saved(Actor):
    """Counts messages in a store that outlives it, and notes its own life there."""

    def __init__(self, identifier: str, store: dict[str, int], life: list[str]) -> None:
        self.identifier = identifier
        self.store = store
        self.life = life
        self.busy = False

    def may_passivate(self) -> bool:
        return not self.busy

    def on_start(self) -> None:
        self.life.append(f"start {self.identifier}")

    def on_receive(self, message: Any) -> int:
        if isinstance(message, bool):
            self.busy = message
        self.store[self.identifier] = self.store.get(self.identifier, 0) + 1
        return self.store[self.identifier]

    async def on_passivate(self) -> None:
        await asyncio.sleep(0)
        self.life.append(f"passivate {self.identifier}")

    def on_stop(self) -> None:
        self.life.append(f"stop {self.identifier}")


class World:
    """A system with actors of the kind `saved`, on a clock of its own."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.store: dict[str, int] = {}
        self.life: list[str] = []
        self.system = ActorSystem(clock=self.clock, **settings)
        self.system.register("saved", lambda identifier: Saved(identifier, self.store, self.life))

    def ref(self, identifier: object) -> ActorRef:
        return self.system.ref(f"saved/{identifier}")

    async def send(self, identifier: object, message: object = "count") -> int:
        count: int = await self.ref(identifier).ask(message, block=False)
        return count

    async def close(self) -> None:
        await self.system.close()


async def test_an_actor_that_is_idle_for_long_is_let_go_and_made_anew_by_its_next_message() -> None:
    world = World(passivate_after_s=60)
    ref = world.ref("alice")
    assert await world.send("alice") == 1
    await world.clock.advance(59)
    assert world.system.live() == ("saved/alice",)
    await world.clock.advance(1)
    assert world.system.live() == ()
    assert ref.is_alive()
    assert await world.send("alice") == 2
    assert world.life == ["start alice", "passivate alice", "start alice"]
    await world.close()


async def test_a_message_begins_the_idle_time_anew() -> None:
    world = World(passivate_after_s=60)
    await world.send("alice")
    await world.send("bob")
    await world.clock.advance(40)
    await world.send("alice")
    await world.clock.advance(20)
    assert world.system.live() == ("saved/alice",)
    await world.clock.advance(40)
    assert world.system.live() == ()
    await world.close()


async def test_beyond_the_limit_those_go_that_were_idle_longest() -> None:
    world = World(passivate_after_s=None, live_max=3)
    for name in ("a", "b", "c", "a", "d", "e"):
        await world.send(name)
    await world.clock.settle()
    assert world.system.live() == ("saved/a", "saved/d", "saved/e")
    assert world.life.count("passivate b") == world.life.count("passivate c") == 1
    await world.close()


async def test_who_is_busy_stays_whatever_the_limit_says() -> None:
    world = World(passivate_after_s=1, live_max=2)
    await world.send("a", True)
    for name in ("b", "c", "d"):
        await world.send(name)
    await world.clock.advance(10)
    assert world.system.live() == ("saved/a",)
    await world.send("a", False)
    await world.clock.advance(1)
    assert world.system.live() == ()
    await world.close()


async def test_by_itself_an_actor_is_not_let_go() -> None:
    class Plain(Actor):
        def on_receive(self, message: Any) -> object:
            return message

    async with ActorSystem(clock=(clock := ManualClock()), passivate_after_s=1, live_max=1) as system:
        system.register("plain", lambda _: Plain())
        for number in range(5):
            await system.ref(f"plain/{number}").ask("hello", block=False)
        await clock.advance(100)
        assert len(system.live()) == 5


async def test_what_was_started_by_a_call_or_has_children_or_work_stays() -> None:
    class Parent(Actor):
        def may_passivate(self) -> bool:
            return True

        async def on_receive(self, message: Any) -> Any:
            if message == "child":
                await self.start_child(Saved, "child", {}, [], address="child/1")
            if message == "work":
                self.spawn(asyncio.Event().wait())

    clock = ManualClock()
    async with ActorSystem(clock=clock, passivate_after_s=1) as system:
        system.register("parent", lambda _: Parent())
        await system.start(Saved, "explicit", {}, [], address="saved/explicit")
        for kind in ("child", "work", "nothing"):
            await system.ref(f"parent/{kind}").ask(kind, block=False)
        await clock.advance(100)
        assert set(system.live()) == {"saved/explicit", "parent/child", "child/1", "parent/work"}


async def test_messages_that_come_while_an_actor_goes_are_handled_by_the_next_one_in_order() -> None:
    world = World(passivate_after_s=1)
    await world.send("alice")
    advancing = asyncio.ensure_future(world.clock.advance(1))
    for _ in range(1_000):
        if world.system.passivation.going:
            break
        await asyncio.sleep(0)
    answers = []
    for _ in range(5):
        answers.append(world.ref("alice").ask("count", block=False))
        await asyncio.sleep(0)
    assert [await answer for answer in answers] == [2, 3, 4, 5, 6]
    assert world.life == ["start alice", "passivate alice", "start alice"]
    await advancing
    await world.close()


async def test_while_nothing_is_idle_there_is_no_timer() -> None:
    world = World(passivate_after_s=60)
    assert world.clock.waiting() == ()
    await world.send("alice")
    assert world.clock.waiting()[-1] == 60
    await world.clock.advance(60)
    assert world.clock.waiting() == ()
    await world.close()


async def test_an_error_while_an_actor_is_let_go_is_reported_and_it_goes() -> None:
    class Clinging(Saved):
        async def on_passivate(self) -> None:
            raise ValueError("not now")

    clock = ManualClock()
    async with ActorSystem(clock=clock, passivate_after_s=1) as system:
        system.register("saved", lambda identifier: Clinging(identifier, {}, []))
        await system.ref("saved/a").ask("count", block=False)
        await clock.advance(1)
        assert system.live() == ()
        assert [(failure.during, failure.message) for failure in system.failures] == [("stop", "not now")]


async def test_a_stop_while_an_actor_goes_is_answered() -> None:
    world = World(passivate_after_s=1)
    await world.send("alice")
    advancing = asyncio.ensure_future(world.clock.advance(1))
    await asyncio.sleep(0)
    stops = [world.ref("alice").stop(block=False, now=now) for now in (False, True)]
    await advancing
    assert [await stop for stop in stops] == [True, True] or world.system.live() == ()
    await world.close()


async def test_closing_lets_nobody_go_any_more() -> None:
    world = World(passivate_after_s=1)
    await world.send("alice")
    await world.close()
    await world.clock.advance(10)
    assert world.life == ["start alice", "stop alice"]
    with pytest.raises(ActorStopped):
        world.ref("alice").tell("hello")


@pytest.mark.parametrize("settings", [{"passivate_after_s": -1}, {"live_max": 0}, {"mailbox_capacity": 0}])
async def test_limits_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ActorSystem(**settings)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_at_random_no_message_is_lost_or_handled_twice(seed: int) -> None:
    chance = random.Random(seed)
    world = World(passivate_after_s=chance.choice([None, 1, 5]), live_max=chance.choice([None, 1, 3, 10]))
    asked: list[tuple[str, Any]] = []
    told: dict[str, int] = {}

    async def ask(name: str) -> None:
        told[name] = told.get(name, 0) + 1
        asked.append((name, world.ref(name).ask("count", block=False)))

    async def tell(name: str) -> None:
        told[name] = told.get(name, 0) + 1
        world.ref(name).tell("count")

    async def stop(name: str) -> None:
        world.ref(name).stop(block=False)

    async def wait(_: str) -> None:
        await world.clock.advance(chance.choice([0, 0.5, 1, 7]))

    async def step(_: str) -> None:
        await asyncio.sleep(0)

    actions: list[Callable[[str], Any]] = [ask, ask, tell, tell, stop, wait, step, step]
    for _ in range(150):
        await chance.choice(actions)(chance.choice("abcdefghijkl"))
    answers: dict[str, list[int]] = {}
    for name, answer in asked:
        answers.setdefault(name, []).append(await answer)
    for counts in answers.values():
        assert counts == sorted(set(counts))
    await world.close()
    assert world.store == told


class Undecided(Actor):
    """Cannot say whether it may be let go."""

    def may_passivate(self) -> bool:
        raise LookupError("who knows")

    def on_receive(self, message: Any) -> Any:
        return message


class UndecidedWaiter(Undecided):
    async def on_receive(self, message: Any) -> Any:
        await asyncio.sleep(0)
        return message


@pytest.mark.parametrize("kind", [Undecided, UndecidedWaiter])
async def test_an_actor_that_cannot_say_whether_it_may_be_let_go_stays_and_that_is_reported(kind: type[Actor]) -> None:
    system = ActorSystem(clock=ManualClock(), passivate_after_s=0, live_max=1)
    system.register("undecided", lambda _: kind())
    for number in range(3):
        assert await system.ref("undecided/one").ask(number, block=False) == number
        await asyncio.sleep(0)
    assert system.live() == ("undecided/one",)
    assert {failure.message for failure in system.failures} == {"who knows"}
    await system.close()
