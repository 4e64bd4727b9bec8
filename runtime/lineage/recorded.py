"""What a session's models answered and its tools returned, to be given again by position: a bug becomes a test.

    agent = Agent(
        config=config,
        provider=await ScriptedProvider.from_log("bug.db", "alice"),
        tools=await RecordedTools.from_log("bug.db", "alice"),
    )

An answer is found by its place and never by the request, since a model may answer the same question in two ways. The
rule: what is not in the log is refused, so that a test never goes on with something that was made up.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast, overload

import msgspec

from refold.events.core.content import (
    AnswerContent,
    JsonObject,
    ResultContent,
    StoredBlock,
    TextBlock,
    ToolUseBlock,
    text_of,
    tool_uses,
)
from refold.events.core.errors import ConfigError, ProviderError, ProviderErrorKind, ToolError
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelResponse, ResponseContent, ToolUse
from refold.events.model.payloads import whole_block
from refold.events.model.request import prepared_of
from refold.events.session import events as ev
from refold.inspection.log_reading import ReadableLog, opened, session_head
from refold.inspection.session_view import events_until
from refold.stores.event_store import EventStore
from refold.tools.tool import Tool


async def recorded_answers(log: ReadableLog, session: str) -> list[ModelResponse | ProviderError]:
    """Return what came of each model call of a session, in order: an answer as the model gave it, or an error.

    Summaries of histories are among them. Calls that were cut short are left out.
    """
    async with opened(log) as store:
        found: list[ModelResponse | ProviderError] = []
        for event in await _events(store, session):
            if isinstance(event, ev.ModelResponded):
                found.append(await recorded_answer(store, event))
            elif isinstance(event, ev.ContextPrepared):
                said = text_of(await whole_content(store, event.summary[0].content)) if event.summary else ""
                words = said.partition("\n\n")[2]  # Behind what says that it is a summary.
                found.append(ModelResponse(content=(TextBlock(text=words),), stop_reason="end_turn", usage=event.usage))
            elif isinstance(event, ev.ModelFailed):
                found.append(
                    ProviderError(
                        event.message.removeprefix("ProviderError: "),
                        kind=cast("ProviderErrorKind", event.kind if event.kind != "agent_loop" else "malformed"),
                        status=event.status,
                        retryable=event.retryable,
                        retry_after_s=event.retry_after_s,
                    )
                )
        return found


async def _events(store: EventStore, session: str) -> list[ev.SessionEvent]:
    head = await session_head(store, session)
    return await events_until(store, head.stream, head.version)


async def recorded_answer(store: EventStore, event: ev.ModelResponded) -> ModelResponse:
    """Return an answer as the model gave it."""
    reference = event.request
    names: list[PayloadHash] = [reference.prepared_payload] if reference.prepared_payload is not None else []
    return await as_given(store, event, prepared_of(reference, await store.read_payloads(names)).answer)


async def as_given(store: EventStore, event: ev.ModelResponded, own: tuple[AnswerContent, ...] | None) -> ModelResponse:
    """Return a recorded answer as the provider gave it; `own` is the model's own, where middleware changed it."""
    content = await whole_content(store, event.content if own is None else own)
    return ModelResponse(
        content=tuple(map(_without_id, content)),
        stop_reason=event.stop_reason,
        usage=event.usage,
        model=event.model,
        stop_details=event.stop_details,
    )


def _without_id(block: AnswerContent) -> ResponseContent:
    """Return a block of an answer as the model gave it, without the id that a call has in the log."""
    if not isinstance(block, ToolUseBlock):
        return block
    given = block.input if block.malformed_input is None else block.malformed_input
    return ToolUse(name=block.name, input=given, id=block.provider_id, provider_data=block.provider_data)


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a test, and the one of the log whose result it was given."""

    tool: str
    arguments: JsonObject
    recorded: JsonObject
    """The arguments of then."""


class _Result(msgspec.Struct, frozen=True):
    arguments: JsonObject
    content: tuple[ResultContent, ...]
    kind: str | None


class RecordedTools(Sequence[Tool[..., Any]]):
    """Tools that run nothing: the n-th call of each gives what its n-th call gave in a log, or fails as that did.

    Attributes:
        calls: that were made so far, in the order in which they began.
    """

    def __init__(self, specs: Sequence[ToolSpec], results: dict[str, list[Any]]) -> None:
        """Use `from_log`."""
        self.calls: list[RecordedCall] = []
        self._left = results
        self._tools = [self._tool(spec) for spec in specs]

    @classmethod
    async def from_log(cls, log: ReadableLog, session: str) -> "RecordedTools":
        """Return the tools that a session's agent had at its end, as a log describes them.

        Args:
            log: path of the file, or an open store.
            session: whose calls.

        Raises:
            ConfigError: there is no such session, or no agent was ever configured in it.
            LogFormatError: the file is no log, or something in it is damaged.
            PersistenceError: the log cannot be read.
        """
        async with opened(log) as store:
            events = await _events(store, session)
            configured = [event.configuration for event in events if isinstance(event, ev.AgentConfigured)]
            if not configured:
                raise ConfigError(
                    f"session {session!r} has had no agent, so the log does not say which tools there are"
                )
            schemas = configured[-1].tool_schemas
            payload = (await store.read_payloads([schemas])).get(schemas, b"[]")
            specs = msgspec.json.decode(payload, type=list[ToolSpec])
            return cls(specs, await _results(store, events))

    def different(self) -> list[RecordedCall]:
        """Return the calls that were made with other arguments than those whose results they were given."""
        return [call for call in self.calls if call.arguments != call.recorded]

    def __len__(self) -> int:
        return len(self._tools)

    @overload
    def __getitem__(self, place: int) -> Tool[..., Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tool[..., Any]]: ...
    def __getitem__(self, place: int | slice) -> Tool[..., Any] | list[Tool[..., Any]]:
        return self._tools[place]

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._tools)

    def _tool(self, spec: ToolSpec) -> Tool[..., Any]:
        def give(arguments: JsonObject) -> tuple[ResultContent, ...]:
            left = self._left.get(spec.name)
            if not left:
                given = sum(call.tool == spec.name for call in self.calls)
                raise ToolError(f"the log has {given} results of {spec.name}, and this is one call more")
            result: _Result = left.pop(0)
            self.calls.append(RecordedCall(tool=spec.name, arguments=arguments, recorded=result.arguments))
            if result.kind is not None:
                raise ToolError(
                    text_of(result.content), kind="transient" if result.kind == "transient" else "permanent"
                )
            return result.content

        return Tool.from_spec(spec, give)


async def _results(store: EventStore, events: Sequence[ev.SessionEvent]) -> dict[str, list[Any]]:
    """Return what the bodies of tools gave, in the order of the calls, by the tools' names."""
    ended: dict[ToolCallId, tuple[tuple[ResultContent, ...], str | None]] = {}
    begun: set[ToolCallId] = set()
    for event in events:
        if isinstance(event, ev.ToolCallStarted):
            begun.add(event.call)
        elif isinstance(event, ev.ToolCallCompleted):
            ended[event.call] = event.original if event.original is not None else event.content, None
        elif isinstance(event, ev.ToolCallFailed) and event.call in begun:
            ended[event.call] = event.original if event.original is not None else event.content, event.kind
    uses = [use for event in events if isinstance(event, ev.ModelResponded) for use in tool_uses(event.content)]
    found: dict[str, list[Any]] = {}
    for use in uses:
        if use.id in ended:
            content, kind = ended[use.id]
            found.setdefault(use.name, []).append(_Result(use.input, await whole_content(store, content), kind))
    return found


async def whole_content(store: EventStore, content: Sequence[Any]) -> tuple[Any, ...]:
    """Return content with all of what was cut, or kept apart."""
    hashes = [block.hash for block in content if isinstance(block, StoredBlock)]
    payloads = await store.read_payloads(hashes) if hashes else {}
    return tuple(whole_block(block.hash, payloads) if isinstance(block, StoredBlock) else block for block in content)
