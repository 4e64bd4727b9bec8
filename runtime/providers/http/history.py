"""A history before a format writes it: neighbours joined, each call with its one result, what cannot be sent refused.

The histories that Refold keeps are balanced already (`refold.events.model.history_rules`), so of them little is
changed. An imported history, or a request made by hand, may be anything: it is repaired where its meaning is certain
and refused where it is not, because a request that a host refuses would be refused again on every later turn.
"""

from collections.abc import Iterable, Sequence

from refold.events.core.content import (
    Block,
    Message,
    Role,
    StoredBlock,
    ToolResultBlock,
    ToolUseBlock,
    error_result,
    tool_uses,
)
from refold.events.core.errors import ProviderError
from refold.events.core.ids import ToolCallId

NO_RESULT_TEXT = "No result of this call is known; it may or may not have run."
"""The result of a call that has none in the history."""

ASSISTANT_IMAGE_TEXT = "(The assistant gave an image.)"
"""Stands for an image in an assistant's message, which no API takes back."""


def refused(host: str, reason: str) -> ProviderError:
    return ProviderError(f"the request cannot be sent to {host}: {reason}", kind="invalid_request")


def check_messages(messages: Sequence[Message], host: str) -> None:
    """Refuse payloads that were not loaded, and a user who calls tools."""
    for place, message in enumerate(messages):
        for block in message.content:
            parts = block.content if isinstance(block, ToolResultBlock) else (block,)
            if any(isinstance(part, StoredBlock) for part in parts):
                raise refused(host, f"message {place} holds a stored block whose payload was not loaded")
            if isinstance(block, ToolUseBlock) and message.role == "user":
                raise refused(host, f"message {place} is a user's and holds a tool call")


def joined(messages: Iterable[Message]) -> list[Message]:
    """Return `messages` without the empty ones, neighbours of one role as one.

    An answer that holds nothing but results says nothing, so it joins what stands before it and is no message itself.
    """
    groups: list[tuple[Role, list[Block]]] = []
    for message in messages:
        only_results = message.role == "assistant" and all(isinstance(b, ToolResultBlock) for b in message.content)
        if groups and (groups[-1][0] == message.role or only_results):
            groups[-1][1].extend(message.content)
        elif message.content and not only_results:
            groups.append((message.role, list(message.content)))
    return [Message(role, tuple(content)) for role, content in groups]


def results_of(groups: Sequence[Message], host: str) -> dict[tuple[int, str], ToolResultBlock]:
    """Return the result of each call, by the place of its group and its id.

    It is the first one behind the call and before its id is used again, wherever that is, or else `NO_RESULT_TEXT`.
    """
    last: dict[str, int] = {}
    calls: list[tuple[int, ToolCallId]] = []
    results: dict[tuple[int, str], ToolResultBlock] = {}
    for place, group in enumerate(groups):
        for call in tool_uses(group.content):
            if last.get(call.id) == place:  # Which result is whose cannot be told.
                raise refused(host, f"two calls of one answer share the id {call.id!r:.100}")
            last[call.id] = place
            calls.append((place, call.id))
        for block in group.content:
            if isinstance(block, ToolResultBlock) and block.tool_use_id in last:
                results.setdefault((last[block.tool_use_id], block.tool_use_id), block)
    for place, call_id in calls:
        results.setdefault((place, call_id), error_result(call_id, "permanent", NO_RESULT_TEXT))
    return results
