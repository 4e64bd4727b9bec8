"""Making sure that what a file gives its readers is on the disk, also after a sync of it has failed.

When a sync fails, the system counts what was to be written as written: everybody goes on reading it, later syncs
succeed, and yet it is not on the disk and is gone after a power cut (https://lwn.net/Articles/752063/,
https://www.usenix.org/conference/atc20/presentation/rebello). So an append whose sync failed can be found in the WAL
when the log is opened again, by this process or another, and what is then appended after it would be lost with it. The
cure is to write everything once more, the same bytes in the same places, and to sync that.
"""

import os
from pathlib import Path
from typing import Final

from refold.events.errors import PersistenceError

BLOCK_BYTES: Final = 1024 * 1024


def write_again(file: Path, *, last_bytes: int | None = None) -> bool:
    """Write a file's bytes over themselves, wait for the disk, and return whether there were any; False if no file.

    Nobody else may write the file meanwhile; who reads it reads the same as before.

    Args:
        file: what to write again.
        last_bytes: so many at its end only; None = all of it.

    Raises:
        PersistenceError: the file cannot be written, or the disk does not take it.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(file, error) from error
    try:
        size = begin = 0 if last_bytes is None else max(0, os.fstat(descriptor).st_size - last_bytes)
        while block := os.pread(descriptor, BLOCK_BYTES, size):
            written = 0
            while written < len(block):
                written += os.pwrite(descriptor, block[written:], size + written)
            size += len(block)
        if size > begin:
            os.fsync(descriptor)
    except OSError as error:
        raise _failed(file, error) from error
    finally:
        os.close(descriptor)
    return size > begin


def _failed(file: Path, error: OSError) -> PersistenceError:
    return PersistenceError(f"{file} cannot be brought to the disk: {error.strerror}; its log was not opened")
