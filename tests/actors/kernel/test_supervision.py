"""Failures: contained at the actor's border, reported, answered, and followed by a restart or a stop."""

import asyncio
from typing import Any

import pytest

from refold.actors import Actor, ActorRef, ActorStopped, ActorSystem, ManualClock
from refold.actors.kernel.supervision import ActorFailure, RestartPolicy
from refold.events.core.errors import CommandRejected, ConfigError, LogFormatError


class Fragile(Actor):
    """Counts its messages; raises an error it is sent, in a sync or an async handler."""

    def __init__(self, is_async: bool = False) -> None:
        self.is_async = is_async
        self.seen: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        return self.receive_async(message) if self.is_async else self.receive(message)

    def receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        self.seen.append(message)
        return list(self.seen)

    async def receive_async(self, message: Any) -> Any:
        await asyncio.sleep(0)
        return self.receive(message)


@pytest.fixture(params=[False, True], ids=["sync handler", "async handler"])
def is_async(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def failures() -> list[ActorFailure]:
    return []


async def test_any_other_error_under_ask_goes_to_the_asker_and_restarts_the_actor(
    clock: ManualClock, is_async: bool, failures: list[ActorFailure]
) -> None:
    async with ActorSystem(clock=clock, on_failure=failures.append) as system:
        ref = await system.start(Fragile, is_async)
        await ref.ask("lost", block=False)
        with pytest.raises(ZeroDivisionError, match="by nothing"):
            await ref.ask(ZeroDivisionError("by nothing"), block=False)
        fresh = ref.ask("fresh", block=False)
        await clock.advance(0.1)
        assert await fresh == ["fresh"]
    assert failures == [
        ActorFailure(
            address="Fragile/1",
            error_type="builtins.ZeroDivisionError",
            message="by nothing",
            during="message",
            restarts=1,
            stopped=False,
        )
    ]


async def test_a_refusal_under_tell_is_parked_and_the_actor_keeps_its_state(
    is_async: bool, failures: list[ActorFailure]
) -> None:
    async with ActorSystem(on_failure=failures.append) as system:
        ref = await system.start(Fragile, is_async)
        refusal = CommandRejected("not now")
        ref.tell("kept")
        ref.tell(refusal)
        assert await ref.ask("more", block=False) == ["kept", "more"]
        [parked] = system.parked
    assert (parked.message, parked.reason) == (refusal, "the actor refused it: CommandRejected: not now")
    assert failures == []


async def test_messages_queued_at_a_failure_are_handled_after_the_restart_in_order(system: ActorSystem) -> None:
    ref = await system.start(Fragile)
    ref.tell(ValueError("first in the queue"))
    answers = [ref.ask(number, block=False) for number in range(5)]
    assert await answers[-1] == [0, 1, 2, 3, 4]
    assert [len(await answer) for answer in answers] == [1, 2, 3, 4, 5]


async def test_the_pause_before_a_restart_doubles_and_is_measured_on_the_clock(clock: ManualClock) -> None:
    started_s: list[float] = []

    class Hopeless(Actor):
        def on_start(self) -> None:
            started_s.append(clock.monotonic_s())
            raise ValueError("hopeless")

    system = ActorSystem(clock=clock, restart_backoff_s=1, restart_backoff_max_s=4, restarts_max=5)
    system.register("hopeless", lambda _: Hopeless())
    answer = system.ref("hopeless/1").ask("hello", block=False)
    await clock.advance(0.9)
    assert started_s == [0.0]
    await clock.advance(14.2)
    assert started_s == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0]
    with pytest.raises(ActorStopped, match=r"failed too often.*ValueError: hopeless"):
        await answer
    await system.close()


async def test_an_actor_that_fails_too_often_is_stopped_and_its_askers_learn_why(
    clock: ManualClock, is_async: bool, failures: list[ActorFailure]
) -> None:
    async with ActorSystem(clock=clock, restarts_max=2, on_failure=failures.append) as system:
        system.register("fragile", lambda _: Fragile(is_async))
        ref = system.ref("fragile/1")
        for number in range(3):
            ref.tell(ValueError(f"failure {number}"))
        queued = ref.ask("queued", block=False)
        await clock.advance(1)
        with pytest.raises(ActorStopped, match=r"failed too often.*failure 2"):
            await queued
        later = ref.ask("later", block=False)
        assert later.ready()
        with pytest.raises(ActorStopped, match=r"failure 2.*forgive"):
            await later
        with pytest.raises(ActorStopped, match="failure 2"):
            ref.tell("later")
        assert not ref.is_alive()
        assert system.live() == ()
        assert system.forgive("fragile/1")
        assert not system.forgive("fragile/1")
        assert await ref.ask("forgiven", block=False) == ["forgiven"]
    assert [(failure.restarts, failure.stopped) for failure in failures] == [(1, False), (2, False), (2, True)]


async def test_restarts_before_the_window_are_forgotten(clock: ManualClock, failures: list[ActorFailure]) -> None:
    async with ActorSystem(clock=clock, restarts_max=1, restart_window_s=10, on_failure=failures.append) as system:
        ref = await system.start(Fragile)
        for _ in range(4):
            ref.tell(ValueError("now and then"))
            await clock.advance(10)
        assert ref.is_alive()
    assert [failure.restarts for failure in failures] == [1, 1, 1, 1]


async def test_an_explicit_start_replaces_an_actor_that_was_stopped_for_failing() -> None:
    async with ActorSystem(restarts_max=0) as system:
        ref = await system.start(Fragile, address="fragile/1")
        with pytest.raises(ValueError, match="once"):
            await ref.ask(ValueError("once"), block=False)
        with pytest.raises(ActorStopped, match="once"):
            await ref.ask("dead", block=False)
        await system.start(Fragile, address="fragile/1")
        assert await ref.ask("again", block=False) == ["again"]


@pytest.mark.parametrize("error", [asyncio.CancelledError("odd"), SystemExit("odd"), GeneratorExit("odd")])
async def test_an_error_of_any_class_stays_at_the_actors_border(
    is_async: bool, error: BaseException, failures: list[ActorFailure]
) -> None:
    async with ActorSystem(restart_backoff_s=0, on_failure=failures.append) as system:
        ref = await system.start(Fragile, is_async)
        other = await system.start(Fragile, is_async)
        await other.ask("kept", block=False)
        with pytest.raises(ActorStopped, match="odd") as raised:
            await ref.ask(error, block=False)
        assert type(raised.value.__cause__) is type(error)
        ref.tell(error)
        assert await ref.ask("fresh", block=False) == ["fresh"]
        assert await other.ask("more", block=False) == ["kept", "more"]
    assert len(failures) == 2


async def test_a_handler_whose_inner_task_is_cancelled_has_failed_and_is_not_cancelled_itself(
    system: ActorSystem,
) -> None:
    class Impatient(Actor):
        async def on_receive(self, message: Any) -> Any:
            inner = asyncio.ensure_future(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner

    ref = await system.start(Impatient)
    for _ in range(2):
        with pytest.raises(ActorStopped, match="CancelledError"):
            await ref.ask("wait", block=False)


@pytest.mark.parametrize("is_async_handler", [False, True])
def test_keyboard_interrupt_passes_on_and_leaves_no_asker_waiting(is_async_handler: bool) -> None:
    replies: list[Any] = []
    started: list[ActorRef] = []

    async def interrupted() -> None:
        async with ActorSystem() as system:
            ref = await system.start(Fragile, is_async_handler)
            started.append(ref)
            replies.append(ref.ask(KeyboardInterrupt(), block=False))
            replies.append(ref.ask("queued", block=False))
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert not started[0].is_alive()
    for reply in replies:
        with pytest.raises(ActorStopped):
            reply.get()


def test_cancelling_all_tasks_of_a_loop_ends_its_actors_and_leaves_no_asker_waiting() -> None:
    replies: list[Any] = []

    async def forgotten() -> None:
        system = ActorSystem()
        ref = await system.start(Fragile, True)
        replies.append(ref.ask("being handled", block=False))
        replies.append(ref.ask("queued", block=False))
        await asyncio.sleep(0)

    asyncio.run(forgotten())
    for reply in replies:
        with pytest.raises(ActorStopped):
            reply.get()


async def test_on_failure_is_called_on_the_failed_instance_and_its_own_error_is_reported(
    is_async: bool, failures: list[ActorFailure]
) -> None:
    seen: list[str] = []

    class Careful(Fragile):
        def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> Any:
            seen.append(f"{exception_type.__name__}: {exception_value}")

            async def fail() -> None:
                await asyncio.sleep(0)
                raise KeyError("second")

            return fail()

    async with ActorSystem(restart_backoff_s=0, on_failure=failures.append) as system:
        ref = await system.start(Careful, is_async)
        ref.tell(ValueError("first"))
        await ref.ask("fresh", block=False)
    assert seen == ["ValueError: first"]
    assert [failure.during for failure in failures] == ["failure", "message"]


async def test_a_failing_start_is_raised_for_its_caller(failures: list[ActorFailure]) -> None:
    class Unstartable(Actor):
        async def on_start(self) -> None:
            self.spawn(asyncio.Event().wait())
            await asyncio.sleep(0)
            raise LookupError("no log")

    async with ActorSystem(on_failure=failures.append) as system:
        with pytest.raises(LookupError, match="no log"):
            await system.start(Unstartable, address="x/1")
        assert system.live() == ()
        with pytest.raises(ActorStopped, match="nobody is there"):
            system.ref("x/1").tell("hello")
        await system.start(Fragile, address="x/1")
    assert failures == []


async def test_a_start_by_a_message_that_fails_is_tried_again_and_the_message_waits(clock: ManualClock) -> None:
    attempts: list[int] = []

    class Slow(Actor):
        async def on_start(self) -> None:
            attempts.append(1)
            if len(attempts) < 3:
                raise LookupError("not yet")

        def on_receive(self, message: Any) -> Any:
            return message

    async with ActorSystem(clock=clock) as system:
        system.register("slow", lambda _: Slow())
        answer = system.ref("slow/1").ask("hello", block=False)
        await clock.advance(0.3)
        assert await answer == "hello"
    assert len(attempts) == 3


async def test_a_factory_that_raises_counts_as_a_failing_start(failures: list[ActorFailure]) -> None:
    def broken(identifier: str) -> Actor:
        raise TypeError(f"cannot make {identifier}")

    async with ActorSystem(restarts_max=1, restart_backoff_s=0, on_failure=failures.append) as system:
        system.register("broken", broken)
        with pytest.raises(ActorStopped, match="cannot make 7"):
            await system.ref("broken/7").ask("hello", block=False)
    assert [failure.during for failure in failures] == ["start", "start"]


async def test_stopping_now_ends_the_pause_before_a_restart(clock: ManualClock) -> None:
    async with ActorSystem(clock=clock, restart_backoff_s=10) as system:
        ref = await system.start(Fragile)
        ref.tell(ValueError("failed"))
        queued = ref.ask("queued", block=False)
        await clock.settle()
        assert await ref.stop(block=False, now=True)
        with pytest.raises(ActorStopped):
            await queued
        assert system.live() == ()


async def test_an_error_of_on_stop_is_reported_and_the_actor_stops(failures: list[ActorFailure]) -> None:
    class Messy(Actor):
        async def on_stop(self) -> None:
            raise OSError("disk")

    async with ActorSystem(on_failure=failures.append) as system:
        ref = await system.start(Messy)
        assert await ref.stop(block=False)
        assert not ref.is_alive()
    assert [failure.during for failure in failures] == ["stop"]


async def test_a_listener_that_raises_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def listen(failure: ActorFailure) -> None:
        raise RuntimeError("deaf")

    async with ActorSystem(restart_backoff_s=0, on_failure=listen) as system:
        ref = await system.start(Fragile)
        ref.tell(ValueError("failed"))
        assert await ref.ask("fresh", block=False) == ["fresh"]
    assert "deaf" in caplog.text


def test_a_policy_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="restarts_max"):
        RestartPolicy(restarts_max=-1)
    with pytest.raises(ConfigError, match="backoff_max_s"):
        RestartPolicy(backoff_s=2, backoff_max_s=1)


def test_the_pause_is_bounded_however_often_an_actor_was_restarted() -> None:
    policy = RestartPolicy(restarts_max=10_000)
    assert [policy.pause_s(restart) for restart in (1, 2, 3, 10_000)] == [0.1, 0.2, 0.4, 10.0]


async def test_an_actor_whose_log_is_damaged_is_stopped_at_once_and_says_why() -> None:
    class Rebuilt(Actor):
        def on_start(self) -> None:
            raise LogFormatError("event thing/1@3 is damaged")

    failures: list[ActorFailure] = []
    async with ActorSystem(clock=ManualClock(), on_failure=failures.append) as system:
        system.register("thing", lambda _: Rebuilt())
        with pytest.raises(ActorStopped, match="thing/1@3 is damaged"):
            await system.ref("thing/1").ask("hello", block=False)
        assert [(failure.restarts, failure.stopped) for failure in failures] == [(0, True)]
