"""What is true of a session: the shapes of its state, and the questions that are asked of it.

The state is owned by one actor. `refold.events.session_fold` changes it in place, event by event, and
`refold.events.session_decisions` reads it. Messages are only ever added to the end of the list of messages, so
that a request can share it without a copy; what replaces the history is a new list.
"""

import hashlib
from typing import Literal

import msgspec

from refold.events.configuration import AgentConfiguration, ToolPolicy
from refold.events.content import (
    STILL_OPEN_TEXT,
    Block,
    Message,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    error_result,
)
from refold.events.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model import StopReason, Usage
from refold.events.session_events import RunFailureKind, Verdict

Phase = Literal["ready", "model", "tools", "answered", "waiting", "ending"]
"""What a run is doing.

`ready`: its next turn can begin. `model`: a model call is in flight. `tools`: calls are open. `answered`: the
final answer is there. `waiting`: a failed model call is made again later. `ending`: it is being cancelled or
failed; its open calls are closed first.
"""


class QueuedInput(msgspec.Struct):
    """An accepted input whose run has not begun."""

    version: int
    message: Message
    key: str | None = None
    cancelled: bool = False


class Call(msgspec.Struct):
    """One tool call of the turn under way."""

    id: ToolCallId
    name: str
    input: dict[str, object]
    policy: ToolPolicy
    verdict: Verdict
    approval: Literal["", "requested", "allowed", "denied"] = ""
    approval_reason: str = ""
    started: bool = False
    """Its body may have begun, in this process or before a crash."""
    lost: bool = False
    """A crash interrupted it and it is not simply run again."""
    result: ToolResultBlock | None = None


class Turn(msgspec.Struct):
    """The calls of the last answer, while not all of them are answered."""

    calls: list[Call]
    index: dict[ToolCallId, int]
    truncated: bool = False
    """The answer was cut: none of its calls runs."""
    open: int = 0
    """How many calls are unanswered."""
    checked: int = 0
    """Calls before this place have been refused or put to approval as their verdict demands."""
    running: dict[ToolCallId, int] = {}
    """The calls whose bodies may be running, in the order of their start, with the version of ToolCallStarted."""
    next_start: int = 0
    """Calls before this place are running or answered."""
    first_open: int = 0
    """Calls before this place are answered."""


class Ending(msgspec.Struct, frozen=True):
    """Why a run is being ended."""

    outcome: Literal["cancelled", "failed"]
    kind: RunFailureKind | None = None
    message: str = ""


class Run(msgspec.Struct):
    """The run under way."""

    id: RunId
    input: int
    """Version of its InputQueued."""
    started: int
    """Version of its RunStarted."""
    started_at: int
    phase: Phase = "ready"
    key: str | None = None
    turns: int = 0
    asked: int = 0
    """Version of the event that wants the model call in flight."""
    attempts: int = 0
    """Failed attempts of the present turn."""
    retry_at: int = 0
    empty_answers: int = 0
    """In a row."""
    truncated_answers: int = 0
    """In a row."""
    resumes: int = 0
    """How often work in flight was lost since the last progress."""
    parked: bool = False
    """Nothing goes on until somebody resumes or cancels it."""
    ending: Ending | None = None
    usage: Usage = Usage()
    final: tuple[TextBlock | StoredBlock, ...] = ()
    """Text of the final answer."""
    stop_reason: StopReason = "end_turn"
    """Of the last answer."""


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """How the last run ended."""

    run: RunId
    outcome: Literal["completed", "failed", "cancelled"]
    final: tuple[TextBlock | StoredBlock, ...]
    """Text of the final answer; empty unless completed."""
    stop_reason: StopReason
    usage: Usage
    turns: int
    kind: RunFailureKind | None = None
    message: str = ""
    version: int = 0
    """Of its terminal event."""


KeyedCommand = Literal["send", "cancel", "decide", "import"]
"""Commands that take an idempotency key."""


class KeyRecord(msgspec.Struct):
    """What a command with a key became."""

    command: KeyedCommand
    digest: str
    version: int
    """Of the stimulus."""
    terminal: int = 0
    """Version of the terminal event of its run; 0 = not ended, or the command starts no run."""


class SessionState(msgspec.Struct):
    """All that a session's events add up to."""

    version: int = 0
    at: int = 0
    session: SessionId | None = None
    agent: AgentId | None = None
    configuration: AgentConfiguration | None = None
    configured: int = 0
    """Version of the AgentConfigured in force."""
    policies: dict[str, ToolPolicy] = {}
    messages: list[Message] = []
    """The history without results of the turn under way."""
    turn: Turn | None = None
    queue: list[QueuedInput] = []
    run: Run | None = None
    last_run: FinishedRun | None = None
    keys: dict[str, KeyRecord] = {}
    usage: Usage = Usage()
    timers: dict[str, int] = {}
    """Due times by name."""


def history(state: SessionState) -> list[Message]:
    """Return the balanced history as a model would be shown it now: open calls get a result that says so."""
    messages = list(state.messages)
    if state.turn is not None:
        messages.append(results_message(state.turn))
    return messages


def results_message(turn: Turn) -> Message:
    """Return the message that answers the calls of `turn`, in the order of the calls."""
    results = [call.result or error_result(call.id, "transient", STILL_OPEN_TEXT) for call in turn.calls]
    return Message("user", tuple(results))


def find_call(state: SessionState, call: ToolCallId) -> Call | None:
    """Return the call of the turn under way, or None if it has no such call."""
    turn = state.turn
    if turn is None or call not in turn.index:
        return None
    return turn.calls[turn.index[call]]


def running_calls(turn: Turn | None) -> list[Call]:
    """Return the calls whose bodies may be running, in the order of their start."""
    return [turn.calls[turn.index[call]] for call in turn.running] if turn is not None else []


def content_digest(content: object) -> str:
    """Return the digest under which a keyed command's content is remembered."""
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:32]


def needs_verdict(call: Call, turn: Turn) -> bool:
    """Tell whether a call must still be refused, or put to somebody's approval, before any may start."""
    if call.result is not None:
        return False
    if turn.truncated or call.verdict.verdict in ("deny", "invalid_arguments", "not_found"):
        return True
    return not call.approval and (call.verdict.verdict == "ask" or call.policy.tier == "confirm")


def deadline_key(run: Run) -> str:
    """Return the effect key of the wait for the run's end of time."""
    return f"deadline:{run.id}"


def retry_key(run: Run) -> str:
    """Return the effect key of the wait before the failed model call is made again; each attempt has its own."""
    return f"retry:{run.asked}"


def run_of_input(version: int) -> RunId:
    """Return the run of the input that was queued at `version`."""
    return RunId(f"run_{version}")


def says_something(content: tuple[Block, ...]) -> bool:
    """Tell whether an answer without tool calls has anything in it for its reader."""
    return any(
        bool(block.text.strip()) if type(block) is TextBlock else type(block) is not ThinkingBlock for block in content
    )


def calls_awaiting_approval(state: SessionState) -> list[Call]:
    """Return the calls that somebody has to allow or deny, in order."""
    turn = state.turn
    if turn is None:
        return []
    return [call for call in turn.calls if call.approval == "requested" and call.result is None]
