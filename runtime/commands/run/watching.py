"""What the commands that run an agent show of it beside its answers: a line for each tool call and for each result.

A model call that failed and is made again has a line, too: the pause may be long. Answers are written by
`refold.commands.run.live_text`.

The calls in the sessions of subagents that wait for a person, as seen from the session whose run waits for them.

Signals for a main thread that waits for input.

The rule: a signal's handler is called at once, whatever the main thread waits for. Python calls handlers between two
steps of its own, so that a signal which comes just before a read begins to block would wait until there is something
to read. So another thread interrupts the read, with a signal that means nothing, until the handler has been called.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

import typer

from refold.commands.output import cell, one_line

if TYPE_CHECKING:
    from refold.agent_runtime import AgentRuntime
    from refold.events.session.events import ToolApprovalRequested
    from refold.sessions.notifications import Recorded
    from refold.sessions.session import Session

CALL_CHARACTERS: Final = 100
"""After so many characters a line about a tool call is cut."""

LIVE_CAPACITY: Final = 10_000
"""How many pieces of an answer may wait to be shown."""

INBOX_POLL_S: Final = 0.2
"""How often it is looked for commands of other processes to the session."""


class CallLines:
    """Writes the lines of one session to stderr.

    Args:
        quiet: write nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._tools: dict[str, str] = {}
        """Names by call."""
        self._failure = ""
        """Why the last model call failed."""

    def see(self, recorded: "Recorded") -> None:
        """Write what an event says of a tool call, or of a model call that is made again, if it does."""
        from refold.events.core.content import tool_uses
        from refold.events.session.events import (
            ModelFailed,
            ModelResponded,
            RetryScheduled,
            ToolCallCompleted,
            ToolCallFailed,
        )
        from refold.inspection.summaries import call_words, content_words

        match recorded.event:
            case ModelFailed(message=message):
                self._failure = message
            case RetryScheduled(due_at=due_at, at=at):
                self.tell(f".. asked again in {max(due_at - at, 0) / 1e6:.0f} s: {self._failure}")
            case ModelResponded(content=content):
                for call in tool_uses(content):
                    self._tools[call.id] = call.name
                    self.tell(f"-> {call_words(call.name, call.input)}")
            case ToolCallCompleted(call=call_id, content=content):
                self.tell(f"<- {self._tools.get(call_id, call_id)}: {content_words(content)}")
            case ToolCallFailed(call=call_id, content=content, kind=kind):
                self.tell(f"<- {self._tools.get(call_id, call_id)} ({kind}): {content_words(content)}")
            case _:
                return

    def tell(self, words: str) -> None:
        """Write a line about a call, cut to one of a terminal."""
        if not self._quiet:
            tell(cell(words, CALL_CHARACTERS))


def tell(words: str) -> None:
    """Write a line about what goes on, to stderr, where no answers are."""
    typer.secho(one_line(words), err=True, dim=True)


class ChildApprovals:
    """Tells of calls below a session that wait for somebody's approval, and that no handler is asked about.

    Args:
        runtime: whose sessions they are.
        session: whose children are watched, and theirs.
        found: called with each such call, and its session.
    """

    def __init__(
        self,
        runtime: "AgentRuntime",
        session: "Session",
        found: "Callable[[Session, ToolApprovalRequested], None]",
    ) -> None:
        from refold.actors.agent.subsession import children_prefix

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

    def _see(self, recorded: "Recorded") -> None:
        from refold.events.session.events import ToolApprovalRequested

        if isinstance(recorded.event, ToolApprovalRequested) and recorded.stream.startswith(self._prefix):
            task = asyncio.get_running_loop().create_task(self._look_at_stream(recorded.stream))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _look_at_stream(self, stream: str) -> None:
        await self._look_at(await self._runtime.session(stream.partition("/")[2]))

    async def _look_at(self, child: "Session") -> None:
        from refold.events.session.state import calls_awaiting_approval

        state = await child.state_at()
        agent = self._runtime.agents.get(state.agent) if state.agent is not None else None
        if calls_awaiting_approval(state) and (agent is None or agent.approval is None):
            for request in await child.approvals(below=False):
                self._found(child, request)


INTERRUPTS: Final = signal.SIGURG
"""Means nothing, and is ignored where nobody handles it."""

ATTEMPTS_MAX: Final = 100
ATTEMPT_S: Final = 0.05
"""How long a handler may take to be called before the main thread is interrupted, and again."""


@contextmanager
def signals_handled(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Generator[None, None, None]:
    """Call the handlers of signals in this thread, the main one, as long as the block lasts; they may raise."""
    called = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        called.set()
        handlers[signal.Signals(number)]()

    received, sends = socket.socketpair()
    sends.setblocking(False)
    before = {number: signal.signal(number, handle) for number in handlers}
    before[INTERRUPTS] = signal.signal(INTERRUPTS, lambda number, frame: None)
    fd_before = signal.set_wakeup_fd(sends.fileno(), warn_on_full_buffer=False)
    numbers = frozenset(map(int, handlers))
    main = threading.get_ident()
    watching = threading.Thread(target=_insist, args=(received, numbers, called, main), name="signals", daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd_before)
        sends.close()
        called.set()
        watching.join()
        received.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _insist(received: socket.socket, numbers: frozenset[int], called: threading.Event, main: int) -> None:
    """See to it that handlers are called, until nothing more can be received."""
    while data := received.recv(1024):
        if numbers.isdisjoint(data):
            continue
        for _ in range(ATTEMPTS_MAX):
            if called.wait(ATTEMPT_S):
                break
            signal.pthread_kill(main, INTERRUPTS)
        called.clear()
