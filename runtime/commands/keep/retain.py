"""`refold retain LOG --older-than AGE`: sessions that ended long ago are archived and deleted."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer
from msgspec.structs import asdict

from refold.commands.execution import CommandAnswer, JsonOption, LogArgument, age, command, option
from refold.commands.output import Progress, counted, one_line, write_paragraph

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from refold.keeping.retention import EndedStatus, Retention

NAMED: Final = 20
"""So many sessions are named."""


@command
async def retain(
    log: LogArgument,
    older_than: Annotated[
        timedelta,
        typer.Option(
            "--older-than",
            metavar="AGE",
            parser=age,
            help="So long ago the last event is: 90d, 12h, …",
            show_default=False,
        ),
    ],
    status: Annotated[
        list[str] | None,
        option("--status", "STATUS", "Only these: completed, failed, cancelled or idle. May be given again."),
    ] = None,
    archive: Annotated[
        Path | None, option("--archive", "DIR", "Write what is deleted into a new compressed file there first.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be deleted.")] = False,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Delete the sessions that ended long ago, and archive them first.

    A session goes with those that its calls began, when all of them have ended and are old enough; see `refold delete`
    for what goes along. With --archive nothing is deleted before DIR/LOG-TIME.jsonl.gz is on the disk and was read
    again; `refold import` makes a log of it, and every command that looks into a log reads it. Interrupted, it is
    completed by the next call. The file keeps its size; `refold compact` gives the room back.

    Exits 3 if a runtime owns the log; call its `retain` there.

    JSON: {log, until, dry_run, sessions, streams, events, payloads, archive, went_on, damaged, checkpoints, commands,
    named_in: [{stream, events, versions}], wiped}; `until` is microseconds since the epoch.
    """
    from refold.events.core.errors import LogInUse
    from refold.keeping.retention import ENDED
    from refold.keeping.retention import retain as delete_old

    statuses = cast("Collection[EndedStatus]", tuple(status) if status else ENDED)
    try:
        with Progress(quiet=as_json) as progress:
            retention = await delete_old(
                log, older_than, statuses=statuses, archive=archive, dry_run=dry_run, progress=progress
            )
    except LogInUse as error:
        error.args = (f"{error}; or call `retain` of that runtime",)
        raise
    return CommandAnswer({"log": log, **asdict(retention)}, lambda to: _write(to, retention))


def _write(to: "Console", retention: "Retention") -> None:
    counts = f"{counted(len(retention.sessions), 'session')}, {counted(retention.events, 'event')}"
    write_paragraph(to, f"{'would delete' if retention.dry_run else 'deleted'} {counts}", style="bold")
    if retention.sessions:
        more = len(retention.sessions) - NAMED
        named = ", ".join(map(one_line, retention.sessions[:NAMED]))
        write_paragraph(to, f"{named}{f' and {more:,} more' if more > 0 else ''}", indent=2)
    if retention.archive is not None:
        write_paragraph(to, f"archived in {one_line(retention.archive)}")
    for session in retention.went_on:
        write_paragraph(to, f"{one_line(session)} stays: it went on meanwhile")
    for session in retention.damaged:
        write_paragraph(to, f"{one_line(session)} stays: it cannot be read; `refold check` says why", style="red")
    for named_in in retention.named_in:
        write_paragraph(to, f"{one_line(named_in.stream)} stays, and names them in {counted(named_in.events, 'event')}")
    if not retention.wiped:
        write_paragraph(
            to, "another process reads the log, so that the WAL beside it still holds them; retain them once more"
        )
