"""The session as one core: what the shell, replay, `refold check` and a simulator run.

Its parts: `session_state` (what is true), `session_admission` (`admit`), `session_fold` (`evolve`),
`session_decisions` (`react`, `pending`), `session_events` and `session_commands`.
"""

from collections.abc import Iterable
from typing import get_args

from refold.events.codec import EventCodec
from refold.events.core import Recorded, evolve_all
from refold.events.session_admission import admit
from refold.events.session_commands import SessionCommand
from refold.events.session_decisions import SessionEffect, pending, react
from refold.events.session_events import SessionEvent
from refold.events.session_fold import evolve
from refold.events.session_state import SessionState

SESSION_KIND = "session"
"""Kind of a session's address and stream."""


SESSION_CODEC: EventCodec[SessionEvent] = EventCodec(get_args(SessionEvent))
"""Encodes and decodes every session event."""


class SessionCore:
    """The four pure functions of a session."""

    def initial(self) -> SessionState:
        """Return the state before the first event."""
        return SessionState()

    def version(self, state: SessionState) -> int:
        """Return how many events `state` has evolved through."""
        return state.version

    def admit(self, state: SessionState, command: SessionCommand) -> SessionEvent | Recorded:
        """See `refold.events.session_admission.admit`."""
        return admit(state, command)

    def evolve(self, state: SessionState, event: SessionEvent) -> SessionState:
        """See `refold.events.session_fold.evolve`."""
        return evolve(state, event)

    def react(self, state: SessionState, event: SessionEvent) -> list[SessionEvent]:
        """See `refold.events.session_decisions.react`."""
        return react(state, event)

    def pending(self, state: SessionState) -> list[SessionEffect]:
        """See `refold.events.session_decisions.pending`."""
        return pending(state)


SESSION_CORE = SessionCore()


def fold(events: Iterable[SessionEvent], state: SessionState | None = None) -> SessionState:
    """Return a session's state after `events`, from the beginning or from `state`, which is used up.

    Raises:
        LogFormatError: an event contradicts those before it.
    """
    return evolve_all(SESSION_CORE, events, state)
