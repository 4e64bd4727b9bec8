"""What a tool gives in a replay: what was recorded of it, or what its body of today gives for the recorded arguments.

Only the body of a tool whose effect is `pure` today runs again, in a process that can write nothing and reach nothing
(`refold.replay.shadow`); one that needs something outside counts as not compared. The rule: no other body ever runs.
"""

from collections.abc import Callable

from refold.actors.calls.context import SessionContext
from refold.actors.calls.middleware import Hooks
from refold.actors.calls.questions import AnswerType, DeferredResult, Questions
from refold.actors.calls.results import DEFAULT_RESULT_LIMIT, WithLimit
from refold.actors.calls.tool_context import ToolContext
from refold.actors.cancellation import CancellationToken
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import AgentTool, AnyAgent
from refold.agents.middleware_tools import HookedTools
from refold.events.core.content import JsonObject
from refold.events.secrets.redaction import Redaction
from refold.events.session.state import TurnCall
from refold.tools.dry_run import NotComparable, refused_by_system
from refold.tools.registry import AnyTool

UNANSWERED = "it asks something to which the log has no answer at this place"
FROM_OUTSIDE = "its result came later, from outside"


class RecordedBodies(HookedTools):
    """Tools whose bodies are not run: they give what they are handed."""

    def __init__(self, agent: AnyAgent, hooks: Hooks, redaction: Redaction, *, keeps: bool = True) -> None:
        self.pool = ThreadPool(name="bodies run again")
        super().__init__(agent, hooks, self.pool, redaction, keeps=keeps)
        self._recorded: object = None

    async def give(self, name: str, arguments: JsonObject, context: ToolContext[object], recorded: object) -> object:
        """Return what comes of a value, or of an error, between the hooks.

        Raises:
            Exception: as `HookedTools.run`.
        """
        self._recorded = recorded
        return await self.run(name, arguments, context)

    async def _value(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        tool = self.get(name)
        value = await self._given(tool, name, arguments, context)
        limit = tool.result_limit if tool is not None else DEFAULT_RESULT_LIMIT
        return value if limit == DEFAULT_RESULT_LIMIT else WithLimit(value, limit)

    async def _given(
        self, tool: AnyTool | None, name: str, arguments: JsonObject, context: ToolContext[object]
    ) -> object:
        if isinstance(self._recorded, Exception):
            raise self._recorded
        return self._recorded

    def pure(self, name: str) -> AnyTool | None:
        """Return a tool whose body may run again; None = there is none of that name, or it may have an effect."""
        tool = self.get(name)
        return None if tool is None or tool.spec.effect != "pure" or isinstance(tool, AgentTool) else tool

    async def run_again(self, tool: AnyTool, arguments: JsonObject, context: ToolContext[object]) -> object:
        """Return what the body of a tool returns, or the exception that it raises.

        Raises:
            NotComparable: it asks for what the log does not have, or gives its result later.
            Exception: it needs something outside.
        """
        try:
            value = await tool.run_body(arguments, context, self.pool)
        except Exception as error:
            if isinstance(error, NotComparable) or refused_by_system(error) is not None:
                raise
            return error
        if isinstance(value, DeferredResult):
            raise NotComparable(FROM_OUTSIDE)
        return value


def call_context(
    call: TurnCall,
    of: SessionContext,
    deps: object,
    *,
    describe: Callable[[object], AnswerType],
    now_us: int,
) -> ToolContext[object]:
    """Return what a body is given besides its arguments, with the answers that its questions had got.

    Args:
        now_us: the time of the place in the log, microseconds since the epoch, UTC.
    """

    def end_body() -> None:
        raise NotComparable(UNANSWERED)

    return ToolContext(
        call=call.id,
        session=of.session,
        deps=deps,
        cancel=CancellationToken(),
        report=lambda _: None,
        session_context=of,
        questions=Questions(
            call.id,
            call.failed_attempts + 1,
            call.answers,
            describe=describe,
            now_us=lambda: now_us,
            end_body=end_body,
        ),
    )
