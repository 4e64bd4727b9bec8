"""The session as one core: what the shell, replay, `refold check` and a simulator run.

Its parts: `state` (what is true), `admit` (`admit`), `evolve` (`evolve`),
`react` (`react`, `pending`), `events` and `commands`.
"""

from collections.abc import Iterable
from typing import get_args

from refold.events.core.codec import NEWER_REFOLD, EventCodec
from refold.events.core.pure_core import PureCore, evolve_all
from refold.events.model.configuration import FOLD_VERSION
from refold.events.session.admit import admit
from refold.events.session.commands import SessionCommand
from refold.events.session.events import SessionEvent
from refold.events.session.evolve import evolve
from refold.events.session.react import pending, react
from refold.events.session.state import SessionState

SESSION_KIND = "session"
"""Kind of a session's address and stream."""


SESSION_CODEC: EventCodec[SessionEvent] = EventCodec(get_args(SessionEvent), unknown=NEWER_REFOLD)
"""Encodes and decodes every session event."""


class SessionCore(PureCore[SessionState, SessionCommand, SessionEvent]):
    """The four pure functions of a session. They are ours and tested, so no `CheckedCore` stands around them."""

    fold_version = FOLD_VERSION

    # The functions themselves: a method around `evolve` would cost each event of a fold one more call. They are called
    # as methods are, which pyright does not see.
    admit = staticmethod(admit)  # pyright: ignore[reportAssignmentType]
    evolve = staticmethod(evolve)  # pyright: ignore[reportAssignmentType]
    react = staticmethod(react)  # pyright: ignore[reportAssignmentType]
    pending = staticmethod(pending)  # pyright: ignore[reportAssignmentType]


SESSION_CORE = SessionCore()


def fold(events: Iterable[SessionEvent], state: SessionState | None = None) -> SessionState:
    """Return a session's state after `events`, from the beginning or from `state`, which is used up.

    Raises:
        LogFormatError: an event contradicts those before it.
    """
    return evolve_all(SESSION_CORE, events, state)
