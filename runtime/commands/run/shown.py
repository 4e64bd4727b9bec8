"""What the commands that run an agent show while it works.

`LiveText` writes answers to stdout as their pieces come. `CallLines` writes a line to stderr for each tool call, for
each result, and for a model call that failed and is made again, since the pause may be long. `ChildWaits` finds the
calls of subagents that wait for a person, as seen from the session whose run waits for them.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import typer

from refold.actors.agent.subsession import children_prefix
from refold.agent_runtime import AgentRuntime
from refold.commands.output import cell, safe_text, tell
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import tool_uses
from refold.events.model.messages import TextDelta
from refold.events.session import events as ev
from refold.events.session.state import SessionState
from refold.inspection.summaries import call_words, content_words
from refold.publishing.notifications import Published, RecordedSessionEvent, Streamed
from refold.sessions.people import approvals_in, questions_in
from refold.sessions.session import Session

CALL_CHARACTERS: Final = 100
"""After so many characters a line about a tool call is cut."""

LIVE_CAPACITY: Final = 10_000
"""How many pieces of an answer may wait to be shown."""

INBOX_POLL_S: Final = 0.2
"""How often the inbox is read for commands of other processes to the session."""


ForPerson: TypeAlias = ev.ToolApprovalRequested | ev.QuestionAsked
"""What a person is asked."""

_BEGIN_SEQUENCES: Final = "\x1b\x90\x98\x9b\x9d\x9e\x9f"


class LiveText:
    """Writes the answers of one run as their pieces come.

    A piece may end inside an escape sequence: from where one begins, an answer is held back until it is whole.
    """

    def __init__(self) -> None:
        self.run: str | None = None
        """The run whose answers are written; None = none yet."""
        self._answer: list[str] = []
        self._held = ""
        self._turn: int = 0
        self._whole = False
        self._inside_line = False
        self._failure: OSError | None = None

    def see(self, item: Published) -> None:
        """Write what a piece adds; end the line where an answer ends or breaks off."""
        if isinstance(item, Streamed):
            if item.run == self.run and isinstance(item.delta, TextDelta):
                self._add(item.turn, item.delta.text)
        elif isinstance(item, RecordedEvent):
            if isinstance(item.event, ev.ModelResponded):
                self._end(whole=True)
            elif isinstance(item.event, ev.ModelInterrupted | ev.ModelFailed | ev.RunCancelled | ev.RunFailed):
                self._end(whole=False)

    def has_written(self, answer: str) -> bool:
        """Tell whether the last answer that was written is this one, all of it.

        Raises:
            OSError: it could not be written, as into a pipe without a reader.
        """
        if self._failure is not None:
            raise self._failure
        return self._whole and "".join(self._answer) == answer

    def _add(self, turn: int, text: str) -> None:
        if self._whole or turn != self._turn:
            self._answer.clear()
            self._turn, self._whole = turn, False
        self._answer.append(text)
        text = self._held + text
        begins = [place for mark in _BEGIN_SEQUENCES if (place := text.find(mark)) >= 0]
        cut = min(begins) if begins else len(text) - text.endswith("\r")
        self._held = text[cut:]
        self._write(safe_text(text[:cut]))

    def _end(self, *, whole: bool) -> None:
        held, self._held = self._held, ""
        self._write(safe_text(held))
        if self._inside_line:
            self._write("\n")
        self._whole = whole
        if not whole:
            self._answer = []

    def _write(self, text: str) -> None:
        if not text or self._failure is not None:
            return
        try:
            typer.echo(text, nl=False)
        except OSError as error:  # The run goes on; the failure is told at its end.
            self._failure = error
        self._inside_line = not text.endswith("\n")


class CallLines:
    """Writes the lines of one session to stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._tools: dict[str, str] = {}
        """Names by call."""
        self._failures: dict[str | None, str] = {}
        """Why the last attempt failed, by call; None = at the model call."""

    def know(self, state: SessionState) -> None:
        """Learn the names of calls whose answer came before this process saw the session."""
        if state.turn is not None:
            self._tools |= {call.id: call.name for call in state.turn.calls}

    def see(self, recorded: RecordedSessionEvent) -> None:
        """Write what an event says of a tool call, or of a model call that is made again, if it does."""
        match recorded.event:
            case ev.ModelFailed(message=message):
                self._failures[None] = message
            case ev.ToolAttemptFailed(call=call_id, content=content):
                self._failures[call_id] = content_words(content)
            case ev.RetryScheduled(due_at=due_at, at=at, call=failed):
                what = "asked" if failed is None else f"{self._tools.get(failed, failed)} is tried"
                self.tell(f".. {what} again in {max(due_at - at, 0) / 1e6:.0f} s: {self._failures.get(failed, '')}")
            case ev.ModelResponded(content=content):
                for call in tool_uses(content):
                    self._tools[call.id] = call.name
                    self.tell(f"-> {call_words(call.name, call.input)}")
            case ev.ToolCallCompleted(call=call_id, content=content):
                self.tell(f"<- {self._tools.get(call_id, call_id)}: {content_words(content)}")
            case ev.ToolCallFailed(call=call_id, content=content, kind=kind):
                self.tell(f"<- {self._tools.get(call_id, call_id)} ({kind}): {content_words(content)}")
            case _:
                return

    def tell(self, words: str) -> None:
        """Write a line about a call, cut to one of a terminal."""
        if not self._quiet:
            tell(cell(words, CALL_CHARACTERS))


class ChildWaits:
    """Tells of calls below a session that wait for a person: for an approval no handler is asked about, or an answer.

    Args:
        found: called with each such call, and its session.
    """

    def __init__(self, runtime: AgentRuntime, session: Session, found: Callable[[Session, ForPerson], None]) -> None:
        self._runtime = runtime
        self._session = session
        self._found = found
        self._prefix = f"session/{children_prefix(session.id)}"
        self._looking: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Tell of those that come to wait from now on."""
        self._runtime.subscribe(self._see)

    async def tell_waiting(self) -> None:
        """Tell of those that wait now."""
        waiting = [self._session]
        while waiting:
            for child in await waiting.pop().children():
                await self._look_at(child)
                waiting.append(child)

    def _see(self, recorded: RecordedSessionEvent) -> None:
        if isinstance(recorded.event, ForPerson) and recorded.stream.startswith(self._prefix):
            task = asyncio.get_running_loop().create_task(self._look_at_stream(recorded.stream))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _look_at_stream(self, stream: str) -> None:
        await self._look_at(await self._runtime.session(stream.partition("/")[2]))

    async def _look_at(self, child: Session) -> None:
        state = await child.state_at()
        agent = self._runtime.agents.get(state.agent) if state.agent is not None else None
        waiting: list[ForPerson] = [*questions_in(state)]
        if agent is None or agent.approval is None:
            waiting += approvals_in(state)
        for request in waiting:
            self._found(child, request)
