"""The one rule for `log` in the JSON of commands: the path of the file itself, absolute, with links followed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.runtime.command_line import COMMANDS, run

DOCUMENTS = {
    "answer": "answer log.db ask call_6_0.1 yes",
    "approve": "approve log.db s call_6_0 --deny",
    "backup": "backup log.db new.db",
    "cancel": "cancel log.db s",
    "check": "check log.db",
    "compact": "compact log.db",
    "delete": "delete log.db s --cancel",
    "diff": "diff log.db s ask --other-log log.db",
    "fork": "fork log.db s --as f",
    "import": "import log.jsonl new.db",
    "remind": "remind log.db s tea --at 1d",
    "repair": "repair log.db -o new.db",
    "replay": "replay log.db",
    "resume": "resume agents:plain --log log.db --session s",
    "retain": "retain log.db --older-than 0s --archive archives",
    "rewind": "rewind log.db done --at 2",
    "run": "run agents:plain hello --log log.db --session new",
    "scan": "scan log.db",
    "send": "send log.db s more",
    "sessions": "sessions log.db",
    "set-aside": "set-aside log.db done 3",
    "simulate": "simulate --from done.db --boundaries 1",
    "stats": "stats log.db",
    "timeline": "timeline log.db --around 4",
    "why": "why log.db s@4",
}
"""A line by the name of the command whose document it writes."""

OTHERS = ["approve log.db", "check log.jsonl", "remind log.db s", "replay log.db --agent agents:plain --in-flight"]
"""Further documents of those commands."""

NAME_NONE = {"bundle", "metrics", "show", "tail", "trace"}
"""Documents of one session or of figures, and lines of a stream, which name no log."""

MEASURED_ELSEWHERE = {"demo"}
"""It makes a log of its own; see `test_demo.py`."""


@pytest.fixture
def linked(folder: Path) -> Path:
    """The working directory, with a link to itself and a log where one call waits for approval, one for an answer."""
    for words in ("pay --session s", "hello --session done"):
        run("run", "agents:plain", *words.split(), "--log", "log.db")
    run("run", "agents:asking", "go", "--session", "ask", "--log", "log.db")
    run("run", "agents:plain", "hello", "--session", "done", "--log", "done.db")
    run("export", "log.db", "-o", "log.jsonl")
    folder.joinpath("archives").mkdir()
    folder.joinpath("link").symlink_to(folder, target_is_directory=True)
    return folder.resolve()


def logs_in(document: object) -> Iterator[object]:
    """Yield what stands under `log`, at any depth."""
    if isinstance(document, dict):
        for name, value in cast("dict[str, object]", document).items():
            if name == "log":
                yield value
            yield from logs_in(value)
    elif isinstance(document, list):
        for value in cast("list[object]", document):
            yield from logs_in(value)


@pytest.mark.parametrize("line", [*DOCUMENTS.values(), *OTHERS])
def test_a_document_names_its_log_by_the_path_of_the_file(line: str, linked: Path) -> None:
    words = [f"link/{word}" if word.endswith((".db", ".jsonl")) else word for word in line.split()]
    result = run(*words, "--json")
    assert result.stdout, result.stderr
    named = list(logs_in(json.loads(result.stdout)))
    assert named
    assert {str(log).rpartition("/")[0] for log in named} == {str(linked)}


def test_every_command_that_writes_a_document_is_among_them() -> None:
    commands: dict[str, Any] = vars(COMMANDS)["commands"]
    writing = {name for name, one in commands.items() if any("--json" in option.opts for option in one.params)}
    assert writing == {*DOCUMENTS} | NAME_NONE | MEASURED_ELSEWHERE
