"""Folded states to bytes and back, in small pieces, so that a long state keeps nobody waiting.

A piece belongs to one field of the state; a list or dictionary of many items has several. A field that is annotated as
`MutableSequence` is a history, which is only ever added to at its end. Its pieces hold `SEALED_ITEMS` items each, one
line of JSON for an item, and come back as a `SealedList`, which decodes a piece when one of its items is looked at.
A history that is opened after a long life is asked for little of it at first, and when it is written again after some
events, most of it is there as bytes. It is JSON, since that is what digests of histories are over.

The rule: decoding what `pieces` gave yields an equal state, for every state that events add up to.
"""

import collections.abc
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar, cast, get_args, get_origin, get_type_hints, overload

import msgspec

SEALED_ITEMS: Final = 128
"""Items of a history that are encoded and decoded together."""

PIECE_BYTES: Final = 128 * 1024
"""About the size of a piece of another list or dictionary; less than a millisecond to encode or decode."""

ITEMS_AT_FIRST: Final = 16

Piece = tuple[int, bytes | memoryview]
"""The place of a field in the state's class, and its value or some of its items: MessagePack, or JSON of a history."""

T = TypeVar("T")
S = TypeVar("S")

_encode = msgspec.msgpack.Encoder().encode
_lines = msgspec.json.Encoder().encode_lines


class SealedList(MutableSequence[T]):
    """A list whose beginning is bytes until it is looked at. It grows at its end only.

    `pieces` have `SEALED_ITEMS` items each, encoded, which `decode` gives; `rest` are the items behind those.
    """

    __slots__ = ("_decode", "_pieces", "_rest")

    def __init__(
        self, decode: Callable[[bytes | memoryview], list[T]], pieces: list[bytes | memoryview], rest: list[T]
    ) -> None:
        self._decode = decode
        self._pieces: list[bytes | memoryview | list[T] | _Shared[T]] = [*pieces]
        self._rest = rest

    @property
    def sealed(self) -> int:
        return len(self._pieces)

    def piece(self, number: int) -> bytes | memoryview:
        piece = self._pieces[number]
        return piece if isinstance(piece, bytes | memoryview) else _lines(self._opened(number))

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield all items, encoded, the last piece with fewer than the others."""
        yield from map(self.piece, range(len(self._pieces)))
        yield from _sealed(self._rest)

    def empty(self) -> "SealedList[T]":
        """Return an empty list that decodes as this one."""
        return SealedList(self._decode, [], [])

    def beginning(self, count: int) -> "SealedList[T]":
        """Return the first `count` items, as sealed as they are here. Both have the same items, and not a copy."""
        whole, sealed = count // SEALED_ITEMS, len(self._pieces)
        made = SealedList(self._decode, [], self[whole * SEALED_ITEMS : count])
        made._pieces = self._pieces[:whole] + [_Shared(self._rest, sealed)] * (whole - sealed)
        return made

    def add_piece(self, piece: bytes | memoryview | list[T]) -> bool:
        """Add a piece of `SEALED_ITEMS` items; return False, and add nothing, where some are in no piece already."""
        if not self._rest:
            self._pieces.append(piece)
        return not self._rest

    def _opened(self, number: int) -> list[T]:
        piece = self._pieces[number]
        if isinstance(piece, _Shared):
            piece = self._pieces[number] = piece.opened(number)
        elif not isinstance(piece, list):
            piece = self._pieces[number] = self._decode(piece)
        return piece

    def __len__(self) -> int:
        return len(self._pieces) * SEALED_ITEMS + len(self._rest)

    def __iter__(self) -> Iterator[T]:
        for number in range(len(self._pieces)):
            yield from self._opened(number)
        yield from self._rest

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        number, within = divmod(place + len(self) if place < 0 else place, SEALED_ITEMS)
        if 0 <= number < len(self._pieces):
            return self._opened(number)[within]
        if place < -len(self):
            raise IndexError(f"item {place} of {len(self)}")
        return self._rest[(number - len(self._pieces)) * SEALED_ITEMS + within]

    def append(self, value: T) -> None:
        self._rest.append(value)

    def extend(self, values: Iterable[T]) -> None:
        self._rest.extend(values)

    def insert(self, index: int, value: T) -> None:
        raise TypeError("a history grows at its end only; use append")

    def __setitem__(self, index: object, value: object) -> None:
        raise TypeError("a history is never changed; put a new list in its place")

    def __delitem__(self, index: object) -> None:
        raise TypeError("a history is never changed; put a new list in its place")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | SealedList):
            return NotImplemented
        theirs = cast("Sequence[object]", other)
        return len(self) == len(theirs) and all(mine == their for mine, their in zip(self, theirs, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list[T]], tuple[list[T]]]:
        return list, (list(self),)  # A copy is a list.


class _Shared(Generic[T]):
    """Pieces that are items of a list, which only grows from now on, until they are looked at."""

    __slots__ = ("_first", "_items")

    def __init__(self, items: list[T], first: int) -> None:
        self._items = items
        self._first = first
        """The number of the piece whose items are the first of the list."""

    def opened(self, number: int) -> list[T]:
        begin = (number - self._first) * SEALED_ITEMS
        return self._items[begin : begin + SEALED_ITEMS]


class StateCodec(Generic[S]):
    """Encodes and decodes the states of one kind: a Struct whose fields all have defaults.

    Raises:
        TypeError: its fields cannot be read back from MessagePack.
    """

    def __init__(self, state_type: type[S]) -> None:
        made: Any = state_type
        self._make = made
        self._names: tuple[str, ...] = tuple(made.__struct_fields__)
        hints = get_type_hints(state_type)
        self._fields = [_Field(hints[name]) for name in self._names]
        shape = repr([(name, msgspec.inspect.type_info(hints[name])) for name in self._names])
        shape = re.sub(" at 0x[0-9a-f]+", "", shape)  # Of a default's function, which lies elsewhere in each process.
        self.shape = hashlib.sha256(shape.encode()).digest()[:8]
        """Differs where the classes of two states have other fields."""

    def pieces(self, state: S) -> Iterator[Piece]:
        """Yield the pieces of a state, which must not change meanwhile.

        Raises:
            TypeError: it holds what cannot be encoded; as OverflowError and ValueError too.
        """
        for place, (name, field) in enumerate(zip(self._names, self._fields, strict=True)):
            for data in field.pieces(getattr(state, name)):
                yield place, data

    def decoding(self, pieces: Iterable[Piece], *, sealed: bool) -> Iterator[S | None]:
        """Yield None after each piece, and the state at last.

        Args:
            pieces: as they were given, in order.
            sealed: whether a long history becomes a `SealedList`, or a list.

        Raises:
            msgspec.MsgspecError: a piece is none, or has another shape.
            LookupError: a field is unknown.
        """
        values: list[Any] = [field.first() for field in self._fields]
        for place, data in pieces:
            values[place] = self._fields[place].add(values[place], data, sealed=sealed)
            yield None
        fields = zip(self._names, self._fields, values, strict=True)
        yield self._make(**{name: field.last(value) if sealed else value for name, field, value in fields})


class _Field:
    """How a field of a state becomes pieces: as a whole, as parts of a list or dictionary, or as a history."""

    def __init__(self, hint: Any) -> None:
        origin = get_origin(hint)
        self._kind = origin if origin in (list, dict, collections.abc.MutableSequence) else None
        if self._kind is collections.abc.MutableSequence:
            self._decode: Any = msgspec.json.Decoder(get_args(hint)[0]).decode_lines
        else:
            self._decode = msgspec.msgpack.Decoder(hint).decode

    def pieces(self, value: Any) -> Iterable[bytes | memoryview]:
        if self._kind is collections.abc.MutableSequence:
            return value.pieces() if isinstance(value, SealedList) else _sealed(value)
        if self._kind is dict:
            return _parts(value.items(), dict)
        if self._kind is list:
            return _parts(value, list)
        return (_encode(value),)

    def first(self) -> Any:
        return {} if self._kind is dict else []

    def add(self, value: Any, data: bytes | memoryview, *, sealed: bool) -> Any:
        if sealed and self._kind is collections.abc.MutableSequence:
            value.append(data)
        elif self._kind is dict:
            value.update(self._decode(data))
        elif self._kind is not None:
            value.extend(self._decode(data))
        else:
            return self._decode(data)
        return value

    def last(self, value: Any) -> Any:
        if self._kind is not collections.abc.MutableSequence or not value:
            return value
        rest = self._decode(value[-1])
        if len(rest) == SEALED_ITEMS:
            return SealedList(self._decode, value, [])
        return SealedList(self._decode, value[:-1], rest) if len(value) > 1 else rest


def _sealed(items: Sequence[Any]) -> Iterator[bytes]:
    for first in range(0, len(items), SEALED_ITEMS):
        yield _lines(items[first : first + SEALED_ITEMS])


def _parts(items: Iterable[Any], collected: type[list[Any] | dict[Any, Any]]) -> Iterator[bytes]:
    source, count = iter(items), ITEMS_AT_FIRST
    while part := collected(islice(source, count)):
        data = _encode(part)
        yield data
        count = max(1, min(count * PIECE_BYTES // len(data), 4 * count))
