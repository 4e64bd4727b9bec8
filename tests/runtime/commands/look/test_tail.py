"""`refold tail`: the last events and those to come, from another process than the writer's."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from refold.commands.cli import app
from refold.events.core.ids import StreamName
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch
from tests.runtime.conftest import LogBuilder

QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
HOSTILE = "\x1b[31mred\x1b]0;owned\x07 \u202eevil\u202c \x9b2J"


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["tail", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def process(*arguments: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", "tail", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=QUIET)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            builder = LogBuilder(store)
            await builder.weather_session("alice")
            await builder.open("bob")
            await builder.append(StreamName("order/7"), [b'{"type":"order.placed.v1","n": [1,\n2]}', b"\x01 no json"])

    asyncio.run(build())
    return path


def test_the_last_events_are_shown_one_per_line(log: Path) -> None:
    everything = run(log, "--no-follow", "-n", 1000).stdout.splitlines()
    assert [int(line.split()[0]) for line in everything] == list(range(1, len(everything) + 1))
    assert run(log, "--no-follow", "-n", 3).stdout.splitlines() == everything[-3:]
    assert len(run(log, "--no-follow").stdout.splitlines()) == 10
    assert run(log, "--no-follow", "-n", 0).stdout == ""
    assert run(log, "--no-follow", "--after", len(everything) - 2).stdout.splitlines() == everything[-2:]
    assert "session/alice@1  opened.v1  alice with agent" in everything[0]


def test_one_session_alone(log: Path) -> None:
    lines = run(log, "alice", "--no-follow", "-n", 1000).stdout.splitlines()
    assert lines
    assert all("session/alice@" in line for line in lines)
    assert run(log, "alice", "--no-follow", "-n", 2).stdout.splitlines() == lines[-2:]
    position = lines[3].split()[0]
    assert run(log, "alice", "--no-follow", "--after", position).stdout.splitlines() == lines[4:]


def test_json_is_one_object_per_line_and_says_what_show_says(log: Path) -> None:
    items = [json.loads(line) for line in run(log, "alice", "--no-follow", "--json", "-n", 1000).stdout.splitlines()]
    shown = CliRunner().invoke(app, ["show", str(log), "alice", "--events", "--json"])
    assert items == json.loads(shown.stdout)["events"]


def test_what_a_batch_goes_back_to_is_told_of_each_of_its_events(tmp_path: Path) -> None:
    path = tmp_path / "events.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await store.append([batch("order/7", 0, 3, correlation="session/a@1", causation="session/a@9")])

    asyncio.run(build())
    for number in (3, 2, 1):
        lines = run(path, "--no-follow", "--json", "-n", number).stdout.splitlines()
        said = [(item["correlation"], item["causation"]) for item in map(json.loads, lines)]
        assert said == [("session/a@1", "session/a@9"), *[("session/a@1", "order/7@1")] * 2][-number:]


def test_events_that_are_not_known_are_shown_as_they_were_recorded(log: Path) -> None:
    lines = run(log, "--no-follow", "--json", "-n", 2).stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == [
        {"type": "order.placed.v1", "n": [1, 2]},
        "\x01 no json",
    ]
    placed, other = run(log, "--no-follow", "-n", 2).stdout.splitlines()
    assert 'order/7@1  placed.v1  {"type":"order.placed.v1","n":[1,2]}' in placed
    assert other.endswith("order/7@2  ?  no json")


def test_nothing_in_a_log_reaches_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "hostile.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            builder = LogBuilder(store)
            await builder.weather_session(f"mallory {HOSTILE}", result=HOSTILE)
            tag = json.dumps({"type": f"x{HOSTILE}", "a": HOSTILE}, ensure_ascii=False)
            await builder.append(StreamName(f"order/{HOSTILE}"), [tag.encode(), HOSTILE.encode()])

    asyncio.run(build())
    for flags in ([], ["--json"]):
        shown = run(path, "--no-follow", "-n", 1000, *flags)
        assert shown.exit_code == 0
        assert not set("\x1b\x9b\x07\u202e\x08") & set(shown.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.db"], "does not exist"),
        (["missing.jsonl"], "does not exist"),
        (["{log}", "alise"], "did you mean 'alice'?"),
        (["{log}", "-n", "-1"], "Usage:"),
        (["{log}", "--after", "-1"], "Usage:"),
    ],
)
def test_what_cannot_be_is_exit_code_2(log: Path, arguments: list[str], said: str) -> None:
    result = run(*(argument.format(log=log) for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.slow
def test_a_live_log_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "live.db"

    async def scenario() -> None:
        async with await SQLiteStore.open(path) as store:
            builder = LogBuilder(store)
            await builder.open_session("alice")
            with process(path, "--json", "-n", 1000) as tail:
                assert tail.stdout is not None
                assert tail.stderr is not None
                seen: list[int] = []
                for number in range(3):
                    count = len(await store.read_all())
                    while len(seen) < count:
                        line = await asyncio.to_thread(tail.stdout.readline)
                        seen.append(json.loads(line)["position"])
                    await builder.open(f"session {number}")
                tail.send_signal(signal.SIGINT)
                rest = await asyncio.to_thread(tail.stdout.read)
                seen += [json.loads(line)["position"] for line in rest.splitlines()]
                assert await asyncio.to_thread(tail.wait) == 130
                assert await asyncio.to_thread(tail.stderr.read) == b""
            assert seen == list(range(1, len(seen) + 1))

    asyncio.run(scenario())


def test_a_stream_of_another_kind_is_shown_by_its_name(log: Path) -> None:
    of_all = [line for line in run(log, "--no-follow", "-n", 1000).stdout.splitlines() if "  order/7@" in line]
    assert len(of_all) == 2
    assert run(log, "--no-follow", "--stream", "order/7").stdout.splitlines() == of_all
    assert run(log, "--no-follow", "--stream", "order/7", "-n", 1).stdout.splitlines() == of_all[-1:]
    assert run(log, "--no-follow", "--stream", "session/bob").stdout == run(log, "bob", "--no-follow").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--stream", "order/8"], "did you mean 'order/7'?"),
        (["order/7"], "but a stream of that name: `refold tail` and `refold export` take it as --stream order/7"),
        (["-n", "1", "--after", "3"], "give one of them"),
        (["-n", "10", "--after", "3"], "give one of them"),
        (["bob", "--stream", "order/7"], "give it or --stream, and not both"),
    ],
)
def test_what_cannot_be_shown_is_refused(log: Path, arguments: list[str], says: str) -> None:
    result = run(log, "--no-follow", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it_at_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "live.db"

    async def scenario() -> None:
        async with await SQLiteStore.open(path) as store:
            builder = LogBuilder(store)
            await builder.open("alice")
            with process(path) as tail:
                assert tail.stdout is not None
                assert tail.stderr is not None
                await asyncio.to_thread(tail.stdout.readline)
                tail.stdout.close()
                number = 0
                while tail.poll() is None:
                    await builder.open(f"session {number}")
                    number += 1
                assert tail.returncode == 141
                assert await asyncio.to_thread(tail.stderr.read) == b""

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_log_that_is_removed_ends_it_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "gone.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            await LogBuilder(store).open("alice")

    asyncio.run(build())
    with process(path) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        path.unlink()
        assert tail.wait() == 2
        error = tail.stderr.read()
    assert error.startswith(b"refold: ")
    assert error.count(b"\n") == 1
