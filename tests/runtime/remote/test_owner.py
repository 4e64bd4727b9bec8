"""A runtime and its inbox: what it performs, in which order, what it refuses, and what never stops it."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import refold
from refold.actors import ManualClock, SystemClock
from refold.events import StoredBlock
from refold.events.core.ids import RunId, ToolCallId
from refold.events.session.events import InputQueued, RunCancelled, RunCompleted, ToolApprovalRequested
from refold.inspection.check import check_log
from refold.remote.client import give
from refold.remote.owner import LOOK_AGAIN_S, InboxReader
from refold.remote.protocol import Done, Inbox, InboxEntry, InboxOutcome, Refused
from refold.remote.rows import InboxCancel, InboxCommand, InboxDecide, InboxSend
from refold.stores import InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, Seen
from tests.runtime.remote.conftest import begun, runtime_of


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A file that an inbox can be beside of."""
    path = tmp_path / "no.db"
    path.touch()
    return path


async def outcome(inbox: Inbox, entry: InboxEntry) -> InboxOutcome:
    while True:
        found = await inbox.outcome(entry)
        if found is not None:
            return found


async def performed(inbox: Inbox, session: str, command: InboxCommand, key: str = "k") -> Done:
    """Put a command there, and return what a runtime has done about it."""
    found = await outcome(inbox, await inbox.put(session, command, key))
    assert isinstance(found, Done)
    return found


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what happens in threads sets no event of this loop
        await asyncio.sleep(0)


async def inputs(runtime: refold.AgentRuntime, session: str) -> list[str]:
    found: list[str] = []
    async for recorded in (await runtime.session(session)).events():
        if isinstance(recorded.event, InputQueued):
            [block] = recorded.event.content
            found.append(block.text if isinstance(block, refold.TextBlock) else type(block).__name__)
    return found


def is_polling(clock: ManualClock) -> bool:
    """Tell whether a reader has done its work and waits for its next look; other timers are for seconds."""
    return min(clock.waiting(), default=1.0) <= 0.2


def insert(inbox: Inbox, session: str, key: str, command: bytes | None) -> None:
    with closing(sqlite3.connect(inbox.file.path)) as connection, connection:
        connection.execute(
            "INSERT INTO commands (session, key, digest, command, at) VALUES (?, ?, zeroblob(32), ?, 1)",
            (session, key, command),
        )


async def test_what_was_put_there_while_no_runtime_ran_is_performed_in_order_by_the_next_one(log: Path) -> None:
    inbox = await begun(log, "a", "b")
    entries = [await inbox.put(session, InboxSend(text=f"{n}"), f"{n}") for n in range(8) for session in ("a", "b")]
    async with runtime_of(log) as runtime:
        outcomes = [await outcome(inbox, entry) for entry in entries]
        for session in ("a", "b"):
            assert await inputs(runtime, session) == ["hello", *map(str, range(8))]
    assert all(isinstance(found, Done) and found.new and found.run for found in outcomes)


async def test_a_command_is_given_to_the_runtime_of_this_very_process(log: Path) -> None:
    async with runtime_of(log, refold.say("Said."), refold.use("pay", {"amount": 3}), refold.say("Paid.")) as runtime:
        session = await runtime.session("s")
        await session.send("hello")
        seen = Seen(runtime, session)
        given = await give(log, "s", InboxSend(text="pay 3"))
        assert isinstance(given.outcome, Done)
        await seen.first(ToolApprovalRequested)
        [call] = await session.approvals()
        misfit = await give(log, "s", InboxDecide(call=call.call, allowed=True, input={"amount": "much"}))
        assert isinstance(misfit.outcome, Refused)
        assert "the call waits on, since its new arguments cannot be used" in misfit.outcome.message
        assert await session.approvals() == [call]
        decided = await give(log, "s", InboxDecide(call=call.call, allowed=True, input={"amount": 5}))
        assert isinstance(decided.outcome, Done)
        again = await give(log, "s", InboxDecide(call=call.call, allowed=True))
        assert isinstance(again.outcome, Refused)
        assert (await session.send("pay 3", key=given.key)).text == "Paid."


async def test_what_is_in_the_log_and_was_not_noted_is_not_performed_again(log: Path) -> None:
    inbox = await begun(log, "s")
    entry = await inbox.put("s", InboxSend(text="once"), "k")
    async with runtime_of(log, inbox_poll_s=0) as runtime:  # As far as a runtime came before it crashed.
        run = (await (await runtime.session("s")).send("once", key="k")).run
    async with runtime_of(log) as runtime:
        found = await outcome(inbox, entry)
        assert await inputs(runtime, "s") == ["hello", "once"]
    assert isinstance(found, Done)
    assert (found.run, found.new) == (run, False)


async def test_a_bad_row_costs_itself_and_no_other(log: Path) -> None:
    inbox = await begun(log, "s")
    entries = [await inbox.put("s", InboxSend(text="first"), "1")]
    bad = {
        "text": b"no JSON",
        "kind": b'{"type":"shutdown"}',
        "field": b'{"type":"decide","call":"c","allow":true,"for_ever":true}',
        "types": b'{"type":"send","text":3}',
        "deep": b"[" * 100_000,
        "empty": b"",
        "none": None,
        "blank": b'{"type":"send","text":" "}',
        "call": b'{"type":"decide","call":"call_9_9","allow":true}',
        "surrogate": b'{"type":"send","text":"\xed\xa0\x80"}',
    }
    for key, command in bad.items():
        insert(inbox, "s", key, command)
    for session in ("nobody", "x" * 2_000):
        insert(inbox, session, "cancel", b'{"type":"cancel"}')
    entries += [await inbox.put("s", InboxSend(text="last"), "2")]
    async with runtime_of(log) as runtime:
        for entry in entries:
            assert isinstance(await outcome(inbox, entry), Done)
        while await inbox.file.sessions_waiting():
            assert runtime.commits
        assert await inputs(runtime, "s") == ["hello", "first", "last"]
        assert await runtime.sessions() == ["s"]
    with closing(sqlite3.connect(inbox.file.path)) as connection:
        rows = dict(
            connection.execute("SELECT key, outcome FROM commands WHERE CAST(outcome AS TEXT) LIKE '%refused%'")
        )
    assert set(rows) == {*bad, "cancel"}
    assert "does not wait for approval" in msgspec.json.decode(rows["call"], type=Refused).message
    assert "for_ever" in msgspec.json.decode(rows["field"], type=Refused).message


async def test_a_row_that_the_session_refuses_is_answered_and_lets_those_behind_it_be_performed(log: Path) -> None:
    inbox = await begun(log, "s")
    refused = await inbox.put("s", InboxDecide(call=ToolCallId("call_9_9"), allowed=True), "1")
    accepted = await inbox.put("s", InboxSend(text="next"), "2")
    async with runtime_of(log, inbox_poll_s=0) as runtime:
        await InboxReader(runtime.context, log).perform_waiting()
        outcomes = [await inbox.outcome(entry) for entry in (refused, accepted)]
        assert [type(found) for found in outcomes] == [Refused, Done]
        assert await inputs(runtime, "s") == ["hello", "next"]


async def test_a_session_of_another_agent_takes_cancellations_only(log: Path) -> None:
    inbox = await begun(log, "s")
    async with runtime_of(log, name="another") as runtime:
        sent = await outcome(inbox, await inbox.put("s", InboxSend(text="for whom?"), "1"))
        cancelled = await outcome(inbox, await inbox.put("s", InboxCancel(), "2"))
        assert await inputs(runtime, "s") == ["hello"]
    assert sent == Refused(
        message="session 's' is one of agent 'agent', and the runtime that owns the log runs agent 'another'"
    )
    assert cancelled == Done(version=0, new=False)


async def test_an_input_that_waits_is_cancelled_by_its_run(log: Path) -> None:
    inbox, held = await begun(log, "s"), HeldAnswer("never")
    async with runtime_of(log, held) as runtime:
        runs: list[RunId] = []
        for number in range(2):
            found = await performed(inbox, "s", InboxSend(text=f"{number}"), f"{number}")
            assert found.run is not None
            runs.append(found.run)
        await held.asked.wait()
        assert (await performed(inbox, "s", InboxCancel(run=runs[1]), "this")).run == runs[1]
        assert (await performed(inbox, "s", InboxCancel(), "any")).run == runs[0]
        session = await runtime.session("s")
        assert (await session.state_at()).run is None
        ended = [item.event.run async for item in session.events() if isinstance(item.event, RunCancelled)]
        assert ended == runs
    assert (await check_log(log)).sound


@pytest.mark.parametrize("content", ["text\n" * 2_000, "another database"])
async def test_a_file_that_is_no_inbox_is_logged_once_and_costs_the_runtime_nothing(
    log: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = await begun(log, "s")
    if content == "another database":
        with closing(sqlite3.connect(inbox.file.path)) as connection:
            connection.execute("CREATE TABLE t (x)")
    else:
        inbox.file.path.write_text(content)
    before = inbox.file.path.read_bytes()
    clock = ManualClock()
    with caplog.at_level(logging.WARNING, logger="refold.inbox"):
        async with runtime_of(log, clock=clock) as runtime:
            reader = InboxReader(runtime.context, log)
            for _ in range(3):
                await reader.perform_waiting()
            assert (await (await runtime.session("s")).send("still here")).text == "Said."
            assert reader.failures == 3
    assert inbox.file.path.read_bytes() == before
    assert 1 <= sum("is not an inbox" in record.message for record in caplog.records) <= 2
    inbox.file.path.unlink()
    async with runtime_of(log):
        await performed(inbox, "s", InboxSend(text="again"))


async def test_a_row_that_the_log_refuses_is_performed_later_and_lets_other_sessions_go_first(beside: Path) -> None:
    store, clock = FailingStore(InMemoryStore()), ManualClock()
    inbox = Inbox(beside, clock)
    store.fail_appends(lambda: refold.PersistenceError("the disk is full"), of="session/a")
    async with runtime_of(store, clock=clock) as runtime:
        reader = InboxReader(runtime.context, beside)
        first, second, other = [
            await inbox.put(session, InboxSend(text=text), text)
            for session, text in (("a", "1"), ("a", "2"), ("b", "3"))
        ]
        reader.start(0.2)
        await until(lambda: reader.failures)
        while await inbox.outcome(other) is None:  # It may have shared a transaction with what was refused.
            await until(lambda: is_polling(clock))
            await clock.advance(LOOK_AGAIN_S)
        while_refused = await inbox.outcome(first)
        store.mend()
        while await inbox.outcome(second) is None:
            await until(lambda: is_polling(clock))
            await clock.advance(LOOK_AGAIN_S)
        await reader.stop()
        assert while_refused is None
        assert isinstance(await inbox.outcome(first), Done)
        assert await inputs(runtime, "a") == ["1", "2"]


async def test_nothing_is_opened_while_nothing_changes(beside: Path, work_put: list[object]) -> None:
    clock = ManualClock()
    inbox = Inbox(beside, clock)

    async def polls(times: int, seconds: float = 0.1) -> int:
        """Return how much was done with files in so many polls."""
        before = len(work_put)
        for _ in range(times):
            await clock.advance(seconds)
            await until(lambda: is_polling(clock))
        return len(work_put) - before

    async with runtime_of(InMemoryStore(), clock=clock) as runtime:
        reader = InboxReader(runtime.context, beside)
        reader.start(0.1)
        assert await polls(3) == 0  # There is no file.
        entry = await inbox.put("s", InboxSend(text="one"), "one")
        await polls(1)
        assert isinstance(await outcome(inbox, entry), Done)
        await reader.perform_waiting()
        await polls(4)
        assert await polls(20) == 0
        assert await polls(1, LOOK_AGAIN_S) > 0
        await reader.stop()


async def test_a_runtime_that_closes_leaves_what_it_has_not_performed(log: Path) -> None:
    inbox = await begun(log, "s")
    async with runtime_of(log, inbox_poll_s=1_000):
        pass
    entry = await inbox.put("s", InboxSend(text="too late"), "k")
    assert await inbox.outcome(entry) is None
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    async with runtime_of(log, inbox_poll_s=0):
        pass
    assert await inbox.outcome(entry) is None


async def test_a_log_that_is_no_file_has_no_inbox() -> None:
    for log in (":memory:", InMemoryStore()):
        clock = ManualClock()
        async with runtime_of(log, clock=clock) as runtime:
            await (await runtime.session("s")).send("hello")
            assert not is_polling(clock)


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("\u20ac \U0001f600 \x00 \x1b[31m\u202e", "\u20ac \U0001f600 \x00 \x1b[31m\u202e"),
        ("half a pair \ud83d", "half a pair \ufffd"),
        ("word " * 400_000, StoredBlock.__name__),
    ],
)
async def test_any_text_arrives_as_it_was(log: Path, text: str, recorded: str) -> None:
    inbox = await begun(log, "s")
    async with runtime_of(log) as runtime:
        await performed(inbox, "s", InboxSend(text=text), "k \u20ac")
        assert (await inputs(runtime, "s"))[1:] == [recorded]
        [message] = (await (await runtime.session("s")).history())[2:3]
        [block] = message.content
        assert isinstance(block, refold.TextBlock)
        assert block.text == text.replace("\ud83d", "\ufffd")


@pytest.mark.parametrize(
    ("command", "key", "said"),
    [
        (InboxSend(text=""), "k", "the input is empty"),
        (InboxSend(text=" \n"), "k", "the input is empty"),
        (InboxSend(text="x" * 17_000_000), "k", "an inbox takes 16,777,216"),
        (InboxSend(text="x"), "", "a key is not empty"),
        (InboxCancel(), "k" * 513, "a key is text of 1 to 512 UTF-8 bytes"),
    ],
)
async def test_what_nobody_could_perform_is_refused_before_it_is_put_there(
    beside: Path, command: InboxCommand, key: str, said: str
) -> None:
    inbox = Inbox(beside, SystemClock())
    with pytest.raises(refold.CommandRejected, match=said):
        await inbox.put("s", command, key)
    assert await inbox.file.sessions_waiting() == []


async def test_a_row_that_is_gone_is_said_to_be(log: Path) -> None:
    inbox = await begun(log, "s")
    entry = await inbox.put("s", InboxDecide(call=ToolCallId("c"), allowed=True), "k")
    assert await inbox.file.take_back(entry.name)
    with pytest.raises(refold.CommandRejected, match=r"is not in the inbox .* any more"):
        await inbox.outcome(entry)


async def test_a_log_that_cannot_be_written_takes_the_command_back(log: Path) -> None:
    inbox = await begun(log, "s")
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.execute("UPDATE events SET data = '{}' WHERE version = 3")
    with pytest.raises(refold.PersistenceError):
        await give(log, "s", InboxSend(text="x"), key="k")
    assert await inbox.file.sessions_waiting() == []


async def test_a_command_that_is_recorded_directly_and_was_not_noted_is_found_by_the_next_runtime(log: Path) -> None:
    inbox = await begun(log, "s")
    given = await give(log, "s", InboxSend(text="directly"), key="k")
    assert isinstance(given.outcome, Done)
    with closing(sqlite3.connect(inbox.file.path)) as connection, connection:
        connection.execute("UPDATE commands SET outcome = NULL, command = ?", (b'{"type":"send","text":"directly"}',))
    [entry] = await inbox.waiting("s")
    async with runtime_of(log) as runtime:
        found = await outcome(inbox, entry)
        assert await inputs(runtime, "s") == ["hello", "directly"]
        session = await runtime.session("s")
        assert (await session.send("directly", key="k")).run == given.outcome.run
        assert sum([isinstance(item.event, RunCompleted) async for item in session.events()]) == 2
    assert found == Done(version=given.outcome.version, new=False, run=given.outcome.run)
    async with await SQLiteStore.open(log, read_only=True) as store:
        assert (await check_log(store)).sound
