"""kill -9 while somebody is asked, or in the body that somebody allowed: it goes back to the person. Real kills."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold import Allow, Completed, Deny, ToolApprovalRequested, say
from refold.events.core.content import CRASHED_TEXT
from refold.stores import SQLiteStore
from tests.conformance.approval_desk import Ledger, Seen, recorded, result_blocks, results, runtime_of
from tests.conformance.sessions import assert_sound

CHILD = """
import asyncio, sys
from refold import AgentConfig, AgentRuntime, Allow, ScriptedProvider, say, tool, use

log, answer = sys.argv[1], sys.argv[2]

@tool(tier="confirm")
async def pay(amount: int) -> str:
    print("paying", amount, flush=True)
    await asyncio.Event().wait()
    return "unreachable"

async def handler(session, request):
    print("asked", request.reason, flush=True)
    if answer == "first" and request.input["amount"] == 2:
        return None
    return {"nothing": None, "first": Allow(), "once": Allow(), "always": Allow(always=True)}[answer]

async def main():
    config = AgentConfig(model="m", approval_expiry_s=3600)
    script = [[use("pay", {"amount": 1}), use("pay", {"amount": 2})]]
    async with AgentRuntime(
        config, provider=ScriptedProvider(script), tools=[pay], log=log, approval=handler
    ) as runtime:
        session = await runtime.session("alice", restore=len(sys.argv) > 3)
        await session.send("go", key="k")

asyncio.run(main())
"""


def killed(log: Path, answer: str, until: str, *more: str) -> list[str]:
    """Run the child until it prints a line that begins with `until`, kill it, and return what it has printed."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, str(log), answer, *more], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines: list[str] = []
    while not (lines and lines[-1].startswith(until)):
        line = child.stdout.readline()
        assert line, f"the child ended early, after {lines}"
        lines.append(line.strip())
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    return lines


async def assert_file_sound(log: Path) -> None:
    async with await SQLiteStore.open(log, read_only=True) as store:
        await assert_sound(store)


@pytest.mark.slow
async def test_a_wait_outlives_any_number_of_kills_and_each_process_asks_once(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    assert killed(log, "nothing", "asked") == ["asked"]
    assert killed(log, "nothing", "asked", "restore") == ["asked"]
    asked: list[ToolApprovalRequested] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.append(request)
        return Allow()

    ledger = Ledger()
    async with runtime_of(log, ledger, [say("done")], approval=handler) as runtime:
        session = await runtime.session("alice", restore=True)
        assert (await session.send("go", key="k")).outcome == Completed()
        assert await results(session) == ["paid 1", "paid 2"]
        requested = await recorded(session, "ToolApprovalRequested")
        assert asked == requested
        assert await recorded(session, "RunResumed") == []  # A wait has lost nothing that would have to be resumed.
    assert ledger.done == ["paid 1", "paid 2"]
    await assert_file_sound(log)


async def test_after_a_kill_in_the_body_of_an_allowed_call_the_person_is_asked_again_and_told_why(
    tmp_path: Path,
) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", "paying 1")
    ledger = Ledger()
    async with runtime_of(log, ledger, [say("done")]) as runtime:
        session = await runtime.session("alice", restore=True)
        seen = Seen(runtime)
        while len(waiting := await session.approvals()) != 1:
            await seen.requests()
        assert waiting[0].reason == CRASHED_TEXT
        assert waiting[0].input == {"amount": 1}
        assert waiting[0].expires_at is None  # As today's configuration says.
        assert ledger.done == []
        await session.decide(waiting[0].call, allow=True)
        assert (await session.send("go", key="k")).outcome == Completed()
        assert await results(session) == ["paid 1", "paid 2"]
    assert ledger.done == ["paid 1", "paid 2"]
    await assert_file_sound(log)


async def test_a_person_who_denies_another_run_leaves_the_outcome_of_the_first_unknown(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", "paying 1")

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        return Deny("look into it first")

    ledger = Ledger()
    async with runtime_of(log, ledger, [say("done")], approval=handler) as runtime:
        session = await runtime.session("alice", restore=True)
        assert (await session.send("go", key="k")).outcome == Completed()
        first, second = await result_blocks(session)
    assert (first.kind, first.text) == ("crashed", CRASHED_TEXT)
    assert second.text == "paid 2"
    assert ledger.done == ["paid 2"]
    await assert_file_sound(log)


@pytest.mark.slow
@pytest.mark.parametrize("again", ["once", "always"])
async def test_what_was_allowed_always_is_asked_again_for_the_call_that_was_killed_and_no_other(
    again: str, tmp_path: Path
) -> None:
    log = tmp_path / "events.db"
    killed(log, "always", "paying 1")
    asked: list[ToolApprovalRequested] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.append(request)
        return Allow(always=again == "always")

    ledger = Ledger()
    async with runtime_of(log, ledger, [say("done")], approval=handler) as runtime:
        session = await runtime.session("alice", restore=True)
        assert (await session.send("go", key="k")).outcome == Completed()
    assert [(request.input, request.reason) for request in asked] == [({"amount": 1}, CRASHED_TEXT)]
    assert ledger.done == ["paid 1", "paid 2"]
    await assert_file_sound(log)


async def test_another_call_that_is_allowed_always_does_not_let_the_killed_one_run_again(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "first", "paying 1")
    ledger = Ledger()
    async with runtime_of(log, ledger, [say("done")]) as runtime:
        session = await runtime.session("alice", restore=True)
        seen = Seen(runtime)
        while len(waiting := await session.approvals()) != 2:
            await seen.requests()
        other, lost = waiting
        assert (lost.input, lost.reason) == ({"amount": 1}, CRASHED_TEXT)
        await session.decide(other.call, allow=True, always=True)
        assert [request.call for request in await session.approvals()] == [lost.call]
        assert ledger.done == []
        await session.decide(lost.call, allow=False)
        assert (await session.send("go", key="k")).outcome == Completed()
        assert await results(session) == [CRASHED_TEXT, "paid 2"]
    await assert_file_sound(log)


@pytest.mark.slow
async def test_a_body_that_kills_every_process_goes_back_to_the_person_each_time(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", "paying 1")
    for _ in range(2):
        lines = killed(log, "once", "paying 1", "restore")
        # The kill may have come before the decision about the other call was recorded, which is then asked for again.
        assert [line for line in lines if line != "asked"] == [f"asked {CRASHED_TEXT}", "paying 1"]
    await assert_file_sound(log)
