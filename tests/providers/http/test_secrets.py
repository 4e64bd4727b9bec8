"""Keys are shown nowhere: not by the objects that hold them, and not by what a provider sends back or fails with."""

import asyncio
import copy
import glob
import json
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.providers import HttpLimits, HttpTimeouts, RecordingProvider, Secret, key_from
from refold.providers.http.secrets import redaction_of_environment
from tests.providers.failures import CALL_IDS, CALLS, SOON, Failure
from tests.providers.letter_format import END, KEY, REQUEST, LetterProvider, piece, served, streamed
from tests.providers.loopback import End, Step, answer, event_stream, json_answer

GONE = "[redacted]"


# --- A secret ---


def test_a_secret_shows_itself_only_when_it_is_asked_to() -> None:
    secret = Secret(f"  {KEY}\n")
    assert secret.reveal() == KEY
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{secret!r}", f"{[secret]}", f"{vars}"]
    assert not any("letter" in text for text in shown)
    for refused in (pickle.dumps, json.dumps, msgspec.json.encode, vars):
        with pytest.raises(TypeError) as caught:
            refused(secret)
        assert "letter" not in str(caught.value)


def test_a_copy_of_a_secret_is_that_secret() -> None:
    secret = Secret(KEY)
    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret
    assert secret == Secret(KEY)
    assert hash(secret) == hash(Secret(KEY))
    assert secret != Secret("another-key-that-is-long")
    assert secret != KEY


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_who_holds_a_key_is_not_duplicated(duplicate: Any, tmp_path: Path) -> None:
    provider = LetterProvider("https://example.com")
    for holder in (provider, provider.redaction, RecordingProvider(provider, tmp_path / "calls.jsonl")):
        with pytest.raises(TypeError, match="is not pickled"):
            duplicate(holder)
        assert KEY not in repr(holder)


@pytest.mark.parametrize("value", ["", "  ", "two words", "schl\u00fcssel", "line\nbreak", 7, None])
def test_what_cannot_be_a_key_is_refused_without_showing_it(value: Any) -> None:
    with pytest.raises(refold.ConfigError) as caught:
        Secret(value)
    assert "words" not in str(caught.value)
    assert "break" not in str(caught.value)


def test_a_key_comes_from_the_caller_or_from_the_environment() -> None:
    environment = {"LETTER_KEY": f"{KEY}\n"}
    assert key_from(None, "LETTER_KEY", environment).reveal() == KEY
    assert key_from("given-by-the-caller", "LETTER_KEY", environment).reveal() == "given-by-the-caller"
    assert key_from(Secret(KEY), "LETTER_KEY", {}).reveal() == KEY


@pytest.mark.parametrize("environment", [{}, {"LETTER_KEY": ""}, {"LETTER_KEY": " "}])
def test_a_missing_key_names_the_variable(environment: dict[str, str]) -> None:
    with pytest.raises(refold.ConfigError, match="LETTER_KEY"):
        key_from(None, "LETTER_KEY", environment)
    with pytest.raises(refold.ConfigError, match="LETTER_KEY"):
        key_from("", "LETTER_KEY", {"LETTER_KEY": KEY})


@pytest.mark.parametrize(
    "value",
    [
        *("", "EMPTY", "two words in it", "schl\u00fcssel-0123456789", "\udcff" * 20, GONE * 2),
        *(
            "changeme",
            "your-key-here",
            "YOUR_API_KEY_HERE",
            "xxxxxxxxxxxxxxxxxxxxxxxx",
            "0000-0000-0000",
            "sk-xxxxxxxx",
        ),
    ],
)
def test_what_the_environment_has_in_place_of_a_key_is_not_looked_for(value: str) -> None:
    assert not redaction_of_environment({"OPENAI_API_KEY": value})
    assert redaction_of_environment({"OPENAI_API_KEY": value, "ANTHROPIC_API_KEY": KEY}).text(f"a {KEY}") == f"a {GONE}"


@pytest.mark.parametrize("key", ["abc123def456", "TwelveLetter", "correct-horse-battery-staple"])
def test_a_short_key_that_is_no_word_is_looked_for(key: str) -> None:
    assert redaction_of_environment({"OPENAI_API_KEY": key}).text(f"a {key}") == f"a {GONE}"


# --- What a provider sends back ---


async def test_a_key_that_the_answer_spells_with_escapes_is_taken_out() -> None:
    body = json.dumps({"text": f"a {KEY}"}).replace("letter", "\\u006cetter").encode()
    assert KEY.encode() not in body
    async with served(answer(body)) as (_, provider):
        assert await provider.complete(REQUEST) == refold.say(f"a {GONE}")


@pytest.mark.parametrize("size", [1, 5, 29, len(KEY), 100])
async def test_a_key_that_comes_in_pieces_is_taken_out(size: int) -> None:
    def pieces(name: str, text: str) -> list[bytes]:
        return [piece(**{name: text[start : start + size]}) for start in range(0, len(text), size)]

    text = f"sk-sk-letter {KEY}{KEY} sk-letter-0123"
    call = json.dumps({"key": KEY})
    async with served(
        event_stream(*pieces("thinking", text), *pieces("text", text), piece(tokens=3), *pieces("call", call), END)
    ) as (_, provider):
        items = await streamed(provider)
    clean = f"sk-sk-letter {GONE}{GONE} sk-letter-0123"
    assert "".join(item.text for item in items if isinstance(item, refold.TextDelta)) == clean
    assert "".join(item.thinking for item in items if isinstance(item, refold.ThinkingDelta)) == clean
    calls = "".join(item.partial_json for item in items if isinstance(item, refold.ToolInputDelta))
    assert json.loads(calls) == {"key": GONE}
    final = refold.ModelResponse(
        content=(refold.TextBlock(text=clean), refold.ToolUse(name="look", input={"key": GONE}))
    )
    assert items[-1] == final


async def test_only_what_may_be_the_beginning_of_a_key_waits() -> None:
    go = asyncio.Event()
    async with served(event_stream(piece(text="tasks"), go, piece(text=" sk"), piece(text="y"), END)) as (_, provider):
        stream = provider.stream(REQUEST)
        assert await anext(stream) == refold.TextDelta("task")
        go.set()
        rest = [item async for item in stream]
    assert rest == [refold.TextDelta("s "), refold.TextDelta("sky"), refold.say("tasks sky")]


async def test_a_text_is_shown_to_its_end_before_what_follows_it() -> None:
    async with served(
        event_stream(piece(thinking="files"), piece(text="I ask"), piece(tokens=3), piece(call="{}"), END)
    ) as (_, provider):
        items = await streamed(provider)
    assert items[:-1] == [
        refold.ThinkingDelta("file"),
        refold.ThinkingDelta("s"),
        refold.TextDelta("I a"),
        refold.UsageDelta(refold.Usage(output_tokens=3)),
        refold.TextDelta("sk"),
        refold.ToolInputDelta(0, "look", "{}"),
    ]


@pytest.mark.parametrize("first", [1, 3, 4, 29])
async def test_a_key_with_something_else_in_its_midst_is_shown_to_its_first_characters_at_most(first: int) -> None:
    parts = [piece(text=f"a {KEY[:first]}"), piece(call="{}"), piece(text=KEY[first:-1]), piece(thinking="b")]
    async with served(event_stream(*parts, piece(text=f"{KEY[-1]} sk"), piece(thinking="c"), piece(text="y"), END)) as (
        _,
        provider,
    ):
        items = await streamed(provider)
    shown = "".join(item.text for item in items if isinstance(item, refold.TextDelta))
    assert shown == f"a {KEY[:first] if first <= 3 else ''}{GONE} sky"
    assert items[-1] == refold.ModelResponse(
        content=(refold.TextBlock(text=f"a {GONE} sky"), refold.ToolUse(name="look", input={}))
    )


async def test_a_placeholder_for_a_key_is_left_in_answers() -> None:
    async with served(event_stream(piece(text="EMP"), piece(text="TY glass"), END), key="EMPTY") as (_, provider):
        assert await streamed(provider) == [
            refold.TextDelta("EMP"),
            refold.TextDelta("TY glass"),
            refold.say("EMPTY glass"),
        ]


# --- Failures of every kind ---

ANSWERS = {
    "an answer": json_answer({"text": f"key {KEY}"}),
    "a streamed answer": event_stream(piece(text="key " + KEY[:9]), piece(text=KEY[9:]), END),
}


def everything_about(error: BaseException) -> str:
    """Return all that a log, a crash report or another process may get to see of an error."""
    described = traceback.TracebackException.from_exception(error, capture_locals=True)
    # This module knows the key.
    described.stack = traceback.StackSummary.from_list([f for f in described.stack if f.filename != __file__])
    assert described.stack
    report = "".join(described.format())
    chain: BaseException | None = error
    while chain is not None:
        report += f"{chain!r} {vars(chain)} {chain.args}"
        chain = chain.__cause__ or chain.__context__
    report += repr(pickle.loads(pickle.dumps(error)).args)
    return report


@pytest.mark.parametrize(("name", "failure", "stream"), CALLS, ids=CALL_IDS)
async def test_no_failure_shows_the_key(
    name: str, failure: Failure, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(failure.steps, **failure.settings) as (server, provider):
        with pytest.raises(refold.ProviderError) as caught:
            await (streamed(provider) if stream else provider.complete(REQUEST))
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == [f"Bearer {KEY}"] or (sent == [] and failure.kind == "timeout")
        shown = [everything_about(caught.value), repr(provider)]
    # What the server has written is what the test itself knows.
    shown.extend(record.getMessage() for record in caplog.records if record.name != "asyncio")
    for text in shown:
        assert KEY[:16] not in text


@pytest.mark.parametrize("steps", ANSWERS.values(), ids=ANSWERS)
async def test_no_answer_shows_the_key(steps: list[Step], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(steps, steps) as (_, provider):
        assert (await streamed(provider))[-1] == refold.say(f"key {GONE}")
        if steps is ANSWERS["an answer"]:
            assert await provider.complete(REQUEST) == refold.say(f"key {GONE}")
    assert not [record for record in caplog.records if record.name != "asyncio" and KEY[:16] in record.getMessage()]


@pytest.mark.parametrize("stream", [True, False])
async def test_no_log_holds_the_key(stream: bool, tmp_path: Path) -> None:
    config = refold.AgentConfig(model="letter-1", streaming=stream, retry=refold.RetryPolicy(attempts_max=1))
    log = tmp_path / "events.db"
    settings = {"timeouts": HttpTimeouts(silence_s=SOON), "limits": HttpLimits(body_bytes_max=6000)}
    failures = [failure.steps for _, failure, streamed in CALLS if streamed == stream and failure.steps != [End.LEAP]]
    script = [[End.LEAP if step is End.STALL else step for step in steps] for steps in (*failures, *ANSWERS.values())]
    async with (
        served(*script, **settings) as (server, provider),
        refold.AgentRuntime(config, provider=provider, log=log) as runtime,
    ):
        for number in range(len(script)):
            await (await runtime.session(f"session-{number}")).send("hello")
        assert len(server.requests) == len(script)
    files = [Path(name) for name in glob.glob(f"{tmp_path}/*")]
    assert log in files
    for file in files:
        assert KEY.encode()[:16] not in file.read_bytes()
        assert b"Bearer" not in file.read_bytes()


async def test_a_cancelled_call_does_not_show_the_key_of_its_provider() -> None:
    async with served([End.STALL]) as (server, provider):
        call = asyncio.create_task(provider.complete(REQUEST))
        await server.until(lambda: len(server.requests) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await call
    report = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert KEY not in report


async def test_headers_that_sound_secret_are_secrets_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    headers: dict[str, str | Secret] = {"X-Auth": "Basic dXNlcjpwYXNz0123456789", "x-tag": Secret("tag-0123456789")}
    async with served(
        json_answer({"text": "dXNlcjpwYXNz0123456789 tag-0123456789"}), json_answer({}, status=500), headers=headers
    ) as (server, provider):
        assert await provider.complete(REQUEST) == refold.say(f"{GONE} {GONE}")
        with pytest.raises(refold.ProviderError) as caught:
            await provider.complete(REQUEST)
        assert server.requests[0].headers["x-auth"] == "Basic dXNlcjpwYXNz0123456789"
        assert server.requests[0].headers["x-tag"] == "tag-0123456789"
    report = everything_about(caught.value) + caplog.text
    assert "dXNlcj" not in report
    assert "tag-0" not in report
