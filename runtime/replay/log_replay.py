"""Replay: a log, done again with today's code.

    report = await replay("events.db")
    report.raise_for_divergence()

Level `fold` folds every stream: the state only. Level `core` feeds every recorded stimulus to today's `evolve`, `react`
and `pending`, and compares the consequences and the effects in flight with the recorded ones. Commands are not in the
log: a session's are made again from their stimuli for `admit`, and other kinds' are not asked again. No provider and no
tool runs at any level, and at these two of a user's code only the cores that the caller names:
`await replay("books.db", kinds={"book": OrderBook})`.

Level `decide` takes an agent, `await replay("events.db", agent=agent)`, and makes a dry run of what of it decides on
what its sessions, and those of its subagents, recorded; see `refold.replay.agent_replay`. All other streams are decided
again as at level `core`.

Read `refold.replay.core_replay` for how one stream is compared, and `refold.inspection.kinds` for which streams can be.
The rule: what was not replayed is said in the report.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
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
    Tried,
    caught_up,
)
from refold.replay.kinds_of_difference import (
    ConfigurationChange,
    ConfigurationChanges,
    DifferenceKinds,
    KindOfDifference,
)
from refold.replay.manifest import BundleManifest, is_bundle, read_manifest
from refold.replay.meant import NOTHING_MEANT, AcceptedDifference, Accepting, ExpectedDifference, MeantDifferences
from refold.stores.event_store import EventStore
from refold.stores.past_state import past_state
from refold.tools.dry_run import ANSWER_S

if TYPE_CHECKING:
    from refold.agents.agent import AnyAgent
    from refold.replay.agent_replay import AgentReplay, AgentsReplay
    from refold.replay.shadow.process import Begin, Page, Work

Level = Literal["fold", "core", "decide"]
"""How much is done again."""

Told = Callable[[int, int], object]
"""Is called with how many streams were begun and how many events were done again."""

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
    tried: tuple[Tried, ...] = ()
    """At level `decide`: what the agent's code tried to do outside, all of which was refused."""
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
    jobs: int = 1,
) -> ReplayReport:
    """Do a log again and return what was found; nothing is written.

    Found is what `evolve`, `react` and `pending` do otherwise today, and of sessions what `admit` does with the command
    that a recorded stimulus was made from. What it refused then is in no log.

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
        progress: called from time to time with how many streams were begun and how many events were done again.
        jobs: so many processes do it, each some of the streams; the report is the same for any number. An agent's code
            always runs in a process of its own, in which it can write nothing and reach nothing.

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
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, not {jobs}")
    known = kinds_with(kinds) if kinds else KINDS
    async with opened(log) as store, AsyncExitStack() as stack:
        heads: AsyncIterator[StreamHead] = Streams(store)
        if session is not None:
            heads = _only(await session_head(store, session))
        elif stream is not None:
            heads = _only(await stream_head(store, stream))
        findings = _Findings(Accepting(meant))
        told = _told(findings, progress)
        if agent is None and jobs == 1:
            async for head in heads:
                findings.merge(await _replay_stream(store, head, known, level, None, _Findings(Accepting(meant), told)))
        else:
            deps = await _opened_deps(deps, stack) if agent is not None else None
            bundle = read_manifest(log) if is_bundle(log) else None
            begin = _beginning(known, level, meant, agent, deps, answer_s, bundle)
            await _replay_in_shadows(store, heads, begin, findings, jobs, answer_s, told)
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
            compared=findings.tally.report(),
            tried=findings.tally.tried(),
            sessions=findings.sessions,
            other_agents=dict(sorted(findings.other_agents.items())),
            kinds=findings.kinds.report(),
            changes=findings.changes.report(),
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
    jobs: int = 1,
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
            jobs=jobs,
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
    """What a replay has found so far, of one stream or of several.

    Args:
        accepts: says of a difference whether it is meant.
        told: is called with how many streams were begun and how many events done.
    """

    def __init__(self, accepts: Accepting, told: Told | None = None) -> None:
        self.accepts = accepts
        self.kinds = DifferenceKinds()
        self.changes = ConfigurationChanges()
        self.tally = Tally()
        self.streams = 0
        self.sessions = 0
        self.batches = 0
        self.events = 0
        self.not_replayed: Counter[str] = Counter()
        self.core_versions: set[int] = set()
        self.diverged = 0
        self.divergences: list[Divergence] = []
        self.other_agents: Counter[str] = Counter()
        self._told = told

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_told": None}  # That is this process's own.

    def add(self, batch: Sequence[StoredEvent], core_version: int | None) -> None:
        self.batches += 1
        self.events += len(batch)
        if core_version is not None:
            self.core_versions.add(core_version)
        if self._told is not None:
            self._told(self.streams, self.events)

    def add_divergences(self, divergences: Sequence[Divergence]) -> None:
        self.diverged += bool(divergences)
        self.divergences += divergences
        for divergence in divergences:
            self.kinds.add(divergence)

    def merge(self, later: "_Findings") -> None:
        """Add what was found in streams that come later."""
        for number in ("streams", "sessions", "batches", "events", "diverged"):
            setattr(self, number, getattr(self, number) + getattr(later, number))
        self.not_replayed += later.not_replayed
        self.other_agents += later.other_agents
        self.core_versions |= later.core_versions
        self.divergences += later.divergences
        if len(self.divergences) > 2 * DIVERGENCES_KEPT:
            self.divergences = _earliest(self.divergences)
        self.accepts.merge(later.accepts)
        self.kinds.merge(later.kinds)
        self.changes.merge(later.changes)
        self.tally.merge(later.tally)


def _earliest(divergences: Iterable[Divergence]) -> list[Divergence]:
    return sorted(divergences, key=lambda divergence: divergence.position)[:DIVERGENCES_KEPT]


def _told(findings: _Findings, progress: Told | None) -> Told | None:
    """Return what tells of a stream that is being done, beside those that are done."""
    if progress is None:
        return None
    return lambda streams, events: progress(findings.streams + streams, findings.events + events)


async def _only(head: StreamHead) -> AsyncGenerator[StreamHead, None]:
    yield head


async def _opened_deps(deps: object, stack: AsyncExitStack) -> object:
    from refold.agents.opened_deps import opened as opened_deps

    return await opened_deps(deps, "the replay", stack)


def _beginning(
    kinds: Mapping[str, StreamKind],
    level: Level,
    meant: MeantDifferences,
    agent: "AnyAgent | None",
    deps: object,
    answer_s: float,
    bundle: BundleManifest | None,
) -> "Begin":
    """Return what makes, in a child, what replays streams."""
    agents_of = _agents_of(agent, answer_s, deps, bundle) if agent is not None else None

    def begin(store: EventStore, page: "Page") -> "Work":
        agents = agents_of(store, page) if agents_of is not None else None

        async def work(head: StreamHead, gone: dict[str, str]) -> _Findings:
            findings = _Findings(Accepting(meant), lambda _, events: page.count(events))
            if agents is not None:
                agents.begin(findings.tally, findings.changes, findings.accepts, gone)
            return await _replay_stream(store, head, kinds, level, agents, findings)

        return work

    return begin


def _agents_of(
    agent: "AnyAgent", answer_s: float, deps: object, bundle: BundleManifest | None
) -> "Callable[[EventStore, Page], AgentsReplay]":
    from refold.replay.agent_replay import AgentsReplay

    return lambda store, page: AgentsReplay(store, agent, answer_s, deps, page.tell, bundle)


async def _replay_in_shadows(
    store: EventStore,
    heads: AsyncIterator[StreamHead],
    begin: "Begin",
    findings: _Findings,
    jobs: int,
    answer_s: float,
    told: Told | None,
) -> None:
    from refold.replay.shadow.process import in_shadows

    async with aclosing(in_shadows(store, heads, begin, processes=jobs, answer_s=answer_s, told=told)) as found:
        async for each in found:
            findings.merge(each)


async def _replay_stream(
    store: EventStore,
    head: StreamHead,
    kinds: Mapping[str, StreamKind],
    level: Level,
    agents: "AgentsReplay | None",
    findings: _Findings,
) -> _Findings:
    """Replay one stream; return what was found in it, which `findings` is for."""
    kind = kinds.get(kind_of(head.stream))
    if kind is None:
        findings.not_replayed[kind_of(head.stream)] += 1
        return findings
    if agents is not None and kind_of(head.stream) == SESSION_KIND:
        await _decide_session(store, head, findings, agents)
        return findings
    findings.streams += 1
    findings.sessions += kind_of(head.stream) == SESSION_KIND
    parted = 0
    stream_replay = CoreReplay(head.stream, kind.core, kind.codec, findings.accepts)
    async for batch in Batches(store, head.stream):
        own = batch[0].stream == head.stream  # What a fork begins with is decided again where it lies.
        divergence = stream_replay.fold(batch) if level == "fold" or not own else stream_replay.decide(batch)
        if own:
            findings.add(batch, stream_replay.core_version)
        if divergence is not None:
            findings.add_divergences([divergence])
            break
        if stream_replay.parted:
            parted += 1
            if parted > PARTED_MAX:
                findings.tally.miss("decision", event_ref(head.stream, batch[-1].version), AFTER_MEANT)
                break
            stream_replay = CoreReplay(head.stream, kind.core, kind.codec, findings.accepts)
            if not await caught_up(stream_replay, store, batch[-1]):
                break
    return findings


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
        if batch[0].stream == head.stream:
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
