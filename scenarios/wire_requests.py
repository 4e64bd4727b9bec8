"""What a simulated host reads of the requests that it gets, in the words of either API, and what it refuses.

A host is stricter than a real one may be: calls have their results directly behind them, no text is blank, no id is
there twice. So a request that a provider would refuse for its history breaks a promise, and is not overlooked.
"""

from typing import Any, Literal, TypeAlias, cast

import msgspec

from refold.events.configuration import ToolSpec
from refold.events.content import Block, Message, TextBlock, ToolResultBlock, ToolUseBlock
from refold.events.ids import ToolCallId
from refold.events.model import ModelRequest

Wire: TypeAlias = Literal["openai", "anthropic"]
"""Whose API is spoken."""

Object: TypeAlias = dict[str, Any]


class BadRequest(Exception):
    """A host refuses a request; the text says why."""


def request_in(body: bytes, wire: Wire) -> tuple[ModelRequest, bool]:
    """Return what a body asks for, under the names on the wire, and whether the answer is to be streamed.

    Raises:
        BadRequest: the API would refuse it.
    """
    try:
        sent: Object = msgspec.json.decode(body, type=dict[str, Any])
        read = _openai if wire == "openai" else _anthropic
        return read(sent), sent.get("stream") is True
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise BadRequest(f"the request is not of the form of the API: {error!r}") from None


def _refuse_unless(good: object, reason: str) -> None:
    if not good:
        raise BadRequest(reason)


def _openai(sent: Object) -> ModelRequest:
    messages: list[Object] = sent["messages"]
    tools = [tool["function"] for tool in sent.get("tools", ())]
    _refuse_unless(sent.get("tools") != [], "there is an empty list of tools")
    system = ""
    read: list[Message] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        role: str = message["role"]
        content: Any = message.get("content")
        if role == "system":
            _refuse_unless(place == 0, "a system message stands behind another message")
            system = str(content)
        elif role == "tool":
            call = message["tool_call_id"]
            _refuse_unless(waiting and waiting[0] == call, f"the result of {call} does not stand behind its call")
            _refuse_unless(content.strip(), f"the result of {call} is blank")
            waiting.pop(0)
            read.append(_user(ToolResultBlock(tool_use_id=call, content=(TextBlock(text=content),))))
        else:
            _refuse_unless(not waiting, f"the calls {waiting} have no results")
            _refuse_unless(role in ("user", "assistant"), f"there is no role {role!r}")
            calls = [_openai_call(call) for call in message.get("tool_calls", ())]
            waiting = [call.id for call in calls]
            _refuse_unless(len(set(waiting)) == len(waiting), "two calls share an id")
            texts: list[str | None] = (
                [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
            )
            _refuse_unless(texts or calls, f"message {place} is empty")
            _refuse_unless(all(text is None or text.strip() for text in texts), f"a text of message {place} is blank")
            read.append(Message("assistant" if role == "assistant" else "user", (*_texts(texts), *calls)))
    _refuse_unless(not waiting, f"the calls {waiting} have no results")
    return _request(sent, system, _joined(read), [(tool["name"], tool["parameters"]) for tool in tools])


def _openai_call(call: Object) -> ToolUseBlock:
    arguments: object = msgspec.json.decode(call["function"]["arguments"])
    _refuse_unless(isinstance(arguments, dict), f"the arguments of {call['id']} are no object")
    return ToolUseBlock(id=call["id"], name=call["function"]["name"], input=cast("Object", arguments))


def _anthropic(sent: Object) -> ModelRequest:
    _refuse_unless(type(sent["max_tokens"]) is int and sent["max_tokens"] > 0, "max_tokens is missing")
    system = "\n".join(part["text"] for part in sent.get("system", ()))
    read: list[Message] = []
    waiting: list[str] = []
    for place, message in enumerate(sent["messages"]):
        role, content = message["role"], message["content"]
        _refuse_unless(role == ("assistant" if place % 2 else "user"), f"message {place} is of the role {role}")
        _refuse_unless(content, f"message {place} is empty")
        answered = [part["tool_use_id"] for part in content if part["type"] == "tool_result"]
        _refuse_unless(sorted(answered) == sorted(waiting), f"the calls {waiting} have the results {answered}")
        kinds = [part["type"] for part in content]
        _refuse_unless(kinds == sorted(kinds, key=lambda kind: kind != "tool_result"), "a text stands before results")
        blocks = [_anthropic_block(part) for part in content]
        waiting = [block.id for block in blocks if isinstance(block, ToolUseBlock)]
        _refuse_unless(len(set(waiting)) == len(waiting), "two calls share an id")
        read.append(Message(role, tuple(blocks)))
    _refuse_unless(read and read[-1].role == "user", "the last message is not a user's")
    offered = () if sent.get("tool_choice") == {"type": "none"} else sent.get("tools", ())
    defined = {tool["name"] for tool in sent.get("tools", ())}
    called = {block.name for message in read for block in message.content if isinstance(block, ToolUseBlock)}
    _refuse_unless(defined or not called, "tools were called and none is defined")
    return _request(sent, system, read, [(tool["name"], tool["input_schema"]) for tool in offered])


def _anthropic_block(part: Object) -> Block:
    match part["type"]:
        case "text":
            _refuse_unless(part["text"].strip(), "a text is blank")
            return TextBlock(text=part["text"])
        case "tool_use":
            _refuse_unless(isinstance(part["input"], dict), f"the arguments of {part['id']} are no object")
            return ToolUseBlock(id=part["id"], name=part["name"], input=part["input"])
        case "tool_result":
            inner = part.get("content", ())
            _refuse_unless(all(item["text"].strip() for item in inner if item["type"] == "text"), "a result is blank")
            return ToolResultBlock(tool_use_id=ToolCallId(part["tool_use_id"]), content=())
        case other:
            raise BadRequest(f"there is no block of the type {other!r}")


def _texts(texts: list[str | None]) -> list[TextBlock]:
    """Return texts as blocks; those that were joined for the wire are separate again."""
    return [TextBlock(text=piece) for text in texts if text is not None for piece in text.split("\n\n")]


def _user(result: ToolResultBlock) -> Message:
    return Message("user", (result,))


def _joined(messages: list[Message]) -> list[Message]:
    """Return `messages` with neighbours of one role as one, as histories have them."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            joined[-1] = Message(message.role, (*joined[-1].content, *message.content))
        else:
            joined.append(message)
    return joined


def _request(sent: Object, system: str, messages: list[Message], tools: list[tuple[str, Object]]) -> ModelRequest:
    _refuse_unless(messages, "there is no message")
    names = [name for name, _ in tools]
    _refuse_unless(len(set(names)) == len(names), "two tools have one name")
    _refuse_unless(isinstance(sent["model"], str), "there is no model")
    return ModelRequest(
        model=sent["model"],
        system_prompt=system,
        messages=messages,
        tools=tuple(ToolSpec(name=name, description="", input_schema=schema) for name, schema in tools),
    )
