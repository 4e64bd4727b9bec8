"""How a batch changes the history, told from the log alone.

Read `tests.selfcheck.exhaustive.log_reader` first. An input is shown when its run begins, one that joins with the next
model call or when the run ends; an answer when it says something; results when the last of a turn is there. A
summary comes to stand for the oldest messages, and a note for what is set aside. Nothing else ever enters the history,
and only clearing it takes anything away.
"""

import msgspec

from refold.events.core.content import Message, TextBlock, ToolResultBlock, tool_uses
from refold.events.core.ids import RunId
from refold.events.session import events as ev
from tests.selfcheck.exhaustive.log_reader import ObservedSession, written


class HistoryDelta(msgspec.Struct):
    """What a batch does to the history."""

    cleared: bool = False
    """Nothing that was there before the batch is there after it."""
    added: list[str] = []
    """What comes behind it, as `told` tells messages."""
    replaced: int = 0
    """For so many of its first messages others stand."""
    summary: list[str] = []
    """Those."""
    aside: dict[int, str] = {}
    """By place, what stands from now on for a message that was there."""
    back: tuple[int, ...] = ()
    """Places where what was set aside stands again."""

    def add(self, observed: ObservedSession, event: ev.SessionEvent) -> None:
        """Add what `event` does, the next one after all that `observed` has read."""
        match event:
            case ev.HistoryCleared():
                self.cleared, self.added = True, []
            case ev.ContextPrepared():
                self.replaced = event.replaced
                self.summary = [told(message) for message in event.summary]
            case ev.InputSetAside():
                self.aside = {one.place: told(one.stands) for one in event.messages}
            case ev.ContentTakenBack(aside=version):
                self.back = next(aside.places for aside in observed.asides if aside.version == version)
            case ev.HistoryImported():
                self.added.extend(told(message) for message in event.messages)
            case ev.RunStarted(run=run):
                if run in observed.runs:
                    self._add_inputs([observed.runs[run].content])
            case (
                ev.ModelRequested(run=run) | ev.RunCompleted(run=run) | ev.RunFailed(run=run) | ev.RunCancelled(run=run)
            ):
                self._add_joining(observed, run)
            case ev.TimerFired(timer=timer):
                open_run = observed.open_run
                if open_run is not None and timer == f"retry:{observed.runs[open_run].failed}":
                    self._add_joining(observed, open_run)
            case ev.ModelResponded(trip=trip) if trip is not None:
                return
            case ev.ModelResponded(rejected=rejected, stop_reason=reason) if rejected and reason != "refusal":
                if event.content:
                    self.added.append(told(Message("assistant", event.content)))
                self.added.append(told(Message("user", (TextBlock(text=rejected),))))
            case ev.ModelResponded():
                paused = event.stop_reason == "pause_turn"
                says = paused or any(type(block) is TextBlock for block in event.content) or tool_uses(event.content)
                if event.content and says:
                    self.added.append(told(Message("assistant", event.content)))
            case ev.ToolCallCompleted(call=call) | ev.ToolCallFailed(call=call):
                others = [name for name, seen in observed.calls.items() if not seen.answered and name != call]
                if call in observed.calls and not others:
                    self.added.append(f"results of {' '.join(observed.calls)}")
            case _:
                return

    def _add_joining(self, observed: ObservedSession, run: RunId) -> None:
        if run in observed.runs:
            self._add_inputs(observed.runs[run].joining)

    def _add_inputs(self, contents: list[str]) -> None:
        self.added.extend(f"user says {content}" for content in contents)


def told(message: Message) -> str:
    """Return what a history is compared by: who says what, or which calls are answered."""
    results = [block.tool_use_id for block in message.content if type(block) is ToolResultBlock]
    if results:
        return f"results of {' '.join(results)}"
    return f"{message.role} says {written(message.content)}"
