"""Events of one run, said in short, and what the golden logs hold."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

from refold.events.core.content import AnswerContent, ErrorKind, TextBlock, ToolUseBlock
from refold.events.core.ids import RunId, ToolCallId
from refold.events.core.records import StoredEvent
from refold.events.model.messages import RequestReference
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import ModelResponded, SessionEvent, ToolCallCompleted, ToolCallFailed
from refold.stores import SQLiteStore

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.db"))
RUN = RunId("run_3")
SECOND = 1_000_000


@cache
def events_of(golden: Path) -> tuple[StoredEvent, ...]:
    """Return all that a log holds."""

    async def read() -> list[StoredEvent]:
        async with await SQLiteStore.open(golden, read_only=True) as store:
            return await store.read_all(limit=100_000)

    return tuple(asyncio.run(read()))


def sessions_of(golden: Path) -> dict[str, list[SessionEvent]]:
    """Return the events of each session of a log, by stream."""
    sessions: dict[str, list[SessionEvent]] = {}
    for item in events_of(golden):
        if item.stream.startswith("session/"):
            sessions.setdefault(item.stream, []).append(SESSION_CODEC.decode(item))
    return sessions


def text(words: str) -> TextBlock:
    return TextBlock(text=words)


def call(name: str, number: int = 0, **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(f"call_6_{number}"), name=name, input=arguments)


def answered(*content: AnswerContent, turn: int = 1, at: int = 0, **more: Any) -> ModelResponded:
    """Return an answer that came so many seconds after the beginning."""
    given: dict[str, Any] = {"request": RequestReference(configured=2, messages=1), **more}
    return ModelResponded(run=RUN, turn=turn, content=content, stop_reason="end_turn", at=at * SECOND, **given)


def returned(words: str = "ok", number: int = 0, at: int = 0, ends_run: bool = False) -> ToolCallCompleted:
    call = ToolCallId(f"call_6_{number}")
    return ToolCallCompleted(call=call, content=(text(words),), ends_run=ends_run, at=at * SECOND)


def failed(kind: ErrorKind, words: str = "no", number: int = 0, at: int = 0) -> ToolCallFailed:
    return ToolCallFailed(call=ToolCallId(f"call_6_{number}"), kind=kind, content=(text(words),), at=at * SECOND)
