"""`refold metrics` and `refold stats`: what they write of a log, as of any moment, and what they refuse."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from refold.commands.cli import app
from refold.events.core.content import TextBlock
from refold.metrics import MetricsSnapshot, read_metrics
from refold.stores import SQLiteStore
from tests.runtime.conftest import LogBuilder, use

GOLDEN = sorted((Path(__file__).parent.parent / "golden").glob("*.db"))
HOSTILE = "\x1b]0;owned\x07 \u202eevil \x9b2J \x1b[31mred"


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def written(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def document(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written(*arguments, "--json"))
    return found


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


@pytest.fixture
def hostile_log(tmp_path: Path) -> Path:
    """A log in which everything that a model and a tool say tries to control the terminal."""
    path = tmp_path / "hostile.db"

    async def build() -> None:
        async with await SQLiteStore.open(path) as store:
            builder = LogBuilder(store)
            await builder.open("mallory")
            await builder.send("mallory", HOSTILE)
            await builder.answer("mallory", TextBlock(text=HOSTILE), use(HOSTILE, **{HOSTILE: HOSTILE}))
            await builder.result("mallory", "call_6_0", HOSTILE)
            await builder.answer("mallory", TextBlock(text=HOSTILE))

    asyncio.run(build())
    return path


def test_the_figures_of_a_log(log_file: Path) -> None:
    lines = written("metrics", log_file).splitlines()
    assert lines[0].startswith("up to position 28, 20")
    assert lines[1:8] == [
        "sessions  3, 1 active",
        "runs      3 started, 1 completed, 0 failed, 1 cancelled",
        "steps     4",
        "models    4 calls, 0 failed",
        "tokens    40 tokens in, 20 out",
        "tools     3, 1 failed (50.0%), 0 shed",
        "recalls   0",
    ]
    words = [line.split() for line in lines]
    assert ["weather", "3", "1", "1", "50.0%", "cancelled", "1"] in words
    assert ["agent", "3", "3", "0", "4", "3", "20"] in words
    assert ["session.run_started.v1", "3"] in words


def test_the_json_is_the_snapshot_and_its_derived_figures(log_file: Path) -> None:
    found = document("metrics", log_file)
    derived = found.pop("derived")
    assert msgspec.convert(found, MetricsSnapshot) == asyncio.run(read_metrics(log_file))
    assert (derived["tool_calls"], derived["most_called_tool"], derived["tool_failure_rate"]) == (3, "weather", 0.5)


def test_any_past_moment_can_be_counted(log_file: Path) -> None:
    last = document("metrics", log_file)["position"]
    started = [document("metrics", log_file, "--at", at)["runs_started"] for at in range(0, last + 1, 9)]
    assert started[0] == 0
    assert started == sorted(started)
    assert document("metrics", log_file, "--at", last) == document("metrics", log_file)
    for at in (-1, last + 1):
        assert f"no position {at}; its positions are 0 to {last}" in refused("metrics", log_file, f"--at={at}")


def test_prometheus_text_is_what_its_own_parser_reads(log_file: Path) -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(written("metrics", log_file, "--prometheus"))
    }
    [sample] = families["refold_tool_calls"].samples
    assert (sample.labels, sample.value) == ({"tool": "weather"}, 3)
    assert families["refold_commits"].samples == [], "no log knows it"


def test_one_format_at_a_time(log_file: Path) -> None:
    assert "give one of them" in refused("metrics", log_file, "--json", "--prometheus")


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_golden_logs_give_figures(golden: Path, tmp_path: Path) -> None:
    log = shutil.copy(golden, tmp_path / golden.name)
    found = document("metrics", log)
    assert found["unreadable_events"] == {}
    listed = document("stats", log)["sessions"]
    assert len(listed) == found["sessions"]
    assert sum(session["steps"] for session in listed) == found["steps"]
    assert sum(session["runs_completed"] for session in listed) == found["runs_completed"]
    longest = max(listed, key=lambda session: int(session["steps"]))
    assert len(document("stats", log, longest["session"])["steps"]) == longest["steps"]
    assert written("stats", log, longest["session"]).count(" turn ") == longest["steps"]


def test_an_empty_log_has_figures_too(tmp_path: Path) -> None:
    log = tmp_path / "events.db"

    async def make() -> None:
        await (await SQLiteStore.open(log)).close()

    asyncio.run(make())
    assert document("metrics", log)["position"] == 0
    assert written("metrics", log).startswith("up to position 0\nsessions  0, 0 active\n")
    assert written("stats", log) == "the log has no sessions\n"
    assert "refold_sessions_total 0.0" in written("metrics", log, "--prometheus")


# Sessions


def test_the_steps_of_a_session(log_file: Path) -> None:
    assert written("stats", log_file, "alice").splitlines() == [
        "run_3 turn 1  2.0 s",
        '  action: weather {"city":"Lisbon"}',
        "  observation: Lisbon: sunny",
        "run_3 turn 2  1.0 s",
        "  answer: Sunny.",
        "1 run: 1 completed, 0 failed, 0 cancelled; open for 3.0 s",
        "2 steps, 1 tool call, 0 failed; 20 tokens in, 10 out",
        "answer: Sunny.",
    ]
    assert "  observation (cancelled): Cancelled by user\n" in written("stats", log_file, "bob")
    assert "  observation: (none yet)\n" in written("stats", log_file, "carol")


def test_the_steps_of_a_session_as_json_and_of_its_past(log_file: Path) -> None:
    found = document("stats", log_file, "alice")
    assert (found["session"], found["version"], found["final_answer"]) == ("alice", 11, "Sunny.")
    assert found["duration_s"] == 3.0
    assert (found["tool_calls"], found["failed_tool_calls"], found["successful_steps"]) == (1, 0, 2)
    assert (found["actions"], found["observations"]) == (['weather {"city":"Lisbon"}'], ["Lisbon: sunny"])
    steps = found["steps"]
    assert [(step["turn"], step["answer"], step["failed"]) for step in steps] == [(1, "", False), (2, "Sunny.", False)]
    early = document("stats", log_file, "alice", "--at", 6)
    assert (early["version"], early["observations"], early["final_answer"]) == (6, [], None)


def test_all_sessions_in_a_table_and_as_json(log_file: Path) -> None:
    words = [line.split() for line in written("stats", log_file).splitlines()]
    assert words[1][:7] == ["alice", "1", "2", "1", "0", "20", "10"]
    assert [row[0] for row in words[1:]] == ["alice", "bob", "carol"]
    sessions = document("stats", log_file)["sessions"]
    cancelled = [(session["session"], session["runs_cancelled"]) for session in sessions]
    assert cancelled == [("alice", 0), ("bob", 1), ("carol", 0)]


def test_a_session_that_cannot_be_read_hides_no_other(tampered: Callable[..., Path]) -> None:
    log = tampered(
        'UPDATE events SET data = \'{"type":"session.dreamt.v9"}\' WHERE version = 4 AND stream = '
        "(SELECT id FROM streams WHERE name = 'session/bob')"
    )
    sessions = document("stats", log)["sessions"]
    assert [("error" in session) for session in sessions] == [False, True, False]
    assert "session.dreamt.v9" in sessions[1]["error"]
    assert "damaged" in written("stats", log)
    assert "session.dreamt.v9" in refused("stats", log, "bob")
    assert document("metrics", log)["unreadable_events"] == {"session.dreamt.v9": 1}
    assert "not counted, since this version cannot read them: 1 session.dreamt.v9 event\n" in written("metrics", log)


def test_what_cannot_be_asked(log_file: Path) -> None:
    assert "did you mean 'alice'" in refused("stats", log_file, "alise")
    assert "no version 12" in refused("stats", log_file, "alice", "--at", 12)
    assert "name the session" in refused("stats", log_file, "--at", 3)
    for command in ("metrics", "stats"):
        assert "nothing.db" in refused(command, log_file.with_name("nothing.db"))


def test_nothing_in_a_log_controls_the_terminal(hostile_log: Path) -> None:
    for arguments in (["metrics"], ["stats"], ["metrics", "--prometheus"], ["metrics", "--json"]):
        shown = written(arguments[0], hostile_log, *arguments[1:])
        assert not set(shown) & set("\x1b\x07\x9b\u202e"), arguments
    for flags in ([], ["--json"]):
        assert not set(written("stats", hostile_log, "mallory", *flags)) & set("\x1b\x07\x9b\u202e")
    assert list(text_string_to_metric_families(written("metrics", hostile_log, "--prometheus")))
