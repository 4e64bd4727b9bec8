"""A session's history as requests need it: complete, cheap to extend, and with a digest over it.

The folded history may hold blocks that stand for payloads. A conversation keeps the restored messages of one session
beside it, and hashes each message once, so that the request of turn 10,000 costs no more than that of turn 1. A
request gets a view of the list, which only ever grows at its end, and no copy.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableSequence, Sequence
from itertools import islice
from typing import TypeVar, cast, overload

import msgspec

from refold.events.core.content import (
    Block,
    Json,
    Message,
    ProviderBlock,
    StoredBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    own_json,
)
from refold.events.core.ids import PayloadHash
from refold.events.core.state_codec import SEALED_ITEMS, SealedList
from refold.events.model.messages import ToolUse
from refold.events.model.payloads import Storable, all_restored, stored_hashes

_STORED = b'"type":"stored"'
"""What the JSON of a block has that stands for a payload; a text that says so has its quotes escaped."""

BYTES_PER_STEP = 512 * 1024
"""Of a long history that is encoded still."""

MESSAGES_PER_STEP = SEALED_ITEMS
"""Messages of a long history that are restored and hashed before others have the loop."""

ReadPayloads = Callable[[Iterable[PayloadHash]], Awaitable[dict[PayloadHash, bytes]]]

B = TypeVar("B", bound=Block | ToolUse)

_JSON_FIELDS = ("input", "data", "provider_data")

_encode = msgspec.json.Encoder().encode

_PLACE = TextBlock(text="\0")
_PLACE_JSON = _encode(_PLACE)
"""Stands for the content of a message or result; in a string of JSON its quotes would be escaped."""


def own_copy(message: Message) -> Message:
    """Return `message` for a reader outside: what it does to the JSON in it changes nothing here.

    Everything else in a message is immutable. A block that stands in it many times is copied once.
    """
    holding = {id(block): block for block in message.content if _holds_json(block)}
    if not holding:
        return message
    copies = {key: own_block(block) for key, block in holding.items()}
    return Message(message.role, tuple(copies.get(id(block), block) for block in message.content))


def own_block(block: B) -> B:
    """Return a block, or a call as a provider gives it, likewise."""
    held = {name: own_json(getattr(block, name)) for name in _JSON_FIELDS if getattr(block, name, None) is not None}
    return msgspec.structs.replace(block, **held) if held else block


def _json_in(message: Message) -> list[Json]:
    return [getattr(block, name, None) for block in message.content for name in _JSON_FIELDS]


def _json_pieces(value: Message | Block, encoded: dict[int, bytes]) -> Iterator[bytes]:
    """Yield the JSON of a restored message block by block: a short event may say one large payload thousands of times.

    What was encoded so far is in `encoded`, by identity of the block; this adds to it.
    """
    if not isinstance(value, Message | ToolResultBlock):
        yield encoded.get(id(value)) or encoded.setdefault(id(value), _encode(value))
        return
    before, after = _encode(msgspec.structs.replace(value, content=(_PLACE,))).split(_PLACE_JSON)
    yield before
    for number, block in enumerate(value.content):
        if number:
            yield b","
        yield from _json_pieces(block, encoded)
    yield after


def _holds_json(block: Block) -> bool:
    return type(block) in (ToolUseBlock, ProviderBlock) or getattr(block, "provider_data", None) is not None


class _Copies:
    """Copies of messages for readers outside, which are made once as long as no reader changes them.

    So that a reader who is asked for each request of a long session costs it little: only the JSON that a message
    holds can be changed, and to compare that is quick.
    """

    __slots__ = ("_copied", "_held", "_messages")

    def __init__(self) -> None:
        self._messages: tuple[Message, ...] = ()
        self._held: list[Json] = []
        self._copied: list[Json] = []

    def are(self, given: tuple[Message, ...]) -> bool:
        """Tell whether messages are these copies, unchanged."""
        return given is self._messages and self._held == self._copied

    def upto(self, messages: Sequence[Message], length: int) -> tuple[Message, ...]:
        """Return the copies of the first `length` messages; in further calls more have been added at the end."""
        if self._held != self._copied:  # A reader has changed one.
            self._messages, self._held, self._copied = (), [], []
        fresh = messages[len(self._messages) : length]
        copies = [own_copy(message) for message in fresh]
        for message, copied in zip(fresh, copies, strict=True):
            if copied is not message:
                self._held += _json_in(message)
                self._copied += _json_in(copied)
        self._messages += tuple(copies)
        return self._messages[:length]


class HistoryView(Sequence[Message]):
    """The first messages of a list that only grows: fixed from the day it was made."""

    __slots__ = ("_copies", "_length", "_messages", "digest")

    def __init__(
        self, messages: Sequence[Message], length: int, digest: str = "", copies: "_Copies | None" = None
    ) -> None:
        self._messages = messages
        self._length = length
        self.digest = digest
        """SHA-256 over the JSON of the messages, in hexadecimal."""
        self._copies = copies if copies is not None else _Copies()

    def own_copies(self) -> tuple[Message, ...]:
        """Return the messages as `own_copy` does each; a copy that is unchanged is given again."""
        return self._copies.upto(self._messages, self._length)

    def is_said_by(self, given: tuple[Message, ...]) -> bool:
        """Tell whether messages are these; quick where they are what `own_copies` gave."""
        return self._copies.are(given) or given == tuple(self)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        return islice(self._messages, self._length)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        if isinstance(place, slice):
            return [self._messages[index] for index in range(*place.indices(self._length))]
        index = place + self._length if place < 0 else place
        if not 0 <= index < self._length:
            raise IndexError(f"message {place} of {self._length}")
        return self._messages[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HistoryView) and other._messages is self._messages:
            return other._length == self._length
        if not isinstance(other, Sequence):
            return NotImplemented
        messages = cast("Sequence[object]", other)
        return len(self) == len(messages) and all(mine == theirs for mine, theirs in zip(self, messages, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self[:])


_NO_DIGEST = hashlib.sha256()
"""Stands where there is none yet; nothing is added to it."""


class Conversation:
    """The restored history of one session."""

    __slots__ = ("_copies", "_digest", "_messages", "_read_payloads", "_source", "_whole_digest")

    def __init__(self, read_payloads: ReadPayloads) -> None:
        self._read_payloads = read_payloads
        self._source: Sequence[Message] | None = None
        # The others are made when it is first asked for: many sessions are idle.
        self._messages: MutableSequence[Message]
        self._copies: _Copies
        self._digest = _NO_DIGEST
        self._whole_digest = _NO_DIGEST
        """Over the restored messages; the same one as long as these are the stored ones."""

    async def upto(self, source: Sequence[Message], length: int) -> tuple[Sequence[Message], str]:
        """Return the first `length` messages of `source`, restored, and the SHA-256 over their stored form.

        Raises:
            LogFormatError: a payload is missing or damaged.
            PersistenceError: the log cannot be read.
        """
        whole: dict[StoredBlock, Storable] = {}
        sealed: SealedList[Message] | None = source if isinstance(source, SealedList) else None
        while True:
            if source is not self._source or length < len(self._messages):
                self._source, self._messages = source, sealed.empty() if sealed is not None else []
                self._copies = _Copies()
                self._whole_digest = self._digest = hashlib.sha256()
            known = len(self._messages)
            if known >= length:
                view = HistoryView(self._messages, length, self._whole_digest.hexdigest(), self._copies)
                return view, self._digest.hexdigest()
            if sealed is not None and length >= sealed.sealed * SEALED_ITEMS and self._take_sealed(sealed):
                await asyncio.sleep(0)
                continue
            fresh = source[known : min(known + MESSAGES_PER_STEP, length)]
            read = {block.hash for block in whole}
            hashes = [name for name in stored_hashes(fresh) if name not in read]
            payloads = await self._read_payloads(hashes) if hashes else {}
            if source is self._source and known == len(self._messages):  # Nobody else went on meanwhile.
                self._add(fresh, all_restored(fresh, payloads, whole))  # All or none: a payload may be missing.
            if len(self._messages) < length:
                await asyncio.sleep(0)

    def _take_sealed(self, source: SealedList[Message]) -> bool:
        """Take pieces that are encoded still as they are, up to one that holds what stands for a payload."""
        messages, taken = self._messages, 0
        assert isinstance(messages, SealedList)
        while taken < BYTES_PER_STEP and len(messages) % SEALED_ITEMS == 0:
            number = len(messages) // SEALED_ITEMS
            if number >= source.sealed or _STORED in (lines := bytes(source.piece(number))):
                break
            if not messages.add_piece(lines):
                break
            text = lines.replace(b"\n", b"")  # In JSON a line ends nowhere else.
            self._digest.update(text)
            if self._whole_digest is not self._digest:
                self._whole_digest.update(text)
            taken += len(lines)
        return taken > 0

    def _add(self, fresh: Sequence[Message], whole: Sequence[Message]) -> None:
        for message, restored in zip(fresh, whole, strict=True):
            if restored is not message and self._whole_digest is self._digest:
                self._whole_digest = self._digest.copy()
            data = _encode(message)
            self._digest.update(data)
            if self._whole_digest is not self._digest:
                for piece in (data,) if restored is message else _json_pieces(restored, {}):
                    self._whole_digest.update(piece)
        own = list(map(own_copy, whole))
        if not (isinstance(self._messages, SealedList) and len(own) == SEALED_ITEMS and self._messages.add_piece(own)):
            self._messages.extend(own)
