"""How an owner brings files to the disk, also where the disk had failed.

When a sync fails, the system counts what was to be written as written: readers see it, later syncs succeed, and yet it
is not on the disk and is gone after a power cut (https://lwn.net/Articles/752063/,
https://www.usenix.org/conference/atc20/presentation/rebello). So an append whose sync failed can be found in the WAL
when the log is opened again, and what is then appended after it would be lost with it. `write_again` writes everything
once more, the same bytes in the same places, and syncs that. Read `sides` first.
"""

import os
from pathlib import Path
from typing import Final

from refold.events.core.errors import PersistenceError

BLOCK_BYTES: Final = 1024 * 1024


def synchronise(path: Path) -> None:
    """Make what a file holds, or the names that a folder holds, survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_again(file: Path) -> bool:
    """Write a file's bytes over themselves, wait for the disk, and return whether there were any; False if no file.

    Nobody else may write the file meanwhile; who reads it reads the same as before.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(file, error) from error
    try:
        size = 0
        while block := os.pread(descriptor, BLOCK_BYTES, size):
            written = 0
            while written < len(block):
                written += os.pwrite(descriptor, block[written:], size + written)
            size += len(block)
        if size:
            os.fsync(descriptor)
    except OSError as error:
        raise _failed(file, error) from error
    finally:
        os.close(descriptor)
    return size > 0


def _failed(file: Path, error: OSError) -> PersistenceError:
    return PersistenceError(f"{file} cannot be brought to the disk: {error.strerror}; its log was not opened")
