"""Where two values differ first, as a path that a reader can follow.

For events, states and requests: `turn: 2 -> 3`, `content[0].input.rows[3].x: 1 -> "1"`. The rule: two values are
the same only if their JSON is, so 1, 1.0 and true are three values; the order of an object's keys means nothing.
"""

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import msgspec

from refold.events.core.content import Json, JsonObject, is_json_object
from refold.events.core.word_diff import words_of_changes

NOTHING = msgspec.UNSET
"""Stands for a side that has nothing at the path; JSON leaves such a member out."""

WHOLE_CHARACTERS = 80
"""Two texts of so many characters on average are told whole, longer ones by the words that differ."""

SHOWN_CHARACTERS = 200
"""After so many characters the text of a difference cuts each side."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where two values are not the same.

    Its text is `path: left -> right`; of two texts, one of which is long, `path: …` and the words that differ.
    """

    path: str
    """From the whole value down, such as `content[0].text`."""
    left: Json = NOTHING
    """What stands there on the left, as JSON values; `NOTHING` where the left has no such place."""
    right: Json = NOTHING
    """The same on the right."""

    def __str__(self) -> str:
        left, right = self.left, self.right
        if isinstance(left, str) and isinstance(right, str) and self.is_long:
            return f"{self.path}: {words_of_changes(left, right)}"
        return f"{self.path}: {_shown(left)} -> {_shown(right)}"

    @property
    def is_long(self) -> bool:
        """Whether it is between two texts of which only the words that differ are told."""
        left, right = self.left, self.right
        return isinstance(left, str) and isinstance(right, str) and len(left) + len(right) > 2 * WHOLE_CHARACTERS


def first_difference(left: object, right: object, path: str) -> Difference | None:
    return next(differences(left, right, path), None)


def differences(left: object, right: object, path: str) -> Iterator[Difference]:
    """Give the places where `left`, called `path`, and `right` differ, in the order of the left one's fields."""
    if isinstance(left, msgspec.Struct) and isinstance(right, msgspec.Struct):
        yield from _in_structs(left, right, path)
    elif is_json_object(left) and is_json_object(right):
        yield from _in_objects(left, right, path)
    elif _is_array(left) and _is_array(right):
        yield from _in_arrays(left, right, path)
    elif type(left) is not type(right) or left != right:
        yield Difference(path=path, left=json_of(left), right=json_of(right))


def json_of(value: object) -> Json:
    """Return `value` as plain JSON values; `NOTHING` stays what it is."""
    plain: Json = value if value is NOTHING else msgspec.json.decode(msgspec.json.encode(value))
    return plain


def _is_array(value: object) -> TypeGuard[Sequence[Json]]:
    return isinstance(value, list | tuple)


def _in_structs(left: msgspec.Struct, right: msgspec.Struct, path: str) -> Iterator[Difference]:
    if type(left) is not type(right):
        yield Difference(path=f"{path}.type", left=_type_name(left), right=_type_name(right))
        return
    for field in left.__struct_fields__:
        yield from differences(getattr(left, field), getattr(right, field), f"{path}.{field}")


def _type_name(value: msgspec.Struct) -> str:
    config = type(value).__struct_config__
    return str(config.tag) if config.tag is not None else type(value).__name__


def _in_objects(left: JsonObject, right: JsonObject, path: str) -> Iterator[Difference]:
    for key in [*left, *(key for key in right if key not in left)]:
        place = f"{path}.{key}" if key.isidentifier() else f"{path}[{msgspec.json.encode(key).decode()}]"
        yield from _in_members(left.get(key, NOTHING), right.get(key, NOTHING), place)


def _in_arrays(left: Sequence[Json], right: Sequence[Json], path: str) -> Iterator[Difference]:
    for index in range(max(len(left), len(right))):
        yield from _in_members(
            left[index] if index < len(left) else NOTHING,
            right[index] if index < len(right) else NOTHING,
            f"{path}[{index}]",
        )


def _in_members(left: object, right: object, path: str) -> Iterator[Difference]:
    if left is NOTHING or right is NOTHING:
        yield Difference(path=path, left=json_of(left), right=json_of(right))
    else:
        yield from differences(left, right, path)


def _shown(value: Json) -> str:
    if value is NOTHING:
        return "(nothing)"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text):,} characters)"
