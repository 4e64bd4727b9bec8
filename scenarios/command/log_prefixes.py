"""The prefixes of a recorded log: what would have been on the disk, had the process died after one of its commits.

The rule: a prefix is one that there has been. A session is opened and configured in the append of the message that
needs it, so no prefix ends after that; and batches of one stream that were recorded at the same moment may have been
one append, so none ends between them either.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from refold.actors.agent.subsession import parent_in
from refold.events.core.codec import tag_of
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash, SessionId, kind_and_identifier, stream_name
from refold.events.core.records import StoredEvent, batch_of
from refold.events.model.configuration import AgentConfiguration, ToolSpec
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import ToolCallStarted
from refold.events.session.invariants import SessionChecker
from refold.events.session.state import SessionState, find_call
from refold.scenarios.plan.world import Beginning, Body
from refold.stores.event_store import WholeLog
from refold.stores.jsonl.export import stored_batches
from refold.stores.jsonl.importing import open_to_read
from refold.stores.memory import InMemoryStore
from refold.stores.past_state import last_position

NEVER_LAST = ("session.opened.v1", "session.agent_configured.v1")
"""What is always followed by another batch of its append."""

LATER_US = 1_000_000
"""So long after the last event the next process starts, in microseconds."""


class RecordedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A whole log, as it was recorded."""

    name: str
    batches: tuple[tuple[StoredEvent, ...], ...]
    """In order of position."""
    payloads: dict[PayloadHash, bytes]

    def boundaries(self) -> list[int]:
        """Return after how many batches each prefix ends that there has been, in order."""
        inner = [
            number
            for number, (before, after) in enumerate(pairwise(self.batches), start=1)
            if (before[0].stream, before[0].at) != (after[0].stream, after[0].at)
            and tag_of(before[-1].data) not in NEVER_LAST
        ]
        return [*inner, *([len(self.batches)] if self.batches else [])]


async def recorded_log(log: WholeLog) -> RecordedLog:
    batches = [tuple(batch) async for batch in stored_batches(log, until_position=await last_position(log))]
    payloads: dict[PayloadHash, bytes] = {}
    after = ""
    while page := await log.list_payloads(after=after, limit=100):
        payloads.update(await log.read_payloads([listed.hash for listed in page]))
        after = page[-1].hash
    return RecordedLog(name=log.name, batches=tuple(batches), payloads=payloads)


async def read_recorded_log(path: Path) -> RecordedLog:
    async with open_to_read(path) as store:
        return await recorded_log(store)


class Prefix:
    """A prefix of a recorded log, which grows batch by batch."""

    def __init__(self, log: RecordedLog, *, with_children: bool = True) -> None:
        self._log = log
        self._left_out: set[str] = set()
        """Streams of sessions of subagents, if it is to have none."""
        if not with_children:
            firsts = (batch[0] for batch in log.batches if batch[0].version == 1)
            self._left_out = {first.stream for first in firsts if parent_in(first) is not None}
        self.length = 0
        """Batches in it."""
        self.at_us = 0
        """The latest time in it."""
        self.sessions: dict[SessionId, SessionState] = {}
        """What its events add up to."""
        self._checkers: dict[str, SessionChecker] = {}
        self._begun: list[Body] = []
        self._versions: dict[str, int] = {}
        self.configuration: AgentConfiguration | None = None
        """The one that was recorded last."""
        self.session: SessionId | None = None
        """Whose batch is the last one of all batches of sessions."""

    def grow(self, length: int) -> None:
        for batch in self._log.batches[self.length : length]:
            if batch[0].stream in self._left_out:
                continue
            self.at_us = max(self.at_us, batch[0].at)
            self._versions[batch[0].stream] = batch[-1].version
            kind, identifier = kind_and_identifier(batch[0].stream)
            if kind == SESSION_KIND:
                self._add(SessionId(identifier), batch)
        self.length = length

    def of_agents(self, names: Collection[str]) -> dict[SessionId, SessionState]:
        """Return the sessions that an agent of these names goes on with, in order of their first event."""
        return {
            session: state
            for session, state in self.sessions.items()
            if state.configuration is None or state.configuration.agent in names
        }

    async def beginning(self, sessions: Collection[SessionId]) -> Beginning:
        """Return what a process finds that goes on with some of the sessions; the others are left out."""
        others = {stream_name(SESSION_KIND, session) for session in self.sessions if session not in sessions}
        without = self._left_out | others
        store = InMemoryStore()
        await store.append([], self._log.payloads)
        for batch in self._log.batches[: self.length]:
            if batch[0].stream not in without:
                await store.append([batch_of(batch)])
        return Beginning(
            log=store,
            at_us=self.at_us + LATER_US,
            versions={stream: version for stream, version in self._versions.items() if stream not in others},
            begun=tuple(body for body in self._begun if body.session in sessions),
        )

    def _add(self, session: SessionId, batch: Sequence[StoredEvent]) -> None:
        stream = batch[0].stream
        checker = self._checkers.setdefault(stream, SessionChecker(stream))
        for stored in batch:
            event = SESSION_CODEC.decode(stored)
            checker.observe(event)
            state = checker.state
            if state is None:
                raise LogFormatError(f"{stream}@{stored.version} contradicts what is before; `refold check` tells more")
            self.sessions[session] = state
            if isinstance(event, ToolCallStarted):
                call = find_call(state, event.call)
                assert call is not None
                tool = ToolSpec(
                    name=call.name, description="", input_schema={}, tier=call.policy.tier, effect=call.policy.effect
                )
                self._begun.append(Body(session=session, call=event.call, tool=tool, running=False))
        self.session = session
        state = self.sessions[session]
        if state.configuration is not None:
            self.configuration = state.configuration
