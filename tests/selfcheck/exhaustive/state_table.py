"""The table phase x event of a session, made from what the exhaustive search sees.

    python -m tests.selfcheck.exhaustive.state_table      write the table as Markdown; some minutes

A row is a phase and a stimulus, the fact that arrived; it says which consequences were decided from it and which phase
the session is in afterwards. `docs/architecture.md` holds the table; a test compares it with what the search finds, so
that the document cannot fall behind `events/session/react.py`.
"""

import sys
from collections.abc import Collection
from itertools import product
from typing import NamedTuple, get_args

from refold.events.session.events import SessionEvent
from refold.events.session.state import SessionState
from tests.selfcheck.exhaustive.exploration import OnBatch, explore
from tests.selfcheck.exhaustive.scope import EVERYDAY

PHASES = {
    "idle": "no run is open",
    "ready": "a run is open and its next turn may begin",
    "model": "a model call is in flight",
    "waiting": "a retry of a model call waits for its time",
    "tools": "calls of the last answer are unanswered",
    "parked": "the run waits until a person resumes or cancels it",
}
"""In the order in which a run goes through them."""

EVENTS = [event.__name__ for event in get_args(SessionEvent)]
"""In the order in which the module of the events has them."""


class Decision(NamedTuple):
    """What a session decided once."""

    before: str
    """Its phase before the stimulus."""
    stimulus: str
    consequences: frozenset[str]
    after: str
    """Its phase after the batch."""


def phase_of(state: SessionState) -> str:
    """Return the phase of `PHASES` that a session is in between two batches."""
    if state.run is None:
        return "idle"
    if state.run.parked:
        return "parked"
    if state.turn is not None:
        return "tools"
    return "ready" if state.run.phase == "answered" else state.run.phase


def noted_in(found: set[Decision]) -> OnBatch:
    """Return what adds to a set every decision that a session takes in an exploration."""

    def note(before: SessionState, batch: tuple[object, ...], after: SessionState) -> None:
        stimulus, *consequences = (type(event).__name__ for event in batch)
        found.add(Decision(phase_of(before), stimulus, frozenset(consequences), phase_of(after)))

    return note


def as_table(decisions: Collection[Decision]) -> str:
    """Return the decisions as a Markdown table, a row for each phase and stimulus."""
    lines = ["| phase | stimulus | what may be decided from it | phase after it |", "|---|---|---|---|"]
    for phase, stimulus in product(PHASES, EVENTS):
        ways = [way for way in decisions if (way.before, way.stimulus) == (phase, stimulus)]
        if ways:
            names = [name for name in EVENTS if any(name in way.consequences for way in ways)]
            phases = [after for after in PHASES if any(after == way.after for way in ways)]
            lines.append(f"| {phase} | {stimulus} | {', '.join(names) or 'nothing'} | {', '.join(phases)} |")
    return "\n".join(lines) + "\n"


def is_in_table(decision: Decision, table: str) -> bool:
    """Tell whether a table has the row of a decision, with its consequences and its phase afterwards."""
    begin = f"| {decision.before} | {decision.stimulus} | "
    row = next((line for line in table.splitlines() if line.startswith(begin)), None)
    if row is None:
        return False
    names, phases = (cell.split(", ") for cell in row.removeprefix(begin).removesuffix(" |").split(" | "))
    return decision.consequences <= set(names) and decision.after in phases


if __name__ == "__main__":
    decisions: set[Decision] = set()
    for scope in EVERYDAY:
        explore(scope, on_batch=noted_in(decisions))
    sys.stdout.write(as_table(decisions))
