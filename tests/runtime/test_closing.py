"""How a runtime begins and ends at bad moments, and who may use it."""

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    ConfigError,
    LogFormatError,
    ScriptedProvider,
    say,
)
from refold.events import SESSION_CODEC, fold
from refold.events.session.events import RunCompleted, RunResumed
from refold.stores import InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, events_of


def runtime_of(log: Any, *script: Any, **options: Any) -> AgentRuntime:
    return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider(script), log=log, **options)


async def test_a_close_that_is_cancelled_gives_up_the_grace_and_still_lets_go_of_everything(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    held = HeldAnswer("never")
    runtime = runtime_of(log, held, close_grace_s=3600)
    await runtime.__aenter__()
    sending = asyncio.create_task((await runtime.session("s")).send("go"))
    await held.asked.wait()
    closing = asyncio.create_task(runtime.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ActorStopped):
        await sending
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        assert (await store.head("session/s")) is not None


async def test_closing_with_cancel_ends_runs_whose_inputs_were_accepted_just_before() -> None:
    for steps in range(8):
        store = InMemoryStore()
        async with runtime_of(store, *[HeldAnswer("never")] * 3) as runtime:
            sessions = [await runtime.session(f"s{number}") for number in range(3)]
            sending = [asyncio.create_task(session.send("go")) for session in sessions]
            for _ in range(steps):
                await asyncio.sleep(0)
            await runtime.close(cancel=True)
            await asyncio.gather(*sending, return_exceptions=True)
        for session in sessions:
            state = fold(SESSION_CODEC.decode_all(await store.read_stream(f"session/{session.id}")))
            assert state.run is None
            assert state.queue == []


async def test_a_run_that_was_left_open_by_an_orderly_end_is_known_not_to_have_crashed() -> None:
    store, held = InMemoryStore(), HeldAnswer("never")
    async with runtime_of(store, held, close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        await held.asked.wait()
    with pytest.raises(ActorStopped):
        await sending
    async with runtime_of(store, say("done")) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert [event.in_order for event in await events_of(session, RunResumed)] == [True]


async def test_a_damaged_runtime_stream_is_named_when_the_runtime_opens(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with runtime_of(log, say("hi")) as runtime:
        await (await runtime.session("s")).send("hello")
    with sqlite3.connect(log) as connection:
        connection.execute("UPDATE events SET data = '{' WHERE version = 1 AND data LIKE '%runtime.started%'")
    connection.close()
    with pytest.raises(LogFormatError, match="runtime/log@1"):
        await runtime_of(log).__aenter__()


async def test_a_session_whose_stream_cannot_be_read_does_not_keep_the_others_from_resuming() -> None:
    store, held = FailingStore(InMemoryStore()), [HeldAnswer("never") for _ in range(3)]
    async with runtime_of(store, *held, close_grace_s=0) as runtime:
        sending = [asyncio.create_task((await runtime.session(name)).send("go", key="k")) for name in "abc"]
        await asyncio.gather(*(answer.asked.wait() for answer in held))
    await asyncio.gather(*sending, return_exceptions=True)
    store.fail_reads(lambda: LogFormatError("stream session/a is damaged"), of="session/a")
    runtime = runtime_of(store, say("again"), say("again"))
    completed, both = list[str](), asyncio.Event()

    def see(recorded: Any) -> None:
        if isinstance(recorded.event, RunCompleted):
            completed.append(recorded.stream)
        if len(completed) == 2:
            both.set()

    runtime.subscribe(see)
    async with runtime:
        await both.wait()
        with pytest.raises(LogFormatError, match="session/a is damaged"):
            await (await runtime.session("a")).send("go", key="k")
    assert sorted(completed) == ["session/b", "session/c"]


async def test_a_runtime_is_refused_on_another_loop() -> None:
    async with runtime_of(":memory:", say("hi")) as runtime:
        session = await runtime.session("s")

        def elsewhere() -> None:
            with pytest.raises(ConfigError, match="another event loop"):
                asyncio.run(session.send("go"))

        await asyncio.to_thread(elsewhere)
        assert (await session.send("go")).text == "hi"


async def test_a_runtime_is_refused_in_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    async with runtime_of(":memory:", say("hi")) as runtime:
        session = await runtime.session("s")
        own = os.getpid()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: own + 1)
            with pytest.raises(ConfigError, match="forked"):
                await session.send("go")
        assert (await session.send("go")).text == "hi"
