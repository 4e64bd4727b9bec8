"""`refold backup LOG COPY`: a copy of a log, also while a runtime writes it."""

from pathlib import Path
from typing import Annotated

from refold.commands.execution import EXIT_OK, JsonOption, LogArgument, argument, command
from refold.commands.output import console, one_line, write_json, write_paragraph


@command
async def backup(
    log: LogArgument,
    copy: Annotated[Path, argument("COPY", "Path of the new log; a file that is there already is refused.")],
    as_json: JsonOption = False,
) -> int:
    """Copy a log in its present state, also while a runtime writes it.

    SQLite's own backup makes the copy, so that what still stands in the WAL beside the log is in it: a copy of the file
    alone would lack that. COPY appears when it is complete and durable. Commands that wait in the inbox beside the log
    are not copied.

    JSON: {log, copy, bytes}.
    """
    from refold.stores.sqlite.file import absolute
    from refold.stores.sqlite.store import SQLiteStore

    async with await SQLiteStore.open(log, read_only=True) as store:
        await store.back_up(copy)
    made = absolute(copy)
    size = made.stat().st_size
    if as_json:
        write_json({"log": str(log), "copy": str(made), "bytes": size})
    else:
        write_paragraph(console(), f"made {one_line(str(made))}: {size:,} bytes", style="bold")
    return EXIT_OK
