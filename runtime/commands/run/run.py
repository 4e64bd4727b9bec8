"""`refold run [AGENT] INPUT`: one input to an agent, durable from its first event."""

import asyncio
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
    JsonOption,
    run_command,
    tell_result,
    write_result,
)
from refold.commands.output import tell_error
from refold.commands.run.live_text import LiveText
from refold.commands.run.provider_options import (
    AllowHttpOption,
    BaseUrlOption,
    MaxTokensOption,
    ModelChoice,
    ModelOption,
    ProviderOption,
    ReactOption,
    SystemOption,
    chosen_agent,
    connections_closed,
)
from refold.commands.run.watching import INBOX_POLL_S, LIVE_CAPACITY, CallLines, ChildApprovals, tell
from refold.commands.steer.delivery import approve_line, resume_line

if TYPE_CHECKING:
    from refold.actors.cancellation import CancellationToken
    from refold.agent_runtime import AgentRuntime
    from refold.events.session.events import ToolApprovalRequested
    from refold.sessions.notifications import Recorded
    from refold.sessions.outcome import RunResult
    from refold.sessions.session import Session
    from refold.sessions.subscription import Subscription

T = TypeVar("T")


def run(
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="AGENT",
            help="module:attribute of an Agent or of a function that makes one; with a --provider it may be left out.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[str | None, typer.Argument(metavar="INPUT", help="What to send to it.", show_default=False)] = None,
    log: Annotated[Path, typer.Option("--log", metavar="PATH", help="The log; made where there is none.")] = Path(
        "refold.db"
    ),
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="The session; default: a new one.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The same key in a session is the same run.", show_default=False),
    ] = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    allow_http: AllowHttpOption = False,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    react: ReactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Send an input to an agent, or to a model of a provider, and write the answer.

    The module is found in the working directory too. Tool calls are shown on stderr as they happen. Ctrl-C cancels the
    run, which is recorded; a second Ctrl-C leaves at once, and the run goes on when its session is next used. SIGTERM
    leaves it open too, and lets what is in flight reach the log first; a second one leaves at once. A run
    of the session that an earlier process left open goes on first; other sessions of the log are left alone. Where a
    call waits for approval, the command that allows it is written to stderr, and the run is left open, with the command
    that lets it go on, `refold resume`. Where the
    agent's configuration streams, its answers are written as they come, also those that ask for tool calls.

    Exits 1 if the run failed or waits for somebody, 130 if it was cancelled, 143 if SIGTERM left it open.

    JSON: {log, session, run, outcome: completed | failed | cancelled, error: {kind, message}, text, usage, turns,
    stop_reason}.
    """
    choice = ModelChoice(
        provider=provider,
        model=model,
        base_url=base_url,
        allow_http=allow_http,
        system=system,
        max_tokens=max_tokens,
        react=react,
    )
    words = [word for word in (agent, text) if word is not None]
    run_command(_run(words, choice, log, session, key, as_json))


async def _run(
    words: list[str], choice: ModelChoice, log: Path, session_id: str | None, key: str | None, as_json: bool
) -> int:
    from refold.actors.cancellation import CancellationToken
    from refold.agent_runtime import AgentRuntime
    from refold.sessions.outcome import Completed

    name, text = _agent_and_input(words, choice)
    agent = chosen_agent(name, choice)
    cancel = CancellationToken()
    with ctrl_c_cancels(cancel):
        async with (
            connections_closed(agent),
            AgentRuntime(agent, log=log, wait_for_log_s=0, auto_resume=False, inbox_poll_s=0) as runtime,
        ):
            session = await runtime.session(session_id)
            if not as_json:
                tell(f"session {shlex.quote(session.id)} in {shlex.quote(str(log))}")
            sending = Sending(runtime, session, log, quiet=as_json)
            with sigterm_leaves_open(sending):
                result = await sending.send(text, cancel, key)
                await runtime.close()
    await sending.all_shown()
    if result is None:
        tell_error(f"{sending.waits_for}; the run is left open")
        if sending.is_terminated:
            typer.echo(resume_line(log, session.id, choice.words(name)), err=True)
            return EXIT_TERMINATED
        for place, call in sending.waiting_calls:
            typer.echo(approve_line(log, place, call), err=True)
        typer.echo(resume_line(log, session.id, choice.words(name)), err=True)
        return EXIT_FOUND
    if as_json:
        write_result(log, session.id, result)
    elif sending.live.has_written(result.text) and isinstance(result.outcome, Completed):
        return EXIT_OK
    return tell_result(result, as_json)


def _agent_and_input(words: list[str], choice: ModelChoice) -> tuple[str | None, str]:
    """Return the agent's name, if one is given, and the input.

    Raises:
        ConfigError: one that is needed is not there.
    """
    from refold.events.core.errors import ConfigError

    match words:
        case [name, text]:
            return name, text
        case [text] if choice.provider is not None:
            return None, text
        case [word]:
            raise ConfigError(
                f"{word!r} stands alone: give an AGENT (module:attribute) and an INPUT, or a --provider with a --model"
            )
        case _:
            raise ConfigError("there is no INPUT, which says what to send")


class Sending:
    """One input on its way, and what its session does meanwhile."""

    not_done = ", and the input was not sent"
    """What is said beside a run that waits before anything was done."""

    def __init__(self, runtime: "AgentRuntime", session: "Session", log: Path, *, quiet: bool) -> None:
        self.waits_for = ""
        """What nobody is here to decide, so that there will be no answer."""
        self.waiting_calls: list[tuple[str, str]] = []
        """The calls that wait for approval, each behind its session: this one, or that of a subagent."""
        self.is_terminated = False
        """SIGTERM came before the run had ended."""
        self._log = log
        self._runtime = runtime
        self._session = session
        self._quiet = quiet
        self._closing: asyncio.Task[None] | None = None
        self._calls = CallLines(quiet=quiet)
        self.live = LiveText()
        self._showing: asyncio.Task[None] | None = None
        self._children = ChildApprovals(runtime, session, self._see_child)

    async def send(self, text: str, cancel: "CancellationToken", key: str | None) -> "RunResult | None":
        """Return how the run ended, or None where it waits for somebody."""
        if self._runtime.agent.config.streaming and not self._quiet:
            followed = self._session.follow(capacity=LIVE_CAPACITY)
            self._showing = asyncio.get_running_loop().create_task(self._show(followed))
        else:
            self._runtime.subscribe(self._see, session=self._session.id)
        return await self._beside_the_inbox(
            cancel, lambda: self._session.send(text, cancel=cancel, key=key, on_event=self._begin)
        )

    async def _beside_the_inbox(self, cancel: "CancellationToken", work: "Callable[[], Awaitable[T]]") -> "T | None":
        """Let an open run go on and do work, unless the run waits for somebody, or comes to do so: then return None.

        Commands that other processes give to the session are performed meanwhile, those that wait for it first.
        """
        from refold.actors.kernel.errors import ActorStopped
        from refold.events.core.errors import PersistenceError
        from refold.remote.owner import InboxReader
        from refold.stores.sqlite.file import absolute

        inbox = InboxReader(self._runtime, absolute(self._log), session=self._session.id)
        self._children.watch()
        try:
            await inbox.perform_waiting()
            inbox.start(INBOX_POLL_S)
            if not await self._goes_on(cancel):
                return None
            return await work()
        except (ActorStopped, PersistenceError):
            if not self.waits_for:  # Else the runtime was closed because of that.
                raise
            return None
        finally:
            await inbox.stop()

    @property
    def _somebody_decides(self) -> bool:
        """Whether the agent has a handler that is asked about calls which wait for approval."""
        return self._runtime.agent.approval is not None

    async def all_shown(self) -> None:
        """Return when everything that happened has been shown; to be called when the runtime is closed."""
        from refold.actors.kernel.errors import ActorStopped

        if self._showing is not None:
            with suppress(ActorStopped):  # What is not shown by now is in the log.
                await self._showing

    async def _show(self, followed: "Subscription") -> None:
        from refold.events.core.codec import RecordedEvent

        async for item in followed:
            self.live.see(item)
            if isinstance(item, RecordedEvent):
                self._see(item)

    def _begin(self, recorded: "Recorded") -> None:
        self.live.run = self.live.run or getattr(recorded.event, "run", None)

    async def _goes_on(self, cancel: "CancellationToken") -> bool:
        """Let a run go on that an earlier process left open, since it comes before the input; tell if it can."""
        from refold.events.session.state import calls_awaiting_approval
        from refold.inspection.session_view import status_of

        state = await self._session.state_at()
        if state.run is None:
            return True
        waiting = calls_awaiting_approval(state)
        if waiting and status_of(state) == "waiting" and not self._somebody_decides:
            self.waiting_calls = [(self._session.id, call.id) for call in waiting]
            calls = ", ".join(call.id for call in waiting)
            self.waits_for = f"{calls} of {state.run.id} waits for approval{self.not_done}"
            return False
        await self._children.tell_waiting()
        if self.waits_for:
            self.waits_for += self.not_done
            return False
        loop = asyncio.get_running_loop()
        cancel.on_cancel(lambda: loop.create_task(self._session.cancel()))
        await self._session.resume()
        return True

    def _see(self, recorded: "Recorded") -> None:
        from refold.events.session.events import RunParked, ToolApprovalRequested
        from refold.inspection.summaries import call_words

        self._calls.see(recorded)
        match recorded.event:
            case ToolApprovalRequested(call=call_id, tool=tool, input=arguments):
                waits = f"{call_words(tool, arguments)} waits for approval as {call_id}"
                if self._somebody_decides:
                    self._calls.tell(waits)
                else:
                    self._wait_for_decision(self._session.id, call_id, waits)
            case RunParked(reason=reason):
                self._wait_for(f"the run is parked: {reason}")
            case _:
                return

    def _see_child(self, child: "Session", request: "ToolApprovalRequested") -> None:
        from refold.inspection.summaries import call_words

        waits = f"{call_words(request.tool, request.input)} waits for approval as {request.call} of {child.id}"
        self._wait_for_decision(child.id, request.call, waits)

    def _wait_for_decision(self, session: str, call: str, what: str) -> None:
        if (session, call) not in self.waiting_calls:
            self.waiting_calls.append((session, call))
        self._wait_for(what)

    def terminate(self) -> None:
        """Leave the run open."""
        self.is_terminated = True
        self._wait_for("SIGTERM")

    def _wait_for(self, what: str) -> None:
        """Close the runtime, which leaves the run open: nobody is here to decide, or to wait."""
        self.waits_for = what
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._runtime.close())


@contextmanager
def ctrl_c_cancels(cancel: "CancellationToken") -> Generator[None, None, None]:
    """Let the first Ctrl-C cancel, and the second one end the process without another word."""

    def interrupted() -> None:
        if cancel.cancelled:
            os._exit(EXIT_INTERRUPTED)
        tell("cancelling; Ctrl-C again leaves at once")
        cancel.cancel("Ctrl-C")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def sigterm_leaves_open(sending: Sending) -> Generator[None, None, None]:
    """Let the first SIGTERM leave the run open, and the second one end the process as it does by default."""

    def terminated() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        tell("closing; SIGTERM again leaves at once")
        sending.terminate()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
