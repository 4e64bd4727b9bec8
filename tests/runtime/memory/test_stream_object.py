"""What lives on the log and is used like a plain object: before, in, and between runtimes."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, ConfigError, PersistenceError, ScriptedProvider
from refold.actors import ActorFuture, ActorStopped, EventSourcedSystem, ManualClock
from refold.events import CommandRejected, KeyedCommand, KeyedEvent, PureCore, State
from refold.events.core.checked_core import CheckedCore
from refold.memory.stream_object import StreamObject
from refold.stores import EventStore, InMemoryStore
from tests.conformance.failing_store import FailingStore


class Write(KeyedCommand, frozen=True, kw_only=True):
    line: str


class Written(KeyedEvent, frozen=True, kw_only=True, tag="notes.written.v1"):
    line: str


class Pages(State):
    lines: list[str] = []
    times: list[int] = []


class NotesCore(PureCore[Pages, Write, Written]):
    def admit(self, state: Pages, command: Write) -> Written:
        if not command.line:
            raise CommandRejected("an empty line says nothing")
        return Written(line=command.line)

    def evolve(self, state: Pages, event: Written) -> Pages:
        state.lines.append(event.line)
        state.times.append(event.at)
        return state


class Notes(StreamObject[Pages, Write, Written]):
    kind = "notes"
    core = CheckedCore(NotesCore)

    def write(self, line: str, key: str | None = None) -> ActorFuture[int]:
        return self.perform(Write(line=line, key=key)).map(lambda performed: performed.version)

    def lines(self) -> ActorFuture[list[str]]:
        return self.read(lambda pages: pages.lines)


@pytest.fixture
def notes() -> Notes:
    return Notes("mine")


def filled(count: int = 1_200, *, keyed: bool = False) -> Notes:
    notes = Notes("mine")
    for number in range(count):
        notes.write(f"line {number}", key=f"k{number}" if keyed else None)
    return notes


def runtime_of(log: Path | str | EventStore, *notes: Notes, clock: ManualClock | None = None) -> AgentRuntime:
    return AgentRuntime(
        AgentConfig(model="m"), provider=ScriptedProvider([]), log=log, objects=notes, clock=clock, inbox_poll_s=0
    )


def test_without_a_runtime_it_is_a_plain_object(notes: Notes) -> None:
    assert notes.write("one").get() == 1
    notes.write("two")
    assert notes.lines().get() == ["one", "two"]
    with pytest.raises(CommandRejected, match="says nothing"):
        notes.write("").get()
    found = notes.lines().get()
    found.append("not in it")
    assert notes.lines().get() == ["one", "two"]


async def test_what_was_done_before_is_in_the_log_once_however_often_the_program_starts(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    for _ in range(3):
        notes = Notes("mine")
        for line in ("one", "two", "one"):
            notes.write(line)
        async with runtime_of(log, notes):
            assert await notes.lines() == ["one", "two", "one"]
    notes = Notes("mine")
    notes.write("one")
    notes.write("new")
    async with runtime_of(log, notes):
        assert await notes.write("in a runtime") == 5
        assert await notes.lines() == ["one", "two", "one", "new", "in a runtime"]


async def test_what_a_runtime_was_given_is_recorded_in_few_transactions() -> None:
    notes = filled()
    async with runtime_of(":memory:", notes) as runtime:
        assert await notes.read(lambda pages: len(pages.lines)) == 1_200
        assert runtime.commits <= 6


async def test_a_thread_waits_for_what_happens_on_the_loop(notes: Notes) -> None:
    async with runtime_of(":memory:", notes):
        await asyncio.to_thread(lambda: notes.write("from a thread").get())
        assert await notes.lines() == ["from a thread"]


def test_from_plain_code_the_outcome_is_waited_for_by_get(notes: Notes) -> None:
    with runtime_of(":memory:", notes):
        assert notes.write("one").get() == 1
        found: list[list[str]] = []
        thread = threading.Thread(target=lambda: found.append(notes.lines().get()))
        thread.start()
        thread.join()
        assert found == [["one"]]


async def test_a_key_counts_once(notes: Notes) -> None:
    async with runtime_of(":memory:", notes):
        assert await notes.write("one", key="k") == 1
        assert await notes.write("one", key="k") == 1
        with pytest.raises(CommandRejected, match="used for another command"):
            await notes.write("two", key="k")
        assert await notes.lines() == ["one"]


async def test_it_stays_in_memory_however_long_nobody_asks(notes: Notes) -> None:
    clock = ManualClock()
    async with runtime_of(":memory:", notes, clock=clock) as runtime:
        await notes.write("one")
        await clock.advance(3_600)
        assert "notes/mine" in runtime.system.live()


async def test_it_serves_an_event_sourced_system_as_well(notes: Notes) -> None:
    notes.write("before")
    async with EventSourcedSystem() as system:
        await notes.attach(system.host)
        assert await notes.write("in it") == 2


async def test_it_lives_in_one_runtime_and_later_in_another(notes: Notes, tmp_path: Path) -> None:
    async with runtime_of(tmp_path / "a.db", notes):
        await notes.write("one")
        with pytest.raises(ConfigError, match="lives in another runtime"):
            async with runtime_of(tmp_path / "b.db", notes):
                raise AssertionError
    with pytest.raises(ActorStopped):
        await notes.lines()
    async with runtime_of(tmp_path / "a.db", notes):
        assert await notes.lines() == ["one"]


def test_threads_may_give_at_once_before_a_runtime_has_it(notes: Notes) -> None:
    def give(name: str) -> None:
        for number in range(400):
            notes.write(f"{name} {number}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=give, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(notes.lines().get()) == sorted(f"{name} {number}" for name in "abcd" for number in range(400))


async def test_what_a_thread_gives_while_a_runtime_takes_it_is_in_the_log_once_and_in_order(notes: Notes) -> None:
    over = threading.Event()
    written: list[ActorFuture[int]] = []

    def give() -> None:
        while not over.is_set() and len(written) < 1_000:
            written.append(notes.write(f"line {len(written)}"))

    thread = threading.Thread(target=give)
    thread.start()
    async with runtime_of(":memory:", notes):
        over.set()
        await asyncio.to_thread(thread.join)
        for future in written:
            await future
        assert await notes.lines() == [f"line {number}" for number in range(len(written))]


async def test_of_two_runtimes_that_take_it_at_once_one_gets_it() -> None:
    notes = filled()
    async with EventSourcedSystem() as one, EventSourcedSystem() as other:
        outcomes = await asyncio.gather(notes.attach(one.host), notes.attach(other.host), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), ConfigError]
        assert len(await notes.lines()) == 1_200


async def test_a_start_that_fails_or_is_cancelled_leaves_it_as_it_was(tmp_path: Path) -> None:
    notes = filled(keyed=True)
    async with EventSourcedSystem() as system:
        attaching = asyncio.create_task(notes.attach(system.host))
        for _ in range(5):
            await asyncio.sleep(0)
        attaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attaching
    other = Notes("mine")
    other.write("another", key="k700")
    async with runtime_of(tmp_path / "events.db", other):
        pass
    with pytest.raises(CommandRejected, match="'k700' was used for another command"):
        async with runtime_of(tmp_path / "events.db", notes):
            raise AssertionError
    assert len(notes.lines().get()) == 1_200
    async with runtime_of(":memory:", notes):
        assert len(await notes.lines()) == 1_200


async def test_what_cannot_be_recorded_is_refused_by_the_future_before_a_runtime_too(notes: Notes) -> None:
    refused = notes.write(object())  # type: ignore[arg-type]
    with pytest.raises(CommandRejected, match="plain data"):
        await refused
    assert await notes.lines() == []


async def test_a_glance_needs_no_wait(notes: Notes) -> None:
    notes.write("one")
    assert notes.glance(lambda pages: len(pages.lines)) == 1
    async with runtime_of(":memory:", notes):
        assert notes.glance(lambda pages: len(pages.lines)) == 1
        await notes.write("two")
        assert notes.glance(lambda pages: len(pages.lines)) == 2
    assert notes.glance(lambda pages: len(pages.lines)) is None


def test_two_objects_of_one_stream_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 objects of the agent are the stream notes/mine"):
        runtime_of(":memory:", Notes("mine"), Notes("mine"))


async def test_threads_that_give_on_and_on_do_not_keep_a_runtime_from_opening(notes: Notes, tmp_path: Path) -> None:
    ends = threading.Event()
    given = [0, 0]

    def give(place: int) -> None:
        while not ends.is_set():
            notes.write(f"{place} {given[place]}").get(timeout=30)
            given[place] += 1

    threads = [threading.Thread(target=give, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    while min(given) < 5:  # noqa: ASYNC110 - They know nothing of this loop.
        await asyncio.sleep(0)
    async with runtime_of(tmp_path / "events.db", notes):
        notes.write("by the loop")
        ends.set()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        lines = [line for line in await notes.lines() if line != "by the loop"]
        expected = {f"{place} {number}" for place in range(2) for number in range(given[place])}
        assert (len(lines), set(lines)) == (sum(given), expected)


async def test_what_is_told_before_a_runtime_and_comes_to_nothing_is_logged(
    notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    notes.tell(Write(line=""))
    notes.tell(Write(line="one"))
    assert "notes/mine: a Write is not recorded: an empty line says nothing" in caplog.text
    assert await notes.lines() == ["one"]


async def test_a_runtime_that_fails_to_take_an_object_leaves_it_to_threads(notes: Notes, tmp_path: Path) -> None:
    notes.write("one")
    store = FailingStore(InMemoryStore())
    store.fail_appends(lambda: PersistenceError("no room"), of="notes/")
    with pytest.raises(PersistenceError):
        await runtime_of(store, notes).open()
    assert await asyncio.to_thread(lambda: notes.write("two").get(timeout=30)) == 2
    async with runtime_of(tmp_path / "events.db", notes):
        assert await notes.lines() == ["one", "two"]
