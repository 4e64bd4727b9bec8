"""Random lives of a session: whatever arrives in whatever order, the invariants hold and the log says it all."""

from typing import Literal, TypeAlias, get_args

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from refold.events.core.content import (
    AnswerContent,
    Block,
    ErrorKind,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserContent,
    tool_uses,
)
from refold.events.core.contract import Recorded, WaitUntil, plan
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import AgentConfig
from refold.events.model.messages import StopReason, Usage
from refold.events.model.retry import RetryPolicy
from refold.events.session.commands import (
    AllowTurn,
    CancelRun,
    ClearHistory,
    DecideApproval,
    ImportHistory,
    RecordModelFailure,
    RecordModelInterruption,
    RecordTimer,
    RecordToolResult,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session.core import SESSION_CORE, fold
from refold.events.session.events import ModelResponded, RunStarted, Verdict
from refold.events.session.invariants import check_events, check_state
from refold.events.session.react import AskPerson, CallModel, RunTool, pending
from refold.events.session.state import SessionState, awaits_step
from tests.events.conftest import STREAM, TOOL_NAMES, Session, configuration, encoded, response, say

CONFIGURATIONS = (
    AgentConfig(model="test-model", max_turns=6),
    AgentConfig(model="test-model", max_turns=3, run_timeout_s=60.0, resumes_max=1),
    AgentConfig(
        model="test-model",
        max_turns=5,
        run_timeout_s=60.0,
        approval_expiry_s=30.0,
        retry=RetryPolicy(attempts_max=2),
        error_recovery="retry",
        recoveries_max=1,
        resumes_max=0,
    ),
)

STEPS_TO_END = 500
"""A run that everything is done for must end within so many steps."""

texts = st.sampled_from(["Hello", "More", "", "  ", "\0", "é😀"])
keys = st.none() | st.sampled_from(["k1", "k2", "k3"])
kinds: st.SearchStrategy[ErrorKind | None] = st.none() | st.sampled_from(get_args(ErrorKind))
Word: TypeAlias = Literal["allow", "ask", "deny", "invalid_arguments", "not_found", "broken"]
words: st.SearchStrategy[Word] = st.sampled_from(
    ["allow", "allow", "allow", "ask", "deny", "invalid_arguments", "not_found", "broken"]
)
verdicts = st.builds(
    Verdict, verdict=words, reason=st.sampled_from(["", "because"]), action=st.sampled_from(["", "all"])
)
text_blocks = st.builds(TextBlock, text=texts)
images = st.just(ImageBlock(media_type="image/png", data=b"\x89PNG"))
thoughts = st.sampled_from([ThinkingBlock(thinking="hm", signature="s"), ThinkingBlock(thinking="")])
tool_names = st.sampled_from([*TOOL_NAMES, "unheard_of"])
arguments = st.fixed_dictionaries({"n": st.integers(0, 9)})
uses = st.builds(ToolUseBlock, id=st.just(ToolCallId("theirs")), name=tool_names, input=arguments)
stop_reasons: st.SearchStrategy[StopReason] = st.sampled_from(get_args(StopReason))
user_contents: st.SearchStrategy[list[UserContent]] = st.lists(text_blocks | images, max_size=2)
answers: st.SearchStrategy[list[AnswerContent]] = st.lists(text_blocks | thoughts | uses | uses, max_size=5)
picks = st.integers(0, 30)
sometimes = st.sampled_from([False, False, False, True])

given_ids = st.sampled_from([ToolCallId("a"), ToolCallId("b"), ToolCallId("call_3_0")])
given_uses = st.builds(ToolUseBlock, id=given_ids, name=st.just("look"), input=arguments)
given_results = st.builds(
    ToolResultBlock, tool_use_id=given_ids, content=st.tuples(text_blocks), is_error=st.booleans()
)
given_blocks: st.SearchStrategy[list[Block]] = st.lists(text_blocks | given_uses | given_results | thoughts, max_size=4)
messages = st.builds(Message, st.sampled_from(["user", "assistant"]), given_blocks.map(tuple))


class SessionLife(RuleBasedStateMachine):
    """Everything that can be told to a session, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session()

    @initialize(config=st.sampled_from(CONFIGURATIONS))
    def open(self, config: AgentConfig) -> None:
        self.session = Session(configuration(config))

    def tell(self, command: SessionCommand) -> None:
        """Tell it twice, to the session and to a deep copy of it: both must do the same."""
        session = self.session
        before = encoded(session.state)
        twin = msgspec.json.decode(before, type=SessionState)
        assert twin == session.state
        refused, refusal = "", ""
        try:
            planned = plan(SESSION_CORE, twin, command, session.now + 1_000)
        except CommandRejected as error:
            refused = str(error)
        else:
            twin = twin if isinstance(planned, Recorded) else planned.state
        try:
            session.tell_or_recorded(command)
        except CommandRejected as error:
            refusal = str(error)
            assert encoded(session.state) == before
        assert refused == refusal
        assert encoded(twin) == encoded(session.state)
        assert pending(twin) == session.pending == pending(session.state)

    def a_run(self, pick: int) -> RunId:
        """Return a run that is, was, will be, or never existed."""
        known = [event.run for event in self.session.log if type(event) is RunStarted]
        return [*known, RunId("run_3"), RunId("run_999")][pick % (len(known) + 2)]

    def a_call(self, pick: int) -> ToolCallId:
        """Return a call, mostly one of the turn under way, or one that never existed."""
        if self.session.state.turn is not None and pick % 4:
            return self.session.calls[pick % len(self.session.calls)]
        called = [
            use.id for event in self.session.log if type(event) is ModelResponded for use in tool_uses(event.content)
        ]
        return [*called, ToolCallId("call_999_0")][pick % (len(called) + 1)]

    @rule(content=user_contents, key=keys, cancelled=st.sampled_from([False, False, False, True]))
    def send(self, content: list[UserContent], key: str | None, cancelled: bool) -> None:
        self.tell(SendInput(content=tuple(content), key=key, cancelled=cancelled))

    @rule(content=user_contents, key=keys, now=st.booleans(), stepwise=st.booleans(), cancelled=st.booleans())
    def send_for_now_or_step_by_step(
        self, content: list[UserContent], key: str | None, now: bool, stepwise: bool, cancelled: bool
    ) -> None:
        self.tell(SendInput(content=tuple(content), key=key, now=now, stepwise=stepwise, cancelled=cancelled))

    @rule(content=user_contents, key=keys, after=st.integers(-5, 5), now=st.sampled_from([False, False, True]))
    def send_for_later(self, content: list[UserContent], key: str | None, after: int, now: bool) -> None:
        self.tell(SendInput(content=tuple(content), key=key, due_at=self.session.now + after, now=now))

    def awaits_step(self) -> bool:
        run = self.session.state.run
        return run is not None and awaits_step(run)

    @precondition(awaits_step)
    @rule()
    def allow_turn(self) -> None:
        self.tell(AllowTurn())

    @rule(pick=picks)
    def allow_turn_of(self, pick: int) -> None:
        self.tell(AllowTurn(run=self.a_run(pick)))

    @rule(key=keys)
    def clear(self, key: str | None) -> None:
        self.tell(ClearHistory(key=key))

    @rule(asked=st.none() | st.integers(0, 20), content=answers)
    def interrupt(self, asked: int | None, content: list[AnswerContent]) -> None:
        run = self.session.state.run
        wanted = asked if asked is not None or run is None else run.asked
        usage = Usage(output_tokens=1)
        self.tell(RecordModelInterruption(turn=1, asked=wanted or 0, content=tuple(content), usage=usage))

    @rule(seconds=st.sampled_from([0, 1, 100]))
    def pass_time(self, seconds: int) -> None:
        self.session.now += seconds * 1_000_000

    def awaits_model(self) -> bool:
        run = self.session.state.run
        return run is not None and run.phase == "model"

    def has_open_calls(self) -> bool:
        return self.session.state.turn is not None

    @precondition(awaits_model)
    @rule(content=answers, found=st.lists(verdicts, min_size=5, max_size=5), stop=stop_reasons)
    def answer(self, content: list[AnswerContent], found: list[Verdict], stop: StopReason) -> None:
        run = self.session.state.run
        assert run is not None
        calls = sum(type(block) is ToolUseBlock for block in content)
        self.tell(response(run.id, run.turns, content, stop, tuple(found[:calls])))

    @precondition(awaits_model)
    @rule(content=st.lists(uses, min_size=1, max_size=6))
    def answer_with_calls(self, content: list[AnswerContent]) -> None:
        run = self.session.state.run
        assert run is not None
        self.tell(response(run.id, run.turns, content, "tool_use", (Verdict(),) * len(content)))

    @rule(pick=picks, turn=st.integers(1, 3), content=st.lists(uses | text_blocks, max_size=1))
    def answer_late_or_again(self, pick: int, turn: int, content: list[AnswerContent]) -> None:
        calls = sum(type(block) is ToolUseBlock for block in content)
        self.tell(response(self.a_run(pick), turn, content, "end_turn", (Verdict(),) * calls))

    @rule(
        late=st.sampled_from([False, False, True]),
        kind=st.sampled_from(["server", "agent_loop"]),
        retryable=st.booleans(),
        retry_after_s=st.none() | st.floats(0, 1000),
    )
    def fail_model(self, late: bool, kind: str, retryable: bool, retry_after_s: float | None) -> None:
        run = self.session.state.run
        wanted, turn = (run.id, run.turns) if run is not None and not late else (RunId("run_3"), 1)
        self.tell(
            RecordModelFailure(
                run=wanted, turn=turn, kind=kind, message="", retryable=retryable, retry_after_s=retry_after_s
            )
        )

    @precondition(has_open_calls)
    @rule(pick=picks, block=text_blocks | images, kind=kinds, ends_run=sometimes, broken=sometimes)
    def result_of_a_running_call(
        self, pick: int, block: TextBlock | ImageBlock, kind: ErrorKind | None, ends_run: bool, broken: bool
    ) -> None:
        running = [effect.call for effect in self.session.pending if isinstance(effect, RunTool)]
        call = running[pick % len(running)] if running else self.a_call(pick)
        self.tell(RecordToolResult(call=call, content=(block,), kind=kind, ends_run=ends_run, broken=broken))

    @rule(pick=picks, text=texts, kind=kinds)
    def result(self, pick: int, text: str, kind: ErrorKind | None) -> None:
        self.tell(RecordToolResult(call=self.a_call(pick), content=(TextBlock(text=text),), kind=kind))

    @precondition(has_open_calls)
    @rule(pick=picks, allowed=st.booleans(), always=sometimes, reason=texts, key=keys)
    def decide(self, pick: int, allowed: bool, always: bool, reason: str, key: str | None) -> None:
        asked = [effect.call for effect in self.session.pending if isinstance(effect, AskPerson)]
        call = asked[pick % len(asked)] if asked and pick % 3 else self.a_call(pick)
        self.tell(DecideApproval(call=call, allowed=allowed, reason=reason, key=key, always=always))

    @rule(pick=st.none() | picks, key=keys)
    def cancel(self, pick: int | None, key: str | None) -> None:
        self.tell(CancelRun(run=None if pick is None else self.a_run(pick), key=key))

    @rule(tools=st.sets(tool_names), asked=st.booleans())
    def crash(self, tools: set[str], asked: bool) -> None:
        self.session.restart()
        self.tell(ResumeRun(tools=tuple(sorted(tools)), asked=asked))

    @rule(pick=picks)
    def fire(self, pick: int) -> None:
        waits = [effect.key for effect in self.session.pending if isinstance(effect, WaitUntil)]
        self.tell(RecordTimer(timer=[*waits, "deadline:run_3"][pick % (len(waits) + 1)]))

    @rule(given=st.lists(messages, min_size=1, max_size=5), key=keys)
    def import_history(self, given: list[Message], key: str | None) -> None:
        self.tell(ImportHistory(messages=tuple(given), key=key))

    def teardown(self) -> None:
        session = self.session
        if not session.sound:
            return
        finish(session)
        session.send("One more")
        finish(session)
        session.restart()
        session.replay()
        assert check_events(session.log, STREAM) == []
        state = SessionState()
        for event in session.log:
            state = fold((event,), state)
            assert check_state(state, STREAM) == []


def finish(session: Session) -> None:
    """Do all the work that is asked for, deny what waits for a person, allow each step: then every run must end."""
    for _ in range(STEPS_TO_END):
        run = session.state.run
        if run is not None and run.parked:
            session.tell(ResumeRun(tools=TOOL_NAMES, asked=True))
            continue
        if run is not None and awaits_step(run):
            session.tell(AllowTurn())
            continue
        effects = [effect for effect in session.pending if not effect.key.startswith(("deadline:", "expiry:"))]
        match effects:
            case []:
                break
            case [*_, RunTool(call=call)]:
                session.result(call)
            case [*_, CallModel()]:
                session.answer(say("Done."))
            case [*_, AskPerson(call=call)]:
                session.decide(call, allowed=False)
            case [*_, wait]:
                session.fire(wait.key)
    assert session.state.run is None
    assert session.state.queue == []
    assert session.state.scheduled == []


TestSessionLife = SessionLife.TestCase
TestSessionLife.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.slow(seconds=20)
def test_the_invariants_hold_in_long_lives_too() -> None:
    """50 lives of up to 200 steps; `tests/events/test_life.py` takes 100,000 steps."""
    run_state_machine_as_test(SessionLife, settings=settings(max_examples=50, stateful_step_count=200))
