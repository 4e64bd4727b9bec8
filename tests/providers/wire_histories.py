"""Histories in the two wire forms as other systems have them, irregular in every way that is certain, by hypothesis."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from refold.events.core.content import JsonObject

AUDIO: JsonObject = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
DOCUMENT: JsonObject = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Tea."}}
PDF = base64.b64encode(b"%PDF-1.7").decode()
PNG = base64.b64encode(b"\x89PNG1").decode()

NOT_SAID = {"role", "type", "id", "tool_call_id", "tool_use_id", "cache_control", "index", "tool_name", "media_type"}
"""Fields of which nothing has to be found again: the form says them otherwise."""

words = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=8).filter(str.strip)
texts = words | st.sampled_from(["", " ", "\n", "🌦 é \x00\u2028", "<think>x</think>y", "Error: e", "Zoë " * 2000])
names = st.text("abcXYZ019_-", min_size=1, max_size=12)
values = st.none() | st.booleans() | st.integers(-9, 9) | words | st.lists(words, max_size=2)
arguments = st.dictionaries(words, values, max_size=2)
malformed = st.sampled_from(['{"a": ', "three", "[1]", "7", '{"a": 1}}', '{"n": 99999999999999999999}', "x" * 5000])


def said(path: str, value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text and number in a history, with its place; of arguments that are JSON, what is in them."""
    if isinstance(value, dict):
        for field, item in value.items():
            if field not in NOT_SAID and not (field == "name" and value.get("role") in ("tool", "function")):
                yield from said(f"{path}.{field}", item, field)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from said(f"{path}[{place}]", item)
    elif isinstance(value, str) and value.strip():
        inner = _object_in(value) if name == "arguments" else None
        if inner is not None:
            yield from said(path, inner)
        else:
            yield path, value
    elif type(value) in (int, float):
        yield path, json.dumps(value)


def _object_in(text: str) -> object:
    """Return the object that a text of arguments is, None where it is none, or one that cannot be recorded."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "9" * 20 not in text else None


def lost(given: Any, written: Any, left_out: list[str]) -> list[tuple[str, str]]:
    """Return what is in `given`, not in `written`, and not named as left out either."""
    found = "\0".join(text for _, text in said("", written))
    named = tuple(note.split(": ")[0] for note in left_out)
    return [
        (path, text)
        for path, text in said("messages", given)
        if text.removeprefix("data:").split(";base64,")[-1] not in found and not path.startswith(named or "\0")
    ]


def sometimes(draw: st.DrawFn, message: dict[str, Any], **fields: Any) -> None:
    """Give a message some of the fields, each a value or what draws one."""
    for field, value in fields.items():
        if draw(st.integers(0, 4)) == 0:
            message[field] = draw(value) if isinstance(value, st.SearchStrategy) else value


images = st.sampled_from(
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "image_url", "image_url": {"url": "data:image/png;name=x;base64,cG5n"}},
    ]
)
files = st.sampled_from(
    [
        {"type": "file", "file": {"filename": "T", "file_data": f"data:application/pdf;base64,{PDF}"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,/w=="}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]
)
openai_texts = st.builds(lambda text: {"type": "text", "text": text}, texts)
openai_contents = texts | st.none() | st.lists(openai_texts | images | files | st.just(AUDIO), max_size=3)
refusals = st.builds(lambda text: {"type": "refusal", "refusal": text}, words)
mistral_thoughts = st.builds(lambda text: {"type": "thinking", "thinking": [{"type": "text", "text": text}]}, words)
openai_answers = (
    texts | st.none() | st.lists(openai_texts | refusals, max_size=3) | st.lists(mistral_thoughts, max_size=1)
)
spoken = st.fixed_dictionaries({"id": words}, optional={"data": st.just("UklG"), "transcript": words})
ANNOTATION = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "T", "start_index": 3}}


@st.composite
def openai_histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    for turn in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 2))):
            role = draw(st.sampled_from(["user", "user", "user", "system", "developer"]))
            message = {"role": role, "content": draw(openai_contents if role == "user" else texts)}
            sometimes(draw, message, name=names, images=[PNG] if role == "user" else [], metadata={"n": 1})
            messages.append(message)
        messages.extend(late)
        answer: dict[str, Any] = {"role": "assistant", "content": draw(openai_answers)}
        sometimes(draw, answer, refusal=words, audio=spoken, annotations=[ANNOTATION], name=names, logprobs={"n": 2})
        sometimes(draw, answer, reasoning_content=words, reasoning_details=[{"type": "reasoning.text", "text": "H."}])
        sometimes(draw, answer, reasoning={"summary": "S."}, function_call={"name": "old", "arguments": '{"q": 7}'})
        calls, results, late = draw(openai_calls(turn))
        named = bool(calls) or draw(st.booleans())
        messages.append({**answer, "tool_calls": calls} if named else answer)
        messages.extend(results)
    return [*messages, *([{"role": "assistant", "content": draw(words)}] if late else []), *late]


@st.composite
def openai_calls(draw: st.DrawFn, turn: int) -> tuple[list[Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return calls, results that follow them, and results that follow later."""
    form = draw(st.sampled_from(["ids", "ids", "names", "ollama", "repeated ids"]))
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for place in range(draw(st.integers(0, 3))):
        name = draw(names) + (str(place) if form == "names" else "")
        given = draw(arguments.map(json.dumps) | malformed | st.just(""))
        call: dict[str, Any] = {
            "id": f"call_{place}" if form == "repeated ids" else f"c{turn}_{place}",
            "type": "function",
        }
        call |= {"function": {"name": name, "arguments": given}, "extra_content": {"google": {"signature": "s"}}}
        if draw(st.integers(0, 4)) == 0:
            call = {"id": call["id"], "type": "custom", "custom": {"name": name, "input": draw(words | malformed)}}
        result: dict[str, Any] = {"role": "tool", "tool_call_id": call["id"], "content": draw(openai_contents)}
        if form == "names":
            result = {"role": draw(st.sampled_from(["tool", "function"])), "name": name, "content": result["content"]}
            result |= draw(st.sampled_from([{}, {"tool_call_id": None}, {"tool_call_id": ""}]))
        elif form == "ollama":
            call = {
                "function": {"name": name, "arguments": draw(arguments)},
                **draw(st.sampled_from([{}, {"id": None}])),
            }
            result = {"role": "tool", "tool_name": name, "content": draw(texts)}
        calls.append(call)
        results.append(result)
    late: list[dict[str, Any]] = []
    if form == "ids":
        results = draw(st.permutations(results))
        results += draw(st.lists(st.sampled_from(results), max_size=1)) if results else []
        cut = draw(st.integers(0, len(results)))
        results, late = results[:cut], [result for result in results[cut:] if draw(st.booleans())]
    return calls, results, late


anthropic_texts = st.builds(lambda text: {"type": "text", "text": text}, texts)
anthropic_media = st.sampled_from(
    [
        DOCUMENT,
        {**DOCUMENT, "title": "T", "citations": {"enabled": True}, "context": "C"},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
        {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        {"type": "search_result", "source": "https://a.example", "title": "T", "content": []},
    ]
)
anthropic_contents = texts | st.none() | st.lists(anthropic_texts | anthropic_media | words, max_size=3)
anthropic_thoughts = st.builds(
    lambda word, sign: {"type": "thinking", "thinking": word, "signature": sign}, words, words
) | st.just({"type": "redacted_thinking", "data": "secret"})
anthropic_answers = st.lists(
    anthropic_thoughts
    | anthropic_texts
    | st.just({"type": "text", "text": "Tea.", "citations": [{"type": "char_location", "cited_text": "Hot tea."}]})
    | st.just({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "tea"}}),
    max_size=3,
)


@st.composite
def anthropic_histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    late: list[Any] = []
    for turn in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 2))):
            role = draw(st.sampled_from(["user", "user", "user", "system"]))
            messages.append({"role": role, "content": draw(anthropic_contents if role == "user" else texts)})
        messages.extend({"role": "user", "content": [result]} for result in late)
        calls: list[Any] = []
        results: list[Any] = []
        for place in range(draw(st.integers(0, 3))):
            call: dict[str, Any] = {
                "type": "tool_use",
                "id": f"c{turn}_{place}",
                "name": draw(names),
                "input": draw(arguments),
            }
            failed: dict[str, Any] = draw(
                st.sampled_from([{}, {"is_error": True}, {"cache_control": {"type": "ephemeral"}}])
            )
            result: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": draw(anthropic_contents),
                **failed,
            }
            calls.append(call)
            results.append(result)
        answer = {"role": "assistant", "content": [*draw(anthropic_answers), *calls]}
        sometimes(draw, answer, stop_reason="tool_use", usage={"input_tokens": 5})
        if len(calls) == 1 and draw(st.booleans()):
            del results[0]["tool_use_id"]
        elif calls:
            results = draw(st.permutations(results))
            results += draw(st.lists(st.sampled_from(results), max_size=1))
        cut = draw(st.integers(0, len(results)))
        late = results[cut:] if all("tool_use_id" in result for result in results) else []
        here = results[: len(results) - len(late)]
        said_with = draw(st.lists(anthropic_texts, max_size=1))
        messages += [answer, {"role": "user", "content": draw(st.permutations([*here, *said_with]))}]
    last = [{"role": "assistant", "content": draw(words)}] if late else []
    return [*messages, *last, *({"role": "user", "content": [result]} for result in late)]
