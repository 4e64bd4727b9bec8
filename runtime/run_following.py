"""Waiting for the end of a run that another process carries out, by reading its log.

The log is opened for reading only. The rule: whoever waits learns why there will be no end for now: the run waits for
somebody, or no runtime owns the log any more.
"""

import os
from typing import Final

import msgspec

from refold.actors.clock import Clock
from refold.events.core import evolve_all
from refold.events.ids import RunId, SessionId, ToolCallId, stream_name
from refold.events.session_core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session_state import SessionState, calls_awaiting_approval, run_of_input
from refold.log_reading import EVENTS_PER_PAGE, opened
from refold.outcome import RunResult, result_of
from refold.session_hub import cancelled_in_queue
from refold.session_view import status_of
from refold.stores.log_ownership import log_owner

POLL_S: Final = 0.1
"""Seconds between two looks at the log."""

OWNER_EVERY: Final = 20
"""At every so manieth look at which nothing is new, it is asked whether a runtime still owns the log."""


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run does not end for now."""

    why: str
    calls: tuple[ToolCallId, ...] = ()
    """Calls that wait for approval."""


async def follow_run(log: str | os.PathLike[str], session: SessionId, run: RunId, clock: Clock) -> RunResult | Stuck:
    """Return how a run ended, once it has, or why that cannot be awaited.

    Raises:
        PersistenceError: the log cannot be read.
    """
    quiet = 0
    state = SESSION_CORE.initial()
    stream = stream_name(SESSION_KIND, session)
    async with opened(log) as store:
        while True:
            page = await store.read_stream(stream, after_version=state.version, limit=EVENTS_PER_PAGE)
            for event in SESSION_CODEC.decode_all(page):
                state = evolve_all(SESSION_CORE, [event], state)
                if state.last_run is not None and state.last_run.run == run:
                    return await result_of(state.last_run, store)
            if page:
                quiet = 0
                continue
            for queued in state.queue:
                if queued.cancelled and run_of_input(queued.version) == run:
                    return await result_of(cancelled_in_queue(run, queued.version), store)
            quiet += 1
            stuck = _stuck(state)
            if stuck is not None:
                return stuck
            if quiet % OWNER_EVERY == 0 and log_owner(log) is None:
                return Stuck(why=f"no runtime owns the log any more; {run} goes on when one does")
            await clock.sleep(POLL_S)


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
