"""Some sessions of a log tried again with today's agent: its real model, and recorded results of tools.

    report = await try_agent("events.db", agent=support, sessions=20, budget=TreeBudget(cost=2.0))

Read `refold.replay.trial.beginning` for which sessions are tried, and `going_on` for how one goes on. The rules: the
log is only read; nothing but models is reached, and those by this process, before each call of which the budget is
looked at, over all sessions; and what was not tried is told.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import cast

import msgspec

from refold.agents.agent import AnyAgent, with_subagents
from refold.agents.opened_deps import opened as opened_deps
from refold.events.core.content import text_of, tool_uses
from refold.events.core.errors import ConfigError
from refold.events.core.ids import SessionId, stream_name
from refold.events.core.records import StreamHead
from refold.events.model.messages import Usage
from refold.events.model.spending import TreeBudget, cost_of, price_of
from refold.events.session import events as ev
from refold.events.session.core import SESSION_KIND, fold
from refold.events.session.events import ModelResponded
from refold.inspection.log_reading import ReadableLog, opened, session_head
from refold.inspection.session_view import events_until
from refold.lineage.recorded import whole_content
from refold.lineage.session_diff import DiffPart, diff
from refold.replay.answers.asked import Spending, paid_models
from refold.replay.current_agent import AgentsReplay
from refold.replay.findings import Findings
from refold.replay.manifest import BundleManifest, read_manifest
from refold.replay.shadow.process import Page, Work, in_shadows
from refold.replay.trial.beginning import (
    Candidate,
    Candidates,
    FirstDifference,
    Script,
    candidates_of,
    first_difference,
    script_of,
)
from refold.replay.trial.going_on import LogAndModel, RecordedWorld, Stopped, WentOn, go_on
from refold.replay.trial.report import PARTS_KEPT, CallMade, TrialReport, TriedSession, TriedSide, TriedStatus
from refold.replay.trial.rules import Rule, judged, require_tools, rule_of
from refold.stores.event_store import EventStore
from refold.stores.memory import InMemoryStore
from refold.stores.sqlite.file import is_bundle
from refold.tools.dry_run import ANSWER_S

SESSIONS = 20
"""So many sessions are tried unless the caller says otherwise."""


async def try_agent(
    log: ReadableLog,
    *,
    agent: AnyAgent,
    budget: TreeBudget,
    sessions: int = SESSIONS,
    session: str | None = None,
    fail_if: Sequence[str] = (),
    deps: object = None,
    answer_s: float = ANSWER_S,
    jobs: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> TrialReport:
    """Try some sessions of a log again with today's agent and its real model, and return what came of it.

    Chosen is one session of each kind of path, then a second of each, and so on. Each goes on, in a log in memory, from
    before the first place where the agent does otherwise today; one in which nothing differs costs nothing, and another
    is tried in its place. Tools give what was recorded, people decide as they did, and what users said later is said
    again. The agent's code runs in a child process that can write nothing and reach nothing.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use; it is only read.
        agent: today's; its subagents belong to it, and their sessions are tried by themselves.
        budget: how much all sessions together may spend; `turns` are model calls. It is looked at before each call, so
            that what is in flight then, one call for each job, still counts.
        sessions: how many are tried, at least 1.
        session: only this one; None = those that are chosen.
        fail_if: rules by which the trial fails, such as `charge called more`; see `refold.replay.trial.rules`.
        deps: what its functions depend on, as `refold.replay.replay` has it.
        answer_s: how many seconds a piece of its code may take, > 0.
        jobs: so many sessions are tried at once.
        progress: called with how many sessions were tried, and how many model calls made.

    Raises:
        ConfigError: a rule is none, there is no such session or none of the agent, the budget has no limit, or one of
            the cost and the agent no prices; or `deps` cannot be opened.
        LogFormatError: the log is damaged.
        PersistenceError: it cannot be read.
    """
    trial = Trial(
        agent, budget, sessions=sessions, fail_if=fail_if, deps=deps, answer_s=answer_s, jobs=jobs, progress=progress
    )
    await trial.run(log, session)
    return trial.report()


class Trial:
    """A trial under way, whose report can be asked for at any time; see `try_agent`.

    Raises:
        ConfigError: an argument makes no sense.
    """

    def __init__(
        self,
        agent: AnyAgent,
        budget: TreeBudget,
        *,
        sessions: int = SESSIONS,
        fail_if: Sequence[str] = (),
        deps: object = None,
        answer_s: float = ANSWER_S,
        jobs: int = 1,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        if sessions < 1:
            raise ConfigError(f"at least 1 session is tried, not {sessions}")
        if jobs < 1:
            raise ConfigError(f"jobs must be at least 1, not {jobs}")
        if budget == TreeBudget():
            raise ConfigError("a trial needs a budget: a limit of the cost, of tokens, or of model calls (turns)")
        self._agents = {each.name: each for each in with_subagents(agent)}
        self._spending = Spending(budget)
        self._models = paid_models(self._agents.values(), self._spending, lambda each: each.provider)
        self._agent = agent
        self._wanted = sessions
        self._rules: tuple[Rule, ...] = tuple(map(rule_of, fail_if))
        self._deps = deps
        self._answer_s = answer_s
        self._jobs = jobs
        self._progress = progress
        self._log = ""
        self._candidates = Candidates(ordered=(), paths=0, forks=0, others={})
        self._unchanged = 0
        self._not_compared: list[str] = []
        self._tried: list[TriedSession] = []
        self._by_budget = False
        self._is_over = False

    async def run(self, log: ReadableLog, session: str | None = None) -> None:
        """Try the sessions of a log; raises as `try_agent`."""
        async with opened(log) as store, AsyncExitStack() as stack:
            self._log = store.name
            only = await session_head(store, session) if session is not None else None
            found = self._candidates = await candidates_of(store, self._agents, only)
            if not found.ordered:
                others = ", ".join(map(repr, found.others))
                raise ConfigError(
                    f"the log {store.name} has no session of the agent {self._agent.name!r}"
                    + (f"; there are those of {others}" if others else "")
                )
            deps = self._deps
            if deps is not None:
                deps = await opened_deps(deps, "the trial", stack)
            chosen = await self._chosen(store, deps, read_manifest(log) if is_bundle(log) else None)
            require_tools(self._rules, await self._known_tools(store, chosen))
            await self._try(store, chosen, deps)
        self._is_over = True

    def report(self) -> TrialReport:
        """Return what has come of it so far."""
        found = self._candidates
        return TrialReport(
            log=self._log,
            agent=self._agent.name,
            wanted=self._wanted,
            sessions=len(found.ordered),
            paths=found.paths,
            forks=found.forks,
            unchanged=self._unchanged,
            not_compared=tuple(self._not_compared),
            tried=tuple(self._tried),
            limits=_limits_in_words(self._spending.budget),
            calls=self._spending.calls,
            usage=self._spending.usage,
            cost=self._spending.cost,
            ended="budget" if self._by_budget else "" if self._is_over else "interrupted",
            rules=tuple(judged(rule, self._tried) for rule in self._rules),
        )

    async def _chosen(self, store: EventStore, deps: object, bundle: BundleManifest | None) -> "list[_Job]":
        """Return the sessions that are tried, in their order: the first in which something differs today."""
        chosen: list[_Job] = []

        async def candidates() -> AsyncGenerator[Candidate, None]:
            for each in self._candidates.ordered:
                yield each

        begin = _finding(self._agent, deps, self._answer_s, bundle)
        looking = in_shadows(store, candidates(), begin, processes=self._jobs, answer_s=self._answer_s, told=None)
        async with aclosing(looking) as found:
            async for candidate, first in found:
                if first.batch:
                    chosen.append(_Job(candidate, first))
                elif first.missing:
                    self._not_compared.append(f"{candidate.session}: not compared: {first.missing[0]}")
                else:
                    self._unchanged += 1
                if len(chosen) == self._wanted:
                    break
        return chosen

    async def _known_tools(self, store: EventStore, chosen: "Sequence[_Job]") -> set[str]:
        known = {tool.name for each in self._agents.values() for tool in each.all_tools()}
        if any(rule.tool not in known for rule in self._rules if rule.tool):
            for job in chosen:
                head = await _head(store, job.candidate)
                then = await events_until(store, head.stream, head.version)
                answers = [event.content for event in then if isinstance(event, ModelResponded)]
                known |= {use.name for content in answers for use in tool_uses(content)}
        return known

    async def _try(self, store: EventStore, chosen: "Sequence[_Job]", deps: object) -> None:
        async def jobs() -> "AsyncGenerator[_Job, None]":
            for job in chosen:
                yield job

        asking = LogAndModel(store, self._models)
        begin = _trying(self._agent, deps, self._answer_s)
        trying = in_shadows(
            cast("EventStore", asking), jobs(), begin, processes=self._jobs, answer_s=self._answer_s, told=None
        )
        async with aclosing(trying) as found:
            async for tried, by_budget in found:
                self._tried.append(tried)
                self._by_budget = self._by_budget or by_budget
                if self._progress is not None:
                    self._progress(len(self._tried), self._spending.calls)


class _Job(msgspec.Struct, frozen=True):
    candidate: Candidate
    first: FirstDifference


def _finding(
    agent: AnyAgent, deps: object, answer_s: float, bundle: BundleManifest | None
) -> Callable[[EventStore, Page], Work]:
    """Return what finds, in a child, where sessions first differ."""

    def begin(store: EventStore, page: Page) -> Work:
        agents = AgentsReplay(store, agent, answer_s, deps, page.tell, bundle)

        async def work(candidate: Candidate, gone: dict[str, str]) -> tuple[Candidate, FirstDifference]:
            agents.begin(Findings(), gone)
            return candidate, await first_difference(agents, store, await _head(store, candidate))

        return work

    return begin


def _trying(agent: AnyAgent, deps: object, answer_s: float) -> Callable[[EventStore, Page], Work]:
    """Return what has, in a child, sessions go on."""

    def begin(store: EventStore, page: Page) -> Work:
        async def work(job: _Job, gone: dict[str, str]) -> tuple[TriedSession, bool]:
            head = await _head(store, job.candidate)
            script = await script_of(store, head, job.first)
            then = await events_until(store, head.stream, head.version)
            world = await RecordedWorld.read(store, then, script.at)
            place = f"session {job.candidate.session}"
            model = cast("LogAndModel", store)
            if place in gone:
                went = WentOn(scratch=InMemoryStore(), steps=0, stopped=Stopped(gone[place]), acts=(), guessed=0)
            else:
                went = await go_on(store, model, head, script, world, agent, deps, page, answer_s)
            tried = await _beside(store, head, job.candidate, job.first, script, then, went, agent)
            return tried, went.stopped is not None and went.stopped.by_budget

        return work

    return begin


async def _beside(
    log: EventStore,
    head: StreamHead,
    candidate: Candidate,
    first: FirstDifference,
    script: Script,
    then: Sequence[ev.SessionEvent],
    went: WentOn,
    agent: AnyAgent,
) -> TriedSession:
    """Return both sides of a session that was tried again.

    Args:
        then: all of its events, as they were recorded.
        agent: today's; its prices are for what the log has no cost of.
    """
    done = script.steps[: went.steps + (went.stopped is not None)]
    end = done[-1].ended if done else script.at
    now_head = await went.scratch.head(head.stream)
    now_version = now_head.version if now_head is not None else 0
    now = await events_until(went.scratch, head.stream, now_version)
    parts: tuple[DiffPart, ...] = ()
    found = 0
    session = SessionId(candidate.session)
    if end and now_version:
        both = await diff(log, session, session, right_log=went.scratch, left_at=end, right_at=now_version)
        told = [part for part in both.parts if part.what != "note"]  # That it went on by hand, and with what.
        if went.stopped is not None:  # What is missing might still have come.
            told = [part for part in told if part.right is not None and not part.words.endswith(("-]", NO_RESULT))]
        parts, found = tuple(told[:PARTS_KEPT]), len(told)
    status: TriedStatus = "ended"
    if went.stopped is not None:
        status = "stopped" if now_version > script.at else "not begun"
    return TriedSession(
        session=session,
        path=candidate.path,
        like=candidate.like,
        words=candidate.words,
        first=first.words,
        at=script.at,
        status=status,
        why=went.stopped.why if went.stopped is not None else "",
        then=await _side(log, list(then[:end]), script.at, agent),
        now=await _side(went.scratch, now, script.at, agent),
        guessed=went.guessed,
        parts=parts,
        found=found,
        acts=went.acts,
    )


async def _side(store: EventStore, events: Sequence[ev.SessionEvent], at: int, agent: AnyAgent) -> TriedSide:
    own = events[at:]
    answered = [event for event in own if isinstance(event, ev.ModelResponded)]
    usage = sum((each.usage for each in own if isinstance(each, _SPENT)), Usage())
    cost = fold(events).cost - (fold(events[:at]).cost if at else 0.0)
    if not cost:
        prices = agent.config.prices
        models = [each.configuration.model for each in events if isinstance(each, ev.AgentConfigured)]
        default = models[-1] if models else agent.config.model
        cost = sum(
            cost_of(each.usage, price_of(getattr(each, "model", None) or default, prices))
            for each in own
            if isinstance(each, _SPENT)
        )
    return TriedSide(
        outcomes=tuple(
            f"failed ({each.kind})" if isinstance(each, ev.RunFailed) else _OUTCOMES[type(each)]
            for each in own
            if isinstance(each, ev.TerminalEvent)
        ),
        answers=tuple([await _final(store, own, each) for each in own if isinstance(each, ev.TerminalEvent)]),
        calls=tuple(CallMade(use.name, use.input) for each in answered for use in tool_uses(each.content)),
        turns=len(answered),
        usage=usage,
        cost=cost,
    )


NO_RESULT = "{+(no result)+}"

_SPENT = (ev.ModelResponded, ev.ContextPrepared, ev.ModelInterrupted)

_OUTCOMES: dict[type[ev.SessionEvent], str] = {ev.RunCompleted: "completed", ev.RunCancelled: "cancelled"}


async def _final(store: EventStore, events: Sequence[ev.SessionEvent], end: ev.TerminalEvent) -> str:
    """Return the text with which a run ended; that of a tool where one ended it, and none where it did not complete."""
    if not isinstance(end, ev.RunCompleted):
        return ""
    last: ev.ModelResponded | ev.ToolCallCompleted | None = None
    for event in events:
        if event is end:
            break
        if isinstance(event, ev.ModelResponded) or (isinstance(event, ev.ToolCallCompleted) and event.ends_run):
            last = event
    if last is None:
        return ""
    return text_of(await whole_content(store, last.content)).strip()


async def _head(store: EventStore, candidate: Candidate) -> StreamHead:
    head = await store.head(stream_name(SESSION_KIND, candidate.session))
    assert head is not None, "it was there when it was chosen"
    return head


def _limits_in_words(budget: TreeBudget) -> str:
    limits: Iterable[tuple[str, object]] = (
        ("cost {:g}", budget.cost),
        ("{:,} tokens", budget.tokens),
        ("{:,} model calls", budget.turns),
    )
    return ", ".join(words.format(limit) for words, limit in limits if limit is not None)
