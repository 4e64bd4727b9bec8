"""What comes from outside, made fit for the log: text and JSON from callers, models and tools.

The rule: nothing is written that cannot be read back, and what is refused is named by its path
(`$.rows[3].x`). Text loses only what is not Unicode; JSON is refused rather than changed in meaning.
"""

import codecs
import dis
import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from typing import TypeGuard, cast

import msgspec

from refold.events.core.content import Json, JsonObject
from refold.events.core.errors import CommandRejected, quoted

DEPTH_MAX = 100
"""Deepest accepted nesting of arrays and objects."""

RECORDED_DEPTH_MAX = DEPTH_MAX + 10
"""Deepest nesting of a whole event: cleaned JSON inside blocks and messages."""

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
"""Bounds of an accepted integer; SQLite and most JSON readers keep no more than 64 bits."""


STEP_BYTES = 256 * 1024
"""So much of large data is decoded without a pause; a fraction of a millisecond."""

PATH_CHARACTERS_MAX = 200
"""A path is cut after so many characters; it is read by people and models."""


class Unrecordable(CommandRejected):
    """A value cannot be written to the log.

    Attributes:
        path: where in the value, such as `$.rows[3].x`.
        reason: what is wrong there.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


def clean_text(text: str) -> str:
    """Return `text` as valid Unicode: split surrogate pairs are joined, lone surrogates become U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def decoded_in_steps(data: bytes | bytearray, errors: str = "strict") -> Generator[None, None, str]:
    """Return the text that UTF-8 is, with pauses where it is long; what it grows by is not copied again."""
    text, decoder = "", codecs.getincrementaldecoder("utf-8")(errors)
    for start in range(0, len(data), STEP_BYTES):
        if start:
            yield
        text += decoder.decode(data[start : start + STEP_BYTES])
    return text + decoder.decode(b"", final=True)


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+(?=>)")


def without_addresses(text: str) -> str:
    """Return `text` without the addresses that Python names objects by, which are others in each process."""
    return _ADDRESS.sub("", text) if " at 0x" in text else text


def clean_json(value: object, path: str = "$", depth: int = 0) -> Json:
    """Return `value` as plain JSON values, ready to be recorded.

    Tuples become arrays, sets become arrays in a fixed order, structs and dataclasses become objects, dates and the
    like become the text that msgspec writes for them.

    Args:
        value: any object.
        path: its place, for the error.
        depth: how deep that place is.

    Raises:
        Unrecordable: NaN, an infinity, an integer beyond 64 bits, nesting beyond `DEPTH_MAX`, a key that is no
            string, or an object that JSON has no form for.
    """
    try:
        return _cleaned(value, depth)
    except _Unclean as error:
        place = path + "".join(reversed(error.steps))
        if len(place) > PATH_CHARACTERS_MAX:
            place = f"{place[:PATH_CHARACTERS_MAX]}…"
        raise Unrecordable(place, error.reason) from None


class _Unclean(Exception):
    """A value cannot be cleaned; the way to it is put together only then, since most values can be."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []
        """From the value outwards."""


def _cleaned(value: object, depth: int) -> Json:
    if type(value) is str and value.isascii():  # Most values are plain; what follows asks more of each.
        return value
    kind = type(value)
    if depth < DEPTH_MAX:
        if kind is dict:
            return _cleaned_object(cast("dict[object, object]", value), depth)
        if kind is list:
            return _cleaned_items(cast("list[object]", value), depth, ordered=True)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return clean_text(str.__str__(value))  # Not str(): an enumeration's member is its value, not its name.
    if isinstance(value, int):
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise _Unclean("is an integer beyond 64 bits; give it as text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Unclean(f"is {float(value)}, which JSON has no form for; give None or text")
        return float(value)
    if depth >= DEPTH_MAX:
        raise _Unclean(f"is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, dict | Mapping):
        return _cleaned_object(cast("Mapping[object, object]", value), depth)
    if isinstance(value, Set):
        items = _cleaned_items(cast("Set[object]", value), depth, ordered=False)
        return sorted(items, key=lambda item: msgspec.json.encode(item, order="sorted"))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return _cleaned_items(cast("Sequence[object]", value), depth, ordered=True)
    return _cleaned_other(value, depth)


def _cleaned_items(value: Iterable[object], depth: int, *, ordered: bool) -> list[Json]:
    cleaned: list[Json] = []
    try:
        for item in value:
            cleaned.append(_cleaned(item, depth + 1))
    except _Unclean as error:
        error.steps.append(f"[{len(cleaned)}]" if ordered else "[*]")
        raise
    return cleaned


def _cleaned_object(value: Mapping[object, object], depth: int) -> JsonObject:
    cleaned: JsonObject = {}
    for key, item in value.items():
        if not isinstance(key, str):
            shown = without_addresses(quoted(key, 1_000))
            raise _Unclean(f"has the key {shown:.80} of type {type(key).__name__}; keys must be strings")
        name = clean_text(str.__str__(key))
        if name in cleaned:
            raise _Unclean(f"has two keys that both become {quoted(name)}; rename one")
        try:
            cleaned[name] = _cleaned(item, depth + 1)
        except _Unclean as error:
            error.steps.append(f".{name}")
            raise
    return cleaned


def _cleaned_other(value: object, depth: int) -> Json:
    if isinstance(value, BaseException | type):
        raise _Unclean(f"is {without_addresses(quoted(value, 1_000)):.80}, which JSON has no form for; return its text")
    try:
        builtin = msgspec.to_builtins(value, order="deterministic", enc_hook=_serialised)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError) as error:
        why = without_addresses(str(error))
        raise _Unclean(
            f"is of type {type(value).__name__}, which JSON has no form for; convert it ({why:.100})"
        ) from None
    if type(builtin) is type(value):
        raise _Unclean(f"is of type {type(value).__name__}, which JSON has no form for; convert it")
    return _cleaned(builtin, depth)


def _serialised(value: object) -> object:
    """Return a model of pydantic as plain JSON; nothing else that msgspec does not know has a form."""
    serializer = getattr(type(value), "__pydantic_serializer__", None)
    if serializer is None:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return serializer.to_python(value, mode="json", by_alias=True)


def check_recordable(value: object, path: str, depth: int = 0, *, inside_json: bool = False) -> None:
    """Raise `Unrecordable` with the path of the first part of `value`, a part of an event, that is not read back equal.

    Inside a JSON value nothing but plain JSON is.
    """
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is str or kind is int or kind is float:
        if clean_json(value, path) != value:
            raise Unrecordable(path, "holds a lone surrogate; pass it through clean_text first")
    elif depth >= RECORDED_DEPTH_MAX:
        raise Unrecordable(path[:200], f"is nested deeper than {RECORDED_DEPTH_MAX} levels")
    elif isinstance(value, dict) and kind is dict:
        for key, item in cast("dict[object, object]", value).items():
            if not isinstance(key, str) or type(key) is not str or clean_text(key) != key:
                raise Unrecordable(path, f"has the key {quoted(key)}; keys must be plain valid text")
            check_recordable(item, f"{path}.{key}", depth + 1, inside_json=True)
    elif isinstance(value, list) and kind is list:
        for place, item in enumerate(cast("list[object]", value)):
            check_recordable(item, f"{path}[{place}]", depth + 1, inside_json=True)
    elif inside_json or not isinstance(value, tuple | bytes | msgspec.Struct):
        raise Unrecordable(path, f"is of type {kind.__name__}, which is read back as another; use clean_json first")
    elif isinstance(value, tuple):
        for place, item in enumerate(cast("tuple[object, ...]", value)):
            check_recordable(item, f"{path}[{place}]", depth + 1)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            check_recordable(getattr(value, field), f"{path}.{field}", depth + 1)


REASON_CHARACTERS_MAX = 10_000
"""A reason is cut after so many characters before it is recorded."""


def recorded_reason(reason: object) -> str:
    """Return a reason for the log: valid text that no reader, and no event, is too small for; it never raises."""
    try:
        said = "" if reason is None else str.__str__(str(reason))
    except Exception as error:  # noqa: BLE001 - `__str__` is user code, and what the reason is given for must not fail.
        said = f"(a reason that cannot be had: {type(error).__name__})"
    return clean_text(without_addresses(said)[:REASON_CHARACTERS_MAX])


FLOAT_MAX = math.nextafter(math.inf, 0)
"""The largest number that a float can hold."""


def is_finite(value: object) -> TypeGuard[float]:
    """Tell whether something is a finite number that a float can hold, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= FLOAT_MAX


def error_words(error: BaseException) -> str:
    said = text_of_error(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def text_of_error(error: BaseException) -> str:
    """Return an error's text, clean; where the error itself cannot say it, a text that says that."""
    try:
        return clean_text(without_addresses(str.__str__(str(error))))
    except BaseException as second:  # `__str__` is user code, and an error must not be lost to another.
        if isinstance(second, KeyboardInterrupt) and not is_raised_by_code(second):
            raise
        return f"(its text cannot be had: {type(second).__name__})"


def is_raised_by_code(error: BaseException) -> bool:
    """Tell whether an error that ends programs was raised by a statement, and not by a signal such as Ctrl-C's."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if isinstance(error, SystemExit) or place is None:
        return isinstance(error, SystemExit)
    return place.tb_frame.f_code.co_code[place.tb_lasti] == dis.opmap["RAISE_VARARGS"]
