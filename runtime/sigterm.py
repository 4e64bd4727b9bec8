"""A clean end under SIGTERM, for programs that no server ends: what systemd, Docker and Kubernetes send at a deploy.

Without it SIGTERM ends the process at once, as a crash does: the log is sound and open runs go on at the next start.
With it the runtime closes as it does at the end of its `async with`: what is in flight gets the grace to reach the log,
and the log says that the runtime has ended in order. The rule: a second signal ends the process at once.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

from refold.actors.kernel.errors import ActorStopped
from refold.agent_runtime import AgentRuntime
from refold.events.core.errors import ConfigError

log = logging.getLogger("refold.runtime")

_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None

EXIT_TERMINATED: Final = 128 + signal.SIGTERM
"""What a shell says of a process that SIGTERM ended: 143."""


@asynccontextmanager
async def stop_on_sigterm(runtime: AgentRuntime[Any]) -> AsyncGenerator[None]:
    """Close `runtime` at SIGTERM, cancel what the block does then, and exit with code 143.

    `async with AgentRuntime(...) as runtime, stop_on_sigterm(runtime): ...`. Open runs are left open, to go on at the
    next start; a caller that waits for one gets ActorStopped. Code after the block does not run, `finally` does.
    A second SIGTERM ends the process at once. Web servers have handlers of their own: use `close_on_sigterm` there.

    Raises:
        ConfigError: this is not the main thread, which is the one that gets signals, or the system has none.
        SystemExit: SIGTERM came; with code 143.
    """
    stop = _Stop(runtime)
    previous = signal.getsignal(signal.SIGTERM)
    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.begin)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ConfigError("stop_on_sigterm works in the main thread of a POSIX system only") from error
    try:
        try:
            yield
        except BaseException as error:
            if stop.explains(error):
                await stop.end()
            raise
        if stop.closing is not None:
            await stop.end()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        if stop.closing is None:
            _restore(signal.SIGTERM, previous)


@asynccontextmanager
async def close_on_sigterm(runtime: AgentRuntime[Any]) -> AsyncGenerator[None]:
    """Begin to close `runtime` at SIGTERM or SIGINT, and let the server go on with what it does then.

    For the lifespan of a web server: `async with AgentRuntime(...) as runtime, close_on_sigterm(runtime): yield`. A
    server that is told to stop waits for its responses before the lifespan ends, and a response that follows a session
    would wait for the end of the runtime: closing it first ends each such response within the close grace. Streams of
    sessions and readers of runs end, and a caller that waits for a run gets ActorStopped; open runs are left open.

    Raises:
        ConfigError: this is not the main thread, which is the one that gets signals.
    """
    loop = asyncio.get_running_loop()
    closing = set[asyncio.Task[None]]()

    def begin() -> None:
        if not closing:
            closing.add(loop.create_task(runtime.close(), name="close the runtime when told to stop"))
            log.info("told to stop: the runtime closes")

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin)
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)

    try:
        for number in before:
            signal.signal(number, handle)
    except ValueError as error:
        raise ConfigError("close_on_sigterm works in the main thread only") from error
    try:
        yield
    finally:
        for number, previous in before.items():
            if signal.getsignal(number) is handle:
                _restore(number, previous)


def _restore(number: signal.Signals, previous: _Handler) -> None:
    """Put a handler back; one that was not set by Python (None) cannot be, and the system's takes its place."""
    signal.signal(number, signal.SIG_DFL if previous is None else previous)


class _Stop:
    """The end of a runtime and of the block that uses it."""

    def __init__(self, runtime: AgentRuntime[Any]) -> None:
        self.closing: asyncio.Task[None] | None = None
        """Set once the signal has come."""
        self._runtime = runtime
        self._block = asyncio.current_task()
        self._cancelled = False

    def begin(self) -> None:
        """Close the runtime, then cancel the block; the next signal finds no handler."""
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTERM)
        self.closing = loop.create_task(self._runtime.close(), name="close the runtime at SIGTERM")
        log.info("SIGTERM: the runtime closes; a second one ends the process at once")
        self.closing.add_done_callback(self._cancel_block)

    def _cancel_block(self, _: object) -> None:
        if self._block is not None and not self._cancelled:
            self._cancelled = True
            self._block.cancel("SIGTERM")

    def explains(self, error: BaseException) -> bool:
        """Tell whether the block was left because of the signal, and of nothing else."""
        if self.closing is None:
            return False
        if self._cancelled and self._block is not None and self._block.uncancel() > 0:
            return False  # Another caller cancels it too.
        ours = (asyncio.CancelledError, ActorStopped)
        if isinstance(error, BaseExceptionGroup):
            return error.split(ours)[1] is None  # pyright: ignore[reportUnknownMemberType]
        return isinstance(error, ours)

    async def end(self) -> None:
        """Wait for the runtime's end, and exit."""
        self._cancelled = True  # The block is left: there is nothing to be cancelled any more.
        assert self.closing is not None
        await self.closing
        raise SystemExit(EXIT_TERMINATED) from None
