"""Which sessions of a log are tried, where each first does otherwise today, and from which place it can go on.

One of each kind of path comes first, so that a few stand for many. The path of a session is what happened in it,
without the words: which tools were called and how their calls ended, what people decided, what was tried again, and how
runs ended. Sessions with the same path are of one kind. The rule: the same log gives the same choice, in the same
order.

A session goes on from a place at which a model was being asked, or at which nothing was going on. Where the first
difference is in the request, that is just before the model was asked; where it is in what today's code makes of the
same answer, also before it, and the recorded answer is given again; so no money is spent for what does not differ.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from refold.events.core.content import UserContent, tool_uses
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import RunId, SessionId, kind_and_identifier
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.model.configuration import RunOptions
from refold.events.model.messages import ModelResponse
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_KIND, fold
from refold.events.session.state import run_of_input
from refold.inspection.log_reading import Batches, Streams
from refold.lineage.recorded import recorded_answer
from refold.replay.agent_replay import AgentReplay
from refold.replay.current_agent import AgentsReplay
from refold.stores.event_store import EventStore

ASKED_ANEW = frozenset({"request", "recall", "summary", "guardrail"})
"""Differences of what a model is asked, so that its recorded answer is none to it."""


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session first does otherwise today."""

    batch: int
    """Version of the stimulus; 0 = nothing differs."""
    differs: tuple[str, ...] = ()
    """What is compared, and differs there."""
    words: str = ""
    missing: tuple[str, ...] = ()
    """What could not be compared before it, in words."""


class RunAgain(msgspec.Struct, frozen=True, kw_only=True):
    """One run that is done again."""

    run: RunId
    """As it was recorded."""
    ended: int
    """Version of the event that ended it then."""
    content: tuple[UserContent, ...] = ()
    """What the user said; empty = the run is open at the beginning already."""
    options: RunOptions | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """How a session goes on from the place before its first difference."""

    at: int
    """Version of the last event that is kept."""
    position: int
    """Of that event in the log."""
    time: int
    """Of the first event behind it, in microseconds since the epoch."""
    given: ModelResponse | None
    """What the first model call is answered with; None = the model is asked."""
    steps: tuple[RunAgain, ...]
    why: str = ""
    """Why it does not go further than these steps; empty = they are all."""


async def first_difference(agents: AgentsReplay, store: EventStore, head: StreamHead) -> FirstDifference:
    """Return where a session first does otherwise today, by a dry run."""
    again: AgentReplay | None = None
    async for batch in Batches(store, head.stream):
        if again is None:
            first = SESSION_CODEC.decode(batch[0])
            current = agents.current(first.agent if isinstance(first, ev.SessionOpened) else "")
            if current is None:
                return FirstDifference(batch=0, missing=("it is no session of the agent",))
            again = AgentReplay(head.stream, current, agents)
        found = await again.take(batch)
        if found:
            return FirstDifference(
                batch=batch[0].version, differs=tuple(each.differs for each in found), words=str(found[0])
            )
    missing = [f"{each.what}: {why.why}" for each in agents.findings.comparisons() for why in each.not_compared]
    return FirstDifference(batch=0, missing=tuple(missing))


async def script_of(store: EventStore, head: StreamHead, first: FirstDifference) -> Script:
    """Return how a session goes on from before its first difference."""
    place: _Place | None = None
    batches: list[tuple[Sequence[StoredEvent], list[ev.SessionEvent]]] = []
    async for batch in Batches(store, head.stream):
        events = SESSION_CODEC.decode_all(batch)
        batches.append((batch, events))
        place = place or _Place(batch[-1].version)
        if batch[0].version <= first.batch:
            place.pass_by(batch, events, is_first=batch[0].version == first.batch, differs=first.differs)
    if place is None:
        raise LogFormatError(f"{head.stream} has no events")
    at, answer = place.chosen
    kept = [event for batch, events in batches if batch[-1].version <= at for event in events]
    behind = [(batch, events) for batch, events in batches if batch[0].version > at]
    state = fold(kept)
    steps, why = _steps(behind, None if state.run is None else state.run.id, [each.run for each in state.queue])
    if state.run is not None and state.run.turns_allowed is not None:
        steps, why = [], "the run goes on step by step only"
    return Script(
        at=at,
        position=max(batch[-1].position for batch, _ in batches if batch[-1].version <= at),
        time=behind[0][0][0].at if behind else state.at,
        given=await recorded_answer(store, answer) if answer is not None else None,
        steps=tuple(steps),
        why=why,
    )


class _Place:
    """Finds the last place before the first difference from which a session can go on."""

    def __init__(self, first: int) -> None:
        """Begin at the end of the first batch, which opens the session."""
        self._first = first
        self.chosen: tuple[int, ev.ModelResponded | None] = (first, None)
        """Version of the last event that is kept, and the answer that is given again."""
        self._end = first
        """Version of the last event before the present batch that is more than evidence."""
        self._open = False

    def pass_by(
        self, batch: Sequence[StoredEvent], events: list[ev.SessionEvent], *, is_first: bool, differs: Sequence[str]
    ) -> None:
        stimulus = events[0]
        match stimulus:
            case ev.ModelResponded():
                anew = is_first and not ASKED_ANEW.isdisjoint(differs)
                self.chosen = (self._end, None if anew else stimulus)
            case ev.ModelFailed() | ev.ContextPrepared() | ev.GuardrailTripped():
                self.chosen = (self._end, None)
            case _ if not self._open and batch[0].version > self._first:
                self.chosen = (self._end, None)
            case _:
                pass
        for event in events:
            if isinstance(event, ev.RunStarted):
                self._open = True
            elif isinstance(event, ev.TerminalEvent):
                self._open = False
        if not isinstance(stimulus, ev.RequestBuilt):
            self._end = batch[-1].version


def _steps(
    behind: Sequence[tuple[Sequence[StoredEvent], list[ev.SessionEvent]]], run: RunId | None, queued: Sequence[RunId]
) -> tuple[list[RunAgain], str]:
    """Return the runs that are to be done again, and why no more are."""
    wanted: list[tuple[RunId, ev.InputQueued | None]] = [(each, None) for each in [run, *queued] if each is not None]
    ended: dict[RunId, int] = {}
    cancelled: set[RunId] = set()
    stops: dict[RunId, str] = {}
    last_of: dict[RunId, str] = {}
    last = ""
    for batch, events in behind:
        for version, event in enumerate(events, batch[0].version):
            match event:
                case ev.InputQueued(joins=joins) if joins is not None:
                    stops[joins] = f"what the user said at version {version} joined the run while it was under way"
                case ev.InputQueued(scheduled=scheduled):
                    wanted.append((run_of_input(scheduled or version), event))
                    if event.stepwise:
                        stops[wanted[-1][0]] = "the run goes on step by step only"
                case ev.CancelRequested(run=of):
                    cancelled.add(of)
                case ev.RunCompleted(run=of) | ev.RunFailed(run=of) | ev.RunCancelled(run=of):
                    ended[of] = version
                case ev.HistoryImported() | ev.HistoryCleared() | ev.HistoryRewound():
                    last = last or f"the history was changed by hand at version {version}"
                    if wanted:
                        last_of.setdefault(wanted[-1][0], last)
                    else:
                        return [], last
                case _:
                    pass
    steps: list[RunAgain] = []
    for of, said in wanted:
        if of in cancelled:
            return steps, f"{of} was cancelled by a person then"
        if of not in ended:
            return steps, f"{of} has no end in the log"
        if of in stops:
            return steps, stops[of]
        content = () if said is None else said.original or said.content
        steps.append(RunAgain(run=of, ended=ended[of], content=content, options=said.options if said else None))
        if (why := last_of.get(of)) is not None:
            return steps, why
    return steps, ""


STEPS_TOLD = 30
"""So many steps of a path are told in words."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A session that may be tried."""

    session: SessionId
    path: int
    """The number of its kind of path, from 1; the kind that most sessions have is the first."""
    like: int
    """How many sessions of the log have that path."""
    words: str
    """The path, in words."""


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of some agents, in the order in which they are to be tried."""

    ordered: tuple[Candidate, ...]
    paths: int
    """How many kinds of paths they have."""
    forks: int
    """Sessions that were left out, since they are forks."""
    others: dict[str, int]
    """How many sessions there are of other agents, by the agent's name."""


class _Met(msgspec.Struct, frozen=True):
    session: SessionId
    position: int
    steps: tuple[str, ...]


async def candidates_of(store: EventStore, agents: Collection[str], only: StreamHead | None) -> Candidates:
    """Return the sessions of some agents: the first of each kind of path, then the second of each, and so on.

    Args:
        only: the one session that may be tried, which may be a fork; None = all but forks.
    """
    met: list[_Met] = []
    others: dict[str, int] = {}
    forks = 0
    heads = [only] if only is not None else [head async for head in Streams(store, prefix=f"{SESSION_KIND}/")]
    for head in heads:
        steps, position, agent, is_fork = _Steps(), 0, "", False
        async for batch in Batches(store, head.stream):
            events = SESSION_CODEC.decode_all(batch)
            if not position:
                position = batch[0].position
                agent = events[0].agent if isinstance(events[0], ev.SessionOpened) else ""
                if agent not in agents:
                    break
            is_fork = is_fork or isinstance(events[0], ev.SessionForked)
            steps.add_all(events)
        if agent not in agents:
            others[agent] = others.get(agent, 0) + 1
        elif is_fork and only is None:
            forks += 1
        else:
            met.append(_Met(SessionId(kind_and_identifier(head.stream)[1]), position, steps.all()))
    kinds: dict[tuple[str, ...], list[_Met]] = {}
    for each in sorted(met, key=lambda each: each.position):
        kinds.setdefault(each.steps, []).append(each)
    ranked = sorted(kinds.values(), key=lambda kind: (-len(kind), kind[0].position))
    return Candidates(
        ordered=tuple(_in_turns(ranked)), paths=len(ranked), forks=forks, others=dict(sorted(others.items()))
    )


def _in_turns(kinds: list[list[_Met]]) -> Iterator[Candidate]:
    for place in range(max(map(len, kinds), default=0)):
        for number, kind in enumerate(kinds, 1):
            if place < len(kind):
                each = kind[place]
                yield Candidate(session=each.session, path=number, like=len(kind), words=_words(each.steps))


def _words(steps: tuple[str, ...]) -> str:
    more = len(steps) - STEPS_TOLD
    return ", ".join(steps[:STEPS_TOLD]) + (f", and {more} more steps" if more > 0 else "")


class _Steps:
    """The steps of a session, of which those of one answer are in order of their words: calls may run together."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._now: list[str] = []
        self._tools: dict[str, str] = {}

    def all(self) -> tuple[str, ...]:
        return (*self._before, *sorted(self._now))

    def add_all(self, events: Iterable[ev.SessionEvent]) -> None:
        for event in events:
            if isinstance(event, ev.ModelResponded | ev.InputQueued | ev.TerminalEvent):
                self._before += sorted(self._now)
                self._now = []
            step = self._step(event)
            if step is not None:
                self._now.append(step)

    def _step(self, event: ev.SessionEvent) -> str | None:
        match event:
            case ev.InputQueued(joins=joins):
                return "input" if joins is None else "input that joins"
            case ev.ModelResponded():
                uses = tool_uses(event.content)
                self._tools.update((use.id, use.name) for use in uses)
                return None if uses else "answer"
            case ev.ToolCallCompleted(call=call):
                return self._tools.get(call, "?")
            case ev.ToolCallFailed(call=call, kind=kind):
                return f"{self._tools.get(call, '?')} {kind}"
            case ev.ToolAttemptFailed(call=call):
                return f"{self._tools.get(call, '?')} again"
            case ev.ToolApprovalDecided(call=call, allowed=allowed):
                return f"{self._tools.get(call, '?')} {'allowed' if allowed else 'denied'}"
            case ev.QuestionAnswered(call=call):
                return f"{self._tools.get(call, '?')} answered"
            case ev.HandedOff(agent=agent):
                return f"handed to {agent}"
            case ev.RunFailed(kind=kind):
                return f"failed ({kind})"
            case _:
                return _WORDS.get(type(event))


_WORDS: dict[type[ev.SessionEvent], str] = {
    ev.ContextPrepared: "summary",
    ev.ModelFailed: "model failed",
    ev.GuardrailTripped: "guardrail",
    ev.RunParked: "parked",
    ev.RunResumed: "resumed",
    ev.RunCancelled: "cancelled",
    ev.HistoryCleared: "cleared",
    ev.HistoryRewound: "rewound",
}
