"""What a life was told, and what it did, on a file beside the log: the witness against which the log is checked.

A line is handed to the kernel in one `write` before the program goes on, so a kill of the process takes none back; at
most it tears the last one, and each life has a file of its own. (It need not outlive the machine: nothing here does
what a power cut does.)
"""

import os
from pathlib import Path
from typing import TypeAlias

import msgspec


class Seen(msgspec.Struct, frozen=True, kw_only=True, tag="seen"):
    """A subscriber was passed an event, so that it is durable."""

    stream: str
    version: int
    position: int
    time: int
    event: str
    """Its tag."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """Who sent an input was shown that it is queued."""

    session: str
    version: int
    key: str


class Returned(msgspec.Struct, frozen=True, kw_only=True, tag="returned"):
    """`send` returned."""

    session: str
    key: str
    run: str
    outcome: str
    text: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A cancellation returned: the run is over, and nothing of it is in flight any more."""

    session: str
    run: str


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag="decided"):
    """`decide` returned."""

    session: str
    call: str
    allowed: bool
    key: str


class Remembered(msgspec.Struct, frozen=True, kw_only=True, tag="remembered"):
    """The history of a live session, as a digest."""

    session: str
    digest: str


class BodyBegan(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """The body of a tool began."""

    key: str
    """The call's idempotency key, `<session>/<call>`."""


class BodyEnded(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The body of a tool came to its end and is about to return."""

    key: str


Testimony: TypeAlias = Seen | Accepted | Returned | Ended | Decided | Remembered | BodyBegan | BodyEnded
"""One line of a witness."""

_decoder: msgspec.json.Decoder[Testimony] = msgspec.json.Decoder(Testimony)


class Witness:
    """Writes testimonies into a new file; from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)

    def note(self, testimony: Testimony) -> None:
        """Write one line that outlives this process."""
        os.write(self._file, msgspec.json.encode(testimony) + b"\n")


def testimonies(path: Path) -> list[Testimony]:
    """Return what a life has written, without a last line that its kill has torn."""
    if not path.exists():
        return []
    whole, _, _torn = path.read_bytes().rpartition(b"\n")
    return [_decoder.decode(line) for line in whole.splitlines()]
