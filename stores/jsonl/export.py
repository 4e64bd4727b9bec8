"""A whole log as JSON Lines, while its owner may go on writing it.

Read `refold.stores.jsonl.format` for the lines and `refold.stores.jsonl.importing` for the way back. First come the
payloads in order of their hashes, then tombstones, then the batches in order of position, then the end. The rule it
protects: what is written is a prefix of the log, with all payloads that it refers to, and the same log always gives
the same bytes. So where the prefix ends is settled before anything is read. Memory holds one page, and one payload.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from typing import Final

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import StoredEvent, batch_of
from refold.stores.event_store import ListedPayload, TellProgress, WholeLog, untold
from refold.stores.jsonl.format import (
    FORMAT,
    LINE_BYTES_MAX,
    EndLine,
    HeaderLine,
    batch_line,
    encoded,
    payload_line,
    tombstone_line,
)
from refold.stores.past_state import last_position

_PAGE_EVENTS_MAX: Final = 1000
_PAGE_BYTES_WANTED: Final = 1024 * 1024
_NAMES_PER_PAGE: Final = 1000


async def exported_lines(
    store: WholeLog,
    *,
    streams: Collection[str] | None = None,
    payloads: Collection[PayloadHash] | None = None,
    until_position: int | None = None,
    progress: TellProgress = untold,
) -> AsyncGenerator[bytes, None]:
    """Give the lines of a log, from the header to the end, each with its line end.

    Args:
        store: the log; what is appended meanwhile is left out.
        streams: only these, at the positions that they have, in an export that says so; None = all.
        payloads: only these of the payloads; None = all.
        until_position: only batches that begin at a position up to it; None = all.
        progress: called with how many payloads were written, then with how many events were read.

    Raises:
        LogFormatError: the log is damaged: a batch is not whole, or a payload is not what its name says.
        PersistenceError: the log cannot be read, or a line of it would be longer than lines may be.
    """
    end = await last_position(store)
    digest = hashlib.sha256()
    batches = events = kept = 0
    partial = streams is not None
    removed = await store.removed_position()
    # An export that leaves streams out keeps their positions from being used again.
    header = HeaderLine(format=FORMAT, export=True, partial=partial, removed_position=max(removed, end * partial))
    line = encoded(header)
    digest.update(line)
    yield line
    async for line in _payload_lines(store, payloads):
        kept += 1
        progress("payloads", kept, None)
        digest.update(line)
        yield line
    async for line in _tombstone_lines(store, streams):
        digest.update(line)
        yield line
    until = end if until_position is None else min(end, until_position)
    async for batch in stored_batches(store, until_position=until):
        progress("events", batch[-1].position, until)
        if streams is not None and batch[0].stream not in streams:
            continue
        batches += 1
        events += len(batch)
        line = _batch_line(store.name, batch)
        digest.update(line)
        yield line
    yield encoded(EndLine(batches=batches, events=events, payloads=kept, sha256=digest.hexdigest()))


async def stored_batches(store: WholeLog, *, until_position: int) -> AsyncGenerator[list[StoredEvent], None]:
    """Give the batches of all streams that begin at a position up to the given one, in order of position."""
    batch: list[StoredEvent] = []
    async for event in _events(store):
        if event.version == event.batch:
            if batch:
                yield batch
                batch = []
            if event.position > until_position:
                return
        elif not batch or not _follows(batch[-1], event):
            raise LogFormatError(
                f"the log {store.name} is damaged: the event at position {event.position} does not follow the one "
                "before it in its batch; `refold check` tells more"
            )
        batch.append(event)
    if batch:
        yield batch


def _follows(before: StoredEvent, event: StoredEvent) -> bool:
    return (event.stream, event.batch, event.version, event.position, event.at) == (
        before.stream,
        before.batch,
        before.version + 1,
        before.position + 1,
        before.at,
    )


async def _events(store: WholeLog) -> AsyncIterator[StoredEvent]:
    """Give all events, in pages that are the smaller the larger the events are."""
    position, limit = 0, 100
    while page := await store.read_all(after_position=position, limit=limit):
        for event in page:
            yield event
        if page[-1].position <= position:
            raise LogFormatError(f"the log {store.name} is damaged: reading it goes back after position {position}")
        position = page[-1].position
        size = sum(len(event.data) for event in page)
        limit = max(limit // 8, 1) if size > _PAGE_BYTES_WANTED else min(limit * 2, _PAGE_EVENTS_MAX)


async def _payload_lines(store: WholeLog, wanted: Collection[PayloadHash] | None) -> AsyncIterator[bytes]:
    after = ""
    while page := await store.list_payloads(after=after, limit=_NAMES_PER_PAGE):
        for names in _read_together([item for item in page if wanted is None or item.hash in wanted]):
            payloads = await store.read_payloads(names)
            for name in names:
                # One that is missing was deleted meanwhile, with the last that referred to it.
                if name in payloads:
                    yield _payload_line(store.name, name, payloads[name])
        if page[-1].hash <= after:
            raise LogFormatError(f"the log {store.name} is damaged: its payloads cannot be listed after {after!r:.80}")
        after = page[-1].hash


def _read_together(listed: Sequence[ListedPayload]) -> Iterator[list[PayloadHash]]:
    """Give the names of payloads in groups, each of one payload or of a few small ones."""
    names: list[PayloadHash] = []
    size = 0
    for item in listed:
        if names and size + item.size > _PAGE_BYTES_WANTED:
            yield names
            names, size = [], 0
        names.append(item.hash)
        size += item.size
    if names:
        yield names


def _payload_line(log: str, name: PayloadHash, payload: bytes) -> bytes:
    if hashlib.sha256(payload).hexdigest() != name:
        raise LogFormatError(f"the log {log} is damaged: the payload {name!r} is not what its name says")
    return _bounded(payload_line(name, payload), f"the payload {name}")


async def _tombstone_lines(store: WholeLog, streams: Collection[str] | None) -> AsyncIterator[bytes]:
    if streams is not None:  # They are there, so that no tombstone is of one of them.
        return
    after = 0
    while page := await store.list_tombstones(after_position=after, limit=_NAMES_PER_PAGE):
        for tombstone in page:
            yield tombstone_line(tombstone)
        if page[-1].position <= after:
            raise LogFormatError(f"the log {store.name} is damaged: its tombstones cannot be listed after {after}")
        after = page[-1].position


def _batch_line(name: str, events: Sequence[StoredEvent]) -> bytes:
    first = events[0]
    if first.chain is None or first.pending is None:
        raise LogFormatError(f"the log {name} is damaged: the event at position {first.position} has no chain")
    try:
        line = batch_line(batch_of(events), first.position, first.chain)
    except UnicodeError as error:
        raise LogFormatError(f"the log {name} is damaged: an event at position {first.position}: {error}") from None
    return _bounded(line, f"the batch at position {first.position}")


def _bounded(line: bytes, what: str) -> bytes:
    if len(line) > LINE_BYTES_MAX:
        raise PersistenceError(f"{what} would be a line of {len(line):,} bytes; a line has at most {LINE_BYTES_MAX:,}")
    return line
