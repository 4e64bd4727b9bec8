"""Was anything lost? Compares the log that a process finds with what earlier ones were told is in it.

An append is acknowledged when it returns, or when a client is told of what it holds. From then on the log must have it,
through every failure of the process, the disk and the power. What was not acknowledged may be there or not, but as
whole batches, and with nothing missing before it. The chain of a stream makes both easy to see: the digest after a
batch covers everything before it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from refold.events.core.records import Appended, StoredEvent, batch_of, first_chain, next_chain


class DurabilityCheck:
    """Remembers what was acknowledged."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, tuple[int, bytes]] = {}
        """Version and digest of the last acknowledged batch, by stream."""
        self._told: dict[str, int] = {}
        """Version of the last event that a client was told of, by stream."""

    def acknowledged(self, appended: Sequence[Appended]) -> None:
        for place in appended:
            self._acknowledged[place.stream] = (place.version, place.chain)

    def told(self, stream: str, version: int) -> None:
        self._told[stream] = max(version, self._told.get(stream, 0))

    def missing(self, events: Sequence[StoredEvent]) -> Iterator[tuple[str, str]]:
        """Give each stream that is not what it has to be, and what is wrong with it."""
        found: dict[str, list[StoredEvent]] = {stream: [] for stream in self._acknowledged}
        for event in events:
            found.setdefault(event.stream, []).append(event)
        for stream, stored in found.items():
            chains = {0: first_chain(stream)}
            """Digest by version, where a batch ends."""
            for damage in _walk(stream, stored, chains):
                yield stream, damage
            version, chain = self._acknowledged.get(stream, (0, chains[0]))
            if chains.get(version) != chain:
                end = max(chains)
                what = f"ends at version {end}" if end < version else "has other events"
                yield stream, f"versions up to {version} were acknowledged, and the log {what}"
            elif self._told.get(stream, 0) > max(chains):
                yield stream, f"version {self._told[stream]} was told of, and the log ends at version {max(chains)}"


def _walk(stream: str, stored: Sequence[StoredEvent], chains: dict[int, bytes]) -> Iterator[str]:
    version = 0
    for _, group in groupby(stored, lambda event: event.batch):
        batch = list(group)
        if [event.version for event in batch] != list(range(version + 1, version + 1 + len(batch))):
            yield f"after version {version} comes version {batch[0].version}"
            return
        first = batch[0]
        chain = next_chain(chains[version], batch_of(batch))
        if first.chain != chain:
            yield f"the batch of versions {version + 1} to {version + len(batch)} is not what was appended"
            return
        version += len(batch)
        chains[version] = chain
