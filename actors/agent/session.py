"""The session actor: the session's core in the event-sourced shell.

Its address and stream are `session/<id>`. It asks the model actor of its agent and the actors of its tools to carry
out effects, and gets their ends as messages. Everything that is decided is in `refold.events.session.react`.

A session is its agent's for ever: the log says whose, and who begins it. One that a call of another session began, see
`refold.actors.agent.subsession`, ends its work with that call.
"""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

import msgspec

from refold.actors.agent.approval import APPROVAL_KIND, CancelApproval, StartApproval
from refold.actors.agent.messages import ForAcceptedWork, InsistOnCancel, PreparedContext, WakeSession
from refold.actors.agent.model import MODEL_KIND, CancelModelCall, StartModelCall
from refold.actors.agent.subsession import (
    ChildInput,
    ancestors_of,
    call_of_child,
    grace_of_child,
    is_call_open,
)
from refold.actors.agent.tool import AbandonToolCall, CancelToolCall, StartToolCall
from refold.actors.calls.conversation import Conversation
from refold.actors.calls.protocols import SessionObserver
from refold.actors.calls.recall import Recalling
from refold.actors.calls.request import WantedRequest
from refold.actors.effects import EffectsInFlight, WithPayloads
from refold.actors.event_sourced import RECORD_RETRY_S, EventSourcedActor
from refold.actors.folded_actor import Performed
from refold.actors.journal import Journal
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import TextBlock
from refold.events.core.contract import Effect, Plan, Wait, WaitUntil
from refold.events.core.errors import CommandRejected, CoreFailed, LogFormatError, PersistenceError
from refold.events.core.ids import AgentId, EventRef, RunId, SessionId, event_ref, kind_and_identifier, stream_name
from refold.events.core.records import EncodedBatch, StoredEvent
from refold.events.kinds.tool import TOOL_KIND
from refold.events.model.configuration import AgentConfiguration
from refold.events.session.commands import (
    MAY_RUN,
    AllowTurn,
    CancelRun,
    ClearHistory,
    Configure,
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
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import ModelResponded, SessionEvent, ToolApprovalRequested
from refold.events.session.react import AskPerson, CallModel, RunTool
from refold.events.session.state import (
    Run,
    SessionState,
    awaits_step,
    calls_awaiting_approval,
    expiry_key,
    input_key,
    is_interrupted,
    run_of_input,
    running_calls,
)

log = logging.getLogger("refold.session")


class PerformedInRun(Performed, frozen=True):
    """The reply to `SendInput` and `AllowTurn`."""

    run: RunId
    """The input's own or the one that it joins; the one that takes its next turn."""


class ReadSession(msgspec.Struct, frozen=True):
    """Reply with the answer to a question about the session's state.

    The question is asked inside the handler, where the state is durable; its answer must not hold on to the state.
    """

    question: Callable[[SessionState], object]


class SessionSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions of one agent share."""

    configuration: AgentConfiguration
    """Its payloads are in the log already."""
    tools: tuple[str, ...]
    """Names of the tools that exist."""
    tool_place: str = ""
    """What stands before a tool's name in the identifier of its actor."""
    subagents: frozenset[str] = frozenset()
    """Names of the tools whose calls other agents carry out."""
    auto_resume: bool = True
    after_order: bool = False
    """Whether the runtime before this one had ended in order, so that no run of it was interrupted by a crash."""
    cancel_grace_s: float = 5.0
    recalling: Recalling | None = None
    """The agent's memories, which are told what was recalled; None = it has none."""
    graph_entities: Callable[[], int | None] | None = None
    """Tells at once how many entities the agent's graph has; None = it has no graph."""


NOBODY_ELSE: Mapping[AgentId, SessionSetting] = MappingProxyType({})


class SessionActor(EventSourcedActor[SessionState, SessionCommand, SessionEvent]):
    """One conversation, its queue of inputs and the run under way.

    Args:
        setting: of the runtime's main agent, whose a session is that nobody's call begins.
        journal: where batches go.
        in_flight: the effects that run in this process.
        observer: is told what happens.
        others: the settings of all agents of the runtime, by name, as they are now.
    """

    def __init__(
        self,
        setting: SessionSetting,
        journal: Journal,
        in_flight: EffectsInFlight,
        observer: SessionObserver,
        others: Mapping[AgentId, SessionSetting] = NOBODY_ELSE,
    ) -> None:
        super().__init__(
            SESSION_CORE, SESSION_CODEC, journal, in_flight=in_flight, cancel_grace_s=setting.cancel_grace_s
        )
        self._main = setting
        self._others = others
        self._began_by: ChildInput | None = None
        """What begins the session, while it does."""
        self._caused_by: tuple[EventRef, EventRef] | None = None
        """The event of another session, and what that goes back to, that the command at hand follows from."""
        self._last_batch = 0
        """Version of the first event of the last batch; 0 = there was none in this life of the actor."""
        self._ancestors: tuple[SessionId, ...] | None = None
        """The sessions that may wait for this one, nearest first; None = it is not known yet."""
        self._outlived: RunId | None = None
        """The run of a call that was over when this instance began, and the run was not."""
        self._observer = observer
        self._conversation = Conversation(journal.store.read_payloads)

    @property
    def session(self) -> SessionId:
        """The session's id."""
        return SessionId(kind_and_identifier(self.address)[1])

    @property
    def _setting(self) -> SessionSetting:
        """The setting of the session's agent; of the main one where that is not one of the runtime's."""
        agent = self.state.agent or (self._began_by.agent if self._began_by is not None else None)
        return self._others.get(agent or self._main.configuration.agent, self._main)

    async def _fold(self) -> list[StoredEvent]:
        """Fold the state; one configuration in memory serves all sessions that have it in force."""
        stored = await super()._fold()
        if self.state.configuration == self._setting.configuration:
            self.state.configuration = self._setting.configuration
        if self._ancestors is None and stored:
            self._stale = True  # Until it is known where the session comes from.
            store = self.journal.store
            first = stored[0] if stored[0].version == 1 else (await store.read_stream(self.stream, limit=1))[0]
            self._descend_from(await ancestors_of(store, self.session, first))
            self._outlived = await self._run_without_its_call()
            self._stale = False
        return stored

    def _descend_from(self, ancestors: tuple[SessionId, ...]) -> None:
        self._ancestors = ancestors
        self._grace_s = grace_of_child(self._main.cancel_grace_s, len(ancestors))

    async def _run_without_its_call(self) -> RunId | None:
        """Return the run of the call that began the session, where the call is over and the run is not.

        The parent is asked, which takes up its own run first: that may close the call.
        """
        call = call_of_child(self.session)
        record = self.state.keys.get(call)
        if not self._ancestors or record is None or record.terminal or record.cancelled:
            return None
        parent = self.system.ref(stream_name(SESSION_KIND, self._ancestors[0]))
        question = ForAcceptedWork(ReadSession(lambda state: is_call_open(state, call)))
        try:
            is_open: bool = await parent.ask(question, block=False)
        except (ActorStopped, AskTimeout, CoreFailed, LogFormatError) as error:  # Its parent's fault, not its own.
            log.warning("%s: it is not known whether the call goes on that began it: %s", self.address, error)
            return None
        return None if is_open else record.run

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
        if type(message) is ChildInput:
            return await self._input_of_call(message)
        if type(message) is ResumeRun:
            if self.goes_on() and not self._waits_for_resume():
                return Performed(0, False)
            if self._setting is not self._main:
                message = msgspec.structs.replace(message, tools=self._setting.tools)
        if type(message) is AllowTurn:
            return await self._allow_turn(message)
        reply = await super().on_receive(message)
        command = message.command if type(message) is WithPayloads else message
        if isinstance(reply, Performed) and type(command) is SendInput:
            return PerformedInRun(reply.version, reply.new, self._run_of(command, reply.version))
        if isinstance(reply, Performed) and type(command) is RecordContext:
            return PreparedContext(reply.version, reply.new, self._wanted_still(command))
        return reply

    async def _input_of_call(self, message: ChildInput) -> object:
        """Accept the input of the call that begins this session, or has begun it; the work of it goes on, if it waits.

        Raises:
            CommandRejected: the session is another one, which happens to have this id.
        """
        await self.require_durable_state()
        if self.state.session is None:
            self._descend_from(message.ancestors)
        elif self._ancestors != message.ancestors:
            raise CommandRejected(f"there is a session {self.session!r} already, which no call of a subagent began")
        command = WithPayloads(message.command, message.payloads) if message.payloads else message.command
        self._began_by = message
        self._caused_by = (message.started, message.correlation)
        try:
            performed = await self.on_receive(command)
        finally:
            self._began_by = self._caused_by = None
        if self._effects.held:
            await super().on_receive(ResumeRun(tools=self._setting.tools))
        return performed

    def _encoded(self, planned: Plan[SessionState, SessionEvent], effect: Effect | None) -> EncodedBatch:
        batch, caused_by = super()._encoded(planned, effect), self._caused_by
        if caused_by is None or effect is not None:
            return batch
        return msgspec.structs.replace(batch, causation=caused_by[0], correlation=caused_by[1])

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
        if message.cause is not None:
            self._caused_by = (message.cause, message.correlation or message.cause)
        try:
            return await super().on_receive(message.command)
        except PersistenceError as error:
            log.warning("%s: a cancellation is not recorded yet: %s", self.address, error)
            again = msgspec.structs.replace(message, attempt=message.attempt + 1)
            self._tell_later(RECORD_RETRY_S * 2 ** min(message.attempt, 5), again)
            return None
        finally:
            self._caused_by = None

    def preparation(self, command: SessionCommand) -> Sequence[SessionCommand]:
        """Open the session where something is to be recorded in it, and tell it what is in force for its runs."""
        opens = isinstance(command, SendInput | ImportHistory) or (
            isinstance(command, ClearHistory) and command.key is not None
        )
        if not (opens if self.state.session is None else isinstance(command, MAY_RUN)):
            return ()
        configuration = self._setting.configuration
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
        """Let the open run go on in this process, with today's configuration; or wait for somebody who asks for it.

        The run of a call that is over does not go on: it is cancelled, as it would have been with the call.
        """
        if self._outlived is None:
            return self._going_on()
        cancel = CancelRun(run=self._outlived, reason="the call that began it is over")
        if self.state.run is None or self.state.run.id == self._outlived:
            return (cancel,)
        others = self._going_on()
        return (cancel, *others) if others is not None else None

    def _going_on(self) -> Sequence[SessionCommand] | None:
        """Return what lets the open run go on; None = it waits for somebody who asks for it."""
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
        setting = self._setting
        resume = ResumeRun(tools=setting.tools, in_order=setting.after_order, waited=self._waits_for_children())
        return (*self.preparation(resume), resume)

    def _waits_for_children(self) -> bool:
        """Tell whether the run does nothing but wait for runs of child sessions."""
        running = running_calls(self.state.turn)
        return bool(running) and all(call.name in self._setting.subagents for call in running)

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
        self._last_batch = events[-1].batch
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
                    correlation=event_ref(self.stream, effect.correlation),
                    ancestors=self._ancestors or (),
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
                cause = event_ref(self.stream, self._last_batch) if self._last_batch else None
                self._order(effect, CancelToolCall(session=self.session, key=effect.key, cause=cause))
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
            address = f"{TOOL_KIND}/{self._setting.tool_place}{effect.name}"
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
