"""Tools whose bodies run between the hooks of middleware; see `refold.actors.calls.middleware`."""

import copy
from collections.abc import Sequence

from refold.actors.calls.context import HookContext, hook_context
from refold.actors.calls.middleware import CallRefused, Hooks, ToolCall
from refold.actors.calls.questions import DeferredResult
from refold.actors.calls.results import DEFAULT_RESULT_LIMIT, WithLimit, failure, result_blocks
from refold.actors.calls.tool_context import ToolContext
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import AnyAgent
from refold.events.core.content import JsonObject, ResultContent, ToolResultBlock, text_of
from refold.events.core.errors import ToolError
from refold.events.model.payloads import spill
from refold.events.secrets.redaction import Redaction
from refold.tools.registry import ToolRegistry


def tools_of(agent: AnyAgent, hooks: Hooks | None, pool: ThreadPool, redaction: Redaction) -> ToolRegistry:
    if hooks is None:
        return ToolRegistry(agent.all_tools(), pool=pool)
    return HookedTools(agent, hooks, pool, redaction, keeps=agent.keep_originals)


class HookedTools(ToolRegistry):
    """A registry that asks middleware before each body, and shows it what comes of it."""

    def __init__(self, agent: AnyAgent, hooks: Hooks, pool: ThreadPool, redaction: Redaction, *, keeps: bool) -> None:
        super().__init__(agent.all_tools(), pool=pool)
        self._redaction, self._keeps = redaction, keeps
        self._hooks = hooks

    async def run(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        """Run a tool's body between the hooks, and return what is to be the result."""
        where = hook_context(context.session_context, deps=context.deps, call=context.call, tool=name)
        await self._hooks.tool_call(where, ToolCall(tool=name, input=copy.deepcopy(arguments)))
        try:
            value = await self._value(name, arguments, context)
        except CallRefused:
            raise
        except Exception as error:
            await self._after_failure(where, context, error)
            raise
        if isinstance(value.value if isinstance(value, WithLimit) else value, DeferredResult):
            return value  # What comes later is what it is given.
        given = value if isinstance(value, WithLimit) else WithLimit(value, DEFAULT_RESULT_LIMIT)
        before = self._redaction.value(
            tuple(result_blocks(given.value if context.finished is None else context.finished))
        )
        result = ToolResultBlock(tool_use_id=context.call, content=before)
        changed = await self._hooks.tool_result(where, result)
        if changed is result:
            return value
        self._note(context, before)
        if changed.is_error:
            raise ToolError(text_of(changed.content), kind="transient" if changed.kind == "transient" else "permanent")
        if context.finished is not None:
            context.finished = text_of(changed.content)
        return WithLimit(changed.content or None, given.limit)

    async def _value(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        return await super().run(name, arguments, context)

    async def _after_failure(self, where: HookContext, context: ToolContext[object], error: Exception) -> None:
        """Show middleware the failure of a body."""
        content, kind = failure(error, self._redaction)
        result = ToolResultBlock(tool_use_id=context.call, content=content, is_error=True, kind=kind)
        changed = await self._hooks.tool_result(where, result)
        if changed is not result:
            self._note(context, content)
            raise ToolError(
                text_of(changed.content) or text_of(content), kind="transient" if kind == "transient" else "permanent"
            ) from error

    def _note(self, context: ToolContext[object], before: Sequence[ResultContent]) -> None:
        """Keep what middleware has changed, or that it has."""
        if self._keeps:
            context.original = spill(before)
        else:
            context.hidden = True
