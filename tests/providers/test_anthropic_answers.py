"""Answers and errors of the Messages API: complete, streamed in any shape, cut, broken."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from refold import (
    ModelResponse,
    ProviderBlock,
    ProviderError,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
    Usage,
    UsageDelta,
)
from refold.events.session.events import Verdict
from refold.events.session.normalise import recorded_answer
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.anthropic.stream import ANSWER_CHARACTERS_MAX
from refold.providers.http.wire import WireEvent
from tests.providers.anthropic_messages import (
    CITATION,
    OVERLOADED,
    USAGE,
    body_of,
    events_of,
    failure_in,
    message,
    read_chunks,
    read_events,
    stream_of,
)

Event = dict[str, Any]


def read_body(**fields: Any) -> ModelResponse:
    whole = {"id": "msg_1", "type": "message", "content": [], "stop_reason": "end_turn", "usage": USAGE, **fields}
    return AnthropicFormat().answer(json.dumps(whole).encode())


def failing_body(body: bytes) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        AnthropicFormat().answer(body)
    return raised.value


# --- Complete answers ---


def test_each_kind_of_content_is_read() -> None:
    hidden: Event = {"type": "redacted_thinking", "data": "eHg="}
    new: Event = {"type": "hologram", "data": {"deep": [1, None]}, "more": None}
    answer = read_body(
        model="claude-test-20260101",
        stop_reason="tool_use",
        content=[
            {"type": "thinking", "thinking": " hm ", "signature": "c2ln"},
            hidden,
            {"type": "text", "text": "Hello", "citations": None},
            {"type": "text", "text": "you", "citations": []},
            new,
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lisbon"}},
            {"type": "tool_use", "id": "toolu_2", "name": "x", "input": {}, "caller": {"type": "direct"}},
        ],
    )
    assert answer == ModelResponse(
        content=(
            ThinkingBlock(thinking=" hm ", signature="c2ln"),
            ProviderBlock(provider="anthropic", data=hidden),
            TextBlock(text="Hello"),
            TextBlock(text="you"),
            ProviderBlock(provider="anthropic", data=new),
            ToolUse(name="weather", input={"city": "Lisbon"}, id="toolu_1"),
            ToolUse(name="x", input={}, id="toolu_2", provider_data={"anthropic": {"caller": {"type": "direct"}}}),
        ),
        stop_reason="tool_use",
        usage=Usage(input_tokens=12, output_tokens=34, cache_read_tokens=5, cache_creation_tokens=6),
        model="claude-test-20260101",
    )


def test_case_d01_an_answer_without_content_is_an_empty_answer() -> None:
    assert read_body() == ModelResponse(content=(), usage=read_body().usage)
    assert read_events(events_of(message()))[1].content == ()


def test_citations_stay_with_their_text() -> None:
    official = message({"type": "text", "text": "So.", "citations": [CITATION, CITATION]})
    expected = (TextBlock(text="So.", provider_data={"anthropic": {"citations": [CITATION, CITATION]}}),)
    assert AnthropicFormat().answer(body_of(official)).content == expected
    assert read_events(events_of(official))[1].content == expected


@pytest.mark.parametrize(
    ("told", "content", "expected"),
    [
        ("pause_turn", [], "pause_turn"),
        ("refusal", [], "refusal"),
        ("model_context_window_exceeded", [], "max_tokens"),
        ("never_heard_of", [], "end_turn"),
        ("never_heard_of", [{"type": "tool_use", "id": "t", "name": "x", "input": {}}], "tool_use"),
    ],
)
def test_case_d09_why_the_model_stopped_is_never_lost(told: str, content: list[Event], expected: str) -> None:
    assert read_body(stop_reason=told, content=content).stop_reason == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ([], Usage()),
        ({}, Usage()),
        ({"input_tokens": None, "output_tokens": -1, "cache_read_input_tokens": True}, Usage()),
        *(
            ({"input_tokens": wrong, "output_tokens": 7.0}, Usage(output_tokens=7))
            for wrong in (2**70, 1.5, 1e308, "7")
        ),
    ],
)
def test_what_is_not_counted_is_not_made_up_and_costs_no_answer(usage: object, expected: Usage) -> None:
    assert read_body(usage=usage).usage == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><title>502 Bad Gateway</title></html>",
        b'{"content": [',
        b"[]",
        b"{}",
        b'{"content": "Hello", "stop_reason": "end_turn"}',
        b'{"content": [], "stop_reason": null}',
        *(
            b'{"content": [%b], "stop_reason": "end_turn"}' % block
            for block in (
                b'"Hello"',
                b'{"type": 1}',
                b'{"type": "text"}',
                b'{"type": "text", "text": null}',
                b'{"type": "tool_use", "id": "t", "input": {}}',
                b'{"type": "text", "text": "\xff"}',
            )
        ),
    ],
)
def test_a_body_that_is_no_answer_is_malformed_and_may_be_asked_for_again(body: bytes) -> None:
    error = failing_body(body)
    assert (error.kind, error.retryable) == ("malformed", True)


def test_an_error_in_a_successful_response_is_that_error() -> None:
    error = failing_body(json.dumps(OVERLOADED).encode())
    assert (error.kind, error.retryable) == ("overloaded", True)


# --- Streams ---

START: Event = {
    "type": "message_start",
    "message": {"id": "msg_1", "content": [], "model": "m", "stop_reason": None, "usage": {"input_tokens": 3}},
}
DONE: list[Event] = [
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
]


def begun(block: Event, index: int | None = 0) -> Event:
    return numbered({"type": "content_block_start", "content_block": block}, index)


def numbered(event: Event, index: int | None) -> Event:
    return event if index is None else {**event, "index": index}


def delta(index: int | None = 0, **fields: Any) -> Event:
    kind = {"text": "text_delta", "thinking": "thinking_delta", "partial_json": "input_json_delta"}
    kind |= {"signature": "signature_delta", "citation": "citations_delta"}
    name = next(iter(fields))
    return numbered({"type": "content_block_delta", "delta": {"type": kind.get(name, name), **fields}}, index)


def stopped(index: int | None = 0) -> Event:
    return numbered({"type": "content_block_stop"}, index)


TEXT: Event = {"type": "text", "text": ""}


def tool(name: str = "weather", **fields: Any) -> Event:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}, **fields}


def test_pieces_come_as_they_arrive() -> None:
    deltas, answer = read_events(
        [
            START,
            {"type": "ping"},
            begun({"type": "thinking", "thinking": "", "signature": ""}),
            delta(thinking="h"),
            delta(thinking="m"),
            delta(signature="c2ln"),
            stopped(),
            begun(TEXT, 1),
            delta(1, text="Hel"),
            delta(1, text="lo"),
            delta(1, text=""),
            stopped(1),
            begun(tool("a"), 2),
            delta(2, partial_json=""),
            delta(2, partial_json='{"x": 1'),
            delta(2, partial_json="}"),
            stopped(2),
            begun(tool("b", input={"y": 2}), 3),
            stopped(3),
            stopped(3),
            *DONE,
        ]
    )
    assert deltas == [
        UsageDelta(Usage(input_tokens=3)),
        ThinkingDelta("h"),
        ThinkingDelta("m"),
        TextDelta("Hel"),
        TextDelta("lo"),
        ToolInputDelta(0, "a", "", "toolu_a"),
        ToolInputDelta(0, "a", '{"x": 1', "toolu_a"),
        ToolInputDelta(0, "a", "}", "toolu_a"),
        ToolInputDelta(1, "b", "", "toolu_b"),
        ToolInputDelta(1, "b", '{"y":2}', "toolu_b"),
        UsageDelta(Usage(input_tokens=3, output_tokens=7)),
    ]
    assert answer == ModelResponse(
        content=(
            ThinkingBlock(thinking="hm", signature="c2ln"),
            TextBlock(text="Hello"),
            ToolUse(name="a", input={"x": 1}, id="toolu_a"),
            ToolUse(name="b", input={"y": 2}, id="toolu_b"),
        ),
        stop_reason="end_turn",
        usage=Usage(input_tokens=3, output_tokens=7),
        model="m",
    )


def test_usage_is_cumulative_and_what_is_not_told_again_stays() -> None:
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}
    start = {**START, "message": {**START["message"], "usage": usage}}
    more: Event = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 20}}
    last = {**DONE[0], "usage": {"output_tokens": 25, "input_tokens": 11}}
    _, answer = read_events([start, more, last, DONE[1]])
    assert answer.usage == Usage(input_tokens=11, output_tokens=25, cache_read_tokens=4, cache_creation_tokens=2)


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


@pytest.mark.parametrize(
    ("error_type", "kind", "retryable"),
    [
        ("overloaded_error", "overloaded", True),
        ("rate_limit_error", "rate_limit", True),
        ("api_error", "server", True),
        ("timeout_error", "timeout", True),
        ("invalid_request_error", "invalid_request", False),
        ("never_heard_of_error", "server", True),
    ],
)
def test_case_c06_an_error_in_mid_stream_is_typed(error_type: str, kind: str, retryable: bool) -> None:
    failed = {"type": "error", "error": {"type": error_type, "message": "Sorry."}, "request_id": "req_7"}
    error = failure_in([START, begun(TEXT), delta(text="Hel"), failed])
    assert (error.kind, error.retryable, error.status) == (kind, retryable, None)
    assert str(error) == f"the Messages API answered {error_type}: Sorry. (request req_7)"


def test_case_c06_an_error_event_may_say_anything() -> None:
    for event in (WireEvent(event="error", data="upstream connect error"), WireEvent(data=json.dumps(OVERLOADED))):
        with pytest.raises(ProviderError, match=r"upstream connect error|Overloaded") as raised:
            AnthropicFormat().reader().read(event)
        assert (raised.value.kind, raised.value.retryable) == (
            "server" if event.event == "error" else "overloaded",
            True,
        )


def test_what_is_unknown_is_ignored() -> None:
    reader = AnthropicFormat().reader()
    odd = [WireEvent(event="ping", data="pong"), WireEvent(event="new_event", data='{"type": "new_event"}')]
    odd += [WireEvent(data="[DONE]"), WireEvent(event="message_start", data=" ")]
    assert [list(reader.read(event)) for event in odd] == [[], [], [], []]
    _, answer = read_events([START, begun(TEXT), delta(text="Hi"), delta(sparkle="✨"), stopped(), *DONE])
    assert answer.content == (TextBlock(text="Hi"),)


def test_an_event_without_a_type_is_what_its_name_says() -> None:
    reader = AnthropicFormat().reader()
    for event in (START, begun({"type": "text", "text": "Hi"}), *DONE):
        data = {field: value for field, value in event.items() if field != "type"}
        reader.read(WireEvent(event=event["type"], data=json.dumps(data)))
    assert reader.answer().content == (TextBlock(text="Hi"),)


def test_a_providers_block_that_had_an_unknown_delta_is_left_out_since_half_of_it_could_not_go_back() -> None:
    hologram: Event = {"type": "hologram", "light": ""}
    _, answer = read_events([START, begun(hologram), begun(hologram, 1), delta(1, light="x"), *DONE])
    assert answer.content == (ProviderBlock(provider="anthropic", data=hologram),)


def test_a_server_tools_call_is_put_together_or_left_out() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    whole = [begun(search), delta(partial_json='{"query":'), delta(partial_json=' "x"}'), stopped()]
    deltas, answer = read_events([START, *whole, *DONE])
    assert answer.content == (ProviderBlock(provider="anthropic", data={**search, "input": {"query": "x"}}),)
    assert not any(isinstance(piece, ToolInputDelta) for piece in deltas)  # Nobody here runs it.
    assert read_events([START, *whole[:2], *DONE])[1].content == ()


@pytest.mark.parametrize(
    "events",
    [
        [begun(TEXT, 0), begun(tool(), 1), delta(1, partial_json="{"), delta(0, text="Hi"), delta(1, partial_json="}")],
        [begun(TEXT, 3), delta(3, text="Hi"), begun(tool(), 8), stopped(3), stopped(8)],
        [begun(tool(), 8), begun(TEXT, 3), delta(3, text="Hi")],
        [begun(TEXT), delta(text="Hi"), stopped(), begun(tool()), stopped()],
        [begun(TEXT), delta(text="Hi"), begun(tool()), delta(partial_json="{}")],
        [begun(TEXT, None), delta(None, text="H"), delta(None, text="i"), stopped(None), begun(tool(), None)],
        [begun(TEXT, None), delta(None, text="Hi"), begun(tool(), None), delta(None, partial_json="{}")],
        [delta(0, text="Hi"), begun(tool(), 1)],
        [delta(None, text="H"), delta(None, text="i"), begun(tool(), None), stopped(None), stopped(None)],
        [begun({"type": "text", "text": "H"}), delta(text="i"), stopped(), stopped(), begun(tool(), 1)],
    ],
)
def test_case_c11_blocks_may_interleave_and_lack_an_index_a_start_or_an_end(events: list[Event]) -> None:
    deltas, answer = read_events([START, *events, *DONE])
    assert answer.content == (TextBlock(text="Hi"), ToolUse(name="weather", input={}, id="toolu_weather"))
    assert "".join(piece.text for piece in deltas if isinstance(piece, TextDelta)) == "Hi"


def test_case_c11_two_calls_without_any_index_keep_their_own_arguments() -> None:
    calls = [begun(tool("a"), None), delta(None, partial_json='{"x":1}'), begun(tool("b"), None)]
    _, answer = read_events([START, *calls, delta(None, partial_json='{"x":2}'), *DONE])
    uses = [(use.name, use.input, use.id) for use in answer.content if isinstance(use, ToolUse)]
    assert uses == [("a", {"x": 1}, "toolu_a"), ("b", {"x": 2}, "toolu_b")]


def test_case_c14_texts_that_come_whole_are_all_kept() -> None:
    parts = [begun({"type": "text", "text": text}, index) for index, text in enumerate(["a", "b", "c"])]
    deltas, answer = read_events([START, *parts, *DONE])
    assert [block.text for block in answer.content if isinstance(block, TextBlock)] == ["a", "b", "c"]
    assert deltas[1:4] == [TextDelta("a"), TextDelta("b"), TextDelta("c")]
    start = {**START, "message": {**START["message"], "content": [{"type": "text", "text": "Hi"}]}}
    assert read_events([start, *DONE])[1].content == (TextBlock(text="Hi"),)  # With the start of the message.


def test_a_repeated_start_changes_nothing_and_another_answers_start_is_no_answer() -> None:
    _, answer = read_events([START, START, begun(TEXT), START, delta(text="Hi"), *DONE])
    assert answer.content == (TextBlock(text="Hi"),)
    other = {**START, "message": {**START["message"], "id": "msg_2"}}
    error = failure_in([START, begun(TEXT), delta(text="Hi"), other, *DONE])
    assert (error.kind, error.retryable) == ("malformed", True)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"type": "ping"}],
        [START],
        [START, begun(TEXT), delta(text="Hi"), stopped()],
        [START, DONE[0]],
        [START, DONE[1]],
        DONE,
        [START, {**DONE[0], "delta": {"stop_reason": None}}, DONE[1]],
        [{"type": "message_start"}, *DONE],
        [START, {"type": "content_block_start", "index": 0}, *DONE],
        [START, begun({"text": "Hi"}), *DONE],
        [START, begun(TEXT), {"type": "content_block_delta", "index": 0}, *DONE],
        [START, begun(TEXT), delta(text=None), *DONE],
        [START, begun(TEXT), delta(partial_json="{}"), *DONE],
        [START, begun(tool()), delta(text="Hi"), *DONE],
        [START, delta(partial_json="{}"), *DONE],
        [START, begun(TEXT, 0), begun(TEXT, 1), delta(None, text="Hi"), *DONE],
        [START, begun({"type": "tool_use", "id": "t", "input": {}}), *DONE],
    ],
)
def test_case_c17_a_stream_without_a_whole_answer_is_malformed_and_may_be_asked_for_again(events: list[Event]) -> None:
    error = failure_in(events)
    assert (error.kind, error.retryable) == ("malformed", True)


@pytest.mark.parametrize(
    "event", [WireEvent(event="content_block_delta", data='{"type"'), WireEvent(data="Hello"), WireEvent(data="[]")]
)
def test_data_that_is_not_json_is_malformed(event: WireEvent) -> None:
    with pytest.raises(ProviderError, match="not a JSON object") as raised:
        AnthropicFormat().reader().read(event)
    assert (raised.value.kind, raised.value.retryable) == ("malformed", True)


def test_nothing_is_read_behind_the_end() -> None:
    reader = AnthropicFormat().reader()
    for event in (START, *DONE):
        assert not reader.finished()
        reader.read(WireEvent(event=event["type"], data=json.dumps(event)))
    assert reader.finished()
    assert list(reader.read(WireEvent(event="error", data="late"))) == []
    assert reader.answer().stop_reason == "end_turn"


def test_an_endless_answer_is_given_up() -> None:
    reader = AnthropicFormat().reader()
    reader.read(WireEvent(data=json.dumps(START)))
    piece = WireEvent(data=json.dumps(delta(text="x" * 1_000_000)))
    for _ in range(ANSWER_CHARACTERS_MAX // len(piece.data)):
        reader.read(piece)
    with pytest.raises(ProviderError, match="longer than") as raised:
        reader.read(piece)
    assert (raised.value.kind, raised.value.retryable) == ("malformed", False)


def test_the_work_for_a_long_answer_grows_with_its_length() -> None:
    def steps(pieces: int) -> int:
        parts = [begun(TEXT, None), delta(None, text="xy"), begun(tool(), None), delta(None, partial_json=" ")]
        return counted(lambda: read_events([START, *parts * pieces, *DONE]))

    assert steps(400) < 5 * steps(100)


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


# --- Arguments, as they are recorded ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("  ", {}),
        ("null", {}),
        ('{"x": 1}', {"x": 1}),
        (' {"x": {"y": ["é", 2.5]}}\n', {"x": {"y": ["é", 2.5]}}),
        ('{"path": "/a', None),
        ('"{}"', None),
        ("[1]", None),
        ('{"x": 1} {"x": 2}', None),
        ("[" * 100_000, None),
    ],
)
def test_case_b04_b06_arguments_of_any_text_are_arguments_or_an_error_that_the_model_is_told(
    text: str, expected: dict[str, Any] | None
) -> None:
    _, answer = read_events([START, begun(tool()), delta(partial_json=text), stopped(), *DONE])
    seen: list[object] = []

    def check(name: str, arguments: dict[str, object]) -> tuple[dict[str, object], Verdict]:
        seen.append(arguments)
        return arguments, Verdict(verdict="allow")

    recorded = recorded_answer(answer, check)
    assert [verdict.verdict for verdict in recorded.verdicts] == [
        "allow" if expected is not None else "invalid_arguments"
    ]
    assert seen == ([expected] if expected is not None else [])


def test_case_d07_an_answer_that_is_cut_in_a_call_says_so() -> None:
    cut = {**DONE[0], "delta": {"stop_reason": "max_tokens"}}
    first = [begun(tool("a")), delta(partial_json='{"x": 1}'), stopped()]
    _, answer = read_events([START, *first, begun(tool("b"), 1), delta(1, partial_json='{"path": "/a'), cut, DONE[1]])
    assert answer.stop_reason == "max_tokens"
    assert [block.input for block in answer.content if isinstance(block, ToolUse)] == [{"x": 1}, '{"path": "/a']
