"""The arrays by which episodes are recalled: one index for each agent, derived from the folded state and no part of it.

Read `refold.events.kinds.memory_policies` for the formulas. The index follows the state by its recent changes and is
made anew where those are not known; so it costs what has changed, not what there is, and does that in steps. What comes
out is the same whenever the index was made. Needs numpy.
"""

import numpy as np
from numpy.typing import NDArray

from refold.events.core.ids import MemoryId
from refold.events.kinds.episodic import AgentEpisodes, Episode, Episodes
from refold.events.kinds.indexing import words_of
from refold.events.kinds.memory_policies import HOUR_US, RECENCY_PER_HOUR, DecayPolicy, RecallPolicy
from refold.events.model.cooperative import ITEMS_PER_STEP, Cooperative, listed
from refold.memory.indexes.words import Rows, WordIndex, best
from refold.memory.items import Recalled

Which = Rows | slice
"""Which rows of a column are meant."""

ROWS_AT_FIRST = 64

GONE_MIN = 1_024
"""Rows of episodes that are gone are kept until there are more than this, and more than of those that are there."""


class AgentIndex:
    """One agent's episodes by row, in the order of insertion; `follow` takes them in."""

    def __init__(self, state: Episodes, own: AgentEpisodes) -> None:
        self.own = own
        self._episodes = state.episodes
        self._ids: list[MemoryId] = []
        self._row_of: dict[MemoryId, int] = {}
        self._importance = np.zeros(ROWS_AT_FIRST)
        self._added_at = np.zeros(ROWS_AT_FIRST, dtype=np.int64)
        self._used_at = np.zeros(ROWS_AT_FIRST, dtype=np.int64)
        self._recalls = np.zeros(ROWS_AT_FIRST, dtype=np.int64)
        self._there = np.zeros(ROWS_AT_FIRST, dtype=np.bool_)
        self._words = WordIndex()
        self._seen = 0

    def follow(self) -> Cooperative[None]:
        """Take in what has changed in the state; what was left in between is taken in by the next one."""
        changed = self.own.changes.since(self._seen)
        if changed is None:  # Too much: every episode is looked at, and the words of new ones only.
            changed = [*(memory for memory in self._row_of if memory not in self.own.ids), *self.own.ids]
        for place, memory in enumerate(changed, 1):
            episode = self._episodes.get(memory)
            row = self._row_of.get(memory)
            if episode is None:
                if row is not None:
                    self._there[row] = False
                    del self._row_of[memory]
            elif row is None:
                self._add(episode)
            else:
                self._count(row, episode)
            if not place % ITEMS_PER_STEP:
                yield
        self._seen = self.own.changes.count
        gone = len(self._ids) - len(self._row_of)
        if gone > max(GONE_MIN, len(self._row_of)):
            self._renumber()

    def recalled(
        self, query: str, limit: int, now: int, decay: DecayPolicy, policy: RecallPolicy
    ) -> Cooperative[list[Recalled]]:
        """Return the best `limit` of the episodes that share most words with `query`; see `EpisodicStore.recall`."""
        shared = self._words.shared(words_of(query), len(self._ids))
        if len(self._row_of) < len(self._ids):
            shared *= self._there[: len(self._ids)]
        rows = np.flatnonzero(shared)
        if not len(rows):
            rows = np.flatnonzero(self._there[: len(self._ids)])
        which = self._which(rows)
        effective = self._effective(which, now, decay)
        score = self._score(which, effective, now, policy)
        chosen = best(shared[which], score, limit)
        return (yield from self._as_recalled(rows[chosen], effective[chosen], score[chosen], shared[rows[chosen]]))

    def by_importance(
        self, now: int, decay: DecayPolicy, policy: RecallPolicy, above: float | None = None
    ) -> Cooperative[list[Recalled]]:
        """Return all episodes whose effective importance is more than `above`, the most important first."""
        rows = np.flatnonzero(self._there[: len(self._ids)])
        effective = self._effective(rows, now, decay)
        if above is not None:
            rows, effective = rows[effective > above], effective[effective > above]
        order = np.argsort(-effective, kind="stable")
        rows, effective = rows[order], effective[order]
        score = self._score(rows, effective, now, policy)
        return (yield from self._as_recalled(rows, effective, score, np.zeros(len(rows), dtype=np.int64)))

    def _which(self, rows: Rows) -> Which:
        """Return what takes `rows`, which ascend, out of a column: without a copy where they are all rows."""
        return slice(0, len(rows)) if len(rows) == len(self._ids) else rows

    def _effective(self, rows: Which, now: int, decay: DecayPolicy) -> NDArray[np.float64]:
        importance = self._importance[rows]
        if decay.half_life_hours is None:
            return importance
        age = np.maximum(now - self._added_at[rows], 0) / HOUR_US
        faded: NDArray[np.float64] = importance * np.exp2(age / -decay.half_life_hours)
        return faded

    def _score(
        self, rows: Which, effective: NDArray[np.float64], now: int, policy: RecallPolicy
    ) -> NDArray[np.float64]:
        score = effective
        if policy.recency_weight:
            idle = np.maximum(now - self._used_at[rows], 0) / HOUR_US
            score = score + policy.recency_weight * np.power(RECENCY_PER_HOUR, idle)
        if policy.frequency_weight:
            recalls = self._recalls[rows]
            score = score + policy.frequency_weight * (recalls / (recalls + 1))
        return score

    def _as_recalled(
        self,
        rows: Rows,
        effective: NDArray[np.float64],
        score: NDArray[np.float64],
        shared: NDArray[np.int64],
    ) -> Cooperative[list[Recalled]]:
        found = zip(rows.tolist(), effective.tolist(), score.tolist(), shared.tolist(), strict=True)
        return listed(
            Recalled(
                id=episode.id,
                agent=episode.agent,
                content=episode.content,
                score=own_score,
                importance=own_effective,
                given_importance=episode.importance,
                tags=episode.tags,
                added_at=episode.at,
                recalls=episode.recalls,
                shared_words=own_shared,
            )
            for row, own_effective, own_score, own_shared in found
            for episode in (self._episodes[self._ids[row]],)
        )

    def _add(self, episode: Episode) -> None:
        row = len(self._ids)
        if row == len(self._there):
            self._resize(2 * row)
        self._ids.append(episode.id)
        self._row_of[episode.id] = row
        self._importance[row] = episode.importance
        self._added_at[row] = episode.at
        self._there[row] = True
        self._count(row, episode)
        self._words.add(row, words_of(" ".join((episode.content, *episode.tags))))

    def _count(self, row: int, episode: Episode) -> None:
        self._recalls[row] = episode.recalls
        self._used_at[row] = episode.recalled_at or episode.at

    def _resize(self, rows: int) -> None:
        more = max(ROWS_AT_FIRST, rows) - len(self._there)
        self._importance = np.pad(self._importance, (0, more))
        self._added_at = np.pad(self._added_at, (0, more))
        self._used_at = np.pad(self._used_at, (0, more))
        self._recalls = np.pad(self._recalls, (0, more))
        self._there = np.pad(self._there, (0, more))

    def _renumber(self) -> None:
        there = self._there[: len(self._ids)]
        self._words.renumber(there)
        self._importance = self._importance[: len(there)][there]
        self._added_at = self._added_at[: len(there)][there]
        self._used_at = self._used_at[: len(there)][there]
        self._recalls = self._recalls[: len(there)][there]
        self._ids = [memory for memory, is_there in zip(self._ids, there.tolist(), strict=True) if is_there]
        self._row_of = {memory: row for row, memory in enumerate(self._ids)}
        self._there = np.ones(len(self._ids), dtype=np.bool_)
        self._resize(2 * len(self._ids))


class EpisodicIndex:
    """The indexes of all agents of one memory."""

    def __init__(self) -> None:
        self._agents: dict[str, AgentIndex] = {}

    def of(self, state: Episodes, agent: str) -> Cooperative[AgentIndex | None]:
        """Return an agent's index, as the state is now; None = it has no episodes."""
        own = state.agents.get(agent)
        if own is None:
            self._agents.pop(agent, None)
            return None
        index = self._agents.get(agent)
        if index is None or index.own is not own:
            index = self._agents[agent] = AgentIndex(state, own)
        yield from index.follow()
        return index
