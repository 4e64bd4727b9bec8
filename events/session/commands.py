"""What a session can be told: callers' commands, and the results of its effects.

`admit` turns each into the stimulus that it becomes, or refuses it. Commands are never logged; the stimulus is. A
report that the log keeps unchanged, such as `TimerFired`, is told as that event, and `admit` says whether it is wanted.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from refold.events.core.content import AnswerContent, ErrorKind, Json, JsonObject, Message, ResultContent, UserContent
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.configuration import AgentConfiguration, Handoff, RunOptions
from refold.events.model.messages import RequestReference, StopReason, Usage
from refold.events.model.refused import GuardrailTrip, Part, RefusedParts
from refold.events.session.events import (
    ModelInterrupted,
    Repeat,
    RequestBuilt,
    TimerFired,
    ToolCallWaiting,
    Verdict,
)


class OpenSession(msgspec.Struct, frozen=True, kw_only=True):
    """Begin the session; an open one does not change."""

    session: SessionId
    agent: AgentId
    graph_entities: int | None = None


class DescribeSession(msgspec.Struct, frozen=True, kw_only=True):
    """Say whose the session is, and what the application has to say of it; what is so already is not recorded."""

    user: str | None = None
    """None = it stays what it is. A session that has a user gets no other one."""
    metadata: Mapping[str, str | None] = {}
    """What changes; None = the key goes."""


class Configure(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the session what is in force now; nothing is recorded where nothing differs."""

    configuration: AgentConfiguration


class ImportHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Put messages of another system at the end of the history of a session without an open run."""

    messages: tuple[Message, ...]
    key: str | None = None


class SetContentAside(msgspec.Struct, frozen=True, kw_only=True):
    """Leave parts of the history out of later requests."""

    named: tuple[int, int | None, int | None]
    """The version, the message and the part that a person named; the key is of these."""
    parts: tuple[Part, ...]
    """Where that stands."""
    at: int
    """Version of the session at which it stood there."""
    reason: str = ""
    key: str | None = None


class TakeContentBack(msgspec.Struct, frozen=True, kw_only=True):
    """Show a model again what was set aside."""

    aside: int
    """Version of its InputSetAside."""
    reason: str = ""
    key: str | None = None


class ClearHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Show no earlier message to a model any more; not while a run is under way."""

    key: str | None = None


class RewindHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Show a model the history as it was after an earlier version; not while a run is under way."""

    to: int | None = None
    """That version; None = the one before the last input."""
    key: str | None = None


QUEUE_MAX: Final = 10_000
"""Most inputs that wait in one session, for their turn or for their time, unless a runtime says otherwise."""


class SendInput(msgspec.Struct, frozen=True, kw_only=True):
    """Accept an input; its run begins when those before it have ended."""

    content: tuple[UserContent, ...]
    key: str | None = None
    """Idempotency key: the same key with the same content is one input; with another content it is refused."""
    cancelled: bool = False
    """The caller's token is cancelled already."""
    due_at: int | None = None
    """Accept it for this time, in microseconds since the epoch; None = at once."""
    every: Repeat | None = None
    """From `due_at` on again and again; None = once."""
    now: bool = False
    """Join the run under way before its next model call; where there is none it is an ordinary input."""
    stepwise: bool = False
    """Its run takes one turn, and each further one only when `AllowTurn` says so."""
    original: tuple[UserContent, ...] = ()
    """What was given, where middleware changed it; the key is of that."""
    options: RunOptions | None = None
    """What its run does otherwise than the agent; None = nothing."""
    queue_max: int | None = QUEUE_MAX
    """Refuse it where so many inputs of the session wait already; None = however many do."""


class AllowTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Let a run that goes step by step take its next turn."""

    run: RunId | None = None
    """None = the run under way."""


class CancelRun(msgspec.Struct, frozen=True, kw_only=True):
    """End a run as cancelled. A run that has ended does not change."""

    run: RunId | None = None
    """The run under way, or that of a queued input; None = the run under way, if there is one."""
    reason: str | None = None
    key: str | None = None


class DecideApproval(msgspec.Struct, frozen=True, kw_only=True):
    """Allow or deny a call that waits for approval."""

    call: ToolCallId
    allowed: bool
    reason: str = ""
    """What the model is told where the call is denied."""
    key: str | None = None
    always: bool = False
    """Allow every later call of the same action in this session too."""
    input: JsonObject | None = None
    """The arguments, checked, that it is to run with in place of those that the model gave."""


class AnswerQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Give a call the answer that it waits for, checked against its schema; or say why there is none."""

    call: ToolCallId
    number: int | None = None
    """Which question of the call; None = the one that it waits for."""
    answer: Json = None
    error: str | None = None
    key: str | None = None


class ResumeRun(msgspec.Struct, frozen=True, kw_only=True):
    """Let the open run go on in this process."""

    tools: tuple[str, ...] = ()
    """Names of the tools that exist here."""
    asked: bool = False
    """A person asked for it, so that a parked run goes on too."""
    in_order: bool = False
    """The runtime before had ended in order."""
    waited: bool = False
    """All that the run did was to wait for runs of its child sessions."""
    code_changed: bool = False
    """The configuration in force, or the code, is another one than before."""


class RecordContext(msgspec.Struct, frozen=True, kw_only=True):
    """A summary stands for the beginning of the history, made for a model call that is waited for."""

    run: RunId
    turn: int
    asked: int
    """Version of the event that wants the model call."""
    after: int
    """Version of the last summary that its maker knew of; 0 = there was none."""
    replaced: int
    """How many of the oldest messages it stands for."""
    summary: tuple[Message, ...]
    usage: Usage = Usage()
    model: str | None = None
    request: RequestReference | None = None


class RecordModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The model answered. The calls in `content` have placeholder ids, which `admit` replaces."""

    run: RunId
    turn: int
    content: tuple[AnswerContent, ...]
    stop_reason: StopReason
    usage: Usage
    request: RequestReference
    asked: int = 0
    """Version of the event that wanted the model call; 0 = that of the turn, whichever attempt it is."""
    model: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    rejected: str = ""
    """Why it cannot be used, in words for the model; only for an answer without tool calls."""
    stop_details: JsonObject | None = None
    refused: RefusedParts | None = None
    """What its request was without, since the provider had refused it."""
    trip: GuardrailTrip | None = None
    """The output guardrail that does not let it pass."""


class RecordGuardrailTrip(msgspec.Struct, frozen=True, kw_only=True):
    """An input guardrail tripped before a model was asked, or before its answer was taken."""

    run: RunId
    turn: int
    asked: int
    """Version of the event that wants the model call."""
    trip: GuardrailTrip


class RecordModelFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The model call failed."""

    run: RunId
    turn: int
    kind: str
    message: str
    status: int | None = None
    retryable: bool = False
    retry_after_s: float | None = None
    request: RequestReference | None = None
    asked: int = 0
    """Version of the event that wanted the model call; 0 = that of the turn, whichever attempt it is."""
    keeps_content: bool = False
    """See `ModelFailed`."""


class RecordToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool returned or failed."""

    call: ToolCallId
    content: tuple[ResultContent, ...]
    kind: ErrorKind | None = None
    """None = it returned."""
    ends_run: bool = False
    """The tool ends the run as completed, with this as its answer."""
    handoff: Handoff | None = None
    """To which agent it hands the conversation."""
    broken: bool = False
    """It is not the tool that failed, but what carries it out."""
    recovery: str | None = None
    """What a function decided then; see `ToolCallFailed`."""
    original: tuple[ResultContent, ...] | None = None
    """What the tool gave, where middleware changed it."""
    hidden: bool = False
    """Middleware changed it, and what the tool gave is not kept."""
    attempt: int = 0
    """Which attempt at the call brought it; 0 = the one under way."""
    again: bool = False
    """Another attempt may bring something else: this one is over, and what went wrong may pass."""


class RecordQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a call has ended to wait for an answer; see `QuestionAsked`."""

    call: ToolCallId
    number: int
    question: str
    answer_schema: JsonObject
    gives_result: bool = False
    expires_at: int | None = None
    attempt: int = 0
    """Which attempt at the call asks; 0 = the one under way."""


SessionCommand: TypeAlias = (
    OpenSession
    | DescribeSession
    | Configure
    | ImportHistory
    | ClearHistory
    | RewindHistory
    | SetContentAside
    | TakeContentBack
    | SendInput
    | AllowTurn
    | CancelRun
    | DecideApproval
    | AnswerQuestion
    | ResumeRun
    | RecordContext
    | RequestBuilt
    | RecordModelResponse
    | RecordGuardrailTrip
    | ModelInterrupted
    | RecordModelFailure
    | RecordToolResult
    | RecordQuestion
    | TimerFired
    | ToolCallWaiting
)
"""Anything that a session can be told."""

MAY_RUN = (SendInput, ImportHistory, AllowTurn, DecideApproval, AnswerQuestion, ResumeRun)
"""Commands of which a run may come, or by which it goes on."""
