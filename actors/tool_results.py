"""What a tool returned or raised, as the content of a result."""

from collections.abc import Sequence
from typing import TypeGuard, cast

import msgspec

from refold.actors.given_content import checked_block
from refold.actors.result_limit import DEFAULT_RESULT_LIMIT, WithLimit, limited
from refold.events.cleaning import clean_json, clean_text
from refold.events.content import ErrorKind, ImageBlock, ResultContent, TextBlock
from refold.events.errors import CircuitOpen, ToolError
from refold.events.ids import PayloadHash
from refold.events.payloads import spill

ERRORS_TOLD_MAX = 10
"""Of a group of errors at most so many are told."""

ERROR_CHARACTERS_MAX = 4_000
"""The text of a tool's error is cut after so many characters."""


class CallFailed(ToolError):
    """A call came to nothing for a reason that no failure of a tool's own has; of Refold's own tools.

    Attributes:
        result_kind: of the call's result.
    """

    def __init__(self, message: str, *, result_kind: ErrorKind) -> None:
        super().__init__(message)
        self.result_kind: ErrorKind = result_kind


def result_content(value: object) -> tuple[tuple[ResultContent, ...], dict[PayloadHash, bytes]]:
    """Return a tool's value as content, with the payloads of what is large.

    Text stays text, None is no content, blocks stay blocks, and everything else becomes its JSON text. What is too long
    for a model is cut as `refold.actors.result_limit` says.

    Raises:
        Unrecordable: the value has no JSON form, or holds an image that is too large; names the path.
    """
    given = value if isinstance(value, WithLimit) else WithLimit(value, DEFAULT_RESULT_LIMIT)
    shown, whole = limited(result_blocks(given.value), given.limit)
    content, payloads = spill(shown)
    return content, {**whole, **payloads}


def result_blocks(value: object) -> Sequence[TextBlock | ImageBlock]:
    """Return a tool's value as blocks, however large; see `result_content`."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (TextBlock(text=clean_text(str.__str__(value))),) if value else ()
    if isinstance(value, TextBlock):
        return result_blocks(value.text)
    if isinstance(value, ImageBlock):
        return (checked_block(value),)
    if _are_blocks(value):
        return [block for item in value for block in result_blocks(item)]
    return (TextBlock(text=msgspec.json.encode(clean_json(value)).decode()),)


def _are_blocks(value: object) -> TypeGuard[Sequence[TextBlock | ImageBlock]]:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, TextBlock | ImageBlock) for item in cast("Sequence[object]", value))


def failure(error: BaseException) -> tuple[tuple[ResultContent, ...], ErrorKind]:
    """Return what the model is told of an error that a tool raised, and its kind.

    A `ToolError` says its kind. Lost connections, time-outs and open circuits are transient, everything else permanent.
    Of a group of errors, as a `TaskGroup` raises it, each is told, and it is transient if all of them are.
    """
    said = [_said(single) for single in _singles(error)]
    text = "; ".join(text for text, _ in said)
    kinds: list[ErrorKind] = list(dict.fromkeys(kind for _, kind in said))
    kind: ErrorKind = kinds[0] if len(kinds) == 1 else "permanent"
    return (TextBlock(text=text[:ERROR_CHARACTERS_MAX] or type(error).__name__),), kind


def _said(error: BaseException) -> tuple[str, ErrorKind]:
    if isinstance(error, CallFailed):
        return text_of_error(error), error.result_kind
    if isinstance(error, ToolError):
        return text_of_error(error), error.kind
    kind: ErrorKind = "transient" if isinstance(error, TimeoutError | ConnectionError | CircuitOpen) else "permanent"
    return f"{type(error).__name__}: {text_of_error(error)}", kind


def _singles(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, however deep, the first `ERRORS_TOLD_MAX` of them; another error as it is."""
    singles: list[BaseException] = []
    waiting = [error]
    while waiting and len(singles) < ERRORS_TOLD_MAX:
        first = waiting.pop()
        if isinstance(first, BaseExceptionGroup):
            waiting.extend(reversed(cast("BaseExceptionGroup[BaseException]", first).exceptions))
        else:
            singles.append(first)
    return singles


def text_of_error(error: BaseException) -> str:
    """Return an error's text, clean; where the error itself cannot say it, a text that says that."""
    try:
        return clean_text(str.__str__(str(error)))
    except Exception as second:  # noqa: BLE001 - `__str__` is user code, and an error must not be lost to another.
        return f"(its text cannot be had: {type(second).__name__})"
