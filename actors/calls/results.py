"""What a tool returned or raised, as the content of a result, and how much of it a model is shown.

The texts of a result may have `limit` UTF-8 bytes together. If they have more, each gets an equal share, and one that
is longer than its share is cut: the model sees the first two thirds of the share and the last third, whole characters
only, and between them a line that says how many bytes are left out and under which hash the log keeps the whole text.
So what was cut is text; half a JSON value never looks like one. An image is never cut; one of more than
`IMAGE_BYTES_MAX` bytes is refused, and the model is told so.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeGuard, cast

import msgspec

from refold.actors.calls.questions import CallFailed
from refold.actors.calls.validation import checked_block
from refold.events.core.cleaning import (
    DEPTH_MAX,
    Unrecordable,
    clean_json,
    clean_text,
    decoded_in_steps,
    error_words,
    is_raised_by_code,
    text_of_error,
)
from refold.events.core.content import (
    DocumentBlock,
    ErrorKind,
    GivenContent,
    ImageBlock,
    JsonObject,
    ResultContent,
    StoredBlock,
    TextBlock,
)
from refold.events.core.errors import AgentLoopError, CircuitOpen, ProviderError, ToolError, quoted
from refold.events.core.ids import PayloadHash
from refold.events.model.cooperative import ITEMS_PER_STEP, Cooperative, at_once
from refold.events.model.payloads import INLINE_BYTES_MAX, PIECE, kept_whole, spill_in_steps
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction

DEFAULT_RESULT_LIMIT: Final = INLINE_BYTES_MAX
"""As many bytes of text as a result may have and still lie in its event: 64 KiB, some 16,000 tokens of English."""

RESULT_LIMIT_MAX: Final = 128 * 1024
"""Highest limit: what is shown lies in the event, in which a byte may take six."""

IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""Largest image of a result that has a limit, in bytes of the encoded file; model services refuse larger ones."""


RESULT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of one result that are taken, text and images together, unless a runtime says otherwise."""


ITEMS_WRITTEN_PER_STEP: Final = 100
"""So many items of a large array or object are written in a step."""


class WithLimit(NamedTuple):
    """What a tool returned, and how much of it a model is shown."""

    value: object
    limit: int | None
    """UTF-8 bytes, 0 to `RESULT_LIMIT_MAX`; None = all of it, and images of any size."""


def limited(
    blocks: Sequence[GivenContent], limit: int | None
) -> Cooperative[tuple[list[ResultContent], dict[PayloadHash, bytes]]]:
    """Return a result as a model is shown it, and the payloads that hold the whole of what was cut; in steps."""
    if limit is None:
        return list(blocks), {}
    for place, block in enumerate(blocks):
        if not isinstance(block, TextBlock) and len(block.data) > IMAGE_BYTES_MAX:
            kind = "an image" if isinstance(block, ImageBlock) else "a document"
            raise Unrecordable(
                f"$[{place}]", f"is {kind} of {len(block.data):,} bytes; {IMAGE_BYTES_MAX:,} are accepted"
            )
    sizes: list[int] = []
    for block in blocks:
        sizes.append((yield from _size(block)) if isinstance(block, TextBlock) else 0)
    if sum(sizes) <= limit:
        return list(blocks), {}
    share = limit // sum(isinstance(block, TextBlock) for block in blocks)
    shown: list[ResultContent] = []
    payloads: dict[PayloadHash, bytes] = {}
    for block, size in zip(blocks, sizes, strict=True):
        if isinstance(block, TextBlock) and size > share:
            cut, whole = yield from _cut(block, size, share)
            payloads[cut.hash] = whole
            shown.append(cut)
        else:
            shown.append(block)
    return shown, payloads


def _size(block: GivenContent) -> Cooperative[int]:
    if not isinstance(block, TextBlock):
        return len(block.data)
    text, size = block.text, 0
    if text.isascii():
        return len(text)
    for start in range(0, len(text), PIECE):
        size += len(text[start : start + PIECE].encode())
        yield
    return size


def _cut(block: TextBlock, size: int, share: int) -> Cooperative[tuple[StoredBlock, bytes]]:
    kept, whole = yield from kept_whole(block)
    tail_size = share // 3
    head_size = share - tail_size
    head = block.text[:head_size].encode()[:head_size].decode(errors="ignore")
    end = block.text[-tail_size:].encode()[-tail_size:] if tail_size else b""
    tail = end[next((place for place, byte in enumerate(end) if byte & 0xC0 != 0x80), len(end)) :].decode()
    left_out = size - len(head.encode()) - len(tail.encode())
    marker = f"[{left_out:,} of {size:,} bytes are left out here; the log keeps all of it as payload {kept.hash}]"
    shown = "\n".join(part for part in (head, marker, tail) if part)
    return msgspec.structs.replace(kept, shown=shown), whole


ERRORS_TOLD_MAX = 10
"""Of a group of errors at most so many are told."""

ERROR_CHARACTERS_MAX = 4_000
"""The text of a tool's error is cut after so many characters."""


def result_content(
    value: object, redaction: Redaction = NOTHING_SECRET
) -> tuple[tuple[ResultContent, ...], dict[PayloadHash, bytes]]:
    """As `result_in_steps`, without a pause, and however large the value is."""
    return at_once(result_in_steps(value, None, redaction))


def result_in_steps(
    value: object, bytes_max: int | None = RESULT_BYTES_MAX, redaction: Redaction = NOTHING_SECRET
) -> Cooperative[tuple[tuple[ResultContent, ...], dict[PayloadHash, bytes]]]:
    """Return a tool's value as content, with the payloads of what is large; in steps of some milliseconds.

    Text stays text, None is no content, blocks stay blocks, and everything else becomes its JSON text. What is too long
    for a model is cut as `refold.actors.calls.results` says.

    Raises:
        Unrecordable: the value has no JSON form, holds an image that is too large, or has more than `bytes_max` bytes
            in all; names the path.
    """
    given = value if isinstance(value, WithLimit) else WithLimit(value, DEFAULT_RESULT_LIMIT)
    try:
        blocks = yield from _blocks(given.value, bytes_max)
    except (
        KeyboardInterrupt,
        SystemExit,
        GeneratorExit,
    ) as error:
        if not is_raised_by_code(error):
            raise
        # The value's own methods have raised it; that is no reason to end the program.
        raise Unrecordable("$", f"cannot be read: it raised {type(error).__name__}") from error
    size, clean = 0, list[GivenContent]()
    for block in blocks:
        size += yield from _size(block)
    if bytes_max is not None and size > bytes_max:
        raise _too_large(f"{size:,}", bytes_max)
    for block in blocks:
        clean.append((yield from _redacted(block, redaction)))
    shown, whole = yield from limited(clean, given.limit)
    content, payloads = yield from spill_in_steps(shown)
    return content, {**whole, **payloads}


def _redacted(block: GivenContent, redaction: Redaction) -> Cooperative[GivenContent]:
    if not isinstance(block, TextBlock) or block.provider_data or redaction.has_fields:
        return redaction.value(block)
    text = yield from redaction.text_in_steps(block.text)
    return block if text is block.text else TextBlock(text=text)


def result_blocks(value: object) -> Sequence[GivenContent]:
    """Return a tool's value as blocks, however large; see `result_in_steps`."""
    return at_once(_blocks(value, None))


def _blocks(value: object, bytes_max: int | None) -> Cooperative[Sequence[GivenContent]]:
    if value is None:
        return ()
    if isinstance(value, TextBlock):
        value = value.text
    if isinstance(value, str):
        if bytes_max is not None and len(value) > bytes_max:  # Before anything walks through all of it.
            raise _too_large(f"at least {len(value):,}", bytes_max)
        text = yield from _clean_text(str.__str__(value))
        return (TextBlock(text=text),) if text else ()
    if isinstance(value, ImageBlock | DocumentBlock):
        return (checked_block(value),)
    if _are_blocks(value):
        found: list[GivenContent] = []
        for item in value:
            found += yield from _blocks(item, bytes_max)
        return found
    written = bytearray()
    yield from _write_json(value, written, bytes_max, "$", 0)
    text = yield from decoded_in_steps(written)
    return (TextBlock(text=text),)


def _clean_text(text: str) -> Cooperative[str]:
    """As `clean_text`, in steps; where there are halves of characters, in one."""
    for start in range(0, 0 if text.isascii() else len(text), PIECE):
        try:
            text[start : start + PIECE].encode()
        except UnicodeEncodeError:
            return clean_text(text)
        yield
    return text


def _write_json(value: object, written: bytearray, bytes_max: int | None, path: str, depth: int) -> Cooperative[None]:
    """Write the JSON of a value behind what is written; of a large array or object each item by itself."""
    if depth >= DEPTH_MAX or _is_small(value):
        written += msgspec.json.encode(clean_json(value, path, depth))
        _require_room(written, bytes_max)
        return
    is_object = isinstance(value, dict)
    items = cast("dict[object, object]", value).items() if is_object else enumerate(cast("list[object]", value))
    names: set[str] = set()
    written += b"{" if is_object else b"["
    for place, (key, item) in enumerate(items):
        written += b"," if place else b""
        if is_object:
            [name] = cast("JsonObject", clean_json({key: None}, path, depth))
            if name in names:
                raise Unrecordable(path, f"has two keys that both become {quoted(name)}; rename one")
            names.add(name)
            written += msgspec.json.encode(name) + b":"
        yield from _write_json(
            item, written, bytes_max, f"{path}.{key}" if is_object else f"{path}[{place}]", depth + 1
        )
        if not place % ITEMS_WRITTEN_PER_STEP:
            yield
    written += b"}" if is_object else b"]"
    _require_room(written, bytes_max)


def _is_small(value: object) -> bool:
    """Tell whether a value is written in one step: it is no plain array or object, or one of few values in all."""
    seen, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind in (dict, list, tuple):
            inner = cast("dict[object, object] | list[object]", each)
            seen += len(inner)
            if seen > ITEMS_PER_STEP:
                return False
            waiting.extend(inner.values() if isinstance(inner, dict) else inner)
    return True


def _require_room(written: bytearray, bytes_max: int | None) -> None:
    if bytes_max is not None and len(written) > bytes_max:
        raise _too_large(f"at least {len(written):,}", bytes_max)


def _too_large(size: str, bytes_max: int) -> Unrecordable:
    return Unrecordable("$", f"has {size} bytes; a result may have {bytes_max:,} (the runtime's `result_bytes_max`)")


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
    """Return the errors in a group, however deep, the first `ERRORS_TOLD_MAX` of them; another error by itself."""
    singles: list[BaseException] = []
    waiting = [error]
    while waiting and len(singles) < ERRORS_TOLD_MAX:
        first = waiting.pop()
        if isinstance(first, BaseExceptionGroup):
            waiting.extend(reversed(cast("BaseExceptionGroup[BaseException]", first).exceptions))
        else:
            singles.append(first)
    return singles


def passes(error: BaseException) -> bool:
    """Tell whether what comes out of user code is no failure of that: Ctrl-C, or the cancellation of this task."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt)


async def answer_of_user_code(what: str, function: Callable[..., object], *given: object) -> Any:
    """Return what a function of the application answers, plain or async; AgentLoopError says that `what` failed."""
    try:
        said = function(*given)
        return await said if inspect.isawaitable(said) else said
    except BaseException as error:  # The border to user code.
        if passes(error):
            raise
        raise AgentLoopError(f"{what} failed: {error_words(error)}") from error
