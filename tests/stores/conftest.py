"""What the tests of stores share."""

import contextlib
import os
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
