"""Events of any kind of stream, read one after another in order of position, with what their batches go back to.

The rule: an event that today's code cannot decode, of a user's own kind or of a newer Refold, is shown as it was
recorded, so that whoever follows a log sees all of it.
"""

import msgspec

from refold.event_words import event_words
from refold.events.codec import tag_of
from refold.events.errors import LogFormatError
from refold.events.event import Event
from refold.events.ids import EventRef, StreamName, event_ref
from refold.events.records import StoredEvent
from refold.log_reading import kind_of
from refold.stores.event_store import EventStore
from refold.stream_kinds import KINDS


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """An event of any kind with its place in the log; as JSON it has the members of a `RecordedEvent`."""

    stream: StreamName
    version: int
    position: int
    time: int
    """Microseconds since the epoch, UTC."""
    event: Event | msgspec.Raw | str
    """The event; what was recorded, where it cannot be decoded: as JSON or, if it is not even that, as a text."""
    batch: int
    """Version of its batch's stimulus."""
    correlation: EventRef
    """The input, or other outside fact, that it goes back to."""
    causation: EventRef | None
    """The event that caused it; None = it came from outside."""

    @property
    def type(self) -> str:
        """The event's tag, without the kind of its stream; a question mark where there is none."""
        match self.event:
            case Event():
                tag = str(self.event.__struct_config__.tag)
            case str():
                tag = "?"
            case _:
                tag = tag_of(bytes(self.event)) or "?"
        return tag.removeprefix(f"{kind_of(self.stream)}.")

    @property
    def words(self) -> str:
        """What the event says, in a few words."""
        match self.event:
            case Event():
                return event_words(self.event)
            case str():
                return self.event
            case _:
                return bytes(self.event).decode(errors="replace")


class Following:
    """Reads events of one log in order of position."""

    def __init__(self, store: EventStore) -> None:
        """Make one.

        Args:
            store: where the events come from.
        """
        self._store = store
        self._first: StoredEvent | None = None
        """The first event of the batch that was met last."""

    async def read(self, stored: StoredEvent) -> Followed:
        """Return the next event, decoded if that can be.

        Raises:
            PersistenceError: the log cannot be read.
        """
        first = await self._first_of_batch(stored)
        stimulus = event_ref(stored.stream, stored.batch)
        return Followed(
            stream=stored.stream,
            version=stored.version,
            position=stored.position,
            time=stored.at,
            event=_event(stored),
            batch=stored.batch,
            correlation=first.correlation or stimulus,
            causation=stored.causation if stored.version == stored.batch else stimulus,
        )

    async def _first_of_batch(self, stored: StoredEvent) -> StoredEvent:
        first = self._first
        if stored.version == stored.batch:
            first = stored
        elif first is None or (first.stream, first.version) != (stored.stream, stored.batch):
            # What a batch goes back to is in its first event, and reading began after it.
            found = await self._store.read_stream(stored.stream, after_version=stored.batch - 1, limit=1)
            first = found[0] if found else stored
        self._first = first
        return first


def _event(stored: StoredEvent) -> Event | msgspec.Raw | str:
    kind = KINDS.get(kind_of(stored.stream))
    if kind is not None:
        try:
            return kind.decode(stored)
        except LogFormatError:
            return _as_recorded(stored.data)
    return _as_recorded(stored.data)


def _as_recorded(data: bytes) -> msgspec.Raw | str:
    try:
        data.decode()
        # On one line, whatever line ends stand between its members.
        return msgspec.Raw(msgspec.json.format(msgspec.json.decode(data, type=msgspec.Raw), indent=-1))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return data.decode(errors="replace")
