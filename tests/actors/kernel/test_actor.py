"""One actor: its messages, its hooks, its background work and its children."""

import asyncio
import logging
from typing import Any

import pytest

from refold.actors import Actor, ActorFailure, ActorRef, ActorStopped, ActorSystem


class Echo(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


class Recorder(Actor):
    """Writes down what it is told; an event in a message is waited for."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, asyncio.Event):
            await message.wait()
            message = "waited"
        self.seen.append(message)
        return len(self.seen)


async def test_messages_are_handled_one_at_a_time_in_the_order_of_arrival(system: ActorSystem) -> None:
    seen: list[Any] = []
    recorder = await system.start(Recorder, seen)
    gate = asyncio.Event()
    recorder.tell("first")
    recorder.tell(gate)
    for number in range(200):
        recorder.tell(number)
    last = recorder.ask("last", block=False)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["first"]
    gate.set()
    await last
    assert seen == ["first", "waited", *range(200), "last"]


class Expectant(Recorder):
    """Has work outside whose end is to come."""

    def expects_more(self) -> bool:
        return "over" not in self.seen


async def test_an_actor_that_expects_more_handles_all_of_it_in_one_task_until_other_code_cancels_that(
    system: ActorSystem,
) -> None:
    def task_of_actor() -> asyncio.Task[Any] | None:
        return next((task for task in asyncio.all_tasks() if task.get_name() == "expectant"), None)

    seen: list[Any] = []
    expectant = await system.start(Expectant, seen, address="expectant")
    await expectant.ask("one", block=False)
    task = task_of_actor()
    assert task is not None
    await expectant.ask("two", block=False)
    assert task_of_actor() is task
    for woken in (False, True):  # A message that comes in the same moment is handled by another task.
        task.cancel()
        if woken:
            expectant.tell("three")
        await asyncio.wait([task])
        assert await expectant.ask("more", block=False)
        before, task = task, task_of_actor()
        assert task is not None
        assert task is not before
    assert seen == ["one", "two", "more", "three", "more"]
    assert system.failures == ()
    await expectant.ask("over", block=False)
    await asyncio.sleep(0)
    assert task_of_actor() is None


async def test_what_is_told_at_once_is_handled_on_return_where_the_actor_is_at_rest(system: ActorSystem) -> None:
    seen: list[Any] = []

    class Noting(Actor):
        def on_receive(self, message: Any) -> None:
            if message == "fail":
                raise ValueError("as told")
            seen.append(message)

    noting = await system.start(Noting)
    noting.tell_at_once("one")
    assert seen == ["one"]
    noting.tell("two")
    noting.tell_at_once("three")
    assert seen == ["one"], "what came before it waits"
    noting.tell_at_once("fail")
    await noting.ask("four", block=False)
    assert seen == ["one", "two", "three", "four"]
    waiting = await system.start(Recorder, seen)
    waiting.tell_at_once("five")
    waiting.tell_at_once("six")
    await waiting.ask("seven", block=False)
    assert seen[4:] == ["five", "six", "seven"]
    assert [failure.during for failure in system.failures] == ["message"]


async def test_an_actor_that_expects_more_is_told_at_once_in_the_task_that_it_has(system: ActorSystem) -> None:
    class Mixed(Echo):
        def expects_more(self) -> bool:
            if "fail" in seen:
                raise ValueError("as told")
            return True

        def on_receive(self, message: Any) -> Any:
            if isinstance(message, asyncio.Event):
                return message.wait()
            return seen.append(message)

    seen: list[Any] = []
    mixed = await system.start(Mixed, address="mixed")
    gate = asyncio.Event()
    gate.set()
    await mixed.ask(gate, block=False)
    await mixed.ask("one", block=False)
    mixed.tell_at_once("two")
    mixed.tell("three")
    await mixed.ask(gate, block=False)
    assert seen == ["one", "two", "three"]
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "mixed"]) == 1
    await mixed.ask("fail", block=False)
    await mixed.ask("after", block=False)
    assert seen[3:] == ["fail", "after"]
    assert [failure.during for failure in system.failures] == ["background"]


async def test_a_busy_actor_lets_others_have_their_turn(system: ActorSystem) -> None:
    seen: list[Any] = []
    for kind in (Echo, lambda: Recorder([])):
        busy = await system.start(kind, address=f"busy/{len(seen)}")
        other = await system.start(Recorder, seen)
        answers = [busy.ask(number, block=False) for number in range(500)]
        await other.ask("my turn", block=False)
        assert not answers[-1].ready()
        await answers[-1]


async def test_the_hooks_of_a_life_may_wait_and_run_in_order() -> None:
    seen: list[str] = []

    class Async(Actor):
        async def on_start(self) -> None:
            await asyncio.sleep(0)
            seen.append("start")

        async def on_receive(self, message: Any) -> None:
            await asyncio.sleep(0)
            seen.append(message)

        async def on_stop(self) -> None:
            await asyncio.sleep(0)
            seen.append("stop")

    async with ActorSystem() as system:
        ref = await system.start(Async)
        ref.tell("message")
        assert await ref.stop(block=False)
    assert seen == ["start", "message", "stop"]


class Worker(Actor):
    """Spawns the coroutine functions that it is sent."""

    def on_receive(self, message: Any) -> "asyncio.Task[Any]":
        return self.spawn(message(self), name="job")


async def test_spawned_work_runs_beside_the_mailbox(system: ActorSystem) -> None:
    ref = await system.start(Worker)
    gate = asyncio.Event()

    async def wait(_: Actor) -> str:
        await gate.wait()
        return "done"

    task = await ref.ask(wait, block=False)
    second = await ref.ask(wait, block=False)
    gate.set()
    assert (await task, await second) == ("done", "done")
    assert task.get_name() == "Worker/1 job"


async def test_spawned_work_is_cancelled_and_awaited_when_its_actor_stops(system: ActorSystem) -> None:
    ended: list[str] = []

    async def endless(_: Actor) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    ref = await system.start(Worker)
    task = await ref.ask(endless, block=False)
    await asyncio.sleep(0)
    await ref.stop(block=False)
    assert task.cancelled()
    assert ended == ["cleaned up"]


@pytest.mark.parametrize("error", [ValueError("broken work"), SystemExit("broken work")])
async def test_an_error_of_spawned_work_is_logged_and_reported_and_restarts_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[ActorFailure] = []

    async def fail(_: Actor) -> None:
        raise error

    async with ActorSystem(on_failure=failures.append) as system:
        ref = await system.start(Worker)
        task = await ref.ask(fail, block=False)
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert [(failure.during, failure.stopped) for failure in failures] == [("background", False)]
        assert "broken work" in failures[0].message
        assert "broken work" in caplog.text
        assert ref.is_alive()


async def test_the_error_of_spawned_work_is_reported_before_it_is_over() -> None:
    failures: list[ActorFailure] = []
    reported: list[int] = []

    async def fail() -> None:
        raise ValueError("broken work")

    class Spawning(Actor):
        async def on_receive(self, message: Any) -> asyncio.Task[None]:
            return self.spawn(fail(), over=lambda: reported.append(len(failures)))

    async with ActorSystem(on_failure=failures.append) as system:
        await asyncio.wait([await (await system.start(Spawning)).ask("go", block=False)])
        await asyncio.sleep(0)
    assert reported == [1]


async def test_spawned_work_that_is_cancelled_before_its_first_step_is_closed_and_over(system: ActorSystem) -> None:
    tasks: list[asyncio.Task[None]] = []
    ended: list[bool] = []

    async def work() -> None:
        raise AssertionError("never begun")

    class Hasty(Actor):
        async def on_receive(self, message: Any) -> None:
            tasks.append(self.spawn(work(), over=lambda: ended.append(tasks[0].cancelled())))
            raise ValueError("fails before its work begins")

    ref = await system.start(Hasty)
    with pytest.raises(ValueError, match="fails before"):
        await ref.ask("go", block=False)
    await ref.stop(block=False)
    assert tasks[0].cancelled()
    assert ended == [True]


async def test_spawned_work_may_ask_its_own_actor(system: ActorSystem) -> None:
    ref = await system.start(Worker)

    async def ask_back(actor: Actor) -> Any:
        async def nothing(_: Actor) -> str:
            return "nothing"

        return await (await actor.actor_ref.ask(nothing, block=False))

    task = await ref.ask(ask_back, block=False)
    assert await task == "nothing"


async def test_an_instance_that_is_over_begins_no_background_work(system: ActorSystem) -> None:
    instances: list[Actor] = []

    class Kept(Actor):
        def on_start(self) -> None:
            instances.append(self)

    async def work() -> None:
        raise AssertionError("never begun")

    ref = await system.start(Kept)
    await ref.stop(block=False)
    with pytest.raises(ActorStopped):
        instances[0].spawn(work())
    assert instances[0].actor_stopped.is_set()


class Parent(Actor):
    """Starts two children and writes down the order in which everybody stops."""

    def __init__(self, seen: list[str], depth: int = 1) -> None:
        self.seen = seen
        self.depth = depth
        self.children: list[ActorRef] = []

    async def on_start(self) -> None:
        self.seen.append(f"start {self.depth}")
        if self.depth < 3:
            self.children.append(await self.start_child(Parent, self.seen, self.depth + 1))

    def on_receive(self, message: Any) -> Any:
        if message == "fail":
            raise ValueError("failed on request")
        return self.children

    def on_stop(self) -> None:
        self.seen.append(f"stop {self.depth}")


async def test_case_h08_children_stop_before_their_parents() -> None:
    seen: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(Parent, seen)
        assert len(system.live()) == 3
        await ref.stop(block=False)
        assert system.live() == ()
    assert seen == ["start 1", "start 2", "start 3", "stop 3", "stop 2", "stop 1"]


async def test_a_restart_replaces_the_children(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    seen: list[str] = []
    async with ActorSystem(restart_backoff_s=0) as system:
        ref = await system.start(Parent, seen)
        (before,) = await ref.ask("children", block=False)
        with pytest.raises(ValueError, match="on request"):
            await ref.ask("fail", block=False)
        (after,) = await ref.ask("children", block=False)
        assert not before.is_alive()
        assert after.is_alive()
        assert len(system.live()) == 3
    assert seen[3:5] == ["stop 3", "stop 2"]


async def test_a_child_whose_handler_waits_for_its_stopping_parent_is_stopped_all_the_same(system: ActorSystem) -> None:
    class Child(Actor):
        def __init__(self, parent: ActorRef, gate: asyncio.Event) -> None:
            self.parent = parent
            self.gate = gate

        async def on_receive(self, message: Any) -> Any:
            await self.gate.wait()
            return await self.parent.ask("children", block=False)

    gate = asyncio.Event()

    class Family(Actor):
        async def on_start(self) -> None:
            self.child = await self.start_child(Child, self.actor_ref, gate)

        def on_receive(self, message: Any) -> ActorRef:
            return self.child

    system.register("family", lambda _: Family())
    family = system.ref("family/1")
    child = await family.ask("child", block=False)
    answer = child.ask("ask your parent", block=False)
    await asyncio.sleep(0)
    stopped = family.stop(block=False)
    await asyncio.sleep(0)
    gate.set()
    assert await stopped
    assert answer.ready()
