"""The spans of a session: a view of its events, in the words of OpenTelemetry's conventions for generative AI.

A run is a span `invoke_agent AGENT`. Below it are `chat MODEL` for each attempt at a model call, `execute_tool TOOL`
for each call of a tool with all its attempts, and `wait TOOL` for each approval and question that a person has to
answer. The run of a subagent stands below the call that began it. What happens in a moment (a retry, a crash and its
resume, a compaction, a handoff) is an event of the span in which it happens.

The rules: a span is made when its end is recorded, from durable events alone, so a log gives the same spans live,
later, and in another process. Identifiers follow from the stream, the time of its first event, and versions. Texts of
people, models and tools are in a span only where they are asked for.

Source of the names: OpenTelemetry semantic conventions, GenAI spans (`gen_ai.*`).
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from refold.events.core.content import Block, StoredBlock, TextBlock, ToolUseBlock, tool_uses
from refold.events.core.ids import AgentId, RunId, SessionId, StreamName, ToolCallId
from refold.events.model.configuration import TRACEPARENT, AgentConfiguration, RunOptions, configured_for, without_agent
from refold.events.model.spending import Usage
from refold.events.session import events as ev

Attributes: TypeAlias = dict[str, str | int | float | bool | tuple[str, ...]]

OUTCOMES: Final = {ev.RunCompleted: "completed", ev.RunFailed: "failed", ev.RunCancelled: "cancelled"}
MOMENTS: Final = {ev.RunResumed: "resumed", ev.RunParked: "parked", ev.CancelRequested: "cancel"}

MODEL_CALL: Final = "model"
"""The key of a run's open model call; those of tools and waits are calls."""


class SpanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What happened at a moment of a span."""

    name: str
    at: int
    """Microseconds since the epoch, UTC."""
    attributes: Attributes = {}


class TraceSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Something that took time."""

    trace: str
    """32 hexadecimal digits."""
    span: str
    """16 hexadecimal digits."""
    parent: str | None
    """The span above it; None = it is the first of its trace."""
    name: str
    kind: Literal["internal", "client"] = "internal"
    start: int
    """Microseconds since the epoch, UTC."""
    end: int = 0
    """Likewise; 0 = it has not ended."""
    position: int = 0
    """Place in the log of the event that ended it."""
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None
    """What failed; None = nothing did."""


class TracePlace(msgspec.Struct, frozen=True):
    """Where in a trace something hangs."""

    trace: str
    span: str | None


class SessionSpans:
    """Makes the spans of one session, event by event.

    Args:
        stream: the session's.
        began_by: the call of another session that this one carries out; None = it is no subagent's.
        content: also the texts of people, models and tools.
    """

    def __init__(self, stream: StreamName, began_by: TracePlace | None = None, *, content: bool = False) -> None:
        self._stream = stream
        self._session = SessionId(stream.partition("/")[2])
        self._began_by = began_by
        self._content = content
        self._position = 0
        self._seed = ""
        self._agent = AgentId("")
        self._configuration: AgentConfiguration | None = None
        self._inputs: dict[int, ev.InputQueued] = {}
        """By version, until their run begins."""
        self._run: RunId | None = None
        self._options: RunOptions | None = None
        """Of the open run, as far as the agent has them that the session is now."""
        self._open: dict[str, TraceSpan] = {}
        """The spans that are open: of the run under its id, of a model call, of calls, and of waits behind `wait `."""
        self._calls: dict[ToolCallId, ToolUseBlock] = {}
        """What the last answers asked for."""
        self._retries_model = False

    def place_of(self, call: ToolCallId) -> TracePlace | None:
        """Return where the work of a call hangs; None = the call is not open."""
        found = self._open.get(call)
        return TracePlace(found.trace, found.span) if found is not None else None

    def add(self, version: int, event: ev.SessionEvent, position: int = 0) -> Iterable[TraceSpan]:
        """Take the next event, with its version and its place in the log; return the spans that it ends."""
        self._position = position
        match event:
            case ev.SessionOpened(agent=agent) | ev.SessionForked(agent=agent):
                self._seed, self._agent = f"{self._stream}@{event.at}", agent
            case ev.AgentConfigured(configuration=configuration):
                self._configuration = configuration
            case ev.InputQueued():
                self._inputs[version] = event
            case ev.RunStarted():
                self._begin_run(version, event)
            case ev.ModelRequested():
                self._begin_model_call(version, event.at)
            case ev.RetryScheduled(call=None):
                self._retries_model = True
                self._note(self._run, "retry", event.at, {"refold.attempt": event.attempt})
            case ev.RetryScheduled(call=call):
                self._note(call, "retry", event.at, {"refold.attempt": event.attempt})
            case ev.TimerFired() if self._retries_model:
                self._retries_model = False
                self._begin_model_call(version, event.at)
            case ev.ModelResponded():
                return self._answered(event)
            case ev.ModelFailed(kind=kind, message=message):
                return self._end(MODEL_CALL, event.at, self._words(message, kind), {"error.type": kind})
            case ev.ModelInterrupted(usage=usage):
                more = {"error.type": "interrupted", **_tokens(usage)}
                return self._end(MODEL_CALL, event.at, "interrupted", more)
            case ev.GuardrailTripped(trip=trip):
                return self._end(
                    MODEL_CALL, event.at, f"the guardrail {trip.guardrail} tripped", {"error.type": "tripped"}
                )
            case ev.ToolApprovalRequested(call=call, tool=tool):
                self._begin_wait(version, call, tool, event.at, "approval")
            case ev.QuestionAsked(call=call):
                self._begin_wait(version, call, self._tool_of(call), event.at, "question")
            case ev.ToolApprovalDecided(call=call, allowed=allowed):
                return self._end(f"wait {call}", event.at, None, {"refold.allowed": allowed})
            case ev.QuestionAnswered(call=call, error=error):
                return self._end(
                    f"wait {call}", event.at, self._words(error, "no answer") if error is not None else None
                )
            case ev.ToolCallStarted(call=call, attempt=attempt):
                self._begin_call(version, call, event.at, attempt)
            case ev.ToolAttemptFailed(call=call, kind=kind, attempt=attempt):
                self._note(call, "attempt failed", event.at, {"refold.attempt": attempt, "error.type": kind})
            case ev.ToolCallCompleted(call=call, content=content):
                return self._end(call, event.at, None, self._result(content))
            case ev.ToolCallFailed(call=call, kind=kind, content=content):
                return [
                    *self._end(f"wait {call}", event.at, kind),
                    *self._end(call, event.at, kind, {"error.type": kind, **self._result(content)}),
                ]
            case ev.ContextPrepared(replaced=replaced, usage=usage):
                self._note(self._run, "compaction", event.at, {"refold.messages": replaced, **_tokens(usage)})
            case ev.HandedOff(agent=agent):
                self._options = without_agent(self._options) if self._options is not None else None
                self._note(self._run, "handoff", event.at, {"gen_ai.agent.name": agent})
            case ev.RunResumed() | ev.RunParked() | ev.CancelRequested():
                self._note(self._run, MOMENTS[type(event)], event.at, {})
            case ev.RunFailed(kind=kind, message=message):
                return self._end_run(event, self._words(message, kind), {"error.type": kind})
            case ev.RunCompleted() | ev.RunCancelled():
                return self._end_run(event, None, {})
            case _:
                return ()
        return ()

    # Beginnings

    def _begin_run(self, version: int, event: ev.RunStarted) -> None:
        queued = self._inputs.pop(event.input, None)
        options = queued.options if queued is not None else None
        self._run, self._options = event.run, options
        agent = self._configuration.agent if self._configuration is not None else self._agent
        attributes: Attributes = {
            **self._common("invoke_agent"),
            "refold.run.id": event.run,
            **({"gen_ai.input.messages": _messages("user", queued.content)} if queued and self._content else {}),
        }
        place = self._place(event.run, options)
        self._begin(event.run, version, event.at, f"invoke_agent {agent}", attributes, place)

    def _place(self, run: RunId, options: RunOptions | None) -> TracePlace:
        given = TRACEPARENT.fullmatch(options.traceparent or "") if options is not None else None
        if given is not None:
            return TracePlace(given[1], given[2])
        return self._began_by or TracePlace(_digest(f"{self._seed} {run}", 16), None)

    def _begin_model_call(self, version: int, at: int) -> None:
        settings = self._settings
        attributes = self._common("chat")
        if settings is not None and settings.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = settings.max_tokens
        if settings is not None and settings.temperature is not None:
            attributes["gen_ai.request.temperature"] = settings.temperature
        name = f"chat {settings.model if settings is not None else ''}"
        self._begin(MODEL_CALL, version, at, name, attributes)

    def _begin_call(self, version: int, call: ToolCallId, at: int, attempt: int) -> None:
        if call in self._open:
            self._note(call, "attempt", at, {"refold.attempt": attempt})
            return
        tool = self._tool_of(call)
        attributes = self._common("execute_tool") | {
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call,
            "gen_ai.tool.type": "function",
        }
        if self._content and call in self._calls:
            attributes["gen_ai.tool.call.arguments"] = msgspec.json.encode(self._calls[call].input).decode()
        self._begin(call, version, at, f"execute_tool {tool}", attributes)

    def _begin_wait(self, version: int, call: ToolCallId, tool: str, at: int, what: str) -> None:
        attributes = self._common("wait") | {"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call}
        self._begin(f"wait {call}", version, at, f"wait {tool}", attributes | {"refold.wait": what})

    def _begin(
        self, key: str, version: int, at: int, name: str, attributes: Attributes, place: TracePlace | None = None
    ) -> None:
        """Begin a span at a place in a trace, or below the open run."""
        run = self._open.get(self._run or "")
        if place is None and run is not None:
            place = TracePlace(run.trace, run.span)
        if place is not None:
            self._open[key] = TraceSpan(
                trace=place.trace,
                span=_digest(f"{self._seed} {version} {key if key != self._run else ''}", 8),
                parent=place.span,
                name=name,
                kind="client" if key == MODEL_CALL else "internal",
                start=at,
                attributes=attributes,
            )

    # Ends

    def _answered(self, event: ev.ModelResponded) -> Iterable[TraceSpan]:
        self._calls = {use.id: use for use in tool_uses(event.content)}
        more: Attributes = {"gen_ai.response.finish_reasons": (event.stop_reason,), **_tokens(event.usage)}
        if event.model:
            more["gen_ai.response.model"] = event.model
        if self._content:
            more["gen_ai.output.messages"] = _messages("assistant", event.content)
        return self._end(MODEL_CALL, event.at, None, more)

    def _end(self, key: str, at: int, error: str | None = None, more: Attributes | None = None) -> list[TraceSpan]:
        found = self._open.pop(key, None)
        if found is None:
            return []
        attributes = {**found.attributes, **(more or {})}
        ended = {"end": max(at, found.start), "position": self._position, "error": error, "attributes": attributes}
        return [msgspec.structs.replace(found, **ended)]

    def _end_run(self, event: ev.TerminalEvent, error: str | None, more: Attributes) -> Iterable[TraceSpan]:
        below = [key for key in self._open if key != event.run]
        spans = [span for key in below for span in self._end(key, event.at, "cancelled", {"error.type": "cancelled"})]
        more["refold.outcome"] = OUTCOMES[type(event)]
        if (totals := event.totals) is not None:
            more |= {**_tokens(totals.usage), "refold.turns": totals.turns, "refold.tool_calls": totals.tool_calls}
            if totals.cost:
                more["refold.cost"] = totals.cost
        spans += self._end(event.run, event.at, error, more)
        self._run, self._options, self._retries_model = None, None, False
        return spans

    # Words

    @property
    def _settings(self) -> AgentConfiguration | None:
        """Of the open run; those of another agent once it was handed over."""
        if self._run is None or self._configuration is None:
            return None
        return configured_for(self._configuration, self._options)

    def _note(self, key: str | None, name: str, at: int, attributes: Attributes) -> None:
        if key is not None and (found := self._open.get(key)) is not None:
            noted = SpanEvent(name=name, at=at, attributes=attributes)
            self._open[key] = msgspec.structs.replace(found, events=(*found.events, noted))

    def _common(self, operation: str) -> Attributes:
        settings = self._settings
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.conversation.id": self._session,
            **({"gen_ai.agent.name": settings.agent, "gen_ai.request.model": settings.model} if settings else {}),
        }

    def _tool_of(self, call: ToolCallId) -> str:
        found = self._calls.get(call)
        return found.name if found is not None else ""

    def _result(self, content: Iterable[Block]) -> Attributes:
        return {"gen_ai.tool.call.result": _text(content)} if self._content else {}

    def _words(self, said: str, kind: str) -> str:
        """Return what is said of an error: its words may have content in them."""
        return said if self._content and said else kind


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _tokens(usage: Usage) -> Attributes:
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cache_read_tokens:
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cache_read_tokens
    if usage.cache_creation_tokens:
        found["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_creation_tokens
    return found


def _messages(role: str, content: Iterable[Block]) -> str:
    return msgspec.json.encode([{"role": role, "parts": [_part(block) for block in content]}]).decode()


def _part(block: Block) -> Mapping[str, object]:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "content": text}
        case ToolUseBlock(id=call, name=name, input=arguments):
            return {"type": "tool_call", "id": call, "name": name, "arguments": arguments}
        case StoredBlock(bytes=size):
            return {"type": "text", "content": f"[{size:,} bytes]"}
        case _:
            return {"type": type(block).__name__}


def _text(content: Iterable[Block]) -> str:
    return "".join(str(part.get("content", f"[{part['type']}]")) for part in map(_part, content))
