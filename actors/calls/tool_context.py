"""What a running tool is told, and how it reports back."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

from refold.actors.calls.context import SessionContext
from refold.actors.calls.questions import AwaitedAnswer, Questions, call_is_over
from refold.actors.cancellation import CancellationToken
from refold.actors.kernel.errors import AskCycle
from refold.actors.kernel.ref import System
from refold.events.core.content import Message, ResultContent
from refold.events.core.errors import ConfigError, ToolError
from refold.events.core.ids import EventRef, PayloadHash, SessionId, ToolCallId, stream_name
from refold.events.model.configuration import Handoff
from refold.events.session.core import SESSION_KIND

D = TypeVar("D")
T = TypeVar("T")


ShownHistory: TypeAlias = Literal["all", "input"] | Callable[[Sequence[Message]], Sequence[Message]]
"""What an agent to which a conversation is handed is shown of it: all, the latest input, or what a function returns."""


class Subagents(Protocol):
    """Runs other agents for calls of tools."""

    async def answer(self, agent: str, task: str, context: "ToolContext[object]", calling: "CallingTool") -> object:
        """Return an agent's answer to a task in the call's child session; a ToolError says why there is none."""
        ...

    async def hand_over(
        self, agent: str, history: ShownHistory, context: "ToolContext[object]", calling: "CallingTool"
    ) -> None:
        """Have the call hand its session to an agent, as of the end of the turn; a ToolError says why it is not."""
        ...


class CallingTool:
    """Whose call a tool's body carries out: a wait for a session that waits for it can be refused, and a child begun.

    Attributes:
        system: where the sessions live.
        session: whose call it is.
        context: whose session that is.
        ancestors: the sessions that wait for that one: its parent, the parent's parent and so on.
        call: the call.
        started: its ToolCallStarted.
        correlation: what that goes back to.
        subagents: runs other agents; None = nobody does here.
        listen: begins anew to wait for a sign of life of the body, or with False lets it be silent.
        ended_by: returns the event of the session that cancelled the call; None = none did, or it is not known.
    """

    def __init__(
        self,
        system: System,
        session: SessionId,
        *,
        context: SessionContext | None = None,
        ancestors: tuple[SessionId, ...] = (),
        call: ToolCallId,
        started: EventRef,
        correlation: EventRef,
        subagents: Subagents | None = None,
        listen: Callable[[bool], None],
        ended_by: Callable[[], EventRef | None],
    ) -> None:
        self.system = system
        self.session = session
        self.context = context or SessionContext(session=session, conversation=session)
        self.ancestors = ancestors
        self.call = call
        self.started = started
        self.correlation = correlation
        self.subagents = subagents
        self.listen = listen
        self.ended_by = ended_by
        self.over = False
        """Whether the body has ended; its session does not wait for what it has begun and left behind."""


_WITHOUT_WAITING = (
    "Return what is to be said as the tool's result, use another session, or accept an input for after this run with "
    "the session's submit() or remind(), which do not wait for its answer"
)

calling_tool: ContextVar[CallingTool | None] = ContextVar("calling_tool", default=None)
"""Set inside a tool's body, and in what it begins."""


def _nothing() -> None:
    pass


class ToolWaits:
    """Which tools of a runtime wait for which sessions: a wait that would never end is refused at once."""

    def __init__(self) -> None:
        self._waiting: dict[SessionId, list[tuple[CallingTool, bool]]] = {}
        """The calls whose bodies wait for a session, and whether its run is cancelled with the call."""

    def begin(
        self, system: System, session: SessionId, *, cancels: bool = False, may_end: bool = False
    ) -> Callable[[], None]:
        """Take note that the body of a tool waits for a session, if one runs here; return what ends that.

        Args:
            cancels: the session's run is cancelled with the tool's call.
            may_end: what is waited for may come while the session waits for the tool, so that this is no circle.

        Raises:
            AskCycle: the session waits for that very tool, itself or by a chain of children and of tools' waits.
        """
        calling = _calling_in(system)
        if calling is None:
            return _nothing
        if not may_end:
            _refuse(session, calling, self._waits_for(calling), _WITHOUT_WAITING)
        callers, caller = self._waiting.setdefault(session, []), (calling, cancels)
        callers.append(caller)

        def end() -> None:
            callers.remove(caller)
            if not callers:
                self._waiting.pop(session, None)

        return end

    def require_not_cancelled_with(self, system: System, session: SessionId, advice: str) -> None:
        """Raise AskCycle, which ends with `advice`, in the body of a tool that is cancelled with the session's run."""
        calling = _calling_in(system)
        if calling is not None:
            _refuse(session, calling, self._waits_for(calling, cancelled=True), advice)

    def _waits_for(self, calling: CallingTool, *, cancelled: bool = False) -> dict[SessionId, SessionId]:
        """Return the sessions that wait for a call, each with what it waits for; the one of the call, with itself.

        `cancelled` leaves out those whose end would not cancel the call.
        """
        waits_for, looked = {calling.session: calling.session}, set[SessionId]()
        calls = [calling]
        while calls:
            call = calls.pop()
            lineage = (call.session, *call.ancestors)
            for child, parent in pairwise(lineage):
                waits_for.setdefault(parent, child)
            for waited in [each for each in lineage if each not in looked]:
                looked.add(waited)
                for caller, cancels in self._waiting.get(waited, ()):
                    # Where it is over, its session does not wait for what it has left behind.
                    if not caller.over and (cancels or not cancelled):
                        waits_for.setdefault(caller.session, waited)
                        calls.append(caller)
        return waits_for


def _calling_in(system: System) -> CallingTool | None:
    """Return the call of a system whose body runs here, and has not ended."""
    calling = calling_tool.get()
    return calling if calling is not None and not calling.over and calling.system is system else None


def _refuse(session: SessionId, calling: CallingTool, waits_for: dict[SessionId, SessionId], advice: str) -> None:
    if session in waits_for:
        chain = [session]
        while chain[-1] != calling.session:
            chain.append(waits_for[chain[-1]])
        below = [stream_name(SESSION_KIND, name) for name in chain]
        raise AskCycle((*below, "its tool", below[0]), advice)


class ToolContext(Generic[D]):
    """A tool that has a parameter of this type gets one for each call; it is not part of the tool's schema.

    Attributes:
        call: the call's id, unique in its session.
        session: whose call it is.
        session_context: whose session that is, for memories: `memory.within(context.session_context)`.
        user: the session's user, if one was named.
        metadata: what the application says of the session.
        idempotency_key: the same for every attempt at this call, also after a crash; give it to services that can
            recognise a repetition.
        deps: what the application depends on: what was given with the input or the session, else `Agent.deps`.
    """

    def __init__(
        self,
        *,
        call: ToolCallId,
        session: SessionId,
        deps: D,
        cancel: CancellationToken,
        report: Callable[[object], None],
        session_context: SessionContext | None = None,
        questions: Questions | None = None,
    ) -> None:
        self._questions = questions
        self.call = call
        self.session = session
        self.session_context = session_context or SessionContext(session=session, conversation=session)
        self.user = self.session_context.user
        self.metadata = self.session_context.metadata
        self.idempotency_key = f"{session}/{call}"
        self.deps = deps
        self.watches_cancel = False
        """Whether the tool has looked at `cancel`, so that it is left a moment to end by itself."""
        self.finished: str | None = None
        """What the tool ended the run with."""
        self.handoff: Handoff | None = None
        """To which agent the tool hands the session."""
        self.original: tuple[tuple[ResultContent, ...] | None, dict[PayloadHash, bytes]] = (None, {})
        """What the tool gave, where middleware changed its result, and its payloads."""
        self.hidden = False
        """Whether middleware changed its result, and what the tool gave is not kept."""
        self._over = False
        """Whether the body has ended."""
        self._cancel = cancel
        self._report = report

    def end(self) -> None:
        """Take note that the body has ended: what it has left behind may report, and can ask and finish no more."""
        self._over = True
        if self._questions is not None:
            self._questions.end()

    def _require_under_way(self) -> None:
        if self._over and not self._cancel.cancelled:
            raise call_is_over(self.call)

    @property
    def cancel(self) -> CancellationToken:
        """Cancelled when the run is; await it or look at it to end in order.

        A tool that has looked at it gets part of the grace period to return before its task is cancelled.
        """
        self.watches_cancel = True
        return self._cancel

    def progress(self, report: object) -> None:
        """Tell those who follow the session how far the call is. It also counts as a sign of life.

        From any thread, and from what goes on when the call has ended. Reports are published, not logged.
        """
        self._report(report)

    @overload
    def ask(self, question: str, *, expires_s: float | None = None) -> AwaitedAnswer[str]: ...

    @overload
    def ask(self, question: str, *, type: type[T], expires_s: float | None = None) -> AwaitedAnswer[T]: ...

    @overload
    def ask(self, question: str, *, type: Any, expires_s: float | None = None) -> AwaitedAnswer[Any]: ...

    def ask(self, question: str, *, type: Any = str, expires_s: float | None = None) -> AwaitedAnswer[Any]:
        """Ask a person, or another system outside, and go on with the answer, in days or after a restart too.

        `answer = await context.ask("Which address?", type=Address)`; in a plain function `context.ask(…).get()`. Where
        there is no answer yet, the body ends here, as when its task is cancelled. With the answer it runs again from
        its beginning, and is given the answers that there are in the order of its questions. So what stands before a
        question may run again: ask first and act then, or give services the `idempotency_key`.

        Args:
            question: what those are told who answer (`Session.questions`, `Session.answer`, `refold answer`).
            type: what the answer is, such as a msgspec Struct, a dataclass, a model of pydantic, or a Literal of
                choices; another answer is refused.
            expires_s: after so many seconds without an answer it raises; None = it waits for ever.

        Raises:
            ConfigError: the type has no JSON Schema; or this is no call of a session, or one that has ended.
            NoAnswer: of the answer: there is none.
        """
        if self._questions is None:
            raise ConfigError("a tool can ask in a call of a session only")
        self._require_under_way()
        return self._questions.ask(question, type, expires_s)

    def finish(self, text: str) -> str:
        """End the run as completed with `text` as its answer, once the body returns; returns `text`.

        `text` becomes the result of the call, not what the body returns. Calls of the same answer that run beside this
        one are awaited, and those that have not begun do not run. A body that raises afterwards ends nothing.

        Raises:
            ConfigError: the call has ended.
            ToolError: `text` is no text.
        """
        self._require_under_way()
        if not isinstance(text, str):
            raise ToolError(f"finish takes the run's answer as text, not {type(text).__name__}")
        self.finished = text
        return text
