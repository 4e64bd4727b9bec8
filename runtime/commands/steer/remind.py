"""`refold remind LOG SESSION TEXT`: an input for a later time, or for many; without a text, those that wait."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from refold.commands.execution import CommandAnswer, JsonOption, LogArgument, age, command, option, time_of
from refold.commands.output import cell, table, write_paragraph, write_table
from refold.commands.steer.delivery import KeyOption, SessionArgument, TimeoutOption, UserOption, given, tell_given
from refold.inspection.times import duration_words, time_words


def interval(text: str) -> timedelta | str:
    """Return an interval such as `90m`, or the cron line that a text with spaces is."""
    return text if " " in text.strip() else age(text)


@command
async def remind(
    log: LogArgument,
    session: SessionArgument,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to send; without it, what waits.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            "--at",
            metavar="TIME",
            parser=lambda text: time_of(text, ahead=True),
            help="When: 2026-07-01T09:00 (UTC, or with a zone), or in 12h, 7d. With --every the first time.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        str | None, option("--every", "INTERVAL", "Again and again: 90m, 1d, or a cron line such as '0 9 * * 1-5'.")
    ] = None,
    zone: Annotated[str, option("--zone", "NAME", "The time zone of the cron line.")] = "UTC",
    cancel: Annotated[str | None, option("--cancel", "RUN", "End the reminder that is listed with this run.")] = None,
    user: UserOption = None,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int | CommandAnswer:
    """Send an input to a session at a later time, once or again and again; list those that wait, or cancel one.

    The runtime that owns the log then begins the run, or the next one at once. Of times that pass while there is none
    one run begins.

    Exits 3 if the runtime that owns the log does not take the command in time; it stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}; of a list {log, session, reminders: [{run,
    text, due_at, every}]}, times in microseconds since the epoch.
    """
    from refold.actors.kernel.clock import SystemClock
    from refold.events.core.ids import RunId
    from refold.remote.rows import InboxCancel, InboxSend
    from refold.sessions.inputs import due_times

    if cancel is not None:
        what = await given(log, session, InboxCancel(run=RunId(cancel)), key, timeout_s)
        return await tell_given(log, what, f"{cancel} is cancelled", as_json, goes_on=False)
    if text is None:
        return await _list(log, session)
    if at is None and every is None:
        raise typer.BadParameter("a reminder has a time (--at), an interval or a cron line (--every), or both")
    repeat, due_at = due_times(at, interval(every) if every is not None else None, zone, SystemClock().now_us())
    sent = InboxSend(text=text, user=user, due_at=due_at, every=repeat)
    what = await given(log, session, sent, key, timeout_s)
    return await tell_given(log, what, f"it is sent at {time_words(due_at or 0)}", as_json, goes_on=False)


async def _list(log: LogArgument, session: str) -> CommandAnswer:
    from refold.events.core.ids import SessionId
    from refold.events.session.state import run_of_input
    from refold.inspection.log_reading import opened, session_head
    from refold.inspection.summaries import content_words
    from refold.remote.client import session_state

    async with opened(log) as store:
        head = await session_head(store, session)
        state = await session_state(store, SessionId(head.stream.partition("/")[2]))
    waiting = sorted(state.scheduled, key=lambda later: later.due_at)
    found: list[dict[str, object]] = []
    shown = table("RUN", "DUE", "EVERY", "TEXT")
    for later in waiting:
        run, text, every = run_of_input(later.version), content_words(later.content), later.every
        found.append({"run": run, "text": text, "due_at": later.due_at, "every": every})
        words = "" if every is None else (every.cron or duration_words(every.interval_us or 0))
        shown.add_row(*map(cell, (run, time_words(later.due_at), words, text)))
    return CommandAnswer(
        {"log": log, "session": session, "reminders": found},
        lambda to: write_table(to, shown) if waiting else write_paragraph(to, "no input waits for its time"),
    )
