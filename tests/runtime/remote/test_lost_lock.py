"""An owner of a shared log whose lock is lost, so that another process has the log, goes on as a guest of that one."""

import asyncio
import gc
import itertools
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentRuntime,
    ConfigError,
    RecordedEvent,
    Session,
    connect,
    tool,
    use,
)
from refold.actors.shell.journal import Journal
from refold.bell.owner_end import bell_of
from refold.events.session.events import InputQueued, RunCompleted, RunResumed
from refold.inspection.check import check_log
from refold.life import lifecycle
from refold.life import owner as owners_life
from refold.remote.guest import Guest
from refold.stores.sqlite.append import LogWriter
from refold.stores.sqlite.store import SQLiteStore
from tests.runtime.remote.conftest import runtime_of
from tests.runtime.remote.test_hosted import Book, Note, Wish
from tests.runtime.remote.test_sharing import Model, Reader, shared, streaming


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what happens in threads sets no event of this loop
        await asyncio.sleep(0.005)


async def takes_over(log: Path, guest: AgentRuntime) -> None:
    """Have the lock lost, as by a script that cleans up, and a guest take it."""
    log.with_name(f"{log.name}.lock").unlink()
    await until(lambda: guest.is_owner)


@pytest.mark.parametrize("pieces", [0, 2])
async def test_who_waits_for_a_run_and_reads_it_goes_on_through_the_new_owner(tmp_path: Path, pieces: int) -> None:
    model, log = Model(3, hangs=True), tmp_path / "events.db"
    async with streaming(log, model) as owner, streaming(log, model) as guest:
        session = await owner.session("s")
        run = await session.submit("go", key="k")
        waiting = [asyncio.create_task(run.result()), asyncio.create_task(session.send("go", key="k"))]
        seen: list[tuple[int, type]] = []
        owner.subscribe(lambda recorded: seen.append((recorded.version, type(recorded.event))), session="s")
        reader = Reader()
        reading = asyncio.create_task(reader.read(run))
        for number in range(pieces):
            model.let(number)
        while reader.text.count(":") < pieces:
            await reader.shown.get()
        versions = [recorded.version async for recorded in session.events()]
        await takes_over(log, guest)
        for number in range(4):
            model.let(number)
        assert [(await each).text for each in waiting] == [model.text] * 2
        await reading
        assert (reader.ended, reader.text, model.calls) == (True, model.text, 2)
        assert (owner.is_owner, guest.is_owner) == (False, True)
        told = [version for version, _ in seen]
        assert told == list(range(told[0], told[-1] + 1)), "a gap, or a repetition"
        assert told[0] == versions[-1] + 1
        assert [kind for _, kind in seen if kind in (RunResumed, RunCompleted)] == [RunResumed, RunCompleted]
        assert (await session.send("go", key="k")).text == model.text
        inputs = [event async for event in session.events() if isinstance(event.event, InputQueued)]
        assert len(inputs) == 1
    assert (await check_log(log)).sound


async def test_all_that_is_asked_of_a_runtime_that_was_the_owner_is_done_by_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with shared(log, [], []) as (owner, guest):
        books = [await runtime.host("book", Book) for runtime in (owner, guest)]
        asked: dict[str, Callable[[], Any]] = {}
        sessions = {name: await owner.session(name) for name in ("old", "gone", "kept")}
        for session in sessions.values():
            await session.send("hello")
        await (await owner.session("eve", user="eve")).send("hello")
        old = sessions["old"]
        asked["send"] = lambda: old.send("more")
        asked["first"] = lambda: _sent(owner, "new")
        asked["history"] = old.history
        asked["fork"] = lambda: old.fork(name="fork")
        asked["delete"] = lambda: owner.delete("gone")
        asked["delete_user"] = lambda: owner.delete_user("eve")
        asked["retain"] = lambda: owner.retain(timedelta(days=1))
        asked["ask"] = lambda: books[0].ask("a", Note(text="one", key="1"))
        asked["read"] = lambda: books[0].read("a", lambda state: state.texts)
        await takes_over(log, guest)
        found = dict(zip(asked, await asyncio.gather(*(call() for call in asked.values())), strict=True))
        assert (found["send"].text, found["first"].text, found["fork"].id) == ("Said.", "Said.", "fork")
        assert (found["delete"].events > 2, found["ask"].new, not owner.is_owner) == (True, True, True)
        assert [each.session for each in found["delete_user"].sessions] == ["eve"]
        assert sorted(await owner.sessions()) == ["fork", "kept", "new", "old"] == sorted(await guest.sessions())
        assert await books[1].read("a", lambda state: state.texts) == ["one"]
        counted = [(await runtime.metrics.snapshot()).sessions for runtime in (owner, guest)]
        await _sent(owner, "one more")
        counted += [(await runtime.metrics.snapshot()).sessions for runtime in (owner, guest)]
        assert counted == [counted[0], counted[0], counted[0] + 1, counted[0] + 1]
        with pytest.raises(ConfigError, match="derive it from KeyedCommand"):
            await books[0].ask("a", Wish(text="no"))
        assert (await connect(log).session("old").history())[-1].text == "Said."
        await guest.close()  # And back.
        await until(lambda: owner.is_owner)
        assert (await old.send("again")).text == "Said."
        assert (await books[0].ask("a", Wish(text="two"))).version == 2
        async with runtime_of(log, share=True) as third:
            await takes_over(log, third)
            await until(lambda: not owner.is_owner)
            assert (await old.send("and again")).text == "Said."
            assert await books[0].read("a", lambda state: state.texts) == ["one", "two"]
    assert (await check_log(log, kinds={"book": Book})).sound


@pytest.mark.parametrize(
    ("waits_in", "work"),
    [
        ((Journal, "append"), lambda _, session: session.fork(name="fork")),
        ((SQLiteStore, "delete_streams"), lambda owner, _: owner.delete("eve")),
        ((SQLiteStore, "delete_streams"), lambda owner, _: owner.delete_user("eve")),
        ((SQLiteStore, "list_streams"), lambda owner, _: owner.retain(timedelta(0))),
    ],
    ids=["fork", "delete", "delete_user", "retain"],
)
async def test_work_that_is_half_done_when_the_log_is_left_is_done_by_the_new_owner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits_in: tuple[type, str],
    work: Callable[[AgentRuntime, Session], Any],
) -> None:
    log, (place, method) = tmp_path / "events.db", waits_in
    arrived, left = asyncio.Event(), asyncio.Event()
    through = getattr(place, method)

    async def waits(*arguments: Any, **named: Any) -> Any:
        if not arrived.is_set():
            arrived.set()
            await left.wait()
        return await through(*arguments, **named)

    async with shared(log, [], []) as (owner, guest):
        session = await owner.session("eve", user="eve")
        await session.send("hello")
        monkeypatch.setattr(place, method, waits)
        working = asyncio.create_task(work(owner, session))
        await arrived.wait()
        await takes_over(log, guest)
        await until(lambda: not owner.is_owner)
        left.set()
        assert await working
        assert await owner.sessions() == (["eve", "fork"] if method == "append" else [])
    assert (await check_log(log)).sound


async def test_who_asked_for_a_deletion_that_was_done_when_the_log_was_left_is_told_what_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, done, left, through = tmp_path / "events.db", asyncio.Event(), asyncio.Event(), SQLiteStore.delete_streams

    async def slowly_told(*arguments: Any, **named: Any) -> Any:
        erased = await through(*arguments, **named)
        done.set()
        await left.wait()
        return erased

    async with shared(log, [], []) as (owner, guest):
        await _sent(owner, "s")
        version = [event.version async for event in (await owner.session("s")).events()][-1]
        monkeypatch.setattr(SQLiteStore, "delete_streams", slowly_told)
        deleting = asyncio.create_task(owner.delete("s"))
        await done.wait()
        await takes_over(log, guest)
        await until(lambda: not owner.is_owner)
        left.set()
        deletion = await deleting
        assert (deletion.deleted_before, deletion.streams, deletion.events) == (True, ("session/s",), version)


async def test_work_that_was_begun_as_an_earlier_owner_is_done_by_a_later_one_that_stays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, arrived, go_on, append = tmp_path / "events.db", asyncio.Event(), asyncio.Event(), Journal.append

    async def waits(*arguments: Any) -> Any:
        monkeypatch.undo()
        arrived.set()
        await go_on.wait()
        return await append(*arguments)

    async with shared(log, [], []) as (owner, guest):
        session = await owner.session("s")
        await session.send("hello")
        monkeypatch.setattr(Journal, "append", waits)
        forking = asyncio.create_task(session.fork(name="fork"))
        await arrived.wait()
        await takes_over(log, guest)
        await until(lambda: not owner.is_owner)
        await guest.close()
        await until(lambda: owner.is_owner)
        journal = owner._lifecycle.context.journal
        go_on.set()
        assert (await forking).id == "fork"
        assert (owner._lifecycle.context.journal is journal, journal.lost) == (True, False)
    assert (await check_log(log)).sound


async def test_an_input_that_becomes_durable_while_its_owner_leaves_the_log_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, begun, may_go_on = tmp_path / "events.db", threading.Event(), threading.Event()
    insert = LogWriter._insert

    def slowly(self: LogWriter, *arguments: Any) -> Any:
        heads = insert(self, *arguments)
        begun.set()
        assert may_go_on.wait(60)
        return heads

    monkeypatch.setattr(lifecycle, "LEAVE_S", 0.0)
    async with shared(log, [], []) as (owner, guest):
        session = await owner.session("s")
        await session.send("hello")
        monkeypatch.setattr(LogWriter, "_insert", slowly)
        sending = asyncio.create_task(session.send("once"))
        await until(begun.is_set)
        log.with_name(f"{log.name}.lock").unlink()
        await until(lambda: owner.context.journal.lost)
        for _ in range(200):
            await asyncio.sleep(0)  # An actor that was to be ended now would be.
        may_go_on.set()
        assert (await sending).text == "Said."
        await until(lambda: guest.is_owner)
        assert len([event async for event in session.events() if isinstance(event.event, InputQueued)]) == 2


async def test_a_runtime_whose_log_is_taken_while_it_opens_begins_as_a_guest(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with AsyncExitStack() as stack:
        others: list[AgentRuntime] = []

        @asynccontextmanager
        async def database() -> AsyncIterator[str]:
            if not others:
                log.with_name(f"{log.name}.lock").unlink()
                others.append(await stack.enter_async_context(runtime_of(log, share=True)))
            yield "database"

        async with runtime_of(log, share=True, deps=database) as runtime:
            await until(lambda: others[0].is_owner)
            assert not runtime.is_owner
            assert (await _sent(runtime, "s")).text == (await _sent(others[0], "s")).text == "Said."
    assert (await check_log(log)).sound


@pytest.mark.parametrize("turns", [0, 20])
async def test_opening_that_is_cancelled_as_the_log_is_left_leaves_nothing_behind(tmp_path: Path, turns: int) -> None:
    log = tmp_path / "events.db"
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def database() -> AsyncIterator[str]:
            log.with_name(f"{log.name}.lock").unlink()
            await stack.enter_async_context(runtime_of(log, share=True))
            yield "database"

        runtime = runtime_of(log, share=True, deps=database)
        opening = asyncio.create_task(runtime.__aenter__())
        while runtime._lifecycle._leaving is None:  # noqa: ASYNC110 - nothing is told of it
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()  # Which warns of a log that was not closed.


async def test_a_runtime_whose_log_is_taken_as_its_bell_is_hung_up_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, others = tmp_path / "events.db", list[AgentRuntime]()
    async with AsyncExitStack() as stack:

        async def taken(*arguments: Any, **named: Any) -> Any:
            monkeypatch.undo()
            log.with_name(f"{log.name}.lock").unlink()
            others.append(await stack.enter_async_context(runtime_of(log, share=True)))
            await until(lambda: opening.context.journal.lost)
            return await bell_of(*arguments, **named)

        monkeypatch.setattr(owners_life, "bell_of", taken)
        opening = (runtime := runtime_of(log, share=True))._lifecycle
        async with runtime:
            assert not runtime.is_owner
            assert opening._life is None
            assert (await _sent(runtime, "s")).text == (await _sent(others[0], "s")).text == "Said."
            await others[0].close()
            await until(lambda: runtime.is_owner)
            assert (await _sent(runtime, "s")).text == "Said."
    assert (await check_log(log)).sound


async def _sent(runtime: AgentRuntime, name: str) -> Any:
    return await (await runtime.session(name)).send("hello")


async def test_an_owner_that_writes_nothing_notices_it_too(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with shared(log, [], []) as (owner, guest):
        await takes_over(log, guest)
        await until(lambda: not owner.is_owner)


async def test_a_cancellation_of_that_moment_reaches_the_new_owner(tmp_path: Path) -> None:
    model, log = Model(1, hangs=True), tmp_path / "events.db"
    model.let(0)
    async with streaming(log, model) as owner, streaming(log, model) as guest:
        sending = asyncio.create_task((await owner.session("s")).send("go", key="k"))
        await model.asked.get()
        await takes_over(log, guest)
        sending.cancel()
        await asyncio.wait([sending])
        run = await (await guest.session("s")).run(key="k")
        assert type((await run.result()).outcome).__name__ == "Cancelled"


@pytest.mark.parametrize("ends", [True, False])
async def test_who_waits_for_a_session_that_the_new_owner_deletes_is_told_so(tmp_path: Path, ends: bool) -> None:
    log, began, go_on = tmp_path / "events.db", asyncio.Event(), asyncio.Event()

    @tool
    async def goes_on() -> str:
        """Go on though it is cancelled."""
        began.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        return "done"

    async with shared(log, [use("goes_on", {})], [], cancel_grace_s=3600) as (owner, guest), AsyncExitStack() as stack:
        stack.callback(go_on.set)
        owner.tools.register(goes_on)
        session = await owner.session("s")
        waiting = asyncio.create_task(session.send("go"))
        await began.wait()
        cancelling = asyncio.create_task(session.cancel())
        await until(owner._lifecycle.event_bus.ending_sessions)
        await takes_over(log, guest)
        assert (await guest.delete("s", cancel=True)).events
        if ends:
            go_on.set()
        with pytest.raises(ActorStopped, match="deleted"):
            await waiting
        go_on.set()
        await asyncio.gather(cancelling, return_exceptions=True)
        assert (await _sent(owner, "other")).text == "Said."


async def test_a_log_is_not_taken_over_before_it_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, settles, go_on, settle = tmp_path / "events.db", asyncio.Event(), asyncio.Event(), Guest.settle

    async def slowly(guest: Guest) -> None:
        settles.set()
        await go_on.wait()
        await settle(guest)

    async with shared(log, [], []) as (owner, guest):
        monkeypatch.setattr(Guest, "settle", slowly)
        await takes_over(log, guest)
        await settles.wait()
        begun = owner._lifecycle._taking_over
        go_on.set()
        assert begun is None
        await guest.close()
        await until(lambda: owner.is_owner)
        async with runtime_of(log, share=True) as third:
            await takes_over(log, third)
            assert (await _sent(owner, "s")).text == "Said."


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_each_input_has_one_run_however_often_the_log_changes_hands(tmp_path: Path, seed: int) -> None:
    chance, log, sent, over = random.Random(seed), tmp_path / "events.db", list[tuple[str, str]](), asyncio.Event()
    async with shared(log, [], [], []) as runtimes:

        async def send(name: str, client: int) -> None:
            for number in itertools.count():
                if over.is_set():
                    return
                session, text = await chance.choice(runtimes).session(name), f"{client} {number}"
                key = text if chance.random() < 0.5 else None
                assert (await session.send(text, key=key)).text == "Said."
                sent.append((name, text))

        async def read(runtime: AgentRuntime, name: str) -> None:
            version = 0
            async for item in (await runtime.session(name)).follow(after_version=0):
                if isinstance(item, RecordedEvent):
                    version += 1
                    assert item.version == version, "a gap, or a repetition"

        names = ["a", "b", "c"]
        sending = [asyncio.create_task(send(name, client)) for name in names for client in range(2)]
        reading = [asyncio.create_task(read(*each)) for each in zip(runtimes, names, strict=True)]
        for _ in range(5):
            wanted = len(sent) + chance.randrange(12)
            await until(lambda wanted=wanted: len(sent) >= wanted)  # type: ignore[misc]
            log.with_name(f"{log.name}.lock").unlink(missing_ok=True)
        over.set()
        await asyncio.gather(*sending)
        assert not any(runtime.is_closing for runtime in runtimes)
        found: list[tuple[str, str]] = []
        for name in names:
            events = [recorded.event async for recorded in (await runtimes[0].session(name)).events()]
            found += [(name, block.text) for each in events if isinstance(each, InputQueued) for block in each.content]  # type: ignore[union-attr]
        assert sorted(found) == sorted(sent)
    for each in reading:
        await each
    assert (await check_log(log)).sound
