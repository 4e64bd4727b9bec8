"""A log with an inbox beside it, and the runtime that owns both."""

from pathlib import Path
from typing import Any

import pytest

import refold
from refold.actors import SystemClock
from refold.remote.protocol import Inbox


@refold.tool(tier="confirm")
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def runtime_of(log: Any, *script: Any, name: str = "agent", **options: Any) -> refold.AgentRuntime:
    config, provider = refold.AgentConfig(model="m"), refold.ScriptedProvider(script or [refold.say("Said.")] * 90)
    options = {"inbox_poll_s": 0.01, **options}
    return refold.AgentRuntime(config, provider=provider, tools=[pay], log=log, name=name, **options)


async def begun(log: Path, *sessions: str) -> Inbox:
    """Make a log whose sessions have a run that ended, and return its inbox."""
    async with runtime_of(log) as runtime:
        for session in sessions:
            await (await runtime.session(session)).send("hello")
    return Inbox(log, SystemClock())
