"""kill -9 while somebody is asked, or in the body that somebody allowed: it goes back to the person. Real kills."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from refold import Allow, Completed, Deny, Session, ToolApprovalRequested, say, tool
from refold.events.core.content import CRASHED_TEXT
from refold.events.session.events import RunResumed
from refold.stores import SQLiteStore
from tests.conformance.sessions import Seen, assert_sound, events_of, results_of, runtime_of

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


class Restarted:
    """The session of a child that was killed, in a runtime with a handler or without."""

    def __init__(self, session: Session, seen: Seen, done: list[int], asked: list[ToolApprovalRequested]) -> None:
        self.session = session
        self.seen = seen
        self.done = done
        """What was paid since."""
        self.asked = asked
        """What the handler was asked since."""

    async def waiting(self, count: int) -> list[Any]:
        """Return what waits for a decision, once it is so many calls."""
        while len(found := await self.session.approvals()) != count:
            await self.seen.first(ToolApprovalRequested)
        return found

    async def finish(self) -> list[tuple[str | None, str]]:
        """Return the results of the run's calls once it has completed."""
        assert (await self.session.send("go", key="k")).outcome == Completed()
        return [(block.kind, block.text) for block in await results_of(self.session)]


@asynccontextmanager
async def restarted(log: Path, answer: Callable[[Any], Any] = lambda _: None) -> AsyncIterator[Restarted]:
    """Take over the log of a child that was killed, and check the log when that is done."""
    done, asked = list[int](), list[ToolApprovalRequested]()

    @tool(tier="confirm")
    async def pay(amount: int) -> str:
        """Pay, if allowed."""
        done.append(amount)
        return f"paid {amount}"

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.append(request)
        return answer(request)

    async with await SQLiteStore.open(log) as store:
        async with runtime_of(store, say("done"), tools=[pay], approval=handler, alike=False) as runtime:
            session = await runtime.session("alice", restore=True)
            yield Restarted(session, Seen(runtime, session), done, asked)
        await assert_sound(store)


@pytest.mark.slow
async def test_a_wait_outlives_any_number_of_kills_and_each_process_asks_once(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    assert killed(log, "nothing", "asked") == ["asked"]
    assert killed(log, "nothing", "asked", "restore") == ["asked"]
    async with restarted(log, lambda request: Allow()) as again:
        assert await again.finish() == [(None, "paid 1"), (None, "paid 2")]
        assert again.asked == await events_of(again.session, ToolApprovalRequested)
        assert await events_of(again.session, RunResumed) == []  # A wait has lost nothing that would be resumed.
    assert again.done == [1, 2]


async def test_after_a_kill_in_the_body_of_an_allowed_call_the_person_is_asked_again_and_told_why(
    tmp_path: Path,
) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", "paying 1")
    async with restarted(log) as again:
        (waiting,) = await again.waiting(1)
        assert (waiting.reason, waiting.input) == (CRASHED_TEXT, {"amount": 1})
        assert waiting.expires_at is None  # As today's configuration says.
        assert again.done == []
        await again.session.decide(waiting.call, allow=True)
        assert await again.finish() == [(None, "paid 1"), (None, "paid 2")]
    assert again.done == [1, 2]


async def test_a_person_who_denies_another_run_leaves_the_outcome_of_the_first_unknown(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", "paying 1")
    async with restarted(log, lambda request: Deny("look into it first")) as again:
        assert await again.finish() == [("crashed", CRASHED_TEXT), (None, "paid 2")]
    assert again.done == [2]


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True])
async def test_what_was_allowed_always_is_asked_again_for_the_call_that_was_killed_and_no_other(
    always: bool, tmp_path: Path
) -> None:
    log = tmp_path / "events.db"
    killed(log, "always", "paying 1")
    async with restarted(log, lambda request: Allow(always=always)) as again:
        await again.finish()
    assert [(request.input, request.reason) for request in again.asked] == [({"amount": 1}, CRASHED_TEXT)]
    assert again.done == [1, 2]


async def test_another_call_that_is_allowed_always_does_not_let_the_killed_one_run_again(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "first", "paying 1")
    async with restarted(log) as again:
        other, lost = await again.waiting(2)
        assert (lost.input, lost.reason) == ({"amount": 1}, CRASHED_TEXT)
        await again.session.decide(other.call, allow=True, always=True)
        assert [request.call for request in await again.session.approvals()] == [lost.call]
        assert again.done == []
        await again.session.decide(lost.call, allow=False)
        assert await again.finish() == [("crashed", CRASHED_TEXT), (None, "paid 2")]


@pytest.mark.slow
async def test_a_body_that_kills_every_process_goes_back_to_the_person_each_time(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", "paying 1")
    for _ in range(2):
        lines = killed(log, "once", "paying 1", "restore")
        # The kill may have come before the decision about the other call was recorded, which is then asked for again.
        assert [line for line in lines if line != "asked"] == [f"asked {CRASHED_TEXT}", "paying 1"]
    async with await SQLiteStore.open(log, read_only=True) as store:
        await assert_sound(store)
