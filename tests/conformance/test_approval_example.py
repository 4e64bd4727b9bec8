"""The example that asks on the terminal, as its reader runs it: killed while it asks, and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from refold.stores import SQLiteStore
from tests.conformance.sessions import assert_sound

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "approval.py"
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def started(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", str(EXAMPLE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=QUIET,
    )


async def test_the_example_asks_again_after_a_kill_and_does_as_it_is_told(tmp_path: Path) -> None:
    killed = started(tmp_path)
    assert killed.stdout is not None
    assert killed.stdout.read(8) == "May mail"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()

    asked, _ = started(tmp_path).communicate("yes\nno\n")
    assert asked.count("May mail run with") == 2
    assert "everybody@" not in asked.splitlines()[0]
    answers = asked.splitlines()[-1].split("; ")
    assert sorted(answers[:2])[0] == "The person at the terminal said no."
    assert sorted(answers[:2])[1].startswith("sent to ")
    assert answers[2] == "Not to everybody at once."

    again, _ = started(tmp_path).communicate("")
    assert again == "\n" + asked.splitlines()[-1] + "\n"
    async with await SQLiteStore.open(tmp_path / "approval.db", read_only=True) as store:
        await assert_sound(store)
