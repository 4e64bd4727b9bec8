"""Errors of the actor kernel: a message that cannot be answered, and waits that could never end.

They derive from RefoldError, and where pykka has a word for the same thing from pykka's error too, so that code
written for pykka catches them. Read `refold.events.core.errors` for the rest of the tree.
"""

import pykka

from refold.events.core.errors import RefoldError


class ActorStopped(RefoldError, pykka.ActorDeadError):
    """Nobody at an address can take or answer the message.

    Raised by `tell`, and given to askers. Whether a message that was being handled had an effect is unknown; one
    that was still queued had none.

    Attributes:
        address: whom the message was for.
        reason: why it was not answered, and what can be done.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class AskTimeout(RefoldError, pykka.Timeout):
    """No answer came in time. The message may still be handled: ask again only what is safe to ask twice.

    Attributes:
        address: who was asked.
        timeout_s: seconds waited.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__(
            f"{address} did not answer within {timeout_s:g} s; the message may still be handled. "
            "Give ask() a longer timeout, or find out what that actor waits for"
        )
        self.address = address
        self.timeout_s = timeout_s


class AskCycle(RefoldError):
    """Actors would wait for each other for ever.

    The message whose wait closed the circle is withdrawn: if it was still queued, it is never handled.

    Attributes:
        circle: the addresses, each waiting for the next; the last is the first again.
    """

    def __init__(
        self, circle: tuple[str, ...], advice: str = "Use tell(), or do not await the answer inside the handler"
    ) -> None:
        super().__init__(f"waiting here would never end: {' -> '.join(circle)}. {advice}")
        self.circle = circle


class WouldDeadlock(RefoldError):
    """A blocking call was made on the very thread that would have to do the work; nothing was sent."""
