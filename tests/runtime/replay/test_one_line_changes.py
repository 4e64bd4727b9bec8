"""`benchmarks/replay_changes`, which makes more than 200 changes in ten logs: here a few of them, in one log."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks/replay_changes"

SAMPLE = (
    "hook: on_pre_llm raises",
    "tool: an argument need not be given",
    "skill: its instructions",
    "guardrail: of inputs, another word",
    "usage: read from a cache",
)


@pytest.mark.slow
def test_a_few_changes_are_found_where_they_first_matter() -> None:
    command = [sys.executable, "-P", str(FOLDER), "--only", "lookup", "--", *SAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["5 changes: 5 found"], 0), done.stdout + done.stderr


def test_each_change_can_be_made() -> None:
    files = tomllib.loads((FOLDER / "changes.toml").read_text(encoding="utf-8"))
    stale = [
        (name, source.count(text))
        for file, changes in files.items()
        for source in [((FOLDER if file == "desk.py" else ROOT) / file).read_text(encoding="utf-8")]
        for name, (text, *_) in changes.items()
        if source.count(text) != 1
    ]
    assert stale == [], "a text of benchmarks/replay_changes/changes.toml does not stand once in its file any more"
