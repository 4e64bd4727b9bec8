"""The Chat Completions API by the official package's own types, and answers in many forms, for tests."""

import json
import re
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from openai.types.chat import completion_create_params as params

from refold import ModelResponse
from refold.events.model.messages import Delta
from refold.providers.http.wire import WireEvent
from refold.providers.openai.provider import OpenAIFormat
from refold.providers.openai.request import call_id_forms

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")


def wire_id(id: str) -> str:
    """Return the id that a call has on the wire."""
    return call_id_forms([id])[id]


def misfit(value: object, wanted: Any, path: str = "$") -> str | None:
    """Return the first place where a JSON value is not of a type out of the package; unknown keys are misfits."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated):
        return misfit(value, inner[0], path)
    if origin in (typing.Union, types.UnionType):
        found = [misfit(value, option, path) for option in inner]
        return None if None in found else max((text for text in found if text), key=len)
    if origin is Literal:
        return None if value in inner else f"{path}: {value!r} is none of {inner}"
    if hasattr(wanted, "__required_keys__"):
        return _misfit_of_object(value, wanted, path)
    if origin is dict or wanted is dict:
        return None if isinstance(value, dict) else f"{path}: {value!r} is no object"
    if origin is not None and issubclass(origin, Iterable):
        if not isinstance(value, list):
            return f"{path}: {value!r} is no array"
        return next(
            (bad for place, item in enumerate(value) if (bad := misfit(item, inner[0], f"{path}[{place}]"))), None
        )
    if wanted is object:
        return None
    allowed = (int, float) if wanted is float else (type(None) if wanted is None else wanted,)
    fits = isinstance(value, allowed) and (wanted is bool or not isinstance(value, bool))
    return None if fits else f"{path}: {value!r} is no {wanted}"


def _misfit_of_object(value: object, wanted: Any, path: str) -> str | None:
    if not isinstance(value, dict):
        return f"{path}: {value!r} is no object"
    fields = typing.get_type_hints(wanted, include_extras=True)
    for key, kind in fields.items():
        if typing.get_origin(kind) is typing.Required and key not in value:
            return f"{path}.{key} is missing"
    for key, item in value.items():
        if key not in fields:
            return f"{path}.{key} is unknown"
        if bad := misfit(item, fields[key], f"{path}.{key}"):
            return bad
    return None


def check_accepted(body: bytes) -> dict[str, Any]:
    """Return a request, having checked all that the API is known to refuse of its form."""
    value: dict[str, Any] = json.loads(body)
    stream = value.get("stream")
    wanted = params.CompletionCreateParamsStreaming if stream else params.CompletionCreateParamsNonStreaming
    assert misfit(value, wanted) is None
    assert body.decode().encode() == body
    assert all(tool["function"]["parameters"] is not None for tool in value.get("tools", ()))
    names = [tool["function"]["name"] for tool in value.get("tools", ())]
    assert len(set(names)) == len(names)
    assert names or "parallel_tool_calls" not in value
    assert value.get("tools") != []
    _check_messages(value["messages"], names)
    return value


def _check_messages(messages: list[dict[str, Any]], names: list[str]) -> None:
    assert next((message["role"] for message in messages if message["role"] != "system"), None) == "user"
    waiting: list[str] = []
    for place, message in enumerate(messages):
        assert message["role"] != "system" or place == 0
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0), (
                "results stand in the order of their calls, directly behind"
            )
            assert message["content"].strip()
            continue
        assert not waiting, "every call has its result directly behind it"
        content = message["content"]
        if content is None:
            assert message["tool_calls"]
        elif isinstance(content, str):
            assert content.strip()
        else:
            assert content
            assert all(part["text"].strip() for part in content if part["type"] == "text")
        calls = message.get("tool_calls", ())
        assert calls != []
        for call in calls:
            names.append(call[call["type"]]["name"])
            assert call["type"] == "custom" or isinstance(json.loads(call["function"]["arguments"]), dict)
            assert CALL_ID.fullmatch(call["id"])
        waiting = [call["id"] for call in calls]
        assert len(set(waiting)) == len(waiting)
    assert not waiting
    assert all(NAME.fullmatch(name) for name in names)


def chunk(delta: object = None, *, finish: str | None = None, **more: object) -> dict[str, object]:
    """Return a chunk of a stream as OpenAI sends it."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-x",
        "choices": [{"index": 0, "delta": delta if delta is not None else {}, "finish_reason": finish}],
        **more,
    }


def completion(message: object, *, finish: str | None = "stop", **more: object) -> bytes:
    """Return a whole answer as OpenAI sends it."""
    value = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-x",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        **more,
    }
    return json.dumps(value).encode()


def read_stream(
    events: Sequence[object], wire_format: OpenAIFormat | None = None, *, done: bool = True
) -> tuple[list[Delta], ModelResponse]:
    """Return the deltas and the answer of a stream of chunks."""
    reader = (wire_format or OpenAIFormat()).reader()
    deltas: list[Delta] = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        deltas.extend(reader.read(WireEvent(data=data)))
    if done:
        assert not reader.finished()
        reader.read(WireEvent(data="[DONE]"))
        assert reader.finished()
    return deltas, reader.answer()
