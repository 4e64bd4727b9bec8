"""The rules of a session beyond the invariants of `refold.events.session.invariants`, judged from its log alone.

Read `tests.selfcheck.exhaustive.log_reader` first. `Properties` reads batch after batch and returns the rules that each
one breaks. It also counts how often there was something to judge: a rule that was never exercised does not hold. The
rule of this module: it trusts no decision and no state of `refold.events`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from refold.events.core.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT, CRASHED_TEXT, Message, text_of
from refold.events.core.ids import RunId, ToolCallId
from refold.events.core.pure_core import Effect, WaitUntil
from refold.events.model.configuration import AgentConfiguration, OnCodeChange
from refold.events.model.refused import INPUT_NOTE
from refold.events.session import events as ev
from refold.events.session.react import RunTool
from tests.selfcheck.exhaustive.history_delta import HistoryDelta, told
from tests.selfcheck.exhaustive.log_reader import ObservedCall, ObservedRun, ObservedSession, read, written
from tests.selfcheck.exhaustive.rules import Finding, Rule
from tests.selfcheck.exhaustive.scope import AT

Work: TypeAlias = tuple[int, int, int | None]
"""Versions of the event and of the input that an effect goes back to, and until when it waits."""

USELESS_ANSWERS = 3
"""With so many empty answers in a row, or cut ones, a run fails: each is asked again twice."""


class Properties:
    """Judges the batches of sessions with one configuration."""

    def __init__(self, configuration: AgentConfiguration) -> None:
        self.met: Counter[Rule] = Counter()
        """How often there was something to judge."""
        self._configuration = configuration
        self._findings: list[Finding] = []
        self._delta = HistoryDelta()

    def read(self, observed: ObservedSession, batch: Sequence[ev.SessionEvent]) -> list[Finding]:
        """Return what the next `batch` of the log breaks; `observed` is brought to its end."""
        self._findings = []
        self._delta = HistoryDelta()
        open_run = observed.open_run
        for place, event in enumerate(batch):
            self._delta.add(observed, event)
            self._judge(observed, event, batch[0], is_stimulus=place == 0)
            read(observed, event, self._configuration)
        self._judge_end(observed, batch, open_run)
        return self._findings

    def judge_history(self, before: int, messages: Sequence[Message]) -> list[Finding]:
        """Return how the history differs from what the last batch that was read adds to it.

        Args:
            before: how many messages there were before that batch.
            messages: all that there are now, without the results of calls that are open.
        """
        self._findings = []
        delta = self._delta
        kept = 0 if delta.cleared else before - delta.replaced + len(delta.summary)
        added = [told(message) for message in messages[kept:]]
        fits = len(messages) >= kept and added == delta.added
        self._expect("HISTORY", fits, f"{delta.added} is to come behind {kept} messages, there is {added}")
        if delta.replaced:
            first = [told(message) for message in messages[: len(delta.summary)]]
            self._expect("HISTORY", first == delta.summary, f"{delta.summary} is to come first, there is {first}")
        for place, stands in delta.aside.items():
            found = told(messages[place])
            self._expect("HISTORY", found == stands, f"{stands} is to stand at {place}, there is {found}")
        for place in delta.back:
            found = told(messages[place])
            self._expect("HISTORY", INPUT_NOTE not in found, f"what was set aside at {place} is back, there is {found}")
        return self._findings

    def judge_work(self, observed: ObservedSession, effects: Sequence[Effect]) -> list[Finding]:
        """Return how `effects`, the pending ones, differ from the work that the log has begun and not ended."""
        self._findings = []
        wanted = _work(observed)
        found = {effect.key: (effect.causation, effect.correlation, _time_of(effect)) for effect in effects}
        self._expect("INV7", found == wanted, f"the log has work {wanted} in flight, pending names {found}")
        self._expect("INV7", len(found) == len(effects), "two pending effects share a key")
        for effect in effects:
            if isinstance(effect, RunTool) and (call := observed.calls.get(effect.call)) is not None:
                given = written(effect.input)
                self._expect("APPROVAL", given == call.input, f"{effect.call} runs with {given}, not {call.input}")
        return self._findings

    def _expect(self, rule: Rule, kept: bool, message: str) -> None:
        self.met[rule] += 1
        if not kept:
            self._findings.append(Finding(rule, message))

    def _judge(
        self, observed: ObservedSession, event: ev.SessionEvent, stimulus: ev.SessionEvent, *, is_stimulus: bool
    ) -> None:
        match event:
            case ev.InputQueued(scheduled=scheduled) if scheduled:
                due = observed.due
                fits = due is not None and (due.version, due.content, due.key) == (
                    scheduled,
                    written(event.content),
                    event.key,
                )
                self._expect("SCHEDULE", fits, f"an input is queued as that of version {scheduled}, due is {due}")
            case (
                ev.InputQueued(key=str() as key)
                | ev.TimerSet(key=str() as key)
                | ev.HistoryCleared(key=str() as key)
                | ev.CancelRequested(key=str() as key)
                | ev.ToolApprovalDecided(key=str() as key)
            ):
                self._expect("KEYS", key not in observed.keys, f"key {key!r} is recorded again")
            case ev.ModelRequested(run=run, turn=turn):
                seen = observed.runs.get(run, ObservedRun())
                in_order = turn == seen.turn + 1 and turn <= self._configuration.max_turns
                self._expect("TURNS", in_order, f"turn {turn} of {run} follows turn {seen.turn}")
                self._expect_not_parked(seen, f"a model call of {run}")
                self._expect(
                    "BUDGET", not self._is_overspent(seen), f"turn {turn} of {run} begins, its budget is spent"
                )
                self._expect(
                    "OUTCOME", not seen.useless, f"{run} asks again, and the answer had a reason: {seen.useless}"
                )
                self._expect("FINISH", not seen.finishing, f"{run} goes on though a tool has ended it")
                if seen.allowed is not None:
                    said = f"turn {turn} of {run} begins, allowed are {seen.allowed}"
                    self._expect("STEPS", turn <= seen.allowed, said)
            case ev.TurnAllowed(run=run, turn=turn):
                last = observed.runs.get(run, ObservedRun()).turn
                self._expect("STEPS", turn == last + 1, f"turn {turn} of {run} is allowed after turn {last}")
            case ev.RetryScheduled(call=str(call)):
                self._judge_next_attempt(call, observed.calls.get(call), event, stimulus)
            case ev.RetryScheduled(run=run):
                self._judge_retry(observed.runs.get(run, ObservedRun()), event, stimulus)
            case ev.ToolApprovalRequested(call=call):
                if (known := observed.calls.get(call)) is not None:
                    same = (event.tool, written(event.input)) == (known.tool, known.input) and known.refused_as is None
                    self._expect("APPROVAL", same, f"{call} of {known.tool} is put to approval as {event}")
                    asks = known.approval == "" or known.survivor
                    self._expect("APPROVAL", asks, f"{call} is put to approval though it is {known.approval}")
            case ev.ToolApprovalDecided(call=call) if not is_stimulus:
                self._judge_decided_as_well(observed, call, event, stimulus)
            case ev.ToolApprovalDecided(input=dict()):
                self._expect("APPROVAL", event.allowed and not event.always, f"arguments are given by {event}")
            case ev.ToolCallStarted(run=run, call=call):
                finishing = observed.runs.get(run, ObservedRun()).finishing
                again = event.attempt > 1 or (call in observed.calls and observed.calls[call].given)
                self._expect("FINISH", not finishing or again, f"{call} begins, a tool has ended {run}")
                self._expect_not_parked(observed.runs.get(run, ObservedRun()), call)
                if (known := observed.calls.get(call)) is not None:
                    said = f"attempt {event.attempt} at {call} starts after {known.attempts} failed ones"
                    self._expect("RETRY", event.attempt == known.attempts + 1, said)
                    self._judge_start(observed, call, known)
            case ev.QuestionAsked(call=call, number=number):
                known = observed.calls.get(call, ObservedCall("", "", "act", "once"))
                fits = is_stimulus and known.running and number == known.questions + 1
                self._expect("ANSWERS", fits, f"{call} asks question {number} after {known.questions}")
            case ev.QuestionAnswered(call=call, number=number):
                known = observed.calls.get(call, ObservedCall("", "", "act", "once"))
                fits = known.asked > 0 and number == known.questions
                in_time = type(stimulus) is ev.TimerFired and stimulus.timer == f"expiry:{known.asked}"
                fits = fits and event.expired == in_time == (not is_stimulus)
                self._expect("ANSWERS", fits, f"question {number} of {call} is answered by {stimulus}")
            case ev.ToolAttemptFailed(call=call, attempt=attempt):
                known = observed.calls.get(call, ObservedCall("", "", "act", "once"))
                fits = is_stimulus and known.running and attempt == known.attempts + 1
                self._expect("RETRY", fits, f"attempt {attempt} at {call} fails, which was not under way")
            case ev.ToolCallFailed() if not is_stimulus:
                if (known := observed.calls.get(event.call)) is not None:
                    self._judge_made_up(observed, event, known, stimulus)
            case ev.RunResumed(run=run, asked=asked):
                if observed.runs.get(run, ObservedRun()).parked:
                    self._expect("PARKED", asked, f"{run} was parked and goes on without being asked")
            case ev.RunCompleted(run=run) | ev.RunFailed(run=run) | ev.RunCancelled(run=run):
                if (ending := observed.runs.get(run)) is not None:
                    self._judge_outcome(ending, event, stimulus)
            case _:
                return

    def _expect_not_parked(self, run: ObservedRun, what: str) -> None:
        self._expect("PARKED", not run.parked, f"{what} begins while its run is parked")

    def _judge_retry(self, run: ObservedRun, event: ev.RetryScheduled, stimulus: ev.SessionEvent) -> None:
        policy = self._configuration.retry
        most = policy.attempts_max if policy is not None else 1
        may = type(stimulus) is ev.ModelFailed and stimulus.retryable and event.attempt == run.attempts < most
        fits = may and event.due_at > event.at
        self._expect("RETRY", fits, f"a retry after {run.attempts} of {most} attempts: {event}")

    def _judge_next_attempt(
        self, name: ToolCallId, call: ObservedCall | None, event: ev.RetryScheduled, stimulus: ev.SessionEvent
    ) -> None:
        may = type(stimulus) is ev.ToolAttemptFailed and stimulus.call == name and call is not None
        fits = may and call is not None and call.effect != "once" and event.attempt == call.attempts
        fits = fits and event.attempt < self._attempts_max(name, call) and event.due_at > event.at
        self._expect("RETRY", fits, f"{call} is tried again: {event}")

    def _attempts_max(self, name: ToolCallId, call: ObservedCall | None) -> int:
        tool = call.tool if call is not None else ""
        policy = next((policy.retries for policy in self._configuration.tools if policy.name == tool), None)
        return policy.attempts_max if policy is not None and call is not None and call.effect != "once" else 1

    def _judge_decided_as_well(
        self, observed: ObservedSession, name: ToolCallId, event: ev.ToolApprovalDecided, stimulus: ev.SessionEvent
    ) -> None:
        always = type(stimulus) is ev.ToolApprovalDecided and stimulus.always
        call = observed.calls.get(name)
        fits = always and event.allowed and not event.always and event.key is None
        fits = fits and call is not None and call.action in observed.allowed_actions
        self._expect("APPROVAL", fits, f"{name} is decided about by {stimulus}")
        self._expect("ONCE", call is None or not call.started, f"{name} may run again without a new question")

    def _judge_start(self, observed: ObservedSession, name: ToolCallId, call: ObservedCall) -> None:
        approved = call.approval in (("allowed",) if call.asks else ("", "allowed"))
        self._expect("APPROVAL", approved and call.refused_as is None, f"{name} must not run and starts")
        others = list(observed.calls.values())
        before = others[: list(observed.calls).index(name)]
        in_order = all(other.running or other.answered or other.retry_at or other.asked for other in before)
        beside = [other.tier for other in others if other.running]
        alone = not beside or {call.tier, *beside} == {"observe"}
        self._expect("TIERS", in_order and alone, f"{name} ({call.tier}) starts out of order or beside {beside}")
        if (run := observed.runs.get(observed.open_run or RunId(""))) is not None:
            self._expect("BUDGET", not self._is_overspent(run), f"{name} starts though the budget is spent")
        if call.given:
            self._expect("ANSWERS", not call.gives_result, f"{name} starts again, and what it asked was its result")
        elif call.attempts:
            self._expect("RETRY", call.due, f"{name} starts again before the time of its next attempt")
        elif call.started:
            self._expect("ONCE", call.approval == "allowed", f"{name} starts again without a new approval")

    def _judge_made_up(
        self, observed: ObservedSession, event: ev.ToolCallFailed, call: ObservedCall, stimulus: ev.SessionEvent
    ) -> None:
        text = text_of(event.content)
        run = observed.runs[name] if (name := observed.open_run) is not None else ObservedRun()
        if type(stimulus) is ev.ToolAttemptFailed and stimulus.call == event.call:
            told = (event.kind, event.content) == (stimulus.kind, stimulus.content)
            spent = call.attempts >= self._attempts_max(event.call, call)
            self._expect(
                "RETRY", told and spent, f"{event} after {call.attempts} failed attempts, the last: {stimulus}"
            )
            return
        if call.given and call.gives_result:
            fits = call.error and (event.kind == "timeout") == (type(stimulus) is ev.TimerFired)
            self._expect("ANSWERS", fits, f"{event.call} fails with {event.kind} after {stimulus}")
            return
        match event.kind:
            case "crashed" if run.finishing and not call.running:
                fits = text == CRASHED_TEXT
            case "crashed" | "denied" if self._is_failing(run) or self._is_overspent(run):
                fits = (event.kind == "crashed") == (call.started > 0)
            case "denied" if run.finishing:
                fits = not call.started
            case "crashed" | "denied" if self._met_other_code(stimulus) == "fail":
                fits = (event.kind == "crashed") == (call.started > 0)
            case "cancelled":
                fits = text == CANCELLED_TEXT and run.cancelled
            case "crashed":
                words = CRASHED_IMPORT_TEXT if call.refused_as == "crashed" else CRASHED_TEXT
                denied_again = call.started > 0 and (call.approval == "denied" or _has_expired(call, stimulus))
                lost = type(stimulus) is ev.RunResumed and call.survivor
                fits = text == words and (lost or type(stimulus) is ev.HistoryImported or denied_again)
            case "timeout":
                fits = type(stimulus) is ev.TimerFired and stimulus.timer == f"deadline:{observed.open_run}"
            case "denied" if call.approval == "denied":
                fits = not call.started
            case "denied" if _has_expired(call, stimulus):
                fits = not call.started
            case kind:
                fits = kind == call.refused_as
        fits = fits and event.started == (call.started > 0)
        self._expect("KINDS", fits, f"{event.call} is answered as {event.kind} ({text!r}) after {stimulus}")

    def _judge_outcome(
        self, run: ObservedRun, event: ev.RunCompleted | ev.RunFailed | ev.RunCancelled, stimulus: ev.SessionEvent
    ) -> None:
        if run.finishing:
            in_vain = isinstance(event, ev.RunFailed) and event.kind not in ("run_timeout", "tool_execution")
            self._expect("FINISH", not in_vain, f"a tool has ended {event.run} and it ends with {event}")
        match event:
            case ev.RunCompleted():
                another = run.turn < self._configuration.max_turns and not self._is_overspent(run)
                answered = run.concluded and not (run.joining and another)
                fits = (answered or run.finishing) and not run.cancelled
            case ev.RunCancelled():
                fits = run.cancelled
            case ev.RunFailed(kind="provider"):
                fits = type(stimulus) is ev.ModelFailed
                policy = self._configuration.retry
                spent = policy is None or run.attempts >= policy.attempts_max
                fits = fits and (spent or not (type(stimulus) is ev.ModelFailed and stimulus.retryable))
            case ev.RunFailed(kind="run_timeout"):
                fits = type(stimulus) is ev.TimerFired
            case ev.RunFailed(kind="code_changed"):
                fits = self._met_other_code(stimulus) == "fail"
            case ev.RunFailed(kind="guardrail", trip=trip):
                told = stimulus.trip if isinstance(stimulus, ev.GuardrailTripped | ev.ModelResponded) else None
                fits = trip is not None and told == trip
            case ev.RunFailed(kind="tool_execution"):
                fits = self._is_failing(run)
                self._expect("RECOVERY", fits, f"{event.run} fails after {run.breakages} breakages in a row")
            case ev.RunFailed(kind="agent_loop"):
                fits = run.rejected == self._configuration.rejections_max + 1 or type(stimulus) is ev.ModelFailed
            case ev.RunFailed(kind="budget"):
                fits = self._is_overspent(run) and not run.concluded
                self._expect("BUDGET", fits, f"{event.run} fails after {run.tokens} tokens and {run.called} calls")
            case ev.RunFailed(kind="max_turns"):
                fits = run.turn == self._configuration.max_turns
                self._expect("TURNS", fits, f"{event.run} ends at turn {run.turn} for too many turns")
            case ev.RunFailed(kind="empty_answers"):
                fits = run.empty == USELESS_ANSWERS
            case ev.RunFailed(kind="truncated_answers"):
                fits = run.cut == USELESS_ANSWERS or run.useless == "max_tokens"
            case ev.RunFailed(kind="refused"):
                fits = run.useless == "refusal"
            case _:
                fits = False
        self._expect("OUTCOME", fits, f"{event.run} ends with {event} after {stimulus}")

    def _is_overspent(self, run: ObservedRun) -> bool:
        """Tell whether a run has spent its budget."""
        budget = self._configuration.budget
        if budget is None:
            return False
        too_many = budget.tool_calls is not None and run.called > budget.tool_calls
        return too_many or (budget.tokens is not None and run.tokens >= budget.tokens)

    def _met_other_code(self, stimulus: ev.SessionEvent) -> OnCodeChange:
        """Return what becomes of a run after `stimulus` for the code that it finds, which no command asked for."""
        changed = type(stimulus) is ev.RunResumed and stimulus.code_changed and not stimulus.asked
        return self._configuration.on_code_change if changed else "continue"

    def _is_failing(self, run: ObservedRun) -> bool:
        """Tell whether carrying out calls broke once too often."""
        stops = self._configuration.error_recovery == "stop" or run.breakages > self._configuration.recoveries_max
        return run.broke and stops

    def _judge_end(self, observed: ObservedSession, batch: Sequence[ev.SessionEvent], open_run: RunId | None) -> None:
        """Judge what must be settled when a batch ends."""
        stimulus = batch[0]
        ends = {type(event) for event in batch}
        match stimulus:
            case ev.CancelRequested(run=run) if run == open_run:
                self._expect("OUTCOME", ev.RunCancelled in ends, f"{run} is cancelled and goes on")
            case ev.TimerFired(timer=timer) if timer == f"deadline:{open_run}":
                self._expect("OUTCOME", ev.RunFailed in ends, f"{open_run} is out of time and goes on")
            case ev.ToolApprovalDecided(always=True):
                left = [
                    name
                    for name, call in observed.calls.items()
                    if call.approval == "waits" and not call.started and call.action in observed.allowed_actions
                ]
                self._expect("APPROVAL", not left, f"{left} wait though such calls are allowed always")
            case ev.RunResumed(run=run) if (seen := observed.runs.get(run)) is not None:
                met = self._met_other_code(stimulus)
                parks = met == "park" or (met == "continue" and seen.resumes > self._configuration.resumes_max)
                self._expect("PARKED", (ev.RunParked in ends) == parks, f"{run} was resumed {seen.resumes} times")
                self._expect("OUTCOME", met != "fail", f"{run} goes on with other code")
            case ev.ContextPrepared(run=run) if (seen := observed.runs.get(run)) is not None:
                said = f"{run} goes on after a summary, its budget is spent"
                self._expect("BUDGET", not self._is_overspent(seen), said)
            case _:
                self._expect("PARKED", ev.RunParked not in ends, f"a run is parked after {stimulus}")
        self._expect("SCHEDULE", observed.due is None, f"the time of {observed.due} has come and it is not queued")
        if (now_open := observed.open_run) is not None:
            self._judge_open_run(observed, now_open, observed.runs[now_open])
        if any(run.parked for run in observed.runs.values()):
            return  # What it has left open is settled when it goes on.
        for name, call in observed.calls.items():
            pauses = call.attempts > 0 and not call.running and not call.answered and not call.asked
            settled = not call.given or not call.gives_result or call.answered
            self._expect("ANSWERS", settled, f"{name} has been given its result and is open")
            self._expect("RETRY", not pauses or call.retry_at is not None, f"{name} is not tried again, nor answered")
            if call.approval == "denied" or call.refused_as is not None:
                self._expect("APPROVAL", call.answered, f"{name} must not run and is left open")
            if call.survivor:
                again = call.effect != "once" and call.tool_present
                self._expect("ONCE", again, f"{name} ({call.effect}) of a process that is gone is run again")

    def _judge_open_run(self, observed: ObservedSession, name: RunId, run: ObservedRun) -> None:
        """Judge what a run that is under way must not have left open, parked or not."""
        self._expect("RECOVERY", not self._is_failing(run), f"{name} goes on after {run.breakages} breakages in a row")
        if run.finishing and not run.parked:
            calls = observed.calls.items()
            left = [call for call, seen in calls if not (seen.running or seen.answered or seen.retry_at or seen.asked)]
            self._expect("FINISH", bool(observed.calls) and not left, f"{name} is ended by a tool and goes on: {left}")


def _has_expired(call: ObservedCall, stimulus: ev.SessionEvent) -> bool:
    return type(stimulus) is ev.TimerFired and call.approval == "waits" and stimulus.timer == f"expiry:{call.requested}"


def _time_of(effect: Effect) -> int | None:
    """Return until when an effect waits, but for a run's own time: a observed does not count how long it has waited."""
    return effect.due_at if isinstance(effect, WaitUntil) and not effect.key.startswith("deadline:") else None


def _work(observed: ObservedSession) -> dict[str, Work]:
    """Return the keys of the work that the log has begun and not ended, with its cause, its input and its end."""
    work: dict[str, Work] = {}
    if (first := observed.first_scheduled) is not None:
        work[f"input:{first.version}"] = (first.version, first.version, first.due_at)
    name = observed.open_run
    if name is None:
        return work
    run = observed.runs[name]
    if run.parked or observed.awaits_step:
        work[f"resume:{name}"] = (run.started, run.input, None)
    if run.parked:
        return work
    if not observed.awaits_person:
        work[f"deadline:{name}"] = (run.started, run.input, None)
    if run.asked:
        work[f"model:{run.asked}"] = (run.asked, run.input, None)
    if run.retry_at is not None:
        work[f"retry:{run.failed}"] = (run.failed, run.input, run.retry_at)
    for call, seen in observed.calls.items():
        if seen.running:
            attempt = f":{seen.attempts + 1}" if seen.attempts else ""
            attempt += f".{seen.questions}" if seen.questions else ""
            work[f"tool:{call}{attempt}"] = (seen.started, run.input, None)
        if seen.asked:
            work[f"answer:{seen.asked}"] = (seen.asked, run.input, None)
            work[f"expiry:{seen.asked}"] = (seen.asked, run.input, AT)
        if seen.retry_at is not None:
            work[f"retry:{seen.retry}"] = (seen.retry, run.input, seen.retry_at)
        if seen.approval == "waits":
            work[f"approval:{seen.requested}"] = (seen.requested, run.input, None)
            if seen.expires_at is not None:
                work[f"expiry:{seen.requested}"] = (seen.requested, run.input, seen.expires_at)
    return work
