"""`refold export` and `refold import`, and the commands that look into a text log."""

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from refold import AgentConfig, AgentRuntime, ConfigError, ScriptedProvider, say
from refold.commands.cli import app
from refold.events.core.ids import StreamName
from refold.events.model.configuration import payload_hash
from refold.inspection.export import export_log, export_to_file
from refold.stores import SQLiteStore
from refold.stores.jsonl.importing import import_log
from refold.stores.sample_batches import batch, payload
from tests.runtime.conftest import LogBuilder

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.db"))
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("refold: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two sessions, one with a large result that is a payload, and a stream of a user's own kind."""
    path = tmp_path / "events.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            builder = LogBuilder(store)
            await builder.weather_session("alice", result="large " * 20_000)
            await builder.weather_session("ü \x1b[31m bob")
            await builder.append(StreamName("order/7"), [b'{"type":"order.placed.v1"}', "Übung".encode()])

    asyncio.run(build())
    return path


# There and back.


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_log_comes_back_byte_for_byte(golden: Path, tmp_path: Path) -> None:
    source = Path(shutil.copy(golden, tmp_path / golden.name))
    first = run("export", source).stdout_bytes
    (tmp_path / "log.jsonl").write_bytes(first)
    assert run("import", tmp_path / "log.jsonl", tmp_path / "copy.db").exit_code == 0
    assert run("export", tmp_path / "copy.db").stdout_bytes == first
    for name in ("copy.db", "log.jsonl"):
        assert run("check", tmp_path / name).exit_code == 0
        assert run("replay", tmp_path / name).stdout == run("replay", source).stdout


def test_a_log_goes_through_a_pipe(log: Path, tmp_path: Path) -> None:
    exported = run("export", log)
    assert (exported.exit_code, exported.stderr) == (0, "")
    done = run("import", "-", tmp_path / "copy.db", stdin=exported.stdout_bytes)
    assert done.exit_code == 0
    assert "made" in done.stdout
    assert "3 streams" in done.stdout
    assert run("export", tmp_path / "copy.db").stdout_bytes == exported.stdout_bytes


def test_every_line_is_json_in_utf_8(log: Path) -> None:
    lines = [json.loads(line) for line in run("export", log).stdout_bytes.decode().splitlines()]
    assert lines[0] == {"line": "refold.log", "format": 1, "export": True}
    assert {line["line"] for line in lines} == {"refold.log", "payload", "batch", "end"}
    assert lines[-1]["events"] == sum(len(line["events"]) for line in lines if line["line"] == "batch")
    assert lines[-2]["events"][1] == "Übung"


def test_an_export_into_a_file(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "log.jsonl"
    assert run("export", log, "-o", target).exit_code == 0
    assert target.read_bytes() == run("export", log).stdout_bytes
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert "is there already" in refused(run("export", log, "-o", target))
    assert "cannot be written" in refused(run("export", log, "-o", tmp_path / "no" / "folder"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.db", "events.db.lock", "log.jsonl"]


def test_the_report_as_json(log: Path, tmp_path: Path) -> None:
    run("export", log, "-o", tmp_path / "log.jsonl")
    report = json.loads(run("import", tmp_path / "log.jsonl", tmp_path / "copy.db", "--json").stdout)
    assert report["log"] == str(tmp_path / "copy.db")
    assert (report["streams"], report["partial"]) == (3, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "line "),
        (lambda data: data.replace(b"sunny", b"rainy", 1), "does not hash to its chain"),
        (lambda data: b"", "is empty"),
        (lambda data: b"\x1b[31mhello\n", "line 1: it is no header"),
    ],
)
def test_what_is_no_export_is_one_line_and_leaves_nothing(
    log: Path, tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    (tmp_path / "x.jsonl").write_bytes(change(run("export", log).stdout_bytes))
    before = sorted(path.name for path in tmp_path.iterdir())
    error = refused(run("import", tmp_path / "x.jsonl", tmp_path / "copy.db"))
    assert said in error
    assert "\x1b" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_cannot_be_read_or_made_is_refused(log: Path, tmp_path: Path) -> None:
    assert "cannot be read" in refused(run("import", tmp_path / "missing", tmp_path / "copy.db"))
    assert "cannot be read" in refused(run("import", tmp_path, tmp_path / "copy.db"))
    run("export", log, "-o", tmp_path / "log.jsonl")
    assert "is there already" in refused(run("import", tmp_path / "log.jsonl", log))
    assert "does not exist" in refused(run("export", tmp_path / "missing.db"))
    assert "line 1" in refused(run("import", log, tmp_path / "copy.db"))


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-P",
        "-c",
        "from refold.commands.cli import main; main()",
        "import",
        "-",
        str(tmp_path / "x.db"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=QUIET) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b'{"line":"refold.log","format":1}\n')
        process.stdin.flush()
        while not (tmp_path / "x.db.importing").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []


# Some sessions.


def test_some_sessions_with_the_payloads_that_they_refer_to(log: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.jsonl"
    assert run("export", log, "--session", "ü \x1b[31m bob", "-o", part).exit_code == 0
    assert b"large large" not in part.read_bytes()
    assert json.loads(part.read_bytes().splitlines()[0])["partial"]
    done = run("import", part, tmp_path / "copy.db")
    assert "left other streams out" in done.stdout
    assert run("check", tmp_path / "copy.db").exit_code == 0
    assert run("replay", tmp_path / "copy.db").exit_code == 0
    shown = [run("show", name, "ü \x1b[31m bob", "--events", "--json").stdout for name in (log, tmp_path / "copy.db")]
    assert shown[0] == shown[1], "positions are those of the whole log"
    both = run("export", log, "--session", "alice", "--session", "ü \x1b[31m bob").stdout_bytes
    assert b"large large" in both
    assert b"order/7" not in both
    assert "no session 'alise'" in refused(run("export", log, "--session", "alise"))


def test_a_stream_of_another_kind_is_exported_by_its_name(log: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.jsonl"
    assert run("export", log, "--stream", "order/7", "-o", part).exit_code == 0
    lines = [json.loads(line) for line in part.read_bytes().splitlines()]
    assert {line["stream"] for line in lines if line["line"] == "batch"} == {"order/7"}
    assert not any(line["line"] == "payload" for line in lines)
    assert run("import", part, tmp_path / "copy.db").exit_code == 0
    both = run("export", log, "--stream", "order/7", "--session", "alice").stdout_bytes
    assert b"order/7" in both
    assert b"large large" in both
    assert "did you mean 'order/7'?" in refused(run("export", log, "--stream", "order/8"))
    assert "take it as --stream order/7" in refused(run("export", log, "--session", "order/7"))


async def test_an_export_of_a_stream_of_another_kind_has_the_payloads_that_it_names(tmp_path: Path) -> None:
    path, part = tmp_path / "own.db", tmp_path / "part.jsonl"
    named, other = payload_hash(b"named"), payload_hash(b"other")
    given = msgspec.structs.replace(batch("order/7", 0, 1), events=(f'{{"bill":"{named}"}}'.encode(),))
    async with await SQLiteStore.open(path) as store:
        await store.append([given], {named: b"named", other: b"other"})
    await export_to_file(path, part, streams=["order/7"])
    kept = [line["hash"] for line in map(json.loads, part.read_bytes().splitlines()) if line["line"] == "payload"]
    assert kept == [named]


async def test_a_store_of_ones_own_that_lists_no_payloads_is_refused() -> None:
    class Small:
        name = "small"

    with pytest.raises(ConfigError, match="WholeLog"):
        await export_log(Small(), print)  # type: ignore[arg-type]


# Text logs.


def test_the_commands_look_into_a_text_log(log: Path, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    run("export", log, "-o", lines)
    for command in (
        ["sessions"],
        ["show", "alice"],
        ["show", "alice", "--events", "--json"],
        ["replay"],
        ["check"],
    ):
        name, *rest = command
        of_lines, of_sqlite = run(name, lines, *rest), run(name, log, *rest)
        assert (of_lines.exit_code, of_lines.stdout) == (of_sqlite.exit_code, of_sqlite.stdout)
        assert "\x1b" not in of_lines.stdout
        assert "does not exist" in refused(run(name, tmp_path / "missing.jsonl", *rest))
    assert run("tail", lines).stdout == run("tail", log, "--no-follow").stdout, "nothing is to come"


@pytest.mark.parametrize("command", [["sessions"], ["show", "alice"], ["replay"], ["tail"]])
def test_a_damaged_text_log_is_one_line(log: Path, tmp_path: Path, command: list[str]) -> None:
    lines = tmp_path / "log.jsonl"
    lines.write_bytes(run("export", log).stdout_bytes.replace(b"sunny", b"rainy", 1))
    name, *rest = command
    assert "does not hash to its chain" in refused(run(name, lines, *rest))


async def test_no_runtime_opens_a_text_log(log: Path, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    await export_to_file(log, lines)
    for path in (lines, tmp_path / "new.JSONL"):
        with pytest.raises(ConfigError, match=r"is a text log by its name.*`refold import \S+ \S+\.db`"):
            await AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Hi.")]), log=path).open()
    assert sorted(os.listdir(tmp_path)) == ["events.db", "events.db.lock", "log.jsonl"]


def test_a_command_for_a_text_log_is_refused_and_leaves_nothing(log: Path, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    run("export", log, "-o", lines)
    for command in (["send", lines, "alice", "Hi"], ["cancel", lines, "alice"]):
        assert "refold import" in refused(run(*command))
    assert sorted(os.listdir(tmp_path)) == ["events.db", "events.db.lock", "log.jsonl"]


# Memory.


async def peak_of(folder: Path, events: int, payloads: int) -> int:
    """Return the most memory that exporting and importing a log of so many events and payloads takes at a time."""
    async with await SQLiteStore.open(folder / f"{events}.db", durability="normal") as store:
        for version in range(0, events, 500):
            await store.append([batch(f"session/{version // 500 % 5}", version // 2500 * 500, 500)])
        for number in range(payloads):
            await store.append([], payload(b"%d" % number * 200_000))
    tracemalloc.start()
    try:
        await export_to_file(folder / f"{events}.db", folder / f"{events}.jsonl")
        with (folder / f"{events}.jsonl").open("rb") as source:
            await import_log(source, "x", folder / f"{events}-copy.db")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    small = await peak_of(tmp_path, 5_000, 10)
    assert await peak_of(tmp_path, 20_000, 40) < 1.3 * small


@pytest.mark.parametrize("command", ["tail", "export", "import"])
def test_the_help_of_a_command_tells_its_exit_codes_and_its_json(command: str) -> None:
    assert command in run("--help").stdout
    told = run(command, "--help")
    assert told.exit_code == 0
    assert "Exit codes:" in told.stdout
    assert "JSON: {" in told.stdout
