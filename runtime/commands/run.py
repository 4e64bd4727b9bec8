"""`refold run AGENT INPUT`: one input to an agent, durable from its first event."""

import asyncio
import os
import shlex
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_OK, JsonOption, run_command
from refold.commands.output import cell, console, write_json, write_paragraph
from refold.commands.safe_text import one_line

if TYPE_CHECKING:
    from refold.actors.cancellation import CancellationToken
    from refold.agent_runtime import AgentRuntime
    from refold.outcome import RunResult
    from refold.session import Session
    from refold.session_hub import Recorded

CALL_CHARACTERS = 100
"""After so many characters a line about a tool call is cut."""


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
    run, which is recorded; a second Ctrl-C leaves at once, and the run goes on when its session is next used. A run
    of the session that an earlier process left open goes on first; other sessions of the log are left alone.

    Exits 1 if the run failed or waits for somebody, 130 if it was cancelled.

    JSON: {log, session, run, outcome: completed | failed | cancelled, error: {kind, message}, text, usage, turns,
    stop_reason}.
    """
    run_command(_run(agent, text, log, session, key, as_json))


async def _run(name: str, text: str, log: Path, session_id: str | None, key: str | None, as_json: bool) -> int:
    from refold.actors.cancellation import CancellationToken
    from refold.agent_loading import load_agent
    from refold.agent_runtime import AgentRuntime

    agent = load_agent(name)
    cancel = CancellationToken()
    with _ctrl_c(cancel):
        async with AgentRuntime(agent, log=log, wait_for_log_s=0, auto_resume=False) as runtime:
            session = await runtime.session(session_id)
            if not as_json:
                _tell(f"session {shlex.quote(session.id)} in {shlex.quote(str(log))}")
            sending = _Sending(runtime, session, quiet=as_json)
            result = await sending.send(text, cancel, key)
    if result is None:
        _tell_error(f"{sending.waits_for}; the run is left open")
        return EXIT_FOUND
    if as_json:
        write_json(_document(log, session, result))
    return _tell_result(result, as_json)


class _Sending:
    """One input on its way, and what its session does meanwhile."""

    def __init__(self, runtime: "AgentRuntime", session: "Session", *, quiet: bool) -> None:
        self.waits_for = ""
        """What nobody is here to decide, so that there will be no answer."""
        self._runtime = runtime
        self._session = session
        self._quiet = quiet
        self._closing: asyncio.Task[None] | None = None
        self._tools: dict[str, str] = {}
        """Names by call."""

    async def send(self, text: str, cancel: "CancellationToken", key: str | None) -> "RunResult | None":
        """Return how the run ended, or None where it waits for somebody."""
        from refold.actors.errors import ActorStopped

        self._runtime.subscribe(self._see, session=self._session.id)
        if not await self._goes_on(cancel):
            return None
        try:
            return await self._session.send(text, cancel=cancel, key=key)
        except ActorStopped:
            if not self.waits_for:
                raise
            return None

    async def _goes_on(self, cancel: "CancellationToken") -> bool:
        """Let a run go on that an earlier process left open, since it comes before the input; tell if it can."""
        from refold.events.session_state import calls_awaiting_approval
        from refold.session_view import status_of

        state = await self._session.state_at()
        if state.run is None:
            return True
        if status_of(state) == "waiting":
            calls = ", ".join(call.id for call in calls_awaiting_approval(state))
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
                self._wait_for(f"{call_words(tool, arguments)} waits for approval as {call_id}")
            case RunParked(reason=reason):
                self._wait_for(f"the run is parked: {reason}")
            case _:
                return

    def _tell_call(self, words: str) -> None:
        if not self._quiet:
            _tell(cell(words, CALL_CHARACTERS))

    def _wait_for(self, what: str) -> None:
        """Close the runtime, which leaves the run open: nobody is here to decide."""
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


def _document(log: Path, session: "Session", result: "RunResult") -> dict[str, object]:
    from refold.outcome import Failed

    return {
        "log": str(log),
        "session": session.id,
        "run": result.run,
        "outcome": type(result.outcome).__name__.lower(),
        "error": result.outcome.error if isinstance(result.outcome, Failed) else None,
        "text": result.text,
        "usage": result.usage,
        "turns": result.turns,
        "stop_reason": result.stop_reason,
    }


def _tell_result(result: "RunResult", as_json: bool) -> int:
    """Write the answer, or why there is none, and return the exit code."""
    from refold.outcome import Cancelled, Failed

    match result.outcome:
        case Failed(error=error):
            _tell_error(f"{result.run} failed ({error.kind}): {error.message}")
            return EXIT_FOUND
        case Cancelled():
            _tell_error(f"{result.run} was cancelled")
            return EXIT_INTERRUPTED
        case _:
            if not as_json:
                write_paragraph(console(), result.text)
            return EXIT_OK


def _tell(words: str) -> None:
    typer.secho(one_line(words), err=True, dim=True)


def _tell_error(words: str) -> None:
    typer.echo(f"refold: {one_line(words)}", err=True)
