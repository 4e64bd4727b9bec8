"""`refold backup LOG COPY`: a copy of a log, also while a runtime writes it."""

from pathlib import Path
from typing import Annotated

from refold.commands.execution import CommandAnswer, JsonOption, LogArgument, argument, command
from refold.commands.output import Progress, one_line, write_paragraph


@command
async def backup(
    log: LogArgument,
    copy: Annotated[Path, argument("COPY", "Path of the new log; a file that is there already is refused.")],
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Copy a log in its present state, also while a runtime writes it.

    SQLite's own backup makes the copy, so that what still stands in the WAL beside the log is in it: a copy of the file
    alone would lack that. COPY appears when it is complete and durable. Commands that wait in the inbox beside the log
    are not copied.

    JSON: {log, copy, bytes}.
    """
    from refold.stores.sqlite.file import absolute
    from refold.stores.sqlite.store import SQLiteStore

    async with await SQLiteStore.open(log, read_only=True) as store:
        name = store.name
        with Progress(quiet=as_json) as progress:
            await store.back_up(copy, progress=progress)
    made = absolute(copy)
    size = made.stat().st_size
    words = f"made {one_line(str(made))}: {size:,} bytes"
    return CommandAnswer(
        {"log": name, "copy": str(made), "bytes": size}, lambda to: write_paragraph(to, words, style="bold")
    )
