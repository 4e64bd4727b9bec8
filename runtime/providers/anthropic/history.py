"""A history as the Messages API accepts it: merged, balanced, without what is empty or another provider's.

Read `refold.providers.http.history` first. What the API asks for, by its own words in the API reference ("Messages",
"Handle tool calls", "Thinking", platform.claude.com/docs) and in the errors that it gives:

- the first message is a user's; consecutive messages of one role are one message;
- no content is empty, no text is blank, and a final assistant message does not end with white space;
- each `tool_use` is answered in the very next message, by results that come first in it; ids do not repeat; an error
  result says something, and nothing but text;
- each call of a tool that the server runs has its result, unless the server is still at it;
- thinking blocks have their signature, unless a server signs nothing, and no assistant message ends with one.
"""

from collections.abc import Sequence

import msgspec

from refold.events.core.content import (
    OPENING_TEXT,
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    ProviderBlock,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    without_blanks,
)
from refold.events.core.ids import ToolCallId
from refold.providers.http.history import ASSISTANT_IMAGE_TEXT, check_messages, joined, refused, results_of

NAME = "anthropic"
"""The provider's name: the key of `provider_data` and the owner of its `ProviderBlock`s."""

EMPTY_ERROR_TEXT = "The tool failed and said nothing."
"""What an error result says that has no content."""

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""Media types of the images that the API reads ("Vision", platform.claude.com/docs)."""

HOST = "the Messages API"


def sendable(messages: Sequence[Message], *, unsigned: bool = False) -> list[Message]:
    """Return `messages` as the API accepts them, roles alternating; `unsigned` thoughts stay if it is true."""
    check_messages(messages, HOST)
    groups = joined(Message(message.role, _kept(message, unsigned)) for message in messages)
    groups = joined(_balanced(groups))
    groups = joined(_with_paired_server_calls(groups))  # Behind what balancing adds, which may end the last turn.
    groups = joined(Message(group.role, _without_last_thoughts(group)) for group in groups)
    if not groups:
        raise refused(HOST, "no message holds anything that can be sent")
    if groups[-1].role == "assistant":
        if messages[-1].role == "user":
            raise refused(HOST, "the last message holds nothing that can be sent")
        groups[-1] = _without_last_space(groups[-1])
    if groups[0].role == "assistant":
        groups.insert(0, Message("user", (TextBlock(text=OPENING_TEXT),)))
    return groups


def _kept(message: Message, unsigned: bool) -> tuple[Block, ...]:
    kept: list[Block] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            content = _kept_result(block)
            kept.append(block if content == block.content else msgspec.structs.replace(block, content=content))
        elif isinstance(block, ImageBlock | DocumentBlock):
            kept.append(_shown(block) if message.role == "user" else TextBlock(text=ASSISTANT_IMAGE_TEXT))
        elif not _left_out(block, message.role, unsigned):
            kept.append(block)
    return tuple(kept)


def _left_out(block: Block, role: str, unsigned: bool) -> bool:
    match block:
        case TextBlock(text=text):
            return not text.strip()
        case ThinkingBlock(thinking=thinking, signature=signature, provider_data=data):
            foreign = bool(data) and NAME not in (data or {})
            return role == "user" or foreign or not (signature or (unsigned and thinking.strip()))
        case ProviderBlock(provider=provider, data=data):
            return provider != NAME or not data
        case _:
            return False


def _kept_result(result: ToolResultBlock) -> tuple[ResultContent, ...]:
    kept: list[ResultContent] = [
        _shown(part) if isinstance(part, ImageBlock | DocumentBlock) else part
        for part in without_blanks(result.content)
    ]
    if result.is_error and not kept:
        kept.append(TextBlock(text=EMPTY_ERROR_TEXT))
    return tuple(kept)


def _shown(block: ImageBlock | DocumentBlock) -> ImageBlock | DocumentBlock | TextBlock:
    """Return an image or a document that the API reads, or a text that says what could not be given."""
    if block.url is not None:
        return block
    media_type = block.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    if isinstance(block, DocumentBlock):
        if block.data and (media_type == "application/pdf" or media_type.startswith("text/")):
            return msgspec.structs.replace(block, media_type=media_type)
        return TextBlock(text=f"(A document of type {block.media_type[:100]!r} that cannot be shown.)")
    if not block.data or media_type not in IMAGE_TYPES:
        return TextBlock(text=f"(An image of type {block.media_type[:100]!r} that cannot be shown.)")
    return block if media_type == block.media_type else msgspec.structs.replace(block, media_type=media_type)


def _with_paired_server_calls(groups: list[Message]) -> list[Message]:
    """Return `groups` without the server's calls that have no result, and results that have no call before them.

    A call that the server may still be at stays: one in the turn that the request continues.
    """
    if not any(isinstance(block, ProviderBlock) for group in groups for block in group.content):
        return groups
    called, answered = set[str | None](), set[str | None]()
    for block in (block for group in groups for block in group.content):
        called.add(_server_call(block))
        answered |= called & {_server_result(block)}
    last = max((place for place, group in enumerate(groups) if group.role == "assistant"), default=-1)
    continued = all(isinstance(block, ToolResultBlock) for group in groups[last + 1 :] for block in group.content)
    called = set[str | None]((None,))
    paired: list[Message] = []
    for place, group in enumerate(groups):
        kept: list[Block] = []
        for block in group.content:
            call = _server_call(block)
            waits = call not in answered and not (continued and place == last)
            if (call is not None and waits) or _server_result(block) not in called:
                continue
            called.add(call)
            kept.append(block)
        paired.append(Message(group.role, tuple(kept)))
    return paired


def _server_call(block: Block) -> str | None:
    if not isinstance(block, ProviderBlock) or not str(block.data.get("type")).endswith("tool_use"):
        return None
    return str(block.data.get("id"))


def _server_result(block: Block) -> str | None:
    if not isinstance(block, ProviderBlock) or not str(block.data.get("type")).endswith("tool_result"):
        return None
    return str(block.data.get("tool_use_id"))


def _balanced(groups: list[Message]) -> list[Message]:
    """Return `groups`, whose roles alternate, with each call answered in the very next message.

    A result without a call is left out, and an id that was used before is replaced by another one.
    """
    paired = results_of(groups, HOST)
    used: set[str] = {call for _, call in paired}
    seen: set[str] = set()
    balanced: list[Message] = []
    results: list[ToolResultBlock] = []
    for place, group in enumerate(groups):
        others = [block for block in group.content if not isinstance(block, ToolResultBlock)]
        if group.role == "user":
            balanced.append(_answering(results, others))
            results = []
            continue
        content: list[Block] = []
        results = []
        for block in others:
            if isinstance(block, ToolUseBlock):
                result = paired[place, block.id]
                call = ToolCallId(_unused(block.id, used)) if block.id in seen else block.id
                seen.add(call)
                used.add(call)
                results.append(msgspec.structs.replace(result, tool_use_id=call))
                block = msgspec.structs.replace(block, id=call)
            content.append(block)
        balanced.append(Message("assistant", tuple(content)))
    if results:
        balanced.append(_answering(results, []))
    return balanced


def _answering(results: Sequence[ToolResultBlock], others: Sequence[Block]) -> Message:
    """Return a user's message with results first; what an error shows besides text stands behind them."""
    content: list[Block] = []
    shown: list[Block] = []
    for result in results:
        texts = tuple(part for part in result.content if isinstance(part, TextBlock))
        if result.is_error and len(texts) < len(result.content):
            shown.extend(part for part in result.content if not isinstance(part, TextBlock))
            result = msgspec.structs.replace(result, content=texts or (TextBlock(text=EMPTY_ERROR_TEXT),))
        content.append(result)
    return Message("user", (*content, *shown, *others))


def _unused(name: str, used: set[str]) -> str:
    count = 2
    while f"{name}-{count}" in used:
        count += 1
    return f"{name}-{count}"


def is_thought(block: Block) -> bool:
    """Return whether `block` is the model's reasoning, readable or not."""
    if isinstance(block, ProviderBlock):
        return block.data.get("type") in ("thinking", "redacted_thinking")
    return isinstance(block, ThinkingBlock)


def _without_last_thoughts(message: Message) -> tuple[Block, ...]:
    content = list(message.content)
    while message.role == "assistant" and content and is_thought(content[-1]):
        content.pop()
    return tuple(content)


def _without_last_space(message: Message) -> Message:
    last = message.content[-1]
    if not isinstance(last, TextBlock):
        return message
    return Message(message.role, (*message.content[:-1], msgspec.structs.replace(last, text=last.text.rstrip())))
