"""`refold why LOG EVENT` and `refold timeline LOG`: the causes of an event, and what was around it."""

from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import CommandAnswer, JsonOption, LogArgument, argument, command
from refold.commands.output import cell, table, write_table
from refold.inspection.times import time_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

SUMMARY_CHARACTERS = 160
"""After so many characters what an event says is cut; `--json` gives it whole."""


@command
async def why(
    log: LogArgument,
    event: Annotated[str, argument("EVENT", "session/alice@17, alice@17, or a position in the log.")],
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Show the chain of causes of an event, the event first, back to what came from outside.

    It goes over all streams: from a memory or a breaker to the call that it was about, from a subagent's session to
    the call in its parent, and from a fork to its origin.

    JSON: {log, causes: [{reference, position, time, type, words, event}]}; times are microseconds since the epoch.
    """
    from refold.lineage.causes import why as causes_of

    causes = await causes_of(log, event)
    rows = [(cause.position, cause.time, cause.reference, cause.type, cause.words) for cause in causes]
    return CommandAnswer({"log": log, "causes": causes}, lambda to: _write(to, rows))


@command
async def timeline(
    log: LogArgument,
    around: Annotated[int, typer.Option("--around", metavar="POSITION", min=1, help="A position in the log.")],
    window: Annotated[int, typer.Option("--window", metavar="N", min=0, help="So many events on each side.")] = 10,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Show what happened around a position of the log, in all of its streams.

    JSON: {log, events: [{stream, version, position, time, event, batch, correlation, causation}]}.
    """
    from refold.lineage.causes import timeline as events_around

    events = await events_around(log, around, window=window)
    rows = [
        (
            each.position,
            each.time,
            f"{'>' * (each.position == around)}{each.stream}@{each.version}",
            each.type,
            each.words,
        )
        for each in events
    ]
    return CommandAnswer({"log": log, "events": events}, lambda to: _write(to, rows))


def _write(to: "Console", rows: "Sequence[tuple[int | None, int, str, str, str]]") -> None:
    shown = table("#POSITION", "TIME", "EVENT", "TYPE", "SUMMARY")
    for position, time, *words in rows:
        place = "" if position is None else str(position), time_words(time) if time else ""
        shown.add_row(*place, *(cell(each, SUMMARY_CHARACTERS) for each in words))
    write_table(to, shown)
