"""`refold sessions LOG`: the sessions in a log."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, cast

import typer

from refold.commands.execution import CommandAnswer, JsonOption, LogArgument, command, option, time_of
from refold.commands.output import NAME_CHARACTERS, cell, table, write_table
from refold.inspection.times import time_words

if TYPE_CHECKING:
    from rich.console import Console

    from refold.inspection.session_view import ListedSession, SessionStatus


def pairs(given: list[str]) -> dict[str, str]:
    """Return what `KEY=VALUE` says, or raise BadParameter."""
    for text in given:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is no KEY=VALUE")
    return {text.partition("=")[0]: text.partition("=")[2] for text in given}


@command
async def sessions(
    log: LogArgument,
    user: Annotated[str | None, option("--user", "ID", "Only those of this user.")] = None,
    status: Annotated[
        list[str] | None, option("--status", "STATUS", "Only those that are so, such as waiting. May be given again.")
    ] = None,
    metadata: Annotated[
        list[str] | None, option("--metadata", "KEY=VALUE", "Only those whose metadata says so. May be given again.")
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=time_of,
            help="Only those whose last event is not before it: 2026-07-01, 2026-07-01T12:00Z, or 12h, 7d ago.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int | None, option("--limit", "N", "At most so many.", min=1)] = None,
    after: Annotated[str | None, option("--after", "SESSION", "Go on behind this one, the last of a page.")] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="List those that were deleted instead.")] = False,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """List the sessions of a log.

    They stand in order of their names. The status is how the last run ended (completed, failed, cancelled), or: idle,
    no run yet; open, a run has work in flight, or will have once a runtime opens the log; waiting, for an
    approval or its next step; parked, until a person decides; damaged, see `refold check`.

    With --deleted it lists deleted sessions, of which only a tombstone is left: how many events they had, and, as
    the time of the last one, when they were deleted.

    One that a call of a subagent began is listed with the session of that call, its parent; a fork with the event that
    it goes on from.

    JSON: {log, sessions: [{session, status, version, began_at, at, first_input, pending, parent, forked_from, user,
    metadata}]}; times are microseconds since the epoch.
    """
    from refold.inspection.log_reading import opened
    from refold.inspection.session_view import deleted_sessions, list_sessions

    async with opened(log) as store:
        if deleted:
            listed = await deleted_sessions(store)
        else:
            statuses = cast("list[SessionStatus]", status or [])
            said = pairs(metadata or [])
            listed = await list_sessions(
                store, user=user, status=statuses, metadata=said, since=since, limit=limit, after=after
            )
        filtered = any(given is not None for given in (user, status, metadata, since, after))
        nothing = "the log has no such sessions" if filtered else "the log has no sessions"
        nothing = "no session was deleted from the log" if deleted else nothing
        return CommandAnswer({"log": log, "sessions": listed}, lambda to: _write_table(to, listed, nothing))


def _write_table(to: "Console", listed: "list[ListedSession]", nothing: str) -> None:
    if not listed:
        to.print(nothing)
        return
    with_parents, with_users = any(session.parent for session in listed), any(session.user for session in listed)
    with_forks = any(session.forked_from for session in listed)
    columns = [
        *(["PARENT"] if with_parents else []),
        *(["FORK OF"] if with_forks else []),
        *(["USER"] if with_users else []),
    ]
    rows = table("SESSION", *columns, "STATUS", "#EVENTS", "LAST EVENT", "FIRST INPUT")
    for session in listed:
        rows.add_row(
            cell(session.session, NAME_CHARACTERS),
            *([cell(session.parent or "", 40)] if with_parents else []),
            *([cell((session.forked_from or "").partition("/")[2], 40)] if with_forks else []),
            *([cell(session.user or "", 40)] if with_users else []),
            session.status,
            f"{session.version:,}",
            time_words(session.at) if session.at else "",
            cell(session.first_input),
        )
    write_table(to, rows)
