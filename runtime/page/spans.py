"""A session on a time line: when its runs, model calls, tools, waits and standstills began and ended.

A bar is drawn from when an effect is pending until it is no more, so that it holds for every kind of work, also over
crashes. Pure: start at `Spans`.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from refold.events.core.pure_core import Effect
from refold.events.model.messages import Usage
from refold.events.session import events as ev
from refold.events.session.react import AskPerson, CallModel, RunTool
from refold.events.session.state import SessionState, configuration_of_run

Lane: TypeAlias = Literal["run", "model", "tool", "person", "retry", "down", "mark"]
"""`person`: a call or a run waits for one. `down`: no runtime had the open run. `mark`: a moment."""


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One bar, or one moment, of a time line."""

    lane: Lane
    name: str = ""
    """Of the tool, the model or the run, or what a mark is."""
    begun: int
    """Version of the event that began it."""
    begun_at: int
    """Microseconds since the epoch, UTC."""
    ended: int = 0
    """Version of the event that ended it; 0 = it has not ended."""
    ended_at: int = 0
    outcome: str = ""
    """`ok`, `allowed`, how a run ended, or the kind of a failure."""
    call: str = ""
    """The tool call that it is about."""
    usage: Usage | None = None
    """Of a model call that was answered; so is the next."""
    cost: float = 0.0


class Spans:
    """The spans of a session, event by event."""

    def __init__(self) -> None:
        self.ended: list[Span] = []
        """In the order in which they ended."""
        self._open: dict[str, Span] = {}
        self._at = 0
        self._cost = 0.0

    @property
    def open(self) -> list[Span]:
        return list(self._open.values())

    def add(self, event: ev.SessionEvent, state: SessionState, effects: Sequence[Effect]) -> None:
        """Take the next event, given the state after it and the effects that are pending in that."""
        version, at = state.version, event.at
        run = f"run:{state.run.id}" if state.run is not None else ""
        wanted = {effect.key: effect for effect in effects}
        for key in [key for key in self._open if key not in wanted and key != run]:
            span = self._open.pop(key)
            done: dict[str, Any] = {"ended": version, "ended_at": at, "outcome": _outcome(span, event)}
            if span.lane == "model" and isinstance(event, ev.ModelResponded):
                done |= {"usage": event.usage, "cost": state.cost - self._cost, "name": event.model or span.name}
            self.ended.append(msgspec.structs.replace(span, **done))
        if isinstance(event, ev.RunResumed) and not event.asked:
            resumed = Span(lane="down", begun=version - 1, begun_at=self._at or at, ended=version, ended_at=at)
            self.ended.append(resumed)
        if (what := _MARKS.get(type(event))) is not None:
            self.ended.append(Span(lane="mark", name=what, begun=version, begun_at=at, ended=version, ended_at=at))
        if state.run is not None and run not in self._open:
            self._open[run] = Span(lane="run", name=state.run.id, begun=version, begun_at=at)
        for key, effect in wanted.items():
            if key not in self._open and (begun := _begun(effect, state, at)) is not None:
                self._open[key] = begun
        self._at, self._cost = at, state.cost


_MARKS: dict[type[ev.SessionEvent], str] = {
    ev.InputQueued: "input",
    ev.SessionForked: "fork",
    ev.HistoryCleared: "history cleared",
    ev.HistoryRewound: "rewound",
    ev.ContextPrepared: "compaction",
    ev.RunParked: "parked",
    ev.CancelRequested: "cancel",
    ev.GuardrailTripped: "guardrail",
    ev.HandedOff: "handoff",
}


def _begun(effect: Effect, state: SessionState, at: int) -> Span | None:
    version = state.version
    match effect:
        case CallModel():
            model = configuration_of_run(state).model if state.configuration is not None else ""
            return Span(lane="model", name=model, begun=version, begun_at=at)
        case RunTool(name=name, call=call):
            return Span(lane="tool", name=name, begun=version, begun_at=at, call=call)
        case AskPerson(tool=tool, call=call):
            return Span(lane="person", name=tool, begun=version, begun_at=at, call=call)
        case _:
            kind = effect.key.partition(":")[0]
            if kind == "retry":
                return Span(lane="retry", begun=version, begun_at=at)
            return Span(lane="person", name=kind, begun=version, begun_at=at) if kind in ("answer", "resume") else None


def _outcome(span: Span, event: ev.SessionEvent) -> str:
    """Return how a span ended, given the event with which it did."""
    if span.call and span.call != getattr(event, "call", span.call):
        return "cancelled"
    match event:
        case ev.RunCompleted() if span.lane == "run":
            return "completed"
        case ev.RunFailed() if span.lane == "run":
            return event.kind
        case ev.ModelFailed() | ev.ToolCallFailed() | ev.ToolAttemptFailed() if span.lane in ("model", "tool"):
            return event.kind
        case ev.ToolApprovalDecided() if span.lane == "person":
            return "allowed" if event.allowed else "denied"
        case ev.ModelResponded() | ev.ToolCallCompleted() | ev.TimerFired() | ev.QuestionAsked():
            return "ok"
        case ev.QuestionAnswered() | ev.RunResumed():
            return "answered"
        case _:
            return "cancelled"
