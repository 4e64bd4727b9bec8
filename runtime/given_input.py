"""What a user hands to a session, checked: inputs, idempotency keys and times."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from refold.actors.given_content import checked_block
from refold.events.cleaning import clean_text
from refold.events.content import ImageBlock, TextBlock, UserContent
from refold.events.errors import CommandRejected, ConfigError
from refold.events.ids import PayloadHash
from refold.events.payloads import spill

Input: TypeAlias = str | TextBlock | ImageBlock | Sequence[str | TextBlock | ImageBlock]
"""What can be sent: text, a block, or several of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

KEY_BYTES_MAX = 512
"""Longest idempotency key, in UTF-8 bytes."""


def input_content(content: Input) -> tuple[tuple[UserContent, ...], dict[PayloadHash, bytes]]:
    """Return what is recorded of an input, and the payloads of what is large in it.

    Raises:
        CommandRejected: it is empty, or not text or blocks.
    """
    return spill(input_blocks(content))


def input_blocks(content: Input) -> list[TextBlock | ImageBlock]:
    """Return the blocks of an input, checked and clean.

    Raises:
        CommandRejected: it is empty, or not text or blocks.
    """
    if isinstance(content, str | TextBlock | ImageBlock):
        parts: Sequence[object] = [content]
    elif isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
        parts = content
    else:
        raise CommandRejected(f"an input is text or blocks, not {type(content).__name__}")
    blocks: list[TextBlock | ImageBlock] = []
    for place, part in enumerate(parts):
        if isinstance(part, ImageBlock):
            blocks.append(checked_block(part, f"content[{place}]"))
        elif isinstance(part, str | TextBlock):
            text = part if isinstance(part, str) else checked_block(part, f"content[{place}]").text
            if text.strip():
                blocks.append(TextBlock(text=clean_text(str.__str__(text))))
        else:
            raise CommandRejected(f"an input is text or blocks, not {type(part).__name__}")
    if not blocks:
        raise CommandRejected("the input is empty; send some text")
    return blocks


def checked_key(key: str | None) -> str | None:
    """Return an idempotency key as it is recorded.

    Raises:
        CommandRejected: it is not text, empty, or too long.
    """
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(clean_text(key).encode()) > KEY_BYTES_MAX:
        raise CommandRejected(f"a key is text of 1 to {KEY_BYTES_MAX} UTF-8 bytes, not {key!r:.60}")
    return clean_text(key)


def checked_time(at: datetime) -> int:
    """Return a moment in microseconds since the epoch.

    Raises:
        ConfigError: it is none, or its time zone is not known.
    """
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise ConfigError(f"a time must be a datetime with a time zone, such as datetime.now(UTC), not {at!r:.80}")
    return (at - _EPOCH) // timedelta(microseconds=1)


def checked_name(name: str, what: str) -> str:
    """Return the id of a run or a call as it can be looked for.

    Raises:
        CommandRejected: it is not text.
    """
    if not isinstance(name, str):
        raise CommandRejected(f"{what} must be the id of a {what} as text, not {name!r:.80}")
    return clean_text(name[:KEY_BYTES_MAX])


def checked_flag(value: bool, what: str) -> bool:
    """Return a choice between yes and no.

    Raises:
        CommandRejected: it is neither.
    """
    if not isinstance(value, bool):
        raise CommandRejected(f"{what} must be True or False, not {value!r:.80}")
    return value
