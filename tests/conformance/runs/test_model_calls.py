"""A model call ends once, for each way of its provider: by an answer or a failure, and what had come is evidence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

import refold
from refold.actors import ActorRef, ManualClock
from refold.actors.agent.model import StartModelCall
from refold.actors.shell.messages import CancelEffect
from refold.events.core.content import text_of
from refold.events.model.messages import UsageDelta
from refold.events.session.events import ModelFailed, ModelInterrupted
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import HeldAnswer, Streams, events_of, opened, tell_twice

STREAMING = refold.AgentConfig(model="m", streaming=True, retry=None)
CUT = refold.ProviderError("cut", kind="connection", retryable=True)


class Raises:
    """Has no stream, and fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        raise self.error


class Returns(Raises):
    """Gives something in place of an answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        answer: refold.ModelResponse = self.answer
        return answer


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")

    __repr__ = __str__


async def never() -> None:
    await asyncio.Event().wait()


HI, H = refold.TextDelta("hi"), refold.TextDelta("h")
NO_DELTAS: list[Any] = [
    *(None, "text", {"type": "text"}, refold.TextDelta(b"bytes"), refold.ThinkingDelta(None)),  # type: ignore[arg-type]
    *(refold.ToolInputDelta(True, "pay", "{}"), refold.ToolInputDelta(-1, "pay", "{}")),
    *(refold.ToolInputDelta(0, "pay", {}), refold.ToolInputDelta(0, "pay", "{}", 7)),  # type: ignore[arg-type]
    *(UsageDelta({"input_tokens": 1}), UsageDelta(refold.Usage(output_tokens=-1))),  # type: ignore[arg-type]
]
UNUSABLE = refold.ModelResponse(content=("text",), usage=refold.Usage(output_tokens=3))  # type: ignore[arg-type]

ODD_ERRORS = [
    *(GeneratorExit(), StopAsyncIteration(), UnsayableError(), ValueError("\ud800" * 200_000)),
    refold.ProviderError("x", kind="nonsense", status="529", retry_after_s=float("inf")),  # type: ignore[arg-type]
    refold.ProviderError("x", kind="overloaded", retryable=True, retry_after_s=float("nan")),
]

FAILURES: dict[str, tuple[Any, str | None, str, list[tuple[str, int]]]] = {
    "a stream of nothing": (Streams(), "malformed", "", []),
    "a stream without its end": (Streams(H), "malformed", "", [("h", 0)]),
    "a stream that is cut": (Streams(H, CUT), "connection", "cut", [("h", 0)]),
    "a stream that breaks": (Streams(H, RuntimeError("broken")), "agent_loop", "broken", [("h", 0)]),
    "an answer that cannot be used": (
        Streams(H, UsageDelta(refold.Usage(output_tokens=3)), UNUSABLE),
        *("malformed", "cannot be used", [("h", 3)]),
    ),
    **{
        f"what is no delta, {item!r}": (Streams(H, item, refold.say("hi")), "malformed", "cannot be used", [("h", 0)])
        for item in NO_DELTAS
    },
    "an error of its own": (Raises(ValueError("broken \ud800")), "agent_loop", "ValueError: broken \ufffd", []),
    "an error that ends a process": (Raises(SystemExit(3)), "agent_loop", "SystemExit: 3", []),
    "a cancellation of its own": (
        Raises(asyncio.CancelledError("own")),
        *("agent_loop", "CancelledError of its own", []),
    ),
    **{f"no answer, {answer!r}": (Returns(answer), "malformed", "", []) for answer in (None, "text", 5)},
    **{
        f"an odd error {how}, {place}": (make(error), None, "", [])
        for how, make in (("raised", Raises), ("in a stream", Streams))
        for place, error in enumerate(ODD_ERRORS)
    },
    "an error of many words": (Raises(KeyError("x" * 10_000)), "agent_loop", "KeyError", []),
}


@pytest.mark.parametrize(("provider", "kind", "words", "evidence"), FAILURES.values(), ids=FAILURES)
async def test_what_is_no_answer_fails_the_call_and_what_came_before_is_evidence(
    log: EventStore, provider: Any, kind: str | None, words: str, evidence: list[tuple[str, int]]
) -> None:
    async with opened(log, provider=provider, config=STREAMING) as (_, session), session.stream("go") as stream:
        deltas = [item.delta async for item in stream if isinstance(item, refold.Streamed)]
        (failed,) = await events_of(session, ModelFailed)
        assert kind in (None, failed.kind)
        assert (words in failed.message, 0 < len(failed.message) <= 2_000) == (True, True)
        found = await events_of(session, ModelInterrupted)
        assert [(text_of(each.content), each.usage.output_tokens) for each in found] == evidence
    assert [delta for delta in deltas if isinstance(delta, refold.TextDelta)] == [H] * len(evidence)


async def test_a_providers_error_is_recorded_with_its_fields(log: EventStore) -> None:
    error = refold.ProviderError("slow down", kind="rate_limit", status=429, retryable=True, retry_after_s=2.5)
    async with opened(log, error, config=STREAMING) as (_, session):
        await session.send("go")
        (failed,) = await events_of(session, ModelFailed)
    assert (failed.kind, failed.status, failed.retryable, failed.retry_after_s) == ("rate_limit", 429, True, 2.5)


class Plain:
    """A stream without `aclose`."""

    def __init__(self) -> None:
        self.items = [refold.say("hi"), HI]

    def __aiter__(self) -> "Plain":
        return self

    async def __anext__(self) -> Any:
        return self.items.pop()


class Clings(Streams):
    """Has a stream that does not close as it should."""

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        try:
            yield refold.say("hi")
        finally:
            await super().stream(request).__anext__()


class Gives(Streams):
    """Gives something in place of an asynchronous generator."""

    def stream(self, request: refold.ModelRequest) -> Any:
        return self.items[0]()


ANSWERS: dict[str, Callable[[], Any]] = {
    **{
        f"nothing is read after it, {after!r}": lambda after=after: Streams(HI, refold.say("hi"), after)  # type: ignore[misc]
        for after in (refold.say("another"), refold.TextDelta("more"), RuntimeError("late"), 7)
    },
    "its stream fails to close": lambda: Clings(ValueError("the connection was gone already")),
    "its stream has no aclose": lambda: Gives(Plain),
}


@pytest.mark.parametrize("provider", ANSWERS.values(), ids=ANSWERS)
async def test_the_first_complete_response_is_the_answer(
    log: EventStore, provider: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = provider()
    async with opened(log, provider=made, config=STREAMING) as (_, session):
        assert (await session.send("go")).text == "hi"
        assert await events_of(session, ModelInterrupted) == []
    assert ("could not be closed" in caplog.text) == isinstance(made, Clings)


async def test_a_stream_that_does_not_close_costs_its_answer_a_moment(memory: EventStore) -> None:
    clock = ManualClock()
    async with opened(memory, provider=Clings(never), config=STREAMING, clock=clock) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        await clock.settle()
        assert not sending.done()
        await clock.advance(5)
        assert (await sending).text == "hi"


async def test_a_stream_method_that_gives_no_stream_is_a_failure_that_says_so(log: EventStore) -> None:
    async def whole() -> refold.ModelResponse:
        return refold.say("hi")

    async with opened(log, provider=Gives(whole), config=STREAMING) as (_, session):
        await session.send("go")
        (failed,) = await events_of(session, ModelFailed)
    assert "gave coroutine, not an async iterator" in failed.message


async def test_a_check_of_arguments_that_breaks_fails_the_run(log: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a broken check")

    @refold.tool
    async def work() -> None: ...

    async with opened(log, refold.use("work"), tools=[work], alike=False) as (_, session):
        monkeypatch.setattr(refold.Tool, "check", broken)
        assert "a broken check" in str((await session.send("go")).outcome)


async def test_what_shows_pieces_may_fail_and_disturbs_no_answer(
    log: EventStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("of the observer")

    async with opened(log, provider=Streams(HI, refold.say("hi")), config=STREAMING) as (runtime, session):
        monkeypatch.setattr(runtime.event_bus, "streamed", broken)
        assert (await session.send("go")).text == "hi"
    assert "of the observer" in caplog.text


async def test_a_prompt_that_is_missing_from_the_log_is_a_failure_that_names_it() -> None:
    class Forgetful(InMemoryStore):
        forgets = True

        async def read_payloads(self, hashes: Any) -> Any:
            return {} if self.forgets else await super().read_payloads(hashes)

    store = Forgetful()
    config = refold.AgentConfig(model="m", system_prompt="Be brief.")
    async with opened(store, refold.say("hi"), config=config) as (_, session):
        assert "is missing from :memory:" in str((await session.send("go")).outcome)
        store.forgets = False
        assert (await session.send("again")).text == "hi"


# Cancelled, and begun twice


class StreamsOn(Streams):
    """Goes on with a piece after its cancellation."""

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        yield refold.TextDelta("before")
        with suppress(asyncio.CancelledError):
            await never()
        yield refold.TextDelta(", after")
        raise AssertionError("read on")


class Lingers(Streams):
    """Is cancelled when its answer is whole."""

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        try:
            yield HI
            yield refold.say("hi", usage=refold.Usage(output_tokens=3))
        finally:
            await never()


class Endless(Streams):
    """Never waits."""

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        while True:
            yield refold.TextDelta("x")


@pytest.mark.parametrize(
    ("provider", "evidence"),
    [
        (Streams(HI, never), [("hi", 0)]),
        (StreamsOn(), [("before, after", 0)]),
        (Lingers(), [("hi", 3)]),
        (Endless(), None),
    ],
    ids=["waits", "streams on after it", "at its very end", "never waits"],
)
async def test_a_stream_that_is_cancelled_leaves_what_had_come_as_evidence(
    log: EventStore, provider: Any, evidence: Any
) -> None:
    async with opened(log, provider=provider, config=STREAMING) as (_, session):
        async with session.stream("go") as stream:
            async for item in stream:
                if isinstance(item, refold.Streamed):
                    break
        assert stream.result.outcome == refold.Cancelled()
        found = await events_of(session, ModelInterrupted)
        assert evidence in (None, [(text_of(each.content), each.usage.output_tokens) for each in found])


async def test_a_call_that_is_cancelled_before_it_begins_asks_no_model(
    log: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, model, held, started = ActorRef.tell, HeldAnswer("never"), list[Any](), asyncio.Event()

    def both_at_once(ref: ActorRef, message: Any) -> None:
        """Pass a start on with the cancellation behind it."""
        if isinstance(message, StartModelCall):
            held.append(message)
            started.set()
            return
        for start in held if isinstance(message, CancelEffect) else ():
            tell(ref, start)
        tell(ref, message)

    monkeypatch.setattr(ActorRef, "tell", both_at_once)

    monkeypatch.setattr(ActorRef, "tell_at_once", both_at_once)
    async with opened(log, model) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        await started.wait()
        await session.cancel()
        assert (await sending).outcome == refold.Cancelled()
    assert not model.asked.is_set()


async def test_a_call_that_a_model_is_told_of_twice_is_made_once(
    log: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    async def answer(request: refold.ModelRequest) -> refold.ModelResponse:
        asked.append(request.messages[-1].text)
        await asyncio.sleep(0)
        return refold.say("hi")

    tell_twice(monkeypatch, StartModelCall)
    async with opened(log, *[answer] * 4) as (runtime, session):
        other = await runtime.session("other")
        results = await asyncio.gather(session.send("one"), other.send("two"))
    assert [result.outcome for result in results] == [refold.Completed()] * 2
    assert sorted(asked) == ["one", "two"]
