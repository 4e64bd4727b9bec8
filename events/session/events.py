"""Everything that can have happened to a session.

Read DESIGN's order of one run as: InputQueued, RunStarted, then per turn ModelRequested, ModelResponded,
ToolCallStarted and one result for each call, and exactly one of RunCompleted, RunFailed, RunCancelled.

The rule: a recorded shape never changes. A field is added with a default; anything else is a new version of the
tag with an upcaster (`refold.events.core.codec`). Tags are written out, never derived from a class name.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from refold.events.core.content import (
    AnswerContent,
    ErrorKind,
    Json,
    JsonObject,
    Message,
    ResultContent,
    ToolResultBlock,
    UserContent,
)
from refold.events.core.event import Event, Microseconds
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.configuration import AgentConfiguration, CodeIdentity, Handoff, RunOptions
from refold.events.model.messages import RequestReference, StopReason, Usage
from refold.events.model.refused import GuardrailTrip, RefusedParts, SetAside
from refold.events.model.spending import RunTotals

RunFailureKind = Literal[
    "max_turns",
    "provider",
    "empty_answers",
    "truncated_answers",
    "refused",
    "tool_execution",
    "run_timeout",
    "budget",
    "guardrail",
    "agent_loop",
    "code_changed",
]
"""Why a run ended as failed."""


class SessionOpened(Event, frozen=True, kw_only=True, tag="session.opened.v1"):
    """The session exists from here on; always its first event."""

    session: SessionId
    agent: AgentId
    graph_entities: int | None = None
    """How many entities the agent's graph had then; None = it had none, or that was not known."""


class SessionDescribed(Event, frozen=True, kw_only=True, tag="session.described.v1"):
    """Whose the session is, and what the application says of it, from here on."""

    user: str | None = None
    """Once one is named, it stays; None = none is."""
    metadata: Mapping[str, str] = {}
    """All of it."""


class AgentConfigured(Event, frozen=True, kw_only=True, tag="session.agent_configured.v1"):
    """Another configuration, or other code, is in force from here on.

    A stimulus of its own, in the transaction of the message that found the difference: what the deployment runs today
    is a fact from outside, which `react` must be told. That of an agent to which a call hands the session is in it.
    """

    configuration: AgentConfiguration


class HistoryImported(Event, frozen=True, kw_only=True, tag="session.history_imported.v1"):
    """Messages of another system were put at the end of the history."""

    messages: tuple[Message, ...]
    """As they enter the history: with call ids of ours, and every call answered but those of the last message."""
    key: str | None = None
    digest: str = ""
    """Of the messages as they were given, for the key."""


class HistoryCleared(Event, frozen=True, kw_only=True, tag="session.history_cleared.v1"):
    """The conversation begins anew: no earlier message is shown to a model any more. The events stay."""

    key: str | None = None


class SessionForked(Event, frozen=True, kw_only=True, tag="session.forked.v1"):
    """The session begins, by reference, with another one's events up to a place, without inputs that waited there."""

    session: SessionId
    agent: AgentId
    origin: SessionId
    version: int
    """Of the origin's last event that it begins with; this one has the next version."""
    chain: str
    """The digest of the origin's stream after the batch of that event: 64 hexadecimal digits."""
    origin_at: Microseconds
    """When that event happened, microseconds since the epoch."""
    options: RunOptions | None = None
    """What its runs do otherwise than the agent; None = nothing."""
    keeps_run: bool = False
    """A run that is open at that place waits in the fork until a person resumes it; else it ends as cancelled."""
    results: tuple[ToolResultBlock, ...] = ()  # Of calls that are open there.


class HistoryRewound(Event, frozen=True, kw_only=True, tag="session.history_rewound.v1"):
    """The history is again as it was after an earlier version; what it cost and what tools did stays done."""

    to: int
    """That version, at which no run was open."""
    messages: int
    """How many of the oldest messages are left."""
    key: str | None = None


class InputSetAside(Event, frozen=True, kw_only=True, tag="session.input_set_aside.v1"):
    """Some of what was said or returned is left out of later requests; the events that brought it stay."""

    messages: tuple[SetAside, ...]
    reason: str
    """Why: what the provider said of it, or a person."""
    key: str | None = None
    digest: str = ""
    """Of what was given with the key."""


class ContentTakenBack(Event, frozen=True, kw_only=True, tag="session.content_taken_back.v1"):
    """What was set aside stands in the history again, where it stood."""

    aside: int
    """Version of the InputSetAside."""
    reason: str = ""
    key: str | None = None


class Repeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When an input is due again: after an interval, or at the times of a cron line."""

    interval_us: Microseconds = 0
    """From one due time to the next; 0 = the cron line says when."""
    cron: str = ""
    """Minute, hour, day of the month, month, day of the week."""
    zone: str = "UTC"
    """IANA name of the time zone in which the cron line is read."""


class InputQueued(Event, frozen=True, kw_only=True, tag="session.input_queued.v1"):
    """An input was accepted; its run is `run_<version of the event that accepted it>`."""

    content: tuple[UserContent, ...]
    key: str | None = None
    cancelled: bool = False
    """Its token was cancelled before it was accepted: its run makes no model call."""
    scheduled: int = 0
    """Version of the TimerSet that accepted it for a later time; 0 = this event accepted it."""
    reminder: int = 0
    """Version of the TimerSet of which it is one of many, each with a run of its own; 0 = of none."""
    joins: RunId | None = None
    """The run under way, which it joins before the next model call; None = it has a run of its own."""
    stepwise: bool = False
    """Its run takes one turn, and each further one only when a person allows it."""
    original: tuple[UserContent, ...] = ()
    """What was given, where middleware changed it; the key is of that."""
    options: RunOptions | None = None
    """What its run does otherwise than the agent; None = nothing."""


class TurnAllowed(Event, frozen=True, kw_only=True, tag="session.turn_allowed.v1"):
    """A run that goes step by step may take its next turn."""

    run: RunId
    turn: int


class RunStarted(Event, frozen=True, kw_only=True, tag="session.run_started.v1"):
    """The oldest queued input became the run."""

    run: RunId
    input: int
    """Version of its InputQueued."""
    code: CodeIdentity
    fingerprint: str
    """Of the configuration in force."""
    model: str | None = None
    """The model that its options name; None = the agent's."""


class ContextPrepared(Event, frozen=True, kw_only=True, tag="session.context_prepared.v1"):
    """A summary that a model made stands for the beginning of the history from here on."""

    run: RunId
    replaced: int
    """How many of the oldest messages the summary stands for."""
    summary: tuple[Message, ...]
    """What stands for them: a user's message with the summary, and the latest input itself, where it was one of them.
    """
    usage: Usage = Usage()
    """Of making the summary."""
    model: str | None = None
    """The model that made it, where the provider says."""
    request: RequestReference | None = None
    """What that model was asked."""


class ModelRequested(Event, frozen=True, kw_only=True, tag="session.model_requested.v1"):
    """A model call is wanted."""

    run: RunId
    turn: int
    """From 1 in each run."""


class RequestBuilt(Event, frozen=True, kw_only=True, tag="session.request_built.v1"):
    """The request of a model call that is in flight, as user code or a memory may have changed it.

    Only where `AgentConfiguration.builds_requests` says so, or a request had to be shortened, and where the answer does
    not come within a moment. It is evidence for the time until then: nothing is decided from it, and nobody waits.
    """

    run: RunId
    turn: int
    asked: int
    """Version of the event that wants the model call."""
    request: RequestReference
    summary: bool = False
    """It asks for a summary of the history, before the model call itself."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found about one proposed tool call before it was recorded."""

    verdict: Literal["allow", "ask", "deny", "invalid_arguments", "not_found", "broken"] = "allow"
    """`broken`: finding it out failed, so that nothing is known about the call but that it must not run."""
    reason: str = ""
    """What the model is told where the call does not run."""
    action: str = ""
    """The action that an allowance for always is about; empty = the tool's name."""
    recovery: str | None = None
    """Of a `broken` one, where a function decided what follows: what the model is told; empty = the run ends."""


class ModelResponded(Event, frozen=True, kw_only=True, tag="session.model_responded.v1"):
    """The model's complete answer."""

    run: RunId
    turn: int
    content: tuple[AnswerContent, ...]
    """Without empty blocks; the calls in it have the ids `call_<version of this event>_<index>`."""
    stop_reason: StopReason
    usage: Usage = Usage()
    model: str | None = None
    request: RequestReference
    verdicts: tuple[Verdict, ...] = ()
    """One for each tool call in `content`, in order."""
    rejected: str = ""
    """Why the answer, which calls no tool, cannot be used; the model is told so and asked again."""
    stop_details: JsonObject | None = None
    """What the provider said of why the model stopped, if anything; of a refusal, and of an answer that was cut before
    its first word, at least the reason itself."""
    refused: RefusedParts | None = None
    """What is set aside: what its request was without, since the provider had refused one with it, and the turn that
    the model refused to answer."""
    trip: GuardrailTrip | None = None
    """The output guardrail that did not let it pass: it is no answer, and the run fails."""


class GuardrailTripped(Event, frozen=True, kw_only=True, tag="session.guardrail_tripped.v1"):
    """An input guardrail did not let pass what no model has answered yet: the run fails, and no answer is taken."""

    run: RunId
    turn: int
    trip: GuardrailTrip


class ModelInterrupted(Event, frozen=True, kw_only=True, tag="session.model_interrupted.v1"):
    """What had been streamed when an answer was cut: evidence and tokens paid, never history."""

    turn: int
    content: tuple[AnswerContent, ...] = ()
    """The call ids in it are ours in form only: such a call was never made."""
    usage: Usage = Usage()
    asked: int = 0
    """Version of the event that wanted the model call."""


class ModelFailed(Event, frozen=True, kw_only=True, tag="session.model_failed.v1"):
    """The model call failed."""

    run: RunId
    turn: int
    kind: str
    """`ProviderErrorKind`; `agent_loop`: our own or a user's code around the call failed; `budget`: of a tree."""
    message: str
    status: int | None = None
    retryable: bool = False
    retry_after_s: float | None = None
    request: RequestReference | None = None
    keeps_content: bool = False
    """Nothing is set aside for it: the model was asked without what might be why, or the provider names a setting.
    False in logs of before that, where new images and the like were set aside for an `invalid_request`."""


class RetryScheduled(Event, frozen=True, kw_only=True, tag="session.retry_scheduled.v1"):
    """What failed, a model call or an attempt at a tool call, is tried again later."""

    run: RunId
    turn: int
    attempt: int
    """How many attempts have failed."""
    due_at: Microseconds
    """Microseconds since the epoch."""
    call: ToolCallId | None = None
    """The tool call; None = it is the model call."""


class ToolApprovalRequested(Event, frozen=True, kw_only=True, tag="session.tool_approval_requested.v1"):
    """A call waits for a person's decision. What is shown here is exactly what executes."""

    run: RunId
    call: ToolCallId
    tool: str
    input: JsonObject
    reason: str = ""
    action: str = ""
    """The action that an allowance for always is about."""
    expires_at: Microseconds | None = None
    """When it counts as denied, in microseconds since the epoch; None = never."""


class ToolApprovalDecided(Event, frozen=True, kw_only=True, tag="session.tool_approval_decided.v1"):
    """A person decided about a call."""

    call: ToolCallId
    allowed: bool
    reason: str = ""
    key: str | None = None
    always: bool = False
    """From here on calls of the same action need no approval in this session."""
    input: JsonObject | None = None
    """The arguments that it runs with in place of those that the model gave; None = with these."""


class ToolCallStarted(Event, frozen=True, kw_only=True, tag="session.tool_call_started.v1"):
    """The tool's body may have begun; durable before it does."""

    run: RunId
    call: ToolCallId
    attempt: int = 1
    """Which attempt at the call this is; one that a crash interrupted is made again under its own number."""


class QuestionAsked(Event, frozen=True, kw_only=True, tag="session.question_asked.v1"):
    """A call needs an answer from outside. Its body has ended; with the answer it runs again, from its beginning."""

    run: RunId
    call: ToolCallId
    number: int
    """Which question of the call this is, from 1."""
    question: str
    answer_schema: JsonObject
    """The JSON Schema that the answer fits."""
    gives_result: bool = False
    """The answer is the call's result, and the body does not run again."""
    expires_at: Microseconds | None = None
    """When it counts as not answered, in microseconds since the epoch; None = never."""


class QuestionAnswered(Event, frozen=True, kw_only=True, tag="session.question_answered.v1"):
    """What a call waited for is there, or will not come."""

    call: ToolCallId
    number: int
    answer: Json = None
    error: str | None = None
    """Why there is no answer; None = there is one."""
    expired: bool = False
    """That is, since the time was over."""
    key: str | None = None


class ToolAttemptFailed(Event, frozen=True, kw_only=True, tag="session.tool_attempt_failed.v1"):
    """An attempt at a call is over and failed in a way that may pass. The call is open until its ToolCallFailed.

    Only of tools that are tried again (`ToolPolicy.retries`): RetryScheduled follows, or ToolCallFailed with the same
    content where there is no attempt left.
    """

    call: ToolCallId
    attempt: int
    """Which attempt, from 1; so many have failed."""
    kind: ErrorKind
    content: tuple[ResultContent, ...]
    original: tuple[ResultContent, ...] | None = None
    """What the tool gave, where middleware changed it and that is kept."""
    hidden: bool = False
    """Middleware changed what the tool gave, which is not kept."""


class ToolCallCompleted(Event, frozen=True, kw_only=True, tag="session.tool_call_completed.v1"):
    """The tool returned."""

    call: ToolCallId
    content: tuple[ResultContent, ...]
    ends_run: bool = False
    """The tool ended the run as completed; this is its answer."""
    handoff: Handoff | None = None
    """The agent to which it hands the conversation, once all calls of the answer are answered; None = to none."""
    original: tuple[ResultContent, ...] | None = None
    """What the tool gave, where middleware changed it and that is kept."""
    hidden: bool = False
    """Middleware changed what the tool gave, which is not kept."""


class HandedOff(Event, frozen=True, kw_only=True, tag="session.handed_off.v1"):
    """The session is another agent's from here on, whose configuration was recorded just before."""

    run: RunId
    call: ToolCallId
    """That handed it over."""
    agent: AgentId
    before: AgentId
    """Whose it was."""


class ToolCallFailed(Event, frozen=True, kw_only=True, tag="session.tool_call_failed.v1"):
    """The call is answered with an error: the tool's own, or one that we make up."""

    call: ToolCallId
    kind: ErrorKind
    content: tuple[ResultContent, ...]
    started: bool = False
    """Whether the body may have begun."""
    broken: bool = False
    """It is not the tool that failed, but what carries it out."""
    original: tuple[ResultContent, ...] | None = None
    """What the tool gave, where middleware changed it and that is kept."""
    hidden: bool = False
    """Middleware changed what the tool gave, which is not kept."""
    recovery: str | None = None
    """Where it is broken and a function decided what follows: what the model is told too; empty = the run ends."""


class ToolResultLate(Event, frozen=True, kw_only=True, tag="session.tool_result_late.v1"):
    """A result that came after its call was answered: evidence, never history."""

    call: ToolCallId
    content: tuple[ResultContent, ...]
    kind: ErrorKind | None = None
    """None = the tool returned."""


class ToolCallWaiting(Event, frozen=True, kw_only=True, tag="session.tool_call_waiting.v1"):
    """A call that another session carries out does nothing but wait for a person there, or goes on again."""

    call: ToolCallId
    waits: bool


class CancelRequested(Event, frozen=True, kw_only=True, tag="session.cancel_requested.v1"):
    """A run, or an input whose run has not begun, is to end as cancelled."""

    run: RunId
    reason: str | None = None
    key: str | None = None


class RunResumed(Event, frozen=True, kw_only=True, tag="session.run_resumed.v1"):
    """A run that was open when its runtime ended goes on in a new one."""

    run: RunId
    code: CodeIdentity
    fingerprint: str
    tools: tuple[str, ...] = ()
    """Names of the tools that exist now and that started, unanswered calls need."""
    asked: bool = False
    """A person asked for it, so that earlier fruitless resumes are forgiven."""
    in_order: bool = False
    """The runtime before had ended in order, as in a deploy, so that this is not the trace of a crash."""
    waited: bool = False
    """All that it did was to wait for the runs of its child sessions, which count for themselves what they lost."""
    code_changed: bool = False
    """The configuration in force before it, or the code, was another one."""


class RunParked(Event, frozen=True, kw_only=True, tag="session.run_parked.v1"):
    """The run does nothing until a person resumes or cancels it."""

    run: RunId
    reason: str


class TimerSet(Event, frozen=True, kw_only=True, tag="session.timer_set.v1"):
    """An input was accepted for a later time; its run is `run_<version of this event>`.

    One that is due again and again has a run for each time, `run_<version of its InputQueued>`; the name that it has
    here stands for all that are still to come.
    """

    timer: str
    """The effect key of the wait."""
    due_at: Microseconds
    """Microseconds since the epoch."""
    content: tuple[UserContent, ...] = ()
    key: str | None = None
    """The caller's idempotency key."""
    original: tuple[UserContent, ...] = ()
    """What was given, where middleware changed it; the key is of that."""
    options: RunOptions | None = None
    """What its run does otherwise than the agent; None = nothing."""
    every: Repeat | None = None
    """When it is due again; None = never."""


class TimerFired(Event, frozen=True, kw_only=True, tag="session.timer_fired.v1"):
    """A time that the session waited for has come."""

    timer: str
    """The effect key of the wait."""
    next_at: Microseconds | None = None
    """Where the input is due again: when, in microseconds since the epoch; None = it is not."""
    put_off: str = ""
    """Why it could not be told when the input is due again: it waits until `next_at`, and has no run before."""


class RunCompleted(Event, frozen=True, kw_only=True, tag="session.run_completed.v1"):
    """The run ended with an answer: the last one of the model, or that of a tool that ended the run."""

    run: RunId
    totals: RunTotals | None = None
    """None = not counted, as in logs of before."""


class RunFailed(Event, frozen=True, kw_only=True, tag="session.run_failed.v1"):
    """The run ended without an answer."""

    run: RunId
    kind: RunFailureKind
    message: str
    totals: RunTotals | None = None
    trip: GuardrailTrip | None = None
    """The guardrail for which it failed."""


class RunCancelled(Event, frozen=True, kw_only=True, tag="session.run_cancelled.v1"):
    """The run ended because a person cancelled it."""

    run: RunId
    totals: RunTotals | None = None


SessionEvent: TypeAlias = (
    SessionOpened
    | SessionDescribed
    | AgentConfigured
    | HistoryImported
    | HistoryCleared
    | HistoryRewound
    | SessionForked
    | InputSetAside
    | ContentTakenBack
    | InputQueued
    | RunStarted
    | TurnAllowed
    | ContextPrepared
    | ModelRequested
    | RequestBuilt
    | ModelResponded
    | GuardrailTripped
    | ModelInterrupted
    | ModelFailed
    | RetryScheduled
    | ToolApprovalRequested
    | ToolApprovalDecided
    | ToolCallStarted
    | QuestionAsked
    | QuestionAnswered
    | ToolAttemptFailed
    | ToolCallCompleted
    | HandedOff
    | ToolCallFailed
    | ToolResultLate
    | ToolCallWaiting
    | CancelRequested
    | RunResumed
    | RunParked
    | TimerSet
    | TimerFired
    | RunCompleted
    | RunFailed
    | RunCancelled
)
"""Any event of a session's stream."""

TerminalEvent: TypeAlias = RunCompleted | RunFailed | RunCancelled
"""How a run ends."""
