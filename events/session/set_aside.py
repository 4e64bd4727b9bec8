"""What a provider refuses for good is set aside: later requests hold a note in its place, and the session goes on.

Read `refused_content` first. Such a thing is a broken or too large image, or a document: it would make every later
request fail, too. A text is set aside by hand only: providers refuse requests for their settings as well, and then a
question must not be lost. The events keep what was said. The rule: what stands in the place of a message keeps the
history balanced, so a message stays where it was, and a result stays one.
"""

from collections.abc import Container

from refold.events.core.content import (
    Block,
    Message,
    ResultContent,
    StoredBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.session.events import SetAside
from refold.events.session.state import SessionState

INPUT_NOTE = "(What stood here was set aside, since the provider refused it.)"
"""Stands for what was said."""

RESULT_NOTE = "The result was set aside, since the provider refused it."
"""Stands for what a tool returned."""


def refused_content(state: SessionState) -> tuple[SetAside, ...]:
    """Return what stands for that in the history which can be why a provider has just refused the request.

    It took everything up to its last answer, so it is the images and the like of what is new.
    """
    new = [(place, state.messages[place]) for place in range(state.accepted, len(state.messages))]
    return tuple(
        SetAside(place=place, stands=_without(message, whole=False))
        for place, message in new
        if message.role == "user" and any(map(_is_more_than_text, message.content))
    )


def content_at(state: SessionState, messages: Container[Message], calls: Container[str]) -> tuple[SetAside, ...]:
    """Return what stands for messages of the history, and for the results of calls, that a person sets aside."""
    found: list[SetAside] = []
    for place, message in enumerate(state.messages):
        if message in messages:
            found.append(SetAside(place=place, stands=_without(message, whole=True)))
        elif any(block.tool_use_id in calls for block in message.content if isinstance(block, ToolResultBlock)):
            content = tuple(
                _result_note(block) if isinstance(block, ToolResultBlock) and block.tool_use_id in calls else block
                for block in message.content
            )
            found.append(SetAside(place=place, stands=Message(message.role, content)))
    return tuple(one for one in found if one.stands != state.messages[one.place])


def _is_more_than_text(block: Block | ResultContent) -> bool:
    match block:
        case TextBlock() | ToolUseBlock():
            return False
        case StoredBlock(holds=holds):
            return holds != "text"
        case ToolResultBlock(content=content):
            return any(map(_is_more_than_text, content))
        case _:
            return True


def _without(message: Message, *, whole: bool) -> Message:
    """Return a message with notes in place of what is more than text, or of all that was said."""
    kept: list[Block] = []
    noted = False
    for block in message.content:
        if isinstance(block, ToolUseBlock) or not (whole or _is_more_than_text(block)):
            kept.append(block)
        elif isinstance(block, ToolResultBlock):
            kept.append(_result_note(block))
        elif not noted:
            kept.append(TextBlock(text=INPUT_NOTE))
            noted = True
    return Message(message.role, tuple(kept))


def _result_note(block: ToolResultBlock) -> ToolResultBlock:
    return ToolResultBlock(
        tool_use_id=block.tool_use_id, content=(TextBlock(text=RESULT_NOTE),), is_error=True, kind="permanent"
    )
