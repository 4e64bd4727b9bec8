"""How a subagent's tool has its work done: one run in the call's child session, awaited to its end.

Read `refold.actors.agent.subsession` for how a child is linked to its parent. The rules: the call's id is the key of
the child's input, so that a call that is run again finds the run that it began; the child is cancelled with its call,
and the call ends when the child's work has ended; and a runtime that closes leaves both open.
"""

import asyncio
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from refold.actors.agent.session import SessionSetting
from refold.actors.agent.subsession import ChildInput, child_session
from refold.actors.calls.conversation import Conversation, own_copy
from refold.actors.calls.questions import CallFailed
from refold.actors.calls.tool_context import CallingTool, ShownHistory, ToolContext
from refold.actors.calls.validation import checked_messages
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.supervision import Background
from refold.actors.shell.effects import RECORD_RETRY_S, once_log_allows
from refold.actors.shell.messages import Envelope, Performed, read_state
from refold.agents.agent import AnyAgent
from refold.context import RuntimeContext
from refold.events.core.cleaning import error_words
from refold.events.core.content import ErrorKind, Message
from refold.events.core.errors import BackpressureShed, CommandRejected, PersistenceError, ToolError
from refold.events.core.ids import AgentId, PayloadHash, stream_name
from refold.events.model.configuration import Handoff
from refold.events.model.context_window import summary_fault
from refold.events.session.commands import CancelRun, SendInput, SessionCommand
from refold.events.session.core import SESSION_KIND
from refold.events.session.events import ToolCallWaiting
from refold.events.session.state import SessionState
from refold.sessions.access import SessionAccess, describe_command
from refold.sessions.inputs import input_content
from refold.sessions.outcome import Cancelled, Failed, RunResult
from refold.sessions.sent_input import SentInput

log = logging.getLogger("refold.subagent")

KINDS: dict[str, ErrorKind] = {"provider": "transient", "run_timeout": "timeout"}
"""What the failures of a child's run are as results of its parent's call; all others are permanent."""


class ChildAccess(SessionAccess):
    """Takes the input of a call to its child session."""

    def __init__(self, context: RuntimeContext, agent: AgentId, calling: CallingTool, deps: object) -> None:
        described = describe_command(calling.context.user, calling.context.metadata)
        child, output_type = child_session(calling.session, calling.call), context.output_types.get(agent)
        super().__init__(context, child, output_type, deps, described)
        self._agent = agent
        self._calling = calling

    async def ask(self, command: SessionCommand, payloads: dict[PayloadHash, bytes] | None = None) -> Performed:
        """Do as `SessionAccess.ask`; an input begins the session where there is none."""
        if not isinstance(command, SendInput):
            return await super().ask(command, payloads)
        self.context.require_open()
        calling = self._calling
        message = ChildInput(
            command,
            payloads or {},
            vital=True,
            cause=(calling.started, calling.correlation),
            agent=self._agent,
            describes=self.named.said,
            ancestors=(calling.session, *calling.ancestors),
            deps=self.deps,
        )
        performed: Performed = await self.context.system.ref(self.stream).ask(message, block=False)
        return performed

    def cancel_surely(self, command: CancelRun) -> None:
        """Have a run cancelled; its log names what cancelled the call."""
        cause = self._calling.ended_by()
        self._insist(command, (cause, self._calling.correlation) if cause is not None else None)


class WaitForPerson:
    """Has a session told when the work of a call of it waits for a person, and when it goes on."""

    def __init__(self, context: RuntimeContext, calling: CallingTool) -> None:
        self._context = context
        self._calling = calling
        self._waits = False
        self._told: bool | None = None
        self._changed = asyncio.Event()

    def see(self, waits: bool) -> None:
        """Take note of whether it waits now."""
        self._waits = waits
        if waits != self._told:
            self._changed.set()

    async def tell(self) -> None:
        """Tell it, for ever; what the log refuses is told again later."""
        session = self._context.system.ref(stream_name(SESSION_KIND, self._calling.session))
        while True:
            await self._changed.wait()
            self._changed.clear()
            waits = self._waits
            if waits == self._told:
                continue
            try:
                command = ToolCallWaiting(call=self._calling.call, waits=waits)
                await session.ask(Envelope(command, vital=True), block=False)
                self._told = waits
            except (PersistenceError, AskTimeout) as error:
                log.warning("%s is not told whether %s waits: %s", session.address, self._calling.call, error)
                await self._context.system.clock.sleep(RECORD_RETRY_S)
                self._changed.set()
            except ActorStopped:
                return


class SubagentRuns:
    """Runs the other agents of a runtime for the calls of tools, or hands sessions to them as they are set now."""

    def __init__(
        self, context: RuntimeContext, agents: Mapping[str, AnyAgent], settings: Mapping[AgentId, SessionSetting]
    ) -> None:
        self._context = context
        self._agents = agents
        self._settings = settings

    async def hand_over(
        self, agent: str, history: ShownHistory, context: ToolContext[object], calling: CallingTool
    ) -> None:
        """Do as `refold.actors.calls.tool_context.Subagents` says."""
        found = self._settings.get(AgentId(agent))
        if found is None:
            raise ToolError(f"The agent {agent} is not one of this runtime; the conversation stays here.")
        shown = await self._shown(history, calling) if history != "all" else None
        context.handoff = Handoff(agent=AgentId(agent), configuration=found.configuration, history=shown)

    async def _shown(self, history: ShownHistory, calling: CallingTool) -> tuple[Message, ...]:
        """Return what of a history is shown, in the form in which it is recorded."""
        ref = self._context.system.ref(stream_name(SESSION_KIND, calling.session))
        before = await read_state(ref, _before_turn, vital=True)
        if before is None:
            raise ToolError("The run has ended meanwhile; the conversation stays here.")
        kept, latest = before
        if not callable(history):
            return (kept[latest],)
        whole, _ = await Conversation(self._context.journal.store.read_payloads).upto(kept, len(kept))
        try:
            chosen = [(message, kept[whole.index(message)]) if message in whole else (message, None)
                      for message in history(tuple(map(own_copy, whole)))]  # fmt: skip
            shown = tuple(own or checked_messages([given])[0] for given, own in chosen)
        except Exception as error:
            raise ToolError(f"What is to be shown of the history cannot be told: {error_words(error)}") from error
        fault = summary_fault(kept, latest, len(kept), shown)
        if fault is not None:
            raise ToolError(f"What is to be shown of the history cannot be shown: {fault}")
        return shown

    async def answer(self, agent: str, task: str, context: ToolContext[object], calling: CallingTool) -> object:
        """Do as `refold.actors.calls.tool_context.Subagents` says."""
        found = self._agents.get(agent)
        if found is None:
            raise ToolError(
                f"The agent {agent} is not one of this runtime, so nothing was run: its tool was registered later."
            )
        depth_max = self._context.settings.subagent_depth_max
        if len(calling.ancestors) >= depth_max:
            raise CallFailed(
                f"Not run: subagents may begin others {depth_max} levels deep, and this one would be one level deeper. "
                "Do the task without it.",
                result_kind="denied",
            )
        try:
            result = await self._result(AgentId(agent), task, context, calling)
        except BackpressureShed as error:
            raise CallFailed(f"The agent {agent} has too much to do: {error}", result_kind="shed") from error
        except CommandRejected as error:
            raise ToolError(f"The agent {agent} does not take the task: {error}") from error
        if isinstance(result.outcome, Cancelled):
            context.cancel.raise_if_cancelled()  # With its call; else by another caller.
        return _answer_in(result, found)

    async def _result(
        self, agent: AgentId, task: str, context: ToolContext[object], calling: CallingTool
    ) -> RunResult[Any]:
        shared = self._context
        content, payloads = input_content(task)
        cancel = context.cancel
        deps = context.deps if agent not in shared.dependencies.of_agents else None
        access = ChildAccess(shared, agent, calling, deps)

        async def attempt() -> RunResult[Any]:
            # The input may be in the log though that was not told; its key will tell.
            command = SendInput(content=content, key=calling.call, cancelled=cancel.cancelled)
            try:
                handle = SentInput(access, command, payloads, cancel)
                await handle.done()
                return handle.result()
            except ActorStopped as error:
                if not shared.is_closing():
                    text = f"The session {access.session} of the agent {agent} has failed for good: {error}"
                    raise CallFailed(text, result_kind="crashed") from error
                # The call stays open, as after a crash, once this actor has stopped and cancelled this task.
                never: RunResult[Any] = await asyncio.get_running_loop().create_future()
                return never

        waiting = WaitForPerson(shared, calling)
        telling = shared.system.background(f"waits {access.session}", waiting.tell)
        with (
            _until_the_end(telling),
            shared.event_bus.watch_model(access.session, calling.listen),
            shared.event_bus.watch_person(access.session, waiting.see),
            shared.in_flight.only_waiting(stream_name(SESSION_KIND, calling.session), f"tool:{calling.call}"),
        ):
            return await once_log_allows(attempt, shared.system.clock, access.stream, (PersistenceError, AskTimeout))


@contextmanager
def _until_the_end(work: Background) -> Generator[None, None, None]:
    try:
        yield
    finally:
        work.end()


def _before_turn(state: SessionState) -> tuple[list[Message], int] | None:
    """Return the history before the answer whose calls are open, and the place of the latest input in it.

    None = no calls are open any more.
    """
    return (list(state.messages)[:-1], state.run.latest_input) if state.run is not None and state.turn else None


def _answer_in(result: RunResult[Any], agent: AnyAgent) -> object:
    """Return the answer of a run, or raise ToolError where it has none."""
    match result.outcome:
        case Failed(error=error):
            kind = KINDS.get(error.kind, "permanent")
            raise CallFailed(f"The agent {agent.name} failed ({error.kind}): {error}", result_kind=kind)
        case Cancelled():
            text = f"The run of the agent {agent.name} was cancelled before it had an answer."
            raise CallFailed(text, result_kind="cancelled")
        case _:
            return result.text if result.output_type is None else result.output
