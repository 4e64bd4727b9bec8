"""One stream, done again with today's code: folded, or decided anew and compared with what was recorded.

Read `refold.events.core.pure_core` first. What a replay finds is defined here, too: `Divergence`, and what `Compared`
counts at level `decide`. The rule: nothing here decides by itself. Each recorded stimulus goes through `replan`, which
the live shell uses, too, from the state that the batches before it led to, and what comes out must be what the log
holds: the same consequences, and the same effects in flight.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from traceback import walk_tb
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from refold.events.core.codec import EventCodec
from refold.events.core.content import Json, Message
from refold.events.core.difference import NOTHING, Difference, json_of
from refold.events.core.errors import CoreFailed, LogFormatError, RefoldError
from refold.events.core.event import Event
from refold.events.core.ids import StreamName, event_ref
from refold.events.core.pure_core import Effect, PureCore, Versioned, evolve_all, keys_of, noted, replan
from refold.events.core.records import StoredEvent
from refold.events.model.messages import RequestReference
from refold.events.session.events import AgentConfigured, SessionEvent, TerminalEvent
from refold.events.session.state import SessionState
from refold.inspection.log_reading import Batches
from refold.replay.admitting import admitted_otherwise
from refold.replay.comparing import Accepts, Comparison, nothing_accepted
from refold.stores.event_store import EventStore
from refold.tools.dry_run import ACTS_KEPT, RefusedAct

S = TypeVar("S", bound=Versioned)
E = TypeVar("E", bound=Event)

CODE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RefoldError)
"""What today's code raises on a batch that it has no meaning for."""

What = Literal["admit", "input", "guardrail", "recall", "request", "summary", "answer", "call", "result", "decision"]
"""What is compared at level `decide`: whether today's agent does the same with what was recorded.

`admit`: what becomes of the commands that stimuli were made from. `input`: of what was sent, after `on_user_message`.
`guardrail`: which input guardrail trips. `recall`: what of the memories enters a request. `request`: what a model is
asked, after offer, window and `on_pre_llm`. `summary`: when a history is summarised, what is asked for it, and what it
is told as. `answer`: what becomes of a model's answer by `on_post_llm`, argument checks, policy, output type and output
guardrails. `call`: whether `on_tool_call` lets a body run. `result`: of what a tool gave, after `on_tool_result` and
the limit of results, and what skills say.
`decision`: what the session's core decides under today's configuration.
"""

ORDER: tuple[What, ...] = (
    "admit",
    "input",
    "guardrail",
    "recall",
    "request",
    "summary",
    "answer",
    "call",
    "result",
    "decision",
)

REASONS_MAX = 50
"""Of each kind of comparison at most so many reasons are told apart."""

OTHER_REASONS = "other reasons"

AFTER_A_DIFFERENCE = "it follows a decision that differs"
"""Why the later decisions of a session are not compared."""

PARTED_MAX = 20
"""So often in one session the decisions go on behind one that is meant to be another; each time its log is read."""

AFTER_MEANT = f"it follows more than {PARTED_MAX} decisions that differ and are meant to"

Differs = Literal["history", "consequence", "missing", "extra", "pending", "failure"] | What
"""How today's code and a recorded batch differ.

`history`: what a model was sent of the history is not what its events add up to today. `consequence`: another event, or
another field. `missing`: recorded, and not decided now. `extra`: decided now, and not
recorded. `pending`: other effects in flight after the batch. `failure`: today's code fails on it.
"""

EFFECTS_DIGEST = "pending.digest"
"""Path of a difference in effects that have the same keys."""

_encode = msgspec.json.Encoder().encode


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where today's code does not do what a stream recorded."""

    stream: StreamName
    version: int
    """Of the event that differs; where an event is `extra`, the version that it would have."""
    batch: int
    """Version of the stimulus that was fed to today's code."""
    position: int
    """Of that stimulus."""
    differs: Differs
    difference: Difference
    """Its path begins at the batch: `consequences[1].turn`, `pending[0]`; left is recorded, right is now."""
    recorded: Json = NOTHING
    """The whole event, or all pending keys, as recorded; left out where nothing was."""
    now: Json = NOTHING
    """The same as decided now; of a failure, the error's text, and where in the code it was raised."""
    core_version: int | None = None
    """`CORE_VERSION` of the code that recorded it, where the stream says."""

    def __str__(self) -> str:
        place = event_ref(self.stream, self.version)
        match self.differs:
            case "failure":
                return f"{place}: failure: {self.now}"
            case "missing" | "extra":
                return f"{place}: {self.differs}: {self.difference}"
            case _:  # The path begins with that word.
                return f"{place}: {self.difference}"


class NotCompared(msgspec.Struct, frozen=True, kw_only=True):
    """Why some comparisons could not be made."""

    why: str
    times: int
    first: str
    """The first place, such as `session/alice@12`."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """How often one thing was compared."""

    what: What
    compared: int = 0
    """How often it could be done again."""
    differ: int = 0
    """How often it then was not as recorded."""
    not_compared: tuple[NotCompared, ...] = ()
    """The reasons why it could not be, in the order in which they came up."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Something that code tried to do, and that was refused."""

    what: str
    """Such as `os.remove`, or `the tool weather`."""
    on: str
    """What it would have been done to the first time, such as a path; empty = `what` says it."""
    place: str
    """Where in the application's code: `shop/hooks.py:31 in Stock.on_pre_llm`; empty = nowhere in it."""
    comparison: What
    """What was being done again."""
    times: int
    first: str
    """The first place in the log, such as `session/alice@12`."""


class Tally:
    """Counts the comparisons of level `decide`."""

    def __init__(self) -> None:
        self._compared: dict[What, int] = {}
        self._differ: dict[What, int] = {}
        self._missed: dict[What, dict[str, tuple[int, str]]] = {}
        self._tried: dict[tuple[str, str, What], Tried] = {}

    def add(self, what: What, *, differs: bool) -> None:
        """Count a comparison."""
        self._compared[what] = self._compared.get(what, 0) + 1
        self._differ[what] = self._differ.get(what, 0) + differs

    def miss(self, what: What, place: str, why: str, times: int = 1) -> None:
        """Count one that could not be made."""
        reasons = self._missed.setdefault(what, {})
        if why not in reasons and len(reasons) >= REASONS_MAX:
            why = OTHER_REASONS
        before, first = reasons.get(why, (0, place))
        reasons[why] = (before + times, first)

    def refused(self, what: What, place: str, acts: Sequence[RefusedAct]) -> None:
        """Count what code tried instead of giving an answer."""
        for act in acts:
            tried = Tried(what=act.what, on=act.on, place=act.place, comparison=what, times=1, first=place)
            self._add_tried(tried)

    def _add_tried(self, tried: Tried) -> None:
        name = (tried.what, tried.place, tried.comparison)
        known = self._tried.get(name)
        if known is not None:
            self._tried[name] = msgspec.structs.replace(known, times=known.times + tried.times)
        elif len(self._tried) < ACTS_KEPT:
            self._tried[name] = tried

    def merge(self, later: "Tally") -> None:
        """Add what another one counted after this one."""
        for mine, others in ((self._compared, later._compared), (self._differ, later._differ)):
            for what, number in others.items():
                mine[what] = mine.get(what, 0) + number
        for what, reasons in later._missed.items():
            for why, (times, first) in reasons.items():
                self.miss(what, first, why, times)
        for tried in later._tried.values():
            self._add_tried(tried)

    def tried(self) -> tuple[Tried, ...]:
        """Return what code tried, in the order in which it first did."""
        return tuple(self._tried.values())

    def report(self) -> tuple[Compared, ...]:
        """Return what was counted, in a fixed order; what never came up is left out."""
        return tuple(
            Compared(
                what=what,
                compared=self._compared.get(what, 0),
                differ=self._differ.get(what, 0),
                not_compared=tuple(
                    NotCompared(why=why, times=times, first=first)
                    for why, (times, first) in self._missed.get(what, {}).items()
                ),
            )
            for what in ORDER
            if what in self._compared or what in self._missed
        )


class CoreReplay(Generic[S, E]):
    """Takes the batches of one stream, oldest first. After a divergence it is of no more use.

    Args:
        stream: its name.
        core: the four functions that decide it.
        codec: reads its events.
        accepts: says of a difference whether it is meant.
    """

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
        self.admits = True
        """Whether stimuli are compared with what `admit` makes of their commands."""
        self.core_version: int | None = None
        """`CORE_VERSION` of the code that recorded what was taken so far, where the stream says."""
        self.parted = False
        """Whether the state is not the recorded one any more: a consequence differs, and that is meant."""

    def fold(self, batch: Sequence[StoredEvent]) -> Divergence | None:
        """Evolve the state through a batch; return where today's fold fails on it, if it does.

        Raises:
            LogFormatError: an event cannot be decoded, or the batch has no beginning.
        """
        recorded = self._decoded(batch)
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
        """Decide again what follows from a batch's stimulus; return the first difference, if there is one.

        Raises:
            LogFormatError: an event cannot be decoded, or the batch has no beginning.
        """
        (stimulus,) = self._decoded(batch[:1])
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
        recorded = self._decoded(batch)[1:]
        return self._in_consequences(batch, recorded, plan.events[1:]) or self._in_pending(batch, pending, wanted)

    def _decoded(self, batch: Sequence[StoredEvent]) -> list[E]:
        first = batch[0]
        if first.version != first.batch:
            place = event_ref(self._stream, first.version)
            raise LogFormatError(
                f"event {place} belongs to the batch of version {first.batch}, which does not begin there; "
                "`refold check` says what else is wrong with the log"
            )
        events = self._codec.decode_all(batch)
        for event in events:
            if isinstance(event, AgentConfigured):
                self.core_version = event.configuration.code.core
        return events

    def _in_history(self, batch: Sequence[StoredEvent], stimulus: E) -> Divergence | None:
        """Compare the history that a model was sent, of which the log has the length and a digest."""
        sent = getattr(stimulus, "request", None)
        state: object = self._state
        if not isinstance(sent, RequestReference) or not sent.digest or not isinstance(state, SessionState):
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
        """Compare the stimulus of a session with what `admit` makes today of its command."""
        state: object = self._state
        event: object = stimulus
        if not self.admits or not isinstance(state, SessionState):
            return None
        found = admitted_otherwise(state, cast("SessionEvent", event), batch[0].data, self._comparison)
        if found is None:
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
        if isinstance(now, TerminalEvent) and isinstance(recorded, TerminalEvent) and recorded.totals is None:
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
    for place in range(1, len(batch)):
        event, stored = events[place], batch[place]
        at = event.at
        msgspec.structs.force_setattr(event, "at", 0)  # Stands beside the data in a log.
        same = _encode(event) == stored.data
        msgspec.structs.force_setattr(event, "at", at)
        if not same or stored.at != at:
            return False
    return True


async def caught_up(again: CoreReplay[S, E], store: EventStore, last: StoredEvent) -> bool:
    """Take a stream up to an event without deciding anything; return whether it can be folded.

    Raises:
        LogFormatError: an event cannot be decoded.
        PersistenceError: the log cannot be read.
    """
    async for batch in Batches(store, last.stream):
        if again.fold(batch) is not None:
            return False
        if batch[-1].version >= last.version:
            break
    return True


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
        for message in source[self._counted : length]:
            self._digest.update(_encode(message))
            self._counted += 1
        return self._digest.hexdigest()


def _words_of_fault(error: BaseException) -> str:
    """Return an error's type and text, with the innermost line that is not in Python's own library.

    Of a user's core the text says on what it failed, and the line is its own.
    """
    if isinstance(error, CoreFailed):
        words, error = str(error), error.__cause__ or error
    else:
        words = f"{type(error).__name__}: {error}"
    lines = [
        f" ({os.path.basename(frame.f_code.co_filename)}:{line})"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in sys.stdlib_module_names
    ]
    return words + lines[-1] if lines else words
