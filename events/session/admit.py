"""What a session accepts: `admit` turns each command into the stimulus that it becomes, or refuses it.

Theory of operation: `admit` answers whether a command may happen now, and it is the only function that may refuse. Its
answer is one of three: an event, which the log keeps in place of the command; `Recorded`, where the command was
recorded before or there is nothing to do; or `CommandRejected`, after which nothing has changed. A person's command
that cannot happen is refused, so that they learn of it. What the world reports (an answer, a result, a timer) is never
refused for being late: it is recorded as evidence, or as nothing, since the reporter can do nothing about it. Whether a
run is parked makes no difference to either: it takes in all that it is told, and begins nothing.

Read `refold.events.session.commands` first. The rules: a command with a key that was recorded before gets the first
outcome; a result that is no longer waited for is evidence and never history; what providers would refuse in a history
does not get in.
"""

from bisect import bisect_right
from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec

from refold.events.core.content import (
    AnswerContent,
    JsonObject,
    TextBlock,
    ToolUseBlock,
    tool_uses,
    without_blanks,
)
from refold.events.core.errors import CommandRejected, QueueFull, quoted
from refold.events.core.ids import ToolCallId
from refold.events.core.pure_core import Recorded, WaitUntil, content_digest
from refold.events.model.configuration import AgentConfiguration, RunOptions
from refold.events.model.context_window import summary_fault
from refold.events.model.refused import by_hand
from refold.events.model.spending import price_of
from refold.events.session import commands
from refold.events.session import events as ev
from refold.events.session.evolve_calls import answer_digest
from refold.events.session.normalise import imported_messages
from refold.events.session.react import pending
from refold.events.session.set_aside import asides, require_undoable
from refold.events.session.state import (
    CALL_ID,
    ONLY_THOUGHT,
    CommandWord,
    SessionState,
    attempts_that_count,
    awaits_step,
    decision_digest,
    find_call,
    input_digest,
    input_key,
    question_id,
    run_of_input,
    running_calls,
    says_something,
)

FAILED_TEXT = "The tool failed and gave no reason."
"""The result of a failed call whose tool said nothing; providers refuse an error result without text."""

REJECTED_TEXT = "The answer could not be used. Answer again."
"""What the model is told where nobody says why; providers refuse a message without text."""


ALREADY_HANDED_OFF_TEXT = "The conversation goes on with {agent} already, so it was not handed on."
"""What the model is told of another handoff in the same answer."""

METADATA_BYTES_MAX = 16 * 1024
"""Most bytes of a session's metadata, keys and values together, in UTF-8."""

NEEDS_A_SESSION = (
    commands.Configure
    | commands.DescribeSession
    | commands.ImportHistory
    | commands.RecordContext
    | ev.ModelInterrupted
    | commands.RecordModelResponse
    | commands.SendInput
)
"""What is recorded even where no run is under way, and therefore must not come before the session is open."""


def admit(state: SessionState, command: commands.SessionCommand) -> ev.SessionEvent | Recorded:
    """Return the stimulus that `command` becomes, or that it has been recorded before."""
    if state.session is None and isinstance(command, NEEDS_A_SESSION):
        raise CommandRejected("the session is not open; open it first")
    return ADMITTERS[type(command)](state, command)


def _admit_opening(state: SessionState, command: commands.OpenSession) -> ev.SessionEvent | Recorded:
    if state.session is None:
        return ev.SessionOpened(session=command.session, agent=command.agent, graph_entities=command.graph_entities)
    if state.session != command.session:
        raise CommandRejected(f"this is session {state.session!r}, not {command.session!r}")
    return Recorded(1)


def _admit_configuration(state: SessionState, command: commands.Configure) -> ev.SessionEvent | Recorded:
    if command.configuration == state.configuration:
        return Recorded(state.configured)
    return ev.AgentConfigured(configuration=command.configuration)


def _admit_input(state: SessionState, command: commands.SendInput) -> ev.SessionEvent | Recorded:
    if state.configuration is None:
        raise CommandRejected("the session has no configuration yet; configure it first")
    content = without_blanks(command.content)
    if not content:
        raise CommandRejected("an input needs some content; send a text that is not blank, or an image")
    original, options = command.original, command.options
    digest = input_digest(original or content, options, command.every) if command.key is not None else None
    if (recorded := _recorded_as(state, "send", command.key, digest)) is not None:
        return recorded
    if options is not None:
        _require_possible(state.configuration, options, joins=command.now)
    _require_room(state, command.queue_max)
    if command.due_at is not None:
        if command.cancelled or command.now or command.stepwise:
            raise CommandRejected("an input for a later time can be neither for now nor step by step nor cancelled")
        timer = input_key(state.version + 1)
        return ev.TimerSet(
            timer=timer,
            due_at=command.due_at,
            content=content,
            key=command.key,
            original=original,
            options=options,
            every=command.every,
        )
    run = state.run
    if command.now and run is not None and run.ending is None and not run.finishing and not command.cancelled:
        return ev.InputQueued(content=content, key=command.key, joins=run.id, original=original)
    return ev.InputQueued(
        content=content,
        key=command.key,
        cancelled=command.cancelled,
        stepwise=command.stepwise,
        original=original,
        options=options,
    )


def _require_possible(configuration: AgentConfiguration, options: RunOptions, *, joins: bool) -> None:
    if joins:
        raise CommandRejected("an input that may join a run has no options of its own; leave out now, or the options")
    known = {policy.name for policy in configuration.tools}
    unknown = [name for name in options.tools or () if name not in known]
    if unknown:
        raise CommandRejected(
            f"agent {configuration.agent!r} has no tool {unknown[0]!r:.80}; it has {', '.join(sorted(known)) or 'none'}"
        )
    budget = configuration.budget
    if (
        options.model is not None
        and budget is not None
        and budget.cost is not None
        and price_of(options.model, configuration.prices) is None
    ):
        raise CommandRejected(
            f"the agent's budget limits the cost, and its prices have none for {quoted(options.model)}"
        )


def _require_room(state: SessionState, queue_max: int | None) -> None:
    joining = len(state.run.joining) if state.run is not None else 0
    waiting = len(state.queue) + len(state.scheduled) + joining
    if queue_max is not None and waiting >= queue_max:
        raise QueueFull(waiting, queue_max, of=f"session {state.session!r}")


def _admit_turn(state: SessionState, command: commands.AllowTurn) -> ev.SessionEvent | Recorded:
    run = state.run
    if run is None or (command.run is not None and command.run != run.id):
        raise CommandRejected(f"{command.run or 'no run'} is under way; send an input step by step first")
    if not awaits_step(run):
        raise CommandRejected(f"{run.id} does not wait for its next turn to be allowed")
    return ev.TurnAllowed(run=run.id, turn=run.turns + 1)


def _recorded(state: SessionState, word: CommandWord, key: str | None, content: object) -> Recorded | None:
    """Return what the command with `key` became before, if it is the same command; `content` None matches any."""
    digest = content_digest(content) if key is not None and content is not None else None
    return _recorded_as(state, word, key, digest)


def _recorded_as(state: SessionState, word: CommandWord, key: str | None, digest: str | None) -> Recorded | None:
    record = state.keys.get(key) if key is not None else None
    if record is None:
        return None
    if record.command != word or (digest is not None and record.digest != digest):
        raise CommandRejected(
            f"key {key!r} was used before (version {record.version}) for something else; use a new key"
        )
    return Recorded(record.version)


def _admit_description(state: SessionState, command: commands.DescribeSession) -> ev.SessionEvent | Recorded:
    user = state.user if command.user is None else command.user
    if state.user not in (None, user):
        # It names no user: as an outcome in the inbox it may outlive the user's deletion.
        raise CommandRejected(f"session {state.session!r} is another user's; use a session of the user that you name")
    changed = {**state.metadata, **command.metadata}
    metadata = {key: value for key, value in changed.items() if value is not None}
    if (user, metadata) == (state.user, state.metadata):
        return Recorded(0)
    size = sum(len(text.encode()) for item in metadata.items() for text in item)
    if size > METADATA_BYTES_MAX:
        raise CommandRejected(f"the metadata of a session has at most {METADATA_BYTES_MAX:,} bytes, not {size:,}")
    return ev.SessionDescribed(user=user, metadata=metadata)


def _admit_import(state: SessionState, command: commands.ImportHistory) -> ev.SessionEvent | Recorded:
    if (recorded := _recorded(state, "import", command.key, command.messages)) is not None:
        return recorded
    if state.run is not None:
        raise CommandRejected(f"{state.run.id} is under way; import a history before or after it")
    return ev.HistoryImported(
        messages=imported_messages(command.messages, state.version + 1, first=not state.messages),
        key=command.key,
        digest=content_digest(command.messages),
    )


def _admit_clear(state: SessionState, command: commands.ClearHistory) -> ev.SessionEvent | Recorded:
    if (recorded := _recorded(state, "clear", command.key, None)) is not None:
        return recorded
    if state.run is not None:
        raise CommandRejected(f"{state.run.id} is under way; cancel it, or clear the history after it")
    if not state.messages and command.key is None:
        return Recorded(state.cleared)
    return ev.HistoryCleared(key=command.key)


def _admit_rewinding(state: SessionState, command: commands.RewindHistory) -> ev.SessionEvent | Recorded:
    if (recorded := _recorded(state, "rewind", command.key, command.to)) is not None:
        return recorded
    if state.run is not None:
        raise CommandRejected(f"{state.run.id} is under way; cancel it, or take the history back after it")
    if command.to is None and not state.marks:
        return Recorded(0)
    to = state.marks[-1].started - 1 if command.to is None else command.to
    if not 0 < to <= state.version:
        has = f"has the versions 1 to {state.version}, and not {to}" if state.version else "has not begun"
        raise CommandRejected(f"the session {has}")
    if to < max(state.cleared, state.summarised):
        raise CommandRejected(
            f"the history was cleared or summarised after version {to}, so that it cannot be shown again; fork the "
            "session there"
        )
    place = bisect_right(state.marks, to, key=lambda mark: mark.started)
    if place and state.marks[place - 1].ended > to:
        begun, ended = state.marks[place - 1].started, state.marks[place - 1].ended
        raise CommandRejected(
            f"a run was under way after version {to}; name version {begun - 1}, before it, or {ended}, after it, or "
            "fork the session"
        )
    if place == len(state.marks):
        return Recorded(0)
    return ev.HistoryRewound(to=to, messages=state.marks[place].place, key=command.key)


def _admit_aside(state: SessionState, command: commands.SetContentAside) -> ev.SessionEvent | Recorded:
    if (recorded := _recorded(state, "aside", command.key, command.named)) is not None:
        return recorded
    if state.run is not None:
        raise CommandRejected(f"{state.run.id} is under way; cancel it, or set something aside after it")
    if command.at < max(state.summarised, state.cleared):
        raise CommandRejected("the history was summarised or cleared meanwhile; name again what is to be set aside")
    aside = asides(state, command.parts, by_hand(command.reason))
    if not aside:
        raise CommandRejected("nothing of it is in what the model is shown; it was set aside, summarised or cleared")
    digest = content_digest(command.named)
    return ev.InputSetAside(messages=aside, reason=command.reason, key=command.key, digest=digest)


def _admit_taking_back(state: SessionState, command: commands.TakeContentBack) -> ev.SessionEvent | Recorded:
    if (recorded := _recorded(state, "take back", command.key, command.aside)) is not None:
        return recorded
    if state.run is not None:
        raise CommandRejected(f"{state.run.id} is under way; cancel it, or take something back after it")
    require_undoable(state, command.aside)
    return ev.ContentTakenBack(aside=command.aside, reason=command.reason, key=command.key)


def _admit_cancel(state: SessionState, command: commands.CancelRun) -> ev.SessionEvent | Recorded:
    run = state.run
    wanted = command.run if command.run is not None else (run.id if run is not None else None)
    if (recorded := _recorded(state, "cancel", command.key, command.run)) is not None:
        return recorded
    if wanted is None:
        return Recorded(0)
    queued = any(entry.run == wanted and not entry.cancelled for entry in state.queue)
    scheduled = any(run_of_input(entry.version) == wanted for entry in state.scheduled)
    if queued or scheduled or (run is not None and run.id == wanted):
        return ev.CancelRequested(run=wanted, reason=command.reason, key=command.key)
    return Recorded(0)


def _admit_decision(state: SessionState, command: commands.DecideApproval) -> ev.SessionEvent | Recorded:
    if command.always and not command.allowed:
        raise CommandRejected("only an allowance can hold for always; deny each call by itself")
    if command.input is not None and (command.always or not command.allowed):
        raise CommandRejected("only a call that is allowed can get other arguments, and for this time only")
    if (recorded := _recorded_as(state, "decide", command.key, decision_digest(command))) is not None:
        return recorded
    call = find_call(state, command.call)
    if call is None or call.result is not None or call.approval != "requested":
        named = _named(command.call)
        raise CommandRejected(f"{named} does not wait for approval; it was decided, has ended, or never was")
    return ev.ToolApprovalDecided(
        call=command.call,
        allowed=command.allowed,
        reason=command.reason,
        key=command.key,
        always=command.always,
        input=command.input,
    )


def _named(name: str) -> str:
    """Return a name that a caller gave as the subject of a sentence; one that nobody can see is quoted."""
    return name if name.strip() else repr(name)


def _admit_answer(state: SessionState, command: commands.AnswerQuestion) -> ev.SessionEvent | Recorded:
    if (recorded := _recorded_as(state, "answer", command.key, answer_digest(command))) is not None:
        return recorded
    call, at_work = find_call(state, command.call), state.turn
    asked = call.question if call is not None and at_work is not None and call.id in at_work.asking else None
    if asked is None or command.number not in (None, asked.number):
        named = _named(question_id(command.call, command.number))
        raise CommandRejected(f"{named} does not wait for an answer; it was answered, has ended, or never was asked")
    return ev.QuestionAnswered(
        call=command.call, number=asked.number, answer=command.answer, error=command.error, key=command.key
    )


def _admit_question(state: SessionState, command: commands.RecordQuestion) -> ev.SessionEvent | Recorded:
    run, call, at_work = state.run, find_call(state, command.call), state.turn
    if run is None or call is None or at_work is None or call.id not in at_work.running:
        return Recorded(0)
    if 0 < command.attempt <= call.failed_attempts or command.number != len(call.answers) + 1:
        return Recorded(0)
    return ev.QuestionAsked(
        run=run.id,
        call=call.id,
        number=command.number,
        question=command.question,
        answer_schema=command.answer_schema,
        gives_result=command.gives_result,
        expires_at=command.expires_at,
    )


def _admit_resume(state: SessionState, command: commands.ResumeRun) -> ev.SessionEvent | Recorded:
    run = state.run
    if run is None or state.configuration is None or (run.parked and not command.asked):
        return Recorded(0)
    needed = {call.name for call in running_calls(state.turn)}
    return ev.RunResumed(
        run=run.id,
        code=state.configuration.code,
        fingerprint=state.configuration.fingerprint,
        tools=tuple(sorted(needed.intersection(command.tools))),
        asked=command.asked,
        in_order=command.in_order,
        waited=command.waited,
        code_changed=command.code_changed,
    )


def _admit_context(state: SessionState, command: commands.RecordContext) -> ev.SessionEvent | Recorded:
    if command.after != state.summarised:
        return Recorded(state.summarised)
    run = state.run
    if run is None or not _awaits_model(state, command.run, command.turn, command.asked):
        return ev.ModelInterrupted(turn=command.turn, usage=command.usage, asked=command.asked)
    fault = summary_fault(state.messages, run.latest_input, command.replaced, command.summary)
    if fault is not None:
        raise CommandRejected(f"a summary cannot stand there: {fault}")
    return ev.ContextPrepared(
        run=command.run,
        replaced=command.replaced,
        summary=command.summary,
        usage=command.usage,
        model=command.model,
        request=command.request,
    )


def _admit_request(state: SessionState, command: ev.RequestBuilt) -> ev.SessionEvent | Recorded:
    return copy(command) if _awaits_model(state, command.run, command.turn, command.asked) else Recorded(0)


def _admit_trip(state: SessionState, command: commands.RecordGuardrailTrip) -> ev.SessionEvent | Recorded:
    if not _awaits_model(state, command.run, command.turn, command.asked):
        return Recorded(0)
    return ev.GuardrailTripped(run=command.run, turn=command.turn, trip=command.trip)


def _admit_interruption(state: SessionState, command: ev.ModelInterrupted) -> ev.SessionEvent | Recorded:
    return msgspec.structs.replace(command, content=without_blanks(command.content))


def _admit_failure(state: SessionState, command: commands.RecordModelFailure) -> ev.SessionEvent | Recorded:
    if not _awaits_model(state, command.run, command.turn, command.asked):
        return Recorded(0)
    return ev.ModelFailed(
        run=command.run,
        turn=command.turn,
        kind=command.kind,
        message=command.message,
        status=command.status,
        retryable=command.retryable,
        retry_after_s=float(command.retry_after_s) if command.retry_after_s is not None else None,
        request=command.request,
        keeps_content=command.keeps_content,
    )


def _admit_response(state: SessionState, command: commands.RecordModelResponse) -> ev.SessionEvent | Recorded:
    if not _awaits_model(state, command.run, command.turn, command.asked):
        return ev.ModelInterrupted(turn=command.turn, content=command.content, usage=command.usage, asked=command.asked)
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
                    provider_data=block.provider_data,
                )
            )
            index += 1
        else:
            content.append(block)
    if index != len(command.verdicts):
        raise CommandRejected(f"an answer with {index} tool calls came with {len(command.verdicts)} verdicts")
    if index and command.rejected:
        raise CommandRejected(f"an answer with {index} tool calls cannot be rejected as a whole; its calls can")
    return ev.ModelResponded(
        run=command.run,
        turn=command.turn,
        content=tuple(content),
        stop_reason=command.stop_reason,
        usage=command.usage,
        model=command.model,
        request=command.request,
        verdicts=command.verdicts,
        rejected=command.rejected if command.rejected.strip() or not command.rejected else REJECTED_TEXT,
        stop_details=command.stop_details or _stop_details(command, content),
        refused=command.refused,
        trip=command.trip,
    )


def _stop_details(command: commands.RecordModelResponse, content: list[AnswerContent]) -> JsonObject | None:
    """Return the reason itself where it ends the run, or may, so that the log tells why without anything else."""
    if command.stop_reason == "refusal":
        return {"type": command.stop_reason}
    if says_something(content):
        return None
    if command.stop_reason == "max_tokens":
        return {"type": command.stop_reason}
    # What says nothing and is no thought is blank, and left out before.
    ended = command.stop_reason in ("end_turn", "stop_sequence") and not command.rejected
    return {"type": ONLY_THOUGHT} if ended and content else None


def _awaits_model(state: SessionState, run: str, turn: int, asked: int) -> bool:
    """A call that is made again has another `asked`."""
    current = state.run
    if current is None or current.id != run or current.phase != "model":
        return False
    return current.turns == turn and asked in (0, current.asked)


def _admit_tool_result(state: SessionState, command: commands.RecordToolResult) -> ev.SessionEvent | Recorded:
    call = find_call(state, command.call)
    content = without_blanks(command.content)
    if call is None or call.result is not None:
        if call is None and not _was_called(state, command.call):
            raise CommandRejected(f"{command.call} is no call of this session; its result belongs elsewhere")
        return ev.ToolResultLate(call=command.call, content=content, kind=command.kind)
    if not call.started:
        raise CommandRejected(f"{command.call} has a result and was never started")
    turn = state.turn
    runs = turn is not None and (call.id in turn.running or call.id in turn.awaiting)
    if not runs or 0 < command.attempt <= call.failed_attempts:  # That this body failed, or what it asked, is recorded.
        return Recorded(0)
    if command.handoff is not None and state.run is not None and state.run.handoff is not None:
        text = ALREADY_HANDED_OFF_TEXT.format(agent=state.run.handoff.agent)
        return ev.ToolCallFailed(call=command.call, kind="denied", content=(TextBlock(text=text),), started=True)
    if command.kind is None:
        return ev.ToolCallCompleted(
            call=command.call,
            content=content,
            ends_run=command.ends_run,
            handoff=command.handoff,
            original=command.original,
            hidden=command.hidden,
        )
    kind, content = command.kind, content or (TextBlock(text=FAILED_TEXT),)
    if command.again and attempts_that_count(call, 0) is not None:
        return ev.ToolAttemptFailed(
            call=command.call,
            attempt=call.failed_attempts + 1,
            kind=kind,
            content=content,
            original=command.original,
            hidden=command.hidden,
        )
    if kind == "shed" and call.failure is not None:  # What failed before says more than that it is left alone now.
        kind, content = call.failure.kind, call.failure.content
    return ev.ToolCallFailed(
        call=command.call,
        kind=kind,
        content=content,
        started=True,
        broken=command.broken,
        recovery=command.recovery if command.broken else None,
        original=command.original,
        hidden=command.hidden,
    )


def _was_called(state: SessionState, call: ToolCallId) -> bool:
    """Tell whether the session made `call`; a result is late by a few messages, so the end is looked at first."""
    if (cleared := CALL_ID.fullmatch(call)) is not None and int(cleared[2]) < state.cleared_calls.get(cleared[1], 0):
        return True
    return any(use.id == call for message in reversed(state.messages) for use in tool_uses(message.content))


def _admit_timer(state: SessionState, command: ev.TimerFired) -> ev.SessionEvent | Recorded:
    timer = command.timer
    wanted = any(type(effect) is WaitUntil and effect.key == timer for effect in pending(state))
    first = state.scheduled[0] if state.scheduled else None
    again = first is not None and first.timer == timer and first.every is not None
    if not wanted or not again:
        return ev.TimerFired(timer=timer) if wanted else Recorded(0)
    return copy(command)


def _admit_waiting(state: SessionState, command: ev.ToolCallWaiting) -> ev.SessionEvent | Recorded:
    turn, call = state.turn, command.call
    if turn is None or call not in turn.running or (call in turn.waiting) == command.waits:
        return Recorded(0)
    return copy(command)


ADMITTERS: dict[type, Callable[[SessionState, Any], ev.SessionEvent | Recorded]] = {
    commands.OpenSession: _admit_opening,
    commands.DescribeSession: _admit_description,
    commands.Configure: _admit_configuration,
    commands.ImportHistory: _admit_import,
    commands.ClearHistory: _admit_clear,
    commands.RewindHistory: _admit_rewinding,
    commands.SetContentAside: _admit_aside,
    commands.TakeContentBack: _admit_taking_back,
    commands.SendInput: _admit_input,
    commands.AllowTurn: _admit_turn,
    commands.CancelRun: _admit_cancel,
    commands.DecideApproval: _admit_decision,
    commands.AnswerQuestion: _admit_answer,
    commands.ResumeRun: _admit_resume,
    commands.RecordContext: _admit_context,
    ev.RequestBuilt: _admit_request,
    commands.RecordModelResponse: _admit_response,
    commands.RecordGuardrailTrip: _admit_trip,
    ev.ModelInterrupted: _admit_interruption,
    commands.RecordModelFailure: _admit_failure,
    commands.RecordToolResult: _admit_tool_result,
    commands.RecordQuestion: _admit_question,
    ev.ToolCallWaiting: _admit_waiting,
    ev.TimerFired: _admit_timer,
}
"""What admits each command; a test says that none is missing."""
