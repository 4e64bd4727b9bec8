"""The example of memories, as its reader runs it: twice."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "memory.py"
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def test_the_second_run_remembers_the_first(tmp_path: Path) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-P", str(EXAMPLE)], cwd=tmp_path, env=QUIET, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    first, second = said
    assert first[0] == second[0] == "Anna likes green tea."
    assert first[1].endswith("Anna prefers green tea  (recalled 2 times before)")
    assert second[1].endswith("Anna prefers green tea  (recalled 5 times before)")
    assert "capital of Portugal" in first
    assert first[-3:-1] == ["- language: English", "- last question: What does Anna like?"]
    assert first[-1] == second[-1] == "once: ['Anna visited Lisbon in May']"
