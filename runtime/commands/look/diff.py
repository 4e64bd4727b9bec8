"""`refold diff LOG SESSION OTHER`: where two sessions part."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_OK,
    CommandAnswer,
    JsonOption,
    LogArgument,
    argument,
    command,
    option,
    path_parser,
)
from refold.commands.output import cell, counted, one_line, table, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from refold.lineage.session_diff import SessionDiff

WORDS_CHARACTERS = 1_000
"""After so many characters the words of a difference are cut; `--json` gives them whole."""


@command
async def diff(
    log: LogArgument,
    session: Annotated[str, argument("SESSION", "A session.")],
    other: Annotated[str, argument("OTHER", "Another one, such as a fork of it.")],
    other_log: Annotated[
        Path | None,
        typer.Option(
            "--other-log",
            metavar="LOG",
            help="The log of the other one, if that is another.",
            show_default=False,
            parser=path_parser("name the other log's file"),
        ),
    ] = None,
    at: Annotated[int | None, option("--at", "N", "Compare the first up to its version N.", min=1)] = None,
    other_at: Annotated[int | None, option("--other-at", "N", "Compare the other up to its version N.", min=1)] = None,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Show where two sessions part: what was said, called and returned, and how runs ended.

    Both are aligned. Of long texts the words that differ are shown, with those around them: [-here-] {+there+}. Ids,
    versions and times are not compared. Exits 1 where something differs.

    JSON: {left: {log, session, version, status, turns, calls, usage, cost}, right, shared, parts: [{what: input |
    answer | call | arguments | result | outcome | note, left, right, path, words}], found}; left and right of a part
    are versions, and `shared` is the last version that is the same event in both.
    """
    from refold.lineage.session_diff import diff as compared

    found = await compared(log, session, other, right_log=other_log, left_at=at, right_at=other_at)
    return CommandAnswer(found, lambda to: _write(to, found), EXIT_OK if found.same else EXIT_FOUND)


def _write(to: "Console", found: "SessionDiff") -> None:
    from refold.inspection.summaries import usage_words

    if found.shared:
        write_paragraph(to, f"the same events up to version {found.shared}")
    for mark, side in (("here ", found.left), ("there", found.right)):
        counts = f"{counted(side.turns, 'answer')}, {counted(side.calls, 'call')}, {usage_words(side.usage)}"
        cost = f", cost {side.cost:g}" if side.cost else ""
        write_paragraph(
            to, f"{mark}: {one_line(side.session)} · {side.status} at version {side.version} · {counts}{cost}"
        )
    if not found.parts:
        write_paragraph(to, "nothing differs" if found.same else "nothing of what was said differs", style="bold")
    else:
        rows = table("WHAT", "#HERE", "#THERE", "DIFFERENCE")
        for part in found.parts:
            places = [str(place) if place is not None else "" for place in (part.left, part.right)]
            rows.add_row(part.what, *places, cell(part.words, WORDS_CHARACTERS))
        write_table(to, rows)
        if found.found > len(found.parts):
            write_paragraph(to, f"… and {found.found - len(found.parts):,} more")
