"""The `refold` command: its help, files that are no logs, hostile texts, and how it ends; see also the transcripts."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from refold.commands.execution import run_command
from refold.events.core.content import TextBlock
from refold.events.core.errors import ConfigError, LogInUse
from refold.events.core.ids import StreamName
from refold.events.session import core as session_core
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.file import known_fault
from tests.runtime.command_line import error_of as error_of
from tests.runtime.command_line import run as run
from tests.runtime.log_builder import LogBuilder, log_of, use

HOSTILE = "\x1b[31mred\x1b]0;owned\x07 \u202eevil\u202c \x9b2J <b>[bold]markup[/bold] :smile: back\x08slash"
MALLORY = f"mallory {HOSTILE}"


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


# Help and usage.


LOOKING = ["sessions", "show", "replay", "check", "metrics", "stats", "tail", "export", "import", "backup"]
HELPED = [*LOOKING, "resume", "set-aside"]


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
        ["show", "", "alice"],
        ["replay", ""],
        ["check", ""],
        ["tail", "log", "-n", "-1"],
        ["tail", "log", "--after", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_on_stderr(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr


# Files that are no logs.


COMMANDS = [["sessions"], ["show", "alice"], ["show", "alice", "--events"], ["replay"], ["check"]]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    "what", ["missing", "folder", "empty", "text", "other sqlite", "newer", "truncated", "missing folder"]
)
def test_a_file_that_is_no_log_is_one_line_and_exit_code_2(
    log_file: Path, tmp_path: Path, command: list[str], flags: list[str], what: str
) -> None:
    path = tmp_path / "input.db"
    match what:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("hello\n" * 1_000)
        case "other sqlite":
            _execute(path, "CREATE TABLE t (x)")
        case "newer":
            shutil.copy(log_file, path)
            _execute(path, "PRAGMA user_version = 99")
        case "truncated":
            path.write_bytes(log_file.read_bytes()[:5_000])
        case "missing folder":
            path = tmp_path / "nowhere" / "input.db"
    name, *rest = command
    result = run(name, path, *rest, *flags)
    assert result.exit_code == 2
    assert "input.db" in error_of(result) or "folder" in error_of(result)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_one_line_and_exit_code_2(log_file: Path) -> None:
    log_file.chmod(0)
    assert run("sessions", log_file).exit_code == 2


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


# Rows that Refold never writes, as an edit of the file's pages makes them.


def _force(path: Path, table: str, statement: str) -> None:
    """Run a statement that the table's own types and checks forbid, and leave the schema as it was."""
    with closing(sqlite3.connect(path)) as connection:
        [(schema,)] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    _set_schema(path, table, schema.replace(") STRICT", ")").replace(" NOT NULL", ""))
    _execute(path, statement)
    _set_schema(path, table, schema)


def _set_schema(path: Path, table: str, schema: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (schema, table))
        connection.commit()


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    ["NULL", "'x'", *(pytest.param(rare, marks=pytest.mark.slow) for rare in ("''", "1.5", "x'ff00'", str(-(2**63))))],
)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("events", name) for name in ("version", "batch", "at", "data", "correlation", "causation", "chain")),
        ("events", "pending"),
        *(("streams", name) for name in ("name", "version", "chain", "pending")),  # Of one stream: carol's is open.
        ("payloads", "data"),
    ],
)
def test_no_value_of_a_row_makes_a_command_fail_with_a_traceback(
    log_file: Path, table: str, column: str, value: str
) -> None:
    where = {"events": "position = 3", "streams": "pending <> ''", "payloads": "1"}[table]
    _force(log_file, table, f"UPDATE {table} SET {column} = {value} WHERE {where}")
    codes = []
    for name, *rest in (["sessions"], ["show", "carol"], ["show", "carol", "--events"], *COMMANDS):
        result = run(name, log_file, *rest)
        codes.append(result.exit_code)
        assert error_of(result) if result.exit_code == 2 else result.stdout
    assert set(codes) <= {0, 1, 2, 4}
    harmless = column in ("correlation", "causation") and value == "NULL"
    assert harmless or codes[-1] != 0


def test_a_divergence_as_json(log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_core.SESSION_CORE, "pending", lambda state: [])
    result = run("replay", log_file, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["level"], document["diverged"]) == ("core", 3)
    first = document["divergences"][0]
    assert (first["stream"], first["version"], first["differs"]) == ("session/alice", 5, "pending")
    assert first["difference"] == {"path": "pending[0]", "left": "model:5"}


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
