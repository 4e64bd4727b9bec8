"""The `refold` command on logs with children: what waits in one is seen and decided, and goes on with its parent."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from refold import AgentRuntime
from refold.agents.loading import load_agent
from refold.commands.cli import app

AGENTS = """
from refold import Agent, AgentConfig, ScriptedProvider, say, tool, use

@tool(tier="confirm")
def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

def clerk_says(request):
    return use("pay", {"amount": 7}) if len(request.messages) == 1 else say("It is paid.")

def boss_says(request):
    return use("clerk", {"task": "Pay it."}) if len(request.messages) == 1 else say("Done: " + request.messages[-1].content[0].text)

config = AgentConfig(model="m")
clerk = Agent(name="clerk", config=config, provider=ScriptedProvider([clerk_says] * 9), tools=[pay])
boss = Agent(name="boss", config=config, provider=ScriptedProvider([boss_says] * 9), tools=[clerk.as_tool()])
"""  # noqa: E501 - Code of a module of its own.

CHILD = "s/call_6_0"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `office`, which this process forgets afterwards."""
    tmp_path.joinpath("office.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("office", None)


def refold(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def left_open() -> Result:
    return refold("run", "office:boss", "Pay the bill.", "--log", "a.db", "--session", "s")


def statuses() -> dict[str, tuple[str, str | None]]:
    listed = json.loads(refold("sessions", "a.db", "--json").stdout)["sessions"]
    return {session["session"]: (session["status"], session.get("parent")) for session in listed}


def test_a_run_is_left_open_where_a_child_waits_and_goes_on_when_that_is_decided() -> None:
    run = left_open()
    assert run.exit_code == 1
    assert f"waits for approval as call_6_0 of {CHILD}" in run.stderr
    assert f"refold approve a.db {CHILD} call_6_0" in run.stderr
    assert statuses() == {"s": ("open", None), CHILD: ("waiting", "s")}

    again = refold("resume", "office:boss", "--log", "a.db")
    assert again.exit_code == 1
    assert f"refold approve a.db {CHILD} call_6_0" in again.stderr

    waiting = json.loads(refold("approve", "a.db", "--json").stdout)["waiting"]
    assert [(call["session"], call["tool"]) for call in waiting] == [(CHILD, "pay")]
    assert refold("approve", "a.db", CHILD, "call_6_0").exit_code == 0
    resumed = refold("resume", "office:boss", "--log", "a.db")
    assert resumed.exit_code == 0, resumed.output
    assert "Done: It is paid." in resumed.stdout
    assert statuses() == {"s": ("completed", None), CHILD: ("completed", "s")}
    assert refold("check", "a.db").exit_code == 0
    assert refold("replay", "a.db").exit_code == 0


def test_a_denial_reaches_the_childs_model() -> None:
    left_open()
    refold("approve", "a.db", CHILD, "call_6_0", "--deny", "--reason", "too dear")
    assert refold("resume", "office:boss", "--log", "a.db", "--session", "s").exit_code == 0
    assert "too dear" in refold("show", "a.db", CHILD).stdout


def test_a_parent_that_is_cancelled_while_no_runtime_is_there_takes_its_child_with_it_at_the_next_start() -> None:
    left_open()
    assert refold("cancel", "a.db", "s").exit_code == 0
    assert statuses() == {"s": ("cancelled", None), CHILD: ("waiting", "s")}
    shown = refold("show", "a.db", CHILD).stdout
    assert "begun by a call in s" in shown
    with AgentRuntime(load_agent("office:boss"), log="a.db") as runtime:
        runtime.session(CHILD).approvals()  # It has been taken up now.
    assert statuses() == {"s": ("cancelled", None), CHILD: ("cancelled", "s")}
    assert refold("check", "a.db").exit_code == 0


def test_a_chat_through_a_pipe_ends_where_a_child_waits_and_goes_on_when_that_is_decided() -> None:
    chat = CliRunner().invoke(app, ["chat", "office:boss", "--log", "a.db", "--session", "s"], input="Pay.\n")
    assert chat.exit_code == 1
    assert f"of {CHILD} waits for approval as call_6_0; the run is left open" in chat.stderr
    assert f"refold approve a.db {CHILD} call_6_0" in chat.stderr
    assert refold("approve", "a.db", CHILD, "call_6_0").exit_code == 0
    chat = CliRunner().invoke(app, ["chat", "office:boss", "--log", "a.db", "--session", "s"], input="And?\n")
    assert "Done: It is paid." in chat.stdout
