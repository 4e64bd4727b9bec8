"""What a observed remembers of a log, and that promises are judged from the log alone."""

import msgspec
import pytest

from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT, ErrorKind, Message, TextBlock, ToolUseBlock
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import CodeIdentity
from refold.events.model.messages import RequestReference
from refold.events.session import events as ev
from refold.events.session.react import CallModel, RunTool
from tests.selfcheck.exhaustive.log_reader import ObservedSession
from tests.selfcheck.exhaustive.properties import Properties
from tests.selfcheck.exhaustive.rules import Rule
from tests.selfcheck.exhaustive.scope import AGENT, EDITED, SESSION, Scope, configuration

CONFIGURATION = configuration(Scope(name="two turns"))
CODE = CodeIdentity(refold="0.1.0", core=1)
RUN = RunId("run_3")
FIRST, SECOND = ToolCallId("call_6_0"), ToolCallId("call_6_1")
DONE = (TextBlock(text="done"),)

OPENED: list[tuple[ev.SessionEvent, ...]] = [
    (ev.SessionOpened(session=SESSION, agent=AGENT),),
    (ev.AgentConfigured(configuration=CONFIGURATION),),
]
BEGUN = [
    *OPENED,
    (
        ev.InputQueued(content=DONE, key="k"),
        ev.RunStarted(run=RUN, input=3, code=CODE, fingerprint=""),
        ev.ModelRequested(run=RUN, turn=1),
    ),
]
COMPLETED = ev.RunCompleted(run=RUN)
CANCELLED = ev.RunCancelled(run=RUN)
CANCEL = ev.CancelRequested(run=RUN)
RESUMED = ev.RunResumed(run=RUN, code=CODE, fingerprint="")
PARKED = ev.RunParked(run=RUN, reason="")


def answered(*tools: str, verdict: ev.Verdict = ev.Verdict()) -> ev.ModelResponded:  # noqa: B008 - frozen
    """Return the answer to the first model call, whose calls are FIRST and SECOND."""
    calls = (FIRST, SECOND)
    return ev.ModelResponded(
        run=RUN,
        turn=1,
        content=tuple(ToolUseBlock(id=call, name=tool, input={}) for call, tool in zip(calls, tools, strict=False)),
        stop_reason="tool_use",
        request=RequestReference(configured=2, messages=1),
        verdicts=(verdict,) * len(tools),
    )


def started(call: ToolCallId) -> ev.ToolCallStarted:
    return ev.ToolCallStarted(run=RUN, call=call)


def failed(call: ToolCallId, kind: ErrorKind, text: str, *, was_started: bool) -> ev.ToolCallFailed:
    return ev.ToolCallFailed(call=call, kind=kind, content=(TextBlock(text=text),), started=was_started)


def asked(call: ToolCallId, tool: str = "pay") -> ev.ToolApprovalRequested:
    return ev.ToolApprovalRequested(run=RUN, call=call, tool=tool, input={})


def ended(call: ToolCallId) -> ev.ToolCallCompleted:
    return ev.ToolCallCompleted(call=call, content=DONE, ends_run=True)


def refused(call: ToolCallId) -> ev.ToolCallFailed:
    return ev.ToolCallFailed(call=call, kind="denied", content=DONE)


FINAL = ev.ModelResponded(
    run=RUN, turn=1, content=DONE, stop_reason="end_turn", request=RequestReference(configured=2, messages=1)
)
RETRYABLE = ev.ModelFailed(run=RUN, turn=1, kind="server", message="", retryable=True)


def judged(*batches: tuple[ev.SessionEvent, ...]) -> list[Rule]:
    promises, observed = Properties(CONFIGURATION), ObservedSession()
    return [finding.rule for batch in batches for finding in promises.read(observed, batch)]


def test_an_ordinary_run_breaks_nothing() -> None:
    assert (
        judged(
            *BEGUN,
            (answered("look", "look"), started(FIRST), started(SECOND)),
            (ev.ToolCallCompleted(call=SECOND, content=DONE),),
            (ev.ToolCallCompleted(call=FIRST, content=DONE), ev.ModelRequested(run=RUN, turn=2)),
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
        ("APPROVAL", [(answered("look", verdict=ev.Verdict(verdict="deny")),)]),
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
        ("TURNS", [(answered(), ev.ModelRequested(run=RUN, turn=3))]),
        ("PARKED", [(RESUMED,), (RESUMED,)]),
        ("PARKED", [(RESUMED,), (RESUMED, PARKED), (RESUMED, PARKED)]),
        ("KEYS", [(ev.InputQueued(content=DONE, key="k"),)]),
        ("SCHEDULE", [(ev.TimerSet(timer="input:6", due_at=9, content=DONE),), (ev.TimerFired(timer="input:6"),)]),
        (
            "SCHEDULE",
            [
                (ev.TimerSet(timer="input:6", due_at=9, content=DONE),),
                (ev.TimerFired(timer="input:6"), ev.InputQueued(content=DONE, key="other", scheduled=6)),
            ],
        ),
        ("SCHEDULE", [(ev.InputQueued(content=DONE, scheduled=2),)]),
        ("STEPS", [(answered(), ev.TurnAllowed(run=RUN, turn=3))]),
        ("RETRY", [(RETRYABLE, ev.RetryScheduled(run=RUN, turn=1, attempt=1, due_at=9))]),
        ("RECOVERY", [(answered("look", verdict=ev.Verdict(verdict="broken")), refused(FIRST))]),
        ("FINISH", [(answered("look", "write"), started(FIRST)), (ended(FIRST),)]),
        ("FINISH", [(answered("look"), started(FIRST)), (ended(FIRST),)]),
        (
            "APPROVAL",
            [
                (answered("pay", "pay"), asked(FIRST), asked(SECOND)),
                (ev.ToolApprovalDecided(call=FIRST, allowed=True, always=True), started(FIRST)),
            ],
        ),
        (
            "APPROVAL",
            [
                (answered("pay", "sign"), asked(FIRST), asked(SECOND, "sign")),
                (
                    ev.ToolApprovalDecided(call=FIRST, allowed=True, always=True),
                    ev.ToolApprovalDecided(call=SECOND, allowed=True),
                ),
            ],
        ),
        ("OUTCOME", [(ev.InputQueued(content=DONE, joins=RUN),), (FINAL, COMPLETED)]),
        (
            "APPROVAL",
            [
                (answered("pay"), asked(FIRST)),
                (ev.ToolApprovalDecided(call=FIRST, allowed=True, always=True, input={}),),
            ],
        ),
        (
            "APPROVAL",
            [
                (answered("pay"), asked(FIRST)),
                (ev.ToolApprovalDecided(call=FIRST, allowed=True, input=EDITED), started(FIRST)),
                (RESUMED, asked(FIRST)),
            ],
        ),
    ],
)
def test_a_log_that_breaks_a_promise_is_found(rule: Rule, batches: list[tuple[ev.SessionEvent, ...]]) -> None:
    assert judged(*BEGUN, *batches) == [rule]


def test_pending_work_is_compared_with_what_the_log_has_begun() -> None:
    promises, observed = Properties(CONFIGURATION), ObservedSession()
    for batch in BEGUN:
        promises.read(observed, batch)
    effect = CallModel(key="model:5", causation=5, correlation=3, turn=1)
    assert [finding.rule for finding in promises.judge_work(observed, [effect])] == ["INV7"]  # The deadline is missing.


def test_a_call_runs_with_the_arguments_that_a_person_decided_on() -> None:
    promises, observed = Properties(CONFIGURATION), ObservedSession()
    allowed = (ev.ToolApprovalDecided(call=FIRST, allowed=True, input=EDITED), started(FIRST))
    for batch in (*BEGUN, (answered("pay"), asked(FIRST)), allowed):
        assert promises.read(observed, batch) == []
    effect = RunTool(key=f"tool:{FIRST}", causation=9, correlation=3, call=FIRST, name="pay", input={})
    rules = [finding.rule for finding in promises.judge_work(observed, [effect])]
    edited = [msgspec.structs.replace(effect, input=EDITED)]
    assert (rules, promises.judge_work(observed, edited)[0].rule) == (["INV7", "APPROVAL"], "INV7")  # As to its time.


def test_a_history_is_compared_with_what_the_batch_adds_to_it() -> None:
    promises, observed = Properties(CONFIGURATION), ObservedSession()
    for batch in BEGUN:
        promises.read(observed, batch)
    shown = Message("user", DONE)
    assert promises.judge_history(0, [shown]) == []
    for messages in ([], [shown, shown], [Message("assistant", DONE)]):
        assert [finding.rule for finding in promises.judge_history(0, messages)] == ["HISTORY"]
    promises.read(observed, (ev.HistoryCleared(),))
    assert promises.judge_history(1, []) == []
    assert [finding.rule for finding in promises.judge_history(1, [shown])] == ["HISTORY"]


def test_a_witness_forgets_what_is_over_but_the_last_of_it() -> None:
    promises, observed = Properties(CONFIGURATION), ObservedSession()
    for batch in (*BEGUN, (answered("look"), started(FIRST)), (ev.ToolCallCompleted(call=FIRST, content=DONE),)):
        promises.read(observed, batch)
    assert (observed.open_run, observed.calls, observed.closed_call) == (RUN, {}, FIRST)
    promises.read(observed, (CANCEL, CANCELLED))
    assert (observed.open_run, observed.runs, observed.ended_run) == (None, {}, RUN)
