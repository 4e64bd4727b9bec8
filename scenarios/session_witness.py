"""What a session's log says so far, kept apart from the fold, for checkers that must not trust it.

A `Witness` knows the inputs, runs and calls that are not over, and of those that are over only the last one, which
is enough to try what comes late. The rule: nothing here is taken from a `SessionState`, and what is over is
forgotten, so that the witnesses of all lives in one scope are finitely many up to renumbering.
"""

from typing import Literal

import msgspec

from refold.events.configuration import AgentConfiguration, EffectClass, Tier, ToolPolicy
from refold.events.content import ErrorKind, TextBlock, ToolUseBlock, tool_uses
from refold.events.ids import RunId, ToolCallId
from refold.events.session_events import (
    CancelRequested,
    HistoryImported,
    InputQueued,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunParked,
    RunResumed,
    RunStarted,
    SessionEvent,
    ToolApprovalDecided,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    Verdict,
)
from refold.events.session_state import KeyedCommand

_REFUSED_AS: dict[str, ErrorKind] = {
    "deny": "denied",
    "invalid_arguments": "invalid_arguments",
    "not_found": "not_found",
}


class SeenCall(msgspec.Struct):
    """A call of the last answer, while not all of its calls are answered."""

    tool: str
    tier: Tier
    effect: EffectClass
    refused_as: ErrorKind | None = None
    """It must never run, and is answered with this kind."""
    asks: bool = False
    """It may run only after an approval."""
    approval: Literal["", "waits", "allowed", "denied"] = ""
    started: int = 0
    """Version of its last ToolCallStarted; 0 = never."""
    running: bool = False
    """Started, and since then neither answered nor put to approval again."""
    survivor: bool = False
    """Running, and started in a process that is gone."""
    tool_present: bool = True
    """The process that resumed its run has the tool."""
    answered: bool = False


class SeenRun(msgspec.Struct):
    """A run that has not ended; its input may still be queued."""

    begun: bool = False
    started: int = 0
    """Version of its RunStarted."""
    cancelled: bool = False
    turn: int = 0
    asked: int = 0
    """Version of the ModelRequested that nothing has answered; 0 = none."""
    concluded: bool = False
    """Its last answer was a final one."""
    empty: int = 0
    """Answers in a row that said nothing."""
    cut: int = 0
    """Answers in a row that were cut inside their calls."""
    parked: bool = False
    resumes: int = 0
    """Resumes of work in flight since the last progress."""


class SeenKey(msgspec.Struct, frozen=True):
    """The first command that came with a key."""

    command: KeyedCommand
    content: str
    """JSON of what must be the same in a repetition."""
    version: int
    """Of what it became."""


class Witness(msgspec.Struct):
    """What the log says; see the module."""

    version: int = 0
    inputs: int = 0
    """How many were accepted."""
    imported: bool = False
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
            witness.imported = True
            _see_key(witness, event.key, "import", event.digest)
            last = event.messages[-1]
            uses = tool_uses(last.content) if last.role == "assistant" else []
            _see_calls(witness, uses, (Verdict(),) * len(uses), configuration, "crashed")
        case InputQueued():
            witness.inputs += 1
            witness.runs[RunId(f"run_{witness.version}")] = SeenRun(cancelled=event.cancelled)
            _see_key(witness, event.key, "send", event.content)
        case CancelRequested():
            if event.run in witness.runs:
                witness.runs[event.run].cancelled = True
            _see_key(witness, event.key, "cancel", event.run)
        case RunCompleted() | RunFailed() | RunCancelled():
            witness.runs.pop(event.run, None)
            witness.ended_run = event.run
        case (
            ToolApprovalRequested() | ToolApprovalDecided() | ToolCallStarted() | ToolCallCompleted() | ToolCallFailed()
        ):
            if (call := witness.calls.get(event.call)) is not None:
                _see_call(witness, call, event)
        case _:
            _see_run(witness, event, configuration)


def _see_key(witness: Witness, key: str | None, command: KeyedCommand, content: object) -> None:
    if key is not None:
        witness.keys.setdefault(key, SeenKey(command, written(content), witness.version))


def _see_run(witness: Witness, event: SessionEvent, configuration: AgentConfiguration) -> None:
    match event:
        case RunStarted() | ModelRequested() | ModelResponded() | ModelFailed() | RunResumed() | RunParked():
            run = witness.runs.get(event.run)
        case _:
            return
    if run is None:
        return
    match event:
        case RunStarted():
            run.begun, run.started = True, witness.version
        case ModelRequested():
            run.turn, run.asked, run.concluded = event.turn, witness.version, False
        case ModelResponded():
            run.asked, run.resumes = 0, 0
            _see_answer(witness, run, event, configuration)
        case ModelFailed():
            run.asked = 0
        case RunResumed():
            _see_resume(witness, run, event)
        case RunParked():
            run.parked = True


def _see_answer(witness: Witness, run: SeenRun, event: ModelResponded, configuration: AgentConfiguration) -> None:
    uses = tool_uses(event.content)
    cut = bool(uses) and event.stop_reason == "max_tokens"
    paused = event.stop_reason == "pause_turn" and not uses
    says = bool(uses) or paused or any(type(block) is TextBlock for block in event.content)
    run.concluded = says and not uses and not paused
    run.empty = 0 if says else run.empty + 1
    run.cut = run.cut + 1 if cut else 0 if uses else run.cut
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
        witness.calls[use.id] = SeenCall(
            tool=use.name,
            tier=policy.tier,
            effect=policy.effect,
            refused_as=all_refused_as or _REFUSED_AS.get(verdict.verdict),
            asks=policy.tier == "confirm" or verdict.verdict == "ask",
        )


def _see_resume(witness: Witness, run: SeenRun, event: RunResumed) -> None:
    running = [call for call in witness.calls.values() if call.running]
    run.parked = False
    if event.asked:
        run.resumes = 0
    elif running or run.asked:
        run.resumes += 1
    for call in running:
        call.survivor, call.tool_present = True, call.tool in event.tools


def _see_call(
    witness: Witness,
    call: SeenCall,
    event: ToolApprovalRequested | ToolApprovalDecided | ToolCallStarted | ToolCallCompleted | ToolCallFailed,
) -> None:
    match event:
        case ToolApprovalRequested():
            call.approval, call.running, call.survivor = "waits", False, False
        case ToolApprovalDecided():
            call.approval = "allowed" if event.allowed else "denied"
            _see_key(witness, event.key, "decide", (event.call, event.allowed))
        case ToolCallStarted():
            call.started, call.running, call.survivor = witness.version, True, False
        case ToolCallCompleted() | ToolCallFailed():
            call.answered, call.running, call.survivor = True, False, False
            if isinstance(event, ToolCallCompleted) or event.kind in ("transient", "permanent"):
                for run in witness.runs.values():
                    run.resumes = 0
            if all(other.answered for other in witness.calls.values()):
                witness.closed_call = event.call
                witness.calls = {}
