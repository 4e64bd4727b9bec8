"""Several runtimes in one process, on one loop or on several, have nothing in common but the process."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refold import AgentConfig, AgentRuntime, ModelRequest, ScriptedProvider, Session, say, tool, use
from refold.stores import SQLiteStore
from tests.conformance.sessions import assert_sound
from tests.conformance.threads import InThread


def runtime_of(log: Path, name: str, *script: Any, tools: Any = (), **options: Any) -> AgentRuntime:
    def answer(request: ModelRequest) -> str:
        return f"{name} on {request.messages[-1].text}"

    provider = ScriptedProvider([*script, *[answer] * 100])
    return AgentRuntime(AgentConfig(model=name), provider=provider, tools=tools, log=log, name=name, **options)


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[tuple[Path, Path]]:
    """Two places for logs, which are checked and replayed when the test is over."""
    paths = (tmp_path / "one.db", tmp_path / "two.db")
    yield paths
    for path in paths:
        async with await SQLiteStore.open(path, wait_for_log_s=0) as store:
            await assert_sound(store)


async def texts_of(session: Session) -> list[str]:
    return [message.text for message in await session.history()]


async def test_two_on_one_loop_share_neither_sessions_nor_events_nor_counts(logs: tuple[Path, Path]) -> None:
    async with runtime_of(logs[0], "one") as one, runtime_of(logs[1], "two") as two:
        seen: dict[str, list[str]] = {"one": [], "two": []}
        one.subscribe(lambda recorded: seen["one"].append(type(recorded.event).__name__))
        two.subscribe(lambda recorded: seen["two"].append(type(recorded.event).__name__))
        same, namesake = await one.session("s"), await two.session("s")
        results = await asyncio.gather(*[session.send("go", key="k") for session in (same, namesake)])
        assert [result.text for result in results] == ["one on go", "two on go"]
        assert (await same.send("more")).text == "one on more"
        assert (one.commits, two.commits) == (6, 4)
        assert seen["one"].count("RunCompleted") == 2
        assert seen["two"].count("RunCompleted") == 1
        await one.close()
        assert (await namesake.send("more")).text == "two on more"
        assert await texts_of(namesake) == ["go", "two on go", "more", "two on more"]


async def test_a_tool_of_one_sends_to_a_session_of_the_same_name_in_the_other(logs: tuple[Path, Path]) -> None:
    @tool
    async def ask_the_other(text: str) -> str:
        return (await (await two.session("s")).send(text)).text

    @tool
    def ask_the_other_from_a_thread(text: str) -> str:
        return three.session("s").send(text).text

    tools = [ask_the_other, ask_the_other_from_a_thread]
    script = [use(tools[0].name, {"text": "a"}), say("."), use(tools[1].name, {"text": "b"}), say(".")]
    third = logs[0].with_name("three.db")
    three = await asyncio.to_thread(runtime_of(third, "three").__enter__)
    async with runtime_of(logs[0], "one", *script, tools=tools) as one, runtime_of(logs[1], "two") as two:
        session = await one.session("s")
        await session.send("go")
        await session.send("go")
        assert await texts_of(await two.session("s")) == ["a", "two on a"]
    other = await asyncio.to_thread(three.session, "s")
    assert [message.text for message in await asyncio.to_thread(other.history)] == ["b", "three on b"]
    await asyncio.to_thread(three.close)


def test_two_on_loops_of_two_threads_work_beside_each_other(tmp_path: Path) -> None:
    async def work(name: str) -> list[str]:
        async with runtime_of(tmp_path / f"{name}.db", name) as runtime:
            sessions = [await runtime.session(f"s{number}") for number in range(10)]
            return [result.text for result in await asyncio.gather(*[session.send("go") for session in sessions])]

    threads = [InThread(partial(asyncio.run, work(name))) for name in ("one", "two")]
    assert [thread.result() for thread in threads] == [["one on go"] * 10, ["two on go"] * 10]


def test_a_runtime_leaves_the_logging_of_its_process_alone(tmp_path: Path) -> None:
    def configuration() -> list[Any]:
        names = [name for name in logging.root.manager.loggerDict if name.startswith("refold")]
        loggers = [logging.root, *map(logging.getLogger, names)]
        return [(logger.handlers[:], logger.level, logger.propagate, logger.filters[:]) for logger in loggers]

    with runtime_of(tmp_path / "first.db", "first"):  # From here on all loggers are there.
        before = configuration()
    with runtime_of(tmp_path / "one.db", "one") as one, runtime_of(tmp_path / "two.db", "two") as two:
        one.session("s").send("go")
        two.session("s").send("go")
        assert configuration() == before
