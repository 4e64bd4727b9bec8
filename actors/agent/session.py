"""The session actor: the session's core in the event-sourced shell.

Its address and stream are `session/<id>`. It asks the model actor of its agent and the actors of its tools to carry
out effects, and gets their ends as messages. Everything that is decided is in `refold.events.session.react`.

A session is its agent's until a call hands it to another one: the log says whose, and who begins it. One that a call of
another session began, see `refold.actors.agent.subsession`, ends its work with that call.
"""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, assert_never

import msgspec

from refold.actors.agent.approval import APPROVAL_KIND, StartApproval
from refold.actors.agent.model import MODEL_KIND, StartModelCall
from refold.actors.agent.subsession import (
    ChildInput,
    SessionEnvelope,
    ancestors_of,
    call_of_child,
    grace_of_child,
    is_call_open,
)
from refold.actors.agent.tool import StartToolCall
from refold.actors.calls.context import Dependencies, HookContext, SessionContext, hook_context, session_context
from refold.actors.calls.conversation import Conversation
from refold.actors.calls.protocols import SessionObserver
from refold.actors.calls.recall import Recalling
from refold.actors.calls.request import WantedRequest
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.shell.effect_port import EffectPort, Recovery
from refold.actors.shell.messages import CancelEffect, Envelope, Performed, read_state
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import TextBlock
from refold.events.core.errors import CommandRejected, ConfigError, CoreFailed, LogFormatError
from refold.events.core.event import Event
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId, stream_name
from refold.events.core.pure_core import Effect, WaitUntil
from refold.events.core.records import StoredEvent, event_ref
from refold.events.kinds.tool import TOOL_KIND
from refold.events.model.configuration import AgentConfiguration, ToolPolicy
from refold.events.session.commands import (
    MAY_RUN,
    QUEUE_MAX,
    AllowTurn,
    CancelRun,
    ClearHistory,
    Configure,
    DecideApproval,
    DescribeSession,
    ImportHistory,
    OpenSession,
    RecordContext,
    RecordModelFailure,
    RecordModelResponse,
    RecordQuestion,
    RecordToolResult,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session.core import SESSION_CORE, SESSION_KIND
from refold.events.session.events import (
    CancelRequested,
    InputQueued,
    ModelResponded,
    Repeat,
    RequestBuilt,
    RunCancelled,
    RunCompleted,
    RunFailed,
    SessionEvent,
    TimerFired,
    TimerSet,
    ToolApprovalRequested,
)
from refold.events.session.react import AskPerson, CallModel, RunTool
from refold.events.session.state import (
    Run,
    SessionState,
    awaits_step,
    calls_awaiting_answer,
    calls_awaiting_approval,
    configuration_of_run,
    expiry_key,
    input_key,
    is_interrupted,
    run_of_input,
    running_calls,
)
from refold.stores.event_store import EventStore

log = logging.getLogger("refold.session")

PUT_OFF_US = 3_600_000_000
"""How long a reminder waits that is due and cannot tell when it is due next."""


class PerformedInRun(Performed, frozen=True):
    """The reply to `SendInput` and `AllowTurn`."""

    run: RunId
    """The input's own or the one that it joins; the one that takes its next turn."""


class SessionSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions of one agent share."""

    configuration: AgentConfiguration
    """Its payloads are in the log already."""
    policies: dict[str, ToolPolicy]
    """Those of the configuration, by the names of their tools."""
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
    queue_max: int | None = QUEUE_MAX
    """Most inputs that wait in one session."""
    next_time: Callable[[Repeat, int, int], int | None]
    """Given when an input is due again and again, when it was due, and a time not before that: returns when it is due
    next after that time; None = never."""
    recalling: Recalling | None = None
    """The agent's memories, which are told what was recalled; None = it has none."""
    graph_entities: Callable[[SessionContext], int | None] | None = None
    """Tells at once how many entities a session sees of the agent's graph; None = it has no graph."""


class SessionPort(EffectPort[SessionState, SessionCommand, SessionEvent]):
    """Has the work of a session done by the actors of models, tools and approvals.

    A session that no call begins is the main agent's, whose `setting` is given; `others` are those of all agents of the
    runtime, by name, as they are now.
    """

    resumed_by: ClassVar[tuple[type, ...]] = (ResumeRun,)
    reports: ClassVar[tuple[type[Event], ...]] = (RequestBuilt,)

    def __init__(
        self,
        setting: SessionSetting,
        store: EventStore,
        observer: SessionObserver,
        others: Mapping[AgentId, SessionSetting],
        dependencies: Dependencies,
    ) -> None:
        self.cancel_grace_s = setting.cancel_grace_s
        self._main = setting
        self._others = others
        self._store = store
        self._observer = observer
        self._dependencies = dependencies
        self._brought: tuple[object, str | None] | None = None
        """What the last input came with that its run depends on, and the input's key, until the input is in the log."""
        self._conversation = Conversation(store.read_payloads)
        self._places: dict[str, str] = {}
        """Where tools run that were begun since the session was last at rest, by the key of the effect."""
        self._last_batch = 0
        """Version of the first event of the last batch; 0 = there was none in this life of the actor."""
        self._ancestors: tuple[SessionId, ...] | None = None
        """The sessions that may wait for this one, nearest first; None = it is not known yet."""
        self._outlived: RunId | None = None
        """The run of a call that was over when this instance began, and the run was not."""
        self._allowed: RunId | None = None
        """The run under way when a turn was allowed, which may have ended with that."""

    @property
    def session(self) -> SessionId:
        return SessionId(self.stream.partition("/")[2])

    @property
    def _context(self) -> SessionContext:
        return session_context(self.session, self._ancestors or (), self.state)

    @property
    def _setting(self) -> SessionSetting:
        return self._setting_of(self.state.agent)

    def _require_agent(self) -> None:
        """Return unless the session was handed to an agent that is not here, in whose place no other one goes on."""
        agent = self.state.agent
        if self.state.handed_off and agent not in self._others:
            known = ", ".join(map(repr, sorted(self._others)))
            raise CommandRejected(
                f"session {self.session!r} was handed to the agent {agent!r}, which this runtime does not have (it has "
                f"{known}); name it in the handoffs of one of them"
            )

    def _setting_of(self, agent: AgentId | None) -> SessionSetting:
        return self._others.get(agent or self._main.configuration.agent, self._main)

    # Where it comes from

    async def folded(self, first: StoredEvent | None) -> None:
        """Find where the session comes from; and share the configuration in force with all sessions that have it."""
        if self.state.configuration == self._setting.configuration:
            self.state.configuration, self.state.policies = self._setting.configuration, self._setting.policies
        if self._ancestors is None and first is not None:
            self._descend_from(await ancestors_of(self._store, self.session, first))
            self._outlived = await self._run_without_its_call()

    def _descend_from(self, ancestors: tuple[SessionId, ...]) -> None:
        self._ancestors = ancestors
        self.cancel_grace_s = grace_of_child(self._main.cancel_grace_s, len(ancestors))

    async def _run_without_its_call(self) -> RunId | None:
        """Return the run of the call that began the session, where the call is over and the run is not.

        The parent is asked, which takes up its own run first: that may close the call.
        """
        call = call_of_child(self.session)
        record = self.state.keys.get(call)
        if not self._ancestors or record is None or record.terminal or record.cancelled:
            return None
        parent = self.actor.system.ref(stream_name(SESSION_KIND, self._ancestors[0]))
        try:
            is_open = await read_state(parent, lambda state: is_call_open(state, call), vital=True)
        except (ActorStopped, AskTimeout, CoreFailed, LogFormatError) as error:  # Its parent's fault, not its own.
            log.warning("%s: it is not known whether the call goes on that began it: %s", self.actor.address, error)
            return None
        return None if is_open else record.run

    # Commands

    def prepared(self, envelope: Envelope) -> Sequence[SessionCommand]:
        """Return a command, and in front of it what opens the session and what is in force for its runs."""
        command: SessionCommand = envelope.command
        agent = self.state.agent
        if isinstance(envelope, ChildInput):
            agent = agent or envelope.agent
            if self.state.session is None:
                self._descend_from(envelope.ancestors)
            elif self._ancestors != envelope.ancestors:
                raise CommandRejected(f"there is a session {self.session!r} already, which no call of a subagent began")
        setting = self._setting_of(agent)
        if isinstance(command, MAY_RUN):
            self._require_agent()
        if isinstance(command, ResumeRun):
            wanted = SESSION_CORE.pending(self.state)
            goes_on = bool(wanted) and all(effect.key in self.effects.running for effect in wanted)
            if goes_on and not self._waits_for_resume():
                return ()
            changed = self._code_changed(setting)
            command = msgspec.structs.replace(command, tools=setting.tools, code_changed=changed)
        if isinstance(command, SendInput):
            command = msgspec.structs.replace(command, queue_max=setting.queue_max)
        self._brought = None
        if isinstance(envelope, SessionEnvelope) and envelope.deps is not None:
            self._bring(command, envelope.deps)
        if isinstance(command, AllowTurn):
            self._allowed = self.state.run.id if self.state.run is not None else None
        described = envelope.describes if isinstance(envelope, SessionEnvelope) else None
        return (*self._preparation(command, setting, described), command)

    def _bring(self, command: SessionCommand, deps: object) -> None:
        """Take note of what came with a command; one that lets runs go on gives it to those that have nothing yet."""
        if isinstance(command, SendInput):
            self._brought = deps, command.key
            return
        run_now = self.state.run
        named = (
            [run_now.id] if run_now is not None and isinstance(command, ResumeRun | AllowTurn | DecideApproval) else []
        )
        if isinstance(command, ResumeRun):
            named += [queued.run for queued in self.state.queue]
        for run in named:
            self._dependencies.give(self.session, run, deps, instead=False)

    def _note_deps(self, events: Sequence[RecordedEvent[SessionEvent]]) -> None:
        """Give a run that begins, or an input that waits, what came with it; and let go of that when it is over."""
        for recorded in events:
            match recorded.event:
                case InputQueued(reminder=reminder) if reminder:
                    self._dependencies.give_same(self.session, run_of_input(recorded.version), run_of_input(reminder))
                case InputQueued(scheduled=0) | TimerSet() as event:
                    if self._brought is not None and event.key == self._brought[1]:
                        run = getattr(event, "joins", None) or run_of_input(recorded.version)
                        self._dependencies.give(self.session, run, self._brought[0])
                        self._brought = None
                case RunCompleted() | RunFailed() | RunCancelled() as event:
                    self._dependencies.let_go(self.session, event.run)
                case CancelRequested(run=run) if self.state.run is None or self.state.run.id != run:
                    self._dependencies.let_go(self.session, run)  # Its turn is still to come, and does nothing.
                case _:
                    pass

    def _give_again(self, command: SendInput) -> None:
        """Give the run of an input that was there before, if it goes on, what came with it now."""
        brought, self._brought = self._brought, None
        record = self.state.keys.get(command.key) if command.key is not None else None
        if brought is None or record is None or record.run is None or record.terminal or record.cancelled:
            return
        self._dependencies.give(self.session, record.run, brought[0])

    def _preparation(
        self, command: SessionCommand, setting: SessionSetting, described: DescribeSession | None = None
    ) -> Sequence[SessionCommand]:
        """Open the session where something is to be recorded in it, and tell it what is in force for its runs."""
        opens = isinstance(command, SendInput | ImportHistory | DescribeSession) or (
            isinstance(command, ClearHistory) and command.key is not None
        )
        whose = (described,) if described is not None else ()
        if not (opens if self.state.session is None else isinstance(command, MAY_RUN)):
            return whose if self.state.session is not None else ()
        configure = Configure(configuration=setting.configuration)
        if self.state.session is None:
            entities, context = setting.graph_entities, self._context
            if described is not None:
                context = msgspec.structs.replace(context, user=described.user)
            opening = OpenSession(
                session=self.session,
                agent=setting.configuration.agent,
                graph_entities=entities(context) if entities is not None else None,
            )
            return (opening, *whose, configure)
        return whose if self.state.configuration is setting.configuration else (*whose, configure)

    def joins(self, envelope: Envelope) -> bool:
        """Let inputs that wait together share a transaction; what is large, or of a call, goes by itself."""
        if not isinstance(envelope.command, SendInput) or envelope.cause is not None or envelope.payloads:
            return False
        return type(envelope) is Envelope or (type(envelope) is SessionEnvelope and envelope.deps is None)

    async def reply(self, envelope: Envelope, performed: Performed) -> Performed | WantedRequest | None:
        version, new = performed.version, performed.new
        match envelope.command:
            case SendInput() as command:
                performed = PerformedInRun(version, new, self._run_of(command, version))
                self._give_again(command)
                if isinstance(envelope, ChildInput) and self.effects.blocked:  # The call wants its run to go on.
                    await self.actor.receive(Envelope(ResumeRun(tools=self._setting.tools)))
            case AllowTurn():
                assert self._allowed is not None
                performed = PerformedInRun(version, new, self._allowed)
            case RecordContext() as command:
                return self._wanted_still(command)
            case _:
                pass
        return performed

    def _waits_for_resume(self) -> bool:
        run = self.state.run
        return run is not None and (run.parked or awaits_step(run))

    def _run_of(self, command: SendInput, version: int) -> RunId:
        record = self.state.keys.get(command.key) if command.key is not None else None
        if record is not None and record.run is not None:
            return record.run
        run = self.state.run
        joined = run is not None and any(queued.version == version for queued in run.joining)
        return run.id if run is not None and joined else run_of_input(version)

    # Recovery

    def recovery(self, wanted: Sequence[Effect]) -> Recovery:
        """Let the open run go on in this process, with today's configuration; or wait for a command that asks for it.

        The run of a call that is over does not go on: it is cancelled, as it would have been with the call.
        """
        cancel: Sequence[SessionCommand] = ()
        if self._outlived is not None:
            cancel = (CancelRun(run=self._outlived, reason="the call that began it is over"),)
            if self.state.run is None or self.state.run.id == self._outlived:
                return Recovery(cancel)
        going_on = self._going_on()
        if going_on is None:
            return Recovery(blocked=frozenset(effect.key for effect in wanted if self._waits_for_recovery(effect)))
        return Recovery((*cancel, *going_on))

    def _going_on(self) -> Sequence[SessionCommand] | None:
        setting, interrupted = self._setting, is_interrupted(self.state)
        waits = calls_awaiting_approval(self.state) or calls_awaiting_answer(self.state)
        if not setting.auto_resume and (interrupted or waits):
            return None
        if self.state.agent != setting.configuration.agent:
            log.warning(
                "%s has work of agent %r, which is not this runtime's; %s",
                self.actor.address,
                self.state.agent,
                "it waits for one that has it" if self.state.handed_off else "resume() lets it go on here",
            )
            return None
        if not interrupted:  # What it waits for, a time or a person, is dealt with by today's configuration too.
            return (Configure(configuration=setting.configuration),)
        resume = ResumeRun(
            tools=setting.tools,
            in_order=setting.after_order,
            waited=self._waits_for_children(),
            code_changed=self._code_changed(setting),
        )
        return (*self._preparation(resume, setting), resume)

    def _code_changed(self, setting: SessionSetting) -> bool:
        now, before = setting.configuration, self.state.configuration
        return before is not None and (now.fingerprint, now.code) != (before.fingerprint, before.code)

    def _waits_for_children(self) -> bool:
        running = running_calls(self.state.turn)
        return bool(running) and all(call.name in self._setting.subagents for call in running)

    def _waits_for_recovery(self, effect: Effect) -> bool:
        """Tell whether an effect begins only when the run is resumed; all of another agent's do.

        The times of inputs and decisions do not wait: they need neither its model nor its tools.
        """
        if self.state.agent != self._setting.configuration.agent:
            return True
        return effect.key not in (input_key(effect.causation), expiry_key(effect.causation))

    # The log and the work outside

    def published(self, events: Sequence[RecordedEvent[SessionEvent]]) -> None:
        self._last_batch = events[-1].batch
        recalling = self._setting.recalling
        self._note_deps(events)
        self._observer.recorded(self.session, events)
        if recalling is not None:
            for event in [recorded.event for recorded in events]:
                if isinstance(event, ModelResponded) and event.request.recalled:
                    recalling.note(self._context, event.run, event.request.recalled)

    def settled(self) -> None:
        if self._places and not self.effects.running:
            self._places.clear()
        self._observer.settled(self.session, self.state)

    def begin(self, effect: CallModel | RunTool | AskPerson) -> bool:
        key, reply_to = effect.key, self.actor.actor_ref
        match effect:
            case CallModel():
                run = self.state.run
                assert run is not None
                wanted = self._wanted_request(run, effect.turn, configuration_of_run(self.state))
                cause = (event_ref(self.stream, effect.causation), event_ref(self.stream, effect.correlation))
                message: object = StartModelCall(key=key, reply_to=reply_to, wanted=wanted, cause=cause)
            case RunTool():
                message = StartToolCall(
                    key=key,
                    session=self.session,
                    reply_to=reply_to,
                    call=effect.call,
                    arguments=effect.input,
                    started=event_ref(self.stream, effect.causation),
                    correlation=event_ref(self.stream, effect.correlation),
                    ancestors=self._ancestors or (),
                    context=self._context,
                    attempt=effect.attempt,
                    answers=effect.answers,
                    again=effect.again,
                    where=self._where(effect.call, effect.name),
                )
            case AskPerson():
                request = self._request_of(effect)
                where = self._where(effect.call, effect.tool)
                message = StartApproval(key=key, session=self.session, reply_to=reply_to, request=request, where=where)
            case _:
                assert_never(effect)
        self._order(effect, message)
        return True

    def _deps(self, run: RunId | None) -> object:
        return self._dependencies.of(self.session, run, self.state.agent)

    def _where(self, call: ToolCallId, tool: str) -> HookContext:
        run = self.state.run
        named, turn = (run.id, run.turns) if run is not None else (None, 0)
        return hook_context(self._context, deps=self._deps(named), run=named, turn=turn, call=call, tool=tool)

    def _wanted_still(self, command: RecordContext) -> WantedRequest | None:
        run = self.state.run
        if run is None or (run.id, run.asked) != (command.run, command.asked) or run.phase != "model":
            return None
        return self._wanted_request(run, command.turn, configuration_of_run(self.state))

    def _wanted_request(self, run: Run, turn: int, configuration: AgentConfiguration) -> WantedRequest:
        messages = self.state.messages
        return WantedRequest(
            context=self._context,
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
            deps=self._deps(run.id),
            accepted=self.state.accepted if self.state.accepted_by == configuration.model else 0,
            answered=self.state.accepted,
            ancestors=self._ancestors or (),
            counted=self.state.counted,
            fits=self.state.fits,
            unsummarised=self.state.unsummarised,
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

    def due(self, effect: WaitUntil) -> SessionCommand | None:
        first = self.state.scheduled[0] if self.state.scheduled else None
        if first is None or first.timer != effect.key or first.every is None:
            return TimerFired(timer=effect.key)
        now_us = max(self.actor.system.clock.now_us(), first.due_at)
        try:
            return TimerFired(timer=effect.key, next_at=self._setting.next_time(first.every, first.due_at, now_us))
        except ConfigError as error:  # Another process, or this one later, may be able to tell.
            log.error("%s: a reminder is due and waits an hour: %s", self.actor.address, error)
            return TimerFired(timer=effect.key, next_at=now_us + PUT_OFF_US, put_off=str(error))

    def cancel(self, effect: CallModel | RunTool | AskPerson) -> None:
        cause = event_ref(self.stream, self._last_batch) if self._last_batch else None
        self._order(effect, CancelEffect(self.stream, effect.key, cause))

    def abandon(self, effect: CallModel | RunTool | AskPerson) -> None:
        log.warning("%s: %s ignored its cancellation and is abandoned", self.actor.address, effect.key)
        if isinstance(effect, RunTool):
            self._order(effect, CancelEffect(self.stream, effect.key, abandoned=True))

    def _order(self, effect: CallModel | RunTool | AskPerson, message: object) -> None:
        """Tell the actor that carries an effect out; where it is gone for good, the effect stays as after a crash."""
        if isinstance(effect, RunTool):  # Where it began, whosever the session is by now.
            place = self._places.setdefault(effect.key, self._setting.tool_place)
            address = f"{TOOL_KIND}/{place}{effect.name}"
        else:
            assert self.state.configuration is not None
            kind = MODEL_KIND if isinstance(effect, CallModel) else APPROVAL_KIND
            address = f"{kind}/{self.state.configuration.agent}"
        try:
            self.actor.system.ref(address).tell_at_once(message)
        except ActorStopped as error:
            log.warning("%s: a %s is not carried out: %s", self.actor.address, type(message).__name__, error)

    def failed(self, effect: Effect | None, command: SessionCommand, error: Exception) -> SessionCommand | None:
        reason = str(error) if isinstance(error, CommandRejected) else type(error).__name__
        match command:
            case RecordToolResult(call=call, attempt=attempt) | RecordQuestion(call=call, attempt=attempt):
                what = "result" if isinstance(command, RecordToolResult) else "question"
                text = f"The tool's {what} cannot be recorded: {reason}"
                return RecordToolResult(call=call, content=(TextBlock(text=text),), kind="permanent", attempt=attempt)
            case RecordModelResponse(run=run, turn=turn, asked=asked):
                text = f"the model's answer cannot be recorded: {reason}"
                return RecordModelFailure(run=run, turn=turn, kind="malformed", message=text, asked=asked)
            case RecordModelFailure(run=run, turn=turn, asked=asked):
                text = f"the model call failed, and how cannot be recorded: {reason}"
                return RecordModelFailure(run=run, turn=turn, kind="agent_loop", message=text, asked=asked)
            case _:
                return None
