"""`refold import FILE LOG`: a new log of JSON Lines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_OK, JsonOption, LogArgument, argument, command
from refold.commands.output import console, counted, one_line, write_json, write_paragraph

if TYPE_CHECKING:
    from refold.stores.jsonl.importing import ImportReport


@command
async def import_log(
    source: Annotated[
        str,
        argument("FILE", "What `refold export` wrote, or an older text log; - is stdin."),
    ],
    log: LogArgument,
    as_json: JsonOption = False,
) -> int:
    """Make a new log of JSON Lines.

    All that an export holds is checked, line by line, and kept as it was; LOG appears when all of it was found whole,
    and not at all otherwise. A LOG that is there already is refused.

    JSON: {log, streams, batches, events, payloads, partial}.
    """
    from refold.events.core.errors import PersistenceError
    from refold.stores.jsonl.importing import import_log as make_log

    if source == "-":
        report = await make_log(typer.get_binary_stream("stdin"), "stdin", log)
    else:
        try:
            file = Path(source).open("rb")  # noqa: ASYNC230, SIM115 - opening a local file, closed below
        except (OSError, ValueError) as error:
            raise PersistenceError(f"{source} cannot be read: {getattr(error, 'strerror', error)}") from error
        with file:
            report = await make_log(file, source, log)
    if as_json:
        write_json(report)
    else:
        _write_report(report)
    return EXIT_OK


def _write_report(report: "ImportReport") -> None:
    counts = ", ".join(
        (
            counted(report.streams, "stream"),
            counted(report.batches, "batch"),
            counted(report.events, "event"),
            counted(report.payloads, "payload"),
        )
    )
    part = "; the export left other streams out" if report.partial else ""
    write_paragraph(console(), f"made {one_line(report.log)}: {counts}{part}", style="bold")
