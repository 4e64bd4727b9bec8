"""`refold run`: an agent by its name, an answer, what is left in the log, and Ctrl-C, which is a real signal."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from refold.commands.cli import app
from refold.events.core.content import CANCELLED_TEXT, ToolResultBlock
from refold.events.session.core import SESSION_CODEC, fold
from refold.events.session.events import InputQueued, RunCancelled, RunCompleted, SessionEvent
from refold.events.session.state import history
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore

ROOT = Path(__file__).resolve().parents[4]

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}

AGENTS = """
import asyncio, os, sys
from refold import Agent, AgentConfig, Allow, ProviderError, ScriptedProvider, say, tool, use

config = AgentConfig(model="m")

@tool(tier="confirm")
def pay(amount: int) -> str:
    "Pay."
    return "paid"

@tool(tier="observe", effect="pure")
async def wait(word: str) -> str:
    "Wait for ever."
    print("working", word, file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    return word

@tool(tier="observe", effect="once")
async def stay(word: str) -> str:
    "Go on for ever, whatever happens."
    print("working", word, file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("staying", file=sys.stderr, flush=True)

@tool(tier="observe", effect="once")
async def die(word: str) -> str:
    "End the process."
    os._exit(9)

def agent_of(*script, name="agent"):
    return Agent(config=config, provider=ScriptedProvider(script), tools=[pay, wait, stay, die], name=name)

sayer = agent_of(*[lambda request: say(f"{len(request.messages)} messages")] * 9)
payer = agent_of(use("pay", {"amount": 3}))

async def allow(session, request):
    "Allow every call."
    return Allow()

decided = Agent(
    config=config, provider=ScriptedProvider([use("pay", {"amount": 3}), say("Paid.")]), tools=[pay], approval=allow
)
waiter = agent_of([use("wait", {"word": "a"}), use("wait", {"word": "b"})])
stayer = agent_of(use("stay", {"word": "a"}))
dier = agent_of(use("die", {"word": "a"}))
failing = agent_of(ProviderError("no such model", kind="invalid_request"))
holder = [sayer]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `agents`, which this process forgets afterwards."""
    tmp_path.joinpath("agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(result: Result) -> str:
    """Return the one line that an error is."""
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("refold: ")]
    return line


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=QUIET,
    )


def read_until(process: "subprocess.Popen[str]", *beginnings: str) -> None:
    """Read what the process writes to stderr until there was a line with each of these beginnings."""
    assert process.stderr is not None
    waiting = set(beginnings)
    while waiting:
        line = process.stderr.readline()
        assert line, f"the process ended early; still expected {waiting}"
        waiting = {beginning for beginning in waiting if not line.startswith(beginning)}


def events_of(log: Path, session: str) -> list[SessionEvent]:
    async def read() -> list[SessionEvent]:
        async with await SQLiteStore.open(log, read_only=True) as store:
            return SESSION_CODEC.decode_all(await store.read_stream(f"session/{session}"))

    return asyncio.run(read())


def assert_sound(log: Path) -> None:
    assert asyncio.run(check_log(log)).problems == ()
    asyncio.run(replay(log)).raise_for_divergence()


def test_the_example_agent_answers_and_shows_its_tool_calls_on_stderr(tmp_path: Path) -> None:
    log = tmp_path / "weather.db"
    question = "What will the weather be in Lisbon and Porto?"
    done = started(ROOT, "examples.weather_agent:agent", question, "--log", str(log), "--session", "s")
    answer, told = done.communicate()
    assert (done.returncode, answer) == (0, "Lisbon: sunny, 24 degrees; Porto: rain, 17 degrees.\n")
    assert told.splitlines()[0] == f"session s in {log}"
    assert told.splitlines()[1:3] == ['-> weather(city="Lisbon")', '-> weather(city="Porto")']
    assert sorted(told.splitlines()[3:]) == [
        "<- weather: Lisbon: sunny, 24 degrees",
        "<- weather: Porto: rain, 17 degrees",
    ]
    assert_sound(log)


def test_json_is_one_document_and_nothing_is_written_beside_it(folder: Path) -> None:
    result = run("agents:sayer", "hello", "--session", "s", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document: dict[str, Any] = json.loads(result.stdout)
    assert document == {
        "log": "refold.db",
        "session": "s",
        "run": "run_3",
        "outcome": "completed",
        "error": None,
        "text": "1 messages",
        "usage": {},
        "turns": 1,
        "stop_reason": "end_turn",
    }


def test_the_log_is_refold_db_in_the_working_directory_and_a_session_goes_on(folder: Path) -> None:
    assert run("agents:sayer", "hello", "--session", "s").stdout == "1 messages\n"
    assert run("agents:sayer", "and more", "--session", "s").stdout == "3 messages\n"
    assert run("agents:sayer", "hello").stdout == "1 messages\n"
    assert sum(isinstance(event, InputQueued) for event in events_of(folder / "refold.db", "s")) == 2


def test_the_same_key_is_the_same_run(folder: Path) -> None:
    first = json.loads(run("agents:sayer", "hello", "--session", "s", "--key", "k", "--json").stdout)
    again = json.loads(run("agents:sayer", "hello", "--session", "s", "--key", "k", "--json").stdout)
    assert first == again
    assert sum(isinstance(event, InputQueued) for event in events_of(folder / "refold.db", "s")) == 1
    assert "was used before" in error_of(run("agents:sayer", "other", "--session", "s", "--key", "k"))


def test_a_run_that_fails_exits_1_and_says_why(folder: Path) -> None:
    result = run("agents:failing", "hello")
    assert result.exit_code == 1
    assert "run_3 failed (provider): " in error_of(result)
    assert "no such model" in error_of(result)
    document = json.loads(run("agents:failing", "hello", "--json").stdout)
    assert (document["outcome"], document["error"]["kind"]) == ("failed", "provider")
    assert document["stop_reason"] is None


def test_a_call_that_needs_approval_leaves_the_run_open_instead_of_waiting(folder: Path) -> None:
    result = run("agents:payer", "pay", "--session", "s")
    assert result.exit_code == 1
    assert error_of(result) == "refold: pay(amount=3) waits for approval as call_6_0; the run is left open"
    result = run("agents:payer", "and now?", "--session", "s")
    assert result.exit_code == 1
    assert "waits for approval, and the input was not sent" in error_of(result)
    assert sum(isinstance(event, InputQueued) for event in events_of(folder / "refold.db", "s")) == 1
    assert_sound(folder / "refold.db")


def test_a_call_that_needs_approval_waits_for_the_agent_s_own_handler(folder: Path) -> None:
    result = run("agents:decided", "pay", "--session", "s")
    assert (result.exit_code, result.stdout) == (0, "Paid.\n")
    assert "pay(amount=3) waits for approval as call_6_0" in result.stderr
    assert_sound(folder / "refold.db")


@pytest.mark.slow
def test_a_run_that_a_crash_left_open_goes_on_first_and_other_sessions_are_left_alone(folder: Path) -> None:
    for session in ("mine", "other"):
        with started(folder, "agents:dier", "hello", "--session", session, "--key", "k") as process:
            process.communicate()
            assert process.returncode == 9
    assert run("agents:sayer", "hello", "--session", "mine", "--key", "k").stdout == "3 messages\n"
    mine, other = (events_of(folder / "refold.db", session) for session in ("mine", "other"))
    assert isinstance(mine[-1], RunCompleted)
    assert fold(other).run is not None
    assert not any(type(event).__name__ == "RunResumed" for event in other)
    assert run("agents:sayer", "and then?", "--session", "other").stdout == "5 messages\n"
    assert_sound(folder / "refold.db")


def test_ctrl_c_cancels_the_run_and_the_history_is_balanced(folder: Path) -> None:
    with started(folder, "agents:waiter", "hello", "--session", "s") as process:
        read_until(process, "working a", "working b")
        process.send_signal(signal.SIGINT)
        answer, told = process.communicate()
    assert (process.returncode, answer) == (130, "")
    assert told.splitlines()[-1] == "refold: run_3 was cancelled"
    events = events_of(folder / "refold.db", "s")
    assert isinstance(events[-1], RunCancelled)
    results = [block for message in history(fold(events)) for block in message.content]
    assert [block.text for block in results if isinstance(block, ToolResultBlock)] == [CANCELLED_TEXT] * 2
    assert_sound(folder / "refold.db")
    assert run("agents:sayer", "go on", "--session", "s").stdout == "4 messages\n"


def test_a_cancelled_run_is_told_in_json_too(folder: Path) -> None:
    with started(folder, "agents:waiter", "hello", "--session", "s", "--json") as process:
        read_until(process, "working a", "working b")
        process.send_signal(signal.SIGINT)
        answer, _ = process.communicate()
    assert process.returncode == 130
    document = json.loads(answer)
    assert (document["outcome"], document["stop_reason"]) == ("cancelled", "tool_use")


def test_a_second_ctrl_c_leaves_at_once_and_the_log_is_sound(folder: Path) -> None:
    with started(folder, "agents:stayer", "hello", "--session", "s") as process:
        read_until(process, "working a")
        process.send_signal(signal.SIGINT)
        read_until(process, "cancelling; Ctrl-C again leaves at once", "staying")
        process.send_signal(signal.SIGINT)
        answer, told = process.communicate()
    assert (process.returncode, answer) == (130, "")
    assert "was cancelled" not in told
    assert_sound(folder / "refold.db")


def test_a_log_in_use_exits_3_and_names_its_owner(folder: Path) -> None:
    async def scenario() -> tuple[int, str]:
        async with await SQLiteStore.open(folder / "refold.db"):
            return await asyncio.to_thread(_run_in_process, folder)

    exit_code, told = asyncio.run(scenario())
    assert exit_code == 3
    assert f"is in use by process {os.getpid()} on host" in told


def _run_in_process(folder: Path) -> tuple[int, str]:
    with started(folder, "agents:sayer", "hello", "--json") as process:
        answer, told = process.communicate()
    assert answer == ""
    assert told.count("\n") == 1
    return process.returncode, told


MAKING = """
from agents import agent_of, say
def agent():
    return agent_of(say("made"))
def agent_for(who): return agent()
def half():
    return 1 / 0
def list_of(): return []
"""


def test_an_agent_may_come_from_a_function(folder: Path) -> None:
    folder.joinpath("making.py").write_text(MAKING)
    result = run("making:agent", "hello")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("made\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("agents", "an agent is named module:attribute"),
        (":sayer", "an agent is named module:attribute"),
        ("agents:", "an agent is named module:attribute"),
        ("../agents:sayer", "an agent is named module:attribute"),
        ("agnets:sayer", "there is no module 'agnets', neither in "),
        ("agents.inner:sayer", "there is no module 'agents.inner', neither in "),
        ("agents:seyer", "'agents' has no 'seyer'; did you mean 'sayer' or "),
        ("agents:holder", "agents:holder is of type list and no Agent"),
        ("agents:config", "agents:config is of type AgentConfig and no Agent"),
        ("agents:Agent", "agents:Agent is a class, Agent, and no Agent"),
        ("agents:allow", "agents:allow is an async function; what makes an agent is a plain one"),
        ("making:agent_for", "making:agent_for cannot be called without who; what makes an agent needs no arguments"),
        ("making:half", "making an agent with making:half() fails at {folder}/making.py:7: ZeroDivisionError: "),
        ("making:list_of", "making:list_of() returned [], which is no Agent"),
        ("leaving:agent", "importing 'leaving' fails at {folder}/leaving.py:3: SystemExit: 0"),
        ("needing:agent", "importing 'needing' fails at {folder}/needing.py:1: ModuleNotFoundError: No module named"),
        ("raising:agent", "importing 'raising' fails at {folder}/raising.py:2: ZeroDivisionError: division by zero"),
        ("misspelt:agent", "importing 'misspelt' fails: SyntaxError: "),
        ("empty:agent", "'empty' has no 'agent'; there is no Agent in it"),
    ],
)
def test_an_agent_that_cannot_be_loaded_is_told_in_one_line(folder: Path, name: str, said: str) -> None:
    folder.joinpath("needing.py").write_text("import a_package_that_nobody_has\n")
    folder.joinpath("raising.py").write_text("def half():\n    return 1 / 0\n\nhalf()\n")
    folder.joinpath("making.py").write_text(MAKING)
    folder.joinpath("leaving.py").write_text("import sys\n\nsys.exit(0)\n")
    folder.joinpath("misspelt.py").write_text("def half(:\n")
    folder.joinpath("empty.py").write_text("")
    result = run(name, "hello")
    assert result.exit_code == 2
    assert said.format(folder=folder) in error_of(result)
    assert not folder.joinpath("refold.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hello", "--log", "agents.py"), "is not a Refold log"),
        (("hello", "--log", "nowhere/refold.db"), "does not exist"),
        (("  ",), "the input is empty"),
        (("hello", "--session", ""), "session id"),
        (("hello", "--key", ""), "a key is text"),
    ],
)
def test_what_cannot_be_done_exits_2_and_says_why(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run("agents:sayer", *arguments)
    assert result.exit_code == 2
    assert said in error_of(result)
    assert folder.joinpath("agents.py").read_text() == AGENTS
