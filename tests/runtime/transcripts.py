"""Transcripts of a shell: golden texts whose commands are run again and whose output is compared whole.

A file of `tests/golden/text/commands/` has sections. The title of a section, behind `## `, is a sentence that its
commands show; each begins in a folder of its own, with `agents.py` and the sample logs that it names:

    ## A session that is not there is refused.
    $ refold show three.db alcie
    ! refold: no session 'alcie' in the log; did you mean 'alice'?
    [2]

What a command writes to stderr stands behind `! `, an exit code other than 0 in brackets, and a remark behind `// `.
`refold` runs in this process, `edit LOG STATEMENT` runs SQL on a log, and anything else runs in a shell; a command may
read from a pipe and write to a file. Times that no test holds are replaced. After a change of what a command writes,
`REFOLD_WRITE_TRANSCRIPTS=1 pytest -n0 tests/runtime/test_transcripts.py` writes the files anew; look at `git diff`.
"""

import os
import re
import shlex
import sqlite3
import subprocess
from contextlib import closing
from difflib import unified_diff
from pathlib import Path

import refold
from tests.runtime.command_line import run

GOLDEN = Path(__file__).parents[1] / "golden" / "text"
WRITTEN_ANEW = "REFOLD_WRITE_TRANSCRIPTS" in os.environ

REPLACED = {
    r"(?!2026-05-28 20:2)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z": "YYYY-MM-DD hh:mm:ss.mmmZ",
    r"note: SQLite \d.*\n": "",  # Said of some versions of SQLite; see `known_fault`.
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}": "(new)",
    rf"\brefold {re.escape(refold.__version__)}\b": "refold (version)",
}


def sections(pattern: str) -> dict[str, tuple[Path, str]]:
    """Return the file and the text of each section by its title."""
    return {
        title: (path, text.rstrip("\n") + "\n")
        for path in sorted(GOLDEN.glob(pattern))
        for title, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", path.read_text(), re.MULTILINE)
    }


def compare(path: Path, title: str, text: str, found: str) -> None:
    """Fail unless a section is as it was found, or write it anew."""
    if WRITTEN_ANEW:
        path.write_text(path.read_text().replace(f"## {title}\n{text}", f"## {title}\n{found}"))
    else:
        assert found == text, "\n".join(unified_diff(text.splitlines(), found.splitlines(), lineterm="", n=1))


def played(text: str, folder: Path) -> str:
    """Return a section with what its commands write today."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            lines += [line, *_outcome(line.removeprefix("$ "), folder)]
        elif line.startswith("// "):
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _outcome(command: str, folder: Path) -> list[str]:
    command, _, target = command.partition(" > ")
    source, _, last = command.rpartition(" | ")
    given = subprocess.run(source, shell=True, cwd=folder, capture_output=True, check=True).stdout if source else b""
    name, *arguments = shlex.split(last)
    if name == "refold":
        result = run(*arguments, stdin=given)
        written, told, code = result.stdout_bytes, result.stderr_bytes, result.exit_code
    elif name == "edit":
        with closing(sqlite3.connect(folder / arguments[0], isolation_level=None)) as connection:
            assert connection.execute(arguments[1]).rowcount != 0, f"nothing changed: {arguments[1]}"
        written, told, code = b"", b"", 0
    else:
        done = subprocess.run(last, shell=True, cwd=folder, capture_output=True, input=given)
        written, told, code = done.stdout, done.stderr, done.returncode
    if target:
        (folder / target).write_bytes(written)
        written = b""
    lines = [*_readable(written, folder), *(f"! {line}" for line in _readable(told, folder))]
    return [*lines, f"[{code}]"] if code else lines


def _readable(output: bytes, folder: Path) -> list[str]:
    text = output.decode().replace(str(folder), "(folder)")
    for pattern, word in REPLACED.items():
        text = re.sub(pattern, word, text)
    lines = text.splitlines()
    assert all(map(str.isprintable, lines)), "it could control a terminal"
    assert not any(line.endswith(" ") for line in lines)
    assert not text or text.endswith("\n"), "its last line has no end"
    return lines
