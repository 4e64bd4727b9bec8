"""Every life of a user's own core, up to a bound: breadth first, with everything checked on the way.

    found = explore_core(OrderBook, lambda book: [Place(...), Cancel(...)], holds=not_crossed, commands_max=4)
    assert found.counterexample is None, found.counterexample

Read `refold.events.core.pure_core` for what a core is. Checked of every command in every state: the core does not fail;
it decides the same when asked twice; nothing but `evolve` changes the state, and a refusal nothing at all; the batch
comes back from the codec, is decided again when it is executed again, and folds to the live state, which is what a
crash leaves; and what the caller says must hold does. The counterexample is a shortest one.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, cast

import msgspec

from refold.events.core.checked_core import DUE_SINCE_US, CheckedCore, S
from refold.events.core.errors import CommandRejected, CoreFailed, RefoldError
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import C, E, Plan, PureCore, Recorded, State, WaitUntil, evolve_all, plan, replan
from refold.events.core.records import StoredEvent

STATES_MAX = 1_000_000
"""More states than that are not looked at; give fewer commands."""

BEGIN_US = DUE_SINCE_US
"""Time of the first commands, microseconds since the epoch, UTC; it moves on when a `WaitUntil` comes."""

_STREAM = StreamName("explored/one")


class CoreCounterexample(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and the commands that lead there."""

    problem: str
    commands: tuple[object, ...]
    """From the first one to the one at which it shows."""
    log: tuple[object, ...]
    """What they recorded; without the last one's batch where it came to none."""

    def __str__(self) -> str:
        commands = "\n".join(f"  {command!r}" for command in self.commands)
        log = "\n".join(f"{version:>4}  {event!r}" for version, event in enumerate(self.log, 1))
        return f"{self.problem}\nafter\n{commands}\nlog\n{log}"


class CoreExploration(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and the first thing that is wrong."""

    states: int
    """Different ones, versions and keys of commands not counted."""
    batches: int
    refusals: int
    """Commands that were refused, or had been recorded before."""
    counterexample: CoreCounterexample | None = None


class _Life(msgspec.Struct, frozen=True):
    """An actor up to some moment."""

    state: Any
    """Never changed: each attempt has a copy of its own."""
    at: int = BEGIN_US
    commands: tuple[object, ...] = ()
    log: tuple[Any, ...] = ()


class _Wrong(Exception):
    """Something does not hold after some commands."""

    def __init__(self, problem: str, commands: tuple[object, ...], log: tuple[object, ...]) -> None:
        super().__init__(problem)
        self.counterexample = CoreCounterexample(problem=problem, commands=commands, log=log)


def explore_core(
    core: type[PureCore[S, C, E]] | PureCore[S, C, E],
    commands: Callable[[S], Iterable[C]],
    *,
    holds: Callable[[S], object] | None = None,
    commands_max: int = 5,
) -> CoreExploration:
    """Return what is found in all lives of at most `commands_max` commands.

    Two states that differ only in their versions and in the keys of commands are taken for one.

    Args:
        core: the core.
        commands: those to try in a state, the results of its work among them. That times have come is tried by itself.
        holds: raises AssertionError, or returns False, for a state that must not be.
        commands_max: how many commands a life has at most.

    Raises:
        RuntimeError: there are more than `STATES_MAX` states.
    """
    search = _Search(CheckedCore(core, always_watched=True), commands, holds)
    try:
        search.run(commands_max)
    except _Wrong as wrong:
        return search.result(wrong.counterexample)
    return search.result(None)


class _Search(Generic[S, C, E]):
    def __init__(
        self,
        core: CheckedCore[S, C, E],
        commands: Callable[[S], Iterable[C]],
        holds: Callable[[S], object] | None,
    ) -> None:
        self._core = core
        self._commands = commands
        self._holds = holds
        self._known: set[bytes] = set()
        self._batches = 0
        self._refusals = 0

    def run(self, commands_max: int) -> None:
        newborn = _Life(self._core.initial())
        self._known.add(_key(newborn.state))
        self._judge(newborn)
        frontier = deque([newborn])
        while frontier:
            life = frontier.popleft()
            if len(life.commands) == commands_max:
                return  # So have all that follow.
            for command, at in self._moves(life):
                following = self._attempt(life, command, at)
                if following is not None and (key := _key(following.state)) not in self._known:
                    self._known.add(key)
                    if len(self._known) > STATES_MAX:
                        raise RuntimeError(f"there are more than {STATES_MAX:,} states; give fewer commands")
                    frontier.append(following)

    def result(self, counterexample: CoreCounterexample | None) -> CoreExploration:
        return CoreExploration(
            states=len(self._known), batches=self._batches, refusals=self._refusals, counterexample=counterexample
        )

    def _moves(self, life: _Life) -> Iterator[tuple[C, int]]:
        for command in self._commands(copy.deepcopy(life.state)):
            yield command, life.at
        try:
            waits = [
                effect for effect in self._core.pending(copy.deepcopy(life.state)) if isinstance(effect, WaitUntil)
            ]
            times = [(self._core.due(effect), max(life.at, effect.due_at)) for effect in waits]
        except CoreFailed as error:
            raise _Wrong(str(error), life.commands, life.log) from error
        yield from times

    def _attempt(self, life: _Life, command: C, at: int) -> _Life | None:
        """Return the life after a command; None = it was refused, or recorded before."""
        commands = (*life.commands, command)
        first, second = self._plan(life, command, at), self._plan(life, command, at)
        if isinstance(first, CoreFailed):
            raise _Wrong(str(first), commands, life.log)
        if not isinstance(first, Plan):
            self._refusals += 1
            return None
        if not isinstance(second, Plan) or _written(first.events) != _written(second.events):
            raise _Wrong("asked twice, the core decides differently", commands, life.log + first.events)
        self._batches += 1
        following = _Life(first.state, at, commands, life.log + first.events)
        self._judge_log(life, first, following)
        self._judge(following)
        return following

    def _plan(self, life: _Life, command: C, at: int) -> Plan[S, E] | Recorded | CommandRejected | CoreFailed:
        state = copy.deepcopy(life.state)
        planned: Plan[S, E] | Recorded | CommandRejected | CoreFailed
        try:
            planned = plan(self._core, state, copy.deepcopy(command), at)
        except (CommandRejected, CoreFailed) as error:
            planned = error
        if not isinstance(planned, Plan | CoreFailed) and _written(state) != _written(life.state):
            raise _Wrong(f"the state changed, though the answer is {planned!r}", (*life.commands, command), life.log)
        return planned

    def _judge_log(self, before: _Life, planned: Plan[S, E], after: _Life) -> None:
        """Judge what the log would make of a batch: it is read back, folded, and executed again."""
        codec, first = self._core.codec, self._core.version(before.state) + 1
        batch: list[E] = []
        for version, event in enumerate(planned.events, first):
            data = codec.encode(event)
            stored = StoredEvent(position=version, stream=_STREAM, version=version, batch=first, at=event.at, data=data)
            batch.append(codec.decode(stored))
        try:
            wanted = self._core.pending(planned.state)
        except CoreFailed as error:
            raise _Wrong(str(error), after.commands, after.log) from error
        try:
            folded = evolve_all(self._core, batch, copy.deepcopy(before.state))
            again = replan(self._core, copy.deepcopy(before.state), batch[0], batch[0].at)
        except RefoldError as error:
            raise _Wrong(f"what was recorded cannot be read again: {error}", after.commands, after.log) from error
        if _written(folded) != _written(planned.state):
            raise _Wrong("folding the log gives another state than the live one", after.commands, after.log)
        if _written(again.events) != _written(planned.events) or _written(again.state) != _written(planned.state):
            raise _Wrong("executing the log again gives another batch or state", after.commands, after.log)
        if _written(self._core.pending(again.state)) != _written(wanted):
            raise _Wrong("executing the log again leaves other work pending", after.commands, after.log)

    def _judge(self, life: _Life) -> None:
        if self._holds is None:
            return
        try:
            broken = self._holds(copy.deepcopy(life.state)) is False
            said = getattr(self._holds, "__name__", "what must hold")
        except AssertionError as error:
            broken, said = True, str(error) or "an assertion"
        if broken:
            raise _Wrong(f"does not hold: {said}", life.commands, life.log)


def _key(state: State) -> bytes:
    return _written(msgspec.structs.replace(state, version=0, keys={}))


def _written(value: object) -> bytes:
    return msgspec.json.encode(_ordered(value))


def _ordered(value: object) -> object:
    """Return `value` with its sets in a fixed order; that of a dict is part of a state."""
    if isinstance(value, msgspec.Struct):
        return [type(value).__name__, *(_ordered(getattr(value, name)) for name in value.__struct_fields__)]
    if isinstance(value, dict):
        return [(key, _ordered(item)) for key, item in cast("dict[object, object]", value).items()]
    if isinstance(value, set | frozenset):
        return sorted(map(_written, cast("set[object]", value)))
    if isinstance(value, list | tuple):
        return list(map(_ordered, cast("list[object]", value)))
    return value
