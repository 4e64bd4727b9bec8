"""`refold delete LOG SESSION`: what was said in a session cannot be read any more."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from refold.commands.execution import EXIT_FOUND, EXIT_OK, CommandAnswer, JsonOption, LogArgument, command
from refold.commands.output import all_counted, counted, one_line, write_paragraph
from refold.commands.steer.delivery import KeyOption, SessionArgument, TimeoutOption, given, tell_given

if TYPE_CHECKING:
    from rich.console import Console

    from refold.keeping.deletion import Deletion


@command
async def delete(
    log: LogArgument,
    session: SessionArgument,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Also where a run is open, which ends as cancelled.")
    ] = False,
    forks: Annotated[bool, typer.Option("--forks", help="Also its forks, which begin with its events.")] = False,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int | CommandAnswer:
    """Delete a session, so that nothing of what was said in it can be read in the log any more.

    The sessions that its calls began go with it, and so do snapshots, what is kept once for it alone, and its commands
    in the inbox. A tombstone stays: `refold check` still says sound, and the name is not used again. The runtime that
    owns the log does it; where none does, the log is changed directly. Streams that are not sessions, such as memories,
    stay as they are; those that keep something of the session are named. Backups, exports and archives are not
    reached.

    Afterwards traces of it are looked for in the bytes of the log's files, where no runtime has them open.

    Exits 1 if a run is open, the session has forks or goes with another one, or traces of it were found. Exits 3 if the
    runtime that owns the log does not do it in time; the command stays in the inbox then. Done once more, it completes
    what was interrupted.

    JSON: {log, session, streams, deleted_before, events, payloads, shared_payloads, checkpoints, commands, named_in:
    [{stream, events, versions}], wiped, remains}; `remains` names the log's files in which traces of it were found, and
    is null where a runtime did it.
    """
    from refold.keeping.deletion import Deletion, looked_for
    from refold.remote.rows import InboxDelete

    what = await given(log, session, InboxDelete(cancel=cancel, forks=forks), key, timeout_s)
    if not isinstance(what.outcome, Deletion):
        return await tell_given(log, what, f"session {one_line(session)} is deleted", as_json, goes_on=False)
    deletion = await looked_for(log, what.outcome) if what.directly else what.outcome
    document = {"log": log, **asdict(deletion)}
    del document["traces"]
    return CommandAnswer(document, lambda to: _write(to, deletion), EXIT_FOUND if deletion.remains else EXIT_OK)


def _write(to: "Console", deletion: "Deletion") -> None:
    others = len(deletion.streams) - 1
    children = f" with {counted(others, 'session')} that went with it" if others else ""
    if deletion.deleted_before:
        said = (
            f"session {one_line(deletion.session)} was deleted earlier{children}: {counted(deletion.events, 'event')}"
        )
        write_paragraph(to, said, style="bold")
    else:
        counts = all_counted(deletion, "event", "payload")
        write_paragraph(to, f"deleted session {one_line(deletion.session)}{children}: {counts}", style="bold")
    for named in deletion.named_in:
        write_paragraph(to, f"{one_line(named.stream)} stays, and names it in {counted(named.events, 'event')}")
    for path in deletion.remains or ():
        write_paragraph(
            to, f"traces of it stand in {one_line(path)} still; `refold compact` writes the file anew", style="red"
        )
    if not deletion.wiped:
        write_paragraph(
            to, "another process reads the log, so that the WAL beside it still holds the session; delete it once more"
        )
