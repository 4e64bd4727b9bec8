"""Given a session, when it is told something, then it is accepted, known already, or refused with nothing changed."""

from collections.abc import Callable

import pytest

from refold.events.core.content import ImageBlock, Message, TextBlock, tool_uses
from refold.events.core.contract import Recorded
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.configuration import AgentConfig
from refold.events.model.messages import Usage
from refold.events.model.retry import RetryPolicy
from refold.events.session.commands import (
    AllowTurn,
    CancelRun,
    ClearHistory,
    Configure,
    DecideApproval,
    ImportHistory,
    OpenSession,
    RecordCallWaiting,
    RecordModelFailure,
    RecordModelInterruption,
    RecordTimer,
    RecordToolResult,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session.core import SESSION_CORE
from refold.events.session.events import InputQueued, ModelInterrupted, ToolCallFailed, ToolResultLate
from tests.events.conftest import Session, configuration, encoded, names, response, say, use

CALL = ToolCallId("call_6_0")
RUN = RunId("run_3")

COMMANDS: dict[str, SessionCommand] = {
    "open": OpenSession(session=SessionId("alice"), agent=AgentId("agent")),
    "configure": Configure(configuration=configuration()),
    "send": SendInput(content=(say("Hello"),)),
    "send nothing": SendInput(content=(say(" "),)),
    "import": ImportHistory(messages=(Message("user", (say("Hi"),)),)),
    "answer": response(RUN, 1, [say("Hi")]),
    "failure": RecordModelFailure(run=RUN, turn=1, kind="server", message="down"),
    "result": RecordToolResult(call=CALL, content=(say("done"),)),
    "strange result": RecordToolResult(call=ToolCallId("call_900_0"), content=(say("done"),)),
    "decide": DecideApproval(call=CALL, allowed=True),
    "cancel": CancelRun(),
    "cancel it": CancelRun(run=RUN),
    "cancel a stranger": CancelRun(run=RunId("run_900")),
    "resume": ResumeRun(),
    "resume, asked": ResumeRun(asked=True),
    "timer": RecordTimer(timer="deadline:run_3"),
    "send for now": SendInput(content=(say("Hello"),), now=True),
    "send step by step": SendInput(content=(say("Hello"),), stepwise=True),
    "send for later": SendInput(content=(say("Hello"),), due_at=5),
    "send for later and now": SendInput(content=(say("Hello"),), due_at=5, now=True),
    "allow a turn": AllowTurn(),
    "allow a turn of it": AllowTurn(run=RUN),
    "clear": ClearHistory(),
    "interruption": RecordModelInterruption(turn=1, asked=5),
    "decide for always": DecideApproval(call=CALL, allowed=True, always=True),
    "deny for always": DecideApproval(call=CALL, allowed=False, always=True),
    "result that ends the run": RecordToolResult(call=CALL, content=(say("done"),), ends_run=True),
    "result that breaks": RecordToolResult(call=CALL, content=(), kind="permanent", broken=True),
    "retry timer": RecordTimer(timer="retry:5"),
    "expiry timer": RecordTimer(timer="expiry:7"),
    "input timer": RecordTimer(timer="input:3"),
    "call waits": RecordCallWaiting(call=CALL, waits=True),
    "call goes on": RecordCallWaiting(call=CALL, waits=False),
}


def _new() -> Session:
    return Session()


def _opened() -> Session:
    session = Session()
    session.tell(COMMANDS["open"])
    return session


def _idle() -> Session:
    return Session(configuration())


def _at_model() -> Session:
    session = _idle()
    session.send()
    return session


def _at_tool() -> Session:
    session = _at_model()
    session.answer(use("write"))
    assert session.calls == [CALL]
    return session


def _at_approval() -> Session:
    session = _at_model()
    session.answer(use("pay"))
    return session


def _parked() -> Session:
    session = Session(configuration(AgentConfig(model="test-model", resumes_max=0)))
    session.send()
    assert "RunParked" in names(session.crash())
    return session


def _waiting_to_retry() -> Session:
    session = Session(configuration(AgentConfig(model="test-model", retry=RetryPolicy(), run_timeout_s=60.0)))
    session.send()
    session.fail_model(retryable=True)
    return session


def _at_step() -> Session:
    session = _idle()
    session.send(stepwise=True)
    session.answer(say("…"), stop_reason="pause_turn")
    return session


def _at_expiring_approval() -> Session:
    session = Session(configuration(AgentConfig(model="test-model", approval_expiry_s=60.0)))
    session.send()
    session.answer(use("pay"))
    return session


def _scheduled() -> Session:
    session = _idle()
    session.send(due_at=5)
    return session


def _ended() -> Session:
    session = _at_tool()
    session.result(CALL)
    session.answer(say("Done."))
    return session


SITUATIONS: dict[str, Callable[[], Session]] = {
    "new": _new,
    "opened": _opened,
    "idle": _idle,
    "at model": _at_model,
    "at tool": _at_tool,
    "at approval": _at_approval,
    "parked": _parked,
    "ended": _ended,
    "waiting to retry": _waiting_to_retry,
    "at step": _at_step,
    "at expiring approval": _at_expiring_approval,
    "scheduled": _scheduled,
}

REFUSED, KNOWN = "refused", "known"

OUTCOMES: dict[str, list[str]] = {
    # new, opened, idle, at model, at tool, at approval, parked, ended,
    # waiting to retry, at step, at expiring approval, scheduled
    "open": ["SessionOpened", *[KNOWN] * 11],
    "configure": [
        REFUSED,
        "AgentConfigured",
        *[KNOWN] * 4,
        "AgentConfigured",
        KNOWN,
        "AgentConfigured",
        KNOWN,
        "AgentConfigured",
        KNOWN,
    ],
    "send": [REFUSED, REFUSED, *["InputQueued"] * 10],
    "send nothing": [REFUSED] * 12,
    "import": [
        REFUSED,
        "HistoryImported",
        "HistoryImported",
        *[REFUSED] * 4,
        "HistoryImported",
        *[REFUSED] * 3,
        "HistoryImported",
    ],
    "answer": [
        REFUSED,
        "ModelInterrupted",
        "ModelInterrupted",
        "ModelResponded",
        "ModelInterrupted",
        "ModelInterrupted",
        "ModelResponded",
        *["ModelInterrupted"] * 5,
    ],
    "failure": [*[KNOWN] * 3, "ModelFailed", KNOWN, KNOWN, "ModelFailed", *[KNOWN] * 5],
    "result": [*[REFUSED] * 4, "ToolCallCompleted", REFUSED, REFUSED, "ToolResultLate", *[REFUSED] * 4],
    "strange result": [REFUSED] * 12,
    "decide": [*[REFUSED] * 5, "ToolApprovalDecided", *[REFUSED] * 4, "ToolApprovalDecided", REFUSED],
    "cancel": [*[KNOWN] * 3, *["CancelRequested"] * 4, KNOWN, *["CancelRequested"] * 3, KNOWN],
    "cancel it": [*[KNOWN] * 3, *["CancelRequested"] * 4, KNOWN, *["CancelRequested"] * 4],
    "cancel a stranger": [KNOWN] * 12,
    "resume": [*[KNOWN] * 3, *["RunResumed"] * 3, KNOWN, KNOWN, *["RunResumed"] * 3, KNOWN],
    "resume, asked": [*[KNOWN] * 3, *["RunResumed"] * 4, KNOWN, *["RunResumed"] * 3, KNOWN],
    "timer": [*[KNOWN] * 8, "TimerFired", *[KNOWN] * 3],
    "send for now": [REFUSED, REFUSED, *["InputQueued"] * 10],
    "send step by step": [REFUSED, REFUSED, *["InputQueued"] * 10],
    "send for later": [REFUSED, REFUSED, *["TimerSet"] * 10],
    "send for later and now": [REFUSED] * 12,
    "allow a turn": [*[REFUSED] * 9, "TurnAllowed", REFUSED, REFUSED],
    "allow a turn of it": [*[REFUSED] * 9, "TurnAllowed", REFUSED, REFUSED],
    "clear": [*[KNOWN] * 3, *[REFUSED] * 4, "HistoryCleared", *[REFUSED] * 3, KNOWN],
    "interruption": [REFUSED, *["ModelInterrupted"] * 11],
    "decide for always": [*[REFUSED] * 5, "ToolApprovalDecided", *[REFUSED] * 4, "ToolApprovalDecided", REFUSED],
    "deny for always": [REFUSED] * 12,
    "result that ends the run": [
        *[REFUSED] * 4,
        "ToolCallCompleted",
        REFUSED,
        REFUSED,
        "ToolResultLate",
        *[REFUSED] * 4,
    ],
    "result that breaks": [*[REFUSED] * 4, "ToolCallFailed", REFUSED, REFUSED, "ToolResultLate", *[REFUSED] * 4],
    "retry timer": [*[KNOWN] * 8, "TimerFired", *[KNOWN] * 3],
    "expiry timer": [*[KNOWN] * 10, "TimerFired", KNOWN],
    "input timer": [*[KNOWN] * 11, "TimerFired"],
    "call waits": [*[KNOWN] * 4, "ToolCallWaiting", *[KNOWN] * 7],
    "call goes on": [KNOWN] * 12,
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_command_in_every_situation_is_accepted_known_or_refused(situation: str, command: str) -> None:
    session = SITUATIONS[situation]()
    before = encoded(session.state)
    expected = OUTCOMES[command][list(SITUATIONS).index(situation)]
    if expected == REFUSED:
        with pytest.raises(CommandRejected):
            session.tell(COMMANDS[command])
        assert encoded(session.state) == before
    elif expected == KNOWN:
        assert isinstance(session.tell_or_recorded(COMMANDS[command]), Recorded)
        assert encoded(session.state) == before
    else:
        assert names(session.tell(COMMANDS[command]))[0] == expected


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_admit_changes_no_state(situation: str, command: str) -> None:
    session = SITUATIONS[situation]()
    before = encoded(session.state)
    try:
        SESSION_CORE.admit(session.state, COMMANDS[command])
    except CommandRejected:
        assert OUTCOMES[command][list(SITUATIONS).index(situation)] == REFUSED
    assert encoded(session.state) == before


def test_a_session_is_not_opened_again_as_another(session: Session) -> None:
    with pytest.raises(CommandRejected, match="this is session 'alice', not 'bob'"):
        session.tell(OpenSession(session=SessionId("bob"), agent=AgentId("agent")))


def test_the_same_key_with_the_same_content_is_one_input(session: Session) -> None:
    session.send("Hello", key="k")
    recorded = session.tell_or_recorded(SendInput(content=(say("Hello"),), key="k"))
    assert recorded == Recorded(3)
    assert names(session.log).count("InputQueued") == 1


def test_the_same_key_is_one_input_after_its_run_has_ended_and_after_a_restart(session: Session) -> None:
    session.send("Hello", key="k")
    session.answer(say("Hi"))
    session.restart()
    assert session.send("Hello", key="k") == []
    assert session.state.keys["k"].terminal == session.state.version


def test_the_same_key_with_another_content_is_refused(session: Session) -> None:
    session.send("Hello", key="k")
    with pytest.raises(CommandRejected, match="key 'k' was used before"):
        session.send("Something else", key="k")


def test_a_key_of_one_kind_of_command_is_refused_for_another(session: Session) -> None:
    session.send("Hello", key="k")
    session.answer(use("pay"))
    with pytest.raises(CommandRejected, match="key 'k'"):
        session.cancel(key="k")
    with pytest.raises(CommandRejected, match="key 'k'"):
        session.decide(CALL, True, key="k")
    session.cancel()
    with pytest.raises(CommandRejected, match="key 'k'"):
        session.tell(ImportHistory(messages=(Message("user", (say("Hi"),)),), key="k"))


def test_a_repeated_cancel_with_a_key_does_not_cancel_the_next_run(session: Session) -> None:
    session.send()
    session.cancel(key="stop")
    session.send()
    assert session.cancel(key="stop") == []
    assert session.state.run is not None


def test_a_repeated_decision_with_a_key_is_known_even_after_the_call_has_ended(session: Session) -> None:
    session.send()
    session.answer(use("pay"))
    session.decide(CALL, True, key="d")
    session.result(CALL)
    assert session.decide(CALL, True, key="d") == []
    with pytest.raises(CommandRejected, match="key 'd'"):
        session.decide(CALL, False, key="d")


def test_a_repeated_import_with_a_key_is_known_although_its_calls_got_new_ids(session: Session) -> None:
    given = ImportHistory(messages=(Message("user", (say("Hi"),)), Message("assistant", (use("look", "t1"),))), key="i")
    session.tell(given)
    assert session.tell(given) == []
    assert len(session.history) == 3


def test_blank_texts_of_an_input_are_dropped_and_the_rest_is_kept(session: Session) -> None:
    image = ImageBlock(media_type="image/png", data=b"png")
    queued = session.send_content(say(""), image, say(" \n"))[0]
    assert isinstance(queued, InputQueued)
    assert queued.content == (image,)


@pytest.mark.parametrize("content", [(), (TextBlock(text=""),), (TextBlock(text=" \t\n"),)])
def test_an_input_without_content_is_refused(session: Session, content: tuple[TextBlock, ...]) -> None:
    with pytest.raises(CommandRejected, match="needs some content"):
        session.send_content(*content)


def test_calls_get_ids_of_ours_and_keep_the_providers_beside(session: Session) -> None:
    session.send()
    session.answer(use("look", "toolu_a"), use("look", "toolu_a"))
    assert [(call.id, call.provider_id) for call in tool_uses(session.history[1].content)] == [
        ("call_6_0", "toolu_a"),
        ("call_6_1", "toolu_a"),
    ]


def test_an_answer_whose_verdicts_do_not_match_its_calls_is_refused(session: Session) -> None:
    session.send()
    with pytest.raises(CommandRejected, match="2 tool calls came with 0 verdicts"):
        session.answer(use("look"), use("look"), verdicts=())


def test_an_answer_that_nobody_waits_for_is_evidence_and_never_history(session: Session) -> None:
    session.send()
    run = session.run
    session.cancel()
    events = session.tell(response(run, 1, [say("too late"), use("write")], usage=Usage(input_tokens=7)))
    assert [type(event) for event in events] == [ModelInterrupted]
    assert session.history == [Message("user", (say("Hello"),))]
    assert session.state.usage.input_tokens == 7


def test_tokens_of_an_interrupted_answer_are_not_counted_to_the_next_run(session: Session) -> None:
    session.send()
    run = session.run
    session.cancel()
    session.send()
    session.tell(response(run, 1, [], usage=Usage(input_tokens=7)))
    assert session.state.usage.input_tokens == 7
    assert session.state.run is not None
    assert session.state.run.usage == Usage()


def test_an_answer_to_an_earlier_turn_is_evidence(session: Session) -> None:
    session.send()
    run = session.run
    session.answer(use("write"))
    session.result(CALL)
    events = session.tell(response(run, 1, [say("again")], usage=Usage()))
    assert names(events) == ["ModelInterrupted"]


def test_a_second_result_of_a_call_is_late_while_the_turn_is_open_and_after_it(session: Session) -> None:
    session.send()
    session.answer(use("look"), use("look"))
    first, second = session.calls
    session.result(first, "one")
    assert names(session.result(first, "two")) == ["ToolResultLate"]
    session.result(second, "three")
    assert names(session.result(first, "four")) == ["ToolResultLate"]
    results = session.history[2].content
    assert [getattr(block, "text", None) for block in results] == ["one", "three"]


def test_a_late_result_says_whether_the_tool_failed(session: Session) -> None:
    session.send()
    session.answer(use("look"))
    call = session.calls[0]
    session.cancel()
    late = session.result(call, "broken", kind="transient")[0]
    assert isinstance(late, ToolResultLate)
    assert late.kind == "transient"


def test_a_result_of_a_call_that_has_not_started_is_refused(session: Session) -> None:
    session.send()
    session.answer(use("write"), use("write"))
    with pytest.raises(CommandRejected, match="never started"):
        session.result(session.calls[1])


def test_a_tools_failure_without_a_word_gets_words(session: Session) -> None:
    session.send()
    session.answer(use("write"))
    failed = session.result(CALL, " ", kind="permanent")[0]
    assert isinstance(failed, ToolCallFailed)
    assert failed.content == (say("The tool failed and gave no reason."),)


def test_a_tool_may_return_nothing(session: Session) -> None:
    session.send()
    session.answer(use("write"))
    session.result(CALL, "")
    assert names(session.log)[-2:] == ["ToolCallCompleted", "ModelRequested"]


def test_a_resume_names_only_the_tools_that_running_calls_need(session: Session) -> None:
    session.send()
    session.answer(use("look"), use("look"), use("put"))
    resumed = session.crash(["write", "put", "look"])[0]
    assert getattr(resumed, "tools", None) == ("look",)
