"""Messages that wait one behind the other, handled in one transaction: what each asker gets."""

from collections.abc import Sequence
from typing import Any

import pytest

from refold.actors import ActorSystem
from refold.actors.kernel.reply import Reply
from refold.actors.shell.joined import receive_together
from refold.actors.shell.messages import Envelope, Performed
from refold.events.core.errors import CommandRejected, PersistenceError


class Counting:
    """Handles messages, keeps what it was given, and refuses some."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.refuses_reply = ""
        self.handled: list[str] = []
        self.fails = False
        self.fails_after = 1

    async def receive(self, envelope: Envelope) -> Any:
        (performed,) = await self.perform_all([envelope])
        return await self.reply(envelope, performed)

    async def perform_all(self, envelopes: Sequence[Envelope]) -> list[Performed]:
        names = "".join(envelope.command for envelope in envelopes)
        self.handled.append(names)
        if self.fails and len(self.handled) > self.fails_after:
            raise PersistenceError("the disk is full")
        for name in names:
            if name in self.refuses:
                raise CommandRejected(f"{name} is refused")
        return [Performed(place, True) for place, _ in enumerate(names, 1)]

    async def reply(self, envelope: Envelope, performed: Performed) -> Any:
        if envelope.command in self.refuses_reply:
            raise CommandRejected(f"no reply to {envelope.command}")
        return f"done {envelope.command} @{performed.version}"


async def handled(receiver: Counting, others: str, system: ActorSystem) -> tuple[Any, list[Any]]:
    """Return what the askers of "a", and of the others that wait behind it, get; None = nothing yet."""
    waiting = [(Envelope(name), Reply(system.loop, "works/one")) for name in others]
    reply: Any
    try:
        reply = await receive_together(receiver, Envelope("a"), waiting)
    except (CommandRejected, PersistenceError) as error:
        reply = str(error)
    return reply, [await outcome(asked) for _, asked in waiting]


async def outcome(reply: Reply) -> Any:
    if not reply.ready():
        return None
    try:
        return await reply
    except (CommandRejected, PersistenceError) as error:
        return str(error)


async def test_what_waits_together_is_handled_at_once_and_each_asker_gets_a_reply_of_its_own(
    system: ActorSystem,
) -> None:
    receiver = Counting()
    assert await handled(receiver, "bc", system) == ("done a @1", ["done b @2", "done c @3"])
    assert receiver.handled == ["abc"]


@pytest.mark.parametrize(
    ("refuses", "reply", "replies"),
    [
        ("a", "a is refused", ["done b @1", "done c @1"]),
        ("b", "done a @1", ["b is refused", "done c @1"]),
        ("ac", "a is refused", ["done b @1", "c is refused"]),
    ],
)
async def test_one_that_is_refused_costs_the_others_nothing(
    system: ActorSystem, refuses: str, reply: str, replies: list[str]
) -> None:
    receiver = Counting(refuses)
    assert await handled(receiver, "bc", system) == (reply, replies)
    assert receiver.handled == ["abc", "a", "b", "c"]


@pytest.mark.parametrize(
    ("refuses_reply", "reply", "replies"),
    [
        ("a", "no reply to a", ["done b @2", "done c @3"]),
        ("c", "done a @1", ["done b @2", "no reply to c"]),
    ],
)
async def test_a_reply_that_is_refused_is_the_error_of_one_asker_and_nothing_is_handled_again(
    system: ActorSystem, refuses_reply: str, reply: str, replies: list[str]
) -> None:
    receiver = Counting()
    receiver.refuses_reply = refuses_reply
    assert await handled(receiver, "bc", system) == (reply, replies)
    assert receiver.handled == ["abc"]


async def test_a_log_that_fails_meanwhile_costs_only_those_whom_it_fails(system: ActorSystem) -> None:
    receiver = Counting("c")
    receiver.fails = True
    full = "the disk is full"
    assert await handled(receiver, "bc", system) == (full, [full, full])
    receiver.handled, receiver.fails_after = [], 2
    assert await handled(receiver, "bc", system) == ("done a @1", [full, full])
