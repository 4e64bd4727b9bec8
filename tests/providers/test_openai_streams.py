"""What is understood of streams of the Chat Completions API, and of those that compatible servers really send."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from refold import ModelResponse, ProviderBlock, ProviderError, TextBlock, ThinkingBlock, ToolUse, Usage
from refold.events.model.messages import TextDelta, ThinkingDelta, ToolInputDelta, UsageDelta
from refold.providers.http.wire import WireEvent
from refold.providers.openai.provider import OpenAIFormat
from tests.providers.chat_completions import chunk, completion, read_stream

Fragment = dict[str, Any]

NOTHING: Fragment = {"index": 0, "function": {"arguments": ""}}


def fragment(arguments: object = None, name: str | None = None, id: str | None = None, **more: object) -> Fragment:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**({"id": id, "type": "function"} if id is not None else {}), "function": function, **more}


def calls(*chunks: Sequence[Fragment], finish: str | None = "tool_calls") -> list[tuple[str | None, str, object]]:
    """Return the calls of a stream as id, name and arguments, having checked that the deltas say the same."""
    deltas, answer = read_stream([*(chunk({"tool_calls": row}) for row in chunks), chunk(finish=finish)])
    uses = [block for block in answer.content if isinstance(block, ToolUse)]
    assert len(uses) == len(answer.content)
    shown = ["" for _ in uses]
    for delta in deltas:
        assert isinstance(delta, ToolInputDelta)
        shown[delta.index] += delta.partial_json
    assert shown == [use.input for use in uses]
    assert len({delta.index for delta in deltas if isinstance(delta, ToolInputDelta)}) == len(uses)
    return [(use.id, use.name, use.input) for use in uses]


def failure(*events: object, done: bool = False) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        read_stream(events, done=done)
    return caught.value


def test_a_text_comes_in_pieces_and_then_whole() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    events = [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, finish="stop"),
        chunk(usage=usage) | {"choices": []},
    ]
    counted = Usage(input_tokens=3, output_tokens=2)
    assert read_stream(events) == (
        [TextDelta("Hel"), TextDelta("lo"), UsageDelta(counted)],
        ModelResponse(content=(TextBlock(text="Hello"),), usage=counted, model="gpt-x"),
    )


def test_calls_come_in_pieces_and_then_whole() -> None:
    events = [
        chunk({"role": "assistant", "content": None, "tool_calls": [fragment("", "weather", "a", index=0)]}),
        chunk({"tool_calls": [fragment('{"city"', index=0)]}),
        chunk({"tool_calls": [fragment(':"Oslo"}', index=0)]}),
        chunk({"tool_calls": [fragment("", "time", "b", index=1)]}),
        chunk({"tool_calls": [fragment("{}", index=1)]}),
        chunk({}, finish="tool_calls"),
    ]
    assert read_stream(events) == (
        [
            ToolInputDelta(0, "weather", "", "a"),
            ToolInputDelta(0, "weather", '{"city"', "a"),
            ToolInputDelta(0, "weather", ':"Oslo"}', "a"),
            ToolInputDelta(1, "time", "", "b"),
            ToolInputDelta(1, "time", "{}", "b"),
        ],
        ModelResponse(
            content=(
                ToolUse(name="weather", input='{"city":"Oslo"}', id="a"),
                ToolUse(name="time", input="{}", id="b"),
            ),
            stop_reason="tool_use",
            model="gpt-x",
        ),
    )


def test_case_b01_updates_that_repeat_all_calls_are_merged() -> None:
    one, two, three = (fragment(f'{{"n":{n}}}', "f", f"id{n}") for n in (1, 2, 3))
    expected = [("id1", "f", '{"n":1}'), ("id2", "f", '{"n":2}'), ("id3", "f", '{"n":3}')]
    assert calls([one], [one, two], [one, two, three]) == expected
    rows = [
        [{**call, "index": place} for place, call in enumerate(row)] for row in ([one], [one, two], [one, two, three])
    ]
    assert calls(*rows) == expected
    counted = [{**call, "index": place} for place, call in enumerate([one, one, two, one, two, three])]
    assert calls(counted[:1], counted[1:3], counted[3:]) == expected
    bare = [{key: value for key, value in call.items() if key != "id"} for call in (one, two, three)]
    assert calls(bare[:1], bare[:2], bare) == [(None, name, text) for _, name, text in expected]


def test_case_b01_updates_that_grow_are_merged() -> None:
    for more in ({}, {"index": 0}):
        grown = [fragment(text, "f", "a", **more) for text in ("", "{", '{"x', '{"x":"y"', '{"x":"y"}', '{"x":"y"}')]
        assert calls(*([call] for call in grown)) == [("a", "f", '{"x":"y"}')]
    cut = [[fragment(text, "f", "a", index=0)] for text in ('{"x', '{"x":"y')]
    assert calls(*cut, finish="length") == [("a", "f", '{"x":"y')]


def test_pieces_that_look_like_a_repetition_are_pieces_if_they_join() -> None:
    answer = read_stream(
        [
            chunk({"tool_calls": [fragment('{"a":', "f", "x", index=0)]}),
            chunk({"tool_calls": [fragment('{"a":1}}', "f", "x", index=0)]}),
            chunk(finish="tool_calls"),
        ]
    )[1]
    assert answer.content == (ToolUse(name="f", input='{"a":{"a":1}}', id="x"),)


def test_a_call_that_is_repeated_whole_at_its_end_counts_once() -> None:
    rows = [[fragment('{"x', "f", "a", index=0)], [fragment('":1}', index=0)], [fragment('{"x":1}', "f", "a", index=0)]]
    assert calls(*rows) == [("a", "f", '{"x":1}')]


def test_case_c11_without_an_index_calls_are_told_apart() -> None:
    a, b = fragment('{"n":1}', "f", "a"), fragment('{"n":2}', "f", "b")
    expected = [("a", "f", '{"n":1}'), ("b", "f", '{"n":2}')]
    assert calls([a, b]) == expected
    assert calls([a], [b]) == expected
    assert calls([{**a, "index": None}], [{**b, "index": None}]) == expected
    bare = [fragment('{"n":1}', "f"), fragment('{"n":2}', "g")]
    assert calls(bare[:1], bare[1:]) == calls(bare) == [(None, "f", '{"n":1}'), (None, "g", '{"n":2}')]
    assert calls([fragment("", "f")], [fragment("", "g")]) == [(None, "f", ""), (None, "g", "")]
    same = [fragment('{"n":1}', "f"), fragment('{"n":2}', "f")]
    assert calls(same[:1], same[1:]) == calls(same) == [(None, "f", '{"n":1}'), (None, "f", '{"n":2}')]
    pieces = [
        [fragment("", "f", "a")],
        [fragment('{"n"')],
        [fragment(":1}")],
        [fragment("", "f", "b")],
        [fragment('{"n":2}')],
    ]
    assert calls(*pieces) == expected
    side_by_side = [
        [fragment("", "f", "a"), fragment("", "f", "b")],
        [fragment('{"n":'), fragment('{"n":')],
        [fragment("1}"), fragment("2}")],
    ]
    assert calls(*side_by_side) == expected


def test_an_index_that_comes_late_belongs_to_the_call_under_way() -> None:
    assert calls([fragment("", "f", "a")], [fragment('{"n":', index=0)], [fragment("1}", index=0)]) == [
        ("a", "f", '{"n":1}')
    ]


def test_indexes_may_be_sparse_interleaved_and_start_anywhere() -> None:
    rows = [
        [fragment("", "f", "a", index=3)],
        [fragment("", "g", "b", index=7)],
        [fragment('{"n":', index=3), fragment('{"n":', index=7)],
        [fragment("2}", index=7)],
        [fragment("1}", index=3)],
    ]
    assert calls(*rows) == [("a", "f", '{"n":1}'), ("b", "g", '{"n":2}')]


def test_one_index_for_all_calls() -> None:
    # Older vLLM: an empty id behind the first fragment; SGLang: the id in each.
    for later in ({"id": ""}, {}):
        rows = [
            [fragment("", "f", "a", index=0)],
            [fragment('{"n":1}', index=0, **later)],
            [fragment("", "f", "b", index=0)],
            [fragment('{"n":', index=0, **later)],
            [fragment("2}", index=0, **later)],
        ]
        assert calls(*rows) == [("a", "f", '{"n":1}'), ("b", "f", '{"n":2}')]
    rows = [
        [fragment(text, name, id, index=0)]
        for text, name, id in (("", "f", "0"), ("{}", None, "0"), ("", "g", "1"), ("{}", None, "1"))
    ]
    assert calls(*rows) == [("0", "f", "{}"), ("1", "g", "{}")]
    assert calls([fragment("{}", "f", index=0)], [fragment("{}", "g", index=0)]) == [
        (None, "f", "{}"),
        (None, "g", "{}"),
    ]
    nameless = [[fragment('{"n":1}', "f", index=0)], [fragment('{"n":2}', "f", index=0)]]
    assert calls(*nameless) == [(None, "f", '{"n":1}'), (None, "f", '{"n":2}')]


def test_ids_may_be_missing_repeated_or_change() -> None:
    assert calls([fragment("{", "f", index=0)], [fragment("}", index=0)]) == [(None, "f", "{}")]
    assert calls([fragment("{", "f", "", index=0)], [fragment("}", None, "late", index=0)]) == [("late", "f", "{}")]
    assert calls([fragment("{", "f", "a", index=0)], [fragment("}", "f", "a", index=0)]) == [("a", "f", "{}")]
    assert calls([fragment("{", "f", "a", index=0)], [fragment("}", None, "other", index=0)]) == [("a", "f", "{}")]
    assert calls([fragment("{", "f", "a")], [fragment("}", None, "other")]) == [("a", "f", "{}")]
    assert calls([fragment("{", "f", "a", index=0)], [fragment("}", "f", "other", index=0)]) == [("a", "f", "{}")]
    same = [[fragment('{"n":1}', "f", "a", index=0)], [fragment('{"n":2}', "f", "a", index=1)]]
    assert calls(*same) == [("a", "f", '{"n":1}'), ("a", "f", '{"n":2}')]


def test_names_may_come_late_in_pieces_or_again_and_again() -> None:
    assert calls([fragment('{"n":', None, "a", index=0)], [fragment("1}", "f", index=0)]) == [("a", "f", '{"n":1}')]
    assert calls([fragment('{"n":', None, "a")], [fragment("1}", "f", "a")]) == [("a", "f", '{"n":1}')]
    assert calls([fragment("", "get_", "a", index=0)], [fragment("{}", "weather", index=0)]) == [
        ("a", "get_weather", "{}")
    ]
    assert calls([fragment("", "get_", "a", index=0)], [fragment("{}", "get_weather", index=0)]) == [
        ("a", "get_weather", "{}")
    ]
    assert calls([fragment('{"n"', "f", index=0)], [fragment(":1", "f", index=0)], [fragment("}", "f", index=0)]) == [
        (None, "f", '{"n":1}')
    ]


def test_arguments_may_be_an_object_or_whole_or_come_with_a_brace_in_a_text() -> None:
    assert calls([fragment({"a": ["é", 1]}, "f", "a", index=0)]) == [("a", "f", '{"a":["é",1]}')]
    assert calls([fragment({"a": 1}, "f", "a", index=0)], [fragment({"a": 1}, "f", "a", index=0)]) == [
        ("a", "f", '{"a":1}')
    ]
    rows = [
        [fragment(text, name, index=0)] for text, name in (('{"a":"}', "f"), ("{\\", "f"), ('"}"', "f"), ("}", "f"))
    ]
    assert calls(*rows) == [(None, "f", '{"a":"}{\\"}"}')]


def test_case_b04_b06_arguments_are_handed_over_as_they_came() -> None:
    assert calls([fragment("", "f", "a", index=0)]) == [("a", "f", "")]
    assert calls([{"index": 0, "id": "a", "function": {"name": "f"}}], [NOTHING]) == [("a", "f", "")]
    assert calls([fragment('{"path": "/a', "f", "a", index=0)]) == [("a", "f", '{"path": "/a')]
    assert calls([fragment("{}", "f", "a", index=0)], [fragment("{}", index=0)]) == [("a", "f", "{}{}")]
    glued = [[fragment('{"n":1}', "f", "a", index=0)], [fragment('{"n":2}', "", index=0)]]
    assert calls(*glued) == [("a", "f", '{"n":1}{"n":2}')]


def test_fragments_that_say_nothing_are_no_calls() -> None:
    assert calls([NOTHING], [{}], [{"index": 1, "id": "", "function": None}], [None, "x", 3]) == []  # type: ignore[list-item]


def test_calls_are_counted_as_they_are_shown() -> None:
    rows = [
        [{"index": 0, "id": "x"}],
        [fragment("{}", "g", "b", index=1)],
        [{"index": 2, "id": "y"}],
        [fragment("{}", "f", index=2)],
    ]
    assert calls(*rows) == [("b", "g", "{}"), ("y", "f", "{}")]
    assert calls(*rows, [fragment("{}", "h", index=0)]) == [("b", "g", "{}"), ("y", "f", "{}"), ("x", "h", "{}")]


def test_the_old_form_of_a_call_comes_in_pieces() -> None:
    events = [
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"n"'}}),
        chunk({"function_call": {"arguments": ":1}"}}),
        chunk(finish="function_call"),
    ]
    assert read_stream(events)[1].content == (ToolUse(name="f", input='{"n":1}'),)


def test_a_signature_may_come_by_itself() -> None:
    google = {"google": {"thought_signature": "s"}}
    for row in ([{"extra_content": google}], [{"index": 0, "extra_content": google}]):
        events = [chunk({"tool_calls": [fragment("{}", "f", "a")]}), chunk({"tool_calls": row}), chunk(finish="stop")]
        answer = read_stream(events)[1]
        (use,) = [block for block in answer.content if isinstance(block, ToolUse) and block.name]
        assert use == ToolUse(name="f", input="{}", id="a", provider_data={"openai": {"extra_content": google}})
    rows = [[fragment("{", "f", "a", index=0, extra_content=google)], [fragment("}", index=0)]]
    answer = read_stream([*(chunk({"tool_calls": row}) for row in rows), chunk(finish="stop")])[1]
    assert answer.content == (
        ToolUse(name="f", input="{}", id="a", provider_data={"openai": {"extra_content": google}}),
    )
    events = [chunk({"content": "Hi"}), chunk({"content": "", "extra_content": google}), chunk(finish="stop")]
    assert read_stream(events)[1].content == (
        ProviderBlock(provider="openai", data={"extra_content": google}),
        TextBlock(text="Hi"),
    )


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_comes_in_pieces(field: str) -> None:
    events = [chunk({field: "h", "content": None}), chunk({field: "m"}), chunk({"content": "Hi"}), chunk(finish="stop")]
    assert read_stream(events) == (
        [ThinkingDelta("h"), ThinkingDelta("m"), TextDelta("Hi")],
        ModelResponse(content=(ThinkingBlock(thinking="hm"), TextBlock(text="Hi")), model="gpt-x"),
    )


def test_thoughts_that_gemini_marks_are_told_from_the_answer() -> None:
    mark = {"extra_content": {"google": {"thought": True}}}
    expected = ModelResponse(content=(ThinkingBlock(thinking="One. Two."), TextBlock(text="So: <b>")), model="gpt-x")
    for thoughts, spoken in (
        (["<thought>One. ", "Two."], ["</thought>So: ", "<b>"]),
        (["<thought>One. ", "Two.</thought>"], ["So: ", "<b>"]),
        (["One. ", "Two."], ["", "So: ", "<b>"]),
        (["<thought>One. ", "Two."], ["", "</thought>So: ", "<b>"]),
    ):
        events = [chunk({"content": text, **mark}) for text in thoughts] + [chunk({"content": text}) for text in spoken]
        deltas, answer = read_stream([*events, chunk(finish="stop")])
        assert answer == expected
        assert deltas == [ThinkingDelta("One. "), ThinkingDelta("Two."), TextDelta("So: "), TextDelta("<b>")]
    signed = {"google": {"thought": True, "thought_signature": "s"}}
    message = {"content": "<thought>One. Two.</thought>So: <b>", "extra_content": signed}
    assert OpenAIFormat().answer(completion(message)).content == (
        ThinkingBlock(thinking="One. Two."),
        ProviderBlock(provider="openai", data={"extra_content": {"google": {"thought_signature": "s"}}}),
        TextBlock(text="So: <b>"),
    )
    assert OpenAIFormat().answer(completion({"content": "Say <thought>."})).content == (
        TextBlock(text="Say <thought>."),
    )


def test_signed_reasoning_is_put_together_for_its_provider() -> None:
    details: list[list[object]] = [
        [{"type": "reasoning.text", "text": "h", "format": "x", "index": 0}],
        [{"type": "reasoning.text", "text": "m", "index": 0}],
        [{"type": "reasoning.text", "signature": "s", "text": None, "index": 0}, "noise"],
        [{"type": "reasoning.encrypted", "data": "ab", "id": "r", "index": 1}],
        [
            {"type": "reasoning.encrypted", "data": "cd", "index": 1},
            {"type": "reasoning.encrypted", "data": "e", "index": 2},
        ],
    ]
    deltas, answer = read_stream([*(chunk({"reasoning_details": row}) for row in details), chunk(finish="stop")])
    assert deltas == [ThinkingDelta("h"), ThinkingDelta("m")]
    kept = [
        {"type": "reasoning.text", "text": "hm", "format": "x", "index": 0, "signature": "s"},
        {"type": "reasoning.encrypted", "data": "abcd", "id": "r", "index": 1},
        {"type": "reasoning.encrypted", "data": "e", "index": 2},
    ]
    assert answer.content == (ThinkingBlock(thinking="hm", provider_data={"openai": {"reasoning_details": kept}}),)


def test_case_c09_usage_in_a_chunk_without_choices_beside_them_or_in_each() -> None:
    counted = Usage(input_tokens=7, output_tokens=2)
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    no_choices: tuple[object, ...] = ([], None)
    for choices in no_choices:
        events = [chunk({"content": "Hi"}, usage=None), chunk(finish="stop"), {"choices": choices, "usage": usage}]
        deltas, answer = read_stream(events)
        assert (deltas[-1], answer.usage) == (UsageDelta(counted), counted)
    growing = [
        chunk({"content": text}, usage={"prompt_tokens": 7, "completion_tokens": n})
        for n, text in enumerate(["", "H", "i"])
    ]
    deltas, answer = read_stream([*growing, chunk(finish="stop", usage={"prompt_tokens": 0, "completion_tokens": 0})])
    assert [delta.usage.output_tokens for delta in deltas if isinstance(delta, UsageDelta)] == [0, 1, 2]
    assert answer.usage == counted
    inside = chunk(finish="stop")
    inside["choices"][0]["usage"] = usage  # type: ignore[index]
    assert read_stream([chunk({"content": "Hi"}), inside])[1].usage == counted


def test_case_c14_parts_of_text_are_one_text() -> None:
    events = [chunk({"content": [{"type": "text", "text": text}]}) for text in ("One ", "two ", "three.")]
    assert read_stream([*events, chunk(finish="stop")])[1].content == (TextBlock(text="One two three."),)


def test_case_d07_d09_what_was_cut_is_said_to_be_cut() -> None:
    events = [
        chunk(
            {"tool_calls": [fragment('{"a":1}', "f", "a", index=0), fragment('{"path":"a","conte', "f", "b", index=1)]}
        ),
        chunk(finish="length"),
        chunk(finish="stop"),
    ]
    answer = read_stream(events)[1]
    assert answer.stop_reason == "max_tokens"
    assert len(answer.content) == 2
    assert read_stream([chunk({"content": "It was"}, finish="length")])[1].stop_reason == "max_tokens"


def test_case_d01_an_empty_answer_holds_no_blocks() -> None:
    for delta in ({}, {"content": ""}, {"content": None, "role": "assistant"}, {"content": "\n"}):
        assert read_stream([chunk(delta), chunk(finish="stop")])[1].content == ()


def test_halves_of_an_emoji_are_shown_whole() -> None:
    events = ['{"choices":[{"delta":{"content":"a\\ud83d"}}]}', '{"choices":[{"delta":{"content":"\\ude00b"}}]}']
    end = '{"choices":[{"delta":{"content":"\\ud83d"},"finish_reason":"stop"}]}'
    deltas, answer = read_stream([*events, end])
    assert deltas == [TextDelta("a"), TextDelta("😀b")]
    assert answer.content == (TextBlock(text="a😀b\ufffd"),)


def test_what_comes_behind_the_reason_still_counts() -> None:
    events = [chunk({"content": "H"}, finish="stop"), chunk({"content": "i"}, finish=None), chunk({}, finish="")]
    assert read_stream(events)[1].content == (TextBlock(text="Hi"),)


def test_other_choices_are_left_out() -> None:
    events = [
        {"choices": [{"index": 1, "delta": {"content": "two"}}, {"index": 0, "delta": {"content": "one"}}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        chunk(finish="stop"),
    ]
    answer = read_stream(events)[1]
    assert (answer.content, answer.stop_reason) == ((TextBlock(text="one"),), "end_turn")


def test_a_whole_answer_in_the_first_event_is_one() -> None:
    message = {"content": "Hi", "tool_calls": [fragment("{}", "f", "a"), fragment("{}", "f", "a")]}
    answer = read_stream([completion(message, finish="tool_calls").decode()])[1]
    assert answer == OpenAIFormat().answer(completion(message, finish="tool_calls"))
    assert len(answer.content) == 3
    repeated: dict[str, Any] = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    assert read_stream([chunk({"content": "Hi"}), repeated])[1].content == (TextBlock(text="Hi"),)


def test_the_end_may_be_said_in_two_ways() -> None:
    text = chunk({"content": "Hi"})
    assert read_stream([text, chunk(finish="stop")], done=False)[1].content == (TextBlock(text="Hi"),)
    assert read_stream([text], done=True)[1].content == (TextBlock(text="Hi"),)
    whole = chunk({"tool_calls": [fragment("{}", "f", "a")]})
    assert read_stream([whole], done=True)[1].stop_reason == "tool_use"
    reader = OpenAIFormat().reader()
    for data in (json.dumps(text), " [DONE]\n", json.dumps(text), "nonsense", ""):
        reader.read(WireEvent(data=data))
    assert reader.finished()
    assert reader.answer().content == (TextBlock(text="Hi"),)


def test_case_c17_a_stream_that_holds_no_answer_may_be_asked_for_again() -> None:
    for events, done in (([], False), ([], True), ([chunk({"role": "assistant"})], True), ([{"choices": []}], True)):
        error = failure(*events, done=done)
        assert (error.kind, error.retryable) == ("malformed", True)


def test_a_stream_that_was_cut_may_be_asked_for_again() -> None:
    call = chunk({"tool_calls": [fragment('{"n":', "f", "a")]})
    for events, done in (([chunk({"content": "Hi"})], False), ([call], False), ([call], True)):
        error = failure(*events, done=done)
        assert (error.kind, error.retryable, error.status) == ("malformed", True, None)


@pytest.mark.parametrize("data", ["{", "nonsense", "[1", '{"choices": [}', "null", "[]", '"text"', "[" * 100_000])
def test_an_event_that_cannot_be_understood_may_be_asked_for_again(data: str) -> None:
    error = failure(chunk({"content": "Hi"}), data)
    assert (error.kind, error.retryable) == ("malformed", True)


@pytest.mark.parametrize(
    ("event", "kind", "retryable"),
    [
        ({"error": {"message": "overloaded", "type": "overloaded_error"}}, "overloaded", True),
        ({"error": {"message": "bad", "type": "invalid_request_error", "code": None}}, "invalid_request", False),
        ({"error": {"message": "slow", "code": "rate_limit_exceeded"}}, "rate_limit", True),
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, "context_too_long", False),
        ({"error": {"message": "the request exceeds the available context size"}}, "context_too_long", False),
        ({"error": {"code": "502", "message": "Provider disconnected"}}, "server", True),
        ({"error": {"code": 400, "message": "x", "type": "BadRequestError"}}, "invalid_request", False),
        ({"error": "it broke"}, "server", True),
        ({"error": {}, "choices": [], "object": "error"}, None, True),
        (
            {
                **chunk({"content": ""}, finish="error"),
                "error": {"code": "server_error", "message": "Provider disconnected"},
            },
            "server",
            True,
        ),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": 429, "message": "slow"}}]}, "rate_limit", True),
        (chunk(finish="error"), "server", True),
        ({"object": "error", "message": "no", "code": 503}, "overloaded", True),
    ],
)
def test_an_error_in_the_midst_of_a_stream_is_one(event: object, kind: str | None, retryable: bool) -> None:
    events = [chunk({"content": "Hi"}), event]
    if kind is None:
        assert read_stream([*events, chunk(finish="stop")])[1].content == (TextBlock(text="Hi"),)
        return
    error = failure(*events)
    assert (error.kind, error.retryable) == (kind, retryable)


@pytest.mark.parametrize("data", ['{"message": "overloaded", "type": "overloaded_error"}', "overloaded"])
def test_an_event_that_is_called_an_error_is_one(data: str) -> None:
    reader = OpenAIFormat().reader()
    with pytest.raises(ProviderError, match="overloaded") as caught:
        reader.read(WireEvent(event="error", data=data))
    assert caught.value.retryable
