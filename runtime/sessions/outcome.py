"""What a caller is told of a run: how it ended, what one turn did, and what model calls took."""

from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, final

import msgspec

from refold.events.core.content import StoredBlock, TextBlock, ToolResultBlock, ToolUseBlock, text_of, tool_uses
from refold.events.core.errors import AgentLoopError
from refold.events.core.ids import RunId
from refold.events.model.messages import StopReason, Usage
from refold.events.model.payloads import restore
from refold.events.session.events import ModelInterrupted, ModelResponded, ToolCallCompleted, ToolCallFailed
from refold.events.session.state import FinishedRun
from refold.publishing.notifications import RecordedSessionEvent
from refold.sessions.structured_output import parsed_output
from refold.stores.event_store import EventStore
from refold.type_parameters import Out_co

T = TypeVar("T")


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """The run ended with an answer."""


class RunError(msgspec.Struct, frozen=True):
    """Why a run failed."""

    kind: str
    """`RunFailureKind`, such as `max_turns` or `provider`."""
    message: str

    def __str__(self) -> str:
        return self.message


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The run ended without an answer."""

    error: RunError


@final
class Tripped(Failed, frozen=True, kw_only=True, tag="tripped"):
    """A guardrail did not let the input, or the answer, pass; the run failed for it, with an error of that kind."""

    guardrail: str
    """Its name."""
    on: Literal["input", "output"]
    reason: str
    """As it said."""


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """The run was cancelled."""


Outcome: TypeAlias = Completed | Failed | Tripped | Cancelled
"""How a run ended; in JSON its `type` says which: `completed`, `failed`, `tripped` or `cancelled`."""


class RunNotCompleted(AgentLoopError):
    """A run has no answer, since it failed or was cancelled.

    Attributes:
        run: the run.
        outcome: how it ended: `Failed(error=…)` or `Cancelled()`.
    """

    def __init__(self, run: RunId, outcome: Failed | Cancelled) -> None:
        how = f"failed ({outcome.error.kind}): {outcome.error}" if isinstance(outcome, Failed) else "was cancelled"
        super().__init__(f"the run {run} has no answer, since it {how}")
        self.run = run
        self.outcome = outcome


class OwnType:
    """Stands for the `output_type` that a run was given with its input, of which the log has the schema only."""


class RunResult(msgspec.Struct, Generic[Out_co], frozen=True, kw_only=True):
    """What a run came to."""

    run: RunId
    outcome: Outcome
    text: str
    """The answer; empty unless the run completed. `output` raises there."""
    usage: Usage
    cost: float
    """What that costs, as far as `AgentConfig.prices` says; 0 where it says nothing."""
    turns: int
    """Model calls that were asked for."""
    stop_reason: StopReason | None
    """Of the last answer; `max_tokens` on a completed run says that its text was cut. None = the run failed or was
    cancelled, and there was none that says more."""
    output_type: type[Out_co] | None = None
    """What `output` reads the answer as: the agent's; None = it is text."""

    @property
    def output(self) -> Out_co:
        """The answer: a value of the agent's `output_type`, or the text where it has none.

        Raises:
            RunNotCompleted: the run failed or was cancelled; its `outcome` says how.
            AgentLoopError: the answer does not fit, as that of an old run may not after the type has changed; or the
                run was given an `output_type` of its own and found without it: `parsed` takes that type.
        """
        if not isinstance(self.outcome, Completed):
            raise RunNotCompleted(self.run, self.outcome)
        if self.output_type is OwnType:
            raise AgentLoopError(
                f"{self.run} was given an output_type of its own; read its answer with parsed(that type)"
            )
        return parsed_output(self.text, self.output_type) if self.output_type else cast("Out_co", self.text)

    def parsed(self, output_type: type[T]) -> T:
        """Return the answer as a value of another type than the agent's.

        Raises:
            RunNotCompleted: the run failed or was cancelled.
            AgentLoopError: the answer does not fit.
        """
        return msgspec.structs.replace(cast("RunResult[T]", self), output_type=output_type).output


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What model calls took."""

    usage: Usage
    cost: float
    """As far as `AgentConfig.prices` says; 0 where it says nothing."""


class TurnResult(msgspec.Struct, Generic[Out_co], frozen=True, kw_only=True):
    """What one turn came to."""

    run: RunId
    events: tuple[RecordedSessionEvent, ...]
    """What happened in it, oldest first."""
    result: RunResult[Out_co] | None
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


async def result_of(
    finished: FinishedRun, store: EventStore, output_type: type[object] | None = None
) -> RunResult[Any]:
    """Return what a caller is told of a finished run; large text is read from the payloads."""
    stored = [block.hash for block in finished.final if isinstance(block, StoredBlock)]
    payloads = await store.read_payloads(stored) if stored else {}
    blocks = [restore(block, payloads) if isinstance(block, StoredBlock) else block for block in finished.final]
    outcome: Outcome
    match finished.outcome:
        case "completed":
            outcome = Completed()
        case "cancelled":
            outcome = Cancelled()
        case "failed":
            error, trip = RunError(kind=finished.kind or "agent_loop", message=finished.message), finished.trip
            outcome = Failed(error=error)
            if trip is not None:
                outcome = Tripped(error=error, guardrail=trip.guardrail, on=trip.on, reason=trip.reason)
    # The state says `end_turn`, too, where there was no answer.
    has_answered = finished.outcome == "completed" or finished.kind in ("empty_answers", "refused")
    return RunResult(
        run=finished.run,
        outcome=outcome,
        text="".join(block.text for block in blocks if isinstance(block, TextBlock)),
        usage=finished.usage,
        cost=finished.cost,
        turns=finished.turns,
        stop_reason=finished.stop_reason if has_answered or finished.stop_reason != "end_turn" else None,
        output_type=output_type,
    )
