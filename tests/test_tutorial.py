"""The tutorial does what it says: its program is saved, its commands run in order, and their lines appear."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.command_line import run

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")
PROGRAM = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)[0]


def steps_of(page: str) -> list[tuple[str, list[str]]]:
    """Return each command of a page with the lines that it shows of what it writes, in their order."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.M | re.S)
    found = [step for block in blocks for step in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)]
    return [(command, lines.splitlines()) for command, lines in found]


def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bank", raising=False)
    Path("bank.py").write_text(PROGRAM, encoding="utf-8")
    steps = steps_of(PAGE)
    for command, lines in steps:
        name, *words = shlex.split(command)
        if name == "POWER=fails":
            environment = {**os.environ, "POWER": "fails", "PYTHONPATH": str(tmp_path)}
            killed = subprocess.run([sys.executable, "-P", "-m", *words], env=environment, check=False, timeout=60)
            assert killed.returncode == -9
            continue
        found = run(*words)
        assert found.exit_code == (words[0] == "diff" or "bank:changed" in words), f"{command}: {found.output}"
        rest = found.output
        for line in lines:
            assert line in rest, f"{command}: {line!r} is not in its place in {found.output}"
            rest = rest.partition(line)[2]
    assert Path("bank.txt").read_text(encoding="utf-8") == "200 from rent to food\n"
    assert len(steps) == 10


def test_the_commands_before_an_upgrade_find_that_an_open_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bank", raising=False)
    Path("bank.py").write_text(PROGRAM.replace('tier="act"', 'tier="confirm"'), encoding="utf-8")
    assert run("run", "bank:agent", "Move 200", "--log", "events.db").exit_code == 1  # It waits for a person.
    steps = steps_of((DOCS / "upgrading.md").read_text(encoding="utf-8"))
    for command, _ in steps:
        found = run(*shlex.split(command, comments=True)[1:])
        assert found.exit_code == 0, f"{command}: {found.output}"
    assert len(steps) == 4
    assert found.stdout == "1 open run: all can go on\n"
