"""Replay: a log, done again with today's code.

    report = await replay("events.db")
    report.raise_for_divergence()

Level `fold` folds every stream: the state only. Level `core` feeds every recorded stimulus to today's decisions and
compares the consequences and the effects in flight with the recorded ones. No provider, no tool and no user code
runs at either level. Read `refold.stream_replay` for how one stream is compared, and `refold.stream_kinds` for which
streams can be. The rule: what was not replayed is said in the report.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from refold.events.configuration import CORE_VERSION
from refold.events.errors import ConfigError, DivergenceError
from refold.events.records import StreamHead
from refold.log_reading import Batches, ReadableLog, Streams, kind_of, opened, session_head
from refold.stores.event_store import EventStore
from refold.stream_kinds import KINDS
from refold.stream_replay import Divergence

Level = Literal["fold", "core"]
"""How much is done again."""

DIVERGENCES_KEPT = 100
"""Most divergences that a report holds; the others are only counted."""


class NotReplayed(msgspec.Struct, frozen=True, kw_only=True):
    """Streams that were left out, because this version of Refold does not know their kind."""

    kind: str
    streams: int


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done again, and where today's code does not do what was recorded."""

    log: str
    level: Level
    streams: int
    """Replayed, to their ends or to their divergences."""
    batches: int
    """Folded, or decided again and compared."""
    events: int
    """In those batches."""
    not_replayed: tuple[NotReplayed, ...] = ()
    """In order of kind."""
    core_version: int = CORE_VERSION
    """Of today's code."""
    other_core_versions: tuple[int, ...] = ()
    """Of code that recorded some of the log, where it is not today's; its decisions may differ by intent."""
    diverged: int = 0
    """Streams that diverge."""
    divergences: tuple[Divergence, ...] = ()
    """The first of each stream that diverges, in order of position; at most `DIVERGENCES_KEPT`."""

    @property
    def nothing_replayed(self) -> bool:
        """Whether the log has streams, and today's code knows the kind of none."""
        return self.streams == 0 and bool(self.not_replayed)

    @property
    def divergence(self) -> Divergence | None:
        """The first divergence in the log, or None."""
        return self.divergences[0] if self.divergences else None

    def raise_for_divergence(self) -> None:
        """Return if everything is as recorded.

        Raises:
            DivergenceError: it is not; the message names the first place with both sides.
        """
        if self.divergence is None:
            return
        more = f" (and {self.diverged - 1:,} more streams diverge)" if self.diverged > 1 else ""
        raise DivergenceError(f"replaying {self.log} diverges at {self.divergence}{more}")


async def replay(log: ReadableLog, *, level: Level = "core", session: str | None = None) -> ReplayReport:
    """Do a log again and return what was found; nothing is written.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use.
        level: how much is done again.
        session: only this session; None = every stream.

    Raises:
        ConfigError: there is no such session or no such level.
        LogFormatError: the file is no log, or an event in it cannot be decoded; `check_log` says what else is wrong.
        PersistenceError: the log cannot be read.
    """
    if level not in ("fold", "core"):
        raise ConfigError(f'there is no replay level {level!r}; use "fold" or "core"')
    async with opened(log) as store:
        findings = _Findings()
        if session is not None:
            await _replay_stream(store, await session_head(store, session), level, findings)
        else:
            async for head in Streams(store):
                await _replay_stream(store, head, level, findings)
        return findings.report(store.name, level)


def replay_sync(log: ReadableLog, *, level: Level = "core", session: str | None = None) -> ReplayReport:
    """Do as `replay` does, from code that runs no event loop.

    Raises:
        RuntimeError: an event loop is running; write `await replay(...)`.
    """
    return asyncio.run(replay(log, level=level, session=session))


class _Findings:
    """What a replay has found so far."""

    def __init__(self) -> None:
        self.streams = 0
        self.batches = 0
        self.events = 0
        self.not_replayed: Counter[str] = Counter()
        self.core_versions: set[int] = set()
        self.diverged = 0
        self.divergences: list[Divergence] = []

    def add_divergence(self, divergence: Divergence) -> None:
        self.diverged += 1
        self.divergences.append(divergence)
        if len(self.divergences) > 2 * DIVERGENCES_KEPT:
            self.divergences = _earliest(self.divergences)

    def report(self, log: str, level: Level) -> ReplayReport:
        return ReplayReport(
            log=log,
            level=level,
            streams=self.streams,
            batches=self.batches,
            events=self.events,
            not_replayed=tuple(
                NotReplayed(kind=kind, streams=count) for kind, count in sorted(self.not_replayed.items())
            ),
            other_core_versions=tuple(sorted(self.core_versions - {CORE_VERSION})),
            diverged=self.diverged,
            divergences=tuple(_earliest(self.divergences)),
        )


def _earliest(divergences: Iterable[Divergence]) -> list[Divergence]:
    return sorted(divergences, key=lambda divergence: divergence.position)[:DIVERGENCES_KEPT]


async def _replay_stream(store: EventStore, head: StreamHead, level: Level, findings: _Findings) -> None:
    kind = KINDS.get(kind_of(head.stream))
    if kind is None:
        findings.not_replayed[kind_of(head.stream)] += 1
        return
    findings.streams += 1
    stream_replay = kind.replay(head.stream)
    async for batch in Batches(store, head.stream):
        divergence = stream_replay.fold(batch) if level == "fold" else stream_replay.decide(batch)
        findings.batches += 1
        findings.events += len(batch)
        if stream_replay.core_version is not None:
            findings.core_versions.add(stream_replay.core_version)
        if divergence is not None:
            findings.add_divergence(divergence)
            return
