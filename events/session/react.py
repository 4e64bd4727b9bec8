"""What a session decides: `react` and `pending`.

Theory of operation
-------------------

A session is a queue of inputs and at most one run, which answers them. Each fact from outside (an input, a model's
answer, a tool's result, a person's decision, a timer) enters as one event, the stimulus. `evolve` says what is true
after it, and then `react` is asked what follows. It takes one small step: `_next` looks at the state and names the one
event that comes now. `plan` evolves that event and asks again, until nothing follows. So a decision is never taken from
a state that is out of date, and all consequences of a stimulus are one batch of the log: after a crash either all of
them are there or none is.

What waits for the world is not decided here but wanted: `pending` is a function of the state, so that a process which
folds the log after a crash wants the same work as the one that died. An effect has a key; the shell begins what is
wanted and not in flight, and cancels what is in flight and no longer wanted.

A run goes through these phases (`Run.phase`); the table in `docs/architecture.md` shows every way between them.

    ready      the next turn may begin        -> model      by ModelRequested
    model      a model call is wanted         -> tools, ready, answered   by ModelResponded, with calls, or unusable, or
                                                 with the final answer
                                              -> waiting    by RetryScheduled, which follows a ModelFailed
    waiting    a pause before the retry       -> model      by TimerFired
    tools      calls are unanswered           -> ready      by the result of the last one
    answered   the final answer is there      -> no run     by RunCompleted; or -> model, if an input has joined the run
    ending     it is cancelled or has failed  -> no run     by RunCancelled or RunFailed, when no call is open

Beside the phase a run may be parked: it crashed too often without progress, and only a person moves it on.

A run ends exactly once. Its final answer completes it, or a tool that ends the run. It fails by a limit (turns, budget,
time, unusable answers in a row) or by an error that is not retried: where no call is open `_no_further_turn` says so,
otherwise `evolve` sets `Run.ending`, as it does for a cancellation.

Why cancellation balances: providers refuse a history in which a call has no result. `ending` therefore does not end the
run. While a call is open, `_end` answers the first open one with an error result that says why, one event at a time,
and the run's terminal event follows when `evolve` has closed the turn. Since those events are one batch with the
stimulus, no reader of the log ever sees a cancelled run with an open call. What the body of such a call still returns
is recorded as ToolResultLate and never enters the history.

A retry is decided in one place each: of a model call in `_retry`, of a tool call in `_after_attempt`, of an unusable
answer in `_no_further_turn`, of a call that a crash interrupted in `_closed_lost`. The counts that they read are kept
by `evolve`. Between two attempts a call is open and does not run: it waits in `Turn.pausing`, beside what else goes on,
and then starts like a call that has not begun.

Read `refold.events.session.state` first, and `refold.events.core.pure_core` for what the functions are. The rule
protected here: a run ends exactly once, and never before each of its calls has exactly one result.
"""

from itertools import islice
from typing import ClassVar, assert_never, get_args

import msgspec

from refold.events.core.content import (
    CANCELLED_TEXT,
    CRASHED_IMPORT_TEXT,
    CRASHED_TEXT,
    ErrorKind,
    JsonObject,
    TextBlock,
)
from refold.events.core.ids import ToolCallId
from refold.events.core.pure_core import Effect, Wait, WaitUntil
from refold.events.model.configuration import CODE_CHANGED, attempts_counted, retry_delay_us, when_resumed
from refold.events.model.refused import GUARDED, Part, RefusedParts, inputs_unanswered, parts_said
from refold.events.session import events as ev
from refold.events.session.evolve_calls import answer_out_of_time, result_given, wait_until, waits_for_answers
from refold.events.session.set_aside import asides, refused_content
from refold.events.session.state import (
    Run,
    SessionState,
    Turn,
    TurnCall,
    action_of,
    approval_key,
    attempts_that_count,
    awaits_person,
    awaits_step,
    budget_spent,
    calls_awaiting_approval,
    configuration_of_run,
    deadline_key,
    expiry_key,
    find_call,
    reason_to_ask,
    resume_key,
    retry_key,
    run_totals,
    running_calls,
)

TRUNCATED_ANSWERS_MAX = 2
"""How often in a row an answer that was cut inside its tool calls is asked again."""

TRUNCATED_TEXT = (
    "The answer was cut off at the token limit, so no call of it was run. Answer again with fewer or shorter calls."
)
DENIED_TEXT = "Denied: the call was not run."
INVALID_ARGUMENTS_TEXT = "The arguments do not fit the tool, so the call was not run."
NOT_FOUND_TEXT = "There is no tool of that name, so nothing was run."

EXPIRED_TEXT = "Denied: nobody allowed the call in time, so it was not run."
ENDED_TEXT = "The run was ended by another call of the same answer, so this one was not run."
ABANDONED_TEXT = "The run failed before the call was answered."
BROKEN_TEXT = "The call could not be carried out, so it was not run. Try again with fewer or simpler calls."

NOT_FOUND = 404
"""What a server answers to a model or an address that it does not know: it says nothing of what the request holds."""

SETS_ASIDE_SINCE = 5
"""The first `CORE_VERSION` that sets aside what a provider refuses."""

CALLS_RUNNING_MAX = 100
"""Most calls of one answer that run beside each other, or are put to a person; the next follows when one has ended."""


class CallModel(Effect, frozen=True, kw_only=True):
    """Ask the model for its next answer."""

    turn: int


class AskPerson(Effect, frozen=True, kw_only=True):
    """Have a person allow or deny a call."""

    idle: ClassVar[bool] = True

    call: ToolCallId
    tool: str
    input: JsonObject
    reason: str
    action: str
    requested_at: int
    expires_at: int | None


class RunTool(Effect, frozen=True, kw_only=True):
    """Run the body of a tool, once."""

    call: ToolCallId
    name: str
    input: JsonObject
    attempt: int = 1
    """Which attempt at the call this is."""
    answers: tuple[ev.QuestionAnswered, ...] = ()
    """What its body is given, in the order of its questions."""
    again: bool = False
    """Another one may follow if this one fails in a way that may pass, though never beside it."""


SessionEffect = CallModel | RunTool | AskPerson | Wait | WaitUntil


def react(state: SessionState, event: ev.SessionEvent) -> list[ev.SessionEvent]:
    """Return what follows from `event`, which `state` already includes, oldest first."""
    kind = type(event)
    if kind in FOLLOWED_BY_NOTHING:
        return []
    follows = _next(state) if kind in FOLLOWED_BY_NEXT else _follows(state, event)
    if follows and type(follows[-1]) in ENDS and state.run is not None:
        follows[-1] = msgspec.structs.replace(follows[-1], totals=run_totals(state, state.run))
    return follows


ENDS = frozenset(get_args(ev.TerminalEvent))

FOLLOWED_BY_NOTHING = frozenset(
    {
        ev.SessionOpened, ev.SessionDescribed, ev.HistoryCleared, ev.HistoryRewound, ev.SessionForked,
        ev.ContentTakenBack, ev.TimerSet, ev.ModelRequested, ev.ModelInterrupted, ev.ToolResultLate, ev.ToolCallWaiting,
    }
)  # fmt: skip

FOLLOWED_BY_NEXT = ENDS | {
    ev.InputQueued, ev.RunStarted, ev.ToolCallStarted, ev.ToolCallCompleted, ev.ToolCallFailed,
    ev.ContextPrepared, ev.RequestBuilt,
}  # fmt: skip
"""Events that have no case of their own in `_follows`; those that are left out only take longer."""


def _follows(state: SessionState, event: ev.SessionEvent) -> list[ev.SessionEvent]:
    match event:
        case ev.ModelResponded(refused=None):
            return _next(state)
        case ev.AgentConfigured():  # It follows only from a handoff.
            return _hand_off(state, state.run) if state.run is not None and state.run.handoff is not None else []
        case ev.ToolApprovalDecided(allowed=False):
            return [_denied(state, event.call, "denied", _said(event.reason, DENIED_TEXT))]
        case ev.ToolApprovalDecided(always=True):
            return _allowed_as_well(state, event) or _next(state)
        case ev.TimerFired(timer=timer) if (expired := _expired(state, timer)) is not None:
            return [_denied(state, expired, "denied", EXPIRED_TEXT)]
        case ev.TimerFired(timer=timer) if (unanswered := answer_out_of_time(state, timer)) is not None:
            return [unanswered]
        case ev.QuestionAnswered() if (result := result_given(state, event)) is not None:
            return [result]
        case ev.ModelFailed() if (retry := _retry(state, event)) is not None:
            return [retry]
        case ev.ModelResponded(refused=RefusedParts(parts=parts, reason=reason)) if set_aside := asides(state, parts):
            return [ev.InputSetAside(messages=set_aside, reason=reason)]
        case ev.GuardrailTripped() if set_aside := asides(state, _unanswered(state), GUARDED):
            return [ev.InputSetAside(messages=set_aside, reason=str(event.trip))]
        case ev.ModelFailed(kind="invalid_request", keeps_content=False, status=status) if (
            status != NOT_FOUND and _sets_aside(state) and (refused := refused_content(state))
        ):
            return [ev.InputSetAside(messages=refused, reason=event.message)]
        case ev.ToolAttemptFailed():
            return [_after_attempt(state, event)]
        case ev.RunResumed() if state.run is not None and state.configuration is not None:
            run = state.run
            if when_resumed(state.configuration, changed=event.code_changed, asked=event.asked) == "park":
                return [ev.RunParked(run=run.id, reason=f"{CODE_CHANGED} Resume or cancel it")]
            if run.resumes > state.configuration.resumes_max and run.ending is None:
                times = run.resumes - 1
                return [ev.RunParked(run=run.id, reason=f"resumed {times} times without progress; resume or cancel it")]
            return _close_lost(state) or _next(state)
        case ev.HistoryImported():
            return _close_lost(state)
        case _:
            return _next(state)


def _unanswered(state: SessionState) -> list[Part]:
    places = inputs_unanswered(state.messages, state.accepted)
    return [part for place in places for part in parts_said(place, state.messages[place])]


def _denied(state: SessionState, call_id: ToolCallId, kind: ErrorKind, text: str) -> ev.SessionEvent:
    call = find_call(state, call_id)
    # A call that a crash interrupted was put to a person. They denied that it runs again, and its first run may have
    # had its effect: the model must hear that the outcome is unknown and not that nothing was run.
    if call is not None and call.started:
        return _failed(call_id, "crashed", CRASHED_TEXT, started=True)
    return _failed(call_id, kind, text, started=False)


def _allowed_as_well(state: SessionState, event: ev.ToolApprovalDecided) -> list[ev.SessionEvent]:
    """Return the decisions about the other calls that wait and are of the action that was allowed always.

    Not about those that a crash interrupted: whether they run again is asked for each by itself.
    """
    decided = find_call(state, event.call)
    if decided is None:
        return []
    return [
        ev.ToolApprovalDecided(call=call.id, allowed=True, reason=event.reason)
        for call in calls_awaiting_approval(state)
        if action_of(call) == action_of(decided) and not call.started
    ]


def _expired(state: SessionState, timer: str) -> ToolCallId | None:
    awaiting = state.turn.awaiting if state.turn is not None else {}
    return next((call for call, requested in awaiting.items() if expiry_key(requested) == timer), None)


def _retry(state: SessionState, event: ev.ModelFailed) -> ev.SessionEvent | None:
    run, configuration = state.run, state.configuration
    policy = configuration.retry if configuration is not None else None
    if run is None or policy is None or not event.retryable or budget_spent(state, run) is not None:
        return None
    # Some kinds of error share a count: see the policy. None = this one was the last attempt.
    counted = attempts_counted(policy, run.failures, event.kind)
    if counted is None:
        return None
    # The jitter is drawn from names in the log and not from a random source, so that replay decides the same pause.
    pause_us = retry_delay_us(policy, counted, event.retry_after_s, f"{state.session}:{run.id}:{run.turns}")
    attempt = sum(run.failures.values())
    return ev.RetryScheduled(run=run.id, turn=run.turns, attempt=attempt, due_at=event.at + pause_us)


def _sets_aside(state: SessionState) -> bool:
    # Earlier cores let such a run fail and kept what it held: what they recorded is decided again as they did.
    return state.configuration is not None and state.configuration.code.core >= SETS_ASIDE_SINCE


def _after_attempt(state: SessionState, event: ev.ToolAttemptFailed) -> ev.SessionEvent:
    run, call = state.run, find_call(state, event.call)
    counted = attempts_that_count(call, event.attempt) if call is not None else None
    if run is None or call is None or call.policy.retries is None or counted is None:
        return ev.ToolCallFailed(
            call=event.call,
            kind=event.kind,
            content=event.content,
            started=True,
            original=event.original,
            hidden=event.hidden,
        )
    pause_us = retry_delay_us(call.policy.retries, counted, None, f"{state.session}:{call.id}")
    return ev.RetryScheduled(
        run=run.id, turn=run.turns, attempt=event.attempt, due_at=event.at + pause_us, call=event.call
    )


def _close_lost(state: SessionState) -> list[ev.SessionEvent]:
    turn = state.turn
    if turn is None:
        return []
    return [_closed_lost(state, call) for call in turn.calls[turn.first_open :] if call.lost and call.result is None]


def _closed_lost(state: SessionState, call: TurnCall) -> ev.SessionEvent:
    run = state.run
    if run is None:  # Calls of an imported history: they ran in another system, or did not.
        return _failed(call.id, "crashed", CRASHED_IMPORT_TEXT, started=False)
    # Whether a call with effect class `once` had its effect cannot be known after a crash, so it never runs again by
    # itself: a person is asked where one allowed it before, and otherwise the model hears that the outcome is unknown.
    if call.approval == "allowed" and call.policy.effect == "once" and not run.finishing:
        return _ask(state, run, call, CRASHED_TEXT)
    return _failed(call.id, "crashed", CRASHED_TEXT, started=True)


def _ask(state: SessionState, run: Run, call: TurnCall, reason: str) -> ev.SessionEvent:
    configuration = state.configuration
    expiry_s = configuration.approval_expiry_s if configuration is not None else None
    return ev.ToolApprovalRequested(
        run=run.id,
        call=call.id,
        tool=call.name,
        input=call.input,
        reason=reason,
        action=call.verdict.action,
        expires_at=state.at + round(expiry_s * 1_000_000) if expiry_s is not None else None,
    )


def _next(state: SessionState) -> list[ev.SessionEvent]:
    # The order of these questions is the order of precedence. An input whose time has come is queued before all else,
    # since `evolve` holds it in `due` only for the length of a batch.
    due = state.due
    if due is not None:
        if due.every is not None:
            return [ev.InputQueued(content=due.content, reminder=due.version, options=due.options)]
        return [ev.InputQueued(content=due.content, key=due.key, scheduled=due.version, options=due.options)]
    run = state.run
    if run is None:  # Without a run a turn is that of an imported history, whose calls are closed first.
        return _start_next_run(state) if state.turn is None else []
    if run.handoff is not None and state.turn is None:  # Before all else: the model was told of it.
        return _hand_off(state, run)
    if run.phase == "ending":  # Before `parked`: a parked run can be cancelled.
        return [_end(state, run)]
    if run.parked:
        return []
    if run.phase == "answered" and not _goes_on(state, run):
        return [ev.RunCompleted(run=run.id)]
    if run.phase == "tools" and state.turn is not None:
        return _next_call(state, run, state.turn)
    if run.phase in ("ready", "answered"):
        return _next_turn(state, run)
    return []


def _hand_off(state: SessionState, run: Run) -> list[ev.SessionEvent]:
    """Return the next step to another agent: what it is shown of the history, its configuration, and that it goes on.

    The session is handed over once all calls of the answer are answered, so that each is the affair of the agent whose
    model made it. Since the model was told, nothing that ends the run just then takes it back.
    """
    handoff = run.handoff
    assert handoff is not None
    if handoff.history is not None:
        # The last two messages are the answer with the call, and the results.
        return [ev.ContextPrepared(run=run.id, replaced=len(state.messages) - 2, summary=handoff.history)]
    if state.configuration != handoff.configuration:
        return [ev.AgentConfigured(configuration=handoff.configuration)]
    assert run.handed_by is not None
    assert state.agent is not None
    return [ev.HandedOff(run=run.id, call=run.handed_by, agent=handoff.agent, before=state.agent)]


def _goes_on(state: SessionState, run: Run) -> bool:
    """Tell whether a run that has its answer takes another turn, since an input has joined it."""
    if run.turns >= configuration_of_run(state).max_turns or budget_spent(state, run) is not None:
        return False
    return bool(run.joining) and not run.finishing


def _start_next_run(state: SessionState) -> list[ev.SessionEvent]:
    configuration = state.configuration
    if not state.queue or configuration is None:
        return []
    queued = state.queue[0]
    return [
        ev.RunStarted(
            run=queued.run,
            input=queued.version,
            code=configuration.code,
            fingerprint=configuration.fingerprint,
            model=queued.options.model if queued.options is not None else None,
        )
    ]


def _end(state: SessionState, run: Run) -> ev.SessionEvent:
    """Close the first open call of a run that is ending, or end the run when none is left."""
    ending = run.ending
    assert ending is not None
    turn = state.turn
    if turn is not None:
        call = turn.calls[turn.first_open]
        if ending.outcome == "cancelled":
            return _failed(call.id, "cancelled", CANCELLED_TEXT, started=call.started)
        kind: ErrorKind = "timeout"
        if ending.kind in ("tool_execution", "budget", "code_changed"):
            kind = "crashed" if call.started else "denied"
        return _failed(call.id, kind, _said(ending.message, ABANDONED_TEXT), started=call.started)
    if ending.outcome == "cancelled":
        return ev.RunCancelled(run=run.id)
    assert ending.kind is not None
    return ev.RunFailed(run=run.id, kind=ending.kind, message=ending.message, trip=ending.trip)


def _next_turn(state: SessionState, run: Run) -> list[ev.SessionEvent]:
    if (reason := _no_further_turn(state, run)) is not None:
        return [ev.RunFailed(run=run.id, kind=reason[0], message=reason[1])]
    if run.turns_allowed is not None and run.turns >= run.turns_allowed:
        return []
    return [ev.ModelRequested(run=run.id, turn=run.turns + 1)]


def _no_further_turn(state: SessionState, run: Run) -> tuple[ev.RunFailureKind, str] | None:
    configuration = configuration_of_run(state)
    if run.empty_answers > configuration.empty_answers_max:
        if run.only_thought and configuration.empty_answers_max:
            return "empty_answers", "The model has thought and said nothing, also when it was asked again."
        return "empty_answers", f"The model gave {run.empty_answers} empty answers in a row."
    if run.truncated_answers > TRUNCATED_ANSWERS_MAX:
        times = f"{run.truncated_answers} times in a row"
        return "truncated_answers", f"The model's answer was cut inside its tool calls {times}."
    if run.rejected_answers > configuration.rejections_max:
        said = f"{run.rejected_answers} answers in a row could not be used. {run.rejection}"
        return "agent_loop", f"AgentLoopError: {said}"
    spent = budget_spent(state, run)
    if spent is not None:
        return "budget", spent
    if run.turns >= configuration.max_turns:
        return "max_turns", f"Max turns ({configuration.max_turns}) reached, stopping forcibly"
    return None


def _next_call(state: SessionState, run: Run, turn: Turn) -> list[ev.SessionEvent]:
    # All verdicts are settled before the first call starts: a person sees every call of the answer that needs them
    # at once, and none waits behind a long tool.
    if turn.checked < len(turn.calls):
        return [_settle_verdict(state, run, turn, turn.calls[turn.checked])]
    if turn.next_start == len(turn.calls):
        return []
    call = turn.calls[turn.next_start]
    # Calls that run beside the one that ended the run are awaited, further attempts too; those not begun are denied.
    if run.finishing and call.failure is None and not call.answers:
        return [_denied(state, call.id, "denied", ENDED_TEXT)]
    if not _may_start(turn):
        return []
    return [ev.ToolCallStarted(run=run.id, call=call.id, attempt=call.failed_attempts + 1)]


def _settle_verdict(state: SessionState, run: Run, turn: Turn, call: TurnCall) -> ev.SessionEvent:
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
        case "broken":
            return _failed(call.id, "denied", _said(call.verdict.recovery or "", BROKEN_TEXT), started=False)
        case "allow" | "ask":
            return _ask(state, run, call, call.verdict.reason)
        case _:
            assert_never(call.verdict.verdict)


def _may_start(turn: Turn) -> bool:
    """Tell whether the next call may start: observing calls run beside each other, all others alone and in order."""
    # The model gave the calls in an order, and "write, then read" is not "read, then write". So a call that changes
    # something starts when all before it are answered, and none starts beside it. One that only observes may start
    # beside others of its kind. To look at the first open call is enough: calls start in their order, so where that one
    # only observes, none that changes something has started behind it.
    call = turn.calls[turn.next_start]
    if call.approval == "requested" or len(turn.running) >= CALLS_RUNNING_MAX:
        return False
    if turn.first_open == turn.next_start:  # All calls before it are answered.
        return True
    return call.policy.tier == "observe" and turn.calls[turn.first_open].policy.tier == "observe"


def _said(reason: str, otherwise: str) -> str:
    return reason if reason.strip() else otherwise


def _failed(call: ToolCallId, kind: ErrorKind, text: str, *, started: bool) -> ev.ToolCallFailed:
    return ev.ToolCallFailed(call=call, kind=kind, content=(TextBlock(text=text),), started=started)


def pending(state: SessionState) -> list[SessionEffect]:
    """Return the work that should be in flight, in a fixed order."""
    effects: list[SessionEffect] = []
    if state.scheduled:
        first = state.scheduled[0]
        effects.append(
            WaitUntil(
                key=first.timer,
                causation=first.set_at or first.version,
                correlation=first.version,
                due_at=first.due_at,
            )
        )
    run = state.run
    if run is None:
        return effects
    if (run.parked and not run.forked) or awaits_step(run):
        effects.append(Wait(key=resume_key(run), causation=run.started, correlation=run.input))
    if run.parked:
        return effects
    # No deadline is wanted while the run waits for a person; afterwards it is later by as long as that took.
    limit = state.configuration.run_timeout_s if state.configuration is not None else None
    if limit is not None and not awaits_person(run, state.turn):
        due_at = run.started_at + run.waited_us + round(limit * 1_000_000)
        effects.append(wait_until(run, deadline_key(run), run.started, due_at))
    if run.phase == "model":
        effects.append(CallModel(key=f"model:{run.asked}", causation=run.asked, correlation=run.input, turn=run.turns))
    elif run.phase == "waiting":
        effects.append(wait_until(run, retry_key(run.asked), run.asked, run.retry_at))
    turn = state.turn
    if turn is None:
        return effects
    effects += [_run_tool(run, turn, call) for call in running_calls(turn)]
    effects += [_await_attempt(run, turn, call) for call in turn.pausing]
    if turn.asking:
        effects += waits_for_answers(run, turn, CALLS_RUNNING_MAX)
    for call_id, requested in islice(turn.awaiting.items(), CALLS_RUNNING_MAX):
        effects += _await_decision(run, turn.calls[turn.index[call_id]], requested)
    return effects


def _await_decision(run: Run, call: TurnCall, requested: int) -> list[SessionEffect]:
    asking = AskPerson(
        key=approval_key(requested),
        causation=requested,
        correlation=run.input,
        call=call.id,
        tool=call.name,
        input=call.input,
        reason=reason_to_ask(call),
        action=call.verdict.action,
        requested_at=call.requested_at,
        expires_at=call.expires_at,
    )
    if call.expires_at is None:
        return [asking]
    return [asking, wait_until(run, expiry_key(requested), requested, call.expires_at)]


def _run_tool(run: Run, turn: Turn, call: TurnCall) -> RunTool:
    attempt, answers = call.failed_attempts + 1, len(call.answers)
    key = f"tool:{call.id}" if attempt == 1 else f"tool:{call.id}:{attempt}"
    return RunTool(
        key=f"{key}.{answers}" if answers else key,
        causation=turn.running[call.id],
        correlation=run.input,
        call=call.id,
        name=call.name,
        input=call.input,
        attempt=attempt,
        answers=tuple(call.answers),
        again=attempts_that_count(call, attempt) is not None,
    )


def _await_attempt(run: Run, turn: Turn, call_id: ToolCallId) -> WaitUntil:
    scheduled, due_at = turn.pausing[call_id], turn.calls[turn.index[call_id]].retry_at
    return wait_until(run, retry_key(scheduled), scheduled, due_at)
