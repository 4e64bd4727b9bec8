"""What a tool returned or raised, as the content of a result, and how much of it a model is shown.

The texts of a result may have `limit` UTF-8 bytes together. If they have more, each gets an equal share, and one that
is longer than its share is cut: the model sees the first two thirds of the share and the last third, whole characters
only, and between them a line that says how many bytes are left out and under which hash the log keeps the whole text.
So what was cut is text; half a JSON value never looks like one. An image is never cut; one of more than
`IMAGE_BYTES_MAX` bytes is refused, and the model is told so.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeGuard, cast

import msgspec

from refold.actors.calls.validation import checked_block
from refold.events.core.cleaning import Unrecordable, clean_json, clean_text, without_addresses
from refold.events.core.content import (
    DocumentBlock,
    ErrorKind,
    GivenContent,
    ImageBlock,
    ResultContent,
    StoredBlock,
    TextBlock,
)
from refold.events.core.errors import CircuitOpen, ProviderError, ToolError
from refold.events.core.ids import PayloadHash
from refold.events.core.redaction import NOTHING_SECRET, Redaction
from refold.events.model.payloads import INLINE_BYTES_MAX, kept_whole, spill

DEFAULT_RESULT_LIMIT: Final = INLINE_BYTES_MAX
"""As many bytes of text as a result may have and still lie in its event: 64 KiB, some 16,000 tokens of English."""

RESULT_LIMIT_MAX: Final = 128 * 1024
"""Highest limit: what is shown lies in the event, in which a byte may take six."""

IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""Largest image of a result that has a limit, in bytes of the encoded file; model services refuse larger ones."""


class WithLimit(NamedTuple):
    """What a tool returned, and how much of it a model is shown."""

    value: object
    limit: int | None
    """UTF-8 bytes, 0 to `RESULT_LIMIT_MAX`; None = all of it, and images of any size."""


def limited(blocks: Sequence[GivenContent], limit: int | None) -> tuple[list[ResultContent], dict[PayloadHash, bytes]]:
    """Return a result as a model is shown it, and the payloads that hold the whole of what was cut.

    Raises:
        Unrecordable: an image is too large, or a text too large to be kept at all.
    """
    if limit is None:
        return list(blocks), {}
    for place, block in enumerate(blocks):
        if not isinstance(block, TextBlock) and len(block.data) > IMAGE_BYTES_MAX:
            kind = "an image" if isinstance(block, ImageBlock) else "a document"
            raise Unrecordable(
                f"$[{place}]", f"is {kind} of {len(block.data):,} bytes; {IMAGE_BYTES_MAX:,} are accepted"
            )
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    if sum(map(_size, texts)) <= limit:
        return list(blocks), {}
    share = limit // len(texts)
    shown: list[ResultContent] = []
    payloads: dict[PayloadHash, bytes] = {}
    for block in blocks:
        if isinstance(block, TextBlock) and _size(block) > share:
            cut, whole = _cut(block, share)
            payloads[cut.hash] = whole
            shown.append(cut)
        else:
            shown.append(block)
    return shown, payloads


def _size(block: TextBlock) -> int:
    text = block.text
    return len(text) if text.isascii() else len(text.encode())


def _cut(block: TextBlock, share: int) -> tuple[StoredBlock, bytes]:
    kept, whole = kept_whole(block)
    data = block.text.encode()
    tail_size = share // 3
    head = data[: share - tail_size].decode(errors="ignore")
    end = len(data) - tail_size
    while end < len(data) and data[end] & 0xC0 == 0x80:  # Inside a character.
        end += 1
    tail = data[end:].decode()
    left_out = len(data) - len(head.encode()) - len(tail.encode())
    marker = f"[{left_out:,} of {len(data):,} bytes are left out here; the log keeps all of it as payload {kept.hash}]"
    shown = "\n".join(part for part in (head, marker, tail) if part)
    return msgspec.structs.replace(kept, shown=shown), whole


ERRORS_TOLD_MAX = 10
"""Of a group of errors at most so many are told."""

ERROR_CHARACTERS_MAX = 4_000
"""The text of a tool's error is cut after so many characters."""


class CallFailed(ToolError):
    """A call had no result, for a reason that no failure of a tool's own has; of Refold's own tools.

    Attributes:
        result_kind: of the call's result.
    """

    def __init__(self, message: str, *, result_kind: ErrorKind) -> None:
        super().__init__(message)
        self.result_kind: ErrorKind = result_kind


def result_content(
    value: object, redaction: Redaction = NOTHING_SECRET
) -> tuple[tuple[ResultContent, ...], dict[PayloadHash, bytes]]:
    """Return a tool's value as content, with the payloads of what is large.

    Text stays text, None is no content, blocks stay blocks, and everything else becomes its JSON text. What is too long
    for a model is cut as `refold.actors.calls.results` says.

    Raises:
        Unrecordable: the value has no JSON form, or holds an image that is too large; names the path.
    """
    given = value if isinstance(value, WithLimit) else WithLimit(value, DEFAULT_RESULT_LIMIT)
    shown, whole = limited(redaction.value(result_blocks(given.value)), given.limit)
    content, payloads = spill(shown)
    return content, {**whole, **payloads}


def result_blocks(value: object) -> Sequence[GivenContent]:
    """Return a tool's value as blocks, however large; see `result_content`."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (TextBlock(text=clean_text(str.__str__(value))),) if value else ()
    if isinstance(value, TextBlock):
        return result_blocks(value.text)
    if isinstance(value, ImageBlock | DocumentBlock):
        return (checked_block(value),)
    if _are_blocks(value):
        return [block for item in value for block in result_blocks(item)]
    return (TextBlock(text=msgspec.json.encode(clean_json(value)).decode()),)


def _are_blocks(value: object) -> TypeGuard[Sequence[GivenContent]]:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, GivenContent) for item in cast("Sequence[object]", value))


def failure(error: BaseException, redaction: Redaction = NOTHING_SECRET) -> tuple[tuple[ResultContent, ...], ErrorKind]:
    """Return what the model is told of an error that a tool raised, and its kind.

    A `ToolError` says its kind. Lost connections, time-outs and open circuits are transient, everything else permanent.
    Of a group of errors, as a `TaskGroup` raises it, each is told, and it is transient if all of them are.
    """
    said = [_said(single) for single in _singles(error)]
    text = redaction.text("; ".join(text for text, _ in said))  # Before it is cut, or the beginning of one would stay.
    kinds: list[ErrorKind] = list(dict.fromkeys(kind for _, kind in said))
    kind: ErrorKind = kinds[0] if len(kinds) == 1 else "permanent"
    return (TextBlock(text=text[:ERROR_CHARACTERS_MAX] or type(error).__name__),), kind


def _said(error: BaseException) -> tuple[str, ErrorKind]:
    if isinstance(error, CallFailed):
        return text_of_error(error), error.result_kind
    if isinstance(error, ToolError):
        return text_of_error(error), error.kind
    lost = isinstance(error, CircuitOpen) or lost_connection(error) is not None
    return f"{type(error).__name__}: {text_of_error(error)}", "transient" if lost else "permanent"


def lost_connection(error: BaseException) -> ProviderError | None:
    """Return a failure of the network as an error of a provider that may be tried again; None = it is none.

    Such are `ConnectionError`, `TimeoutError`, and what `httpx` calls a `TransportError`.
    """
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}  # httpx is not loaded for this.
    timeout = isinstance(error, TimeoutError) or "httpx.TimeoutException" in kinds
    if not (timeout or isinstance(error, ConnectionError) or "httpx.TransportError" in kinds):
        return None
    said = f"{type(error).__name__}: {text_of_error(error)}"
    return ProviderError(said, kind="timeout" if timeout else "connection", retryable=True)


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
        return clean_text(without_addresses(str.__str__(str(error))))
    except Exception as second:  # noqa: BLE001 - `__str__` is user code, and an error must not be lost to another.
        return f"(its text cannot be had: {type(second).__name__})"
