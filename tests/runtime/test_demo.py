"""`refold demo`, really run: its processes are killed, and what it says is compared with the log that it left."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.actors.calls.tool_context import ToolContext
from refold.actors.cancellation import CancellationToken
from refold.demo.announcements import Announcement, BodyBegan, BodyUnderWay, EventRecorded
from refold.demo.claims import claims_of
from refold.demo.demo_files import DemoFiles
from refold.demo.incident_tools import (
    Desk,
    count,
    filed_tickets,
    list_files,
    open_ticket,
    search,
    summarise,
    write_report,
)
from refold.demo.killing import STARTED, ProcessLife, ProcessWentWrong, in_the_middle, live
from refold.demo.server_log import LOGS, access_log, deploy_log, write_logs
from refold.events.core.errors import ConfigError, ToolError
from refold.events.core.ids import SessionId, ToolCallId
from refold.events.session.core import SESSION_CODEC
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore
from refold.stores.sqlite.ownership import log_owner

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def run_demo(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", "demo", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=QUIET | options.pop("environment", {}),
        **options,
    )


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The JSON of one demonstration, with its log in a folder of its own and the working directory elsewhere."""
    log = tmp_path_factory.mktemp("demo") / "demo.db"
    done = run_demo("--json", "--log", log, cwd=tmp_path_factory.mktemp("elsewhere"))
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def batches_of(life: Any) -> list[list[str]]:
    return [append["events"] for append in life["appends"]]


def calls_of(life: Any) -> list[str]:
    return [body["tool"] for body in life["bodies"]]


def test_two_processes_die_of_sigkill_in_the_middle_of_a_tool_and_the_third_finishes(story: Any) -> None:
    assert [life["exit_code"] for life in story["lives"]] == [-9, -9, 0]
    assert len({life["pid"] for life in story["lives"]}) == 3
    killed_in = [life["killed_in"] for life in story["lives"]]
    assert [body and body["tool"] for body in killed_in] == ["summarise", "open_ticket", None]
    read, requests = map(_number, re.findall(r"[\d,]+", killed_in[0]["words"]))
    assert 0 < read < requests == len(access_log().splitlines())
    assert [life["in_flight"] for life in story["lives"]] == [
        [f"tool:{killed_in[0]['call']}"],
        [f"tool:{killed_in[1]['call']}"],
        [],
    ]


def test_every_step_is_one_append_and_recovery_follows_the_effect_class(story: Any) -> None:
    result, asking = ["tool_call_completed"], ["model_responded", "tool_call_started"]
    last_result = [*result, "model_requested"]
    first, second, third = story["lives"]
    assert batches_of(first) == [
        ["opened", "agent_configured", "input_queued", "run_started", "model_requested"],
        asking,
        last_result,
        ["model_responded", *["tool_call_started"] * 4],
        *[result] * 3,
    ]
    assert batches_of(second) == [["run_resumed"], last_result, asking]
    assert batches_of(third) == [
        ["run_resumed", "tool_call_failed", "model_requested"],
        *[asking, last_result] * 2,
        ["model_responded", "run_completed"],
    ]
    assert "outcome is unknown" in third["appends"][0]["words"]


def test_what_had_ended_is_not_run_again_a_pure_tool_is_and_a_once_tool_is_not(story: Any) -> None:
    first, second, third = story["lives"]
    assert sorted(calls_of(first)) == ["count", "count", "list_files", "search", "summarise"]
    assert calls_of(second) == ["summarise", "open_ticket"]
    assert calls_of(third) == ["list_tickets", "write_report"]
    again = [body["call"] for body in first["bodies"] if body["tool"] == "summarise"]
    assert again == [second["bodies"][0]["call"]]
    assert len(Path(story["tickets"]).read_text().splitlines()) == 1


async def test_the_log_that_it_leaves_replays_and_is_sound_and_holds_what_was_told(story: Any) -> None:
    assert story["held"]
    assert [claim["name"] for claim in story["claims"] if not claim["holds"]] == []
    report = await replay(story["log"])
    assert (report.divergence, report.not_replayed) == (None, ())
    assert report.events == story["replay"]["events"]
    assert (await check_log(story["log"])).sound
    async with await SQLiteStore.open(story["log"], read_only=True) as store:
        events = SESSION_CODEC.recorded(await store.read_stream(f"session/{story['session']}"))
    told = [name for life in story["lives"] for append in life["appends"] for name in append["events"]]
    assert [str(type(event.event).__struct_config__.tag).split(".")[1] for event in events] == told


def test_its_numbers_are_those_of_the_log_file(story: Any) -> None:
    checkout = [line for line in access_log().splitlines() if " /api/checkout " in line]
    failed = [line for line in checkout if re.search(r" 50\d ", line)]
    crawler = [line for line in access_log().splitlines() if " 429 " in line]
    assert f"{len(failed)} of {len(checkout)} requests to /api/checkout failed" in story["answer"]
    assert f"turned away {len(crawler)} times" in story["answer"]
    assert "release r119, which was deployed at 14:05 and rolled back at 14:31" in story["answer"]
    assert all(line.endswith(" r119") for line in failed)
    assert story["answer"].split(". ")[0] in Path(story["report"]).read_text()


@pytest.mark.slow
def test_the_story_names_the_kills_the_events_and_the_commands_to_look_at_it(tmp_path: Path) -> None:
    nowhere = tmp_path / "read only"
    nowhere.mkdir(mode=0o500)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run_demo(cwd=nowhere, environment={"TMPDIR": str(temporary)})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 50
    assert "\x1b" not in done.stdout
    assert sum("SIGKILL in the middle of" in line and "exit code -9" in line for line in lines) == 2
    assert sum(line.startswith("  yes  ") for line in lines) == 9
    assert re.search(r"23-25  run_resumed, tool_call_failed, model_requested", done.stdout)
    (log,) = temporary.glob("refold-demo-*/events.db")
    for command in ("show", "replay", "check"):
        assert f"  refold {command} {log}" in done.stdout
    assert list(nowhere.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_agents_process_too(tmp_path: Path) -> None:
    log = tmp_path / "demo.db"
    command = [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", "demo", "--log", str(log)]
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
    files = DemoFiles(nowhere / "demo.db", nowhere / "tickets", nowhere / "report")
    with pytest.raises(
        ProcessWentWrong, match="was to end in the middle of summarise, by SIGKILL, and ended with exit code 1"
    ):
        await live(files, kill_in="summarise", pause_s=0)
    assert "does not exist" in capfd.readouterr().err


@pytest.mark.slow
async def test_a_process_that_ends_before_it_can_be_killed_is_told(tmp_path: Path) -> None:
    files = DemoFiles.beside(tmp_path / "demo.db")
    await live(files, kill_in="open_ticket", pause_s=0)
    with pytest.raises(ProcessWentWrong, match="ended with exit code 0"):
        await live(files, kill_in="open_ticket", pause_s=0)


def test_a_log_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    for name in ("demo.db", "demo.db.tickets.jsonl", "demo.db.report.md"):
        there = tmp_path / name
        there.write_text("mine")
        with pytest.raises(ConfigError, match="is there already"):
            DemoFiles.beside(tmp_path / "demo.db")
        assert there.read_text() == "mine"
        there.unlink()
    with pytest.raises(ConfigError, match="does not exist"):
        DemoFiles.beside(tmp_path / "nowhere" / "demo.db")


def test_the_shipped_logs_are_those_that_the_generator_makes(tmp_path: Path) -> None:
    write_logs(tmp_path)
    assert {path.name for path in LOGS.iterdir()} == {"access.log", "deploys.log"}
    for path in LOGS.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    assert 3_000 <= len(access_log().splitlines()) <= 6_000
    assert len(access_log()) + len(deploy_log()) < 500_000


async def test_a_claim_that_does_not_hold_is_found(story: Any) -> None:
    files = DemoFiles(Path(story["log"]), Path(story["tickets"]), Path(story["report"]))
    async with await SQLiteStore.open(files.log, read_only=True) as store:
        events = SESSION_CODEC.recorded(await store.read_stream(f"session/{story['session']}"))
    killed = BodyUnderWay("summarise", "call_1", "half"), BodyUnderWay("open_ticket", "call_2", "half")
    lives = [
        _process(-15, killed[0], BodyBegan("summarise", "call_1"), EventRecorded(99, "session.run_parked.v1")),
        _process(-9, killed[1], BodyBegan("open_ticket", "call_2"), BodyBegan("count", "call_3")),
        _process(0, None, BodyBegan("open_ticket", "call_2"), BodyBegan("count", "call_3"), _completed("call_3")),
    ]
    claims = claims_of(files, lives, events[:-1], await replay(files.log), await check_log(files.log))
    assert [claim.name for claim in claims if claim.holds] == ["same decisions", "check"]


def test_the_kill_waits_until_nothing_else_is_in_flight() -> None:
    under_way = BodyUnderWay("summarise", "call_1", "half")
    said: list[Announcement] = [EventRecorded(1, STARTED, "call_1"), EventRecorded(2, STARTED, "call_2")]
    assert in_the_middle("summarise", [*said, _completed("call_2")]) is None
    assert in_the_middle("summarise", [*said, under_way]) is None
    assert in_the_middle("summarise", [*said, under_way, _completed("call_2")]) is under_way
    assert in_the_middle("count", [*said, under_way, _completed("call_2")]) is None


def test_the_tools_refuse_other_files_and_bad_patterns(tmp_path: Path) -> None:
    context = _context(tmp_path, lambda said: None)
    with pytest.raises(
        ToolError, match=re.escape("There is no file '../server_log.py'; there are access.log, deploys.log")
    ):
        search(context, "../server_log.py", "SEED")
    with pytest.raises(ToolError, match="is not a regular expression"):
        count(context, "access.log", "status", "(")
    with pytest.raises(ToolError, match=r"Line 1 of deploys\.log is no request"):
        count(context, "deploys.log", "status")


async def test_the_tools_count_what_is_in_the_files(tmp_path: Path) -> None:
    announced: list[Announcement] = []
    context = _context(tmp_path, announced.append)
    lines = access_log().splitlines()
    assert [(file.name, file.lines) for file in list_files(context)] == [("access.log", len(lines)), ("deploys.log", 4)]
    found = search(context, "access.log", " 504 ", limit=2)
    assert found.lines == [line for line in lines if " 504 " in line][:2]
    by_status = count(context, "access.log", "status", "/api/login")
    assert by_status.counts == {
        status: sum(f"/api/login {status} " in line for line in lines) for status in ("200", "401")
    }
    summaries = await summarise(context, "access.log")
    assert sum(summary.requests for summary in summaries) == len(lines)
    assert summaries[0].path == "/api/checkout"
    assert [said.words for said in announced if isinstance(said, BodyUnderWay)][-1].startswith(f"{len(lines):,} of ")


def test_writing_the_report_again_leaves_one_report(tmp_path: Path) -> None:
    context = _context(tmp_path, lambda said: None)
    write_report(context, "first")
    write_report(context, "second")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "second"


def test_the_files_beside_the_log_are_for_their_owner_only_as_the_log_is(story: Any) -> None:
    modes = {Path(story[name]).stat().st_mode & 0o777 for name in ("log", "tickets", "report")}
    assert modes == {0o600}


async def test_a_ticket_is_filed_before_it_is_confirmed_and_each_call_files_another(tmp_path: Path) -> None:
    for number in (1, 2):
        filed = asyncio.Event()

        def announce(said: Announcement, filed: asyncio.Event = filed) -> None:
            if isinstance(said, BodyUnderWay):
                filed.set()

        filing = asyncio.ensure_future(open_ticket(_context(tmp_path, announce), "broken"))
        await filed.wait()
        filing.cancel()
        assert [ticket.id for ticket in filed_tickets(tmp_path / "tickets.jsonl")][-1] == f"INC-{number}"


def _number(words: str) -> int:
    return int(words.replace(",", ""))


def _completed(call: str) -> EventRecorded:
    return EventRecorded(3, "session.tool_call_completed.v1", call)


def _process(exit_code: int, killed_in: BodyUnderWay | None, *said: Announcement) -> Any:
    return ProcessLife(pid=1, exit_code=exit_code, killed_in=killed_in, announcements=said)


def _context(folder: Path, announce: Callable[[Announcement], None]) -> ToolContext[Desk]:
    desk = Desk(
        logs=LOGS,
        tickets=folder / "tickets.jsonl",
        report=folder / "report.md",
        pause_s=0,
        announce=announce,
    )
    return ToolContext(
        call=ToolCallId("call_1"),
        session=SessionId("s"),
        deps=desk,
        cancel=CancellationToken(),
        report=lambda report: None,
    )
