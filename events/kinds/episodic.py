"""The four functions of an episodic memory: what happened to agents, how much it matters, and how often it came back.

Read `refold.events.core.pure_core` first. The rules: an agent that has more episodes than the capacity loses the least
important, of several the oldest; a new one that matters less than all the others goes at once, so what is kept does not
depend on the order in which it came. Importance counts here as it was given: what is left of it after a time
(`refold.events.kinds.memory_policies`) decides what is recalled, not what is kept, so that no clock decides it.
"""

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import AgentMemoryError, quoted
from refold.events.core.ids import MemoryId
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.kinds.indexing import RecentChanges
from refold.events.model.configuration import FOLD_VERSION

EVICTED_PER_EVENT = 1_000
"""Most episodes that one event names."""


class AddEpisode(KeyedCommand, frozen=True, kw_only=True):
    """Remember what happened."""

    agent: str
    content: str
    importance: float
    """From 0 to 1, both included."""
    tags: tuple[str, ...] = ()


class NoteRecalled(KeyedCommand, frozen=True, kw_only=True):
    """Count a recall of episodes; those that are gone are left out."""

    episodes: tuple[MemoryId, ...]


class ClearEpisodes(KeyedCommand, frozen=True, kw_only=True):
    """Forget all episodes of an agent."""

    agent: str | None = None
    """None = of every agent."""


class ChangeCapacity(KeyedCommand, frozen=True, kw_only=True):
    """Bound the episodes of each agent."""

    capacity: int | None
    """At least 1; None = there is no bound."""


EpisodicCommand = AddEpisode | NoteRecalled | ClearEpisodes | ChangeCapacity


class EpisodeAdded(KeyedEvent, frozen=True, kw_only=True, tag="memory.episode_added.v1"):
    """Something happened that is worth remembering."""

    agent: str
    id: MemoryId
    content: str
    importance: float
    """As it was given, 0 to 1."""
    tags: tuple[str, ...] = ()


class EpisodesEvicted(KeyedEvent, frozen=True, kw_only=True, tag="memory.episodes_evicted.v1"):
    """An agent had too many episodes, and lost its least important ones."""

    episodes: tuple[MemoryId, ...]


class EpisodesRecalled(KeyedEvent, frozen=True, kw_only=True, tag="memory.episodes_recalled.v1"):
    """Episodes came back to mind."""

    episodes: tuple[MemoryId, ...]


class EpisodesCleared(KeyedEvent, frozen=True, kw_only=True, tag="memory.episodes_cleared.v1"):
    """All episodes of an agent were forgotten."""

    agent: str | None = None
    """None = of every agent."""


class CapacityChanged(KeyedEvent, frozen=True, kw_only=True, tag="memory.capacity_changed.v1"):
    """The bound of each agent's episodes is another one now."""

    capacity: int | None = None
    """None = there is no bound."""


EpisodicEvent = EpisodeAdded | EpisodesEvicted | EpisodesRecalled | EpisodesCleared | CapacityChanged


class Episode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One episode, as the events say it."""

    id: MemoryId
    agent: str
    content: str
    importance: float
    """As it was given."""
    tags: tuple[str, ...]
    number: int
    """Version of its `EpisodeAdded`: the order of insertion."""
    at: int
    """When it was added, microseconds since the epoch, UTC."""
    recalls: int = 0
    recalled_at: int = 0
    """When it was last recalled; 0 = never."""


class AgentEpisodes(msgspec.Struct, kw_only=True):
    """What belongs to one agent."""

    ids: dict[MemoryId, None] = msgspec.field(default_factory=dict[MemoryId, None])
    """In order of insertion."""
    least: list[tuple[float, int, MemoryId]] = []
    """A heap of importance, number and id; the first is there, and others may be gone."""
    changes: RecentChanges[MemoryId] = msgspec.field(default_factory=RecentChanges[MemoryId])


class Episodes(State):
    """What an episodic memory's events add up to."""

    episodes: dict[MemoryId, Episode] = msgspec.field(default_factory=dict[MemoryId, Episode])
    """In order of insertion."""
    agents: dict[str, AgentEpisodes] = msgspec.field(default_factory=dict[str, AgentEpisodes])
    """Those that have episodes."""
    capacity: int | None = None


def memory_id(key: str | None, version: int) -> MemoryId:
    """Return the id of an episode: made of its command's key, which is known before, or else of its event's version."""
    if key is None:
        return MemoryId(f"episode-{version}")
    return MemoryId(f"episode-{hashlib.sha256(key.encode()).hexdigest()[:20]}")


def check_episode(command: AddEpisode) -> None:
    if not (isinstance(command.agent, str) and command.agent):
        raise AgentMemoryError(f"an episode needs the name of an agent, not {quoted(command.agent)}")
    if not (isinstance(command.content, str) and command.content):
        raise AgentMemoryError(f"an episode of {quoted(command.agent)} needs a text, not {quoted(command.content)}")
    if not (isinstance(command.importance, int | float) and 0 <= command.importance <= 1):
        raise AgentMemoryError(
            f"the importance of an episode of {quoted(command.agent)} must be a number from 0 to 1, not "
            f"{quoted(command.importance)}"
        )
    check_tags(command.tags, f"an episode of {quoted(command.agent)}")


def check_tags(tags: Sequence[object], what: str) -> None:
    if isinstance(tags, Iterable) and not isinstance(tags, str):
        for tag in tags:
            if not (isinstance(tag, str) and tag):
                break
        else:
            return
    raise AgentMemoryError(f"the tags of {what} must be several texts that are not empty, not {quoted(tags)}")


class EpisodicCore(PureCore[Episodes, EpisodicCommand, EpisodicEvent]):
    """The four pure functions of an episodic memory."""

    fold_version = FOLD_VERSION

    def admit(self, state: Episodes, command: EpisodicCommand) -> EpisodicEvent | Recorded:
        match command:
            case AddEpisode():
                check_episode(command)
                return EpisodeAdded(
                    agent=command.agent,
                    id=memory_id(command.key, state.version + 1),
                    content=command.content,
                    importance=float(command.importance),
                    tags=tuple(dict.fromkeys(command.tags)),
                )
            case NoteRecalled():
                known = tuple(episode for episode in dict.fromkeys(command.episodes) if episode in state.episodes)
                return EpisodesRecalled(episodes=known) if known else Recorded(0)
            case ClearEpisodes(agent=agent):
                nothing = not state.episodes if agent is None else agent not in state.agents
                return Recorded(0) if nothing else EpisodesCleared(agent=agent)
            case ChangeCapacity(capacity=capacity):
                if capacity is not None and capacity < 1:
                    raise AgentMemoryError(f"the capacity of a memory must be at least 1 episode, not {capacity}")
                return Recorded(0) if capacity == state.capacity else CapacityChanged(capacity=capacity)
            case _:
                assert_never(command)

    def evolve(self, state: Episodes, event: EpisodicEvent) -> Episodes:
        match event:
            case EpisodeAdded():
                _add(state, event)
            case EpisodesEvicted(episodes=episodes):
                for evicted in episodes:
                    _remove(state, evicted)
            case EpisodesRecalled(episodes=episodes):
                for recalled in episodes:
                    episode = state.episodes[recalled]
                    state.episodes[recalled] = msgspec.structs.replace(
                        episode, recalls=episode.recalls + 1, recalled_at=event.at
                    )
                    state.agents[episode.agent].changes.note(recalled)
            case EpisodesCleared(agent=agent):
                _clear(state, agent)
            case CapacityChanged(capacity=capacity):
                state.capacity = capacity
            case _:
                assert_never(event)
        return state

    def react(self, state: Episodes, event: EpisodicEvent) -> Sequence[EpisodicEvent]:
        match event:
            case EpisodeAdded(agent=agent):
                return _evictions(state, state.agents[agent])
            case CapacityChanged():
                return [evicted for own in state.agents.values() for evicted in _evictions(state, own)]
            case _:
                return ()


EPISODIC_CORE = CheckedCore(EpisodicCore)
"""Decides for every such memory."""


def _add(state: Episodes, event: EpisodeAdded) -> None:
    own = state.agents.get(event.agent)
    if own is None:
        own = state.agents[event.agent] = AgentEpisodes()
    state.episodes[event.id] = Episode(
        id=event.id,
        agent=event.agent,
        content=event.content,
        importance=event.importance,
        tags=event.tags,
        number=state.version,
        at=event.at,
    )
    own.ids[event.id] = None
    heapq.heappush(own.least, (event.importance, state.version, event.id))
    own.changes.note(event.id)


def _remove(state: Episodes, removed: MemoryId) -> None:
    own = state.agents[state.episodes.pop(removed).agent]
    del own.ids[removed]
    own.changes.note(removed)
    while own.least and own.least[0][2] not in own.ids:
        heapq.heappop(own.least)


def _clear(state: Episodes, agent: str | None) -> None:
    if agent is None:
        state.episodes.clear()
        state.agents.clear()
        return
    for cleared in state.agents.pop(agent).ids:
        del state.episodes[cleared]


def _evictions(state: Episodes, own: AgentEpisodes) -> list[EpisodesEvicted]:
    excess = len(own.ids) - state.capacity if state.capacity is not None else 0
    if excess <= 0:
        return []
    if excess == 1:
        return [EpisodesEvicted(episodes=(own.least[0][2],))]
    there = [memory for _, _, memory in sorted(own.least) if memory in own.ids]
    return [
        EpisodesEvicted(episodes=tuple(there[first : min(first + EVICTED_PER_EVENT, excess)]))
        for first in range(0, excess, EVICTED_PER_EVENT)
    ]
