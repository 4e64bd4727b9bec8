"""The bell beside a log: a Unix socket by which the processes of one machine hear of each other at once.

`<log>.bell` is the owner's. It says how far the log goes, and passes on the pieces of answers; and another process says
there that it has put a command into the inbox, or gives a small one directly. Nothing depends on it: what is durable
lies in the log and in the inbox. A command that was given directly is answered when it is in the log; where no answer
comes, it goes into the inbox under the same key. A process that cannot reach the bell (another container, a system
without such sockets) looks into the files again and again. Read `Bell` for the owner's end, and
`refold.bell.listener` for that of the others.

The rules: only the users who may write the log are talked to, in both directions; a path that holds something else
than a socket of theirs is left alone; what comes is bounded, and checked by its type; and a peer that sends nonsense,
or does not read, is let go and comes back, and holds up no other.
"""

import asyncio
import logging
import os
import socket
import stat
import uuid
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from refold.bell.frames import (
    FRAME_BYTES_MAX,
    LENGTH,
    Answered,
    Attend,
    Durable,
    Frame,
    FromPeer,
    Give,
    Hello,
    Look,
    Noted,
    Piece,
    Report,
    address_of,
    bell_path,
    encoded,
    pieces,
    require_users_told,
    said_decoder,
    user_of,
)
from refold.events.core.errors import PersistenceError
from refold.publishing.answers import AnswerSoFar
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import Progressed, Streamed
from refold.stores.guarding.trusted_files import trusted_users
from refold.stores.sqlite.store import SQLiteStore

log = logging.getLogger("refold.bell")

BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
"""So much may wait for one peer to read it; then the peer is let go."""

PEERS_MAX: Final = 256
"""Most processes that are talked to; further ones look into the files."""

GIVEN_MAX: Final = 100
"""Most commands of one peer that are performed at a time; further ones wait in its socket."""

FRAMES_PER_STEP: Final = 100
"""So many frames of a peer are looked at before others have the loop."""

Perform: TypeAlias = Callable[[str, str, bytes], Awaitable[bytes]]
"""Given a session, a key and a command: returns what came of it; empty = that is not known, or it is not done now."""


class Bell:
    """The owner's end: tells all that listen what happens, and is rung by them.

    Args:
        path: the log's absolute path.
        owner: names this life of the owner.
        position: how far the log goes.
        rung: called when a peer has put something into the inbox.
        perform: performs a command.
        answers: returns the answers that are streamed now.
    """

    def __init__(
        self,
        path: Path,
        *,
        owner: str,
        position: int,
        rung: Callable[[], object],
        perform: Perform,
        answers: Callable[[], list[AnswerSoFar]],
    ) -> None:
        self.rung = rung
        self.perform = perform
        self.position = position
        self.log = path
        self._owner = owner
        self._answers = answers
        self._peers: dict[_Peer, None] = {}
        self._told: list[Frame] = []
        self._server: asyncio.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._socket: socket.socket | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self) -> bool:
        """Begin to listen; return whether that works here, else it is logged why other processes have to look."""
        try:
            self._server = await self._listening()
        except (OSError, PersistenceError) as error:
            log.info("%s has no bell, and other processes look for themselves: %s", self.log, error)
        return self._server is not None

    async def _listening(self) -> asyncio.Server:
        path = bell_path(self.log)
        require_users_told()
        _remove_stale(path, trusted_users(self.log, writing=True))
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bell.setblocking(False)
            with suppress(OSError):  # Linux gives the file the mode of the socket; macOS has no mode for sockets.
                os.fchmod(bell.fileno(), 0o600)
            with address_of(path) as address:
                bell.bind(address)
            if path.lstat().st_mode & 0o077:  # No peer connects before `listen`.
                os.chmod(path, 0o600, follow_symlinks=os.chmod not in os.supports_follow_symlinks)
            status = path.lstat()
            self._identity = (status.st_dev, status.st_ino)
            if status.st_mode & 0o077:
                raise OSError(f"{path} could be rung by other users")
            server = await self._loop.create_unix_server(lambda: _Peer(self), sock=bell, backlog=PEERS_MAX)
        except BaseException:
            bell.close()
            raise
        self._socket = bell
        weakref.finalize(self, bell.close)  # A loop may end under a runtime that is open, and closes no server.
        _open.add(self)
        return server

    def trusts(self, transport: asyncio.BaseTransport) -> bool:
        """Tell whether a peer is one who may write the log, and there is room for it."""
        if self._server is None:
            return False
        try:
            user = user_of(transport.get_extra_info("socket"))
            return user in trusted_users(self.log, writing=True) and len(self._peers) < PEERS_MAX
        except (OSError, PersistenceError) as error:
            log.warning("it cannot be told whose a process at the bell of %s is, so it is let go: %s", self.log, error)
            return False

    def welcome(self, peer: "_Peer") -> None:
        self._flush()
        self._peers[peer] = None
        peer.write(encoded([Hello(self._owner, self.position)]))

    def attend(self, peer: "_Peer") -> None:
        """Tell a peer of answers too, first what there is of them."""
        self._flush()
        peer.attends = True
        frames: list[Frame] = [Hello(self._owner, self.position)]
        for answer in self._answers():
            for streamed in answer.after(0):
                frames += pieces(streamed, answer, so_far=True)
        peer.write(encoded(frames))

    def answer(self, peer: "_Peer", given: Answered) -> None:
        """Tell a peer what came of its command, behind all that was told before."""
        self._flush()
        if peer in self._peers:  # What is too long for a frame is told through the inbox.
            peer.write(encoded([given]) or encoded([Answered(given.number, b"")]))

    def farewell(self, peer: "_Peer") -> None:
        self._peers.pop(peer, None)

    def recorded(self, position: int) -> None:
        """Tell that events are durable up to a position."""
        if position > self.position:
            self.position = position
            if self._told and isinstance(self._told[-1], Durable):
                self._told.pop()
            self._tell(Durable(position))

    def noted(self) -> None:
        """Tell that the inbox has outcomes."""
        self._tell(Noted())

    def streamed(self, streamed: Streamed, answer: AnswerSoFar) -> None:
        """Pass on a piece of an answer."""
        if self._peers:
            for piece in pieces(streamed, answer, so_far=False):
                self._tell(piece)

    def progressed(self, item: Progressed) -> None:
        """Pass on what a tool reports."""
        if self._peers:
            self._tell(Report(item.session, item.call, item.report))

    def let_go_in_child(self) -> None:
        """In a forked child: hold no connection of the parent, whose end would not be noticed by its peers."""
        if self._socket is not None:
            self._socket.close()
        descriptors = [descriptor for peer in self._peers if (descriptor := peer.descriptor) >= 0]
        if descriptors:
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for descriptor in descriptors:  # They stay taken, since objects of the parent's name them.
                os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)

    def close(self) -> None:
        """End, and let the path go, unless another owner has it by now; any number of times."""
        server, self._server = self._server, None
        if server is None:
            return
        self._flush()
        self._hang_up(server)
        for peer in list(self._peers):
            peer.close()
        path = bell_path(self.log)
        with suppress(OSError):
            status = path.lstat()
            if (status.st_dev, status.st_ino) == self._identity:
                path.unlink()

    def _hang_up(self, server: asyncio.Server) -> None:
        if self._socket is None or self._loop.is_closed():
            return server.close()
        # A server that is closed fails for a connection that asyncio has accepted and not set up, and leaves it open.
        # That is set up in the next turn of the loop, before the server is closed, and then let go.
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_soon(server.close)

    def _tell(self, frame: Frame) -> None:
        if not self._peers:
            return
        if not self._told:
            self._loop.call_soon(self._flush)
        self._told.append(frame)

    def _flush(self) -> None:
        told, self._told = self._told, []
        if not told:
            return
        everything = encoded(told)
        little = encoded([each for each in told if not isinstance(each, Piece | Report)])
        for peer in list(self._peers):
            peer.write(everything if peer.attends else little)


class _Peer(asyncio.Protocol):
    """Another process, at the owner's end."""

    def __init__(self, bell: Bell) -> None:
        self.attends = False
        """Whether it is told of pieces of answers."""
        self._bell = bell
        self._transport: asyncio.Transport | None = None
        self._came = bytearray()
        self._performing: set[asyncio.Task[bytes]] = set()
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._bell.trusts(transport):
            self._bell.welcome(self)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._came += data
        if not self._paused:
            self._take()

    def _take(self) -> None:
        """Take what has come, some of it at a time; what is more waits in the socket."""
        assert self._transport is not None
        self._paused = False
        for _ in range(FRAMES_PER_STEP):
            if self._transport.is_closing() or len(self._performing) >= GIVEN_MAX:
                break
            if (said := self._next()) is None:
                self._transport.resume_reading()
                return
            match said:
                case Look():
                    self._bell.rung()
                case Attend():
                    self._bell.attend(self)
                case Give():
                    self._give(said)
        if not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            if len(self._performing) < GIVEN_MAX:  # Else it goes on when one of them is done.
                asyncio.get_running_loop().call_soon(self._take)

    def _next(self) -> FromPeer | None:
        """Return the next frame, if all of it has come; a peer that sends nonsense is let go."""
        assert self._transport is not None
        if len(self._came) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._came)
        end = LENGTH.size + length
        if length <= FRAME_BYTES_MAX and len(self._came) < end:
            return None
        try:
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length:,} bytes")
            said = said_decoder.decode(memoryview(self._came)[LENGTH.size : end].tobytes())
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            log.warning("a process that says what is no command to the bell of %s is let go: %s", self._bell.log, error)
            self._transport.abort()
            return None
        del self._came[:end]
        return said

    def _give(self, said: Give) -> None:
        task = asyncio.get_running_loop().create_task(self._perform(said), name="command of another process")
        self._performing.add(task)
        task.add_done_callback(partial(self._performed, said.number))

    async def _perform(self, said: Give) -> bytes:
        return await self._bell.perform(said.session, said.key, said.command)

    def _performed(self, number: int, task: asyncio.Task[bytes]) -> None:
        self._performing.discard(task)
        outcome = b""
        if not task.cancelled():  # By other code; then it is not known what came of it.
            if (error := task.exception()) is not None:
                log.error("a command of another process broke", exc_info=error)
            else:
                outcome = task.result()
        self._bell.answer(self, Answered(number, outcome))
        if self._paused and len(self._performing) == GIVEN_MAX - 1:
            self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        self._bell.farewell(self)

    def write(self, data: bytes) -> None:
        """Send, unless too much waits already: then let the peer go."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            log.info("a process does not read what the bell of %s tells, and is let go", self._bell.log)
            self._transport.abort()
        else:
            self._transport.write(data)

    @property
    def descriptor(self) -> int:
        return -1 if self._transport is None else int(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def _remove_stale(path: Path, trusted: frozenset[int]) -> None:
    """Remove the bell of an owner that was killed; raise OSError where something else lies there."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in trusted:
        raise OSError(f"{path} is not a socket of this user; move it away")
    path.unlink()


# State of the process by nature: a fork copies its descriptors.
_open: "weakref.WeakSet[Bell]" = weakref.WeakSet()


def _let_go_in_child() -> None:
    for bell in _open:
        bell.let_go_in_child()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


async def bell_of(
    store: SQLiteStore, path: Path, bus: EventBus, *, rung: Callable[[], object], perform: Perform
) -> Bell | None:
    """Return the bell of a log that this process owns, before it is told here; None = it cannot have one."""
    position = await store.end_position()
    bell = Bell(path, owner=uuid.uuid4().hex, position=position, rung=rung, perform=perform, answers=bus.answers)
    if not await bell.open():
        return None
    bus.relay = bell
    return bell
