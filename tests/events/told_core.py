"""A core that is told commands, each a second after the one before, with each event going through the codec."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import Recorded, evolve_all, plan
from refold.events.core.records import StoredEvent

S = TypeVar("S")


class ToldCore(Generic[S]):
    """The state of one stream, and the log that its commands leave.

    Args:
        core: what decides.
        commands: what it is told at once.
    """

    def __init__(self, core: CheckedCore[Any, Any, Any], *commands: object) -> None:
        self.core = core
        self.state: S = core.initial()
        self.at = 1_750_000_000_000_000
        self.log: list[StoredEvent] = []
        for command in commands:
            self.tell(command)

    def tell(self, command: object) -> Sequence[Any]:
        """Return the batch that `command` causes; empty where it was recorded before."""
        self.at += 1_000_000
        planned = plan(self.core, self.state, command, self.at)
        if isinstance(planned, Recorded):
            return []
        self.state = planned.state
        first = len(self.log) + 1
        self.log += [
            StoredEvent(
                position=version,
                stream=StreamName("kind/name"),
                version=version,
                batch=first,
                at=event.at,
                data=self.core.codec.encode(event),
            )
            for version, event in enumerate(planned.events, first)
        ]
        return self.core.codec.decode_all(self.log[first - 1 :])

    def try_to_tell(self, command: object) -> None:
        with suppress(CommandRejected):
            self.tell(command)

    @property
    def events(self) -> list[Any]:
        """All that the log holds."""
        return self.core.codec.decode_all(self.log)

    def check_fold(self) -> None:
        """Fold the log: it must give the live state, byte for byte."""
        folded = evolve_all(self.core, self.events)
        assert folded == self.state
        assert msgspec.msgpack.encode(folded) == msgspec.msgpack.encode(self.state)
