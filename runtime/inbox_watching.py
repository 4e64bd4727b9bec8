"""Waiting for what comes of rows of an inbox: one look for all who wait in an event loop, however many they are.

Every look asks the file system whether the file has changed, and opens it only then, or when some seconds have gone by.
"""

import asyncio
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from refold.actors.clock import Clock
from refold.events.errors import PersistenceError
from refold.inbox import Inbox, InboxEntry, InboxOutcome
from refold.stores.inbox_file import InboxSignature

POLL_S: Final = 0.1
"""Seconds between two looks."""

LOOK_ANYWAY_S: Final = 2.0
"""After so long the file is opened though nothing seems to have changed: for clocks of file systems that are coarse."""

_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Path, int], "OutcomeWatch"]] = WeakKeyDictionary()


async def outcome_within(inbox: Inbox, entry: InboxEntry, seconds: float, clock: Clock) -> InboxOutcome | None:
    """Return what came of a row, as soon as that is noted, or None where it is not in so many seconds.

    Raises:
        CommandRejected: the row is not there any more.
        PersistenceError: the inbox cannot be read.
    """
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    name = (inbox.file.path, id(clock))
    watch = watches.get(name)
    if watch is None:
        watch = watches[name] = OutcomeWatch(inbox, clock)
    try:
        return await watch.outcome(entry, seconds)
    finally:
        if not watch.is_awaited and watches.get(name) is watch:
            del watches[name]
            watch.stop()


class OutcomeWatch:
    """Looks into one inbox as long as somebody waits, and tells who waits what came of their rows."""

    def __init__(self, inbox: Inbox, clock: Clock) -> None:
        self._inbox = inbox
        self._clock = clock
        self._waiting: dict[asyncio.Future[InboxOutcome | None], InboxEntry] = {}
        self._looking = asyncio.get_running_loop().create_task(self._look(), name=f"watch of {inbox.file.path.name}")
        self._seen: InboxSignature | None = None
        self._again = True
        self._looked_at_s = clock.monotonic_s()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def stop(self) -> None:
        """Look no more; nobody waits."""
        self._looking.cancel()

    async def outcome(self, entry: InboxEntry, seconds: float) -> InboxOutcome | None:
        """Return what came of a row, or None where that is not noted in so many seconds."""
        future: asyncio.Future[InboxOutcome | None] = asyncio.get_running_loop().create_future()

        def give_up() -> None:
            if not future.done():
                future.set_result(None)

        timer = self._clock.call_later(seconds, give_up)
        self._waiting[future] = entry
        self._again = True  # What it waits for may have been noted before the last look.
        try:
            return await future
        finally:
            timer.cancel()
            del self._waiting[future]

    async def _look(self) -> None:
        while True:
            try:
                if self._is_due():
                    await self._tell()
            except PersistenceError as error:
                for future in self._waiting:
                    if not future.done():
                        future.set_exception(error)
            await self._clock.sleep(POLL_S)

    def _is_due(self) -> bool:
        signature = self._inbox.file.signature()
        changed = signature != self._seen
        due = changed or self._again or self._clock.monotonic_s() - self._looked_at_s >= LOOK_ANYWAY_S
        # Another write may have come in the same tick of the file system's clock: so it is opened once more.
        self._again, self._seen = changed, signature
        return due

    async def _tell(self) -> None:
        self._looked_at_s = self._clock.monotonic_s()
        waiting = dict(self._waiting)
        outcomes = await self._inbox.outcomes(list(waiting.values()))
        for future, entry in waiting.items():
            outcome = outcomes[entry.name]
            if future.done() or outcome is None:
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
