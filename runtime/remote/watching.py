"""Watching the files of a log that another process writes: when to look again, and what came of commands.

All who wait for outcomes in one event loop share one look at the inbox, however many they are.
"""

import asyncio
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.supervision import Background
from refold.bell.listener import Alarm
from refold.events.core.errors import PersistenceError
from refold.remote.protocol import Inbox, InboxEntry, InboxOutcome

POLL_S: Final = 0.1
"""Seconds between two looks."""

LOOK_ANYWAY_S: Final = 1.0
"""After so long who waits for something reads a file though it does not seem to have changed: clocks of file systems
are coarse."""


class Changes:
    """Tells when files may have changed since they were last read, as far as the file system knows.

    Args:
        signature: what the file system says of the files; it differs after a write.
        clock: times the looks.
        look_anyway_s: after so long a look is due though nothing seems to have changed.
    """

    def __init__(self, signature: Callable[[], object], clock: Clock, look_anyway_s: float = LOOK_ANYWAY_S) -> None:
        self._signature = signature
        self._clock = clock
        self._look_anyway_s = look_anyway_s
        self._seen: object = None
        self._again = True
        self._looked_at_s = clock.monotonic_s()
        self._alarm = Alarm(clock)

    def expect(self) -> None:
        self._again = True

    def ring(self) -> None:
        """Have a look due, at once: what looks pauses no longer."""
        self._again = True
        self._alarm.ring()

    async def pause(self, seconds: float) -> None:
        """Return after so long, or once it is rung."""
        await self._alarm.wait(seconds)

    def are_due(self) -> bool:
        signature = self._signature()
        changed = signature != self._seen
        now_s = self._clock.monotonic_s()
        due = changed or self._again or now_s - self._looked_at_s >= self._look_anyway_s
        # Another write may have come in the same tick of the file system's clock: so the next look is due, too.
        self._again, self._seen = changed, signature
        if due:
            self._looked_at_s = now_s
        return due


def signatures(log: str | os.PathLike[str]) -> list[tuple[int, int, int] | None]:
    """Return what the file system says of a log's files; it differs after a write."""
    return [_signature(path) for path in (os.fspath(log), f"{os.fspath(log)}-wal")]


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Path, int], "OutcomeWatch"]] = WeakKeyDictionary()


def stir_watches(inbox: Path) -> None:
    """Have all who wait in this event loop for outcomes in an inbox look into it at once."""
    for (path, _), watch in _watches.get(asyncio.get_running_loop(), {}).items():
        if path == inbox:
            watch.changes.ring()


async def outcome_within(inbox: Inbox, entry: InboxEntry, seconds: float, clock: Clock) -> InboxOutcome | None:
    """Return what came of a row as soon as that is noted, or None after so many seconds; raises as `Inbox.outcome`."""
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    name = (inbox.file.path, id(clock))
    watch = watches.get(name)
    if watch is None:
        watch = watches[name] = OutcomeWatch(inbox, clock)
    try:
        return await watch.outcome(entry, seconds)
    finally:
        if not watch.waiting and watches.get(name) is watch:
            del watches[name]
            watch.looking.end()


class OutcomeWatch:
    """Looks into one inbox as long as a caller waits, and tells each caller what came of its row."""

    def __init__(self, inbox: Inbox, clock: Clock) -> None:
        self._inbox = inbox.until(math.inf)  # Each of those who wait has a limit of its own.
        self._clock = clock
        self.waiting: dict[asyncio.Future[InboxOutcome | None], InboxEntry] = {}
        self.changes = Changes(inbox.file.signature, clock)
        self.looking = Background(f"watch of {inbox.file.path.name}", self._look)

    async def outcome(self, entry: InboxEntry, seconds: float) -> InboxOutcome | None:
        future: asyncio.Future[InboxOutcome | None] = asyncio.get_running_loop().create_future()

        def give_up() -> None:
            if not future.done():
                future.set_result(None)

        timer = self._clock.call_later(seconds, give_up)
        self.waiting[future] = entry
        self.changes.expect()  # What it waits for may have been noted before the last look.
        try:
            return await future
        finally:
            timer.cancel()
            del self.waiting[future]

    async def _look(self) -> None:
        while True:
            try:
                if self.changes.are_due():
                    await self._tell()
            except PersistenceError as error:
                for future in self.waiting:
                    if not future.done():
                        future.set_exception(error)
            await self.changes.pause(POLL_S)

    async def _tell(self) -> None:
        waiting = dict(self.waiting)
        outcomes = await self._inbox.outcomes(list(waiting.values()))
        for future, entry in waiting.items():
            outcome = outcomes[entry.name]
            if future.done() or outcome is None:
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
