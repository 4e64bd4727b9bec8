"""What a session decides: `react` and `pending`.

Read `refold.events.session_state` first, and `refold.events.core` for what the functions are. `react` takes one
small step at a time: `_next` looks at the state and names the one event that follows, and `plan` asks again after
it, so no decision is ever taken from a state that is out of date. The rule protected here: a run ends exactly once,
and never before each of its calls has exactly one result.
"""

from typing import assert_never

from refold.events.content import (
    CANCELLED_TEXT,
    CRASHED_IMPORT_TEXT,
    CRASHED_TEXT,
    ErrorKind,
    JsonObject,
    TextBlock,
)
from refold.events.core import Effect, WaitUntil
from refold.events.ids import ToolCallId
from refold.events.session_events import (
    AgentConfigured,
    HistoryImported,
    ModelInterrupted,
    ModelRequested,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunParked,
    RunResumed,
    RunStarted,
    SessionEvent,
    SessionOpened,
    ToolApprovalDecided,
    ToolApprovalRequested,
    ToolCallFailed,
    ToolCallStarted,
    ToolResultLate,
)
from refold.events.session_state import (
    Call,
    Run,
    SessionState,
    Turn,
    deadline_key,
    find_call,
    retry_key,
    run_of_input,
    running_calls,
)

EMPTY_ANSWERS_MAX = 2
"""How often in a row an empty answer is asked again."""

TRUNCATED_ANSWERS_MAX = 2
"""How often in a row an answer that was cut inside its tool calls is asked again."""

TRUNCATED_TEXT = (
    "The answer was cut off at the token limit, so no call of it was run. Answer again with fewer or shorter calls."
)
DENIED_TEXT = "Denied: the call was not run."
INVALID_ARGUMENTS_TEXT = "The arguments do not fit the tool, so the call was not run."
NOT_FOUND_TEXT = "There is no tool of that name, so nothing was run."

CALLS_RUNNING_MAX = 100
"""Most calls of one answer that run beside each other; the next one starts when one has ended."""


class CallModel(Effect, frozen=True, kw_only=True):
    """Ask the model for its next answer."""

    turn: int


class RunTool(Effect, frozen=True, kw_only=True):
    """Run the body of a tool."""

    call: ToolCallId
    name: str
    input: JsonObject


SessionEffect = CallModel | RunTool | WaitUntil


def react(state: SessionState, event: SessionEvent) -> list[SessionEvent]:
    """Return what follows from `event`, which `state` already includes, oldest first."""
    match event:
        case SessionOpened() | AgentConfigured() | ModelInterrupted() | ToolResultLate() | ModelRequested():
            return []
        case ToolApprovalDecided(allowed=False):
            return [_denied(state, event)]
        case RunResumed() if state.run is not None and state.configuration is not None:
            run = state.run
            if run.resumes > state.configuration.resumes_max:
                times = run.resumes - 1
                return [RunParked(run=run.id, reason=f"resumed {times} times without progress; resume or cancel it")]
            return _close_lost(state) or _next(state)
        case HistoryImported():
            return _close_lost(state)
        case _:
            return _next(state)


def _denied(state: SessionState, event: ToolApprovalDecided) -> SessionEvent:
    call = find_call(state, event.call)
    if call is not None and call.started:  # It was denied another run; what became of the first one nobody knows.
        return _failed(event.call, "crashed", CRASHED_TEXT, started=True)
    return _failed(event.call, "denied", _said(event.reason, DENIED_TEXT), started=False)


def _close_lost(state: SessionState) -> list[SessionEvent]:
    """Return what becomes of the calls that a crash interrupted and that are not simply run again."""
    turn = state.turn
    if turn is None:
        return []
    return [
        _closed_lost(state.run, call) for call in turn.calls[turn.first_open :] if call.lost and call.result is None
    ]


def _closed_lost(run: Run | None, call: Call) -> SessionEvent:
    if run is None:
        return _failed(call.id, "crashed", CRASHED_IMPORT_TEXT, started=False)
    if call.approval == "allowed" and call.policy.effect == "once":
        return ToolApprovalRequested(run=run.id, call=call.id, tool=call.name, input=call.input, reason=CRASHED_TEXT)
    return _failed(call.id, "crashed", CRASHED_TEXT, started=True)


def _next(state: SessionState) -> list[SessionEvent]:
    """Return the one event that follows now, or none where the session waits for something."""
    run = state.run
    if run is None:
        return _start_next_run(state) if state.turn is None else []
    if run.phase == "ending":
        return [_end(state, run)]
    if run.parked:
        return []
    if run.phase == "answered":
        return [RunCompleted(run=run.id)]
    if run.phase == "tools" and state.turn is not None:
        return _next_call(run, state.turn)
    if run.phase == "ready":
        return [_next_turn(state, run)]
    return []


def _start_next_run(state: SessionState) -> list[SessionEvent]:
    configuration = state.configuration
    if not state.queue or configuration is None:
        return []
    version = state.queue[0].version
    return [
        RunStarted(
            run=run_of_input(version), input=version, code=configuration.code, fingerprint=configuration.fingerprint
        )
    ]


def _end(state: SessionState, run: Run) -> SessionEvent:
    """Close the first open call of a run that is ending, or end the run when none is left."""
    ending = run.ending
    assert ending is not None
    turn = state.turn
    if turn is not None:
        call = turn.calls[turn.first_open]
        if ending.outcome == "cancelled":
            return _failed(call.id, "cancelled", CANCELLED_TEXT, started=call.started)
        return _failed(call.id, "timeout", ending.message, started=call.started)
    if ending.outcome == "cancelled":
        return RunCancelled(run=run.id)
    assert ending.kind is not None
    return RunFailed(run=run.id, kind=ending.kind, message=ending.message)


def _next_turn(state: SessionState, run: Run) -> SessionEvent:
    configuration = state.configuration
    assert configuration is not None
    if run.empty_answers > EMPTY_ANSWERS_MAX:
        return RunFailed(
            run=run.id,
            kind="empty_answers",
            message=f"The model gave {run.empty_answers} empty answers in a row.",
        )
    if run.truncated_answers > TRUNCATED_ANSWERS_MAX:
        return RunFailed(
            run=run.id,
            kind="truncated_answers",
            message=f"The model's answer was cut inside its tool calls {run.truncated_answers} times in a row.",
        )
    if run.turns >= configuration.max_turns:
        return RunFailed(
            run=run.id,
            kind="max_turns",
            message=f"Max turns ({configuration.max_turns}) reached, stopping forcibly",
        )
    return ModelRequested(run=run.id, turn=run.turns + 1)


def _next_call(run: Run, turn: Turn) -> list[SessionEvent]:
    if turn.checked < len(turn.calls):
        return [_settle_verdict(run, turn, turn.calls[turn.checked])]
    if turn.next_start < len(turn.calls) and _may_start(turn):
        return [ToolCallStarted(run=run.id, call=turn.calls[turn.next_start].id)]
    return []


def _settle_verdict(run: Run, turn: Turn, call: Call) -> SessionEvent:
    if turn.truncated:
        return _failed(call.id, "truncated", TRUNCATED_TEXT, started=False)
    match call.verdict.verdict:
        case "deny":
            return _failed(call.id, "denied", _said(call.verdict.reason, DENIED_TEXT), started=False)
        case "invalid_arguments":
            text = _said(call.verdict.reason, INVALID_ARGUMENTS_TEXT)
            return _failed(call.id, "invalid_arguments", text, started=False)
        case "not_found":
            return _failed(call.id, "not_found", _said(call.verdict.reason, NOT_FOUND_TEXT), started=False)
        case "allow" | "ask":
            return ToolApprovalRequested(
                run=run.id, call=call.id, tool=call.name, input=call.input, reason=call.verdict.reason
            )
        case _:
            assert_never(call.verdict.verdict)


def _may_start(turn: Turn) -> bool:
    """Tell whether the next call may start: observing calls run beside each other, all others alone and in order."""
    call = turn.calls[turn.next_start]
    if call.approval == "requested" or len(turn.running) >= CALLS_RUNNING_MAX:
        return False
    if turn.first_open == turn.next_start:
        return True
    return call.policy.tier == "observe" and turn.calls[turn.first_open].policy.tier == "observe"


def _said(reason: str, otherwise: str) -> str:
    return reason if reason.strip() else otherwise


def _failed(call: ToolCallId, kind: ErrorKind, text: str, *, started: bool) -> ToolCallFailed:
    return ToolCallFailed(call=call, kind=kind, content=(TextBlock(text=text),), started=started)


def pending(state: SessionState) -> list[SessionEffect]:
    """Return the work that should be in flight, in a fixed order."""
    run = state.run
    if run is None or run.parked:
        return []
    effects: list[SessionEffect] = []
    limit = state.configuration.run_timeout_s if state.configuration is not None else None
    if limit is not None:
        due_at = run.started_at + round(limit * 1_000_000)
        effects.append(WaitUntil(key=deadline_key(run), causation=run.started, correlation=run.input, due_at=due_at))
    if run.phase == "model":
        effects.append(CallModel(key=f"model:{run.asked}", causation=run.asked, correlation=run.input, turn=run.turns))
    elif run.phase == "waiting":
        effects.append(WaitUntil(key=retry_key(run), causation=run.asked, correlation=run.input, due_at=run.retry_at))
    if state.turn is not None:
        effects.extend(_run_tool(run, state.turn, call) for call in running_calls(state.turn))
    return effects


def _run_tool(run: Run, turn: Turn, call: Call) -> RunTool:
    return RunTool(
        key=f"tool:{call.id}",
        causation=turn.running[call.id],
        correlation=run.input,
        call=call.id,
        name=call.name,
        input=call.input,
    )
