"""The actor that makes model calls: each call's end is told once, whatever the provider does."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from refold.actors import Actor, ActorRef, ActorSystem, ManualClock
from refold.actors.agent.model import ModelActor, StartModelCall
from refold.actors.calls.conversation import Conversation
from refold.actors.calls.protocols import Provider, StreamItem
from refold.actors.calls.request import WantedRequest
from refold.actors.calls.tool_rules import NO_RULES, ToolRules
from refold.actors.effects import CancelEffect, EffectEnded
from refold.events.core.content import JsonObject, Message, TextBlock
from refold.events.core.errors import PersistenceError, ProviderError
from refold.events.core.ids import AgentId, EventRef, RunId, SessionId
from refold.events.model.configuration import AgentConfig, CodeIdentity, ToolSpec, configuration_of
from refold.events.model.messages import (
    Delta,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
    Usage,
    UsageDelta,
)
from refold.events.session.commands import RecordModelFailure, RecordModelResponse
from refold.events.session.events import Verdict
from refold.stores import InMemoryStore

Answer = Callable[[ModelRequest], Any]


class Answering(Provider):
    """Answers as a function says."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        answer: ModelResponse = await self.answer(request)
        return answer


class Streaming(Provider):
    """Streams what it is given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    async def complete(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError("it is streamed from")

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        for item in self.items:
            if isinstance(item, BaseException):
                raise item
            yield item


class Stalling(Streaming):
    """Streams what it is given, and then nothing until it is cancelled."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        for item in self.items:
            yield item
        await asyncio.Event().wait()


class NoTools:
    def names(self) -> tuple[str, ...]:
        return ()

    def spec(self, name: str) -> ToolSpec | None:
        return None

    def rules(self, name: str) -> ToolRules:
        return NO_RULES

    def check(self, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
        if name == "broken":
            raise LookupError("a broken check")
        return arguments, Verdict(verdict="not_found")

    async def run(self, name: str, arguments: JsonObject, context: object) -> object:
        raise AssertionError("never run")


class Observer:
    def __init__(self) -> None:
        self.deltas: list[Delta] = []

    def recorded(self, session: SessionId, events: object) -> None: ...

    def settled(self, session: SessionId, state: object) -> None: ...

    def streamed(self, session: SessionId, run: RunId, turn: int, delta: Delta) -> None:
        self.deltas.append(delta)

    def progressed(self, session: SessionId, call: str, report: object) -> None: ...


class Recipient(Actor):
    """Stands where a session would, and keeps what it is told."""

    def __init__(self, told: list[EffectEnded]) -> None:
        self.told = told

    def on_receive(self, message: EffectEnded) -> None:
        self.told.append(message)


class Setup:
    def __init__(self, provider: Provider, *, streaming: bool = False, store: InMemoryStore | None = None) -> None:
        self.clock = ManualClock()
        self.store = store or InMemoryStore()
        self.observer = Observer()
        self.told: list[EffectEnded] = []
        self.system = ActorSystem(clock=self.clock)
        self.configuration, self.payloads = configuration_of(
            AgentConfig(model="m", system_prompt="Be brief.", streaming=streaming),
            agent=AgentId("agent"),
            tools=(),
            code=CodeIdentity(refold="0", core=1),
        )
        self.system.register("model", lambda _: ModelActor(provider, NoTools(), self.store, self.observer))
        self.system.register("session", lambda _: Recipient(self.told))

    @property
    def model(self) -> ActorRef:
        return self.system.ref("model/agent")

    async def start(self, key: str = "model:5", *, payloads: bool = True) -> None:
        if payloads:
            await self.store.append([], self.payloads)
        self.tell_start(key)
        await self.clock.settle()

    def tell_start(self, key: str = "model:5") -> None:
        self.model.tell(
            StartModelCall(
                key=key,
                reply_to=self.system.ref("session/s"),
                cause=(EventRef("session/s@5"), EventRef("session/s@3")),
                wanted=WantedRequest(
                    session=SessionId("s"),
                    run=RunId("run_3"),
                    turn=1,
                    asked=5,
                    configured=2,
                    configuration=self.configuration,
                    source=[Message("user", (TextBlock(text="hello"),))],
                    length=1,
                    latest_input=0,
                    conversation=Conversation(self.store.read_payloads),
                ),
            )
        )

    async def cancel(self, key: str = "model:5") -> None:
        self.model.tell(CancelEffect("session/s", key))
        await self.clock.settle()

    def commands(self) -> list[Any]:
        return [ended.command for ended in self.told]

    def evidence(self) -> list[Any]:
        return [ended.evidence for ended in self.told]


@pytest.fixture
async def setups() -> AsyncIterator[Callable[..., Setup]]:
    made: list[Setup] = []

    def make(provider: Provider, **options: Any) -> Setup:
        made.append(Setup(provider, **options))
        return made[-1]

    yield make
    for setup in made:
        closing = asyncio.create_task(setup.system.close())
        await setup.clock.advance(30)
        await closing


def said(text: str) -> ModelResponse:
    return ModelResponse(content=(TextBlock(text=text),))


async def greet(request: ModelRequest) -> ModelResponse:
    return said("hi")


async def never(request: ModelRequest) -> ModelResponse:
    await asyncio.Event().wait()
    return said("unreachable")


async def unasked(request: ModelRequest) -> ModelResponse:
    raise AssertionError("asked")


async def test_a_request_holds_prompt_and_history_and_its_answer_names_the_request(
    setups: Callable[..., Setup],
) -> None:
    provider = Answering(greet)
    setup = setups(provider)
    await setup.start()
    (request,) = provider.requests
    assert (request.model, request.system_prompt) == ("m", "Be brief.")
    assert list(request.messages) == [Message("user", (TextBlock(text="hello"),))]
    (command,) = setup.commands()
    assert isinstance(command, RecordModelResponse)
    assert (command.run, command.turn, command.content) == ("run_3", 1, (TextBlock(text="hi"),))
    assert (command.request.configured, command.request.messages, len(command.request.digest)) == (2, 1, 64)


async def test_a_call_begun_twice_under_one_key_is_made_once_and_others_run_beside_it(
    setups: Callable[..., Setup],
) -> None:
    gate = asyncio.Event()

    async def answer(request: ModelRequest) -> ModelResponse:
        await gate.wait()
        return said("hi")

    provider = Answering(answer)
    setup = setups(provider)
    for key in ("model:5", "model:5", "model:9"):
        await setup.start(key)
    assert len(provider.requests) == 2
    gate.set()
    await setup.clock.settle()
    assert [ended.key for ended in setup.told] == ["model:5", "model:9"]


async def test_a_cancelled_call_ends_without_a_result(setups: Callable[..., Setup]) -> None:
    setup = setups(Answering(never))
    await setup.start()
    await setup.cancel()
    await setup.cancel()
    assert setup.commands() == [None]


async def test_a_call_that_is_cancelled_before_it_begins_asks_nobody(setups: Callable[..., Setup]) -> None:
    setup = setups(Answering(unasked))
    starting = asyncio.create_task(setup.start())
    await asyncio.sleep(0)
    await setup.cancel()
    await starting
    assert setup.commands() == [None]


async def test_a_provider_that_swallows_its_cancellation_has_its_answer_told(setups: Callable[..., Setup]) -> None:
    async def stubborn(request: ModelRequest) -> ModelResponse:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return said("in spite of it")
        return said("unreachable")

    setup = setups(Answering(stubborn))
    await setup.start()
    await setup.cancel()
    (command,) = setup.commands()
    assert command.content == (TextBlock(text="in spite of it"),)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ProviderError("slow down", kind="rate_limit", status=429, retryable=True, retry_after_s=2.5),
            "rate_limit",
            "slow down",
        ),
        (ValueError("broken \ud800"), "agent_loop", "ValueError: broken \ufffd"),
        (SystemExit(3), "agent_loop", "SystemExit: 3"),
        (asyncio.CancelledError("own"), "agent_loop", "CancelledError of its own"),
        (KeyError("x" * 10_000), "agent_loop", "KeyError"),
    ],
)
async def test_whatever_a_provider_raises_is_told_as_a_failure(
    setups: Callable[..., Setup], error: BaseException, kind: str, message: str
) -> None:
    async def fail(request: ModelRequest) -> ModelResponse:
        raise error

    setup = setups(Answering(fail))
    await setup.start()
    (command,) = setup.commands()
    assert isinstance(command, RecordModelFailure)
    assert (command.run, command.turn, command.kind) == ("run_3", 1, kind)
    assert message in command.message
    assert len(command.message) <= 2_000
    if isinstance(error, ProviderError):
        assert (command.status, command.retryable, command.retry_after_s) == (429, True, 2.5)


async def test_a_check_that_breaks_breaks_its_call_only(setups: Callable[..., Setup]) -> None:
    async def answer(request: ModelRequest) -> ModelResponse:
        return ModelResponse(content=(ToolUse(name="broken"),))

    setup = setups(Answering(answer))
    await setup.start()
    (command,) = setup.commands()
    (verdict,) = command.verdicts
    assert (verdict.verdict, "a broken check" in verdict.reason) == ("broken", True)


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ((TextDelta("h"),), "malformed"),
        ((), "malformed"),
        ((TextDelta("h"), ProviderError("cut", kind="connection", retryable=True)), "connection"),
        ((TextDelta("h"), RuntimeError("broken")), "agent_loop"),
    ],
)
async def test_a_stream_that_ends_half_way_is_a_failure(
    setups: Callable[..., Setup], items: tuple[Any, ...], kind: str
) -> None:
    setup = setups(Streaming(*items), streaming=True)
    await setup.start()
    (command,) = setup.commands()
    assert isinstance(command, RecordModelFailure)
    assert command.kind == kind


async def test_neither_a_call_of_which_nothing_came_nor_a_whole_answer_leaves_evidence(
    setups: Callable[..., Setup],
) -> None:
    nothing, whole = setups(Stalling(), streaming=True), setups(Streaming(TextDelta("hi"), said("hi")), streaming=True)
    await nothing.start()
    await nothing.cancel()
    await whole.start()
    assert (nothing.commands(), nothing.evidence(), whole.evidence()) == ([None], [None], [None])


async def test_a_provider_that_streams_on_after_its_cancellation_is_read_no_further(
    setups: Callable[..., Setup],
) -> None:
    closed: list[bool] = []

    class Stubborn(Stalling):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            yield TextDelta("before")
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            try:
                yield TextDelta(", after")
                raise AssertionError("read on")
            finally:
                closed.append(True)

    setup = setups(Stubborn(), streaming=True)
    await setup.start()
    await setup.cancel()
    assert setup.evidence()[0].content == (TextBlock(text="before, after"),)
    assert (setup.observer.deltas, closed) == ([TextDelta("before")], [True])


@pytest.mark.parametrize("after", [said("another answer"), TextDelta("more"), RuntimeError("late"), 7])
async def test_the_first_complete_response_is_the_answer_and_nothing_is_read_after_it(
    setups: Callable[..., Setup], after: Any
) -> None:
    setup = setups(Streaming(TextDelta("hi"), said("hi"), after), streaming=True)
    await setup.start()
    assert setup.commands()[0].content == (TextBlock(text="hi"),)
    assert setup.observer.deltas == [TextDelta("hi")]


async def test_a_stream_that_cannot_be_closed_is_logged_and_its_answer_counts(
    setups: Callable[..., Setup], caplog: pytest.LogCaptureFixture
) -> None:
    class Clinging(Streaming):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            try:
                yield said("hi")
            finally:
                raise ValueError("the connection was gone already")

    setup = setups(Clinging(), streaming=True)
    await setup.start()
    assert setup.commands()[0].content == (TextBlock(text="hi"),)
    assert "could not be closed" in caplog.text


@pytest.mark.parametrize(
    "item",
    [
        None,
        "text",
        {"type": "text"},
        TextDelta(b"bytes"),  # type: ignore[arg-type]
        ThinkingDelta(None),  # type: ignore[arg-type]
        ToolInputDelta(True, "pay", "{}"),
        ToolInputDelta(-1, "pay", "{}"),
        ToolInputDelta(0, "pay", {}),  # type: ignore[arg-type]
        ToolInputDelta(0, "pay", "{}", 7),  # type: ignore[arg-type]
        UsageDelta({"input_tokens": 1}),  # type: ignore[arg-type]
        UsageDelta(Usage(output_tokens=-1)),
    ],
    ids=repr,
)
async def test_what_is_no_delta_fails_the_call_and_what_came_before_is_evidence(
    setups: Callable[..., Setup], item: Any
) -> None:
    setup = setups(Streaming(TextDelta("h"), item, said("hi")), streaming=True)
    await setup.start()
    assert setup.commands()[0].kind == "malformed"
    assert "cannot be used" in setup.commands()[0].message
    assert setup.observer.deltas == [TextDelta("h")]
    assert setup.evidence()[0].content == (TextBlock(text="h"),)


async def test_an_answer_that_cannot_be_used_is_evidence_with_its_tokens(setups: Callable[..., Setup]) -> None:
    unusable = ModelResponse(content=("text",), usage=Usage(output_tokens=3))  # type: ignore[arg-type]
    setup = setups(Streaming(TextDelta("h"), UsageDelta(Usage(output_tokens=3)), unusable), streaming=True)
    await setup.start()
    assert setup.commands()[0].kind == "malformed"
    assert setup.evidence()[0].usage == Usage(output_tokens=3)


async def test_the_tokens_of_an_answer_cancelled_at_its_very_end_are_counted(setups: Callable[..., Setup]) -> None:
    class Lingering(Streaming):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            try:
                yield TextDelta("hi")
                yield ModelResponse(content=(TextBlock(text="hi"),), usage=Usage(output_tokens=3))
            finally:
                await asyncio.Event().wait()

    setup = setups(Lingering(), streaming=True)
    await setup.start()
    await setup.cancel()
    assert setup.commands() == [None]
    assert setup.evidence()[0].content == (TextBlock(text="hi"),)
    assert setup.evidence()[0].usage == Usage(output_tokens=3)


async def test_a_stream_method_that_gives_no_stream_is_a_failure_that_says_so(setups: Callable[..., Setup]) -> None:
    class Wrong(Streaming):
        async def stream(self, request: ModelRequest) -> Any:  # type: ignore[override]
            return said("hi")

    setup = setups(Wrong(), streaming=True)
    await setup.start()
    assert "gave coroutine, not an async iterator" in setup.commands()[0].message


async def test_a_stream_without_aclose_can_be_read(setups: Callable[..., Setup]) -> None:
    class Plain:
        def __init__(self) -> None:
            self.items = [said("hi"), TextDelta("hi")]

        def __aiter__(self) -> "Plain":
            return self

        async def __anext__(self) -> Any:
            return self.items.pop()

    class Own(Streaming):
        def stream(self, request: ModelRequest) -> Any:
            return Plain()

    setup = setups(Own(), streaming=True)
    await setup.start()
    assert setup.commands()[0].content == (TextBlock(text="hi"),)


async def test_an_observer_that_fails_on_a_piece_disturbs_no_answer(
    setups: Callable[..., Setup], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(list[Delta]):
        def append(self, delta: Delta) -> None:
            raise LookupError("of the observer")

    setup = setups(Streaming(TextDelta("hi"), said("hi")), streaming=True)
    setup.observer.deltas = Broken()
    await setup.start()
    assert setup.commands()[0].content == (TextBlock(text="hi"),)
    assert "of the observer" in caplog.text


async def test_a_prompt_that_is_missing_from_the_log_is_a_failure_that_names_it(setups: Callable[..., Setup]) -> None:
    setup = setups(Answering(greet))
    await setup.start(payloads=False)
    (command,) = setup.commands()
    assert "is missing from :memory:" in command.message
    await setup.start("model:9")
    assert isinstance(setup.commands()[1], RecordModelResponse)


async def test_a_log_that_cannot_be_read_for_a_while_fails_no_call(setups: Callable[..., Setup]) -> None:
    class Unreadable(InMemoryStore):
        broken = True

        async def read_payloads(self, hashes: Any) -> Any:
            if self.broken:
                raise PersistenceError("payloads cannot be read")
            return await super().read_payloads(hashes)

    store = Unreadable()
    setup = setups(Answering(greet), store=store)
    await setup.start()
    await setup.clock.advance(60)
    assert setup.told == []
    store.broken = False
    await setup.clock.advance(60)
    assert setup.commands()[0].content == (TextBlock(text="hi"),)


async def test_a_stream_that_never_waits_lets_others_have_their_turn(setups: Callable[..., Setup]) -> None:
    class Endless(Answering):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            while True:
                yield TextDelta("x")

    setup = setups(Endless(unasked), streaming=True)
    await setup.store.append([], setup.payloads)
    setup.tell_start()
    for _ in range(10_000):
        if setup.told:
            break
        if setup.observer.deltas:
            setup.model.tell(CancelEffect("session/s", "model:5"))
        await asyncio.sleep(0)
    assert [ended.command for ended in setup.told] == [None]


async def test_a_stream_that_does_not_close_costs_its_answer_nothing(setups: Callable[..., Setup]) -> None:
    class Clinging(Answering):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            try:
                yield said("one")
            finally:
                await asyncio.Event().wait()

    setup = setups(Clinging(unasked), streaming=True)
    await setup.start()
    assert setup.told == []
    await setup.clock.advance(5)
    assert setup.commands()[0].content == (TextBlock(text="one"),)


async def test_a_stop_leaves_calls_open_as_after_a_crash(
    setups: Callable[..., Setup], caplog: pytest.LogCaptureFixture
) -> None:
    setup = setups(Answering(never))
    await setup.start()
    with caplog.at_level(logging.WARNING):
        assert await setup.system.close() == ()
    assert setup.commands() == []
    assert caplog.text == ""
