"""`refold check LOG`: is a log whole, unedited and possible?"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from refold.commands.execution import EXIT_FOUND, EXIT_OK, CommandAnswer, JsonOption, KindOption, LogArgument, command
from refold.commands.output import Progress, all_counted, counted, one_line, tell, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from refold.inspection.check import CheckReport
    from refold.inspection.kinds import GivenKind


DAMAGE: Final = ("version", "position", "batch", "time", "chain", "head", "payload", "unreadable", "file")
"""Kinds of problems of which a file has less if what is whole of it is saved."""

REPAIR_HINT: Final = (
    "`refold repair LOG -o NEW` saves what is whole into a new log; a `refold backup` from before has all of it"
)

NAMED: Final = 20
"""So many deleted streams are named."""


@command
async def check(log: LogArgument, kind: KindOption = None, as_json: JsonOption = False) -> CommandAnswer:
    """Check that a log is whole and unedited.

    Exits 1 if it is not, and names every problem. Versions have no gaps, batches are whole, times do not go back, every
    event decodes, the chain of digests is intact, every payload is there and hashes to its name, the list of streams
    agrees with the events, the events of each session could have happened (INV0 to INV4), SQLite finds its pages and
    indexes sound, and nothing is missing that had been acknowledged when the log was last open. Events of your own
    kinds of actors are decoded and folded (INV6) where --kind names their core. Exits 2 where no stream of the log is
    of a kind that --kind names. Where this Python's SQLite has a fault that can damage logs, a line on stderr says so.

    Streams that were deleted are named; what their tombstones say of them is checked, too.

    JSON: {log, streams, batches, events, payloads, not_decoded: [{kind, streams}], kinds_without_streams, deleted,
    deleted_streams, problems_found, problems: [{kind, stream, version, position, message}]}.
    """
    from refold.inspection.check import check_log
    from refold.stores.sqlite.file import is_text_log, known_fault

    given: dict[str, GivenKind] = {}
    if kind:
        from refold.agents.loading import load_kinds

        given = load_kinds(kind)
        await _require_kinds(log, given)
    with Progress(quiet=as_json) as progress:
        report = await check_log(log, kinds=given, progress=progress)
    if not is_text_log(log) and (fault := known_fault()) is not None:
        tell(f"note: {fault}")
    return CommandAnswer(report, lambda to: _write(to, report), EXIT_OK if report.sound else EXIT_FOUND)


async def _require_kinds(log: Path, kinds: Iterable[str]) -> None:
    from refold.events.core.errors import PersistenceError
    from refold.inspection.log_reading import require_kinds

    try:
        await require_kinds(log, kinds)
    except PersistenceError:
        return  # Where streams cannot be listed is for the check itself to say.


def _write(to: "Console", report: "CheckReport") -> None:
    for problem in report.problems:
        write_paragraph(to, f"{problem.kind}  {one_line(str(problem))}", style="red")
    if report.problems_found > len(report.problems):
        write_paragraph(to, f"… and {report.problems_found - len(report.problems):,} more", style="red")
    for left_out in report.not_decoded:
        streams = counted(left_out.streams, "stream")
        write_paragraph(to, f"not decoded: kind {left_out.kind!r} ({streams}); versions and chain were checked")
    if report.deleted:
        named = ", ".join(map(one_line, report.deleted_streams[:NAMED]))
        more = f" and {report.deleted - NAMED:,} more" if report.deleted > NAMED else ""
        write_paragraph(to, f"deleted: {counted(report.deleted, 'stream')} ({named}{more})")
    counts = all_counted(report, "stream", "batch", "event", "payload")
    if any(problem.kind in DAMAGE for problem in report.problems):
        write_paragraph(to, REPAIR_HINT)
    verdict = "sound" if report.sound else counted(report.problems_found, "problem")
    write_paragraph(to, f"{verdict}: {counts} checked", style="bold" if report.sound else "bold red")
