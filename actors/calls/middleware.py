"""Middleware: user code around what people say, what a model is asked and answers, and what tools are called with.

Subclass `Middleware` and override what is needed. Where each hook runs, and what becomes of what it changes:

- `on_user_message` runs where an input is sent, before it is accepted. What is recorded is the changed input, with the
  one that was given beside it.
- `on_pre_llm` and `on_post_llm` run inside the model effect. What they changed in the request is in the reference to
  it, and the model's own answer is kept where they changed that.
- `on_tool_call` and `on_tool_result` run in the tool's effect, around its body. The arguments are what was recorded,
  and shown for approval, so they cannot be changed there: do that in `on_post_llm`. A changed result is recorded
  with the one that the tool gave.

Each may be a plain function, which runs on the loop and must return quickly, or a coroutine. All are called in order of
registration, each with what the one before has made of it; None changes nothing, and so does a change made in place,
since each gets a copy. The rule: a hook that raises fails the send, the model call or the tool call that it was called
for, and nothing else; and replay needs no middleware, since all that it did is recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from refold.actors.calls.context import HookContext, running_context
from refold.actors.calls.conversation import HistoryView, own_block, own_copy
from refold.actors.calls.policy import Deny
from refold.actors.calls.results import answer_of_user_code, result_blocks
from refold.actors.calls.validation import checked_response
from refold.events.core.content import (
    GivenContent,
    ToolResultBlock,
    own_json,
)
from refold.events.core.errors import AgentLoopError, ConfigError
from refold.events.core.ids import SessionId
from refold.events.model.messages import ModelRequest, ModelResponse

UserBlocks = tuple[GivenContent, ...]

Publish: TypeAlias = Callable[[SessionId, str, object], None]


def _to_nobody(session: SessionId, call: str, report: object) -> None:
    """Where no runtime is, as in a replay."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call whose body is about to run."""

    tool: str
    input: dict[str, object]
    """The arguments, a copy."""


class Middleware:
    """Base of user code around an agent's turns; see the module for where each hook runs."""

    def on_user_message(self, context: HookContext, content: UserBlocks) -> Any:
        """Return the content that is sent instead (blocks, or a text), or None; may be a coroutine."""

    def on_pre_llm(self, context: HookContext, request: ModelRequest) -> Any:
        """Return the request that is sent instead, or None; `msgspec.structs.replace(request, …)` makes one."""

    def on_post_llm(self, context: HookContext, response: ModelResponse) -> Any:
        """Return the answer that counts instead, or None; its tokens stay those that the provider counted."""

    def on_tool_call(self, context: HookContext, call: ToolCall) -> Any:
        """Return a `Deny`, so that the body does not run, or None."""

    def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> Any:
        """Return the result that the model is told instead, or None; also of a tool that failed."""


class CallRefused(Exception):
    """A tool call whose body did not run, since middleware refused it or failed on it."""

    def __init__(self, reason: str, *, broken: bool) -> None:
        super().__init__(reason)
        self.broken = broken


class ResultLost(AgentLoopError):
    """A tool call whose body has run, and on whose result a hook of middleware failed."""


class Hooks:
    """The middleware of one agent, in order of registration."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)
        self.publish: Publish = _to_nobody
        """Given a session, one of its calls or an empty text, and a report; tells those who follow the session."""

    @property
    def change_requests(self) -> bool:
        return bool(self._overriding("on_pre_llm"))

    async def user_message(
        self, context: HookContext, content: UserBlocks, blocks_of: Callable[[Any], Sequence[GivenContent]]
    ) -> UserBlocks:
        """Return an input in the form that is sent."""
        outer = running_context.set(context)
        try:
            for each in self._overriding("on_user_message"):
                said = await self._called(each, "on_user_message", context, content)
                content = content if said is None else tuple(blocks_of(said))
        finally:
            running_context.reset(outer)
        return content

    async def pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        """Return a request in the form that is sent; the same object where no hook changed it."""
        for each in self._overriding("on_pre_llm"):
            given = request.messages
            copies = given.own_copies() if isinstance(given, HistoryView) else tuple(map(own_copy, given))
            tools = tuple(
                [msgspec.structs.replace(spec, input_schema=own_json(spec.input_schema)) for spec in request.tools]
            )
            shown = msgspec.structs.replace(request, messages=copies, tools=tools)
            said = await self._called(each, "on_pre_llm", context, shown)
            if said is not None and not isinstance(said, ModelRequest):
                raise _wrong(each, "on_pre_llm", said, "a ModelRequest")
            if said is not None:
                messages = tuple(said.messages)
                same = given.is_said_by(messages) if isinstance(given, HistoryView) else messages == tuple(given)
                request = msgspec.structs.replace(
                    said,
                    tools=tuple(sorted(said.tools, key=lambda spec: spec.name)),
                    messages=given if same else messages,
                    output_schema=request.output_schema,
                )
        return request

    async def post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse:
        """Return an answer as it counts; the same object where no hook changed it."""
        for each in self._overriding("on_post_llm"):
            content, details = tuple(map(own_block, response.content)), own_json(response.stop_details)
            shown = msgspec.structs.replace(response, content=content, stop_details=details)
            said = await self._called(each, "on_post_llm", context, shown)
            if said is not None and not isinstance(said, ModelResponse):
                raise _wrong(each, "on_post_llm", said, "a ModelResponse")
            if said is not None:
                changed = msgspec.structs.replace(said, usage=response.usage, model=response.model)
                response = changed if checked_response(changed) != response else response
        return response

    async def tool_call(self, context: HookContext, call: ToolCall) -> None:
        """Raise CallRefused where a body may not run."""
        for each in self._overriding("on_tool_call"):
            try:
                shown = msgspec.structs.replace(call, input=own_json(call.input))
                said = await self._called(each, "on_tool_call", context, shown)
                if said is not None and not isinstance(said, Deny):
                    raise _wrong(each, "on_tool_call", said, "a Deny")
            except AgentLoopError as error:
                raise CallRefused(str(error), broken=True) from error
            if said is not None:
                raise CallRefused(said.reason.strip() or "Denied: the call was not run.", broken=False)

    async def tool_result(self, context: HookContext, result: ToolResultBlock) -> ToolResultBlock:
        """Return a result as the model is told it; the same object where no hook changed it.

        Raises:
            ResultLost: a hook failed on it.
        """
        for each in self._overriding("on_tool_result"):
            shown = msgspec.structs.replace(result, content=tuple(map(own_block, result.content)))
            try:
                said = await self._called(each, "on_tool_result", context, shown)
                if said is None:
                    continue
                if not isinstance(said, ToolResultBlock):
                    raise _wrong(each, "on_tool_result", said, "a ToolResultBlock")
                if not all(isinstance(block, GivenContent) for block in said.content):
                    raise _wrong(each, "on_tool_result", said.content, "texts and images")
            except AgentLoopError as error:
                raise ResultLost(str(error)) from error
            content = tuple(piece for block in said.content for piece in result_blocks(block))
            changed = msgspec.structs.replace(said, tool_use_id=result.tool_use_id, content=content)
            result = changed if changed != result else result
        return result

    async def _called(self, middleware: Middleware, hook: str, context: HookContext, value: object) -> Any:
        what, over = f"{type(middleware).__name__}.{hook}", False

        def publish(report: object) -> None:
            if over:  # Those who follow would be told of what has ended.
                raise ConfigError(f"{what} is over, and its context publishes no more; a hook awaits what reports")
            self.publish(context.session, context.call or "", report)

        try:
            where = msgspec.structs.replace(context, publish=publish)
            return await answer_of_user_code(what, getattr(middleware, hook), where, value)
        finally:
            over = True

    def _overriding(self, hook: str) -> list[Middleware]:
        return [each for each in self._middleware if getattr(type(each), hook) is not getattr(Middleware, hook)]


def _wrong(middleware: Middleware, hook: str, said: object, wanted: str) -> AgentLoopError:
    return AgentLoopError(f"{type(middleware).__name__}.{hook} gave {type(said).__name__} instead of {wanted} or None")
