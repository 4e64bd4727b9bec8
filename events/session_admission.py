"""What a session accepts: `admit` turns each command into the stimulus that it becomes, or refuses it.

Read `refold.events.session_commands` first. The rules: a command with a key that was recorded before gets the first
outcome; a result that nobody waits for any more is evidence and never history; what providers would refuse in a
history does not get in.
"""

from typing import assert_never

from refold.events.content import AnswerContent, TextBlock, ToolUseBlock, tool_uses, without_blanks
from refold.events.core import Recorded, WaitUntil
from refold.events.errors import CommandRejected
from refold.events.ids import ToolCallId
from refold.events.importing import imported_messages
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
from refold.events.session_decisions import pending
from refold.events.session_events import (
    AgentConfigured,
    CancelRequested,
    HistoryImported,
    InputQueued,
    ModelFailed,
    ModelInterrupted,
    ModelResponded,
    RunResumed,
    SessionEvent,
    SessionOpened,
    TimerFired,
    ToolApprovalDecided,
    ToolCallCompleted,
    ToolCallFailed,
    ToolResultLate,
)
from refold.events.session_state import (
    KeyedCommand,
    SessionState,
    content_digest,
    find_call,
    run_of_input,
    running_calls,
)

FAILED_TEXT = "The tool failed and gave no reason."
"""The result of a failed call whose tool said nothing; providers refuse an error result without text."""


def admit(state: SessionState, command: SessionCommand) -> SessionEvent | Recorded:
    """Return the stimulus that `command` becomes, or that it has been recorded before.

    Raises:
        CommandRejected: it may not happen now; nothing is to be recorded.
    """
    if state.session is None and isinstance(command, Configure | ImportHistory | RecordModelResponse | SendInput):
        raise CommandRejected("the session is not open; open it first")
    match command:
        case OpenSession(session=session, agent=agent):
            if state.session is None:
                return SessionOpened(session=session, agent=agent)
            if state.session != session:
                raise CommandRejected(f"this is session {state.session!r}, not {session!r}")
            return Recorded(1)
        case Configure(configuration=configuration):
            if configuration == state.configuration:
                return Recorded(state.configured)
            return AgentConfigured(configuration=configuration)
        case ImportHistory():
            return _admit_import(state, command)
        case SendInput():
            return _admit_input(state, command)
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
                retry_after_s=float(command.retry_after_s) if command.retry_after_s is not None else None,
                request=command.request,
            )
        case RecordToolResult():
            return _admit_tool_result(state, command)
        case RecordTimer(timer=timer):
            wanted = any(type(effect) is WaitUntil and effect.key == timer for effect in pending(state))
            return TimerFired(timer=timer) if wanted else Recorded(0)
        case _:
            assert_never(command)


def _admit_input(state: SessionState, command: SendInput) -> SessionEvent | Recorded:
    if state.configuration is None:
        raise CommandRejected("the session has no configuration yet; configure it first")
    content = without_blanks(command.content)
    if not content:
        raise CommandRejected("an input needs some content; send a text that is not blank, or an image")
    if (recorded := _recorded(state, "send", command.key, content)) is not None:
        return recorded
    return InputQueued(content=content, key=command.key, cancelled=command.cancelled)


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
    return HistoryImported(
        messages=imported_messages(command.messages, state.version + 1, first=not state.messages),
        key=command.key,
        digest=content_digest(command.messages),
    )


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
    call = find_call(state, command.call)
    if call is None or call.result is not None or call.approval != "requested":
        raise CommandRejected(f"{command.call} does not wait for approval; it was decided, has ended, or never was")
    return ToolApprovalDecided(call=command.call, allowed=command.allowed, reason=command.reason, key=command.key)


def _admit_resume(state: SessionState, command: ResumeRun) -> SessionEvent | Recorded:
    run = state.run
    if run is None or state.configuration is None or (run.parked and not command.asked):
        return Recorded(0)
    needed = {call.name for call in running_calls(state.turn)}
    return RunResumed(
        run=run.id,
        code=state.configuration.code,
        fingerprint=state.configuration.fingerprint,
        tools=tuple(sorted(needed.intersection(command.tools))),
        asked=command.asked,
        in_order=command.in_order,
    )


def _admit_response(state: SessionState, command: RecordModelResponse) -> SessionEvent | Recorded:
    if not _awaits_model(state, command.run, command.turn):
        return ModelInterrupted(turn=command.turn, content=command.content, usage=command.usage)
    version = state.version + 1
    index = 0
    content: list[AnswerContent] = []
    for block in without_blanks(command.content):
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
    call = find_call(state, command.call)
    content = without_blanks(command.content)
    if call is None or call.result is not None:
        if call is None and not _was_called(state, command.call):
            raise CommandRejected(f"{command.call} is no call of this session; its result belongs elsewhere")
        return ToolResultLate(call=command.call, content=content, kind=command.kind)
    if not call.started:
        raise CommandRejected(f"{command.call} has a result and was never started")
    if command.kind is None:
        return ToolCallCompleted(call=command.call, content=content)
    return ToolCallFailed(
        call=command.call, kind=command.kind, content=content or (TextBlock(text=FAILED_TEXT),), started=True
    )


def _was_called(state: SessionState, call: ToolCallId) -> bool:
    """Tell whether the history holds `call`; a result is late by a few messages, so the end is looked at first."""
    return any(use.id == call for message in reversed(state.messages) for use in tool_uses(message.content))
