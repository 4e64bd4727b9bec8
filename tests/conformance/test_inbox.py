"""The inbox between processes: a runtime in one, `refold approve | cancel | send` in others; the kills are real."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold import RunResult, connect
from refold.events.session.core import SESSION_CODEC, fold
from refold.events.session.events import (
    CancelRequested,
    InputQueued,
    RunCompleted,
    SessionEvent,
    ToolApprovalDecided,
    ToolCallFailed,
    ToolCallStarted,
)
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore, log_owner

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}

RUNTIME = """
import asyncio, sys
from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use

log, paid, script = sys.argv[1:4]

@tool(tier="confirm")
def pay(amount: int) -> str:
    "Pay."
    with open(paid, "a") as file:
        file.write(f"{amount}\\n")
    return "paid"

async def hang(request):
    await asyncio.Event().wait()

SCRIPTS = {
    "pays": [use("pay", {"amount": 3}), say("Paid.")],
    "says": [say("Said.")] * 9,
    "hangs": [hang] * 9,
}

async def main():
    config, provider = AgentConfig(model="m"), ScriptedProvider(SCRIPTS[script])
    poll_s = float(sys.argv[5]) if len(sys.argv) > 5 else 0.05
    async with AgentRuntime(config, provider=provider, tools=[pay], log=log, inbox_poll_s=poll_s) as runtime:
        runtime.subscribe(lambda recorded: print(type(recorded.event).__name__, flush=True))
        sending = None
        if len(sys.argv) > 4 and sys.argv[4]:
            sending = asyncio.ensure_future((await runtime.session("s")).send(sys.argv[4]))
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    if sending is not None and sending.done() and not sending.cancelled():
        sending.exception()

asyncio.run(main())
"""


@contextlib.contextmanager
def runtime(log: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a runtime until its input ends: script, first input, inbox poll."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", RUNTIME, str(log), str(paid_file(log)), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=QUIET,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def paid_file(log: Path) -> Path:
    return log.with_name("paid.txt")


def read_until(process: "subprocess.Popen[str]", *lines: str) -> None:
    """Read until each of these lines has been written."""
    assert process.stdout is not None
    waiting = list(lines)
    while waiting:
        line = process.stdout.readline()
        assert line, f"the runtime ended early; still expected {waiting}"
        if line.rstrip("\n") in waiting:
            waiting.remove(line.rstrip("\n"))


def close(process: "subprocess.Popen[str]") -> None:
    process.communicate("\n")
    assert process.returncode == 0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", *map(str, arguments)]


def refold(*arguments: object, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=QUIET, input=stdin, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def started(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=QUIET)


def events_of(log: Path, session: str = "s") -> list[SessionEvent]:
    async def read() -> list[SessionEvent]:
        async with await SQLiteStore.open(log, read_only=True) as store:
            return SESSION_CODEC.decode_all(await store.read_stream(f"session/{session}"))

    return asyncio.run(read())


def count(log: Path, kind: type[SessionEvent], session: str = "s") -> int:
    return sum(isinstance(event, kind) for event in events_of(log, session))


def assert_sound(log: Path) -> None:
    assert asyncio.run(check_log(log)).sound
    assert not asyncio.run(replay(log)).diverged


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture(scope="module")
def ended_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("ended") / "events.db"
    with runtime(log, "says", "hello") as process:
        read_until(process, "open", "RunCompleted")
        close(process)
    return log


@pytest.fixture(scope="module")
def waiting_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("waiting") / "events.db"
    with runtime(log, "pays", "pay 3") as process:
        read_until(process, "open", "ToolApprovalRequested")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert log_owner(log) is None
    return log


def copied(template: Path, log: Path) -> Path:
    for file in template.parent.iterdir():  # Of a log whose owner was killed, the WAL too.
        shutil.copy(file, log.with_name(file.name))
    return log


@pytest.fixture
def ended_session(ended_template: Path, log: Path) -> Path:
    """The path of a log that has the session `s`, whose first run has ended, and no runtime."""
    return copied(ended_template, log)


@pytest.fixture
def waiting_session(waiting_template: Path, log: Path) -> Path:
    """The path of a log in whose session `s` call_6_0 waits for approval, and whose runtime was killed then."""
    return copied(waiting_template, log)


# A runtime in another process.


@pytest.mark.slow
def test_a_call_is_allowed_in_a_running_runtime_from_another_process(log: Path) -> None:
    with runtime(log, "pays", "pay 3") as process:
        read_until(process, "open", "ToolApprovalRequested")
        listed = json.loads(refold("approve", log, "--json").stdout)["waiting"]
        assert [(call["session"], call["call"], call["tool"], call["decided"]) for call in listed] == [
            ("s", "call_6_0", "pay", False)
        ]
        done = refold("approve", log, "s", "call_6_0", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["outcome"] == "done"
        read_until(process, "RunCompleted")
        assert refold("approve", log).stdout == "no call waits for approval\n"
        close(process)
    assert paid_file(log).read_text() == "3\n"
    assert_sound(log)


@pytest.mark.slow
def test_a_call_is_denied_with_a_reason_that_the_model_is_told(log: Path) -> None:
    with runtime(log, "pays", "pay 3") as process:
        read_until(process, "open", "ToolApprovalRequested")
        done = refold("approve", log, "s", "call_6_0", "--deny", "--reason", "Nicht ohne Beleg: \u20ac \U0001f9fe")
        assert (done.returncode, done.stdout) == (0, "call_6_0 is denied\n")
        read_until(process, "RunCompleted")
        close(process)
    [failed] = [event for event in events_of(log) if isinstance(event, ToolCallFailed)]
    assert (failed.kind, failed.content[0].text) == ("denied", "Nicht ohne Beleg: \u20ac \U0001f9fe")  # type: ignore[union-attr]
    assert not paid_file(log).exists()


@pytest.mark.slow
def test_a_call_can_be_allowed_always(log: Path) -> None:
    with runtime(log, "pays", "pay 3") as process:
        read_until(process, "open", "ToolApprovalRequested")
        assert refold("approve", log, "s", "call_6_0", "--always").returncode == 0
        read_until(process, "RunCompleted")
        close(process)
    [decided] = [event for event in events_of(log) if isinstance(event, ToolApprovalDecided)]
    assert (decided.allowed, decided.always) == (True, True)


@pytest.mark.slow
def test_a_denial_holds_for_its_call_only(log: Path) -> None:
    done = refold("approve", log, "s", "call_6_0", "--deny", "--always")
    assert done.returncode == 2
    assert "only an allowance can hold for always" in done.stderr


@pytest.mark.slow
def test_of_two_approvers_at_once_one_wins_and_the_other_is_told(log: Path) -> None:
    with runtime(log, "pays", "pay 3") as process:
        read_until(process, "open", "ToolApprovalRequested")
        deciders = [started("approve", log, "s", "call_6_0"), started("approve", log, "s", "call_6_0", "--deny")]
        told = [decider.communicate() for decider in deciders]
        assert sorted(decider.returncode for decider in deciders) == [0, 1]
        loser = next(number for number, decider in enumerate(deciders) if decider.returncode == 1)
        assert told[loser] == (
            "",
            "refold: call_6_0 does not wait for approval; it was decided, has ended, or never was\n",
        )
        read_until(process, "RunCompleted")
        close(process)
    [decided] = [event for event in events_of(log) if isinstance(event, ToolApprovalDecided)]
    assert decided.allowed == (loser == 1)
    assert paid_file(log).exists() == decided.allowed
    assert_sound(log)


@pytest.mark.slow
def test_a_run_is_cancelled_from_another_process_and_again_is_no_error(log: Path) -> None:
    with runtime(log, "hangs", "hello") as process:
        read_until(process, "open", "ModelRequested")
        assert refold("cancel", log, "s", "--reason", "enough").stdout == "run_3 is cancelled\n"
        read_until(process, "RunCancelled")
        again = refold("cancel", log, "s")
        assert (again.returncode, again.stdout) == (0, "no run is under way; nothing was cancelled\n")
        other = refold("cancel", log, "s", "--run", "run_99")
        assert (other.returncode, other.stdout) == (0, "run_99 is not under way; nothing was cancelled\n")
        close(process)
    [cancelled] = [event for event in events_of(log) if isinstance(event, CancelRequested)]
    assert cancelled.reason == "enough"
    assert_sound(log)


@pytest.mark.slow
def test_send_with_wait_writes_the_answer_of_the_runtime(log: Path) -> None:
    with runtime(log, "says", "hello") as process:
        read_until(process, "open", "RunCompleted")
        done = refold("send", log, "s", "and now?", "--wait")
        assert (done.returncode, done.stdout, done.stderr) == (0, "Said.\n", "")
        document = json.loads(refold("send", log, "s", "in JSON?", "--wait", "--json").stdout)
        assert (document["outcome"], document["text"]) == ("completed", "Said.")
        close(process)
    assert count(log, RunCompleted) == 3
    assert_sound(log)


@pytest.mark.slow
def test_send_with_wait_tells_what_nobody_is_there_to_decide(log: Path) -> None:
    with runtime(log, "pays", "") as process:
        read_until(process, "open")
        assert "no session 's'" in refold("send", log, "s", "pay 3").stderr
        close(process)
    with runtime(log, "pays", "pay 3") as process:
        read_until(process, "open", "ToolApprovalRequested")
        done = refold("send", log, "s", "and then?", "--wait")
        assert done.returncode == 1
        assert done.stderr == f"refold: run_3 waits for approval\nrefold approve {log} s call_6_0\n"
        close(process)


@pytest.mark.slow
def test_wait_ends_with_the_runtime(log: Path) -> None:
    with runtime(log, "hangs", "hello") as process:
        read_until(process, "open", "ModelRequested")
        waiting = started("send", log, "s", "and now?", "--wait")
        read_until(process, "InputQueued")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        _, told = waiting.communicate()
    assert waiting.returncode == 1
    assert re.search(r"no runtime owns the log( any more)?; run_\d+ goes on when one does", told)


@pytest.mark.slow
def test_a_key_is_one_command_whoever_performs_it_and_for_ever(log: Path) -> None:
    def sent(text: str) -> Any:
        done = refold("send", log, "s", text, "--key", "k", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else (done.returncode, done.stderr)

    with runtime(log, "says", "hello") as process:
        read_until(process, "open", "RunCompleted")
        first = sent("and now?")
        assert sent("and now?") == first
        assert sent("something else")[1] == "refold: key 'k' was used before for another command; use a new key\n"
        close(process)
    assert sent("and now?") == first
    log.with_name(log.name + ".inbox").unlink()
    without_inbox = sent("and now?")
    assert (without_inbox["run"], without_inbox["new"]) == (first["run"], False)
    assert sent("something else")[0] == 2
    assert count(log, InputQueued) == 2


@pytest.mark.slow
def test_a_runtime_that_does_not_look_costs_the_timeout_and_the_command_stays(log: Path) -> None:
    with runtime(log, "says", "hello", "0") as process:
        read_until(process, "open", "RunCompleted")
        done = refold("send", log, "s", "later", "--timeout", "0.3", "--key", "k")
        assert (done.returncode, done.stdout) == (3, "")
        assert f"in use by process {process.pid}" in done.stderr
        assert "stays in the inbox; the same command with --key k tells" in done.stderr
        close(process)
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted")
        assert json.loads(refold("send", log, "s", "later", "--key", "k", "--json").stdout)["outcome"] == "done"
        close(process)
    assert count(log, RunCompleted) == 2


@pytest.mark.slow
def test_a_runtime_that_ends_before_it_takes_a_command_leaves_it_to_the_command_itself(log: Path) -> None:
    with runtime(log, "says", "hello", "0") as process:
        read_until(process, "open", "RunCompleted")
        sending = started("send", log, "s", "and now?", "--timeout", "100")
        inbox = log.with_name(log.name + ".inbox")
        while not (inbox.exists() and inbox.stat().st_size):
            assert sending.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        told, _ = sending.communicate()
    assert sending.returncode == 0
    assert "; no runtime owns the log, so the run goes on when one does" in told
    assert count(log, InputQueued) == 2


@pytest.mark.slow
def test_a_session_is_begun_from_another_process_where_that_is_asked_for(log: Path) -> None:
    with runtime(log, "says", "") as process:
        read_until(process, "open")
        assert "no session 't'" in refold("send", log, "t", "hello").stderr
        done = refold("send", log, "t", "hello", "--new", "--wait")
        assert (done.returncode, done.stdout, done.stderr) == (0, "Said.\n", "")
        assert refold("send", log, "t", "and now?", "--wait").stdout == "Said.\n"
        close(process)
    assert count(log, RunCompleted, "t") == 2
    assert_sound(log)


@pytest.mark.slow
def test_what_a_killed_process_has_put_into_the_inbox_is_performed(log: Path) -> None:
    imports = "import asyncio, sys; from refold import connect"
    sends = f"{imports}; asyncio.run(connect(sys.argv[1]).session('t').send('x', key='k'))"
    with runtime(log, "says", "", "0") as process:  # It does not look into its inbox.
        read_until(process, "open")
        with subprocess.Popen([sys.executable, "-P", "-c", sends, str(log)], env=QUIET) as sending:
            inbox = log.with_name(log.name + ".inbox")
            with contextlib.closing(sqlite3.connect(inbox, isolation_level=None)) as rows:
                while not rows.execute("SELECT * FROM sqlite_schema").fetchall():
                    assert sending.poll() is None
                while rows.execute("SELECT count(*) FROM commands").fetchone() == (0,):
                    assert sending.poll() is None
            sending.kill()
        close(process)
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted")
        result = asyncio.run(connect(log).session("t").send("x", key="k"))
        assert isinstance(result, RunResult)
        close(process)
    assert count(log, InputQueued, "t") == 1
    assert_sound(log)


# No runtime.


@pytest.mark.slow
def test_a_new_session_waits_for_a_runtime_that_has_an_agent_for_it(ended_session: Path) -> None:
    log = ended_session
    done = refold("send", log, "t", "hello", "--new", "--key", "k")
    assert (done.returncode, "as soon as a runtime owns the log: it waits in the inbox" in done.stdout) == (0, True)
    waiting = refold("send", log, "t", "hello", "--new", "--key", "k", "--wait", "--json")
    assert (waiting.returncode, json.loads(waiting.stdout)["outcome"]) == (1, "queued")
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted")
        done = refold("send", log, "t", "hello", "--key", "k", "--wait")
        assert (done.returncode, done.stdout) == (0, "Said.\n")
        close(process)
    assert count(log, InputQueued, "t") == 1
    assert_sound(log)


@pytest.mark.slow
def test_a_call_that_was_left_by_a_killed_runtime_is_allowed_and_runs_once_in_the_next_one(
    waiting_session: Path,
) -> None:
    log = waiting_session
    done = refold("approve", log, "s", "call_6_0", "--json")
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (0, "queued")
    assert count(log, ToolCallStarted) == 0
    assert [call["decided"] for call in json.loads(refold("approve", log, "--json").stdout)["waiting"]] == [True]
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted")
        close(process)
    assert paid_file(log).read_text() == "3\n"
    assert count(log, ToolCallFailed) == 0
    assert_sound(log)


def test_a_second_decider_is_told_although_no_runtime_has_taken_the_first_one(waiting_session: Path) -> None:
    assert refold("approve", waiting_session, "s", "call_6_0").returncode == 0
    second = refold("approve", waiting_session, "s", "call_6_0", "--deny")
    assert (second.returncode, second.stdout) == (1, "")
    assert "call_6_0 does not wait for approval" in second.stderr


@pytest.mark.slow
def test_two_deciders_at_once_without_a_runtime_are_one_decision(waiting_session: Path) -> None:
    log = waiting_session
    deciders = [started("approve", log, "s", "call_6_0", *deny) for deny in ((), ("--deny",))]
    for decider in deciders:
        decider.communicate()
    assert sorted(decider.returncode for decider in deciders) == [0, 1]
    allowed = deciders[0].returncode == 0
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted")
        close(process)
    assert count(log, ToolApprovalDecided) == 1
    assert paid_file(log).exists() == allowed
    assert_sound(log)


@pytest.mark.slow
def test_a_denial_is_recorded_at_once_and_the_run_goes_on_in_the_next_runtime(waiting_session: Path) -> None:
    log = waiting_session
    done = refold("approve", log, "s", "call_6_0", "--deny", "--reason", "no")
    assert done.stdout == "call_6_0 is denied; no runtime owns the log, so the run goes on when one does\n"
    assert count(log, ToolCallFailed) == 1
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted")
        close(process)
    assert not paid_file(log).exists()
    assert_sound(log)


@pytest.mark.slow
def test_a_cancellation_overtakes_a_permission_that_no_runtime_has_taken(waiting_session: Path) -> None:
    log = waiting_session
    assert refold("approve", log, "s", "call_6_0", "--key", "k").returncode == 0
    assert refold("cancel", log, "s").stdout == "run_3 is cancelled\n"
    told = refold("approve", log, "s", "call_6_0", "--key", "k")
    assert (told.returncode, "does not wait for approval" in told.stderr) == (1, True)
    with runtime(log, "says") as process:
        read_until(process, "open")
        close(process)
    assert not paid_file(log).exists()
    assert_sound(log)


@pytest.mark.slow
def test_an_input_is_recorded_at_once_and_runs_in_the_next_runtime(ended_session: Path) -> None:
    log = ended_session
    done = refold("send", log, "s", "-", "--json", stdin="from stdin \u2713")
    run = json.loads(done.stdout)["run"]
    waiting = refold("send", log, "s", "and?", "--wait")
    assert waiting.returncode == 1
    assert "no runtime owns the log; run_" in waiting.stderr
    state = fold(events_of(log))
    assert state.run is not None
    assert (state.run.id, len(state.queue)) == (run, 1)
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted", "RunCompleted")
        close(process)
    assert count(log, RunCompleted) == 3
    assert_sound(log)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", ["send {log} {session} x", "approve {log} {session} c", "approve {log} {session}"]
)
@pytest.mark.parametrize("what", ["no log", "a text", "no session"])
def test_what_cannot_be_done_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, ended_session: Path, arguments: str, what: str
) -> None:
    path = ended_session
    if what != "no session":
        path = tmp_path / "elsewhere" / "a.db"
        path.parent.mkdir()
    if what == "a text":
        path.write_text("text\n" * 1000)
    done = refold(*arguments.format(log=path, session="t" if what == "no session" else "s").split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not path.with_name(path.name + ".inbox").exists()


@pytest.mark.slow
def test_a_runtime_killed_between_performing_and_noting_performs_nothing_twice(ended_session: Path) -> None:
    log = ended_session
    inbox = log.with_name(log.name + ".inbox")
    with runtime(log, "hangs") as process:
        read_until(process, "open")
        sending = started("send", log, "s", "once", "--timeout", "100", "--json")
        with contextlib.closing(sqlite3.connect(inbox, isolation_level=None)) as other:
            while not inbox.exists() or not other.execute("SELECT * FROM sqlite_schema").fetchall():
                assert sending.poll() is None
            while other.execute("SELECT count(*) FROM commands").fetchone() == (0,):
                assert sending.poll() is None
            other.execute("BEGIN IMMEDIATE")  # Nobody else writes into the inbox now.
            read_until(process, "InputQueued")
            process.send_signal(signal.SIGKILL)
            process.communicate()
            unnoted = other.execute("SELECT count(*) FROM commands WHERE outcome IS NULL").fetchone()
            other.execute("COMMIT")
    told, _ = sending.communicate()
    assert unnoted == (1,)
    assert json.loads(told)["new"] is False
    with runtime(log, "says") as process:
        read_until(process, "open", "RunCompleted")
        close(process)
    assert count(log, InputQueued) == 2
    assert_sound(log)
