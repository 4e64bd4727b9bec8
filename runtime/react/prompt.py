"""A model request in ReAct text: the same history and tools for a model that is given no tools.

`text_request` is what `refold.providers.react` sends. The rules: a step is shown to the model again in its own words
wherever they still say what was recorded, and else in the form that the instructions ask for; each action is followed
by exactly one observation, so that the calls of an answer that made several stand one after another; and the same
request always gives the same text.
"""

import hashlib
from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from operator import itemgetter

import msgspec

from refold.events.core.content import (
    STILL_OPEN_TEXT,
    Block,
    DocumentBlock,
    GivenContent,
    ImageBlock,
    JsonObject,
    Message,
    Role,
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

    A digest says which step that is, with the name and arguments that are meant: a call that is recorded otherwise,
    since its arguments were repaired or a person has changed them, is not shown in words that no longer hold.
    """
    return {REACT: {"said": step.said, "digest": _digest(step)}}


def text_request(request: ModelRequest, *, stop: bool = True) -> ModelRequest:
    """Return `request` as one that any text model can answer with a step, with a `stop` where there is room for it."""
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
    said = [one for one in _dialogue(messages) if not isinstance(one[1], TextBlock) or one[1].text.strip()]
    return [Message(role, tuple(block for _, block in turn)) for role, turn in groupby(said, key=itemgetter(0))]


def _dialogue(messages: Sequence[Message]) -> Iterator[tuple[Role, GivenContent]]:
    shown: Set[ToolCallId] = frozenset()  # The calls of the message before, behind which this one's results stand.
    for place, message in enumerate(messages):
        if message.role == "user":
            for block in message.content:
                if not isinstance(block, ToolResultBlock):
                    for part in _plain([block]):
                        yield "user", part
                elif block.tool_use_id not in shown:
                    for part in _observation(block):
                        yield "user", part
            shown = frozenset()
            continue
        uses = tool_uses(message.content)
        shown = {use.id for use in uses}
        if uses:
            behind = next((after.content for after in messages[place + 1 : place + 2] if after.role == "user"), ())
            yield from _calls(message.content, uses, behind)
        else:
            for part in _answer(message.content):
                yield "assistant", part


def _calls(
    content: Sequence[Block], uses: Sequence[ToolUseBlock], behind: Sequence[Block]
) -> Iterator[tuple[Role, GivenContent]]:
    """Yield the calls of an answer one after another, each with its observation."""
    results = {block.tool_use_id: block for block in behind if isinstance(block, ToolResultBlock)}
    thought = _thought(content) or text_of(tuple(content)).strip()
    for place, use in enumerate(uses):
        step = ReActStep(
            thought=thought if place == 0 else "",
            action=use.name,
            arguments=use.input if use.malformed_input is None else use.malformed_input,
        )
        yield "assistant", TextBlock(text=_own_words(use.provider_data, step) or step_text(step))
        if use.id in results:
            for part in _observation(results[use.id]):
                yield "user", part
        else:
            yield "user", TextBlock(text=f"Observation: {STILL_OPEN_TEXT}")


def _answer(content: Sequence[Block]) -> list[GivenContent]:
    texts = [block for block in content if isinstance(block, TextBlock) and block.text.strip()]
    images = [block for block in content if isinstance(block, ImageBlock | DocumentBlock)]
    if not texts:
        return list(images)
    if all(_part(block.provider_data) == "unparsed" for block in texts):
        return _plain(content)
    step = ReActStep(thought=_thought(content), final_answer=text_of(tuple(texts)).strip())
    own = _own_words(texts[-1].provider_data, step)
    return [TextBlock(text=own or step_text(step)), *images]


def _observation(result: ToolResultBlock) -> list[GivenContent]:
    """Return how a result is shown: its text behind the label, and then its images."""
    text = text_of(result.content)
    images = [block for block in result.content if isinstance(block, ImageBlock | DocumentBlock)]
    if not text.strip():
        text = f"({len(images)} image{'s' * (len(images) > 1)})" if images else "(nothing)"
    failed = f"Error ({result.kind or 'permanent'}): " if result.is_error else ""
    return [TextBlock(text=f"Observation: {failed}{text}"), *images]


def _plain(content: Sequence[Block]) -> list[GivenContent]:
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
