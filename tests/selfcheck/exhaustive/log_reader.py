"""What a session's log says so far, read without the fold, for checkers that must not trust it.

`read` adds one event to an `ObservedSession`, which knows the inputs, runs and calls that are not over, and of those
that are over the last one, which is enough to try what comes late. The rules: nothing here is taken from a
`SessionState`; and what is over is forgotten, so that one scope has finitely many observed sessions up to renumbering.
"""

from typing import Literal

import msgspec

from refold.events.core.content import ErrorKind, TextBlock, ToolUseBlock, tool_uses
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import AgentConfiguration, EffectClass, Tier, ToolPolicy
from refold.events.session import events as ev
from refold.events.session.state import CommandWord

_REFUSED_AS: dict[str, ErrorKind] = {
    "deny": "denied",
    "invalid_arguments": "invalid_arguments",
    "not_found": "not_found",
    "broken": "denied",
}


class ObservedCall(msgspec.Struct, omit_defaults=True):
    """A call of the last answer, while not all of its calls are answered."""

    tool: str
    action: str
    """What an approval for always allows."""
    tier: Tier
    effect: EffectClass
    refused_as: ErrorKind | None = None
    """It must never run, and is answered with this kind."""
    asks: bool = False
    """It may run only after an approval."""
    input: str = "{}"
    """JSON of the arguments that it is to run with: what the model gave, or a person in its place."""
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
    attempts: int = 0
    """How many attempts at it have failed."""
    retry: int = 0
    """Version of its last RetryScheduled; 0 = none."""
    retry_at: int | None = None
    """When it is tried again; None = it is not between two attempts, or the time has come."""
    due: bool = False
    """That time has come, and it has not started again."""
    tool_present: bool = True
    """The process that resumed its run has the tool."""
    answered: bool = False
    questions: int = 0
    """How many it has asked."""
    asked: int = 0
    """Version of the QuestionAsked that nothing has answered; 0 = none."""
    gives_result: bool = False
    """What answers that is its result."""
    given: bool = False
    """It has been answered, and has not started again."""
    error: bool = False
    """With an error."""


class ObservedRun(msgspec.Struct, omit_defaults=True):
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
    useless: str = ""
    """Why its last answer stopped, where it is useless and would be so again."""
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


class ObservedInput(msgspec.Struct):
    """An input that was accepted for a later time."""

    version: int
    """Of its TimerSet."""
    due_at: int
    content: str
    key: str | None


class ObservedKey(msgspec.Struct, frozen=True):
    """The first command that came with a key."""

    command: CommandWord
    content: str
    """JSON of what must be the same in a repetition."""
    version: int
    """Of what it became."""


class ObservedAside(msgspec.Struct, frozen=True):
    """What was set aside and not taken back."""

    version: int
    """Of its InputSetAside."""
    places: tuple[int, ...]
    """In the history."""


class ObservedSession(msgspec.Struct, omit_defaults=True):
    """What the log says; see the module."""

    version: int = 0
    inputs: int = 0
    """How many were accepted."""
    described: bool = False
    """It is known whose the session is."""
    imported: bool = False
    has_history: bool = False
    """There is a message that a model would be shown."""
    allowed_actions: list[str] = []
    """What was allowed for always."""
    summarised: int = 0
    """Version of the last summary; 0 = none."""
    scheduled: dict[RunId, ObservedInput] = {}
    """Those whose time has not come, in the order in which they were accepted."""
    due: ObservedInput | None = None
    """One whose time has come and that is not queued yet."""
    paused: bool = False
    """The last answer with any content was a pause."""
    runs: dict[RunId, ObservedRun] = {}
    """Those that have not ended, in the order in which their inputs were accepted."""
    calls: dict[ToolCallId, ObservedCall] = {}
    """Those of the last answer, in order; empty once all are answered."""
    keys: dict[str, ObservedKey] = {}
    asides: list[ObservedAside] = []
    """Since the history began, or its beginning was summarised."""
    ended_run: RunId | None = None
    """The last run that ended."""
    closed_call: ToolCallId | None = None
    """A call of the last answer whose calls are all answered."""

    @property
    def open_run(self) -> RunId | None:
        """The run under way."""
        return next((run for run, seen in self.runs.items() if seen.begun), None)

    @property
    def first_scheduled(self) -> ObservedInput | None:
        """The input whose time comes first; of those of one time the one that was accepted first."""
        return min(self.scheduled.values(), key=lambda seen: (seen.due_at, seen.version), default=None)

    @property
    def awaits_step(self) -> bool:
        """Whether the run under way waits until its next turn is allowed."""
        run = self.runs[name] if (name := self.open_run) is not None else None
        if run is None or run.allowed is None or run.parked or run.asked or run.retry_at is not None:
            return False
        return not self.calls

    @property
    def awaits_person(self) -> bool:
        """Whether the run under way waits for a person and nothing else."""
        name = self.open_run
        if name is None:
            return False
        awaiting = any(call.approval == "waits" or call.waiting or call.asked for call in self.calls.values())
        at_work = any((call.running and not call.waiting) or call.retry_at for call in self.calls.values())
        return self.runs[name].parked or self.awaits_step or (awaiting and not at_work)


def written(content: object) -> str:
    """Return the JSON of `content`, as `ObservedKey` keeps it."""
    return msgspec.json.encode(content).decode()


def read(observed: ObservedSession, event: ev.SessionEvent, configuration: AgentConfiguration) -> None:
    """Add `event`, the next one of the log, to `observed`.

    It never fails: what makes no sense is left out, and is for the checkers to find.
    """
    observed.version += 1
    match event:
        case ev.SessionDescribed():
            observed.described = True
        case ev.HistoryImported():
            observed.imported = observed.has_history = True
            _read_key(observed, event.key, "import", event.digest)
            last = event.messages[-1]
            uses = tool_uses(last.content) if last.role == "assistant" else []
            _read_calls(observed, uses, (ev.Verdict(),) * len(uses), configuration, "crashed")
        case ev.InputSetAside():
            _read_key(observed, event.key, "aside", event.digest)
            observed.asides.append(ObservedAside(observed.version, tuple(one.place for one in event.messages)))
        case ev.ContentTakenBack(aside=version):
            observed.asides = [aside for aside in observed.asides if aside.version != version]
        case ev.HistoryCleared():
            observed.has_history = False
            observed.asides = []
            _read_key(observed, event.key, "clear", None)
        case ev.InputQueued():
            _read_input(observed, event)
        case ev.TimerSet():
            observed.inputs += 1
            content = written(event.content)
            observed.scheduled[RunId(f"run_{observed.version}")] = ObservedInput(
                observed.version, event.due_at, content, event.key
            )
            _read_key(observed, event.key, "send", event.content)
        case ev.TimerFired():
            _read_timer(observed, event.timer)
        case ev.CancelRequested():
            observed.scheduled.pop(event.run, None)
            if event.run in observed.runs:
                observed.runs[event.run].cancelled = True
            _read_key(observed, event.key, "cancel", event.run)
        case ev.RunCompleted() | ev.RunFailed() | ev.RunCancelled():
            observed.runs.pop(event.run, None)
            observed.ended_run = event.run
        case (
            ev.ToolApprovalRequested()
            | ev.ToolApprovalDecided()
            | ev.ToolCallStarted()
            | ev.ToolCallWaiting()
            | ev.QuestionAsked()
            | ev.QuestionAnswered()
            | ev.ToolAttemptFailed()
            | ev.ToolCallCompleted()
            | ev.ToolCallFailed()
        ):
            if (call := observed.calls.get(event.call)) is not None:
                _read_call(observed, call, event)
        case ev.RetryScheduled(call=str(name)):
            if (call := observed.calls.get(name)) is not None:
                call.retry, call.retry_at = observed.version, event.due_at
        case _:
            _read_run(observed, event, configuration)


def _read_key(observed: ObservedSession, key: str | None, command: CommandWord, content: object) -> None:
    if key is not None:
        observed.keys.setdefault(key, ObservedKey(command, written(content), observed.version))


def _read_input(observed: ObservedSession, event: ev.InputQueued) -> None:
    content = written(event.content)
    if event.joins is not None:
        observed.inputs += 1
        _read_key(observed, event.key, "send", event.content)
        if event.joins in observed.runs:
            observed.runs[event.joins].joining.append(content)
        return
    if event.scheduled:
        observed.due = None
    else:
        observed.inputs += 1
        _read_key(observed, event.key, "send", event.content)
    observed.runs[RunId(f"run_{event.scheduled or observed.version}")] = ObservedRun(
        input=observed.version,
        content=content,
        cancelled=event.cancelled,
        allowed=1 if event.stepwise else None,
    )


def _read_timer(observed: ObservedSession, timer: str) -> None:
    for name, scheduled in observed.scheduled.items():
        if timer == f"input:{scheduled.version}":
            observed.due = observed.scheduled.pop(name)
            return
    for call in observed.calls.values():
        if call.retry_at is not None and timer == f"retry:{call.retry}":
            call.retry_at, call.due = None, True
    run = observed.runs[open_run] if (open_run := observed.open_run) is not None else None
    if run is not None and run.retry_at is not None and timer == f"retry:{run.failed}":
        run.asked, run.retry_at = observed.version, None
        run.joining.clear()


def _read_run(observed: ObservedSession, event: ev.SessionEvent, configuration: AgentConfiguration) -> None:
    match event:
        case (
            ev.RunStarted()
            | ev.TurnAllowed()
            | ev.ContextPrepared()
            | ev.ModelRequested()
            | ev.ModelResponded()
            | ev.GuardrailTripped()
            | ev.ModelFailed()
            | ev.RetryScheduled()
            | ev.RunResumed()
            | ev.RunParked()
        ):
            run = observed.runs.get(event.run)
        case _:
            return
    if run is None:
        return
    match event:
        case ev.RunStarted():
            run.begun, run.started, observed.has_history = True, observed.version, True
        case ev.TurnAllowed():
            run.allowed = event.turn
        case ev.ModelRequested():
            run.turn, run.asked, run.concluded = event.turn, observed.version, False
            run.failed = run.attempts = 0
            run.joining.clear()
        case ev.ContextPrepared():
            run.summaries += 1
            run.tokens += event.usage.output_tokens
            observed.summarised, observed.asides = observed.version, []
        case ev.ModelResponded():
            run.asked, run.resumes = 0, 0
            _read_answer(observed, run, event, configuration)
        case ev.GuardrailTripped():
            run.asked = 0
        case ev.ModelFailed():
            run.failed, run.asked = run.asked, 0
            run.attempts += 1
        case ev.RetryScheduled():
            run.retry_at = event.due_at
        case ev.RunResumed():
            _read_resume(observed, run, event)
        case ev.RunParked():
            run.parked = True


def _read_answer(
    observed: ObservedSession, run: ObservedRun, event: ev.ModelResponded, configuration: AgentConfiguration
) -> None:
    uses = tool_uses(event.content)
    cut = bool(uses) and event.stop_reason == "max_tokens"
    run.tokens += event.usage.output_tokens
    run.called += 0 if cut else len(uses)
    if event.trip is not None:
        run.concluded = False
        return
    told = event.stop_reason if event.stop_details is not None and not uses else ""
    silent = not any(type(block) is TextBlock for block in event.content)
    if (told == "refusal" and (silent or event.rejected)) or (told == "max_tokens" and silent):
        run.useless, run.concluded = told, False
        return
    run.rejected = run.rejected + 1 if event.rejected else 0
    if event.rejected:
        run.concluded, run.empty, run.broke, observed.paused = False, 0, False, False
        return
    paused = event.stop_reason == "pause_turn" and not uses
    says = bool(uses) or paused or any(type(block) is TextBlock for block in event.content)
    run.concluded = says and not uses and not paused
    only_thought = (event.stop_details or {}).get("type") == "only_thought"
    run.empty = 0 if says else max(run.empty + 1, configuration.empty_answers_max if only_thought else 0)
    run.cut = run.cut + 1 if cut else 0 if uses else run.cut
    run.broke = False
    if not cut and any(verdict.verdict == "broken" for verdict in event.verdicts):
        _read_breakage(run)
    if event.content and says:
        observed.paused = paused
    _read_calls(observed, uses, event.verdicts, configuration, "truncated" if cut else None)


def _read_calls(
    observed: ObservedSession,
    uses: list[ToolUseBlock],
    verdicts: tuple[ev.Verdict, ...],
    configuration: AgentConfiguration,
    all_refused_as: ErrorKind | None,
) -> None:
    policies = {policy.name: policy for policy in configuration.tools}
    for use, verdict in zip(uses, verdicts, strict=True):
        policy = policies.get(use.name) or ToolPolicy(use.name)
        action = verdict.action or use.name
        asks = policy.tier == "confirm" or verdict.verdict == "ask"
        refused_as = all_refused_as or _REFUSED_AS.get(verdict.verdict)
        observed.calls[use.id] = ObservedCall(
            tool=use.name,
            action=action,
            tier=policy.tier,
            effect=policy.effect,
            refused_as=refused_as,
            asks=asks,
            input=written(use.input),
            approval="allowed" if asks and not refused_as and action in observed.allowed_actions else "",
        )


def _read_breakage(run: ObservedRun) -> None:
    if not run.broke:
        run.broke = True
        run.breakages += 1


def _read_resume(observed: ObservedSession, run: ObservedRun, event: ev.RunResumed) -> None:
    running = [call for call in observed.calls.values() if call.running]
    run.parked = False
    if event.asked:
        run.resumes, run.allowed = 0, None
    elif running or run.asked:
        run.resumes += 1
    for call in running:
        call.survivor, call.tool_present = True, call.tool in event.tools


def _read_call(
    observed: ObservedSession,
    call: ObservedCall,
    event: ev.ToolApprovalRequested
    | ev.ToolApprovalDecided
    | ev.ToolCallStarted
    | ev.ToolCallWaiting
    | ev.QuestionAsked
    | ev.QuestionAnswered
    | ev.ToolAttemptFailed
    | ev.ToolCallCompleted
    | ev.ToolCallFailed,
) -> None:
    match event:
        case ev.ToolApprovalRequested():
            call.approval, call.running, call.survivor, call.waiting = "waits", False, False, False
            call.requested, call.expires_at = observed.version, event.expires_at
        case ev.ToolApprovalDecided():
            call.approval = "allowed" if event.allowed else "denied"
            if event.always and call.action not in observed.allowed_actions:
                observed.allowed_actions.append(call.action)
            if event.input is not None:
                call.input = written(event.input)
            _read_key(observed, event.key, "decide", (event.call, event.allowed, event.always, event.input))
        case ev.ToolCallStarted():
            call.started, call.running, call.survivor, call.due = observed.version, True, False, False
            call.given = False
        case ev.ToolCallWaiting():
            call.waiting = event.waits
        case ev.QuestionAsked():
            call.running, call.survivor, call.waiting = False, False, False
            call.questions, call.asked, call.gives_result = event.number, observed.version, event.gives_result
            if (name := observed.open_run) is not None:
                observed.runs[name].resumes = 0
        case ev.QuestionAnswered():
            call.asked, call.given, call.error = 0, True, event.error is not None
        case ev.ToolAttemptFailed():
            call.attempts += 1
            call.running, call.survivor, call.waiting = False, False, False
            if event.kind == "transient" and (name := observed.open_run) is not None:
                observed.runs[name].resumes = 0
        case ev.ToolCallCompleted() | ev.ToolCallFailed():
            call.answered, call.running, call.survivor, call.waiting = True, False, False, False
            call.approval, call.requested, call.expires_at = "", 0, None
            call.attempts, call.retry, call.retry_at, call.due = 0, 0, None, False
            call.questions, call.asked, call.gives_result, call.given, call.error = 0, 0, False, False, False
            if (name := observed.open_run) is not None:
                _read_result(observed.runs[name], event)
            if all(other.answered for other in observed.calls.values()):
                observed.closed_call = event.call
                observed.calls = {}
                if name is not None and not observed.runs[name].broke:
                    observed.runs[name].breakages = 0


def _read_result(run: ObservedRun, event: ev.ToolCallCompleted | ev.ToolCallFailed) -> None:
    if isinstance(event, ev.ToolCallCompleted):
        run.resumes = 0
        run.finishing = run.finishing or event.ends_run
        return
    if event.kind in ("transient", "permanent"):
        run.resumes = 0
    if event.broken:
        _read_breakage(run)
