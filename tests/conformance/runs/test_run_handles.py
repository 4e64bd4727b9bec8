"""A run that is submitted: found by its id or key, awaited, cancelled, and read from any place on."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refold import (
    AgentConfig,
    Cancelled,
    CommandRejected,
    Completed,
    ConfigError,
    Failed,
    RecordedEvent,
    RunHandle,
    say,
)
from refold.actors import ManualClock
from refold.events.model.messages import ModelResponse, TextDelta, delta_text
from refold.events.session.events import ModelRequested, RunCompleted, TimerFired
from refold.publishing.notifications import Streamed
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import HeldAnswer, dying, happened, opened, requests_of

STREAMING = AgentConfig(model="test-model", streaming=True)


async def test_a_run_is_there_at_once_and_found_again_in_every_way(log: EventStore) -> None:
    held = HeldAnswer("Done.")
    async with opened(log, held) as (runtime, session):
        handle = await session.submit("go", key="k", max_turns=3)
        assert (handle.id, handle.session, handle.run) == ("s/run_3", "s", "run_3")
        ways = [
            await session.submit("go", key="k", max_turns=3),
            await session.run("run_3"),
            await session.run(key="k"),
            await runtime.run(handle.id),
        ]
        waiting = [asyncio.create_task(way.result()) for way in (handle, *ways)]
        waiting.pop().cancel()  # Who stops waiting leaves the run alone.
        held.gate.set()
        results = await asyncio.gather(*waiting)
        assert all(result == results[0] for result in results)
        assert (results[0].text, results[0].run) == ("Done.", "run_3")
        assert await session.send("go", key="k", max_turns=3) == results[0]
        with pytest.raises(CommandRejected, match="'k'"):
            await session.submit("something else", key="k")


@pytest.mark.parametrize("key", ["k", None])
async def test_a_run_of_long_ago_is_told_after_a_restart(log: EventStore, key: str | None) -> None:
    async with opened(log, say("One."), ValueError("no"), say("Three.")) as (_, session):
        handles = [await session.submit(text, key=key and f"{key}{text}") for text in ("1", "2", "3")]
        before = [await handle.result() for handle in handles]
    async with opened(log) as (runtime, session):
        again = [await (await runtime.run(handle.id)).result() for handle in handles]
        assert again == before
        assert [type(result.outcome) for result in again] == [Completed, Failed, Completed]
        assert [result.text for result in again] == ["One.", "", "Three."]


async def test_a_run_that_a_crash_interrupted_is_found_by_its_key_and_goes_on(memory: InMemoryStore) -> None:
    held = HeldAnswer("never")
    async with dying(memory, held) as (_, session):
        handle = await session.submit("go", key="k")
        await held.asked.wait()
    async with opened(memory, say("Done.")) as (again, session):
        assert (await session.submit("go", key="k")).id == handle.id
        assert (await (await again.run(handle.id)).result()).text == "Done."


async def test_runs_are_cancelled_before_while_and_after_their_turn(memory: InMemoryStore) -> None:
    clock = ManualClock()
    held = HeldAnswer("never")
    async with opened(memory, held, say("Done."), clock=clock) as (_, session):
        first = await session.submit("1")
        await held.asked.wait()
        second, third = await session.submit("2"), await session.submit("3")
        later = await session.submit("4", at=datetime.fromtimestamp(3600, UTC))
        for handle in (second, later, first):
            await handle.cancel(reason="not now")
            assert isinstance((await handle.result()).outcome, Cancelled)
            assert isinstance((await (await session.run(handle.run)).result()).outcome, Cancelled)
            assert [item async for item in handle.stream()]
        assert (await third.result()).text == "Done."
        await third.cancel()
        assert (await third.result()).text == "Done."


UNKNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "a run that joined": lambda _, session: session.run("run_6"),
    "no event": lambda _, session: session.run("run_99"),
    "another event": lambda _, session: session.run("run_4"),
    "no id": lambda _, session: session.run("run_x"),
    "a number with a zero in front": lambda _, session: session.run("run_03"),
    "huge": lambda _, session: session.run("run_" + "1" * 5_000),
    "both": lambda _, session: session.run("run_3", key="k"),
    "neither": lambda _, session: session.run(),
    "no such key": lambda _, session: session.run(key="other"),
    "the key of something else": lambda _, session: session.run(key="c"),
    "no session": lambda runtime, _: runtime.run("run_3"),
    "another session": lambda runtime, _: runtime.run("t/run_3"),
    "no text": lambda runtime, _: runtime.run(3),
}


@pytest.mark.parametrize("case", UNKNOWN)
async def test_what_is_no_run_is_said_to_be_none(memory: InMemoryStore, case: str) -> None:
    held = HeldAnswer("Done.")
    async with opened(memory, held, say("And that.")) as (runtime, session):
        handle = await session.submit("go", key="k")
        await held.asked.wait()
        joined = await session.submit("that too", now=True)
        assert joined.id == handle.id
        held.gate.set()
        assert (await joined.result()).text == "And that."
        await session.clear(key="c")
        with pytest.raises(ConfigError):
            await UNKNOWN[case](runtime, session)


def text_of(item: object) -> str:
    return delta_text(item.delta) if isinstance(item, Streamed) else type(item.event).__name__ + "\n"  # type: ignore[attr-defined]


class InPieces:
    """A model that says one word after the other, when it is told to."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.said = 0
        self.allowed = asyncio.Semaphore(0)

    async def complete(self, request: object) -> Any:
        raise AssertionError("it is streamed")

    async def stream(self, request: object) -> Any:
        for word in self.words:
            await self.allowed.acquire()
            yield TextDelta(word)
            self.said += 1
        yield ModelResponse(content=(say("".join(self.words)).content), stop_reason="end_turn")


async def read(handle: RunHandle, after: str | int, count: int) -> tuple[list[str], str]:
    """Take so many items behind a place, and leave; return them with the place behind them."""
    async with handle.stream(after) as reader:
        seen = [text_of(await anext(reader)) for _ in range(count)]
        return seen, reader.place


async def test_a_reader_that_comes_back_in_the_middle_of_an_answer_has_it_without_gap_or_repetition(
    memory: InMemoryStore,
) -> None:
    model = InPieces("one ", "two ", "three ", "four")
    async with opened(memory, provider=model, config=STREAMING) as (_, session):
        handle = await session.submit("count")
        seen, place = await read(handle, 0, 3)
        assert seen == ["InputQueued\n", "RunStarted\n", "ModelRequested\n"]
        model.allowed.release()
        more, place = await read(handle, place, 1)
        seen += more
        assert (more, place) == (["one "], "5.5.4")
        while model.said < 3:
            model.allowed.release()
            await asyncio.sleep(0)
        assert await read(handle, place, 1) == (["two three "], "5.5.14")
        assert await read(handle, "5.5.6", 1) == (["o three "], "5.5.14")
        assert (await read(handle, 0, 4))[0][3] == "one two three "
        model.allowed.release()
        rest = [text_of(item) async for item in handle.stream("5.5.14")]
        assert rest in (["four", "ModelResponded\n", "RunCompleted\n"], ["ModelResponded\n", "RunCompleted\n"])
        assert [text_of(item) async for item in handle.stream(place)] == ["ModelResponded\n", "RunCompleted\n"]
        assert [text_of(item) async for item in handle.stream(7)] == []


async def test_pieces_say_where_they_stand_in_which_answer(memory: InMemoryStore) -> None:
    model = InPieces("Hello, ", "you!")
    async with opened(memory, provider=model, config=STREAMING) as (_, session):
        for asked in (5, 10):
            reader = (await session.submit("hi")).stream()  # It comes before the answer has begun.
            model.allowed.release()
            model.allowed.release()
            pieces = [item async for item in reader if isinstance(item, Streamed)]
            joined = ""
            for piece in pieces:
                assert (piece.offset, piece.asked) == (len(joined), asked)
                joined += delta_text(piece.delta)
            assert joined == "Hello, you!"


async def test_a_reader_sees_its_own_run_only_and_leaves_it_alone(memory: InMemoryStore) -> None:
    held = HeldAnswer("One.")
    async with opened(memory, held, say("Two.")) as (_, session):
        first, second = await session.submit("1"), await session.submit("2")
        async with first.stream() as reader:
            await anext(reader)
        held.gate.set()
        runs = [
            {getattr(item.event, "run", None) async for item in handle.stream() if isinstance(item, RecordedEvent)}
            for handle in (first, second)
        ]
        assert runs == [{None, "run_3"}, {None, "run_6"}]
        requested = [item async for item in second.stream() if isinstance(getattr(item, "event", None), ModelRequested)]
        assert len(requested) == 1


@pytest.mark.parametrize("after", ["", "x", "1.2", "1.2.3.4", -1, True, None, "9" * 30, "1 2", "²"])
async def test_what_is_no_place_is_said_to_be_none(memory: InMemoryStore, after: Any) -> None:
    async with opened(memory, say("Done.")) as (_, session):
        handle = await session.submit("go")
        await handle.result()
        with pytest.raises(ConfigError, match="place"):
            handle.stream(after)


async def test_what_was_submitted_is_found_and_goes_on_as_told_after_a_crash(memory: InMemoryStore) -> None:
    clock, held = ManualClock(), HeldAnswer("never")
    hourly: dict[str, Any] = {"every": timedelta(hours=1), "key": "hourly", "model": "tiny"}
    async with dying(memory, held, clock=clock, alike=False) as (_, session):
        reminder = await session.remind("Look.", **hourly)
        name = (await session.submit("go", key="k", model="small", max_turns=3)).id
        await held.asked.wait()
    clock = ManualClock(clock.now_us() + 10 * 3_600_000_000)
    script = say("Gone on."), say("Looked."), say("Looked again.")
    async with opened(memory, *script, clock=clock) as (runtime, session):
        again = await session.submit("go", key="k", model="small", max_turns=3)
        assert (again.id, (await again.result()).text) == (name, "Gone on.")
        assert await session.remind("Look.", **hourly) == reminder
        [fired] = [it async for it in session.events() if isinstance(it.event, TimerFired)]
        assert isinstance(fired.event, TimerFired)
        assert fired.event.next_at is not None
        left_us = fired.event.next_at - clock.now_us()
        assert 0 < left_us <= 3_600_000_000
        looked = await session.run(f"run_{fired.version + 1}")
        assert (await looked.result()).text == "Looked."
        await clock.advance(left_us / 1_000_000)
        await happened(session, RunCompleted, 3)
        assert [request.model for request in requests_of(runtime)] == ["small", "tiny", "tiny"]
        await session.cancel(run=reminder)
