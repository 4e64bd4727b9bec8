"""What other processes put into the log's inbox, which outlives each life of the simulated process.

The file's own code runs on a database in memory: its rows, their order, keys and outcomes are those of an inbox, and a
row that was taken stays there when the runtime dies. The runtime's own reader performs it.
"""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from refold.actors.kernel.clock import Clock
from refold.agent_runtime import AgentRuntime
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import SessionId, stream_name
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.state import question_id
from refold.remote.owner import InboxReader
from refold.remote.protocol import Done, Inbox
from refold.remote.rows import InboxAnswer, InboxCancel, InboxCommand, InboxDecide, InboxSend, InboxSetAside
from refold.scenarios.monitors.monitor import Monitor, marked
from refold.scenarios.plan.scenario import Post
from refold.scenarios.plan.world import World
from refold.scenarios.world.model import value_for
from refold.stores.sqlite.inbox import InboxFile, InboxSignature

LOG = Path("/simulated.db")

POLL_S = 2.0
"""How often a runtime looks whether the inbox has changed, in virtual seconds."""

ASKS_S = 1.0
"""How often another process looks what has come of what it asked, in virtual seconds."""

T = TypeVar("T")


class _FileInMemory(InboxFile):
    def __init__(self) -> None:
        super().__init__(LOG)
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    def signature(self) -> InboxSignature | None:
        return (0, 0, 0, 0, self._connection.total_changes)

    def close(self) -> None:
        self._connection.close()

    async def _run(
        self, work: Callable[[sqlite3.Connection], T], failed: str, *, writing: bool = False, **limits: float
    ) -> T | None:
        return self._in_transaction(self._connection, work, writing, lambda _: True)


class SimulatedInbox:
    """The inbox of one simulation."""

    def __init__(self, world: World, monitor: Monitor) -> None:
        self._world = world
        self._monitor = monitor
        self._file = _FileInMemory()

    def reader(self, runtime: AgentRuntime) -> InboxReader:
        reader = InboxReader(runtime.context, LOG, file=self._file)
        reader.start(POLL_S)
        return reader

    def close(self) -> None:
        """Let go of its database, once the simulation is over; Python 3.13 and later warn of one that is left open."""
        self._file.close()

    async def asked(self, act: Post, key: str, clock: Clock) -> str:
        """Put what another process asks into the inbox, or find it there, and return what comes of it."""
        inbox = Inbox(LOG, clock, file=self._file)
        command = await self._command(act)
        if command is None:
            return "nothing to ask"
        try:
            entry = await inbox.put(act.session, command, key)
        except CommandRejected:  # In an earlier life of the runtime it asked for something else, which was there then.
            return "asked before"
        while (outcome := await inbox.outcome(entry)) is None:
            await clock.sleep(ASKS_S)
        if isinstance(outcome, Done) and outcome.version:
            stream = stream_name(SESSION_KIND, entry.session)
            found = await self._world.disk.read_stream(stream, after_version=outcome.version - 1, limit=1)
            if not found:
                self._monitor.note("INV5", stream, f"version {outcome.version} is not there, which the inbox says")
        return type(outcome).__name__

    async def _command(self, act: Post) -> InboxCommand | None:
        match act.asks:
            case "send":
                return InboxSend(text=marked(act.session, act.text))
            case "cancel":
                return InboxCancel()
            case "allow" | "deny" | "answer" | "set_aside":
                return await self._about_the_log(act)

    async def _about_the_log(self, act: Post) -> InboxCommand | None:
        """Return what is asked about what the log has: the last call that waits or asks, or the last input."""
        stream = stream_name(SESSION_KIND, SessionId(act.session))
        stored = await self._world.disk.read_stream(stream)
        for event in reversed(SESSION_CODEC.recorded(stored)):
            match event.event:
                case ev.InputQueued() if act.asks == "set_aside":
                    return InboxSetAside(version=event.version, reason="not this")
                case ev.QuestionAsked(call=call, number=number) if act.asks == "answer":
                    value = value_for(event.event.answer_schema, random.Random(self._world.scenario.seed))
                    question = question_id(call, number)
                    self._monitor.effects.results.gives(act.session, question, value)
                    return InboxAnswer(question=question, answer=value)
                case ev.ToolApprovalRequested(call=call) if act.asks in ("allow", "deny"):
                    self._monitor.effects.results.decided(act.session, call, allowed=act.asks == "allow")
                    return InboxDecide(call=call, allowed=act.asks == "allow")
                case _:
                    pass
        return None
