"""What docs/rehearsal.md tells to type is typed: its files, its commands in their order, and its test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refold.scenarios import Say, Scenario, Simulator
from tests.scenarios.rehearsed import agent

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "rehearsal.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\S+)([^\n]*)\n(.*?)^```$", TEXT, re.M | re.S)
COMMANDS = [
    (line, 1 if "exits 1" in words else 0)
    for language, words, body in BLOCKS
    if language == "sh"
    for line in body.splitlines()
]


def written(folder: Path) -> None:
    """Write each block that begins with the name of a file."""
    for _, _, body in BLOCKS:
        named = re.match(r"# (\w+\.py)\n", body)
        if named:
            (folder / named[1]).write_text(body, encoding="utf-8")


def done(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(folder), "PYTHONASYNCIODEBUG": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_commands_do_what_is_said(tmp_path: Path) -> None:
    written(tmp_path)
    Simulator(agent()).save_log(Scenario(acts=(Say(session="alice"),), seed=4), tmp_path / "rehearsed.db")
    assert len(COMMANDS) == 9
    for command, code in COMMANDS:
        ran = done(tmp_path, command)
        assert ran.returncode == code, f"{command}\n{ran.stdout}{ran.stderr}"
    assert len(list((tmp_path / "found").glob("test_seed_*.py"))) == 1


@pytest.mark.slow
def test_the_test_passes(tmp_path: Path) -> None:
    written(tmp_path)
    ran = done(tmp_path, "python -m pytest -q -p no:cacheprovider --strict-markers test_shop.py")
    assert ran.returncode == 0, ran.stdout
    assert "10 passed" in ran.stdout


def test_its_table_tells_of_promises_that_there_are() -> None:
    from refold.scenarios.monitors.monitor import PROMISES

    rows = re.findall(r"^\|.*\|$", TEXT[TEXT.index("| promise |") :], re.M)
    told = {rule for row in rows for rule in re.findall(r"\b(?:INV\d|[A-Z]{4,})\b", row.split("|")[1])}
    assert told <= set(PROMISES)
    assert len(told) >= 15
