"""The example with subagents, as its reader runs it: killed while it works, and started again."""

import os
from pathlib import Path

from tests.conformance.processes import ROOT, command_line, kill, left_in, run, started

EXAMPLE = command_line(ROOT / "examples" / "subagent.py")

ARTICLE = "Tea was drunk in China first. Coffee was drunk in Yemen first."


def output_in(folder: Path) -> list[str]:
    return run(EXAMPLE, cwd=folder, check=True).stdout.splitlines()


def test_the_example_tells_its_article_after_a_kill_and_again(tmp_path: Path) -> None:
    with started(EXAMPLE, cwd=tmp_path) as killed:
        while not (tmp_path / "subagent.db").exists() and killed.poll() is None:
            os.sched_yield()
        kill(killed)
    first = output_in(tmp_path)
    assert first[-1] == ARTICLE
    assert [line.partition(": ")[2] for line in first[:-1]] == [
        "Find out where people first drank tea",
        "Find out where people first drank coffee",
    ]
    assert output_in(tmp_path) == first
    left_in(tmp_path / "subagent.db")
