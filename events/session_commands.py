"""What a session can be told: callers' commands, and the results of its effects.

`admit` turns each into the stimulus that it becomes, or refuses it. Commands are never logged; the stimulus is.
"""

from typing import TypeAlias

import msgspec

from refold.events.configuration import AgentConfiguration
from refold.events.content import AnswerContent, ErrorKind, Message, ResultContent, UserContent
from refold.events.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model import RequestReference, StopReason, Usage
from refold.events.session_events import Verdict


class OpenSession(msgspec.Struct, frozen=True, kw_only=True):
    """Begin the session; an open one is left as it is."""

    session: SessionId
    agent: AgentId


class Configure(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the session what is in force now; nothing is recorded where nothing differs."""

    configuration: AgentConfiguration


class ImportHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Put messages of another system at the end of the history of a session without an open run."""

    messages: tuple[Message, ...]
    key: str | None = None


class SendInput(msgspec.Struct, frozen=True, kw_only=True):
    """Accept an input; its run begins when those before it have ended."""

    content: tuple[UserContent, ...]
    key: str | None = None
    """Idempotency key: the same key with the same content is one input; with another content it is refused."""
    cancelled: bool = False
    """The caller's token is cancelled already."""


class CancelRun(msgspec.Struct, frozen=True, kw_only=True):
    """End a run as cancelled. A run that has ended stays as it is."""

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


class ResumeRun(msgspec.Struct, frozen=True, kw_only=True):
    """Let the open run go on in this process."""

    tools: tuple[str, ...] = ()
    """Names of the tools that exist here."""
    asked: bool = False
    """Somebody asked for it, so that a parked run goes on too."""
    in_order: bool = False
    """The runtime before had ended in order."""


class RecordModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The model answered. The calls in `content` have placeholder ids, which `admit` replaces."""

    run: RunId
    turn: int
    content: tuple[AnswerContent, ...]
    stop_reason: StopReason
    usage: Usage
    request: RequestReference
    model: str | None = None
    verdicts: tuple[Verdict, ...] = ()


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


class RecordToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool returned or failed."""

    call: ToolCallId
    content: tuple[ResultContent, ...]
    kind: ErrorKind | None = None
    """None = it returned."""


class RecordTimer(msgspec.Struct, frozen=True, kw_only=True):
    """A wait that the session asked for is over."""

    timer: str
    """The effect key of the wait."""


SessionCommand: TypeAlias = (
    OpenSession
    | Configure
    | ImportHistory
    | SendInput
    | CancelRun
    | DecideApproval
    | ResumeRun
    | RecordModelResponse
    | RecordModelFailure
    | RecordToolResult
    | RecordTimer
)
"""Anything that a session can be told."""
