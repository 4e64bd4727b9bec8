"""What tests of crashes share: a log that takes nothing more from one moment on, so that a run can be cut anywhere."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refold import AgentRuntime, PersistenceError, ScriptedProvider, Session
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.stores import EventStore, SQLiteStore
from tests.conformance.failing_store import FailingStore, When
from tests.conformance.sessions import CONFIG, assert_sound

OPENING = 2
"""Appends before the first input: what the agent is (its payloads), and that the runtime started."""


def runtime_on(path: Path, *script: Any, **options: Any) -> AgentRuntime:
    """Make a runtime on a log in a file; when that is checked is for the test to say."""
    settings: dict[str, Any] = {"provider": ScriptedProvider(script)}
    return AgentRuntime(CONFIG, log=path, **settings | options)


async def assert_sound_file(path: Path) -> None:
    """Check a log that no runtime has any more."""
    async with await SQLiteStore.open(path, read_only=True) as store:
        await assert_sound(store)


class CutStore(FailingStore):
    """A log that is gone from one append on, which takes effect or not."""

    def __init__(self, store: EventStore, *, at: int, when: When) -> None:
        super().__init__(store)
        self.off = asyncio.Event()
        self._at = at
        self._when = when

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        if len(self.appends) + 1 >= self._at:
            if len(self.appends) + 1 == self._at and self._when == "after":
                await super().append(batches, payloads)
            self.appends.append(())
            self.off.set()
            raise PersistenceError("the machine is off")
        return await super().append(batches, payloads)


async def sent_until_cut(
    runtime: AgentRuntime, store: CutStore, begun: Callable[[AgentRuntime, Session], object] = lambda *_: None
) -> "asyncio.Task[Any]":
    """Send "go" to the session `s`, and end the runtime once that has ended or its log is gone; return the sending."""
    async with runtime:
        session = await runtime.session("s")
        begun(runtime, session)
        sending = asyncio.create_task(session.send("go", key="k"))
        off = asyncio.create_task(store.off.wait())
        await asyncio.wait([sending, off], return_when=asyncio.FIRST_COMPLETED)
        off.cancel()
    await asyncio.gather(sending, off, return_exceptions=True)
    return sending
