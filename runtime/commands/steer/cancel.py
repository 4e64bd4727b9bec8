"""`refold cancel LOG SESSION`: a run ends as cancelled."""

from typing import Annotated

from refold.commands.execution import JsonOption, LogArgument, command, option
from refold.commands.steer.delivery import KeyOption, SessionArgument, TimeoutOption, given, tell_given


@command
async def cancel(
    log: LogArgument,
    session: SessionArgument,
    run: Annotated[
        str | None, option("--run", "RUN", "This run, also one that waits; default: the one under way.")
    ] = None,
    reason: Annotated[str | None, option("--reason", "TEXT", "Why; it is recorded.")] = None,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """End a run of a session as cancelled.

    The runtime that owns the log does it; where none does, the log is changed directly. Calls that are open are
    answered with `Cancelled by user`. A run that has ended is left alone, and that is no error.

    Exits 3 if the runtime that owns the log does not take the command in time; it stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}; version 0 = there was nothing to cancel.
    """
    from refold.events.core.ids import RunId
    from refold.remote.protocol import Done
    from refold.remote.rows import InboxCancel

    given_command = InboxCancel(run=RunId(run) if run is not None else None, reason=reason)
    what = await given(log, session, given_command, key, timeout_s)
    outcome = what.outcome
    if isinstance(outcome, Done) and outcome.version == 0:
        words = f"{run} is not under way" if run is not None else "no run is under way"
        return await tell_given(log, what, f"{words}; nothing was cancelled", as_json, goes_on=False)
    ended = outcome.run if isinstance(outcome, Done) and outcome.run is not None else "the run"
    return await tell_given(log, what, f"{ended} is cancelled", as_json, goes_on=False)
