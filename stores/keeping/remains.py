"""Whether something of what was deleted still stands in the bytes of a log's files.

SQLite overwrites what is deleted (`secure_delete`); this looks whether it has. In each row that begins a batch lies the
batch's digest, of 32 bytes, which stands nowhere else: where one is found, the words beside it may be as well. The last
digest of a stream is left out, since its tombstone has that. Files are read as files, which a process must not do that
has the log open: to close one there would drop SQLite's locks.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from refold.events.core.errors import PersistenceError
from refold.events.core.records import StreamHead
from refold.stores.event_store import EventStore
from refold.stores.sqlite.rewrite import BLOCK_BYTES

TRACES_MAX: Final = 64
"""So many digests are looked for in each block of a file."""

EVENTS_PER_PAGE: Final = 1_000


async def traces_of(store: EventStore, streams: Sequence[StreamHead]) -> tuple[str, ...]:
    """Return digests of batches of streams, spread evenly over them, in hexadecimal digits."""
    traces: list[str] = []
    for head in streams:
        version = 0
        while page := await store.read_stream(head.stream, after_version=version, limit=EVENTS_PER_PAGE):
            traces += [
                event.chain.hex()
                for event in page
                if event.chain is not None and event.chain != head.chain and event.stream == head.stream
            ]
            version = page[-1].version
    return tuple(traces[:: -(-len(traces) // TRACES_MAX) or 1])


def remains(log: Path, traces: Sequence[str]) -> list[str]:
    """Return the files of a log in which one of some traces stands; no store of this process may have the log open."""
    wanted = [bytes.fromhex(trace) for trace in traces]
    files = [log, log.with_name(log.name + "-wal")]
    try:
        return [str(path) for path in files if path.exists() and _holds_any(path, wanted)]
    except OSError as error:
        raise PersistenceError(f"the log {log} cannot be looked through: {error.strerror}") from error


def _holds_any(path: Path, wanted: Sequence[bytes]) -> bool:
    overlap = max(map(len, wanted), default=1) - 1
    before = b""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            seen = before + block
            if any(trace in seen for trace in wanted):
                return True
            before = seen[-overlap:]
    return False
