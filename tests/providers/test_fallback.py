"""Where one provider fails the next is asked: H6."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

import refold
from refold.actors import ManualClock
from refold.events.core.content import text_of
from refold.providers import FallbackProvider, ReActProvider
from refold.resilience import CircuitBreaker
from refold.stores import EventStore
from tests.conformance.sessions import checked_log, runtime_of

DOWN = refold.ProviderError("refused", kind="connection", retryable=True)
BUSY = refold.ProviderError("busy", kind="rate_limit", status=429, retryable=True, retry_after_s=7)
WRONG = refold.ProviderError("no such field", kind="invalid_request", status=400, field="tools")


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventStore]:
    async with checked_log("memory", tmp_path) as store:
        yield store


async def sent(log: EventStore, provider: FallbackProvider, **config: Any) -> refold.RunResult:
    settings = refold.AgentConfig(**{"model": "first-model", "retry": None, **config})
    async with runtime_of(log, provider=provider, config=settings) as runtime:
        return await (await runtime.session("alice")).send("go")


@pytest.mark.parametrize("streaming", [False, True])
async def test_h6_the_next_provider_answers_where_one_fails_each_call_anew(log: EventStore, streaming: bool) -> None:
    first, second = (
        refold.ScriptedProvider([DOWN, refold.say("from the first")]),
        refold.ScriptedProvider([refold.say("from the second")]),
    )
    provider = FallbackProvider([first, (second, "second-model")])
    assert (await sent(log, provider, streaming=streaming)).text == "from the second"
    assert [request.model for request in second.requests] == ["second-model"]
    assert first.requests[0].messages == second.requests[0].messages
    assert (await sent(log, provider, streaming=streaming)).text == "from the first"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("error", [ConnectionRefusedError("down"), httpx.ConnectTimeout("slow"), ValueError("a bug")])
async def test_h6_a_provider_of_the_users_own_that_lost_its_connection_leads_on(
    log: EventStore, streaming: bool, error: Exception
) -> None:
    provider = FallbackProvider(
        [refold.ScriptedProvider([error]), refold.ScriptedProvider([refold.say("from the second")])]
    )
    result = await sent(log, provider, streaming=streaming)
    assert (result.text == "from the second") is not isinstance(error, ValueError)


@pytest.mark.parametrize("streaming", [False, True])
async def test_h6_what_is_the_requests_own_fault_is_not_asked_elsewhere_and_opens_no_circuit(
    log: EventStore, streaming: bool
) -> None:
    second = refold.ScriptedProvider([refold.say("never")])
    provider = FallbackProvider([refold.ScriptedProvider([WRONG] * 9 + [refold.say("well")]), second])
    for _ in range(9):
        result = await sent(log, provider, streaming=streaming)
        assert isinstance(result.outcome, refold.Failed)
        assert "no such field" in result.outcome.error.message
    assert (await sent(log, provider, streaming=streaming)).text == "well"
    assert second.requests == []


@pytest.mark.parametrize("streaming", [False, True])
async def test_h6_where_none_answers_the_error_says_what_each_said(log: EventStore, streaming: bool) -> None:
    provider = FallbackProvider([refold.ScriptedProvider([DOWN]), refold.ScriptedProvider([BUSY])])
    result = await sent(log, provider, streaming=streaming)
    assert isinstance(result.outcome, refold.Failed)
    assert result.outcome.error.message.endswith("none of 2 providers answered. 1: refused; 2: busy")


async def test_h6_a_call_that_none_answered_is_retried_from_the_first(log: EventStore) -> None:
    clock = ManualClock()
    first, second = refold.ScriptedProvider([BUSY, refold.say("at last")]), refold.ScriptedProvider([BUSY])
    config = refold.AgentConfig(model="m", retry=refold.RetryPolicy(base_s=1, jitter=0))
    provider = FallbackProvider([first, second])
    async with runtime_of(log, provider=provider, config=config, clock=clock) as runtime:
        session = await runtime.session("alice")
        run = await session.remind("go", at=datetime.fromtimestamp(clock.now_us() / 1e6, UTC))
        await clock.advance(6)
        assert len(first.requests) == 1
        await clock.advance(2)
        state = await session.state_at()
    assert state.last_run is not None
    assert (state.last_run.run, state.last_run.outcome, len(first.requests)) == (run, "completed", 2)


async def test_h6_an_answer_that_broke_off_after_its_first_piece_is_not_asked_elsewhere(log: EventStore) -> None:
    first, second = (
        refold.ScriptedProvider([refold.cut(refold.say("a long answer"), after=1)]),
        refold.ScriptedProvider([refold.say("never")]),
    )
    async with runtime_of(
        log, provider=FallbackProvider([first, second]), config=refold.AgentConfig(model="m", streaming=True)
    ) as runtime:
        session = await runtime.session("alice")
        pieces: list[str] = []
        async with session.stream("go") as stream:
            async for item in stream:
                if isinstance(item, refold.Streamed) and isinstance(item.delta, refold.TextDelta):
                    pieces.append(item.delta.text)
        assert isinstance(stream.result, refold.RunResult)
        assert isinstance(stream.result.outcome, refold.Failed)
    assert (pieces, second.requests) == (["a long a"], [])


async def test_h6_the_model_that_answered_is_the_one_that_is_paid_for(log: EventStore) -> None:
    second = refold.ScriptedProvider([refold.say("second", usage=refold.Usage(input_tokens=1_000_000))])
    prices = {"first": refold.Price(input=1, output=1), "second": refold.Price(input=5, output=1)}
    provider = FallbackProvider([refold.ScriptedProvider([DOWN]), (second, "second-model")])
    assert (await sent(log, provider, prices=prices)).cost == 5


async def test_h6_which_errors_lead_on_can_be_chosen(log: EventStore) -> None:
    second = refold.ScriptedProvider([refold.say("second")])
    strict = FallbackProvider([refold.ScriptedProvider([DOWN]), second], on=["rate_limit"])
    assert isinstance((await sent(log, strict)).outcome, refold.Failed)
    wide = FallbackProvider([refold.ScriptedProvider([WRONG]), second], on=["invalid_request"])
    assert (await sent(log, wide)).text == "second"


@pytest.mark.parametrize(
    ("alternatives", "options", "says"),
    [
        ([], {}, "at least one"),
        ([3], {}, "async method"),
        ([(refold.ScriptedProvider([]), "")], {}, "its name"),
        ([refold.ScriptedProvider([])], {"on": ["weather"]}, "no kind of ProviderError"),
        ([refold.ScriptedProvider([])], {"breakers": [None, None]}, "as many breakers"),
        ([refold.ScriptedProvider([])], {"breakers": ["weather"]}, "breakers are CircuitBreakers"),
    ],
)
def test_h6_what_cannot_work_is_refused_at_once(alternatives: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(refold.ConfigError, match=says):
        FallbackProvider(alternatives, **options)


@pytest.mark.parametrize("streaming", [False, True])
async def test_h6_a_provider_that_failed_often_is_left_alone_for_a_while(log: EventStore, streaming: bool) -> None:
    clock = ManualClock()
    first = refold.ScriptedProvider([DOWN] * 5 + [refold.say("from the first")])
    second = refold.ScriptedProvider([refold.say(f"answer {number}") for number in range(1, 9)])
    provider = FallbackProvider([first, (second, "second-model")])
    config = refold.AgentConfig(model="m", streaming=streaming)
    async with runtime_of(log, provider=provider, config=config, clock=clock) as runtime:
        session = await runtime.session("alice")
        for number in range(1, 9):
            assert (await session.send("go")).text == f"answer {number}"
        assert len(first.requests) == 5
        await clock.advance(30)
        assert (await session.send("go")).text == "from the first"
    streams = [head.stream for head in await log.list_streams(prefix="breaker/")]
    assert streams == ["breaker/ScriptedProvider"]
    assert [living.stream for living in provider.stream_objects] == [
        "breaker/ScriptedProvider",
        "breaker/ScriptedProvider/second-model",
    ]


@pytest.mark.parametrize("streaming", [False, True])
async def test_h6_where_all_are_left_alone_the_call_may_be_repeated_when_one_may_be_asked(streaming: bool) -> None:
    clock = ManualClock()
    breakers = [
        CircuitBreaker(name, threshold=1, recovery_s=after, clock=clock) for name, after in (("a", 20), ("b", 9))
    ]
    first, second = refold.ScriptedProvider([DOWN]), refold.ScriptedProvider([DOWN, refold.say("at last")])
    provider = FallbackProvider([first, second], breakers=breakers)
    request = refold.ModelRequest(model="m", system_prompt="", messages=())

    async def asked() -> list[Any]:
        if streaming:
            return [item async for item in provider.stream(request)]
        return [await provider.complete(request)]

    with pytest.raises(refold.ProviderError, match=r"none of 2 providers answered\. 1: refused; 2: refused"):
        await asked()
    with pytest.raises(
        refold.ProviderError, match=r"1: it was not asked, since the circuit of 'a' is open .* 2: it was not"
    ) as raised:
        await asked()
    assert (raised.value.retryable, raised.value.retry_after_s, raised.value.kind) == (True, 9, "overloaded")
    assert (len(first.requests), len(second.requests)) == (1, 1)
    clock.jump(9)
    assert text_of((await asked())[-1].content) == "at last"


def test_h6_breakers_can_be_left_out_and_those_inside_are_found() -> None:
    one, other = CircuitBreaker("one"), CircuitBreaker("other")
    inner = FallbackProvider([refold.ScriptedProvider([])], breakers=[one])
    in_front = ReActProvider(FallbackProvider([refold.ScriptedProvider([])], breakers=[other]))
    assert FallbackProvider([inner, in_front], breakers=[None, None]).stream_objects == (one, other)
    twins = FallbackProvider([(refold.ScriptedProvider([]), "m"), (refold.ScriptedProvider([]), "m")])
    assert [living.name for living in twins.stream_objects] == ["ScriptedProvider/m", "ScriptedProvider/m 2"]


async def test_h6_closing_closes_every_provider_also_where_one_fails() -> None:
    closed: list[str] = []

    class Open(refold.ScriptedProvider):
        def __init__(self, name: str) -> None:
            super().__init__([])
            self.name = name

        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "b":
                raise OSError("cannot be closed")

    with pytest.raises(OSError, match="cannot be closed"):
        await FallbackProvider([Open("a"), Open("b"), refold.ScriptedProvider([]), Open("c")]).aclose()
    assert sorted(closed) == ["a", "b", "c"]


class Plain:
    async def complete(self, request: refold.ModelRequest) -> Any:
        return refold.say("from the second")


class GivesItsText(Plain):
    async def complete(self, request: refold.ModelRequest) -> Any:
        return "only a text"


async def test_h6_what_is_no_answer_is_told_as_of_a_provider_alone() -> None:
    with pytest.raises(refold.ProviderError, match=r"gave an answer that cannot be used: .* not a ModelResponse"):
        await FallbackProvider([GivesItsText()]).complete(refold.ModelRequest(model="m", system_prompt="", messages=()))


class NoStream(refold.ScriptedProvider):
    async def stream(self, request: refold.ModelRequest) -> Any:  # type: ignore[override]
        return refold.say("not a stream")


class Unclosable(refold.ScriptedProvider):
    def stream(self, request: refold.ModelRequest) -> Any:
        return UnclosableStream()


class UnclosableStream:
    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        raise DOWN

    async def aclose(self) -> None:
        raise RuntimeError("cannot be closed")


BROKEN_OFF = refold.cut(refold.say("a long answer", usage=refold.Usage(input_tokens=3)), after=0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(NoStream([]), None, id="a stream that is none"),
        pytest.param(Unclosable([]), None, id="a stream that cannot be closed"),
        pytest.param(refold.ScriptedProvider([BROKEN_OFF]), None, id="an answer that broke off before its first piece"),
        pytest.param(refold.ScriptedProvider([DOWN]), Plain(), id="and the next may have no stream of its own"),
    ],
)
async def test_h6_a_stream_without_a_piece_is_a_failure_like_any_other(
    log: EventStore, first: Any, second: Any
) -> None:
    provider = FallbackProvider([first, second or refold.ScriptedProvider([refold.say("from the second")])])
    result = await sent(log, provider, streaming=True)
    assert (result.outcome, result.text) == (refold.Completed(), "from the second")
