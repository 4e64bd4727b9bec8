"""Text models behind `ReActProvider`: what is made of their answers, whole and streamed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import refold
from refold.events.model.messages import StopReason
from refold.providers.react import CUT, in_protocol
from refold.react.prompt import THOUGHT_DATA, UNPARSED_DATA, said_data
from refold.react.text import EXPECTED, ReActStep

SCHEMA: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}}
REQUEST = refold.ModelRequest(
    model="m",
    system_prompt="",
    messages=[refold.Message("user", (refold.TextBlock(text="Weather?"),))],
    tools=(refold.ToolSpec(name="weather", description="", input_schema=SCHEMA),),
)
NO_TOOLS = refold.ModelRequest(model="m", system_prompt="", messages=REQUEST.messages)

ACTION = 'Thought: I look.\nAction: weather\nAction Input: {"city": "Lisbon"}'
THOUGHT = refold.ThinkingBlock(thinking="I look.", provider_data=THOUGHT_DATA)
CALL = refold.ToolUse(name="weather", input={"city": "Lisbon"})


async def pieces_of(provider: Any, request: refold.ModelRequest = REQUEST) -> list[Any]:
    return [piece async for piece in refold.ReActProvider(provider).stream(request)]


async def answer_to(item: Any, request: refold.ModelRequest = REQUEST) -> refold.ModelResponse:
    """Return what is made of an answer, which is the same streamed and whole."""
    whole = await refold.ReActProvider(refold.ScriptedProvider([item])).complete(request)
    streamed = (await pieces_of(refold.ScriptedProvider([item]), request))[-1]
    assert streamed == whole
    return whole


async def test_the_other_provider_is_asked_in_text_and_without_stop_sequences_where_it_refuses_them() -> None:
    scripted = refold.ScriptedProvider([ACTION, ACTION])
    await refold.ReActProvider(scripted).complete(REQUEST)
    await refold.ReActProvider(scripted, stop=False).complete(REQUEST)
    for asked in scripted.requests:
        assert asked.tools == ()
        assert "## weather" in asked.system_prompt
    assert [request.stop_sequences for request in scripted.requests] == [("\nObservation:",), ()]


def test_a_provider_is_put_in_front_once_and_only_for_react() -> None:
    scripted = refold.ScriptedProvider([])
    front = in_protocol(scripted, "react")
    assert isinstance(front, refold.ReActProvider)
    assert in_protocol(front, "react") is front
    assert in_protocol(scripted, "native") is scripted


@pytest.mark.parametrize(
    ("text", "stop_reason", "content", "made_of_it"),
    [
        (ACTION, "end_turn", (THOUGHT, CALL), "tool_use"),
        (ACTION, "stop_sequence", (THOUGHT, CALL), "tool_use"),
        ("FINAL_ANSWER: Sunny.", "end_turn", (refold.TextBlock(text="Sunny."),), "end_turn"),
        ("FINAL_ANSWER: Sunny.", "stop_sequence", (refold.TextBlock(text="Sunny."),), "stop_sequence"),
        ("FINAL_ANSWER: Sun", "max_tokens", (refold.TextBlock(text="Sun"),), "max_tokens"),
        ("FINAL_ANSWER: Sunny.\nObservation: x", "max_tokens", (refold.TextBlock(text="Sunny."),), "end_turn"),
        (ACTION, "max_tokens", (THOUGHT, CALL), "tool_use"),  # It was over before the answer was cut.
        (f"{ACTION}\nObservation: su", "max_tokens", (THOUGHT, CALL), "tool_use"),
    ],
)
async def test_a_step_becomes_an_answer(
    text: str, stop_reason: StopReason, content: tuple[Any, ...], made_of_it: StopReason
) -> None:
    usage = refold.Usage(input_tokens=3, output_tokens=4)
    answer = await answer_to(refold.say(text, stop_reason=stop_reason, usage=usage))
    assert answer == refold.ModelResponse(content=content, stop_reason=made_of_it, usage=usage)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [('Action: weather\nAction Input: {"city": "Lis', '{"city": "Lis'), ("Action: weather", {}), ("Action: wea", {})],
)
async def test_an_action_that_is_cut_is_a_cut_call(text: str, arguments: object) -> None:
    answer = await answer_to(refold.say(text, stop_reason="max_tokens"))
    assert answer.stop_reason == "max_tokens"
    [call] = answer.content
    assert isinstance(call, refold.ToolUse)
    assert call.input == arguments


async def test_other_words_than_the_form_are_kept() -> None:
    said = "**Thought:** I look.\n**Action:** Weather\n**Action Input:** Lisbon"
    answer = await answer_to(f"{said}\n\n**Observation:** rain")
    step = ReActStep(thought="I look.", action="weather", arguments={"city": "Lisbon"}, said=said)
    call = refold.ToolUse(name="weather", input={"city": "Lisbon"}, provider_data=said_data(step))
    assert answer.content == (THOUGHT, call)
    answer = await answer_to("Final Answer: Sunny.")
    step = ReActStep(final_answer="Sunny.", said="Final Answer: Sunny.")
    assert answer.content == (refold.TextBlock(text="Sunny.", provider_data=said_data(step)),)


async def test_a_text_that_is_no_unicode_is_made_so() -> None:
    answer = await answer_to('Action: weather\nAction Input: {"city": "\\ud800"}\ud800')
    [call] = answer.content
    assert isinstance(call, refold.ToolUse)
    assert call.provider_data == {
        "react": {"said": 'Action: weather\nAction Input: {"city": "\\ud800"}\ufffd', "digest": ""}
    }


async def test_what_is_no_step_is_rejected_with_the_reason() -> None:
    answer = await answer_to("It is sunny.")
    assert answer.content == (refold.TextBlock(text="It is sunny.", provider_data=UNPARSED_DATA),)
    found = "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'It is sunny.'."
    assert answer.rejected == f"{found} {EXPECTED}"


async def test_a_thought_that_is_cut_is_rejected_as_cut() -> None:
    answer = await answer_to(refold.say("Thought: I", stop_reason="max_tokens"))
    assert answer.rejected == CUT
    assert answer.stop_reason == "max_tokens"


@pytest.mark.parametrize("text", ["It is sunny.", "Provider error: connection refused", "Thought: hm"])
async def test_a_text_that_is_no_step_is_none_where_there_are_no_tools_either(text: str) -> None:
    answer = await answer_to(text, NO_TOOLS)
    assert answer.content == (refold.TextBlock(text=text, provider_data=UNPARSED_DATA),)
    assert answer.rejected.startswith("The answer has neither an Action nor a FINAL_ANSWER")


async def test_a_refusal_is_an_answer() -> None:
    answer = await answer_to(refold.say("I cannot help.", stop_reason="refusal"))
    assert (answer.rejected, answer.stop_reason) == ("", "refusal")
    assert answer.content == (refold.TextBlock(text="I cannot help.", provider_data=UNPARSED_DATA),)


@pytest.mark.parametrize(
    "item",
    [
        refold.say("  "),
        refold.use("weather", {"city": "Lisbon"}, id="a"),
        [refold.TextBlock(text="I look."), refold.use("weather", {}), refold.use("weather", {})],
        refold.say("It is", stop_reason="pause_turn"),
        refold.ModelResponse(content=(refold.TextBlock(text="x"),), rejected="Say y."),
        refold.ModelResponse(content=()),
    ],
)
async def test_native_calls_and_what_is_no_text_stay_as_they_are(item: Any) -> None:
    expected = await refold.ScriptedProvider([item]).complete(REQUEST)
    assert await answer_to(item) == expected


async def test_the_models_own_reasoning_is_kept_and_is_no_thought() -> None:
    signed, own = refold.ThinkingBlock(thinking="hm", signature="s"), refold.ProviderBlock(provider="p", data={"x": 1})
    whole = refold.ModelResponse(
        content=(signed, own, refold.TextBlock(text="Thought: I"), refold.TextBlock(text=" look.\nAction: weather"))
    )
    answer = await answer_to(whole)
    assert answer.content[:3] == (signed, own, THOUGHT)
    answer = await answer_to("<think>hm</think>FINAL_ANSWER: Sunny.")
    assert answer.content == (refold.ThinkingBlock(thinking="hm"), refold.TextBlock(text="Sunny."))


# Streaming


async def test_thoughts_and_the_answer_are_streamed_and_nothing_else() -> None:
    usage = refold.Usage(input_tokens=3, output_tokens=4)
    pieces = await pieces_of(
        refold.ScriptedProvider([refold.say("Thought: I know.\nFINAL_ANSWER: It is sunny.", usage=usage)])
    )
    assert "".join(piece.thinking for piece in pieces if isinstance(piece, refold.ThinkingDelta)) == "I know."
    assert "".join(piece.text for piece in pieces if isinstance(piece, refold.TextDelta)) == "It is sunny."
    assert [piece for piece in pieces if isinstance(piece, refold.UsageDelta)] == [
        refold.UsageDelta(refold.Usage(input_tokens=3)),
        refold.UsageDelta(usage),
    ]
    assert len([piece for piece in pieces if isinstance(piece, refold.TextDelta)]) > 1
    assert isinstance(pieces[-1], refold.ModelResponse)


async def test_what_was_held_back_comes_before_the_answer() -> None:
    pieces = await pieces_of(refold.ScriptedProvider(["FINAL_ANSWER: See:\nObs"]))
    assert pieces[:-1] == [refold.TextDelta("Se"), refold.TextDelta("e:"), refold.TextDelta("\nObs")]
    assert isinstance(pieces[-1], refold.ModelResponse)


async def test_a_stream_that_breaks_off_does_so_after_what_had_come() -> None:
    provider = refold.ReActProvider(refold.ScriptedProvider([refold.cut("FINAL_ANSWER: It is sunny.", after=3)]))
    stream = provider.stream(REQUEST)
    assert await anext(stream) == refold.TextDelta("It")
    assert await anext(stream) == refold.TextDelta(" is sunn")
    with pytest.raises(refold.ProviderError, match="broke inside the answer"):
        await anext(stream)


class Closable(refold.Provider):
    """A model whose stream says when it is closed."""

    def __init__(self) -> None:
        self.closed = False

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        raise NotImplementedError

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        try:
            yield refold.TextDelta("Thought: I look around")
            async for piece in refold.ScriptedProvider([refold.stall("x", after=0)]).stream(request):
                yield piece
        finally:
            self.closed = True


async def test_a_stream_that_is_left_is_closed() -> None:
    model = Closable()
    stream = refold.ReActProvider(model).stream(REQUEST)
    assert await anext(stream) == refold.ThinkingDelta("I look around")
    assert not model.closed
    await stream.aclose()  # type: ignore[attr-defined]
    assert model.closed


class Whole:
    """A model that cannot stream, and does not know the protocol."""

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        return refold.say("FINAL_ANSWER: Sunny.")


class Wrong(refold.Provider):
    """A model that gives what is no answer."""

    def __init__(self, item: Any) -> None:
        self.item = item

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        return self.item  # type: ignore[no-any-return]

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        yield self.item


class NoStream(Wrong):
    async def stream(self, request: refold.ModelRequest) -> Any:  # type: ignore[override]
        return self.item


async def test_a_model_that_cannot_stream_is_streamed_from_and_a_stream_may_lack_an_answer() -> None:
    assert await pieces_of(Whole()) == [refold.say("Sunny.")]
    assert await pieces_of(Wrong(refold.TextDelta("Thought: hm"))) == [refold.ThinkingDelta("hm")]


@pytest.mark.parametrize("item", ["text", None, refold.ModelResponse(content=(7,))])  # type: ignore[arg-type]
async def test_what_is_no_answer_is_refused(item: Any) -> None:
    with pytest.raises(refold.ProviderError, match="cannot be used") as refusal:
        await refold.ReActProvider(Wrong(item)).complete(REQUEST)
    assert refusal.value.kind == "malformed"
    with pytest.raises(refold.ProviderError, match="cannot be used"):
        await pieces_of(Wrong(item))
    with pytest.raises(refold.ProviderError, match="not an async iterator"):
        await pieces_of(NoStream(item))
