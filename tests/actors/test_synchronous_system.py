"""Actors from a plain script: a system on a loop of its own, in a thread."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from refold import ActorStopped, AgentConfig, AgentRuntime, ConfigError, LogInUse, ScriptedProvider, WouldDeadlock
from refold.actors import Actor, ActorSystem, EventSourcedSystem, SyncHost, SyncHosted, SyncSystem
from refold.events import CommandRejected, Effect, KeyedCommand, KeyedEvent, PureCore, State


class Add(KeyedCommand, frozen=True, kw_only=True):
    amount: int


class Told(msgspec.Struct, frozen=True, kw_only=True):
    upto: int


class Added(KeyedEvent, frozen=True, kw_only=True, tag="sum.added.v1"):
    amount: int


class Noted(KeyedEvent, frozen=True, kw_only=True, tag="sum.noted.v1"):
    upto: int


class Tell(Effect, frozen=True, kw_only=True):
    total: int
    upto: int


class Total(State):
    total: int = 0
    told: int = 0
    added: int = 0


class Summing(PureCore[Total, Add | Told, Added | Noted]):
    def admit(self, state: Total, command: Add | Told) -> Added | Noted:
        if isinstance(command, Told):
            return Noted(upto=command.upto)
        if command.amount < 0:
            raise CommandRejected("nothing is taken away")
        return Added(amount=command.amount)

    def evolve(self, state: Total, event: Added | Noted) -> Total:
        if isinstance(event, Added):
            state.total, state.added = state.total + event.amount, state.version
        else:
            state.told = event.upto
        return state

    def pending(self, state: Total) -> list[Tell]:
        return [Tell(key=f"tell:{state.added}", total=state.total, upto=state.added)] * (state.told < state.added)


def total(state: Total) -> int:
    return state.total


class Greeter(Actor):
    def on_receive(self, message: object) -> str:
        return f"{message}, {threading.current_thread().name}"


def test_event_sourced_actors_work_from_a_plain_script_and_go_on_after_it(tmp_path: Path) -> None:
    log, told, seen = tmp_path / "sums.db", threading.Event(), list[int]()

    def tell(effect: Tell) -> Told:
        assert (threading.current_thread().daemon, threading.current_thread().name) == (True, "refold-sum-1")
        seen.append(effect.total)
        told.set()
        return Told(upto=effect.upto)

    with EventSourcedSystem(log) as system:
        assert isinstance(system, SyncSystem)
        assert isinstance(system.host, SyncHost)
        sums = system.host("sum", Summing)
        assert isinstance(sums, SyncHosted)
        assert (sums.kind, sums.ref("a").address) == ("sum", "sum/a")
        assert sums.ask("a", Add(amount=2, key="1")).version == sums.ask("a", Add(amount=2, key="1")).version == 1
        with pytest.raises(CommandRejected, match="nothing is taken away"):
            sums.ask("a", Add(amount=-1))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda amount: sums.ask("a", Add(amount=amount)), range(50)))
        assert sums.read("a", total) == 2 + sum(range(50))
        assert system.live() == ("sum/a",)
    with pytest.raises(ActorStopped):
        sums.ask("a", Add(amount=1))
    with EventSourcedSystem(log) as system:  # Now the work is done that was pending.
        sums = system.host("sum", Summing, perform=tell)
        assert told.wait(30)
        with pytest.raises(LogInUse), EventSourcedSystem(log, wait_for_log_s=0):
            pytest.fail("two systems have one log")
        sums.tell("a", Add(amount=1))
        assert sums.read("a", total) == seen[0] + 1 == 2 + sum(range(50)) + 1


def test_plain_actors_need_no_log() -> None:
    with EventSourcedSystem() as system:
        assert system.start(Greeter, address="greeter").ask("hello") == "hello, refold-actors"
        system.register("greeter", lambda _: Greeter())
        assert system.ref("greeter/2").ask("hi") == "hi, refold-actors"
        assert system.live() == ("greeter", "greeter/2")
        system.close()
        system.close()


def test_a_runtime_for_threads_hosts_actors_beside_its_sessions(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider(["Hello"]), log=log) as runtime:
        sums = runtime.host("sum", Summing)
        assert sums.ask("a", Add(amount=3)).version == 1
        assert runtime.session("alice").send("Hi").output == "Hello"
    with EventSourcedSystem(log) as system:
        assert system.host("sum", Summing).read("a", total) == 3


async def test_where_a_loop_runs_a_system_says_what_to_write() -> None:
    with pytest.raises(WouldDeadlock, match=r"async with EventSourcedSystem\("), EventSourcedSystem():
        pytest.fail("the loop of this thread would stand still")


def test_without_a_loop_a_system_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match="write `with EventSourcedSystem"):
        ActorSystem()
    with pytest.raises(ConfigError, match="mailbox_capacity must be >= 1"), EventSourcedSystem(mailbox_capacity=0):
        pytest.fail("no mailbox holds nothing")

    async def later(system: EventSourcedSystem) -> str:
        async with system:
            greeter = await system.start(Greeter)
            answer: str = await greeter.ask("hello", block=False)
            return answer

    assert asyncio.run(later(EventSourcedSystem())) == "hello, MainThread"
