"""What the tests of this folder share: a runtime for stores on its log, and what a sound log is."""

from pathlib import Path
from typing import Any

from refold import AgentConfig, AgentRuntime, ScriptedProvider
from refold.inspection.check import check_log
from refold.replay import replay


def runtime_of(log: Any = ":memory:", **options: Any) -> AgentRuntime:
    return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log=log, inbox_poll_s=0, **options)


async def assert_sound(log: Path) -> None:
    assert (await check_log(log)).problems == ()
    assert (await replay(log)).divergences == ()
