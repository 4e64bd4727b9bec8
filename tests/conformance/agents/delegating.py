"""What tests of subagents share: agents with other agents as tools, and a session of theirs that has been sent "go"."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import refold
from refold.actors import ManualClock
from refold.stores import EventStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import CONFIG, crash, results_of

CHILD = "alice/call_6_0"
"""The session of the first call of a subagent in the session `alice`."""

STREAMS = ("session/alice", f"session/{CHILD}")

LIMITED = refold.AgentConfig(model="m", run_timeout_s=100)


@refold.tool(tier="confirm", effect="pure")
async def pay(amount: int) -> str:
    return f"paid {amount}"


def agent_of(name: str, *script: Any, tools: Any = (), **parts: Any) -> refold.Agent:
    config = parts.pop("config", CONFIG)
    return refold.Agent(name=name, config=config, provider=refold.ScriptedProvider(script), tools=list(tools), **parts)


def boss_of(*helpers: Any, calls: Any = None, last: str = "done", **parts: Any) -> refold.Agent:
    """Return an agent that makes calls in its first answer, if any are given, and has its last word then."""
    tools = [helper.as_tool() if isinstance(helper, refold.Agent) else helper for helper in helpers]
    script = [calls, refold.say(last)] if calls is not None else [refold.say(last)]
    return agent_of("boss", *script, tools=tools, **parts)


def asking(name: str, task: str = "go") -> Any:
    return refold.use(name, {"task": task})


def payer(*script: Any) -> refold.Agent:
    return agent_of("payer", *(script or (refold.use("pay", {"amount": 7}), refold.say("It is paid."))), tools=[pay])


@asynccontextmanager
async def sent_to(
    boss: refold.Agent, log: Any, name: str = "alice", text: str = "go", **options: Any
) -> AsyncIterator[tuple[refold.AgentRuntime, refold.Session, "asyncio.Task[refold.RunResult]"]]:
    """Give an agent's runtime, a session of it, and what sends a first input to that."""
    async with refold.AgentRuntime(boss, log=log, **options) as runtime:
        session = await runtime.session(name)
        yield runtime, session, asyncio.create_task(session.send(text, key="k"))


async def crashed_at(event: asyncio.Event, boss: refold.Agent, log: EventStore) -> None:
    """Send "go" to the session `alice`, and have the runtime crash at an event."""
    store = FailingStore(log)
    async with sent_to(boss, store, close_grace_s=0) as (runtime, _, sending):
        await event.wait()
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)


async def child_of(runtime: refold.AgentRuntime, session: refold.Session) -> refold.Session:
    [name] = [name for name in await runtime.sessions() if name.startswith(f"{session.id}/")]
    return await runtime.session(name, restore=True)


async def told(session: refold.Session) -> list[str]:
    """Return the texts of a session's results."""
    return [result.text for result in await results_of(session)]


async def waiting_in(session: refold.Session, clock: ManualClock, count: int = 1) -> list[refold.AwaitedApproval]:
    """Return what waits for a person in a session and below it, once there is so much of it."""
    for _ in range(10_000):  # A log in a file works in threads.
        await clock.settle()
        found = await session.approvals()
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} calls wait instead of {count}")
