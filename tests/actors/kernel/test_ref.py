"""Refs: tell, ask, stop, from the loop and from threads."""

import asyncio
from typing import Any

import pytest

from refold.actors import Actor, ActorRef, ActorStopped, ActorSystem


class Counter(Actor):
    """Adds up; waits for an event it is sent; raises an error it is sent."""

    def __init__(self) -> None:
        self.total = 0
        self.waited = False

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        if isinstance(message, asyncio.Event):
            await message.wait()
            self.waited = True
        else:
            self.total += message
        return self.total

    def add_twice(self, amount: int) -> int:
        self.total += 2 * amount
        return self.total

    async def add_later(self, amount: int) -> int:
        await asyncio.sleep(0)
        self.total += amount
        return self.total


async def test_case_h12_stop_now_answers_what_is_queued_or_comes_later_and_cancels_the_handler_that_waits(
    system: ActorSystem,
) -> None:
    ref = await system.start(Counter)
    waiting = ref.ask(asyncio.Event(), block=False)
    await asyncio.sleep(0)
    answers = [ref.ask(1, block=False) for _ in range(1000)]
    stopped = ref.stop(block=False, now=True)
    late = ref.ask(1, block=False)
    assert await stopped
    for answer in (waiting, *answers, late):
        assert answer.ready()
        with pytest.raises(ActorStopped):
            await answer


async def test_who_asked_for_a_stop_is_answered_when_it_has_stopped_though_another_stopped_it_now(
    system: ActorSystem,
) -> None:
    gate = asyncio.Event()

    class Slow(Actor):
        async def on_receive(self, message: Any) -> None:
            await asyncio.Event().wait()

        async def on_stop(self) -> None:
            await gate.wait()

    ref = await system.start(Slow)
    ref.tell("wait")
    after_all = ref.stop(block=False)
    now = ref.stop(block=False, now=True)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [after_all.ready(), now.ready()] == [False, False]
    gate.set()
    assert await after_all
    assert await now


async def test_a_handler_that_swallows_the_cancellation_finishes_and_its_asker_is_answered(system: ActorSystem) -> None:
    class Stubborn(Actor):
        async def on_receive(self, message: Any) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
            return "finished all the same"

    ref = await system.start(Stubborn)
    answer = ref.ask("go", block=False)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await ref.stop(block=False, now=True)
    assert await answer == "finished all the same"


async def test_stop_now_ends_a_start_that_waits_and_answers_the_message_that_began_it(system: ActorSystem) -> None:
    class Starting(Actor):
        async def on_start(self) -> None:
            await self.start_child(Counter, address="counter/child")
            await asyncio.Event().wait()

    system.register("starting", lambda _: Starting())
    ref = system.ref("starting/1")
    answer = ref.ask("hello", block=False)
    for _ in range(5):
        await asyncio.sleep(0)
    assert "counter/child" in system.live()
    assert await ref.stop(block=False, now=True)
    with pytest.raises(ActorStopped):
        await answer
    assert system.live() == ()


async def test_stop_now_by_the_handler_itself_takes_effect_when_it_returns(system: ActorSystem) -> None:
    class Mortal(Actor):
        async def on_receive(self, message: Any) -> str:
            self.actor_ref.stop(block=False, now=True)
            await asyncio.sleep(0)
            return "my last words"

    ref = await system.start(Mortal)
    first, second = ref.ask(1, block=False), ref.ask(2, block=False)
    assert await first == "my last words"
    with pytest.raises(ActorStopped):
        await second


async def test_an_awaiter_that_is_cancelled_does_not_disturb_the_handler(system: ActorSystem) -> None:
    ref = await system.start(Counter)
    gate = asyncio.Event()

    async def ask() -> Any:
        return await ref.ask(gate, block=False)

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    gate.set()
    assert task.cancelled()
    assert await ref.ask(1, block=False) == 1
    assert await ref.proxy().waited


async def test_a_tell_from_a_thread_to_nobody_raises_there(system: ActorSystem) -> None:
    with pytest.raises(ActorStopped, match="nobody is there"):
        await asyncio.to_thread(system.ref("counter/1").tell, 1)
    with pytest.raises(ActorStopped, match="nobody is there"):
        await asyncio.to_thread(system.ref("counter/1").ask, 1)


async def test_a_told_message_that_comes_to_nothing_by_a_stop_is_logged_and_parked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ActorSystem() as system:
        ref = await system.start(Counter)
        ref.tell(1)
        await ref.stop(block=False, now=True)
    assert "a message of type int told to Counter/1 is set aside" in caplog.text


def test_a_thread_that_asks_a_closed_loop_gets_an_error_at_once() -> None:
    async def start() -> ActorRef:
        system = ActorSystem()
        return await system.start(Counter)

    ref = asyncio.run(start())
    with pytest.raises(ActorStopped, match="closed"):
        ref.ask(1)
    with pytest.raises(ActorStopped, match="closed"):
        ref.tell(1)
    assert ref.stop() is False


async def test_proxies_are_awaited_and_work_with_async_methods(system: ActorSystem) -> None:
    ref = await system.start(Counter)
    proxy = ref.proxy()
    assert await proxy.add_twice(2) == 4
    assert await proxy.add_later(1) == 5
    proxy.add_later.defer(2)
    assert await proxy.total == 7
