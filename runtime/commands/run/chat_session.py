"""The side of `refold chat` that is on the event loop: one session of one runtime, and what happens in it.

`refold.commands.run.chat` is the other side, which talks with the person. The rule: `next` returns everything that
needs the person, one after the other, and `Idle` when it is the person's turn; what only has to be seen is shown here.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import msgspec

from refold.actors.cancellation import CancellationToken
from refold.actors.kernel.errors import ActorStopped
from refold.agents.agent import AnyAgent
from refold.commands.output import tell
from refold.commands.run.session_run import runtime_on, session_of
from refold.commands.run.shown import INBOX_POLL_S, LIVE_CAPACITY, CallLines, ChildWaits, ForPerson, LiveText
from refold.commands.steer.delivery import answer_line
from refold.events.core.cleaning import error_words
from refold.events.core.codec import RecordedEvent
from refold.events.core.ids import RunId, SessionId, stream_name
from refold.events.session import events as ev
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import history, question_id
from refold.inspection.session_view import SessionView, view_session
from refold.inspection.summaries import call_words
from refold.remote.owner import InboxReader
from refold.sessions.outcome import RunResult, result_of
from refold.stores.sqlite.file import absolute

if TYPE_CHECKING:
    from refold.publishing.notifications import Published, RecordedSessionEvent
    from refold.publishing.subscription import Subscription
    from refold.sessions.session import Session

T = TypeVar("T")

log = logging.getLogger("refold.runtime")


class PersonNeeded(msgspec.Struct, frozen=True):
    """A call waits for a decision or an answer, here or in the session of a subagent."""

    session: SessionId
    request: ForPerson


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """What a person says about a call that waits for approval."""

    allow: bool
    always: bool = False
    reason: str = ""
    arguments: dict[str, object] | None = None
    """In place of those that the model gave."""


class Ended(msgspec.Struct, frozen=True):
    """A run has ended."""

    result: RunResult
    written: bool
    """Whether its answer has been written, as it came."""


class LeftOpen(msgspec.Struct, frozen=True):
    """A run waits until a person resumes or cancels it, or answers what it asks."""

    run: RunId
    why: str


class WorkFailed(msgspec.Struct, frozen=True):
    """What was begun failed; it is the person's turn."""

    error: BaseException


class Idle(msgspec.Struct, frozen=True):
    """What was begun is over; it is the person's turn."""


Happening: TypeAlias = PersonNeeded | Ended | LeftOpen | WorkFailed | Idle
"""What the person is told of or asked about."""


class ChatSession:
    """A session and its runtime, open for as long as the `async with` lasts."""

    def __init__(self, agent: AnyAgent, log: Path, session_id: str | None, user: str | None = None) -> None:
        self.agent = agent
        self.log = log
        self.id = session_id or ""
        """The session's; known once it is open."""
        self.messages = 0
        """How long the conversation was when it was opened."""
        self._given_id = session_id
        self._user = user
        self._stack = AsyncExitStack()
        self._happenings: asyncio.Queue[Happening] = asyncio.Queue()
        self._calls = CallLines()
        self._live = LiveText()
        self._cancel = CancellationToken()
        self._turn: asyncio.Task[None] | None = None
        self._others: set[asyncio.Task[object]] = set()
        """Held here, since an event loop holds its tasks weakly."""
        self._parked: asyncio.Future[LeftOpen] | None = None
        """None = nothing that was begun here goes on."""
        self._end: tuple[RunId, asyncio.Future[int]] | None = None
        """A run, and the version of the event that ends it."""
        self._shown = 0
        """Up to which version events have been shown."""
        self._reached: tuple[int, asyncio.Future[None]] | None = None
        """A version, and what is done when it has been shown."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._runtime = runtime = await stack.enter_async_context(runtime_on(self.agent, self.log))
            self._session: Session = await session_of(runtime, self._given_id, user=self._user)
            self.id = self._session.id
            self._inbox = InboxReader(runtime.context, absolute(self.log), session=self.id)
            self._children = ChildWaits(runtime, self._session, self._see_child)
            self._children.watch()
            await self._inbox.perform_waiting()
            state = await self._session.state_at()
            self.messages = len(history(state))
            self._shown = state.version
            followed = self._session.follow(after_version=state.version, capacity=LIVE_CAPACITY)
            self._showing = asyncio.get_running_loop().create_task(self._show(followed), name="chat shows")
            self._inbox.start(INBOX_POLL_S)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._inbox.stop()
        await self._stack.aclose()
        with suppress(ActorStopped):  # What is not shown by now is in the log.
            await self._showing
        left = [task for task in (self._turn, *self._others) if task is not None]
        if left:
            await asyncio.wait(left)

    async def begin(self, text: str | None) -> None:
        """Begin to send an input, after a run that is open; None = only let that one go on."""
        loop = asyncio.get_running_loop()
        self._cancel = CancellationToken()
        self._parked = loop.create_future()
        self._turn = loop.create_task(self._take_turn(text, self._cancel), name="chat turn")
        self._turn.add_done_callback(self._turn_is_over)

    async def next(self) -> Happening:
        """Return what needs the person next; the last of what was begun is `Idle` or `WorkFailed`."""
        return await self._happenings.get()

    async def cancel(self) -> None:
        self._cancel.cancel("Ctrl-C")

    async def cancel_open_run(self) -> bool:
        """Cancel the run that is open, such as a parked one; tell if there was one."""
        is_open = (await self._session.state_at()).run is not None
        await self._session.cancel()
        return is_open

    async def waits(self, waiting: PersonNeeded) -> bool:
        """Tell whether a call still waits for a person: another process may have told it, or the run is over."""
        session, request = await self._runtime.session(waiting.session), waiting.request
        if isinstance(request, ev.QuestionAsked):
            asked = await session.questions(below=False)
            return any((each.call, each.number) == (request.call, request.number) for each in asked)
        return any(each.call == request.call for each in await session.approvals(below=False))

    async def decide(self, waiting: PersonNeeded, decision: ApprovalAnswer) -> None:
        """Decide about a call that waits.

        Raises:
            CommandRejected: it does not wait any more, or the arguments do not fit, and it waits on.
        """
        session = await self._runtime.session(waiting.session)
        await session.decide(
            waiting.request.call,
            allow=decision.allow,
            reason=decision.reason,
            always=decision.always,
            arguments=decision.arguments,
        )

    async def answer(self, waiting: PersonNeeded, answer: object) -> None:
        """Answer what a call asks.

        Raises:
            CommandRejected: it does not wait for that any more, or the answer does not fit, and it waits on.
        """
        assert isinstance(waiting.request, ev.QuestionAsked)
        session = await self._runtime.session(waiting.session)
        await session.answer(question_id(waiting.request.call, waiting.request.number), answer)

    async def leave_open(self) -> None:
        """End what was begun, whose run waits on for an answer."""
        run = (await self._session.state_at()).run
        if run is not None and self._parked is not None and not self._parked.done():
            self._parked.set_result(LeftOpen(run.id, "waits for an answer"))

    async def view(self) -> SessionView:
        """Return the session as the log has it.

        Raises:
            ConfigError: nothing has been said in it yet.
        """
        return await view_session(self._runtime.store, self.id)

    def _turn_is_over(self, turn: "asyncio.Task[None]") -> None:
        error = asyncio.CancelledError() if turn.cancelled() else turn.exception()
        self._parked = None
        self._happenings.put_nowait(Idle() if error is None else WorkFailed(error))

    async def _take_turn(self, text: str | None, cancel: CancellationToken) -> None:
        if not await self._goes_on(cancel) or text is None:
            return
        if cancel.cancelled:
            tell("the input was not sent")
            return
        self._live = live = LiveText()

        def begun(recorded: "RecordedSessionEvent") -> None:
            live.run = live.run or getattr(recorded.event, "run", None)

        sending = self._held(self._session.send(text, cancel=cancel, on_event=begun))
        if not await self._unless_parked(sending):
            return
        await self._all_shown()
        self._tell_end(sending.result())

    async def _goes_on(self, cancel: CancellationToken) -> bool:
        """Let a run go on to its end that is open, and tell if the next one may begin."""
        state = await self._session.state_at()
        if state.run is None:
            return True
        run = state.run.id
        tell(f"{run}, which is open, goes on")
        self._live = LiveText()
        self._live.run = run
        loop = asyncio.get_running_loop()
        self._end = run, loop.create_future()
        forget = cancel.on_cancel(lambda: self._held(self._session.cancel()))
        try:
            await self._session.resume()  # One that goes on already is left alone.
            if self.agent.approval is None:
                for request in await self._session.approvals(below=False):
                    self._happenings.put_nowait(PersonNeeded(self._session.id, request))
            for question in await self._session.questions(below=False):
                self._see_question(self._session.id, question)
            await self._children.tell_waiting()
            ending = self._held(self._unless_closed(self._end[1]))
            if not await self._unless_parked(ending):
                return False
        finally:
            forget()
        finished = (await self._session.state_at(ending.result())).last_run
        assert finished is not None
        self._tell_end(await result_of(finished, self._runtime.store))
        return True

    def _tell_end(self, result: RunResult) -> None:
        self._happenings.put_nowait(Ended(result, self._live.has_written(result.text)))

    async def _unless_parked(self, work: "asyncio.Task[object]") -> bool:
        """Return when work is done, or tell the person that its run is parked; work itself waits on then."""
        assert self._parked is not None
        first: set[asyncio.Future[Any]] = {work, self._parked}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return True
        self._happenings.put_nowait(self._parked.result())
        return False

    async def _all_shown(self) -> None:
        """Return when everything that has happened so far has been shown."""
        head = await self._runtime.store.head(stream_name(SESSION_KIND, self._session.id))
        if head is not None and self._shown < head.version:
            self._reached = head.version, asyncio.get_running_loop().create_future()
            await self._unless_closed(self._reached[1])

    async def _unless_closed(self, shown: "asyncio.Future[T]") -> T:
        """Return what comes of showing.

        Raises:
            ActorStopped: the runtime is closed, and nothing is shown any more.
        """
        first: set[asyncio.Future[Any]] = {shown, self._showing}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not shown.done():
            self._showing.result()  # Raises why, if that is not the end.
            raise ActorStopped(self._session.id, "the runtime is closed")
        return shown.result()

    def _held(self, work: Coroutine[None, None, T]) -> "asyncio.Task[T]":
        """Begin something and hold it; what it raises is for the code that asks for its result."""
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)
        task.add_done_callback(self._let_go)
        return task

    def _let_go(self, task: "asyncio.Task[object]") -> None:
        self._others.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a chat in %s: %s", self.id, error_words(error))

    async def _show(self, followed: "Subscription") -> None:
        async for item in followed:
            self._see(item)

    def _see(self, item: "Published") -> None:
        if self._parked is not None:  # Else nothing was begun here, and a person is writing.
            self._live.see(item)
        if not isinstance(item, RecordedEvent):
            return
        if self._parked is not None:
            self._see_event(item, self._parked)
        self._shown = item.version
        if self._reached is not None and self._reached[0] <= item.version and not self._reached[1].done():
            self._reached[1].set_result(None)

    def _see_child(self, child: "Session", request: ForPerson) -> None:
        if isinstance(request, ev.QuestionAsked):
            self._see_question(child.id, request)
        else:
            self._happenings.put_nowait(PersonNeeded(child.id, request))

    def _see_question(self, session: SessionId, asked: ev.QuestionAsked) -> None:
        if not asked.gives_result:
            self._happenings.put_nowait(PersonNeeded(session, asked))
            return
        line = answer_line(self.log, session, question_id(asked.call, asked.number), asked.answer_schema)
        self._calls.tell(f"{asked.question} waits for an answer: {line}")

    def _see_event(self, recorded: "RecordedSessionEvent", parked: "asyncio.Future[LeftOpen]") -> None:
        self._calls.see(recorded)
        match recorded.event:
            case ev.ToolApprovalRequested() as request if self.agent.approval is None:
                self._happenings.put_nowait(PersonNeeded(self._session.id, request))
            case ev.ToolApprovalRequested(call=call, tool=tool, input=arguments):
                self._calls.tell(f"{call_words(tool, arguments)} waits for approval as {call}")
            case ev.QuestionAsked() as asked:
                self._see_question(self._session.id, asked)
            case ev.RunParked(run=run, reason=reason):
                if not parked.done():
                    parked.set_result(LeftOpen(run, f"is parked: {reason}"))
            case ev.RunCompleted(run=run) | ev.RunFailed(run=run) | ev.RunCancelled(run=run):
                if self._end is not None and self._end[0] == run and not self._end[1].done():
                    self._end[1].set_result(recorded.version)
            case _:
                return
