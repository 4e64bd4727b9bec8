"""Metrics as a projection: figures folded from the events of all streams of a log.

Start at `count`, which takes one stored event. The rules: every figure follows from events alone, so that those of any
past moment can be had again; an event changes figures by what its own stream says, so that the order in which streams
follow one another makes no difference; and what this version cannot read is counted by its name and hinders nothing.
Memory is taken for open runs and open calls, and for sessions of agents other than the log's first one.

Money is counted in whole billionths of the currency of the prices, each event's by itself, so a sum is the same in any
order. A call costs what the prices of the configuration in force said then; one whose model has no price there costs
nothing, and is counted as such.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import msgspec

from refold.events.core.codec import EventCodec, tag_of
from refold.events.core.content import Block, tool_uses
from refold.events.core.errors import LogFormatError
from refold.events.core.event import Event
from refold.events.core.ids import StreamName, kind_and_identifier
from refold.events.core.records import StoredEvent
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, ActorFailed, RuntimeClosed, RuntimeStarted
from refold.events.kinds.tool import TOOL_CODEC, TOOL_KIND, ToolCallAbandoned
from refold.events.model.spending import Price, Usage, cost_of, price_of, total_tokens
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.views.metrics_snapshot import (
    NANO,
    NOT_FOUND,
    AgentCounts,
    LiveCounts,
    MetricsSnapshot,
    ModelCounts,
    ToolCounts,
)

CUT_SHORT_MAX = 10_000
"""Of at most so many sessions, the latest, it is remembered that half an answer may follow."""

SPENDING = frozenset({*Usage.__struct_fields__, "cost_nano"})
"""What is counted of an event for the model is also counted for the agent and for all."""

DAMAGED = "(damaged)"
"""Stands for the type of an event in which none can be read."""


UNKNOWN_MODEL = "(unknown)"
"""Stands for the model of a call of which the log does not say which configuration was in force."""

NANO_MAX = 10**15
"""No single event is taken to cost more, so that sums stay integers that every reader of JSON knows."""


class Rates(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a configuration says of models and money."""

    model: str
    prices: dict[str, Price] = {}


class SessionInProgress(msgspec.Struct):
    """What must be remembered of a session in which something goes on."""

    run: bool = False
    """Whether a run is open."""
    calls: dict[str, str] = {}
    """The tool of each call that has no result yet."""
    fingerprint: str = ""
    """Of the configuration in force, while a run is open; behind it the model, where the run has another one."""
    model: str = ""
    """That of the open run; empty = the agent's."""
    asks: bool = False
    """Whether a model call is wanted."""


class MetricsState(msgspec.Struct):
    """Figures up to one position, and what is needed to count on from there."""

    position: int = 0
    at: int = 0
    totals: dict[str, int] = {}
    """By the names of `MetricsSnapshot`."""
    tools: dict[str, dict[str, int]] = {}
    """Of each tool, by the names of `ToolCounts`."""
    failure_kinds: dict[str, dict[str, int]] = {}
    """Of each tool, by error kind."""
    agents: dict[str, dict[str, int]] = {}
    """Of each agent, by the names of `AgentCounts`."""
    run_failure_kinds: dict[str, int] = {}
    events: dict[str, int] = {}
    unreadable_events: dict[str, int] = {}
    open_sessions: dict[str, SessionInProgress] = {}
    first_agent: str = ""
    other_agents: dict[str, str] = {}
    """The agent of each session that is not one of the first agent."""
    models: dict[str, dict[str, int]] = {}
    """Of each model, by the names of `ModelCounts`."""
    rates: dict[str, Rates] = {}
    """By the fingerprint of the configuration, as in `SessionInProgress`."""
    cut_short: dict[str, str] = {}
    """Of sessions whose last run ended while a model call was wanted, that fingerprint: half an answer may follow."""


def count(state: MetricsState, stored: StoredEvent) -> MetricsState:
    """Count one stored event, the next of its stream, into `state`, which is changed and returned."""
    state.position, state.at = stored.position, stored.at
    codec = _CODECS.get(stored.stream.partition("/")[0])
    if codec is None:
        _add(state.events, tag_of(stored.data) or DAMAGED)
        return state
    try:
        event = codec.decode(stored)
    except LogFormatError:
        tag = tag_of(stored.data) or DAMAGED
        _add(state.events, tag)
        _add(state.unreadable_events, tag)
        return state
    return evolve(state, stored.stream, event)


def count_all(state: MetricsState, stored: Iterable[StoredEvent]) -> MetricsState:
    for event in stored:
        count(state, event)
    return state


def evolve(state: MetricsState, stream: StreamName, event: Event) -> MetricsState:
    kind = type(event)
    _add(state.events, str(kind.__struct_config__.tag))
    folder = FOLDERS.get(kind)
    if folder is not None:
        folder(state, stream, event)
    return state


def snapshot(state: MetricsState, live: LiveCounts | None = None) -> MetricsSnapshot:
    """Return the figures, which share nothing with `state`, and those of a runtime that are not in its log."""
    totals: dict[str, Any] = dict(state.totals)
    return MetricsSnapshot(
        position=state.position,
        at=state.at,
        active_sessions=sum(session.run for session in state.open_sessions.values()),
        run_failure_kinds=_in_order(state.run_failure_kinds),
        tools={
            name: ToolCounts(**figures, failure_kinds=_in_order(state.failure_kinds.get(name, {})))
            for name, figures in _in_order(state.tools).items()
        },
        agents={name: AgentCounts(**figures) for name, figures in _in_order(state.agents).items()},
        models={name: ModelCounts(**figures) for name, figures in _in_order(state.models).items()},
        events=_in_order(state.events),
        unreadable_events=_in_order(state.unreadable_events),
        live=live,
        **totals,
    )


def _in_order(figures: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(figures.items()))


def _add(figures: dict[str, int], name: str, number: int = 1) -> None:
    figures[name] = figures.get(name, 0) + number


def _add_tool(state: MetricsState, tool: str, figure: str) -> None:
    _add(state.tools.setdefault(tool, {}), figure)


def _add_agent(state: MetricsState, stream: str, figure: str, number: int = 1) -> None:
    agent = state.other_agents.get(stream, state.first_agent)
    _add(state.agents.setdefault(agent, {}), figure, number)


def _add_both(state: MetricsState, stream: str, figure: str, number: int = 1) -> None:
    """Count for all agents and for that of the session."""
    _add(state.totals, figure, number)
    _add_agent(state, stream, figure, number)


def _open(state: MetricsState, stream: str) -> SessionInProgress:
    session = state.open_sessions.get(stream)
    if session is None:
        session = state.open_sessions[stream] = SessionInProgress()
    return session


def _forget_if_idle(state: MetricsState, stream: str) -> None:
    session = state.open_sessions.get(stream)
    if session is not None and not session.run and not session.calls:
        del state.open_sessions[stream]


def _spend(state: MetricsState, stream: str, event: Event) -> None:
    """Count what an event says of a model call, for the model, for the agent and for all."""
    session = state.open_sessions.get(stream)
    fingerprint = session.fingerprint if session is not None else ""
    counted = spent(event, state.rates.get(fingerprint or state.cut_short.get(stream, "")))
    if counted is None:
        return
    figures = state.models.setdefault(counted.model, {})
    for figure, number in counted.figures.items():
        _add(figures, figure, number)
        if figure in SPENDING:
            _add_both(state, stream, figure, number)


class ModelSpending(msgspec.Struct, frozen=True):
    """What one event adds."""

    model: str
    figures: dict[str, int]
    """By the names of `ModelCounts`."""


def spent(event: Event, rates: Rates | None) -> ModelSpending | None:
    """Return what an event of a session adds to the figures of which model; None = nothing to any."""
    asked = rates.model if rates is not None else UNKNOWN_MODEL
    match event:
        case ev.ModelResponded(model=model, usage=usage):
            return _counted(model, asked, {"calls": 1, "answers": 1}, usage, rates)
        case ev.ContextPrepared(model=model, usage=usage):
            return _counted(model, asked, {"calls": 1, "summaries": 1}, usage, rates)
        case ev.ModelInterrupted(usage=usage):
            return _counted(None, asked, {"interruptions": 1}, usage, rates)
        case ev.ModelFailed():
            return ModelSpending(asked, {"calls": 1, "failures": 1})
        case ev.RetryScheduled(call=None):
            return ModelSpending(asked, {"retries": 1})
        case _:
            return None


def nano_cost(usage: Usage, price: Price) -> int:
    """Return what tokens cost, in billionths, rounded to the nearest.

    Example:
        >>> nano_cost(Usage(input_tokens=1_000, output_tokens=100), Price(input=3, output=15))
        4500000
    """
    return round(min(cost_of(usage, price) * NANO, NANO_MAX))


def _counted(
    answered: str | None, asked: str, figures: Mapping[str, int], usage: Usage, rates: Rates | None
) -> ModelSpending:
    """Return figures with the tokens and what they cost: by the price of the model that answered, else of the asked."""
    counted = dict(figures)
    if total_tokens(usage):
        counted |= {name: tokens for name in usage.__struct_fields__ if (tokens := getattr(usage, name))}
        prices = rates.prices if rates is not None else {}
        price = (price_of(answered, prices) if answered is not None else None) or price_of(asked, prices)
        if price is None:
            counted["unpriced"] = 1
        elif cost := nano_cost(usage, price):
            counted["cost_nano"] = cost
    return ModelSpending(answered or asked, counted)


def _model_failed(state: MetricsState, stream: str, event: ev.ModelFailed) -> None:
    _add(state.totals, "model_failures")
    _open(state, stream).asks = False
    _spend(state, stream, event)
    _forget_if_idle(state, stream)


def _retry_scheduled(state: MetricsState, stream: str, event: ev.RetryScheduled) -> None:
    if event.call is not None:
        _add_tool(state, _open(state, stream).calls.get(event.call, NOT_FOUND), "retries")
        return
    _add(state.totals, "model_retries")
    _spend(state, stream, event)


def _model_requested(state: MetricsState, stream: str, event: ev.ModelRequested) -> None:
    _add(state.totals, "model_requests")
    _open(state, stream).asks = True


# Sessions


def _session_opened(state: MetricsState, stream: str, event: ev.SessionOpened | ev.SessionForked) -> None:
    state.first_agent = state.first_agent or event.agent
    if event.agent != state.first_agent:
        state.other_agents[stream] = event.agent
    _add_both(state, stream, "sessions")


def _session_forked(state: MetricsState, stream: str, event: ev.SessionForked) -> None:
    """Count a session whose first events are those of another one, where they have been counted."""
    _session_opened(state, stream, event)
    if event.keeps_run:
        _open(state, stream).model = (event.options.model if event.options is not None else None) or ""
    else:
        state.open_sessions.pop(stream, None)  # Of a fork by itself, whose events all are given.


def _history_imported(state: MetricsState, stream: str, event: ev.HistoryImported) -> None:
    last = event.messages[-1] if event.messages else None
    if last is not None and last.role == "assistant":
        _propose(state, stream, last.content, frozenset[str]())


def _agent_configured(state: MetricsState, stream: str, event: ev.AgentConfigured) -> None:
    state.rates[event.configuration.fingerprint] = Rates(event.configuration.model, event.configuration.prices)
    if (session := state.open_sessions.get(stream)) is not None and session.run:
        _configure(state, session, event.configuration.fingerprint)


def _configure(state: MetricsState, session: SessionInProgress, fingerprint: str) -> None:
    session.fingerprint = f"{fingerprint} {session.model}".rstrip()
    if session.model and (rates := state.rates.get(fingerprint)) is not None:
        state.rates[session.fingerprint] = Rates(session.model, rates.prices)


def _run_started(state: MetricsState, stream: str, event: ev.RunStarted) -> None:
    _add_both(state, stream, "runs_started")
    session = _open(state, stream)
    session.run, session.model, session.asks = True, event.model or "", False
    _configure(state, session, event.fingerprint)
    state.cut_short.pop(stream, None)


def _run_resumed(state: MetricsState, stream: str, event: ev.RunResumed) -> None:
    _add(state.totals, "runs_resumed")
    session = _open(state, stream)
    session.run = True  # In a fork the run began in another stream.
    _configure(state, session, event.fingerprint)


def _run_ended(state: MetricsState, stream: str, event: ev.RunCompleted | ev.RunFailed | ev.RunCancelled) -> None:
    _add_both(state, stream, _ENDINGS[type(event)])
    if isinstance(event, ev.RunFailed):
        _add(state.run_failure_kinds, event.kind)
    session = _open(state, stream)
    if session.asks:
        state.cut_short[stream] = session.fingerprint
        if len(state.cut_short) > CUT_SHORT_MAX:
            del state.cut_short[next(iter(state.cut_short))]
    session.run, session.fingerprint, session.model, session.asks = False, "", "", False
    _forget_if_idle(state, stream)


def _model_responded(state: MetricsState, stream: str, event: ev.ModelResponded) -> None:
    _add_both(state, stream, "steps")
    _open(state, stream).asks = False
    _spend(state, stream, event)
    _forget_if_idle(state, stream)
    if recalls := len(event.request.recalled):
        _add(state.totals, "recalls", recalls)
    uses = tool_uses(event.content)
    if uses:
        unknown = {use.id for use, given in zip(uses, event.verdicts, strict=False) if given.verdict == "not_found"}
        _propose(state, stream, event.content, unknown)


def _propose(state: MetricsState, stream: str, content: tuple[Block, ...], unknown: Container[str]) -> None:
    for use in tool_uses(content):
        tool = NOT_FOUND if use.id in unknown else use.name
        _open(state, stream).calls[use.id] = tool
        _add_tool(state, tool, "calls")
        _add_agent(state, stream, "tool_calls")


def _model_interrupted(state: MetricsState, stream: str, event: ev.ModelInterrupted) -> None:
    _add(state.totals, "model_interruptions")
    _spend(state, stream, event)


def _context_prepared(state: MetricsState, stream: str, event: ev.ContextPrepared) -> None:
    _add(state.totals, "compactions")
    _spend(state, stream, event)


def _approval_decided(state: MetricsState, stream: str, event: ev.ToolApprovalDecided) -> None:
    _add(state.totals, "approvals_allowed" if event.allowed else "approvals_denied")


def _call_started(state: MetricsState, stream: str, event: ev.ToolCallStarted) -> None:
    _add_tool(state, _open(state, stream).calls.get(event.call, NOT_FOUND), "started")


def _call_completed(state: MetricsState, stream: str, event: ev.ToolCallCompleted) -> None:
    _add_tool(state, _open(state, stream).calls.pop(event.call, NOT_FOUND), "successes")
    _forget_if_idle(state, stream)


def _call_failed(state: MetricsState, stream: str, event: ev.ToolCallFailed) -> None:
    tool = _open(state, stream).calls.pop(event.call, NOT_FOUND)
    _add_tool(state, tool, "failures")
    _add(state.failure_kinds.setdefault(tool, {}), event.kind)
    _add_agent(state, stream, "tool_failures")
    _forget_if_idle(state, stream)


# Tools and the runtime


def _call_abandoned(state: MetricsState, stream: str, event: ToolCallAbandoned) -> None:
    _add_tool(state, kind_and_identifier(stream)[1], "abandoned")


def _actor_failed(state: MetricsState, stream: str, event: ActorFailed) -> None:
    _add(state.totals, "actor_failures")
    if event.stopped:
        _add(state.totals, "actors_stopped")


def _counted_as(figure: str) -> Callable[[MetricsState, str, Event], None]:
    def fold(state: MetricsState, stream: str, event: Event) -> None:
        _add(state.totals, figure)

    return fold


_ENDINGS: Mapping[type, str] = {
    ev.RunCompleted: "runs_completed",
    ev.RunFailed: "runs_failed",
    ev.RunCancelled: "runs_cancelled",
}

FOLDERS: Mapping[type, Callable[[MetricsState, Any, Any], None]] = {
    ev.SessionOpened: _session_opened,
    ev.SessionForked: _session_forked,
    ev.HistoryImported: _history_imported,
    ev.InputQueued: _counted_as("inputs"),
    ev.RunStarted: _run_started,
    ev.AgentConfigured: _agent_configured,
    ev.RunResumed: _run_resumed,
    ev.RunParked: _counted_as("runs_parked"),
    ev.RunCompleted: _run_ended,
    ev.RunFailed: _run_ended,
    ev.RunCancelled: _run_ended,
    ev.ContextPrepared: _context_prepared,
    ev.ModelRequested: _model_requested,
    ev.ModelResponded: _model_responded,
    ev.ModelInterrupted: _model_interrupted,
    ev.ModelFailed: _model_failed,
    ev.RetryScheduled: _retry_scheduled,
    ev.ToolApprovalRequested: _counted_as("approvals_requested"),
    ev.ToolApprovalDecided: _approval_decided,
    ev.ToolCallStarted: _call_started,
    ev.ToolCallCompleted: _call_completed,
    ev.ToolCallFailed: _call_failed,
    ev.ToolResultLate: _counted_as("late_results"),
    ToolCallAbandoned: _call_abandoned,
    RuntimeStarted: _counted_as("runtimes_started"),
    RuntimeClosed: _counted_as("runtimes_closed"),
    ActorFailed: _actor_failed,
}
"""What each event changes; those that are not here are counted by their type only."""

_CODECS: Mapping[str, EventCodec[Any]] = {
    SESSION_KIND: SESSION_CODEC,
    TOOL_KIND: TOOL_CODEC,
    kind_and_identifier(RUNTIME_STREAM)[0]: RUNTIME_CODEC,
}
"""What the streams are read with of which more is counted than the types of their events."""
