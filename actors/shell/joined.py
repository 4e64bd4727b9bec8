"""Messages that wait one behind the other are handled together, in one transaction.

A hundred inputs to one session that come at once then wait for the disk once and not a hundred times. The rule: no
asker is worse off for it. Each gets the reply, or the error, that it would have got alone.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from refold.actors.kernel.reply import Reply
from refold.actors.shell.messages import Envelope, Performed
from refold.events.core.errors import CommandRejected, RefoldError

TOGETHER_MAX: Final = 64
"""Most messages that are handled in one transaction."""


class _Receiver(Protocol):
    """Handles messages."""

    async def receive(self, envelope: Envelope) -> Any:
        """Handle one and return the reply."""
        ...

    async def perform_all(self, envelopes: Sequence[Envelope]) -> Sequence[Performed]:
        """Perform all of them or, where one is refused, none."""
        ...

    async def reply(self, envelope: Envelope, performed: Performed) -> Any:
        """Return the reply to one that was performed."""
        ...


async def receive_together(receiver: _Receiver, first: Envelope, others: Sequence[tuple[Envelope, Reply]]) -> Any:
    """Handle a message, and those that were taken out of the mailbox along with it; return the reply to the first."""
    performed: Sequence[Performed | None]
    try:
        performed = await receiver.perform_all([first, *(envelope for envelope, _ in others)])
    except CommandRejected:  # It does not say whose command it refuses, and the others have nothing to do with it.
        performed = [None] * (1 + len(others))
    reply, error = await _outcome(receiver, first, performed[0])
    for (envelope, asked), each in zip(others, performed[1:], strict=True):
        asked.settle(*await _outcome(receiver, envelope, each))
    if error is not None:
        raise error
    return reply


async def _outcome(
    receiver: _Receiver, envelope: Envelope, performed: Performed | None
) -> tuple[Any, RefoldError | None]:
    """Return the reply to a message, or its error; it is handled alone where it was not performed with the others."""
    try:
        if performed is None:
            return await receiver.receive(envelope), None
        return await receiver.reply(envelope, performed), None
    except RefoldError as error:
        return None, error
