"""How the events of tool calls change a session's turn under way, and what an answer, or its absence, is for a call.

Part of `refold.events.session.evolve`, which says what holds for both. The places that a turn keeps move forward with
its calls, so that no event walks over all calls of a long answer.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Any

import msgspec

from refold.events.core.content import (
    FORKED_TEXT,
    NOT_RUN_IN_FORK_TEXT,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    error_result,
    text_of,
    texts_of,
    without_blanks,
)
from refold.events.core.ids import ToolCallId
from refold.events.core.pure_core import Wait, WaitUntil, content_digest
from refold.events.model.configuration import ToolPolicy
from refold.events.session import events as ev
from refold.events.session.commands import AnswerQuestion
from refold.events.session.state import (
    Ending,
    Run,
    SessionKey,
    SessionState,
    Turn,
    TurnCall,
    action_of,
    answer_key,
    decision_digest,
    expiry_key,
    find_call,
    needs_approval,
    needs_verdict,
    results_message,
    retry_key,
)

NOT_ANSWERED_TEXT = "There was no answer in time."

CHANGED_CHARACTERS_MAX = 10_000
"""Arguments that a person changed are cut after so many characters of JSON where the model is told of them."""


def turn_of(
    state: SessionState, uses: list[ToolUseBlock], verdicts: tuple[ev.Verdict, ...], truncated: bool = False
) -> Turn:
    calls = [
        TurnCall(use.id, use.name, use.input, state.policies.get(use.name) or ToolPolicy(use.name), verdict)
        for use, verdict in zip(uses, verdicts, strict=True)
    ]
    turn = Turn(
        calls=calls,
        index={call.id: place for place, call in enumerate(calls)},
        truncated=truncated,
        open=len(calls),
    )
    if state.allowed_actions and not truncated:
        for call in calls:
            if needs_approval(call) and action_of(call) in state.allowed_actions:
                call.approval = "allowed"
    _advance_places(turn)
    return turn


def approval_requested(state: SessionState, event: ev.ToolApprovalRequested) -> None:
    turn = _turn(state)
    place = turn.index[event.call]
    call = turn.calls[place]
    call.approval = "requested"
    call.requested_at, call.expires_at = state.at, event.expires_at
    _runs_no_more(turn, call)
    turn.awaiting[call.id] = state.version
    _begin_again(turn, place)


def approval_decided(state: SessionState, event: ev.ToolApprovalDecided) -> None:
    turn = _turn(state)
    call = turn.calls[turn.index[event.call]]
    call.approval = "allowed" if event.allowed else "denied"
    call.approval_reason = event.reason
    if event.input is not None:
        call.input, call.changed = event.input, True
    turn.awaiting.pop(call.id, None)
    if event.always:
        state.allowed_actions.setdefault(action_of(call), state.version)
    if event.key is not None:
        state.keys[event.key] = SessionKey(state.version, decision_digest(event), "decide")


def call_started(state: SessionState, event: ev.ToolCallStarted) -> None:
    turn = _turn(state)
    turn.calls[turn.index[event.call]].started = True
    turn.running[event.call] = state.version
    _advance_places(turn)


def attempt_failed(state: SessionState, event: ev.ToolAttemptFailed) -> None:
    turn = _turn(state)
    call = turn.calls[turn.index[event.call]]
    call.failure = event
    _runs_no_more(turn, call)
    if event.kind == "transient" and state.run is not None:
        state.run.resumes = 0


def pause_scheduled(state: SessionState, event: ev.RetryScheduled, call: ToolCallId) -> None:
    turn = _turn(state)
    turn.pausing[call] = state.version
    turn.calls[turn.index[call]].retry_at = event.due_at
    _advance_places(turn)


def pause_over(state: SessionState, timer: str) -> None:
    """Let the call whose pause is over be the next to start."""
    turn = state.turn
    if turn is None:
        return
    call = next((call for call, scheduled in turn.pausing.items() if retry_key(scheduled) == timer), None)
    if call is not None:
        del turn.pausing[call]
        _begin_again(turn, turn.index[call])


def answer_digest(answer: AnswerQuestion | ev.QuestionAnswered) -> str:
    return content_digest((answer.call, answer.answer, answer.error))


def question_asked(state: SessionState, event: ev.QuestionAsked) -> None:
    turn = _turn(state)
    place = turn.index[event.call]
    turn.calls[place].question = event
    _runs_no_more(turn, turn.calls[place])
    turn.asking[event.call] = state.version
    if event.expires_at is not None:
        insort(turn.expiring, (event.expires_at, place))
    if state.run is not None:
        state.run.resumes = 0
    _advance_places(turn)


def question_answered(state: SessionState, event: ev.QuestionAnswered) -> None:
    turn = _turn(state)
    place = turn.index[event.call]
    turn.calls[place].answers.append(event)
    _asks_no_more(turn, place)
    if event.key is not None:
        state.keys[event.key] = SessionKey(state.version, answer_digest(event), "answer")
    _begin_again(turn, place)


def _asks_no_more(turn: Turn, place: int) -> None:
    call = turn.calls[place]
    if turn.asking.pop(call.id, None) is None or call.question is None or call.question.expires_at is None:
        return
    del turn.expiring[bisect_left(turn.expiring, (call.question.expires_at, place))]


def answer_out_of_time(state: SessionState, timer: str) -> ev.SessionEvent | None:
    """Return that a call gets no answer, where the time for it is over and that is what the timer is of."""
    asking = state.turn.asking if state.turn is not None else {}
    call = next((call for call, asked in asking.items() if expiry_key(asked) == timer), None)
    found = find_call(state, call) if call is not None else None
    if found is None or found.question is None:
        return None
    number = found.question.number
    return ev.QuestionAnswered(call=found.id, number=number, error=NOT_ANSWERED_TEXT, expired=True)


def waits_for_answers(run: Run, turn: Turn, calls_max: int) -> list[Wait | WaitUntil]:
    """Return the waits of calls that asked: for an answer, and for the end of the time for it.

    Of so many calls, those that asked first; of the others it is the one wait that is over next.
    """
    waits: list[Wait | WaitUntil] = []
    for call, asked in islice(turn.asking.items(), calls_max):
        waits.append(Wait(key=answer_key(asked), causation=asked, correlation=run.input))
        question = turn.calls[turn.index[call]].question
        if question is not None and question.expires_at is not None:
            waits.append(wait_until(run, expiry_key(asked), asked, question.expires_at))
    if turn.expiring and len(turn.asking) > calls_max:
        due_at, place = turn.expiring[0]
        asked = turn.asking[turn.calls[place].id]
        first = wait_until(run, expiry_key(asked), asked, due_at)
        waits += [] if first in waits else [first]
    return waits


def wait_until(run: Run, key: str, causation: int, due_at: int) -> WaitUntil:
    return WaitUntil(key=key, causation=causation, correlation=run.input, due_at=due_at, pause=True)


def result_given(state: SessionState, event: ev.QuestionAnswered) -> ev.SessionEvent | None:
    """Return the result of a call that is what was answered; None where its body goes on with the answer."""
    call = find_call(state, event.call)
    if call is None or call.question is None or not call.question.gives_result:
        return None
    if event.error is not None:
        return ev.ToolCallFailed(
            call=event.call,
            kind="timeout" if event.expired else "permanent",
            content=(TextBlock(text=event.error),),
            started=True,
        )
    said = event.answer if isinstance(event.answer, str) else msgspec.json.encode(event.answer).decode()
    return ev.ToolCallCompleted(call=event.call, content=without_blanks((TextBlock(text=said),)))


def call_completed(state: SessionState, event: ev.ToolCallCompleted) -> None:
    run = state.run
    if run is not None:
        run.resumes = 0
        if event.ends_run and not run.finishing:
            run.finishing, run.final, run.stop_reason = True, texts_of(event.content), "end_turn"
        if event.handoff is not None:
            run.handoff, run.handed_by = event.handoff, event.call
    content = (*_told_of_change(state, event.call), *event.content)
    _answer(state, event.call, ToolResultBlock(tool_use_id=event.call, content=content))


def call_failed(state: SessionState, event: ev.ToolCallFailed) -> None:
    if event.kind in ("transient", "permanent") and state.run is not None:
        state.run.resumes = 0
    if event.broken:
        note_breakage(state, text_of(event.content), event.recovery)
    told = _told_of_change(state, event.call) if event.started and event.kind != "cancelled" else ()
    content = (*told, *event.content)
    _answer(state, event.call, ToolResultBlock(tool_use_id=event.call, content=content, is_error=True, kind=event.kind))


def _told_of_change(state: SessionState, call_id: ToolCallId) -> tuple[TextBlock, ...]:
    """Return what the model is told in front of a result whose call ran with other arguments than it gave.

    Its own message keeps those, since a provider takes only what it said itself; so it would take the result for that
    of its own arguments.
    """
    turn = _turn(state)
    call = turn.calls[turn.index[call_id]]
    if not call.changed:
        return ()
    arguments = msgspec.json.encode(call.input).decode()
    if len(arguments) > CHANGED_CHARACTERS_MAX:
        arguments = f"{arguments[:CHANGED_CHARACTERS_MAX]}…"
    reason = f" The person said: {call.approval_reason}" if call.approval_reason.strip() else ""
    return (TextBlock(text=f"A person changed the arguments of this call. It ran with: {arguments}{reason}\n"),)


def call_waiting(state: SessionState, event: ev.ToolCallWaiting) -> None:
    turn = _turn(state)
    if event.waits:
        turn.waiting[event.call] = None
    else:
        turn.waiting.pop(event.call, None)


def result_late(state: SessionState, event: ev.ToolResultLate) -> None:
    """Evidence about a call that was answered: nothing in the state depends on it."""


def _answer(state: SessionState, call: ToolCallId, result: ToolResultBlock) -> None:
    turn = _turn(state)
    place = turn.index[call]
    answered = turn.calls[place]
    assert answered.result is None, f"version {state.version} answers {call} again"
    answered.result = result
    _runs_no_more(turn, answered)
    turn.awaiting.pop(call, None)
    turn.pausing.pop(call, None)
    _asks_no_more(turn, place)
    turn.open -= 1
    _advance_places(turn)
    if turn.open:
        return
    state.messages.append(results_message(turn))
    state.turn = None
    run = state.run
    if run is None:
        return
    if not turn.broken:
        run.breakages = 0
    if run.phase == "tools":
        run.phase = "answered" if run.finishing else "ready"


def close_for_fork(state: SessionState, event: ev.SessionForked) -> None:
    """Answer the open calls of a session that is forked: with given results, and what must not be done again.

    Where the run waits in the fork, a call that has not begun may begin there, and a pure one is done again; an
    approval is asked for again, and neither it nor a question expires.
    """
    given = {result.tool_use_id: result for result in event.results}
    turn = state.turn
    for call in list(turn.calls) if turn is not None else ():
        if call.result is not None:
            continue
        if (result := given.get(call.id)) is not None:
            _answer(state, call.id, result)
        elif call.started and (call.policy.effect != "pure" or not event.keeps_run):
            _answer(state, call.id, error_result(call.id, "crashed", FORKED_TEXT))
        elif not event.keeps_run:
            _answer(state, call.id, error_result(call.id, "cancelled", NOT_RUN_IN_FORK_TEXT))
        else:
            call.expires_at = None
            if call.question is not None:
                call.question = msgspec.structs.replace(call.question, expires_at=None)
    if turn is not None:
        turn.expiring.clear()


def note_breakage(state: SessionState, message: str, recovery: str | None) -> None:
    """Count a turn in which carrying out calls broke, and have the run end where that was once too often.

    `recovery` is what a function said of it: nothing, so that the run ends, or what the model is told; None = none did.
    """
    run, turn, configuration = state.run, state.turn, state.configuration
    if run is None or turn is None or configuration is None or (turn.broken and recovery != ""):
        return
    run.breakages += 0 if turn.broken else 1
    turn.broken = True
    stops = recovery == "" or configuration.error_recovery == "stop"
    if stops or run.breakages > configuration.recoveries_max:
        run.phase, run.ending = "ending", Ending("failed", "tool_execution", message)


def _advance_places(turn: Turn) -> None:
    """Move the turn's places over what is settled, so that deciding what comes next never walks all calls."""
    calls, count = turn.calls, len(turn.calls)
    place = turn.first_open
    while place < count and calls[place].result is not None:
        place += 1
    turn.first_open = place
    place = turn.checked
    while place < count and not needs_verdict(calls[place], turn):
        place += 1
    turn.checked = place
    place = turn.begun
    while place < count and _is_begun(turn, calls[place]):
        place += 1
    turn.begun = place
    while turn.again and _is_begun(turn, calls[turn.again[0]]):
        heappop(turn.again)


def _runs_no_more(turn: Turn, call: TurnCall) -> None:
    """Note that the body of a call has ended, or is not waited for; so no crash has interrupted it, parked or not."""
    call.lost = False
    turn.running.pop(call.id, None)
    turn.waiting.pop(call.id, None)


def _begin_again(turn: Turn, place: int) -> None:
    """Have a call start that has ended without a result, before all that come after it."""
    if place < turn.begun:
        heappush(turn.again, place)
    _advance_places(turn)


def _is_begun(turn: Turn, call: TurnCall) -> bool:
    begun = call.id in turn.running or call.id in turn.pausing or call.id in turn.asking
    return begun or call.result is not None


def _turn(state: SessionState) -> Turn:
    turn = state.turn
    assert turn is not None, f"version {state.version} is about a tool call and none is open"
    return turn


CALL_FOLDERS: dict[type, Callable[[SessionState, Any], None]] = {
    ev.ToolApprovalRequested: approval_requested,
    ev.ToolApprovalDecided: approval_decided,
    ev.ToolCallStarted: call_started,
    ev.QuestionAsked: question_asked,
    ev.QuestionAnswered: question_answered,
    ev.ToolAttemptFailed: attempt_failed,
    ev.ToolCallCompleted: call_completed,
    ev.ToolCallFailed: call_failed,
    ev.ToolResultLate: result_late,
    ev.ToolCallWaiting: call_waiting,
}
"""What each event of a call changes."""
