"""What a run and the runs of all sessions below it have spent together, and whether that is the most they may.

Asked before each model call of a session whose run, or a run above it, has an `AgentConfig.tree_budget`. Nothing is
kept beside the log: the figures of a run are in the state of its session, and the sessions below it are those whose
ids begin with its own, each begun by a call. So after a crash the answer is the same, and what may be spent too much is
what was in flight when the budget was reached. The rule: a call counts for the run that made it, however it ended.
"""

import msgspec

from refold.actors.agent.compaction import NotWanted
from refold.actors.agent.subsession import call_of_child, children_prefix
from refold.actors.calls.request import WantedRequest
from refold.actors.kernel.ref import System
from refold.actors.shell.messages import read_state
from refold.events.core.ids import SessionId, ToolCallId, kind_and_identifier, stream_name
from refold.events.model.spending import TreeBudget, Usage
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import CALL_ID, SessionState
from refold.stores.event_store import EventStore

KNOWN_MAX = 10_000
"""Of so many runs that have ended, what they spent is remembered."""


class _Spent(msgspec.Struct, frozen=True):
    usage: Usage = Usage()
    cost: float = 0.0
    turns: int = 0
    over: bool = True
    """Nothing more will be spent."""

    def __add__(self, other: "_Spent") -> "_Spent":
        return _Spent(self.usage + other.usage, self.cost + other.cost, self.turns + other.turns)


class _Limited(msgspec.Struct, frozen=True):
    """The open run of a session that has a budget for itself and all below."""

    budget: TreeBudget
    started: int
    """Version of its RunStarted."""
    spent: _Spent


class TreeSpending:
    """Adds up what trees of runs have spent.

    Args:
        system: where their sessions live.
        store: the log.
    """

    def __init__(self, system: System, store: EventStore) -> None:
        self._system = system
        self._store = store
        self._ended: dict[SessionId, _Spent] = {}
        """Of sessions whose call is over."""

    async def overspent(self, wanted: WantedRequest) -> str | None:
        """Return which budget of a tree is spent that a model call belongs to, in words; None = none is."""
        for session in (wanted.session, *wanted.ancestors):
            limited = await read_state(self._system.ref(stream_name(SESSION_KIND, session)), _limited, vital=True)
            if limited is not None:
                spent = limited.spent + await self._below(session, limited.started)
                said = limited.budget.overspent(spent.usage, spent.cost, spent.turns)
                if said is not None:
                    return f"{said} It is that of session {session!r} with all below it."
        own = self._system.ref(stream_name(SESSION_KIND, wanted.session))
        if await read_state(own, _asked, vital=True) != wanted.asked:  # Its end came meanwhile from an earlier life.
            raise NotWanted
        return None

    async def _below(self, session: SessionId, started: int) -> _Spent:
        total = _Spent()
        prefixes = [children_prefix(session)]
        while prefixes:
            prefix = prefixes.pop()
            for head in await self._store.list_streams(prefix=stream_name(SESSION_KIND, SessionId(prefix))):
                below = SessionId(kind_and_identifier(head.stream)[1])
                if not prefix.startswith(children_prefix(session)) or _is_of_run(below, prefix, started):
                    total += await self._of(below)
                    if not (deeper := children_prefix(below)).startswith(prefix):
                        prefixes.append(deeper)  # The ids have become too long, and begin anew.
        return total

    async def _of(self, session: SessionId) -> _Spent:
        if (known := self._ended.get(session)) is not None:
            return known
        call = call_of_child(session)
        ref = self._system.ref(stream_name(SESSION_KIND, session))
        spent = await read_state(ref, lambda state: _spent_for(state, call), vital=True)
        if spent.over:
            if len(self._ended) >= KNOWN_MAX:
                self._ended.clear()
            self._ended[session] = spent
        return spent


def _is_of_run(below: SessionId, prefix: str, started: int) -> bool:
    """Tell whether a session is that of a call of a run, or below one, given the version at which the run started."""
    made = CALL_ID.fullmatch(below.removeprefix(prefix).partition("/")[0])
    return made is not None and int(made[1]) > started


def _asked(state: SessionState) -> int | None:
    return state.run.asked if state.run is not None and state.run.phase == "model" else None


def _limited(state: SessionState) -> _Limited | None:
    run, configuration = state.run, state.configuration
    if run is None or configuration is None or configuration.tree_budget is None:
        return None
    return _Limited(configuration.tree_budget, run.started, _Spent(run.usage, run.cost, run.turns))


def _spent_for(state: SessionState, call: ToolCallId) -> _Spent:
    record = state.keys.get(call)
    if record is not None and record.finished is not None:
        ended = record.finished
        return _Spent(ended.usage, ended.cost, ended.turns)
    run = state.run
    if record is None or run is None or run.id != record.run:
        return _Spent(over=record is not None and bool(record.cancelled))
    return _Spent(run.usage, run.cost, run.turns, over=False)
