"""`refold chat`: lines out of a pipe, and a person at a terminal, which is a real one with real signals."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from refold.commands.cli import app
from refold.events.core.content import TextBlock
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RuntimeClosed
from refold.events.session.core import SESSION_CODEC, fold
from refold.events.session.events import (
    AgentConfigured,
    InputQueued,
    RunCancelled,
    RunCompleted,
    RunResumed,
    SessionEvent,
    ToolApprovalDecided,
)
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore
from tests.runtime.terminal import QUIET, Terminal

AGENTS = """
import asyncio, os, sys
from refold import Agent, AgentConfig, Allow, ProviderError, ScriptedProvider, TextBlock, say, tool, use

@tool(tier="confirm", action=lambda amount: f"pay up to {amount}")
def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

@tool(tier="observe", effect="pure")
async def wait() -> str:
    "Wait for ever."
    print("working", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

@tool(tier="observe", effect="once")
async def stay() -> str:
    "Go on for ever, whatever happens."
    print("staying", file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("still here", file=sys.stderr, flush=True)

@tool(tier="observe", effect="once")
async def die() -> str:
    "End the process."
    os._exit(9)

def answer(request):
    last = request.messages[-1].content[-1]
    if not isinstance(last, TextBlock):
        return say("Done.")
    word = last.text.split()[0]
    if word == "pay":
        return [use("pay", {"amount": 3})] * last.text.count("pay")
    if word in ("wait", "stay", "die"):
        return use(word)
    if word == "fail":
        raise ProviderError("no such model", kind="invalid_request")
    if word == "hostile":
        return say("a\\x1b]0;title\\x07b \\x1b[2Jc")
    return say(f"{len(request.messages)} {last.text}")

async def allow(session, request):
    "Allow every call."
    return Allow()

def agent_of(config, **more):
    return Agent(config=config, provider=ScriptedProvider([answer] * 99), tools=[pay, wait, stay, die], **more)

streaming = agent_of(AgentConfig(model="m", streaming=True))
plain = agent_of(AgentConfig(model="m"))
decided = agent_of(AgentConfig(model="m"), approval=allow)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `chatting`, which this process forgets afterwards."""
    tmp_path.joinpath("chatting.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("chatting", None)


def piped(text: str, *arguments: str) -> Result:
    result = CliRunner().invoke(app, ["chat", *arguments], input=text, env={"COLUMNS": "80"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def process(
    folder: Path, *arguments: str, given: bytes = b"", **environment: str
) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", *arguments]
    variables = {**QUIET, **environment}
    return subprocess.run(command, input=given, capture_output=True, cwd=folder, env=variables, timeout=60, check=False)


def person(folder: Path, agent: str = "chatting:streaming") -> Terminal:
    return Terminal(folder, "chat", agent, "--session", "s")


def errors_of(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("refold: ")]


def events_of(folder: Path, session: str = "s") -> list[SessionEvent]:
    async def read() -> list[SessionEvent]:
        async with await SQLiteStore.open(folder / "refold.db", read_only=True) as store:
            return SESSION_CODEC.decode_all(await store.read_stream(f"session/{session}"))

    return asyncio.run(read())


def inputs_of(folder: Path) -> list[str]:
    return [
        "".join(block.text for block in event.content if isinstance(block, TextBlock))
        for event in events_of(folder)
        if isinstance(event, InputQueued)
    ]


def assert_sound(folder: Path) -> None:
    assert asyncio.run(check_log(folder / "refold.db")).problems == ()
    asyncio.run(replay(folder / "refold.db")).raise_for_divergence()


# Out of a pipe.


@pytest.mark.parametrize("agent", ["chatting:streaming", "chatting:plain"])
def test_each_line_is_sent_and_only_answers_are_on_stdout(folder: Path, agent: str) -> None:
    result = piped("hello\n\n  \n/etc/passwd is what?\nends in \\\r\ntack så mycket 谢谢", agent, "--session", "s")
    assert (result.exit_code, errors_of(result)) == (0, [])
    assert result.stdout == "1 hello\n3 /etc/passwd is what?\n5 ends in \\\n7 tack så mycket 谢谢\n"
    assert result.stderr == "session s in refold.db with m\n"
    assert inputs_of(folder) == ["hello", "/etc/passwd is what?", "ends in \\", "tack så mycket 谢谢"]
    assert_sound(folder)


def test_a_session_goes_on_and_quit_ends_it(folder: Path) -> None:
    assert piped("one\n", "chatting:plain", "--session", "s").stdout == "1 one\n"
    result = piped("two\n/quit\nthree\n", "chatting:plain", "--session", "s")
    assert (result.exit_code, result.stdout) == (0, "3 two\n")
    assert result.stderr == "session s in refold.db with m, 2 messages before\n"
    assert piped("one\n", "chatting:plain").stdout == "1 one\n"


def test_a_failure_is_one_line_and_the_chat_goes_on(folder: Path) -> None:
    result = piped("fail\nhello\n", "chatting:streaming", "--session", "s")
    assert (result.exit_code, result.stdout) == (1, "2 hello\n")
    [line] = errors_of(result)
    assert line.startswith("refold: run_3 failed (provider): ")
    assert "no such model" in line


def test_an_approval_that_nobody_can_give_leaves_the_run_open(folder: Path) -> None:
    result = piped("pay\ny\n", "chatting:streaming", "--session", "s")
    assert (result.exit_code, result.stdout) == (1, "")
    assert errors_of(result) == ["refold: pay(amount=3) waits for approval as call_6_0; the run is left open"]
    assert result.stderr.endswith("refold approve refold.db s call_6_0\n")
    assert inputs_of(folder) == ["pay"]
    assert fold(events_of(folder)).run is not None
    assert_sound(folder)


def test_the_agent_s_own_handler_is_asked_instead_of_anybody(folder: Path) -> None:
    result = piped("pay\n", "chatting:decided", "--session", "s")
    assert (result.exit_code, result.stdout) == (0, "Done.\n")
    assert result.stderr.splitlines()[1:] == [
        "-> pay(amount=3)",
        "pay(amount=3) waits for approval as call_6_0",
        "<- pay: paid 3",
    ]


def test_a_run_that_a_crash_left_open_goes_on_first(folder: Path) -> None:
    assert process(folder, "chat", "chatting:streaming", "--session", "s", given=b"die\n").returncode == 9
    assert fold(events_of(folder)).run is not None
    result = piped("hello\n", "chatting:streaming", "--session", "s")
    assert (result.exit_code, result.stdout) == (0, "Done.\n5 hello\n")
    assert "run_3, which is open, goes on" in result.stderr
    assert_sound(folder)


def test_what_a_model_says_cannot_rule_the_terminal(folder: Path) -> None:
    assert piped("hostile\n", "chatting:streaming").stdout == "ab c\n"
    assert piped("hostile\n", "chatting:plain").stdout == "ab c\n"


def test_bytes_that_are_no_text_end_nothing(folder: Path) -> None:
    done = process(folder, "chat", "chatting:plain", given=b"caf\xe9 \xff\nhello\n", PYTHONIOENCODING="utf-8:strict")
    assert (done.returncode, done.stdout.decode()) == (0, "1 caf\ufffd \ufffd\n3 hello\n")


def test_an_empty_input_is_no_error_and_a_log_is_there(folder: Path) -> None:
    result = piped("", "chatting:plain")
    assert (result.exit_code, result.stdout) == (0, "")
    assert folder.joinpath("refold.db").exists()


def test_a_log_in_use_exits_3(folder: Path) -> None:
    async def scenario() -> "subprocess.CompletedProcess[bytes]":
        async with await SQLiteStore.open(folder / "refold.db"):
            return await asyncio.to_thread(process, folder, "chat", "chatting:plain", given=b"hello\n")

    done = asyncio.run(scenario())
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"is in use by process" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no agent: name an AGENT"),
        (["chatting:nobody"], "'chatting' has no 'nobody'"),
        (["chatting:plain", "--session", ""], "session id"),
        (["chatting:plain", "--log", "chatting.py"], "is not a Refold log"),
    ],
)
def test_what_cannot_be_done_exits_2_and_says_why(folder: Path, arguments: list[str], said: str) -> None:
    result = piped("hello\n", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = errors_of(result)
    assert said in line


def test_an_agent_with_another_model_is_recorded_with_that(folder: Path) -> None:
    options = ["--model", "another", "--system", "Be brief.", "--max-tokens", "9"]
    assert piped("hello\n", "chatting:plain", "--session", "s", *options).exit_code == 0
    [configured] = [event for event in events_of(folder) if isinstance(event, AgentConfigured)]
    assert (configured.configuration.model, configured.configuration.max_tokens) == ("another", 9)


# At a terminal.


def test_a_person_is_prompted_and_left_with_the_conversation_recorded(folder: Path) -> None:
    with person(folder) as terminal:
        assert terminal.until("> ").startswith("session s in refold.db with m; /help tells")
        terminal.write("hello\n")
        assert "\n1 hello\n> " in terminal.until("\n> ")
        terminal.write("\n")
        terminal.until("> ")
        terminal.write("two \\\n")
        terminal.until("| ")
        terminal.write("lines ü\n")
        assert terminal.until("\n> ").endswith("3 two \nlines ü\n> ")
        terminal.write("\x04")
        assert terminal.end() == (0, "\n")
    assert inputs_of(folder) == ["hello", "two \nlines ü"]
    assert_sound(folder)


def test_commands_say_where_one_is_and_what_there_is(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        for command, said in (
            ("/history", "nothing has been said yet"),
            ("/help", "/history  show the conversation so far"),
            ("/session", "to come back: --log refold.db --session s"),
            ("/cancel", "no run is open"),
            ("/hlep", "refold: there is no /hlep; /help tells what there is"),
        ):
            terminal.write(f"{command}\n")
            assert said in terminal.until("\n> ")
        terminal.write("hello\n")
        terminal.until("\n> ")
        terminal.write("/history\n")
        assert "  1 hello\n" in terminal.until("\n> ")
        terminal.write("/quit\n")
        assert terminal.end()[0] == 0
    assert inputs_of(folder) == ["hello"]


def test_approvals_are_asked_for_in_the_conversation(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("pay\n")
        assert "pay(amount=3) waits for approval; always means pay: pay up to 3\n" in terminal.until("always] ")
        terminal.write("perhaps\n")
        terminal.until("allow it? [y/n/always] ")
        terminal.write("n\n")
        terminal.until("may be empty) ")
        terminal.write("too dear\n")
        assert "<- pay (denied): too dear\n" in terminal.until("\n> ")
        terminal.write("pay\n")
        terminal.until("always] ")
        terminal.write("Y\n")
        assert "<- pay: paid 3\nDone.\n" in terminal.until("\n> ")
        terminal.write("pay\n")
        terminal.until("always] ")
        terminal.write("always\n")
        assert "<- pay: paid 3\nDone.\n" in terminal.until("\n> ")
        terminal.write("pay\n")
        assert "waits for approval" not in terminal.until("Done.\n")
    decisions = [event for event in events_of(folder) if isinstance(event, ToolApprovalDecided)]
    assert [(event.allowed, event.always, event.reason) for event in decisions] == [
        (False, False, "too dear"),
        (True, False, ""),
        (True, True, ""),
    ]


def test_what_is_allowed_always_is_not_asked_about_again_though_it_waits_already(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("pay and pay\n")
        terminal.until("always] ")
        terminal.write("always\n")
        shown = terminal.until("\n> ")
    assert shown.count("<- pay: paid 3") == 2
    assert "allow it?" not in shown


def test_a_call_that_nobody_decides_on_is_asked_about_when_the_person_is_back(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("pay\n")
        terminal.until("always] ")
        terminal.write("\x04")
        code, shown = terminal.end()
        assert (code, "call_6_0; the run is left open" in shown) == (0, True)
    with person(folder) as terminal:
        terminal.until("run_3, which is open, goes on")
        terminal.until("always] ")
        terminal.write("y\n")
        assert terminal.until("\n> ").endswith("paid 3\nDone.\n> ")
    assert_sound(folder)


def test_a_call_that_somebody_else_decides_on_is_no_longer_asked_about(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("pay\n")
        terminal.until("always] ")
        assert process(folder, "approve", "refold.db", "s", "call_6_0").returncode == 0
        terminal.until("Done.\n")
        terminal.write("n\n")
        terminal.until("may be empty) ")
        terminal.write("\n")
        assert "refold: " in terminal.until("\n> ")
        terminal.write("hello\n")
        terminal.until("5 hello\n> ")


def test_a_run_that_another_process_began_is_gone_through_before_the_next_input(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("hello\n")
        terminal.until("1 hello\n> ")
        assert process(folder, "send", "refold.db", "s", "pay").returncode == 0
        terminal.write("and then?\n")
        terminal.until("run_8, which is open, goes on")
        terminal.until("always] ")
        terminal.write("y\n")
        assert terminal.until("\n> ").endswith("Done.\n7 and then?\n> ")
    assert not any(isinstance(event, RunResumed) for event in events_of(folder))
    assert inputs_of(folder) == ["hello", "pay", "and then?"]
    assert_sound(folder)


def test_a_reader_that_goes_away_ends_a_chat_quietly(folder: Path) -> None:
    command = [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", "chat", "chatting:streaming"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=QUIET
    ) as chatting:
        assert chatting.stdin is not None
        assert chatting.stdout is not None
        assert chatting.stderr is not None
        chatting.stdout.close()
        chatting.stdin.write(b"hello\n")
        chatting.stdin.close()
        assert chatting.stderr.read().count(b"\n") == 1
        assert chatting.wait(60) == 141


def test_ctrl_c_cancels_the_run_and_comes_back_to_the_prompt(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("wait\n")
        terminal.until("working")
        terminal.write("\x03")
        terminal.until("cancelling; Ctrl-C again leaves at once")
        terminal.until("refold: run_3 was cancelled\n> ")
        terminal.write("pay\n")
        terminal.until("always] ")
        terminal.write("\x03")
        terminal.until("was cancelled\n> ")
        terminal.write("hello\n")
        terminal.until(" hello\n> ")
        terminal.write("\x04")
        assert terminal.end()[0] == 0
    events = events_of(folder)
    assert sum(isinstance(event, RunCancelled) for event in events) == 2
    assert isinstance(events[-1], RunCompleted)
    assert_sound(folder)


def test_ctrl_c_at_the_prompt_is_a_hint_and_two_leave(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("half a thought\x03")
        terminal.until("Ctrl-C again leaves, as Ctrl-D and /quit do\n> ")
        terminal.write("hello\n")
        terminal.until("1 hello\n> ")
        terminal.write("\x03")
        terminal.until("Ctrl-C again leaves")
        terminal.until("> ")
        terminal.write("\x03")
        assert terminal.end()[0] == 130
    assert inputs_of(folder) == ["hello"]


def test_a_second_ctrl_c_leaves_a_run_that_does_not_end(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("stay\n")
        terminal.until("staying")
        terminal.write("\x03")
        terminal.until("still here")
        terminal.write("\x03")
        assert terminal.end()[0] == 130
    assert_sound(folder)


def test_sigterm_at_the_prompt_closes_the_log_in_order(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("hello\n")
        terminal.until("1 hello\n> ")
        terminal.terminate()
        assert terminal.end() == (143, "closing; SIGTERM again leaves at once\n")

    async def last() -> object:
        async with await SQLiteStore.open(folder / "refold.db", read_only=True) as store:
            return RUNTIME_CODEC.decode_all(await store.read_stream(RUNTIME_STREAM))[-1]

    assert isinstance(asyncio.run(last()), RuntimeClosed)


def test_sigterm_leaves_a_run_open_and_it_goes_on_when_the_person_is_back(folder: Path) -> None:
    with person(folder) as terminal:
        terminal.until("> ")
        terminal.write("pay\n")
        terminal.until("always] ")
        terminal.terminate()
        code, shown = terminal.end()
        assert (code, shown.splitlines()[-1]) == (143, "refold: SIGTERM; the run is left open")
    assert fold(events_of(folder)).run is not None
    with person(folder) as terminal:
        terminal.until("always] ")
        terminal.write("y\n")
        terminal.until("Done.\n> ")


def test_output_that_goes_elsewhere_holds_answers_only(folder: Path) -> None:
    program = "import sys; sys.stdout = open('answers.txt', 'w'); from refold.commands.cli import main; main()"
    with Terminal(folder, "chat", "chatting:streaming", program=program) as terminal:
        terminal.until("> ")
        terminal.write("hello\n")
        terminal.until("hello\n> ")
        terminal.write("\x04")
        assert terminal.end()[0] == 0
    assert folder.joinpath("answers.txt").read_text() == "1 hello\n"
