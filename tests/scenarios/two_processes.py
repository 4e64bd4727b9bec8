"""The same program in two processes that hash otherwise."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def said_in_both(program: str) -> list[str]:
    """Return the lines that a program prints, which must be the same under each seed of Python's hashes."""
    said = [
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "PYTHONASYNCIODEBUG": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert said[0] == said[1]
    return said[0].splitlines()
