"""What the program logs while a command runs, on stderr: each record is one line that no terminal obeys.

A tool, a provider or a stranger may have written the message of an error. So the records of all loggers pass through
`one_line`; of an exception the line has its type, its text and the frame of the user's code. The whole traceback is
there where the logger `refold`, or else the root, is set to DEBUG.
"""

import logging
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from refold.commands.output import one_line, safe_text

_logger = logging.getLogger("refold.commands")
"""Takes its level from `refold`, or else from the root."""

RECORD_CHARACTERS_MAX = 2_000
"""After so many characters a line is cut."""

_OURS = str(Path(__file__).resolve().parents[2])


class SafeFormatter(logging.Formatter):
    """Makes one safe line of a record, and a traceback below it at level DEBUG."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            words = record.getMessage()
        except Exception as mismatch:  # noqa: BLE001 - arguments of a record may be anything
            words = f"{record.msg!s} ({type(mismatch).__name__} in its arguments)"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            words = f"{words}: {_described(error)}"
        line = one_line(f"{record.levelname.lower()}: {words}", RECORD_CHARACTERS_MAX)
        if error is None or not _logger.isEnabledFor(logging.DEBUG):
            return line
        return f"{line}\n{safe_text(''.join(traceback.format_exception(error)))}".rstrip()


def _described(error: BaseException) -> str:
    """Return an error's type and text, and where the user's code raised it, or called what did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_OURS, sys.prefix, sys.base_prefix, "<"))]
    shown = (own or frames)[-1:]
    place = "".join(f" ({frame.filename}:{frame.lineno} in {frame.name})" for frame in shown)
    try:
        return f"{type(error).__name__}: {error}{place}"
    except Exception:  # noqa: BLE001 - the text of a user's error is computed by the user's code
        return f"{type(error).__name__}{place}"


@contextmanager
def safe_logging() -> Generator[None, None, None]:
    """Log to stderr through `SafeFormatter`, unless the program has set up its own logging."""
    root = logging.root
    if root.handlers:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter())
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
