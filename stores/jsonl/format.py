"""The lines of a text log: `refold export` writes them, `refold import` makes a log of them.

    {"line":"refold.log","format":1}
    {"line":"payload","hash":"9f86…","text":"You are brief."}
    {"line":"batch","position":1,"stream":"session/alice","version":1,"at":1780000000000000,"events":[{…}],"chain":"…"}

The first line is the header. A batch is one line, a payload is one line. Early versions of Refold wrote text logs
while they ran; there an append is all lines up to one without `more`. Lines are UTF-8, end with one LF, and nothing in
them is lost: an event that is a JSON object on one line stands there byte for byte, any other text of an event is a
JSON string; a payload is a text or, where it is no text, base64. An export says so in its header, and ends in a line
that counts and digests all lines before it, so that one that was cut short is found. Read `refold.events.core.records`
for what the fields of a batch mean.
"""

import base64
import binascii
import re
from typing import Final, Literal

import msgspec

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import EventRef, PayloadHash, StreamName
from refold.events.core.records import EncodedBatch, Snapshot
from refold.stores.append_rules import BYTES_MAX, POSITION_MAX
from refold.stores.event_store import Tombstone

FORMAT: Final = 1
"""The `format` of the header: raised when lines get another meaning."""

LINE_BYTES_MAX: Final = 2 * BYTES_MAX
"""Longest line, its line end included; the largest payload in base64 fits."""

LOG_IN_BUNDLE: Final = "log.jsonl"
"""Name of the text log in the archive of a bundle."""

NESTING_MAX: Final = 64
"""An event that is nested deeper is written as a string, so that no reader of the lines meets deep nesting."""

_CONTROLS: Final = re.compile(rb"[\x00-\x1f]")
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')


class _Line(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="line"
):
    """What all lines have: the member `line`, which says what the line is."""


class HeaderLine(_Line, frozen=True, kw_only=True, tag="refold.log"):
    """The first line."""

    format: int
    export: bool = False
    """Whether the log was written as a whole, so that an `EndLine` must follow."""
    partial: bool = False
    """Whether streams were left out."""
    removed_position: int = 0
    """Highest position that was ever removed, so that none is used twice."""


class BatchLine(_Line, frozen=True, kw_only=True, tag="batch"):
    """A batch; `position` and `version` are its first event's, the others follow without a gap."""

    position: int
    stream: StreamName
    version: int
    at: int
    correlation: EventRef | None = None
    causation: EventRef | None = None
    pending: tuple[str, ...] = ()
    events: tuple[msgspec.Raw, ...]
    # After the events, so that the end of a line tells which line it is.
    chain: str
    more: bool = False

    def batch(self) -> EncodedBatch:
        return EncodedBatch(
            stream=self.stream,
            expected_version=self.version - 1,
            at=self.at,
            events=tuple(map(event_of, self.events)),
            pending=self.pending,
            correlation=self.correlation,
            causation=self.causation,
        )


class PayloadLine(_Line, frozen=True, kw_only=True, tag="payload"):
    """A payload, as a text or in base64."""

    hash: PayloadHash
    text: str | None = None
    base64: str | None = None
    more: bool = False

    def payload(self) -> bytes:
        if self.text is not None and self.base64 is None:
            return self.text.encode()
        if self.base64 is not None and self.text is None:
            return _from_base64(self.base64)
        raise ValueError("a payload has either `text` or `base64`")


class SnapshotLine(_Line, frozen=True, kw_only=True, tag="snapshot"):
    """A snapshot of a stream, in place of earlier ones: a cache, which no export holds."""

    stream: StreamName
    version: int
    chain: str
    """In base64."""
    fold_version: int
    state: str
    """In base64."""

    def snapshot(self) -> Snapshot:
        return Snapshot(
            stream=self.stream,
            version=self.version,
            chain=_from_base64(self.chain),
            fold_version=self.fold_version,
            state=_from_base64(self.state),
        )


class TombstoneLine(_Line, frozen=True, kw_only=True, tag="tombstone"):
    """What the end of a deleted stream was."""

    position: int
    stream: StreamName
    version: int
    chain: str
    at: int

    def tombstone(self) -> Tombstone:
        return Tombstone(
            position=self.position, stream=self.stream, version=self.version, chain=digest_of(self.chain), at=self.at
        )


class EndLine(_Line, frozen=True, kw_only=True, tag="end"):
    """The end of an export."""

    batches: int
    events: int
    payloads: int
    sha256: str
    """Of all bytes before this line."""


Line = HeaderLine | BatchLine | PayloadLine | SnapshotLine | TombstoneLine | EndLine


class _AnyHeader(msgspec.Struct):
    """What headers of all formats have."""

    line: Literal["refold.log"]
    format: int


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_header_decoder = msgspec.json.Decoder(_AnyHeader)
_text_decoder = msgspec.json.Decoder(str)
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)


def encoded(line: Line) -> bytes:
    return _encoder.encode(line) + b"\n"


def decoded(data: bytes) -> Line:
    if not data.endswith(b"\n"):
        raise ValueError("it is not complete: the file was cut short")
    if len(data) > LINE_BYTES_MAX:
        raise ValueError(f"it has more than {LINE_BYTES_MAX:,} bytes")
    if not data.isascii():
        data.decode()
    try:
        return _decoder.decode(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def decoded_header(data: bytes, name: str) -> HeaderLine:
    if data.startswith(b"\xef\xbb\xbf"):
        raise LogFormatError(f"{name}, line 1: it begins with a byte order mark; save the file without one")
    try:
        found = _header_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LogFormatError(
            f"{name}, line 1: it is no header of a Refold log in JSON Lines ({error}); name another file"
        ) from None
    if found.format > FORMAT:
        raise LogFormatError(
            f"{name}, line 1: the log has format {found.format}, and this Refold reads up to {FORMAT}; "
            "install a newer one"
        )
    try:
        header = decoded(data)
    except ValueError as error:
        raise LogFormatError(f"{name}, line 1: the header is damaged: {error}") from None
    assert isinstance(header, HeaderLine)  # The tag was looked at above.
    if header.format < 1 or not 0 <= header.removed_position <= POSITION_MAX:
        raise LogFormatError(f"{name}, line 1: the header is damaged: a number in it cannot be")
    return header


def batch_line(batch: EncodedBatch, position: int, chain: bytes) -> bytes:
    """Return the line of a batch whose first event has `position`."""
    return encoded(
        BatchLine(
            position=position,
            stream=batch.stream,
            version=batch.expected_version + 1,
            at=batch.at,
            correlation=batch.correlation,
            causation=batch.causation,
            pending=batch.pending,
            events=tuple(map(_written, batch.events)),
            chain=chain.hex(),
        )
    )


def payload_line(payload_hash: PayloadHash, payload: bytes) -> bytes:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None:
        line = encoded(PayloadLine(hash=payload_hash, text=text))
        if len(line) <= len(payload) * 4 // 3 + 256:
            return line
    return encoded(PayloadLine(hash=payload_hash, base64=_to_base64(payload)))


def tombstone_line(tombstone: Tombstone) -> bytes:
    return encoded(
        TombstoneLine(
            position=tombstone.position,
            stream=tombstone.stream,
            version=tombstone.version,
            chain=tombstone.chain.hex(),
            at=tombstone.at,
        )
    )


def digest_of(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != 32 or digest.hex() != text:
        raise ValueError(f"{text[:80]!r} is no digest of 32 bytes in lower-case hexadecimal")
    return digest


def event_of(written: msgspec.Raw) -> bytes:
    data = bytes(written)
    if data[:1] == b"{":
        return data
    if data[:1] == b'"':
        try:
            return _text_decoder.decode(data).encode()
        except msgspec.MsgspecError as error:
            raise ValueError(f"an event is no valid string: {error}") from None
    raise ValueError(f"an event is {data[:20]!r}, neither an object nor a string")


def _written(event: bytes) -> msgspec.Raw:
    """Return how an event is written: unchanged if that is one JSON object on one line, else as a string."""
    if event[:1] == b"{" and event[-1:] == b"}" and _CONTROLS.search(event) is None and _nesting(event) <= NESTING_MAX:
        try:
            return _raw_decoder.decode(event)
        except msgspec.DecodeError:
            return msgspec.Raw(_encoder.encode(event.decode()))
    return msgspec.Raw(_encoder.encode(event.decode()))


def _nesting(event: bytes) -> int:
    """Return an upper bound of how deep a JSON text is nested, exact beyond `NESTING_MAX`."""
    brackets = event.count(b"{") + event.count(b"[")
    if brackets <= NESTING_MAX:
        return brackets
    depth = deepest = 0
    for byte in _STRINGS.sub(b"", event):
        if byte in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"}]":
            depth -= 1
    return deepest


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"a base64 text is damaged: {error}") from None
