"""Ctrl-C and SIGTERM while user code is played: both end what goes on, at once, and are not lost in it.

The rule: both come as a KeyboardInterrupt, which neither a tool nor an actor contains. asyncio's own handling would
only ask a task to end, and forget it where the task is over first.
"""

import signal
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A signal came."""


class Interruption:
    """Which signal came, if any."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        """With which a command leaves, as a shell says it: 130 or 143; None = no signal came."""

    def come(self, number: int, frame: FrameType | None) -> None:
        """Take a signal; a handler for `signal.signal`."""
        self.exit_code = 128 + number
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # What is cut off here need not be told.
        raise Interrupted

    def check(self) -> None:
        """Raise what was raised before, where something has let it go by, such as a finaliser.

        Raises:
            KeyboardInterrupt: a signal came.
        """
        if self.exit_code is not None:
            raise Interrupted


@contextmanager
def interruptible() -> Generator[Interruption]:
    """Have both signals raise KeyboardInterrupt within the block, where it is in the main thread."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.come) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with warnings.catch_warnings():
            yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
