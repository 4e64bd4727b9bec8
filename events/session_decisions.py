"""What a session decides: `admit`, `react` and `pending`.

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
    AnswerContent,
    ErrorKind,
    JsonObject,
    TextBlock,
    ToolUseBlock,
)
from refold.events.core import Effect, Recorded
from refold.events.errors import CommandRejected
from refold.events.ids import ToolCallId
from refold.events.session_commands import (
    CancelRun,
    Configure,
    DecideApproval,
    ImportHistory,
    OpenSession,
    RecordModelFailure,
    RecordModelResponse,
    RecordTimer,
    RecordToolResult,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session_events import (
    AgentConfigured,
    CancelRequested,
    HistoryImported,
    InputQueued,
    ModelFailed,
    ModelInterrupted,
    ModelRequested,
    ModelResponded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunParked,
    RunResumed,
    RunStarted,
    SessionEvent,
    SessionOpened,
    TimerFired,
    ToolApprovalDecided,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolResultLate,
)
from refold.events.session_state import (
    DEADLINE_KEY,
    RETRY_KEY,
    Call,
    KeyedCommand,
    Run,
    SessionState,
    Turn,
    content_digest,
    run_of_input,
)

EMPTY_ANSWERS_MAX = 2
"""How often in a row an empty answer is asked again."""

TRUNCATED_ANSWERS_MAX = 2
"""How often in a row an answer that was cut inside its tool calls is asked again."""

TRUNCATED_TEXT = (
    "The answer was cut off at the token limit, so no call of it was run. Answer again with fewer or shorter calls."
)
DENIED_TEXT = "Denied: the call was not run."


class CallModel(Effect, frozen=True, kw_only=True):
    """Ask the model for its next answer."""

    turn: int


class RunTool(Effect, frozen=True, kw_only=True):
    """Run the body of a tool."""

    call: ToolCallId
    name: str
    input: JsonObject


class WaitUntil(Effect, frozen=True, kw_only=True):
    """Report when a time has come."""

    due_at: int
    """Microseconds since the epoch."""


SessionEffect = CallModel | RunTool | WaitUntil


def admit(state: SessionState, command: SessionCommand) -> SessionEvent | Recorded:
    """Return the stimulus that `command` becomes, or that it has been recorded before.

    Raises:
        CommandRejected: it may not happen now; nothing is to be recorded.
    """
    match command:
        case OpenSession(session=session, agent=agent):
            return Recorded(1) if state.session is not None else SessionOpened(session=session, agent=agent)
        case Configure(configuration=configuration):
            if configuration == state.configuration:
                return Recorded(state.configured)
            return AgentConfigured(configuration=configuration)
        case ImportHistory():
            return _admit_import(state, command)
        case SendInput(content=content, key=key):
            if not content:
                raise CommandRejected("an input needs at least one content block; send some text")
            if (recorded := _recorded(state, "send", key, content)) is not None:
                return recorded
            return InputQueued(content=content, key=key, cancelled=command.cancelled)
        case CancelRun():
            return _admit_cancel(state, command)
        case DecideApproval():
            return _admit_decision(state, command)
        case ResumeRun():
            return _admit_resume(state, command)
        case RecordModelResponse():
            return _admit_response(state, command)
        case RecordModelFailure(run=run, turn=turn):
            if not _awaits_model(state, run, turn):
                return Recorded(0)
            return ModelFailed(
                run=run,
                turn=turn,
                kind=command.kind,
                message=command.message,
                status=command.status,
                retryable=command.retryable,
                retry_after_s=command.retry_after_s,
                request=command.request,
            )
        case RecordToolResult():
            return _admit_tool_result(state, command)
        case RecordTimer(timer=timer):
            wanted = any(type(effect) is WaitUntil and effect.key == timer for effect in pending(state))
            return TimerFired(timer=timer) if wanted else Recorded(0)
        case _:
            assert_never(command)


def _recorded(state: SessionState, word: KeyedCommand, key: str | None, content: object) -> Recorded | None:
    """Return what the command with `key` became before, if it is the same command; `content` None matches any."""
    record = state.keys.get(key) if key is not None else None
    if record is None:
        return None
    if record.command != word or (content is not None and record.digest != content_digest(content)):
        raise CommandRejected(
            f"key {key!r} was used before (version {record.version}) for something else; use a new key"
        )
    return Recorded(record.version)


def _admit_import(state: SessionState, command: ImportHistory) -> SessionEvent | Recorded:
    if (recorded := _recorded(state, "import", command.key, command.messages)) is not None:
        return recorded
    if state.run is not None:
        raise CommandRejected(f"{state.run.id} is under way; import a history before or after it")
    if not command.messages:
        raise CommandRejected("there is no message to import")
    return HistoryImported(messages=command.messages, key=command.key)


def _admit_cancel(state: SessionState, command: CancelRun) -> SessionEvent | Recorded:
    run = state.run
    wanted = command.run if command.run is not None else (run.id if run is not None else None)
    if (recorded := _recorded(state, "cancel", command.key, command.run)) is not None:
        return recorded
    if wanted is None:
        return Recorded(0)
    queued = any(run_of_input(entry.version) == wanted and not entry.cancelled for entry in state.queue)
    if queued or (run is not None and run.id == wanted):
        return CancelRequested(run=wanted, reason=command.reason, key=command.key)
    return Recorded(0)


def _admit_decision(state: SessionState, command: DecideApproval) -> SessionEvent | Recorded:
    if (recorded := _recorded(state, "decide", command.key, (command.call, command.allowed))) is not None:
        return recorded
    call = _find(state, command.call)
    if call is None or call.result is not None or call.approval != "requested":
        raise CommandRejected(f"{command.call} does not wait for approval; it was decided, or ended, before")
    return ToolApprovalDecided(call=command.call, allowed=command.allowed, reason=command.reason, key=command.key)


def _admit_resume(state: SessionState, command: ResumeRun) -> SessionEvent | Recorded:
    run = state.run
    if run is None or state.configuration is None or (run.phase == "parked" and not command.asked):
        return Recorded(0)
    needed = {call.name for call in _started(state.turn)}
    return RunResumed(
        run=run.id,
        code=state.configuration.code,
        fingerprint=state.configuration.fingerprint,
        tools=tuple(sorted(needed.intersection(command.tools))),
        asked=command.asked,
    )


def _admit_response(state: SessionState, command: RecordModelResponse) -> SessionEvent | Recorded:
    if not _awaits_model(state, command.run, command.turn):
        return ModelInterrupted(turn=command.turn, content=command.content, usage=command.usage)
    version = state.version + 1
    index = 0
    content: list[AnswerContent] = []
    for block in command.content:
        if type(block) is ToolUseBlock:
            content.append(
                ToolUseBlock(
                    id=ToolCallId(f"call_{version}_{index}"),
                    name=block.name,
                    input=block.input,
                    provider_id=block.provider_id,
                    malformed_input=block.malformed_input,
                )
            )
            index += 1
        else:
            content.append(block)
    if index != len(command.verdicts):
        raise CommandRejected(f"an answer with {index} tool calls came with {len(command.verdicts)} verdicts")
    return ModelResponded(
        run=command.run,
        turn=command.turn,
        content=tuple(content),
        stop_reason=command.stop_reason,
        usage=command.usage,
        model=command.model,
        request=command.request,
        verdicts=command.verdicts,
    )


def _awaits_model(state: SessionState, run: str, turn: int) -> bool:
    current = state.run
    return current is not None and current.id == run and current.phase == "model" and current.turns == turn


def _admit_tool_result(state: SessionState, command: RecordToolResult) -> SessionEvent | Recorded:
    call = _find(state, command.call)
    if call is None or call.result is not None:
        return ToolResultLate(call=command.call, content=command.content, kind=command.kind)
    if not call.started:
        raise CommandRejected(f"{command.call} has a result and was never started")
    if command.kind is None:
        return ToolCallCompleted(call=command.call, content=command.content)
    return ToolCallFailed(call=command.call, kind=command.kind, content=command.content, started=True)


def _find(state: SessionState, call: ToolCallId) -> Call | None:
    turn = state.turn
    if turn is None or call not in turn.index:
        return None
    return turn.calls[turn.index[call]]


def _started(turn: Turn | None) -> list[Call]:
    """Return the calls whose bodies may be running, in order."""
    if turn is None:
        return []
    return [call for call in turn.calls[turn.first_open : turn.next_start] if call.started and call.result is None]


def react(state: SessionState, event: SessionEvent) -> list[SessionEvent]:
    """Return what follows from `event`, which `state` already includes, oldest first."""
    match event:
        case SessionOpened() | AgentConfigured() | ModelInterrupted() | ToolResultLate() | ModelRequested():
            return []
        case ToolApprovalDecided(allowed=False):
            return [_failed(event.call, "denied", event.reason or DENIED_TEXT, started=False)]
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
            return _failed(call.id, "cancelled", CANCELLED_TEXT, started=bool(call.started))
        return _failed(call.id, "timeout", ending.message, started=bool(call.started))
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
            return _failed(call.id, "denied", call.verdict.reason or DENIED_TEXT, started=False)
        case "invalid_arguments" | "not_found" as kind:
            return _failed(call.id, kind, call.verdict.reason, started=False)
        case "allow" | "ask":
            return ToolApprovalRequested(
                run=run.id, call=call.id, tool=call.name, input=call.input, reason=call.verdict.reason
            )
        case _:
            assert_never(call.verdict.verdict)


def _may_start(turn: Turn) -> bool:
    """Tell whether the next call may start: observing calls run beside each other, all others alone and in order."""
    call = turn.calls[turn.next_start]
    if call.approval == "requested":
        return False
    if turn.first_open == turn.next_start:
        return True
    return call.policy.tier == "observe" and turn.calls[turn.first_open].policy.tier == "observe"


def _failed(call: ToolCallId, kind: ErrorKind, text: str, *, started: bool) -> ToolCallFailed:
    return ToolCallFailed(call=call, kind=kind, content=(TextBlock(text=text),), started=started)


def pending(state: SessionState) -> list[SessionEffect]:
    """Return the work that should be in flight, in a fixed order."""
    run = state.run
    if run is None or run.phase == "parked":
        return []
    effects: list[SessionEffect] = []
    limit = state.configuration.run_timeout_s if state.configuration is not None else None
    if limit is not None:
        due_at = run.started_at + round(limit * 1_000_000)
        effects.append(
            WaitUntil(key=f"{DEADLINE_KEY}:{run.id}", causation=run.started, correlation=run.input, due_at=due_at)
        )
    if run.phase == "model":
        effects.append(CallModel(key=f"model:{run.asked}", causation=run.asked, correlation=run.input, turn=run.turns))
    elif run.phase == "waiting":
        effects.append(
            WaitUntil(key=f"{RETRY_KEY}:{run.id}", causation=run.asked, correlation=run.input, due_at=run.retry_at)
        )
    effects.extend(
        RunTool(
            key=f"tool:{call.id}",
            causation=call.started,
            correlation=run.input,
            call=call.id,
            name=call.name,
            input=call.input,
        )
        for call in _started(state.turn)
    )
    return effects
