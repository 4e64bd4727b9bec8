"""The log of a simulation as a file, for `refold show`, `refold replay` and `refold check`.

The rule: it is saved as it is. That its events break the rules of sessions is what makes it worth looking at.
"""

import os
import tempfile

from refold.stores.log_export import exported_lines
from refold.stores.log_import import import_log
from refold.stores.whole_log import WholeLog


async def save_log(log: WholeLog, path: str | os.PathLike[str]) -> None:
    """Save a log as a new SQLite file.

    Args:
        log: any whole log, open.
        path: of the file; nothing may be there.

    Raises:
        ConfigError: the path names no file that an SQLite log could be made of, or one that is there already.
        LogFormatError: batches of the log are not whole, or its digests do not fit.
        PersistenceError: the file cannot be made.
    """
    with tempfile.TemporaryFile() as lines:
        async for line in exported_lines(log):
            lines.write(line)
        lines.seek(0)
        await import_log(lines, log.name, path)
