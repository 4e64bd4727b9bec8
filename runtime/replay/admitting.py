"""What `admit` makes today of the commands behind a session's recorded stimuli.

Commands are not recorded; a stimulus has what its command said, so that the command is made from it again. What `admit`
refused then is in no log. The rule: what a stimulus does not have (how the caller named the parts that are set aside,
ids that an import renames) is taken from the stimulus, and so is not compared.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from refold.events.core.content import ToolResultBlock
from refold.events.core.difference import Difference, json_of
from refold.events.core.errors import CommandRejected
from refold.events.core.pure_core import Recorded
from refold.events.model.refused import Part
from refold.events.session import commands
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CORE
from refold.events.session.state import SessionState
from refold.replay.comparing import Comparison, Mismatch

COMMANDS: dict[type[ev.SessionEvent], type[Any]] = {
    ev.SessionOpened: commands.OpenSession,
    ev.SessionDescribed: commands.DescribeSession,
    ev.AgentConfigured: commands.Configure,
    ev.HistoryImported: commands.ImportHistory,
    ev.HistoryCleared: commands.ClearHistory,
    ev.HistoryRewound: commands.RewindHistory,
    ev.InputSetAside: commands.SetContentAside,
    ev.ContentTakenBack: commands.TakeContentBack,
    ev.InputQueued: commands.SendInput,
    ev.TimerSet: commands.SendInput,
    ev.TurnAllowed: commands.AllowTurn,
    ev.CancelRequested: commands.CancelRun,
    ev.ToolApprovalDecided: commands.DecideApproval,
    ev.QuestionAsked: commands.RecordQuestion,
    ev.QuestionAnswered: commands.AnswerQuestion,
    ev.RunResumed: commands.ResumeRun,
    ev.ContextPrepared: commands.RecordContext,
    ev.RequestBuilt: commands.RecordRequest,
    ev.ModelResponded: commands.RecordModelResponse,
    ev.GuardrailTripped: commands.RecordGuardrailTrip,
    ev.ModelInterrupted: commands.RecordModelInterruption,
    ev.ModelFailed: commands.RecordModelFailure,
    ev.ToolCallCompleted: commands.RecordToolResult,
    ev.ToolAttemptFailed: commands.RecordToolResult,
    ev.ToolCallFailed: commands.RecordToolResult,
    ev.ToolResultLate: commands.RecordToolResult,
    ev.ToolCallWaiting: commands.RecordCallWaiting,
    ev.TimerFired: commands.RecordTimer,
}
"""The command that becomes each stimulus; fields of one name are the same."""

_SHARED: dict[type[ev.SessionEvent], tuple[str, ...]] = {
    event: tuple(name for name in command.__struct_fields__ if name in event.__struct_fields__ and name != "at")
    for event, command in COMMANDS.items()
}


_encode = msgspec.json.Encoder().encode


def _described(state: SessionState, event: ev.SessionDescribed) -> dict[str, object]:
    return {"metadata": {**dict.fromkeys(state.metadata), **event.metadata}}


def _aside(state: SessionState, event: ev.InputSetAside) -> dict[str, object]:
    return {"named": (), "parts": tuple(_parts(state, event)), "at": state.version}


def _parts(state: SessionState, event: ev.InputSetAside) -> Iterator[Part]:
    for aside in event.messages:
        before = state.messages[aside.place].content
        for number, (block, stands) in enumerate(zip(before, aside.stands.content, strict=False)):
            if isinstance(block, ToolResultBlock) and isinstance(stands, ToolResultBlock):
                pairs = enumerate(zip(block.content, stands.content, strict=False))
                yield from (Part(aside.place, number, inside) for inside, (mine, other) in pairs if mine != other)
            elif block != stands:
                yield Part(aside.place, number)


def _summarised(state: SessionState, event: ev.ContextPrepared) -> dict[str, object]:
    return {"turn": state.run.turns if state.run is not None else 0, "asked": 0, "after": state.summarised}


_FURTHER: dict[type[ev.SessionEvent], Callable[[SessionState, Any], dict[str, object]]] = {
    ev.SessionDescribed: _described,
    ev.InputSetAside: _aside,
    ev.InputQueued: lambda _, event: {"now": event.joins is not None},
    ev.ContextPrepared: _summarised,
    ev.GuardrailTripped: lambda _, event: {"asked": 0},
    ev.QuestionAsked: lambda _, event: {"attempt": 0},
    ev.ToolAttemptFailed: lambda _, event: {"again": True},
}
"""What else a command says, by the stimulus that it became."""

_OF_THE_COMMAND: dict[type[ev.SessionEvent], tuple[str, ...]] = {
    ev.HistoryImported: ("digest",),
    ev.InputSetAside: ("messages", "digest"),
    ev.ModelInterrupted: ("content",),
}
"""Fields of a stimulus that follow from what it does not have of its command: its names, why, or which command it was.
"""


def admitted_otherwise(
    state: SessionState, stimulus: ev.SessionEvent, data: bytes, comparison: Comparison
) -> Mismatch | None:
    """Return how what `admit` decides today in a state differs from a recorded stimulus; None = it does not.

    A type of event that no command becomes is a difference as well, but for the first of a fork.

    Args:
        state: before it; is not changed.
        stimulus: as recorded.
        data: its JSON in the log.
        comparison: says what is meant to differ.
    """
    kind = type(stimulus)
    if kind is ev.SessionForked:
        return None
    made_by = COMMANDS.get(kind)
    now: object = None
    refused = f"no command becomes a {kind.__name__}"
    if made_by is not None:
        fields = {name: getattr(stimulus, name) for name in _SHARED[kind]}
        further = _FURTHER.get(kind)
        try:
            now = SESSION_CORE.admit(state, made_by(**fields | (further(state, stimulus) if further else {})))
        except CommandRejected as error:
            refused = str(error)
        if isinstance(now, Recorded):
            now, refused = None, "nothing is to be recorded"
    if type(now) is kind and _encode(now) == data:  # Nearly always.
        return None
    if not isinstance(now, msgspec.Struct):
        left, right = json_of(stimulus), refused
        difference = Difference(path="admit", left=left, right=right)
        return None if comparison.accepts(difference) else Mismatch(difference, left, right)
    if type(now) is kind:
        kept = ["at", *_OF_THE_COMMAND.get(kind, ())]
        if isinstance(stimulus, ev.ModelResponded) and stimulus.stop_details is None:
            kept.append("stop_details")  # Logs of before do not have them.
        for name in kept:
            msgspec.structs.force_setattr(now, name, getattr(stimulus, name))
    return comparison.mismatch(stimulus, now, "admit")
