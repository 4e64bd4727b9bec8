"""How long a caller of another process waits: for a run, for a runtime, and for an inbox that others have."""

import asyncio
import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.actors import Clock, ManualClock, SystemClock
from refold.bell.listener import Alarm, Listener
from refold.events.core.ids import SessionId, StreamName
from refold.events.session.events import SessionDescribed
from refold.events.session.state import SessionState
from refold.remote import client, kept_log, mirror, protocol
from refold.remote import guest as guest_of_log
from refold.remote import owner as owner_of_log
from refold.remote.protocol import Inbox, InboxEntry, InboxOutcome
from refold.remote.rows import InboxCancel, InboxDescribe
from refold.remote.watching import outcome_within
from refold.stores.event_store import EventStore
from refold.stores.sqlite.store import SQLiteStore
from tests.runtime.remote.conftest import begun, runtime_of
from tests.runtime.remote.test_connection import hurried


async def test_a_wait_for_a_runtime_that_never_came_says_so_though_the_input_itself_was_news(log: Path) -> None:
    await begun(log, "s")
    unfinished = (
        await refold.connect(log, patience_s=0.3).session("s").send("and now?")
    )  # Longer than between two looks.
    assert isinstance(unfinished, refold.Unfinished)
    assert unfinished.why == f"no runtime owns the log; {unfinished.run} goes on when one does"


async def test_an_inbox_that_others_have_is_waited_for_as_long_as_the_caller_says_and_nothing_is_accepted_then(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await begun(log, "s")
    assert isinstance(await refold.connect(log, patience_s=0.1).session("new").send("first"), refold.Unfinished)
    monkeypatch.setattr(protocol, "INBOX_S", 0.05)
    with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(refold.PersistenceError, match="nothing of this was written; try again"):
            await refold.connect(log).session("new").send("second", wait_s=0.05)
    assert len(await inbox.waiting(SessionId("new"))) == 1


async def test_an_input_that_is_accepted_waits_no_longer_than_its_caller_says_for_an_inbox_that_others_have(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await begun(log, "s")
    monkeypatch.setattr(protocol, "INBOX_S", 0.05)
    with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:

        async def while_others_have_it(*arguments: Any) -> Any:
            if not other.in_transaction:
                other.execute("BEGIN EXCLUSIVE")
            return await outcome_within(*arguments)

        monkeypatch.setattr(client, "outcome_within", while_others_have_it)
        unfinished = await refold.connect(log, patience_s=0.2).session("new").send("hello", key="k")
    assert unfinished == refold.Unfinished(
        session=SessionId("new"), key="k", run=None, why="no runtime owns the log; the input waits in the inbox for one"
    )


async def test_a_guest_waits_no_longer_than_its_limit_for_an_inbox_that_others_have(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await begun(log, "s")
    await inbox.put("s", InboxDescribe(metadata={"plan": "free"}), "k")
    async with runtime_of(log, share=True), runtime_of(log, share=True, ask_timeout_s=0.5) as guest:
        reaching = guest._lifecycle.guest
        while not (reaching and reaching._mirror.listener.hears) or await inbox.waiting(SessionId("s")):  # noqa: ASYNC110
            await asyncio.sleep(0)
        monkeypatch.setattr(protocol, "INBOX_S", 0.05)
        with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(refold.PersistenceError, match="nothing of this was written; try again") as refused:
                await guest.delete("s")
        assert refused.value.outcome_unknown  # Its owner was asked directly, too.
        assert await inbox.waiting(SessionId("s")) == []
        assert await guest.sessions() == ["s"]


async def test_what_a_guest_gives_its_owner_directly_waits_for_no_process_that_was_stopped_while_it_had_the_inbox(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await begun(log, "s")
    await inbox.put("s", InboxDescribe(metadata={"plan": "free"}), "k")
    monkeypatch.setattr(protocol, "INBOX_S", 0.05)
    monkeypatch.setattr(owner_of_log, "LOOK_S", 0.05)
    async with runtime_of(log, share=True) as owner, runtime_of(log, share=True, ask_timeout_s=2) as guest:
        reaching, life = guest._lifecycle.guest, owner._lifecycle._life
        assert reaching is not None
        assert life is not None
        assert life._inbox is not None
        # Until its owner has looked whether more of the session is there, what is given comes behind that.
        while not reaching._mirror.listener.hears or await inbox.waiting(SessionId("s")) or life._inbox._behind:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as stopped:
            stopped.execute("BEGIN EXCLUSIVE")
            os.utime(inbox.file.path)  # Its owner looks into it at the next command.
            for name in ("s", "new"):
                assert (await (await guest.session(name)).send("hello?")).text == "Said."


@pytest.mark.parametrize(("answer", "unknown"), [(b"", True), (None, False)])
async def test_what_an_owner_was_given_and_did_not_answer_is_unknown_though_it_cannot_be_put_into_the_inbox(
    log: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, unknown: bool
) -> None:
    inbox = await begun(log, "s")
    await inbox.put("s", InboxDescribe(metadata={"plan": "free"}), "k")
    async with runtime_of(log, share=True), runtime_of(log, share=True, ask_timeout_s=0.2) as guest:

        async def give(listener: Listener, *_: Any, **named: Any) -> bytes | None:
            listener._writer = None  # Its owner has ended meanwhile, and may have performed it.
            return answer

        monkeypatch.setattr(protocol, "INBOX_S", 0.05)
        monkeypatch.setattr(Listener, "give", give)
        monkeypatch.setattr(client, "_owner_of", lambda _: refold.LogInUse(str(log), pid=1, host=None))
        with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            connected = refold.connect(log, patience_s=0.2).session("s")
            for ask in (lambda: guest.delete("s"), lambda: connected.describe(metadata={"plan": "paid"})):
                with pytest.raises(refold.PersistenceError, match="others had it") as refused:
                    await ask()
                assert refused.value.outcome_unknown is unknown


async def test_what_is_recorded_is_told_in_time_though_others_have_the_inbox_where_it_is_to_be_noted(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, append = await begun(log, "s"), SQLiteStore.append
    session = refold.connect(log, patience_s=0.1).session("s")
    assert await session.describe(metadata={"plan": "free"})
    monkeypatch.setattr(protocol, "INBOX_S", 0.05)
    with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:

        async def then_others_have_it(*arguments: Any) -> Any:
            appended = await append(*arguments)
            other.execute("BEGIN IMMEDIATE")
            return appended

        monkeypatch.setattr(SQLiteStore, "append", then_others_have_it)
        assert await session.describe(metadata={"plan": "paid"}, key="k")
    monkeypatch.undo()
    assert len(await inbox.waiting(SessionId("s"))) == 1
    assert await session.describe(metadata={"plan": "paid"}, key="k")
    assert await inbox.waiting(SessionId("s")) == []
    said = [each.event.metadata async for each in session.events() if isinstance(each.event, SessionDescribed)]
    assert said == [{"plan": "free"}, {"plan": "paid"}]


async def test_a_refusal_that_cannot_be_noted_is_not_told_since_the_command_waits_and_may_be_allowed_later(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, read = await begun(log, "s"), client.session_state
    session = refold.connect(log, patience_s=0.1).session("s")
    assert await session.describe(metadata={"plan": "free"})
    monkeypatch.setattr(protocol, "INBOX_S", 0.05)
    with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:

        async def then_others_have_it(*arguments: Any) -> Any:
            if not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")
            return await read(*arguments)

        monkeypatch.setattr(client, "session_state", then_others_have_it)
        assert not await session.decide("call", allow=True, key="k")
    monkeypatch.undo()
    assert len(await inbox.waiting(SessionId("s"))) == 1
    with pytest.raises(refold.CommandRejected):
        await session.decide("call", allow=True, key="k")
    assert await inbox.waiting(SessionId("s")) == []


async def test_an_error_tells_that_a_command_which_others_do_not_let_be_taken_back_may_be_performed_yet(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await begun(log, "s")
    session = refold.connect(log, patience_s=0.1).session("s")
    assert await session.describe(metadata={"plan": "free"})
    monkeypatch.setattr(protocol, "INBOX_S", 0.05)
    with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:

        async def fails(*_: Any) -> Any:
            raise refold.PersistenceError("the disk is full")

        async def fails_as_others_come(*_: Any) -> Any:
            other.execute("BEGIN IMMEDIATE")
            raise refold.PersistenceError("the disk is full")

        for append, unknown in ((fails, False), (fails_as_others_come, True)):
            monkeypatch.setattr(SQLiteStore, "append", append)
            with pytest.raises(refold.PersistenceError, match="the disk is full") as failed:
                await session.describe(metadata={"plan": "paid"})
            assert failed.value.outcome_unknown is unknown
    assert len(await inbox.waiting(SessionId("s"))) == 1


async def test_a_command_stays_in_an_inbox_that_cannot_be_read_in_time_since_others_have_it(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, opening = await begun(log, "s"), SQLiteStore.open
    session = refold.connect(log, patience_s=0.1).session("s")
    assert await session.describe(metadata={"plan": "free"})
    monkeypatch.setattr(protocol, "INBOX_S", 0.05)
    with closing(sqlite3.connect(inbox.file.path, isolation_level=None)) as other:

        async def while_others_have_it(*arguments: Any, **named: Any) -> Any:
            if not named.get("read_only") and not other.in_transaction:
                other.execute("BEGIN EXCLUSIVE")
            return await opening(*arguments, **named)

        monkeypatch.setattr(SQLiteStore, "open", while_others_have_it)
        assert not await session.describe(metadata={"plan": "paid"}, key="k")
    monkeypatch.undo()
    assert await session.describe(metadata={"plan": "paid"}, key="k")


@pytest.mark.parametrize("by", ["guest", "connection"])
async def test_who_waits_for_a_command_whose_outcome_a_jump_of_the_clock_removed_is_told_what_came_of_it(
    log: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    inbox = await begun(log, "s")
    jumped: list[InboxOutcome] = []

    async def after_a_jump(asked: Inbox, entry: InboxEntry, seconds: float, clock: Clock) -> InboxOutcome | None:
        if not jumped:
            while (outcome := await asked.outcome(entry)) is None:  # noqa: ASYNC110 - another actor brings it about
                await asyncio.sleep(0)
            jumped.append(outcome)
            other = await asked.put("s", InboxCancel(run=None), "other")
            await asked.file.finish(other.name, b"{}", SystemClock().now_us() + 8 * 24 * 3600 * 1_000_000)
        return await outcome_within(asked, entry, seconds, clock)

    async def unheard(*_: object, **__: object) -> bytes:
        return b""

    for module in (client, guest_of_log):
        monkeypatch.setattr(module, "outcome_within", after_a_jump)
    monkeypatch.setattr(Listener, "give", unheard)
    async with runtime_of(log, share=True) as owner, runtime_of(log, share=True) as guest:
        asking = (await guest.session("s")) if by == "guest" else refold.connect(log).session("s")
        result = await asking.send("and now?", key="k")
        assert isinstance(result, refold.RunResult)
        assert result.text == "Said."
        asked = [message.text for message in await (await owner.session("s")).history() if message.role == "user"]
    assert asked == ["hello", "and now?"]
    assert len(jumped) == 1
    assert await inbox.waiting(SessionId("s")) == []


async def test_who_waits_in_a_log_where_nothing_happens_reads_no_session_anew(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_log, "FOLDS_MAX", 1)
    calls = [refold.use("pay", {"amount": 3})] * 2
    async with runtime_of(log, *calls) as runtime:
        for name in ("a", "b"):
            await (await runtime.session(name)).submit("pay 3", key="k")
        connection = refold.connect(log)
        while len(await connection.approvals()) < 2:  # noqa: ASYNC110 - another actor brings it about
            await asyncio.sleep(0)
    clock, folded = ManualClock(), list[str]()
    fold = kept_log.Folds.session

    async def seen(folds: kept_log.Folds, store: EventStore, stream: StreamName) -> SessionState:
        folded.append(stream)
        return await fold(folds, store, stream)

    runs = [await refold.connect(log, clock=clock).session(name).run(key="k") for name in ("a", "b")]
    monkeypatch.setattr(kept_log.Folds, "session", seen)
    waiting = [asyncio.create_task(run.result()) for run in runs]
    while len(folded) < 4:  # noqa: ASYNC110 - Each is read when it is asked for, and when the wait begins.
        await asyncio.sleep(0)
    await hurried(clock, clock.sleep(40.0))
    assert len(folded) == 4
    for each in waiting:
        each.cancel()


async def test_connections_that_wait_in_one_event_loop_share_the_looks_at_a_log_as_their_clocks_tell_the_same(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, joined = list[mirror.Mirror](), list[object]()

    class Counted(mirror.Mirror):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

        @contextmanager
        def news_of(self, session: SessionId) -> Generator[Alarm]:
            joined.append(session)
            with super().news_of(session) as news:
                yield news

    async with runtime_of(log, refold.use("pay", {"amount": 3})) as runtime:
        handle = await (await runtime.session("s")).submit("pay 3", key="k")
        runs = [await refold.connect(log).session("s").run(key="k") for _ in range(5)]
        monkeypatch.setattr(mirror, "Mirror", Counted)
        waiting = [asyncio.create_task(run.result()) for run in runs]
        while len(joined) < 5:  # noqa: ASYNC110 - what happens in threads sets no event
            await asyncio.sleep(0)
        await handle.cancel()
        assert [(await each).outcome for each in waiting] == [refold.Cancelled()] * 5
    assert len(made) == 1
