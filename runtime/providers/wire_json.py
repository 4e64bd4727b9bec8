"""JSON on the wire, for every provider: read as servers write it, leniently, and written strictly.

A server that counts text in UTF-16 cuts an emoji in two and sends each half as an escape of its own, so halves are let
in here and made whole or replaced where the text is complete.
"""

import json
from typing import cast

import msgspec

from refold.events.cleaning import clean_text
from refold.events.content import Json, JsonObject, is_json_array, is_json_object
from refold.events.errors import ProviderError


def decoded(data: str | bytes) -> Json:
    """Return the value of JSON text; lone surrogates are left in it.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return cast("Json", msgspec.json.decode(data))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _decoded_leniently(data)


def _decoded_leniently(data: str | bytes) -> Json:
    """As `decoded`, slower, also of halves of emojis, a byte order mark and NaN."""
    try:
        return cast("Json", json.loads(data))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def encoded(value: Json) -> bytes:
    """Return the JSON of a request or of a part of it; what is not Unicode in it is replaced.

    Raises:
        ProviderError: it has no form in JSON; of kind `invalid_request`.
    """
    try:
        try:
            return msgspec.json.encode(value)
        except UnicodeEncodeError:
            return msgspec.json.encode(_cleaned(value))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ProviderError(f"the request cannot be written as JSON: {error!s:.200}", kind="invalid_request") from None


def _cleaned(value: Json) -> Json:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, tuple):
        value = list(cast("tuple[Json, ...]", value))
    if is_json_array(value):
        return [_cleaned(item) for item in value]
    if is_json_object(value):
        return {clean_text(key) if isinstance(key, str) else key: _cleaned(item) for key, item in value.items()}
    return value


def text_field(value: JsonObject, key: str) -> str:
    """Return the text under a key, or an empty one where there is none."""
    text = value.get(key)
    return text if isinstance(text, str) else ""


def object_field(value: JsonObject, key: str) -> JsonObject:
    """Return the object under a key, or an empty one where there is none."""
    inner = value.get(key)
    return inner if is_json_object(inner) else {}
