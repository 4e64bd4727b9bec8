"""What is understood of answers and errors, as the APIs and the servers that resemble them send them.

`exchanges/` has one file for each API and way of answering: whole, streamed, with an error. A case holds what the
server sends, the provider's settings where they are not the default ones, and everything that is made of it: the pieces
in their order, and the answer or the failure. In a case, fields of an answer at their defaults are left out, and so is
the envelope that all chunks of the Chat Completions API share.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.mark import ParameterSet

from refold import ModelResponse, ProviderError, Usage, UsageDelta
from refold.events.model.messages import Delta
from refold.providers import AnswerReader, WireEvent
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.openai.provider import OpenAIFormat
from refold.providers.openai.request import OpenAISettings
from tests.providers.anthropic_messages import USAGE
from tests.providers.chat_completions import chunk, completion

Case = dict[str, Any]

EXCHANGES = Path(__file__).parent / "exchanges"


def cases(name: str) -> list[ParameterSet]:
    groups: dict[str, list[Case]] = json.loads((EXCHANGES / f"{name}.json").read_text("utf-8"))
    return [
        pytest.param(case, id=f"{title} {number}")
        for title, group in groups.items()
        for number, case in enumerate(group, start=1)
    ]


def counts(usage: Usage) -> Case:
    return {name: count for name, count in msgspec.to_builtins(usage).items() if count}


def as_in_a_case(answer: ModelResponse) -> Case:
    fields: Case = msgspec.to_builtins(answer)
    fields["content"] = [
        {key: value for key, value in block.items() if value is not None} for block in fields["content"]
    ]
    fields["usage"] = counts(answer.usage)
    if answer.stop_reason == "end_turn":
        del fields["stop_reason"]
    return {key: value for key, value in fields.items() if value or key == "content"}


def understood(read: Callable[[], ModelResponse]) -> Case:
    """Return the answer, or the failure, as a case has it."""
    try:
        return {"answer": as_in_a_case(read())}
    except ProviderError as error:
        failure = {"kind": error.kind, "retryable": error.retryable, "status": error.status, "says": str(error)}
        return {"failure": {key: value for key, value in failure.items() if value is not None}}


def shown(delta: Delta) -> list[Any]:
    if isinstance(delta, UsageDelta):
        return ["UsageDelta", counts(delta.usage)]
    return [type(delta).__name__, *(value for value in msgspec.structs.astuple(delta) if value is not None)]


def check_whole(case: Case, read: Callable[[bytes], ModelResponse], body: bytes) -> None:
    expected = {key: case[key] for key in ("answer", "failure") if key in case}
    assert understood(lambda: read(body)) == expected


def check_stream(case: Case, reader: AnswerReader, events: Sequence[WireEvent]) -> None:
    deltas: list[list[Any]] = []

    def read() -> ModelResponse:
        for event in events:
            deltas.extend(shown(delta) for delta in reader.read(event))
        assert reader.finished() == case.get("finished", True)
        return reader.answer()

    expected = {key: case[key] for key in ("answer", "failure") if key in case}
    assert understood(read) == expected
    assert deltas == case["deltas"]


def body_of(case: Case) -> bytes:
    return case["raw"].encode("latin-1") if "raw" in case else json.dumps(case["body"]).encode()


def event_of(data: Any, name: str = "message") -> WireEvent:
    """Return an event; a case has either its data alone, or its name and its data."""
    if set(data) == {"event", "data"}:
        name, data = data["event"], data["data"]
    return WireEvent(event=name, data=data if isinstance(data, str) else json.dumps(data))


def check_refusal(case: Case, failure: Callable[[int, dict[str, str], bytes], ProviderError]) -> None:
    error = failure(case["status"], case.get("headers", {}), body_of(case))
    expected = {**case["failure"], "status": case["status"]}
    assert {name: getattr(error, name) for name in expected if name != "says"} | {"says": str(error)} == expected


def openai(case: Case) -> OpenAIFormat:
    return OpenAIFormat(OpenAISettings(**case.get("settings", {})))


@pytest.mark.parametrize("case", cases("openai_answers"))
def test_a_whole_answer_of_the_chat_completions_api(case: Case) -> None:
    if "message" in case:
        ours = ("message", "finish", "answer", "failure", "settings")
        more = {key: value for key, value in case.items() if key not in ours}
        body = completion(case["message"], finish=case.get("finish", "stop"), **more)
    else:
        body = body_of(case)
    check_whole(case, openai(case).answer, body)


@pytest.mark.parametrize("case", cases("openai_streams"))
def test_a_stream_of_the_chat_completions_api(case: Case) -> None:
    events = [
        event_of(chunk(data.pop("delta"), finish=data.pop("finish", None), **data) if "delta" in data else data)
        for data in case["events"]
    ]
    if case.get("finished", True):
        events.append(WireEvent(data="[DONE]"))
    check_stream(case, openai(case).reader(), events)


@pytest.mark.parametrize("case", cases("anthropic_answers"))
def test_a_whole_answer_of_the_messages_api(case: Case) -> None:
    standard = {"id": "msg_1", "type": "message", "content": [], "stop_reason": "end_turn", "usage": USAGE}
    body = json.dumps({**standard, **case["message"]}).encode() if "message" in case else body_of(case)
    check_whole(case, AnthropicFormat().answer, body)


@pytest.mark.parametrize("case", cases("anthropic_streams"))
def test_a_stream_of_the_messages_api(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    check_stream(case, AnthropicFormat().reader(), [event_of(data, data.get("type", "")) for data in case["events"]])
    assert caplog.messages == case.get("logs", [])


@pytest.mark.parametrize("case", cases("openai_errors"))
def test_an_error_of_the_chat_completions_api(case: Case) -> None:
    check_refusal(case, OpenAIFormat().failure)


@pytest.mark.parametrize("case", cases("anthropic_errors"))
def test_an_error_of_the_messages_api(case: Case) -> None:
    check_refusal(case, AnthropicFormat().failure)
