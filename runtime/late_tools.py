"""Tools that are registered or removed while a runtime is open: in force for every input that is sent afterwards.

A session decides by the configuration that its log names, which lists the tools; so another one has to be in the log
before a session may take it. What a tool brings along, such as its breaker, lives on the log from then on too. The
rules: a registration returns at once, and whoever sends an input waits for it; until the log has it, a breaker works in
memory, and what happened by then is taken along.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from refold.actors.hosting import Host
from refold.agent import check_streams
from refold.events.errors import RefoldError
from refold.stream_object import StreamObject, stream_objects_of
from refold.tools import Tool

log = logging.getLogger("refold.runtime")


class LateTools:
    """Puts in force what changes in the tools of an open runtime.

    Args:
        host: of the runtime.
        known: returns what lives on the log of the tools and all else that the runtime has now.
        renew: has later inputs find the tools that there are now.
    """

    def __init__(
        self,
        host: Host,
        known: Callable[[], Sequence[StreamObject[Any, Any, Any]]],
        renew: Callable[[], Awaitable[object]],
    ) -> None:
        self._host = host
        self._known = known
        self._renew = renew
        self._taken = list(known())
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._ended = False

    def changed(self, new: Tool[..., object] | None) -> None:
        """Put in force that a tool is there now, or that one is gone; in any thread.

        Args:
            new: the tool; None = one is gone.

        Raises:
            ConfigError: it brings along the stream of something else that the runtime has.
        """
        if self._ended:
            return
        check_streams(self._known())
        brought = stream_objects_of(new) if new is not None else ()
        fresh = [living for living in brought if not any(living is taken for taken in self._taken)]
        self._taken += fresh
        if asyncio._get_running_loop() is self._loop:
            self._begin(fresh)
        else:
            self._loop.call_soon_threadsafe(self._begin, fresh)

    async def in_force(self) -> None:
        """Return when everything that changed so far is in force."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, fresh: Sequence[StreamObject[Any, Any, Any]]) -> None:
        if not self._ended:
            task = self._loop.create_task(self._put_in_force(fresh), name="late tools")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _put_in_force(self, fresh: Sequence[StreamObject[Any, Any, Any]]) -> None:
        async with self._turn:  # Or an earlier state of the tools could come last.
            for living in fresh:
                try:
                    await living.attach(self._host)
                except RefoldError as error:
                    log.error("%s stays in memory: %s", living.stream, error)
            try:
                await self._renew()
            except RefoldError as error:
                log.error("sessions are not told which tools there are now: %s", error)

    async def end(self) -> None:
        """Put nothing more in force."""
        self._ended = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
