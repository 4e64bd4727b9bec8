"""Recordings of servers: what each is known to send, whole and cut anywhere, and what the official packages read.

`recordings/` has a file for each rule in the tables of `docs/providers.md`, written after what the servers publish and
what was reported of them. A file holds what the server sends, as events or as a body, and what is understood: an
`answer`, a `failure`, or that the answer is `rejected`, with the reason. `differs` says what a reader that follows the
official package, and nothing more, has instead.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from anthropic import APIError as AnthropicError
from anthropic import AsyncAnthropic
from hypothesis import given
from openai import APIError as OpenAIError
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from refold import ModelResponse, ProviderError
from refold.providers import AnthropicProvider, OpenAIProvider, WireFormat
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.http.events import EventStreamReader
from refold.providers.openai.provider import OpenAIFormat
from refold.providers.openai.request import OpenAISettings
from tests.providers.conversation import user
from tests.providers.loopback import Loopback, Step, answer, event_stream
from tests.providers.test_exchanges import understood
from tests.providers.test_servers import request_of

Recording = dict[str, Any]

RECORDINGS: dict[str, Recording] = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parent / "recordings").glob("*.json"))
}
PAGE = Path(__file__).parents[2] / "docs" / "providers.md"

each_recording = pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)


def format_of(recording: Recording) -> WireFormat:
    if recording["api"] == "messages":
        return AnthropicFormat()
    return OpenAIFormat(OpenAISettings(**recording.get("settings", {})))


def stream_of(recording: Recording) -> bytes:
    lines: list[str] = []
    for event in recording["events"]:
        name = f"event: {event['type']}\n" if recording["api"] == "messages" else ""
        lines.append(event if isinstance(event, str) else f"{name}data: {json.dumps(event, ensure_ascii=False)}")
    return "".join(f"{line}\n\n" for line in lines).encode()


def steps_of(recording: Recording) -> list[Step]:
    if "events" in recording:
        return event_stream(stream_of(recording))
    body = json.dumps(recording["body"]).encode()
    return answer(body, status=recording.get("status", 200), headers={"content-type": "application/json"})


def result_of(recording: Recording) -> Recording:
    return {key: recording[key] for key in ("answer", "failure", "rejected") if key in recording}


def is_known(found: Recording, recording: Recording) -> bool:
    """Return whether what was understood is what the recording says; a failure or a reason begins with its words."""
    expected = result_of(recording)
    if "failure" in expected and "failure" in found:
        begins = found["failure"]["says"].startswith(expected["failure"]["says"])
        return begins and {**found["failure"], "says": ""} == {**expected["failure"], "says": ""}
    return found == expected or (
        "rejected" in expected and found.get("answer", {}).get("rejected", "").startswith(expected["rejected"])
    )


@each_recording
async def test_a_provider_reads_what_a_server_sends(recording: Recording) -> None:
    kind = AnthropicProvider if recording["api"] == "messages" else OpenAIProvider
    async with (
        Loopback([steps_of(recording)]) as server,
        kind(
            api_key="sk-test-012345", base_url=server.url, environment={}, **recording.get("settings", {})
        ) as provider,
    ):
        try:
            if "events" in recording:
                *_, response = [item async for item in provider.stream(request_of(user("Hi")))]
            else:
                response = await provider.complete(request_of(user("Hi")))
            assert isinstance(response, ModelResponse)
            found = understood(lambda: response)
        except ProviderError as error:
            failure = error
            found = understood(lambda: raised(failure))
    assert is_known(found, recording), found


def raised(error: ProviderError) -> ModelResponse:
    raise error


@pytest.mark.parametrize("name", [name for name, each in RECORDINGS.items() if "events" in each])
@given(cuts=st.lists(st.integers(0, 2_000), max_size=8))
def test_where_a_stream_is_cut_makes_no_difference(name: str, cuts: Sequence[int]) -> None:
    recording = RECORDINGS[name]
    stream = stream_of(recording)
    places = sorted(cut % (len(stream) + 1) for cut in cuts)

    def read() -> ModelResponse:
        reader = format_of(recording).reader()
        events = EventStreamReader(event_characters_max=10**6, events_max=10**6)
        for start, end in zip([0, *places], [*places, len(stream)], strict=True):
            for event in events.feed(stream[start:end]):
                reader.read(event)
        for event in events.end():
            reader.read(event)
        return reader.answer()

    found = understood(read)
    assert is_known(found, recording) or "rejected" in recording


async def official_reading(recording: Recording) -> Recording:
    """Return what the official package reads: the text, the calls, why it ended, and the tokens in and out."""
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": "events" in recording}
    async with Loopback([steps_of(recording)]) as server:
        if recording["api"] == "messages":
            async with AsyncAnthropic(api_key="sk-test", base_url=server.url, max_retries=0) as messages:
                return await anthropic_reading(messages, recording, {**asked, "max_tokens": 9})
        client = DefaultAsyncHttpxClient(trust_env=False)
        async with AsyncOpenAI(api_key="sk-test", base_url=server.url, http_client=client, max_retries=0) as chat:
            return await openai_reading(chat, asked)


async def anthropic_reading(client: AsyncAnthropic, recording: Recording, asked: Any) -> Recording:
    if asked.pop("stream"):
        async with client.beta.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.beta.messages.create(**asked)
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "calls": [(block.name, block.input) for block in message.content if block.type == "tool_use"],
        "ended": message.stop_reason,
        "tokens": (message.usage.input_tokens, message.usage.output_tokens),
    }


async def openai_reading(client: AsyncOpenAI, asked: Any) -> Recording:
    answered: Any = await client.chat.completions.create(**asked)
    chunks = [chunk async for chunk in answered] if asked["stream"] else [answered]
    found: Recording = {"text": "", "calls": [], "ended": None, "tokens": (0, 0)}
    calls: dict[Any, list[str]] = {}
    for chunk in chunks:
        if chunk.usage is not None:
            found["tokens"] = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices or ():
            found["ended"] = choice.finish_reason or found["ended"]
            message = choice.delta if asked["stream"] else choice.message
            if message is None:
                continue
            found["text"] += message.content if isinstance(message.content, str) else ""
            for call in message.tool_calls or ():
                pieces = calls.setdefault(getattr(call, "index", len(calls)), ["", ""])
                if call.type == "custom":
                    pieces[:] = [call.custom.name, json.dumps({"input": call.custom.input})]
                    continue
                pieces[0] += call.function.name or ""
                pieces[1] += call.function.arguments or ""
    found["calls"] = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    return found


ENDED = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def our_reading(answer: Recording) -> Recording:
    usage = answer.get("usage", {})
    cached = usage.get("cache_read_tokens", 0)
    calls = [block for block in answer["content"] if "type" not in block]
    arguments = [json.loads(each["input"]) if isinstance(each["input"], str) else each["input"] for each in calls]
    return {
        "text": "".join(block["text"] for block in answer["content"] if block.get("type") == "text"),
        "calls": [(each["name"], given) for each, given in zip(calls, arguments, strict=True)],
        "ended": answer.get("stop_reason", "end_turn"),
        "tokens": (usage.get("input_tokens", 0) + cached, usage.get("output_tokens", 0)),
    }


@each_recording
async def test_the_official_package_reads_the_same_but_for_what_a_recording_names(recording: Recording) -> None:
    try:
        official = await official_reading(recording)
    except (OpenAIError, AnthropicError):
        assert "answer" not in recording
        return
    except (ValueError, TypeError, AttributeError):
        assert "differs" in recording
        return
    if recording["api"] == "chat":
        official["ended"] = ENDED.get(official["ended"], official["ended"])
    if recording["api"] == "messages" and "usage" in recording.get("answer", {}):
        official["tokens"] = (official["tokens"][0], max(official["tokens"][1], 1))
    same = "answer" in recording and official == our_reading(recording["answer"])
    assert same is ("differs" not in recording), official


def test_every_rule_is_in_the_document_and_every_recording_there_exists() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name in RECORDINGS if f"`{name}`" not in page] == []
