"""What the tests of this folder drive: one session's core, with each event going through the codec."""

from collections.abc import Sequence

import msgspec
import pytest

from refold.events import SESSION_CORE, SessionState, fold, history
from refold.events.core.content import AnswerContent, ErrorKind, Message, TextBlock, ToolUseBlock, UserContent
from refold.events.core.ids import AgentId, RunId, SessionId, StreamName, ToolCallId
from refold.events.core.pure_core import Recorded, plan, replan
from refold.events.model.configuration import AgentConfig, AgentConfiguration, CodeIdentity, ToolSpec, configuration_of
from refold.events.model.messages import RequestReference, StopReason, Usage
from refold.events.session import commands
from refold.events.session import events as ev
from refold.events.session.events import SessionEvent, Verdict
from refold.events.session.invariants import SessionChecker, check_state
from refold.events.session.react import SessionEffect, pending
from tests.selfcheck.exhaustive.scope import STREAM, TOOLS
from tests.selfcheck.exhaustive.trial import through_the_log

CODE = CodeIdentity(refold="0.1.0", core=1)

TOOL_NAMES = tuple(spec.name for spec in TOOLS)

USAGE = Usage(input_tokens=10, output_tokens=1)

ALLOW = Verdict()
DENY = Verdict(verdict="deny", reason="not today")


def configuration(config: AgentConfig | None = None, tools: tuple[ToolSpec, ...] = TOOLS) -> AgentConfiguration:
    wanted = config if config is not None else AgentConfig(model="test-model")
    return configuration_of(wanted, agent=AgentId("agent"), tools=tools, code=CODE)[0]


def say(text: str) -> TextBlock:
    return TextBlock(text=text)


def use(name: str, provider_id: str | None = None, **arguments: object) -> ToolUseBlock:
    """Return a tool call as the shell gives it to the core: without an id of ours."""
    return ToolUseBlock(id=ToolCallId(""), name=name, input=arguments, provider_id=provider_id)


def response(
    run: RunId,
    turn: int,
    content: Sequence[AnswerContent],
    stop_reason: StopReason = "end_turn",
    verdicts: Sequence[Verdict] = (),
    usage: Usage = USAGE,
) -> commands.RecordModelResponse:
    return commands.RecordModelResponse(
        run=run,
        turn=turn,
        content=tuple(content),
        stop_reason=stop_reason,
        usage=usage,
        request=RequestReference(configured=2, messages=1),
        verdicts=tuple(verdicts),
    )


def names(events: Sequence[SessionEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def encoded(state: SessionState) -> bytes:
    return msgspec.json.encode(state, order="sorted")


def decoded(events: Sequence[SessionEvent], first_version: int = 1, stream: StreamName = STREAM) -> list[SessionEvent]:
    """Return `events` as they come back from a log."""
    return list(through_the_log(events, first_version, stream))


class Batch(msgspec.Struct, frozen=True):
    """A batch as the log keeps it."""

    first: int
    """Version of its stimulus."""
    events: tuple[SessionEvent, ...]
    pending: tuple[str, ...]


class Session:
    """A session without a shell: tell it commands, look at what they caused.

    After each batch its state is the fold of the decoded log, and the invariants hold, or the test fails.
    """

    def __init__(self, configuration: AgentConfiguration | None = None) -> None:
        self.state = SessionState()
        self.batches: list[Batch] = []
        self.checker = SessionChecker(STREAM)
        self.now = 1_700_000_000_000_000
        self.outcome: list[SessionEvent] | Recorded = []
        """What the last command came to."""
        if configuration is not None:
            self.tell(commands.OpenSession(session=SessionId("alice"), agent=AgentId("agent")))
            self.tell(commands.Configure(configuration=configuration))

    def tell(self, command: commands.SessionCommand) -> list[SessionEvent]:
        """Return the batch that `command` causes; empty where it was recorded before."""
        recorded = self.tell_or_recorded(command)
        return [] if isinstance(recorded, Recorded) else recorded

    def tell_or_recorded(self, command: commands.SessionCommand) -> list[SessionEvent] | Recorded:
        self.now += 1_000
        planned = plan(SESSION_CORE, self.state, command, self.now)
        if isinstance(planned, Recorded):
            self.outcome = planned
            return planned
        first = self.state.version - len(planned.events) + 1
        events = decoded(planned.events, first)
        self.state = planned.state
        self.batches.append(Batch(first, tuple(events), tuple(effect.key for effect in self.pending)))
        for event in events:
            assert self.checker.observe(event) == []
        assert check_state(self.state, STREAM) == []
        self.outcome = events
        return events

    @property
    def log(self) -> list[SessionEvent]:
        return [event for batch in self.batches for event in batch.events]

    @property
    def pending(self) -> list[SessionEffect]:
        return pending(self.state)

    @property
    def pending_keys(self) -> list[str]:
        return [effect.key for effect in self.pending]

    @property
    def history(self) -> list[Message]:
        return history(self.state)

    @property
    def texts(self) -> list[str]:
        """What was said, by whom, without results."""
        return [f"{message.role}: {message.text}" for message in self.history if message.text]

    @property
    def run(self) -> RunId:
        """The run under way."""
        assert self.state.run is not None
        return self.state.run.id

    @property
    def calls(self) -> list[ToolCallId]:
        """The calls of the turn under way."""
        assert self.state.turn is not None
        return [call.id for call in self.state.turn.calls]

    def send(
        self,
        text: str = "Hello",
        *,
        key: str | None = None,
        cancelled: bool = False,
        now: bool = False,
        stepwise: bool = False,
        due_at: int | None = None,
    ) -> list[SessionEvent]:
        content = (say(text),)
        return self.tell(
            commands.SendInput(content=content, key=key, cancelled=cancelled, now=now, stepwise=stepwise, due_at=due_at)
        )

    def send_content(self, *content: UserContent) -> list[SessionEvent]:
        return self.tell(commands.SendInput(content=content))

    def answer(
        self, *content: AnswerContent, verdicts: Sequence[Verdict] | None = None, stop_reason: StopReason | None = None
    ) -> list[SessionEvent]:
        """Record the answer that the run under way waits for; every call is allowed unless `verdicts` says else."""
        run = self.state.run
        assert run is not None
        calls = sum(isinstance(block, ToolUseBlock) for block in content)
        return self.tell(
            response(
                run.id,
                run.turns,
                content,
                stop_reason or ("tool_use" if calls else "end_turn"),
                verdicts if verdicts is not None else (ALLOW,) * calls,
            )
        )

    def fail_model(
        self,
        kind: str = "server",
        message: str = "overloaded",
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> list[SessionEvent]:
        run = self.state.run
        assert run is not None
        return self.tell(
            commands.RecordModelFailure(
                run=run.id, turn=run.turns, kind=kind, message=message, retryable=retryable, retry_after_s=retry_after_s
            )
        )

    def result(
        self,
        call: ToolCallId,
        text: str = "done",
        kind: ErrorKind | None = None,
        *,
        ends_run: bool = False,
        broken: bool = False,
    ) -> list[SessionEvent]:
        return self.tell(
            commands.RecordToolResult(call=call, content=(say(text),), kind=kind, ends_run=ends_run, broken=broken)
        )

    def decide(
        self, call: ToolCallId, allowed: bool, reason: str = "", key: str | None = None, *, always: bool = False
    ) -> list[SessionEvent]:
        return self.tell(commands.DecideApproval(call=call, allowed=allowed, reason=reason, key=key, always=always))

    def cancel(self, run: RunId | None = None, key: str | None = None) -> list[SessionEvent]:
        return self.tell(commands.CancelRun(run=run, key=key))

    def fire(self, timer: str) -> list[SessionEvent]:
        return self.tell(ev.TimerFired(timer=timer))

    def crash(
        self, tools: Sequence[str] = TOOL_NAMES, *, asked: bool = False, code_changed: bool = False
    ) -> list[SessionEvent]:
        """Lose the process: fold the decoded log again, and resume where `tools` exist."""
        self.restart()
        return self.tell(commands.ResumeRun(tools=tuple(tools), asked=asked, code_changed=code_changed))

    def restart(self) -> None:
        refolded = fold(self.log)
        assert encoded(refolded) == encoded(self.state)
        self.state = refolded

    def replay(self) -> None:
        """Re-execute every recorded stimulus and compare what it causes now with what was recorded."""
        state = SessionState()
        for batch in self.batches:
            stimulus = msgspec.structs.replace(batch.events[0], at=0)
            planned = replan(SESSION_CORE, state, stimulus, batch.events[0].at)
            assert planned.events == batch.events
            assert tuple(effect.key for effect in pending(planned.state)) == batch.pending
            state = planned.state
        assert encoded(state) == encoded(self.state)


@pytest.fixture
def session() -> Session:
    """An open session with the tools of `TOOLS` and no input yet."""
    return Session(configuration())
