"""Faults that users of other actor libraries reported; the numbers are those of the collection of cases."""

import asyncio
import logging
import threading
from typing import Any

import msgspec
import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider
from refold.actors import Actor, ActorFailure, ActorRef, ActorStopped, ActorSystem, WouldDeadlock
from refold.events.core.ids import StreamName
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, ActorFailed


class Adding(Actor):
    """Adds numbers up, and fails on everything else."""

    def __init__(self, stopped: list[str] | None = None, children: int = 0) -> None:
        self.sum = 0
        self.stopped = stopped if stopped is not None else []
        self.children = children

    async def on_start(self) -> None:
        for number in range(self.children):
            await self.start_child(Adding, self.stopped, address=f"{self.address}.{number}")

    def on_receive(self, message: Any) -> int:
        self.sum += message
        return self.sum

    def on_stop(self) -> None:
        self.stopped.append(self.address)


async def test_case_h02_waiting_for_ones_own_stop_is_an_error_and_no_deadlock(system: ActorSystem) -> None:
    class Impatient(Actor):
        def on_start(self) -> None:
            self.actor_ref.stop(block=True)

    with pytest.raises(WouldDeadlock, match=r"await ref\.stop\(block=False\)"):
        await system.start(Impatient)
    assert system.live() == ()


async def test_case_h04_an_error_under_tell_does_not_end_the_actor_and_is_in_the_log() -> None:
    runtime = AgentRuntime(AgentConfig(model="scripted"), provider=ScriptedProvider([]))
    async with runtime:
        ref = await runtime.system.start(Adding, address="adding/1")
        ref.tell("not a number")
        assert await ref.ask(1, block=False) == 1
        await runtime.system.ref(RUNTIME_STREAM).ask(_fact(runtime.system.failures[0]), block=False)
        stored = await runtime.store.read_stream(StreamName(RUNTIME_STREAM))
        failed = [event for event in RUNTIME_CODEC.decode_all(stored) if isinstance(event, ActorFailed)]
    assert {(event.address, event.error, event.stopped) for event in failed} == {
        ("adding/1", "builtins.TypeError", False)
    }


def _fact(failure: ActorFailure) -> ActorFailed:
    return ActorFailed(
        address=failure.address, error=failure.error_type, message=failure.message, restarts=0, stopped=failure.stopped
    )


async def test_case_h05_why_an_actor_died_can_be_seen_without_any_logging() -> None:
    seen: list[ActorFailure] = []
    logging.disable(logging.CRITICAL)
    try:
        async with ActorSystem(restarts_max=0, on_failure=seen.append) as system:
            ref = await system.start(Adding, address="adding/1")
            ref.tell("not a number")
            with pytest.raises(
                ActorStopped, match=r"it failed too often and it was stopped; .* TypeError: unsupported"
            ):
                await ref.ask(1, block=False)
            assert [(failure.address, failure.stopped) for failure in system.failures] == [("adding/1", True)]
            assert system.failures == tuple(seen)
            assert [parked.message for parked in system.parked] == ["not a number"]
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("now", [False, True], ids=["in order", "now"])
async def test_case_h08_a_stop_drains_or_does_not_as_asked_and_children_go_first(now: bool) -> None:
    stopped: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(Adding, stopped, 2, address="adding/1")
        answers = [ref.ask(1, block=False) for _ in range(1_000)]
        assert await ref.stop(block=False, now=now)
        outcomes = await asyncio.gather(*map(_outcome, answers))
    assert outcomes == (["ActorStopped"] * 1_000 if now else list(range(1, 1_001)))
    assert stopped == ["adding/1.1", "adding/1.0", "adding/1"]


async def _outcome(answer: Any) -> object:
    try:
        return await answer
    except ActorStopped as error:
        return type(error).__name__


class Order(msgspec.Struct, frozen=True):
    """A message as it should be."""

    lines: tuple[str, ...]


async def test_case_h10_a_receiver_cannot_change_a_message_for_its_sender(system: ActorSystem) -> None:
    class Changing(Actor):
        def on_receive(self, message: Any) -> None:
            message.lines = ("changed",)

    ref = await system.start(Changing)
    order = Order(("as sent",))
    with pytest.raises(AttributeError, match="immutable"):
        await ref.ask(order, block=False)
    assert order == Order(("as sent",))


async def test_case_h11_twenty_thousand_actors_take_no_thread_and_no_task() -> None:
    asyncio.get_running_loop().set_debug(False)  # It would keep a traceback of each of the stops at the end.
    threads = set(threading.enumerate())
    async with ActorSystem(live_max=None) as system:
        system.register("adding", lambda _: Adding())
        for number in range(20_000):
            system.ref(f"adding/{number}").tell(number)
        assert await system.ref("adding/19999").ask(1, block=False) == 20_000
        assert len(system.live()) == 20_000
        assert len(asyncio.all_tasks()) == 1
        assert set(threading.enumerate()) <= threads


async def test_case_h12_messages_left_after_a_stop_and_later_ones_are_answered_at_once(system: ActorSystem) -> None:
    ref: ActorRef = await system.start(Adding)
    answers = [ref.ask(1, block=False) for _ in range(5)]
    stopped = ref.stop(block=False, now=True)
    late = ref.ask(1, block=False)
    assert await stopped
    for answer in (*answers, late):
        with pytest.raises(ActorStopped):
            await answer
    with pytest.raises(ActorStopped):
        ref.tell(1)
