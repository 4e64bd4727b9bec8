"""An export of a session has what it needs to be done again, and no more; what is lacking is not taken for a change."""

import asyncio
import json
from pathlib import Path

import pytest

from refold import AgentRuntime
from refold.memory import EpisodicStore, WorkingMemory
from refold.replay import replay
from tests.conformance.recovery.test_decide_replay import missed, office, recorded
from tests.runtime.command_line import run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.db"

    async def record() -> None:
        await recorded(path)
        memory = EpisodicStore(scope="agent")
        async with AgentRuntime(office(script=(), memory=memory), log=path):
            await memory.add_episode("boss", "tea is dear", importance=0.9)  # After the session's last event.

    asyncio.run(record())
    return path


def streams_in(path: Path) -> dict[str, int]:
    lines = map(json.loads, path.read_text().splitlines())
    return {line["stream"]: line["position"] for line in lines if line["line"] == "batch"}


def test_an_export_of_a_session_replays_as_the_log_does(log: Path) -> None:
    part = log.with_name("part.jsonl")
    assert run("export", log, "--session", "s", "-o", part).exit_code == 0
    last = streams_in(part)
    assert {name.partition("/")[0] for name in last} == {"session", "memory", "working"}
    assert sum(name.startswith("session/") for name in last) == 2
    assert max(last.values()) == last["session/s"], "and nothing that came later"
    assert "tea is dear" not in part.read_text()
    asyncio.run(replay(part, agent=office())).raise_for_divergence()


def test_a_memory_that_is_not_there_is_not_compared(log: Path) -> None:
    part = log.with_name("part.jsonl")
    assert run("export", log, "--session", "s", "--alone", "-o", part).exit_code == 0
    assert set(streams_in(part)) == {"session/s"}
    report = asyncio.run(replay(part, agent=office()))
    assert report.divergences == ()
    assert {what for what, _ in missed(report)} == {"recall"}
    assert report.missing()[0].endswith("the log lacks the stream memory/main, as an export of some streams does")


def test_parts_of_others_stay_and_those_that_a_function_named_are_told(tmp_path: Path) -> None:
    log, part = tmp_path / "events.db", tmp_path / "part.jsonl"

    async def record() -> None:
        memory, working = EpisodicStore(), WorkingMemory(3, scope=lambda context: "tenant")
        agent = office(script=(), memory=memory, working_memory=working)
        async with AgentRuntime(agent, log=log) as runtime:
            for user in ("ann", "bob"):
                await memory.of(user=user).add_episode("boss", f"{user} likes tea")
            await working.of(scope="tenant").set("city", "Lisbon")
            await (await runtime.session("s", user="ann")).send("Hello")

    asyncio.run(record())
    result = run("export", log, "--session", "s", "-o", part)
    assert "left out: working/main/scope/tenant, which the log does not say that" in result.stderr
    assert set(streams_in(part)) == {"session/s", "memory/main/user/ann", "working/main"}
