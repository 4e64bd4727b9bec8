"""The `refold` command: what it writes, where, and which exit code it leaves with."""

import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from refold.commands.cli import app
from refold.commands.execution import run_command
from refold.events.core.errors import ConfigError, LogInUse
from refold.events.model.configuration import CORE_VERSION
from refold.events.session import core as session_core
from refold.stores import SQLiteStore
from tests.runtime.conftest import LogBuilder

HOSTILE = "\x1b[31mred\x1b]0;owned\x07 \u202eevil\u202c \x9b2J <b>[bold]markup[/bold] :smile: back\x08slash"


def run(*arguments: object, columns: int = 80) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(result: Result) -> str:
    """Return the one line that an error is."""
    assert result.stdout == ""
    assert result.stderr.startswith("refold: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def hostile_log(tmp_path: Path) -> Path:
    """A log whose session, tool result and answer try to control the terminal."""
    path = tmp_path / "hostile.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await LogBuilder(store).weather_session(f"mallory {HOSTILE}", result=HOSTILE)

    asyncio.run(build())
    return path


# Help and usage.


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for word in (
        "run",
        "resume",
        "chat",
        "sessions",
        "show",
        "stats",
        "metrics",
        "replay",
        "check",
        "Exit codes:",
        "130",
    ):
        assert word in result.stdout


@pytest.mark.parametrize("command", ["resume", "sessions", "show", "replay", "check", "metrics", "stats"])
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
    ],
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
    assert set(codes) <= {0, 1, 2}
    harmless = column in ("correlation", "causation") and value == "NULL"
    assert harmless or codes[-1] != 0


# Sessions.


def test_sessions_are_a_table_of_one_line_each(log_file: Path) -> None:
    result = run("sessions", log_file)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["SESSION", "STATUS", "EVENTS", "LAST", "EVENT", "FIRST", "INPUT"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["alice", "completed", "11"],
        ["bob", "cancelled", "10"],
        ["carol", "open", "7"],
    ]
    assert lines[1].endswith("Weather in Lisbon?")


@pytest.mark.parametrize("command", [["sessions"], ["show", "alice", "--events"]], ids=" ".join)
def test_no_line_of_a_table_ends_with_spaces_where_it_is_redirected(log_file: Path, command: list[str]) -> None:
    name, *rest = command
    lines = run(name, log_file, *rest).stdout.splitlines()
    assert len(lines) > 3
    assert [line for line in lines if line != line.rstrip()] == []


def test_sessions_as_json(log_file: Path) -> None:
    document = json.loads(run("sessions", log_file, "--json").stdout)
    assert document["log"] == str(log_file)
    assert [session["session"] for session in document["sessions"]] == ["alice", "bob", "carol"]
    assert document["sessions"][2]["pending"] == ["tool:call_6_0"]


def test_a_log_without_sessions_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"

    async def make() -> None:
        await (await SQLiteStore.open(path)).close()

    asyncio.run(make())
    assert run("sessions", path).stdout == "the log has no sessions\n"
    assert json.loads(run("sessions", path, "--json").stdout)["sessions"] == []
    assert run("check", path).exit_code == run("replay", path).exit_code == 0


# Show.


def test_a_session_is_shown_as_a_conversation(log_file: Path) -> None:
    result = run("show", log_file, "alice")
    assert result.exit_code == 0
    assert re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "TIME", result.stdout) == (
        "alice · agent · test-model\n"
        "completed · version 11 · TIME · 20 tokens in, 10 out\n"
        "\n"
        "user · TIME  @3\n"
        "  Weather in Lisbon?\n"
        "\n"
        "assistant · TIME · 10 tokens in, 5 out  @6\n"
        '  -> weather(city="Lisbon")  (1.0 s)\n'
        "     Lisbon: sunny\n"
        "\n"
        "assistant · TIME · 10 tokens in, 5 out  @10\n"
        "  Sunny.\n"
        "  run_3 completed · 2 turns · 3.0 s · 20 tokens in, 10 out  @11\n"
    )


def test_a_session_is_shown_as_it_was_at_a_version(log_file: Path) -> None:
    text = run("show", log_file, "alice", "--at", "7").stdout
    assert "open · version 7 of 11" in text
    assert 'in flight: tool:call_6_0 · weather(city="Lisbon")' in text
    assert "sunny" not in text


def test_a_session_is_shown_as_its_events(log_file: Path) -> None:
    lines = run("show", log_file, "bob", "--events").stdout.splitlines()
    assert lines[0].split() == ["VERSION", "TIME", "TYPE", "SUMMARY"]
    assert len(lines) == 11
    assert lines[9].split()[0] == "9"
    assert "tool_call_failed.v1" in lines[9]
    assert "Cancelled by user" in lines[9]
    assert len(run("show", log_file, "bob", "--events", "--at", "4").stdout.splitlines()) == 5


def test_a_conversation_as_json(log_file: Path) -> None:
    document = json.loads(run("show", log_file, "alice", "--json").stdout)
    assert (document["session"], document["status"], document["version"]) == ("alice", "completed", 11)
    assert [entry["type"] for entry in document["transcript"]] == ["said", "said", "said", "ended"]
    assert document["transcript"][1]["calls"][0]["input"] == {"city": "Lisbon"}


def test_events_as_json(log_file: Path) -> None:
    document = json.loads(run("show", log_file, "alice", "--events", "--json", "--at", "5").stdout)
    assert (document["version"], document["last_version"]) == (5, 11)
    assert [event["version"] for event in document["events"]] == [1, 2, 3, 4, 5]
    assert document["events"][3]["event"]["type"] == "session.run_started.v1"
    assert document["events"][3]["causation"] == "session/alice@3"


@pytest.mark.parametrize("version", ["0", "12", "-1"])
@pytest.mark.parametrize("flags", [[], ["--events"], ["--json"]])
def test_a_version_that_is_not_there_is_exit_code_2(log_file: Path, version: str, flags: list[str]) -> None:
    result = run("show", log_file, "alice", "--at", version, *flags)
    assert result.exit_code == 2
    assert error_of(result) == f"refold: session 'alice' has no version {version}; its versions are 1 to 11\n"


@pytest.mark.parametrize("command", ["show", "replay"])
def test_an_unknown_session_is_exit_code_2_with_names_like_it(log_file: Path, command: str) -> None:
    result = run(command, log_file, "alcie")
    assert result.exit_code == 2
    assert "did you mean 'alice'?" in error_of(result)


def test_a_damaged_session_is_exit_code_2_and_named(tampered: Callable[..., Path]) -> None:
    result = run("show", tampered("UPDATE events SET data = '{' WHERE version = 3 AND stream = 1"), "alice")
    assert result.exit_code == 2
    assert "session/alice@3 is damaged" in error_of(result)


# Replay and check.


def test_a_log_that_replays_is_exit_code_0_and_says_what_was_done(log_file: Path) -> None:
    result = run("replay", log_file)
    assert (result.exit_code, result.stdout) == (
        0,
        "level core: no divergence: 3 streams, 15 batches, 28 events decided again and compared\n",
    )
    result = run("replay", log_file, "alice", "--level", "fold")
    assert (result.exit_code, result.stdout) == (
        0,
        "level fold: no divergence: 1 stream, 6 batches, 11 events folded\n",
    )


def test_a_divergence_is_exit_code_1_with_both_sides(tampered: Callable[..., Path]) -> None:
    path = tampered("UPDATE events SET data = replace(data, ':2', ':7') WHERE version = 9 AND stream = 1")
    result = run("replay", path)
    assert result.exit_code == 1
    text = result.stdout
    assert "session/alice@9: consequences[0].turn: 7 -> 2\n" in text
    recorded, now = text.split("recorded:\n")[1].split("now:\n")
    assert '"turn": 7' in recorded
    assert '"turn": 2' in now
    assert "level core: divergence in 1 stream: 3 streams, 14 batches, 26 events decided again" in text
    assert run("replay", path, "bob").exit_code == 0


def test_a_divergence_as_json(log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_core.SESSION_CORE, "pending", lambda state: [])
    result = run("replay", log_file, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["level"], document["diverged"]) == ("core", 3)
    first = document["divergences"][0]
    assert (first["stream"], first["version"], first["differs"]) == ("session/alice", 5, "pending")
    assert first["difference"] == {"path": "pending[0]", "left": "model:5"}


def test_kinds_that_are_not_known_are_named(tampered: Callable[..., Path]) -> None:
    path = tampered("UPDATE streams SET name = 'order/1' WHERE name = 'session/carol'")
    assert "not replayed: kind 'order' (1 stream)\n" in run("replay", path).stdout
    assert "not decoded: kind 'order' (1 stream)" in run("check", path).stdout


@pytest.mark.parametrize("level", ["fold", "core"])
def test_a_log_of_which_nothing_could_be_replayed_is_exit_code_1(tampered: Callable[..., Path], level: str) -> None:
    path = tampered("UPDATE streams SET name = replace(name, 'session/', 'order/')")
    result = run("replay", path, "--level", level)
    assert (result.exit_code, result.stdout) == (
        1,
        f"not replayed: kind 'order' (3 streams)\nlevel {level}: nothing was replayed\n",
    )
    assert run("replay", path, "--json").exit_code == 1


def test_a_log_of_another_core_version_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "older.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await LogBuilder(store).open("alice", core=0)

    asyncio.run(build())
    assert f"recorded in part by core version 0, today's is {CORE_VERSION}" in run("replay", path).stdout


def test_a_sound_log_is_exit_code_0(log_file: Path) -> None:
    result = run("check", log_file)
    assert (result.exit_code, result.stdout) == (0, "sound: 3 streams, 15 batches, 28 events, 2 payloads checked\n")
    assert json.loads(run("check", log_file, "--json").stdout)["problems"] == []


def test_an_edited_log_is_exit_code_1_with_its_problems(tampered: Callable[..., Path]) -> None:
    path = tampered("UPDATE events SET data = replace(data, 'Lisbon', 'Madrid') WHERE version = 3 AND stream = 1")
    result = run("check", path)
    assert result.exit_code == 1
    assert "chain  session/alice@3: the batch of versions 3 to 5 is not what was appended" in result.stdout
    document = run("check", path, "--json")
    assert document.exit_code == 1
    [problem] = json.loads(document.stdout)["problems"]
    assert (problem["kind"], problem["stream"], problem["version"]) == ("chain", "session/alice", 3)


# What stands in a log cannot control a terminal or break a program.


@pytest.mark.parametrize("command", [["sessions"], ["show"], ["show", "--events"], ["replay"], ["check"]], ids=" ".join)
def test_hostile_content_is_harmless_on_a_terminal(hostile_log: Path, command: list[str]) -> None:
    name, *flags = command
    session = [f"mallory {HOSTILE}"] if name == "show" else []
    text = run(name, hostile_log, *session, *flags).stdout
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    if name == "show":
        assert "<b>[bold]markup[/bold] :smile: backslash" in text


def test_a_name_cannot_pretend_to_be_another_line(tmp_path: Path) -> None:
    path, name = tmp_path / "forged.db", "mallory\nlevel core: no divergence: 9 streams"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await LogBuilder(store).weather_session(name)

    asyncio.run(build())
    _execute(path, "UPDATE events SET pending = 'model:4' WHERE pending = 'model:9'")
    for command in (["sessions"], ["replay"], ["check"]):
        lines = run(*command, path).stdout.splitlines()
        assert not [line for line in lines if line.startswith("level core: no divergence")]


def test_hostile_names_in_errors_are_harmless(hostile_log: Path) -> None:
    assert "\x1b" not in error_of(run("show", hostile_log, "\x1b[31mmallory\nred"))
    assert "\x1b" not in error_of(run("show", hostile_log, f"mallory {HOSTILE}!"))


@pytest.mark.parametrize("flags", [[], ["--events"]])
def test_json_is_lossless_and_has_nothing_for_a_terminal_to_obey(hostile_log: Path, flags: list[str]) -> None:
    text = run("show", hostile_log, f"mallory {HOSTILE}", "--json", *flags).stdout
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    document = json.loads(text)
    assert document["session"] == f"mallory {HOSTILE}"
    assert HOSTILE in json.dumps(document, ensure_ascii=False).encode().decode("unicode_escape", "ignore") or any(
        HOSTILE in leaf for leaf in _texts(document)
    )


def _texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for item in value.values() for text in _texts(item)]
        case list():
            return [text for item in value for text in _texts(item)]
        case _:
            return []


def test_unicode_and_large_texts_are_shown_whole(tmp_path: Path) -> None:
    path, text = tmp_path / "text.db", "naïve 日本語 👩‍🚀 " * 1_000

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await LogBuilder(store).weather_session("ünïcödé", result=text)

    asyncio.run(build())
    assert text.rstrip() in run("show", path, "ünïcödé").stdout
    assert len(run("show", path, "ünïcödé", "--events").stdout.splitlines()) == 12


def test_a_stored_result_is_shown_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await LogBuilder(store).weather_session("alice", result="x" * 100_000)

    asyncio.run(build())
    assert re.search(r"\[text of 100,\d{3} bytes, payload [0-9a-f]{12}\]", run("show", path, "alice").stdout)


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


def test_the_exact_request_behind_an_answer_is_shown(log_file: Path) -> None:
    events = json.loads(run("show", log_file, "alice", "--events", "--json").stdout)["events"]
    version = next(item["version"] for item in events if item["event"]["type"] == "session.model_responded.v1")
    text = run("show", log_file, "alice", "--request", version).stdout
    assert text.splitlines()[0].split() == ["ROLE", "CONTENT"]
    assert "\nsystem" in text
    assert "\nuser" in text
    document = json.loads(run("show", log_file, "alice", "--request", version, "--json").stdout)
    assert document["version"] == version
    assert document["request"]["messages"][0]["role"] == "user"
    assert run("show", log_file, "alice", "--request", "1").exit_code == 2
