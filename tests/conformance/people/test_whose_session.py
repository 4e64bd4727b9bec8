"""A handle that names a user tells nothing of another user's session, also where it is older than the session."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.connections.people import AwaitedDecision
from refold.connections.run import ConnectedRun, SyncConnectedRun
from refold.connections.session import ConnectedSession, SyncConnectedSession
from refold.stores import InMemoryStore
from refold.stores.values.memory import MemoryBackend
from tests.conformance.failing_store import FailingStore
from tests.conformance.people.test_users import ANOTHERS, runtime_on

NEW = "a"

ARGUMENTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{name: (["Hi"], {}) for name in ("send", "submit", "next_turn", "step")},
    "stream": (["Hi"], {}),
    "remind": (["Hi"], {"at": datetime(2100, 1, 1, tzinfo=UTC)}),
    "describe": ([], {"metadata": {"plan": "pro"}}),
    "import_history": ([[refold.Message("user", (refold.TextBlock(text="Hi"),))]], {}),
    "checkpoint": ([MemoryBackend()], {}),
    "payload": (["0" * 64], {}),
    "decide": (["call_6_0"], {"allow": True}),
    "answer": (["call_6_0", "yes"], {}),
    "set_aside": ([3], {}),
    "take_back": ([3], {}),
    "follow": ([], {"after_version": 0}),
}
"""What a method is called with, where it needs something."""

ATTRIBUTES = {"id", "key", "run", "session", "connection", "loop_thread", "asynchronous"}
"""What a face has that is no method."""


def calls_of(handle: object) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Give every public method of a handle, to be called."""
    names = [name for name in dir(handle) if not name.startswith("_")]
    assert "stream" in names or "follow" in names
    for name in names:
        if not callable(method := getattr(handle, name)):
            assert name in ATTRIBUTES
            continue
        given, named = ARGUMENTS.get(name, ([], {}))
        if name == "run":
            given = ["run_3"]
        elif name == "stream" and hasattr(handle, "result"):
            given = []  # A run's, not a session's.
        yield name, partial(method, *given, **named)


async def told(call: Callable[[], Any]) -> object:
    found = call()
    if inspect.isawaitable(found):
        found = await found
    return await anext(found) if hasattr(found, "__anext__") else found


def told_in_thread(call: Callable[[], Any]) -> object:
    found = call()
    return next(found) if hasattr(found, "__next__") else found


@asynccontextmanager
async def handles_of_bob(log: Path) -> AsyncIterator[tuple[refold.AgentRuntime, list[Any]]]:
    """Give a runtime, and handles of a session that is not there yet: its own, a guest's, and a connection's."""
    async with runtime_on(log, share=True) as runtime, runtime_on(log, share=True) as guest:
        connection = refold.connect(log, patience_s=0)
        bobs = [await each.session(NEW, user="bob") for each in (runtime, guest)]
        yield runtime, [*bobs, connection.session(NEW, user="bob")]


@pytest.mark.parametrize("first", ["alice", None])
async def test_no_method_tells_of_a_session_that_another_user_has_by_now(tmp_path: Path, first: str | None) -> None:
    async with handles_of_bob(tmp_path / "events.db") as (runtime, handles):
        sent = await (await runtime.session(NEW, user=first)).send("A secret")
        if first is None:  # Until it has a user, it is open to all.
            assert sent.run is not None
            handles += [await handle.run(sent.run) for handle in handles]
            assert [len(await handle.history()) for handle in handles[:3]] == [2, 2, 2]
            await runtime.session(NEW, user="alice")
        kinds = {type(handle) for handle in handles}
        assert kinds == {refold.Session, ConnectedSession} | ({refold.RunHandle, ConnectedRun} if not first else set())
        for handle in handles:
            for name, call in calls_of(handle):
                with pytest.raises(refold.CommandRejected, match=ANOTHERS):
                    pytest.fail(f"{type(handle).__name__}.{name} says {await told(call)!r}")


def test_no_method_tells_threads_of_it_either(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with runtime_on(log) as runtime, refold.connect(log, patience_s=0) as connection:
        handles: list[Any] = [each.session(NEW, user="bob") for each in (runtime, connection)]
        sent = runtime.session(NEW).send("A secret")
        assert sent.run is not None
        handles += [handle.run(sent.run) for handle in handles]
        runtime.session(NEW, user="alice")
        assert [type(handle) for handle in handles] == [
            refold.SyncSession,
            SyncConnectedSession,
            refold.SyncRunHandle,
            SyncConnectedRun,
        ]
        for handle in handles:
            for name, call in calls_of(handle):
                with pytest.raises(refold.CommandRejected, match=ANOTHERS):
                    pytest.fail(f"{type(handle).__name__}.{name} says {told_in_thread(call)!r}")


async def test_who_follows_a_session_before_it_begins_gets_nothing_of_another_users(tmp_path: Path) -> None:
    async with handles_of_bob(tmp_path / "events.db") as (runtime, handles):
        readers = [handle.follow() for handle in handles[:2]]
        readers += [handle.follow(after_version=0) for handle in handles]
        alices = await runtime.session(NEW, user="alice")
        mine = alices.follow()
        waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
        await asyncio.sleep(0)
        await alices.send("A secret")
        assert isinstance((await anext(mine)), refold.RecordedEvent)
        for item in [*waiting, *(reader.__anext__() for reader in readers[:4])]:  # Asked again, they say the same.
            with pytest.raises(refold.CommandRejected, match=ANOTHERS):
                pytest.fail(f"it has {await item!r}")


async def test_who_follows_a_session_that_becomes_another_users_gets_nothing_from_there_on(tmp_path: Path) -> None:
    async with handles_of_bob(tmp_path / "events.db") as (runtime, handles):
        readers = [handle.follow(after_version=0) for handle in handles]
        trusted = await runtime.session(NEW)
        await trusted.send("For all")
        versions = [recorded.version async for recorded in trusted.events()]
        for reader in readers:
            assert [(await anext(reader)).version for _ in versions] == versions
        await (await runtime.session(NEW, user="alice")).send("A secret")
        for reader in readers:
            with pytest.raises(refold.CommandRejected, match=ANOTHERS):
                pytest.fail(f"it has {await anext(reader)!r}")


async def test_who_waits_for_a_run_is_not_told_how_it_ended_once_its_session_is_another_users() -> None:
    over = asyncio.Event()

    async def answer(request: refold.ModelRequest) -> str:
        await over.wait()
        return "A secret"

    async with runtime_on(":memory:", answer) as runtime:
        bobs = await runtime.session(NEW, user="bob")
        run = await (await runtime.session(NEW)).submit("For all")
        waiting = asyncio.ensure_future((await bobs.run(run.run)).result())
        for _ in range(20):
            await asyncio.sleep(0)
        await runtime.session(NEW, user="alice")
        over.set()
        with pytest.raises(refold.CommandRejected, match=ANOTHERS):
            await waiting


async def test_forks_and_children_are_of_the_user_for_whom_they_were_made() -> None:
    helps = refold.ScriptedProvider([refold.say("Done.")])
    helper = refold.Agent(name="helper", config=refold.AgentConfig(model="m"), provider=helps)
    answers: list[Any] = [refold.use("helper", {"task": "Help"}), refold.say("Hello.")]
    async with runtime_on(":memory:", *answers, tools=[helper.as_tool()]) as runtime:
        bobs = await runtime.session(NEW, user="bob")
        await (await runtime.session(NEW)).send("For all")
        made = [await bobs.fork(name="fork"), *await bobs.children()]
        assert len(made) == 2
        for session in made:
            await session.history()
            await (await runtime.session(session.id)).describe(user="alice")
            with pytest.raises(refold.CommandRejected, match="is another user's"):
                await session.history()


async def test_what_waits_in_another_users_session_is_not_decided_by_its_name(tmp_path: Path) -> None:
    async with handles_of_bob(tmp_path / "events.db") as (runtime, handles):
        await (await runtime.session("b", user="alice")).send("A secret")
        asked: dict[str, Any] = {"run": "run_3", "call": "call_6_0", "tool": "pay", "reason": ""}
        there = refold.AwaitedApproval(session="b", input={}, expires_at=0, at=0, **asked)  # type: ignore[arg-type]
        seen = AwaitedDecision(session="b", what="pay", decided=False, **asked)  # type: ignore[arg-type]
        for handle, call in zip(handles, [there, there, seen], strict=True):
            with pytest.raises(refold.CommandRejected, match="session 'b' is another user's"):
                await handle.decide(call, allow=True)


async def test_a_session_that_is_known_to_be_ones_own_is_read_no_more_than_by_trusted_code() -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_on(store) as runtime:
        await (await runtime.session(NEW, user="alice")).send("Hello")
        counts: list[int] = []
        for user in (None, "alice"):
            session, before = await runtime.session(NEW, user=user), len(store.reads)
            await session.steps()
            assert [event.version async for event in session.events()]
            assert await session.history()
            assert await session.metadata()
            counts.append(len(store.reads) - before)
        assert counts[0] == counts[1] > 0
