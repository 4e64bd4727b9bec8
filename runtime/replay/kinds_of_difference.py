"""What a replay has found, put together for people: one entry for each kind of difference, and what was changed.

A changed prompt makes every request of every session another one, and is one thing to be told.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from refold.events.core.content import Json
from refold.events.core.difference import NOTHING, Difference, differences, json_of
from refold.events.core.ids import event_ref
from refold.events.model.configuration import AgentConfiguration, ToolSpec
from refold.replay.core_replay import Differs, Divergence
from refold.replay.meant import general_path

KINDS_MAX = 1_000
"""So many kinds of differences, and of changes, are told apart; more are not told."""

NOT_SETTINGS = frozenset({"agent", "code", "fingerprint", "system_prompt", "tool_schemas", "tools", "builds_requests"})
"""Fields of a configuration that are compared as what they stand for, or follow from others."""


class KindOfDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Differences at the same path, in however many streams."""

    differs: Differs
    path: str
    """Without places in arrays."""
    streams: int
    """That differ there."""
    first: str
    """The first place, such as `session/alice@12`."""
    said: str
    """The first difference in words."""


class ConfigurationChange(msgspec.Struct, frozen=True, kw_only=True):
    """What of an agent's configuration is another one today. Its text is `max_turns: 10 -> 1`."""

    agent: str
    path: str
    """Such as `prompt`, `max_turns`, `tools.search_docs.description`."""
    left: Json = NOTHING
    """As it was recorded first."""
    right: Json = NOTHING
    """Today's."""
    sessions: int
    """That were recorded with another value than today's."""
    first: str
    """The first place, such as `session/alice@2`."""

    def __str__(self) -> str:
        kind, _, name = self.path.partition(".")
        if kind == "tools" and "." not in name and (self.left is NOTHING or self.right is NOTHING):
            return f"tool {name} is {'new' if self.left is NOTHING else 'gone'}"
        return str(Difference(path=self.path, left=self.left, right=self.right))


class DifferenceKinds:
    """Counts the streams that differ, by kind of difference."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[Differs, str], tuple[int, Divergence]] = {}

    def add(self, divergence: Divergence) -> None:
        """Count a divergence; of each kind there is one in a stream."""
        self._count((divergence.differs, general_path(divergence.difference.path)), 1, divergence)

    def merge(self, later: "DifferenceKinds") -> None:
        """Add what another one counted after this one."""
        for key, (streams, first) in later._kinds.items():
            self._count(key, streams, first)

    def _count(self, key: tuple[Differs, str], more: int, divergence: Divergence) -> None:
        streams, first = self._kinds.get(key, (0, divergence))
        if streams or len(self._kinds) < KINDS_MAX:
            self._kinds[key] = (streams + more, min(first, divergence, key=lambda each: each.position))

    def report(self) -> tuple[KindOfDifference, ...]:
        """Return what was counted, in the order in which it first happened."""
        return tuple(
            KindOfDifference(
                differs=differs,
                path=path,
                streams=streams,
                first=event_ref(first.stream, first.version),
                said=str(first.difference),
            )
            for (differs, path), (streams, first) in sorted(
                self._kinds.items(), key=lambda item: (item[1][1].position, item[0][1])
            )
        )


class ConfigurationChanges:
    """Counts the sessions that were recorded with another configuration than today's."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, str], ConfigurationChange] = {}

    def add(self, agent: str, place: str, found: Sequence[Difference], known: set[str]) -> None:
        """Count what differs in a configuration of a session.

        Args:
            agent: whose configuration it is.
            place: where it is recorded.
            found: how today's differs from it.
            known: paths that were counted for the session; is added to.
        """
        for each in found:
            if each.path not in known:
                known.add(each.path)
                self._count(
                    ConfigurationChange(
                        agent=agent, path=each.path, left=each.left, right=each.right, sessions=1, first=place
                    )
                )

    def merge(self, later: "ConfigurationChanges") -> None:
        """Add what another one counted after this one."""
        for change in later._changes.values():
            self._count(change)

    def _count(self, change: ConfigurationChange) -> None:
        key = (change.agent, change.path)
        before = self._changes.get(key)
        if before is not None:
            self._changes[key] = msgspec.structs.replace(before, sessions=before.sessions + change.sessions)
        elif len(self._changes) < KINDS_MAX:
            self._changes[key] = change

    def report(self) -> tuple[ConfigurationChange, ...]:
        """Return what was counted, in the order in which it was found."""
        return tuple(self._changes.values())


Configured: TypeAlias = tuple[AgentConfiguration, str, Sequence[ToolSpec]]
"""A configuration, with its prompt and its tools."""


def changed_configuration(recorded: Configured, now: Configured) -> list[Difference]:
    """Return all differences of two configurations; tools are compared by name."""
    (left, prompt, tools), (right, prompt_now, tools_now) = recorded, now
    found = list(differences(prompt, prompt_now, "prompt"))
    mine, other = ({tool.name: json_of(tool) for tool in each} for each in (tools, tools_now))
    for name in [*mine, *(name for name in other if name not in mine)]:
        if name in mine and name in other:
            found += differences(mine[name], other[name], f"tools.{name}")
        else:
            found.append(Difference(path=f"tools.{name}", left=mine.get(name, NOTHING), right=other.get(name, NOTHING)))
    for field in left.__struct_fields__:
        if field not in NOT_SETTINGS:
            found += differences(json_of(getattr(left, field)), json_of(getattr(right, field)), field)
    return found
