"""What no single exchange shows of the answers of the APIs: how they are cut, how long and deep they may be, and how
a model is told of arguments that it wrote wrongly."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from refold import ModelResponse, ProviderError, ToolUseBlock
from refold.events.core.content import JsonObject
from refold.events.session.events import Verdict
from refold.events.session.normalise import recorded_answer
from refold.providers.anthropic.answer import ANSWER_CHARACTERS_MAX
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.http.wire import WireEvent
from refold.providers.openai.provider import OpenAIFormat
from tests.providers.anthropic_messages import body_of, events_of, message, read_chunks, read_events, stream_of
from tests.providers.chat_completions import chunk, completion, read_stream

DEEP = "[" * 100_000


# --- Arguments, as they are recorded ---


def whole_call(arguments: object) -> ModelResponse:
    """Return an answer of the Chat Completions API that calls a tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return OpenAIFormat().answer(completion({"tool_calls": [call]}))


def streamed_call(arguments: object) -> ModelResponse:
    """Return an answer of the Messages API that calls a tool."""
    assert isinstance(arguments, str)
    official = message({"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}})
    events = events_of(official)
    first, *others = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    first["partial_json"] = arguments
    for other in others:
        other["partial_json"] = ""
    return read_events(events)[1]


def recorded_call(answer: ModelResponse) -> tuple[ToolUseBlock, list[str]]:
    """Return a call as it is recorded, and the verdict on it."""
    found = recorded_answer(answer, lambda name, given: (given, Verdict(verdict="allow")))
    (use,) = found.content
    assert isinstance(use, ToolUseBlock)
    return use, [verdict.verdict for verdict in found.verdicts]


MEANT: list[tuple[object, JsonObject]] = [
    ("", {}),
    ("  \n", {}),
    ("null", {}),
    ("{}", {}),
    ('{"a": 1}', {"a": 1}),
    (' {"x": {"y": ["é", 2.5]}}\n', {"x": {"y": ["é", 2.5]}}),
    ('{"plan": "[{}]"}', {"plan": "[{}]"}),
]
WRONG: list[object] = ['{"path": "/a', '"{}"', "[1]", "nonsense", '"text"', '{"x": 1} {"x": 2}', DEEP]


@pytest.mark.parametrize(
    ("called", "arguments", "recorded"),
    [
        *((called, arguments, meant) for called in (whole_call, streamed_call) for arguments, meant in MEANT),
        (whole_call, None, {}),
        (whole_call, {"a": "é\ud83d\ude00"}, {"a": "é😀"}),
    ],
)
def test_case_b04_b08_arguments_become_what_the_model_meant(
    called: Callable[[object], ModelResponse], arguments: object, recorded: JsonObject
) -> None:
    use, verdicts = recorded_call(called(arguments))
    assert (use.input, verdicts) == (recorded, ["allow"])


@pytest.mark.parametrize(
    ("called", "arguments"),
    [
        *((called, arguments) for called in (whole_call, streamed_call) for arguments in WRONG),
        *((whole_call, arguments) for arguments in (["x"], 7, True)),
    ],
)
def test_case_b06_arguments_that_are_no_object_are_for_the_model_to_correct(
    called: Callable[[object], ModelResponse], arguments: object
) -> None:
    use, verdicts = recorded_call(called(arguments))
    assert verdicts == ["invalid_arguments"]
    assert use.malformed_input


# --- How answers come ---


def test_case_c01_c03_c04_c05_chunks_line_ends_and_comments_change_nothing() -> None:
    official = message({"type": "text", "text": "é🇵🇹"})
    expected = AnthropicFormat().answer(body_of(official))
    for newline in ("\n", "\r\n", "\r"):
        stream = stream_of(events_of(official), newline)
        assert read_chunks([stream[place : place + 1] for place in range(len(stream))]) == expected
    pretty = "".join(
        f": keep-alive\r\n:\r\nevent: {event['type']}\r\n"
        + "".join(f"data:{line}\r\n" for line in json.dumps(event, indent=1).split("\n"))
        + "\r\n"
        for event in events_of(official)
    )
    assert read_chunks([pretty.encode()]) == expected


@pytest.mark.parametrize("body", [DEEP, '{"choices":' * 100_000])
def test_what_is_too_deep_may_be_asked_for_again(body: str) -> None:
    with pytest.raises(ProviderError) as whole:
        OpenAIFormat().answer(body.encode())
    with pytest.raises(ProviderError) as streamed:
        read_stream([chunk({"content": "Hi"}), body])
    for raised in (whole, streamed):
        assert (raised.value.kind, raised.value.retryable) == ("malformed", True)


@pytest.mark.parametrize("failure", [OpenAIFormat().failure, AnthropicFormat().failure])
@pytest.mark.parametrize(
    "body",
    [
        DEEP.encode(),
        b'{"error":' * 100_000,
        *(b'{"detail":' + b'[{"x":' * depth + b"1" + b"}]" * depth + b"}" for depth in range(100, 1100, 100)),
        json.dumps({"error": {"message": "x\n\ud83d" + "y" * 10_000, "code": "z" * 10_000}}).encode(),
        b"\xff\xfe" * 5000,
    ],
    ids=lambda given: f"{len(given)} bytes" if isinstance(given, bytes) else None,
)
def test_an_error_of_any_depth_and_length_is_said_in_few_words(
    failure: Callable[[int, dict[str, str], bytes], ProviderError], body: bytes
) -> None:
    error = failure(500, {}, body)
    assert (error.kind, error.retryable) == ("server", True)
    assert len(str(error)) < 1200
    assert "\ud83d" not in str(error)


START: dict[str, Any] = {"type": "message_start", "message": {"id": "msg_1", "content": []}}


def piece(**delta: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "delta": delta}


def begun(**block: object) -> dict[str, Any]:
    return {"type": "content_block_start", "content_block": block}


def test_an_endless_answer_is_given_up() -> None:
    reader = AnthropicFormat().reader()
    reader.read(WireEvent(data=json.dumps(START)))
    part = WireEvent(data=json.dumps({**piece(type="text_delta", text="x" * 1_000_000), "index": 0}))
    for _ in range(ANSWER_CHARACTERS_MAX // len(part.data)):
        reader.read(part)
    with pytest.raises(ProviderError, match="longer than") as raised:
        reader.read(part)
    assert (raised.value.kind, raised.value.retryable) == ("malformed", False)


def test_the_work_for_a_long_answer_grows_with_its_length() -> None:
    parts: list[dict[str, Any]] = [
        begun(type="text", text=""),
        piece(type="text_delta", text="xy"),
        begun(type="tool_use", id="toolu_1", name="weather", input={}),
        piece(type="input_json_delta", partial_json=" "),
    ]
    end: list[dict[str, Any]] = [
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]

    def lines_run(times: int) -> int:
        return counted(lambda: read_events([START, *parts * times, *end]))

    assert lines_run(400) < 5 * lines_run(100)


def counted(work: Callable[[], object]) -> int:
    """Return how many lines of Python `work` runs."""
    lines = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(None)
    return lines
