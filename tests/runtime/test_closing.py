"""How a runtime begins and ends at bad moments, and who may use it."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.actors import Actor, ActorSystem, ManualClock, SystemClock
from refold.events import SESSION_CODEC, fold
from refold.events.session.events import RunResumed
from refold.remote.owner import InboxReader
from refold.stores import InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, Parked, events_of, results_of, types_of


def runtime_of(log: Any, *script: Any, **options: Any) -> refold.AgentRuntime:
    return refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=refold.ScriptedProvider(script), log=log, **options
    )


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
    with pytest.raises(refold.ActorStopped):
        await sending
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        assert (await store.head("session/s")) is not None


async def test_what_a_tool_brings_while_the_runtime_closes_begins_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.db"
    begun, goes_on = asyncio.Event(), asyncio.Event()

    @refold.tool
    async def work() -> str:
        """Work."""
        begun.set()
        await goes_on.wait()
        return "worked"

    async def stop_once_the_result_is_recorded(inbox: InboxReader) -> None:
        goes_on.set()
        async with await SQLiteStore.open(log, read_only=True) as store:
            while "tool_call_completed" not in repr(await store.read_stream("session/s")):
                pass
        await stop(inbox)

    stop = InboxReader.stop
    monkeypatch.setattr(InboxReader, "stop", stop_once_the_result_is_recorded)
    provider = refold.ScriptedProvider([refold.use("work"), HeldAnswer("never")])
    config = refold.AgentConfig(model="m")
    async with refold.AgentRuntime(config, provider=provider, tools=[work], log=log) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await begun.wait()
        await runtime.close()
    with pytest.raises(refold.ActorStopped):
        await sending
    assert len(provider.requests) == 1


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
    with pytest.raises(refold.ActorStopped):
        await sending
    async with runtime_of(store, refold.say("done")) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert [event.in_order for event in await events_of(session, RunResumed)] == [True]


async def test_a_damaged_runtime_stream_is_named_when_the_runtime_opens(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with runtime_of(log, refold.say("hi")) as runtime:
        await (await runtime.session("s")).send("hello")
    with sqlite3.connect(log) as connection:
        connection.execute("UPDATE events SET data = '{' WHERE version = 1 AND data LIKE '%runtime.started%'")
    connection.close()
    with pytest.raises(refold.LogFormatError, match="runtime/log@1"):
        await runtime_of(log).__aenter__()


async def test_a_runtime_is_refused_on_another_loop() -> None:
    async with runtime_of(":memory:", refold.say("hi")) as runtime:
        session = await runtime.session("s")

        def elsewhere() -> None:
            for use in (lambda: session.send("go"), runtime.close):
                with pytest.raises(refold.ConfigError, match="another event loop"):
                    asyncio.run(use())

        await asyncio.to_thread(elsewhere)
        assert (await session.send("go")).text == "hi"
    await asyncio.to_thread(lambda: asyncio.run(runtime.close()))  # There is nothing left to close.


async def test_a_session_actor_that_is_restarted_in_the_middle_of_a_tool_waits_for_it() -> None:
    parked, clock, failed = Parked(), ManualClock(), list[str]()
    options: dict[str, Any] = {"clock": clock, "on_failure": lambda failure: failed.append(failure.address)}
    script = [refold.use("act", {"name": "a"}), refold.say("done")]
    async with runtime_of(InMemoryStore(), *script, tools=[parked.act], **options) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        runtime.system.ref("session/s").tell(object())
        await clock.advance(1)
        await session.history()
        parked.gate.set()
        assert (await sending).text == "done"
        assert [block.text for block in await results_of(session)] == ["a returned"]
        assert "RunResumed" not in await types_of(session)
    assert (parked.begun, failed) == (["a"], ["session/s"])


# What is left


class Left:
    """The tasks and threads that there are; made before something that must leave none behind."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._threads = set(threading.enumerate())

    async def assert_nothing_more(self) -> None:
        """Wait for the threads that are ending, and check that no other one and no task has been added."""
        await asyncio.sleep(0)
        for thread in self._added():
            await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)
        assert self._added() == []
        assert asyncio.all_tasks() - self._tasks == set()

    def _added(self) -> list[threading.Thread]:
        added = set(threading.enumerate()) - self._threads
        return [thread for thread in added if not thread.name.startswith("asyncio_")]


@pytest.mark.parametrize("how", ["plainly", "with cancel", "by an error"])
async def test_no_task_and_no_thread_is_left_after_a_runtime(tmp_path: Path, how: str) -> None:
    begun = asyncio.Event()

    @refold.tool
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    @refold.tool(tier="observe")
    def quick() -> str:
        return "quick"

    async def use_it() -> None:
        script, path = [[refold.use("quick")] * 3, refold.say("one"), refold.use("work")], tmp_path / "events.db"
        async with runtime_of(path, *script, tools=[work, quick], close_grace_s=0) as runtime:
            session = await runtime.session("s")
            await session.send("first")
            sending = asyncio.create_task(session.send("go"))
            await begun.wait()
            if how == "with cancel":
                await runtime.close(cancel=True)
                assert (await sending).outcome == refold.Cancelled()
                return
            if how == "by an error":
                sending.cancel()
                raise LookupError("mine")
        with pytest.raises(refold.ActorStopped):
            await sending

    before = Left()
    if how == "by an error":
        with pytest.raises(LookupError):
            await use_it()
    else:
        await use_it()
    await before.assert_nothing_more()


async def test_a_closed_runtime_refuses_every_command_and_says_why() -> None:
    runtime = runtime_of(InMemoryStore(), refold.say("fine"))
    with pytest.raises(refold.ConfigError, match="not open"):
        await runtime.session("s")
    async with runtime:
        session = await runtime.session("s")
        await session.send("go")
    for command in (
        session.send("go"),
        session.cancel(),
        session.resume(),
        session.history(),
        session.decide("call_1_0", allow=True),
        runtime.session("other"),
    ):
        with pytest.raises(refold.ActorStopped, match="closed"):
            await command
    await runtime.close()
    with pytest.raises(refold.ConfigError, match="make another one"):
        await runtime.__aenter__()


async def test_a_closed_runtime_says_so_where_its_log_is_only_read(tmp_path: Path) -> None:
    async with runtime_of(tmp_path / "events.db", refold.say("fine")) as runtime:
        session = await runtime.session("s")
        await session.send("go")
    reads: list[Callable[[], Awaitable[object]]] = [
        runtime.sessions,
        runtime.list_sessions,
        session.children,
        session.metadata,
        session.state_at,
        lambda: anext(session.events()),
    ]
    for read in reads:
        with pytest.raises(refold.ActorStopped, match="the runtime is closed"):
            await read()


async def test_a_runtime_that_cannot_open_its_log_leaves_no_thread_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    path.write_bytes(b"this is no log at all, but long enough to be looked at" * 10)
    before = Left()
    with pytest.raises(refold.LogFormatError):
        await runtime_of(path).__aenter__()
    await before.assert_nothing_more()
    path.unlink()
    async with runtime_of(path, wait_for_log_s=0) as runtime:
        assert await runtime.sessions() == []


async def test_a_runtime_whose_start_fails_releases_its_file(tmp_path: Path) -> None:
    path = tmp_path / "events.db"

    class Broken(SystemClock):
        def now_us(self) -> int:
            raise RuntimeError("no time")

    before = Left()
    runtime = runtime_of(path, clock=Broken(), close_grace_s=0)
    with pytest.raises(RuntimeError, match="no time"):
        await runtime.__aenter__()
    await before.assert_nothing_more()
    async with runtime_of(path, wait_for_log_s=0) as again:
        assert await again.sessions() == []


class Stuck(Actor):
    async def on_receive(self, message: asyncio.Event) -> None:
        message.set()
        await asyncio.Event().wait()


async def in_a_model_call(clock: ManualClock) -> None:
    held = HeldAnswer("never")
    async with runtime_of(InMemoryStore(), held, clock=clock) as runtime:
        await fail_beside((await runtime.session("s")).send("go"), held.asked)


async def in_an_append(clock: ManualClock) -> None:
    store = FailingStore(InMemoryStore())
    async with runtime_of(store, refold.say("never"), clock=clock) as runtime:
        session, hold = await runtime.session("s"), store.hold_append(len(store.appends) + 1)
        await fail_beside(session.send("go"), hold.reached)


async def in_a_handler(clock: ManualClock) -> None:
    async with ActorSystem(clock=clock) as system:
        stuck, reached = await system.start(Stuck), asyncio.Event()
        stuck.tell(reached)
        await reached.wait()
        raise AssertionError("as tests fail")


async def fail_beside(sending: Coroutine[Any, Any, Any], reached: asyncio.Event) -> None:
    task = asyncio.create_task(sending)
    task.add_done_callback(lambda ended: ended.exception())
    await reached.wait()
    raise AssertionError("as tests fail")


@pytest.mark.parametrize("failing", [in_a_model_call, in_an_append, in_a_handler])
async def test_an_error_inside_ends_what_runs_on_a_clock_that_nobody_moves(failing: Any) -> None:
    clock = ManualClock()
    began_us = clock.now_us()
    with pytest.raises(AssertionError, match="as tests fail"):
        await failing(clock)
    ended_us = clock.now_us()
    assert ended_us - began_us >= 5_000_000, "the grace was given"
    await asyncio.sleep(0)
    assert clock.now_us() == ended_us, "and then the clock stands still again"
