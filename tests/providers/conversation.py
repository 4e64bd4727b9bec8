"""Histories in few words, for tests of what a model is sent."""

from typing import Any

from refold import Message, TextBlock, ToolUseBlock
from refold.events import ImageBlock, ToolResultBlock
from refold.events.core.content import Block, JsonObject, ResultContent, StoredBlock
from refold.events.core.ids import PayloadHash, ToolCallId

IMAGE = ImageBlock(media_type="image/png", data=b"\x89PNG not really")
STORED = StoredBlock(hash=PayloadHash("0" * 64), bytes=9, holds="text")
"""A block whose payload was not loaded."""


def user(*content: Block | str) -> Message:
    return Message("user", tuple(TextBlock(text=block) if isinstance(block, str) else block for block in content))


def assistant(*content: Block | str) -> Message:
    return Message("assistant", user(*content).content)


def call(id: str, name: str = "weather", arguments: JsonObject | None = None, **more: Any) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(id), name=name, input=arguments or {}, **more)


def result(id: str, *content: ResultContent | str, error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(
        tool_use_id=ToolCallId(id),
        content=tuple(TextBlock(text=block) if isinstance(block, str) else block for block in content),
        is_error=error,
        kind="permanent" if error else None,
    )
