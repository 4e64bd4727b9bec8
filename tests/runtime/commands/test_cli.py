"""The `refold` command: its help, files that are no logs, hostile texts, and how it ends; see also the transcripts."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.cells import cell_len

from refold.commands.execution import run_command
from refold.events.core.content import TextBlock
from refold.events.core.errors import ConfigError, LogInUse
from refold.events.core.ids import StreamName
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.file import known_fault
from tests.runtime.command_line import error_of as error_of
from tests.runtime.command_line import run as run
from tests.runtime.log_builder import LogBuilder, log_of, use

HOSTILE = "\x1b[31mred\x1b]0;owned\x07 \u202eevil\u202c \x9b2J <b>[bold]markup[/bold] :smile: back\x08slash"
MALLORY = f"mallory {HOSTILE}"
KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def hostile_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which everything that has a name or a text tries to control the terminal."""

    async def build(builder: LogBuilder) -> None:
        await builder.open(MALLORY)
        await builder.send(MALLORY, HOSTILE)
        await builder.answer(MALLORY, TextBlock(text=HOSTILE), use(HOSTILE, **{HOSTILE: HOSTILE}))
        await builder.result(MALLORY, "call_6_0", HOSTILE)
        await builder.answer(MALLORY, TextBlock(text=HOSTILE))
        tag = json.dumps({"type": f"x{HOSTILE}", "a": HOSTILE}, ensure_ascii=False)
        await builder.append(StreamName(f"order/{HOSTILE}"), [tag.encode(), HOSTILE.encode()])

    return log_of(tmp_path_factory.mktemp("hostile") / "hostile.db", build)


def test_the_list_of_commands_says_whole_what_each_does() -> None:
    listed = run("--help").stdout.partition("Commands:\n")[2]
    assert "..." not in listed
    assert "Write a log as JSON Lines, of which `refold import` makes the same log again" in " ".join(listed.split())


@pytest.mark.parametrize("words", [["sessions"], ["stats"], ["show", MALLORY, "--events"]], ids=lambda words: words[0])
def test_tables_fit_the_terminal_and_only_their_last_column_is_cut(
    words: list[str], hostile_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [re.split(r"  +", line)[:-1] for line in run(words[0], hostile_log, *words[1:]).stdout.splitlines()[1:]]
    assert rows
    monkeypatch.setenv("FORCE_COLOR", "1")  # What is written is for a terminal.
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in (40, 80, 120, 200):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", run(words[0], hostile_log, *words[1:], columns=columns).stdout)
        assert "\x1b" not in shown
        assert max(cell_len(line) for line in shown.splitlines()) <= columns
        plain = "".join(shown.split())
        assert all("".join(cell.split()) in plain for row in rows for cell in row), (columns, shown)


# Help and usage.


LOOKING = ["sessions", "show", "replay", "check", "metrics", "stats", "tail", "export", "import", "backup"]
HELPED = [*LOOKING, "resume", "set-aside", "approve", "cancel", "send"]


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(word in result.stdout for word in (*HELPED, "run", "chat", "Exit codes:", "130"))


@pytest.mark.parametrize("command", HELPED)
def test_the_help_of_a_command_tells_its_exit_codes_and_its_json(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Exit codes:" in result.stdout
    assert "JSON: {" in result.stdout


def test_help_loads_neither_rich_nor_a_store() -> None:
    program = (
        "import sys\nfrom refold.commands.cli import main\nsys.argv = ['refold', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert not re.search(r"'(rich|aiosqlite|refold\.(events|stores|actors))'", loaded)


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"refold \d+\.\d+\.\d+\n", run("--version").stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["show"],
        ["show", "log"],
        ["replay", "log", "--level", "all"],
        ["show", "a", "b", "--at", "x"],
        ["sessions", ""],
        *(["sessions", "log", "--since", age] for age in ("900000d", "99999999999999999999w")),
        ["remind", "log", "s", "text", "--at", "9000000d"],
        ["show", "", "alice"],
        ["replay", ""],
        ["check", ""],
        ["tail", "log", "-n", "-1"],
        ["tail", "log", "--after", "-1"],
        ["approve"],
        ["approve", ""],
        ["approve", "log", "--deny"],
        ["approve", "log", "s", "--reason", "no"],
        ["approve", "log", "s", "--key", "k"],
        ["approve", "log", "s", "c", "--timeout", "-1"],
        ["approve", "log", "s", "c", "--deny", "--always"],
        ["approve", "log", "s", "c", "--arguments", "{}", "--deny"],
        *(["approve", "log", "s", "c", "--arguments", text] for text in ("", "{", "[" * 10_000, '{"a": NaN}')),
        ["cancel", "log"],
        ["cancel", "", "s"],
        ["send", "log", "s"],
        *([command, "--provider", "nobody"] for command in ("run", "chat")),
        *([command, "--max-tokens", "0"] for command in ("run", "chat")),
        *([command, "--api-key", KEY] for command in ("run", "chat")),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_wrong_usage_is_exit_code_2_on_stderr(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr
    assert "only an allowance can hold for always" in result.stderr or "--always" not in arguments
    assert KEY not in result.stderr


def test_show_without_a_session_says_how_to_find_one() -> None:
    assert "name the SESSION; `refold sessions LOG` lists them" in run("show", "log").stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_one_line_and_exit_code_2(log_file: Path) -> None:
    log_file.chmod(0)
    assert run("sessions", log_file).exit_code == 2


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


# What stands in a log cannot control a terminal or break a program.


SHOWING = [
    "sessions LOG",
    "show LOG NAME",
    "show LOG NAME --events",
    "show LOG NAME --json",
    "show LOG NAME --json --events",
    "replay LOG",
    "check LOG",
    "metrics LOG",
    "metrics LOG --json",
    "metrics LOG --prometheus",
    "stats LOG",
    "stats LOG NAME",
    "stats LOG NAME --json",
    "tail LOG --no-follow -n 1000",
    "tail LOG --no-follow -n 1000 --json",
    "show LOG FORGED",
    "show LOG NAME!",
]


@pytest.mark.parametrize("command", SHOWING)
def test_hostile_content_is_harmless_on_a_terminal(hostile_log: Path, command: str) -> None:
    names = {"LOG": str(hostile_log), "NAME": MALLORY, "FORGED": "\x1b[31mmallory\nred", "NAME!": f"{MALLORY}!"}
    result = run(*(names.get(word, word) for word in command.split()))
    text = result.stdout or error_of(result)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    if command.startswith("show LOG NAME --json"):
        document = json.loads(text)
        assert document["session"] == MALLORY
        assert HOSTILE in texts_of(document), "JSON is lossless"
    elif command in ("show LOG NAME", "show LOG NAME --events"):
        assert "<b>[bold]markup[/bold] :smile: backslash" in text
    elif command.endswith("--prometheus"):
        assert list(text_string_to_metric_families(text))


def texts_of(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for item in value.values() for text in texts_of(item)]
        case list():
            return [text for item in value for text in texts_of(item)]
        case _:
            return []


def test_a_name_cannot_pretend_to_be_another_line(tmp_path: Path) -> None:
    name = "mallory\nlevel core: no divergence: 9 streams"
    path = log_of(tmp_path / "forged.db", lambda builder: builder.weather_session(name))
    _execute(path, "UPDATE events SET pending = 'model:4' WHERE pending = 'model:9'")
    for command in ("sessions", "replay", "check"):
        lines = run(command, path).stdout.splitlines()
        assert not [line for line in lines if line.startswith("level core: no divergence")]


def test_unicode_is_shown_and_a_large_result_whole_where_that_is_asked_for(tmp_path: Path) -> None:
    text = "naïve 日本語 👩‍🚀 " * 1_000
    path = log_of(tmp_path / "text.db", lambda builder: builder.weather_session("ünïcödé", result=text))
    assert text.rstrip() in run("show", path, "ünïcödé", "--full").stdout
    cut = run("show", path, "ünïcödé").stdout
    assert f"{text[:4_000]}…\n" in cut
    assert f"({len(text) - 4_000:,} more characters; `refold show --full` writes them)" in cut
    assert len(run("show", path, "ünïcödé", "--events").stdout.splitlines()) == 12


# How a command ends.


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LogInUse("events.db", pid=7, host="elsewhere"), 3, "refold: the log events.db is in use by process 7"),
        (ConfigError("two\nlines \x1b[31m"), 2, "refold: two lines\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_of_a_command_becomes_its_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> int:
        raise error

    with pytest.raises(typer.Exit) as left:
        run_command(fail())
    assert left.value.exit_code == code
    assert capsys.readouterr().err.startswith(line)


def test_a_fault_of_refold_itself_is_not_hidden() -> None:
    async def fail() -> int:
        raise AssertionError("a fault")

    with pytest.raises(AssertionError, match="a fault"):
        run_command(fail())


@pytest.mark.parametrize("version", [(3, 50, 4), (3, 51, 3)])
def test_check_says_that_sqlite_has_a_known_fault(
    log_file: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sqlite_file, "known_fault", lambda: known_fault(version))
    checked = run("check", log_file, "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["problems"]) == (0, [])
    assert ("note: SQLite 3.50.4 can damage a file" in checked.stderr) is (version == (3, 50, 4))
