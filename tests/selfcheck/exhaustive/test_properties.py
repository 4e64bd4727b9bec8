"""What a witness remembers of a log, and that promises are judged from the log alone."""

import pytest

from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT, ErrorKind, Message, TextBlock, ToolUseBlock
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import CodeIdentity
from refold.events.model.messages import RequestReference
from refold.events.session.events import (
    AgentConfigured,
    CancelRequested,
    HistoryCleared,
    InputQueued,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    RetryScheduled,
    RunCancelled,
    RunCompleted,
    RunParked,
    RunResumed,
    RunStarted,
    SessionEvent,
    SessionOpened,
    TimerFired,
    TimerSet,
    ToolApprovalDecided,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    TurnAllowed,
    Verdict,
)
from refold.events.session.react import CallModel
from tests.selfcheck.exhaustive.log_reader import Witness
from tests.selfcheck.exhaustive.properties import Properties
from tests.selfcheck.exhaustive.rules import Rule
from tests.selfcheck.exhaustive.scope import AGENT, SESSION, Scope, configuration

CONFIGURATION = configuration(Scope(name="two turns"))
CODE = CodeIdentity(refold="0.1.0", core=1)
RUN = RunId("run_3")
FIRST, SECOND = ToolCallId("call_6_0"), ToolCallId("call_6_1")
DONE = (TextBlock(text="done"),)

OPENED: list[tuple[SessionEvent, ...]] = [
    (SessionOpened(session=SESSION, agent=AGENT),),
    (AgentConfigured(configuration=CONFIGURATION),),
]
BEGUN = [
    *OPENED,
    (
        InputQueued(content=DONE, key="k"),
        RunStarted(run=RUN, input=3, code=CODE, fingerprint=""),
        ModelRequested(run=RUN, turn=1),
    ),
]
COMPLETED = RunCompleted(run=RUN)
CANCELLED = RunCancelled(run=RUN)
CANCEL = CancelRequested(run=RUN)
RESUMED = RunResumed(run=RUN, code=CODE, fingerprint="")
PARKED = RunParked(run=RUN, reason="")


def answered(*tools: str, verdict: Verdict = Verdict()) -> ModelResponded:  # noqa: B008 - frozen
    """Return the answer to the first model call, whose calls are FIRST and SECOND."""
    calls = (FIRST, SECOND)
    return ModelResponded(
        run=RUN,
        turn=1,
        content=tuple(ToolUseBlock(id=call, name=tool, input={}) for call, tool in zip(calls, tools, strict=False)),
        stop_reason="tool_use",
        request=RequestReference(configured=2, messages=1),
        verdicts=(verdict,) * len(tools),
    )


def started(call: ToolCallId) -> ToolCallStarted:
    return ToolCallStarted(run=RUN, call=call)


def failed(call: ToolCallId, kind: ErrorKind, text: str, *, was_started: bool) -> ToolCallFailed:
    return ToolCallFailed(call=call, kind=kind, content=(TextBlock(text=text),), started=was_started)


def asked(call: ToolCallId, tool: str = "pay") -> ToolApprovalRequested:
    return ToolApprovalRequested(run=RUN, call=call, tool=tool, input={})


def ended(call: ToolCallId) -> ToolCallCompleted:
    return ToolCallCompleted(call=call, content=DONE, ends_run=True)


def refused(call: ToolCallId) -> ToolCallFailed:
    return ToolCallFailed(call=call, kind="denied", content=DONE)


FINAL = ModelResponded(
    run=RUN, turn=1, content=DONE, stop_reason="end_turn", request=RequestReference(configured=2, messages=1)
)
RETRYABLE = ModelFailed(run=RUN, turn=1, kind="server", message="", retryable=True)


def judged(*batches: tuple[SessionEvent, ...]) -> list[Rule]:
    promises, witness = Properties(CONFIGURATION), Witness()
    return [finding.rule for batch in batches for finding in promises.read(witness, batch)]


def test_an_ordinary_run_breaks_nothing() -> None:
    assert (
        judged(
            *BEGUN,
            (answered("look", "look"), started(FIRST), started(SECOND)),
            (ToolCallCompleted(call=SECOND, content=DONE),),
            (ToolCallCompleted(call=FIRST, content=DONE), ModelRequested(run=RUN, turn=2)),
            (CANCEL, CANCELLED),
        )
        == []
    )


@pytest.mark.parametrize(
    ("rule", "batches"),
    [
        ("TIERS", [(answered("look", "write"), started(FIRST), started(SECOND))]),
        ("TIERS", [(answered("look", "look"), started(SECOND))]),
        ("APPROVAL", [(answered("pay"), started(FIRST))]),
        ("APPROVAL", [(answered("look", verdict=Verdict(verdict="deny")),)]),
        ("ONCE", [(answered("write"), started(FIRST)), (RESUMED,)]),
        (
            "KINDS",
            [
                (answered("put"), started(FIRST)),
                (CANCEL, failed(FIRST, "crashed", CRASHED_TEXT, was_started=True), CANCELLED),
            ],
        ),
        (
            "KINDS",
            [
                (answered("put"), started(FIRST)),
                (CANCEL, failed(FIRST, "cancelled", CANCELLED_TEXT, was_started=False), CANCELLED),
            ],
        ),
        ("OUTCOME", [(COMPLETED,)]),
        ("OUTCOME", [(CANCEL,)]),
        ("TURNS", [(answered(), ModelRequested(run=RUN, turn=3))]),
        ("PARKED", [(RESUMED,), (RESUMED,)]),
        ("PARKED", [(RESUMED,), (RESUMED, PARKED), (RESUMED, PARKED)]),
        ("KEYS", [(InputQueued(content=DONE, key="k"),)]),
        ("SCHEDULE", [(TimerSet(timer="input:6", due_at=9, content=DONE),), (TimerFired(timer="input:6"),)]),
        (
            "SCHEDULE",
            [
                (TimerSet(timer="input:6", due_at=9, content=DONE),),
                (TimerFired(timer="input:6"), InputQueued(content=DONE, key="other", scheduled=6)),
            ],
        ),
        ("SCHEDULE", [(InputQueued(content=DONE, scheduled=2),)]),
        ("STEPS", [(answered(), TurnAllowed(run=RUN, turn=3))]),
        ("RETRY", [(RETRYABLE, RetryScheduled(run=RUN, turn=1, attempt=1, due_at=9))]),
        ("RECOVERY", [(answered("look", verdict=Verdict(verdict="broken")), refused(FIRST))]),
        ("FINISH", [(answered("look", "write"), started(FIRST)), (ended(FIRST),)]),
        ("FINISH", [(answered("look"), started(FIRST)), (ended(FIRST),)]),
        (
            "APPROVAL",
            [
                (answered("pay", "pay"), asked(FIRST), asked(SECOND)),
                (ToolApprovalDecided(call=FIRST, allowed=True, always=True), started(FIRST)),
            ],
        ),
        (
            "APPROVAL",
            [
                (answered("pay", "sign"), asked(FIRST), asked(SECOND, "sign")),
                (
                    ToolApprovalDecided(call=FIRST, allowed=True, always=True),
                    ToolApprovalDecided(call=SECOND, allowed=True),
                ),
            ],
        ),
        ("OUTCOME", [(InputQueued(content=DONE, joins=RUN),), (FINAL, COMPLETED)]),
    ],
)
def test_a_log_that_breaks_a_promise_is_found(rule: Rule, batches: list[tuple[SessionEvent, ...]]) -> None:
    assert judged(*BEGUN, *batches) == [rule]


def test_pending_work_is_compared_with_what_the_log_has_begun() -> None:
    promises, witness = Properties(CONFIGURATION), Witness()
    for batch in BEGUN:
        promises.read(witness, batch)
    effect = CallModel(key="model:5", causation=5, correlation=3, turn=1)
    assert [finding.rule for finding in promises.judge_work(witness, [effect])] == ["INV7"]  # The deadline is missing.


def test_a_history_is_compared_with_what_the_batch_adds_to_it() -> None:
    promises, witness = Properties(CONFIGURATION), Witness()
    for batch in BEGUN:
        promises.read(witness, batch)
    shown = Message("user", DONE)
    assert promises.judge_history(0, [shown]) == []
    for messages in ([], [shown, shown], [Message("assistant", DONE)]):
        assert [finding.rule for finding in promises.judge_history(0, messages)] == ["HISTORY"]
    promises.read(witness, (HistoryCleared(),))
    assert promises.judge_history(1, []) == []
    assert [finding.rule for finding in promises.judge_history(1, [shown])] == ["HISTORY"]


def test_a_witness_forgets_what_is_over_but_the_last_of_it() -> None:
    promises, witness = Properties(CONFIGURATION), Witness()
    for batch in (*BEGUN, (answered("look"), started(FIRST)), (ToolCallCompleted(call=FIRST, content=DONE),)):
        promises.read(witness, batch)
    assert (witness.open_run, witness.calls, witness.closed_call) == (RUN, {}, FIRST)
    promises.read(witness, (CANCEL, CANCELLED))
    assert (witness.open_run, witness.runs, witness.ended_run) == (None, {}, RUN)
