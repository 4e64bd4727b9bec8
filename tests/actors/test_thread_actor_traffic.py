"""Many threads, many messages, two loops: nothing is lost, and each sender's messages keep their order."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from refold.actors import Actor, ActorRef, ActorSystem

SENDERS = 4
MESSAGES = 200
LONG_S = 30

Numbered = tuple[str, int]


class Log(Actor):
    """Keeps what it is told and asked; asked for it, it gives all of it."""

    def __init__(self) -> None:
        self.kept: list[Numbered] = []

    def on_receive(self, message: Any) -> Any:
        if message == "all":
            return self.kept
        self.kept.append(message)
        return message


class ThreadLog(pykka.ThreadingActor):
    """The same in a thread; told to send, it tells and asks an actor so many messages."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.kept: list[Numbered] = []

    def on_receive(self, message: Any) -> Any:
        if message == "all":
            return self.kept
        if isinstance(message, ActorRef):
            return self.send(message)
        self.kept.append(message)
        return message

    def send(self, to: ActorRef) -> bool:
        answers = []
        for number in range(MESSAGES):
            if number % 2:
                to.tell((self.name, number))
            else:
                answers.append(to.ask((self.name, number), block=False))
        return pykka.get_all(answers) == [(self.name, number) for number in range(0, MESSAGES, 2)]


def assert_complete(kept: list[Numbered], senders: set[str]) -> None:
    """Each sender's messages are there, all of them, once, in order."""
    assert len(kept) == len(senders) * MESSAGES
    for sender in senders:
        assert [number for who, number in kept if who == sender] == list(range(MESSAGES))


@pytest.fixture
def thread_logs() -> Iterator[list[Any]]:
    refs = [ThreadLog.start(f"thread {number}") for number in range(SENDERS)]
    yield refs
    for ref in refs:
        ref.stop()


async def test_thread_actors_and_ours_send_each_other_many_messages_at_once(
    system: ActorSystem, thread_logs: list[Any]
) -> None:
    log = await system.start(Log)
    bridges = [system.bridge(ref) for ref in thread_logs]
    sent = [bridge.ask(log) for bridge in bridges]

    async def send(name: str) -> None:
        for number in range(MESSAGES):
            for bridge in bridges:
                if number % 2:
                    bridge.tell((name, number))
                else:
                    bridge.ask((name, number))
            await asyncio.sleep(0)

    await asyncio.gather(*(send(f"task {number}") for number in range(SENDERS)))
    assert [await answer for answer in sent] == [True] * SENDERS
    assert_complete(await log.ask("all", block=False), {f"thread {number}" for number in range(SENDERS)})
    for bridge in bridges:
        assert_complete(await bridge.ask("all"), {f"task {number}" for number in range(SENDERS)})


def test_two_systems_in_two_threads_send_each_other_many_messages_at_once() -> None:
    meeting = threading.Barrier(2, timeout=LONG_S)
    logs: dict[str, ActorRef] = {}
    results: dict[str, tuple[list[Any], list[Numbered]]] = {}

    class Sender(Actor):
        async def on_receive(self, message: Any) -> Any:
            to, name = message
            answers = []
            for number in range(MESSAGES):
                if number % 2:
                    to.tell((name, number))
                else:
                    answers.append(to.ask((name, number), block=False))
            return [await answer for answer in answers]

    async def live(name: str, other: str) -> None:
        async with ActorSystem() as system:
            logs[name] = await system.start(Log)
            sender = await system.start(Sender)
            await asyncio.to_thread(meeting.wait)
            answers = await sender.ask((logs[other], name), block=False)
            await asyncio.to_thread(meeting.wait)
            results[name] = (answers, await logs[name].ask("all", block=False))
            await asyncio.to_thread(meeting.wait)

    threads = [
        threading.Thread(target=lambda names=names: asyncio.run(live(*names)))
        for names in (("east", "west"), ("west", "east"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, other in (("east", "west"), ("west", "east")):
        answers, kept = results[name]
        assert answers == [(name, number) for number in range(0, MESSAGES, 2)]
        assert_complete(kept, {other})
