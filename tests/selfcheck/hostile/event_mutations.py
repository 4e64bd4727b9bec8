"""Ways in which the JSON of one event can be made to lie; for `tests.selfcheck.hostile`.

The rule: a mutation is drawn from the given chance alone and takes bytes to bytes; what comes out need not be JSON.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec

GROWTH_MAX = 2_000_000
"""So many bytes may a list be made longer by."""

Container = dict[str, object] | list[object]

TAGS = tuple(
    sorted(
        str(tag)
        for name in ("session", "tool", "graph", "breaker", "dedup", "memory", "knowledge", "working", "runtime")
        for tag in (f"{name}.opened.v1", f"{name}.unknown.v9")
    )
)
"""Types that an event of a sample may be given beside those of other events: some exist, some do not."""


class Text(msgspec.Struct, frozen=True):
    """A piece of JSON, or of what is none, in the form to write."""

    data: bytes


def _nested(opening: bytes, closing: bytes, depth: int) -> Text:
    return Text(opening * depth + b"1" + closing * depth)


NASTY: Mapping[str, Sequence[Text]] = {
    "a number out of range": tuple(
        Text(number.encode())
        for number in (
            "-1", "0", "1", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
            "18446744073709551616", "1e308", "1e999", "-1e999", "1e-400", "-0.0", "0.1", "1" + "0" * 400, "9" * 5_000,
        )
    ),
    "a number that is none": tuple(Text(word) for word in (b"NaN", b"Infinity", b"-Infinity", b"nan", b"0x10", b"1_0")),
    "a text that no log holds": (
        Text(b'"\\ud800"'),
        Text(b'"\\udc00 and more"'),
        Text(b'"\\u0000"'),
        Text(b'"a\\u0000b"'),
        Text(b'"\xff\xfe"'),
        Text(b'"\xed\xa0\x80"'),
        Text(b'"\\u202e\\u001b]0;title\\u0007\\u001b[2J"'),
        Text(b'"\x00"'),
        Text(b'""'),
        Text(b'" "'),
    ),
    "a huge text": (
        Text(b'"' + b"x" * 300_000 + b'"'),
        Text(b'"' + b"x" * 2_000_000 + b'"'),
        Text(b'"' + b"\\u0001" * 300_000 + b'"'),
        Text(b'"' + "\N{SNOWMAN} ".encode() * 500_000 + b'"'),
        Text(b'"' + b"\\n" * 500_000 + b'"'),
    ),
    "deep nesting": (
        _nested(b"[", b"]", 70),
        _nested(b"[", b"]", 1_100),
        _nested(b"[", b"]", 100_000),
        _nested(b'{"a":', b"}", 1_100),
        _nested(b'{"a":', b"}", 100_000),
        Text(b"[" * 100_000),
    ),
    "a value of another type": tuple(
        Text(value)
        for value in (b"null", b"true", b"[]", b"{}", b"[[]]", b'"text"', b"3", b"2.5", b'{"type":"text","text":"t"}')
    ),
    "another id": tuple(
        Text(value)
        for value in (
            b'"call_1_0"', b'"call_999999999_0"', b'"call_6_99999"', b'"run_1"', b'"run_99"', b'"run_-1"', b'"run_"',
            b'"alice"', b'"session/alice"', b'"../../etc/passwd"', b'"@1"', b'"call_' + b"9" * 5_000 + b'_0"',
        )
    ),
}  # fmt: skip


def _places(value: object, found: list[tuple[Container, str | int]]) -> list[tuple[Container, str | int]]:
    """Return every place of a value inside an event, as its container and its key or index."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        for key, item in members.items():
            found.append((members, key))
            _places(item, found)
    elif isinstance(value, list):
        items = cast("list[object]", value)
        for index, item in enumerate(items):
            found.append((items, index))
            _places(item, found)
    return found


def _put(place: tuple[Container, str | int], value: object) -> None:
    container, key = place
    container[key] = value  # type: ignore[index]


def _at(place: tuple[Container, str | int]) -> object:
    container, key = place
    return container[key]  # type: ignore[index]


def _written(value: object) -> bytes:
    if isinstance(value, Text):
        return value.data
    if isinstance(value, dict):
        members = cast("dict[str, object]", value).items()
        return b"{" + b",".join(json.dumps(key).encode() + b":" + _written(item) for key, item in members) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_written, cast("list[object]", value))) + b"]"
    return json.dumps(value, ensure_ascii=False).encode()


Mutate = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
"""Returns an event's JSON in another form, given chance and other events of the same log."""


def _in_some_place(change: Callable[[list[tuple[Container, str | int]], random.Random, object], None]) -> Mutate:
    def mutate(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
        event = json.loads(data)
        other = json.loads(chance.choice(others))
        change(_places(event, []), chance, other)
        return _written(event)

    return mutate


def _nasty(name: str) -> Mutate:
    def change(places: list[tuple[Container, str | int]], chance: random.Random, other: object) -> None:
        # One huge text is enough: a log that is itself large costs what it weighs.
        for _ in range(1 if name == "a huge text" else chance.choice((1, 1, 1, 2, 5))):
            _put(chance.choice(places), chance.choice(NASTY[name]))

    return _in_some_place(change)


def _drop(places: list[tuple[Container, str | int]], chance: random.Random, other: object) -> None:
    container, key = chance.choice(places)
    del container[key]  # type: ignore[arg-type]


def _add(places: list[tuple[Container, str | int]], chance: random.Random, other: object) -> None:
    containers: list[Container] = [item for item in map(_at, places) if isinstance(item, dict)]
    containers = containers or [places[0][0]]
    names = [key for _, key in _places(other, []) if isinstance(key, str)]
    container = chance.choice(containers)
    assert isinstance(container, dict)
    container[chance.choice(["", "extra", "\0", "type", "at", *names])] = chance.choice(
        [1, None, "x", other, Text(b"1e999")]
    )


def _transplant(places: list[tuple[Container, str | int]], chance: random.Random, other: object) -> None:
    """Put what another event has in a field of the same name, so that types fit and meanings do not."""
    theirs = {str(key): _at((container, key)) for container, key in _places(other, [])}
    fitting = [place for place in places if str(place[1]) in theirs and place[1] != "type"]
    for place in chance.sample(fitting, min(len(fitting), chance.choice((1, 1, 2)))):
        _put(place, theirs[str(place[1])])


def _count_wrong(places: list[tuple[Container, str | int]], chance: random.Random, other: object) -> None:
    """Make a number, or the number in an id, one more or less."""
    fitting = [place for place in places if type(_at(place)) is int or str(place[1]) in ("run", "call", "input")]
    if not fitting:
        return
    place = chance.choice(fitting)
    value, step = _at(place), chance.choice((-1, 1, 2, -100, 1_000_000))
    if isinstance(value, int):
        _put(place, value + step)
        return
    parts = str(value).split("_")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    if numbers:
        index = chance.choice(numbers)
        parts[index] = str(int(parts[index]) + step)
    _put(place, "_".join(parts))


def _retype(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    event = json.loads(data)
    tags = [str(json.loads(other)["type"]) for other in others]
    event["type"] = chance.choice([*tags, *tags, *TAGS, "", 7, None, Text(b"1e999"), ["session.opened.v1"]])
    return _written(event)


def _twice(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Name a field twice, the second time with another value; decoders take the last."""
    event = json.loads(data)
    key = chance.choice(list(event))
    value = chance.choice([event[key], json.loads(chance.choice(others)).get(key), "x", Text(b"[]")])
    return _written(event)[:-1] + b"," + json.dumps(key).encode() + b":" + _written(value) + b"}"


def _many(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Make a list of an event very long."""
    event = json.loads(data)
    lists = [cast("list[object]", item) for item in map(_at, _places(event, [])) if isinstance(item, list) and item]
    if lists:
        items = chance.choice(lists)
        room = GROWTH_MAX // (len(_written(items)) + 1)  # A log that is itself large costs what it weighs.
        items.extend(items * min(chance.choice((1, 100, 5_000)), room))
    else:
        event["extra"] = [[]] * 100_000
    return _written(event)


def _replaced(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    return chance.choice(others)


def _no_json(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    cut = chance.randrange(len(data) + 1)
    return chance.choice(
        (
            lambda: data[:cut],
            lambda: data[:cut] + bytes([chance.randrange(256)]) + data[cut + 1 :],
            lambda: data[:cut] + chance.randbytes(20) + data[cut:],
            lambda: b"",
            lambda: b"\xef\xbb\xbf" + data,
            lambda: data + b"garbage",
            lambda: data + data,
            lambda: b"[" + data + b"]",
            lambda: json.dumps(data.decode()).encode(),
            lambda: b"null",
            lambda: chance.randbytes(200),
            lambda: data.decode().encode("utf-16"),
        )
    )()


EVENT_MUTATIONS: Mapping[str, Mutate] = {
    "another type": _retype,
    "a field is missing": _in_some_place(_drop),
    "a field more": _in_some_place(_add),
    "a field twice": _twice,
    "a value of another event": _in_some_place(_transplant),
    "a number is off": _in_some_place(_count_wrong),
    "another event in its place": _replaced,
    "a list of thousands": _many,
    "no JSON": _no_json,
    **{name: _nasty(name) for name in NASTY},
}
"""By name."""
