"""A session of a scripted agent, for tests of one conversation, and events without any."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from refold import AgentConfig, AgentRuntime, ScriptedProvider, Session
from refold.events import RecordedEvent
from refold.events.core.ids import EventRef, stream_name
from refold.events.session.events import SessionEvent

CONFIG = AgentConfig(model="test-model", system_prompt="Be brief.")


def scripted(*script: Any, config: AgentConfig = CONFIG, **options: Any) -> AgentRuntime:
    """Return a runtime whose model gives these answers."""
    return AgentRuntime(config, provider=ScriptedProvider(script), **options)


@asynccontextmanager
async def talking(
    *script: Any, config: AgentConfig = CONFIG, **options: Any
) -> AsyncIterator[tuple[Session, AgentRuntime]]:
    """Open a runtime whose model gives these answers; give its session `s` and the runtime."""
    async with scripted(*script, config=config, **options) as runtime:
        yield await runtime.session("s"), runtime


def recorded_event(event: SessionEvent, session: str = "alice", version: int = 1) -> RecordedEvent[SessionEvent]:
    """Return an event as a log has it that holds only this session."""
    return RecordedEvent(
        stream=stream_name("session", session),
        version=version,
        position=version,
        time=0,
        event=event,
        batch=version,
        correlation=EventRef(f"session/{session}@1"),
        causation=None,
    )
