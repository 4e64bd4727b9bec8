"""`refold run AGENT INPUT`: one input to an agent, durable from its first event."""

import asyncio
import os
import shlex
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.answer import tell_result, write_result
from refold.commands.delivery import approve_line, tell_error
from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
    JsonOption,
    run_command,
)
from refold.commands.live_text import LiveText
from refold.commands.output import cell
from refold.commands.safe_text import one_line

if TYPE_CHECKING:
    from refold.actors.cancellation import CancellationToken
    from refold.agent_runtime import AgentRuntime
    from refold.outcome import RunResult
    from refold.published import Recorded
    from refold.session import Session
    from refold.subscription import Subscription

CALL_CHARACTERS = 100
"""After so many characters a line about a tool call is cut."""

LIVE_CAPACITY = 10_000
"""How many pieces of an answer may wait to be shown."""

INBOX_POLL_S = 0.2
"""How often it is looked for commands of other processes to the session."""


def run(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="AGENT", help="module:attribute of an Agent, such as app.agents:support.", show_default=False
        ),
    ],
    text: Annotated[str, typer.Argument(metavar="INPUT", help="What to send to it.", show_default=False)],
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
    as_json: JsonOption = False,
) -> None:
    """Send an input to an agent and write its answer.

    The module is found in the working directory too. Tool calls are shown on stderr as they happen. Ctrl-C cancels the
    run, which is recorded; a second Ctrl-C leaves at once, and the run goes on when its session is next used. SIGTERM
    leaves it open too, and lets what is in flight reach the log first; a second one leaves at once. A run
    of the session that an earlier process left open goes on first; other sessions of the log are left alone. Where a
    call waits for approval, the command that allows it is written to stderr, and the run is left open. Where the
    agent's configuration streams, its answers are written as they come, also those that ask for tool calls.

    Exits 1 if the run failed or waits for somebody, 130 if it was cancelled, 143 if SIGTERM left it open.

    JSON: {log, session, run, outcome: completed | failed | cancelled, error: {kind, message}, text, usage, turns,
    stop_reason}.
    """
    run_command(_run(agent, text, log, session, key, as_json))


async def _run(name: str, text: str, log: Path, session_id: str | None, key: str | None, as_json: bool) -> int:
    from refold.actors.cancellation import CancellationToken
    from refold.agent_loading import load_agent
    from refold.agent_runtime import AgentRuntime
    from refold.outcome import Completed

    agent = load_agent(name)
    cancel = CancellationToken()
    with _ctrl_c(cancel):
        async with AgentRuntime(agent, log=log, wait_for_log_s=0, auto_resume=False, inbox_poll_s=0) as runtime:
            session = await runtime.session(session_id)
            if not as_json:
                _tell(f"session {shlex.quote(session.id)} in {shlex.quote(str(log))}")
            sending = _Sending(runtime, session, log, quiet=as_json)
            with _sigterm(sending):
                result = await sending.send(text, cancel, key)
                await runtime.close()
    await sending.all_shown()
    if result is None:
        tell_error(f"{sending.waits_for}; the run is left open")
        if sending.is_terminated:
            return EXIT_TERMINATED
        for call in sending.waiting_calls:
            typer.echo(approve_line(log, session.id, call), err=True)
        return EXIT_FOUND
    if as_json:
        write_result(log, session.id, result)
    elif sending.live.has_written(result.text) and isinstance(result.outcome, Completed):
        return EXIT_OK
    return tell_result(result, as_json)


class _Sending:
    """One input on its way, and what its session does meanwhile."""

    def __init__(self, runtime: "AgentRuntime", session: "Session", log: Path, *, quiet: bool) -> None:
        self.waits_for = ""
        """What nobody is here to decide, so that there will be no answer."""
        self.waiting_calls: list[str] = []
        """The calls of it that wait for approval."""
        self.is_terminated = False
        """SIGTERM came before the run had ended."""
        self._log = log
        self._runtime = runtime
        self._session = session
        self._quiet = quiet
        self._closing: asyncio.Task[None] | None = None
        self._tools: dict[str, str] = {}
        """Names by call."""
        self.live = LiveText()
        self._showing: asyncio.Task[None] | None = None

    async def send(self, text: str, cancel: "CancellationToken", key: str | None) -> "RunResult | None":
        """Return how the run ended, or None where it waits for somebody.

        Commands that other processes give to the session are performed meanwhile, those that wait for it first.
        """
        from refold.actors.errors import ActorStopped
        from refold.events.errors import PersistenceError
        from refold.inbox_reading import InboxReader
        from refold.stores.sqlite_file import absolute

        if self._runtime.agent.config.streaming and not self._quiet:
            followed = self._session.follow(capacity=LIVE_CAPACITY)
            self._showing = asyncio.get_running_loop().create_task(self._show(followed))
        else:
            self._runtime.subscribe(self._see, session=self._session.id)
        inbox = InboxReader(self._runtime, absolute(self._log), session=self._session.id)
        try:
            await inbox.perform_waiting()
            inbox.start(INBOX_POLL_S)
            if not await self._goes_on(cancel):
                return None
            return await self._session.send(text, cancel=cancel, key=key, on_event=self._begin)
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
        from refold.actors.errors import ActorStopped

        if self._showing is not None:
            with suppress(ActorStopped):  # What is not shown by now is in the log.
                await self._showing

    async def _show(self, followed: "Subscription") -> None:
        from refold.events.codec import RecordedEvent

        async for item in followed:
            self.live.see(item)
            if isinstance(item, RecordedEvent):
                self._see(item)

    def _begin(self, recorded: "Recorded") -> None:
        self.live.run = self.live.run or getattr(recorded.event, "run", None)

    async def _goes_on(self, cancel: "CancellationToken") -> bool:
        """Let a run go on that an earlier process left open, since it comes before the input; tell if it can."""
        from refold.events.session_state import calls_awaiting_approval
        from refold.session_view import status_of

        state = await self._session.state_at()
        if state.run is None:
            return True
        waiting = calls_awaiting_approval(state)
        if waiting and status_of(state) == "waiting" and not self._somebody_decides:
            self.waiting_calls = [call.id for call in waiting]
            calls = ", ".join(self.waiting_calls)
            self.waits_for = f"{calls} of {state.run.id} waits for approval, and the input was not sent"
            return False
        loop = asyncio.get_running_loop()
        cancel.on_cancel(lambda: loop.create_task(self._session.cancel()))
        await self._session.resume()
        return True

    def _see(self, recorded: "Recorded") -> None:
        from refold.event_words import call_words, content_words
        from refold.events.content import tool_uses
        from refold.events.session_events import (
            ModelResponded,
            RunParked,
            ToolApprovalRequested,
            ToolCallCompleted,
            ToolCallFailed,
        )

        match recorded.event:
            case ModelResponded(content=content):
                for call in tool_uses(content):
                    self._tools[call.id] = call.name
                    self._tell_call(f"-> {call_words(call.name, call.input)}")
            case ToolCallCompleted(call=call_id, content=content):
                self._tell_call(f"<- {self._tools.get(call_id, call_id)}: {content_words(content)}")
            case ToolCallFailed(call=call_id, content=content, kind=kind):
                self._tell_call(f"<- {self._tools.get(call_id, call_id)} ({kind}): {content_words(content)}")
            case ToolApprovalRequested(call=call_id, tool=tool, input=arguments):
                waits = f"{call_words(tool, arguments)} waits for approval as {call_id}"
                if self._somebody_decides:
                    self._tell_call(waits)
                else:
                    self.waiting_calls.append(call_id)
                    self._wait_for(waits)
            case RunParked(reason=reason):
                self._wait_for(f"the run is parked: {reason}")
            case _:
                return

    def _tell_call(self, words: str) -> None:
        if not self._quiet:
            _tell(cell(words, CALL_CHARACTERS))

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
def _ctrl_c(cancel: "CancellationToken") -> Generator[None, None, None]:
    """Let the first Ctrl-C cancel, and the second one end the process without another word."""

    def interrupted() -> None:
        if cancel.cancelled:
            os._exit(EXIT_INTERRUPTED)
        _tell("cancelling; Ctrl-C again leaves at once")
        cancel.cancel("Ctrl-C")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _sigterm(sending: _Sending) -> Generator[None, None, None]:
    """Let the first SIGTERM leave the run open, and the second one end the process as it does by default."""

    def terminated() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        _tell("closing; SIGTERM again leaves at once")
        sending.terminate()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _tell(words: str) -> None:
    typer.secho(one_line(words), err=True, dim=True)
