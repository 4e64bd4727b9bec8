"""What is true of a session: the shapes of its state, and the questions that are asked of it.

Theory of operation: the state is the queue of inputs, at most one `Run` with its `Phase`, at most one `Turn` with the
calls of the last answer, and the history that a model is shown. It is owned by one actor, and changed in place, event
by event, by `refold.events.session.evolve`; `refold.events.session.admit` and `refold.events.session.react` read it.

Messages are only ever added to the end of the list of messages, so that a request can share it without a copy; what
replaces the history is a new list. The results of the turn under way are not in it: they enter together, in the order
of the calls, when the last one is there; `history` shows them before.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, MutableSequence
from typing import Literal

import msgspec

from refold.events.core.content import (
    CRASHED_TEXT,
    STILL_OPEN_TEXT,
    Block,
    JsonObject,
    Message,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    UserContent,
    error_result,
)
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.core.pure_core import RecordedKey, content_digest
from refold.events.model.configuration import (
    AgentConfiguration,
    Handoff,
    RunOptions,
    ToolPolicy,
    attempts_counted,
    configured_for,
)
from refold.events.model.messages import StopReason
from refold.events.model.refused import GuardrailTrip, SetAside
from refold.events.model.spending import RunTotals, Usage, overspent
from refold.events.session.commands import DecideApproval
from refold.events.session.events import (
    QuestionAnswered,
    QuestionAsked,
    Repeat,
    RunFailureKind,
    ToolApprovalDecided,
    ToolAttemptFailed,
    Verdict,
)

Phase = Literal["ready", "model", "tools", "answered", "waiting", "ending"]
"""What a run is doing.

`ready`: its next turn can begin. `model`: a model call is in flight. `tools`: calls are open. `answered`: the
final answer is there. `waiting`: a failed model call is made again later. `ending`: it is being cancelled or
failed; its open calls are closed first.
"""


CALL_ID = re.compile(r"call_(0|[1-9][0-9]*)_(0|[1-9][0-9]{0,8})")
"""The id of a call: the version of the event that made it, and its place among the calls of that event."""


ONLY_THOUGHT = "only_thought"
"""Why an answer is empty, in its `stop_details`: it has thoughts, and neither words nor calls."""


class QueuedInput(msgspec.Struct):
    """An accepted input that no model has been shown yet."""

    version: int
    """Of its InputQueued."""
    run: RunId
    message: Message
    key: str | None = None
    cancelled: bool = False
    stepwise: bool = False
    options: RunOptions | None = None
    reminder: int = 0


class ScheduledInput(msgspec.Struct):
    """An input that was accepted for a later time."""

    due_at: int
    version: int
    """Of its TimerSet."""
    timer: str
    content: tuple[UserContent, ...]
    key: str | None = None
    options: RunOptions | None = None
    every: Repeat | None = None
    set_at: int = 0
    """Version of the event that set the time; 0 = the TimerSet."""


class TurnCall(msgspec.Struct):
    """One tool call of the turn under way."""

    id: ToolCallId
    name: str
    input: dict[str, object]
    policy: ToolPolicy
    verdict: Verdict
    approval: Literal["", "requested", "allowed", "denied"] = ""
    approval_reason: str = ""
    changed: bool = False
    """A person who allowed it has changed its arguments; `input` is what it runs with."""
    requested_at: int = 0
    """When that was last asked for, in microseconds since the epoch."""
    expires_at: int | None = None
    """When it counts as denied, if nobody decides."""
    started: bool = False
    """Its body may have begun, in this process or before a crash."""
    lost: bool = False
    """A crash interrupted it and it is not simply run again."""
    failure: ToolAttemptFailed | None = None
    """The last attempt at it that failed and may be followed by another."""
    retry_at: int = 0
    """When that one is due, in microseconds since the epoch."""
    question: QuestionAsked | None = None
    """The last one that it asked."""
    answers: list[QuestionAnswered] = []
    """What came of its questions, in order."""
    result: ToolResultBlock | None = None

    @property
    def failed_attempts(self) -> int:
        """How many attempts at it have failed; the one under way is the next."""
        return self.failure.attempt if self.failure is not None else 0


class Turn(msgspec.Struct):
    """The calls of the last answer, while not all of them are answered."""

    calls: list[TurnCall]
    index: dict[ToolCallId, int]
    truncated: bool = False
    """The answer was cut: none of its calls runs."""
    open: int = 0
    """How many calls are unanswered."""
    checked: int = 0
    """Calls before this place have been refused or put to approval as their verdict demands."""
    running: dict[ToolCallId, int] = {}
    """The calls whose bodies may be running, in the order of their start, with the version of ToolCallStarted."""
    awaiting: dict[ToolCallId, int] = {}
    """The calls that a person has to allow or deny, oldest first, with the version of ToolApprovalRequested."""
    pausing: dict[ToolCallId, int] = {}
    """The calls between two attempts, with the version of RetryScheduled."""
    asking: dict[ToolCallId, int] = {}
    """The calls that do not run until they are given an answer, with the version of QuestionAsked."""
    waiting: dict[ToolCallId, None] = {}
    """Of those that run, the calls whose work does nothing but wait for a person."""
    broken: bool = False
    """Carrying out its calls broke."""
    expiring: list[tuple[int, int]] = []
    """When the time for their answers is over, with their places; sorted."""
    begun: int = 0
    """Calls before this place are running, between two attempts, asking or answered, but for those of `again`."""
    again: list[int] = []
    """Places of calls that are to begin again; a heap."""
    first_open: int = 0
    """Calls before this place are answered."""

    @property
    def next_start(self) -> int:
        """Place of the first call that has still to begin, or to begin again."""
        return self.again[0] if self.again else self.begun


class Ending(msgspec.Struct, frozen=True):
    """Why a run is being ended."""

    outcome: Literal["cancelled", "failed"]
    kind: RunFailureKind | None = None
    message: str = ""
    """Also what the model is told of calls that are closed for it."""
    trip: GuardrailTrip | None = None
    """The guardrail for which it fails."""


class Run(msgspec.Struct):
    """The run under way."""

    id: RunId
    input: int
    """Version of its InputQueued."""
    started: int
    """Version of its RunStarted."""
    started_at: int
    options: RunOptions | None = None
    """What it does otherwise than the agent."""
    phase: Phase = "ready"
    keys: list[str] = []
    """Of its inputs."""
    latest_input: int = 0
    """Place of the latest of them in the history."""
    joining: list[QueuedInput] = []
    """Inputs that join it before its next model call."""
    turns: int = 0
    turns_allowed: int | None = None
    """How many turns it may take until a person allows more; None = as many as it wants."""
    asked: int = 0
    """Version of the event that wants the model call in flight."""
    failures: dict[str, int] = {}
    """Failed attempts of the present turn, by kind of error."""
    retry_at: int = 0
    empty_answers: int = 0
    """In a row; one that has only thoughts counts as all but the last that are allowed."""
    only_thought: bool = False
    """The last of them had thoughts."""
    truncated_answers: int = 0
    """In a row."""
    rejected_answers: int = 0
    """In a row."""
    rejection: str = ""
    """Why the last of them could not be used."""
    tool_calls: int = 0
    """That the model has asked for."""
    resumes: int = 0
    """How often work in flight was lost since the last progress."""
    parked: bool = False
    """Nothing goes on until a person resumes or cancels it."""
    forked: bool = False
    """It is parked since its session was forked while it was open, so that nothing is wanted of it, not even a wait."""
    breakages: int = 0
    """Turns in a row in which carrying out calls broke."""
    finishing: bool = False
    """A tool ended it; calls that have not begun do not run."""
    waiting_since: int | None = None
    """Since when it waits for a person and nothing else; None = it does not."""
    waited_us: int = 0
    """How long it has waited for a person before that."""
    ending: Ending | None = None
    handoff: Handoff | None = None
    """To which agent it is handed over when the calls of its turn are answered."""
    handed_by: ToolCallId | None = None
    """The call that does so."""
    usage: Usage = Usage()
    cost: float = 0.0
    """What that costs, as far as prices are known."""
    final: tuple[TextBlock | StoredBlock, ...] = ()
    """Text of the final answer."""
    stop_reason: StopReason = "end_turn"
    """Of the last answer."""


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """How the last run ended."""

    run: RunId
    outcome: Literal["completed", "failed", "cancelled"]
    final: tuple[TextBlock | StoredBlock, ...]
    """Text of the final answer; empty unless completed."""
    stop_reason: StopReason
    usage: Usage
    cost: float = 0.0
    turns: int
    kind: RunFailureKind | None = None
    message: str = ""
    trip: GuardrailTrip | None = None
    """The guardrail for which it failed."""
    agent: AgentId | None = None
    """Whose answer it is, where the session was handed over; None = the agent's that began it."""
    version: int = 0
    """Of its terminal event."""


CommandWord = Literal["send", "cancel", "decide", "answer", "import", "clear", "rewind", "aside", "take back"]
"""Commands that take an idempotency key."""


class SessionKey(RecordedKey, gc=True):
    """A key under which a session recorded a command, and what became of the run that it began."""

    command: CommandWord
    run: RunId | None = None
    """The run of an input."""
    terminal: int = 0
    """Version of the terminal event of its run; 0 = not ended, or the command starts no run."""
    finished: FinishedRun | None = None
    """How that run ended."""
    cancelled: int = 0
    """Version of the event that cancelled it before its run began; 0 = none did."""


class HistoryMark(msgspec.Struct):
    """Where in the history a run or an import begins, so that it can be taken back to before that."""

    started: int
    """Version of the RunStarted, of the InputQueued where that is just before it, or of the HistoryImported."""
    place: int
    """Of its first message."""
    ended: int = 0
    """Version of the run's terminal event; 0 = it is under way."""


class SessionState(msgspec.Struct):
    """All that a session's events add up to."""

    version: int = 0
    at: int = 0
    session: SessionId | None = None
    agent: AgentId | None = None
    """Whose it is."""
    handed_off: int = 0
    """Version of the last HandedOff; 0 = it is the agent's that began it."""
    user: str | None = None
    """Whose it is; None = no user was named."""
    metadata: Mapping[str, str] = {}
    """What the application says of it."""
    configuration: AgentConfiguration | None = None
    configured: int = 0
    """Version of the AgentConfigured in force."""
    policies: dict[str, ToolPolicy] = {}
    messages: MutableSequence[Message] = msgspec.field(default_factory=list[Message])
    """The history without results of the turn under way; grows at its end, until another list takes its place."""
    turn: Turn | None = None
    queue: list[QueuedInput] = []
    run: Run | None = None
    last_run: FinishedRun | None = None
    keys: dict[str, SessionKey] = {}
    usage: Usage = Usage()
    cost: float = 0.0
    """What that costs, as far as prices are known."""
    scheduled: list[ScheduledInput] = []
    """In the order in which they are due."""
    due: ScheduledInput | None = None
    """One whose time has come, until it is queued in the same batch."""
    allowed_actions: dict[str, int] = {}
    """Actions that a person allowed always, with the version of the decision."""
    cleared: int = 0
    """Version of the last HistoryCleared."""
    accepted: int = 0
    """How many of the messages were in a request that the model has answered, or are its answer."""
    accepted_by: str = ""
    """The configured model of which that is true."""
    asides: dict[int, tuple[SetAside, ...]] = {}
    """What stood in the history where something was set aside, by the version of InputSetAside; places are of now."""
    counted: float = 1.0
    """How many tokens the provider counted for one that was counted by the context window, in the last answer of which
    both are known; at least 1."""
    fits: int = 0
    """Tokens, counted by the window, to which requests are shortened, since the provider found a longer one too long;
    0 = they are not."""
    unsummarised: int = 0
    """Tokens of the history, counted likewise, that were found too long for one summary; 0 = none were."""
    summarised: int = 0
    """Version of the last ContextPrepared."""
    cleared_calls: dict[str, int] = {}
    """How many calls the answers made that are not shown any more, by the version of the answer."""
    marks: list[HistoryMark] = []
    """Oldest first; without those whose messages are not shown any more."""
    options: RunOptions | None = None
    """What all of its runs do otherwise than the agent, since it is a fork."""


def configuration_of_run(state: SessionState) -> AgentConfiguration:
    configuration, run = state.configuration, state.run
    assert configuration is not None
    return configuration if run is None else configured_for(configuration, run.options)


def history(state: SessionState) -> list[Message]:
    """Return the balanced history as a model would be shown it now: open calls get a result that says so."""
    messages = list(state.messages)
    if state.turn is not None:
        messages.append(results_message(state.turn))
    return messages


def budget_spent(state: SessionState, run: Run) -> str | None:
    """Return which limit of its budget a run has reached, in words; None = none, or it has no budget."""
    budget = state.configuration.budget if state.configuration is not None else None
    return overspent(budget, run.usage, run.cost, run.tool_calls)


def results_message(turn: Turn) -> Message:
    results = [call.result or error_result(call.id, "transient", STILL_OPEN_TEXT) for call in turn.calls]
    return Message("user", tuple(results))


def find_call(state: SessionState, call: ToolCallId) -> TurnCall | None:
    turn = state.turn
    if turn is None or call not in turn.index:
        return None
    return turn.calls[turn.index[call]]


def running_calls(turn: Turn | None) -> list[TurnCall]:
    return [turn.calls[turn.index[call]] for call in turn.running] if turn is not None else []


def input_digest(content: tuple[UserContent, ...], options: RunOptions | None, every: Repeat | None = None) -> str:
    options = options.without_trace() if options is not None else None
    if every is not None:
        return content_digest((content, options, every))
    return content_digest(content if options is None else (content, options))


def decision_digest(decision: DecideApproval | ToolApprovalDecided) -> str:
    said: tuple[object, ...] = (decision.call, decision.allowed)
    if decision.always or decision.input is not None:
        said = (*said, decision.always)
    return content_digest(said if decision.input is None else (*said, decision.input))


def needs_approval(call: TurnCall) -> bool:
    return call.verdict.verdict == "ask" or (call.verdict.verdict == "allow" and call.policy.tier == "confirm")


def needs_verdict(call: TurnCall, turn: Turn) -> bool:
    """Tell whether a call must still be refused, or put to a person's approval, before any may start."""
    if call.result is not None:
        return False
    if turn.truncated or call.verdict.verdict not in ("allow", "ask"):
        return True
    return not call.approval and needs_approval(call)


def reason_to_ask(call: TurnCall) -> str:
    """Return what a person who is to allow a call is told: what asked for that, or that a crash interrupted it."""
    return CRASHED_TEXT if call.started else call.verdict.reason


def attempts_that_count(call: TurnCall, failed: int) -> int | None:
    policy = call.policy
    if policy.retries is None or policy.effect == "once":  # What began and failed may have had its effect.
        return None
    return attempts_counted(policy.retries, {"": failed}, "")


def action_of(call: TurnCall) -> str:
    """Return which action an allowance for always is about."""
    return call.verdict.action or call.name


def deadline_key(run: Run) -> str:
    return f"deadline:{run.id}"


def retry_key(version: int) -> str:
    """Return the effect key of the wait before another attempt at what a version wanted or scheduled."""
    return f"retry:{version}"


def resume_key(run: Run) -> str:
    return f"resume:{run.id}"


def question_id(call: ToolCallId, number: int | None) -> str:
    """Return how people name a question: `call_6_0.1`, or the call alone for the one that it waits for."""
    return call if number is None else f"{call}.{number}"


def answer_key(asked: int) -> str:
    return f"answer:{asked}"


def approval_key(requested: int) -> str:
    return f"approval:{requested}"


def expiry_key(requested: int) -> str:
    """Return the effect key of the wait for the end of the time for such a decision, or such an answer."""
    return f"expiry:{requested}"


def input_key(scheduled: int) -> str:
    return f"input:{scheduled}"


WORK_KEYS = ("model:", "tool:", "retry:")
"""Beginnings of the keys of effects that are work or a pause in it, and no wait for a person or an input's time."""


def is_work(key: str) -> bool:
    """Tell whether an effect is work, given its key; the end of a run's time comes with work or alone."""
    return key.startswith(WORK_KEYS)


def is_of_person(key: str) -> bool:
    """Tell whether an effect is the wait for a decision or an answer, given its key."""
    return key.startswith(("approval:", "answer:"))


def is_scheduled(key: str) -> bool:
    """Tell whether an effect is the wait for the time of an input, given its key."""
    return key.startswith("input:")


def run_of_input(version: int) -> RunId:
    return RunId(f"run_{version}")


def says_something(content: Iterable[Block]) -> bool:
    """Tell whether an answer without tool calls has anything in it for its reader."""
    for block in content:
        if block.text.strip() if type(block) is TextBlock else type(block) is not ThinkingBlock:
            return True
    return False


TOLD_CHARACTERS_MAX = 1_000
"""A provider's words for why a model stopped are cut after so many characters, where they are part of a message."""


def told_reasons(details: JsonObject) -> list[str]:
    """Return what the provider said in words of why the model stopped: a category, an explanation, or neither."""
    return [
        str(details[key])[:TOLD_CHARACTERS_MAX].rstrip(".") for key in ("category", "explanation") if details.get(key)
    ]


def refusal_words(details: JsonObject) -> str:
    return f"{': '.join(['The model refused to answer', *told_reasons(details)])}."


def failure_kind(kind: str) -> RunFailureKind:
    return "agent_loop" if kind == "agent_loop" else "budget" if kind == "budget" else "provider"


def calls_awaiting_approval(state: SessionState) -> list[TurnCall]:
    turn = state.turn
    return [turn.calls[turn.index[call]] for call in turn.awaiting] if turn is not None else []


def calls_awaiting_answer(state: SessionState) -> list[TurnCall]:
    turn = state.turn
    return [turn.calls[turn.index[call]] for call in turn.asking] if turn is not None else []


def awaits_step(run: Run) -> bool:
    """Tell whether a run, between two batches, waits for a person who allows its next turn."""
    return run.turns_allowed is not None and not run.parked and run.phase in ("ready", "answered")


def is_interrupted(state: SessionState) -> bool:
    run, turn = state.run, state.turn
    if run is None:
        return False
    return run.phase in ("model", "waiting") or (turn is not None and bool(turn.running or turn.pausing))


def awaits_person(run: Run, turn: Turn | None) -> bool:
    """Tell whether a run does nothing but wait for a person: to resume it, to allow a turn, to decide or answer a call.

    A call counts whose work waits so in another session.
    """
    if run.parked or (run.turns_allowed is not None and awaits_step(run)):
        return True
    if turn is None or turn.pausing or not (turn.awaiting or turn.waiting or turn.asking):
        return False
    return turn.running.keys() <= turn.waiting.keys()


def run_totals(state: SessionState, run: Run) -> RunTotals:
    """Return what a run that ends now has added up to; costs O(its messages)."""
    counted = (state.messages[run.latest_input :], run.final, run.stop_reason, state.usage, len(state.queue))
    return RunTotals(
        turns=run.turns,
        tool_calls=run.tool_calls,
        usage=run.usage,
        cost=run.cost,
        digest=hashlib.sha256(msgspec.json.encode(counted)).hexdigest()[:16],
    )
