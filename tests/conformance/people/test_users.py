"""Sessions have users, who stay, and metadata, which may change."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.events.session.events import SessionDescribed
from tests.memory.test_scopes import CARD, World, told

ANOTHERS = "session 'a' is another user's"


def runtime_on(log: Any, *answers: Any, **options: Any) -> refold.AgentRuntime:
    provider = refold.ScriptedProvider([*answers] or [refold.say("Hello.")] * 9)
    return refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, log=log, **options)


async def described(session: refold.Session) -> list[tuple[str | None, Mapping[str, str]]]:
    events = [recorded.event async for recorded in session.events()]
    return [(event.user, event.metadata) for event in events if isinstance(event, SessionDescribed)]


async def test_a_user_is_recorded_with_the_first_input_and_stays(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with runtime_on(log) as runtime:
        session = await runtime.session("a", user="alice", metadata={"plan": "pro"})
        assert await runtime.sessions() == []
        commits = runtime.commits
        await session.send("Hello")
        plain = await runtime.session("b")
        with_user, commits = runtime.commits - commits, runtime.commits
        await plain.send("Hello")
        assert runtime.commits - commits == with_user
        assert await described(session) == [("alice", {"plan": "pro"})]
        assert await described(plain) == []
    async with runtime_on(log) as runtime:
        with pytest.raises(refold.CommandRejected, match=ANOTHERS):
            await runtime.session("a", user="bob")
        for user in (None, "alice"):
            session = await runtime.session("a", user=user, restore=True)
            await session.send("Hello again")
        noted = await session.metadata()
        assert noted is not None
        assert (noted.user, noted.metadata) == ("alice", {"plan": "pro"})
        assert await described(session) == [("alice", {"plan": "pro"})]


async def test_of_two_users_who_begin_one_session_the_first_has_it() -> None:
    async with runtime_on(":memory:") as runtime:
        alices, bobs = [await runtime.session("a", user=user) for user in ("alice", "bob")]
        ended = await asyncio.gather(alices.send("Hello"), bobs.send("Hello"), return_exceptions=True)
        assert isinstance(ended[0], refold.RunResult)
        assert isinstance(ended[1], refold.CommandRejected)
        with pytest.raises(refold.CommandRejected, match=ANOTHERS):
            await bobs.clear()
        assert await described(alices) == [("alice", {})]
        unowned = await runtime.session("b")
        await unowned.send("Hello")
        await runtime.session("b", user="bob")
        assert await described(unowned) == [("bob", {})]


async def test_metadata_changes_where_it_is_said_and_what_another_said_stays() -> None:
    async with runtime_on(":memory:") as runtime:
        session = await runtime.session("a", metadata={"plan": "free", "lang": "pt"})
        await session.send("Hello")
        await (await runtime.session("a")).describe(metadata={"plan": "pro", "lang": None})
        await session.send("Hello")
        assert await described(session) == [(None, {"plan": "free", "lang": "pt"}), (None, {"plan": "pro"})]
        with pytest.raises(refold.CommandRejected, match="16,384 bytes"):
            await session.describe(metadata={"text": "é" * 9_000})
        fresh = await runtime.session("b")
        await fresh.describe(user="bob", metadata={"plan": "pro"})
        assert (await fresh.state_at()).user == "bob"
        assert await described(fresh) == [("bob", {"plan": "pro"})]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"user": user} for user in ("", "a\0", "x" * 513, 7)),
        *({"metadata": metadata} for metadata in ({"a": 1}, {"": "a"}, "plan", {1: "a"})),
    ],
)
async def test_what_can_be_no_user_and_no_metadata_is_refused(wrong: Any) -> None:
    async with runtime_on(":memory:") as runtime:
        with pytest.raises(refold.ConfigError):
            await runtime.session("a", **wrong)


async def test_users_whom_redaction_would_make_one_are_refused() -> None:
    async with runtime_on(":memory:", redact=[re.compile(r"\w+@example.org")]) as runtime:
        for said in ({"user": "alice@example.org"}, {"metadata": {"tenant": "bob@example.org"}}):
            session = await runtime.session("a", **said)
            with pytest.raises(refold.ConfigError, match="holds what the agent's `redact` names"):
                await session.send("Hello")
        assert await runtime.sessions() == []


async def test_a_subagent_works_for_the_user_of_the_session_that_calls_it() -> None:
    world = World()
    async with world.runtime() as runtime:
        first = await runtime.session("a", user="alice", metadata={"plan": "pro"})
        await first.send(told("helper", task=told("note", text=CARD)))
        [child] = await first.children()
        assert await described(child) == [("alice", {"plan": "pro"})]
        for name, user in (("b", "alice"), ("c", "bob"), ("d", None)):
            await (await runtime.session(name, user=user)).send("Hello")
        assert [CARD in prompt for prompt in world.model.prompts[-3:]] == [True, False, False]
        unowned = await runtime.session("e")
        await unowned.send(told("helper", task=told("note", text="4243")))
        await unowned.send("Hello")
        assert "4243" in world.model.prompts[-1]


def test_threads_name_users_too() -> None:
    with runtime_on(":memory:") as runtime:
        session = runtime.session("a", user="alice")
        session.send("Hello")
        session.describe(metadata={"plan": "pro"})
        noted = session.metadata()
        assert noted is not None
        assert (noted.user, noted.metadata) == ("alice", {"plan": "pro"})
        with pytest.raises(refold.CommandRejected, match=ANOTHERS):
            runtime.session("a", user="bob")
