"""A gate for deploys: whether the open runs of a log can go on with today's agent.

    report = await in_flight("events.db", agent=support)
    report.blocked                                       # () = all of them can

Each session with an open run is folded with today's code. The calls that are not answered must find their tools, and
tools that take their arguments; and a run must be allowed the turn that it wants next. Nothing is run, and nothing is
written.
"""

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from refold.agents.agent import with_subagents
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import SessionId, kind_and_identifier
from refold.events.core.records import StreamHead
from refold.events.model.configuration import configured_for
from refold.events.session.core import SESSION_CODEC, SESSION_KIND, fold
from refold.events.session.events import TerminalEvent
from refold.events.session.state import Run, SessionState, TurnCall
from refold.inspection.log_reading import ReadableLog, Streams, opened
from refold.inspection.session_view import events_until
from refold.replay.current_agent import CurrentAgent
from refold.stores.event_store import EventStore

if TYPE_CHECKING:
    from refold.agents.agent import AnyAgent

REFUSED = frozenset({"deny", "invalid_arguments", "not_found", "broken"})
"""Verdicts by which a call does not run, with any code."""


class BlockedRun(msgspec.Struct, frozen=True, kw_only=True):
    """An open run that cannot go on as it would have."""

    session: str
    run: str | None
    """None = the session cannot be folded."""
    call: str | None
    """That is concerned; None = no single one."""
    tool: str | None
    reason: str
    """Such as `tool charge is gone: call_6_0 would end as not_found`."""


class InFlightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of the open runs of a log."""

    log: str
    runs: int
    """Open ones of the agent and its subagents."""
    blocked: tuple[BlockedRun, ...]
    """In order of the sessions' names."""
    other_agents: dict[str, int]
    """How many open runs there are of other agents, by the agent's name."""


async def in_flight(log: ReadableLog, *, agent: "AnyAgent") -> InFlightReport:
    """Return which open runs of a log cannot go on with an agent; nothing is written.

    Raises:
        LogFormatError: the file is no log.
        PersistenceError: the log cannot be read.
    """
    async with opened(log) as store:
        current = {each.name: CurrentAgent(each, store, None) for each in with_subagents(agent)}
        runs = 0
        blocked: list[BlockedRun] = []
        others: Counter[str] = Counter()
        async for head in Streams(store, prefix=f"{SESSION_KIND}/"):
            session = SessionId(kind_and_identifier(head.stream)[1])
            try:
                if not head.pending and await _has_ended(store, head):
                    continue
                state = fold(await events_until(store, head.stream, head.version))
            except LogFormatError as error:
                blocked.append(
                    BlockedRun(session=session, run=None, call=None, tool=None, reason=f"it cannot be folded: {error}")
                )
                continue
            if state.run is None:
                continue
            if (found := current.get(state.agent or "")) is None:
                others[state.agent or ""] += 1
                continue
            runs += 1
            blocked += _blocked(session, state, state.run, found)
        return InFlightReport(
            log=store.name, runs=runs, blocked=tuple(blocked), other_agents=dict(sorted(others.items()))
        )


async def _has_ended(store: EventStore, head: StreamHead) -> bool:
    """Tell whether a session ends with the end of a run; one that waits in a fork has nothing pending either."""
    last = await store.read_stream(head.stream, after_version=head.version - 1, limit=1)
    return isinstance(SESSION_CODEC.decode(last[0]), TerminalEvent)


def _blocked(session: SessionId, state: SessionState, run: Run, current: CurrentAgent) -> list[BlockedRun]:
    found: list[BlockedRun] = []
    calls = [] if state.turn is None or state.turn.truncated else state.turn.calls
    for call in calls:
        if call.result is None and (reason := _reason(call, current)) is not None:
            found.append(BlockedRun(session=session, run=run.id, call=call.id, tool=call.name, reason=reason))
    allowed = configured_for(current.configuration, run.options).max_turns
    if state.turn is not None and run.turns >= allowed:
        reason = f"max_turns is {allowed} and the run has had {run.turns}: it would fail at the next one"
        found.append(BlockedRun(session=session, run=run.id, call=None, tool=None, reason=reason))
    return found


def _reason(call: TurnCall, current: CurrentAgent) -> str | None:
    """Return why a call would not end as it would have; None = it will, or no code has a say in it."""
    if call.verdict.verdict in REFUSED or call.approval == "denied" or (call.started and call.policy.effect == "once"):
        return None
    if current.tools.get(call.name) is None:
        kind = "crashed, its outcome unknown" if call.started else "not_found"
        return f"tool {call.name} is gone: {call.id} would end as {kind}"
    _, verdict = current.tools.check(call.name, call.input)
    if verdict.verdict == "allow":
        return None
    why = verdict.reason.partition(": ")[2] or verdict.reason
    return f"tool {call.name} does not take the arguments of {call.id} any more: {why}"
