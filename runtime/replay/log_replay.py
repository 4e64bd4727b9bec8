"""Replay: a log, done again with today's code.

    report = await replay("events.db")
    report.raise_for_divergence()

Level `fold` folds every stream: the state only. Level `core` feeds every recorded stimulus to today's `evolve`, `react`
and `pending`, and compares the consequences and the effects in flight with the recorded ones. Commands are not in the
log: those of Refold's own kinds are made again from their stimuli for `admit`, and those of a user's are not. No
provider and no tool runs at any level, and at these two of a user's code only the cores that the caller names:
`await replay("books.db", kinds={"book": OrderBook})`.

Level `decide` takes an agent, `await replay("events.db", agent=agent)`, and makes a dry run of what of it decides on
what its sessions, and those of its subagents, recorded; see `refold.replay.agent_replay`. All other streams are decided
again as at level `core`. The levels above it do the same, but not all that comes from outside is the recorded one: at
level `tools` the bodies of pure tools run again, at level `model` the models are asked again, at level `live` both.

Read `refold.replay.core_replay` for how one stream is compared, and `refold.inspection.kinds` for which streams can be.
The rule: what was not replayed is said in the report.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, cast, get_args

from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.errors import ConfigError, quoted
from refold.events.core.pure_core import PureCore
from refold.events.core.records import StreamHead, event_ref
from refold.events.model.spending import TreeBudget
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
from refold.replay.answers.asked import RECORDED, AnswersFrom, LogWithModels, Spending, asked_models, with_models
from refold.replay.comparing import NOTHING_MEANT, TAKEN_OUT, MeantDifferences
from refold.replay.core_replay import CoreReplay, caught_up
from refold.replay.findings import AFTER_MEANT, PARTED_MAX, Divergence, Findings, Level, ReplayReport, Told
from refold.replay.manifest import BundleManifest, read_manifest
from refold.stores.event_store import EventStore
from refold.stores.past_state import past_state
from refold.stores.sqlite.file import is_bundle
from refold.tools.dry_run import ANSWER_S

if TYPE_CHECKING:
    from refold.agents.agent import AnyAgent
    from refold.replay.current_agent import AgentsReplay
    from refold.replay.shadow.process import Begin, Page, Work

ANSWERS: Mapping[Level, AnswersFrom] = {
    "decide": RECORDED,
    "tools": AnswersFrom(tools=True),
    "model": AnswersFrom(models=True),
    "live": AnswersFrom(tools=True, models=True),
}
"""The levels that look at an agent."""


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
    budget: TreeBudget | None = None,
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
        budget: how much models may take at levels `model` and `live`, all together; its `turns` are requests. Once a
            limit is reached no further one is sent, and what is left counts as not compared.

    Raises:
        ConfigError: there is no such session, stream or level, a kind cannot work, an agent or a budget is missing or
            too many, a provider cannot work, or `deps` cannot be opened.
        LogFormatError: the file is no log, or an event in it cannot be decoded; `check_log` says what else is wrong.
        PersistenceError: the log cannot be read.
    """
    level = _checked_level(level, agent, budget)
    if deps is not None and agent is None:
        raise ConfigError("only an agent's code depends on something; name it by agent= or --agent, or leave deps out")
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
        findings = Findings(meant)
        told = _told(findings, progress)
        spending = Spending(budget) if budget is not None else None
        if agent is None and jobs == 1:
            async for head in heads:
                findings.merge(await _replay_stream(store, head, known, level, None, Findings(meant, told)))
        else:
            if deps is not None:
                from refold.agents.opened_deps import opened as opened_deps

                deps = await opened_deps(deps, "the replay", stack)
            bundle = read_manifest(log) if is_bundle(log) else None
            begin = _beginning(known, level, meant, agent, deps, answer_s, bundle)
            served = with_models(store, agent, spending) if agent is not None and spending is not None else store
            await _replay_in_shadows(served, heads, begin, findings, jobs, answer_s, told)
        without_streams = await kinds_without_streams(store, kinds) if kinds else ()
        asked = asked_models(spending) if spending is not None else None
        return findings.report(store.name, level, without_streams, asked)


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


def _told(findings: Findings, progress: Told | None) -> Told | None:
    """Return what tells of a stream that is being done, beside those that are done."""
    if progress is None:
        return None
    return lambda streams, events: progress(findings.streams + streams, findings.events + events)


async def _only(head: StreamHead) -> AsyncGenerator[StreamHead, None]:
    yield head


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
    agents_of = _agents_of(agent, answer_s, deps, bundle, ANSWERS[level]) if agent is not None else None

    def begin(store: EventStore, page: "Page") -> "Work":
        agents = agents_of(store, page) if agents_of is not None else None

        async def work(head: StreamHead, gone: dict[str, str]) -> Findings:
            findings = Findings(meant, lambda _, events: page.count(events))
            if agents is not None:
                agents.begin(findings, gone)
            return await _replay_stream(store, head, kinds, level, agents, findings)

        return work

    return begin


def _agents_of(
    agent: "AnyAgent", answer_s: float, deps: object, bundle: BundleManifest | None, answers: AnswersFrom
) -> "Callable[[EventStore, Page], AgentsReplay]":
    from refold.replay.current_agent import AgentsReplay

    def make(store: EventStore, page: "Page") -> AgentsReplay:
        ask = cast("LogWithModels", store).answer if answers.models else None
        return AgentsReplay(store, agent, answer_s, deps, page.tell, bundle, answers, ask)

    return make


async def _replay_in_shadows(
    store: EventStore,
    heads: AsyncIterator[StreamHead],
    begin: "Begin",
    findings: Findings,
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
    findings: Findings,
) -> Findings:
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
            findings.done(batch, stream_replay.core_version)
        if stream_replay.taken_out:
            findings.miss("admit", event_ref(head.stream, batch[0].version), TAKEN_OUT)
        if divergence is not None:
            findings.differs([divergence])
            break
        if stream_replay.parted:
            parted += 1
            if parted > PARTED_MAX:
                findings.miss("decision", event_ref(head.stream, batch[-1].version), AFTER_MEANT)
                break
            stream_replay = CoreReplay(head.stream, kind.core, kind.codec, findings.accepts)
            if not await caught_up(stream_replay, store, batch[-1]):
                break
    else:
        why = agents.set_otherwise(head.stream, stream_replay.state) if agents is not None else None
        if why is not None:
            findings.miss("decision", event_ref(head.stream, head.version), why)
    return findings


async def _decide_session(store: EventStore, head: StreamHead, findings: Findings, agents: "AgentsReplay") -> None:
    from refold.replay.agent_replay import AgentReplay

    again: AgentReplay | None = None
    divergences: list[Divergence] = []
    async for batch in Batches(store, head.stream):
        if again is None:
            opened_by = SESSION_CODEC.decode(batch[0])
            agent = opened_by.agent if isinstance(opened_by, SessionOpened) else ""
            current = agents.current(agent)
            if current is None:
                findings.other_agents[agent] += 1
                return
            again = AgentReplay(head.stream, current, agents)
            findings.streams += 1
            findings.sessions += 1
        divergences += await again.take(batch)
        if batch[0].stream == head.stream:
            findings.done(batch, again.core_version)
    if again is not None:
        divergences += await again.finish()
    findings.differs(divergences)


def _checked_level(level: Level | None, agent: "AnyAgent | None", budget: TreeBudget | None) -> Level:
    if level is None:
        level = "core" if agent is None else "decide"
    if level not in get_args(Level):
        raise ConfigError(f"there is no replay level {quoted(level)}; use {', '.join(map(repr, get_args(Level)))}")
    if level in ANSWERS and agent is None:
        raise ConfigError(f'level "{level}" needs the agent whose code is to decide; name it by agent= or --agent')
    if level not in ANSWERS and agent is not None:
        raise ConfigError(f'level "{level}" runs no agent; leave agent out, or use "decide"')
    asks = level in ANSWERS and ANSWERS[level].models
    if asks and budget is None:
        raise ConfigError(
            f'level "{level}" asks models, which costs; give budget=, such as TreeBudget(cost=1.0), or '
            "TreeBudget(turns=100) for so many requests (`model_requests` counts those of a log)"
        )
    if budget is not None and not asks:
        raise ConfigError(f'level "{level}" asks no model; leave budget out, or use "model" or "live"')
    return level
