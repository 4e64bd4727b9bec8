"""What a store gives beyond the contract so that its whole log can be copied: `refold.stores.log_export` reads it.

Read `refold.stores.event_store` first. All stores that Refold brings give it; one of yours may.
"""

from typing import Protocol

import msgspec

from refold.events.ids import PayloadHash, StreamName
from refold.stores.event_store import EventStore


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a deleted stream was."""

    position: int
    stream: StreamName
    version: int
    chain: bytes
    at: int
    """Microseconds since the epoch, UTC: when it was deleted."""


class ListedPayload(msgspec.Struct, frozen=True):
    """A payload in a list of those that a log keeps."""

    hash: PayloadHash
    size: int
    """About how many bytes it has, so that small ones can be read together."""


class WholeLog(EventStore, Protocol):
    """An event store that can be asked for everything that it keeps, page by page."""

    async def list_payloads(self, *, after: str = "", limit: int) -> list[ListedPayload]:
        """Return at most `limit` payloads whose hashes are greater than `after`, in order of the hashes.

        Raises:
            PersistenceError: the log cannot be read.
        """
        ...

    async def removed_position(self) -> int:
        """Return the highest position that was ever removed, so that it is not used again; 0 = none."""
        ...

    async def list_tombstones(self, *, after_position: int = 0, limit: int) -> list[Tombstone]:
        """Return at most `limit` tombstones with a greater position, in its order."""
        ...
