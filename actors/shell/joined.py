"""Messages that wait one behind the other are handled together, in one transaction.

A hundred inputs to one session that come at once then wait for the disk once and not a hundred times. The rule: no
asker is worse off for it. Each gets the reply, or the refusal, that it would have got alone.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from refold.actors.kernel.reply import Reply
from refold.actors.shell.messages import Envelope
from refold.events.core.errors import CommandRejected

TOGETHER_MAX: Final = 64
"""Most messages that are handled in one transaction."""


class _Receiver(Protocol):
    """Handles messages."""

    async def receive(self, envelope: Envelope) -> Any:
        """Handle one and return the reply."""
        ...

    async def receive_all(self, envelopes: Sequence[Envelope]) -> list[Any]:
        """Handle all of them or, where one is refused, none; return the replies."""
        ...


async def receive_together(receiver: _Receiver, first: Envelope, others: Sequence[tuple[Envelope, Reply]]) -> Any:
    """Handle a message, and those that were taken out of the mailbox along with it; return the reply to the first."""
    try:
        reply, *replies = await receiver.receive_all([first, *(envelope for envelope, _ in others)])
    except CommandRejected:  # It does not say whose command it refuses, and the others have nothing to do with it.
        reply, refusal = await _alone(receiver, first)
        for envelope, asked in others:
            asked.settle(*await _alone(receiver, envelope))
        if refusal is not None:
            raise refusal from None
        return reply
    for (_, asked), each in zip(others, replies, strict=True):
        asked.settle(each)
    return reply


async def _alone(receiver: _Receiver, envelope: Envelope) -> tuple[Any, CommandRejected | None]:
    try:
        return await receiver.receive(envelope), None
    except CommandRejected as refusal:
        return None, refusal
