"""Messages that wait one behind the other, handled in one transaction: what each asker gets."""

from collections.abc import Sequence
from typing import Any

import pytest

from refold.actors import ActorSystem
from refold.actors.kernel.reply import Reply
from refold.actors.shell.joined import receive_together
from refold.actors.shell.messages import Envelope
from refold.events.core.errors import CommandRejected, PersistenceError


class Counting:
    """Handles messages, keeps what it was given, and refuses some."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.handled: list[str] = []
        self.fails = False

    async def receive(self, envelope: Envelope) -> Any:
        return (await self.receive_all([envelope]))[0]

    async def receive_all(self, envelopes: Sequence[Envelope]) -> list[Any]:
        names = "".join(envelope.command for envelope in envelopes)
        self.handled.append(names)
        if self.fails and len(self.handled) > 1:
            raise PersistenceError("the disk is full")
        for name in names:
            if name in self.refuses:
                raise CommandRejected(f"{name} is refused")
        return [f"done {name}" for name in names]


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
    except CommandRejected as error:
        return str(error)


async def test_what_waits_together_is_handled_at_once_and_each_asker_gets_a_reply_of_its_own(
    system: ActorSystem,
) -> None:
    receiver = Counting()
    assert await handled(receiver, "bc", system) == ("done a", ["done b", "done c"])
    assert receiver.handled == ["abc"]


@pytest.mark.parametrize(
    ("refuses", "reply", "replies"),
    [
        ("a", "a is refused", ["done b", "done c"]),
        ("b", "done a", ["b is refused", "done c"]),
        ("ac", "a is refused", ["done b", "c is refused"]),
    ],
)
async def test_one_that_is_refused_costs_the_others_nothing(
    system: ActorSystem, refuses: str, reply: str, replies: list[str]
) -> None:
    receiver = Counting(refuses)
    assert await handled(receiver, "bc", system) == (reply, replies)
    assert receiver.handled == ["abc", "a", "b", "c"]


async def test_a_log_that_fails_meanwhile_is_the_error_of_those_who_have_no_reply_yet(system: ActorSystem) -> None:
    receiver = Counting("c")
    receiver.fails = True
    assert await handled(receiver, "bc", system) == ("the disk is full", [None, None])
