"""What a row of the inbox says; read `refold.remote.protocol` first.

A new operation on a session is a class here that is one of `SessionRow`. Where its fields are those of the session's
command, a line in `SAID_ALIKE` is all that makes the one of the other; else `protocol` says how.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from refold.events.core.content import GivenContent, Json, JsonObject, Message
from refold.events.core.ids import PayloadHash, RunId, SessionId, ToolCallId
from refold.events.model.configuration import RunOptions
from refold.events.session.commands import (
    AllowTurn,
    CancelRun,
    ClearHistory,
    DecideApproval,
    RewindHistory,
    SessionCommand,
    TakeContentBack,
)
from refold.events.session.events import Repeat
from refold.keeping.retention import EndedStatus
from refold.lineage.fork import WantedFork
from refold.sessions.inputs import run_options


class InboxSend(msgspec.Struct, frozen=True, kw_only=True, tag="send", forbid_unknown_fields=True, omit_defaults=True):
    """Send an input; done when it is in the log, long before its run ends.

    It may begin a session, which takes a runtime: only that has an agent.
    """

    text: str = ""
    content: tuple[GivenContent, ...] = ()
    """Its blocks, where it is more than a text."""
    options: RunOptions | None = None
    """What its run does otherwise than the agent."""
    user: str | None = None
    """Whose the session is; that of another user refuses the input."""
    metadata: dict[str, str | None] = {}
    """What the application says of the session, where that changes with the input."""
    due_at: int | None = None
    """Accept it for this time, in microseconds since the epoch; None = at once."""
    every: Repeat | None = None
    """From `due_at` on again and again; None = once."""
    now: bool = False
    """Join the run under way before its next model call."""
    stepwise: bool = False
    """Its run takes one turn, and each further one only when that is allowed."""
    cancelled: bool = False
    """The caller's token is cancelled already."""


class InboxDescribe(
    msgspec.Struct, frozen=True, kw_only=True, tag="describe", forbid_unknown_fields=True, omit_defaults=True
):
    """Say whose a session is, and what the application says of it."""

    user: str | None = None
    metadata: dict[str, str | None] = {}


class InboxCancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel", forbid_unknown_fields=True):
    """End a run as cancelled; done also where there is nothing to cancel."""

    run: RunId | None = None
    """The run under way or one that waits; None = the one under way."""
    reason: str | None = None


class InboxDecide(
    msgspec.Struct, frozen=True, kw_only=True, tag="decide", forbid_unknown_fields=True, omit_defaults=True
):
    """Allow or deny a call that waits for approval."""

    call: ToolCallId
    allowed: bool = msgspec.field(name="allow")
    reason: str = ""
    """What the model is told where it is denied."""
    always: bool = False
    """Allow every later call of the same action in the session too."""
    input: JsonObject | None = msgspec.field(default=None, name="arguments")
    """What it is to run with in place of the model's arguments."""


class InboxAnswer(
    msgspec.Struct, frozen=True, kw_only=True, tag="answer", forbid_unknown_fields=True, omit_defaults=True
):
    """Give a call the answer or the result that it waits for."""

    question: str
    """Its id, or that of its call."""
    answer: Json = None
    error: str | None = None
    """Why there is none."""


class InboxSetAside(msgspec.Struct, frozen=True, kw_only=True, tag="set_aside", forbid_unknown_fields=True):
    """Leave what an event brought out of later requests."""

    version: int
    """Of an input, an answer, a result, a summary or an imported history."""
    message: int | None = None
    """Only this one of several messages, from 0."""
    part: int | None = None
    """Only this block of it, from 0."""
    reason: str = ""


class InboxTakeBack(msgspec.Struct, frozen=True, kw_only=True, tag="take_back", forbid_unknown_fields=True):
    """Show a model again what was set aside."""

    aside: int = msgspec.field(name="version")
    """Of the InputSetAside."""
    reason: str = ""


class InboxImport(msgspec.Struct, frozen=True, kw_only=True, tag="import", forbid_unknown_fields=True):
    """Put messages of another system at the end of the history."""

    messages: tuple[Message, ...]
    payloads: dict[PayloadHash, bytes] = {}
    """What is large in them."""


class InboxClear(msgspec.Struct, frozen=True, kw_only=True, tag="clear", forbid_unknown_fields=True):
    """Begin the conversation anew."""


class InboxAllowTurn(msgspec.Struct, frozen=True, kw_only=True, tag="allow_turn", forbid_unknown_fields=True):
    """Let a run that goes step by step take its next turn. Where an owner dies under it, it may take two."""

    run: RunId | None = None
    """None = the run under way."""


class InboxResume(msgspec.Struct, frozen=True, kw_only=True, tag="resume", forbid_unknown_fields=True):
    """Let an open run go on that was parked, goes step by step, or waits because its runtime does not resume."""


class InboxDelete(
    msgspec.Struct, frozen=True, kw_only=True, tag="delete", forbid_unknown_fields=True, omit_defaults=True
):
    """Delete the session, and all other rows that it has; see `refold.keeping.deletion`."""

    cancel: bool = False
    """End its runs first."""
    forks: bool = False
    """Delete its forks with it."""


class InboxRewind(msgspec.Struct, frozen=True, kw_only=True, tag="rewind", forbid_unknown_fields=True):
    """Take the conversation back to an earlier version."""

    to: int | None = None
    """None = the one before the last input."""


class InboxFork(msgspec.Struct, frozen=True, kw_only=True, tag="fork", forbid_unknown_fields=True, omit_defaults=True):
    """Make a fork of the session; see `refold.lineage.fork`."""

    name: str
    at: int | None = None
    model: str | None = None
    system_prompt: str | None = None
    results: dict[str, str | tuple[GivenContent, ...]] = {}
    keep_run: bool = False

    @property
    def wanted(self) -> WantedFork:
        """What is to be made; raises ConfigError where it cannot be."""
        return WantedFork(
            at=self.at,
            name=self.name,
            options=run_options({"model": self.model}),
            system_prompt=self.system_prompt,
            results=self.results,
            keep_run=self.keep_run,
        )


class InboxDeleteUser(msgspec.Struct, frozen=True, kw_only=True, tag="delete_user", forbid_unknown_fields=True):
    """Delete all sessions of a user; see `refold.keeping.deletion`."""

    user: str
    cancel: bool


class InboxRetain(msgspec.Struct, frozen=True, kw_only=True, tag="retain", forbid_unknown_fields=True):
    """Delete what is too old; see `refold.keeping.retention`."""

    older_than_us: int
    """Microseconds."""
    statuses: tuple[EndedStatus, ...]
    archive: str | None
    """Path of a folder, absolute."""
    dry_run: bool


class InboxHosted(msgspec.Struct, frozen=True, kw_only=True, tag="hosted", forbid_unknown_fields=True):
    """Have an actor that the owner hosts (`AgentRuntime.host`) perform a command, whose key has it take effect once."""

    kind: str
    id: str
    name: str
    """Of the command's class."""
    command: msgspec.Raw


class InboxDescribed(
    msgspec.Struct, frozen=True, kw_only=True, tag="described", forbid_unknown_fields=True, omit_defaults=True
):
    """Another command, and what its sender says of the session: whose it is, so that another user's refuses it."""

    command: "SessionRow | InboxFork"
    user: str | None = None
    metadata: dict[str, str | None] = {}


SessionRow: TypeAlias = (
    InboxSend
    | InboxDescribe
    | InboxCancel
    | InboxDecide
    | InboxAnswer
    | InboxSetAside
    | InboxTakeBack
    | InboxImport
    | InboxClear
    | InboxAllowTurn
    | InboxResume
    | InboxRewind
)
"""What a row says that becomes an event of its session."""

SAID_ALIKE: Final[Mapping[type[SessionRow], type[SessionCommand]]] = {
    InboxCancel: CancelRun,
    InboxDecide: DecideApproval,
    InboxTakeBack: TakeContentBack,
    InboxClear: ClearHistory,
    InboxAllowTurn: AllowTurn,
    InboxRewind: RewindHistory,
}
"""Commands whose fields are those of the row, but for the key."""

OF_INPUT: Final = ("options", "due_at", "every", "now", "stepwise", "cancelled")
"""Fields of an input that its command and its row have alike."""

ONCE_GIVEN: Final = (InboxAllowTurn, InboxResume)
"""Rows whose command has no key in its session, so that it must not be performed twice."""

OF_WHOLE_LOG: Final = (InboxDeleteUser, InboxRetain)
"""Rows that are about no session."""

NEEDS_RUNTIME: Final = (*ONCE_GIVEN, *OF_WHOLE_LOG, InboxHosted)
"""Rows that only a runtime can perform, which has an agent to go on with."""

InboxCommand: TypeAlias = SessionRow | InboxFork | InboxDelete | InboxDeleteUser | InboxRetain | InboxHosted
"""What is to be done. A field that this Refold does not know is refused, and never ignored."""

NO_SESSION: Final = "\0"
"""Begins the name under which a command stands in the inbox that is for no session; no session's id has it."""

GivenRow: TypeAlias = InboxCommand | InboxDescribed
"""What a row says."""

WHOLE_LOG: Final = SessionId(NO_SESSION)
"""Under which name commands stand there that are about the whole log."""
