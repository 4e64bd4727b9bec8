"""`refold approve | cancel | send` on a log that no runtime owns, and what `refold run` has to do with them."""

import asyncio
import json
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from refold import AgentConfig, AgentRuntime, ScriptedProvider, tool, use
from refold.actors.kernel.clock import SystemClock
from refold.commands.cli import app
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import InputQueued, SessionEvent, ToolApprovalDecided, ToolApprovalRequested
from refold.inspection.check import check_log
from refold.remote.protocol import Inbox, InboxSend
from refold.stores import SQLiteStore
from tests.conformance.processes import QUIET, refold_line, started
from tests.conformance.sessions import Seen

AGENTS = """
import asyncio, sys
from refold import Agent, AgentConfig, ScriptedProvider, say, tool, use

config = AgentConfig(model="m")

@tool(tier="confirm")
def pay(amount: int) -> str:
    "Pay."
    with open("paid.txt", "a") as file:
        file.write(f"{amount}\\n")
    return "paid"

async def hang(request):
    print("hanging", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

def agent_of(*script):
    return Agent(config=config, provider=ScriptedProvider(script), tools=[pay])

payer = agent_of([use("pay", {"amount": 3}), use("pay", {"amount": 4})])
sayer = agent_of(*[say("Said.")] * 9)
hanger = agent_of(hang)
"""


@pytest.fixture
def folder(working_directory: Path) -> Path:
    """A working directory with the module `agents`."""
    working_directory.joinpath("agents.py").write_text(AGENTS)
    return working_directory


def refold(*arguments: object, **given: Any) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"}, **given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def events_of(log: Path, session: str = "s") -> list[SessionEvent]:
    async def read() -> list[SessionEvent]:
        async with await SQLiteStore.open(log, read_only=True) as store:
            assert (await check_log(store)).sound
            return SESSION_CODEC.decode_all(await store.read_stream(f"session/{session}"))

    return asyncio.run(read())


@tool(tier="confirm")
def pay(amount: int, note: str = "") -> str:
    return "paid"


def waiting_log(log: Path, *sessions: str, note: str = "") -> None:
    """Make a log in whose sessions call_6_0 waits for approval."""

    async def make() -> None:
        provider = ScriptedProvider([use("pay", {"amount": 3, "note": note})] * len(sessions))
        async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[pay], log=log) as runtime:
            for name in sessions:
                session = await runtime.session(name)
                sending = asyncio.ensure_future(session.send("pay"))
                await Seen(runtime, session).first(ToolApprovalRequested)
                sending.add_done_callback(lambda done: done.exception())

    asyncio.run(make())


@pytest.fixture(scope="module")
def waiting_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("waiting") / "events.db"
    waiting_log(log, "s")
    return log


@pytest.fixture
def log(waiting_template: Path, tmp_path: Path) -> Path:
    """The path of a log in whose session `s` call_6_0 waits for approval."""
    return Path(shutil.copy(waiting_template, tmp_path))


@pytest.mark.parametrize("command", ["approve", "cancel", "send"])
def test_the_help_tells_the_json_and_the_exit_codes(command: str) -> None:
    result = refold(command, "--help")
    assert result.exit_code == 0
    assert "JSON: {" in result.stdout
    assert "Exit codes:" in result.stdout
    assert command in refold("--help").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["approve"],
        ["approve", "log", "--deny"],
        ["approve", "log", "s", "--reason", "no"],
        ["approve", "log", "s", "--key", "k"],
        ["approve", "log", "s", "c", "--timeout", "-1"],
        ["approve", "log", "s", "c", "--deny", "--always"],
        ["approve", "log", "s", "c", "--arguments", "{}", "--deny"],
        *(["approve", "log", "s", "c", "--arguments", text] for text in ("", "{", "[" * 10_000, '{"a": NaN}')),
        ["approve", ""],
        ["cancel", "log"],
        ["cancel", "", "s"],
        ["send", "log", "s"],
    ],
)
def test_wrong_usage_is_exit_code_2_on_stderr(arguments: list[str]) -> None:
    result = refold(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr
    assert "only an allowance can hold for always" in result.stderr or "--always" not in arguments


def test_run_writes_the_commands_that_let_its_calls_run_and_they_do(folder: Path) -> None:
    session = "it's -- a $HOME"
    asked = ("run", "agents:payer", "pay", "--session", session, "--key", "k")
    result = refold(*asked)
    assert (result.exit_code, result.stdout) == (1, "")
    lines = [line for line in result.stderr.splitlines() if line.startswith("refold approve ")]
    assert [shlex.split(line)[2:] for line in lines] == [["refold.db", session, f"call_6_{n}"] for n in range(2)]
    assert refold(*asked).stderr.splitlines()[-3:-1] == lines
    assert [line for line in refold("approve", "refold.db").stdout.splitlines() if "approve" in line] == [
        f"  {line}" for line in lines
    ]
    for line in lines:
        words = shlex.split(line)
        assert refold(*words[1:]).exit_code == 0
    assert not Path("paid.txt").exists()
    answered = refold("run", "agents:sayer", "pay", "--session", session, "--key", "k")
    assert (answered.exit_code, answered.stdout) == (0, "Said.\n")
    assert Path("paid.txt").read_text() == "3\n4\n"
    events_of(folder / "refold.db", session)


def test_names_that_look_like_options_are_named_so_that_they_do_not(folder: Path) -> None:
    result = refold("run", "agents:payer", "pay", "--session", "--deny")
    line = next(line for line in result.stderr.splitlines() if line.startswith("refold approve "))
    assert shlex.split(line)[2:] == ["--", "refold.db", "--deny", "call_6_0"]
    assert refold(*shlex.split(line)[1:]).exit_code == 0


@pytest.mark.slow
def test_a_running_run_is_cancelled_by_a_command_and_leaves_other_sessions_alone(folder: Path) -> None:
    assert refold("run", "agents:sayer", "hello", "--session", "other").exit_code == 0
    with started(refold_line("run", "agents:hanger", "x", "--session", "s")) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("hanging"):
            assert process.poll() is None
        later = ("send", "refold.db", "other", "later", "--key", "k")
        left = refold(*later, "--timeout", "0.3")
        assert (left.exit_code, left.stdout) == (3, "")
        assert f"in use by process {process.pid}" in left.stderr
        assert "stays in the inbox; the same command with --key k tells" in left.stderr
        assert refold("cancel", "refold.db", "s").stdout == "run_3 is cancelled\n"
        _, told = process.communicate()
    assert process.returncode == 130
    assert "run_3 was cancelled" in told
    for inputs in (1, 2):  # It stays in the inbox, until the same command performs it.
        events = events_of(folder / "refold.db", "other")
        assert [type(event).__name__ for event in events].count("InputQueued") == inputs
        assert json.loads(refold(*later, "--json").stdout)["outcome"] == "done"


def test_the_list_shows_what_waits_of_one_session_or_of_all_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    waiting_log(log, "b", "a", note="\x1b[31mred\u202e")
    shown = refold("approve", log)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[1::2] == [f"  refold approve {log} {name} call_6_0" for name in ("a", "b")]
    assert "\x1b" not in shown.stdout
    assert "\u202e" not in shown.stdout
    [call] = json.loads(refold("approve", log, "a", "--json").stdout)["waiting"]
    assert call == {
        "session": "a",
        "run": "run_3",
        "call": "call_6_0",
        "tool": "pay",
        "what": call["what"],
        "reason": "",
        "decided": False,
    }
    assert "an object, not list" in refold("approve", log, "a", "call_6_0", "--arguments", "[]").stderr
    assert refold("approve", log, "a", "call_6_0", "--arguments", '{"note": "n"}').stdout == (
        "call_6_0 is allowed as soon as a runtime owns the log: it waits in the inbox\n"
    )
    assert "call_6_0 is decided" in refold("approve", log, "a").stdout
    assert refold("approve", log, "b", "call_6_0", "--deny").exit_code == 0
    assert refold("approve", log, "b").stdout == "no call waits for approval\n"
    assert [call["decided"] for call in json.loads(refold("approve", log, "--json").stdout)["waiting"]] == [True]


def test_a_call_that_does_not_wait_is_one_line_and_exit_code_1(log: Path) -> None:
    for call in ("call_9_9", "", "\udcff", "x" * 10_000):
        result = refold("approve", log, "s", call)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert "does not wait for approval" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "{log}", "s", ""), "the input is empty"),
        (("send", "{log}", "s", "  "), "the input is empty"),
        (("send", "{log}", "t", "x"), "no session 't'"),
        (("send", "{log}", "s", "x", "--key", ""), "a key is not empty"),
        (("send", "{log}", "s", "x", "--key", "k" * 600), "a key is text of 1 to 512"),
        (("send", "{log}", "\udcff", "x"), "no session"),
        (("cancel", "{log}", "S"), "no session 'S'"),
        (("approve", "{log}", "t", "c"), "no session 't'"),
        (("approve", "{log}", "t"), "no session 't'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(log: Path, arguments: tuple[str, ...], said: str) -> None:
    result = refold(*(argument.format(log=log) for argument in arguments))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr
    assert not log.with_name("events.db.inbox").exists()


@pytest.mark.parametrize("arguments", ["send {} s x", "approve {} s c", "approve {} s"])
@pytest.mark.parametrize("what", ["no log", "a text"])
def test_what_is_no_log_is_one_line_and_gets_no_inbox(tmp_path: Path, what: str, arguments: str) -> None:
    path = tmp_path / "a.db"
    if what == "a text":
        path.write_text("text\n" * 1000)
    result = refold(*arguments.format(path).split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert not path.with_name("a.db.inbox").exists()


def test_an_inbox_that_is_none_is_named_and_left_alone(log: Path) -> None:
    inbox = log.with_name("events.db.inbox")
    inbox.write_text("mine\n" * 1_000)
    for arguments in (
        ("send", log, "s", "x"),
        ("cancel", log, "s"),
        ("approve", log, "s", "call_6_0"),
        ("approve", log),
    ):
        result = refold(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{inbox} is not an inbox of Refold" in result.stderr
    assert inbox.read_text() == "mine\n" * 1_000


def test_a_symbolic_link_to_a_log_is_refused_since_its_inbox_would_be_another_one(log: Path) -> None:
    link = log.with_name("link.db")
    link.symlink_to(log)
    result = refold("cancel", link, "s")
    assert (result.exit_code, "is a symbolic link" in result.stderr) == (2, True)
    assert not log.with_name("link.db.inbox").exists()


def test_an_input_of_any_size_comes_through_stdin(log: Path) -> None:
    text = "\u20ac\U0001f600" * 300_000
    result = refold("send", log, "s", "-", input=text)
    assert result.stdout.endswith("; no runtime owns the log, so the run goes on when one does\n")
    assert refold("send", log, "s", "x" * 100_000, "--json").exit_code == 0
    [_, first, second] = [event for event in events_of(log) if isinstance(event, InputQueued)]
    assert [type(event.content[0]).__name__ for event in (first, second)] == ["StoredBlock", "StoredBlock"]


def test_commands_behind_one_that_waits_for_a_runtime_wait_too(log: Path) -> None:
    assert json.loads(refold("approve", log, "s", "call_6_0", "--json").stdout)["outcome"] == "queued"
    sent = json.loads(refold("send", log, "s", "and then?", "--json").stdout)
    assert (sent["outcome"], sent["run"]) == ("queued", None)
    assert not any(isinstance(event, ToolApprovalDecided) for event in events_of(log))
    assert "waits in the inbox" in refold("send", log, "s", "and then?", "--wait").stdout
    waiting = asyncio.run(Inbox(log, SystemClock()).waiting("s"))
    assert [entry.command for entry in waiting][1:] == [InboxSend(text="and then?")] * 2


def test_a_command_that_is_interrupted_stays_in_the_inbox(log: Path) -> None:

    async def scenario() -> tuple[int, str]:
        async with await SQLiteStore.open(log):
            process = await asyncio.create_subprocess_exec(
                *refold_line("send", log, "s", "x", "--timeout", "100"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=QUIET,
            )
            inbox = Inbox(log, SystemClock())
            while not await inbox.waiting("s"):
                assert process.returncode is None
            process.send_signal(signal.SIGINT)
            _, told = await process.communicate()
            assert len(await inbox.waiting("s")) == 1
        assert process.returncode is not None
        return process.returncode, told.decode()

    assert asyncio.run(scenario()) == (130, "")


def test_reminders_are_set_listed_and_cancelled(log: Path) -> None:
    assert "no input waits" in refold("remind", log, "s").stdout
    assert (
        "it is sent at 2031-07-01 07:00:00.000Z"
        in refold("remind", log, "s", "tea", "--at", "2031-07-01T09:00+02:00", "--key", "k").stdout
    )
    assert refold("remind", log, "s", "often", "--every", "90m").exit_code == 0
    listed = json.loads(refold("remind", log, "s", "--json").stdout)["reminders"]
    assert [(each["text"], each["every"]) for each in listed] == [
        ("often", {"interval_us": 90 * 60 * 1_000_000}),
        ("tea", None),
    ]
    table = refold("remind", log, "s").stdout
    assert all(words in table for words in ("90 min", "2031-07-01 07:00", "often", "tea"))
    for each in listed:
        assert refold("remind", log, "s", "--cancel", each["run"]).exit_code == 0
    assert "no input waits" in refold("remind", log, "s").stdout
    for wrong, words in (
        (["tea"], "--at"),
        (["tea", "--every", "soon"], "no age"),
        (["tea", "--every", "1 2 3"], "five fields"),
        (["tea", "--at", "yesterday"], "no age"),
    ):
        refused = refold("remind", log, "s", *wrong)
        assert (refused.exit_code, words in refused.output) == (2, True)


def test_what_one_run_does_otherwise_is_sent_with_its_input(log: Path) -> None:
    options = ["--model", "large", "--max-turns", "3", "--max-tokens", "50", "--temperature", "0.5"]
    assert refold("send", log, "s", "and now?", "--metadata", "plan=free", *options).exit_code == 0
    events = refold("show", log, "s", "--events").stdout
    assert "plan=free" in events
    assert all(words in events for words in ("large", "max_turns=3", "max_tokens=50", "temperature=0.5"))
    assert refold("send", log, "s", "x", "--temperature", "9").exit_code == 2
