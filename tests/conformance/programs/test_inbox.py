"""The inbox between processes: a runtime in one, `refold approve | cancel | send` in others; the kills are real."""

import asyncio
import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold import RunResult, connect
from refold.actors import SystemClock
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC
from refold.remote.protocol import Inbox
from refold.remote.rows import InboxSend
from refold.stores import SQLiteStore, log_owner
from tests.conformance.processes import (
    BEGINNING,
    Done,
    Process,
    command_line,
    kill,
    left_in,
    read_until,
    refold_line,
    run,
    started,
)

RUNTIME = (
    BEGINNING
    + """
script, text, poll_s = sys.argv[2:]

@tool(tier="confirm")
def pay(amount: int) -> str:
    "Pay."
    with open(os.path.join(os.path.dirname(log), "paid.txt"), "a") as file:
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
    async with AgentRuntime(config, provider=provider, tools=[pay], log=log, inbox_poll_s=float(poll_s)) as runtime:
        runtime.subscribe(lambda recorded: print(type(recorded.event).__name__, flush=True))
        sending = asyncio.ensure_future((await runtime.session("s")).send(text)) if text else None
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    if sending is not None and sending.done() and not sending.cancelled():
        sending.exception()

asyncio.run(main())
"""
)


@contextlib.contextmanager
def runtime(log: Path, script: str, text: str = "", *until: str, poll_s: float = 0.05) -> Iterator[Process]:
    """Run a runtime, from the moment when it has recorded such events until the block ends or kills it.

    Args:
        log: its log.
        script: name of what its model says.
        text: the first input of the session `s`; empty = none.
        until: names of events.
        poll_s: how often it looks into its inbox; 0 = never.
    """
    with started(command_line("-c", RUNTIME, log, script, text, poll_s)) as process:
        read_until(process, "open", *until)
        yield process
        if process.returncode is None:
            process.communicate("\n")
            assert process.returncode == 0


def goes_on_until(log: Path, *until: str, script: str = "says") -> None:
    """Have a next runtime on a log, which is sound when it has ended."""
    with runtime(log, script, "", *until):
        pass
    left_in(log)


def paid_file(log: Path) -> Path:
    return log.with_name("paid.txt")


def inbox_of(log: Path) -> Path:
    return log.with_name(log.name + ".inbox")


def refold(*arguments: object, stdin: str | None = None) -> Done:
    done = run(refold_line(*arguments), input=stdin)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def told(*arguments: object, stdin: str | None = None) -> Any:
    """Run a command with --json and return what it says."""
    done = refold(*arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def decisions_of_two(log: Path) -> tuple[list[int], list[tuple[str, str]]]:
    """Allow and deny call_6_0 at once, and return the exit codes and what was written, in this order."""
    allow = refold_line("approve", log, "s", "call_6_0")
    with started(allow) as allowing, started([*allow, "--deny"]) as denying:
        said = [allowing.communicate(), denying.communicate()]
    return [allowing.returncode, denying.returncode], said


def events_of(log: Path, session: str = "s") -> list[ev.SessionEvent]:
    """Return what is in a log, whether or not a runtime owns it."""

    async def read() -> list[ev.SessionEvent]:
        async with await SQLiteStore.open(log, read_only=True) as store:
            return SESSION_CODEC.decode_all(await store.read_stream(f"session/{session}"))

    return asyncio.run(read())


def found(log: Path, kind: type[ev.SessionEvent], session: str = "s") -> list[Any]:
    return [event for event in events_of(log, session) if isinstance(event, kind)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture(scope="module")
def ended_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("ended") / "events.db"
    with runtime(log, "says", "hello", "RunCompleted"):
        pass
    return log


@pytest.fixture(scope="module")
def waiting_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("waiting") / "events.db"
    with runtime(log, "pays", "pay 3", "ToolApprovalRequested") as process:
        kill(process)
    assert log_owner(log) is None
    return log


def copied(template: Path, log: Path) -> Path:
    for file in template.parent.iterdir():  # Of a log whose owner was killed, the WAL too.
        if file.is_file():
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


REASON = "Nicht ohne Beleg: \u20ac \U0001f9fe"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said", "decided"),
    [
        pytest.param(["--json"], '"done"', (True, False), id="it is allowed"),
        pytest.param(["--always"], "call_6_0 is allowed\n", (True, True), id="it is allowed always"),
        pytest.param(["--deny", "--reason", REASON], "call_6_0 is denied\n", (False, False), id="it is denied"),
        pytest.param(["--arguments", '{"amount":5}'], "call_6_0 is allowed\n", (True, False), id="it is changed"),
    ],
)
def test_a_call_is_decided_in_a_running_runtime_from_another_process(
    log: Path, options: list[str], said: str, decided: tuple[bool, bool]
) -> None:
    with runtime(log, "pays", "pay 3", "ToolApprovalRequested") as process:
        [listed] = told("approve", log)["waiting"]
        waits = {"session": "s", "call": "call_6_0", "tool": "pay", "decided": False}
        assert listed == listed | waits
        done = refold("approve", log, "s", "call_6_0", *options)
        assert (done.returncode, said in done.stdout, done.stderr) == (0, True, "")
        read_until(process, "RunCompleted")
        assert refold("approve", log).stdout == "no call waits for approval\n"
        assert ("changed by a person: pay(amount=5)" in refold("show", log, "s").stdout) == ("--arguments" in options)
    left_in(log)
    [event] = found(log, ev.ToolApprovalDecided)
    assert (event.allowed, event.always) == decided
    assert paid_file(log).exists() == event.allowed
    failed = [(event.kind, event.content[0].text) for event in found(log, ev.ToolCallFailed)]
    assert failed == ([] if event.allowed else [("denied", REASON)]), "a model is told the reason"


@pytest.mark.slow
def test_of_two_approvers_at_once_one_wins_and_the_other_is_told(log: Path) -> None:
    with runtime(log, "pays", "pay 3", "ToolApprovalRequested") as process:
        codes, said = decisions_of_two(log)
        assert sorted(codes) == [0, 1]
        loser = codes.index(1)
        no_longer = "refold: call_6_0 does not wait for approval; it was decided, has ended, or never was; `refold "
        assert said[loser][0] == ""
        assert said[loser][1].startswith(no_longer)
        read_until(process, "RunCompleted")
    [decided] = found(log, ev.ToolApprovalDecided)
    assert decided.allowed == (loser == 1)
    assert paid_file(log).exists() == decided.allowed
    left_in(log)


@pytest.mark.slow
def test_a_run_is_cancelled_from_another_process_and_again_is_no_error(log: Path) -> None:
    with runtime(log, "hangs", "hello", "ModelRequested") as process:
        assert refold("cancel", log, "s", "--reason", "enough").stdout == "run_3 is cancelled\n"
        read_until(process, "RunCancelled")
        for options, said in (((), "no run"), (("--run", "run_99"), "run_99")):
            again = refold("cancel", log, "s", *options)
            now = "is under way" if said == "no run" else "is not under way"
            assert (again.returncode, again.stdout) == (0, f"{said} {now}; nothing was cancelled\n")
    assert [event.reason for event in found(log, ev.CancelRequested)] == ["enough"]
    left_in(log)


@pytest.mark.slow
def test_send_with_wait_writes_the_answer_of_the_runtime(log: Path) -> None:
    with runtime(log, "says", "hello", "RunCompleted"):
        done = refold("send", log, "s", "and now?", "--wait")
        assert (done.returncode, done.stdout, done.stderr) == (0, "Said.\n", "")
        document = told("send", log, "s", "in JSON?", "--wait")
        assert (document["outcome"], document["text"]) == ("completed", "Said.")
    assert left_in(log).ends == ["RunCompleted"] * 3


@pytest.mark.slow
def test_send_with_wait_tells_what_nobody_is_there_to_decide(log: Path) -> None:
    with runtime(log, "pays"):
        assert "no session 's'" in refold("send", log, "s", "pay 3").stderr
    with runtime(log, "pays", "pay 3", "ToolApprovalRequested"):
        done = refold("send", log, "s", "and then?", "--wait")
        assert done.returncode == 1
        assert done.stderr == f"refold: run_3 waits for approval\nrefold approve {log} s call_6_0\n"


@pytest.mark.slow
def test_wait_ends_with_the_runtime(log: Path) -> None:
    send = refold_line("send", log, "s", "and now?", "--wait")
    with runtime(log, "hangs", "hello", "ModelRequested") as process, started(send) as waiting:
        read_until(process, "InputQueued")
        kill(process)
        _, complaint = waiting.communicate()
    assert waiting.returncode == 1
    assert re.search(r"no runtime owns the log( any more)?; run_\d+ goes on when one does", complaint)


@pytest.mark.slow
def test_a_key_is_one_command_whoever_performs_it_and_for_ever(log: Path) -> None:
    def sent(text: str) -> Any:
        done = refold("send", log, "s", text, "--key", "k", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else (done.returncode, done.stderr)

    with runtime(log, "says", "hello", "RunCompleted"):
        first = sent("and now?")
        assert sent("and now?") == {**first, "new": False}
        assert "was used before" in sent("something else")[1]
    assert sent("and now?") == {**first, "new": False}
    inbox_of(log).unlink()
    without_inbox = sent("and now?")
    assert (without_inbox["run"], without_inbox["new"]) == (first["run"], False)
    assert sent("something else")[0] == 2
    assert len(found(log, ev.InputQueued)) == 2


@pytest.mark.slow
def test_a_runtime_that_ends_before_it_takes_a_command_leaves_it_to_the_command_itself(log: Path) -> None:
    send = refold_line("send", log, "s", "and now?", "--timeout", "100")
    with runtime(log, "says", "hello", "RunCompleted", poll_s=0) as process, started(send) as sending:
        while not (inbox_of(log).exists() and inbox_of(log).stat().st_size):
            assert sending.poll() is None
        kill(process)
        said, _ = sending.communicate()
    assert sending.returncode == 0
    assert "; no runtime owns the log, so the run goes on when one does" in said
    assert len(found(log, ev.InputQueued)) == 2


@contextlib.contextmanager
def once_it_is_in_the_inbox(log: Path, sending: Process) -> Iterator[sqlite3.Connection]:
    """Wait until a process has put its command there, and give a connection to the inbox."""
    with contextlib.closing(sqlite3.connect(inbox_of(log), isolation_level=None)) as rows:
        while not rows.execute("SELECT * FROM sqlite_schema").fetchall():
            assert sending.poll() is None
        while rows.execute("SELECT count(*) FROM commands").fetchone() == (0,):
            assert sending.poll() is None
        yield rows


@pytest.mark.slow
def test_what_a_killed_process_has_put_into_the_inbox_is_performed(log: Path) -> None:
    program = BEGINNING + "asyncio.run(connect(log).session('t').send('x', key='k'))"
    looks_never = runtime(log, "says", poll_s=0)
    with looks_never, started(command_line("-c", program, log)) as sending, once_it_is_in_the_inbox(log, sending):
        kill(sending)
    with runtime(log, "says", "", "RunCompleted"):
        assert isinstance(asyncio.run(connect(log).session("t").send("x", key="k")), RunResult)
    assert left_in(log, "t").inputs == ["x"]


@pytest.mark.slow
def test_a_runtime_killed_between_performing_and_noting_performs_nothing_twice(ended_session: Path) -> None:
    log = ended_session
    asyncio.run(Inbox(log, SystemClock()).put("s", InboxSend(text="once"), "k"))
    with contextlib.closing(sqlite3.connect(inbox_of(log), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # No other process can write into the inbox now.
        with runtime(log, "hangs", "", "InputQueued") as process:
            kill(process)
        unnoted = other.execute("SELECT count(*) FROM commands WHERE outcome IS NULL").fetchone()
        other.execute("COMMIT")
    assert unnoted == (1,)
    assert told("send", log, "s", "once", "--key", "k")["new"] is False
    goes_on_until(log, "RunCompleted")
    assert len(found(log, ev.InputQueued)) == 2


# No runtime.


@pytest.mark.slow
def test_a_new_session_waits_for_a_runtime_that_has_an_agent_for_it(ended_session: Path) -> None:
    log = ended_session
    done = refold("send", log, "t", "hello", "--new", "--key", "k")
    assert (done.returncode, "as soon as a runtime owns the log: it waits in the inbox" in done.stdout) == (0, True)
    waiting = refold("send", log, "t", "hello", "--new", "--key", "k", "--wait", "--json")
    assert (waiting.returncode, json.loads(waiting.stdout)["outcome"]) == (1, "queued")
    with runtime(log, "says", "", "RunCompleted"):
        done = refold("send", log, "t", "hello", "--key", "k", "--wait")
        assert (done.returncode, done.stdout) == (0, "Said.\n")
    assert left_in(log, "t").inputs == ["hello"]


@pytest.mark.slow
def test_a_call_that_was_left_by_a_killed_runtime_is_allowed_and_runs_once_in_the_next_one(
    waiting_session: Path,
) -> None:
    log = waiting_session
    assert told("approve", log, "s", "call_6_0")["outcome"] == "queued"
    assert found(log, ev.ToolCallStarted) == []
    assert [call["decided"] for call in told("approve", log)["waiting"]] == [True]
    goes_on_until(log, "RunCompleted")
    assert paid_file(log).read_text() == "3\n"
    assert found(log, ev.ToolCallFailed) == []


@pytest.mark.slow
def test_two_deciders_at_once_without_a_runtime_are_one_decision(waiting_session: Path) -> None:
    codes, _ = decisions_of_two(waiting_session)
    assert sorted(codes) == [0, 1]
    goes_on_until(waiting_session, "RunCompleted")
    assert len(found(waiting_session, ev.ToolApprovalDecided)) == 1
    assert paid_file(waiting_session).exists() == (codes[0] == 0)


@pytest.mark.slow
def test_a_denial_is_recorded_at_once_and_the_run_goes_on_in_the_next_runtime(waiting_session: Path) -> None:
    done = refold("approve", waiting_session, "s", "call_6_0", "--deny", "--reason", "no")
    assert done.stdout == "call_6_0 is denied; no runtime owns the log, so the run goes on when one does\n"
    assert len(found(waiting_session, ev.ToolCallFailed)) == 1
    goes_on_until(waiting_session, "RunCompleted")
    assert not paid_file(waiting_session).exists()


@pytest.mark.slow
def test_a_cancellation_overtakes_a_permission_that_no_runtime_has_taken(waiting_session: Path) -> None:
    log = waiting_session
    assert refold("approve", log, "s", "call_6_0", "--key", "k").returncode == 0
    assert refold("cancel", log, "s").stdout == "run_3 is cancelled\n"
    again = refold("approve", log, "s", "call_6_0", "--key", "k")
    assert (again.returncode, "does not wait for approval" in again.stderr) == (1, True)
    goes_on_until(log)
    assert not paid_file(log).exists()
