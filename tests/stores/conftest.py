"""What the tests of stores share."""

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a log is to be."""
    return tmp_path / "events.db"


@contextlib.contextmanager
def unprivileged() -> Iterator[Path]:
    """Make a folder of a user whom permissions bind, and be that user."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, 0)
        try:
            yield Path(folder)
        finally:
            os.setresuid(0, 0, 0)


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: a real I/O error from the operating system, as of a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
