"""Events to bytes and back, with the checks that keep a log readable for ever.

`encode` refuses what it could not read again: it decodes its own output and compares. `decode` knows today's
tags and the old ones that upcasters lead from; anything else is an error that names the tag and the place, never
a guess, and never a second decoder that might build something else.

From old shapes of events to today's.

A recorded shape never changes: a field is added with a default, or the tag gets a new version and an upcaster from the
version before. Each upcaster does one step on the decoded JSON object, and today's event class only ever sees the
newest shape.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar, Union

import msgspec
from msgspec.structs import force_setattr

from refold.events.core.cleaning import RECORDED_DEPTH_MAX, Unrecordable, check_recordable
from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.event import Event
from refold.events.core.ids import EventRef, StreamName
from refold.events.core.records import StoredEvent, event_ref

Upcaster = Callable[[JsonObject], JsonObject]
"""Turns the JSON object of one version into that of the next; its `type` included."""


class Upcasters:
    """The known steps, checked for gaps and cycles when they are put together.

    Args:
        steps: from an old tag to the next tag and the function that makes the step.
        current: the tags that event classes have today.
    """

    def __init__(self, steps: Mapping[str, tuple[str, Upcaster]], current: Iterable[str]) -> None:
        known = frozenset(current)
        for start in steps:
            if start in known:
                raise ConfigError(f"the upcaster from {start!r} begins at a tag that an event class still has")
            seen = [start]
            while (tag := seen[-1]) not in known:
                if tag not in steps:
                    raise ConfigError(f"the upcasters {' -> '.join(seen)} end at {tag!r}, which no event class has")
                following = steps[tag][0]
                if following in seen:
                    raise ConfigError(f"the upcasters {' -> '.join([*seen, following])} go in a circle")
                seen.append(following)
        self._steps = dict(steps)

    def upcast(self, tag: str, data: JsonObject) -> JsonObject | None:
        """Return `data` in today's shape, or None if `tag` is unknown."""
        if tag not in self._steps:
            return None
        while tag in self._steps:
            tag, step = self._steps[tag]
            data = {**step(data), "type": tag}
        return data


E = TypeVar("E", bound=Event)

EVENT_BYTES_MAX = 1024 * 1024
"""Largest JSON text of one event; larger content belongs into payloads."""

NEWER_REFOLD = "this version of Refold does not know; open it with a newer one"
"""What is said of a tag that a codec of Refold's own does not have."""

_LONG_INTEGER = re.compile(rb"[0-9]{19}")


class RecordedEvent(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    """An event with its place in the log."""

    stream: StreamName
    version: int
    """Place in the stream, from 1, no gaps."""
    position: int
    """Place in the log; increasing, gaps allowed."""
    time: int
    """Microseconds since the epoch, UTC."""
    event: E
    batch: int
    """Version of its batch's stimulus."""
    correlation: EventRef
    """The input, or other outside fact, that it goes back to."""
    causation: EventRef | None
    """The event that caused it; None = it came from outside."""


class EventCodec(Generic[E]):
    """Encodes and decodes the events of one kind of stream.

    Args:
        event_types: every event class of the kind; each has a tag of its own.
        upcasters: steps from tags of the past.
        unknown: ends the sentence "the event has the type … which", said of a tag that none of the classes has.
    """

    def __init__(
        self,
        event_types: Sequence[type[E]],
        upcasters: Upcasters | None = None,
        *,
        unknown: str = "none of the codec's event classes has; was that event renamed or removed?",
    ) -> None:
        self.tags: tuple[str, ...] = tuple(sorted(str(cls.__struct_config__.tag) for cls in event_types))
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[E] = msgspec.json.Decoder(Union[tuple(event_types)])  # noqa: UP007
        self._decode = self._decoder.decode
        self._unknown = unknown
        self._upcasters = upcasters if upcasters is not None else Upcasters({}, self.tags)

    def encode(self, event: E) -> bytes:
        """Return the JSON of `event`, without its time.

        Raises:
            Unrecordable: it would not decode to an equal event, or is larger than `EVENT_BYTES_MAX`; names the path.
        """
        return self._encoded(event)[0]

    def as_recorded(self, event: E) -> E:
        """Return `event` as it would be read back, without its time; it shares nothing with `event`."""
        return self._encoded(event)[1]

    def _encoded(self, event: E) -> tuple[bytes, E]:
        plain = msgspec.structs.replace(event, at=0) if event.at else event
        try:
            data = self._encoder.encode(plain)
            read_back = self._decoder.decode(data)
            same = read_back == plain
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, TypeError, ValueError) as error:
            raise _explained(plain, str(error)) from None
        if not same:
            raise _explained(plain, "it would be read back as another event")
        if data.count(b"{") + data.count(b"[") > RECORDED_DEPTH_MAX or _LONG_INTEGER.search(data) is not None:
            # Whether either can be read depends on who reads: on the depth of their stack, on the width of integers.
            check_recordable(plain, "$")
        if len(data) > EVENT_BYTES_MAX:
            raise Unrecordable(
                "$", f"({type(event).__name__}) has {len(data):,} bytes; an event may have {EVENT_BYTES_MAX:,}"
            )
        return data, read_back

    def decode(self, stored: StoredEvent) -> E:
        """Return the event in `stored`, with its time.

        Raises:
            LogFormatError: the JSON is damaged or too long, or its tag is unknown; names the event's place.
        """
        data = stored.data
        if len(data) > EVENT_BYTES_MAX:
            place = event_ref(stored.stream, stored.version)
            raise LogFormatError(
                f"event {place} is damaged: it has {len(data):,} bytes, and none is written of more than "
                f"{EVENT_BYTES_MAX:,}"
            )
        try:
            event = self._decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            event = self._decode_older(stored, error)
        force_setattr(event, "at", stored.at)  # Fresh from the decoder, so nobody else has it.
        return event

    def decode_all(self, stored: Iterable[StoredEvent]) -> list[E]:
        """Return the events in `stored`, in order."""
        return list(map(self.decode, stored))

    def _decode_older(self, stored: StoredEvent, error: Exception) -> E:
        place = event_ref(stored.stream, stored.version)
        tag = tag_of(stored.data)
        if tag is None:
            raise LogFormatError(f"event {place} is damaged: {error}") from None
        if tag in self.tags:
            raise LogFormatError(f"event {place} ({tag}) does not have the shape of its type: {error}") from None
        try:
            upcast = self._upcasters.upcast(tag, msgspec.json.decode(stored.data, type=dict[str, object]))
            if upcast is not None:
                return self._decoder.decode(self._encoder.encode(upcast))
        except (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError, ValueError) as failure:
            raise LogFormatError(
                f"event {place} ({tag:.200}) cannot be brought to today's shape: {failure}"
            ) from failure
        raise LogFormatError(f"event {place} has the type {tag[:200]!r}, which {self._unknown}")

    def recorded(self, stored: Iterable[StoredEvent]) -> list[RecordedEvent[E]]:
        """Return events with their places and causes, given whole batches in order of one or several streams."""
        result: list[RecordedEvent[E]] = []
        firsts: dict[str, StoredEvent] = {}
        for item in stored:
            if item.version == item.batch:
                firsts[item.stream] = item
            first = firsts.get(item.stream, item)
            stimulus = event_ref(item.stream, item.batch)
            result.append(
                RecordedEvent(
                    stream=item.stream,
                    version=item.version,
                    position=item.position,
                    time=item.at,
                    event=self.decode(item),
                    batch=item.batch,
                    correlation=first.correlation or stimulus,
                    causation=item.causation if item.version == item.batch else stimulus,
                )
            )
        return result


class _Tagged(msgspec.Struct):
    type: str


_tag_decoder = msgspec.json.Decoder(_Tagged)


def tag_of(data: bytes) -> str | None:
    """Return the tag in an event's JSON, or None if there is none to be read."""
    try:
        return _tag_decoder.decode(data).type
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _explained(event: Event, reason: str) -> Unrecordable:
    """Return the error for an event that cannot be recorded, with the path where that can be told."""
    try:
        check_recordable(event, "$")
    except Unrecordable as error:
        return error
    return Unrecordable("$", f"({type(event).__name__}) cannot be recorded: {reason}")
