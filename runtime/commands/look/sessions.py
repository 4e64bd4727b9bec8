"""`refold sessions LOG`: the sessions in a log."""

from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_OK, JsonOption, LogArgument, command
from refold.commands.output import cell, console, table, write_json, write_table
from refold.inspection.times import time_words

if TYPE_CHECKING:
    from refold.inspection.session_view import ListedSession


@command
async def sessions(
    log: LogArgument,
    deleted: Annotated[bool, typer.Option("--deleted", help="List those that were deleted instead.")] = False,
    as_json: JsonOption = False,
) -> int:
    """List the sessions of a log.

    They stand in order of their names. The status is how the last run ended (completed, failed, cancelled), or: idle,
    no run yet; open, a run has work in flight, or will have once a runtime opens the log; waiting, for an
    approval or its next step; parked, until a person decides; damaged, see `refold check`.

    With --deleted it lists deleted sessions, of which only a tombstone is left: how many events they had, and, as
    the time of the last one, when they were deleted.

    One that a call of a subagent began is listed with the session of that call, its parent.

    JSON: {log, sessions: [{session, status, version, began_at, at, first_input, pending, parent}]}; times are
    microseconds since the epoch.
    """
    from refold.inspection.log_reading import opened
    from refold.inspection.session_view import deleted_sessions, list_sessions

    async with opened(log) as store:
        listed = await (deleted_sessions(store) if deleted else list_sessions(store))
        if as_json:
            write_json({"log": store.name, "sessions": listed})
        else:
            _write_table(listed, deleted)
    return EXIT_OK


def _write_table(listed: "list[ListedSession]", deleted: bool) -> None:
    to = console()
    if not listed:
        to.print("no session was deleted from the log" if deleted else "the log has no sessions")
        return
    with_parents = any(session.parent for session in listed)
    rows = table("SESSION", *(["PARENT"] if with_parents else []), "STATUS", "#EVENTS", "LAST EVENT", "FIRST INPUT")
    for session in listed:
        rows.add_row(
            cell(session.session, 40),
            *([cell(session.parent or "", 40)] if with_parents else []),
            session.status,
            f"{session.version:,}",
            time_words(session.at) if session.at else "",
            cell(session.first_input),
        )
    write_table(to, rows)
