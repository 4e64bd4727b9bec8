"""A provider speaks through the real HTTP libraries to a host that is not there, and fails as the plan says."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import httpcore
import msgspec
import pytest

from refold import Message, ModelResponse, ProviderError, TextBlock, ToolUseBlock
from refold.events.core.content import ToolResultBlock
from refold.events.core.ids import ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest, ToolUse
from refold.providers import AnthropicProvider, OpenAIProvider
from refold.providers.http.client import IDLE_S
from refold.scenarios import Say, Scenario, faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.monitor import Monitor
from refold.scenarios.plan.world import SIGNS, World
from refold.scenarios.wire.host import KEY
from refold.scenarios.wire.messages import BadRequest, Wire, request_in
from refold.scenarios.wire.providers import SimulatedWire
from refold.scenarios.world.loop import SimulatedLoop
from refold.scenarios.world.model import SimulatedModel

T = TypeVar("T")

WIRES: tuple[Wire, ...] = ("openai", "anthropic")

LOOK = ToolSpec(
    name="look",
    description="Look.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def asked(*texts: str, tools: tuple[ToolSpec, ...] = ()) -> ModelRequest:
    messages = [
        Message("assistant" if place % 2 else "user", (TextBlock(text=text),)) for place, text in enumerate(texts)
    ]
    return ModelRequest(model="m", system_prompt="Be brief.", messages=messages, tools=tools)


class Played:
    """A provider over a simulated network, on a loop of its own."""

    def __init__(self, wire: Wire, *planned: AnyFault, seed: int = 1) -> None:
        scenario = Scenario(acts=(Say(session="a"),), faults=planned, seed=seed, wire=wire, calm_s=1e6)
        self.world = World(scenario)
        self.monitor = Monitor(self.world)
        self.wire = SimulatedWire(self.world, self.monitor, wire)
        self.requests: list[ModelRequest] = []
        self.loop = SimulatedLoop()
        self.world.loop = self.loop
        provider = self.wire.provider_of(SimulatedModel(self.world, self.asked))
        assert isinstance(provider, OpenAIProvider | AnthropicProvider)
        self.provider = provider

    def asked(self, request: ModelRequest) -> list[str]:
        self.requests.append(request)
        return []

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def whole() -> T:
            try:
                return await asyncio.wait_for(asyncio.ensure_future(work()), None)
            finally:
                self.loop_time = self.loop.time()

        async def closed() -> None:
            await self.provider.aclose()

        asyncio.set_event_loop(self.loop)
        try:
            return self.loop.run_until_complete(whole())
        finally:
            self.loop.run_until_complete(closed())
            assert not self.wire.network.connections
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            assert not asyncio.all_tasks(self.loop)
            asyncio.set_event_loop(None)
            self.loop.close()

    def answer(self, request: ModelRequest, *, stream: bool) -> ModelResponse:
        return self.run(lambda: answered(self.provider, request, stream=stream))


async def answered(
    provider: OpenAIProvider | AnthropicProvider, request: ModelRequest, *, stream: bool
) -> ModelResponse:
    if not stream:
        return await provider.complete(request)
    last: object = None
    async with aclosing(provider.stream(request)) as items:
        async for item in items:
            last = item
    assert isinstance(last, ModelResponse)
    return last


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_what_the_model_says_arrives_whole_however_it_is_cut(wire: Wire, stream: bool) -> None:
    for seed in range(12):
        text = Played(wire, seed=seed).answer(asked("hello"), stream=stream)
        assert text.stop_reason in ("end_turn", "max_tokens")
        (block,) = text.content
        assert isinstance(block, TextBlock)
        assert block.text.startswith("That is answer ")
        assert block.text.endswith(SIGNS)
        calls = [
            block
            for block in Played(wire, seed=seed).answer(asked("hello", tools=(LOOK,)), stream=stream).content
            if isinstance(block, ToolUse)
        ]
        for call in calls:
            assert call.name == "look"
            given: Any = msgspec.json.decode(call.input) if isinstance(call.input, str) else call.input
            assert set(given) == {"city"}


FAILURES: list[tuple[AnyFault, str, bool]] = [
    (faults.HostRefuses(nth=1), "connection", True),
    (faults.HostIsSilent(nth=1), "timeout", True),
    (faults.HostIsFull(nth=1, retry_after_s=7), "rate_limit", True),
    (faults.HostFails(nth=1, status=500), "server", True),
    (faults.HostFails(nth=1, status=502, page=True), "server", True),
    (faults.ResponseStalls(nth=1, seconds=1_000, begun=False), "timeout", True),
    (faults.ResponseStalls(nth=1, seconds=1_000), "timeout", True),
    (faults.ResponseBreaks(nth=1, begun=False), "connection", True),
    (faults.ResponseBreaks(nth=1), "connection", True),
    (faults.ResponseIsNoText(nth=1), "malformed", True),
    (faults.ResponseIsNoJson(nth=1), "malformed", True),
    (faults.ResponseHasNoEnd(nth=1), "malformed", True),
    (faults.ResponseIsHuge(nth=1), "malformed", False),
    (faults.ChunkIsLost(nth=2), "connection", True),
    (faults.NetworkSplit(at_s=0.0, seconds=60), "timeout", True),
    (faults.ProviderRefuses(nth=1, kind="auth", retryable=False), "auth", False),
    (faults.ProviderRefuses(nth=1, kind="overloaded"), "overloaded", True),
    (faults.ProviderDrops(nth=1), "connection", True),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("fault", "kind", "retryable"), FAILURES, ids=lambda value: repr(value))
def test_each_failure_is_an_error_of_its_kind(
    wire: Wire, stream: bool, fault: AnyFault, kind: str, retryable: bool
) -> None:
    played = Played(wire, fault)
    if isinstance(fault, faults.NetworkSplit):
        played.wire.network.split(fault)
    with pytest.raises(ProviderError) as caught:
        played.answer(asked("hello"), stream=stream)
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)
    assert KEY not in str(caught.value)
    if isinstance(fault, faults.HostIsFull):
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_that_ends_as_if_it_were_complete_is_found_to_be_half(wire: Wire, seed: int) -> None:
    for stream in (True, False):
        with pytest.raises(ProviderError) as caught:
            Played(wire, faults.ResponseBreaks(nth=1, reset=False), seed=seed).answer(asked("hello"), stream=stream)
        assert caught.value.kind in ("connection", "malformed")
        assert caught.value.retryable


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_what_is_slow_or_odd_and_whole_is_an_answer(wire: Wire, stream: bool) -> None:
    dripped = Played(wire, faults.ResponseDrips(nth=1)).answer(asked("hello"), stream=stream)
    assert dripped == Played(wire).answer(asked("hello"), stream=stream)
    late = Played(wire, faults.ChunkIsLate(nth=1, seconds=200), faults.ResponseStalls(nth=1, seconds=60))
    late.answer(asked("hello"), stream=stream)
    assert 260 < late.loop_time < 270
    cut = Played(wire, faults.ArgumentsAreCut(nth=1)).answer(asked("hello", tools=(LOOK,)), stream=stream)
    arguments = [block.input for block in cut.content if isinstance(block, ToolUse)][-1]
    assert isinstance(arguments, str)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(arguments)
    same = Played(wire, faults.CallsShareId(nth=1)).answer(asked("hello", tools=(LOOK,)), stream=stream)
    ids = [block.id for block in same.content if isinstance(block, ToolUse)]
    assert len(ids) > 1
    assert set(ids) == {"call_same"}


def test_a_split_network_holds_back_what_is_on_its_way_and_then_lets_it_through() -> None:
    played = Played("openai")

    async def through_a_split() -> float:
        asking = asyncio.ensure_future(answered(played.provider, asked("hello"), stream=True))
        await asyncio.sleep(0.25)  # Connected, and asked.
        assert played.world.plan.operations()["request"] == 1
        played.wire.network.split(faults.NetworkSplit(at_s=0, seconds=100))
        await asking
        return played.loop.time()

    assert 100.25 <= played.run(through_a_split) < 104


def test_connections_are_kept_for_the_next_call_and_closed_when_nobody_needs_them() -> None:
    played = Played("anthropic", seed=7)

    async def two_calls() -> list[int]:
        counts: list[int] = []
        for _ in range(3):
            await answered(played.provider, asked("hello"), stream=True)
            counts.append(len(played.wire.network.connections))
        await asyncio.sleep(2 * IDLE_S)
        return [*counts, len(played.wire.network.connections)]

    *counts, after_a_while = played.run(two_calls)
    assert max(counts) == 1
    assert after_a_while == 0
    assert played.world.plan.operations()["connect"] < 3


def test_a_call_that_is_cancelled_at_any_moment_leaves_no_connection() -> None:
    for moment in range(1, 60, 7):
        played = Played("openai", faults.ResponseDrips(nth=1))

        async def cancelled(played: Played = played, after_s: float = moment * 0.02) -> int:
            asking = asyncio.ensure_future(answered(played.provider, asked("hello"), stream=True))
            await asyncio.sleep(after_s)
            asking.cancel()
            await asyncio.wait([asking])
            return len(played.wire.network.connections)

        assert played.run(cancelled) <= 1


def test_a_connection_that_is_left_open_is_noted() -> None:
    played = Played("openai")

    async def left_open() -> None:
        provider: Any = played.wire.provider_of(SimulatedModel(played.world, played.asked))
        pool: Any = provider._new_client()._transport._pool
        backend: httpcore.AsyncNetworkBackend = pool._network_backend
        await backend.connect_tcp("127.0.0.1", 80)
        played.wire.check_all_is_closed()

    played.run(left_open)
    assert [broken.rule for broken in played.monitor.broken] == ["INV7"]


CALL = ToolUseBlock(id=ToolCallId("call_1"), name="look", input={"city": "Rome"})
RESULT = ToolResultBlock(tool_use_id=ToolCallId("call_1"), content=(TextBlock(text="Fine."),))


@pytest.mark.parametrize("wire", WIRES)
def test_the_host_reads_what_was_asked(wire: Wire) -> None:
    messages = [
        Message("user", (TextBlock(text="How is Rome?"),)),
        Message("assistant", (TextBlock(text="I look."), CALL)),
        Message("user", (RESULT,)),
        Message("assistant", (TextBlock(text="It is fine."),)),
        Message("user", (TextBlock(text="And now?"),)),
    ]
    request = ModelRequest(model="m", system_prompt="Be brief.", messages=messages, tools=(LOOK,))
    played = Played(wire)
    played.answer(request, stream=False)
    (read,) = played.requests
    assert (read.model, read.system_prompt) == ("m", "Be brief.")
    assert [message.role for message in read.messages] == [message.role for message in messages]
    assert [spec.input_schema for spec in read.tools] == [LOOK.input_schema]
    assert not played.monitor.broken


def test_the_host_refuses_histories_that_providers_refuse() -> None:
    user: dict[str, Any] = {"role": "user", "content": "hello"}
    call: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": "fine"}
    assert _refused("openai", [user, call, result]) is None
    bad: list[Any]
    for bad in ([user, call], [user, call, user], [user, result], [user, call, {**result, "content": " "}], []):
        assert _refused("openai", bad)
    user = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": []}]}
    assert _refused("anthropic", [user, call, result]) is None
    for bad in ([user, call], [user, call, user], [user, user], [result], [call], []):
        assert _refused("anthropic", bad)


def _refused(wire: Wire, messages: list[Any]) -> str | None:
    tool = {"name": "look", "parameters": {}}
    sent = {
        "model": "m",
        "max_tokens": 9,
        "messages": messages,
        "tools": [{"function": tool} if wire == "openai" else {"name": "look", "input_schema": {}}],
    }
    try:
        request_in(msgspec.json.encode(sent), wire)
    except BadRequest as error:
        return str(error)
    return None
