"""Garbage collection by hand, between the lives of a simulated process and never in the middle of one.

A collection that begins whenever memory says so would run finalizers at a step that is another one in each process. And
what was there before a simulation is none of its garbage: it is set aside, so that a collection between two lives walks
over what the life has left and not over all that a test run holds, which takes a hundred times as long.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def garbage_by_hand() -> Generator[None]:
    """Collect no garbage inside but by `gc.collect()`, and then only what was made inside."""
    collecting, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if frozen:  # Somebody had set things aside before.
            gc.freeze()
        if collecting:
            gc.enable()
