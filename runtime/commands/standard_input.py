"""Standard input for work in another thread: a read that waits for it ends where the work is cancelled.

`sys.stdin` is no use there. A thread that waits in it keeps its lock, and a process that ends meanwhile is aborted.
"""

import asyncio
import errno
import io
import os
import select
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import typer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

R = TypeVar("R")


async def with_standard_input(work: Callable[[BinaryIO], Awaitable[R]]) -> R:
    """Return what work does with standard input; a cancel ends a read of it in any thread by an OSError."""
    given: BinaryIO = typer.get_binary_stream("stdin")
    try:
        descriptor = given.fileno()
    except OSError:  # It is a file in memory, which no read waits for.
        return await work(given)
    source = _Stoppable(descriptor)
    working = asyncio.ensure_future(work(io.BufferedReader(source)))
    try:
        await asyncio.wait([working])
        return working.result()
    except asyncio.CancelledError:
        source.stop()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise
    finally:
        source.close()


class _Stoppable(io.RawIOBase):
    """The bytes of a descriptor, until `stop` is called."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._stopped, self._stop = os.pipe()

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        ready, _, _ = select.select([self._descriptor, self._stopped], [], [])
        if self._stopped in ready:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        view = memoryview(buffer).cast("B")
        data = os.read(self._descriptor, len(view))
        view[: len(data)] = data
        return len(data)

    def stop(self) -> None:
        """End a read that waits, and refuse any other; from any thread."""
        os.write(self._stop, b".")

    def close(self) -> None:
        if not self.closed:
            os.close(self._stop)
            os.close(self._stopped)
        super().close()
