"""One session while a command runs it: what `refold run`, `refold resume` and `refold chat` share.

`session_run` opens a runtime on the log for one session, and lets Ctrl-C cancel and SIGTERM leave the run open.
`SessionRun` then sends an input, or ends the runs that are open. The rule: no person is here to decide about a
call, so a run that waits for one is left open and the runtime is closed.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar, Unpack

import typer

from refold.actors.cancellation import CancellationToken
from refold.actors.kernel.errors import ActorStopped
from refold.agent_runtime import AgentRuntime
from refold.agents.agent import AnyAgent, with_subagents
from refold.commands.execution import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_TERMINATED, tell_result
from refold.commands.output import exact_json, exact_line, exact_text, shell_word, tell, tell_error
from refold.commands.run.shown import INBOX_POLL_S, LIVE_CAPACITY, CallLines, ChildWaits, ForPerson, LiveText
from refold.commands.steer.delivery import answer_line, approve_line, resume_line
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import JsonObject
from refold.events.core.errors import PersistenceError, StreamDeleted
from refold.events.core.ids import RunId, stream_name
from refold.events.session import events as ev
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import calls_awaiting_approval, question_id
from refold.inspection.log_reading import tombstone_of
from refold.inspection.session_view import status_of
from refold.inspection.summaries import call_words
from refold.publishing.event_bus import Follower
from refold.publishing.notifications import RecordedSessionEvent
from refold.publishing.subscription import Subscription
from refold.remote.owner import InboxReader
from refold.sessions.inputs import RunOverrides
from refold.sessions.outcome import Cancelled, RunResult, result_of
from refold.sessions.people import questions_in
from refold.sessions.session import Session
from refold.stores.sqlite.file import absolute

T = TypeVar("T")


@asynccontextmanager
async def runtime_on(agent: AnyAgent, log: Path) -> AsyncGenerator[AgentRuntime]:
    """Give a runtime that waits for no other owner of the log, and leaves open runs and the inbox to the command.

    What connections the providers of the agent and its subagents have on this loop are closed afterwards.
    """
    try:
        async with AgentRuntime(agent, log=log, wait_for_log_s=0, auto_resume=False, inbox_poll_s=0) as runtime:
            yield runtime
    finally:
        for provider in {id(found.provider): found.provider for found in with_subagents(agent)}.values():
            close = getattr(provider, "aclose", None)
            if close is not None:
                await close()


async def session_of(
    runtime: AgentRuntime, session_id: str | None, *, user: str | None, metadata: Mapping[str, str] | None = None
) -> Session:
    """Return a session to which an input can be sent, so that none is named first and refused then.

    Raises:
        StreamDeleted: it was deleted.
    """
    session = await runtime.session(session_id, user=user, metadata=metadata or None)
    stream = stream_name(SESSION_KIND, session.id)
    if session_id is not None and await tombstone_of(runtime.store, stream) is not None:
        raise StreamDeleted(stream)
    return session


@asynccontextmanager
async def session_run(
    agent: AnyAgent,
    log: Path,
    session_id: str | None,
    *,
    user: str | None = None,
    metadata: Mapping[str, str] | None = None,
    quiet: bool,
) -> AsyncGenerator["SessionRun"]:
    """Give a session of a runtime, which is closed at the end, when all that happened has been shown.

    Args:
        session_id: None = a new one.
    """
    cancel = CancellationToken()
    with _ctrl_c_cancels(cancel):
        async with runtime_on(agent, log) as runtime:
            session = await session_of(runtime, session_id, user=user, metadata=metadata)
            if not quiet:
                tell(f"session {shell_word(session.id)} in {shell_word(str(log))}")
            run = SessionRun(runtime, session, log, cancel, quiet=quiet)
            with _sigterm_leaves_open(run):
                yield run
                await runtime.close()
    await run.all_shown()


class SessionRun:
    """The runs of one session on their way to their ends."""

    def __init__(
        self, runtime: AgentRuntime, session: Session, log: Path, cancel: CancellationToken, *, quiet: bool
    ) -> None:
        self.waits_for = ""
        """What the run waits for, so that it is left open."""
        self.results: list[RunResult] = []
        """Of the runs that `resume` has seen the ends of, oldest first."""
        self.left_open: RunId | None = None
        """The run that `resume` has left open."""
        self.live = LiveText()
        self.session = session.id
        self.log = log
        self._waiting_calls: list[tuple[str, str]] = []
        """The calls that wait for approval, each behind its session: this one, or that of a subagent."""
        self._waiting_answers: list[tuple[str, ev.QuestionAsked]] = []
        """The questions that wait, likewise."""
        self._not_done = ""
        """What is said beside a run that waits before anything was done."""
        self._is_terminated = False
        self._runtime = runtime
        self._session = session
        self._cancel = cancel
        self._quiet = quiet
        self._closing: asyncio.Task[None] | None = None
        self._calls = CallLines(quiet=quiet)
        self._showing: asyncio.Task[None] | None = None
        self._children = ChildWaits(runtime, session, self._see_child)
        self._ends: deque[int] = deque()
        """Versions of the events that ended runs which have not been told of yet."""

    async def send(self, text: str, key: str | None, **options: Unpack[RunOverrides]) -> RunResult | None:
        """Return how the run ended, or None where it waits for a person; `options` as for `Session.send`."""
        self._not_done = ", and the input was not sent"
        if self._runtime.agent.config.streaming and not self._quiet:
            followed = self._session.follow(capacity=LIVE_CAPACITY)
            self._showing = asyncio.get_running_loop().create_task(self._show(followed))
        else:
            self._runtime.subscribe(self._see, session=self.session)
        return await self._beside_the_inbox(
            lambda: self._session.send(text, cancel=self._cancel, key=key, on_event=self._begin, **options)
        )

    async def resume(self) -> None:
        """Return when no run of the session is open any more, when one waits for a person, or one was cancelled."""
        state = await self._session.state_at()
        self.left_open = state.run.id if state.run is not None else None
        self._calls.know(state)
        self._runtime.subscribe(self._see, session=self.session)
        with self._runtime.event_bus.follow(self._session.id) as follower:
            await self._beside_the_inbox(lambda: self._end_all(state.version, follower))

    async def all_shown(self) -> None:
        """Return when everything that happened has been shown; to be called when the runtime is closed."""
        if self._showing is not None:
            with suppress(ActorStopped):  # What is not shown by now is in the log.
                await self._showing

    def tell_left_open(self, agent: Sequence[str]) -> int:
        """Say what the run waits for and how to go on; return the exit code.

        Args:
            agent: the words of a command line that say which agent it is.
        """
        tell_error(f"{self.waits_for}; the run is left open", exact=True)
        for place, call in self._waiting_calls:
            typer.echo(approve_line(self.log, place, call), err=True)
        for place, asked in self._waiting_answers:
            question = question_id(asked.call, asked.number)
            typer.echo(answer_line(self.log, place, question, asked.answer_schema), err=True)
        typer.echo(resume_line(self.log, self.session, agent), err=True)
        return EXIT_TERMINATED if self._is_terminated else EXIT_FOUND

    async def _beside_the_inbox(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Let an open run go on and do work, unless the run waits for a person, or comes to do so: then return None.

        Commands that other processes give to the session are performed meanwhile, those that wait for it first.
        """
        inbox = InboxReader(self._runtime.context, absolute(self.log), session=self.session)
        self._children.watch()
        try:
            await inbox.perform_waiting()
            inbox.start(INBOX_POLL_S)
            if not await self._goes_on():
                return None
            return await work()
        except (ActorStopped, PersistenceError):
            if not self.waits_for:  # Else the runtime was closed because of that.
                raise
            return None
        finally:
            await inbox.stop()

    async def _goes_on(self) -> bool:
        """Let a run go on that an earlier process left open, since it comes before the input; tell if it can."""
        state = await self._session.state_at()
        if state.run is None:
            return True
        waiting = calls_awaiting_approval(state)
        if waiting and status_of(state) == "waiting" and not self._has_handler:
            self._waiting_calls = [(self.session, call.id) for call in waiting]
            words = (_for_decision(call.name, call.input, call.id) for call in waiting)
            self.waits_for = f"{' and '.join(words)}{self._not_done}"
            return False
        asked = questions_in(state)
        if asked and status_of(state) == "waiting":
            self._waiting_answers = [(self.session, question) for question in asked]
            words = (_for_answer(question) for question in asked)
            self.waits_for = f"{' and '.join(words)}{self._not_done}"
            return False
        await self._children.tell_waiting()
        if self.waits_for:
            self.waits_for += self._not_done
            return False
        loop = asyncio.get_running_loop()
        self._cancel.on_cancel(lambda: loop.create_task(self._session.cancel()))
        await self._session.resume()
        return True

    async def _end_all(self, version: int, follower: Follower) -> None:
        """Await the ends of all runs that end after `version`, and write each answer."""
        while True:
            while self._ends:
                version = self._ends.popleft()
                finished = (await self._session.state_at(version)).last_run
                assert finished is not None
                self.results.append(await result_of(finished, self._runtime.store))
                if not self._quiet:
                    tell_result(self.results[-1], as_json=False)
            state = await self._session.state_at()
            last, run = state.last_run, state.run
            self.left_open = run.id if run is not None else None
            was_cancelled = bool(self.results) and isinstance(self.results[-1].outcome, Cancelled)
            if last is not None and last.version > version:
                await follower.ended(last.run)  # It is in the log, and is about to be published.
            elif run is None or (self._cancel.cancelled and was_cancelled):
                return
            else:
                await follower.ended(run.id)

    @property
    def _has_handler(self) -> bool:
        return self._runtime.agent.approval is not None

    async def _show(self, followed: Subscription) -> None:
        async for item in followed:
            self.live.see(item)
            if isinstance(item, RecordedEvent):
                self._see(item)

    def _begin(self, recorded: RecordedSessionEvent) -> None:
        self.live.run = self.live.run or getattr(recorded.event, "run", None)

    def _see(self, recorded: RecordedSessionEvent) -> None:
        self._calls.see(recorded)
        match recorded.event:
            case ev.ToolApprovalRequested(call=call_id, tool=tool, input=arguments):
                if self._has_handler:
                    self._calls.tell(f"{call_words(tool, arguments)} waits for approval as {call_id}")
                else:
                    self._wait_for_decision(self.session, call_id, _for_decision(tool, arguments, call_id))
            case ev.QuestionAsked() as asked:
                self._wait_for_answer(self.session, asked)
            case ev.RunParked(reason=reason):
                self._wait_for(f"the run is parked: {exact_text(reason)}")
            case ev.RunCompleted() | ev.RunFailed() | ev.RunCancelled():
                self._ends.append(recorded.version)
            case _:
                return

    def _see_child(self, child: Session, request: ForPerson) -> None:
        if isinstance(request, ev.QuestionAsked):
            self._wait_for_answer(child.id, request)
            return
        waits = _for_decision(request.tool, request.input, request.call)
        self._wait_for_decision(child.id, request.call, f"{waits} of {exact_text(child.id)}")

    def _wait_for_decision(self, session: str, call: str, what: str) -> None:
        if (session, call) not in self._waiting_calls:
            self._waiting_calls.append((session, call))
        self._wait_for(what)

    def _wait_for_answer(self, session: str, asked: ev.QuestionAsked) -> None:
        if (session, asked) not in self._waiting_answers:
            self._waiting_answers.append((session, asked))
        whose = "" if session == self.session else f" of {exact_text(session)}"
        self._wait_for(f"{_for_answer(asked)}{whose}")

    def terminate(self) -> None:
        self._is_terminated = True
        self._wait_for("SIGTERM")

    def _wait_for(self, what: str) -> None:
        """Close the runtime, which leaves the run open."""
        self.waits_for = what
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._runtime.close())


@contextmanager
def _ctrl_c_cancels(cancel: CancellationToken) -> Generator[None, None, None]:
    """Let the first Ctrl-C cancel, and the second one end the process without another word."""

    def interrupted() -> None:
        if cancel.cancelled:
            os._exit(EXIT_INTERRUPTED)
        tell("cancelling; Ctrl-C again leaves at once")
        cancel.cancel("Ctrl-C")

    with _handled(signal.SIGINT, interrupted):
        yield


@contextmanager
def _sigterm_leaves_open(run: SessionRun) -> Generator[None, None, None]:
    """Let the first SIGTERM leave the run open, and the second one end the process as it does by default."""

    def terminated() -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        tell("closing; SIGTERM again leaves at once")
        run.terminate()

    with _handled(signal.SIGTERM, terminated):
        yield


@contextmanager
def _handled(number: signal.Signals, handler: Callable[[], None]) -> Generator[None, None, None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


REST = "`refold approve LOG --json` shows all"


def _for_decision(tool: str, arguments: JsonObject, call: str) -> str:
    return f"{exact_line(exact_json(call_words(tool, arguments)), REST)} waits for approval as {call}"


def _for_answer(asked: ev.QuestionAsked) -> str:
    return (
        f"{exact_line(exact_text(asked.question), REST)} waits for an answer as {question_id(asked.call, asked.number)}"
    )
