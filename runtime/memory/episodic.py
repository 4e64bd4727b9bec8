"""What happened to agents: episodes, of which the right few come back to mind.

Read `refold.memory.stream_object` first for what such an object is, `refold.events.kinds.episodic` for what is
recorded, and `refold.events.kinds.memory_policies` for the formulas. The rule: recalling is a question, answered beside
the recorded state; what a recall leaves behind is that it happened.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from refold.actors.hosting import Host
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.reply import ActorFuture
from refold.events.core.cleaning import clean_text
from refold.events.core.errors import AgentMemoryError, ConfigError, quoted
from refold.events.core.ids import MemoryId
from refold.events.kinds.episodic import (
    EPISODIC_CORE,
    AddEpisode,
    ChangeCapacity,
    ClearEpisodes,
    Episodes,
    EpisodicCommand,
    EpisodicEvent,
    NoteRecalled,
    check_episode,
    check_tags,
    memory_id,
)
from refold.events.kinds.indexing import TextColumn
from refold.events.kinds.memory_policies import DecayPolicy, RecallPolicy
from refold.events.kinds.scopes import MEMORY_KIND
from refold.events.model.cooperative import Cooperative, listed
from refold.memory.items import NewEpisode, Recalled, commands_of, given_text, key_of_item, whole_number
from refold.memory.scoped import Scope, ScopedObject
from refold.memory.stream_object import loaded

if TYPE_CHECKING:
    from refold.memory.indexes.episodic import AgentIndex, EpisodicIndex

AGENT: Final = "the name of an agent"

PREPARED_FROM: Final = 2_000
"""Where an agent has so many episodes, the arrays by which they are found are made when a runtime takes the store."""

RECALL_LIMIT: Final = 5
"""So many episodes are recalled unless the caller says otherwise."""


class EpisodicStore(ScopedObject[Episodes, EpisodicCommand, EpisodicEvent]):
    """An episodic memory: `memory.add_episode("agent", "Anna prefers tea", importance=0.8)`.

    Methods that give an `ActorFuture` may be awaited on the loop, waited for by `.get()` in other threads, or left
    alone. What cannot be remembered or asked is refused at the call, with AgentMemoryError.

    Args:
        name: of the memory; its stream is `memory/<name>`.
        decay: how importance falls with age.
        recall: what comes first among episodes that match equally well.
        capacity: most episodes of each agent in each part, >= 1; the least important go, of several the oldest. None =
            no bound.
        scope: whose episodes a session sees and adds to: those of its `user`, or its own where it has none (default);
            its own (`session`); those of all (`agent`); or those of the scope that a function names.
        unmatched: where no episode shares a word with the input, let those of the highest score enter a request.
        clock: tells the time before a runtime has the memory; None = the machine's.

    Raises:
        ConfigError: the name, a policy, the capacity or the scope cannot be one.
    """

    kind = MEMORY_KIND
    core = EPISODIC_CORE

    def __init__(
        self,
        name: str = "main",
        *,
        decay: DecayPolicy | None = None,
        recall: RecallPolicy | None = None,
        capacity: int | None = None,
        scope: Scope = "user",
        unmatched: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, scope, clock)
        self.unmatched = unmatched
        self.decay = decay if decay is not None else DecayPolicy.none()
        self.recall_policy = recall if recall is not None else RecallPolicy.importance()
        self.capacity = (
            whole_number(capacity, "the capacity of a memory", 1, ConfigError) if capacity is not None else None
        )
        for policy, kind in ((self.decay, DecayPolicy), (self.recall_policy, RecallPolicy)):
            if not isinstance(policy, kind):
                raise ConfigError(f"{self!r} needs a {kind.__name__}, not {quoted(policy)}")
        self._index: EpisodicIndex | None = None

    def settings(self) -> Sequence[EpisodicCommand]:
        return (ChangeCapacity(capacity=self.capacity),)

    def held(self, state: Episodes) -> int:
        return len(state.episodes)

    def opening(self, state: Episodes) -> Sequence[EpisodicCommand]:
        return () if state.capacity == self.capacity else (ChangeCapacity(capacity=self.capacity),)

    async def attach(self, host: Host) -> None:
        await loaded("refold.memory.indexes.episodic")
        await super().attach(host)

        def prepare(state: Episodes) -> Cooperative[None]:
            for agent, own in state.agents.items():
                if len(own.ids) >= PREPARED_FROM:
                    yield from self._index_of(state, agent)

        await self.read_in_steps(prepare)

    def add_episode(
        self,
        agent: str,
        content: str,
        importance: float = 0.5,
        tags: Sequence[str] = (),
        *,
        key: str | None = None,
    ) -> ActorFuture[MemoryId]:
        """Remember what happened, and return the id of the episode once that is durable.

        Args:
            agent: whose memory it is.
            content: what happened; text that is not empty.
            importance: from 0 to 1, both included.
            tags: words by which it is found as well.
            key: the same key with the same content is remembered once, also after a restart.

        Raises:
            AgentMemoryError: something of it cannot be remembered.
        """
        command = self.keyed(_added(NewEpisode(agent, content, importance, cast("tuple[str, ...]", tags)), key))
        return self.perform(command).map(lambda performed: memory_id(command.key, performed.version))

    def add_episodes(self, episodes: Iterable[NewEpisode], *, key: str | None = None) -> ActorFuture[list[MemoryId]]:
        """Remember what happened, all of it or nothing, and return the ids of the episodes once that is durable.

        They take one message and one transaction, whose disk others wait for too: give some thousands at a time.

        Args:
            episodes: in the order in which it happened.
            key: the same key with the same episodes counts once, also after a restart.

        Raises:
            AgentMemoryError: one of the episodes cannot be remembered; names it.
        """

        def command(episode: NewEpisode, place: int) -> AddEpisode:
            return _added(episode, key_of_item(key, place))

        commands = commands_of(episodes, NewEpisode, command, "episodes")
        return self.perform_each(commands, "episodes", lambda added, performed: memory_id(added.key, performed.version))

    def recall(
        self, agent: str, query: str, limit: int = RECALL_LIMIT, *, key: str | None = None
    ) -> ActorFuture[list[Recalled]]:
        """Return an agent's episodes that match a query, the best first, once it is recorded that they were recalled.

        Those match that share a word with the query, in content or tags (see `refold.events.kinds.indexing`). They are
        ordered by how many of its words they share, then by their score (see `RecallPolicy`), then by insertion, the
        oldest first. Where no episode shares a word, all are taken to match equally well: those of the highest score
        come, and have 0 `shared_words`. That is so for a query without words as well.

        Args:
            agent: whose memory.
            query: any text.
            limit: at most so many, >= 0.
            key: the same key counts one recall.

        Raises:
            AgentMemoryError: the query or the limit cannot be one.
        """

        def note(found: list[Recalled]) -> NoteRecalled | None:
            return NoteRecalled(episodes=tuple(each.id for each in found), key=key) if found else None

        return self.read_in_steps(self._question(agent, query, limit), note)

    def look(self, agent: str, query: str, limit: int = RECALL_LIMIT) -> ActorFuture[list[Recalled]]:
        """Return what `recall` does, and record nothing; `note_recalled` may follow.

        Raises:
            AgentMemoryError: the query or the limit cannot be one.
        """
        return self.read_in_steps(self._question(agent, query, limit))

    def note_recalled(self, ids: Sequence[MemoryId], key: str | None = None) -> None:
        """Have it recorded that episodes were recalled, and wait for nothing; those that are gone are left out.

        Args:
            ids: of the episodes.
            key: the same key counts one recall.

        Raises:
            AgentMemoryError: they are no ids.
        """
        if not isinstance(ids, Sequence) or not all(isinstance(each, str) for each in ids):
            raise AgentMemoryError(f"episodes are named by texts, not {quoted(ids)}")
        if ids:
            self.tell(NoteRecalled(episodes=tuple(ids), key=key))

    def clear(self, agent: str | None = None, *, key: str | None = None) -> ActorFuture[None]:
        """Forget all episodes of an agent, or of every agent."""
        whose = given_text(agent, AGENT) if agent is not None else None
        return self.perform(ClearEpisodes(agent=whose, key=key)).map(lambda _: None)

    # Looking into it

    def agents(self) -> ActorFuture[list[str]]:
        """Return the agents that have episodes, in code-point order."""
        return self.read(lambda state: sorted(state.agents))

    def count(self, agent: str | None = None) -> ActorFuture[int]:
        """Return how many episodes an agent has, or all have together."""
        whose = given_text(agent, AGENT) if agent is not None else None
        return self.read(lambda state: len(state.episodes if whose is None else _ids_of(state, whose)))

    def contents(self, agent: str) -> ActorFuture[TextColumn]:
        """Return the contents of an agent's episodes, in the order of insertion."""
        whose = given_text(agent, AGENT)

        def question(state: Episodes) -> Cooperative[TextColumn]:
            texts = yield from listed(state.episodes[memory].content for memory in _ids_of(state, whose))
            return TextColumn(texts)

        return self.read_in_steps(question)

    def by_importance(self, agent: str) -> ActorFuture[list[Recalled]]:
        """Return an agent's episodes by effective importance, the most important first, then by insertion."""
        return self._all_of(agent, None)

    def more_important_than(self, agent: str, threshold: float) -> ActorFuture[list[Recalled]]:
        """Return an agent's episodes whose effective importance is more than `threshold`, as `by_importance`.

        Raises:
            AgentMemoryError: the threshold is NaN or no number.
        """
        return self._all_of(agent, checked_threshold(threshold, "importance"))

    def _all_of(self, agent: str, above: float | None) -> ActorFuture[list[Recalled]]:
        whose = given_text(agent, AGENT)

        def question(state: Episodes) -> Cooperative[list[Recalled]]:
            index = yield from self._index_of(state, whose)
            if index is None:
                return []
            return (yield from index.by_importance(self.now_us(), self.decay, self.recall_policy, above))

        return self.read_in_steps(question)

    def _question(self, agent: str, query: str, limit: int) -> Callable[[Episodes], Cooperative[list[Recalled]]]:
        whose, words = given_text(agent, AGENT), given_text(query, "a query")
        whole_number(limit, "limit", 0, AgentMemoryError)

        def question(state: Episodes) -> Cooperative[list[Recalled]]:
            index = (yield from self._index_of(state, whose)) if limit else None
            if index is None:
                return []
            return (yield from index.recalled(words, limit, self.now_us(), self.decay, self.recall_policy))

        return question

    def _index_of(self, state: Episodes, agent: str) -> "Cooperative[AgentIndex | None]":
        if self._index is None:
            from refold.memory.indexes.episodic import EpisodicIndex

            self._index = EpisodicIndex()
        return (yield from self._index.of(state, agent))

    def _forget_derived(self) -> None:
        self._index = None


def _added(episode: NewEpisode, key: str | None) -> AddEpisode:
    """Return the command that adds an episode, which is checked."""
    check_tags(episode.tags, f"an episode of {quoted(episode.agent)}")
    given = AddEpisode(
        agent=episode.agent,
        content=episode.content,
        importance=episode.importance,
        tags=tuple(episode.tags),
        key=key,
    )
    check_episode(given)
    return msgspec.structs.replace(
        given,
        agent=clean_text(given.agent),
        content=clean_text(given.content),
        importance=float(given.importance),
        tags=tuple(map(clean_text, given.tags)),
    )


def _ids_of(state: Episodes, agent: str) -> dict[MemoryId, None]:
    own = state.agents.get(agent)
    return own.ids if own is not None else {}


def checked_threshold(threshold: object, what: str) -> float:
    """Return `threshold` where it can be one; an integer too large for a float counts as infinite."""
    if not isinstance(threshold, int | float) or threshold != threshold:
        raise AgentMemoryError(f"{what} cannot be compared to {quoted(threshold)}")
    try:
        return float(threshold)
    except OverflowError:
        return math.inf if threshold > 0 else -math.inf
