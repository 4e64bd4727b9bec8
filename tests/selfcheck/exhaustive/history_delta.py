"""By which messages a batch makes the history longer, told from the log alone.

Read `tests.selfcheck.exhaustive.log_reader` first. An input is shown when its run begins, one that joins with the next
model call or when the run ends; an answer when it says something; results when the last of a turn is there. A
summary comes to stand for the oldest messages. Nothing else ever enters the history, and only clearing it takes
anything away.
"""

import msgspec

from refold.events.core.content import Message, TextBlock, ToolResultBlock, tool_uses
from refold.events.core.ids import RunId
from refold.events.session.events import (
    ContextPrepared,
    HistoryCleared,
    HistoryImported,
    ModelRequested,
    ModelResponded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunStarted,
    SessionEvent,
    TimerFired,
    ToolCallCompleted,
    ToolCallFailed,
)
from tests.selfcheck.exhaustive.log_reader import Witness, written


class Growth(msgspec.Struct):
    """What a batch does to the history."""

    cleared: bool = False
    """Nothing that was there before the batch is there after it."""
    added: list[str] = []
    """What comes behind it, as `told` tells messages."""
    replaced: int = 0
    """For so many of its first messages others stand."""
    summary: list[str] = []
    """Those."""

    def see(self, witness: Witness, event: SessionEvent) -> None:
        """Add what `event` does, which comes next after all that `witness` has read."""
        match event:
            case HistoryCleared():
                self.cleared, self.added = True, []
            case ContextPrepared():
                self.replaced = event.replaced
                self.summary = [told(message) for message in event.summary]
            case HistoryImported():
                self.added.extend(told(message) for message in event.messages)
            case RunStarted(run=run):
                if run in witness.runs:
                    self._add_inputs([witness.runs[run].content])
            case ModelRequested(run=run) | RunCompleted(run=run) | RunFailed(run=run) | RunCancelled(run=run):
                self._add_joining(witness, run)
            case TimerFired(timer=timer):
                open_run = witness.open_run
                if open_run is not None and timer == f"retry:{witness.runs[open_run].failed}":
                    self._add_joining(witness, open_run)
            case ModelResponded(rejected=rejected) if rejected:
                if event.content:
                    self.added.append(told(Message("assistant", event.content)))
                self.added.append(told(Message("user", (TextBlock(text=rejected),))))
            case ModelResponded():
                paused = event.stop_reason == "pause_turn"
                says = paused or any(type(block) is TextBlock for block in event.content) or tool_uses(event.content)
                if event.content and says:
                    self.added.append(told(Message("assistant", event.content)))
            case ToolCallCompleted(call=call) | ToolCallFailed(call=call):
                others = [name for name, seen in witness.calls.items() if not seen.answered and name != call]
                if call in witness.calls and not others:
                    self.added.append(f"results of {' '.join(witness.calls)}")
            case _:
                return

    def _add_joining(self, witness: Witness, run: RunId) -> None:
        if run in witness.runs:
            self._add_inputs(witness.runs[run].joining)

    def _add_inputs(self, contents: list[str]) -> None:
        self.added.extend(f"user says {content}" for content in contents)


def told(message: Message) -> str:
    """Return what a history is compared by: who says what, or which calls are answered."""
    results = [block.tool_use_id for block in message.content if type(block) is ToolResultBlock]
    if results:
        return f"results of {' '.join(results)}"
    return f"{message.role} says {written(message.content)}"
