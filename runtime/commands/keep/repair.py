"""`refold repair LOG -o NEW`: what is whole of a damaged log, in a new log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import asdict

from refold.commands.execution import EXIT_FOUND, EXIT_OK, CommandAnswer, JsonOption, LogArgument, command
from refold.commands.output import Progress, all_counted, counted, one_line, shell_word, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from refold.keeping import RepairReport


BEHIND_A_LOST_PAYLOAD: Final = (
    "a stream ends before the first event that names a lost payload, since the digest of each event covers all before "
    "it; what stands behind it is in the damaged log still, where recording the same content again makes it whole"
)


@command
async def repair(
    log: LogArgument,
    new: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="NEW", help="Path of the new log; a file that is there already is refused."
        ),
    ],
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Save what is whole of a damaged log in a new log, and say what is lost.

    Each stream is saved up to its first damage, with everything at its place; what is saved passes `refold check`. LOG
    is only read, page by page, so that SQLite need not be able to read it; no runtime may have it open. Deleted
    sessions stay deleted. Commands that wait in the inbox stay beside LOG.

    Exits 0 if nothing is known to be lost, 1 if something is, and 3 if a runtime has the log open.

    JSON: {log, new, streams, batches, events, payloads, tombstones, values, cut: [{stream, kept, lost_to, reason}],
    lost_payloads, lost_to, lost_pages, inbox_waiting, complete}.
    """
    from refold.keeping import repair_log

    with Progress(quiet=as_json) as progress:
        report = await repair_log(log, new, progress=progress)
    document = {**asdict(report), "complete": report.complete}
    return CommandAnswer(document, lambda to: _write(to, report), EXIT_OK if report.complete else EXIT_FOUND)


def _write(to: "Console", report: "RepairReport") -> None:
    for cut in report.cut:
        lost = f"versions {cut.kept + 1} to {cut.lost_to}" if cut.kept else f"all {cut.lost_to} versions"
        write_paragraph(to, f"{one_line(cut.stream)}: lost are {lost}: {one_line(cut.reason)}", style="red")
    for payload in report.lost_payloads:
        write_paragraph(to, f"the payload {one_line(payload)} is lost", style="red")
    if report.lost_payloads:
        write_paragraph(to, BEHIND_A_LOST_PAYLOAD)
    if report.lost_to:
        words = f"the end of the log is lost: up to position {report.lost_to:,} had been acknowledged"
        write_paragraph(to, words, style="red")
    if report.lost_pages:
        write_paragraph(
            to, f"the file was cut: {counted(report.lost_pages, 'page')} of its end are missing", style="red"
        )
    if report.inbox_waiting is None:
        write_paragraph(to, "the inbox beside the log cannot be read", style="red")
    elif report.inbox_waiting:
        write_paragraph(to, f"in the inbox beside the log wait {counted(report.inbox_waiting, 'command')}")
    counts = all_counted(report, "stream", "batch", "event", "payload")
    end = "nothing is known to be lost" if report.complete else "not all could be saved"
    write_paragraph(to, f"saved in {shell_word(report.new)}: {counts}; {end}", style="bold")
