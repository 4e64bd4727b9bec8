"""One stream, done again with today's code: folded, or decided anew and compared with what was recorded.

Read `refold.events.core.pure_core` first. The rule: nothing here decides by itself. Each recorded stimulus goes through
`replan`, which the live shell uses, too, from the state that the batches before it led to, and what comes out must be
what the log holds: the same consequences, and the same effects in flight.

Commands are not recorded; a stimulus of Refold's own kinds has what its command said, so that the command is made from
it again, for `admit`. What that refused then is in no log. The rule: what a stimulus does not have (how the caller
named the parts that are set aside, ids that an import renames, the digest of a command under a key) is taken from the
stimulus, and so is not compared.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from traceback import walk_tb
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import force_setattr

from refold.events.core.cleaning import error_words
from refold.events.core.codec import EventCodec
from refold.events.core.content import Json, Message, ToolResultBlock
from refold.events.core.difference import NOTHING, Difference, first_difference, json_of
from refold.events.core.errors import CommandRejected, CoreFailed, LogFormatError, RefoldError
from refold.events.core.event import Event
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import (
    CommandKey,
    Effect,
    KeyedEvent,
    PureCore,
    Recorded,
    Versioned,
    evolve_all,
    keys_of,
    noted,
    replan,
)
from refold.events.core.records import StoredEvent, event_ref
from refold.events.kinds import breaker, deduplicator, episodic, graph, runtime, semantic, tool, working_memory
from refold.events.model.messages import RequestReference
from refold.events.model.refused import Part
from refold.events.session import commands
from refold.events.session import events as ev
from refold.events.session.state import SessionState
from refold.inspection.kinds import KINDS
from refold.inspection.log_reading import Batches
from refold.replay.comparing import CODE_ERRORS, Accepts, Comparison, Mismatch, is_redacted, nothing_accepted
from refold.replay.findings import Differs, Divergence
from refold.stores.event_store import EventStore

S = TypeVar("S", bound=Versioned)
E = TypeVar("E", bound=Event)

EFFECTS_DIGEST = "pending.digest"
"""Path of a difference in effects that have the same keys."""

_encode = msgspec.json.Encoder().encode


class CoreReplay(Generic[S, E]):
    """Takes the batches of one stream, oldest first. After a divergence it is of no more use."""

    def __init__(
        self,
        stream: StreamName,
        core: PureCore[S, Any, E],
        codec: EventCodec[E],
        accepts: Accepts = nothing_accepted,
    ) -> None:
        self._comparison = Comparison(accepts)
        self._stream = stream
        self._core = core
        self._codec = codec
        self._state = core.initial()
        self._history = HistoryDigest()
        self._wanted: tuple[str, ...] = ()
        self.admits = core in OWN_CORES
        """Whether stimuli are compared with what `admit` makes of their commands."""
        self.core_version: int | None = None
        """`CORE_VERSION` of the code that recorded what was taken so far, where the stream says."""
        self.parted = False
        """Whether the state is not the recorded one any more: a consequence differs, and that is meant."""
        self.taken_out = False
        """Whether the last stimulus is another one today, perhaps since names became the same in a bundle."""

    @property
    def state(self) -> S:
        return self._state

    def fold(self, batch: Sequence[StoredEvent]) -> Divergence | None:
        """Evolve the state through a batch; return where today's fold fails on it, if it does."""
        recorded = [self._stimulus(batch), *map(self._decoded, batch[1:])]
        done = [-2]  # Nothing; -1 is the stimulus.

        def counted() -> Iterator[E]:
            for event in recorded:
                done[0] += 1
                yield event

        try:
            self._state = evolve_all(self._core, counted(), self._state)
        except LogFormatError as error:
            return self._failure(batch, done[0], recorded[done[0] + 1], error)
        self._wanted = tuple(batch[0].pending or ())
        return None

    def decide(self, batch: Sequence[StoredEvent]) -> Divergence | None:
        """Decide again what follows from a batch's stimulus; return the first difference, if there is one."""
        stimulus = self._stimulus(batch)
        if (divergence := self._in_history(batch, stimulus)) is not None:
            return divergence
        try:
            if (divergence := self._in_admitted(batch, stimulus)) is not None:
                return divergence
            plan = replan(self._core, self._state, stimulus, stimulus.at)
            wanted = self._core.pending(plan.state)
            pending = noted(wanted, self._wanted)
        except CODE_ERRORS as error:
            return self._failure(batch, -1, stimulus, error)
        self._state = plan.state
        self._wanted = pending
        if _are_recorded(plan.events, batch):  # Nearly always, and then nothing of them need be decoded.
            return self._in_pending(batch, pending, wanted)
        recorded = [self._decoded(stored) for stored in batch[1:]]
        return self._in_consequences(batch, recorded, plan.events[1:]) or self._in_pending(batch, pending, wanted)

    def _stimulus(self, batch: Sequence[StoredEvent]) -> E:
        first = batch[0]
        if first.version != first.batch:
            place = event_ref(self._stream, first.version)
            raise LogFormatError(
                f"event {place} belongs to the batch of version {first.batch}, which does not begin there; "
                "`refold check` says what else is wrong with the log"
            )
        return self._decoded(first)

    def _decoded(self, stored: StoredEvent) -> E:
        event = self._codec.decode(stored)
        decoded: object = event
        if type(decoded) is ev.AgentConfigured:
            self.core_version = decoded.configuration.code.core
        return event

    def _in_history(self, batch: Sequence[StoredEvent], stimulus: E) -> Divergence | None:
        """Compare the history that a model was sent, of which the log has the length and a digest."""
        sent = getattr(stimulus, "request", None)
        state: object = self._state
        # `type` and not `isinstance`, here and below: of a Struct's class that takes many times as long.
        if type(sent) is not RequestReference or type(state) is not SessionState or not sent.digest:
            return None
        agreed, length = self._history.agreed, min(len(state.messages), sent.messages)
        digest = self._history.digest_of(state.messages, length)
        if digest == sent.digest and length == sent.messages:
            self._history.agreed = length
            return None
        agreed = min(agreed, length)  # A summary has made it shorter.
        first, last = agreed + 1, sent.messages
        which = f"message {first} is" if first == last else f"messages {first} to {last} are"
        difference = Difference(
            path="history",
            left=f"{sent.messages:,} messages, SHA-256 {sent.digest[:16]}…",
            right=f"{length:,} messages, SHA-256 {digest[:16]}…: {which} not what was sent",
        )
        if self._comparison.accepts(difference):
            return None
        now = json_of(list(state.messages[agreed:length]))
        return self._divergence(batch, -1, "history", difference, now=now)

    def _in_admitted(self, batch: Sequence[StoredEvent], stimulus: E) -> Divergence | None:
        """Compare the stimulus with what `admit` makes today of its command."""
        self.taken_out = False
        if not self.admits:
            return None
        found = admitted_otherwise(self._core, self._state, stimulus, self._comparison)
        if found is None:
            return None
        if isinstance(stimulus, KeyedEvent) and is_redacted((stimulus, self._state)):
            self.taken_out = True
            return None
        return self._divergence(batch, -1, "admit", found.difference, recorded=found.recorded, now=found.now)

    def _in_consequences(
        self, batch: Sequence[StoredEvent], recorded: Sequence[E], now: Sequence[E]
    ) -> Divergence | None:
        accepts = self._comparison.accepts
        for index in range(max(len(recorded), len(now))):
            path = f"consequences[{index}]"
            again = self._counted_alike(recorded[index], now[index]) if index < min(len(recorded), len(now)) else None
            left = json_of(recorded[index]) if index < len(recorded) else NOTHING
            right = json_of(again or now[index]) if index < len(now) else NOTHING
            if again is not None:
                difference = self._comparison.difference(recorded[index], again, path)
                differs: Differs = "consequence"
                self.parted |= difference is None and left != right
            else:
                whole = Difference(path=path, left=left, right=right)
                difference = None if accepts(whole) else whole
                differs = "missing" if right is NOTHING else "extra"
                self.parted |= difference is None
            if difference is not None:
                return self._divergence(batch, index, differs, difference, recorded=left, now=right)
        return None

    def _counted_alike(self, recorded: E, now: E) -> E:
        """Return an event of now without what the recorded one was not counted for: logs of before have no totals."""
        if isinstance(now, ev.TerminalEvent) and isinstance(recorded, ev.TerminalEvent) and recorded.totals is None:
            return msgspec.structs.replace(now, totals=None)
        return now

    def _in_pending(
        self, batch: Sequence[StoredEvent], now: tuple[str, ...], wanted: Sequence[Effect]
    ) -> Divergence | None:
        recorded = tuple(batch[0].pending or ())
        if recorded == now:
            return None
        keys, keys_now = keys_of(recorded), keys_of(now)
        difference = self._comparison.difference(keys, keys_now, "pending")
        left, right = json_of(keys), json_of(keys_now)
        # Logs of before have no digest of the effects.
        if keys == keys_now and len(recorded) > len(keys) and recorded != now:
            right = json_of(wanted)
            difference = Difference(path=EFFECTS_DIGEST, left=recorded[-1], right=now[-1])
            difference = None if self._comparison.accepts(difference) else difference
        if difference is None:
            return None
        return self._divergence(batch, len(batch) - 2, "pending", difference, recorded=left, now=right)

    def _failure(self, batch: Sequence[StoredEvent], index: int, event: E, error: Exception) -> Divergence:
        refused = isinstance(error, RefoldError) and not isinstance(error, CoreFailed)
        text = str(error) if refused else _words_of_fault(error)
        left = json_of(event)
        difference = Difference(path="stimulus" if index < 0 else f"consequences[{index}]", left=left, right=text)
        return self._divergence(batch, index, "failure", difference, recorded=left, now=text)

    def _divergence(
        self,
        batch: Sequence[StoredEvent],
        consequence: int,
        differs: Differs,
        difference: Difference,
        *,
        recorded: Json = NOTHING,
        now: Json = NOTHING,
    ) -> Divergence:
        """Return the divergence at one consequence of a batch, counted from 0; -1 is the stimulus."""
        return Divergence(
            stream=self._stream,
            version=batch[0].version + 1 + consequence,
            batch=batch[0].version,
            position=batch[0].position,
            differs=differs,
            difference=difference,
            recorded=recorded,
            now=now,
            core_version=self.core_version,
        )


def _are_recorded(events: Sequence[Event], batch: Sequence[StoredEvent]) -> bool:
    """Tell whether the consequences among the events are written as those of a batch are."""
    if len(events) != len(batch):
        return False
    at = events[0].at
    for event, stored in zip(events[1:], batch[1:], strict=True):
        force_setattr(event, "at", 0)  # Stands beside the data in a log.
        same = _encode(event) == stored.data
        force_setattr(event, "at", at)
        if not same or stored.at != at:
            return False
    return True


async def caught_up(again: CoreReplay[S, E], store: EventStore, last: StoredEvent) -> bool:
    """Take a stream up to an event without deciding anything; return whether it can be folded."""
    async for batch in Batches(store, last.stream):
        if again.fold(batch) is not None:
            return False
        if batch[-1].version >= last.version:
            break
    return True


def with_effects_then(decided: Divergence, effects: Sequence[Effect]) -> Divergence:
    """Return a divergence of effects under the same keys, of which a log has a digest, with where they differ."""
    then = json_of(effects)
    difference = first_difference(then, decided.now, "pending")
    if difference is None:
        return decided
    return msgspec.structs.replace(decided, difference=difference, recorded=then)


class HistoryDigest:
    """The digest of a history, which grows with it."""

    def __init__(self) -> None:
        self.agreed = 0
        """So many messages are those that were sent."""
        self._source: Sequence[Message] | None = None
        self._counted = 0
        self._digest = hashlib.sha256()

    def digest_of(self, source: Sequence[Message], length: int) -> str:
        """Return the SHA-256 over the JSON of the first messages, as `refold.actors.calls.conversation` makes it."""
        if source is not self._source or length < self._counted:
            self._source, self._counted, self.agreed, self._digest = source, 0, 0, hashlib.sha256()
        if length > self._counted:
            self._digest.update(b"".join(map(_encode, source[self._counted : length])))
            self._counted = length
        return self._digest.hexdigest()


def _words_of_fault(error: BaseException) -> str:
    """Return an error's type and text, with the innermost line that is not in Python's own library.

    Of a user's core the text says on what it failed, and the line is its own.
    """
    if isinstance(error, CoreFailed):
        words, error = str(error), error.__cause__ or error
    else:
        words = error_words(error)
    lines = [
        f" ({os.path.basename(frame.f_code.co_filename)}:{line})"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in sys.stdlib_module_names
    ]
    return words + lines[-1] if lines else words


OWN_CORES = frozenset(kind.core for kind in KINDS.values())
"""Those whose commands can be made again."""


def _key(event: KeyedEvent) -> str | None:
    return event.command.key if event.command is not None else None


def _ended(
    state: breaker.BreakerState,
    event: breaker.FailureCounted
    | breaker.FailuresCleared
    | breaker.CircuitOpened
    | breaker.ProbeReleased
    | breaker.CircuitClosed,
) -> breaker.BreakerCommand:
    """Return the end of a call; or what a breaker that had no log before took up, where no end of a call says it."""
    error, ended_at = getattr(event, "error", ""), getattr(event, "decided_at", 0)
    match event:
        case breaker.ProbeReleased():
            end: breaker.CallEnd = "neither"
        case breaker.FailuresCleared() | breaker.CircuitClosed():
            end = "succeeded"
        case breaker.FailureCounted(failures=failures) | breaker.CircuitOpened(failures=failures):
            end, next_failure = "failed", failures == state.failures + 1
            opens = isinstance(event, breaker.CircuitOpened)
            if state.phase == "closed" and not (next_failure and opens == (failures >= state.threshold)):
                return breaker.TakeUp(failures=failures, error=error, opened_at=ended_at, key=_key(event))
    permit = breaker.Permit(state.generation, state.probe)  # The end of another call says nothing.
    return breaker.EndCall(permit=permit, end=end, error=error, ended_at=ended_at, key=_key(event))


def _seen(_: breaker.BreakerState, event: breaker.SharedStateSeen) -> breaker.NoteSharedState:
    return breaker.NoteSharedState(seen=msgspec.structs.replace(event, at=0, command=None), key=_key(event))


COMMANDS: dict[type[Event], Callable[..., Any]] = {
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
    ev.RequestBuilt: ev.RequestBuilt,
    ev.ModelResponded: commands.RecordModelResponse,
    ev.GuardrailTripped: commands.RecordGuardrailTrip,
    ev.ModelInterrupted: ev.ModelInterrupted,
    ev.ModelFailed: commands.RecordModelFailure,
    ev.ToolCallCompleted: commands.RecordToolResult,
    ev.ToolAttemptFailed: commands.RecordToolResult,
    ev.ToolCallFailed: commands.RecordToolResult,
    ev.ToolResultLate: commands.RecordToolResult,
    ev.ToolCallWaiting: ev.ToolCallWaiting,
    ev.TimerFired: ev.TimerFired,
    episodic.EpisodeAdded: episodic.AddEpisode,
    episodic.EpisodesRecalled: episodic.NoteRecalled,
    episodic.EpisodesCleared: episodic.ClearEpisodes,
    episodic.CapacityChanged: episodic.ChangeCapacity,
    working_memory.ItemSet: working_memory.SetItem,
    working_memory.ItemUsed: working_memory.UseItem,
    working_memory.ItemRemoved: working_memory.RemoveItem,
    working_memory.ItemsCleared: working_memory.ClearItems,
    working_memory.RoomChanged: working_memory.ChangeRoom,
    semantic.EntryPut: semantic.PutEntry,
    semantic.EntryRemoved: semantic.RemoveEntry,
    semantic.EntriesCleared: semantic.ClearEntries,
    semantic.DimensionChanged: semantic.ChangeDimension,
    graph.EntityAdded: graph.AddEntity,
    graph.EntityRemoved: graph.RemoveEntity,
    graph.RelationshipAdded: graph.AddRelationship,
    graph.RelationshipRemoved: graph.RemoveRelationship,
    breaker.BreakerConfigured: breaker.ConfigureBreaker,
    breaker.ProbeBegun: breaker.BeginProbe,
    breaker.FailureCounted: _ended,
    breaker.FailuresCleared: _ended,
    breaker.CircuitOpened: _ended,
    breaker.ProbeReleased: _ended,
    breaker.CircuitClosed: _ended,
    breaker.SharedStateSeen: _seen,
    deduplicator.WorkClaimed: deduplicator.ClaimWork,
    deduplicator.WorkFinished: deduplicator.FinishWork,
    deduplicator.WorkReleased: deduplicator.ReleaseWork,
    tool.ToolDefined: tool.DefineTool,
    tool.ToolCallAbandoned: tool.AbandonCall,
    runtime.RuntimeStarted: runtime.RuntimeStarted,
    runtime.RuntimeClosed: runtime.RuntimeClosed,
    runtime.ActorFailed: runtime.ActorFailed,
    runtime.RecallsNoted: runtime.RecallsNoted,
}
"""The command that becomes each stimulus, of whose fields those of one name are the same; or what makes it again, given
the state before and the stimulus."""

_SHARED: dict[type[Event], tuple[str, ...]] = {
    event: tuple(name for name in command.__struct_fields__ if name in event.__struct_fields__ and name != "at")
    for event, command in COMMANDS.items()
    if isinstance(command, type) and issubclass(command, msgspec.Struct)
}


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


_FURTHER: dict[type[Event], Callable[[Any, Any], dict[str, object]]] = {
    ev.SessionDescribed: _described,
    ev.InputSetAside: _aside,
    ev.InputQueued: lambda _, event: {"now": event.joins is not None},
    ev.ContextPrepared: _summarised,
    ev.GuardrailTripped: lambda _, event: {"asked": 0},
    ev.QuestionAsked: lambda _, event: {"attempt": 0},
    ev.ToolAttemptFailed: lambda _, event: {"again": True},
    **{event: lambda _, stimulus: {"key": _key(stimulus)} for event in _SHARED if issubclass(event, KeyedEvent)},
}
"""What else a command says, by the stimulus that it became."""

_OF_THE_COMMAND: dict[type[Event], tuple[str, ...]] = {
    ev.HistoryImported: ("digest",),
    ev.InputSetAside: ("messages", "digest"),
    ev.ModelInterrupted: ("content",),
}
"""Fields of a stimulus that follow from what it does not have of its command: its names, why, or which command it was.
"""


def admitted_otherwise(
    core: PureCore[Any, Any, Any], state: object, stimulus: Event, comparison: Comparison
) -> Mismatch | None:
    """Return how what `admit` decides today in a state differs from a recorded stimulus; None = it does not.

    A type of event that no command becomes is a difference as well, but for the first of a fork.
    """
    kind = type(stimulus)
    if kind is ev.SessionForked:
        return None
    now: object = None
    refused = f"no command becomes a {kind.__name__}"
    if (made_by := COMMANDS.get(kind)) is not None:
        try:
            if (shared := _SHARED.get(kind)) is None:
                command = made_by(state, stimulus)
            else:
                fields = {name: getattr(stimulus, name) for name in shared}
                if (further := _FURTHER.get(kind)) is not None:
                    fields |= further(state, stimulus)
                command = made_by(**fields)
            now = core.admit(state, command)
        except CommandRejected as error:
            refused = str(error)
        except CODE_ERRORS as error:
            refused = error_words(error)
    if now is not None and type(now) is kind:
        force_setattr(now, "at", stimulus.at)
        if now == stimulus:  # Nearly always.
            return None
    if isinstance(now, Recorded):
        now, refused = None, "nothing is to be recorded"
    if not isinstance(now, msgspec.Struct):
        left, right = json_of(stimulus), refused
        difference = Difference(path="admit", left=left, right=right)
        return None if comparison.accepts(difference) else Mismatch(difference, left, right)
    if type(now) is kind:
        for name, value in _not_compared(stimulus, now):
            force_setattr(now, name, value)
    return comparison.mismatch(stimulus, now, "admit")


def _not_compared(stimulus: Event, now: object) -> Iterator[tuple[str, object]]:
    """Give the fields that are taken from a stimulus, of which it does not have what they follow from."""
    for name in _OF_THE_COMMAND.get(type(stimulus), ()):
        yield name, getattr(stimulus, name)
    if isinstance(stimulus, ev.ModelResponded) and stimulus.stop_details is None:
        yield "stop_details", None  # Logs of before do not have them.
    if isinstance(stimulus, KeyedEvent) and isinstance(now, KeyedEvent) and stimulus.command and now.command:
        yield "command", CommandKey(now.command.key, stimulus.command.digest)
        if isinstance(stimulus, episodic.EpisodeAdded) and is_redacted(stimulus.command.key):
            yield "id", stimulus.id  # Was made of the key.
