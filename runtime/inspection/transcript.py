"""A session as a conversation: who said what, with each tool call's result beside the call.

A pure projection of a session's events. Start at `Transcript`; what it holds is `Entry`. The rule: everything that
happened and that a reader of the conversation would want to know is in one of the entries, in the order of the log.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from refold.events.core.content import (
    Block,
    ErrorKind,
    JsonObject,
    Message,
    ResultContent,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.messages import StopReason, Usage
from refold.events.session import events as ev
from refold.events.session.state import run_of_input
from refold.inspection.summaries import content_words, event_words, options_words, request_words


class CallEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call and its result."""

    call: ToolCallId
    tool: str
    input: JsonObject
    malformed_input: str | None = None
    """The beginning of what the model gave as arguments, where that was not a JSON object."""
    approval: Literal["", "requested", "allowed", "denied"] = ""
    approval_reason: str = ""
    changed_input: JsonObject | None = None
    """The arguments that a person had it run with in place of `input`; None = they were not changed."""
    started_at: int = 0
    """Microseconds since the epoch; 0 = its body was not started. Of several attempts, the first one's."""
    attempts: int = 1
    """How many attempts at it have begun, or will have when it does."""
    ended_at: int = 0
    """Likewise; 0 = it has no result yet."""
    result: tuple[ResultContent, ...] = ()
    kind: ErrorKind | None = None
    """Why it has no ordinary result."""


class MessageEntry(msgspec.Struct, kw_only=True, omit_defaults=True, tag="said"):
    """The user or the model said something."""

    version: int
    at: int
    """Microseconds since the epoch, UTC; so are the other times."""
    role: Literal["user", "assistant"]
    content: tuple[Block, ...]
    """Without tool calls and results."""
    calls: list[CallEntry] = []
    run: RunId | None = None
    usage: Usage | None = None
    stop_reason: StopReason | None = None
    imported: bool = False
    """It came from the history of another system."""


class NoteEntry(msgspec.Struct, kw_only=True, omit_defaults=True, tag="noted"):
    """Something else happened that explains what was said."""

    version: int
    at: int
    what: str
    """In words."""


class RunEndEntry(msgspec.Struct, kw_only=True, omit_defaults=True, tag="ended"):
    """A run ended."""

    version: int
    at: int
    run: RunId
    outcome: Literal["completed", "failed", "cancelled"]
    kind: ev.RunFailureKind | None = None
    message: str = ""
    started_at: int
    turns: int
    usage: Usage


Entry: TypeAlias = MessageEntry | NoteEntry | RunEndEntry
"""One part of a transcript."""


class Transcript:
    """Turns events into entries, one event at a time."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """So far, in the order of the log."""
        self.calls: dict[ToolCallId, CallEntry] = {}
        """Those of the entries; what later events say of one is added to it."""
        self._version = 0
        self._configured = False
        self._started_at = 0
        self._turns = 0
        self._usage = Usage()

    def add_all(self, events: Iterable[ev.SessionEvent]) -> None:
        for event in events:
            self._version += 1
            self._add(event)

    def touched_by(self, event: ev.SessionEvent) -> list[CallEntry]:
        """Return the calls of earlier entries of which an event that was taken says more."""
        if isinstance(event, ev.SessionForked):
            names = [result.tool_use_id for result in event.results]
        else:
            names = [name] if (name := getattr(event, "call", None)) is not None else []
        return [self.calls[name] for name in names if name in self.calls]

    def _add(self, event: ev.SessionEvent) -> None:
        match event:
            case ev.SessionOpened() | ev.RequestBuilt():
                return
            case ev.ModelRequested(turn=turn):
                self._turns = turn
            case ev.AgentConfigured() if not self._configured:
                self._configured = True
            case ev.RunStarted():
                self._started_at, self._turns, self._usage = event.at, 0, Usage()
            case ev.InputQueued(content=content, joins=joins, scheduled=scheduled):
                self._said(event, Message("user", content), run=joins or run_of_input(scheduled or self._version))
                if event.original:
                    self._noted(event, f"middleware changed the input, which was: {content_words(event.original)}")
                if event.options is not None:
                    self._noted(event, f"its run has options of its own: {options_words(event.options)}")
            case ev.HistoryImported(messages=messages):
                for message in messages:
                    self._said(event, message, imported=True)
            case ev.ModelResponded():
                self._usage += event.usage
                for line in request_words(event.request):
                    self._noted(event, line)
                self._said(event, Message("assistant", event.content), run=event.run, answer=event)
                if event.rejected:
                    self._noted(event, f"the answer cannot be used, and the model is told: {event.rejected}")
            case ev.ContextPrepared():
                self._usage += event.usage
                self._noted(event)
                for message in event.summary[:1]:
                    self._noted(event, content_words(message.content))
            case ev.RunCompleted() | ev.RunFailed() | ev.RunCancelled():
                self._ended(event)
            case ev.ToolApprovalRequested() | ev.ToolApprovalDecided() | ev.ToolCallStarted():
                self._called(event)
            case ev.ToolCallCompleted() | ev.ToolCallFailed():
                self._answered(event)
            case ev.SessionForked(results=results):
                for result in results:
                    if (call := self.calls.get(result.tool_use_id)) is not None:
                        call.ended_at, call.result = event.at, result.content
                self._noted(event)
            case _:
                self._noted(event)

    def _said(
        self,
        event: ev.SessionEvent,
        message: Message,
        *,
        run: RunId | None = None,
        answer: ev.ModelResponded | None = None,
        imported: bool = False,
    ) -> None:
        calls = [self._proposed(block) for block in message.content if isinstance(block, ToolUseBlock)]
        for block in message.content:
            if isinstance(block, ToolResultBlock) and (call := self.calls.get(block.tool_use_id)) is not None:
                call.ended_at, call.result, call.kind = event.at, block.content, block.kind
        said = tuple(block for block in message.content if not isinstance(block, ToolUseBlock | ToolResultBlock))
        if not said and not calls and message.content:
            return  # Results only; they stand beside their calls.
        self.entries.append(
            MessageEntry(
                version=self._version,
                at=event.at,
                role=message.role,
                content=said,
                calls=calls,
                run=run,
                usage=answer.usage if answer is not None else None,
                stop_reason=answer.stop_reason if answer is not None else None,
                imported=imported,
            )
        )

    def _proposed(self, use: ToolUseBlock) -> CallEntry:
        call = CallEntry(call=use.id, tool=use.name, input=use.input, malformed_input=use.malformed_input)
        self.calls[use.id] = call
        return call

    def _called(self, event: ev.ToolApprovalRequested | ev.ToolApprovalDecided | ev.ToolCallStarted) -> None:
        call = self.calls.get(event.call)
        if call is None:
            self._noted(event)
            return
        match event:
            case ev.ToolApprovalRequested():
                call.approval, call.approval_reason, call.started_at = "requested", event.reason, 0
            case ev.ToolApprovalDecided():
                call.approval, call.approval_reason = "allowed" if event.allowed else "denied", event.reason
                call.changed_input = event.input if event.input is not None else call.changed_input
            case ev.ToolCallStarted():
                call.started_at, call.attempts = call.started_at or event.at, event.attempt

    def _answered(self, event: ev.ToolCallCompleted | ev.ToolCallFailed) -> None:
        call = self.calls.get(event.call)
        if call is None:
            self._noted(event)
            return
        call.ended_at, call.result = event.at, event.content
        if event.original is not None:
            was = content_words(event.original) or "(nothing)"
            self._noted(event, f"middleware changed the result of {event.call}, which was: {was}")
        elif event.hidden:
            self._noted(event, f"middleware changed the result of {event.call}; what it was is not kept")
        call.kind = event.kind if isinstance(event, ev.ToolCallFailed) else None

    def _noted(self, event: ev.SessionEvent, what: str | None = None) -> None:
        words = event_words(event) if what is None else what
        self.entries.append(NoteEntry(version=self._version, at=event.at, what=words))

    def _ended(self, event: ev.TerminalEvent) -> None:
        outcomes: dict[type, Literal["completed", "failed", "cancelled"]] = {
            ev.RunCompleted: "completed",
            ev.RunFailed: "failed",
            ev.RunCancelled: "cancelled",
        }
        self.entries.append(
            RunEndEntry(
                version=self._version,
                at=event.at,
                run=event.run,
                outcome=outcomes[type(event)],
                kind=event.kind if isinstance(event, ev.RunFailed) else None,
                message=event.message if isinstance(event, ev.RunFailed) else "",
                started_at=self._started_at,
                turns=self._turns,
                usage=self._usage,
            )
        )
