"""What a check of a log finds: problems, each with its place in the log."""

from typing import Literal

import msgspec

from refold.events.ids import event_ref
from refold.events.records import StoredEvent

ProblemKind = Literal[
    "version",
    "position",
    "batch",
    "time",
    "event",
    "chain",
    "head",
    "payload",
    "invariant",
    "unreadable",
]
"""What is wrong.

`version`: versions of a stream are not 1, 2, 3… `position`: positions do not increase. `batch`: events do not belong
together as they say. `time`: time goes back, or differs within a batch. `event`: an event cannot be decoded. `chain`: a
batch is not what was appended. `head`: the list of streams says something else than the events. `payload`: content
that an event refers to is missing or changed. `invariant`: the events cannot have happened to a session.
`unreadable`: the file itself is damaged there.
"""

PROBLEMS_KEPT = 1_000
"""Most problems that a report holds; the others are only counted."""


MESSAGE_CHARACTERS = 2_000
"""After so many characters a message is cut; it may quote what a hostile log says."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a log."""

    kind: ProblemKind
    stream: str = ""
    """Empty = it concerns the whole log."""
    version: int = 0
    """Of the event at fault; 0 and no position = it concerns the whole stream."""
    position: int | None = None
    """Of that event, where there is one."""
    message: str
    """What is wrong there; at most `MESSAGE_CHARACTERS` of it."""

    def __str__(self) -> str:
        at_event = self.version or self.position is not None
        place = event_ref(self.stream, self.version) if at_event else self.stream or "the log"
        return f"{place}: {self.message}"


class Problems:
    """The problems found so far."""

    def __init__(self) -> None:
        self.found = 0
        """How many."""
        self.kept: list[Problem] = []
        """The first `PROBLEMS_KEPT` of them."""

    def add(
        self, kind: ProblemKind, stream: str, message: str, *, version: int = 0, position: int | None = None
    ) -> None:
        """Note one more."""
        self.found += 1
        if len(self.kept) < PROBLEMS_KEPT:
            said = message if len(message) <= MESSAGE_CHARACTERS else f"{message[:MESSAGE_CHARACTERS]}…"
            self.kept.append(Problem(kind=kind, stream=stream, version=version, position=position, message=said))

    def add_at(self, event: StoredEvent, kind: ProblemKind, message: str) -> None:
        """Note one more, at an event."""
        self.add(kind, event.stream, message, version=event.version, position=event.position)
