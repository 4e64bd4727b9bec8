"""The example with subagents, as its reader runs it: killed while it works, and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from refold.stores import SQLiteStore
from tests.conformance.sessions import assert_sound

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "subagent.py"
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}

ARTICLE = "Tea was drunk in China first. Coffee was drunk in Yemen first."


def output_of(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", str(EXAMPLE)], capture_output=True, text=True, cwd=folder, env=QUIET, check=True
    )
    return done.stdout.splitlines()


async def test_the_example_tells_its_article_after_a_kill_and_again(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-P", str(EXAMPLE)], cwd=tmp_path, env=QUIET) as killed:  # noqa: ASYNC220
        while not (tmp_path / "subagent.db").exists() and killed.poll() is None:
            os.sched_yield()
        killed.send_signal(signal.SIGKILL)
    first = output_of(tmp_path)
    assert first[-1] == ARTICLE
    assert [line.partition(": ")[2] for line in first[:-1]] == [
        "Find out where people first drank tea",
        "Find out where people first drank coffee",
    ]
    assert output_of(tmp_path) == first
    async with await SQLiteStore.open(tmp_path / "subagent.db", read_only=True) as store:
        await assert_sound(store)
