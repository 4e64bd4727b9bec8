"""What may be left out of a request that a provider refuses for what it holds, and what stands in its place.

Read `suspects` first: what is tried, in which order. Nothing is left out for good by a guess: a request without it must
have been answered (`refold.actors.agent.refusals`). The rules: the words of the latest input always stay; a note stands
for each block that is left out, so that the places of the others stay the same; a call stays a call, and a result one.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, TypeAlias, TypeVar, cast

import msgspec

from refold.events.core.content import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    ProviderBlock,
    ResultContent,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

REFUSED = ", since the provider refused it"
"""Why something is set aside by itself, as its note says it."""

_INPUT_NOTE, _RESULT_NOTE = "(What stood here was set aside{}.)", "The result was set aside{}."

GUARDED = ", since a guardrail did not let it pass"
"""Why an input is, on which a guardrail tripped."""

INPUT_NOTE = _INPUT_NOTE.format(REFUSED)
"""Stands for what was said."""

RESULT_NOTE = _RESULT_NOTE.format(REFUSED)
"""Stands for what a tool returned."""

ALONE_MAX = 4
"""So many suspects are left out one by one before all are; more are, by quarters."""

_SETTINGS = re.compile(
    r"(temperature|top_[pk]|max_(completion_)?tokens|stop(_sequences)?|model|n|seed|stream(_options)?|tools|tool_choice"
    r"|parallel_tool_calls|functions?(_call)?|response_format|output_(config|format)|reasoning(_effort)?|thinking"
    r"|verbosity|(top_)?logprobs|logit_bias|(presence|frequency)_penalty|user|metadata|service_tier|store|betas"
    r"|container|context_management|modalities)\b"
)
"""What a request of either wire has beside the conversation."""

_CONTENT = re.compile(
    r"\b(images?|pictures?|photos?|pdfs?|documents?|attachments?|files?|media|multi-?modal|base64|download(ed|ing)?)\b",
    re.IGNORECASE,
)

_THINGS = r"(images?|pictures?|documents?|pdfs?|pages?|files?|attachments?)\b"

_TOO_MANY = re.compile(
    rf"too many.{{0,20}} {_THINGS}|many-image|(at most|up to|maximum( number)? of|exceeds?|limit).{{0,30}}\b{_THINGS}",
    re.IGNORECASE,
)

T = TypeVar("T")


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the history in whose place another stands from now on."""

    place: int
    """Among the messages, from 0."""
    stands: Message


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block of a message of the history, or of a result in one."""

    message: int
    """Place of the message, from 0."""
    block: int
    """Place of the block in it, from 0."""
    inside: int | None = None
    """Place in the content of the result which the block is, from 0; None = the whole block."""


class RefusedParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that was answered is without, since the provider had refused one with it."""

    parts: tuple[Part, ...]
    reason: str
    """What the provider had said."""


class GuardrailTrip(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A guardrail that did not let something pass."""

    guardrail: str
    """Its name."""
    on: Literal["input", "output"]
    reason: str = ""

    def __str__(self) -> str:
        words = f"The {self.on} guardrail {self.guardrail!r} tripped"
        return f"{words}: {self.reason}" if self.reason else f"{words}."


Portion: TypeAlias = tuple[Part, ...]
"""What is left out at once."""


def names_setting(field: object) -> bool:
    return isinstance(field, str) and _SETTINGS.match(field) is not None


def speaks_of_content(error: str) -> bool:
    return _CONTENT.search(error) is not None


def one_by_one(parts: Sequence[Part]) -> list[Portion]:
    """Return each of some parts, newest first, and then all of them; of more than a few, quarters."""
    return [_flat(portion) for portion in _portions([(part,) for part in parts])]


def finds_too_many(error: str) -> bool:
    return _TOO_MANY.search(error) is not None


def suspects(messages: Sequence[Message], first_new: int, latest_input: int) -> list[Portion]:
    """Return what may be why a provider finds a request wrong, in the order in which it is left out.

    First what is new and no text: such parts are refused most. Then also other messages that it has not taken yet, such
    as results, what an earlier run could not get past, the model's last answer, and the arguments of its calls. At last
    what was taken before and may be refused now: what the provider fetches anew for each request, such as an image
    whose address has expired; and thoughts and blocks that only the provider understands which was asked then. Never
    the text of the latest input.
    """
    more = more_than_text(messages, first_new)
    unsent = max((place for place in range(first_new) if messages[place].role == "assistant"), default=first_new)
    others = [
        parts
        for place in range(unsent, len(messages))
        if place != latest_input
        for parts in (parts_said(place, messages[place]), calls_with_arguments(place, messages[place]))
        if parts
    ]
    latest = [part for part in more if part.message == latest_input]
    said = [_flat(portion) for portion in _portions(others)]
    if said and latest:
        said.append((*said[-1], *latest))
    old = [(part,) for part in more_than_text(messages) if part.message < first_new and _is_fetched(messages, part)]
    own = tuple(
        Part(place, number)
        for place in range(unsent)
        for number, block in enumerate(messages[place].content)
        if messages[place].role == "assistant" and isinstance(block, ThinkingBlock | ProviderBlock)
    )
    found = [*one_by_one(more), *said, *(_flat(portion) for portion in _portions(old)), *([own] if own else [])]
    return list(dict.fromkeys(found))


def oldest(messages: Sequence[Message], first_new: int) -> list[Portion]:
    """Return what may be why a request holds too many images or documents: the older half of the old ones, or all."""
    old = tuple(part for part in more_than_text(messages) if part.message < first_new)
    return list(dict.fromkeys(portion for portion in (old[: -(-len(old) // 2)], old) if portion))


def doubtful(messages: Sequence[Message], first_new: int, latest_input: int) -> list[Portion]:
    """Return what may be why a server fails that does not say so: what is no text, and no earlier run got past."""
    return one_by_one([part for part in more_than_text(messages, first_new) if part.message < latest_input])


def refused_turn(messages: Sequence[Message], answer: Message | None) -> Portion:
    """Return what the model refused to answer: all that users said since the last answer, and what it began to say."""
    first = len(messages)
    while first > 0 and messages[first - 1].role == "user":
        first -= 1
    whole = [*enumerate(messages[first:], first), *([(len(messages), answer)] if answer is not None else [])]
    return _flat(parts_said(place, message) for place, message in whole)


def largest(messages: Sequence[Message], first_new: int) -> list[Portion]:
    """Return what may be why a request is too large though nothing old is in it: the largest new part, or all of them.

    Only what is no text: a text that is too long is told to who sent it.
    """
    more = more_than_text(messages, first_new)
    if not more:
        return []
    biggest = max(more, key=lambda part: _bytes(_block_at(messages, part)))
    return list(dict.fromkeys(((biggest,), tuple(more))))


def more_than_text(messages: Sequence[Message], first: int = 0) -> list[Part]:
    """Return the parts from a place on that users and tools gave and that are no text, oldest first."""
    found: list[Part] = []
    for place in range(first, len(messages)):
        for number, block in enumerate(messages[place].content if messages[place].role == "user" else ()):
            if isinstance(block, ToolResultBlock):
                inside = [index for index, part in enumerate(block.content) if is_more_than_text(part)]
                found.extend(Part(place, number, index) for index in inside)
            elif is_more_than_text(block):
                found.append(Part(place, number))
    return found


def parts_said(place: int, message: Message) -> Portion:
    """Return all of a message but its calls, as far as no note stands there already."""
    return tuple(
        Part(place, number)
        for number, block in enumerate(message.content)
        if not isinstance(block, ToolUseBlock) and not _is_note(block)
    )


def inputs_unanswered(messages: Sequence[Message], answered: int) -> list[int]:
    """Return the places of what users said and no model has answered yet, as far as it was not set aside."""
    return [
        place
        for place in range(answered, len(messages))
        if messages[place].role == "user"
        and not any(isinstance(block, ToolResultBlock) for block in messages[place].content)
        and parts_said(place, messages[place])
    ]


def calls_with_arguments(place: int, message: Message) -> Portion:
    """Return the calls of a message whose arguments may go; the calls stay."""
    return tuple(
        Part(place, number)
        for number, block in enumerate(message.content)
        if isinstance(block, ToolUseBlock) and (block.input or block.malformed_input)
    )


def by_hand(reason: str) -> str:
    said = reason.strip().rstrip(".")
    return f" by hand: {said}" if said else " by hand"


def is_more_than_text(block: Block | ResultContent) -> bool:
    match block:
        case TextBlock() | ToolUseBlock():
            return False
        case StoredBlock(holds=holds):
            return holds != "text"
        case ToolResultBlock(content=content):
            return any(map(is_more_than_text, content))
        case _:
            return True


def noted(message: Message, place: int, parts: Iterable[Part], why: str = REFUSED) -> Message:
    content = list(message.content)
    for part in parts:
        if part.message != place or part.block >= len(content):
            continue
        block = content[part.block]
        if part.inside is None:
            content[part.block] = _note_for(block, why)
        elif isinstance(block, ToolResultBlock) and part.inside < len(block.content):
            inside = list(block.content)
            inside[part.inside] = cast("ResultContent", _note_for(inside[part.inside], why))
            content[part.block] = msgspec.structs.replace(block, content=tuple(inside))
    return Message(message.role, tuple(content))


def without(messages: Sequence[Message], parts: Sequence[Part]) -> Sequence[Message]:
    changed = list(messages)
    for place in {part.message: None for part in parts if part.message < len(changed)}:
        changed[place] = noted(changed[place], place, parts)
    return changed


def _note_for(block: Block, why: str) -> Block:
    if _is_note(block):
        return block
    if isinstance(block, ToolUseBlock):  # The call stays, since its result does.
        return msgspec.structs.replace(block, input={}, malformed_input=None)
    if isinstance(block, ToolResultBlock):
        note = (TextBlock(text=_RESULT_NOTE.format(why)),)
        return ToolResultBlock(tool_use_id=block.tool_use_id, content=note, is_error=True, kind="permanent")
    return TextBlock(text=_INPUT_NOTE.format(why))


def _is_note(block: Block) -> bool:
    match block:
        case TextBlock(text=text):
            return text.startswith(_INPUT_NOTE.partition("{")[0])
        case ToolResultBlock(content=(TextBlock(text=text),), is_error=True):
            return text.startswith(_RESULT_NOTE.partition("{")[0])
        case _:
            return False


def _portions(items: Sequence[T]) -> list[tuple[T, ...]]:
    """Return what is left out of some suspects, newest first: each, or each quarter of them, and at last all."""
    size = 1 if len(items) <= ALONE_MAX else -(-len(items) // 4)
    pieces = [tuple(items[first : first + size]) for first in range(0, len(items), size)]
    return [*reversed(pieces), tuple(items)] if items else []


def _flat(portions: Iterable[Portion]) -> Portion:
    return tuple(chain.from_iterable(portions))


def _block_at(messages: Sequence[Message], part: Part) -> Block:
    block = messages[part.message].content[part.block]
    return block.content[part.inside] if isinstance(block, ToolResultBlock) and part.inside is not None else block


def _is_fetched(messages: Sequence[Message], part: Part) -> bool:
    """Tell whether a provider looks it up in each request: an address, or what was uploaded to it."""
    block = _block_at(messages, part)
    return isinstance(block, ProviderBlock) or (isinstance(block, ImageBlock | DocumentBlock) and block.url is not None)


def _bytes(block: Block) -> int:
    match block:
        case ImageBlock(data=data) | DocumentBlock(data=data):
            return len(data)
        case StoredBlock(bytes=size):
            return size
        case ProviderBlock(data=data):
            return len(msgspec.json.encode(data))
        case _:
            return 0
