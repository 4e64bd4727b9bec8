"""Everything that can be told to a session next: the moves of `tests.selfcheck.exhaustive`.

They are named from what the log says (`tests.selfcheck.exhaustive.log_reader`), never from the state under test: every
command that makes sense, and of each kind some that do not: late, repeated, about another session.
"""

from collections.abc import Iterator

import msgspec

from refold.events.core.content import ImageBlock, Message, TextBlock, ToolUseBlock
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.configuration import AgentConfiguration, Handoff
from refold.events.model.messages import RequestReference, Usage
from refold.events.model.refused import GuardrailTrip, Part, RefusedParts
from refold.events.session import commands
from refold.events.session import events as ev
from tests.selfcheck.exhaustive.log_reader import ObservedCall, ObservedRun, ObservedSession
from tests.selfcheck.exhaustive.scope import (
    AGENT,
    AT,
    EDITED,
    FINAL_ANSWER,
    SESSION,
    TOOLS,
    Answer,
    Scope,
    answers,
    configuration,
)

FOREIGN_VERSION = 9999
FOREIGN_RUN = RunId("run_9999")
FOREIGN_CALL = ToolCallId("call_9999_0")
"""Of another session: no version of ours comes near these."""

TOOL_NAMES = tuple(sorted(spec.name for spec in TOOLS))

DONE = (TextBlock(text="done"),)
"""What an ordinary tool returns."""

_IMAGE = (ImageBlock(media_type="image/png", data=b"PNG"),)
"""A result without a word."""

SCHEDULED_AT = (AT + 2_000_000, AT + 1_000_000)
"""For when inputs are accepted that are for later; the later time first."""

_HELLO = (TextBlock(text="Hello"),)
_HURRY = (TextBlock(text="Hurry"),)
_REQUEST = RequestReference(configured=2, messages=1)
_ON_OUTPUT = GuardrailTrip(guardrail="true", on="output")
_REFUSED = RefusedParts(parts=(Part(0, 0),), reason="no")
_SUMMARY = Message("user", (TextBlock(text="In short."),))
_HISTORY = (
    Message("user", (TextBlock(text="Before"),)),
    Message("assistant", (ToolUseBlock(id=ToolCallId("theirs"), name="look", input={}),)),
)


class Move(msgspec.Struct, frozen=True):
    """A command, and what is certain about it."""

    command: commands.SessionCommand
    must_happen: bool = False
    """It may be neither refused nor taken for something that was recorded before."""
    foreign: bool = False
    """It names what is not of this session."""
    known: bool = False
    """It tells of an attempt what the log says already, so that nothing is to be recorded."""


class EnabledCommands:
    """Names the moves of one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._configuration = configuration(scope)
        self._answers = answers(scope)
        other = msgspec.structs.replace(self._configuration, agent=AgentId("other"))
        self._handoff = Handoff(agent=other.agent, configuration=other)
        self._opening = (
            Move(commands.OpenSession(session=SESSION, agent=AGENT)),
            Move(commands.Configure(configuration=self._configuration)),
            Move(commands.OpenSession(session=SessionId("bob"), agent=AGENT), foreign=True),
        )

    @property
    def prelude(self) -> tuple[commands.SessionCommand, ...]:
        """The commands that every life begins with."""
        return self._opening[0].command, self._opening[1].command

    @property
    def configuration(self) -> AgentConfiguration:
        """What is in force in every life."""
        return self._configuration

    def after(self, observed: ObservedSession) -> Iterator[Move]:
        """Yield every move after the log that `observed` has read, in a fixed order."""
        if not observed.runs:
            yield from self._opening  # What they read never changes again, so they need not be tried everywhere.
        yield from self._inputs(observed)
        yield from self._history(observed)
        yield from self._turns(observed)
        yield from self._model(observed)
        yield from self._tools(observed)
        yield from self._decisions(observed)
        yield from self._cancels(observed)
        yield from self._process(observed)

    def _inputs(self, observed: ObservedSession) -> Iterator[Move]:
        room = observed.inputs < self._scope.inputs
        yield Move(commands.SendInput(content=(TextBlock(text=" "),)))
        if room:
            yield Move(commands.SendInput(content=_IMAGE if self._scope.refuses else _HELLO), must_happen=True)
            yield Move(commands.SendInput(content=_HELLO, cancelled=True), must_happen=True)
        if "send" in self._scope.keyed and (room or "send" in observed.keys):
            yield Move(commands.SendInput(content=_HELLO, key="send"))
            yield Move(commands.SendInput(content=_HURRY, key="send"))
            yield Move(commands.SendInput(content=_HELLO, key="send", cancelled=True))
        yield from self._special_inputs(room, room or "send" in observed.keys)

    def _special_inputs(self, room: bool, room_with_key: bool) -> Iterator[Move]:
        """Yield inputs that join the run under way, go step by step, or are for later."""
        scope = self._scope
        if scope.now and room:
            yield Move(commands.SendInput(content=_HURRY, now=True), must_happen=True)
        if scope.stepwise and room:
            yield Move(commands.SendInput(content=_HELLO, stepwise=True), must_happen=True)
        if scope.scheduled and room:
            for later in SCHEDULED_AT:
                yield Move(commands.SendInput(content=_HELLO, due_at=later), must_happen=True)
        if "send" in scope.keyed and room_with_key:
            if scope.now:
                yield Move(commands.SendInput(content=_HELLO, key="send", now=True))
            if scope.scheduled:
                yield Move(commands.SendInput(content=_HELLO, key="send", due_at=SCHEDULED_AT[0]))

    def _history(self, observed: ObservedSession) -> Iterator[Move]:
        if self._scope.describes:
            yield Move(commands.DescribeSession(user="alice"), not observed.described)
            if observed.described:
                yield Move(commands.DescribeSession(user="bob"), foreign=True)
        if self._scope.clears:
            yield Move(commands.ClearHistory(), observed.has_history and observed.open_run is None)
            if "clear" in self._scope.keyed:
                yield Move(commands.ClearHistory(key="clear"))
            yield Move(commands.RewindHistory(to=FOREIGN_VERSION), foreign=True)
        if self._scope.refuses:
            yield Move(
                commands.SetContentAside(named=(FOREIGN_VERSION, None, None), parts=(), at=FOREIGN_VERSION),
                foreign=True,
            )
            yield Move(commands.TakeContentBack(aside=FOREIGN_VERSION), foreign=True)
            for aside in observed.asides:
                last = aside == observed.asides[-1]
                yield Move(commands.TakeContentBack(aside=aside.version), last and observed.open_run is None)
        if self._scope.imports and (
            not observed.imported or observed.open_run is not None or "import" in observed.keys
        ):
            yield Move(commands.ImportHistory(messages=_HISTORY, key="import"))

    def _turns(self, observed: ObservedSession) -> Iterator[Move]:
        if self._scope.stepwise:
            yield Move(commands.AllowTurn(), observed.awaits_step)
            yield Move(commands.AllowTurn(run=FOREIGN_RUN), foreign=True)
        for seen in observed.runs.values():
            if seen.failed:
                yield Move(ev.TimerFired(timer=f"retry:{seen.failed}"), seen.retry_at is not None and not seen.parked)

    def _model(self, observed: ObservedSession) -> Iterator[Move]:
        late = self._answers[-1]
        for run, seen in observed.runs.items():
            if seen.asked and self._scope.interrupts:
                yield Move(ev.ModelInterrupted(turn=seen.turn, asked=seen.asked, content=late.content), True)
                for asked in (seen.asked, seen.asked - 1):
                    in_flight = ev.RequestBuilt(run=run, turn=seen.turn, asked=asked, request=_REQUEST)
                    yield Move(in_flight, must_happen=asked == seen.asked)
            if seen.asked and self._scope.attempts_max > 1:
                yield Move(_failure(run, seen.turn, retryable=True), must_happen=True)
            turn, awaited = max(seen.turn, 1), bool(seen.asked)
            for answer in self._answers if awaited else (late,):
                yield Move(_response(run, turn, answer), awaited)
            yield Move(_failure(run, turn), awaited)
            if self._scope.guards:
                yield Move(_trip(run, seen.turn, seen.asked), awaited)
                yield Move(_trip(run, seen.turn, seen.asked + 1))
                if awaited:
                    tripped = msgspec.structs.replace(final_answer(run, turn), trip=_ON_OUTPUT)
                    yield Move(tripped, must_happen=True)
            if self._scope.refuses:
                for answer in self._answers[:1] if awaited else ():
                    without = msgspec.structs.replace(_response(run, turn, answer), refused=_REFUSED)
                    yield Move(without, must_happen=True)
            if self._scope.summaries and seen.summaries < self._scope.summaries:
                yield from self._summaries(observed, run, seen)
            if turn > 1:
                yield Move(_response(run, turn - 1, late))
        if observed.ended_run is not None:
            yield Move(_response(observed.ended_run, 1, late))
            yield Move(_failure(observed.ended_run, 1))
        yield Move(_response(FOREIGN_RUN, 1, late), foreign=True)

    def _summaries(self, observed: ObservedSession, run: RunId, seen: ObservedRun) -> Iterator[Move]:
        """Yield summaries of the oldest message, which may be the input of the run, and some that may not be."""
        content = msgspec.json.decode(seen.content, type=tuple[TextBlock | ImageBlock, ...])
        summary = (_SUMMARY, Message("user", content))
        good = commands.RecordContext(
            run=run,
            turn=max(seen.turn, 1),
            asked=seen.asked,
            after=observed.summarised,
            replaced=1,
            summary=summary,
            usage=Usage(output_tokens=1),
        )
        yield Move(good, bool(seen.asked))
        if seen.asked:
            yield Move(msgspec.structs.replace(good, asked=seen.asked - 1))
            yield Move(msgspec.structs.replace(good, replaced=99))
            yield Move(msgspec.structs.replace(good, summary=()))
        if observed.summarised:
            yield Move(msgspec.structs.replace(good, after=0))

    def _tools(self, observed: ObservedSession) -> Iterator[Move]:
        for call, seen in observed.calls.items():
            yield Move(commands.RecordToolResult(call=call, content=DONE), seen.running)
            yield Move(commands.RecordToolResult(call=call, content=(), kind="permanent"), seen.running)
            if self._scope.questions:
                yield from self._questions(observed, call, seen)
            if self._scope.waits:
                for waits in (True, False):
                    yield Move(ev.ToolCallWaiting(call=call, waits=waits), seen.running and seen.waiting != waits)
            if self._scope.finishes:
                yield Move(commands.RecordToolResult(call=call, content=DONE, ends_run=True), seen.running)
            if self._scope.hands_off:
                yield Move(commands.RecordToolResult(call=call, content=DONE, handoff=self._handoff), seen.running)
            if self._scope.breaks is not None:
                yield Move(
                    commands.RecordToolResult(call=call, content=_IMAGE, kind="permanent", broken=True), seen.running
                )
            if self._scope.tool_attempts_max > 1:
                yield from self._attempts(observed, call, seen)
        if observed.closed_call is not None:
            yield Move(commands.RecordToolResult(call=observed.closed_call, content=DONE))
            yield Move(commands.RecordToolResult(call=observed.closed_call, content=(), kind="permanent"))
        yield Move(commands.RecordToolResult(call=FOREIGN_CALL, content=DONE), foreign=True)
        if self._scope.questions:
            question = commands.RecordQuestion(call=FOREIGN_CALL, number=1, question="?", answer_schema={})
            yield Move(question, foreign=True)
            yield Move(commands.AnswerQuestion(call=FOREIGN_CALL, answer="x"), foreign=True)
        if self._scope.waits:
            yield Move(ev.ToolCallWaiting(call=FOREIGN_CALL, waits=True), foreign=True)

    def _questions(self, observed: ObservedSession, call: ToolCallId, seen: ObservedCall) -> Iterator[Move]:
        """Yield questions, answers to them, in time or not, and what was told before."""
        question = commands.RecordQuestion(
            call=call, number=seen.questions + 1, question="?", answer_schema={}, expires_at=AT
        )
        if seen.questions < self._scope.questions:
            yield Move(question, seen.running)
            yield Move(msgspec.structs.replace(question, gives_result=True), seen.running)
        if seen.questions:
            yield Move(msgspec.structs.replace(question, number=seen.questions), known=True)
            yield Move(commands.AnswerQuestion(call=call, number=seen.questions + 1, answer="x"))
        answer = commands.AnswerQuestion(call=call, number=seen.questions or None, answer="x")
        yield Move(answer, bool(seen.asked))
        yield Move(msgspec.structs.replace(answer, answer=None, error="no"), bool(seen.asked))
        if seen.asked:
            goes_on = all(not run.parked for run in observed.runs.values())
            yield Move(ev.TimerFired(timer=f"expiry:{seen.asked}"), goes_on)

    def _attempts(self, observed: ObservedSession, call: ToolCallId, seen: ObservedCall) -> Iterator[Move]:
        """Yield failures that may pass, what was told before, and the times of further attempts."""
        failure = commands.RecordToolResult(
            call=call, content=(), kind="transient", attempt=seen.attempts + 1, again=True
        )
        yield Move(failure, seen.running)
        if self._scope.calls == 1:  # What failed is nothing to other calls.
            yield Move(msgspec.structs.replace(failure, kind="timeout"), seen.running)
            yield Move(msgspec.structs.replace(failure, kind="shed", again=False), seen.running)
        if seen.attempts:
            yield Move(msgspec.structs.replace(failure, attempt=seen.attempts), known=True)
            yield Move(commands.RecordToolResult(call=call, content=DONE, attempt=seen.attempts), known=True)
        if seen.retry:
            goes_on = all(not run.parked for run in observed.runs.values())
            yield Move(ev.TimerFired(timer=f"retry:{seen.retry}"), seen.retry_at is not None and goes_on)

    def _decisions(self, observed: ObservedSession) -> Iterator[Move]:
        closed = (observed.closed_call,) if observed.closed_call is not None else ()
        for call in (*observed.calls, *closed):
            seen = observed.calls.get(call)
            waits = seen is not None and seen.approval == "waits" and not seen.answered
            for allowed in (True, False):
                yield Move(commands.DecideApproval(call=call, allowed=allowed), waits)
                if "decide" in self._scope.keyed:
                    yield Move(commands.DecideApproval(call=call, allowed=allowed, key="decide"))
            if self._scope.always:
                yield Move(commands.DecideApproval(call=call, allowed=True, always=True), waits)
            if self._scope.edits:
                edited = commands.DecideApproval(call=call, allowed=True, input=EDITED)
                yield Move(edited, waits)
                yield Move(msgspec.structs.replace(edited, allowed=False))
                if self._scope.always:
                    yield Move(msgspec.structs.replace(edited, always=True))
                if "decide" in self._scope.keyed:
                    yield Move(msgspec.structs.replace(edited, key="decide"))
            if seen is not None and seen.expires_at is not None:
                goes_on = all(not run.parked for run in observed.runs.values())
                yield Move(ev.TimerFired(timer=f"expiry:{seen.requested}"), waits and goes_on)
        yield Move(commands.DecideApproval(call=FOREIGN_CALL, allowed=True), foreign=True)

    def _cancels(self, observed: ObservedSession) -> Iterator[Move]:
        yield Move(commands.CancelRun(), observed.open_run is not None)
        for run in _own_runs(observed):
            seen = observed.runs.get(run)
            yield Move(commands.CancelRun(run=run), seen is not None and not seen.cancelled)
            if "cancel" in self._scope.keyed:
                yield Move(commands.CancelRun(run=run, key="cancel"))
        for run in observed.scheduled:
            yield Move(commands.CancelRun(run=run), must_happen=True)
            if "cancel" in self._scope.keyed:
                yield Move(commands.CancelRun(run=run, key="cancel"))
        yield Move(commands.CancelRun(run=FOREIGN_RUN), foreign=True)

    def _process(self, observed: ObservedSession) -> Iterator[Move]:
        """What a fresh process does first, and timers, which may fire when they are not waited for any more."""
        run = observed.open_run
        goes_on = run is not None and not observed.runs[run].parked
        yield Move(commands.ResumeRun(tools=TOOL_NAMES), goes_on)
        if run is not None:
            yield Move(commands.ResumeRun(), goes_on)
            if self._scope.on_code_change != "continue":
                yield Move(commands.ResumeRun(tools=TOOL_NAMES, code_changed=True), goes_on)
                yield Move(commands.ResumeRun(tools=TOOL_NAMES, code_changed=True, asked=True), must_happen=True)
            yield Move(commands.ResumeRun(tools=TOOL_NAMES, asked=True), must_happen=True)
            yield Move(commands.ResumeRun(asked=True), must_happen=True)
        for other in _own_runs(observed):
            waited_for = other == run and goes_on and not observed.awaits_person
            yield Move(ev.TimerFired(timer=deadline_name(other)), waited_for)
        for scheduled in observed.scheduled.values():
            yield Move(ev.TimerFired(timer=f"input:{scheduled.version}"), scheduled == observed.first_scheduled)
        if self._scope.scheduled and observed.ended_run is not None:
            yield Move(ev.TimerFired(timer=f"input:{observed.ended_run.removeprefix('run_')}"))
        yield Move(ev.TimerFired(timer=deadline_name(FOREIGN_RUN)), foreign=True)


def deadline_name(run: RunId) -> str:
    """Return the effect key of the wait for the end of a run's time."""
    return f"deadline:{run}"


def _own_runs(observed: ObservedSession) -> tuple[RunId, ...]:
    """Return the runs that are queued or under way, and the last one that ended."""
    return (*observed.runs, observed.ended_run) if observed.ended_run is not None else tuple(observed.runs)


def final_answer(run: RunId, turn: int) -> commands.RecordModelResponse:
    """Return what an ordinary model says."""
    return _response(run, turn, FINAL_ANSWER)


def _trip(run: RunId, turn: int, asked: int) -> commands.RecordGuardrailTrip:
    trip = GuardrailTrip(guardrail="polite", on="input")
    return commands.RecordGuardrailTrip(run=run, turn=turn, asked=asked, trip=trip)


def _failure(run: RunId, turn: int, *, retryable: bool = False, kind: str = "server") -> commands.RecordModelFailure:
    return commands.RecordModelFailure(run=run, turn=turn, kind=kind, message="overloaded", retryable=retryable)


def _response(run: RunId, turn: int, answer: Answer) -> commands.RecordModelResponse:
    return commands.RecordModelResponse(
        run=run,
        turn=turn,
        content=answer.content,
        stop_reason=answer.stop_reason,
        usage=Usage(output_tokens=1),
        request=_REQUEST,
        verdicts=answer.verdicts,
        rejected=answer.rejected,
    )
