"""`refold demo`, really run: its processes are killed, and what it says is compared with the log that it left."""

import html
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.actors import CancellationToken
from refold.actors.calls.tool_context import ToolContext
from refold.demo.agent import LOGS, Announcement, BodyRuns, Desk, EventRecorded, search, write_report
from refold.demo.story import (
    STARTED,
    Files,
    ProcessLife,
    ProcessWentWrong,
    claims_of,
    files_beside,
    in_the_middle,
    run_process,
)
from refold.events import SESSION_CODEC
from refold.events.core.errors import ConfigError, ToolError
from refold.events.core.ids import SessionId, ToolCallId
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore, log_owner

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
COMMAND = [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", "demo"]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The JSON of one demonstration, with its log in a folder that others share and the working directory elsewhere."""
    log = tmp_path_factory.mktemp("demo") / "demo.db"
    log.parent.chmod(0o1777)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    command = [*COMMAND[:-1], "--allow-shared-folder", "demo", "--json", "--log", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=QUIET, cwd=elsewhere)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def bodies_of(life: Any) -> list[tuple[str, str]]:
    return [(said["tool"], said["call"]) for said in life["said"] if said["type"] == "body_runs" and not said["words"]]


def test_two_processes_die_of_sigkill_in_the_middle_of_a_tool_and_the_third_finishes(story: Any) -> None:
    first, second, third = story["lives"]
    assert [life["exit_code"] for life in story["lives"]] == [-9, -9, 0]
    assert len({life["pid"] for life in story["lives"]}) == 3
    assert (first["killed_in"]["tool"], second["killed_in"]["tool"]) == ("summarise", "open_ticket")
    assert [life["in_flight"] for life in story["lives"]] == [
        [f"tool:{first['killed_in']['call']}"],
        [f"tool:{second['killed_in']['call']}"],
        [],
    ]
    began = [bodies_of(life) for life in story["lives"]]
    assert sorted(tool for tool, _ in began[0]) == ["search", "summarise"]
    assert began[1][0] == ("summarise", first["killed_in"]["call"])  # As the same call.
    assert [tool for tool, _ in began[1][1:] + began[2]] == ["open_ticket", "list_tickets", "write_report"]
    assert second["batches"][0]["events"] == ["run_resumed"]
    assert third["batches"][0]["events"] == ["run_resumed", "tool_call_failed", "model_requested"]


async def test_the_log_that_it_leaves_replays_and_is_sound_and_holds_what_was_told(story: Any) -> None:
    assert story["held"]
    assert [claim["name"] for claim in story["claims"] if not claim["holds"]] == []
    report = await replay(story["log"])
    assert (report.divergence, report.not_replayed) == (None, ())
    assert (await check_log(story["log"])).sound
    async with await SQLiteStore.open(story["log"], read_only=True) as store:
        events = SESSION_CODEC.recorded(await store.read_stream(f"session/{story['session']}"))
    told = [name for life in story["lives"] for batch in life["batches"] for name in batch["events"]]
    assert [str(type(event.event).__struct_config__.tag).split(".")[1] for event in events] == told


def test_its_numbers_are_those_of_the_log_file_in_files_for_their_owner_only(story: Any) -> None:
    checkout = [line for line in (LOGS / "access.log").read_text().splitlines() if " /api/checkout " in line]
    failed = [line for line in checkout if re.search(r" 50\d ", line)]
    assert all(line.endswith(" r119") for line in failed)
    words = (
        f"{len(failed)} of {len(checkout)} requests to /api/checkout failed under release r119, which was deployed at"
    )
    assert story["answer"].startswith(f"{words} 14:05 and rolled back at 14:31;")
    assert story["answer"].split(". ")[0] in Path(story["report"]).read_text()
    modes = {Path(story[name]).stat().st_mode & 0o777 for name in ("log", "tickets", "report")}
    assert modes == {0o600}  # For their owner only, as the log is.


def shape_of(told: str) -> str:
    """Return what the demo tells besides events, without numbers, and where its lines end."""
    lines = [
        line.split(": exit code -9;")[0] for line in told.splitlines() if not re.match(r" +[\d-]+  |VERSIONS", line)
    ]
    return " ".join(re.sub(r"\d+", "N", "\n".join(lines)).split())


@pytest.mark.slow
def test_the_story_names_the_kills_the_events_and_the_commands_to_look_at_it(tmp_path: Path) -> None:
    nowhere, temporary = tmp_path / "read only", tmp_path / "temporary"
    nowhere.mkdir(mode=0o500)
    temporary.mkdir()
    environment = QUIET | {"TMPDIR": str(temporary)}
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, env=environment, cwd=nowhere)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 50
    assert "\x1b" not in done.stdout
    assert sum("SIGKILL in the middle of" in line and "exit code -9" in line for line in lines) == 2
    assert sum(line.startswith("  yes  ") for line in lines) == 8
    assert re.search(r"15-17  run_resumed, tool_call_failed, model_requested", done.stdout)
    (log,) = temporary.glob("refold-demo-*/events.db")
    for command in ("show", "replay", "check"):
        assert f"  refold {command} {log}" in done.stdout
    assert list(nowhere.iterdir()) == []
    drawn = (Path(__file__).parents[3] / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")
    rows = html.unescape(re.sub(r"<[^>]+>", "", drawn.partition('-matrix">')[2])).replace("\xa0", " ")
    picture = rows.partition("refold demo --log shop.db")[2]
    assert shape_of(picture) == shape_of(done.stdout.replace(str(log), "shop.db"))


@pytest.mark.slow
def test_ctrl_c_ends_the_agents_process_too(tmp_path: Path) -> None:
    log = tmp_path / "demo.db"
    command = [*COMMAND, "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=QUIET) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Process "):
                break
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert (process.returncode, told) == (130, "")
    assert log_owner(log) is None


async def test_a_process_that_fails_by_itself_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nowhere = tmp_path / "nowhere"
    files = Files(nowhere / "demo.db", nowhere / "tickets", nowhere / "report")
    with pytest.raises(
        ProcessWentWrong, match="was to end in the middle of summarise, by SIGKILL, and ended with exit code 1"
    ):
        await run_process(files, "summarise", 0)
    assert "does not exist" in capfd.readouterr().err


def test_a_log_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    for name in ("demo.db", "demo.db.tickets.jsonl", "demo.db.report.md"):
        there = tmp_path / name
        there.write_text("mine")
        with pytest.raises(ConfigError, match="is there already"):
            files_beside(tmp_path / "demo.db")
        assert there.read_text() == "mine"
        there.unlink()
    with pytest.raises(ConfigError, match="does not exist"):
        files_beside(tmp_path / "nowhere" / "demo.db")


async def test_a_claim_that_does_not_hold_is_found(story: Any) -> None:
    async with await SQLiteStore.open(story["log"], read_only=True) as store:
        events = SESSION_CODEC.recorded(await store.read_stream(f"session/{story['session']}"))
    pure, once, other = (BodyRuns(tool, f"call_{tool}") for tool in ("summarise", "open_ticket", "search"))
    lives = [
        _life(-15, pure, pure, EventRecorded(99, "session.run_parked.v1", None)),
        _life(-9, once, once, other),
        _life(0, None, once, other),
    ]
    replayed, checked = await replay(story["log"]), await check_log(story["log"])
    claims = claims_of(lives, events[:-1], 2, replayed, checked)
    assert [claim.name for claim in claims if claim.holds] == ["same decisions", "check"]


def test_the_kill_waits_until_nothing_else_is_in_flight() -> None:
    under_way = BodyRuns("summarise", "call_1", "half")
    started: list[Announcement] = [EventRecorded(1, STARTED, "call_1"), EventRecorded(2, STARTED, "call_2")]
    ended = EventRecorded(3, "session.tool_call_completed.v1", "call_2")
    assert in_the_middle("summarise", [*started, BodyRuns("summarise", "call_1"), ended]) is None
    assert in_the_middle("summarise", [*started, under_way]) is None
    assert in_the_middle("summarise", [*started, under_way, ended]) is under_way
    assert in_the_middle("search", [*started, under_way, ended]) is None


def test_the_tools_refuse_other_files_and_bad_patterns_and_write_one_report(tmp_path: Path) -> None:
    context: ToolContext[Desk] = ToolContext(
        call=ToolCallId("call_1"),
        session=SessionId("s"),
        deps=Desk(tmp_path / "tickets.jsonl", tmp_path / "report.md", 0),
        cancel=CancellationToken(),
        report=lambda report: None,
    )
    with pytest.raises(ToolError, match=re.escape("There is no file '../agent.py'; there are access.log, deploys.log")):
        search(context, "../agent.py", "LOGS")
    with pytest.raises(ToolError, match="is not a regular expression"):
        search(context, "access.log", "(")
    write_report(context, "first")
    write_report(context, "second")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "second"


def _life(exit_code: int, killed_in: BodyRuns | None, *said: Announcement) -> ProcessLife:
    return ProcessLife(pid=1, exit_code=exit_code, killed_in=killed_in, said=said, batches=(), version=0, in_flight=())
