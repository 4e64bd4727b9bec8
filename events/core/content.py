"""What messages are made of: blocks and messages, in the words that model providers use.

Blocks are frozen and shared: a block that an event carries is the very object that the folded history holds.
The rule kept here: a block that exists can be written to the log and sent to a model. Text and JSON from
outside pass through `refold.events.core.cleaning` first.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias, TypeGuard, TypeVar, cast

import msgspec

from refold.events.core.ids import PayloadHash, ToolCallId

Json: TypeAlias = object
"""A JSON value: None, bool, int, float, str, a list of JSON values or a dict of them by string."""

JsonObject: TypeAlias = dict[str, Json]
"""A JSON object, such as the arguments of a tool call."""


def is_json_object(value: object) -> TypeGuard[JsonObject]:
    return isinstance(value, dict)


def is_json_array(value: object) -> TypeGuard[list[Json]]:
    return isinstance(value, list)


J = TypeVar("J")


def own_json(value: J) -> J:
    """Return a JSON value in objects and arrays of its own; many times as fast as `copy.deepcopy`."""
    copied: object = value
    if is_json_object(value):
        copied = {name: own_json(item) for name, item in value.items()}
    elif is_json_array(value):
        copied = [own_json(item) for item in value]
    return cast("J", copied)


ErrorKind = Literal[
    "transient",
    "permanent",
    "cancelled",
    "denied",
    "timeout",
    "crashed",
    "truncated",
    "invalid_arguments",
    "not_found",
    "shed",
]
"""Why a tool call has no ordinary result.

`transient` and `permanent` are a tool's own failures. The others are results that Refold makes up: `cancelled`,
`denied` (did not run), `timeout`, `crashed` (outcome unknown), `truncated` (the answer was cut inside the call),
`invalid_arguments`, `not_found` and `shed` (too many calls at once).
"""

CANCELLED_TEXT = "Cancelled by user"
"""The whole result of a call that was open when its run was cancelled, whether or not its body had started."""

CRASHED_TEXT = (
    "Tool execution was interrupted by a crash. Its outcome is unknown: it may have taken full, partial or no "
    "effect. Check before running it again."
)
"""The whole result of a `once` call that a crash interrupted."""

FORKED_TEXT = (
    "The conversation was forked here while this call was at work. Its outcome is not known in this fork: it may have "
    "taken full, partial or no effect. Check before running it again."
)
"""The result of a call that had begun where its session was forked, unless it is pure."""

NOT_RUN_IN_FORK_TEXT = "The conversation was forked here before this call began, so it was not run."
"""The result of a call that had not begun there, where the run does not go on in the fork."""

OPENING_TEXT = "(The conversation begins here.)"
"""What a user says first in a history that begins with an assistant's message."""

CRASHED_IMPORT_TEXT = "Tool execution was interrupted by a crash. Please retry."
"""The whole result of an open call with which an imported history ends; it is never run."""

NO_RESULT_TEXT = "The imported history has no result of this call, so its outcome is unknown."
"""The whole result of a call in the midst of an imported history that has none."""

STILL_OPEN_TEXT = "This call was still open at this point of the log; it has no result yet."
"""Stands for the result of a call that is not answered yet, where a history is shown before that."""


class _Block(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """Settings common to all blocks. None can hold itself, so the garbage collector need not look at long histories."""


class TextBlock(_Block, frozen=True, tag="text"):
    """Plain text."""

    text: str
    provider_data: JsonObject | None = None
    """What providers want back with this block unchanged, such as citations, each under the provider's name."""


class ImageBlock(_Block, frozen=True, tag="image"):
    """An image given by its bytes, or by where a provider may fetch it."""

    media_type: str = ""
    """IANA media type, such as `image/png`; may be empty with a `url`."""
    data: bytes = b""
    """The encoded image file; base64 in JSON."""
    url: str | None = None
    """Instead of `data`: an address that the provider fetches, each time that it is sent. Refold never does."""
    provider_data: JsonObject | None = None
    """As in `TextBlock`, such as `{"openai": {"detail": "low"}}`."""


class DocumentBlock(_Block, frozen=True, tag="document"):
    """A document, such as a PDF, given by its bytes, or by where a provider may fetch it."""

    media_type: str = "application/pdf"
    """IANA media type: providers read `application/pdf`, and texts such as `text/plain`."""
    data: bytes = b""
    """The file; base64 in JSON."""
    url: str | None = None
    """As in `ImageBlock`."""
    name: str = ""
    """Of the file, which a model is told."""
    provider_data: JsonObject | None = None
    """As in `TextBlock`, such as `{"anthropic": {"citations": {"enabled": True}}}`."""


class ThinkingBlock(_Block, frozen=True, tag="thinking"):
    """A model's reasoning, with the provider's signature over it."""

    thinking: str
    signature: str | None = None
    """Opaque; given back to the provider unchanged."""
    provider_data: JsonObject | None = None
    """As in `TextBlock`."""


class ProviderBlock(_Block, frozen=True, kw_only=True, tag="provider"):
    """A block that only one provider understands, such as the call of a tool that it runs itself, or hidden reasoning.

    It goes back to that provider unchanged and in its place, and is left out for every other.
    """

    provider: str
    """The provider's name."""
    data: JsonObject
    """The block as it came, in the provider's own words."""


class StoredBlock(_Block, frozen=True, kw_only=True, tag="stored"):
    """A block too large for an event, kept once as a payload: the JSON of the block that it stands for."""

    hash: PayloadHash
    bytes: int
    """Size of the payload."""
    holds: Literal["text", "image", "thinking", "provider", "document"]
    """Tag of the block that it stands for."""
    shown: str = ""
    """What a model is shown in its place, where the whole is too long for one; empty = the block itself."""


class ToolUseBlock(_Block, frozen=True, kw_only=True, tag="tool_use"):
    """A model asks for a tool to be called."""

    id: ToolCallId
    """Ours, unique in the session; it is what requests to providers carry."""
    name: str
    input: JsonObject
    """The arguments; empty where the model's text for them was not a JSON object."""
    provider_id: str | None = None
    """What the provider called it; may repeat."""
    malformed_input: str | None = None
    """The beginning of what the model gave as arguments, where that was not a JSON object."""
    provider_data: JsonObject | None = None
    """As in `TextBlock`, such as a signature over the call."""


GivenContent: TypeAlias = TextBlock | ImageBlock | DocumentBlock
"""What a caller or a tool may give, before it is recorded."""

ResultContent: TypeAlias = TextBlock | ImageBlock | DocumentBlock | StoredBlock
"""What a tool result may hold."""


class ToolResultBlock(_Block, frozen=True, kw_only=True, tag="tool_result"):
    """The one answer to one tool call."""

    tool_use_id: ToolCallId
    content: tuple[ResultContent, ...]
    is_error: bool = False
    kind: ErrorKind | None = None
    """Set exactly where `is_error` is."""

    @property
    def text(self) -> str:
        """The text of all text blocks, joined; stored blocks are not included."""
        return text_of(self.content)


UserContent: TypeAlias = TextBlock | ImageBlock | DocumentBlock | StoredBlock
"""What a caller may send."""

Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | ProviderBlock
    | StoredBlock
    | ToolUseBlock
    | ToolResultBlock
)
"""Any part of a message."""

AnswerContent: TypeAlias = TextBlock | ImageBlock | ThinkingBlock | ProviderBlock | StoredBlock | ToolUseBlock
"""What a model's answer may hold."""


Role: TypeAlias = Literal["user", "assistant"]
"""Who says a message; results of tools are a user's."""

B = TypeVar("B", bound=Block)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a history."""

    role: Role
    content: tuple[Block, ...]

    @property
    def text(self) -> str:
        """The text of all text blocks, joined; stored blocks are not included."""
        return text_of(self.content)


def text_of(content: tuple[Block, ...]) -> str:
    return "".join(block.text for block in content if type(block) is TextBlock)


def without_blanks(content: Iterable[B]) -> tuple[B, ...]:
    """Return `content` without the texts that hold nothing but white space, which providers refuse."""
    return tuple([block for block in content if not (isinstance(block, TextBlock) and not block.text.strip())])


def texts_of(content: tuple[Block, ...]) -> tuple[TextBlock | StoredBlock, ...]:
    """Return the text blocks of `content`, and what stands for such."""
    return tuple(
        block for block in content if type(block) is TextBlock or (type(block) is StoredBlock and block.holds == "text")
    )


def tool_uses(content: tuple[Block, ...]) -> list[ToolUseBlock]:
    return [block for block in content if type(block) is ToolUseBlock]


def error_result(call: ToolCallId, kind: ErrorKind, text: str) -> ToolResultBlock:
    """Return the result that answers `call` with an error of `kind`."""
    return ToolResultBlock(tool_use_id=call, content=(TextBlock(text=text),), is_error=True, kind=kind)
