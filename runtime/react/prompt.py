"""A model request in ReAct text: the same history and tools for a model that is given no tools.

`text_request` is what `refold.providers.react` sends. The rules: a step is shown to the model again in its own words
wherever they still say what was recorded, and else in the form that the instructions ask for; each action is followed
by exactly one observation, so that the calls of an answer that made several stand one after another; and the same
request always gives the same text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from refold.events.core.content import (
    STILL_OPEN_TEXT,
    Block,
    DocumentBlock,
    GivenContent,
    ImageBlock,
    JsonObject,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    is_json_object,
    text_of,
    tool_uses,
)
from refold.events.core.ids import ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest
from refold.react.text import ReActStep, step_text

REACT = "react"
"""Under this name `provider_data` keeps what a step is shown again by."""

THOUGHT_DATA: JsonObject = {REACT: {"part": "thought"}}
"""Marks a thinking block that is a step's thought, which the model sees again, unlike reasoning of its own."""

UNPARSED_DATA: JsonObject = {REACT: {"part": "unparsed"}}
"""Marks a text that is the whole answer as the model gave it."""

STOP_SEQUENCE = "\nObservation:"
"""Keeps a model from writing observations itself."""

STOP_SEQUENCES_MAX = 4
"""No more stop sequences are accepted by every provider."""

Shown: TypeAlias = GivenContent
"""What messages of a text request hold."""

_INSTRUCTIONS = """\
# How to answer

You work in steps, and each of your answers is exactly one step. A step that uses a tool has this form:

Thought: what you think should be done next, and why
Action: the name of one tool
Action Input: its arguments as one JSON object

You are then told the result as `Observation: …`. Never write an Observation yourself, and give only one Action in an \
answer. When you know the answer, or need no tool, your step has this form:

Thought: why you can answer now
FINAL_ANSWER: your whole answer

Write each label at the beginning of a line, exactly as it stands here."""

_NO_TOOLS = """\
# How to answer

There are no tools here. Answer in this form:

Thought: what you think
FINAL_ANSWER: your whole answer

Write each label at the beginning of a line, exactly as it stands here."""


def said_data(step: ReActStep) -> JsonObject:
    """Return the `provider_data` of the block that ends a step, which keeps the step in the model's own words.

    A digest says which step that is: a call that is recorded otherwise, since its arguments were repaired or a person
    has changed them, is not shown in words that no longer hold.

    Args:
        step: with the tool's name and the arguments that are meant.
    """
    return {REACT: {"said": step.said, "digest": _digest(step)}}


def text_request(request: ModelRequest, *, stop: bool = True) -> ModelRequest:
    """Return `request` as one that any text model can answer with a step.

    Args:
        request: with tools and a history of tool calls.
        stop: whether to add `STOP_SEQUENCE`, where there is room for it.
    """
    stops = request.stop_sequences
    if stop and STOP_SEQUENCE not in stops and len(stops) < STOP_SEQUENCES_MAX:
        stops = (*stops, STOP_SEQUENCE)
    return msgspec.structs.replace(
        request,
        system_prompt="\n\n".join(filter(None, [request.system_prompt.rstrip(), instructions(request.tools)])),
        messages=text_messages(request.messages),
        tools=(),
        stop_sequences=stops,
        output_schema=None,  # The data is a part of the step.
    )


def instructions(tools: Sequence[ToolSpec]) -> str:
    """Return what a model is told of the form of its answers, and of the tools, in name order."""
    if not tools:
        return _NO_TOOLS
    described = [
        f"## {spec.name}\n{spec.description.strip() or '(no description)'}\n"
        f"Arguments, as JSON Schema: {msgspec.json.encode(spec.input_schema).decode()}"
        for spec in sorted(tools, key=lambda spec: spec.name)
    ]
    return "\n\n".join([_INSTRUCTIONS, "# Tools", *described])


def text_messages(messages: Sequence[Message]) -> list[Message]:
    """Return a history as messages of text and images, the roles alternating."""
    dialogue = _Dialogue()
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        if message.role == "user":
            _show_given(dialogue, message, {})
            continue
        uses = tool_uses(message.content)
        if not uses:
            dialogue.add("assistant", *_answer(message.content))
            continue
        follows = place < len(messages) and messages[place].role == "user"
        results = _results(messages[place]) if follows else {}
        _show_calls(dialogue, message.content, uses, results)
        if follows:
            _show_given(dialogue, messages[place], {use.id: results[use.id] for use in uses if use.id in results})
            place += 1
    return dialogue.messages()


class _Dialogue:
    """Puts messages together; what one role says in a row becomes one message."""

    def __init__(self) -> None:
        self._turns: list[tuple[Literal["user", "assistant"], list[Shown]]] = []

    def add(self, role: Literal["user", "assistant"], *content: Shown) -> None:
        kept = [block for block in content if not isinstance(block, TextBlock) or block.text.strip()]
        if not kept:
            return
        if self._turns and self._turns[-1][0] == role:
            self._turns[-1][1].extend(kept)
        else:
            self._turns.append((role, kept))

    def messages(self) -> list[Message]:
        return [Message(role, tuple(content)) for role, content in self._turns]


def _results(message: Message) -> dict[ToolCallId, ToolResultBlock]:
    return {block.tool_use_id: block for block in message.content if isinstance(block, ToolResultBlock)}


def _show_given(dialogue: _Dialogue, message: Message, shown: Mapping[ToolCallId, ToolResultBlock]) -> None:
    """Show what a user message holds besides the results that are shown already."""
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            if block.tool_use_id not in shown:
                dialogue.add("user", *_observation(block))
        else:
            dialogue.add("user", *_plain([block]))


def _show_calls(
    dialogue: _Dialogue,
    content: Sequence[Block],
    uses: Sequence[ToolUseBlock],
    results: Mapping[ToolCallId, ToolResultBlock],
) -> None:
    """Show the calls of an answer one after another, each with its observation."""
    thought = _thought(content) or text_of(tuple(content)).strip()
    for place, use in enumerate(uses):
        step = ReActStep(
            thought=thought if place == 0 else "",
            action=use.name,
            arguments=use.input if use.malformed_input is None else use.malformed_input,
        )
        dialogue.add("assistant", TextBlock(text=_own_words(use.provider_data, step) or step_text(step)))
        result = results.get(use.id)
        if result is not None:
            dialogue.add("user", *_observation(result))
        else:
            dialogue.add("user", TextBlock(text=f"Observation: {STILL_OPEN_TEXT}"))


def _answer(content: Sequence[Block]) -> list[Shown]:
    texts = [block for block in content if isinstance(block, TextBlock) and block.text.strip()]
    images = [block for block in content if isinstance(block, ImageBlock | DocumentBlock)]
    if not texts:
        return list(images)
    if all(_part(block.provider_data) == "unparsed" for block in texts):
        return _plain(content)
    step = ReActStep(thought=_thought(content), final_answer=text_of(tuple(texts)).strip())
    own = _own_words(texts[-1].provider_data, step)
    return [TextBlock(text=own or step_text(step)), *images]


def _observation(result: ToolResultBlock) -> list[Shown]:
    """Return how a result is shown: its text behind the label, and then its images."""
    text = text_of(result.content)
    images = [block for block in result.content if isinstance(block, ImageBlock | DocumentBlock)]
    if not text.strip():
        text = f"({len(images)} image{'s' * (len(images) > 1)})" if images else "(nothing)"
    failed = f"Error ({result.kind or 'permanent'}): " if result.is_error else ""
    return [TextBlock(text=f"Observation: {failed}{text}"), *images]


def _plain(content: Sequence[Block]) -> list[Shown]:
    """Return the texts and images of `content`, without what providers want back with them."""
    return [
        TextBlock(text=block.text) if isinstance(block, TextBlock) else block
        for block in content
        if isinstance(block, GivenContent)
    ]


def _thought(content: Sequence[Block]) -> str:
    return "\n".join(
        block.thinking
        for block in content
        if isinstance(block, ThinkingBlock) and _part(block.provider_data) == "thought"
    )


def _part(data: JsonObject | None) -> object:
    ours = data.get(REACT) if data is not None else None
    return ours.get("part") if is_json_object(ours) else None


def _own_words(data: JsonObject | None, step: ReActStep) -> str | None:
    """Return a step in the model's own words, if those are kept and still say the same."""
    ours = data.get(REACT) if data is not None else None
    if not is_json_object(ours) or "said" not in ours:
        return None
    said = ours["said"]
    return said if isinstance(said, str) and said.strip() and ours.get("digest") == _digest(step) else None


def _digest(step: ReActStep) -> str:
    """Return 16 hexadecimal digits over what a step says; none where it cannot be recorded unchanged."""
    try:
        said = msgspec.json.encode((step.thought, step.action, step.arguments, step.final_answer), order="sorted")
    except (UnicodeError, ValueError, OverflowError, RecursionError):
        return ""
    return hashlib.sha256(said).hexdigest()[:16]
