"""What an event-sourced actor is told beside the commands of its core.

Large content that comes with a command, and what it reminds itself of.
"""

from collections.abc import Mapping

import msgspec

from refold.actors.mailbox import Vital
from refold.events.ids import PayloadHash


class WithPayloads(msgspec.Struct, frozen=True):
    """A command whose large content goes to the payloads."""

    command: object
    payloads: Mapping[PayloadHash, bytes]


class GraceOver(Vital, frozen=True):
    """The grace period of the effects that were cancelled then is over."""

    round: int


class OfferResult(Vital, frozen=True):
    """Offer the result of an effect to the log again, which refused it."""

    key: str


class LookAtClock(Vital, frozen=True):
    """See whether the time of a wait has come."""

    key: str


class TakeUp(Vital, frozen=True):
    """Try again to read the log, at the beginning of the actor's life or after an append of unknown outcome."""

    attempt: int


class PauseOver(Vital, frozen=True):
    """Work that has ended and is still wanted may begin again."""

    key: str
