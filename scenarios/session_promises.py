"""What a session promises beyond the invariants of `refold.events.invariants`, judged from its log alone.

Read `refold.scenarios.session_witness` first. `Promises` reads batch after batch and says which promise each one
breaks; it also counts how often there was something to judge, because a promise that was never put to the test has
not been kept. The rule: no decision and no state of `refold.events` is trusted here.
"""

from collections import Counter
from collections.abc import Sequence

from refold.events.configuration import AgentConfiguration
from refold.events.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT, CRASHED_TEXT, text_of
from refold.events.core import Effect
from refold.events.ids import RunId, ToolCallId
from refold.events.session_events import (
    CancelRequested,
    HistoryImported,
    InputQueued,
    ModelFailed,
    ModelRequested,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunParked,
    RunResumed,
    SessionEvent,
    TimerFired,
    ToolApprovalDecided,
    ToolApprovalRequested,
    ToolCallFailed,
    ToolCallStarted,
)
from refold.scenarios.session_rules import Finding, Rule
from refold.scenarios.session_witness import SeenCall, SeenRun, Witness, see

USELESS_ANSWERS = 3
"""With so many empty answers in a row, or cut ones, a run fails: each is asked again twice."""


class Promises:
    """Judges the batches of sessions with one configuration.

    Args:
        configuration: what is in force from the beginning to the end.
    """

    def __init__(self, configuration: AgentConfiguration) -> None:
        self.met: Counter[Rule] = Counter()
        """How often there was something to judge."""
        self._configuration = configuration
        self._findings: list[Finding] = []

    def read(self, witness: Witness, batch: Sequence[SessionEvent]) -> list[Finding]:
        """Return what the next `batch` of the log breaks; `witness` is brought to its end."""
        self._findings = []
        open_run = witness.open_run
        for place, event in enumerate(batch):
            self._judge(witness, event, batch[0], is_stimulus=place == 0)
            see(witness, event, self._configuration)
        self._judge_end(witness, batch, open_run)
        return self._findings

    def judge_work(self, witness: Witness, effects: Sequence[Effect]) -> list[Finding]:
        """Return how `effects`, the pending ones, differ from the work that the log has begun and not ended."""
        self._findings = []
        wanted = _work(witness)
        found = {effect.key: (effect.causation, effect.correlation) for effect in effects}
        self._expect("INV7", found == wanted, f"the log has work {wanted} in flight, pending names {found}")
        self._expect("INV7", len(found) == len(effects), "two pending effects share a key")
        return self._findings

    def _expect(self, rule: Rule, kept: bool, message: str) -> None:
        self.met[rule] += 1
        if not kept:
            self._findings.append(Finding(rule, message))

    def _judge(self, witness: Witness, event: SessionEvent, stimulus: SessionEvent, *, is_stimulus: bool) -> None:
        match event:
            case (
                InputQueued(key=str() as key)
                | CancelRequested(key=str() as key)
                | ToolApprovalDecided(key=str() as key)
            ):
                self._expect("KEYS", key not in witness.keys, f"key {key!r} is recorded again")
            case ModelRequested(run=run, turn=turn):
                seen = witness.runs.get(run, SeenRun())
                in_order = turn == seen.turn + 1 and turn <= self._configuration.max_turns
                self._expect("TURNS", in_order, f"turn {turn} of {run} follows turn {seen.turn}")
                self._expect_not_parked(seen, f"a model call of {run}")
            case ToolApprovalRequested(call=call):
                if (known := witness.calls.get(call)) is not None:
                    same = event.tool == known.tool and known.refused_as is None
                    self._expect("APPROVAL", same, f"{call} of {known.tool} is put to approval as {event.tool}")
            case ToolCallStarted(run=run, call=call):
                self._expect_not_parked(witness.runs.get(run, SeenRun()), call)
                if (known := witness.calls.get(call)) is not None:
                    self._judge_start(witness, call, known)
            case ToolCallFailed() if not is_stimulus:
                if (known := witness.calls.get(event.call)) is not None:
                    self._judge_made_up(witness, event, known, stimulus)
            case RunResumed(run=run, asked=asked):
                if witness.runs.get(run, SeenRun()).parked:
                    self._expect("PARKED", asked, f"{run} was parked and goes on though nobody asked for it")
            case RunCompleted(run=run) | RunFailed(run=run) | RunCancelled(run=run):
                if (ending := witness.runs.get(run)) is not None:
                    self._judge_outcome(ending, event, stimulus)
            case _:
                return

    def _expect_not_parked(self, run: SeenRun, what: str) -> None:
        self._expect("PARKED", not run.parked, f"{what} begins while its run is parked")

    def _judge_start(self, witness: Witness, name: ToolCallId, call: SeenCall) -> None:
        approved = call.approval in (("allowed",) if call.asks else ("", "allowed"))
        self._expect("APPROVAL", approved and call.refused_as is None, f"{name} must not run and starts")
        others = list(witness.calls.values())
        before = others[: list(witness.calls).index(name)]
        in_order = all(other.running or other.answered for other in before)
        beside = [other.tier for other in others if other.running]
        alone = not beside or {call.tier, *beside} == {"observe"}
        self._expect("TIERS", in_order and alone, f"{name} ({call.tier}) starts out of order or beside {beside}")
        if call.started:
            self._expect("ONCE", call.approval == "allowed", f"{name} starts again and nobody allowed it anew")

    def _judge_made_up(self, witness: Witness, event: ToolCallFailed, call: SeenCall, stimulus: SessionEvent) -> None:
        text = text_of(event.content)
        match event.kind:
            case "cancelled":
                run = witness.open_run
                fits = text == CANCELLED_TEXT and run is not None and witness.runs[run].cancelled
            case "crashed":
                words = CRASHED_IMPORT_TEXT if call.refused_as == "crashed" else CRASHED_TEXT
                denied_again = call.approval == "denied" and call.started > 0
                fits = text == words and (isinstance(stimulus, RunResumed | HistoryImported) or denied_again)
            case "timeout":
                fits = type(stimulus) is TimerFired
            case "denied" if call.approval == "denied":
                fits = not call.started
            case kind:
                fits = kind == call.refused_as
        fits = fits and event.started == (call.started > 0)
        self._expect("KINDS", fits, f"{event.call} is answered as {event.kind} ({text!r}) after {stimulus}")

    def _judge_outcome(
        self, run: SeenRun, event: RunCompleted | RunFailed | RunCancelled, stimulus: SessionEvent
    ) -> None:
        match event:
            case RunCompleted():
                fits = run.concluded and not run.cancelled
            case RunCancelled():
                fits = run.cancelled
            case RunFailed(kind="provider"):
                fits = type(stimulus) is ModelFailed
            case RunFailed(kind="run_timeout"):
                fits = type(stimulus) is TimerFired
            case RunFailed(kind="max_turns"):
                fits = run.turn == self._configuration.max_turns
                self._expect("TURNS", fits, f"{event.run} ends at turn {run.turn} for too many turns")
            case RunFailed(kind="empty_answers"):
                fits = run.empty == USELESS_ANSWERS
            case RunFailed(kind="truncated_answers"):
                fits = run.cut == USELESS_ANSWERS
            case _:
                fits = False
        self._expect("OUTCOME", fits, f"{event.run} ends with {event} after {stimulus}")

    def _judge_end(self, witness: Witness, batch: Sequence[SessionEvent], open_run: RunId | None) -> None:
        """Judge what must be settled when a batch ends."""
        stimulus = batch[0]
        ends = {type(event) for event in batch}
        match stimulus:
            case CancelRequested(run=run) if run == open_run:
                self._expect("OUTCOME", RunCancelled in ends, f"{run} is cancelled and goes on")
            case TimerFired(timer=timer) if timer == f"deadline:{open_run}":
                self._expect("OUTCOME", RunFailed in ends, f"{open_run} is out of time and goes on")
            case RunResumed(run=run) if (seen := witness.runs.get(run)) is not None:
                fruitless = seen.resumes > self._configuration.resumes_max
                self._expect("PARKED", (RunParked in ends) == fruitless, f"{run} was resumed {seen.resumes} times")
            case _:
                self._expect("PARKED", RunParked not in ends, f"a run is parked after {stimulus}")
        if any(run.parked for run in witness.runs.values()):
            return  # What it has left open is settled when it goes on.
        for name, call in witness.calls.items():
            if call.approval == "denied" or call.refused_as is not None:
                self._expect("APPROVAL", call.answered, f"{name} must not run and is left open")
            if call.survivor:
                again = call.effect != "once" and call.tool_present
                self._expect("ONCE", again, f"{name} ({call.effect}) of a process that is gone is run again")


def _work(witness: Witness) -> dict[str, tuple[int, int]]:
    """Return the keys of the work that the log has begun and not ended, each with its cause and its input."""
    name = witness.open_run
    if name is None or witness.runs[name].parked:
        return {}
    run, asked_by = witness.runs[name], int(name.removeprefix("run_"))
    work = {f"deadline:{name}": (run.started, asked_by)}
    if run.asked:
        work[f"model:{run.asked}"] = (run.asked, asked_by)
    for call, seen in witness.calls.items():
        if seen.running:
            work[f"tool:{call}"] = (seen.started, asked_by)
    return work
