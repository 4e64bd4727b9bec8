"""What the logs of a simulation's sessions say, read event by event, without any fold of the product.

The monitors are rules on top of it. The rule of this module: each durable event is read once, in its order, and what
the product makes of it is never asked.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from refold.events.core.content import ResultContent, TextBlock
from refold.events.core.ids import RunId
from refold.events.core.pure_core import keys_of
from refold.events.core.records import StoredEvent
from refold.events.session import events as ev
from refold.events.session.state import question_id, run_of_input
from refold.scenarios.plan.world import SIGNS, World

MADE_UP = ("cancelled", "denied", "timeout", "crashed", "truncated", "invalid_arguments", "not_found", "shed")
"""Kinds of results that no body brought."""

How: TypeAlias = Literal["by itself", "cancelled", "too late"]

Keyed: TypeAlias = ev.InputQueued | ev.CancelRequested | ev.HistoryCleared

InSession: TypeAlias = tuple[str, str]
"""A session, and a run, a call, a key or a text in it."""


class End(NamedTuple):
    """The terminal event of a run."""

    version: int
    outcome: str
    """Name of the class of the outcome that callers are told."""
    how: How
    at_s: float
    """When it became durable."""


class SessionReader:
    """Reads all sessions of one simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.versions: dict[str, int] = {}
        """Version of the last event, by stream."""
        self.places: dict[tuple[str, int], tuple[int, int]] = {}
        """Where each event is in the log, and when it was recorded, by session and version."""
        self.pending: dict[str, tuple[str, ...]] = {}
        """Keys of the work in flight, by stream."""
        self.withdrawn_s: dict[tuple[str, str], float] = {}
        """When work was no longer wanted, by stream and key."""
        self.runs: dict[InSession, RunId] = {}
        """Runs by the keys of their inputs."""
        self.sent: dict[str, dict[str, float]] = {}
        """When inputs were sent that are not recorded yet and whose clients wait, by session and key."""
        self.begun: dict[InSession, int] = {}
        """Version of the event that began a run."""
        self.ends: dict[InSession, End] = {}
        self.cancelled: dict[InSession, int] = {}
        """Version of the last order to cancel a run, begun or not."""
        self.taken: Counter[tuple[str, str, str | None]] = Counter()
        """How often a command was recorded, by stream, kind and key."""
        self.started: set[InSession] = set()
        """Calls whose bodies may have begun, and of whose last attempt nothing is known to have failed."""
        self.attempts: Counter[InSession] = Counter()
        """How many attempts at a call have begun; one that a crash interrupted counts once."""
        self.answered_s: dict[InSession, float] = {}
        """When calls got their results."""
        self.brought: Counter[InSession] = Counter()
        """Results, late results and failed attempts at calls that a body may have brought."""
        self.allowed: set[InSession] = set()
        """Calls, and tools for always, that the log says a person has allowed."""
        self.allowed_again: Counter[InSession] = Counter()
        """How often a person allowed a call once more whose body may have begun, or answered what it had asked."""
        self.changed: dict[InSession, dict[str, object]] = {}
        """The arguments that a person gave calls in place of the model's."""
        self.asking: dict[InSession, str] = {}
        """What calls wait to be told, by its id in the session."""
        self.told: set[InSession] = set()
        """Of that, what was answered."""
        self.failed: Counter[tuple[str, str, bool]] = Counter()
        """Failed model calls, by session, kind and whether they may be made again."""
        self.interrupted: Counter[str] = Counter()
        self.overtaken: set[InSession] = set()
        """Texts of answers that came when another one had come already; parts of texts, too."""
        self._failures: dict[InSession, tuple[ResultContent, ...]] = {}
        """Of what the last attempt at a call has failed."""
        self._left: set[InSession] = set()
        """Calls whose bodies left their results for later, so that none brings these."""
        self._asked_about: dict[InSession, str] = {}
        """The tools of calls that wait for a person, or did."""

    def read(self, session: str, stored: StoredEvent, event: ev.SessionEvent) -> None:
        self.versions[stored.stream] = stored.version
        self.places[session, stored.version] = (stored.position, stored.at)
        if stored.pending is not None:
            keys = keys_of(stored.pending)
            for key in self.pending.get(stored.stream, ()):
                if key not in keys:
                    self.withdrawn_s[stored.stream, key] = self._world.now_s()
            self.pending[stored.stream] = keys
        if isinstance(event, Keyed) and event.key is not None:
            self.taken[stored.stream, type(event).__name__, event.key] += 1
        match event:
            case ev.InputQueued(key=str(key)):
                self.runs[session, key] = run_of_input(stored.version)
            case ev.RunStarted():
                self.begun[session, event.run] = stored.version
            case ev.CancelRequested():
                self.cancelled[session, event.run] = stored.version
            case ev.RunCompleted():
                self._end(session, event.run, stored.version, "Completed", "by itself")
            case ev.RunFailed():
                how: How = "too late" if event.kind == "run_timeout" else "by itself"
                self._end(session, event.run, stored.version, "Failed" if event.trip is None else "Tripped", how)
            case ev.RunCancelled():
                self._end(session, event.run, stored.version, "Cancelled", "cancelled")
            case ev.ModelFailed():
                self.failed[session, event.kind, event.retryable] += 1
            case ev.ModelInterrupted():
                self.interrupted[session] += 1
                self.overtaken.add((session, plain_text(event.content)))
            case _:
                self._read_of_call(session, event)

    def _end(self, session: str, run: RunId, version: int, outcome: str, how: How) -> None:
        self.ends[session, run] = End(version, outcome, how, self._world.now_s())

    def _read_of_call(self, session: str, event: ev.SessionEvent) -> None:
        match event:
            case ev.ToolApprovalRequested():
                self._asked_about[session, event.call] = event.tool
            case ev.ToolApprovalDecided() if event.allowed:
                allowed = self._asked_about.get((session, event.call), "") if event.always else event.call
                self.allowed.update({(session, event.call), (session, allowed)})
                self.allowed_again[session, event.call] += (session, event.call) in self.started
                if event.input is not None:
                    self.changed[session, event.call] = event.input
            case ev.QuestionAsked():
                self.asking[session, event.call] = question_id(event.call, event.number)
                if event.gives_result:
                    self.brought[session, event.call] += 1
                    self._left.add((session, event.call))
            case ev.QuestionAnswered():
                self.told.add((session, self.asking.pop((session, event.call))))
                self.allowed_again[session, event.call] += (session, event.call) not in self._left
            case ev.ToolCallStarted():
                self.started.add((session, event.call))
                self.attempts[session, event.call] = event.attempt
            case ev.ToolAttemptFailed():
                self.started.discard((session, event.call))
                self.brought[session, event.call] += event.kind not in MADE_UP
                self._failures[session, event.call] = event.content
            case ev.ToolResultLate():
                self.brought[session, event.call] += 1
            case ev.ToolCallCompleted() | ev.ToolCallFailed():
                self.answered_s[session, event.call] = self._world.now_s()
                self.asking.pop((session, event.call), None)
                known = self._failures.get((session, event.call)) == event.content  # It is that of an attempt.
                by_itself = isinstance(event, ev.ToolCallCompleted) or not (known or event.kind in MADE_UP)
                if by_itself and (session, event.call) not in self._left:
                    self.brought[session, event.call] += 1
            case _:
                return


def plain_text(content: Sequence[object]) -> str:
    """Return the text of an answer, without the signs of several bytes that texts get on the wire."""
    return "".join(block.text.replace(SIGNS, "") for block in content if isinstance(block, TextBlock))
