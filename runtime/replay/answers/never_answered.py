"""Requests that a log holds without what came of them: a run was cancelled, or the log ends, while a model was asked.

What was asked is recorded with its answer or failure, and is compared there. Where there is none, the RequestBuilt of a
call that was in flight is all that is known of it; so of a summary that failed. The rule: no request is compared twice,
so that code which remembers something from call to call is asked as often as it was then.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from refold.events.core.records import StoredEvent
from refold.events.session import events as ev

AskedFor: TypeAlias = ev.ModelResponded | ev.ModelFailed | ev.RequestBuilt
"""What tells of a request: what came of it, or the request alone."""


class Built(NamedTuple):
    """A request that was recorded as it was built."""

    batch: Sequence[StoredEvent]
    event: ev.RequestBuilt


class NeverAnswered:
    """Remembers the last request that was built and has no answer yet."""

    def __init__(self) -> None:
        self._built: Built | None = None

    def left_by(self, batch: Sequence[StoredEvent], events: Sequence[ev.SessionEvent]) -> Built | None:
        """Return the request of which the next batch of the session leaves nothing to be known; None = there is none.

        What is told of later is compared there: the model call itself with what comes of it, or where it is built
        again; the request for a summary with that summary, or where the very same is built again.
        """
        stimulus = events[0]
        match stimulus:
            case ev.RequestBuilt() | ev.ContextPrepared():
                before = self.left()
                if isinstance(stimulus, ev.RequestBuilt):
                    self._built = Built(batch, stimulus)
                told = before is None or not before.event.summary or before.event.request == stimulus.request
                return None if told else before
            case ev.ModelResponded() | ev.ModelFailed() | ev.GuardrailTripped():
                before = self.left()
                return before if before is not None and before.event.summary else None
            case _:
                return self.left() if any(isinstance(event, ev.TerminalEvent) for event in events) else None

    def left(self) -> Built | None:
        """Return the request that has no answer where the session ends."""
        built, self._built = self._built, None
        return built
