"""`refold approve | cancel | send` beside processes and with odd texts; what they write is in the transcripts."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from refold import AgentConfig, AgentRuntime, CommandRejected, ScriptedProvider, TextBlock, connect, tool
from refold.actors.kernel.clock import SystemClock
from refold.events.session.commands import SendInput
from refold.events.session.events import InputQueued
from refold.remote.protocol import Inbox
from refold.stores import SQLiteStore
from tests.runtime.command_line import assert_sound, error_of, events_of, read_until, run, started
from tests.runtime.log_builder import LogBuilder, log_of, use

NOTE = "https://git\u200bhub.com/a  b\u202e\\u200b\x1b[31m" + "x" * 5_000
NAME = "prod\u200b"
NOTING = f"""
from refold import Agent, AgentConfig, ScriptedProvider, tool, use

@tool(tier="confirm")
def pay(note: str) -> str:
    return note

script = [use("pay", {{"note": {NOTE!r}}})] * 2
agent = Agent(config=AgentConfig(model="m"), tools=[pay], provider=ScriptedProvider(script))
"""
RESUME = "refold resume AGENT --log=log.db --session={session}  # AGENT: its module:attribute"


@pytest.fixture
def log(folder: Path) -> Path:
    """The path of a log in whose session `s` call_6_0 waits for approval."""
    assert run("run", "agents:plain", "pay", "--session", "s").exit_code == 1
    return folder / "refold.db"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_an_approval_is_shown_whole_and_its_command_decides_that_call_alone(folder: Path) -> None:
    folder.joinpath("noting.py").write_text(NOTING)
    for name in (NAME, "prod"):
        run("run", "noting:agent", "pay", "--session", name)
    shown = run("approve", "refold.db").stdout
    assert r"https://git\u200bhub.com/a  b\u202e\\u200b\u001b[31m" in shown
    assert shown.replace("…", "").isascii()
    assert "more characters; --json shows all" in shown
    [line] = [line.strip() for line in shown.splitlines() if "$'prod" in line and "refold approve" in line]
    utf8 = {**os.environ, "LC_ALL": "C.UTF-8"}
    shell = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, env=utf8)
    words = shell.stdout.decode().split("\0")[:-1]
    assert words[:2] == ["refold", "approve"]
    assert run(*words[1:], "--deny").exit_code == 0
    [waiting] = json.loads(run("approve", "refold.db", "--json").stdout)["waiting"]
    assert (waiting["session"], waiting["arguments"]) == ("prod", {"note": NOTE})


@pytest.mark.slow
def test_a_running_run_is_cancelled_by_a_command_and_leaves_other_sessions_alone(folder: Path) -> None:
    log = folder / "refold.db"
    assert run("run", "agents:plain", "hello", "--session", "other").exit_code == 0
    with started("run", "agents:plain", "wait", "--session", "s") as process:
        read_until(process, "working a")
        later = ("send", log, "other", "later", "--key", "k")
        left = run(*later, "--timeout", "0.3")
        assert (left.exit_code, left.stdout) == (3, "")
        assert f"in use by process {process.pid}" in left.stderr
        assert "stays in the inbox; the same command with --key k tells" in left.stderr
        assert run("cancel", log, "s").stdout == "run_3 is cancelled\n"
        _, told = process.communicate()
    assert process.returncode == 130
    assert "run_3 was cancelled" in told
    for inputs in (1, 2):  # It stays in the inbox, until the same command performs it.
        assert sum(isinstance(event, InputQueued) for event in events_of(log, "other")) == inputs
        assert json.loads(run(*later, "--json").stdout)["outcome"] == "done"
    assert_sound(log)


async def test_what_only_the_tool_finds_wrong_with_a_persons_arguments_is_told_where_the_runtime_runs(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(name="pay", tier="confirm")
    def pay_little(amount: Annotated[int, msgspec.Meta(le=4)]) -> str:
        return "paid"

    session = connect(log).session("s")
    assert not await session.decide("call_6_0", allow=True, arguments={"amount": 5}, key="k")
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), tools=[pay_little], log=log):
        with pytest.raises(CommandRejected, match="Expected `int` <= 4"):
            await session.decide("call_6_0", allow=True, arguments={"amount": 5}, key="k")
        assert not (await session.approvals())[0].decided
    assert "what a person decided in session s has no effect: the call waits on" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("approve", "refold.db", "s", "\udcff"), 1, "does not wait for approval"),
        (("approve", "refold.db", "s", "x" * 10_000), 1, "does not wait for approval"),
        (("send", "refold.db", "\udcff", "x"), 2, "no session"),
        (("send", "refold.db", "s", "x", "--key", "k" * 600), 2, "a key is text of 1 to 512"),
    ],
    ids=["no text as a call", "a long call", "no text as a session", "a long key"],
)
def test_names_that_none_can_have_are_refused_in_one_line(
    log: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, said in error_of(result)) == (code, True)


def test_an_input_of_any_size_comes_through_stdin(log: Path) -> None:
    text = "\u20ac\U0001f600" * 300_000
    result = run("send", log, "s", "-", stdin=text)
    assert result.stdout == "the input is recorded as run_8; run_3 waits for approval\n"
    assert run("send", log, "s", "x" * 100_000, "--json").exit_code == 0
    [_, first, second] = [event for event in events_of(log) if isinstance(event, InputQueued)]
    assert [type(event.content[0]).__name__ for event in (first, second)] == ["StoredBlock", "StoredBlock"]


async def test_a_command_that_is_interrupted_stays_in_the_inbox(log: Path) -> None:
    async with await SQLiteStore.open(log):
        with started("send", log, "s", "x", "--timeout", "100") as process:
            inbox = Inbox(log, SystemClock())
            while not await inbox.waiting("s"):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, told = await asyncio.to_thread(process.communicate)
        assert len(await inbox.waiting("s")) == 1
    assert (process.returncode, told) == (130, "")


async def payments_wait(builder: LogBuilder) -> None:
    """Of `two` two calls wait for approval, of `one` one, and `steps` waits for its next turn."""
    for session, calls in (("two", ["pay", "pay"]), ("one", ["pay"])):
        await builder.open(session)
        await builder.send(session, "go")
        await builder.answer(session, *map(use, calls))
    await builder.open("steps")
    await builder.tell("steps", SendInput(content=(TextBlock(text="go"),), stepwise=True))
    await builder.answer("steps", use("weather"))
    await builder.result("steps", "call_6_0", "sunny")


@pytest.fixture
def waiting(folder: Path) -> Path:
    """The path of a log with those sessions, and `parked`, a fork of `two` whose run is kept."""
    log = log_of(folder / "log.db", payments_wait)
    assert run("fork", log, "two", "--as", "parked", "--keep-run").exit_code == 0
    return log


@pytest.mark.parametrize(
    ("line", "waits_for", "next_line"),
    [
        ("approve log.db one call_6_0 --deny", "no runtime owns the log, so the run goes on when one does", RESUME),
        ("approve log.db two call_6_0 --deny", "run_3 waits for approval", "refold approve log.db two"),
        ("send log.db two more", "run_3 waits for approval", "refold approve log.db two"),
        ("approve log.db parked call_6_0 --deny", "run_3 is parked; resume or cancel it", RESUME),
        ("approve log.db parked call_6_0", "run_3 is parked; resume or cancel it", RESUME),
        ("send log.db parked more", "run_3 is parked; resume or cancel it", RESUME),
        ("send log.db steps more", "run_3 goes step by step and waits for the next one", RESUME),
    ],
)
def test_a_command_says_what_the_run_waits_for_after_it(
    waiting: Path, line: str, waits_for: str, next_line: str
) -> None:
    words = line.split()
    result = run(*words)
    assert result.exit_code == 0
    assert result.stdout.endswith(f"; {waits_for}\n")
    assert result.stderr == f"{next_line.format(session=words[2])}\n"


async def test_what_the_owner_of_the_log_did_for_a_parked_run_waits_for_its_resume(waiting: Path) -> None:
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log=waiting):
        said = await asyncio.to_thread(run, "approve", waiting, "parked", "call_6_0", "--deny")
    assert said.stdout == "call_6_0 is denied; run_3 is parked; resume or cancel it\n"
