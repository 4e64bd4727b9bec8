"""What a caller is told of a run: how it ended, what one turn did, and what model calls took."""

from typing import TypeAlias, TypeVar

import msgspec

from refold.events.core.content import ToolResultBlock, ToolUseBlock, text_of, tool_uses
from refold.events.core.errors import AgentLoopError
from refold.events.core.ids import RunId
from refold.events.model.messages import StopReason, Usage
from refold.events.session.events import ModelInterrupted, ModelResponded, ToolCallCompleted, ToolCallFailed
from refold.publishing.notifications import RecordedSessionEvent
from refold.sessions.structured_output import parsed_output

T = TypeVar("T")


class Completed(msgspec.Struct, frozen=True):
    """The run ended with an answer."""


class RunError(msgspec.Struct, frozen=True):
    """Why a run failed."""

    kind: str
    """`RunFailureKind`, such as `max_turns` or `provider`."""
    message: str

    def __str__(self) -> str:
        return self.message


class Failed(msgspec.Struct, frozen=True):
    """The run ended without an answer."""

    error: RunError


class Cancelled(msgspec.Struct, frozen=True):
    """The run was cancelled."""


Outcome: TypeAlias = Completed | Failed | Cancelled
"""How a run ended."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    run: RunId
    outcome: Outcome
    text: str
    """The answer; empty unless the run completed."""
    usage: Usage
    cost: float
    """What that costs, as far as `AgentConfig.prices` says; 0 where it says nothing."""
    turns: int
    """Model calls that were asked for."""
    stop_reason: StopReason | None
    """Of the last answer; `max_tokens` on a completed run says that its text was cut. None = the run failed or was
    cancelled, and there was none that says more."""

    def parsed(self, output_type: type[T]) -> T:
        """Return the answer as a value of `output_type`, such as `Agent.output_type`.

        Raises:
            AgentLoopError: the run has no answer, or one that is no JSON that fits.
        """
        if not isinstance(self.outcome, Completed):
            raise AgentLoopError(f"run {self.run} has no answer to parse: {self.outcome}")
        return parsed_output(self.text, output_type)


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What model calls took."""

    usage: Usage
    cost: float
    """As far as `AgentConfig.prices` says; 0 where it says nothing."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn came to."""

    run: RunId
    events: tuple[RecordedSessionEvent, ...]
    """What happened in it, oldest first."""
    result: RunResult | None
    """How the run ended, if it has; None = its next turn waits for `Session.next_turn`."""

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
