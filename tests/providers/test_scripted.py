"""The provider that plays a script, as a stream and not: whole answers, half answers, and answers that stall."""

import asyncio
from typing import Any

import pytest

import refold

REQUEST = refold.ModelRequest(model="m", system_prompt="", messages=())


async def streamed(provider: refold.ScriptedProvider, into: list[Any]) -> list[Any]:
    async for item in provider.stream(REQUEST):
        into.append(item)
    return into


async def test_an_answer_is_streamed_in_small_pieces_and_then_whole() -> None:
    answer = refold.say("ten letters", usage=refold.Usage(input_tokens=5, output_tokens=3))
    assert await streamed(refold.ScriptedProvider([answer]), []) == [
        refold.UsageDelta(refold.Usage(input_tokens=5)),
        refold.TextDelta("ten lett"),
        refold.TextDelta("ers"),
        refold.UsageDelta(refold.Usage(input_tokens=5, output_tokens=3)),
        answer,
    ]


async def test_calls_are_streamed_by_their_place_with_the_providers_id() -> None:
    calls = [refold.use("look", "", id="toolu_a"), refold.use("pay", {"a": 12345})]
    items = await streamed(refold.ScriptedProvider([calls]), [])
    assert items[:-1] == [
        refold.ToolInputDelta(0, "look", "", "toolu_a"),
        refold.ToolInputDelta(1, "pay", '{"a":123'),
        refold.ToolInputDelta(1, "pay", "45}"),
    ]
    assert isinstance(items[-1], refold.ModelResponse)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(None, refold.ProviderError), (refold.ProviderError("overloaded"), refold.ProviderError), (OSError(5), OSError)],
)
async def test_a_cut_answer_ends_with_its_error(error: Exception | None, raised: type[Exception]) -> None:
    items: list[Any] = []
    provider = refold.ScriptedProvider([refold.cut("a long answer", after=1, error=error)] * 2)
    with pytest.raises(raised) as caught:
        await streamed(provider, items)
    assert items == [refold.TextDelta("a long a")]
    assert error is None or caught.value is error
    with pytest.raises(raised):
        await provider.complete(REQUEST)
    assert len(provider.requests) == 2


async def test_a_cut_answer_is_counted_only_as_far_as_it_came() -> None:
    items: list[Any] = []
    usage = refold.Usage(input_tokens=5, output_tokens=3)
    with pytest.raises(refold.ProviderError) as caught:
        await streamed(refold.ScriptedProvider([refold.cut(refold.say("hi", usage=usage), after=0)]), items)
    assert items == [refold.UsageDelta(refold.Usage(input_tokens=5))]
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_stalled_answer_waits_until_it_is_cancelled(streams: bool) -> None:
    items: list[Any] = []
    provider = refold.ScriptedProvider([refold.stall("a long answer", after=1)])
    work: Any = streamed(provider, items) if streams else provider.complete(REQUEST)
    waiting = asyncio.create_task(work)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert items == ([refold.TextDelta("a long a")] if streams else [])


async def test_what_a_subclass_answers_is_what_it_streams() -> None:
    class Loud(refold.ScriptedProvider):
        async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
            (block,) = (await super().complete(request)).content
            assert isinstance(block, refold.TextBlock)
            return refold.say(block.text.upper())

    assert await streamed(Loud(["hi"]), []) == [refold.TextDelta("HI"), refold.say("HI")]


@pytest.mark.parametrize("after", [-1, True, 1.5, "1"])
def test_a_number_of_pieces_that_is_none_is_refused(after: Any) -> None:
    with pytest.raises(refold.ConfigError, match="after is a number of deltas"):
        refold.cut("x", after=after)
    with pytest.raises(refold.ConfigError, match="after is a number of deltas"):
        refold.stall("x", after=after)


async def test_a_script_that_is_over_says_how_long_it_was() -> None:
    with pytest.raises(refold.ProviderError, match="the script has 0 answers and this is request 1; add one"):
        await refold.ScriptedProvider([]).complete(REQUEST)
