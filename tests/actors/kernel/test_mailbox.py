"""Full mailboxes, messages that come to nothing, and handlers that take too long."""

import asyncio
import contextvars
import threading
from functools import partial
from typing import Any

import pytest

from refold.actors import Actor, ActorFuture, ActorRef, ActorStopped, ActorSystem, ManualClock
from refold.actors.kernel.ref import CrossThreadQueue, Vital
from refold.events.core.errors import BackpressureShed


class Result(Vital, frozen=True):
    """What a sender waits for that was accepted before."""

    number: int


class Gated(Actor):
    """Notes each message once its gate is open."""

    mailbox_capacity = 3

    def __init__(self, gate: asyncio.Event, seen: list[object]) -> None:
        self.gate = gate
        self.seen = seen

    async def on_receive(self, message: Any) -> Any:
        await self.gate.wait()
        self.seen.append(message)
        return message


class Failing(Actor):
    """Fails on what it is sent, if that is an error."""

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        return message


async def test_a_full_mailbox_refuses_the_next_message_and_says_so_to_who_told_and_who_asked() -> None:
    gate, seen = asyncio.Event(), list[object]()
    async with ActorSystem() as system:
        ref = await system.start(Gated, gate, seen)
        ref.tell(0)
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            ref.tell(number)
        with pytest.raises(BackpressureShed, match=r"Gated/1 has no room: 3 are waiting and the capacity is 3") as shed:
            ref.tell(4)
        assert (shed.value.depth, shed.value.capacity) == (3, 3)
        with pytest.raises(BackpressureShed):
            await ref.ask(5, block=False)
        gate.set()
        await ManualClock().settle()
        assert await ref.ask(6, block=False) == 6
    assert seen == [0, 1, 2, 3, 6]


async def test_what_belongs_to_accepted_work_is_taken_all_the_same_and_so_is_a_stop() -> None:
    gate, seen = asyncio.Event(), list[object]()
    async with ActorSystem() as system:
        ref = await system.start(Gated, gate, seen)
        for number in range(3):
            ref.tell(number)
        results = [Result(number) for number in range(3)]
        for result in results:
            ref.tell(result)
        stopped = ref.stop(block=False)
        gate.set()
        assert await stopped
    assert seen == [0, 1, 2, *results]


async def test_the_systems_capacity_is_for_those_who_say_nothing() -> None:
    async with ActorSystem(mailbox_capacity=2) as system:
        ref = await system.start(Failing)
        ref.tell(1)
        ref.tell(2)
        with pytest.raises(BackpressureShed):
            ref.tell(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await ref.ask("later", block=False) == "later"


async def test_a_thread_is_told_of_a_full_mailbox_too_though_its_messages_are_still_on_their_way() -> None:
    seen: list[object] = []
    gate = asyncio.Event()
    async with ActorSystem() as system:
        ref = await system.start(Gated, gate, seen)
        outcome: list[object] = []
        asked: list[ActorFuture[Any]] = []

        def flood() -> None:
            try:
                for number in range(100):
                    ref.tell(number)
                    outcome.append(number)
            except BackpressureShed as shed:
                outcome.append(shed.depth)
            asked.append(ref.ask("no room", block=False))

        thread = threading.Thread(target=flood)
        thread.start()
        thread.join()  # The loop stands meanwhile, so that nothing of it arrives.
        assert outcome == [0, 1, 2, 3]
        with pytest.raises(BackpressureShed):
            await asked[0]
        gate.set()
        await ManualClock().settle()
    assert seen == [0, 1, 2]


async def test_a_handover_to_the_next_life_takes_everything_that_was_taken_before() -> None:
    seen: list[object] = []
    gate = asyncio.Event()
    async with ActorSystem() as system:
        system.register("gated", lambda _: Gated(gate, seen))
        ref = system.ref("gated/a")
        ref.tell(0)
        await asyncio.sleep(0)
        ref.tell(1)
        stopped = ref.stop(block=False)
        results = [Result(number) for number in range(5)]
        for result in results:
            ref.tell(result)
        gate.set()
        assert await stopped
        await ManualClock().settle()
    assert seen == [0, 1, *results]


async def test_case_h05_a_told_message_that_an_actor_fails_on_is_parked_and_the_failure_is_kept(
    system: ActorSystem,
) -> None:
    poison = ValueError("poison")
    ref = await system.start(Failing, address="failing/1")
    ref.tell(poison)
    assert await ref.ask("next", block=False) == "next"
    [parked] = system.parked
    assert (parked.address, parked.message) == ("failing/1", poison)
    assert parked.reason == "the actor failed on it: ValueError: poison"
    [failure] = system.failures
    assert (failure.address, failure.message, failure.during) == ("failing/1", "poison", "message")
    with pytest.raises(ValueError, match="poison"):
        await ref.ask(poison, block=False)
    assert len(system.parked) == 1  # The asker has it.
    assert len(system.failures) == 2


async def test_a_told_message_that_nobody_takes_any_more_is_parked(system: ActorSystem) -> None:
    gate = asyncio.Event()
    ref = await system.start(Gated, gate, [])
    ref.tell("handled")
    await asyncio.sleep(0)
    ref.tell("left")
    await ref.stop(block=False, now=True)
    assert [parked.message for parked in system.parked] == ["left"]


async def test_what_a_system_keeps_of_failures_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    async with ActorSystem(mailbox_capacity=1) as system:
        ref = await system.start(Gated, asyncio.Event(), [])
        for number in range(150):
            ref.tell(Result(number))
        for number in range(1_100):
            system.supervisor.report("failing/1", ValueError(number), "background")
        await ref.stop(block=False, now=True)
        assert [failure.message for failure in system.failures] == [str(number) for number in range(100, 1_100)]
        assert [parked.message for parked in system.parked] == [Result(number) for number in range(50, 150)]


class Slow(Failing):
    """May take two seconds for a message."""

    handler_timeout_s = 2

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, asyncio.Event):
            await message.wait()
        return "done"


async def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(clock: ManualClock) -> None:
    async with ActorSystem(clock=clock, restart_backoff_s=0) as system:
        ref = await system.start(Slow, address="slow/1")
        event = asyncio.Event()
        asked, behind = ref.ask(event, block=False), ref.ask("next", block=False)
        await clock.advance(1.9)
        assert not asked.ready()
        await clock.advance(0.1)
        event.set()  # Too late.
        with pytest.raises(
            TimeoutError, match=r"slow/1 was interrupted, since it had not handled a message within 2 s"
        ):
            await asked
        assert await behind == "done"
        assert [failure.error_type for failure in system.failures] == ["builtins.TimeoutError"]
        assert clock.waiting() == () or min(clock.waiting()) > 2


async def test_a_handler_in_time_is_not_disturbed_by_its_limit(clock: ManualClock, timed: ActorSystem) -> None:
    ref = await timed.start(Slow)
    event = asyncio.Event()
    asked = ref.ask(event, block=False)
    await clock.advance(1)
    event.set()
    assert await asked == "done"
    await clock.advance(10)
    assert await ref.ask("next", block=False) == "done"
    assert timed.failures == ()


async def test_a_stop_overtakes_a_handler_with_a_limit(clock: ManualClock, timed: ActorSystem) -> None:
    ref = await timed.start(Slow)
    asked = ref.ask(asyncio.Event(), block=False)
    await clock.settle()
    assert await ref.stop(block=False, now=True)
    with pytest.raises(Exception, match="it was stopped while it handled the message"):
        await asked


class WokenLoop(asyncio.SelectorEventLoop):
    """Counts how often it is woken from outside."""

    wakes = 0

    def call_soon_threadsafe(self, *call: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        self.wakes += 1
        return super().call_soon_threadsafe(*call, **options)


def test_who_goes_on_sending_from_outside_wakes_the_loop_once_and_then_again_when_it_rests() -> None:
    seen: list[int] = []

    async def send(loop: WokenLoop) -> None:
        entered = CrossThreadQueue(loop, contextvars.copy_context())
        for number in range(3):  # Each while the loop is still at what it was woken for.
            entered.enter(partial(seen.append, number))
            await asyncio.sleep(0)
        assert (seen, loop.wakes) == ([0, 1, 2], 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        entered.enter(lambda: seen.append(3))
        await asyncio.sleep(0)
        assert (seen, loop.wakes) == ([0, 1, 2, 3], 2)

    loop = WokenLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(send(loop))


def test_who_sends_to_a_loop_that_was_closed_is_told_so_also_where_it_was_at_what_was_sent_before() -> None:
    loop = asyncio.new_event_loop()

    class Last(Actor):
        async def on_receive(self, message: Any) -> None:
            one_more = threading.Thread(target=ref.tell, args=("one more",))
            one_more.start()
            one_more.join()
            loop.stop()

    async def begun() -> ActorRef:
        return await ActorSystem().start(Last)

    ref = loop.run_until_complete(begun())
    ref.tell("the last but one")
    loop.run_forever()
    loop.close()
    for _ in range(2_000):  # More than a mailbox has room for.
        with pytest.raises(ActorStopped, match="its event loop is closed"):
            ref.tell("too late")
    with pytest.raises(ActorStopped, match="its event loop is closed"):
        ref.ask("too late", block=False).get(timeout=0)


def test_a_loop_that_is_run_again_after_an_interrupt_is_woken_from_outside() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    seen: list[str] = []
    loop = WokenLoop()
    entered = CrossThreadQueue(loop, contextvars.copy_context())
    entered.enter(interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    entered.enter(partial(seen.append, "after it"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert seen == ["after it"]
