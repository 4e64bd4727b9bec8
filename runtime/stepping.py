"""One turn of a run at a time, for whoever wants to look, or to decide, between two turns."""

import msgspec

from refold.actors.folded_actor import Performed
from refold.actors.tool_context import require_other_session
from refold.events.content import ToolResultBlock, ToolUseBlock, text_of, tool_uses
from refold.events.errors import ConfigError
from refold.events.ids import RunId
from refold.events.session_commands import AllowTurn, CancelRun
from refold.events.session_events import ModelInterrupted, ModelResponded, ToolCallCompleted, ToolCallFailed
from refold.events.spending import Usage
from refold.given_input import Input
from refold.outcome import RunResult
from refold.published import Recorded
from refold.sending import RunWatcher, Sent, begin
from refold.session_access import SessionAccess


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn came to."""

    run: RunId
    events: tuple[Recorded, ...]
    """What happened in it, oldest first."""
    result: RunResult | None
    """How the run ended, if it has; None = its next turn waits for `Session.step`."""

    @property
    def text(self) -> str:
        """What the model said in the turn; a text of more than 64 KiB is in `Session.history` only."""
        return "".join(text_of(item.event.content) for item in self.events if isinstance(item.event, ModelResponded))

    @property
    def usage(self) -> Usage:
        """The tokens of the turn's model call, interrupted attempts of it included."""
        answers = (item.event for item in self.events if isinstance(item.event, ModelResponded | ModelInterrupted))
        return sum((answer.usage for answer in answers), Usage())

    @property
    def calls(self) -> list[tuple[ToolUseBlock, ToolResultBlock]]:
        """The tool calls that were answered in the turn, with their results, in the order of the calls."""
        results: dict[str, ToolResultBlock] = {}
        for item in self.events:
            event = item.event
            if isinstance(event, ToolCallCompleted):
                results[event.call] = ToolResultBlock(tool_use_id=event.call, content=event.content)
            elif isinstance(event, ToolCallFailed):
                results[event.call] = ToolResultBlock(
                    tool_use_id=event.call, content=event.content, is_error=True, kind=event.kind
                )
        answers = (item.event for item in self.events if isinstance(item.event, ModelResponded))
        return [(use, results[use.id]) for answer in answers for use in tool_uses(answer.content) if use.id in results]


async def step(access: SessionAccess, content: Input | None, key: str | None) -> TurnResult:
    """Do as `Session.step` says."""
    if content is None and key is not None:
        raise ConfigError("a key of step is that of its input; give an input too, or no key")
    seen: list[Recorded] = []
    watcher = RunWatcher(seen.append)

    def watch(run: RunId, performed: Performed) -> None:
        watcher.watch(run, lambda: access.cancel_surely(CancelRun(run=run)))

    unsubscribe = access.runtime.hub.subscribe(watcher.see, access.session)
    try:
        if content is not None:
            sent = begin(access, content, cancel=None, key=key, on_performed=watch, stepwise=True)
        else:
            require_other_session(access.runtime.system, access.session)
            access.runtime.require_open()
            sent = Sent(access, AllowTurn(), {}, None, watch, stepwise=True)
        await sent.over()
    finally:
        unsubscribe()
    ended = sent.outcome()
    assert sent.run is not None
    return TurnResult(run=sent.run, events=tuple(seen), result=ended if isinstance(ended, RunResult) else None)
