"""Saving what is whole of a damaged log in a new one: `await repair_log("events.db", "saved.db")`.

Read `refold.stores.keeping.repair` for how; here is known which payloads an event needs.
"""

import os

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash, StreamName, kind_and_identifier
from refold.events.core.records import StoredEvent
from refold.events.model.payloads import referenced_payloads
from refold.inspection.kinds import KINDS
from refold.stores.event_store import TellProgress, untold
from refold.stores.keeping import repair
from refold.stores.keeping.repair import RepairReport


async def repair_log(
    log: str | os.PathLike[str], new: str | os.PathLike[str], *, progress: TellProgress = untold
) -> RepairReport:
    """Save what is whole of a log in a new log, and say what is lost; nothing of the log is changed.

    Each stream is saved up to its first damage: an event that is lost or is not what was appended, or one that refers
    to a payload that is lost.

    Args:
        log: path of the damaged log, which no runtime has open. SQLite need not be able to read it.
        new: path of the new log. Nothing may be there, or an empty file.
        progress: called from time to time, in another thread, with what is counted, how many are done, and of how many.

    Raises:
        ConfigError: a path names no file, or something is at that of the new log.
        LogInUse: a runtime owns the log.
        LogFormatError: the log is no file, or empty.
        PersistenceError: the log cannot be read, or the new one cannot be made.
    """
    return await repair.repair_log(log, new, payloads_of=_payloads_of, progress=progress)


def _payloads_of(stream: StreamName, data: bytes) -> list[PayloadHash]:
    kind = KINDS.get(kind_and_identifier(stream)[0])
    if kind is None:
        return []
    try:
        event = kind.codec.decode(StoredEvent(position=1, stream=stream, version=1, batch=1, at=0, data=data))
    except LogFormatError:  # It is what was appended; who appended it could read it.
        return []
    return referenced_payloads(event)
