"""Sessions whose every word can be looked for: it stands beside a mark and the session's name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from refold import Agent, AgentConfig, AgentRuntime, ModelRequest, ModelResponse, TextBlock, Tool, tool
from refold.agents.memory_tools import memory_tools
from refold.events.core.content import text_of
from refold.events.model.messages import ToolUse
from refold.inspection.check import check_log
from refold.memory import Scope
from refold.memory.episodic import EpisodicStore
from refold.replay import replay
from refold.stores import EventStore

MARK = "CANARY"


def mark(session: str, what: str) -> str:
    return f"{MARK}-{session}-{what}"


def _spoken(request: ModelRequest) -> str:
    """Return the first input of the session that a request is of."""
    return text_of(request.messages[0].content)


@tool(tier="observe", effect="pure")
async def fetch(name: str) -> str:
    """Return more than an event holds: what is the session's own, and what is the same for all."""
    return mark(name, "payload ") * 6_000


@tool(tier="observe", effect="pure")
async def manual() -> str:
    """Return what is the same for all sessions."""
    return "Turn it off and on again. " * 6_000


class _Boss:
    """A model that uses every tool once, and answers then."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return _boss_says(request)


class _Helper:
    """The model of the boss's subagent."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(content=(TextBlock(text=mark(_spoken(request).split("-")[1], "help")),))


def _boss_says(request: ModelRequest) -> ModelResponse:
    name = _spoken(request).split("-")[1]
    asked = [
        ToolUse(name="fetch", input={"name": name}),
        ToolUse(name="manual", input={}),
        ToolUse(name="remember", input={"content": f"{name} was here"}),
        ToolUse(name="helper", input={"task": mark(name, "task")}),
    ]
    done = sum(message.role == "assistant" for message in request.messages)
    if done < len(asked):
        return ModelResponse(content=(asked[done],), stop_reason="tool_use")
    return ModelResponse(content=(TextBlock(text=mark(name, "answer")),))


class Waiting:
    """A model that says something once, and then never again."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def talking(
    log: Any, *, provider: Any = None, scope: Scope = "agent", **options: Any
) -> AsyncIterator[AgentRuntime]:
    """Give a runtime with an agent that has tools, a memory and a subagent, and answers at length."""
    memory = EpisodicStore(scope=scope)
    helper = Agent(name="helper", config=AgentConfig(model="m"), provider=_Helper())
    tools: list[Tool[..., Any]] = [fetch, manual, helper.as_tool(), *memory_tools(episodic=memory)]
    agent = Agent(name="boss", config=AgentConfig(model="m"), provider=provider or _Boss(), tools=tools, memory=memory)
    async with AgentRuntime(agent, log=log, snapshot_every=4, **options) as runtime:
        yield runtime


async def talk(runtime: AgentRuntime, *names: str) -> None:
    for name in names:
        result = await (await runtime.session(name)).send(mark(name, "input"))
        assert result.text == mark(name, "answer"), result


def talked(log: Path, *names: str) -> None:
    """Have these sessions in a log."""

    async def talk_all() -> None:
        async with talking(log) as runtime:
            await talk(runtime, *names)

    asyncio.run(talk_all())


def found(folder: Path, session: str) -> dict[str, int]:
    """Return how often the marks of a session stand in the bytes of files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name: count for path in files if (count := path.read_bytes().count(mark(session, "").encode()))}


async def assert_sound(log: EventStore | Path) -> None:
    assert (await check_log(log)).problems == ()
    (await replay(log)).raise_for_divergence()
