"""Distinct identifier types, and the names of streams.

Every identifier is a string at run time, so it costs nothing and reads plainly in a log; to a type
checker a `SessionId` is not a `RunId`. Identifiers that Refold makes up derive from a stream and a version
(`run_12`, `call_14_0`), so the same stimuli always give the same identifiers.
"""

from typing import NewType

from refold.events.core.errors import ConfigError

SessionId = NewType("SessionId", str)
"""The caller's name for a session, any text of 1 to 512 UTF-8 bytes without NUL or lone surrogates."""

AgentId = NewType("AgentId", str)
"""The name of an agent; part of the address of its model actor."""

RunId = NewType("RunId", str)
"""One run inside a session: `run_<version of its InputQueued>`; unique within its session."""

ToolCallId = NewType("ToolCallId", str)
"""One tool call inside a session: `call_<version of the answer>_<index in it>`; unique within its session."""

MemoryId = NewType("MemoryId", str)
"""One remembered item inside a memory store."""

StreamName = NewType("StreamName", str)
"""`"<kind>/<id>"`; the kind is what stands before the first slash, the id may hold any characters."""

EventRef = NewType("EventRef", str)
"""`"<stream>@<version>"`: one event, named in a way that survives export and import."""

PayloadHash = NewType("PayloadHash", str)
"""Lower-case hexadecimal SHA-256 of a payload's bytes; where those bytes are stored once."""


IDENTIFIER_BYTES_MAX = 512
"""Longest accepted identifier, in UTF-8 bytes."""


def checked_identifier(value: object, what: str) -> str:
    """Return `value` unchanged if it can name something, else raise ConfigError, which calls it `what`.

    Neither SQLite nor JSON can carry NUL and lone surrogates.
    """
    if not isinstance(value, str):
        raise ConfigError(f"a {what} must be a string, not {type(value).__name__}")
    if not value:
        raise ConfigError(f"a {what} must not be empty")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise ConfigError(f"the {what} {value[:40]!a} holds a lone surrogate; use valid Unicode text") from None
    if size > IDENTIFIER_BYTES_MAX:
        raise ConfigError(f"the {what} {value[:40]!r}… has {size:,} UTF-8 bytes; the limit is {IDENTIFIER_BYTES_MAX}")
    if "\0" in value:
        raise ConfigError(f"the {what} {value[:40]!r} holds a NUL character; use text without it")
    return value


def stream_name(kind: str, identifier: str) -> StreamName:
    """Return the stream of one actor: `stream_name("session", "alice")` is `"session/alice"`."""
    return StreamName(f"{kind}/{identifier}")


def kind_and_identifier(stream: str) -> tuple[str, str]:
    """Split a stream name at its first slash."""
    kind, slash, identifier = stream.partition("/")
    if not (kind and slash and identifier):
        raise ConfigError(f'{stream!r} is not a stream name; write "<kind>/<id>", such as "session/alice"')
    return kind, identifier
