"""`refold compact LOG`: a log's file is made as small as what is in it."""

from refold.commands.execution import CommandAnswer, JsonOption, LogArgument, command
from refold.commands.output import Progress, one_line, write_paragraph


@command
async def compact(log: LogArgument, as_json: JsonOption = False) -> CommandAnswer:
    """Make a log's file as small as what is in it.

    Deleting leaves room in the file, which later events fill; this gives it back to the disk, which needs room for two
    copies of the log for a while. Nothing in the log changes. No runtime may own the log; interrupted, the log is as it
    was.

    JSON: {log, bytes_before, bytes_after, wiped}; `wiped` is false, and the file as large as before, while another
    process reads the log.
    """
    from refold.stores.keeping.compacting import compact as written_anew

    with Progress(quiet=as_json) as progress:
        done = await written_anew(log, progress=progress)
    later = "" if done.wiped else "; another process reads the log, and the rest goes when it ends"
    words = f"{one_line(done.log)}: {done.bytes_before:,} bytes before, {done.bytes_after:,} now{later}"
    return CommandAnswer(done, lambda to: write_paragraph(to, words, style="bold"))
