"""An actor system with a log: who owns the log, and in which order things end."""

import asyncio
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from refold.actors import Actor, ActorStopped, ActorSystem, EventSourcedSystem, ManualClock, WouldDeadlock
from refold.actors.system import SystemOptions
from refold.events import Effect, Event, PureCore, State
from refold.events.core.errors import ConfigError, LogInUse, PersistenceError
from refold.events.core.pure_core import keys_of
from refold.stores import InMemoryStore, SQLiteStore


class Ring(msgspec.Struct, frozen=True):
    pass


class Rang(Event, frozen=True, kw_only=True, tag="bell.rang.v1"):
    pass


class Answered(Event, frozen=True, kw_only=True, tag="bell.answered.v1"):
    pass


class Answer(msgspec.Struct, frozen=True):
    pass


class Rings(State):
    open: int = 0


class Bell(PureCore[Rings, Ring | Answer, Rang | Answered]):
    def admit(self, state: Rings, command: Ring | Answer) -> Rang | Answered:
        return Rang() if isinstance(command, Ring) else Answered()

    def evolve(self, state: Rings, event: Rang | Answered) -> Rings:
        state.open += 1 if isinstance(event, Rang) else -1
        return state

    def pending(self, state: Rings) -> list[Effect]:
        return [Effect(key="answer")] if state.open else []


class Plain(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


async def test_what_was_acknowledged_is_there_when_the_log_is_opened_again(tmp_path: Path) -> None:
    for version in range(1, 4):
        async with EventSourcedSystem(tmp_path / "log.db", durability="normal") as system:
            bells = await system.host("bell", Bell)
            assert (await bells.ask("door", Ring())).version == version
    async with await SQLiteStore.open(tmp_path / "log.db", read_only=True) as store:
        assert len(await store.read_stream("bell/door")) == 3


async def test_a_log_has_one_owner_and_is_free_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventSourcedSystem(path) as system:
        with pytest.raises(LogInUse):
            async with EventSourcedSystem(path, wait_for_log_s=0):
                pass
        assert system.store.name == str(path)
    async with EventSourcedSystem(path, wait_for_log_s=0):
        pass


async def test_plain_actors_live_beside_event_sourced_ones() -> None:
    async with EventSourcedSystem() as system:
        plain = await system.start(Plain)
        assert await plain.ask("hello", block=False) == "hello"


async def test_a_log_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    system = EventSourcedSystem(tmp_path / "no such folder" / "log.db")
    with pytest.raises(PersistenceError):
        await system.__aenter__()
    with pytest.raises(ConfigError, match="not open"):
        await system.host("bell", Bell)
    assert await system.close() == ()


async def test_an_open_system_is_not_opened_again() -> None:
    async with EventSourcedSystem() as system:
        with pytest.raises(ConfigError, match="open already"):
            await system.__aenter__()


async def test_a_store_of_the_callers_own_stays_open() -> None:
    class Own(InMemoryStore):
        closed = False

        async def close(self) -> None:
            self.closed = True

    store = Own()
    async with EventSourcedSystem(store) as system:
        await (await system.host("bell", Bell)).ask("door", Ring())
    assert (store.closed, len(await store.read_stream("bell/door"))) == (False, 1)


async def test_the_end_waits_for_work_and_records_what_it_brings() -> None:
    gate, begun, store, clock = asyncio.Event(), asyncio.Event(), InMemoryStore(), ManualClock()

    async def answer(effect: Effect) -> Answer:
        begun.set()
        await gate.wait()
        return Answer()

    async with EventSourcedSystem(store, clock=clock) as system:
        bells = await system.host("bell", Bell, perform=answer)
        await bells.ask("door", Ring())
        await begun.wait()
        closing = asyncio.create_task(system.close())
        other = asyncio.create_task(system.close())
        await clock.settle()
        assert not closing.done()
        gate.set()
        assert await closing == await other == ()
    assert len(await store.read_stream("bell/door")) == 2
    with pytest.raises(ActorStopped):
        await bells.ask("door", Ring())


async def test_work_that_does_not_end_within_the_grace_is_left_to_the_next_start() -> None:
    clock, store, cancelled = ManualClock(), InMemoryStore(), list[str]()

    async def hang(effect: Effect) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(effect.key)

    system = EventSourcedSystem(store, clock=clock, close_grace_s=5)
    async with system:
        bells = await system.host("bell", Bell, perform=hang)
        await bells.ask("door", Ring())
        await clock.settle()
        closing = asyncio.create_task(system.close())
        await clock.advance(4.9)
        assert (closing.done(), cancelled) == (False, [])
        await clock.advance(0.2)
        assert (await closing, cancelled) == ((), ["answer"])
    head = await store.head("bell/door")
    assert head is not None
    assert keys_of(head.pending) == ("answer",)


async def test_who_is_cancelled_while_closing_gives_up_the_grace_and_not_the_end(tmp_path: Path) -> None:
    async def hang(effect: Effect) -> None:
        await asyncio.Event().wait()

    clock = ManualClock()
    system = EventSourcedSystem(tmp_path / "log.db", clock=clock)
    await system.__aenter__()
    await (await system.host("bell", Bell, perform=hang)).ask("door", Ring())
    closing = asyncio.create_task(system.close())
    await clock.settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with EventSourcedSystem(tmp_path / "log.db", wait_for_log_s=0):
        pass


async def test_closing_from_inside_a_handler_is_refused_and_nothing_stops() -> None:
    class Closer(Actor):
        async def on_receive(self, message: Any) -> Any:
            assert isinstance(self.system, EventSourcedSystem)
            await self.system.close()

    async with EventSourcedSystem() as system:
        closer = await system.start(Closer)
        with pytest.raises(WouldDeadlock):
            await closer.ask("close", block=False)
        bells = await system.host("bell", Bell)
        assert (await bells.ask("door", Ring())).version == 1


def test_every_setting_of_an_actor_system_is_one_of_this_too() -> None:
    parameters = inspect.signature(ActorSystem.__init__).parameters.values()
    settings = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    assert set(SystemOptions.__annotations__) == settings
    assert set(get_type_hints(SystemOptions)) == settings
