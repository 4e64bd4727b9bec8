"""`refold why LOG EVENT` and `refold timeline LOG`: the causes of an event, and what was around it."""

from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_OK, JsonOption, LogArgument, argument, command
from refold.commands.output import cell, console, table, write_json, write_table
from refold.inspection.times import time_words

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY_CHARACTERS = 160
"""After so many characters what an event says is cut; `--json` gives it whole."""


@command
async def why(
    log: LogArgument,
    event: Annotated[str, argument("EVENT", "session/alice@17, alice@17, or a position in the log.")],
    as_json: JsonOption = False,
) -> int:
    """Show the chain of causes of an event, the event first, back to what came from outside.

    It goes over all streams: from a memory or a breaker to the call that it was about, from a subagent's session to
    the call in its parent, and from a fork to its origin.

    JSON: {log, causes: [{reference, position, time, type, words, event}]}; times are microseconds since the epoch.
    """
    from refold.lineage.causes import why as causes_of

    causes = await causes_of(log, event)
    if as_json:
        write_json({"log": str(log), "causes": causes})
        return EXIT_OK
    rows = _rows()
    for cause in causes:
        _add(rows, cause.position, cause.time, cause.reference, cause.type, cause.words)
    write_table(console(), rows)
    return EXIT_OK


@command
async def timeline(
    log: LogArgument,
    around: Annotated[int, typer.Option("--around", metavar="POSITION", min=1, help="A position in the log.")],
    window: Annotated[int, typer.Option("--window", metavar="N", min=0, help="So many events on each side.")] = 10,
    as_json: JsonOption = False,
) -> int:
    """Show what happened around a position of the log, in all of its streams.

    JSON: {log, events: [{stream, version, position, time, event, batch, correlation, causation}]}.
    """
    from refold.lineage.causes import timeline as events_around

    events = await events_around(log, around, window=window)
    if as_json:
        write_json({"log": str(log), "events": events})
        return EXIT_OK
    rows = _rows()
    for each in events:
        mark = ">" if each.position == around else ""
        _add(rows, each.position, each.time, f"{mark}{each.stream}@{each.version}", each.type, each.words)
    write_table(console(), rows)
    return EXIT_OK


def _rows() -> "Table":
    return table("#POSITION", "TIME", "EVENT", "TYPE", "SUMMARY")


def _add(rows: "Table", position: int | None, time: int, reference: str, tag: str, words: str) -> None:
    at = time_words(time) if time else ""
    shown = (cell(reference, SUMMARY_CHARACTERS), cell(tag, SUMMARY_CHARACTERS), cell(words, SUMMARY_CHARACTERS))
    rows.add_row("" if position is None else str(position), at, *shown)
