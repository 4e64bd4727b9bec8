"""EnabledCommands are all commands that a session knows, and what is certain about them is so."""

from collections.abc import Iterator
from typing import get_args

import msgspec

from refold.events.session.commands import SessionCommand
from tests.selfcheck.exhaustive.enabled_commands import (
    FOREIGN_CALL,
    FOREIGN_RUN,
    FOREIGN_VERSION,
    EnabledCommands,
    Move,
)
from tests.selfcheck.exhaustive.scope import Scope
from tests.selfcheck.exhaustive.test_canonical_state import life_after
from tests.selfcheck.exhaustive.trial import Life, Trials

SCOPE = Scope(
    name="one of each",
    keyed=("send", "cancel", "decide", "clear"),
    imports=True,
    now=True,
    stepwise=True,
    scheduled=True,
    clears=True,
    finishes=True,
    attempts_max=2,
    breaks="retry",
    always=True,
    edits=True,
    expires=True,
    interrupts=True,
    summaries=1,
    refuses=True,
    guards=True,
    hands_off=True,
    waits=True,
    questions=1,
    describes=True,
)


def lives(count: int) -> Iterator[tuple[Life, list[Move]]]:
    """Yield the first lives of the scope, and the moves after each."""
    moves, trials = EnabledCommands(SCOPE), Trials(SCOPE)
    queue = [life_after(trials, moves.prelude)]
    for _ in range(count):
        life = queue.pop(0)
        found = list(moves.after(life.decoded_observed()))
        yield life, found
        steps = (trials.attempt(life, move).step for move in found)
        queue.extend(step.life(life) for step in steps if step is not None)


def test_every_kind_of_command_is_among_the_moves() -> None:
    kinds = {type(move.command) for _, found in lives(3) for move in found}
    assert kinds == set(get_args(SessionCommand))


def test_what_is_foreign_is_marked_and_nothing_else_is() -> None:
    for _, found in lives(5):
        for move in found:
            text = msgspec.json.encode(move.command)
            names_foreign = any(
                name.encode() in text for name in (FOREIGN_RUN, FOREIGN_CALL, f":{FOREIGN_VERSION}", "bob")
            )
            assert move.foreign == names_foreign
