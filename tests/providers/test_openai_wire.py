"""The wire format against the real thing: the official `openai` package's types, models and accumulator."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from refold import Message, ModelRequest, ModelResponse, ProviderError, TextBlock, ToolUse
from refold.events import ImageBlock, ToolUseBlock
from refold.events.core.content import JsonObject
from refold.events.model.configuration import ToolSpec
from refold.events.model.history_rules import HistoryRules
from refold.events.model.messages import Delta, TextDelta, ToolInputDelta
from refold.providers.http.events import EventStreamReader
from refold.providers.openai.provider import OpenAIFormat
from refold.providers.openai.request import OpenAISettings
from tests.providers.chat_completions import check_accepted, chunk, wire_id
from tests.providers.conversation import IMAGE, assistant, call, result, user
from tests.providers.histories import misplaced_histories, texts, tool_names, tools

T = TypeVar("T")


def attempt(work: Callable[[], T]) -> T | ProviderError:
    """Return what `work` returns, or its failure; another exception passes."""
    try:
        return work()
    except ProviderError as error:
        return error


# ----- what is sent


def test_the_check_of_requests_notices_what_is_wrong() -> None:
    right: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    check_accepted(json.dumps(right).encode())
    wrong: list[dict[str, Any]] = [
        {**right, "max_tokens": "9"},
        {**right, "temperature": True},
        {**right, "top_k": 4},
        {**right, "stop": [1]},
        {**right, "tools": []},
        {"messages": right["messages"]},
        {**right, "messages": []},
        {**right, "messages": [{"role": "user", "content": "Hi", "reasoning": "hm"}]},
        {**right, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {**right, "messages": [{"role": "assistant", "content": None}]},
        {**right, "messages": [{"role": "tool", "tool_call_id": "x", "content": "orphan"}]},
    ]
    for body in wrong:
        with pytest.raises((AssertionError, IndexError, KeyError)):
            check_accepted(json.dumps(body).encode())


@given(misplaced_histories, texts, tools, st.booleans(), st.none() | st.booleans())
def test_every_request_that_is_sent_is_one_that_the_api_accepts(
    history: list[Message], prompt: str, offered: tuple[ToolSpec, ...], stream: bool, parallel: bool | None
) -> None:
    wire_format = OpenAIFormat(OpenAISettings(parallel_tool_calls=parallel))
    request = ModelRequest(model="gpt-x", system_prompt=prompt, messages=history, tools=offered)
    sent = attempt(lambda: wire_format.request(request, stream=stream))
    if isinstance(sent, ProviderError):
        assert (sent.kind, sent.retryable) == ("invalid_request", False)
        return
    check_accepted(sent.body)
    assert wire_format.request(request, stream=stream).body == sent.body


spoken_or_shown: st.SearchStrategy[ImageBlock | str] = st.sampled_from(["Hi", IMAGE])


@st.composite
def balanced_histories(draw: st.DrawFn) -> list[Message]:
    """Histories as Refold keeps them."""
    history: list[Message] = []
    open_calls: list[ToolUseBlock] = []
    for turn in range(draw(st.integers(1, 4))):
        answers = draw(st.permutations([result(each.id, f"of {each.id}") for each in open_calls]))
        content = draw(st.lists(spoken_or_shown, min_size=1, max_size=2))
        history.append(user(*answers, *content))
        open_calls = []
        if draw(st.booleans()):
            names = draw(st.lists(tool_names, max_size=3))
            open_calls = [call(f"call_{turn}_{place}", name, {"turn": turn}) for place, name in enumerate(names)]
            history.append(assistant("So.", *open_calls))
    if history[-1].role == "assistant":
        history.append(user(*(result(each.id, f"of {each.id}") for each in open_calls), "Go on."))
    return history


@given(balanced_histories())
def test_nothing_of_a_balanced_history_is_lost(history: list[Message]) -> None:
    rules = HistoryRules()
    assert not [finding for message in history for finding in rules.add(message)]
    request = ModelRequest(model="gpt-x", system_prompt="", messages=history)
    messages = check_accepted(OpenAIFormat().request(request, stream=False).body)["messages"]
    blocks = [block for message in history for block in message.content]
    called = [block.id for block in blocks if isinstance(block, ToolUseBlock)]
    assert [call["id"] for message in messages for call in message.get("tool_calls", ())] == [*map(wire_id, called)]
    results = {wire_id(each): f"of {each}" for each in called}
    for message in messages:
        if message["role"] == "tool":
            assert message["content"] == results[message["tool_call_id"]]
    assert json.dumps(messages).count('"image_url": {') == sum(isinstance(block, ImageBlock) for block in blocks)
    spoken = sum(isinstance(block, TextBlock) and block.text == "Hi" for block in blocks)
    assert json.dumps([message for message in messages if message["role"] == "user"]).count("Hi") == spoken


# ----- what is read

REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}

spoken_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
call_values = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["weather", "get_time", "a-b"]),
        "arguments": st.dictionaries(spoken_texts, spoken_texts | st.integers(), max_size=2).map(json.dumps)
        | st.sampled_from(["", "{", '{"a": {"a": 1}}', '{"path": "/a', "{}{}"]),
    }
)


@st.composite
def completions(draw: st.DrawFn) -> ChatCompletion:
    """Answers of the official API, as its own package holds them."""
    used = draw(st.lists(call_values, max_size=3))
    text = draw(st.none() | spoken_texts)
    refusal = draw(st.none() | spoken_texts) if not used else None
    counts = draw(st.none() | st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100)))
    calls = [{"id": f"call_{place}", "type": "function", "function": function} for place, function in enumerate(used)]
    message = {"role": "assistant", "content": text, "refusal": refusal, **({"tool_calls": calls} if calls else {})}
    usage = None
    if counts is not None:
        prompt, output, cached = counts
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        usage["prompt_tokens_details"] = {"cached_tokens": min(cached, prompt)}  # type: ignore[assignment]
    finish = draw(st.sampled_from(["stop", "length", "content_filter", *(["tool_calls"] if used else [])]))
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return ChatCompletion.model_validate(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-x", "choices": [choice], "usage": usage}
    )


def check_agreement(answer: ModelResponse, official: ChatCompletion) -> None:
    """Assert that our answer says what the official one does."""
    (choice,) = official.choices
    message = choice.message
    spoken = [text for text in (message.content, message.refusal) if text and text.strip()]
    assert [block.text for block in answer.content if isinstance(block, TextBlock)] == spoken
    used = [block for block in answer.content if isinstance(block, ToolUse)]
    if choice.finish_reason != "content_filter":
        functions = [(call.id, call.function) for call in message.tool_calls or () if call.type == "function"]
        assert [(use.id, use.name, use.input) for use in used] == [
            (call, function.name, function.arguments) for call, function in functions
        ]
    reason = REASONS[choice.finish_reason]
    if reason == "end_turn":
        reason = "tool_use" if used else "refusal" if message.refusal else "end_turn"
    assert answer.stop_reason == reason
    assert answer.model == official.model
    if official.usage is not None:
        usage = answer.usage
        assert usage.input_tokens + usage.cache_read_tokens == official.usage.prompt_tokens
        assert usage.output_tokens == official.usage.completion_tokens


def pieces(text: str, draw: st.DrawFn) -> list[str]:
    """Cut a text anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn, official: ChatCompletion) -> list[ChatCompletionChunk]:
    """The same answer as chunks, cut anywhere, with calls side by side as far as their order of beginning allows."""
    (choice,) = official.choices
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": piece} for piece in pieces(choice.message.content or "", draw)]
    deltas += [{"refusal": piece} for piece in pieces(choice.message.refusal or "", draw)]
    rows: list[list[dict[str, Any]]] = []
    for index, used in enumerate(choice.message.tool_calls or ()):
        assert used.type == "function"
        begun = {"name": used.function.name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": used.id, "type": "function", "function": begun}]})
        arguments = pieces(used.function.arguments, draw)
        rows.append([{"index": index, "function": {"arguments": piece}} for piece in arguments])
    waiting = [iter(row) for row in rows]
    for place in draw(st.permutations([place for place, row in enumerate(rows) for _ in row])):
        deltas.append({"tool_calls": [next(waiting[place])]})
    values = [chunk(delta) for delta in deltas]
    values.append(chunk({}, finish=choice.finish_reason))
    if official.usage is not None:
        values.append({**chunk(usage=official.usage.model_dump()), "choices": []})
    return [ChatCompletionChunk.model_validate(value) for value in values]


def as_events(chunks: Sequence[ChatCompletionChunk]) -> bytes:
    """Return the bytes of a stream as the API sends it."""
    lines = [f"data: {value.model_dump_json(exclude_unset=True)}\n\n" for value in chunks]
    return "".join([": OPENROUTER PROCESSING\n\n", *lines, "data: [DONE]\n\n"]).encode()


def read_bytes(parts: Iterator[bytes] | Sequence[bytes]) -> tuple[list[Delta], ModelResponse]:
    """Read a stream of bytes as the provider does."""
    events = EventStreamReader(event_characters_max=10**6, events_max=10**6)
    reader = OpenAIFormat().reader()
    deltas: list[Delta] = []
    for part in parts:
        for event in events.feed(part):
            deltas.extend(reader.read(event))
    for event in events.end():
        deltas.extend(reader.read(event))
    return deltas, reader.answer()


def check_deltas(deltas: Sequence[Delta], answer: ModelResponse) -> None:
    """Assert that the pieces add up to the answer, and that calls begin in order."""
    spoken = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert spoken.strip() == "".join(block.text for block in answer.content if isinstance(block, TextBlock)).strip()
    used = [block for block in answer.content if isinstance(block, ToolUse)]
    if answer.stop_reason == "refusal":
        return
    for place, use in enumerate(used):
        mine = [delta for delta in deltas if isinstance(delta, ToolInputDelta) and delta.index == place]
        assert "".join(delta.partial_json for delta in mine) == use.input
        assert {(delta.name, delta.id) for delta in mine} == {(use.name, use.id)}


@given(completions())
def test_every_official_answer_is_understood(official: ChatCompletion) -> None:
    answer = OpenAIFormat().answer(official.model_dump_json().encode())
    check_agreement(answer, official)
    assert OpenAIFormat().answer(official.model_dump_json(exclude_unset=True).encode()) == answer


@given(st.data())
def test_every_official_stream_is_understood_wherever_it_is_cut_in_pieces(data: st.DataObject) -> None:
    official = data.draw(completions())
    chunks = data.draw(streams(official))
    sent = as_events(chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    parts = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    deltas, answer = read_bytes(parts)
    check_deltas(deltas, answer)
    whole = OpenAIFormat().answer(official.model_dump_json().encode())
    assert answer == whole
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for value in chunks:
        state.handle_chunk(value)
    snapshot = state.current_completion_snapshot
    accumulated = ChatCompletion.model_validate(snapshot.model_dump(warnings=False))
    assert (accumulated.choices[0].message.content or None) == (official.choices[0].message.content or None)
    check_agreement(answer, accumulated)


@given(st.data())
def test_a_stream_that_ends_early_is_a_failure_or_lacks_nothing_but_usage(data: st.DataObject) -> None:
    official = data.draw(completions())
    sent = as_events(data.draw(streams(official)))
    whole = OpenAIFormat().answer(official.model_dump_json().encode())
    end = data.draw(st.integers(0, len(sent)))
    answer = attempt(lambda: read_bytes([sent[:end]])[1])
    if isinstance(answer, ProviderError):
        assert (answer.kind, answer.retryable) == ("malformed", True)
    else:
        assert b'"finish_reason":"' in sent[:end]
        assert msgspec.structs.replace(answer, usage=whole.usage) == whole


@given(completions(), st.data())
def test_a_body_that_ends_early_is_a_failure(official: ChatCompletion, data: st.DataObject) -> None:
    body = official.model_dump_json().encode()
    with pytest.raises(ProviderError) as caught:
        OpenAIFormat().answer(body[: data.draw(st.integers(0, len(body) - 1))])
    assert (caught.value.kind, caught.value.retryable) == ("malformed", True)


FIELDS = ["index", "id", "type", "name", "arguments", "function", "tool_calls", "content", "delta", "message", "text"]
FIELDS += ["choices", "finish_reason", "error", "code", "usage", "prompt_tokens", "reasoning", "reasoning_details"]
FIELDS += ["extra_content", "refusal"]
some_fields = st.sampled_from(FIELDS)
leaves = st.none() | st.booleans() | st.integers(-2, 600) | st.floats()
nonsense: st.SearchStrategy[Any] = st.recursive(
    leaves | st.sampled_from(["", "a", "{", "{}", "stop", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(some_fields, inner, max_size=4),
    max_leaves=12,
)
likely_calls = st.lists(st.dictionaries(some_fields, nonsense, max_size=4), max_size=3)
likely_choices = st.fixed_dictionaries(
    {"index": st.sampled_from([0, 0, 0, 1, None])},
    optional={
        "delta": st.dictionaries(some_fields, nonsense, max_size=3)
        | st.fixed_dictionaries({"tool_calls": likely_calls}),
        "message": nonsense,
        "finish_reason": st.sampled_from([None, None, "stop", "length", 3]),
    },
)
likely: st.SearchStrategy[JsonObject] = st.fixed_dictionaries(
    {"choices": st.lists(likely_choices, max_size=2)},
    optional={"usage": nonsense, "model": nonsense, "error": st.none() | nonsense},
)


@given(st.lists(likely | nonsense, max_size=6), st.booleans())
def test_nonsense_is_a_failure_or_an_answer_and_never_anything_else(values: list[Any], done: bool) -> None:
    lines = [f"data: {json.dumps(value)}\n\n" for value in values]
    sent = "".join([*lines, "data: [DONE]\n\n" * done]).encode()
    bodies = [json.dumps(value).encode() for value in values]
    outcomes = [
        attempt(lambda: read_bytes([sent])),
        *(attempt(partial(OpenAIFormat().answer, body)) for body in bodies),
    ]
    for outcome in outcomes:
        if isinstance(outcome, ProviderError):
            assert outcome.kind != "unknown"
        else:
            msgspec.json.encode(outcome)
    for body in bodies:
        assert OpenAIFormat().failure(500, {}, body).kind in ("server", "context_too_long", "rate_limit")
