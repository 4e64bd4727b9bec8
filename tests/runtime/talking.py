"""A session of a scripted agent, for tests of one conversation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from refold import AgentConfig, AgentRuntime, ScriptedProvider, Session

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
