"""In which order the events of a session may come: INV1 to INV4 on events, without folding them.

Kept apart from `refold.events.session.evolve` on purpose: what checks the fold must not trust it. Each event costs
O(1), an answer O(its calls).
"""

from collections import deque
from typing import Literal

import msgspec

from refold.events.core.content import Message, ToolResultBlock, tool_uses
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.history_rules import Finding
from refold.events.session import events as ev
from refold.events.session.state import run_of_input


class _KnownRun(msgspec.Struct):
    """What has been seen of a run, from the acceptance of its input on."""

    stage: Literal["scheduled", "queued", "open", "ended"] = "queued"
    cancelled: bool = False


class _KnownCall(msgspec.Struct):
    """What has been seen of a call."""

    started: bool = False
    """At least once; a call that a crash interrupted may be put to a person and start again."""
    running: bool = False
    failed: int = 0
    """Attempts that failed and may be followed by another."""
    retries: int = 0
    """Attempts that were scheduled after those."""
    answered: bool = False
    waits_for_approval: bool = False
    pure: bool = False
    """Its tool may run again at any time."""
    questions: int = 0
    """That it has asked."""
    answers: int = 0


class OrderRules:
    """Reads a session's events from its beginning and says which rule each one breaks."""

    def __init__(self, stream: str) -> None:
        self._session = stream.partition("/")[2]
        self._version = 0
        self._user: str | None = None
        self._pure: set[str] = set()
        """The tools that may run again at any time."""
        self._runs: dict[RunId, _KnownRun] = {}
        self._queue: deque[RunId] = deque()
        self._inputs: dict[int, RunId] = {}
        """Runs of queued inputs, by the version of InputQueued."""
        self._open_run: RunId | None = None
        self._calls: dict[ToolCallId, _KnownCall] = {}
        self._unanswered: dict[ToolCallId, None] = {}
        self._findings: list[Finding] = []

    def add(self, event: ev.SessionEvent) -> list[Finding]:
        self._version += 1
        self._findings = []
        if self._version == 1 and type(event) is not ev.SessionOpened:
            self._find("INV4", "the stream does not begin by saying whose it is (SessionOpened)")
        self._read(event)
        return self._findings

    def _find(self, invariant: Literal["INV1", "INV2", "INV3", "INV4"], message: str) -> None:
        self._findings.append(Finding(invariant, message))

    def _read(self, event: ev.SessionEvent) -> None:
        match event:
            case ev.SessionOpened(session=session):
                if self._version != 1:
                    self._find("INV4", f"the session is opened again, as {session!r}")
                if session != self._session:
                    self._find("INV4", f"the stream of {self._session!r} says that it is {session!r}")
            case ev.SessionDescribed(user=user):
                if self._user not in (None, user):
                    self._find("INV4", f"the session of user {self._user!r} becomes that of {user!r}")
                self._user = user
            case ev.AgentConfigured(configuration=configuration):
                self._pure = {policy.name for policy in configuration.tools if policy.effect == "pure"}
            case ev.HistoryImported():
                self._expect_balance("a history is imported")
                for message in event.messages:
                    self._read_imported(message)
            case ev.HistoryCleared():
                self._expect_balance("the history is cleared")
                if self._open_run is not None:
                    self._find("INV1", f"the history is cleared while {self._open_run} is under way")
            case ev.HistoryRewound(to=to):
                self._expect_balance("the history is taken back")
                if self._open_run is not None:
                    self._find("INV1", f"the history is taken back while {self._open_run} is under way")
                if not 0 < to < self._version:
                    self._find("INV4", f"the history is taken back to version {to}, which is none before it")
            case ev.SessionForked():
                self._read_fork(event)
            case ev.TimerSet():
                self._runs[run_of_input(self._version)] = _KnownRun(stage="scheduled")
            case ev.InputQueued():
                self._read_input(event)
            case ev.RunStarted():
                self._read_run_started(event)
            case ev.CancelRequested(run=run):
                self._read_cancel(run)
            case ev.RunCompleted(run=run) | ev.RunFailed(run=run) | ev.RunCancelled(run=run):
                self._read_terminal(run, type(event))
            case ev.ModelRequested(run=run):
                self._read_work(run, "a model call")
                self._expect_balance("a model call is made")
            case ev.ModelResponded(run=run):
                self._expect_open(run)
                self._expect_balance("an answer comes")
                for use in tool_uses(event.content):
                    self._read_call(use.id, pure=use.name in self._pure)
            case ev.HandedOff(run=run, call=call):
                self._expect_open(run)
                self._expect_balance("the session is handed over")
                if call not in self._calls:
                    self._find("INV4", f"{call} is no call of this session")
            case ev.ToolApprovalRequested(run=run, call=call):
                self._expect_open(run)
                if (known := self._open_call(call)) is not None:
                    known.waits_for_approval, known.running = True, False
            case ev.ToolCallStarted(run=run, call=call):
                self._read_work(run, call)
                self._read_call_started(call, event.attempt)
            case ev.RetryScheduled(run=run, call=str(call)):
                self._read_work(run, call)
                if (known := self._open_call(call)) is not None:
                    known.retries += 1
                    if known.running or not known.retries == known.failed == event.attempt:
                        self._find(
                            "INV1", f"{call} is tried again, of which attempt {event.attempt} has not just failed"
                        )
            case (
                ev.ContextPrepared(run=run)
                | ev.RequestBuilt(run=run)
                | ev.GuardrailTripped(run=run)
                | ev.ModelFailed(run=run)
                | ev.RetryScheduled(run=run)
                | ev.TurnAllowed(run=run)
                | ev.RunResumed(run=run)
                | ev.RunParked(run=run)
            ):
                self._expect_open(run)
            case _:
                self._read_about_call(event)

    def _read_about_call(self, event: ev.SessionEvent) -> None:
        match event:
            case ev.ToolApprovalDecided(call=call):
                known = self._open_call(call)
                if known is not None:
                    if not known.waits_for_approval:
                        self._find("INV1", f"{call} is decided about and did not wait for approval")
                    known.waits_for_approval = False
            case ev.QuestionAsked(call=call, number=number):
                if (known := self._open_call(call)) is not None:
                    if not known.running or number != known.questions + 1:
                        self._find("INV1", f"{call} asks its question {number} and was not at work on it")
                    known.running, known.questions = False, number
            case ev.QuestionAnswered(call=call, number=number):
                if (known := self._open_call(call)) is not None:
                    if number != known.questions or number != known.answers + 1:
                        self._find("INV1", f"question {number} of {call} is answered and was not open")
                    known.answers = number
            case ev.ToolAttemptFailed(call=call, attempt=attempt):
                if (known := self._open_call(call)) is not None:
                    if not known.running or attempt != known.failed + 1:
                        self._find("INV1", f"attempt {attempt} at {call} fails, which was not under way")
                    known.running, known.failed = False, attempt
            case ev.ToolCallCompleted(call=call):
                self._read_result(call, must_have_started=True)
            case ev.ToolCallFailed(call=call, kind=kind):
                self._read_result(call, must_have_started=kind in ("transient", "permanent"))
            case ev.ToolCallWaiting(call=call, waits=waits):
                known = self._open_call(call)
                if known is not None and waits and not known.running:
                    self._find("INV1", f"the work of {call} waits and has not begun")
            case ev.ToolResultLate(call=call):
                if call not in self._calls:
                    self._find("INV4", f"{call} is no call of this session")
                elif not self._calls[call].answered:
                    self._find("INV1", f"the result of {call} is recorded as late while the call is open")
            case _:
                return  # It belongs to no run and no call.

    def _read_fork(self, event: ev.SessionForked) -> None:
        if event.version != self._version - 1:
            self._find("INV4", f"it goes on from version {event.version} of {event.origin!r}, and comes after another")
        self._session = event.session
        for known in self._runs.values():
            if known.stage in ("scheduled", "queued") or (known.stage == "open" and not event.keeps_run):
                known.stage = "ended"
        self._queue.clear()
        given = {result.tool_use_id for result in event.results}
        for call in list(self._unanswered):
            known_call = self._calls[call]
            if not event.keeps_run or call in given or (known_call.started and not known_call.pure):
                known_call.answered = True
                del self._unanswered[call]
        if not event.keeps_run:
            self._open_run = None

    def _read_input(self, event: ev.InputQueued) -> None:
        if event.joins is not None:
            self._read_work(event.joins, "an input that joins")
            return
        run = run_of_input(event.scheduled or self._version)
        if event.scheduled and ((known := self._runs.get(run)) is None or known.stage != "scheduled"):
            self._find("INV3", f"the input of {run} is queued and was not scheduled, or not any more")
        self._runs[run] = _KnownRun(cancelled=event.cancelled)
        self._inputs[self._version] = run
        self._queue.append(run)

    def _read_run_started(self, event: ev.RunStarted) -> None:
        if self._open_run is not None:
            self._find("INV3", f"{event.run} begins while {self._open_run} is under way")
        known = self._runs.get(event.run)
        if known is None or event.run != self._inputs.get(event.input):
            self._find("INV4", f"{event.run} begins from version {event.input}, which is no input of its own")
            self._runs[event.run] = known = known or _KnownRun()
        elif known.stage != "queued":
            self._find("INV3", f"the input at version {event.input} becomes a run again")
        elif self._queue[0] != event.run:
            self._find("INV3", f"{event.run} begins before {self._queue[0]}, whose input was accepted earlier")
            self._queue.remove(event.run)
        else:
            self._queue.popleft()
        self._expect_balance(f"{event.run} begins")
        known.stage = "open"
        self._open_run = event.run

    def _read_cancel(self, run: RunId) -> None:
        known = self._runs.get(run)
        if known is None:
            self._find("INV4", f"{run} is no run of this session")
        elif known.stage == "ended":
            self._find("INV2", f"{run} is to be cancelled after its terminal event")
        else:
            known.cancelled = True
            if known.stage == "scheduled":
                known.stage = "ended"

    def _read_terminal(self, run: RunId, terminal: type[ev.SessionEvent]) -> None:
        self._expect_open(run)
        known = self._runs.get(run)
        if known is not None:
            if known.cancelled and terminal is not ev.RunCancelled:
                self._find("INV2", f"{run} was cancelled and ends with {terminal.__name__}")
            known.stage = "ended"
        if self._open_run == run:
            self._open_run = None
        self._expect_balance(f"{run} ends")

    def _read_work(self, run: RunId, what: str) -> None:
        self._expect_open(run)
        known = self._runs.get(run)
        if known is not None and known.cancelled:
            self._find("INV2", f"{what} begins in {run} after it was cancelled")

    def _read_imported(self, message: Message) -> None:
        if message.role == "assistant":
            self._unanswered.clear()  # What it leaves unanswered in its middle is found in the history.
        for block in message.content:
            if type(block) is ToolResultBlock:
                self._read_result(block.tool_use_id, must_have_started=False)
        for use in tool_uses(message.content):
            self._read_call(use.id)

    def _read_call(self, call: ToolCallId, *, pure: bool = False) -> None:
        if call in self._calls:
            self._find("INV1", f"the call id {call} is used again")
        self._calls[call] = _KnownCall(pure=pure)
        self._unanswered[call] = None

    def _read_call_started(self, call: ToolCallId, attempt: int) -> None:
        known = self._open_call(call)
        if known is None:
            return
        if known.waits_for_approval:
            self._find("INV1", f"{call} starts while it waits for approval")
        if known.running:
            self._find("INV1", f"{call} starts again")
        if known.questions != known.answers:
            self._find("INV1", f"{call} starts while it waits for an answer")
        if attempt != known.failed + 1 or known.retries != known.failed:
            self._find("INV1", f"attempt {attempt} at {call} starts after {known.failed} failed ones")
        known.started = known.running = True

    def _read_result(self, call: ToolCallId, *, must_have_started: bool) -> None:
        known = self._open_call(call)
        if known is None:
            return
        if must_have_started and not known.started:
            self._find("INV1", f"{call} has a result and was never started")
        known.answered = True
        self._unanswered.pop(call, None)

    def _open_call(self, call: ToolCallId) -> _KnownCall | None:
        known = self._calls.get(call)
        if known is None:
            self._find("INV4", f"{call} is no call of this session")
        elif known.answered:
            self._find("INV1", f"something happens to {call} after it was answered")
            return None
        return known

    def _expect_open(self, run: RunId) -> None:
        if run == self._open_run:
            return
        known = self._runs.get(run)
        if known is None:
            self._find("INV4", f"{run} is no run of this session")
        elif known.stage == "ended":
            self._find("INV2", f"{run} goes on after its terminal event")
        else:
            self._find("INV2", f"{run} has an event before its RunStarted")

    def _expect_balance(self, when: str) -> None:
        if self._unanswered:
            some = next(iter(self._unanswered))
            self._find("INV1", f"{when} while {len(self._unanswered)} calls are unanswered, {some} first")
