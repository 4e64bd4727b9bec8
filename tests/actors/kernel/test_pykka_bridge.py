"""Our actors and pykka's thread actors talk to each other, and nobody's loop freezes."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pykka
import pytest

from refold import ActorStopped, AskTimeout, ConfigError
from refold.actors import Actor, ActorFuture, ActorRef, ActorSystem, ManualClock, WouldDeadlock
from refold.events.core.errors import BackpressureShed

LONG_S = 30


class Fatal(BaseException):
    """An error that is no Exception."""


class Slow(pykka.ThreadingActor):
    """Answers once its gate is open; passes refs a message; raises an error it is sent."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.begun = threading.Event()
        self.seen: list[Any] = []
        self.lamp = pykka.traversable(Lamp())

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, ActorRef):
            message.tell("told from a thread actor")
            return message.ask("asked from a thread actor")
        if isinstance(message, BaseException):
            raise message
        self.begun.set()
        self.gate.wait(LONG_S)
        self.seen.append(message)
        return list(self.seen)

    def count(self, more: int) -> int:
        return len(self.seen) + more


class Lamp:
    watts = 40


class Echo(Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def on_receive(self, message: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(message, BaseException):
            raise message
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


@pytest.fixture
async def system() -> AsyncIterator[ActorSystem]:
    """A system in which no time passes, so that nothing here is answered by a timeout."""
    async with ActorSystem(clock=ManualClock()) as made:
        yield made


@pytest.fixture
def begun(slow: Any) -> threading.Event:
    """Set when the thread actor handles a message that waits for the gate."""
    event: threading.Event = slow.proxy().begun.get()
    return event


# Both directions


async def test_a_thread_actor_uses_our_refs_as_they_are(system: ActorSystem, slow: pykka.ActorRef[Slow]) -> None:
    echo = await system.start(Echo)
    answer = await system.bridge(slow).ask(echo)
    assert answer == ["told from a thread actor", "asked from a thread actor"]


async def test_asking_a_thread_actor_does_not_stop_the_loop(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event, begun: threading.Event
) -> None:
    class Asker(Actor):
        async def on_receive(self, message: Any) -> Any:
            return await self.system.bridge(slow).ask(message)

    asker = await system.start(Asker)
    echo = await system.start(Echo)
    answer = asker.ask("slow question", block=False)
    await asyncio.to_thread(begun.wait, LONG_S)
    assert await echo.ask("the loop goes on", block=False) == ["the loop goes on"]
    assert not answer.ready()
    gate.set()
    assert await answer == ["slow question"]


async def test_a_told_message_arrives_and_errors_come_back(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event
) -> None:
    gate.set()
    bridge = system.bridge(slow)
    bridge.tell("first")
    assert await bridge.ask("second") == ["first", "second"]
    with pytest.raises(ValueError, match="broken"):
        await bridge.ask(ValueError("broken"))


@pytest.mark.parametrize(
    ("error", "seen"), [(ValueError("broken"), ValueError), (SystemExit(3), ActorStopped), (Fatal(), ActorStopped)]
)
async def test_an_error_of_ours_reaches_the_thread_actor_that_asks(error: BaseException, seen: type[Exception]) -> None:
    class Asker(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            try:
                return message.ask(error)
            except Exception as raised:  # noqa: BLE001 - it is what the test looks at
                return raised

    asker = Asker.start()
    async with ActorSystem(restart_backoff_s=0) as system:
        echo = await system.start(Echo)
        assert isinstance(await system.bridge(asker).ask(echo), seen)
    await asyncio.to_thread(asker.stop)


async def test_a_late_answer_does_not_hurt_the_thread_actor(
    clock: ManualClock, timed: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event
) -> None:
    bridge = timed.bridge(slow)
    answer = bridge.ask("slow question", timeout=1)
    failed = bridge.ask(ValueError("nobody waits for this"), timeout=1)
    await clock.advance(1)
    for late in (answer, failed):
        with pytest.raises(AskTimeout):
            await late
    gate.set()
    assert await bridge.ask("another") == ["slow question", "another"]


async def test_a_bridge_is_used_on_its_systems_loop_only(system: ActorSystem, slow: pykka.ActorRef[Slow]) -> None:
    bridge = system.bridge(slow)
    calls: list[Callable[[], Any]] = [
        lambda: bridge.tell("from a thread"),
        lambda: bridge.ask("from a thread"),
        lambda: bridge.future(pykka.ThreadingFuture()),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="own ref"):
            await asyncio.to_thread(call)


async def test_one_of_ours_needs_no_bridge(system: ActorSystem) -> None:
    with pytest.raises(ConfigError, match="block=False"):
        system.bridge(await system.start(Echo))


# Thread actors that end


async def test_a_thread_actor_that_has_stopped_is_refused(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event
) -> None:
    gate.set()
    bridge = system.bridge(slow)
    await asyncio.to_thread(slow.stop)
    with pytest.raises(ActorStopped, match="Slow"):
        bridge.tell("hello")
    with pytest.raises(ActorStopped, match="Slow"):
        await bridge.ask("hello")
    with pytest.raises(pykka.ActorDeadError):
        bridge.proxy()


async def test_what_is_queued_when_a_thread_actor_stops_is_answered_at_once(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event, begun: threading.Event
) -> None:
    bridge = system.bridge(slow)
    before = bridge.ask("before the stop")
    await asyncio.to_thread(begun.wait, LONG_S)
    slow.stop(block=False)
    after = [bridge.ask("after the stop") for _ in range(3)]
    gate.set()
    assert await before == ["before the stop"]
    for answer in after:
        with pytest.raises(ActorStopped, match=r"Slow.*nothing was done"):
            await answer


async def test_what_is_queued_when_a_thread_actor_fails_is_answered_at_once(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    bridge = system.bridge(slow)
    bridge.tell("wait")
    bridge.tell(ValueError("broken"))
    behind = bridge.ask("behind")
    gate.set()
    with pytest.raises(ActorStopped, match="nothing was done"):
        await behind
    assert "broken" in caplog.text


async def test_a_thread_actor_that_dies_of_the_message_is_noticed_at_once(
    system: ActorSystem, slow: pykka.ActorRef[Slow]
) -> None:
    bridge = system.bridge(slow)
    fatal, behind = bridge.ask(Fatal()), bridge.ask("behind")
    with pytest.raises(ActorStopped, match="whether the message had an effect is unknown"):
        await fatal
    with pytest.raises(ActorStopped, match="stopped before"):
        await behind


class Inbox(queue.Queue[Any]):
    """An inbox that lets a test do something just before a message is put in."""

    before_put: Callable[[], object] | None = None

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        before, self.before_put = self.before_put, None
        if before is not None:
            before()
        super().put(item, block, timeout)


async def test_a_message_that_comes_just_after_the_end_of_a_thread_actor_is_answered_at_once(
    system: ActorSystem,
) -> None:
    threads: list[threading.Thread] = []

    class Fleeting(pykka.ThreadingActor):
        @staticmethod
        def _create_actor_inbox() -> Any:
            return Inbox()

        def on_start(self) -> None:
            threads.append(threading.current_thread())

    ref: Any = Fleeting.start()

    def end() -> None:
        ref.stop()
        threads[0].join()

    ref.actor_inbox.before_put = end
    with pytest.raises(ActorStopped, match="stopped before it answered"):
        await system.bridge(ref).ask("too late")


async def test_a_full_inbox_is_refused_and_does_not_stop_the_loop(system: ActorSystem, gate: threading.Event) -> None:
    class Bounded(Slow):
        @staticmethod
        def _create_actor_inbox() -> Any:
            return queue.Queue(2)

    ref: Any = Bounded.start(gate)
    begun = ref.proxy().begun.get()
    bridge = system.bridge(ref)
    handled = bridge.ask("handled")
    await asyncio.to_thread(begun.wait, LONG_S)
    queued = [bridge.ask("first in the queue"), bridge.ask("second in the queue")]
    with pytest.raises(BackpressureShed, match="2 are waiting and the capacity is 2"):
        bridge.tell("told")
    with pytest.raises(BackpressureShed):
        await bridge.ask("asked")
    gate.set()
    assert await handled == ["handled"]
    assert await queued[1] == ["handled", "first in the queue", "second in the queue"]
    await asyncio.to_thread(ref.stop)


async def test_closing_the_system_answers_what_a_thread_actor_has_not(
    slow: pykka.ActorRef[Slow], gate: threading.Event, begun: threading.Event
) -> None:
    async with ActorSystem(clock=ManualClock()) as system:
        handled, queued = [system.bridge(slow).ask(message) for message in ("handled", "queued")]
        await asyncio.to_thread(begun.wait, LONG_S)
    for answer in (handled, queued):
        with pytest.raises(ActorStopped, match="closed"):
            await answer
    gate.set()
    assert await asyncio.to_thread(slow.ask, "still there") == ["handled", "queued", "still there"]


# Futures and proxies of pykka on the loop


async def test_a_future_of_pykka_is_awaited_and_the_loop_goes_on(
    system: ActorSystem, slow: pykka.ActorRef[Slow]
) -> None:
    future: pykka.ThreadingFuture[str] = pykka.ThreadingFuture()
    awaited = system.bridge(slow).future(future)
    echo = await system.start(Echo)
    assert await echo.ask("the loop goes on", block=False) == ["the loop goes on"]
    assert not awaited.ready()
    future.set("value")
    assert await awaited == "value"


async def test_what_a_future_of_pykka_raises_or_derives_comes_along(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event
) -> None:
    gate.set()
    bridge = system.bridge(slow)
    asked: Any = slow.ask("asked through pykka's own ref", block=False)
    assert await bridge.future(asked.map(len)) == 1
    with pytest.raises(ValueError, match="broken"):
        await bridge.future(slow.ask(ValueError("broken"), block=False))
    assert await bridge.future(slow.stop(block=False)) is True


async def test_a_future_of_pykka_without_an_outcome_ends_in_time(
    clock: ManualClock, timed: ActorSystem, slow: pykka.ActorRef[Slow]
) -> None:
    future: pykka.ThreadingFuture[str] = pykka.ThreadingFuture()
    awaited = timed.bridge(slow).future(future, timeout=5)
    await clock.advance(5)
    with pytest.raises(AskTimeout):
        await awaited
    future.set("late")


async def test_a_future_of_ours_joined_with_one_of_pykka_is_awaited_and_the_loop_goes_on() -> None:
    ours: ActorFuture[str] = ActorFuture()
    theirs: pykka.ThreadingFuture[str] = pykka.ThreadingFuture()

    async def wait() -> Any:
        return await ours.join(theirs)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    ours.set("ours")
    for _ in range(10):
        await asyncio.sleep(0)
    theirs.set("theirs")
    assert await waiting == ["ours", "theirs"]


async def test_a_proxy_of_a_thread_actor_is_awaited(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event
) -> None:
    bridge = system.bridge(slow)
    proxy: Any = bridge.proxy()
    waiting = bridge.ask("wait")
    count, seen, watts = proxy.count(2), proxy.seen, proxy.lamp.watts
    assert not count.ready()
    gate.set()
    await waiting
    assert [await count, await seen, await watts] == [3, ["wait"], 40]
    await proxy.stop()
    with pytest.raises(ActorStopped):
        await proxy.count(1)


async def test_setting_an_attribute_of_a_thread_actor_on_the_loop_is_refused_with_the_spelling_to_use(
    system: ActorSystem, slow: pykka.ActorRef[Slow]
) -> None:
    bridge = system.bridge(slow)
    proxy: Any = bridge.proxy()
    with pytest.raises(WouldDeadlock, match="ProxySetAttr"):
        proxy.lamp.watts = 60
    await bridge.ask(pykka.messages.ProxySetAttr(attr_path=("lamp", "watts"), value=60))
    assert await proxy.lamp.watts == 60


async def test_a_deferred_call_of_a_thread_actors_method_is_told(
    system: ActorSystem, slow: pykka.ActorRef[Slow], gate: threading.Event
) -> None:
    gate.set()
    proxy: Any = system.bridge(slow).proxy()
    assert proxy.on_receive.defer("deferred") is None
    assert await proxy.seen == ["deferred"]
