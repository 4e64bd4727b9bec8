"""A log that another process owns, kept open for reading between the calls of its connections.

Opening a log takes longer than to read from it what one input brought. So all that an event loop reads of a log goes
through one handle, which stays open for a while. The rules: what lies at the path is looked at before each use, as when
a log is opened, and another file is opened anew; a handle never outlives its loop, and holds up no fork: a child finds
the log as if it had never been open.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from refold.events.core.codec import EventCodec
from refold.events.core.errors import StreamDeleted
from refold.events.core.event import Event
from refold.events.core.ids import SessionId, StreamName, stream_name
from refold.events.core.pure_core import PureCore, Versioned
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.state import SessionState
from refold.inspection.log_reading import opened
from refold.publishing.notifications import RecordedSessionEvent
from refold.publishing.subscription import read_recorded
from refold.stores.event_store import EventStore
from refold.stores.folding import Fold
from refold.stores.guarding.trusted_files import require_log_trusted
from refold.stores.sqlite.file import absolute, is_text_log, resolved
from refold.stores.sqlite.store import SQLiteStore

S = TypeVar("S", bound=Versioned)
E = TypeVar("E", bound=Event)

KEPT_S: Final = 30.0
"""After so long without use it is closed."""

KEPT_MAX: Final = 16
"""Most logs that are kept open in an event loop without being in use."""


FOLDS_MAX: Final = 256
"""Streams whose folded state is kept, those that were looked at last."""

PAGE: Final = 1_000
"""Events that are read at once."""


class _Folded:
    """A stream's state, as far as it was read."""

    def __init__(self, fold: Fold[Any, Any]) -> None:
        self.fold = fold
        self.lock = asyncio.Lock()


class Folds:
    """Keeps the states of streams that are asked for again, so that only what is new is read and folded."""

    def __init__(self) -> None:
        self._folds: OrderedDict[tuple[StreamName, PureCore[Any, Any, Any]], _Folded] = OrderedDict()

    async def session(self, store: EventStore, stream: StreamName) -> SessionState:
        return await self.state(store, stream, SESSION_CORE, SESSION_CODEC)

    async def state(self, store: EventStore, stream: StreamName, core: PureCore[S, Any, E], codec: EventCodec[E]) -> S:
        """Return a stream's state as the log has it now, which goes on with the next call; raises StreamDeleted."""
        name = (stream, core)
        kept = self._folds.get(name)
        if kept is None:
            kept = self._folds[name] = _Folded(Fold(stream, core, codec))
        self._folds.move_to_end(name)
        while len(self._folds) > FOLDS_MAX:
            self._folds.popitem(last=False)
        async with kept.lock:
            fold = kept.fold
            try:
                if not fold.version:
                    await fold.read(store)
                while fold.version:
                    # With the last one that is known, so that a deleted stream is noticed.
                    page = await store.read_stream(stream, after_version=fold.version - 1, limit=PAGE)
                    if not page:
                        raise StreamDeleted(stream)
                    await fold.advance(page[1:])
                    if len(page) < PAGE:
                        break
            except BaseException:  # It may have been left half-way.
                if self._folds.get(name) is kept:
                    del self._folds[name]
                raise
        state: S = fold.state
        return state


class ReadLog:
    """A log that is open for reading, and what is known of its sessions."""

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self.folded = Folds()
        self._last_errors: dict[str, str] = {}
        if isinstance(store, SQLiteStore):
            store.read_one_file()

    def is_news(self, part: str, error: Exception) -> bool:
        """Tell whether this error of a part of it is another than that part's last one, and remember it."""
        last, self._last_errors[part] = self._last_errors.get(part), str(error)
        return last != self._last_errors[part]

    async def state(self, session: SessionId) -> SessionState:
        """Return the state of a session as the log has it now, which is not the caller's own; none of a deleted one."""
        try:
            return await self.folded.session(self.store, stream_name(SESSION_KIND, session))
        except StreamDeleted:
            return SESSION_CORE.initial()

    async def version(self, session: SessionId) -> int:
        """Return the version that a session has in the log now; 0 = it is not there, or was deleted."""
        head = await self.store.head(stream_name(SESSION_KIND, session))
        return head.version if head is not None else 0

    async def state_at(self, session: SessionId, version: int) -> SessionState:
        """Return the state of a session as of a version; raise StreamDeleted where it was deleted."""
        fold = Fold(stream_name(SESSION_KIND, session), SESSION_CORE, SESSION_CODEC)
        await fold.read(self.store, version=version, sealed=False)
        if not fold.version:
            raise StreamDeleted(fold.stream)
        return fold.state

    async def recorded_after(self, session: SessionId, version: int, limit: int) -> list[RecordedSessionEvent]:
        """Return the next events of a session after a version; see `read_recorded`."""
        return await read_recorded(self.store, stream_name(SESSION_KIND, session), after_version=version, limit=limit)


class HeldLog:
    """An open log, and how many read it now; who holds it calls `release` once."""

    def __init__(self, store: SQLiteStore, path: Path, file: tuple[Path, int, int] | None) -> None:
        self.log = ReadLog(store)
        self.file = file
        """Which file it is: its path without symbolic links, its device and its inode."""
        self.users = 0
        self.used = True
        """Since it was last looked at whether it is in use."""
        self.kept = True
        self.store = store
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = loop.create_future()
        self._keeping = loop.create_task(self._keep(), name=f"keep {path.name} open")

    async def _keep(self) -> None:
        # A task, since a loop that is torn down lets its tasks end.
        try:
            while self.users or (self.kept and self.used):
                self.used = False
                # By the loop's own time, since a clock that a test moves may stand still.
                await asyncio.wait([self._over], timeout=KEPT_S)
        finally:
            self.kept = False
            if not self.users:  # Else the last of them closes it.
                await self.store.close()

    def let_go(self) -> None:
        """Close it, as soon as nobody reads it."""
        self.kept = False
        if not self.users:
            if self._keeping.done():  # Other code cancelled it.
                self._keeping = asyncio.get_running_loop().create_task(self._keep())
            elif not self._over.done():
                self._over.set_result(None)

    def release(self) -> None:
        """Read it no more, for one who held it."""
        self.users -= 1
        if not (self.users or self.kept):
            self.let_go()

    def before_fork(self) -> None:
        """Close it at once, from any thread, if nobody reads it."""
        if self.kept and not self.users:
            self.kept = False
            self.store.close_now()


class _LogsOfLoop:
    """The logs that an event loop keeps open, and which it is opening."""

    def __init__(self) -> None:
        self.kept: OrderedDict[Path, HeldLog] = OrderedDict()
        self.opening: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()


# State of an event loop by nature: what is awaited belongs to it.
_logs: WeakKeyDictionary[asyncio.AbstractEventLoop, _LogsOfLoop] = WeakKeyDictionary()


@asynccontextmanager
async def kept_open(log: str | os.PathLike[str]) -> AsyncGenerator[ReadLog]:
    """Give a log, open for reading; it stays open afterwards.

    Raises:
        LogFormatError: the file is not a log, is damaged, or comes from a newer Refold.
        PersistenceError: the file is missing, is not to be trusted, or cannot be read.
    """
    if is_text_log(log):
        async with opened(log) as copy:
            yield ReadLog(copy)
        return
    kept = await held_log(absolute(log))
    try:
        yield kept.log
    finally:
        kept.release()


async def held_log(path: Path) -> HeldLog:
    """Return a log, open for reading until `release` is called; raises as `kept_open`."""
    kept = await _kept_of(path)
    kept.users, kept.used = kept.users + 1, True
    return kept


async def _kept_of(path: Path) -> HeldLog:
    logs = _logs.setdefault(asyncio.get_running_loop(), _LogsOfLoop())
    async with logs.opening.setdefault(path, asyncio.Lock()):
        file, kept = _file_at(path), logs.kept.get(path)
        if file is not None and kept is not None and kept.kept and kept.file == file:
            require_log_trusted(file[0], writing=False)
            logs.kept.move_to_end(path)
            return kept
        store = await SQLiteStore.open(path, read_only=True)
        opened_now = HeldLog(store, path, file)
        if kept is not None:
            logs.kept.pop(path, kept).let_go()
        if file == _file_at(path) and not store.is_copy:
            logs.kept[path] = opened_now
        else:  # What changes there would not be seen.
            opened_now.kept = False
        while len(logs.kept) > KEPT_MAX:
            logs.kept.popitem(last=False)[1].let_go()
        return opened_now


def _file_at(path: Path) -> tuple[Path, int, int] | None:
    """Return which file lies at a path; None = none does."""
    try:
        found = resolved(path)
        status = found.stat()
    except OSError:
        return None
    return found, status.st_dev, status.st_ino


def _before_fork() -> None:
    for logs in list(_logs.values()):
        for kept in list(logs.kept.values()):
            kept.before_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_logs.clear)
