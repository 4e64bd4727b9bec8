"""`refold run` and `refold resume` as processes: signals, crashes and a log in use; see also the transcripts."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from refold import AgentRuntime
from refold.agents.loading import load_agent
from refold.events import fold, history
from refold.events.core.content import CANCELLED_TEXT, ToolResultBlock
from refold.events.session.events import RunCancelled, RunCompleted, RunResumed
from tests.runtime.command_line import assert_sound, events_of, read_until, run, started

ROOT = Path(__file__).resolve().parents[4]

LOG = Path("refold.db")


def test_the_example_agent_answers_and_shows_its_tool_calls_on_stderr(tmp_path: Path) -> None:
    log = tmp_path / "weather.db"
    question = "What will the weather be in Lisbon and Porto?"
    with started("run", "examples.weather_agent:agent", question, "--log", log, "--session", "s", cwd=ROOT) as process:
        answer, told = process.communicate()
    assert (process.returncode, answer) == (0, "Lisbon: sunny, 24 degrees; Porto: rain, 17 degrees.\n")
    assert told.splitlines()[:3] == [f"session s in {log}", '-> weather(city="Lisbon")', '-> weather(city="Porto")']
    assert sorted(told.splitlines()[3:]) == [
        "<- weather: Lisbon: sunny, 24 degrees",
        "<- weather: Porto: rain, 17 degrees",
    ]
    assert_sound(log)


@pytest.mark.slow
def test_a_run_that_a_crash_left_open_goes_on_first_and_other_sessions_are_left_alone(folder: Path) -> None:
    for session in ("mine", "other"):
        with started("run", "agents:plain", "die", "--session", session, "--key", "k") as process:
            process.communicate()
            assert process.returncode == 9
    assert run("run", "agents:counting", "die", "--session", "mine", "--key", "k").stdout == "3 messages\n"
    mine, other = (events_of(LOG, session) for session in ("mine", "other"))
    assert isinstance(mine[-1], RunCompleted)
    assert fold(other).run is not None
    assert not any(isinstance(event, RunResumed) for event in other)
    assert run("run", "agents:counting", "and then?", "--session", "other").stdout == "5 messages\n"
    assert_sound(LOG)


def test_b18_ctrl_c_cancels_the_run_and_the_history_is_balanced(folder: Path) -> None:
    with started("run", "agents:plain", "both", "--session", "s") as process:
        read_until(process, "working a", "working b")
        process.send_signal(signal.SIGINT)
        answer, told = process.communicate()
    assert (process.returncode, answer) == (130, "")
    assert told.splitlines()[-1] == "refold: run_3 was cancelled"
    events = events_of(LOG)
    assert isinstance(events[-1], RunCancelled)
    results = [block for message in history(fold(events)) for block in message.content]
    assert [block.text for block in results if isinstance(block, ToolResultBlock)] == [CANCELLED_TEXT] * 2
    assert_sound(LOG)
    assert run("run", "agents:counting", "go on", "--session", "s").stdout == "4 messages\n"


def test_a_cancelled_run_is_told_in_json_too(folder: Path) -> None:
    with started("run", "agents:plain", "both", "--session", "s", "--json") as process:
        read_until(process, "working a", "working b")
        process.send_signal(signal.SIGINT)
        answer, _ = process.communicate()
    assert process.returncode == 130
    document = json.loads(answer)
    assert (document["outcome"], document["stop_reason"]) == ("cancelled", "tool_use")


def test_a_second_ctrl_c_leaves_at_once_and_the_log_is_sound(folder: Path) -> None:
    with started("run", "agents:plain", "stay", "--session", "s") as process:
        read_until(process, "working a")
        process.send_signal(signal.SIGINT)
        read_until(process, "cancelling; Ctrl-C again leaves at once", "staying")
        process.send_signal(signal.SIGINT)
        answer, told = process.communicate()
    assert (process.returncode, answer) == (130, "")
    assert "was cancelled" not in told
    assert_sound(LOG)


@pytest.mark.parametrize(
    "command", ["run agents:plain hello --json", "resume agents:plain --session s", "chat agents:plain"]
)
def test_a_log_in_use_exits_3_and_names_its_owner(folder: Path, command: str) -> None:
    run("run", "agents:plain", "pay", "--session", "s")

    async def scenario() -> tuple[int, str, str]:
        async with AgentRuntime(load_agent("agents:plain"), log=LOG):
            with started(*command.split()) as process:
                answer, told = await asyncio.to_thread(process.communicate, "hello\n")
            return process.returncode, answer, told

    code, answer, told = asyncio.run(scenario())
    assert (code, answer) == (3, "")
    assert f"is in use by process {os.getpid()} on host" in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_what_sigterm_left_open_goes_on_and_can_be_left_open_or_cancelled_again(folder: Path) -> None:
    for command in (("run", "agents:plain", "wait", "--session", "s"), ("resume", "agents:plain")):
        with started(*command) as process:
            read_until(process, "working a")
            process.send_signal(signal.SIGTERM)
            answer, told = process.communicate()
        assert (process.returncode, answer) == (143, "")
        assert "refold: SIGTERM; the run is left open" in told
        assert told.splitlines()[-1] == "refold resume agents:plain --log=refold.db --session=s"
    with started("resume", "agents:plain") as process:
        read_until(process, "working a")
        process.send_signal(signal.SIGINT)
        answer, told = process.communicate()
    assert (process.returncode, answer) == (130, "")
    assert told.splitlines()[-1] == "refold: run_3 was cancelled"
    assert_sound(LOG)


def test_a_resumed_run_is_left_open_again_where_it_waits_for_approval_again(folder: Path) -> None:
    run("run", "agents:plain", "pay", "--session", "s")
    run("approve", LOG, "s", "call_6_0")
    again = run("resume", "agents:paying_again")
    assert (again.exit_code, again.stdout) == (1, "")
    [told] = [line for line in again.stderr.splitlines() if line.startswith("refold: ")]
    assert "waits for approval" in told
    [call] = [line.split()[-1] for line in again.stderr.splitlines() if line.startswith("refold approve ")]
    assert call != "call_6_0"
    run("approve", LOG, "s", call, "--deny")
    assert run("resume", "agents:counting", "--session", "s").stdout == "5 messages\n"
    assert_sound(LOG)
