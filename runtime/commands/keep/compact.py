"""`refold compact LOG`: a log's file is made as small as what is in it."""

from refold.commands.execution import EXIT_OK, JsonOption, LogArgument, command
from refold.commands.output import console, one_line, write_json, write_paragraph


@command
async def compact(log: LogArgument, as_json: JsonOption = False) -> int:
    """Make a log's file as small as what is in it.

    Deleting leaves room in the file, which later events fill; this gives it back to the disk, which needs room for two
    copies of the log for a while. Nothing in the log changes. No runtime may own the log; interrupted, the log is as it
    was.

    JSON: {log, bytes_before, bytes_after, wiped}; `wiped` is false, and the file as large as before, while another
    process reads the log.
    """
    from refold.stores.keeping.compacting import compact as written_anew

    done = await written_anew(log)
    if as_json:
        write_json(done)
    else:
        later = "" if done.wiped else "; another process reads the log, and the rest goes when it ends"
        sizes = f"{done.bytes_before:,} bytes before, {done.bytes_after:,} now"
        write_paragraph(console(), f"{one_line(done.log)}: {sizes}{later}", style="bold")
    return EXIT_OK
