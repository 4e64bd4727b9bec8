"""Two states with one key have the same future: the claim that makes the exploration small, checked."""

from collections.abc import Iterable, Iterator

import pytest

from refold.events.session.commands import SessionCommand
from refold.events.session.state import SessionState
from tests.selfcheck.exhaustive.canonical_state import canonical_key, renumbered
from tests.selfcheck.exhaustive.enabled_commands import EnabledCommands, Move
from tests.selfcheck.exhaustive.log_reader import ObservedSession
from tests.selfcheck.exhaustive.scope import Scope
from tests.selfcheck.exhaustive.trial import NEWBORN, Life, Trials

SCOPES = (
    Scope(name="calls", inputs=1, turns=2, calls=1, tools=("fetch", "pay"), refusals=1),
    Scope(name="pairs", inputs=1, turns=1, calls=2, tools=("look", "write"), refusals=0),
    Scope(name="queue", inputs=2, turns=1, calls=0, keyed=("send",)),
    Scope(name="import", inputs=1, turns=1, calls=0, keyed=("cancel",), imports=True),
    Scope(name="people", inputs=1, turns=1, calls=1, tools=("pay",), refusals=0, always=True, expires=True),
    Scope(name="steps", turns=2, calls=0, now=True, stepwise=True, resumes_max=0),
    Scope(name="retries", inputs=1, turns=1, calls=0, attempts_max=2, interrupts=True),
    Scope(name="attempts", inputs=1, turns=1, calls=1, tools=("put",), refusals=0, tool_attempts_max=2),
    Scope(
        name="finishing", inputs=1, turns=1, tools=("look",), refusals=0, finishes=True, breaks="retry", resumes_max=0
    ),
    Scope(name="summaries", inputs=2, turns=1, calls=0, summaries=1, resumes_max=0),
    Scope(name="schedule", turns=1, calls=0, scheduled=True, clears=True, keyed=("clear",), resumes_max=0),
)


def successors(trials: Trials, moves: EnabledCommands, life: Life) -> Iterator[tuple[Move, bytes | None, Life | None]]:
    """Yield what comes of each move: the key of the next state, or None where there is none."""
    for move in moves.after(life.decoded_observed()):
        findings, step = trials.attempt(life, move)
        assert findings == []
        yield move, step.key() if step is not None else None, step.life(life) if step is not None else None


LONG = {"steps", "schedule", "queue", "finishing", "pairs", "calls", "summaries"}
"""Scopes that take seconds."""


def life_after(trials: Trials, commands: Iterable[SessionCommand]) -> Life:
    life = NEWBORN
    for command in commands:
        step = trials.attempt(life, Move(command)).step
        assert step is not None
        life = step.life(life)
    return life


@pytest.mark.parametrize(
    "scope",
    [pytest.param(scope, marks=pytest.mark.slow if scope.name in LONG else (), id=scope.name) for scope in SCOPES],
)
def test_states_with_one_key_have_the_same_successors(scope: Scope) -> None:
    """For each state the first other way to it is followed too: not its key is compared, but what happens next."""
    trials, moves = Trials(scope), EnabledCommands(scope)
    first = life_after(trials, moves.prelude)
    frontier = [first]
    known: dict[bytes, Life] = {canonical_key(first.decoded_state(), first.decoded_observed()): first}
    twins: dict[bytes, Life] = {}
    while frontier:
        life = frontier.pop()
        for _, key, after in successors(trials, moves, life):
            if key is None or after is None:
                continue
            if key not in known:
                known[key] = after
                frontier.append(after)
            elif key not in twins and after.log != known[key].log:
                twins[key] = after
    assert len(twins) > len(known) // 2
    for key, twin in twins.items():
        one = [(type(move.command), after) for move, after, _ in successors(trials, moves, known[key])]
        other = [(type(move.command), after) for move, after, _ in successors(trials, moves, twin)]
        assert one == other


def test_versions_are_renumbered_in_their_order_wherever_they_stand() -> None:
    text = b'[{"version":9,"input":3,"turns":7},{"running":{"call_7_0":8},"run":"run_3","open":2}]'
    assert renumbered(text) == (
        b'[{"version":3,"input":0,"turns":7},{"running":{"call_1_0":2},"run":"run_0","open":2}]'
    )


def test_states_whose_versions_stand_in_another_order_stay_two() -> None:
    assert renumbered(b'{"started":4,"asked":6}') == renumbered(b'{"started":5,"asked":9}')
    assert renumbered(b'{"started":4,"asked":6}') != renumbered(b'{"started":6,"asked":4}')


def test_a_state_is_kept_apart_by_what_its_log_says() -> None:
    """A fault may make two states equal whose logs differ; the exploration must follow both."""
    state = SessionState()
    assert canonical_key(state, ObservedSession()) != canonical_key(state, ObservedSession(inputs=1))
