"""Breadth-first search through every life of a session within a scope, with everything checked on the way.

Read `scope`, `enabled_commands` and `trial` first. States that are known (`canonical_state`) are not
explored again, and the first way to a state is a shortest one, so that a violation is shown with the fewest commands
that lead to it. What follows after a violation is not explored: nothing there means anything.

A crash is no move of its own: the state of a fresh process is the fold of the decoded log, which is compared with the
live state of everything that is explored, and what a fresh process does first is the move `ResumeRun`.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from refold.events.session.commands import SessionCommand
from refold.events.session.events import SessionEvent
from refold.events.session.state import SessionState
from tests.selfcheck.exhaustive.enabled_commands import EnabledCommands, Move
from tests.selfcheck.exhaustive.rules import Finding, Rule
from tests.selfcheck.exhaustive.scope import Scope
from tests.selfcheck.exhaustive.trial import NEWBORN, Life, Step, Trials, Tried, ordinary_command

STATES_MAX = 3_000_000
"""A scope of more states is refused: it, or a fault of the core, has made the space endless."""


class Counterexample(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that does not hold, and how to see it."""

    rule: Rule
    message: str
    commands: tuple[SessionCommand, ...]
    """From the first one to the one after which it does not hold."""
    log: tuple[SessionEvent, ...]
    """All that they recorded; empty where the violation is one of many states together."""


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one scope."""

    scope: str
    states: int
    moves: int
    """How many pairs of a state and a command were tried."""
    transitions: int
    """How many of the moves gave a batch; the others were refused, or had been recorded before."""
    depth: int
    """Most commands that a state needs."""
    met: Mapping[Rule, int]
    """How often each rule had something to judge."""
    counterexamples: Mapping[Rule, Counterexample]
    """For each rule that does not hold, one of the shortest."""


OnBatch = Callable[[SessionState, tuple[SessionEvent, ...], SessionState], None]
"""Is told of every transition: the state before it, the batch, the state after it."""


def explore(scope: Scope, *, stop_at_first: bool = False, on_batch: OnBatch | None = None) -> Exploration:
    """Return what is found in all states of `scope`.

    Raises:
        RuntimeError: there are more than `STATES_MAX` states; make the scope smaller.
    """
    search = _Search(scope, stop_at_first=stop_at_first, on_batch=on_batch)
    search.run()
    return search.result()


class _Search:
    def __init__(self, scope: Scope, *, stop_at_first: bool, on_batch: OnBatch | None) -> None:
        self._scope = scope
        self._on_batch = on_batch
        self._stop_at_first = stop_at_first
        self._moves = EnabledCommands(scope)
        self._trials = Trials(scope)
        self._indices: dict[bytes, int] = {}
        self._origins: list[tuple[int, SessionCommand | None]] = []
        """For each state the one before it and the command in between."""
        self._depths: list[int] = []
        self._onward: dict[int, int] = {}
        """For each state that is not at rest the one that ordinarily comes next."""
        self._frontier: deque[tuple[int, Life]] = deque()
        self._tried = 0
        self._counterexamples: dict[Rule, Counterexample] = {}

    def run(self) -> None:
        self._open()
        while self._frontier and not self._is_over:
            index, life = self._frontier.popleft()
            self._explore(index, life)
        if not self._is_over:
            self._check_that_all_ends()

    def result(self) -> Exploration:
        met = self._trials.met
        met["LIVE"] = len(self._onward)
        return Exploration(
            scope=self._scope.name,
            states=len(self._origins),
            moves=self._tried,
            transitions=self._trials.transitions,
            depth=max(self._depths, default=0),
            met=met,
            counterexamples=self._counterexamples,
        )

    @property
    def _is_over(self) -> bool:
        return self._stop_at_first and bool(self._counterexamples)

    def _open(self) -> None:
        """Begin with an open session; the commands before it leave no choice."""
        index, life = self._add(b"newborn", -1, None), NEWBORN
        for command in self._moves.prelude:
            findings, step = self._try(index, life, Move(command, must_happen=True))
            if step is None or findings:
                return
            index, life = self._add(_digest(step), index, command), step.life(life)
        self._frontier.append((index, life))

    def _explore(self, index: int, life: Life) -> None:
        for finding in self._trials.check(life):
            self._report(finding, index, None, life.log)
        state = life.decoded_state()
        ordinary = ordinary_command(state)
        if ordinary is None and (state.run or state.queue or state.turn or state.scheduled):
            stuck = Finding("LIVE", "work is left, nothing is pending, and no decision is awaited")
            self._report(stuck, index, None, life.log)
        accepted = ordinary is None
        for move in self._moves.after(life.decoded_observed()):
            if self._is_over:
                return
            findings, step = self._try(index, life, move)
            accepted = accepted or (move.command == ordinary and (step is not None or bool(findings)))
            if step is None or findings:
                continue
            if self._on_batch is not None:
                self._on_batch(state, step.batch, step.state)
            digest = _digest(step)
            successor = self._indices.get(digest)
            if successor is None:
                successor = self._add(digest, index, move.command)
                self._frontier.append((successor, step.life(life)))
            if move.command == ordinary:
                self._onward[index] = successor
        if not accepted:
            self._report(Finding("LIVE", f"the session does not accept {ordinary}"), index, None, life.log)

    def _try(self, index: int, life: Life, move: Move) -> Tried:
        self._tried += 1
        tried = self._trials.attempt(life, move)
        for finding in tried.findings:
            batch = tried.step.batch if tried.step is not None else ()
            self._report(finding, index, move.command, life.log + batch)
        return tried

    def _add(self, digest: bytes, origin: int, command: SessionCommand | None) -> int:
        index = len(self._origins)
        if index >= STATES_MAX:
            raise RuntimeError(f"scope {self._scope.name!r} has more than {STATES_MAX:,} states; make it smaller")
        self._indices[digest] = index
        self._origins.append((origin, command))
        self._depths.append(self._depths[origin] + 1 if origin >= 0 else 0)
        return index

    def _report(
        self, finding: Finding, index: int, command: SessionCommand | None, log: tuple[SessionEvent, ...]
    ) -> None:
        if finding.rule not in self._counterexamples:
            self._counterexamples[finding.rule] = Counterexample(
                rule=finding.rule,
                message=finding.message,
                commands=(*self._way_to(index), *((command,) if command is not None else ())),
                log=log,
            )

    def _way_to(self, index: int) -> tuple[SessionCommand, ...]:
        commands: list[SessionCommand] = []
        while index >= 0:
            index, command = self._origins[index]
            if command is not None:
                commands.append(command)
        return tuple(reversed(commands))

    def _check_that_all_ends(self) -> None:
        """Follow the ordinary way from every state: it must never come to where it was before."""
        ends: set[int] = set()
        for start in range(len(self._origins)):
            way: dict[int, None] = {}
            place: int | None = start
            while place is not None and place not in ends:
                if place in way:
                    circling = Finding("LIVE", "ordinary work comes back to this state, and goes round for ever")
                    self._report(circling, place, None, ())
                    return
                way[place] = None
                place = self._onward.get(place)
            ends.update(way)


def _digest(step: Step) -> bytes:
    """Return what is remembered of a state's key; among millions, two differ with all but certainty."""
    return hashlib.blake2b(step.key(), digest_size=16).digest()
