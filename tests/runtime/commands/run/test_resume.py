"""`refold resume`: the run that a process left open goes on from the command line, with no input beside it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from refold import AgentRuntime
from refold.agents.loading import load_agent
from refold.commands.cli import app
from refold.inspection.check import check_log

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}

AGENTS = """
import asyncio, sys
from refold import Agent, AgentConfig, ProviderError, ScriptedProvider, say, tool, use

@tool(tier="confirm")
def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

@tool(tier="observe", effect="pure")
async def wait(word: str) -> str:
    "Wait for ever."
    print("working", word, file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    return word

def agent_of(*script):
    return Agent(config=AgentConfig(model="m"), provider=ScriptedProvider(script), tools=[pay, wait])

payer = agent_of(*[use("pay", {"amount": 3})] * 9)
twice = agent_of(*[use("pay", {"amount": 4}), say("All paid.")] * 2)
sayer = agent_of(*[lambda request: say(f"{len(request.messages)} messages")] * 9)
waiter = agent_of(use("wait", {"word": "a"}))
failing = agent_of(ProviderError("no such model", kind="invalid_request"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `open_agents`, which this process forgets afterwards."""
    tmp_path.joinpath("open_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("open_agents", None)


def refold(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def started(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=QUIET,
    )


def read_until(process: "subprocess.Popen[str]", beginning: str) -> None:
    assert process.stderr is not None
    while line := process.stderr.readline():
        if line.startswith(beginning):
            return
    raise AssertionError(f"the process ended without {beginning!r}")


def assert_sound() -> None:
    assert asyncio.run(check_log("refold.db")).sound


def test_a_run_that_waited_for_approval_goes_on_when_that_is_given() -> None:
    left = refold("run", "open_agents:payer", "pay", "--session", "s")
    assert left.exit_code == 1
    assert left.stderr.splitlines()[-2:] == [
        "refold approve refold.db s call_6_0",
        "refold resume open_agents:payer --log=refold.db --session=s",
    ]
    early = refold("resume", "open_agents:sayer")
    assert (early.exit_code, early.stdout) == (1, "")
    assert "refold: call_6_0 of run_3 waits for approval; the run is left open\n" in early.stderr
    assert early.stderr.splitlines()[-1] == "refold resume open_agents:sayer --log=refold.db --session=s"
    allowed = refold("approve", "refold.db", "s", "call_6_0")
    assert allowed.stderr == "refold resume AGENT --log=refold.db --session=s\n"
    done = refold("resume", "open_agents:sayer")
    assert (done.exit_code, done.stdout) == (0, "3 messages\n")
    assert done.stderr.splitlines() == ["session s in refold.db", "<- call_6_0: paid 3"]
    assert_sound()


def test_it_ends_again_where_the_run_waits_for_somebody_again() -> None:
    refold("run", "open_agents:payer", "pay", "--session", "s")
    refold("approve", "refold.db", "s", "call_6_0")
    again = refold("resume", "open_agents:twice")
    assert (again.exit_code, again.stdout) == (1, "")
    [told] = [line for line in again.stderr.splitlines() if line.startswith("refold: ")]
    assert "waits for approval" in told
    [call] = [line.split()[-1] for line in again.stderr.splitlines() if line.startswith("refold approve ")]
    assert call != "call_6_0"
    refold("approve", "refold.db", "s", call, "--deny")
    assert refold("resume", "open_agents:sayer", "--session", "s").stdout == "5 messages\n"
    assert_sound()


def test_inputs_that_are_queued_behind_it_are_answered_too_and_json_has_each_run() -> None:
    refold("run", "open_agents:payer", "pay", "--session", "s")
    refold("approve", "refold.db", "s", "call_6_0")
    refold("send", "refold.db", "s", "and then?")
    document = json.loads(refold("resume", "open_agents:sayer", "--json").stdout)
    assert [(run["outcome"], run["text"]) for run in document["runs"]] == [
        ("completed", "3 messages"),
        ("completed", "5 messages"),
    ]
    assert (document["session"], document["open"]) == ("s", None)
    assert_sound()


def test_an_input_that_waits_in_the_inbox_is_answered_too() -> None:
    refold("run", "open_agents:sayer", "hello", "--session", "s")
    refold("send", "refold.db", "t", "hello", "--new")
    refold("send", "refold.db", "s", "and then?")
    done = refold("resume", "open_agents:sayer", "--session", "s")
    assert (done.exit_code, done.stdout) == (0, "3 messages\n")
    begun = refold("resume", "open_agents:sayer")
    assert (begun.exit_code, begun.stdout) == (0, "1 messages\n"), "t waits in the inbox alone"
    assert_sound()


def test_json_names_the_run_that_is_left_open() -> None:
    refold("run", "open_agents:payer", "pay", "--session", "s")
    left = refold("resume", "open_agents:sayer", "--json")
    assert left.exit_code == 1
    assert json.loads(left.stdout) == {"log": "refold.db", "session": "s", "runs": [], "open": "run_3"}


@pytest.mark.slow
def test_what_sigterm_left_open_goes_on_and_can_be_left_open_or_cancelled_again() -> None:
    with started("run", "open_agents:waiter", "go", "--session", "s") as process:
        read_until(process, "working a")
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate()
    assert process.returncode == 143
    assert told.splitlines()[-1] == "refold resume open_agents:waiter --log=refold.db --session=s"
    with started("resume", "open_agents:waiter") as process:
        read_until(process, "working a")
        process.send_signal(signal.SIGTERM)
        answer, told = process.communicate()
    assert (process.returncode, answer) == (143, "")
    assert "refold: SIGTERM; the run is left open" in told
    with started("resume", "open_agents:waiter") as process:
        read_until(process, "working a")
        process.send_signal(signal.SIGINT)
        answer, told = process.communicate()
    assert (process.returncode, answer) == (130, "")
    assert told.splitlines()[-1] == "refold: run_3 was cancelled"
    assert_sound()


def test_a_run_that_fails_exits_1_and_says_why() -> None:
    refold("run", "open_agents:payer", "pay", "--session", "s")
    refold("approve", "refold.db", "s", "call_6_0", "--deny")
    result = refold("resume", "open_agents:failing")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "refold: run_3 failed (provider): " in result.stderr


def test_where_no_run_is_open_nothing_happens() -> None:
    refold("run", "open_agents:sayer", "hello", "--session", "s")
    for arguments, where in (((), "refold.db"), (("--session", "s"), "session s")):
        result = refold("resume", "open_agents:failing", *arguments)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.splitlines()[-1] == f"no run is open in {where}"
    nothing = json.loads(refold("resume", "open_agents:failing", "--json").stdout)
    assert nothing == {"log": "refold.db", "session": None, "runs": [], "open": None}
    assert_sound()


def test_of_several_sessions_with_open_runs_one_has_to_be_named() -> None:
    for session in ("a b", "c"):
        refold("run", "open_agents:payer", "pay", "--session", session)
    result = refold("resume", "open_agents:sayer")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "refold: 2 sessions have open runs: 'a b', c; name one with --session\n"
    refold("approve", "refold.db", "c", "call_6_0")
    assert refold("resume", "open_agents:sayer", "--session", "c").stdout == "3 messages\n"
    assert refold("resume", "open_agents:sayer").exit_code == 1, "the other one was left alone"


def test_a_log_in_use_exits_3() -> None:
    async def scenario() -> tuple[int, str, str]:
        async with AgentRuntime(load_agent("open_agents:sayer"), log="refold.db"):
            with started("resume", "open_agents:sayer", "--session", "s") as process:
                answer, told = await asyncio.to_thread(process.communicate)
            return process.returncode, answer, told

    refold("run", "open_agents:payer", "pay", "--session", "s")
    code, answer, told = asyncio.run(scenario())
    assert (code, answer) == (3, "")
    assert "is in use by" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "there is no AGENT"),
        (("open_agents:sayer",), "does not exist"),
        (("open_agents:nobody",), "nobody"),
        (("open_agents:sayer", "--model", "m", "--log", "missing.db"), "does not exist"),
    ],
)
def test_what_cannot_be_done_exits_2_and_makes_no_log(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    result = refold("resume", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert [path.name for path in folder.iterdir() if path.suffix == ".db"] == []


def test_a_missing_session_is_refused() -> None:
    refold("run", "open_agents:sayer", "hello", "--session", "s")
    result = refold("resume", "open_agents:sayer", "--session", "t")
    assert result.exit_code == 2
    assert "no session 't'" in result.stderr
