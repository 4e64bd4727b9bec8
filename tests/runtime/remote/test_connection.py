"""A log seen from outside of its owner: sent through the inbox, read from the file, in the owner's own process too."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

import refold
from refold.actors import ManualClock, WouldDeadlock
from refold.events.session.events import InputQueued, RunCompleted, ToolApprovalDecided
from refold.inspection.check import check_log
from refold.publishing.notifications import RecordedSessionEvent
from refold.stores.sqlite.ownership import LogOwnership
from tests.conformance.sessions import HeldAnswer
from tests.runtime.remote.conftest import begun, runtime_of

T = TypeVar("T")


async def hurried(clock: ManualClock, work: Awaitable[T]) -> T:
    """Let time pass whenever a caller waits for it, until `work` is done.

    In small steps: while the log is read in a thread, the end of all patience may be the only thing that is waited for.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        if clock.waiting():
            await clock.advance(min(0.1, *clock.waiting()))
    return await task


def sent(result: refold.RunResult | refold.Unfinished) -> refold.RunResult:
    assert isinstance(result, refold.RunResult), result
    return result


async def test_a_session_is_begun_and_goes_on_through_its_owner(log: Path) -> None:
    async with runtime_of(log, refold.say("One."), refold.say("Two.")) as runtime:
        session = refold.connect(log).session("alice")
        first = sent(await session.send("1"))
        second = sent(await session.send("2"))
        assert (first.outcome, first.text, second.text) == (refold.Completed(), "One.", "Two.")
        assert await session.history() == await (await runtime.session("alice")).history()
        assert await refold.connect(log).sessions() == ["alice"]
    assert (await check_log(log)).sound


@pytest.mark.parametrize("first", ["owner", "connection"])
async def test_a_key_is_one_run_whether_the_owner_or_the_inbox_gets_it(log: Path, first: str) -> None:
    async with runtime_of(log) as runtime:
        ways: list[Any] = [(await runtime.session("s")).send, refold.connect(log).session("s").send]
        if first == "connection":
            ways.reverse()
        results = [sent(await send("hello", key="req-17")) for send in ways]
        assert results[0] == results[1]
        with pytest.raises(refold.CommandRejected, match="req-17"):
            await ways[1]("something else", key="req-17")
    assert sum([isinstance(item.event, InputQueued) async for item in refold.connect(log).session("s").events()]) == 1


@pytest.mark.parametrize("owned", [True, False])
async def test_a_key_that_an_earlier_refold_recorded_with_its_prefix_is_found(log: Path, owned: bool) -> None:
    runtime = runtime_of(log)
    async with runtime:
        run = (await (await runtime.session("s")).send("hello", key="inbox:k")).run
        if owned:
            assert sent(await refold.connect(log).session("s").send("hello", key="k")).run == run
    assert sent(await refold.connect(log).session("s").send("hello", key="k")).run == run
    assert (await check_log(log)).sound


async def test_who_does_not_wait_gets_the_answer_later_under_the_key(log: Path) -> None:
    model = HeldAnswer("At last.")
    async with runtime_of(log, model):
        session = refold.connect(log).session("s")
        unfinished = await session.send("slow", wait_s=0)
        assert isinstance(unfinished, refold.Unfinished)
        await model.asked.wait()
        again = await session.send("slow", key=unfinished.key, wait_s=0)
        assert isinstance(again, refold.Unfinished)
        assert (again.run, again.why) == ("run_3", "run_3 has not ended yet")
        model.gate.set()
        assert sent(await session.send("slow", key=unfinished.key)).text == "At last."


async def test_a_run_is_submitted_found_awaited_read_and_cancelled_from_another_process(log: Path) -> None:
    held = HeldAnswer("Done.")
    async with runtime_of(
        log, held, refold.use("pay", {"amount": 3}), *map(refold.say, ("Paid.", "1", "2"))
    ) as runtime:
        connection = refold.connect(log)
        session = connection.session("s")
        handle = await session.submit("go", key="k", max_turns=4)
        assert (handle.id, handle.key) == ("s/run_3", "k")
        ways: list[Any] = [
            await session.submit("go", key="k", max_turns=4),
            await session.run("run_3"),
            await session.run(key="k"),
            await connection.run("s/run_3"),
            await runtime.run("s/run_3"),
        ]
        waiting = [asyncio.create_task(way.result()) for way in (handle, *ways)]
        await held.asked.wait()
        assert [(await way.status()).state for way in (handle, *ways)] == ["open"] * 6
        held.gate.set()
        assert {result.text for result in await asyncio.gather(*waiting)} == {"Done."}
        names = [type(recorded.event).__name__ async for recorded in events_of(handle.stream())]
        assert names == ["InputQueued", "RunStarted", "ModelRequested", "ModelResponded", "RunCompleted"]
        assert [recorded.version async for recorded in events_of(handle.stream("5.5.12"))] == [6, 7]
        with pytest.raises(refold.CommandRejected, match="'k'"):
            await session.submit("go", key="k")

        paying = await session.submit("pay 3")
        result = asyncio.create_task(paying.result())  # It waits for the person, too.
        assert isinstance(await session.send("pay 3", key=paying.key), refold.Unfinished)
        [call] = await session.approvals()
        assert [(await run.status()).state for run in (paying, handle)] == ["waiting", "completed"]
        await session.decide(call, allow=True)
        assert (await result).text == "Paid."
        assert await paying.status() == refold.RunStatus("completed", await result)
        assert await handle.status() == await ways[-1].status()
        assert await paying.cancel()
        assert (await paying.result()).text == "Paid."
        sent_here = [await (await runtime.session("t")).send(text) for text in ("one", "two")]
        for result_here in sent_here:
            assert (await (await connection.run(f"t/{result_here.run}")).status()).result == result_here
        for unknown in (connection.run("s/run_4"), session.run(key="other"), session.run()):
            with pytest.raises(refold.ConfigError):
                await unknown


async def test_a_run_whose_input_waits_for_a_runtime_is_the_one_of_its_key(log: Path) -> None:
    await begun(log, "other")
    clock = ManualClock()
    session = refold.connect(log, patience_s=0, clock=clock).session("s")
    handle = await session.submit("go", key="k")
    assert (handle.id, handle.run, (await handle.status()).state) == (None, None, "queued")
    assert await session.approvals() == []
    assert isinstance(await session.send("go on", wait_s=0), refold.Unfinished)
    with pytest.raises(refold.CommandRejected, match="no run to cancel"):
        await handle.cancel()
    waiting = asyncio.create_task(handle.result())
    while not clock.waiting():  # noqa: ASYNC110 - It asks again after a pause.
        await asyncio.sleep(0)
    async with runtime_of(log):
        assert (await hurried(clock, waiting)).run == "run_3"
        assert handle.id == "s/run_3"


async def test_who_reads_a_run_or_follows_a_session_learns_that_it_was_deleted(log: Path) -> None:
    async with runtime_of(log, refold.use("pay", {"amount": 3})) as runtime:
        session = refold.connect(log).session("s")
        run = await session.submit("pay 3")
        readers = [run.stream(), session.follow(after_version=0)]
        for reader in readers:
            async for item in reader:
                if isinstance(item, refold.RecordedEvent) and type(item.event).__name__ == "ToolApprovalRequested":
                    break
        await runtime.delete("s", cancel=True)
        for reader in (readers[1], run.stream(), session.follow(after_version=0)):
            with pytest.raises(refold.CommandRejected, match="session 's' was deleted"):
                async for _ in reader:  # The cancellation may be read before.
                    pass
        with pytest.raises(refold.CommandRejected, match="session 's' was deleted"):
            await run.status()


async def test_metadata_goes_with_one_input_and_is_no_part_of_what_a_key_stands_for(log: Path) -> None:
    async with runtime_of(log) as runtime:
        session = refold.connect(log).session("s", user="alice", metadata={"plan": "free"})
        first = sent(await session.send("hello", key="k"))
        owned = await runtime.session("s")
        await owned.describe(metadata={"plan": "pro"})
        again = refold.connect(log).session("s", user="alice", metadata={"seen": "today"})
        for way in (session, again):
            assert sent(await way.send("hello", key="k")).run == first.run
        await session.send("hello again")
        assert (await owned.state_at()).metadata["plan"] == "pro"


async def test_what_is_said_of_a_session_waits_behind_a_decision_that_waits_for_a_runtime(log: Path) -> None:
    async with runtime_of(log, refold.use("pay", {"amount": 3})) as runtime:
        run = (await (await runtime.session("s")).submit("pay 3", key="k")).run
        while not await refold.connect(log).session("s").approvals():  # noqa: ASYNC110 - As a person looks.
            await asyncio.sleep(0)
    session = refold.connect(log, patience_s=0).session("s")
    [call] = await session.approvals()
    assert not await session.decide(call, allow=True)
    described = refold.connect(log, patience_s=0).session("s", metadata={"plan": "pro"})
    assert (await described.submit("pay 3", key="k")).run is None
    async with runtime_of(log, refold.say("Paid.")) as runtime:
        result = await refold.connect(log).session("s", metadata={"plan": "pro"}).send("pay 3", key="k")
        assert (sent(result).run, sent(result).text) == (run, "Paid.")
        assert (await (await runtime.session("s")).state_at()).metadata == {"plan": "pro"}


async def test_the_approvals_of_a_session_that_was_just_begun_are_none_and_of_no_session_an_error(log: Path) -> None:
    async with runtime_of(log, inbox_poll_s=3600):
        session = refold.connect(log).session("s")
        assert isinstance(await session.send("pay 3", wait_s=0), refold.Unfinished)
        assert await session.approvals() == []
        with pytest.raises(refold.ConfigError, match="no session"):
            await refold.connect(log).session("other").approvals()


def test_threads_hold_runs_too(log: Path) -> None:
    with runtime_of(log, refold.say("One."), refold.say("Two.")) as runtime:
        handle = runtime.session("s").submit("go", key="k")
        assert (handle.id, handle.result().text) == ("s/run_3", "One.")
        assert runtime.run(handle.id).result() == runtime.session("s").run(key="k").result()
        with handle.stream() as reader:
            assert [item.version for item in reader if isinstance(item, refold.RecordedEvent)] == [3, 4, 5, 6, 7]
            assert reader.place == "7"
        with refold.connect(log) as connection:
            other = connection.session("s").submit("and", key="l")
            assert other.result().text == "Two."
            assert connection.run(str(other.id)).result() == connection.session("s").run(key=other.key).result()
            assert other.status().result == other.result()
            assert [item.version for item in other.stream(9) if isinstance(item, refold.RecordedEvent)][-1] == 12
            assert other.cancel()


async def test_a_call_that_waits_for_approval_ends_the_wait_and_is_decided(log: Path) -> None:
    async with runtime_of(log, refold.use("pay", {"amount": 3}), refold.say("Paid.")):
        session = refold.connect(log).session("s")
        waiting = await session.send("pay 3")
        assert isinstance(waiting, refold.Unfinished)
        assert (waiting.run, waiting.why) == ("run_3", "run_3 waits for approval")
        [call] = await session.approvals()
        assert await refold.connect(log).approvals() == [call]
        assert (call.session, call.tool, (call.call,)) == ("s", "pay", waiting.calls)
        assert await session.decide(call.call, allow=True)
        assert sent(await session.send("pay 3", key=waiting.key)).text == "Paid."
        with pytest.raises(refold.CommandRejected, match="does not wait for approval"):
            await session.decide(call.call, allow=False)
        assert await session.approvals() == []


@pytest.mark.parametrize(("reason", "recorded"), [(None, ""), (5, "5")])
async def test_a_reason_of_any_type_is_recorded_as_text(log: Path, reason: Any, recorded: str) -> None:
    async with runtime_of(log, refold.use("pay", {"amount": 3}), refold.say("Not paid.")):
        session = refold.connect(log).session("s")
        await session.send("pay 3")
        [call] = await session.approvals()
        assert await session.decide(call, allow=False, reason=reason)
        events = [recorded.event async for recorded in session.events()]
    assert [event.reason for event in events if isinstance(event, ToolApprovalDecided)] == [recorded]


async def test_a_run_is_cancelled_and_who_waits_for_it_is_told(log: Path) -> None:
    model = HeldAnswer("never")
    async with runtime_of(log, model):
        session = refold.connect(log).session("s")
        sending = asyncio.create_task(session.send("hello"))
        await model.asked.wait()
        assert await session.cancel(reason="enough")
        assert sent(await sending).outcome == refold.Cancelled()
        assert await session.cancel()


async def test_who_stops_waiting_leaves_the_run_alone(log: Path) -> None:
    model = HeldAnswer("Done.")
    async with runtime_of(log, model):
        session = refold.connect(log).session("s")
        sending = asyncio.create_task(session.send("hello", key="k"))
        await model.asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        model.gate.set()
        assert sent(await session.send("hello", key="k")).text == "Done."


async def test_images_go_through_the_inbox(log: Path) -> None:
    image = refold.ImageBlock(media_type="image/png", data=b"\x89PNG")
    async with runtime_of(log):
        session = refold.connect(log).session("s")
        first = sent(await session.send(["what is this?", image], key="k"))
        assert sent(await session.send([refold.TextBlock(text="what is this?"), image], key="k")) == first
        assert (await session.history())[0].content == (refold.TextBlock(text="what is this?"), image)
        assert sent(await session.send([refold.TextBlock(text="text")], key="t")) == sent(
            await session.send("text", key="t")
        )


async def events_of(reader: AsyncIterator[Any]) -> AsyncGenerator[RecordedSessionEvent, None]:
    async for item in reader:
        if isinstance(item, refold.RecordedEvent):
            yield item


async def test_follow_yields_what_becomes_durable_from_the_beginning_or_from_now_on(log: Path) -> None:
    async with runtime_of(log):
        session = refold.connect(log).session("s")
        following = events_of(session.follow(after_version=0))
        first = asyncio.ensure_future(anext(following))
        await session.send("hello")
        versions = [(await first).version]
        async for recorded in following:
            versions.append(recorded.version)
            if isinstance(recorded.event, RunCompleted):
                break
        assert versions == list(range(1, versions[-1] + 1))
        assert [recorded.version async for recorded in session.events(after_version=2)] == versions[2:]
        await following.aclose()


@pytest.mark.slow
async def test_many_requests_at_once_are_all_answered(log: Path) -> None:
    async with runtime_of(log):
        sessions = [refold.connect(log, patience_s=100).session(f"s{number % 20}") for number in range(40)]
        results = await asyncio.gather(*[session.send("hello") for session in sessions])
        assert {sent(result).text for result in results} == {"Said."}
        assert len(await refold.connect(log).sessions()) == 20
    assert (await check_log(log)).sound


# No runtime.


async def test_without_a_runtime_an_input_is_recorded_and_the_wait_for_its_run_ends(log: Path) -> None:
    await begun(log, "s")
    clock = ManualClock()
    session = refold.connect(log, clock=clock, patience_s=100).session("s")
    unfinished = await hurried(clock, session.send("and now?", key="k"))
    assert isinstance(unfinished, refold.Unfinished)
    assert unfinished.run is not None
    assert unfinished.why == f"no runtime owns the log; {unfinished.run} goes on when one does"
    assert 100 <= clock.monotonic_s() < 200
    async with runtime_of(log):
        assert sent(await refold.connect(log).session("s").send("and now?", key="k")).run == unfinished.run


async def test_a_runtime_that_comes_in_time_is_waited_for(log: Path) -> None:
    await begun(log, "s")
    clock = ManualClock()
    waiting = asyncio.create_task(refold.connect(log, clock=clock, patience_s=100_000).session("new").send("hello"))
    while not (clock.waiting() or waiting.done()):  # noqa: ASYNC110 - it has seen that nobody owns the log
        await asyncio.sleep(0)
    async with runtime_of(log):
        assert sent(await hurried(clock, asyncio.wait_for(waiting, None))).text == "Said."


async def test_a_new_session_waits_in_the_inbox_for_the_next_runtime_and_so_does_its_cancellation(log: Path) -> None:
    await begun(log, "other")
    clock = ManualClock()
    session = refold.connect(log, clock=clock, patience_s=1).session("new")
    unfinished = await hurried(clock, session.send("hello", key="k"))
    assert unfinished == refold.Unfinished(
        session=session.id, key="k", run=None, why="no runtime owns the log; the input waits in the inbox for one"
    )
    assert await session.history() == []
    assert not await hurried(clock, session.cancel(key="c"))
    async with runtime_of(log, HeldAnswer("never")):
        assert sent(await refold.connect(log).session("new").send("hello", key="k")).outcome == refold.Cancelled()
    assert (await check_log(log)).sound


@pytest.mark.slow
async def test_an_owner_that_does_not_look_is_named(log: Path) -> None:
    async with runtime_of(log, inbox_poll_s=0):
        clock = ManualClock()
        unfinished = await hurried(clock, refold.connect(log, clock=clock).session("s").send("hello"))
        assert isinstance(unfinished, refold.Unfinished)
        assert f"process {os.getpid()} on host" in unfinished.why
        assert unfinished.run is None


async def test_only_an_input_begins_a_session(log: Path) -> None:
    async with runtime_of(log):
        await refold.connect(log).session("s").send("hello")
        session = refold.connect(log).session("mistyped")
        for command in (session.cancel(), session.decide("call_6_0", allow=True), session.approvals()):
            with pytest.raises(refold.ConfigError, match="no session 'mistyped'"):
                await command
        assert await session.history() == []
        assert [recorded async for recorded in session.events()] == []


# What it is connected to.


async def test_a_log_that_is_not_there_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    log = tmp_path / "none.db"
    with pytest.raises(refold.PersistenceError, match="does not exist"):
        await refold.connect(log).session("s").send("hello")
    with pytest.raises(refold.PersistenceError, match="does not exist"):
        await refold.connect(log).sessions()
    assert os.listdir(tmp_path) == []


CALLS: dict[str, Callable[[refold.Connection], Awaitable[object]]] = {
    "sessions": refold.Connection.sessions,
    "send": lambda connection: connection.session("s").send("hello"),
    "follow": lambda connection: connection.session("s").follow().__aenter__(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_log_that_its_owner_is_about_to_make_is_waited_for(log: Path, call: str) -> None:
    clock = ManualClock()
    about_to_make = await LogOwnership.acquire(log, wait_s=0)
    waiting = asyncio.ensure_future(CALLS[call](refold.connect(log, clock=clock)))
    while not (clock.waiting() or waiting.done()):  # noqa: ASYNC110 - it has seen that there is no file
        await asyncio.sleep(0)
    about_to_make.release()
    async with runtime_of(log):
        assert await hurried(clock, asyncio.wait_for(waiting, None)) is not None


def test_what_cannot_be_connected_to_is_refused(log: Path) -> None:
    with pytest.raises(refold.ConfigError, match="names no file"):
        refold.connect("")
    with pytest.raises(
        refold.ConfigError, match="a log in memory is its runtime's own and cannot be reached from elsewhere"
    ):
        refold.connect(":memory:")
    with pytest.raises(refold.ConfigError, match="other processes see no store"):
        refold.connect(object())  # type: ignore[arg-type]
    for patience_s in (-1, float("nan"), float("inf"), True):
        with pytest.raises(refold.ConfigError, match="patience_s must be a number"):
            refold.Connection(log, patience_s=patience_s)
    with pytest.raises(refold.ConfigError, match="session id"):
        refold.connect(log).session("")


async def test_a_connection_says_who_owns_the_log(log: Path) -> None:
    connection = refold.connect(log)
    assert connection.owner() is None
    async with runtime_of(log):
        owner = connection.owner()
        assert owner is not None
        assert owner.pid == os.getpid()
    assert connection.owner() is None


@pytest.mark.parametrize("owned", [True, False])
async def test_a_connection_forks_and_takes_back(log: Path, owned: bool) -> None:
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(runtime_of(log))
        session = refold.connect(log).session("s")
        await session.send("hello")
        await session.send("more")
        if not owned:
            await runtime.close()
        fork = await session.fork()
        named = await session.fork(at=7, name="named", model="other", system_prompt="Be brief.")
        assert (fork.id.split(".")[0], named.id) == ("s~12", "named")
        assert [len(await each.history()) for each in (session, fork, named)] == [4, 4, 2]
        assert await session.rewind()
        assert [len(await each.history()) for each in (session, fork)] == [2, 4]
        for wrong in (session.fork(at=6), session.fork(name="s"), session.rewind(10**6)):
            with pytest.raises(refold.CommandRejected):
                await wrong

    def goes_on() -> str:
        with runtime_of(log), refold.connect(log) as connection:
            return sent(connection.session("named").fork(name="third").send("go on")).text

    assert await asyncio.to_thread(goes_on) == "Said."
    assert (await check_log(log)).sound


async def test_another_thread_of_the_owners_process_uses_a_connection(log: Path) -> None:
    async with runtime_of(log):
        result = await asyncio.to_thread(lambda: asyncio.run(refold.connect(log).session("s").send("hello")))
        assert sent(result).text == "Said."


# Code without a loop.


def test_threads_use_a_connection_without_a_loop(log: Path) -> None:
    with (
        runtime_of(log, refold.use("pay", {"amount": 3}), refold.say("Paid."), HeldAnswer("never")),
        refold.connect(log) as connection,
    ):
        session = connection.session("s")
        waiting = session.send("pay 3")
        assert isinstance(waiting, refold.Unfinished)
        [call] = connection.approvals()
        assert session.approvals() == [call]
        assert session.decide(call.call, allow=True)
        assert sent(session.send("pay 3", key=waiting.key)).text == "Paid."
        assert isinstance(session.send("hang", wait_s=0), refold.Unfinished)
        followed = (item for item in session.follow(after_version=0) if isinstance(item, refold.RecordedEvent))
        while not isinstance(next(followed).event, RunCompleted):
            pass
        while "ModelRequested" not in type(next(followed).event).__name__:
            pass
        assert session.cancel()
        assert [message.role for message in session.history()][:2] == ["user", "assistant"]
        assert [recorded.version for recorded in session.events()][:3] == [1, 2, 3]
        assert connection.sessions() == ["s"]
        assert connection.owner() is not None


def test_a_connection_for_threads_is_used_again_after_its_end(log: Path) -> None:
    with runtime_of(log):
        connection = refold.SyncConnection(refold.connect(log))
        for text in "12":
            assert sent(connection.session("s").send(text)).text == "Said."
            connection.close()
            connection.close()


async def test_a_blocking_call_in_a_thread_with_a_loop_is_refused(log: Path) -> None:
    with refold.connect(log) as connection, pytest.raises(WouldDeadlock):
        connection.sessions()


@pytest.mark.parametrize("owned", [True, False])
async def test_another_process_names_users_and_is_refused_the_sessions_of_others(log: Path, owned: bool) -> None:
    connection = refold.connect(log)
    async with runtime_of(log) as runtime:
        alices = connection.session("s", user="alice", metadata={"plan": "free"})
        await alices.send("hello")
        if owned:
            await user_is_kept(connection)
            assert (await runtime.session("s", user="alice")).id == "s"
    if not owned:
        await user_is_kept(connection)
    async with runtime_of(log) as runtime:
        noted = await (await runtime.session("s", user="alice")).metadata()
        assert noted is not None
        assert (noted.user, noted.metadata) == ("alice", {"plan": "pro"})
        with pytest.raises(refold.CommandRejected, match="is another user's"):
            await runtime.session("s", user="bob")
    assert (await check_log(log)).sound


async def user_is_kept(connection: refold.Connection) -> None:
    assert await connection.session("s", user="alice").describe(metadata={"plan": "pro"})
    alices, bobs = (connection.session("s", user=user) for user in ("alice", "bob"))
    await alices.send("hello again", wait_s=0, key="again")
    assert await alices.history()
    for call in (
        lambda: bobs.send("hello", wait_s=0),
        bobs.history,
        bobs.cancel,
        bobs.approvals,
        lambda: bobs.decide("call_6_0", allow=True),
        lambda: bobs.describe(metadata={"plan": "none"}),
        lambda: anext(bobs.events()),
        lambda: anext(bobs.follow(after_version=0)),
        lambda: bobs.run(key="again"),
    ):
        with pytest.raises(refold.CommandRejected, match="is another user's"):
            await call()


async def test_a_session_whose_first_input_waits_in_the_inbox_is_its_users_already(log: Path) -> None:
    await begun(log, "other")
    connection = refold.connect(log, patience_s=0)
    alices, bobs = (connection.session("s", user=user) for user in ("alice", "bob"))
    await alices.submit("hello", key="k")
    for refused in (bobs.cancel, bobs.rewind):
        with pytest.raises(refold.CommandRejected, match="is another user's"):
            await refused()
    assert not await alices.describe(metadata={"plan": "pro"})
    async with runtime_of(log):
        assert sent(await refold.connect(log).session("s", user="alice").send("hello", key="k")).text == "Said."
