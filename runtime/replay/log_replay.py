"""Replay: a log, done again with today's code.

    report = await replay("events.db")
    report.raise_for_divergence()

Level `fold` folds every stream: the state only. Level `core` feeds every recorded stimulus to today's `evolve`, `react`
and `pending`, and compares the consequences and the effects in flight with the recorded ones. `admit` is not asked
again: a stimulus is what it decided, and the commands that it decided about, or refused, are not in the log. No
provider and no tool runs at any level, and at these two of a user's code only the cores that the caller names:
`await replay("books.db", kinds={"book": OrderBook})`.

Level `decide` takes an agent, `await replay("events.db", agent=agent)`, and makes a dry run of what of it decides on
what its sessions, and those of its subagents, recorded; see `refold.replay.agent_replay`. All other streams are decided
again as at level `core`.

Read `refold.replay.core_replay` for how one stream is compared, and `refold.inspection.kinds` for which streams can be.
The rule: what was not replayed is said in the report.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.errors import ConfigError, DivergenceError
from refold.events.core.ids import event_ref
from refold.events.core.pure_core import PureCore
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.model.configuration import CORE_VERSION
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import SessionOpened
from refold.inspection.kinds import KINDS, GivenKind, StreamKind, kinds_with
from refold.inspection.log_reading import (
    Batches,
    ReadableLog,
    Streams,
    kind_of,
    kinds_without_streams,
    opened,
    session_head,
    stream_head,
)
from refold.replay.core_replay import (
    AFTER_A_DIFFERENCE,
    AFTER_MEANT,
    PARTED_MAX,
    Compared,
    CoreReplay,
    Divergence,
    Tally,
    caught_up,
)
from refold.replay.kinds_of_difference import ConfigurationChange, DifferenceKinds, KindOfDifference
from refold.replay.meant import NOTHING_MEANT, AcceptedDifference, Accepting, ExpectedDifference, MeantDifferences
from refold.stores.event_store import EventStore
from refold.stores.past_state import past_state
from refold.tools.dry_run import ANSWER_S

if TYPE_CHECKING:
    from refold.agents.agent import AnyAgent
    from refold.replay.agent_replay import AgentReplay, AgentsReplay

Level = Literal["fold", "core", "decide"]
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
    """The first of each stream that diverges, in order of position; at level `decide` the first of each kind of
    comparison in it. At most `DIVERGENCES_KEPT`."""
    compared: tuple[Compared, ...] = ()
    """At level `decide`: what was compared, and what could not be."""
    sessions: int = 0
    """Of the streams, those that are sessions of agents."""
    other_agents: dict[str, int] = {}
    """At level `decide`: how many sessions of other agents were left out, by the agent's name."""
    kinds: tuple[KindOfDifference, ...] = ()
    """All kinds of divergences, in the order in which they first happened."""
    changes: tuple[ConfigurationChange, ...] = ()
    """At level `decide`: what of the agents' configurations is not as it was recorded, whether it makes a difference or
    not."""
    accepted: tuple[AcceptedDifference, ...] = ()
    """Differences that are meant, in the order in which they first happened."""
    unmet: tuple[ExpectedDifference, ...] = ()
    """What was expected and did not occur."""

    @property
    def nothing_replayed(self) -> bool:
        """Whether the log has streams, and today's code knows the kind of none; or no session of the agent."""
        if self.other_agents and not self.compared:
            return True
        return self.streams == 0 and bool(self.not_replayed)

    @property
    def divergence(self) -> Divergence | None:
        """The first divergence in the log, or None."""
        return self.divergences[0] if self.divergences else None

    def missing(self, allowed: Collection[str] = ()) -> list[str]:
        """Return what was not compared, one line of text each.

        What follows a decision that differs is not among it, nor are sessions of agents that were not asked for.

        Args:
            allowed: a line that has one of these texts in it is left out.
        """
        lines = [
            f"kind {left_out.kind!r}: {left_out.streams:,} streams were not replayed" for left_out in self.not_replayed
        ]
        lines += [
            f"{each.what}: {missed.times:,} not compared, first {missed.first}: {missed.why}"
            for each in self.compared
            for missed in each.not_compared
            if missed.why != AFTER_A_DIFFERENCE
        ]
        return [line for line in lines if not any(text in line for text in allowed)]

    def raise_for_divergence(self, *, allow_missing: Collection[str] = ()) -> None:
        """Return if everything was compared and is as recorded.

        Args:
            allow_missing: what need not have been compared: texts that are in its line of `missing`. A log of which
                nothing was replayed raises nevertheless.

        Raises:
            DivergenceError: it is not, or was not compared; the message names the first place with both sides, or what
                was not compared and why.
        """
        if self.divergence is not None:
            more = f" (and {self.diverged - 1:,} more streams diverge)" if self.diverged > 1 else ""
            raise DivergenceError(f"replaying {self.log} diverges at {self.divergence}{more}")
        missing = self.missing(allow_missing)
        if self.nothing_replayed:
            others = ", ".join(map(repr, self.other_agents))
            missing.append(
                f"no session of the agent is in the log; there are those of {others}"
                if others
                else "nothing was replayed"
            )
        if missing:
            raise DivergenceError(
                f"replaying {self.log} shows no divergence, but not everything was compared: {'; '.join(missing)}; "
                "what may be missing is given as allow_missing"
            )


async def replay(
    log: ReadableLog,
    *,
    level: Level | None = None,
    session: str | None = None,
    stream: str | None = None,
    kinds: Mapping[str, GivenKind] | None = None,
    agent: "AnyAgent | None" = None,
    deps: object = None,
    answer_s: float = ANSWER_S,
    meant: MeantDifferences = NOTHING_MEANT,
    progress: Callable[[int, int], object] | None = None,
) -> ReplayReport:
    """Do a log again and return what was found; nothing is written.

    Found is what `evolve`, `react` and `pending` do otherwise today. A change of `admit` alone is not: it would show
    only in commands, which are not recorded.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use.
        level: how much is done again; None = `decide` where an agent is given, else `core`.
        session: only this session; None = every stream.
        stream: only this stream, such as `"book/ACME"`; None = every stream.
        kinds: the cores of the application's own kinds of streams, by kind: `{"book": OrderBook}`.
        agent: whose code makes a dry run at level `decide`; its subagents belong to it.
        deps: what its functions depend on then, as `Agent.deps`; opened and closed here. None = the agent's own where
            that is a value, as no other is opened: what needs it counts as not compared. Those that were given with a
            session or an input are not in the log.
        answer_s: how many seconds a piece of its code may take there, such as one pass through a hook, > 0.
        meant: differences that are looked past.
        progress: called after each batch with how many streams were begun and how many events were done again.

    Raises:
        ConfigError: there is no such session, stream or level, a kind cannot work, an agent is missing or too many, or
            `deps` cannot be opened.
        LogFormatError: the file is no log, or an event in it cannot be decoded; `check_log` says what else is wrong.
        PersistenceError: the log cannot be read.
    """
    level = _checked_level(level, agent)
    if deps is not None and agent is None:
        raise ConfigError("only an agent's code depends on something; give agent= too, or leave deps out")
    if session is not None and stream is not None:
        raise ConfigError("name a session or a stream, not both")
    known = kinds_with(kinds) if kinds else KINDS
    async with opened(log) as store, AsyncExitStack() as stack:
        findings = _Findings(Accepting(meant), progress)
        agents = (
            await _agents_replay(store, agent, answer_s, deps, stack, findings.accepts) if agent is not None else None
        )
        if session is not None:
            await _replay_stream(store, await session_head(store, session), known, level, findings, agents)
        elif stream is not None:
            await _replay_stream(store, await stream_head(store, stream), known, level, findings, agents)
        else:
            async for head in Streams(store):
                await _replay_stream(store, head, known, level, findings, agents)
        return ReplayReport(
            log=store.name,
            level=level,
            streams=findings.streams,
            batches=findings.batches,
            events=findings.events,
            not_replayed=tuple(
                NotReplayed(kind=kind, streams=count) for kind, count in sorted(findings.not_replayed.items())
            ),
            kinds_without_streams=await kinds_without_streams(store, kinds) if kinds else (),
            other_core_versions=tuple(sorted(findings.core_versions - {CORE_VERSION})),
            diverged=findings.diverged,
            divergences=tuple(_earliest(findings.divergences)),
            compared=(agents or findings).tally.report(),
            sessions=findings.sessions,
            other_agents=dict(sorted(findings.other_agents.items())),
            kinds=findings.kinds.report(),
            changes=agents.changes.report() if agents is not None else (),
            accepted=findings.accepts.accepted,
            unmet=findings.accepts.unmet,
        )


def replay_sync(
    log: ReadableLog,
    *,
    level: Level | None = None,
    session: str | None = None,
    stream: str | None = None,
    kinds: Mapping[str, GivenKind] | None = None,
    agent: "AnyAgent | None" = None,
    deps: object = None,
    answer_s: float = ANSWER_S,
    meant: MeantDifferences = NOTHING_MEANT,
) -> ReplayReport:
    """Do as `replay` does, from code that runs no event loop.

    Raises:
        RuntimeError: an event loop is running; write `await replay(...)`.
    """
    return asyncio.run(
        replay(
            log,
            level=level,
            session=session,
            stream=stream,
            kinds=kinds,
            agent=agent,
            deps=deps,
            answer_s=answer_s,
            meant=meant,
        )
    )


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

    def __init__(self, accepts: Accepting, progress: Callable[[int, int], object] | None) -> None:
        self.accepts = accepts
        self.kinds = DifferenceKinds()
        self.tally = Tally()
        self._progress = progress
        self.streams = 0
        self.sessions = 0
        self.batches = 0
        self.events = 0
        self.not_replayed: Counter[str] = Counter()
        self.core_versions: set[int] = set()
        self.diverged = 0
        self.divergences: list[Divergence] = []
        self.other_agents: Counter[str] = Counter()

    def add(self, batch: Sequence[StoredEvent], core_version: int | None) -> None:
        self.batches += 1
        self.events += len(batch)
        if core_version is not None:
            self.core_versions.add(core_version)
        if self._progress is not None:
            self._progress(self.streams, self.events)

    def add_divergences(self, divergences: Sequence[Divergence]) -> None:
        self.diverged += bool(divergences)
        self.divergences += divergences
        for divergence in divergences:
            self.kinds.add(divergence)
        if len(self.divergences) > 2 * DIVERGENCES_KEPT:
            self.divergences = _earliest(self.divergences)


def _earliest(divergences: Iterable[Divergence]) -> list[Divergence]:
    return sorted(divergences, key=lambda divergence: divergence.position)[:DIVERGENCES_KEPT]


async def _agents_replay(
    store: EventStore,
    agent: "AnyAgent",
    answer_s: float,
    deps: object,
    stack: AsyncExitStack,
    accepts: Accepting,
) -> "AgentsReplay":
    from refold.agents.opened_deps import opened as opened_deps
    from refold.replay.agent_replay import AgentsReplay

    return AgentsReplay(store, agent, answer_s, await opened_deps(deps, "the replay", stack), accepts)


async def _replay_stream(
    store: EventStore,
    head: StreamHead,
    kinds: Mapping[str, StreamKind],
    level: Level,
    findings: _Findings,
    agents: "AgentsReplay | None",
) -> None:
    kind = kinds.get(kind_of(head.stream))
    if kind is None:
        findings.not_replayed[kind_of(head.stream)] += 1
        return
    if agents is not None and kind_of(head.stream) == SESSION_KIND:
        await _decide_session(store, head, findings, agents)
        return
    findings.streams += 1
    findings.sessions += kind_of(head.stream) == SESSION_KIND
    parted = 0
    stream_replay = CoreReplay(head.stream, kind.core, kind.codec, findings.accepts)
    async for batch in Batches(store, head.stream):
        divergence = stream_replay.fold(batch) if level == "fold" else stream_replay.decide(batch)
        findings.add(batch, stream_replay.core_version)
        if divergence is not None:
            findings.add_divergences([divergence])
            return
        if stream_replay.parted:
            parted += 1
            if parted > PARTED_MAX:
                findings.tally.miss("decision", event_ref(head.stream, batch[-1].version), AFTER_MEANT)
                return
            stream_replay = CoreReplay(head.stream, kind.core, kind.codec, findings.accepts)
            if not await caught_up(stream_replay, store, batch[-1]):
                return


async def _decide_session(store: EventStore, head: StreamHead, findings: _Findings, agents: "AgentsReplay") -> None:
    again: AgentReplay | None = None
    divergences: list[Divergence] = []
    async for batch in Batches(store, head.stream):
        if again is None:
            opened_by = SESSION_CODEC.decode(batch[0])
            agent = opened_by.agent if isinstance(opened_by, SessionOpened) else ""
            again = agents.session(head.stream, agent)
            if again is None:
                findings.other_agents[agent] += 1
                return
            findings.streams += 1
            findings.sessions += 1
        divergences += await again.take(batch)
        findings.add(batch, again.core_version)
    findings.add_divergences(divergences)


def _checked_level(level: Level | None, agent: "AnyAgent | None") -> Level:
    if level is None:
        return "core" if agent is None else "decide"
    if level not in get_args(Level):
        raise ConfigError(f'there is no replay level {level!r}; use "fold", "core" or "decide"')
    if level == "decide" and agent is None:
        raise ConfigError('level "decide" needs the agent whose code is to decide; give agent=')
    if level != "decide" and agent is not None:
        raise ConfigError(f'level "{level}" runs no agent; leave agent out, or use "decide"')
    return level
