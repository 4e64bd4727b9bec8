"""Model calls that are recorded once and served again: whole, streamed, failed, cancelled; and requests that differ."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.actors.calls.protocols import StreamingProvider
from refold.providers import FallbackProvider, RecordedProvider, RecordingProvider, Secret
from tests.providers.letter_format import END, KEY, REQUEST, LetterProvider, Stream, piece, streamed
from tests.providers.loopback import Loopback, event_stream, json_answer


def asked(text: str) -> refold.ModelRequest:
    return msgspec.structs.replace(
        REQUEST, messages=[refold.Message(role="user", content=(refold.TextBlock(text=text),))]
    )


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


FULL = refold.ModelResponse(
    content=(
        refold.ThinkingBlock(thinking="hm", signature="sig", provider_data={"p": {"a": [1, 1.0, None]}}),
        refold.TextBlock(text="caf\u00e9"),
        refold.ImageBlock(media_type="image/png", data=b"\x89PNG\x00"),
        refold.ProviderBlock(provider="p", data={"type": "search", "rows": [{"x": True}]}),
        refold.ToolUse(
            name="look", input={"place": "here", "deep": {"n": 2**40}}, id="toolu_1", provider_data={"p": {"s": "x"}}
        ),
        refold.ToolUse(name="look", input='{"place": '),
        refold.ToolUse(name="look"),
    ),
    stop_reason="tool_use",
    usage=refold.Usage(input_tokens=5, output_tokens=7, cache_read_tokens=3),
    model="letter-1-0301",
)


@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_answered_is_answered_again(tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "calls.jsonl"
    good: list[Any] = [FULL, refold.say("two", usage=refold.Usage(output_tokens=1)), refold.say("two again")]

    async def answers(provider: StreamingProvider) -> list[Any]:
        texts = ("one", "same", "same")
        return [await (streamed(provider, asked(t)) if stream else provider.complete(asked(t))) for t in texts]

    recorded = await answers(RecordingProvider(refold.ScriptedProvider(good), path))
    provider = RecordedProvider(path)
    assert provider.remaining == 3
    # Each by its place: the same question was answered differently.
    assert await answers(provider) == recorded
    assert provider.remaining == 0
    assert [request.messages[0].text for request in provider.requests] == ["one", "same", "same"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_call_recorded_as_a_stream_can_be_asked_whole_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    recording = RecordingProvider(refold.ScriptedProvider(["streamed", "whole"]), path)
    await streamed(recording)
    await recording.complete(REQUEST)
    provider = RecordedProvider(path)
    assert await provider.complete(REQUEST) == refold.say("streamed")
    assert await streamed(provider) == [refold.say("whole")]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_fails_again_the_same_way(tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "calls.jsonl"
    error = refold.ProviderError("too busy", kind="overloaded", status=529, retryable=True, retry_after_s=2.5)

    async def failure(provider: StreamingProvider, kind: type[Exception]) -> Any:
        with pytest.raises(kind) as caught:
            await (streamed(provider) if stream else provider.complete(REQUEST))
        return vars(caught.value), str(caught.value)

    recording = RecordingProvider(refold.ScriptedProvider([error, OSError("no disk")]), path)
    told = await failure(recording, refold.ProviderError)
    await failure(recording, OSError)
    provider = RecordedProvider(path)
    assert await failure(provider, refold.ProviderError) == told
    fields, text = await failure(provider, refold.ProviderError)
    assert text == "OSError: no disk"
    assert (fields["kind"], fields["retryable"]) == ("unknown", False)


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")


async def test_a_failure_that_cannot_say_its_text_is_recorded_and_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with pytest.raises(UnsayableError):
        await RecordingProvider(refold.ScriptedProvider([UnsayableError()]), path).complete(REQUEST)
    assert lines_of(path)[-1]["error"]["message"] == "UnsayableError: (its text cannot be had: RuntimeError)"


async def test_a_stream_that_broke_off_breaks_off_again_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    broken = refold.cut(refold.say("a long answer", usage=refold.Usage(input_tokens=4)), after=1)
    for again in (False, True):
        stream = Stream(RecordedProvider(path) if again else RecordingProvider(refold.ScriptedProvider([broken]), path))
        with pytest.raises(refold.ProviderError, match="broke inside") as caught:
            await stream.task
        assert caught.value.kind == "connection"
        assert stream.items == [refold.UsageDelta(refold.Usage(input_tokens=4)), refold.TextDelta("a long a")]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_waits_until_it_is_cancelled_again(tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "calls.jsonl"
    script = [refold.stall("a long answer", after=1)]
    for again in (False, True):
        provider = RecordedProvider(path) if again else RecordingProvider(refold.ScriptedProvider(script), path)
        if stream:
            reading = Stream(provider)
            await reading.until(1)
            call: asyncio.Task[Any] = reading.task
        else:
            call = asyncio.create_task(provider.complete(REQUEST))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_stream_that_nobody_read_to_its_end_is_recorded_as_far_as_it_came(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    stream = RecordingProvider(refold.ScriptedProvider(["a long answer"]), path).stream(REQUEST)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    (line,) = lines_of(path)
    assert line["deltas"] == [{"delta": "text", "text": "a long a"}]
    assert "answer" not in line


async def test_calls_at_once_are_served_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    go = asyncio.Event()

    async def slow(request: refold.ModelRequest) -> str:
        await go.wait()
        return "first"

    recording = RecordingProvider(refold.ScriptedProvider([slow, "second"]), path)
    first = asyncio.create_task(recording.complete(asked("one")))
    await asyncio.sleep(0)
    await recording.complete(asked("two"))
    go.set()
    await first
    assert [line["call"] for line in lines_of(path)] == [2, 1]
    provider = RecordedProvider(path)
    assert await provider.complete(asked("one")) == refold.say("first")
    assert await provider.complete(asked("two")) == refold.say("second")


# --- Requests that differ ---


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"messages": asked("hello!").messages}, 'request.messages[0].content[0].text: "hello" -> "hello!"'),
        ({"model": "letter-2"}, 'request.model: "letter-1" -> "letter-2"'),
        ({"max_tokens": 5}, "request.max_tokens: (nothing) -> 5"),
        ({"messages": [*REQUEST.messages, refold.Message("assistant", ())]}, "request.messages[1]: (nothing)"),
    ],
)
async def test_a_request_that_is_not_the_recorded_one_is_refused_with_the_first_difference(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    path = tmp_path / "calls.jsonl"
    request_now = msgspec.structs.replace(REQUEST, **changed)
    await RecordingProvider(refold.ScriptedProvider(["a"]), path).complete(REQUEST)
    with pytest.raises(refold.ProviderError) as caught:
        await RecordedProvider(path).complete(request_now)
    assert said in str(caught.value)
    assert (caught.value.kind, caught.value.retryable) == ("invalid_request", False)
    with pytest.raises(refold.ProviderError):
        await streamed(RecordedProvider(path), request_now)
    loose = RecordedProvider(path, strict=False)
    assert await loose.complete(request_now) == refold.say("a")
    with pytest.raises(refold.ProviderError, match="has 1 calls and this is request 2"):
        await loose.complete(request_now)


async def test_recording_again_does_what_a_refusal_advises(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await RecordingProvider(refold.ScriptedProvider(["a"]), path).complete(REQUEST)
    with pytest.raises(refold.ProviderError, match="delete the cassette and record again"):
        await RecordedProvider(path).complete(asked("something else"))
    path.unlink()  # Without this the new call would stand behind the old one.
    await RecordingProvider(refold.ScriptedProvider(["b"]), path).complete(asked("something else"))
    assert await RecordedProvider(path).complete(asked("something else")) == refold.say("b")


# --- The file ---


async def test_a_cassette_is_written_on_and_a_line_that_a_crash_cut_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await RecordingProvider(refold.ScriptedProvider(["a"]), path).complete(REQUEST)
    with path.open("ab") as file:
        file.write(b'{"cassette": 1, "call": 2, "reques')
    assert await RecordedProvider(path).complete(REQUEST) == refold.say("a")
    await RecordingProvider(refold.ScriptedProvider(["b"]), path).complete(REQUEST)
    assert [line["call"] for line in lines_of(path)] == [1, 2]
    provider = RecordedProvider(path)
    assert [await provider.complete(REQUEST) for _ in range(2)] == [refold.say("a"), refold.say("b")]


GOOD_LINE = b'{"cassette":1,"call":1,"request":{"model":"m"},"answer":{"content":[]}}\n'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (GOOD_LINE + b"nonsense\n", "line 2 of the cassette"),
        (b"\n", "line 1"),
        (b'{"cassette":1,"call":1,"request":{}}\n\xff\n', "line 2"),
        (GOOD_LINE.replace(b'"cassette":1', b'"cassette":2'), "has version 2"),
        (GOOD_LINE.replace(b'"content":[]', b'"content":[{"type":"video"}]'), "line 1"),
        (GOOD_LINE.replace(b'"content":[]', b'"text":"x"'), "line 1"),
        (GOOD_LINE.replace(b'"answer"', b'"deltas":[{"delta":"smell"}],"answer"'), "line 1"),
        (GOOD_LINE.replace(b"[]", b"[" * 100_000), "line 1"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused_and_left_alone(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_bytes(data)
    with pytest.raises(refold.ConfigError, match=said):
        RecordedProvider(path)
    with pytest.raises(refold.ConfigError, match=said):
        RecordingProvider(refold.ScriptedProvider([]), path)
    assert path.read_bytes() == data
    with pytest.raises(refold.ConfigError, match=r"nothing\.jsonl cannot be read: No such file"):
        RecordedProvider(tmp_path / "nothing.jsonl")


async def test_a_call_that_cannot_be_written_goes_on_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    provider = RecordingProvider(
        refold.ScriptedProvider(["a", refold.use("look", {"x": float("nan")}), "c"]), folder / "calls.jsonl"
    )
    assert await provider.complete(REQUEST) == refold.say("a")
    folder.mkdir()
    await provider.complete(REQUEST)
    await provider.complete(REQUEST)
    reports = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(reports) == 2
    assert "model call 1 is missing" in reports[0]
    assert "content[0].input.x" in reports[1]
    assert [line["call"] for line in lines_of(folder / "calls.jsonl")] == [3]


async def test_a_cassette_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    other = Secret("pw-0123456789-abcdef")
    question = asked(f"is {KEY} or {other.reveal()} right?")
    script = [
        json_answer({"text": f"{KEY} is, {other.reveal()} is not"}),
        event_stream(piece(text=f"{KEY} {other.reveal()[:9]}"), piece(text=other.reveal()[9:]), END),
        json_answer({"error": f"bad key {KEY} {other.reveal()}"}, status=401),
    ]
    async with Loopback(script) as server, LetterProvider(server.url) as real:
        provider = RecordingProvider(real, path, secrets=[other])
        await provider.complete(question)
        await streamed(provider, question)
        with pytest.raises(refold.ProviderError):
            await provider.complete(question)
    data = path.read_bytes()
    assert KEY.encode() not in data
    assert other.reveal().encode() not in data
    assert b"Bearer" not in data
    assert lines_of(path)[1]["deltas"] == [
        {"delta": "text", "text": "[redacted] "},
        {"delta": "text", "text": "[redacted]"},
    ]
    # Who asks with the same secrets in hand is still understood.
    again = RecordedProvider(path, secrets=[other, Secret(KEY)])
    assert await again.complete(question) == refold.say("[redacted] is, [redacted] is not")


@refold.tool(tier="observe", effect="pure")
async def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing at {place}"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_whole_run_is_recorded_and_run_again(tmp_path: Path, streaming: bool) -> None:
    path = tmp_path / "calls.jsonl"
    config = refold.AgentConfig(
        model="m",
        temperature=0.5,
        streaming=streaming,
        retry=refold.RetryPolicy(attempts_max=2, base_s=0.001, jitter=0),
    )
    busy = refold.ProviderError("busy", kind="overloaded", retryable=True)
    script: list[Any] = [
        refold.use("look", {"place": "left"}, id="toolu_1"),
        busy,
        refold.say("nothing there", usage=refold.Usage(output_tokens=3)),
    ]

    async def run(provider: refold.Provider) -> Any:
        async with refold.AgentRuntime(config, provider=provider, tools=[look]) as runtime:
            session = await runtime.session("s")
            result = await session.send("look")
            return result.text, result.usage, [type(event.event).__name__ async for event in session.events()]

    recorded = await run(RecordingProvider(refold.ScriptedProvider(script), path))
    assert recorded[0] == "nothing there"
    provider = RecordedProvider(path)
    assert await run(provider) == recorded
    assert provider.remaining == 0


@pytest.mark.parametrize("wrapped", [lambda provider: FallbackProvider([provider]), refold.ReActProvider])
async def test_the_keys_of_a_provider_inside_another_one_are_known(
    tmp_path: Path, wrapped: Callable[[refold.Provider], refold.Provider]
) -> None:
    path = tmp_path / "calls.jsonl"
    async with Loopback([json_answer({"text": "no"})]) as server, LetterProvider(server.url) as provider:
        await RecordingProvider(wrapped(FallbackProvider([provider])), path).complete(asked(f"is {KEY} right?"))
    assert "is [redacted] right?" in path.read_text()
    assert KEY not in path.read_text()
