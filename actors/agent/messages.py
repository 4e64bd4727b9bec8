"""Messages of a session's actor that other actors need to know; the rest are in `refold.actors.agent.session`."""

from refold.actors.calls.request import WantedRequest
from refold.actors.folded_actor import Performed
from refold.actors.kernel.mailbox import Vital
from refold.events.core.ids import EventRef
from refold.events.session.commands import CancelRun


class ForAcceptedWork(Vital, frozen=True):
    """A command or a question about what was accepted before, which a full mailbox must not turn away."""

    message: object


class WakeSession(Vital, frozen=True):
    """Start the session if it is not live, so that its open run goes on."""


class InsistOnCancel(Vital, frozen=True):
    """Cancel, and do not let go of it where the log refuses: a cancellation must not be lost."""

    command: CancelRun
    attempt: int = 0
    """How often the log has refused."""
    cause: EventRef | None = None
    """The event of another session that it follows from."""
    correlation: EventRef | None = None
    """What that goes back to."""


class PreparedContext(Performed, frozen=True):
    """The reply to `RecordContext`."""

    wanted: WantedRequest | None
    """The request as it is wanted now; None = the run makes no model call any more."""
