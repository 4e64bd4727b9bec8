"""Calls of tools without a session, for tests of tools."""

from refold.actors import CancellationToken, ThreadPool
from refold.actors.calls.tool_context import ToolContext
from refold.events.core.content import JsonObject
from refold.events.core.ids import SessionId, ToolCallId
from refold.tools.tool import Tool


def context(deps: object = None, cancel: CancellationToken | None = None) -> ToolContext[object]:
    """Return the context of a call."""
    return ToolContext(
        call=ToolCallId("call_4_0"),
        session=SessionId("alice"),
        deps=deps,
        cancel=cancel or CancellationToken(),
        report=lambda _: None,
    )


async def run(
    made: Tool[..., object], arguments: JsonObject, given_context: ToolContext[object] | None = None
) -> object:
    """Call a tool as a runtime does."""
    pool = ThreadPool(2)
    try:
        return await made.run(arguments, given_context or context(), pool)
    finally:
        pool.close()


def refusal(made: Tool[..., object], arguments: JsonObject) -> str:
    """Return why a tool refuses these arguments."""
    verdict = made.check(arguments)[1]
    assert verdict.verdict == "invalid_arguments"
    return verdict.reason
