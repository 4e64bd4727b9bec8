"""A limit to how much goes on at once: what is beyond it is turned away instead of waiting.

    guard = BackpressureGuard(100, soft_limit=80)
    with guard:                                     # Or `async with`; raises BackpressureShed where 100 are at work.
        ...

It is used alone, from any thread and any loop, or as `AgentRuntime(backpressure=guard)`, where each `send` takes a
place until its run has ended; sends with one key share a place. Mailboxes have limits of their own,
in the options of a runtime.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Self

from refold.events.core.errors import BackpressureShed, ConfigError, quoted
from refold.events.core.ids import checked_identifier

log = logging.getLogger("refold.resilience")


class BackpressureGuard:
    """Lets at most `capacity` through at a time.

    Args:
        capacity: most that are let through at once, >= 1.
        soft_limit: when so many are, a warning is given, once until there are fewer again; 1 to `capacity`.
        on_soft_limit: is given the depth and the soft limit in addition to a warning in the log; what it raises is
            logged.
        name: says in errors and warnings whose limit it is.

    Raises:
        ConfigError: a value is outside its bounds, or the name cannot be one.
    """

    def __init__(
        self,
        capacity: int,
        soft_limit: int | None = None,
        *,
        on_soft_limit: Callable[[int, int], object] | None = None,
        name: str = "this",
    ) -> None:
        if type(capacity) is not int or capacity < 1:
            raise ConfigError(
                f"the capacity of a BackpressureGuard is an integer of at least 1, not {quoted(capacity)}"
            )
        if soft_limit is not None and not (type(soft_limit) is int and 1 <= soft_limit <= capacity):
            raise ConfigError(
                f"the soft_limit is an integer from 1 to the capacity {capacity}, not {quoted(soft_limit)}"
            )
        self.capacity = capacity
        self.soft_limit = soft_limit
        self.name = checked_identifier(name, "guard name")
        self._on_soft_limit = on_soft_limit
        self._lock = threading.Lock()
        self._depth = 0
        self._shed = 0
        self._shared: dict[Hashable, int] = {}
        """How many share a place, by its name."""

    def __repr__(self) -> str:
        return f"<BackpressureGuard {self.name}: {self.depth} of {self.capacity}>"

    @property
    def depth(self) -> int:
        """How many are let through and not released."""
        return self._depth

    @property
    def shed(self) -> int:
        """How many have been turned away."""
        return self._shed

    def holds(self, shared: Hashable) -> bool:
        """Return whether the place of that name is taken, so that `acquire` of it needs no other one."""
        return shared in self._shared

    def acquire(self, shared: Hashable = None) -> None:
        """Let one through, who calls `release` at the end; best use the guard as a context.

        Args:
            shared: names a place that all who give that name have together, until the last of them releases it; None =
                one of its own.

        Raises:
            BackpressureShed: so many are let through as there may be.
        """
        with self._lock:
            if shared in self._shared:
                self._shared[shared] += 1
                return
            if self._depth >= self.capacity:
                self._shed += 1
                raise BackpressureShed(self._depth, self.capacity, of=self.name)
            self._depth += 1
            depth = self._depth
            if shared is not None:
                self._shared[shared] = 1
        soft_limit = self.soft_limit
        if soft_limit is not None and depth == soft_limit:
            self._warn(depth, soft_limit)

    def release(self, shared: Hashable = None) -> None:
        """Make room for another one; `shared` is what `acquire` was given.

        Raises:
            ConfigError: nobody was let through who has not been released.
        """
        with self._lock:
            if self._depth == 0 or (shared is not None and shared not in self._shared):
                raise ConfigError(f"release() of {self.name} without an acquire() before it")
            if shared is not None:
                self._shared[shared] -= 1
                if self._shared[shared]:
                    return
                del self._shared[shared]
            self._depth -= 1

    def _warn(self, depth: int, soft_limit: int) -> None:
        log.warning("%s fills up: %d of %d are at work", self.name, depth, self.capacity)
        if self._on_soft_limit is not None:
            try:
                self._on_soft_limit(depth, soft_limit)
            except Exception:
                log.exception("%s: what was to be told of its soft limit failed", self.name)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
