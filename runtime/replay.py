"""Replay: a log, done again with today's code.

    report = await replay("events.db")
    report.raise_for_divergence()

Level `fold` folds every stream: the state only. Level `core` feeds every recorded stimulus to today's `evolve`, `react`
and `pending`, and compares the consequences and the effects in flight with the recorded ones. `admit` is not asked
again: a stimulus is what it decided, and the commands that it decided about, or refused, are not in the log. No
provider and no tool runs at either level, and of a user's code only the cores that the caller names:
`await replay("books.db", kinds={"book": OrderBook})`.

Read `refold.stream_replay` for how one stream is compared, and `refold.stream_kinds` for which
streams can be. The rule: what was not replayed is said in the report.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from refold.events.checked_core import CheckedCore
from refold.events.configuration import CORE_VERSION
from refold.events.errors import ConfigError, DivergenceError
from refold.events.pure_core import PureCore, S
from refold.events.records import StreamHead
from refold.log_reading import (
    Batches,
    ReadableLog,
    Streams,
    kind_of,
    kinds_without_streams,
    opened,
    session_head,
    stream_head,
)
from refold.stores.event_store import EventStore
from refold.stores.past_state import past_state
from refold.stream_kinds import GivenKind, StreamKind, kinds_with
from refold.stream_replay import Divergence

Level = Literal["fold", "core"]
"""How much is done again."""

DIVERGENCES_KEPT = 100
"""Most divergences that a report holds; the others are only counted."""


class NotReplayed(msgspec.Struct, frozen=True, kw_only=True):
    """Streams that were left out, because neither this version of Refold nor the caller knows their kind."""

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
    kinds_without_streams: tuple[str, ...] = ()
    """Kinds that the caller gave and no stream of the log has: mistyped, or of another log."""
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


async def replay(
    log: ReadableLog,
    *,
    level: Level = "core",
    session: str | None = None,
    stream: str | None = None,
    kinds: Mapping[str, GivenKind] | None = None,
) -> ReplayReport:
    """Do a log again and return what was found; nothing is written.

    Found is what `evolve`, `react` and `pending` do otherwise today. A change of `admit` alone is not: it would show
    only in commands, which are not recorded.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use.
        level: how much is done again.
        session: only this session; None = every stream.
        stream: only this stream, such as `"book/ACME"`; None = every stream.
        kinds: the cores of the application's own kinds of streams, by kind: `{"book": OrderBook}`.

    Raises:
        ConfigError: there is no such session, stream or level, or a kind cannot work.
        LogFormatError: the file is no log, or an event in it cannot be decoded; `check_log` says what else is wrong.
        PersistenceError: the log cannot be read.
    """
    if level not in ("fold", "core"):
        raise ConfigError(f'there is no replay level {level!r}; use "fold" or "core"')
    if session is not None and stream is not None:
        raise ConfigError("name a session or a stream, not both")
    known = kinds_with(kinds)
    async with opened(log) as store:
        findings = _Findings()
        if session is not None:
            await _replay_stream(store, await session_head(store, session), known, level, findings)
        elif stream is not None:
            await _replay_stream(store, await stream_head(store, stream), known, level, findings)
        else:
            async for head in Streams(store):
                await _replay_stream(store, head, known, level, findings)
        return findings.report(store.name, level, await kinds_without_streams(store, kinds or ()))


def replay_sync(
    log: ReadableLog,
    *,
    level: Level = "core",
    session: str | None = None,
    stream: str | None = None,
    kinds: Mapping[str, GivenKind] | None = None,
) -> ReplayReport:
    """Do as `replay` does, from code that runs no event loop.

    Raises:
        RuntimeError: an event loop is running; write `await replay(...)`.
    """
    return asyncio.run(replay(log, level=level, session=session, stream=stream, kinds=kinds))


async def state_at(
    log: ReadableLog,
    stream: str,
    core: type[PureCore[S, Any, Any]] | PureCore[S, Any, Any],
    *,
    position: int | None = None,
    version: int | None = None,
) -> S:
    """Return the state of an event-sourced actor as it was at a place of the log; nothing is written.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use.
        stream: the actor's address, such as `"book/ACME"`.
        core: what folds its events.
        position: the place in the log, included; None = its end.
        version: the place in the stream, included; None = its end, 0 = before the first event.

    Raises:
        ConfigError: there is no such stream or place, or the core's types cannot work.
        LogFormatError: the file is no log, or an event in it cannot be decoded or folded.
        PersistenceError: the log cannot be read.
    """
    checked = CheckedCore(core)
    async with opened(log) as store:
        head = await stream_head(store, stream)
        past = await past_state(store, head.stream, checked, checked.codec, position=position, version=version)
        return past.state


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

    def report(self, log: str, level: Level, kinds_without_streams: tuple[str, ...]) -> ReplayReport:
        return ReplayReport(
            log=log,
            level=level,
            streams=self.streams,
            batches=self.batches,
            events=self.events,
            not_replayed=tuple(
                NotReplayed(kind=kind, streams=count) for kind, count in sorted(self.not_replayed.items())
            ),
            kinds_without_streams=kinds_without_streams,
            other_core_versions=tuple(sorted(self.core_versions - {CORE_VERSION})),
            diverged=self.diverged,
            divergences=tuple(_earliest(self.divergences)),
        )


def _earliest(divergences: Iterable[Divergence]) -> list[Divergence]:
    return sorted(divergences, key=lambda divergence: divergence.position)[:DIVERGENCES_KEPT]


async def _replay_stream(
    store: EventStore, head: StreamHead, kinds: Mapping[str, StreamKind], level: Level, findings: _Findings
) -> None:
    kind = kinds.get(kind_of(head.stream))
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
