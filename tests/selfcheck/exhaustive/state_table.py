"""The table phase x event of a session, made from what the exhaustive search sees.

    python -m tests.selfcheck.exhaustive.state_table      write the table as Markdown; some minutes

A row is a phase and a stimulus, the fact that arrived; it says which consequences were decided from it and which phase
the session is in afterwards. `docs/architecture.md` holds the table; a test compares it with what the search finds, so
that the document cannot fall behind `events/session/react.py`.
"""

import sys
from collections.abc import Iterable

from refold.events.session.state import SessionState
from tests.selfcheck.exhaustive.exploration import explore
from tests.selfcheck.exhaustive.scope import EVERYDAY, Scope

PHASES = {
    "idle": "no run is open",
    "ready": "a run is open and its next turn may begin",
    "model": "a model call is in flight",
    "waiting": "a retry of a model call waits for its time",
    "tools": "calls of the last answer are unanswered",
    "parked": "the run waits until a person resumes or cancels it",
}
"""In the order in which a run goes through them."""

Decision = tuple[str, str, tuple[str, ...], str]
"""Phase before, name of the stimulus, names of its consequences in order and without repeats, phase after."""


def phase_of(state: SessionState) -> str:
    """Return the phase of `PHASES` that a session is in between two batches."""
    if state.run is None:
        return "idle"
    if state.run.parked:
        return "parked"
    if state.turn is not None:
        return "tools"
    return "ready" if state.run.phase == "answered" else state.run.phase


def decisions_in(scopes: Iterable[Scope]) -> set[Decision]:
    """Return every decision that a session takes anywhere in `scopes`."""
    found: set[Decision] = set()
    for scope in scopes:

        def note(before: SessionState, batch: tuple[object, ...], after: SessionState) -> None:
            stimulus, *consequences = (type(event).__name__ for event in batch)
            found.add((phase_of(before), stimulus, tuple(dict.fromkeys(consequences)), phase_of(after)))

        explore(scope, on_batch=note)
    return found


def as_table(decisions: set[Decision]) -> str:
    """Return the decisions as a Markdown table, in the order of the phases and, within one, of the stimuli's names."""
    order = list(PHASES)
    rows: dict[tuple[str, str], dict[str, list[tuple[str, ...]]]] = {}
    for before, stimulus, consequences, after in sorted(
        decisions, key=lambda d: (order.index(d[0]), d[1], order.index(d[3]), d[2])
    ):
        rows.setdefault((before, stimulus), {}).setdefault(after, []).append(consequences)
    lines = ["| phase | stimulus | what may be decided from it | phase after it |", "|---|---|---|---|"]
    for (before, stimulus), by_phase in rows.items():
        names = dict.fromkeys(name for ways in by_phase.values() for way in ways for name in way)
        lines.append(f"| {before} | {stimulus} | {', '.join(names) or 'nothing'} | {', '.join(by_phase)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_table(decisions_in(EVERYDAY)))
