"""How other threads reach a loop: one queue, and one wake-up per burst.

Waking a loop from outside costs a system call. Whoever finds the loop not yet woken wakes it; everybody else only
adds to the queue. The rule protected here: what entered before a wake-up is run by it, in order of entering.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from contextvars import Context


class LoopDoor:
    """The way into one event loop, for any thread."""

    def __init__(self, loop: AbstractEventLoop, context: Context) -> None:
        """Lead into `loop`; what enters runs with `context`."""
        self._loop = loop
        self._context = context
        self._entered: deque[Callable[[], None]] = deque()
        self._woken = False

    def enter(self, action: Callable[[], None]) -> bool:
        """Have the loop run `action` soon, which must not raise; return False if the loop is closed."""
        self._entered.append(action)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run, context=self._context)
            except RuntimeError:
                self._woken = False
                return False
        return True

    def _run(self) -> None:
        self._woken = False  # before looking at the queue: whoever comes later wakes the loop again
        for _ in range(len(self._entered)):
            self._entered.popleft()()
