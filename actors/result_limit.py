"""How much of a tool's result a model is shown: the rule for results that are too long for it.

The texts of a result may have `limit` UTF-8 bytes together. If they have more, each gets an equal share, and one that
is longer than its share is cut: the model sees the first two thirds of the share and the last third, whole characters
only, and between them a line that says how many bytes are left out and under which hash the log keeps the whole text.
So what was cut is text, whatever it was before; half a JSON value never looks like one. An image is never cut; one of
more than `IMAGE_BYTES_MAX` bytes is refused, and the model is told so.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from refold.events.cleaning import Unrecordable
from refold.events.content import ImageBlock, ResultContent, StoredBlock, TextBlock
from refold.events.ids import PayloadHash
from refold.events.payloads import INLINE_BYTES_MAX, kept_whole

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


def limited(
    blocks: Sequence[TextBlock | ImageBlock], limit: int | None
) -> tuple[list[ResultContent], dict[PayloadHash, bytes]]:
    """Return a result as a model is shown it, and the payloads that hold the whole of what was cut.

    Raises:
        Unrecordable: an image is too large, or a text too large to be kept at all.
    """
    if limit is None:
        return list(blocks), {}
    for place, block in enumerate(blocks):
        if isinstance(block, ImageBlock) and len(block.data) > IMAGE_BYTES_MAX:
            raise Unrecordable(
                f"$[{place}]", f"is an image of {len(block.data):,} bytes; {IMAGE_BYTES_MAX:,} are accepted"
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
