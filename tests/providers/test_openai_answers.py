"""What is understood of a whole answer of the Chat Completions API and its compatible servers."""

import json
from typing import Any

import pytest

from refold import ModelResponse, ProviderBlock, ProviderError, TextBlock, ThinkingBlock, ToolUse, ToolUseBlock, Usage
from refold.events.session.events import Verdict
from refold.events.session.normalise import recorded_answer
from refold.providers.openai.provider import OpenAIFormat
from tests.providers.chat_completions import completion


def answer(message: object, *, finish: str | None = "stop", **more: object) -> ModelResponse:
    return OpenAIFormat().answer(completion(message, finish=finish, **more))


def call(
    arguments: object = "{}", *, name: str = "weather", id: object = "call_1", **more: object
) -> dict[str, object]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def failure(body: bytes | object) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        OpenAIFormat().answer(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def test_a_text() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert answer({"role": "assistant", "content": "Hi", "refusal": None}, usage=usage) == ModelResponse(
        content=(TextBlock(text="Hi"),),
        stop_reason="end_turn",
        usage=Usage(input_tokens=10, output_tokens=5),
        model="gpt-x",
    )


def test_calls_come_with_their_arguments_as_text() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call('{"city": "Oslo"}'), call("", id="call_2")]}
    assert answer(message, finish="tool_calls") == ModelResponse(
        content=(
            ToolUse(name="weather", input='{"city": "Oslo"}', id="call_1"),
            ToolUse(name="weather", input="", id="call_2"),
        ),
        stop_reason="tool_use",
        model="gpt-x",
    )


def test_each_call_of_a_whole_answer_is_one_of_its_own_whatever_its_id_and_index() -> None:
    calls = [
        call('{"a":1}', index=0),
        call('{"a":1}', index=0),
        call('{"a":2}', id=""),
        call("{}", id=None),
        {},
        "x",
        None,
    ]
    found = answer({"tool_calls": calls}).content
    assert [(use.input, use.id) for use in found if isinstance(use, ToolUse)] == [
        ('{"a":1}', "call_1"),
        ('{"a":1}', "call_1"),
        ('{"a":2}', None),
        ("{}", None),
    ]


def test_the_old_form_of_a_call_is_understood() -> None:
    message = {"content": None, "function_call": {"name": "weather", "arguments": '{"a":1}'}}
    assert answer(message, finish="function_call") == ModelResponse(
        content=(ToolUse(name="weather", input='{"a":1}'),), stop_reason="tool_use", model="gpt-x"
    )
    assert answer({**message, "tool_calls": [call("{}")]}).content == (
        ToolUse(name="weather", input="{}", id="call_1"),
    )
    nothing = answer({"content": "Hi", "function_call": None, "tool_calls": None}, error=None)
    assert nothing.content == (TextBlock(text="Hi"),)


def recorded_call(arguments: object) -> tuple[ToolUseBlock, list[str]]:
    """Return a call as it is recorded, and the verdict on it."""
    found = recorded_answer(
        answer({"tool_calls": [call(arguments)]}), lambda name, given: (given, Verdict(verdict="allow"))
    )
    (use,) = found.content
    assert isinstance(use, ToolUseBlock)
    return use, [verdict.verdict for verdict in found.verdicts]


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        ("", {}),
        ("  \n", {}),
        (None, {}),
        ("null", {}),
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ({"a": "é\ud83d\ude00"}, {"a": "é😀"}),
        ('{"plan": "[{}]"}', {"plan": "[{}]"}),
    ],
)
def test_case_b04_b08_arguments_become_what_the_model_meant(arguments: object, recorded: dict[str, object]) -> None:
    use, verdicts = recorded_call(arguments)
    assert (use.input, verdicts) == (recorded, ["allow"])


def test_case_b04_arguments_that_are_missing_are_none() -> None:
    value = {"id": "1", "type": "function", "function": {"name": "now"}}
    assert answer({"tool_calls": [value]}).content == (ToolUse(name="now", input="", id="1"),)


@pytest.mark.parametrize("arguments", ['{"path": "/a', "[1]", "nonsense", '"text"', ["x"], 7, True])
def test_case_b06_arguments_that_are_no_object_are_for_the_model_to_correct(arguments: object) -> None:
    use, verdicts = recorded_call(arguments)
    assert verdicts == ["invalid_arguments"]
    assert use.malformed_input


@pytest.mark.parametrize(
    ("finish", "with_text", "with_calls"),
    [
        ("stop", "end_turn", "tool_use"),
        ("tool_calls", "end_turn", "tool_use"),
        ("function_call", "end_turn", "tool_use"),
        ("length", "max_tokens", "max_tokens"),
        ("MAX_TOKENS", "max_tokens", "max_tokens"),
        ("content_filter", "refusal", "refusal"),
        ("SAFETY", "refusal", "refusal"),
        ("stop_sequence", "stop_sequence", "tool_use"),
        ("something new", "end_turn", "tool_use"),
        ("", "end_turn", "tool_use"),
        (None, "end_turn", "tool_use"),
    ],
)
def test_why_a_model_stopped(finish: str | None, with_text: str, with_calls: str) -> None:
    assert answer({"content": "Hi"}, finish=finish).stop_reason == with_text
    called = answer({"content": "Hi", "tool_calls": [call()]}, finish=finish)
    assert called.stop_reason == with_calls
    assert any(isinstance(block, ToolUse) for block in called.content) == (with_calls != "refusal")


def test_case_d07_d09_what_was_cut_is_said_to_be_cut() -> None:
    cut = answer({"tool_calls": [call('{"a": 1}'), call('{"path":"a","conte', id="2")]}, finish="length")
    assert cut.stop_reason == "max_tokens"
    assert [block.input for block in cut.content if isinstance(block, ToolUse)] == ['{"a": 1}', '{"path":"a","conte']
    assert answer({"content": "It was a dark and"}, finish="length").stop_reason == "max_tokens"


@pytest.mark.parametrize("finish", ["error", "ABORT", "insufficient_system_resource"])
def test_a_server_that_broke_off_has_failed(finish: str) -> None:
    error = failure(completion({"content": "Hal"}, finish=finish))
    assert error.retryable
    assert error.kind == ("overloaded" if finish == "insufficient_system_resource" else "server")
    assert finish in str(error)


def test_a_refusal_is_shown() -> None:
    assert answer({"content": None, "refusal": "I cannot."}) == ModelResponse(
        content=(TextBlock(text="I cannot."),), stop_reason="refusal", model="gpt-x"
    )


def test_case_c14_content_in_parts_is_one_text() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]},
        {"type": "text", "text": "One "},
        "two ",
        {"type": "text", "text": "three."},
        {"type": "reference", "reference_ids": [1]},
        None,
    ]
    assert answer({"content": parts}).content == (ThinkingBlock(thinking="hm"), TextBlock(text="One two three."))
    refused = answer({"content": [{"type": "refusal", "refusal": "No."}]})
    assert (refused.content, refused.stop_reason) == ((TextBlock(text="No."),), "refusal")


@pytest.mark.parametrize("message", [{"content": None}, {"content": ""}, {"content": " \n"}, {"content": []}, {}])
def test_case_d01_an_empty_answer_holds_no_blocks(message: object) -> None:
    assert answer(message).content == ()


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_comes_first_and_counts_once(field: str) -> None:
    found = answer({"content": "Hi", field: "hm", "tool_calls": [call()]}).content
    expected = ThinkingBlock(thinking="hm"), TextBlock(text="Hi"), ToolUse(name="weather", input="{}", id="call_1")
    assert found == expected
    twice = answer({"content": None, "reasoning": "hm", "reasoning_content": "hm"}).content
    assert twice == (ThinkingBlock(thinking="hm"),)


def test_signed_reasoning_is_kept_for_its_provider() -> None:
    details = [
        {"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0},
        {"type": "reasoning.encrypted", "data": "x"},
    ]
    block = ThinkingBlock(thinking="hm", provider_data={"openai": {"reasoning_details": details}})
    assert answer({"content": "Hi", "reasoning": "hm", "reasoning_details": details}).content[0] == block
    assert answer({"content": "Hi", "reasoning_details": details}).content[0] == block


def test_a_signature_over_a_call_is_kept_for_its_provider() -> None:
    google = {"google": {"thought_signature": "s1"}}
    value = call("{}", extra_content=google, note=None)
    (use,) = answer({"tool_calls": [value]}).content
    assert use == ToolUse(name="weather", input="{}", id="call_1", provider_data={"openai": {"extra_content": google}})
    assert answer({"content": "Hi", "extra_content": google}).content == (
        ProviderBlock(provider="openai", data={"extra_content": google}),
        TextBlock(text="Hi"),
    )
    value = {"id": "1", "function": {"name": "f", "arguments": "{}", "provider_specific_fields": {"s": 1}}}
    (use,) = answer({"tool_calls": [value]}).content
    assert isinstance(use, ToolUse)
    assert use.provider_data == {"openai": {"function": {"provider_specific_fields": {"s": 1}}}}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ({}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": "x"}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": -1}, Usage()),
        ({"prompt_tokens": 2**70, "completion_tokens": 3.0}, Usage(output_tokens=3)),
        (
            {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 60}},
            Usage(input_tokens=40, output_tokens=9, cache_read_tokens=60),
        ),
        (
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}},
            Usage(input_tokens=10, cache_read_tokens=60, cache_creation_tokens=30),
        ),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}}, Usage(cache_read_tokens=10)),
        ({"prompt_tokens": 10, "prompt_tokens_details": None}, Usage(input_tokens=10)),
        (
            {"prompt_tokens": 10, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6},
            Usage(input_tokens=6, cache_read_tokens=4),
        ),
        ({"prompt_tokens": 10, "cached_tokens": 4}, Usage(input_tokens=6, cache_read_tokens=4)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 40}, Usage(input_tokens=10, output_tokens=30)),
        ({"input_tokens": 3, "output_tokens": 4}, Usage(input_tokens=3, output_tokens=4)),
    ],
)
def test_tokens_are_counted_once_each(usage: object, expected: Usage) -> None:
    assert answer({"content": "Hi"}, usage=usage).usage == expected


def test_of_several_choices_the_first_counts() -> None:
    choices = [
        {"index": 1, "message": {"content": "two"}, "finish_reason": "stop"},
        None,
        {"index": 0, "message": {"content": "one"}, "finish_reason": "length"},
    ]
    found = OpenAIFormat().answer(json.dumps({"choices": choices}).encode())
    assert (found.content, found.stop_reason, found.model) == ((TextBlock(text="one"),), "max_tokens", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe\xff",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"choices": null}',
        b'{"choices": []}',
        b'{"choices": [null]}',
        b'{"choices": [{"index": 1, "message": {"content": "Hi"}}]}',
        b'{"choices": [{"index": 0, "message": null}]}',
        b'{"choices": [{"index": 0, "message": "Hi"}]}',
        b'{"choices": {"index": 0}}',
        b'{"choices": [{"message": {"content": "Hi"}',
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"choices":' * 100_000, id="deep choices"),
    ],
)
def test_what_cannot_be_understood_may_be_asked_again(body: bytes) -> None:
    error = failure(body)
    assert (error.kind, error.retryable, error.status) == ("malformed", True, None)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ({"error": {"code": 429, "message": "slow"}, "choices": []}, "rate_limit", 429),
        ({"error": {"code": 502, "message": "Provider returned error", "metadata": {}}}, "server", 502),
        ({"error": "it broke"}, "server", None),
        (
            {"choices": [{"index": 0, "message": {"content": ""}, "error": {"code": 503, "message": "down"}}]},
            "overloaded",
            503,
        ),
        ({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, "invalid_request", 400),
        ({"detail": "no"}, "server", None),
        ({"message": "no"}, "server", None),
    ],
)
def test_an_error_inside_a_successful_response_is_one(body: dict[str, Any], kind: str, status: int | None) -> None:
    error = failure(body)
    assert (error.kind, error.status) == (kind, status)
    assert error.retryable == (kind != "invalid_request")


def test_a_byte_order_mark_and_halves_of_emojis_do_no_harm() -> None:
    body = b'\xef\xbb\xbf{"model": "\\ud83d", "choices": [{"message": {"content": "a\\ud83d\\ude00\\ud83d"}}]}'
    found = OpenAIFormat().answer(body)
    assert (found.content, found.model) == ((TextBlock(text="a😀\ufffd"),), "\ufffd")


def test_what_must_go_back_and_cannot_be_kept_is_a_malformed_answer() -> None:
    error = failure(completion({"tool_calls": [call("{}", extra_content={"n": 2**70})]}))
    assert (error.kind, error.retryable) == ("malformed", False)
