"""Parts of memories: a user's, a session's, or that of a scope of the application's own, each a stream of its own.

The memory `main` is the stream `memory/main`, which is the agent's, and the part of it that belongs to the user alice
is `memory/main/user/alice`. The rule: what a memory is named never looks like a part, so that no user and no session
can be named so that it is taken for another one.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, cast

import msgspec

from refold.events.core.errors import ConfigError
from refold.events.core.ids import IDENTIFIER_BYTES_MAX, checked_identifier

MEMORY_KIND: Final = "memory"
KNOWLEDGE_KIND: Final = "knowledge"
WORKING_KIND: Final = "working"
GRAPH_KIND: Final = "graph"
"""Kinds of the streams of memories."""

PartKind: TypeAlias = Literal["user", "session", "scope"]
"""Whose a part is: a user's, a session's, or that of a scope that a function of the application named."""

_PART: Final = re.compile(r"/(user|session|scope)(-sha256)?/")


class MemoryPart(msgspec.Struct, frozen=True):
    """A part of a memory, as the name of its stream tells it."""

    memory: str
    """The name of the memory."""
    kind: PartKind
    owner: str
    """The user, the session or the scope; where `hashed`, the SHA-256 of that, since it is too long for a name."""
    hashed: bool = False


def part_name(memory: str, kind: PartKind, owner: str) -> str:
    """Return the identifier of a part's stream."""
    checked_identifier(owner, kind)
    name = f"{memory}/{kind}/{owner}"
    if len(name.encode()) > IDENTIFIER_BYTES_MAX:
        name = f"{memory}/{kind}-sha256/{_digest(owner)}"
    return checked_identifier(name, f"name of a {kind}'s part of a memory")


def names_of(owners: Iterable[str]) -> frozenset[tuple[bool, str]]:
    """Return how parts name owners: whether by a digest, and the name."""
    return frozenset(named for owner in owners for named in ((False, owner), (True, _digest(owner))))


def part_in(identifier: str) -> MemoryPart | None:
    """Return the part whose stream has an identifier; None = it is no part, but all of something."""
    found = _PART.search(identifier)
    if found is None:
        return None
    kind = cast("PartKind", found[1])
    return MemoryPart(identifier[: found.start()], kind, identifier[found.end() :], found[2] is not None)


def require_whole(name: str) -> None:
    if (found := _PART.search(f"{name}/")) is not None:
        raise ConfigError(f"the name of a memory cannot hold {found[0]!r}, which {name!r} does; it names parts of one")


def _digest(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()
