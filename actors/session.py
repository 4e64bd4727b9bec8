"""The session actor: the session's core in the event-sourced shell.

Its address and stream are `session/<id>`. It asks the model actor of its agent and the actors of its tools to carry
out effects, and gets their ends as messages. Everything that is decided is in `refold.events.session_decisions`.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from refold.actors.approval import APPROVAL_KIND, CancelApproval, StartApproval
from refold.actors.conversation import Conversation
from refold.actors.effects import EffectsInFlight
from refold.actors.errors import ActorStopped
from refold.actors.event_sourced import RECORD_RETRY_S, EventSourcedActor, WithPayloads
from refold.actors.folded_actor import Performed
from refold.actors.journal import Journal
from refold.actors.mailbox import Vital
from refold.actors.model import MODEL_KIND, CancelModelCall, StartModelCall
from refold.actors.outgoing_request import WantedRequest
from refold.actors.protocols import SessionObserver
from refold.actors.recalling import Recalling
from refold.actors.session_messages import ForAcceptedWork, PreparedContext
from refold.actors.tool import AbandonToolCall, CancelToolCall, StartToolCall
from refold.events.codec import RecordedEvent
from refold.events.configuration import AgentConfiguration
from refold.events.content import TextBlock
from refold.events.core import Wait, WaitUntil
from refold.events.errors import PersistenceError
from refold.events.ids import RunId, SessionId, event_ref, kind_and_identifier
from refold.events.records import StoredEvent
from refold.events.session_commands import (
    AllowTurn,
    CancelRun,
    Configure,
    DecideApproval,
    ImportHistory,
    OpenSession,
    RecordContext,
    RecordModelFailure,
    RecordModelResponse,
    RecordTimer,
    RecordToolResult,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session_core import SESSION_CODEC, SESSION_CORE
from refold.events.session_decisions import AskPerson, CallModel, RunTool
from refold.events.session_events import ModelResponded, SessionEvent, ToolApprovalRequested
from refold.events.session_state import (
    Run,
    SessionState,
    awaits_step,
    calls_awaiting_approval,
    expiry_key,
    input_key,
    is_interrupted,
    run_of_input,
)
from refold.events.tool_core import TOOL_KIND

log = logging.getLogger("refold.session")


class PerformedInRun(Performed, frozen=True):
    """The reply to `SendInput` and `AllowTurn`."""

    run: RunId
    """The input's own or the one that it joins; the one that takes its next turn."""


class WakeSession(Vital, frozen=True):
    """Start the session if it is not live, so that its open run goes on."""


class ReadSession(msgspec.Struct, frozen=True):
    """Reply with the answer to a question about the session's state.

    The question is asked inside the handler, where the state is durable; its answer must not hold on to the state.
    """

    question: Callable[[SessionState], object]


class InsistOnCancel(Vital, frozen=True):
    """Cancel, and do not let go of it where the log refuses: a cancellation must not be lost."""

    command: CancelRun
    attempt: int = 0
    """How often the log has refused."""


class SessionSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions of a runtime share."""

    configuration: AgentConfiguration
    """Its payloads are in the log already."""
    tools: tuple[str, ...]
    """Names of the tools that exist."""
    auto_resume: bool = True
    after_order: bool = False
    """Whether the runtime before this one had ended in order, so that no run of it was interrupted by a crash."""
    cancel_grace_s: float = 5.0
    recalling: Recalling | None = None
    """The agent's memories, which are told what was recalled; None = it has none."""
    graph_entities: Callable[[], int | None] | None = None
    """Tells at once how many entities the agent's graph has; None = it has no graph."""


class SessionActor(EventSourcedActor[SessionState, SessionCommand, SessionEvent]):
    """One conversation, its queue of inputs and the run under way."""

    def __init__(
        self, setting: SessionSetting, journal: Journal, in_flight: EffectsInFlight, observer: SessionObserver
    ) -> None:
        super().__init__(
            SESSION_CORE, SESSION_CODEC, journal, in_flight=in_flight, cancel_grace_s=setting.cancel_grace_s
        )
        self._setting = setting
        self._observer = observer
        self._conversation = Conversation(journal.store.read_payloads)

    @property
    def session(self) -> SessionId:
        """The session's id."""
        return SessionId(kind_and_identifier(self.address)[1])

    async def _fold(self) -> list[StoredEvent]:
        """Fold the state; one configuration in memory serves all sessions that have it in force."""
        stored = await super()._fold()
        if self.state.configuration == self._setting.configuration:
            self.state.configuration = self._setting.configuration
        return stored

    async def on_receive(self, message: object) -> object:
        """Handle a command, a question, or the end of an effect."""
        if type(message) is ForAcceptedWork:
            message = message.message
        if type(message) is WakeSession:
            return None
        if type(message) is InsistOnCancel:
            return await self._cancel_or_try_again(message)
        if type(message) is ReadSession:
            await self.require_durable_state()
            return message.question(self.state)
        if type(message) is ResumeRun and self.goes_on() and not self._waits_for_resume():
            return Performed(0, False)
        if type(message) is AllowTurn:
            return await self._allow_turn(message)
        reply = await super().on_receive(message)
        command = message.command if type(message) is WithPayloads else message
        if isinstance(reply, Performed) and type(command) is SendInput:
            return PerformedInRun(reply.version, reply.new, self._run_of(command, reply.version))
        if isinstance(reply, Performed) and type(command) is RecordContext:
            return PreparedContext(reply.version, reply.new, self._wanted_still(command))
        return reply

    async def _allow_turn(self, command: AllowTurn) -> object:
        await self.require_durable_state()
        run = self.state.run  # Now: today's configuration may allow it no turn more, which ends it at once.
        reply = await super().on_receive(command)
        assert isinstance(reply, Performed)
        assert run is not None
        return PerformedInRun(reply.version, reply.new, run.id)

    def _waits_for_resume(self) -> bool:
        """Tell whether the run does nothing before somebody speaks, whatever else the session waits for."""
        run = self.state.run
        return run is not None and (run.parked or awaits_step(run))

    def _run_of(self, command: SendInput, version: int) -> RunId:
        """Return the run of an input that was accepted at `version`."""
        record = self.state.keys.get(command.key) if command.key is not None else None
        if record is not None and record.run is not None:
            return record.run
        run = self.state.run
        joined = run is not None and any(queued.version == version for queued in run.joining)
        return run.id if run is not None and joined else run_of_input(version)

    async def _cancel_or_try_again(self, message: InsistOnCancel) -> object:
        try:
            return await super().on_receive(message.command)
        except PersistenceError as error:
            log.warning("%s: a cancellation is not recorded yet: %s", self.address, error)
            again = msgspec.structs.replace(message, attempt=message.attempt + 1)
            self._tell_later(RECORD_RETRY_S * 2 ** min(message.attempt, 5), again)
            return None

    def preparation(self, command: SessionCommand) -> Sequence[SessionCommand]:
        """Open the session and tell it what is in force, where a run may come of the command or go on by it."""
        if not isinstance(command, SendInput | ImportHistory | ResumeRun | AllowTurn | DecideApproval):
            return ()
        configuration = self._setting.configuration
        if self.state.session is None and not isinstance(command, SendInput | ImportHistory):
            return ()
        if self.state.session is None:
            entities = self._setting.graph_entities
            opening = OpenSession(
                session=self.session,
                agent=configuration.agent,
                graph_entities=entities() if entities is not None else None,
            )
            return (opening, Configure(configuration=configuration))
        if self.state.configuration is configuration:
            return ()
        return (Configure(configuration=configuration),)

    def recovery(self) -> Sequence[SessionCommand] | None:
        """Let the open run go on in this process, with today's configuration; or wait for somebody who asks for it."""
        interrupted = is_interrupted(self.state)
        if not self._setting.auto_resume and (interrupted or calls_awaiting_approval(self.state)):
            return None
        if self.state.agent != self._setting.configuration.agent:
            log.warning(
                "%s has work of agent %r, which is not this runtime's; resume() lets it go on here",
                self.address,
                self.state.agent,
            )
            return None
        if not interrupted:  # What it waits for, a time or a person, is dealt with by today's configuration too.
            return (Configure(configuration=self._setting.configuration),)
        resume = ResumeRun(tools=self._setting.tools, in_order=self._setting.after_order)
        return (*self.preparation(resume), resume)

    def waits_for_recovery(self, effect: CallModel | RunTool | AskPerson | Wait) -> bool:
        """Tell whether an effect waits for somebody who resumes the run; the times of inputs and decisions do not.

        They do where they are another agent's, whose model and tools are not those of this runtime.
        """
        if self.state.agent != self._setting.configuration.agent:
            return True
        return effect.key not in (input_key(effect.causation), expiry_key(effect.causation))

    def resumes(self, command: SessionCommand) -> bool:
        """Tell whether somebody asked for the open run to go on."""
        return isinstance(command, ResumeRun)

    def published(self, events: Sequence[RecordedEvent[SessionEvent]]) -> None:
        """Tell the observer, and the memory what an answer was given with."""
        self._observer.recorded(self.session, events)
        recalling = self._setting.recalling
        for event in (recorded.event for recorded in events) if recalling is not None else ():
            if recalling is not None and isinstance(event, ModelResponded) and event.request.recalled:
                recalling.note(self.session, event.run, event.request.recalled)

    def settled(self) -> None:
        """Tell the observer."""
        self._observer.settled(self.session, self.state)

    def begin(self, effect: CallModel | RunTool | AskPerson) -> None:
        """Have the effect carried out by the actor whose work it is."""
        match effect:
            case CallModel():
                configuration = self.state.configuration
                assert configuration is not None
                assert self.state.run is not None
                message: object = StartModelCall(
                    key=effect.key,
                    session=self.session,
                    reply_to=self.actor_ref,
                    run=self.state.run.id,
                    turn=effect.turn,
                    asked=effect.causation,
                    wanted=self._wanted_request(self.state.run, effect.turn, configuration),
                )
            case RunTool():
                message = StartToolCall(
                    key=effect.key,
                    session=self.session,
                    reply_to=self.actor_ref,
                    call=effect.call,
                    arguments=effect.input,
                    started=event_ref(self.stream, effect.causation),
                )
            case AskPerson():
                message = StartApproval(
                    key=effect.key, session=self.session, reply_to=self.actor_ref, request=self._request_of(effect)
                )
            case _:
                assert_never(effect)
        self._order(effect, message)

    def _wanted_still(self, command: RecordContext) -> WantedRequest | None:
        """Return the request as it is wanted after a summary, or None where it is not any more."""
        run, configuration = self.state.run, self.state.configuration
        if run is None or configuration is None or (run.id, run.asked) != (command.run, command.asked):
            return None
        return self._wanted_request(run, command.turn, configuration) if run.phase == "model" else None

    def _wanted_request(self, run: Run, turn: int, configuration: AgentConfiguration) -> WantedRequest:
        messages = self.state.messages
        return WantedRequest(
            session=self.session,
            run=run.id,
            turn=turn,
            asked=run.asked,
            summarised=self.state.summarised,
            configured=self.state.configured,
            configuration=configuration,
            source=messages,
            length=len(messages),
            latest_input=run.latest_input,
            conversation=self._conversation,
        )

    def _request_of(self, effect: AskPerson) -> ToolApprovalRequested:
        assert self.state.run is not None
        return ToolApprovalRequested(
            run=self.state.run.id,
            call=effect.call,
            tool=effect.tool,
            input=copy.deepcopy(effect.input),
            reason=effect.reason,
            action=effect.action,
            expires_at=effect.expires_at,
            at=effect.requested_at,
        )

    def due(self, effect: WaitUntil) -> SessionCommand:
        """Return what to record when a time has come."""
        return RecordTimer(timer=effect.key)

    def cancel(self, effect: CallModel | RunTool | AskPerson) -> None:
        """Ask whoever carries the effect out to end it."""
        match effect:
            case CallModel():
                self._order(effect, CancelModelCall(session=self.session, key=effect.key))
            case RunTool():
                self._order(effect, CancelToolCall(session=self.session, key=effect.key))
            case AskPerson():
                self._order(effect, CancelApproval(session=self.session, key=effect.key))
            case _:
                assert_never(effect)

    def abandon(self, effect: CallModel | RunTool | AskPerson) -> None:
        """Note on the tool's stream that a call of it goes on by itself."""
        log.warning("%s: %s ignored its cancellation and is abandoned", self.address, effect.key)
        if isinstance(effect, RunTool):
            self._order(effect, AbandonToolCall(session=self.session, key=effect.key))

    def _order(self, effect: CallModel | RunTool | AskPerson, message: object) -> None:
        """Tell the actor that carries an effect out; where it is gone for good, the effect stays as after a crash."""
        if isinstance(effect, RunTool):
            address = f"{TOOL_KIND}/{effect.name}"
        else:
            assert self.state.configuration is not None
            kind = MODEL_KIND if isinstance(effect, CallModel) else APPROVAL_KIND
            address = f"{kind}/{self.state.configuration.agent}"
        try:
            self.system.ref(address).tell(message)
        except ActorStopped as error:
            log.warning("%s: a %s came to nothing: %s", self.address, type(message).__name__, error)

    def unrecordable(self, command: SessionCommand, reason: str) -> SessionCommand | None:
        """Return the failure to record where the result of an effect cannot be."""
        match command:
            case RecordToolResult(call=call):
                text = f"The tool's result cannot be recorded: {reason}"
                return RecordToolResult(call=call, content=(TextBlock(text=text),), kind="permanent")
            case RecordModelResponse(run=run, turn=turn, asked=asked):
                text = f"the model's answer cannot be recorded: {reason}"
                return RecordModelFailure(run=run, turn=turn, kind="malformed", message=text, asked=asked)
            case RecordModelFailure(run=run, turn=turn, asked=asked):
                text = f"the model call failed, and how cannot be recorded: {reason}"
                return RecordModelFailure(run=run, turn=turn, kind="agent_loop", message=text, asked=asked)
            case _:
                return None
