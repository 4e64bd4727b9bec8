"""What can be said of a session as a whole: its steps, what it thought, did and saw, and how it went.

Read `refold.events.views.steps` for what a step is. Like the steps, it is a view of the session's events, so it can be
had of any session in any log, up to any version. Its figures are those of `refold.events.views.metrics`, counted over
this session alone.
"""

from collections.abc import Iterable, Mapping

import msgspec

from refold.events.core.event import SECOND_US
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.kinds.indexing import TextColumn
from refold.events.model.spending import Usage
from refold.events.session import events as ev
from refold.events.views.metrics import MetricsState, evolve, snapshot
from refold.events.views.metrics_snapshot import NANO, ModelCounts
from refold.events.views.steps import NO_PAYLOADS, Action, Step, Steps

THE_SESSION = StreamName("session/this")
"""Stands for the one session whose events are counted."""


class SessionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a session came to, up to one version."""

    version: int
    """Of the last event that was looked at."""
    steps: tuple[Step, ...]
    """Oldest first."""
    inputs: int
    """Inputs that were accepted."""
    runs_started: int
    runs_completed: int
    runs_failed: int
    runs_cancelled: int
    final_answer: str | None
    """What the last completed run answered; None = no run has completed."""
    duration_s: float
    """Seconds in which a run was open, waits for people included; an open one counts up to the last event."""
    usage: Usage
    """Tokens of all model calls, half answers and summaries too."""
    memory_hits: int
    """Memories that entered a model's context."""
    models: dict[str, ModelCounts] = {}
    """What the calls of each model came to, in order of names."""
    append_errors: int | None = None
    """Appends of the session that the log refused since the runtime opened. They leave no event, so that no log knows
    them: None where there is no runtime."""

    @property
    def cost(self) -> float:
        """What the tokens cost, in the currency of the prices of the agent's configuration."""
        return sum(counts.cost_nano for counts in self.models.values()) / NANO

    @property
    def thoughts(self) -> TextColumn:
        """What was thought, of the steps that have a thought."""
        return TextColumn(step.thought for step in self.steps if step.thought)

    @property
    def actions(self) -> TextColumn:
        """The tool calls, each as the tool's name and its arguments as JSON."""
        return TextColumn(action.text for action in self.tool_calls)

    @property
    def observations(self) -> TextColumn:
        """The texts of the results, errors too, in the order of the calls."""
        return TextColumn(text for step in self.steps for text in step.observations)

    @property
    def tool_calls(self) -> tuple[Action, ...]:
        """All tool calls, in order."""
        return tuple(action for step in self.steps for action in step.actions)

    @property
    def retries(self) -> int:
        """How often a tool call was tried again."""
        return sum(max(action.attempts - 1, 0) for action in self.tool_calls)

    @property
    def failed_tool_calls(self) -> tuple[Action, ...]:
        """The calls that were answered with an error, in order."""
        return tuple(action for action in self.tool_calls if action.kind is not None)

    @property
    def successful_steps(self) -> tuple[Step, ...]:
        """The steps that have ended, and of which nothing failed."""
        return tuple(step for step in self.steps if step.ended_at is not None and not step.failed)

    @property
    def first_step(self) -> Step | None:
        """The first step; None = there is none."""
        return self.steps[0] if self.steps else None

    @property
    def last_step(self) -> Step | None:
        """The last step so far; None = there is none."""
        return self.steps[-1] if self.steps else None


class _Progress:
    """What is known of a session while its events are gone through: its metrics, its steps, and its answer."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.metrics = MetricsState()
        self.version = self.at = self.open_us = 0
        self.fingerprint = ""
        """Of the configuration in force."""
        self.run_began_at: int | None = None
        """None = no run is open."""
        self.said: str | None = None
        """The open run's answer, should it complete now."""
        self.finished = False
        """Whether a tool has given that answer, which no later one takes back."""
        self.final_answer: str | None = None

    def add(self, event: ev.SessionEvent) -> None:
        self.version += 1
        self.at = event.at
        self.steps.add(event)
        if self.fingerprint:  # Of one session it is known at any time which prices half an answer has.
            self.metrics.cut_short[THE_SESSION] = self.fingerprint
        evolve(self.metrics, THE_SESSION, event)
        match event:
            case ev.AgentConfigured(configuration=configuration):
                self.fingerprint = configuration.fingerprint
            case ev.RunStarted():
                self.run_began_at, self.said, self.finished = event.at, None, False
            case ev.ModelResponded():
                self._say(self.steps.last.answer)
            case ev.ToolCallCompleted(ends_run=True):
                self._say(self.steps.text_of(event.content))
                self.finished = True
            case ev.RunCompleted() | ev.RunFailed() | ev.RunCancelled():
                if isinstance(event, ev.RunCompleted):
                    self.final_answer = self.said or ""
                self.open_us += self._open_since()
                self.run_began_at = None
            case _:
                return

    def _say(self, text: str) -> None:
        if not self.finished:
            self.said = text

    def _open_since(self) -> int:
        return self.at - self.run_began_at if self.run_began_at is not None else 0

    @property
    def duration_s(self) -> float:
        return (self.open_us + self._open_since()) / SECOND_US


def statistics_of(
    events: Iterable[ev.SessionEvent],
    payloads: Mapping[PayloadHash, bytes] = NO_PAYLOADS,
    *,
    append_errors: int | None = None,
) -> SessionStatistics:
    """Return what a session's events, from its first one on, say of it; see `Steps` for `payloads`."""
    progress = _Progress(Steps(payloads))
    for event in events:
        progress.add(event)
    figures = snapshot(progress.metrics)
    return SessionStatistics(
        version=progress.version,
        steps=progress.steps.steps,
        inputs=figures.inputs,
        runs_started=figures.runs_started,
        runs_completed=figures.runs_completed,
        runs_failed=figures.runs_failed,
        runs_cancelled=figures.runs_cancelled,
        final_answer=progress.final_answer,
        duration_s=progress.duration_s,
        usage=figures.usage,
        memory_hits=figures.recalls,
        models=figures.models,
        append_errors=append_errors,
    )
