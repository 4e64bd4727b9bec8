"""Waiting for the end of a run that another process carries out, by reading its log.

The log is opened for reading only. The rule: whoever waits learns why there will be no end for now: the run waits for
somebody, or no runtime owns the log.
"""

import math
import os
from typing import Final

import msgspec

from refold.actors.kernel.clock import Clock
from refold.events.core.ids import RunId, SessionId, ToolCallId, stream_name
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import StoredEvent
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.state import SessionState, calls_awaiting_approval, run_of_input
from refold.inspection.log_reading import EVENTS_PER_PAGE, opened
from refold.inspection.session_view import status_of
from refold.publishing.event_bus import cancelled_in_queue
from refold.sessions.outcome import RunResult
from refold.sessions.run_handle import result_of
from refold.stores.sqlite.ownership import log_owner

POLL_S: Final = 0.1
"""Seconds between two looks at the log."""

LOOK_ANYWAY_S: Final = 1.0
"""After so long the log is read though its files do not seem to have changed."""

OWNER_EVERY: Final = 20
"""At every so manieth look at which nothing is new, it is asked whether a runtime still owns the log."""


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Why the end of a run is not awaited any longer."""

    why: str
    calls: tuple[ToolCallId, ...] = ()
    """Calls that wait for approval."""


async def follow_run(
    log: str | os.PathLike[str],
    session: SessionId,
    run: RunId,
    clock: Clock,
    *,
    wait_s: float = math.inf,
    ownerless_s: float = 0,
    owned: bool = False,
) -> RunResult | Stuck:
    """Return how a run ended, once it has, or why that cannot be awaited.

    Args:
        log: the path of the log.
        session: whose run it is.
        run: an input of it is in the log.
        clock: what times the looks at the log.
        wait_s: for how long to wait at most.
        ownerless_s: for how long to wait for a runtime to own the log, where none does.
        owned: whether a runtime owned the log just before, as far as the caller knows.

    Raises:
        PersistenceError: the log cannot be read.
    """
    until_s = clock.monotonic_s() + wait_s
    patience = _Patience(log, clock, ownerless_s, owned=owned)
    state = SESSION_CORE.initial()
    stream = stream_name(SESSION_KIND, session)
    changes = _Changes(log, clock)
    async with opened(log) as store:
        while True:
            page: list[StoredEvent] = []
            if changes.are_to_be_expected():
                page = await store.read_stream(stream, after_version=state.version, limit=EVENTS_PER_PAGE)
            for event in SESSION_CODEC.decode_all(page):
                state = evolve_all(SESSION_CORE, [event], state)
                if state.last_run is not None and state.last_run.run == run:
                    return await result_of(state.last_run, store)
            if page:
                patience.renew()
                changes.expect()
                continue
            for queued in state.queue:
                if queued.cancelled and run_of_input(queued.version) == run:
                    return await result_of(cancelled_in_queue(run, queued.version), store)
            stuck = _stuck(state)
            if stuck is not None:
                return stuck
            if patience.is_at_its_end():
                return Stuck(why=f"no runtime owns the log{patience.any_more}; {run} goes on when one does")
            if clock.monotonic_s() >= until_s:
                return Stuck(why=f"{run} has not ended yet")
            await clock.sleep(POLL_S)


class _Changes:
    """Tells whether a log may have changed since the last look, as far as the file system knows."""

    def __init__(self, log: str | os.PathLike[str], clock: Clock) -> None:
        self._files = (os.fspath(log), f"{os.fspath(log)}-wal")
        self._clock = clock
        self._seen: list[tuple[int, int, int] | None] = []
        self._again = True
        self._looked_at_s = clock.monotonic_s()

    def expect(self) -> None:
        """Let the next look be one."""
        self._again = True

    def are_to_be_expected(self) -> bool:
        """Tell whether to look: the files have changed, or just had when they were last seen, or it is long ago."""
        signature = [_signature(path) for path in self._files]
        changed = signature != self._seen
        now_s = self._clock.monotonic_s()
        due = changed or self._again or now_s - self._looked_at_s >= LOOK_ANYWAY_S
        # Another write may have come in the same tick of the file system's clock: so it is looked once more.
        self._again, self._seen = changed, signature
        if due:
            self._looked_at_s = now_s
        return due


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class _Patience:
    """How long it is waited while nothing happens and no runtime owns the log."""

    def __init__(self, log: str | os.PathLike[str], clock: Clock, ownerless_s: float, *, owned: bool) -> None:
        self._log = log
        self._clock = clock
        self._ownerless_s = ownerless_s
        self._quiet = 0
        self._ownerless_since_s: float | None = None
        self._was_owned = owned or log_owner(log) is not None

    @property
    def any_more(self) -> str:
        """What to add to `no runtime owns the log`: whether one did while it was waited."""
        return " any more" if self._was_owned else ""

    def renew(self) -> None:
        """Note that something has happened."""
        self._quiet = 0
        self._ownerless_since_s = None

    def is_at_its_end(self) -> bool:
        """Tell, at a look at which nothing is new, whether to wait no more."""
        self._quiet += 1
        if self._quiet % OWNER_EVERY:
            return False
        if log_owner(self._log) is not None:
            self._ownerless_since_s = None
            self._was_owned = True
            return False
        now_s = self._clock.monotonic_s()
        if self._ownerless_since_s is None:
            self._ownerless_since_s = now_s
        return now_s - self._ownerless_since_s >= self._ownerless_s


def _stuck(state: SessionState) -> Stuck | None:
    """Tell what nobody but a person can end."""
    run = state.run
    if run is None:
        return None
    match status_of(state):
        case "parked":
            return Stuck(why=f"{run.id} is parked; resume or cancel it")
        case "waiting":
            calls = tuple(call.id for call in calls_awaiting_approval(state))
            what = "waits for approval" if calls else "goes step by step and waits for the next one"
            return Stuck(why=f"{run.id} {what}", calls=calls)
        case _:
            return None
