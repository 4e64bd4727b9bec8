"""What the owner of a log and other processes say to each other at its bell, and where the bell is.

A frame is the length of a message, four bytes, and the message: msgpack, of one of the types below. The rule: what
comes is bounded, and is of its type, or is refused.
"""

import asyncio
import logging
import os
import socket
import struct
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import msgspec

from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.model.messages import Delta, delta_text, delta_with_text
from refold.publishing.answers import AnswerSoFar
from refold.publishing.notifications import Streamed

log = logging.getLogger("refold.bell")

SUFFIX: Final = ".bell"

ADDRESS_BYTES_MAX: Final = 103
"""Longest path of a socket that every system takes; a longer one goes by way of its folder, where Linux allows that."""

FRAME_BYTES_MAX: Final = 1024 * 1024
"""Longest frame; what is longer is not sent, and ends the connection where it comes."""

LENGTH: Final = struct.Struct(">I")

_UCRED: Final = struct.Struct("=iII")
"""Of Linux, unix(7): process, user, group."""

_XUCRED: Final = struct.Struct("=IIh66x")
"""Of macOS, <sys/ucred.h>: version, user, how many groups; then two bytes of padding and sixteen groups."""

_XUCRED_VERSION: Final = 0

_SOL_LOCAL: Final = 0

_LOCAL_PEERCRED: Final = 1
"""<sys/un.h>, which Python's `socket` does not name."""

_TEXT_MAX: Final = 64 * 1024
"""Most characters of one piece; a longer one is sent as several."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first word of an owner, and once more where a peer attends; then the answers that are streamed now follow."""

    owner: str
    """Names this life of the owner."""
    position: int
    """How far the log goes, as far as the owner has told of it."""


class Durable(msgspec.Struct, frozen=True, array_like=True, tag="durable"):
    """The events up to a position are durable, and were told of in the owner's process."""

    position: int


class Noted(msgspec.Struct, frozen=True, array_like=True, tag="noted"):
    """The inbox has outcomes that it had not."""


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """A piece of an answer."""

    session: SessionId
    run: RunId
    turn: int
    asked: int
    offset: int
    number: int
    """Of the answer, in this life of the owner."""
    since: int
    so_far: bool
    """It was told before this peer came."""
    kind: str
    said: Any
    """A delta of that kind."""

    @property
    def delta(self) -> Delta:
        """What it is a piece of; raises msgspec.ValidationError where this Refold knows no such kind."""
        if (kind := _DELTAS.get(self.kind)) is None:
            raise msgspec.ValidationError(f"{self.kind!r} is no kind of a piece of an answer")
        return msgspec.convert(self.said, type=kind)


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """What a tool reports."""

    session: SessionId
    call: ToolCallId
    report: Any


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    """What came of a command that this peer has given."""

    number: int
    outcome: bytes
    """As in the inbox; empty = it is not known, so that the command goes there."""


News: TypeAlias = Hello | Durable | Noted | Piece | Report
"""What an owner says of its own accord."""

Frame: TypeAlias = News | Answered
"""What an owner says."""


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look", forbid_unknown_fields=True):
    """A command was put into the inbox."""


class Attend(msgspec.Struct, frozen=True, array_like=True, tag="attend", forbid_unknown_fields=True):
    """Tell this peer pieces of answers and reports of tools too, and first what there is of answers."""


class Give(msgspec.Struct, frozen=True, array_like=True, tag="give", forbid_unknown_fields=True):
    """Perform a command; it may be in the log already."""

    number: int
    """Of the command, among those of this peer."""
    session: str
    key: str
    command: bytes
    """As in the inbox."""


FromPeer: TypeAlias = Look | Attend | Give
"""What another process says."""

_DELTAS: Final[dict[str, type[Delta]]] = {kind.__name__: kind for kind in get_args(Delta)}

_encoder = msgspec.msgpack.Encoder(enc_hook=repr)
"""Reports of tools may be any object; what cannot be told is told in Python's words."""

_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
said_decoder: msgspec.msgpack.Decoder[FromPeer] = msgspec.msgpack.Decoder(FromPeer)


def pieces(streamed: Streamed, answer: AnswerSoFar, *, so_far: bool) -> Iterator[Piece]:
    """Yield a piece of an answer as it goes to other processes."""
    delta, text = streamed.delta, delta_text(streamed.delta)
    for begin in range(0, max(1, len(text)), _TEXT_MAX):
        part = delta if len(text) <= _TEXT_MAX else delta_with_text(delta, text[begin : begin + _TEXT_MAX])
        yield Piece(
            session=streamed.session,
            run=streamed.run,
            turn=streamed.turn,
            asked=streamed.asked,
            offset=streamed.offset + begin,
            number=answer.number,
            since=answer.since,
            so_far=so_far,
            kind=type(delta).__name__,
            said=part,
        )


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Return what an owner says next; raise OSError, EOFError or msgspec.MsgspecError where that is none."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > FRAME_BYTES_MAX:
        raise OSError(f"a frame of {length:,} bytes is more than an owner sends")
    return _decoder.decode(await reader.readexactly(length))


def encoded(frames: Sequence[Frame | FromPeer]) -> bytes:
    """Return frames as they are sent, without those that cannot be."""
    parts: list[bytes] = []
    for frame in frames:
        try:
            data = _encoder.encode(frame)
        except (TypeError, ValueError, OverflowError, RecursionError, UnicodeError) as error:
            log.debug("a frame is not told: %s", error)
            continue
        if len(data) <= FRAME_BYTES_MAX:
            parts += (LENGTH.pack(len(data)), data)
    return b"".join(parts)


def bell_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


@contextmanager
def address_of(path: Path) -> Generator[str, None, None]:
    """Give the address of a socket at a path, however long that of its folder is, or raise OSError."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    if not os.path.isdir("/proc/self/fd"):
        raise OSError(f"the path {path} is too long for a socket")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        address = f"/proc/self/fd/{folder}/{path.name}"
        if len(os.fsencode(address)) > ADDRESS_BYTES_MAX:
            raise OSError(f"the name {path.name} is too long for a socket")
        yield address
    finally:
        os.close(folder)


def require_users_told(system: str = sys.platform) -> None:
    """Return where the system tells whose the process at the other end of a socket is, else raise OSError."""
    if system not in ("linux", "darwin"):
        raise OSError("this system does not tell whose a peer is")


def user_of(peer: socket.socket, system: str = sys.platform) -> int:
    """Return the user of the process at the other end; raise OSError where the system does not tell."""
    require_users_told(system)
    if system == "linux":
        _, user, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return int(user)
    version, user, _ = _XUCRED.unpack_from(peer.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))
    if version != _XUCRED_VERSION:
        raise OSError(f"the system tells whose a peer is in version {version} of its form, which is not known")
    return int(user)
