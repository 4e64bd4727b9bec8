"""The breakers of examples/: what their reader sees when they run it."""

import subprocess
import sys
from pathlib import Path

from tests.examples.test_order_book import QUIET, ROOT, refold


def test_the_example_runs_as_its_reader_runs_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "examples" / "breaker.py")],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=QUIET,
    )
    assert done.stdout.splitlines() == [
        "alice is told: I cannot tell now.",
        "calls that reached the service: 2",
        "after a restart: Still not. calls: 2",
        "a minute later: Sunny. calls: 3",
    ]
    shown = refold("show", tmp_path / "breaker.db", "breaker/forecast").stdout
    assert "after 2 failures in a row: ConnectionError: no route to the forecast service" in " ".join(shown.split())
    streams = refold("show", tmp_path / "breaker.db", "breaker/first-model").stdout
    assert "after 3 failures in a row" in " ".join(streams.split())
    for command in ("replay", "check"):
        done = refold(command, tmp_path / "breaker.db")
        assert (done.returncode, done.stderr) == (0, "")
