"""What an ask waits on: every ask ends, in time, and never by waiting in a circle."""

import asyncio
import math
from typing import Any

import pykka
import pytest

from refold.actors import (
    Actor,
    ActorRef,
    ActorStopped,
    ActorSystem,
    AskCycle,
    AskTimeout,
    ManualClock,
    ThreadPool,
    WouldDeadlock,
)


class Relay(Actor):
    """Asks along a path of addresses: `("a/1", "b/1", "stop here")` is answered by b. Counts what it handles."""

    def __init__(self) -> None:
        self.handled = 0

    async def on_receive(self, message: Any) -> Any:
        self.handled += 1
        if isinstance(message, asyncio.Event):
            await message.wait()
            return "waited"
        if isinstance(message, tuple):
            address, *rest = message
            return await self.system.ref(address).ask(tuple(rest) if len(rest) > 1 else rest[0], block=False)
        return self.handled if message == "count" else message


def relays(system: ActorSystem) -> tuple[ActorRef, ActorRef, ActorRef]:
    system.register("relay", lambda _: Relay())
    return system.ref("relay/a"), system.ref("relay/b"), system.ref("relay/c")


async def test_an_ask_ends_with_its_timeout_on_the_systems_clock(clock: ManualClock) -> None:
    async with ActorSystem(clock=clock, ask_timeout_s=30) as system:
        a, b, _ = relays(system)
        gate = asyncio.Event()
        default = a.ask(gate, block=False)
        short = b.ask(gate, block=False, timeout=5)
        endless = a.ask("queued", block=False, timeout=math.inf)
        await clock.advance(5)
        assert (default.ready(), short.ready()) == (False, True)
        with pytest.raises(AskTimeout, match="relay/b did not answer within 5 s"):
            await short
        await clock.advance(25)
        with pytest.raises(pykka.Timeout, match="30 s"):
            await default
        await clock.advance(1000)
        assert not endless.ready()
        gate.set()
        assert await endless == "queued"


async def test_each_ask_has_its_own_deadline(clock: ManualClock, timed: ActorSystem) -> None:
    a, _, _ = relays(timed)
    gate = asyncio.Event()
    asks = []
    for _ in range(3):
        asks.append(a.ask(gate, block=False, timeout=0.3))
        await clock.advance(0.1)
    ready = []
    for _ in range(3):
        ready.append([ask.ready() for ask in asks])
        await clock.advance(0.1)
    assert ready == [[True, False, False], [True, True, False], [True, True, True]]
    gate.set()
    assert await a.ask("still works", block=False) == "still works"


async def test_a_message_whose_asker_gave_up_is_still_handled_and_its_late_answer_dropped(
    clock: ManualClock, timed: ActorSystem
) -> None:
    a, _, _ = relays(timed)
    gate = asyncio.Event()
    waiting = a.ask(gate, block=False, timeout=1)
    await clock.advance(1)
    gate.set()
    with pytest.raises(AskTimeout):
        await waiting
    assert await a.ask("count", block=False) == 2


async def test_awaiting_an_ask_of_oneself_is_refused_and_the_message_never_handled(system: ActorSystem) -> None:
    a, _, _ = relays(system)
    with pytest.raises(AskCycle) as raised:
        await a.ask(("relay/a", "hello"), block=False)
    assert raised.value.circle == ("relay/a", "relay/a")
    assert await a.ask("count", block=False) == 2


async def test_a_circle_of_asks_is_refused_where_it_would_close(system: ActorSystem) -> None:
    a, b, _ = relays(system)
    with pytest.raises(AskCycle) as raised:
        await a.ask(("relay/b", "relay/c", "relay/a", "hello"), block=False)
    assert raised.value.circle == ("relay/c", "relay/a", "relay/b", "relay/c")
    assert await a.ask(("relay/b", "relay/c", "hello"), block=False) == "hello"
    assert await b.ask("count", block=False) == 3


async def test_two_actors_that_begin_to_ask_each_other_at_once_do_not_hang(system: ActorSystem) -> None:
    a, b, _ = relays(system)
    first = a.ask(("relay/b", "hello"), block=False)
    second = b.ask(("relay/a", "hello"), block=False)
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AskCycle", "str"]


async def test_a_circle_is_found_in_what_a_handler_awaits_together(system: ActorSystem) -> None:
    class Gatherer(Actor):
        async def on_receive(self, message: Any) -> Any:
            asks = [self.system.ref("relay/b").ask(("relay/c", "fine"), block=False)]
            if message == "closed circle":
                asks.append(self.system.ref("relay/b").ask(("gatherer/1", "hello"), block=False))
            return await asyncio.gather(*asks)

    relays(system)
    system.register("gatherer", lambda _: Gatherer())
    gatherer = system.ref("gatherer/1")
    assert await gatherer.ask("no circle", block=False) == ["fine"]
    with pytest.raises(AskCycle):
        await gatherer.ask("closed circle", block=False)


async def test_asking_oneself_without_awaiting_is_no_circle(system: ActorSystem) -> None:
    class Deferring(Actor):
        def on_start(self) -> None:
            self.later: Any = None

        async def on_receive(self, message: Any) -> Any:
            if message == "defer":
                self.later = self.actor_ref.ask("later", block=False)
            return message if message != "result" else self.later.get()

    ref = await system.start(Deferring)
    assert await ref.ask("defer", block=False) == "defer"
    assert await ref.ask("result", block=False) == "later"


async def test_a_task_that_outlives_its_handler_may_ask_the_actor_that_began_it(system: ActorSystem) -> None:
    tasks: list[asyncio.Task[Any]] = []
    gate = asyncio.Event()

    class Starter(Actor):
        async def on_receive(self, message: Any) -> Any:
            if message == "begin":

                async def ask_back() -> Any:
                    await gate.wait()
                    return await self.actor_ref.ask("from the task", block=False)

                tasks.append(asyncio.create_task(ask_back()))
            await asyncio.sleep(0)
            return message

    ref = await system.start(Starter)
    await ref.ask("begin", block=False)
    busy = ref.ask("busy", block=False)
    gate.set()
    assert await tasks[0] == "from the task"
    assert await busy == "busy"


async def test_a_wait_that_was_given_up_is_no_part_of_a_circle(system: ActorSystem) -> None:
    busy, gate = asyncio.Event(), asyncio.Event()

    class Impatient(Actor):
        async def on_receive(self, message: Any) -> Any:
            if message == "give up":
                waiting = asyncio.ensure_future(self.system.ref("relay/b").ask("queued", block=False))
                await asyncio.sleep(0)
                waiting.cancel()
                await gate.wait()
            return message

    _, b, _ = relays(system)
    ref = await system.start(Impatient)
    first = b.ask(busy, block=False)
    through = b.ask(("Impatient/1", "hello"), block=False)
    answer = ref.ask("give up", block=False)
    for _ in range(5):
        await asyncio.sleep(0)
    busy.set()
    assert await first == "waited"
    gate.set()
    assert await answer == "give up"
    assert await through == "hello"


async def test_a_circle_through_a_blocked_thread_is_found() -> None:
    pool = ThreadPool(1)

    class Blocking(Actor):
        async def on_receive(self, message: Any) -> Any:
            return await pool.run(self.actor_ref.ask, "hello") if message == "block" else message

    async with ActorSystem() as system:
        ref = await system.start(Blocking)
        with pytest.raises(AskCycle):
            await ref.ask("block", block=False)
        assert await ref.ask("free", block=False) == "free"
    pool.close()


@pytest.mark.parametrize(("block", "error"), [(False, AskCycle), (True, WouldDeadlock)])
async def test_case_h02_waiting_for_ones_own_stop_is_refused(
    system: ActorSystem, block: bool, error: type[Exception]
) -> None:
    class Suicidal(Actor):
        async def on_start(self) -> None:
            await self.actor_ref.stop(block=block)  # type: ignore[misc]

    with pytest.raises(error):
        await system.start(Suicidal)
    assert system.live() == ()


async def test_what_is_open_when_the_system_closes_is_answered() -> None:
    class Unstoppable(Actor):
        async def on_receive(self, message: Any) -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if message.is_set():
                        raise

    clock = ManualClock()
    system = ActorSystem(clock=clock)
    ref = await system.start(Unstoppable)
    let_go = asyncio.Event()
    ask = ref.ask(let_go, block=False, timeout=math.inf)
    closing = asyncio.create_task(system.close(1))
    await clock.advance(3)
    assert await closing == ("Unstoppable/1",)
    with pytest.raises(ActorStopped, match="closed"):
        await ask
    let_go.set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await clock.settle()
