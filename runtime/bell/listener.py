"""The end of a process that does not own the log: hears the bell, and gives commands.

Read `refold.bell.owner_end` first.
"""

import asyncio
import logging
import math
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from refold.actors.kernel.clock import Clock
from refold.bell.frames import (
    FRAME_BYTES_MAX,
    Answered,
    Attend,
    Give,
    Hello,
    Look,
    News,
    address_of,
    bell_path,
    encoded,
    read_frame,
    user_of,
)
from refold.events.core.errors import PersistenceError
from refold.stores.guarding.trusted_files import trusted_users

log = logging.getLogger("refold.bell")

GIVEN_BYTES_MAX: Final = FRAME_BYTES_MAX - 16 * 1024
"""Longest command that is given directly; a longer one goes into the inbox."""

TRY_AGAIN_S: Final = 0.1
"""After so long a process that does not hear the bell tries again to reach it."""

HELLO_S: Final = 2.0
"""How long an owner may take for its first word; one that was stopped takes longer."""


class Alarm:
    """A pause that may be ended early, for one task that waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the pause, or the next one."""
        self._rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Return after so long, or as soon as it rings, and whether it did."""
        if not self._rung:
            waiting = self._waiting = asyncio.get_running_loop().create_future()

            def over() -> None:
                if not waiting.done():
                    waiting.set_result(None)

            timer = self._clock.call_later(seconds, over)
            try:
                await waiting
            finally:
                timer.cancel()
                self._waiting = None
        rung, self._rung = self._rung, False
        return rung


class Listener:
    """The end of another process: hears what the owner tells, in order, and rings.

    Args:
        path: the log's, absolute.
        hear: awaited with what the owner tells.
        lost: called when the bell was heard, and is not any more.
        is_news: tells whether an error, because of which it cannot be heard, is not in the program's log yet.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        hear: Callable[[News], Awaitable[None]],
        lost: Callable[[], object],
        is_news: Callable[[Exception], bool],
    ) -> None:
        self._tried = asyncio.Event()
        """Set once it is known whether there is an owner that can be heard."""
        self._attends = False
        self._log = path
        self._clock = clock
        self._hear = hear
        self._lost = lost
        self._is_news = is_news
        self._writer: asyncio.StreamWriter | None = None
        self._given = 0
        self._outcomes: dict[int, asyncio.Future[bytes]] = {}
        """Of the commands that were given and not answered."""

    @property
    def hears(self) -> bool:
        return self._writer is not None

    def ring(self) -> None:
        """Have the owner look into the inbox, if it can be reached."""
        if self._writer is not None:
            self._writer.write(encoded([Look()]))

    def attend(self) -> None:
        """Hear of pieces of answers too, from now on."""
        if not self._attends:
            self._attends = True
            if self._writer is not None:
                self._writer.write(encoded([Attend()]))

    async def tried(self) -> None:
        """Return when it is known whether there is an owner that can be heard; what it tells comes behind that."""
        await self._tried.wait()

    async def give(self, session: str, key: str, command: bytes, *, timeout_s: float = math.inf) -> bytes | None:
        """Give a command to the owner, and return what came of it; None = it cannot be given.

        Empty = what came of it is not known, or not in time; it may be performed yet.
        """
        giving = asyncio.ensure_future(self._given_directly(session, key, command))
        timer = self._clock.call_later(timeout_s, giving.cancel) if timeout_s < math.inf else None
        try:
            await asyncio.wait([giving])
            return b"" if giving.cancelled() else giving.result()
        finally:
            giving.cancel()
            if timer is not None:
                timer.cancel()

    async def _given_directly(self, session: str, key: str, command: bytes) -> bytes | None:
        await self.tried()  # One that went into the inbox would have the later ones wait for it there.
        writer = self._writer
        if writer is None or len(command) > GIVEN_BYTES_MAX:
            return None
        self._given += 1
        number = self._given
        outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._outcomes[number] = outcome
        try:
            writer.write(encoded([Give(number, session, key, command)]))
            return await outcome
        finally:
            del self._outcomes[number]

    async def listen(self) -> None:
        """Hear, and try again, for ever."""
        while True:
            try:
                await self._listen_once()
            except (OSError, EOFError, PersistenceError, msgspec.MsgspecError, UnicodeError) as error:
                if not isinstance(error, ConnectionError | FileNotFoundError | EOFError) and self._is_news(error):
                    log.warning("the bell of %s cannot be heard: %s", self._log, error)
            finally:
                self._tried.set()
            await self._clock.sleep(TRY_AGAIN_S)

    async def _listen_once(self) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._connected())
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await read_frame(reader)
            if not isinstance(hello, Hello):
                raise EOFError
            if self._attends:
                writer.write(encoded([Attend()]))
            self._writer = writer
            self._tried.set()
            await self._hear(hello)
            while True:
                frame = await read_frame(reader)
                if not isinstance(frame, Answered):
                    await self._hear(frame)
                elif (outcome := self._outcomes.get(frame.number)) is not None and not outcome.done():
                    outcome.set_result(frame.outcome)
        finally:
            was_heard, self._writer = self._writer is not None, None
            writer.close()
            for outcome in self._outcomes.values():
                if not outcome.done():
                    outcome.set_result(b"")
            if was_heard:
                self._lost()

    def _connected(self) -> socket.socket:
        """Return a connection to the owner; raise OSError where what lies at the path is not an owner's."""
        path = bell_path(self._log)
        status = path.lstat()
        trusted = trusted_users(self._log, writing=False)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in trusted:
            raise OSError(f"{path} is not a socket of the log's owner; remove it")
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bell.setblocking(False)
            with address_of(path) as address:
                bell.connect(address)
            if user_of(bell) not in trusted:
                raise OSError(f"at {path} another user listens; remove it")
        except BaseException:
            bell.close()
            raise
        return bell
