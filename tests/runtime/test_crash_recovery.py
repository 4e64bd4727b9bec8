"""kill -9 in the middle of a run, and what the next runtime makes of it. The kills are real."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold import AgentConfig, AgentRuntime, Completed, ModelRequest, ScriptedProvider, ToolContext, say, tool, use
from refold.events import SESSION_CODEC
from refold.events.content import CANCELLED_TEXT, CRASHED_TEXT, ToolResultBlock
from refold.log_check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore

CHILD = """
import asyncio, sys
from refold import AgentConfig, AgentRuntime, ScriptedProvider, ToolContext, say, tool, use

log, effect, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])

@tool(tier="observe", effect=effect)
async def work(context: ToolContext[object], n: int) -> str:
    if n == 0:
        return "done early"
    print("working", n, context.idempotency_key, flush=True)
    await asyncio.Event().wait()
    return "unreachable"

async def model(request):
    print("asked", flush=True)
    await asyncio.Event().wait()

script = [[use("work", {"n": n}) for n in range(calls)]] if calls else [model]

async def main():
    config = AgentConfig(model="m")
    async with AgentRuntime(config, provider=ScriptedProvider(script), tools=[work], log=log) as runtime:
        runtime.subscribe(lambda recorded: print("recorded", type(recorded.event).__name__, flush=True))
        session = await runtime.session("alice")
        print("open", flush=True)
        await session.send("go", key="the input")

asyncio.run(main())
"""


def killed(log: Path, effect: str, calls: int, until: list[str]) -> None:
    """Run the child until it has printed lines that begin with `until`, in any order, and kill it."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, str(log), effect, str(calls)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    waiting = [*until, "recorded ToolCallCompleted"] if calls else list(until)
    while waiting:
        line = child.stdout.readline()
        assert line, f"the child ended early; still expected {waiting}"
        waiting = [start for start in waiting if not line.startswith(start)]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def runtime_after(log: Path, script: list[Any], ran: list[str], **options: Any) -> AgentRuntime:
    @tool(tier="observe", effect=options.pop("effect", "once"))
    async def work(context: ToolContext[object], n: int) -> str:
        """Work again."""
        ran.append(context.idempotency_key)
        return f"again {n}"

    tools = [work] if options.pop("registered", True) else []
    config = AgentConfig(model="m")
    return AgentRuntime(config, provider=ScriptedProvider(script), tools=tools, log=log, **options)


async def ended(runtime: AgentRuntime, session_id: str = "alice") -> Any:
    """Return the session once its open run has ended by itself."""
    session = await runtime.session(session_id, restore=True)
    done = asyncio.Event()
    forget = runtime.subscribe(
        lambda recorded: done.set() if type(recorded.event).__name__.startswith(("RunC", "RunF", "RunP")) else None
    )
    if (await session.state_at()).run is not None:
        await done.wait()
    forget()
    return session


async def assert_sound(log: Path) -> None:
    async with await SQLiteStore.open(log, read_only=True) as store:
        check = await check_log(store)
        assert check.problems == ()
        report = await replay(store, level="core")
        report.raise_for_divergence()


async def test_a_run_killed_in_a_once_tool_resumes_by_itself_and_says_that_the_outcome_is_unknown(
    tmp_path: Path,
) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 3, ["working 1", "working 2"])
    ran: list[str] = []
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        seen.append(request)
        return "checked"

    async with runtime_after(log, [answer], ran) as runtime:
        session = await ended(runtime)
        result = await session.send("go", key="the input")
        results = [block for block in (await session.history())[2].content if isinstance(block, ToolResultBlock)]

    assert ran == []
    assert [block.text for block in results] == ["done early", CRASHED_TEXT, CRASHED_TEXT]
    assert [block.kind for block in results] == [None, "crashed", "crashed"]
    assert (result.outcome, result.text) == (Completed(), "checked")
    assert len(seen) == 1
    await assert_sound(log)


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_a_run_killed_in_a_repeatable_tool_runs_it_again_under_the_same_key(effect: str, tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, effect, 2, ["working 1"])
    ran: list[str] = []
    async with runtime_after(log, [say("fine")], ran, effect=effect) as runtime:
        session = await ended(runtime)
        texts = [block.text for block in (await session.history())[2].content if isinstance(block, ToolResultBlock)]
        events = [recorded async for recorded in session.events()]

    responded = next(item for item in events if type(item.event).__name__ == "ModelResponded")
    assert ran == [f"alice/call_{responded.version}_1"]
    assert texts == ["done early", "again 1"]
    assert [type(item.event).__name__ for item in events][-5:] == [
        "RunResumed",
        "ToolCallCompleted",
        "ModelRequested",
        "ModelResponded",
        "RunCompleted",
    ]
    await assert_sound(log)


async def test_a_repeatable_tool_that_no_longer_exists_is_answered_and_not_run(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "pure", 2, ["working 1"])
    async with runtime_after(log, [say("fine")], [], registered=False) as runtime:
        session = await ended(runtime)
        results = [block for block in (await session.history())[2].content if isinstance(block, ToolResultBlock)]

    assert results[1].text == CRASHED_TEXT
    await assert_sound(log)


async def test_a_run_killed_while_the_model_was_asked_asks_again(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 0, ["asked"])
    async with runtime_after(log, [say("second try")], []) as runtime:
        session = await ended(runtime)
        assert [message.text for message in await session.history()] == ["go", "second try"]
    await assert_sound(log)


async def test_crash_recovery_never_uses_the_cancel_text_and_cancellation_never_the_crash_text(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 2, ["working 1"])
    parked = asyncio.Event()

    @tool(tier="observe", effect="once")
    async def work(n: int) -> str:
        """Wait for ever."""
        parked.set()
        await asyncio.Event().wait()
        return "unreachable"

    provider = ScriptedProvider([say("recovered"), [use("work", {"n": 1})], say("after")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[work], log=log) as runtime:
        session = await ended(runtime)
        sending = asyncio.create_task(session.send("more"))
        await parked.wait()
        await session.cancel()
        await sending
        texts = [
            block.text
            for message in await session.history()
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]

    assert texts == ["done early", CRASHED_TEXT, CANCELLED_TEXT]


async def test_without_auto_resume_a_run_waits_for_resume(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "pure", 2, ["working 1"])
    ran: list[str] = []
    async with runtime_after(log, [say("fine")], ran, effect="pure", auto_resume=False) as runtime:
        session = await runtime.session("alice", restore=True)
        assert (await session.history())[2].content[1].is_error  # type: ignore[union-attr]
        assert ran == []
        await session.resume()
        await ended(runtime)
        assert len(ran) == 1
    await assert_sound(log)


async def test_every_run_that_was_open_resumes_and_every_acknowledged_event_is_there(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "pure", 3, ["working 1", "working 2"])
    async with await SQLiteStore.open(log, read_only=True) as store:
        before = SESSION_CODEC.recorded(await store.read_stream("session/alice"))
    async with runtime_after(log, [say("fine")], [], effect="pure") as runtime:
        session = await ended(runtime)
        after = [recorded async for recorded in session.events()]
    assert after[: len(before)] == before
    await assert_sound(log)
