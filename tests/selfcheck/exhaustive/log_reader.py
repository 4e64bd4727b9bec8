"""What a session's log says so far, kept apart from the fold, for checkers that must not trust it.

A `Witness` knows the inputs, runs and calls that are not over, and of those that are over only the last one, which
is enough to try what comes late. The rule: nothing here is taken from a `SessionState`, and what is over is
forgotten, so that the witnesses of all lives in one scope are finitely many up to renumbering.
"""

from typing import Literal

import msgspec

from refold.events.core.content import ErrorKind, TextBlock, ToolUseBlock, tool_uses
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import AgentConfiguration, EffectClass, Tier, ToolPolicy
from refold.events.session.events import (
    CancelRequested,
    ContextPrepared,
    HistoryCleared,
    HistoryImported,
    InputQueued,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    RetryScheduled,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunParked,
    RunResumed,
    RunStarted,
    SessionEvent,
    TimerFired,
    TimerSet,
    ToolApprovalDecided,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallWaiting,
    TurnAllowed,
    Verdict,
)
from refold.events.session.state import CommandWord

_REFUSED_AS: dict[str, ErrorKind] = {
    "deny": "denied",
    "invalid_arguments": "invalid_arguments",
    "not_found": "not_found",
    "broken": "denied",
}


class SeenCall(msgspec.Struct, omit_defaults=True):
    """A call of the last answer, while not all of its calls are answered."""

    tool: str
    action: str
    """What somebody allows who allows such calls always."""
    tier: Tier
    effect: EffectClass
    refused_as: ErrorKind | None = None
    """It must never run, and is answered with this kind."""
    asks: bool = False
    """It may run only after an approval."""
    approval: Literal["", "waits", "allowed", "denied"] = ""
    """`allowed` also where such calls were allowed always before."""
    requested: int = 0
    """Version of its last ToolApprovalRequested; 0 = none."""
    expires_at: int | None = None
    started: int = 0
    """Version of its last ToolCallStarted; 0 = never."""
    running: bool = False
    """Started, and since then neither answered nor put to approval again."""
    waiting: bool = False
    """Running, and its work waits for a person in another session."""
    survivor: bool = False
    """Running, and started in a process that is gone."""
    tool_present: bool = True
    """The process that resumed its run has the tool."""
    answered: bool = False


class SeenRun(msgspec.Struct, omit_defaults=True):
    """A run that has not ended; its input may still be queued."""

    input: int = 0
    """Version of its InputQueued."""
    content: str = ""
    """JSON of its input."""
    begun: bool = False
    started: int = 0
    """Version of its RunStarted."""
    cancelled: bool = False
    turn: int = 0
    asked: int = 0
    """Version of what wants the model call that nothing has answered; 0 = none."""
    failed: int = 0
    """The same of the last model call that failed."""
    attempts: int = 0
    """How often the model call of this turn has failed."""
    retry_at: int | None = None
    """When the failed model call is made again; None = it is not."""
    joining: list[str] = []
    """JSON of the inputs that have joined and that no model call was made for."""
    allowed: int | None = None
    """Up to which turn it may go; None = as far as it wants."""
    concluded: bool = False
    """Its last answer was a final one."""
    empty: int = 0
    """Answers in a row that said nothing."""
    cut: int = 0
    """Answers in a row that were cut inside their calls."""
    rejected: int = 0
    """Answers in a row that could not be used."""
    tokens: int = 0
    """Of its answers."""
    called: int = 0
    """Calls of its answers, but of those that were cut."""
    finishing: bool = False
    """A tool has ended it."""
    broke: bool = False
    """Carrying out calls broke in this turn."""
    breakages: int = 0
    """In so many turns in a row."""
    parked: bool = False
    summaries: int = 0
    """Of the history, made for its model calls."""
    resumes: int = 0
    """Resumes of work in flight since the last progress."""


class SeenSchedule(msgspec.Struct):
    """An input that was accepted for a later time."""

    version: int
    """Of its TimerSet."""
    due_at: int
    content: str
    key: str | None


class SeenKey(msgspec.Struct, frozen=True):
    """The first command that came with a key."""

    command: CommandWord
    content: str
    """JSON of what must be the same in a repetition."""
    version: int
    """Of what it became."""


class Witness(msgspec.Struct, omit_defaults=True):
    """What the log says; see the module."""

    version: int = 0
    inputs: int = 0
    """How many were accepted."""
    imported: bool = False
    has_history: bool = False
    """There is a message that a model would be shown."""
    allowed_actions: list[str] = []
    """What somebody has allowed always."""
    summarised: int = 0
    """Version of the last summary; 0 = none."""
    scheduled: dict[RunId, SeenSchedule] = {}
    """Those whose time has not come, in the order in which they were accepted."""
    due: SeenSchedule | None = None
    """One whose time has come and that is not queued yet."""
    paused: bool = False
    """The last answer with any content was a pause."""
    runs: dict[RunId, SeenRun] = {}
    """Those that have not ended, in the order in which their inputs were accepted."""
    calls: dict[ToolCallId, SeenCall] = {}
    """Those of the last answer, in order; empty once all are answered."""
    keys: dict[str, SeenKey] = {}
    ended_run: RunId | None = None
    """The last run that ended."""
    closed_call: ToolCallId | None = None
    """A call of the last answer whose calls are all answered."""

    @property
    def open_run(self) -> RunId | None:
        """The run under way."""
        return next((run for run, seen in self.runs.items() if seen.begun), None)

    @property
    def first_scheduled(self) -> SeenSchedule | None:
        """The input whose time comes first; of those of one time the one that was accepted first."""
        return min(self.scheduled.values(), key=lambda seen: (seen.due_at, seen.version), default=None)

    @property
    def awaits_step(self) -> bool:
        """Whether the run under way waits for somebody who allows its next turn."""
        run = self.runs[name] if (name := self.open_run) is not None else None
        if run is None or run.allowed is None or run.parked or run.asked or run.retry_at is not None:
            return False
        return not self.calls

    @property
    def awaits_person(self) -> bool:
        """Whether the run under way waits for somebody and nothing else."""
        name = self.open_run
        if name is None:
            return False
        awaiting = any(call.approval == "waits" or call.waiting for call in self.calls.values())
        at_work = any(call.running and not call.waiting for call in self.calls.values())
        return self.runs[name].parked or self.awaits_step or (awaiting and not at_work)


def written(content: object) -> str:
    """Return the JSON of `content`, as `SeenKey` keeps it."""
    return msgspec.json.encode(content).decode()


def see(witness: Witness, event: SessionEvent, configuration: AgentConfiguration) -> None:
    """Add `event`, the next one of the log, to `witness`.

    It never fails: what makes no sense is left out, and is for the checkers to find.
    """
    witness.version += 1
    match event:
        case HistoryImported():
            witness.imported = witness.has_history = True
            _see_key(witness, event.key, "import", event.digest)
            last = event.messages[-1]
            uses = tool_uses(last.content) if last.role == "assistant" else []
            _see_calls(witness, uses, (Verdict(),) * len(uses), configuration, "crashed")
        case HistoryCleared():
            witness.has_history = False
            _see_key(witness, event.key, "clear", None)
        case InputQueued():
            _see_input(witness, event)
        case TimerSet():
            witness.inputs += 1
            content = written(event.content)
            witness.scheduled[RunId(f"run_{witness.version}")] = SeenSchedule(
                witness.version, event.due_at, content, event.key
            )
            _see_key(witness, event.key, "send", event.content)
        case TimerFired():
            _see_timer(witness, event.timer)
        case CancelRequested():
            witness.scheduled.pop(event.run, None)
            if event.run in witness.runs:
                witness.runs[event.run].cancelled = True
            _see_key(witness, event.key, "cancel", event.run)
        case RunCompleted() | RunFailed() | RunCancelled():
            witness.runs.pop(event.run, None)
            witness.ended_run = event.run
        case (
            ToolApprovalRequested()
            | ToolApprovalDecided()
            | ToolCallStarted()
            | ToolCallWaiting()
            | ToolCallCompleted()
            | ToolCallFailed()
        ):
            if (call := witness.calls.get(event.call)) is not None:
                _see_call(witness, call, event)
        case _:
            _see_run(witness, event, configuration)


def _see_key(witness: Witness, key: str | None, command: CommandWord, content: object) -> None:
    if key is not None:
        witness.keys.setdefault(key, SeenKey(command, written(content), witness.version))


def _see_input(witness: Witness, event: InputQueued) -> None:
    content = written(event.content)
    if event.joins is not None:
        witness.inputs += 1
        _see_key(witness, event.key, "send", event.content)
        if event.joins in witness.runs:
            witness.runs[event.joins].joining.append(content)
        return
    if event.scheduled:
        witness.due = None
    else:
        witness.inputs += 1
        _see_key(witness, event.key, "send", event.content)
    witness.runs[RunId(f"run_{event.scheduled or witness.version}")] = SeenRun(
        input=witness.version,
        content=content,
        cancelled=event.cancelled,
        allowed=1 if event.stepwise else None,
    )


def _see_timer(witness: Witness, timer: str) -> None:
    for name, scheduled in witness.scheduled.items():
        if timer == f"input:{scheduled.version}":
            witness.due = witness.scheduled.pop(name)
            return
    run = witness.runs[open_run] if (open_run := witness.open_run) is not None else None
    if run is not None and run.retry_at is not None and timer == f"retry:{run.failed}":
        run.asked, run.retry_at = witness.version, None
        run.joining.clear()


def _see_run(witness: Witness, event: SessionEvent, configuration: AgentConfiguration) -> None:
    match event:
        case (
            RunStarted()
            | TurnAllowed()
            | ContextPrepared()
            | ModelRequested()
            | ModelResponded()
            | ModelFailed()
            | RetryScheduled()
            | RunResumed()
            | RunParked()
        ):
            run = witness.runs.get(event.run)
        case _:
            return
    if run is None:
        return
    match event:
        case RunStarted():
            run.begun, run.started, witness.has_history = True, witness.version, True
        case TurnAllowed():
            run.allowed = event.turn
        case ModelRequested():
            run.turn, run.asked, run.concluded = event.turn, witness.version, False
            run.failed = run.attempts = 0
            run.joining.clear()
        case ContextPrepared():
            run.summaries += 1
            run.tokens += event.usage.output_tokens
            witness.summarised = witness.version
        case ModelResponded():
            run.asked, run.resumes = 0, 0
            _see_answer(witness, run, event, configuration)
        case ModelFailed():
            run.failed, run.asked = run.asked, 0
            run.attempts += 1
        case RetryScheduled():
            run.retry_at = event.due_at
        case RunResumed():
            _see_resume(witness, run, event)
        case RunParked():
            run.parked = True


def _see_answer(witness: Witness, run: SeenRun, event: ModelResponded, configuration: AgentConfiguration) -> None:
    uses = tool_uses(event.content)
    cut = bool(uses) and event.stop_reason == "max_tokens"
    run.tokens += event.usage.output_tokens
    run.called += 0 if cut else len(uses)
    run.rejected = run.rejected + 1 if event.rejected else 0
    if event.rejected:
        run.concluded, run.empty, run.broke, witness.paused = False, 0, False, False
        return
    paused = event.stop_reason == "pause_turn" and not uses
    says = bool(uses) or paused or any(type(block) is TextBlock for block in event.content)
    run.concluded = says and not uses and not paused
    run.empty = 0 if says else run.empty + 1
    run.cut = run.cut + 1 if cut else 0 if uses else run.cut
    run.broke = False
    if not cut and any(verdict.verdict == "broken" for verdict in event.verdicts):
        _see_breakage(run)
    if event.content and says:
        witness.paused = paused
    _see_calls(witness, uses, event.verdicts, configuration, "truncated" if cut else None)


def _see_calls(
    witness: Witness,
    uses: list[ToolUseBlock],
    verdicts: tuple[Verdict, ...],
    configuration: AgentConfiguration,
    all_refused_as: ErrorKind | None,
) -> None:
    policies = {policy.name: policy for policy in configuration.tools}
    for use, verdict in zip(uses, verdicts, strict=True):
        policy = policies.get(use.name) or ToolPolicy(use.name)
        action = verdict.action or use.name
        asks = policy.tier == "confirm" or verdict.verdict == "ask"
        refused_as = all_refused_as or _REFUSED_AS.get(verdict.verdict)
        witness.calls[use.id] = SeenCall(
            tool=use.name,
            action=action,
            tier=policy.tier,
            effect=policy.effect,
            refused_as=refused_as,
            asks=asks,
            approval="allowed" if asks and not refused_as and action in witness.allowed_actions else "",
        )


def _see_breakage(run: SeenRun) -> None:
    if not run.broke:
        run.broke = True
        run.breakages += 1


def _see_resume(witness: Witness, run: SeenRun, event: RunResumed) -> None:
    running = [call for call in witness.calls.values() if call.running]
    run.parked = False
    if event.asked:
        run.resumes, run.allowed = 0, None
    elif running or run.asked:
        run.resumes += 1
    for call in running:
        call.survivor, call.tool_present = True, call.tool in event.tools


def _see_call(
    witness: Witness,
    call: SeenCall,
    event: ToolApprovalRequested
    | ToolApprovalDecided
    | ToolCallStarted
    | ToolCallWaiting
    | ToolCallCompleted
    | ToolCallFailed,
) -> None:
    match event:
        case ToolApprovalRequested():
            call.approval, call.running, call.survivor, call.waiting = "waits", False, False, False
            call.requested, call.expires_at = witness.version, event.expires_at
        case ToolApprovalDecided():
            call.approval = "allowed" if event.allowed else "denied"
            if event.always and call.action not in witness.allowed_actions:
                witness.allowed_actions.append(call.action)
            _see_key(witness, event.key, "decide", (event.call, event.allowed, event.always))
        case ToolCallStarted():
            call.started, call.running, call.survivor = witness.version, True, False
        case ToolCallWaiting():
            call.waiting = event.waits
        case ToolCallCompleted() | ToolCallFailed():
            call.answered, call.running, call.survivor, call.waiting = True, False, False, False
            call.approval, call.requested, call.expires_at = "", 0, None
            if (name := witness.open_run) is not None:
                _see_result(witness.runs[name], event)
            if all(other.answered for other in witness.calls.values()):
                witness.closed_call = event.call
                witness.calls = {}
                if name is not None and not witness.runs[name].broke:
                    witness.runs[name].breakages = 0


def _see_result(run: SeenRun, event: ToolCallCompleted | ToolCallFailed) -> None:
    if isinstance(event, ToolCallCompleted):
        run.resumes = 0
        run.finishing = run.finishing or event.ends_run
        return
    if event.kind in ("transient", "permanent"):
        run.resumes = 0
    if event.broken:
        _see_breakage(run)
