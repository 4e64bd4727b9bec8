"""One move tried on a copy of a session, and everything that must hold of what comes of it.

Read `enabled_commands` first. A move must be refused and change nothing, or give a batch that comes back from the
codec, that re-executes to itself, and after which the invariants and promises hold. `exploration` tries all moves
after all moves.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from refold.events.core.errors import CommandRejected, RefoldError
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import Recorded, WaitUntil, content_digest, plan, replan
from refold.events.core.records import StoredEvent
from refold.events.session import commands
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, fold
from refold.events.session.invariants import SessionChecker, check_state
from refold.events.session.react import AskPerson, CallModel, RunTool, pending
from refold.events.session.state import SessionState, awaits_step, calls_awaiting_answer
from tests.selfcheck.exhaustive.canonical_state import canonical_key
from tests.selfcheck.exhaustive.enabled_commands import DONE, TOOL_NAMES, Move, final_answer
from tests.selfcheck.exhaustive.log_reader import ObservedKey, ObservedSession, written
from tests.selfcheck.exhaustive.properties import Properties
from tests.selfcheck.exhaustive.rules import Finding, Rule
from tests.selfcheck.exhaustive.scope import AT, STREAM, Scope, configuration

CORE_ERRORS = (AssertionError, LookupError, AttributeError, TypeError, ValueError, RefoldError)
"""What a faulty core may raise."""

_encode = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(SessionState).decode
_decode_observed = msgspec.msgpack.Decoder(ObservedSession).decode


class Life(msgspec.Struct, frozen=True):
    """A session up to some moment; its parts are encoded, since each move needs copies of its own."""

    state: bytes
    observed: bytes
    checker: bytes
    log: tuple[ev.SessionEvent, ...]
    """Decoded."""

    def decoded_state(self) -> SessionState:
        """Return a copy of the state."""
        return _decode_state(self.state)

    def decoded_observed(self) -> ObservedSession:
        """Return a copy of the observed."""
        return _decode_observed(self.observed)


class Step(msgspec.Struct, frozen=True):
    """A batch that a move gave, and what is true after it."""

    batch: tuple[ev.SessionEvent, ...]
    """Decoded."""
    state: SessionState
    observed: ObservedSession
    checker: SessionChecker
    refuses: bool = False
    """A provider may refuse what a request holds."""
    guards: bool = False
    """Guardrails may trip."""

    def key(self) -> bytes:
        """Return the canonical key of the state after the batch."""
        return canonical_key(self.state, self.observed, refuses=self.refuses, guards=self.guards)

    def life(self, before: Life) -> Life:
        """Return the session after the batch."""
        return Life(
            state=_encode(self.state),
            observed=_encode(self.observed),
            checker=pickle.dumps(self.checker),
            log=before.log + self.batch,
        )


class Tried(NamedTuple):
    """What came of a move."""

    findings: list[Finding]
    step: Step | None = None
    """None = it was refused, or recorded before, or failed: there is no batch."""


NEWBORN = Life(_encode(SessionState()), _encode(ObservedSession()), pickle.dumps(SessionChecker(STREAM)), ())
"""A session before its first event."""


class Trials:
    """Tries moves in one scope, and counts how often each rule had something to judge."""

    def __init__(self, scope: Scope) -> None:
        self._refuses, self._guards = scope.refuses, scope.guards
        self._met: Counter[Rule] = Counter()
        self._promises = Properties(configuration(scope))
        self.transitions = 0
        """How many moves gave a batch."""

    @property
    def met(self) -> Counter[Rule]:
        """How often each rule had something to judge."""
        met = self._met.copy()
        met.update(self._promises.met)
        return met

    def check(self, life: Life) -> list[Finding]:
        """Return what is wrong with `life` itself: another process that folds its log must come to the same state."""
        self._met["INV6"] += 1
        if _encode(fold(life.log)) != life.state:
            return [Finding("INV6", "folding the decoded log gives another state than the live one")]
        return []

    def attempt(self, life: Life, move: Move) -> Tried:
        """Return what comes of `move` after `life`, which does not change."""
        self._met["TOTAL"] += 1
        self._met["INV4"] += move.foreign
        state, observed = life.decoded_state(), life.decoded_observed()
        shown = len(state.messages)
        try:
            planned = plan(SESSION_CORE, state, move.command, AT)
        except CommandRejected as refusal:
            return Tried(list(self._judge_inert(life, move, state, observed, refusal)))
        except CORE_ERRORS as error:
            return Tried([Finding("TOTAL", f"the core raises {type(error).__name__}: {error}")])
        if isinstance(planned, Recorded):
            return Tried(list(self._judge_inert(life, move, state, observed, planned)))
        self.transitions += 1
        findings = self._judge_key(move, observed, None)
        if move.known:
            findings.append(Finding("RETRY", f"what is known of an attempt is recorded again: {planned.events}"))
        try:
            batch = through_the_log(planned.events, observed.version + 1)
            findings.extend(self._judge_replay(life, batch, planned.state))
        except CORE_ERRORS as error:
            return Tried([Finding("INV6", f"the batch cannot be read back: {type(error).__name__}: {error}")])
        checker = pickle.loads(life.checker)
        findings.extend(self._judge_batch(checker, observed, batch, planned.state))
        findings.extend(self._promises.judge_history(shown, planned.state.messages))
        return Tried(findings, Step(batch, planned.state, observed, checker, self._refuses, self._guards))

    def _judge_inert(
        self, life: Life, move: Move, state: SessionState, observed: ObservedSession, answer: CommandRejected | Recorded
    ) -> Iterator[Finding]:
        """Judge a command that was refused, or had been recorded before."""
        if _encode(state) != life.state:
            yield Finding("TOTAL", f"the state changed, though the core answers {answer!r}")
        if move.must_happen:
            yield Finding("TOTAL", f"what must happen does not: the core answers {answer!r}")
        yield from self._judge_key(move, observed, answer)

    def _judge_key(
        self, move: Move, observed: ObservedSession, answer: CommandRejected | Recorded | None
    ) -> list[Finding]:
        """Judge a command whose key was recorded before: the same gets the first outcome, another is refused."""
        match move.command:
            case commands.SendInput(key=str() as key, content=content):
                repeated = ObservedKey("send", written(content), 0)
            case commands.CancelRun(key=str() as key, run=run):
                repeated = ObservedKey("cancel", written(run), 0)
            case commands.DecideApproval(key=str() as key, call=call, allowed=allowed, always=always, input=given):
                repeated = ObservedKey("decide", written((call, allowed, always, given)), 0)
            case commands.ClearHistory(key=str() as key):
                repeated = ObservedKey("clear", written(None), 0)
            case commands.ImportHistory(key=str() as key, messages=messages):
                repeated = ObservedKey("import", written(content_digest(messages)), 0)
            case _:
                return []
        if (first := observed.keys.get(key)) is None:
            return []
        self._met["KEYS"] += 1
        same = (first.command, first.content) == (repeated.command, repeated.content)
        kept = answer == Recorded(first.version) if same else isinstance(answer, CommandRejected)
        return [] if kept else [Finding("KEYS", f"key {key!r} of version {first.version} comes again: {answer!r}")]

    def _judge_replay(self, life: Life, batch: tuple[ev.SessionEvent, ...], after: SessionState) -> Iterator[Finding]:
        self._met["INV6"] += 1
        encoded = _encode(after)
        stimulus = msgspec.structs.replace(batch[0], at=0)
        again = replan(SESSION_CORE, life.decoded_state(), stimulus, AT)
        if again.events != batch:
            yield Finding("INV6", f"re-executing the stimulus gives {again.events}")
        if _encode(again.state) != encoded or pending(again.state) != pending(after):
            yield Finding("INV6", "re-executing the stimulus gives another state, or other pending effects")
        if _encode(fold(batch, life.decoded_state())) != encoded:
            yield Finding("INV6", "folding the decoded batch gives another state than the live one")

    def _judge_batch(
        self,
        checker: SessionChecker,
        observed: ObservedSession,
        batch: tuple[ev.SessionEvent, ...],
        after: SessionState,
    ) -> Iterator[Finding]:
        """Judge by the invariants and promises; `checker` and `observed` are brought to the end of the batch."""
        had_calls, had_ended = bool(observed.calls), observed.ended_run is not None
        for event in batch:
            for violation in checker.observe(event):
                yield Finding(violation.invariant, violation.message)
        for violation in check_state(after, STREAM):
            yield Finding(violation.invariant, violation.message)
        yield from self._promises.read(observed, batch)
        yield from self._promises.judge_work(observed, pending(after))
        self._met["INV0"] += bool(after.messages)
        self._met["INV1"] += had_calls or bool(observed.calls)
        self._met["INV2"] += any(isinstance(event, ev.RunCompleted | ev.RunFailed | ev.RunCancelled) for event in batch)
        self._met["INV3"] += had_ended and any(type(event) is ev.RunStarted for event in batch)


def ordinary_command(state: SessionState) -> commands.SessionCommand | None:
    """Return what ordinarily happens next, or None where nothing is to be expected.

    Work that is pending ends well; where there is none, a person resumes what is parked, denies what waits and allows
    the next turn. Times come last, since no run need get as far as its limit.
    """
    effects = pending(state)
    for effect in effects:
        if isinstance(effect, RunTool):
            return commands.RecordToolResult(call=effect.call, content=DONE)
        if isinstance(effect, CallModel) and state.run is not None:
            return final_answer(state.run.id, effect.turn)
    if state.run is not None and state.run.parked:
        return commands.ResumeRun(tools=TOOL_NAMES, asked=True)
    for effect in effects:
        if isinstance(effect, AskPerson):
            return commands.DecideApproval(call=effect.call, allowed=False)
        if effect.key.startswith("answer:"):
            call = calls_awaiting_answer(state)[0]
            return commands.AnswerQuestion(call=call.id, number=len(call.answers) + 1, answer="x")
        if isinstance(effect, WaitUntil) and effect.key.partition(":")[0] in ("retry", "input"):
            return ev.TimerFired(timer=effect.key)
    return commands.AllowTurn() if state.run is not None and awaits_step(state.run) else None


def through_the_log(
    events: Sequence[ev.SessionEvent], first: int, stream: StreamName = STREAM
) -> tuple[ev.SessionEvent, ...]:
    """Return `events`, of which `first` is the version of the first one, as they come back from a log."""
    return tuple(
        SESSION_CODEC.decode(
            StoredEvent(
                position=version,
                stream=stream,
                version=version,
                batch=first,
                at=event.at,
                data=SESSION_CODEC.encode(event),
            )
        )
        for version, event in enumerate(events, first)
    )
