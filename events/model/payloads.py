"""Large content, kept once by its hash beside the events.

A block whose JSON is larger than `INLINE_BYTES_MAX` is replaced by a `StoredBlock` before it enters an event, and its
JSON becomes a payload. Who needs the content reads the payload and restores the block; the history that a model
is shown always holds restored blocks.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import chain
from typing import Final, Literal, TypeAlias, TypeVar, cast

import msgspec

from refold.events.core.cleaning import Unrecordable
from refold.events.core.codec import EventCodec
from refold.events.core.content import (
    Block,
    DocumentBlock,
    ImageBlock,
    JsonObject,
    Message,
    ProviderBlock,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    is_json_array,
    is_json_object,
)
from refold.events.core.errors import LogFormatError
from refold.events.core.event import Event
from refold.events.core.ids import PayloadHash
from refold.events.model.configuration import AgentConfiguration, RunOptions, payload_hash
from refold.events.model.cooperative import Cooperative, at_once
from refold.events.model.messages import Prepared, RequestReference
from refold.events.secrets.redaction import Redaction

INLINE_BYTES_MAX = 64 * 1024
"""Largest JSON of a block that stays in its event."""

PAYLOAD_BYTES_MAX = 256 * 1024 * 1024
"""Largest JSON of a block at all; no store has to take more."""

PIECE: Final = 3 * 32 * 1024
"""Characters or bytes of a large block that are encoded in one step; a number that base64 needs no padding for."""

_PLACE: Final = "refoldrefoldrefoldrefold"
"""Stands for what is large in a block while the rest of it is encoded; base64 of some bytes, too."""

B = TypeVar("B", bound=Block)
C = TypeVar("C")
E = TypeVar("E", bound=Event)

Storable: TypeAlias = TextBlock | ImageBlock | DocumentBlock | ThinkingBlock | ProviderBlock
"""A block that a `StoredBlock` may stand for."""

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Storable] = msgspec.json.Decoder(
    TextBlock | ImageBlock | DocumentBlock | ThinkingBlock | ProviderBlock
)


def spill(content: Sequence[B]) -> tuple[tuple[B | StoredBlock, ...], dict[PayloadHash, bytes]]:
    """Return `content` with its large blocks replaced, and the payloads that hold them."""
    return at_once(spill_in_steps(content)) if any(map(may_be_large, content)) else (tuple(content), {})


def spill_in_steps(
    content: Sequence[B],
) -> Cooperative[tuple[tuple[B | StoredBlock, ...], dict[PayloadHash, bytes]]]:
    """As `spill`, in steps of some milliseconds."""
    kept: list[B | StoredBlock] = []
    payloads: dict[PayloadHash, bytes] = {}
    for block in content:
        if may_be_large(block) and isinstance(block, Storable):
            stored, data = yield from kept_whole(block)
            if len(data) > INLINE_BYTES_MAX:
                payloads[stored.hash] = data
                kept.append(stored)
                continue
        kept.append(block)
    return tuple(kept), payloads


def kept_whole(block: Storable) -> Cooperative[tuple[StoredBlock, bytes]]:
    """Return what stands for a block, however small it is, and the payload that holds it; in steps."""
    digest = hashlib.sha256()
    whole = BytesIO()  # It gives away its own bytes; to join pieces would copy all of them in one step.
    for piece in _json_of(block):
        digest.update(piece)
        if whole.tell():
            yield
        whole.write(piece)
        if whole.tell() > PAYLOAD_BYTES_MAX:
            raise Unrecordable("$", f"has more bytes as JSON than the {PAYLOAD_BYTES_MAX:,} that are accepted")
    name = PayloadHash(digest.hexdigest())
    return StoredBlock(hash=name, bytes=whole.tell(), holds=_kind_of(block)), whole.getvalue()


def _json_of(block: Storable) -> Iterable[bytes]:
    """Return the JSON of a block, which decodes to an equal one; of a large one in pieces."""
    short: Storable = block
    pieces: Iterable[bytes] = ()
    match block:
        case TextBlock(text=text) if len(text) > PIECE:
            short = msgspec.structs.replace(block, text=_PLACE)
            pieces = (_text_json(text[start : start + PIECE]) for start in range(0, len(text), PIECE))
        case ImageBlock(data=data) | DocumentBlock(data=data) if len(data) > PIECE:
            short = msgspec.structs.replace(block, data=base64.b64decode(_PLACE))
            pieces = (base64.b64encode(data[start : start + PIECE]) for start in range(0, len(data), PIECE))
        case _:
            pass
    around = _readable(short).split(_PLACE.encode())
    large = short is not block and len(around) == 2  # Else the place stands elsewhere in the block, too.
    return chain(around[:1], pieces, around[1:]) if large else (_readable(block),)


def _text_json(text: str) -> bytes:
    try:
        return _encode(text)[1:-1]
    except UnicodeError as error:
        raise Unrecordable("$", f"is a text that cannot be recorded: {error!s:.200}") from None


def _readable(block: Storable) -> bytes:
    try:
        data = _encode(block)
        if _decoder.decode(data) == block:
            return data
    except (msgspec.MsgspecError, UnicodeError, TypeError) as error:
        raise Unrecordable("$", f"is a {_kind_of(block)} block that cannot be recorded: {error!s:.200}") from None
    raise Unrecordable("$", f"is a {_kind_of(block)} block that would be read back as another one")


def _kind_of(block: Storable) -> Literal["text", "image", "thinking", "provider", "document"]:
    match block:
        case TextBlock():
            return "text"
        case ImageBlock():
            return "image"
        case DocumentBlock():
            return "document"
        case ThinkingBlock():
            return "thinking"
        case ProviderBlock():
            return "provider"


def may_be_large(block: object) -> bool:
    """Return whether a payload may have to hold a block."""
    extra: JsonObject | None = None
    match block:
        case TextBlock(text=body, provider_data=extra) | ThinkingBlock(thinking=body, provider_data=extra):
            pass
        case ImageBlock(data=body, provider_data=extra) | DocumentBlock(data=body, provider_data=extra):
            pass
        case ProviderBlock(data=extra):
            body = ""
        case _:
            return False
    return bool(extra) or len(body) * 6 > INLINE_BYTES_MAX  # No character takes more than six bytes of JSON.


def restore(stored: StoredBlock, payloads: Mapping[PayloadHash, bytes]) -> Storable:
    """Return the block that `stored` stands for; of one too long for a model, what is shown in its place."""
    if stored.shown:
        return TextBlock(text=stored.shown)
    return whole_block(stored.hash, payloads)


class PayloadRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where in a payload of vectors one of them lies: each is a row of float32, little-endian, of the same length."""

    payload: PayloadHash
    row: int
    """From 0."""
    numbers: int
    """Of each row."""


def whole_block(name: PayloadHash, payloads: Mapping[PayloadHash, bytes]) -> Storable:
    data = payloads.get(name)
    if data is None:
        raise LogFormatError(f"payload {name} is missing from the log")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LogFormatError(f"payload {name} is damaged: {error}") from None


def stored_hashes(messages: Iterable[Message]) -> list[PayloadHash]:
    """Return the payloads that are needed to show `messages` to a model, in order, each once."""
    stored = [block for message in messages for block in _stored_blocks(message.content)]
    return list(dict.fromkeys([block.hash for block in stored if not block.shown]))


def _stored_blocks(content: object) -> Sequence[StoredBlock]:
    if not isinstance(content, tuple | list):  # Events of other kinds may have something else under that name.
        return ()
    found: list[StoredBlock] = []
    for block in cast("Sequence[object]", content):
        if type(block) is StoredBlock:
            found.append(block)
        elif isinstance(block, ToolResultBlock):
            found += _stored_blocks(block.content)
    return found


def restored(message: Message, payloads: Mapping[PayloadHash, bytes]) -> Message:
    return all_restored([message], payloads)[0]


def all_restored(
    messages: Sequence[Message],
    payloads: Mapping[PayloadHash, bytes],
    whole: dict[StoredBlock, Storable] | None = None,
) -> list[Message]:
    """Restore many messages. What they say often is decoded once: a short log must not become a huge history.

    `whole` has what was restored of the messages before, and gets what is restored of these.
    """
    whole = {} if whole is None else whole
    for message in messages:
        for block in _stored_blocks(message.content):
            if block not in whole:
                whole[block] = restore(block, payloads)
    return [_restored(message, whole) for message in messages]


def _restored(message: Message, whole: Mapping[StoredBlock, Storable]) -> Message:
    if not whole or not _stored_blocks(message.content):
        return message
    return Message(message.role, tuple(_restored_block(block, whole) for block in message.content))


def _restored_block(block: Block, whole: Mapping[StoredBlock, Storable]) -> Block:
    if isinstance(block, StoredBlock):
        return whole[block]
    content = getattr(block, "content", None)
    if not content:
        return block
    return msgspec.structs.replace(block, content=tuple(_restored_block(item, whole) for item in content))


def _messages(value: object) -> Iterable[Message]:
    if not isinstance(value, tuple | list):
        return ()
    return (item for item in cast("Iterable[object]", value) if isinstance(item, Message))


def referenced_payloads(event: Event) -> list[PayloadHash]:
    """Return the payloads that an event cannot be understood without, in order, each once."""
    found: list[PayloadHash] = []
    configuration = getattr(event, "configuration", None)
    if isinstance(configuration, AgentConfiguration):
        found += [configuration.system_prompt, configuration.tool_schemas]
    options = getattr(event, "options", None)
    if isinstance(options, RunOptions) and options.system_prompt is not None:
        found.append(options.system_prompt)
    found += [block.hash for block in _stored_blocks(getattr(event, "content", ()))]
    found += [block.hash for block in _stored_blocks(getattr(event, "results", None))]
    reference = getattr(event, "request", None)
    if isinstance(reference, RequestReference) and reference.prepared_payload is not None:
        found.append(reference.prepared_payload)
    found += [block.hash for block in _stored_blocks(getattr(event, "original", None))]
    if isinstance(place := getattr(event, "vector", None), PayloadRow):
        found.append(place.payload)
    for messages in (getattr(event, "messages", None), getattr(event, "summary", None)):
        found += [block.hash for message in _messages(messages) for block in _stored_blocks(message.content)]
    return list(dict.fromkeys(found))


def recordable(redaction: Redaction, codec: EventCodec[E], event: E) -> tuple[E, bytes]:
    """Return an event without what must not be recorded, and its JSON."""
    cleaned = redaction.value(event) if redaction.has_rules else event
    data = codec.encode(cleaned)
    if redaction.finds(data):
        cleaned = redaction.value(cleaned)
        data = codec.encode(cleaned)
        if redaction.finds(data):
            raise Unrecordable("$", f"({type(event).__name__}) holds a secret where it cannot be redacted")
    return cleaned, data


def without_secrets(
    redaction: Redaction, commands: Sequence[C], payloads: Mapping[PayloadHash, bytes]
) -> Cooperative[tuple[Sequence[C], Mapping[PayloadHash, bytes]]]:
    """Return payloads without what must not be recorded, and the commands referring to those that are others now.

    In steps, apart from what patterns and field paths look at.
    """
    if not redaction or not payloads:
        return commands, payloads
    kept: dict[PayloadHash, bytes] = {}
    renamed: dict[str, tuple[PayloadHash, int]] = {}
    for name, data in payloads.items():
        cleaned = yield from cleaned_payload(redaction, data)
        kept[payload_hash(cleaned) if cleaned is not data else name] = cleaned
        if cleaned is not data:
            renamed[name] = payload_hash(cleaned), len(cleaned)
    if not renamed:
        return commands, payloads
    return [cast("C", referring(command, renamed)) for command in commands], kept


def cleaned_payload(redaction: Redaction, data: bytes) -> Cooperative[bytes]:
    """Return a payload without what must not be recorded: each text of it where it is JSON. In steps, as above."""
    if not redaction.has_rules and not (yield from redaction.finds_in_steps(data)):
        return data
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return redaction.data(data)
    if not is_json_object(value) and not is_json_array(value):  # A prompt may be a number, which is no JSON.
        return redaction.data(data)
    kind = Storable if is_json_object(value) and "type" in value else Prepared
    try:
        typed: object = msgspec.convert(value, type=kind)
    except msgspec.MsgspecError:
        typed = value
    plain: object = typed if _encode(typed) == data else value
    cleaned: object = redaction.value(plain)
    return data if cleaned is plain else _encode(cleaned)


def referring(value: object, renamed: Mapping[str, tuple[PayloadHash, int]]) -> object:
    """Return a part of a command or an event with other names of payloads, and their sizes."""
    if isinstance(value, str):
        return renamed[value][0] if value in renamed else value
    if isinstance(value, tuple):
        return tuple(referring(item, renamed) for item in cast("tuple[object, ...]", value))
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    changed = {name: new for name, old in fields.items() if (new := referring(old, renamed)) is not old}
    if isinstance(value, StoredBlock) and value.hash in renamed:
        changed["bytes"] = renamed[value.hash][1]
    return msgspec.structs.replace(value, **changed) if changed else value
