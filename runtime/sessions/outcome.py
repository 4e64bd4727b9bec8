"""How a run ended, as its caller sees it."""

from typing import TypeAlias, TypeVar

import msgspec

from refold.events.core.content import StoredBlock, TextBlock
from refold.events.core.errors import AgentLoopError
from refold.events.core.ids import RunId
from refold.events.model.messages import StopReason, Usage
from refold.events.model.payloads import restore
from refold.events.session.state import FinishedRun
from refold.sessions.structured_output import parsed_output
from refold.stores.event_store import EventStore

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
    """Somebody cancelled the run."""


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


async def result_of(finished: FinishedRun, store: EventStore) -> RunResult:
    """Return what a caller is told of a finished run; large text is read from the payloads.

    Raises:
        LogFormatError: a payload is missing or damaged.
        PersistenceError: the log cannot be read.
    """
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
            outcome = Failed(error=RunError(kind=finished.kind or "agent_loop", message=finished.message))
    return RunResult(
        run=finished.run,
        outcome=outcome,
        text="".join(block.text for block in blocks if isinstance(block, TextBlock)),
        usage=finished.usage,
        cost=finished.cost,
        turns=finished.turns,
        stop_reason=_stop_reason(finished),
    )


def _stop_reason(finished: FinishedRun) -> StopReason | None:
    """Return why the last answer of a run stopped; the state says `end_turn`, too, where there was no answer."""
    has_answered = finished.outcome == "completed" or finished.kind == "empty_answers"
    return finished.stop_reason if has_answered or finished.stop_reason != "end_turn" else None
