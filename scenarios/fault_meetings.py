"""Which faults met which sessions, doing what: so that it can be told what was rehearsed, and what never came to pass.

A fault of one session's model call, tool or append meets that session; one that hits the whole process, such as a crash
or a clock that jumps, meets every session that there is. What a session was doing is told from its log alone, as it was
just before; a session with something queued counts for that too.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import msgspec

from refold.events.session_state import SessionState
from refold.scenarios.faults import AnyFault

Situation: TypeAlias = Literal[
    "idle",
    "model call open",
    "tool running",
    "awaiting approval",
    "retry pending",
    "queued input",
    "recovering",
    "parked",
    "otherwise",
]
"""What a session is doing.

`recovering`: work was in flight when the process was gone, and the next one has not recorded anything of the session
yet. `otherwise`: between two of the others, such as a run that waits for somebody to allow its next turn.
"""

SITUATIONS: tuple[Situation, ...] = get_args(Situation)
"""All of them, in the order in which they are shown."""


class Meeting(msgspec.Struct, frozen=True, order=True):
    """A kind of fault that met sessions in one situation."""

    fault: str
    """Name of the fault's class."""
    situation: Situation
    times: int


class Meetings:
    """Counts which faults met which situations."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, Situation]] = Counter()

    def add(self, fault: AnyFault, situations: Iterable[Situation]) -> None:
        """Count a fault that has happened."""
        for situation in situations:
            self._times[type(fault).__name__, situation] += 1

    def counted(self) -> tuple[Meeting, ...]:
        """Return all that was counted, in order of fault and situation."""
        return tuple(Meeting(fault, situation, times) for (fault, situation), times in sorted(self._times.items()))


def situations_of(state: SessionState, *, recovering: bool) -> list[Situation]:
    """Return what a session is doing: one thing or several.

    Args:
        state: what its log adds up to.
        recovering: whether the process has begun anew since its last event.
    """
    found: list[Situation] = []
    run, turn = state.run, state.turn
    if recovering and run is not None and not run.parked:
        found.append("recovering")
    elif run is None:
        found.append("idle")
    elif run.parked:
        found.append("parked")
    elif run.phase == "model":
        found.append("model call open")
    elif run.phase == "waiting":
        found.append("retry pending")
    elif turn is not None and (turn.awaiting or turn.running):
        found.extend(["awaiting approval"] if turn.awaiting else [])
        found.extend(["tool running"] if turn.running else [])
    else:
        found.append("otherwise")
    if state.queue:
        found.append("queued input")
    return found
