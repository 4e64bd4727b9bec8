"""The graph of examples/, run twice on one log, as its reader runs it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def test_the_example_runs_as_its_reader_runs_it_and_begins_with_what_it_learned(tmp_path: Path) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", str(ROOT / "examples" / "graph.py")],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=QUIET,
        )
        assert done.stdout.splitlines() == [
            "The shop reaches mail through payments and the ledger, in 28 ms.",
            "4 entities when the session began",
            "{'calls': 1, 'notifies': 1, 'writes': 1} mean weight 9.33 cycle: False",
            "without payments: They are not connected.",
        ]
