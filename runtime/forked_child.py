"""What a forked child must not do to the event loop of its parent.

On Linux an epoll instance is shared after a fork: a child that closes its copy of a loop, as by returning into its
parent's `asyncio.run`, takes the parent's descriptors out of the parent's own epoll instance, and the parent's loop
sleeps for ever. The rule: whatever a child does with a loop that it inherited, the loop of a runtime goes on. What
SQLite inherits is for `refold.stores.sqlite_connection`.
"""

import asyncio
import os
import select
import selectors
from weakref import WeakSet

# State of the process by nature: a fork copies all of it.
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def protect_from_children(loop: asyncio.AbstractEventLoop) -> None:
    """See to it that a child which is forked from now on does nothing to the loop of this process."""
    _loops.add(loop)


def _leave_loops_to_parent() -> None:
    """In a forked child: put an epoll instance of its own in the place of each that it shares with the parent."""
    if not hasattr(selectors, "EpollSelector"):  # Other kinds are not inherited, or are nobody's but the process's.
        return
    for loop in list(_loops):
        selector = getattr(loop, "_selector", None)
        if isinstance(selector, selectors.EpollSelector) and not loop.is_closed():
            with select.epoll() as own:
                os.dup2(own.fileno(), selector.fileno(), inheritable=False)
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_loops_to_parent)
