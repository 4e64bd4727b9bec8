"""What must be true of a log after each life of the child, and once all its work is done.

Read `LogInspector` first. The log is opened for reading only, as the child left it, and held against three things: its
own rules (`check_log`, both levels of replay, an acceptable history), what it held before this life, and what the
witness says the child was told and did. `session_facts` says what one session's events amount to.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from refold.events import history
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.records import StoredEvent
from refold.events.session.invariants import check_history
from refold.events.session.state import calls_awaiting_approval
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore
from tests.conformance.killed_process import witness as told
from tests.conformance.killed_process.life import Life
from tests.conformance.killed_process.session_facts import SessionFacts, tag_of
from tests.conformance.killed_process.work_plan import WorkPlan


class Standing(msgspec.Struct, frozen=True):
    """How a log stood at the end of a life."""

    faults: list[str]
    events: int = 0
    awaiting_approval: int = 0
    """Calls."""
    models_asked: int = 0
    """Model calls in flight."""


class LogInspector:
    """Inspects one log after each life on it.

    Args:
        log: the file.
        plan: what is to be done on it.
    """

    def __init__(self, log: Path, plan: WorkPlan) -> None:
        self._log = log
        self._plan = plan
        self._streams: dict[str, list[StoredEvent]] = {}
        self._facts: dict[str, SessionFacts] = {}
        self._began: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._returned: dict[str, told.Returned] = {}
        self._opened = False

    async def inspect(self, life: Life) -> Standing:
        """Return how the log stands after `life`, with everything that is wrong."""
        faults = [life.fault] if life.fault is not None else []
        self._opened = self._opened or life.words["open"] > 0
        if not self._opened and not self._log.exists():
            return Standing(faults)  # Killed before there was a log.
        try:
            streams, damage = await self._read()
        except (LogFormatError, PersistenceError) as error:
            return Standing([*faults, f"the log cannot be read: {error}"])
        damage.extend(self._lost(streams))
        if damage:
            return Standing(faults + damage)  # What does not add up tells us nothing more.
        facts = {name: SessionFacts(name, stored) for name, stored in streams.items() if name.startswith("session/")}
        faults.extend(self._contradictions(life, facts))
        faults.extend(self._faults_inside(facts))
        if life.done and not faults:
            faults.extend(self._undone(life, facts))
        self._streams, self._facts = streams, facts
        states = [session.state for session in facts.values()]
        return Standing(
            faults,
            events=sum(map(len, streams.values())),
            awaiting_approval=sum(len(calls_awaiting_approval(state)) for state in states),
            models_asked=sum(state.run is not None and state.run.phase == "model" for state in states),
        )

    async def _read(self) -> tuple[dict[str, list[StoredEvent]], list[str]]:
        """Return all that is in the log, and what its own rules say against it."""
        async with await SQLiteStore.open(self._log, read_only=True) as store:
            damage = [str(problem) for problem in (await check_log(store)).problems]
            for level in ("fold", "core"):
                report = await replay(store, level=level)
                damage.extend(f"{level} replay diverges: {divergence}" for divergence in report.divergences)
            streams: dict[str, list[StoredEvent]] = {
                head.stream: await store.read_stream(head.stream) for head in await store.list_streams()
            }
        return streams, damage

    def _faults_inside(self, facts: dict[str, SessionFacts]) -> Iterator[str]:
        """Yield what is wrong with the sessions themselves."""
        for name, session in facts.items():
            yield from map(str, check_history(history(session.state), stream=name, version=session.state.version))
            yield from session.faults(self._began, self._ended)
        for counter in self._plan.counters:
            if (planned := facts.get(f"session/{counter.session}")) is not None:
                yield from planned.faults_of_inputs(counter)

    def _lost(self, streams: dict[str, list[StoredEvent]]) -> Iterator[str]:
        """Yield what the log held before this life and does not hold now."""
        for name, before in self._streams.items():
            now = streams.get(name, [])
            if now[: len(before)] != before:
                same = next(n for n, pair in enumerate(zip(before, [*now, None], strict=False)) if pair[0] != pair[1])
                yield f"{name}: what was read at version {same + 1} earlier is gone or another event now"

    def _contradictions(self, life: Life, facts: dict[str, SessionFacts]) -> Iterator[str]:
        """Yield what the witness says and the log denies."""
        over: set[tuple[str, str]] = set()
        begun: Counter[str] = Counter()
        for testimony in life.witness:
            session = facts.get(_stream_of(testimony))
            if session is None:
                yield f"life {life.number}: {testimony}: the whole session is not in the log"
                continue
            for problem in self._problems_of(testimony, session, begun, over):
                yield f"life {life.number}: {testimony}: {problem}"

    def _problems_of(
        self, testimony: told.Testimony, session: SessionFacts, begun: Counter[str], over: set[tuple[str, str]]
    ) -> Iterable[str]:
        match testimony:
            case told.Seen(version=version):
                stored = session.at(version)
                if stored is None:
                    return ["the event was acknowledged and is not in the log"]
                said = (testimony.position, testimony.time, testimony.event)
                if said != (stored.position, stored.at, tag_of(stored)):
                    return [f"the log has another event there: {tag_of(stored)} at position {stored.position}"]
            case told.Accepted(version=version, key=key):
                if version not in session.inputs.get(key, ()):
                    return ["the input was accepted and is not in the log"]
            case told.Returned(run=run):
                over.add((session.stream, run))
                first = self._returned.setdefault(testimony.key, testimony)
                if first != testimony:
                    return [f"the same input had another result before: {first}"]
                # An input that is cancelled while it waits in the queue has its answer before its turn comes.
                in_queue = testimony.outcome == "Cancelled" and run in session.cancelled and run not in session.begun
                if session.outcomes(run) != [testimony.outcome] and not in_queue:
                    return [f"the log says that the run ended as {session.outcomes(run)}"]
                if testimony.outcome == "Completed" and session.answers[run] != testimony.text:
                    return [f"the log says that the answer is {session.answers[run]!r}"]
            case told.Ended(run=run):
                over.add((session.stream, run))
                if not session.outcomes(run):
                    return ["the end of the run was acknowledged and is not in the log"]
            case told.Decided(key=key, call=call, allowed=allowed):
                if (key, call, allowed) not in session.decisions:
                    return ["the decision was acknowledged and is not in the log"]
            case told.BodyBegan(key=key):
                begun[key] += 1
                self._began[key] += 1
                return self._problems_of_body(key, session, begun, over)
            case told.BodyEnded(key=key):
                self._ended.add(key)
                if (session.stream, session.run_of_call(key)) in over:
                    return ["its run was over, and its callers had been told"]
            case told.Remembered(digest=digest):
                folded = hashlib.sha256(msgspec.json.encode(history(session.state))).hexdigest()
                if digest != folded:
                    return ["the history of the live session is not that of the log"]
        return []

    def _problems_of_body(
        self, key: str, session: SessionFacts, begun: Counter[str], over: set[tuple[str, str]]
    ) -> Iterator[str]:
        before = self._facts.get(session.stream)
        if not session.started[key]:
            yield "a body began whose start is not in the log"
        if begun[key] > 1:
            yield f"the body began {begun[key]} times in one life"
        if before is not None and before.answered[key]:
            yield "a body began whose call had a result before this life"
        if (session.stream, session.run_of_call(key)) in over:
            yield "a body began in a run that was over, and its callers had been told"

    def _undone(self, life: Life, facts: dict[str, SessionFacts]) -> Iterator[str]:
        """Yield what is planned and not done, or done otherwise, now that the child says that it is done."""
        remembered = {testimony.session for testimony in life.witness if isinstance(testimony, told.Remembered)}
        for counter in self._plan.counters:
            session = facts.get(f"session/{counter.session}")
            if session is None or counter.session not in remembered:
                yield f"session/{counter.session} is not done"
                continue
            yield from session.undone(counter)


def _stream_of(testimony: told.Testimony) -> str:
    match testimony:
        case told.Seen(stream=stream):
            return stream
        case told.BodyBegan(key=key) | told.BodyEnded(key=key):
            return f"session/{key.rpartition('/')[0]}"
        case _:
            return f"session/{testimony.session}"
