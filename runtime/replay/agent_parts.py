"""Inputs, answers and tool results as today's code leaves them; see `refold.replay.agent_level`.

Each function makes the event that would be recorded today, of the state in which the recorded one was: what user code
was given is in the log, whether it changed it or not.

Where two requests, or what was done for them, differ first; see `refold.replay.agent_level`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, cast

import msgspec

from refold.actors.calls.middleware import CallRefused, HookContext, Hooks
from refold.actors.calls.recall import Remembered
from refold.actors.calls.request import WantedRequest
from refold.actors.calls.results import CallFailed, WithLimit, failure, result_content
from refold.actors.calls.tool_context import ToolContext
from refold.actors.calls.validation import checked_response
from refold.actors.cancellation import CancellationToken
from refold.agents.agent import SubagentTool
from refold.events.core import difference as differences
from refold.events.core.cleaning import Unrecordable
from refold.events.core.content import (
    AnswerContent,
    ErrorKind,
    ImageBlock,
    Json,
    JsonObject,
    Message,
    ResultContent,
    StoredBlock,
    TextBlock,
    ToolUseBlock,
    text_of,
    tool_uses,
)
from refold.events.core.difference import NOTHING, first_difference, json_of
from refold.events.core.errors import AgentLoopError, ToolError
from refold.events.core.ids import SessionId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import (
    ModelRequest,
    ModelResponse,
    Prepared,
    RequestReference,
    ResponseContent,
    ToolUse,
)
from refold.events.model.payloads import restored, stored_hashes, whole_block
from refold.events.session.commands import RecordModelResponse, RecordToolResult, SendInput
from refold.events.session.core import SESSION_CORE
from refold.events.session.events import (
    InputQueued,
    ModelResponded,
    SessionEvent,
    TimerSet,
    ToolCallCompleted,
    ToolCallFailed,
)
from refold.events.session.state import Call, SessionState, find_call
from refold.replay.current_agent import TodaysAgent
from refold.sessions.access import hooked_input
from refold.stores.event_store import EventStore
from refold.tools.dry_run import NotComparable

OUTPUT_CHECK_BEGINS = "The answer is not a JSON value"
"""How the words begin that an answer of the wrong type is rejected with; others are the provider's."""

MADE_UP = ("The tool ran, and its result cannot be recorded: ", "The tool's result cannot be recorded: ")
"""How failures begin whose result is not known any more."""


async def input_now(
    event: InputQueued | TimerSet, hooks: Hooks, session: SessionId, store: EventStore
) -> InputQueued | TimerSet:
    """Return an input as it would be recorded today.

    Raises:
        AgentLoopError: middleware failed.
        CommandRejected: what it made of the input cannot be sent.
    """
    given = SendInput(content=event.original or event.content, key=event.key)
    payloads = await store.read_payloads(stored_hashes([Message("user", given.content)]))
    command, _ = await hooked_input(hooks, session, given, payloads)
    return msgspec.structs.replace(event, content=command.content, original=command.original)


async def answer_now(
    event: ModelResponded,
    own: tuple[AnswerContent, ...] | None,
    state: SessionState,
    where: HookContext,
    today: TodaysAgent,
    offered: Sequence[ToolSpec],
    store: EventStore,
) -> SessionEvent:
    """Return an answer as it would be recorded today.

    Args:
        event: as recorded.
        own: the model's own answer, where middleware changed it.
        state: before it.
        where: whose answer it is.
        today: the agent.
        offered: the tools that the model would be offered today.
        store: the log.

    Raises:
        AgentLoopError: middleware failed.
    """
    message = Message("assistant", own if own is not None else event.content)
    whole = restored(message, await store.read_payloads(stored_hashes([message]))).content
    by_provider = own is None and not event.rejected.startswith(OUTPUT_CHECK_BEGINS)
    response = ModelResponse(
        content=tuple(map(_as_given, cast("tuple[AnswerContent, ...]", whole))),
        stop_reason=event.stop_reason,
        usage=event.usage,
        model=event.model,
        rejected=event.rejected if by_provider else "",
    )
    changed = await today.hooks.post_llm(where, checked_response(response))
    answer = await today.rules.answer(changed, where, today.specs, offered)
    now = SESSION_CORE.admit(
        state,
        RecordModelResponse(
            run=event.run,
            turn=event.turn,
            content=answer.content,
            stop_reason=changed.stop_reason,
            usage=event.usage,
            request=event.request,
            model=event.model,
            verdicts=answer.verdicts,
            rejected=today.rules.rejection(changed),
        ),
    )
    if not isinstance(now, ModelResponded):
        raise NotComparable("the answer was not waited for")
    return _with_old_faults(event, now)


def _as_given(block: AnswerContent) -> ResponseContent:
    if not isinstance(block, ToolUseBlock):
        return block
    given = block.input if block.malformed_input is None else block.malformed_input
    return ToolUse(name=block.name, input=given, id=block.provider_id, provider_data=block.provider_data)


def _with_old_faults(recorded: ModelResponded, now: ModelResponded) -> ModelResponded:
    """Return today's answer with the recorded words about arguments that are no JSON: the log keeps a part of them."""
    uses, others = tool_uses(recorded.content), tool_uses(now.content)
    if len(uses) != len(others) or all(use.malformed_input is None for use in uses):
        return now
    verdicts = list(now.verdicts)
    same: dict[str, ToolUseBlock] = {}
    for place, (use, other) in enumerate(zip(uses, others, strict=True)):
        if use.malformed_input is not None and verdicts[place].verdict == recorded.verdicts[place].verdict:
            verdicts[place], same[other.id] = recorded.verdicts[place], use
    content = tuple(same.get(block.id, block) if isinstance(block, ToolUseBlock) else block for block in now.content)
    return msgspec.structs.replace(now, content=content, verdicts=tuple(verdicts))


class ResultNow(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a call today."""

    call: JsonObject
    refused_then: str | None
    """Why its body did not run; None = it ran."""
    refused: str | None
    """The same today."""
    event: ToolCallCompleted | ToolCallFailed | None = None
    """Its result as it would be recorded today; None = there is none to compare."""
    missed: str | None = None
    """Why there is none."""


def result_now(
    event: ToolCallCompleted | ToolCallFailed,
    state: SessionState,
    session: SessionId,
    today: TodaysAgent,
    store: EventStore,
) -> Callable[[], Awaitable[ResultNow]] | None:
    """Return what does the end of a call again; None where nobody but Refold had a hand in it."""
    call = find_call(state, event.call)
    kind = event.kind if isinstance(event, ToolCallFailed) else None
    if call is None or not _of_the_body(event, call, today):
        return None
    found = call

    async def again() -> ResultNow:
        context: ToolContext[object] = ToolContext(
            call=event.call, session=session, deps=None, cancel=CancellationToken(), report=lambda _: None
        )
        said = await _whole(event.original if event.original is not None else event.content, store)
        refused_then = text_of(said) if kind == "denied" else None
        shown: JsonObject = {"tool": found.name, "input": found.input}
        recorded: object = said or None
        if kind is not None:
            recorded = CallFailed(text_of(said), result_kind=kind)
        elif isinstance(event, ToolCallCompleted) and event.ends_run:
            context.finished = text_of(said)
        missed: str | None = None
        command: RecordToolResult | None = None
        try:
            command = await _command(found, context, today, recorded)
        except CallRefused as error:
            if error.broken:
                raise NotComparable(str(error)) from error
            return ResultNow(call=shown, refused_then=refused_then, refused=str(error))
        except AgentLoopError as error:
            missed = str(error)
        if refused_then is not None or missed is not None:
            return ResultNow(call=shown, refused_then=refused_then, refused=None, missed=missed)
        assert command is not None
        now = SESSION_CORE.admit(state, command)
        if not isinstance(now, ToolCallCompleted | ToolCallFailed):
            raise NotComparable("the result was not waited for")
        if isinstance(now, ToolCallFailed) and now.original is not None and text_of(said).startswith(MADE_UP):
            return ResultNow(
                call=shown, refused_then=None, refused=None, missed="the log does not have what the tool gave"
            )
        return ResultNow(call=shown, refused_then=None, refused=None, event=now)

    return again


def _of_the_body(event: ToolCallCompleted | ToolCallFailed, call: Call, today: TodaysAgent) -> bool:
    """Tell whether a result is what a body, or middleware before it, made."""
    if isinstance(event, ToolCallCompleted):
        return True
    if not event.started or event.broken or not call.started:
        return False
    if event.kind == "denied":  # By a person after a crash; or a subagent's, which has no middleware of its own.
        return call.approval != "denied" and not isinstance(today.tools.get(call.name), SubagentTool)
    return event.kind in ("transient", "permanent")


async def _command(call: Call, context: ToolContext[object], today: TodaysAgent, recorded: object) -> RecordToolResult:
    """Return what would be recorded of a call, as `refold.actors.agent.tool` makes it."""
    content: tuple[ResultContent, ...]
    kind: ErrorKind | None = None
    try:
        value = await today.tools.give(call.name, call.input, context, recorded)
        finished = context.finished
        content, _ = result_content(value if finished is None else WithLimit(finished, None))
    except ToolError as error:
        content, kind = failure(error)
    except Unrecordable as error:
        content, kind = (TextBlock(text=f"{MADE_UP[0]}{error}"),), "permanent"
    return RecordToolResult(
        call=call.id,
        content=content,
        kind=kind,
        ends_run=kind is None and context.finished is not None,
        original=context.original[0],
    )


async def _whole(content: Sequence[ResultContent], store: EventStore) -> tuple[TextBlock | ImageBlock, ...]:
    """Return a result with all of what was cut, or kept apart.

    Raises:
        LogFormatError: a payload is missing or damaged.
    """
    stored = [block.hash for block in content if isinstance(block, StoredBlock)]
    payloads = await store.read_payloads(stored) if stored else {}
    return tuple(
        cast("TextBlock | ImageBlock", whole_block(block.hash, payloads)) if isinstance(block, StoredBlock) else block
        for block in content
    )


class Difference(NamedTuple):
    """The first place where two things differ, and the part of each that it is in."""

    difference: differences.Difference
    recorded: Json
    now: Json


class RequestPair(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded request, and what the one of today is made from."""

    request: ModelRequest
    reference: RequestReference
    prepared: Prepared
    """What had been done to it."""
    wanted: WantedRequest


def in_requests(recorded: ModelRequest, now: ModelRequest, path: str) -> Difference | None:
    """Return where two requests differ first, with the message, the tool or the field in which they do."""
    for field in recorded.__struct_fields__:
        left, right = getattr(recorded, field), getattr(now, field)
        if field in ("messages", "tools"):
            found = _in_sequences(left, right, f"{path}.{field}")
        else:
            difference = first_difference(left, right, f"{path}.{field}")
            found = Difference(difference, json_of(left), json_of(right)) if difference is not None else None
        if found is not None:
            return found
    return None


def _in_sequences(left: Sequence[object], right: Sequence[object], path: str) -> Difference | None:
    if left == right:
        return None
    for place in range(max(len(left), len(right))):
        mine = left[place] if place < len(left) else NOTHING
        other = right[place] if place < len(right) else NOTHING
        if mine is NOTHING or other is NOTHING:
            whole = differences.Difference(path=f"{path}[{place}]", left=json_of(mine), right=json_of(other))
            return Difference(whole, whole.left, whole.right)
        if mine != other and (difference := first_difference(mine, other, f"{path}[{place}]")) is not None:
            return Difference(difference, json_of(mine), json_of(other))
    return None


def in_recall(recorded: Remembered, now: Remembered) -> Difference | None:
    """Return where what entered a request of the memories differs first."""
    left, right = msgspec.structs.replace(recorded, notes=()), msgspec.structs.replace(now, notes=())
    difference = first_difference(left, right, "recall")
    return Difference(difference, json_of(left), json_of(right)) if difference is not None else None


def in_summary(recorded: int | None, now: int | None) -> Difference | None:
    """Return whether a summary stands for another number of messages; None = none was made."""
    if recorded == now:
        return None
    left: Json = NOTHING if recorded is None else recorded
    right: Json = NOTHING if now is None else now
    return Difference(differences.Difference(path="summary.replaced", left=left, right=right), left, right)
