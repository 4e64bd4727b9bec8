"""The actor that makes model calls: each call's end is told once, whatever the provider does."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from refold.actors import Actor, ActorRef, ActorSystem, ManualClock
from refold.actors.conversation import Conversation
from refold.actors.effects import EffectEnded
from refold.actors.model import CancelModelCall, ModelActor, StartModelCall
from refold.actors.protocols import Provider, StreamItem
from refold.events.configuration import AgentConfig, CodeIdentity, ToolSpec, configuration_of
from refold.events.content import JsonObject, Message, TextBlock
from refold.events.errors import PersistenceError, ProviderError
from refold.events.ids import AgentId, RunId, SessionId
from refold.events.model import Delta, ModelRequest, ModelResponse, TextDelta, ToolUse
from refold.events.session_commands import RecordModelFailure, RecordModelResponse
from refold.events.session_events import Verdict
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


class NoTools:
    def names(self) -> tuple[str, ...]:
        return ()

    def spec(self, name: str) -> ToolSpec | None:
        return None

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

    def streamed(self, session: SessionId, delta: Delta) -> None:
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
        self.model.tell(
            StartModelCall(
                key=key,
                session=SessionId("s"),
                reply_to=self.system.ref("session/s"),
                run=RunId("run_3"),
                turn=1,
                configured=2,
                configuration=self.configuration,
                source=[Message("user", (TextBlock(text="hello"),))],
                length=1,
                conversation=Conversation(self.store.read_payloads),
            )
        )
        await self.clock.settle()

    async def cancel(self, key: str = "model:5") -> None:
        self.model.tell(CancelModelCall(session=SessionId("s"), key=key))
        await self.clock.settle()

    def commands(self) -> list[Any]:
        return [ended.command for ended in self.told]


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


async def test_a_request_holds_prompt_and_history_and_its_answer_names_the_request(
    setups: Callable[..., Setup],
) -> None:
    async def answer(request: ModelRequest) -> ModelResponse:
        return said("hi")

    provider = Answering(answer)
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
    async def never(request: ModelRequest) -> ModelResponse:
        await asyncio.Event().wait()
        return said("unreachable")

    setup = setups(Answering(never))
    await setup.start()
    await setup.cancel()
    await setup.cancel()
    assert setup.commands() == [None]


async def test_a_call_that_is_cancelled_before_it_begins_asks_nobody(setups: Callable[..., Setup]) -> None:
    async def answer(request: ModelRequest) -> ModelResponse:
        raise AssertionError("asked")

    setup = setups(Answering(answer))
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


async def test_a_check_that_breaks_fails_its_call_only(setups: Callable[..., Setup]) -> None:
    async def answer(request: ModelRequest) -> ModelResponse:
        return ModelResponse(content=(ToolUse(name="broken"),))

    setup = setups(Answering(answer))
    await setup.start()
    (command,) = setup.commands()
    assert (command.kind, "a broken check" in command.message) == ("agent_loop", True)


async def test_a_stream_is_passed_on_and_its_response_is_the_answer(setups: Callable[..., Setup]) -> None:
    pieces = [TextDelta("h"), TextDelta("i")]
    setup = setups(Streaming(*pieces, said("hi")), streaming=True)
    await setup.start()
    assert setup.observer.deltas == pieces
    assert setup.commands()[0].content == (TextBlock(text="hi"),)


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


async def test_a_prompt_that_is_missing_from_the_log_is_a_failure_that_names_it(setups: Callable[..., Setup]) -> None:
    async def answer(request: ModelRequest) -> ModelResponse:
        return said("hi")

    setup = setups(Answering(answer))
    await setup.start(payloads=False)
    (command,) = setup.commands()
    assert "is missing from :memory:" in command.message
    await setup.start("model:9")
    assert isinstance(setup.commands()[1], RecordModelResponse)


async def test_a_log_that_cannot_be_read_is_a_failure(setups: Callable[..., Setup]) -> None:
    class Unreadable(InMemoryStore):
        async def read_payloads(self, hashes: Any) -> Any:
            raise PersistenceError("payloads cannot be read")

    async def answer(request: ModelRequest) -> ModelResponse:
        return said("hi")

    setup = setups(Answering(answer), store=Unreadable())
    await setup.start()
    assert "payloads cannot be read" in setup.commands()[0].message


async def test_a_stop_leaves_calls_open_as_after_a_crash(
    setups: Callable[..., Setup], caplog: pytest.LogCaptureFixture
) -> None:
    async def never(request: ModelRequest) -> ModelResponse:
        await asyncio.Event().wait()
        return said("unreachable")

    setup = setups(Answering(never))
    await setup.start()
    with caplog.at_level(logging.WARNING):
        assert await setup.system.close() == ()
    assert setup.commands() == []
    assert caplog.text == ""
