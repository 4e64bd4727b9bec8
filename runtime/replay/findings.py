"""What a replay has found, counted while it goes on, and its report.

`Findings` takes what is found in one stream or in several, and adds up those of others. For people it puts together
what is one thing: a changed prompt makes every request of every session another one, and is one kind of difference.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, get_args

import msgspec

from refold.events.core.content import Json
from refold.events.core.difference import NOTHING, Difference
from refold.events.core.errors import DivergenceError
from refold.events.core.ids import StreamName
from refold.events.core.records import StoredEvent, event_ref
from refold.events.model.configuration import CORE_VERSION
from refold.replay.answers.asked import ModelsAsked
from refold.replay.comparing import (
    NOTHING_MEANT,
    AcceptedDifference,
    Accepting,
    ExpectedDifference,
    MeantDifferences,
    general_path,
)
from refold.tools.dry_run import ACTS_KEPT, RefusedAct

Level = Literal["fold", "core", "decide", "tools", "model", "live"]
"""How much is done again; the last four need an agent, and differ in from where answers of models and tools come."""

What = Literal[
    "admit", "input", "guardrail", "recall", "request", "summary", "answer", "model", "call", "result", "decision"
]
"""What is compared at level `decide`: whether today's agent does the same with what was recorded.

`admit`: what becomes of the commands that stimuli were made from. `input`: of what was sent, after `on_user_message`.
`guardrail`: which input guardrail trips. `recall`: what of the memories enters a request. `request`: what a model is
asked, after offer, window and `on_pre_llm`. `summary`: when a history is summarised, what is asked for it, and what it
is told as. `answer`: what becomes of a model's answer by `on_post_llm`, argument checks, policy, output type and output
guardrails. `model`: at levels `model` and `live`, what the model answers today. `call`: whether `on_tool_call` lets a
body run. `result`: of what a tool gave, after `on_tool_result` and the limit of results, and what skills say; at levels
`tools` and `live` of what the body of a pure tool gives today. `decision`: what the session's core decides under
today's configuration.
"""

REASONS_MAX = 50
"""Of each kind of comparison at most so many reasons are told apart."""

OTHER_REASONS = "other reasons"

AFTER_A_DIFFERENCE = "it follows a decision that differs"
"""Why the later decisions of a session are not compared."""

PARTED_MAX = 20
"""So often in one session the decisions go on behind one that is meant to be another; each time its log is read."""

AFTER_MEANT = f"it follows more than {PARTED_MAX} decisions that differ and are meant to"

Differs = Literal["history", "consequence", "missing", "extra", "pending", "failure"] | What
"""How today's code and a recorded batch differ.

`history`: what a model was sent of the history is not what its events add up to today. `consequence`: another event, or
another field. `missing`: recorded, and not decided now. `extra`: decided now, and not
recorded. `pending`: other effects in flight after the batch. `failure`: today's code fails on it.
"""

KINDS_MAX = 1_000
"""So many kinds of differences, and of changes, are told apart; more are not told."""

Told = Callable[[int, int], object]
"""Is called with how many streams were begun and how many events were done again."""

DIVERGENCES_KEPT = 100
"""Most divergences that a report holds; the others are only counted."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where today's code does not do what a stream recorded."""

    stream: StreamName
    version: int
    """Of the event that differs; where an event is `extra`, the version that it would have."""
    batch: int
    """Version of the stimulus that was fed to today's code."""
    position: int
    """Of that stimulus."""
    differs: Differs
    difference: Difference
    """Its path begins at the batch: `consequences[1].turn`, `pending[0]`; left is recorded, right is now."""
    recorded: Json = NOTHING
    """The whole event, or all pending keys, as recorded; left out where nothing was."""
    now: Json = NOTHING
    """The same as decided now; of a failure, the error's text, and where in the code it was raised."""
    core_version: int | None = None
    """`CORE_VERSION` of the code that recorded it, where the stream says."""

    def __str__(self) -> str:
        place = event_ref(self.stream, self.version)
        match self.differs:
            case "failure":
                return f"{place}: failure: {self.now}"
            case "missing" | "extra":
                return f"{place}: {self.differs}: {self.difference}"
            case _:  # The path begins with that word.
                return f"{place}: {self.difference}"


class NotCompared(msgspec.Struct, frozen=True, kw_only=True):
    """Why some comparisons could not be made."""

    why: str
    times: int
    first: str
    """The first place, such as `session/alice@12`."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """How often one thing was compared."""

    what: What
    compared: int = 0
    """How often it could be done again."""
    differ: int = 0
    """How often it then was not as recorded."""
    not_compared: tuple[NotCompared, ...] = ()
    """The reasons why it could not be, in the order in which they came up."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Something that code tried to do, and that was refused."""

    what: str
    """Such as `os.remove`, or `the tool weather`."""
    on: str
    """What it would have been done to the first time, such as a path; empty = `what` says it."""
    place: str
    """Where in the application's code: `shop/hooks.py:31 in Stock.on_pre_llm`; empty = nowhere in it."""
    comparison: What
    """What was being done again."""
    times: int
    first: str
    """The first place in the log, such as `session/alice@12`."""


class ToolResults(msgspec.Struct, frozen=True, kw_only=True):
    """From where the results of a tool came, at levels `tools` and `live`."""

    tool: str
    effect: str | None
    """Its effect class of today; None = there is no such tool any more."""
    today: int = 0
    """So many are what its body gives today."""
    recorded: int = 0
    """So many are the recorded ones: its effect is not `pure`, or the body could not run again."""


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
    results: tuple[ToolResults, ...] = ()
    """At levels `tools` and `live`: from where the results of each tool came."""
    asked: ModelsAsked | None = None
    """At levels `model` and `live`: how often models were asked."""
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

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        from refold.page.reports import framed_reports, reports_of_replay

        return framed_reports(reports_of_replay(self.log, self.divergences, self.missing()))

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


class Findings:
    """What a replay has found so far, of one stream or of several.

    Args:
        told: is called with how many streams were begun and how many events done.
    """

    def __init__(self, meant: MeantDifferences = NOTHING_MEANT, told: Told | None = None) -> None:
        self.accepts = Accepting(meant)
        self.streams = 0
        self.sessions = 0
        self.batches = 0
        self.events = 0
        self.diverged = 0
        self.core_versions: set[int] = set()
        self.not_replayed: Counter[str] = Counter()
        self.other_agents: Counter[str] = Counter()
        self._told = told
        self._divergences: list[Divergence] = []
        self._kinds: dict[tuple[Differs, str], tuple[int, Divergence]] = {}
        """How many streams differ so, and the first that does."""
        self._changes: dict[tuple[str, str], ConfigurationChange] = {}
        self._compared: Counter[What] = Counter()
        self._differ: Counter[What] = Counter()
        self._missed: dict[What, dict[str, tuple[int, str]]] = {}
        self._tried: dict[tuple[str, str, What], Tried] = {}
        self._results: dict[str, ToolResults] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_told": None}  # That is this process's own.

    def done(self, batch: Sequence[StoredEvent], core_version: int | None) -> None:
        """Count a batch that was done again, and the version of the code that recorded it."""
        self.batches += 1
        self.events += len(batch)
        if core_version is not None:
            self.core_versions.add(core_version)
        if self._told is not None:
            self._told(self.streams, self.events)

    def differs(self, divergences: Sequence[Divergence]) -> None:
        """Take the divergences of a stream, of each kind one."""
        self.diverged += bool(divergences)
        self._divergences += divergences
        for each in divergences:
            self._add_kind((each.differs, general_path(each.difference.path)), 1, each)

    def compared(self, what: What, *, differs: bool) -> None:
        """Count a comparison of what an agent decides."""
        self._compared[what] += 1
        self._differ[what] += differs

    def miss(self, what: What, place: str, why: str, times: int = 1) -> None:
        """Count one that could not be made."""
        reasons = self._missed.setdefault(what, {})
        if why not in reasons and len(reasons) >= REASONS_MAX:
            why = OTHER_REASONS
        before, first = reasons.get(why, (0, place))
        reasons[why] = (before + times, first)

    def refused(self, what: What, place: str, acts: Sequence[RefusedAct]) -> None:
        """Count what code tried instead of giving an answer."""
        for act in acts:
            self._add_tried(Tried(what=act.what, on=act.on, place=act.place, comparison=what, times=1, first=place))

    def gave(self, tool: str, effect: str | None, *, today: bool) -> None:
        """Count a result of a tool: what its body gives today, or what is recorded of it."""
        self._add_results(ToolResults(tool=tool, effect=effect, today=int(today), recorded=int(not today)))

    def changed(self, agent: str, place: str, found: Sequence[Difference], known: set[str]) -> None:
        """Count what differs in a configuration of a session.

        Args:
            known: paths that were counted for the session; is added to.
        """
        for each in found:
            if each.path not in known:
                known.add(each.path)
                self._add_change(
                    ConfigurationChange(
                        agent=agent, path=each.path, left=each.left, right=each.right, sessions=1, first=place
                    )
                )

    def merge(self, later: "Findings") -> None:
        """Add what was found in streams that come later."""
        for number in ("streams", "sessions", "batches", "events", "diverged"):
            setattr(self, number, getattr(self, number) + getattr(later, number))
        self.core_versions |= later.core_versions
        self.accepts.merge(later.accepts)
        self.not_replayed.update(later.not_replayed)
        self.other_agents.update(later.other_agents)
        self._compared.update(later._compared)
        self._differ.update(later._differ)
        self._divergences += later._divergences
        if len(self._divergences) > 2 * DIVERGENCES_KEPT:
            self._divergences = _earliest(self._divergences)
        for key, (streams, first) in later._kinds.items():
            self._add_kind(key, streams, first)
        for change in later._changes.values():
            self._add_change(change)
        for what, reasons in later._missed.items():
            for why, (times, place) in reasons.items():
                self.miss(what, place, why, times)
        for tried in later._tried.values():
            self._add_tried(tried)
        for results in later._results.values():
            self._add_results(results)

    def _add_kind(self, key: tuple[Differs, str], more: int, divergence: Divergence) -> None:
        streams, first = self._kinds.get(key, (0, divergence))
        if streams or len(self._kinds) < KINDS_MAX:
            self._kinds[key] = (streams + more, min(first, divergence, key=_position))

    def _add_change(self, change: ConfigurationChange) -> None:
        key = (change.agent, change.path)
        before = self._changes.get(key)
        if before is not None:
            self._changes[key] = msgspec.structs.replace(before, sessions=before.sessions + change.sessions)
        elif len(self._changes) < KINDS_MAX:
            self._changes[key] = change

    def _add_tried(self, tried: Tried) -> None:
        key = (tried.what, tried.place, tried.comparison)
        before = self._tried.get(key)
        if before is not None:
            self._tried[key] = msgspec.structs.replace(before, times=before.times + tried.times)
        elif len(self._tried) < ACTS_KEPT:
            self._tried[key] = tried

    def _add_results(self, more: ToolResults) -> None:
        known = self._results.get(more.tool)
        if known is not None:
            today, recorded = known.today + more.today, known.recorded + more.recorded
            more = msgspec.structs.replace(known, today=today, recorded=recorded)
        self._results[more.tool] = more

    def comparisons(self) -> tuple[Compared, ...]:
        """Return what was compared, and what could not be, in a fixed order; what never came up is left out."""
        return tuple(
            Compared(
                what=what,
                compared=self._compared[what],
                differ=self._differ[what],
                not_compared=tuple(
                    NotCompared(why=why, times=times, first=first)
                    for why, (times, first) in self._missed.get(what, {}).items()
                ),
            )
            for what in get_args(What)
            if what in self._compared or what in self._missed
        )

    def report(
        self, log: str, level: Level, kinds_without_streams: tuple[str, ...], asked: ModelsAsked | None
    ) -> ReplayReport:
        """Return the report of all that was found."""
        kinds = sorted(self._kinds.items(), key=lambda item: (_position(item[1][1]), item[0][1]))
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
            divergences=tuple(_earliest(self._divergences)),
            compared=self.comparisons(),
            tried=tuple(self._tried.values()),
            results=tuple(self._results[name] for name in sorted(self._results)),
            asked=asked,
            sessions=self.sessions,
            other_agents=dict(sorted(self.other_agents.items())),
            kinds=tuple(
                KindOfDifference(
                    differs=differs,
                    path=path,
                    streams=streams,
                    first=event_ref(first.stream, first.version),
                    said=str(first.difference),
                )
                for (differs, path), (streams, first) in kinds
            ),
            changes=tuple(self._changes.values()),
            accepted=self.accepts.accepted,
            unmet=self.accepts.unmet,
        )


def _position(divergence: Divergence) -> int:
    return divergence.position


def _earliest(divergences: Iterable[Divergence]) -> list[Divergence]:
    return sorted(divergences, key=_position)[:DIVERGENCES_KEPT]
