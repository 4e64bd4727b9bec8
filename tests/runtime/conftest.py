"""Logs, and a working directory with agents, for the tests of this folder."""

import asyncio
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.stores import InMemoryStore
from tests.runtime.log_builder import LogBuilder
from tests.runtime.sample_logs import make_samples

PROVIDER_VARIABLES = [
    f"{provider}_{what}" for provider in ("OPENAI", "ANTHROPIC") for what in ("API_KEY", "AUTH_TOKEN", "BASE_URL")
]
"""What a command takes from the environment; no test sees those of the person who runs it."""


@pytest.fixture
def builder() -> LogBuilder:
    return LogBuilder(InMemoryStore())


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the logs of `sample_logs.py`, made once."""
    folder = tmp_path_factory.mktemp("samples")
    asyncio.run(make_samples(folder))
    return folder


@pytest.fixture
def log_file(samples: Path, tmp_path: Path) -> Path:
    """The path of a log with three sessions: alice has ended, bob was cancelled, carol is open."""
    return Path(shutil.copy(samples / "three.db", tmp_path / "events.db"))


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory whose modules this process forgets afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def folder(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the modules `agents`, `stalls` and `tills`, and no keys."""
    for name in ("agents", "stalls", "tills"):
        shutil.copy(Path(__file__).with_name(f"sample_{name}.py"), working_directory / f"{name}.py")
    for name in PROVIDER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return working_directory


@pytest.fixture
def tampered(log_file: Path, tmp_path: Path) -> Callable[..., Path]:
    """Run SQL on a copy of `log_file` and give the copy."""

    def tamper(*statements: str) -> Path:
        copy = tmp_path / "tampered.db"
        shutil.copy(log_file, copy)
        connection = sqlite3.connect(copy, isolation_level=None)
        try:
            for statement in statements:
                assert connection.execute(statement).rowcount != 0, f"nothing changed: {statement}"
        finally:
            connection.close()
        return copy

    return tamper
