"""A token by which one party asks another to stop, from any thread, at any time, before any loop exists.

It is level-triggered: once cancelled it stays so, for every later look. Callbacks run once. The rule it
protects: a token that is cancelled reaches all who wait, and one that never is holds on to nobody.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable
from weakref import ref

log = logging.getLogger("refold.actors")

_changing = threading.Lock()  # one for all tokens: it guards a few assignments


def _renew_lock() -> None:
    """In a forked child: the thread that held it in the parent does not run here."""
    global _changing
    _changing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class CancellationToken:
    """A wish to stop: made by `cancel`, seen through `cancelled`, `wait`, `on_cancel` and `raise_if_cancelled`."""

    def __init__(self) -> None:
        """Make a token that is not cancelled."""
        self._cancelled = False
        self._reason: str | None = None
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._order = itertools.count()
        self._parent: CancellationToken | None = None  # held, so that a chain of children does not break in the middle

    def __repr__(self) -> str:
        state = f"cancelled: {self._reason}" if self._reason else "cancelled" if self._cancelled else "not cancelled"
        return f"<CancellationToken {state}>"

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    @property
    def reason(self) -> str | None:
        """The reason given by the first `cancel`, if it gave one."""
        return self._reason

    def cancel(self, reason: str | None = None) -> None:
        """Cancel it, with its children, from any thread; once it is cancelled this changes nothing.

        Callbacks are called here, in the order they were added; one that raises is logged, and the rest follow.
        """
        with _changing:
            if self._cancelled:
                return
            self._reason = reason
            self._cancelled = True
            callbacks, self._callbacks = self._callbacks, {}
        for callback in list(callbacks.values()):
            try:
                callback()
            except Exception:
                log.exception("a callback of a cancelled token failed; the others are still called")

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` once when the token is cancelled, in the thread that cancels; at once if it is already.

        Returns a function that takes the callback back; call it when there is nothing left to cancel.
        """
        with _changing:
            if not self._cancelled:
                number = next(self._order)
                self._callbacks[number] = callback
                return lambda: self._forget(number)
        callback()
        return _nothing_to_forget

    async def wait(self) -> None:
        """Return when the token is cancelled; on any loop."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake_from_anywhere() -> None:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(wake)

        forget = self.on_cancel(wake_from_anywhere)
        try:
            await waiter
        finally:
            forget()

    def raise_if_cancelled(self) -> None:
        """Do nothing, unless the token is cancelled.

        Raises:
            asyncio.CancelledError: it is cancelled. Not an `Exception`, so that `except Exception` in a tool does
                not swallow it; let it pass.
        """
        if self._cancelled:
            raise asyncio.CancelledError(self._reason or "cancelled")

    def child(self) -> "CancellationToken":
        """Return a token that is cancelled with this one, with the same reason, or alone.

        The parent does not keep it alive: hold the child for as long as its cancellation matters.
        """
        child = CancellationToken()
        child._parent = self
        parent = ref(self)  # what the parent keeps must lead back to nobody but weakly

        def cancel_child() -> None:
            living = child_ref()
            if living is not None and living._parent is not None:
                living.cancel(living._parent.reason)

        def forget_child(_: object) -> None:
            living = parent()
            if living is not None:
                living._callbacks.pop(number, None)  # no lock: this may run inside any allocation

        child_ref = ref(child, forget_child)
        number = next(self._order)
        with _changing:
            if not self._cancelled:
                self._callbacks[number] = cancel_child
                return child
        child.cancel(self._reason)
        return child

    def _forget(self, number: int) -> None:
        self._callbacks.pop(number, None)


def _nothing_to_forget() -> None:
    """Take back a callback that was called already."""
