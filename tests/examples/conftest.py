"""Runs examples and `refold` as their users do."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def run_example(name: str, folder: Path) -> list[str]:
    """Return the lines that an example prints when it is run in a folder."""
    command = [sys.executable, "-P", str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=QUIET)
    return done.stdout.splitlines()


def refold(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=QUIET)


def assert_sound(log: Path, *options: object) -> None:
    """Replay and check a log as its user does."""
    for command in ("replay", "check"):
        done = refold(command, log, *options)
        # What to know of this Python's SQLite is no fault of the log.
        said = [line for line in done.stderr.splitlines() if not line.startswith("note: SQLite ")]
        assert (done.returncode, said) == (0, [])
        assert "not compared" not in done.stdout
        assert "not replayed" not in done.stdout
