"""What must hold of every session, after every event: INV0 to INV4, for tests, `refold check` and the simulator.

- INV0 *every prefix*: the history that a model would be shown is one that providers accept.
- INV1 *balance*: every call is answered by exactly one result, and no result lacks its call.
- INV2 *one terminal*: a run has one terminal event, its last, and a cancelled run does not end as completed.
- INV3 *FIFO*: inputs that became runs ran one after another in the order accepted.
- INV4 *isolation*: every run and call that is named belongs to this session.

Start at `SessionChecker`; `history_rules` and `event_order` hold the rules. Nothing here raises on events that
contradict each other: it returns them as violations.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from refold.events.core.content import Message, tool_uses
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import stream_name
from refold.events.model.history_rules import Finding, HistoryRules, Invariant, block_findings
from refold.events.session.core import SESSION_KIND, fold
from refold.events.session.event_order import OrderRules
from refold.events.session.events import ModelResponded, SessionEvent, ToolCallCompleted, ToolCallFailed
from refold.events.session.state import SessionState, Turn, history


class Violation(msgspec.Struct, frozen=True):
    """An invariant does not hold."""

    invariant: Invariant | Literal["INV6"]
    stream: str
    version: int
    """Of the event after which it does not hold; 0 = not known."""
    message: str
    """What is wrong, on what."""

    def __str__(self) -> str:
        return f"{self.invariant} {self.stream}@{self.version}: {self.message}"


class SessionChecker:
    """Checks one session event by event, each in O(event), so that a simulator can check after every step."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.version = 0
        """Version of the last event observed."""
        self._state: SessionState | None = SessionState()
        self._order = OrderRules(stream)
        self._messages: Sequence[Message] = []
        self._read = 0
        self._rules = HistoryRules()
        self._turn: Turn | None = None
        self._paused = False

    @property
    def state(self) -> SessionState | None:
        """What the events add up to, as its owner has it; None once they contradict each other."""
        return self._state

    def observe(self, event: SessionEvent) -> list[Violation]:
        """Return the violations that `event`, the next one of the stream, brings about."""
        self.version += 1
        findings = self._order.add(event)
        if self._state is not None:
            try:
                self._state = fold((event,), self._state)
            except LogFormatError as error:
                self._state = None  # From here on only the order of events can be checked.
                findings.append(Finding("INV0", f"no history can be shown from here on: {error}"))
            else:
                findings.extend(self._history_findings(self._state, event))
        return [Violation(finding.invariant, self.stream, self.version, finding.message) for finding in findings]

    def _history_findings(self, state: SessionState, event: SessionEvent) -> list[Finding]:
        """Return what is new and wrong in the history that is shown now: new messages, then the turn under way."""
        findings: list[Finding] = []
        if state.messages is not self._messages:
            self._messages, self._read, self._rules = state.messages, 0, HistoryRules()
        new = state.messages[self._read :]
        after_pause = self._paused or type(event) is not ModelResponded
        for message in new:
            findings.extend(self._rules.add(message, after_pause=after_pause))
        self._read += len(new)
        if type(event) is ModelResponded and new:
            self._paused = event.stop_reason == "pause_turn"
        if state.turn is not self._turn or new:
            findings.extend(_turn_findings(state.turn, self._rules))
        elif state.turn is None:
            return findings
        elif isinstance(event, ToolCallCompleted | ToolCallFailed):
            result = state.turn.calls[state.turn.index[event.call]].result
            findings.extend(block_findings(result, "the turn under way") if result is not None else ())
        self._turn = state.turn
        return findings


def _turn_findings(turn: Turn | None, rules: HistoryRules) -> list[Finding]:
    """Compare the calls of the turn under way with those that the last message of the history asks for."""
    if turn is None:
        return rules.unanswered()
    called = tuple(call.id for call in turn.calls)
    if called == rules.open_calls:
        return []
    return [Finding("INV1", f"the last message calls {rules.open_calls} and the turn under way answers {called}")]


def check_events(events: Sequence[SessionEvent], stream: str) -> list[Violation]:
    """Return every violation in a session's whole stream, oldest first; each prefix is checked, in O(n) overall."""
    checker = SessionChecker(stream)
    return [violation for event in events for violation in checker.observe(event)]


def check_history(messages: Sequence[Message], *, stream: str = "", version: int = 0) -> list[Violation]:
    """Return the violations of INV0 and INV1 in a history that is to be shown to a model.

    Two assistant messages in a row are accepted, since messages do not tell whether the first one was a pause.
    """
    rules = HistoryRules()
    findings = [finding for message in messages for finding in rules.add(message)]
    findings.extend(rules.unanswered())
    return [Violation(finding.invariant, stream, version, finding.message) for finding in findings]


def check_state(state: SessionState, stream: str | None = None) -> list[Violation]:
    """Return the violations that a folded state shows by itself, in O(history)."""
    said = stream_name(SESSION_KIND, state.session or "")
    name = stream if stream is not None else said
    violations = check_history(history(state), stream=name, version=state.version)
    findings: list[Finding] = []
    if state.version and said != name:
        findings.append(Finding("INV4", f"the state says that it is of {said!r}"))
    places = [queued.version for queued in state.queue]
    if state.run is not None:
        places.insert(0, state.run.input)
        accepted = state.run.id.removeprefix("run_")
        if not accepted.isdecimal() or int(accepted) > state.run.input:  # A scheduled input is queued after that.
            findings.append(Finding("INV4", f"{state.run.id} does not belong to the input at {state.run.input}"))
    if any(earlier >= later for earlier, later in pairwise(places)):
        findings.append(Finding("INV3", f"inputs stand in the order {places}"))
    if state.turn is not None:
        findings.extend(_open_turn_findings(state, state.turn))
    violations.extend(Violation(finding.invariant, name, state.version, finding.message) for finding in findings)
    return violations


def _open_turn_findings(state: SessionState, turn: Turn) -> list[Finding]:
    asked = [use.id for use in tool_uses(state.messages[-1].content)] if state.messages else []
    findings: list[Finding] = []
    if asked != [call.id for call in turn.calls]:
        findings.append(Finding("INV1", f"the last message calls {asked}, the turn under way has other calls"))
    unanswered = sum(call.result is None for call in turn.calls)
    if unanswered != turn.open or not unanswered:
        findings.append(Finding("INV1", f"{unanswered} calls are unanswered and the turn counts {turn.open}"))
    return findings
