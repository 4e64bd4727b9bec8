"""Given a session, when it is told something, then it is accepted, known already, or refused with nothing changed."""

import msgspec
import pytest

from refold.events import SESSION_CORE, CommandRejected, Recorded
from refold.events.core.content import ImageBlock, Message, tool_uses
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.messages import Usage
from refold.events.model.refused import GuardrailTrip, Part
from refold.events.session import commands
from refold.events.session import events as ev
from refold.events.session.events import InputQueued, ModelInterrupted
from tests.events.conftest import Session, configuration, encoded, names, response, say, use
from tests.events.story import after

CALL = ToolCallId("call_6_0")
RUN = RunId("run_3")

COMMANDS: dict[str, commands.SessionCommand] = {
    "open": commands.OpenSession(session=SessionId("alice"), agent=AgentId("agent")),
    "configure": commands.Configure(configuration=configuration()),
    "describe": commands.DescribeSession(user="anna", metadata={"plan": "pro"}),
    "describe nothing": commands.DescribeSession(metadata={"plan": None}),
    "describe at length": commands.DescribeSession(metadata={"plan": "é" * 8_200}),
    "send": commands.SendInput(content=(say("Hello"),)),
    "send nothing": commands.SendInput(content=(say(" "),)),
    "import": commands.ImportHistory(messages=(Message("user", (say("Hi"),)),)),
    "answer": response(RUN, 1, [say("Hi")]),
    "failure": commands.RecordModelFailure(run=RUN, turn=1, kind="server", message="down"),
    "trip": commands.RecordGuardrailTrip(run=RUN, turn=1, asked=5, trip=GuardrailTrip(guardrail="g", on="input")),
    "result": commands.RecordToolResult(call=CALL, content=(say("done"),)),
    "strange result": commands.RecordToolResult(call=ToolCallId("call_900_0"), content=(say("done"),)),
    "decide": commands.DecideApproval(call=CALL, allowed=True),
    "ask": commands.RecordQuestion(call=CALL, number=1, question="Which?", answer_schema={}),
    "answer it": commands.AnswerQuestion(call=CALL, answer="this"),
    "answer the next": commands.AnswerQuestion(call=CALL, number=2, answer="this"),
    "cancel": commands.CancelRun(),
    "cancel it": commands.CancelRun(run=RUN),
    "cancel a stranger": commands.CancelRun(run=RunId("run_900")),
    "resume": commands.ResumeRun(),
    "resume, asked": commands.ResumeRun(asked=True),
    "timer": ev.TimerFired(timer="deadline:run_3"),
    "send for now": commands.SendInput(content=(say("Hello"),), now=True),
    "send step by step": commands.SendInput(content=(say("Hello"),), stepwise=True),
    "send for later": commands.SendInput(content=(say("Hello"),), due_at=5),
    "send for later and now": commands.SendInput(content=(say("Hello"),), due_at=5, now=True),
    "allow a turn": commands.AllowTurn(),
    "allow a turn of it": commands.AllowTurn(run=RUN),
    "clear": commands.ClearHistory(),
    "set aside": commands.SetContentAside(named=(3, None, None), parts=(Part(0, 0),), at=99),
    "set aside nothing": commands.SetContentAside(named=(3, None, None), parts=(Part(99, 0), Part(0, 99)), at=99),
    "take back": commands.TakeContentBack(aside=3),
    "interruption": ev.ModelInterrupted(turn=1, asked=5),
    "decide for always": commands.DecideApproval(call=CALL, allowed=True, always=True),
    "deny for always": commands.DecideApproval(call=CALL, allowed=False, always=True),
    "result that ends the run": commands.RecordToolResult(call=CALL, content=(say("done"),), ends_run=True),
    "result that breaks": commands.RecordToolResult(call=CALL, content=(), kind="permanent", broken=True),
    "retry timer": ev.TimerFired(timer="retry:5"),
    "expiry timer": ev.TimerFired(timer="expiry:7"),
    "input timer": ev.TimerFired(timer="input:3"),
    "call waits": ev.ToolCallWaiting(call=CALL, waits=True),
    "call goes on": ev.ToolCallWaiting(call=CALL, waits=False),
}


SITUATIONS = {
    "new": "new",
    "opened": "opened",
    "idle": "agent",
    "at model": "send",
    "at tool": "calls write",
    "at approval": "calls pay",
    "parked": "agent resumes_max=0; send; crash",
    "ended": "calls write; result 0; says Done.",
    "waiting to retry": "agent retry=even run_timeout_s=60; fails retryable",
    "at step": "send stepwise; says … stop_reason=pause_turn",
    "at expiring approval": "agent approval_expiry_s=60; calls pay",
    "scheduled": "send due_at=5",
    "at question": "calls write; asks 0 expires_at=9",
}
"""What was told before, as in stories."""

OUTCOMES = {
    # In each situation, in their order: - refused, = known, + recorded as the first event named, * as the second one.
    "open": ("+============", "SessionOpened"),
    "configure": ("-+====+=+=+==", "AgentConfigured"),
    "describe": ("-++++++++++++", "SessionDescribed"),
    "describe nothing": ("-============",),
    "describe at length": ("-------------",),
    "send": ("--+++++++++++", "InputQueued"),
    "send nothing": ("-------------",),
    "import": ("-++----+---+-", "HistoryImported"),
    "answer": ("-**+**+******", "ModelResponded", "ModelInterrupted"),
    "failure": ("===+==+======", "ModelFailed"),
    "trip": ("===+==+======", "GuardrailTripped"),
    "result": ("----+--*----=", "ToolCallCompleted", "ToolResultLate"),
    "strange result": ("-------------",),
    "decide": ("-----+----+--", "ToolApprovalDecided"),
    "ask": ("====+========", "QuestionAsked"),
    "answer it": ("------------+", "QuestionAnswered"),
    "answer the next": ("-------------",),
    "cancel": ("===++++=+++=+", "CancelRequested"),
    "cancel it": ("===++++=+++++", "CancelRequested"),
    "cancel a stranger": ("=============",),
    "resume": ("===+++==+++=+", "RunResumed"),
    "resume, asked": ("===++++=+++=+", "RunResumed"),
    "timer": ("========+====", "TimerFired"),
    "send for now": ("--+++++++++++", "InputQueued"),
    "send step by step": ("--+++++++++++", "InputQueued"),
    "send for later": ("--+++++++++++", "TimerSet"),
    "send for later and now": ("-------------",),
    "allow a turn": ("---------+---", "TurnAllowed"),
    "allow a turn of it": ("---------+---", "TurnAllowed"),
    "clear": ("===----+---=-", "HistoryCleared"),
    "set aside": ("-------+-----", "InputSetAside"),
    "set aside nothing": ("-------------",),
    "take back": ("-------------",),
    "interruption": ("-++++++++++++", "ModelInterrupted"),
    "decide for always": ("-----+----+--", "ToolApprovalDecided"),
    "deny for always": ("-------------",),
    "result that ends the run": ("----+--*----=", "ToolCallCompleted", "ToolResultLate"),
    "result that breaks": ("----+--*----=", "ToolCallFailed", "ToolResultLate"),
    "retry timer": ("========+====", "TimerFired"),
    "expiry timer": ("==========+==", "TimerFired"),
    "input timer": ("===========+=", "TimerFired"),
    "call waits": ("====+========", "ToolCallWaiting"),
    "call goes on": ("=============",),
}


def session_in(situation: str) -> Session:
    if situation in ("new", "opened"):
        session = Session()
        if situation == "opened":
            session.tell(COMMANDS["open"])
        return session
    return after(SITUATIONS[situation].split("; "))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_command_in_every_situation_is_accepted_known_or_refused_and_admit_changes_no_state(
    situation: str, command: str
) -> None:
    session, (outcomes, *recorded) = session_in(situation), OUTCOMES[command]
    outcome = outcomes[list(SITUATIONS).index(situation)]
    before = encoded(session.state)
    if outcome == "-":
        with pytest.raises(CommandRejected):
            SESSION_CORE.admit(session.state, COMMANDS[command])
        with pytest.raises(CommandRejected):
            session.tell(COMMANDS[command])
        assert encoded(session.state) == before
        return
    SESSION_CORE.admit(session.state, COMMANDS[command])
    assert encoded(session.state) == before
    told = session.tell_or_recorded(COMMANDS[command])
    if outcome == "=":
        assert isinstance(told, Recorded)
        assert encoded(session.state) == before
    else:
        assert not isinstance(told, Recorded)
        assert names(told)[0] == recorded["+*".index(outcome)]


def test_what_stood_elsewhere_when_it_was_named_is_not_set_aside(session: Session) -> None:
    hello = commands.ImportHistory(messages=(Message("user", (say("Hello"),)),))
    for command in (hello, commands.ClearHistory(), hello):
        session.tell(command)
    named = commands.SetContentAside(named=(3, None, None), parts=(Part(0, 0),), at=3)
    with pytest.raises(CommandRejected, match="summarised or cleared meanwhile"):
        session.tell(named)
    assert names(session.tell(msgspec.structs.replace(named, at=session.state.version))) == ["InputSetAside"]


def test_blank_texts_of_an_input_are_dropped_and_the_rest_is_kept(session: Session) -> None:
    image = ImageBlock(media_type="image/png", data=b"png")
    queued = session.send_content(say(""), image, say(" \n"))[0]
    assert isinstance(queued, InputQueued)
    assert queued.content == (image,)


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


def test_what_had_come_of_an_answer_is_evidence_with_its_tokens_and_the_call_goes_on(session: Session) -> None:
    session.send()
    before = session.pending
    command = ev.ModelInterrupted(turn=1, asked=5, content=(say("Half an"), say(" ")), usage=Usage(output_tokens=3))
    (interrupted,) = session.tell(command)
    assert isinstance(interrupted, ModelInterrupted)
    assert (interrupted.asked, interrupted.content) == (5, (say("Half an"),))
    assert session.pending == before
    assert session.texts == ["user: Hello"]
    assert session.state.run is not None
    assert session.state.run.usage == session.state.usage == Usage(output_tokens=3)


def test_the_tokens_of_another_model_call_are_not_the_runs(session: Session) -> None:
    session.send()
    session.cancel()
    session.send()
    session.tell(ev.ModelInterrupted(turn=1, asked=5, usage=Usage(output_tokens=3)))
    assert session.state.run is not None
    assert (session.state.run.usage, session.state.usage) == (Usage(), Usage(output_tokens=3))
