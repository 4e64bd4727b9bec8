"""Messages of a session's actor that other actors need to know; the rest are in `refold.actors.session`."""

from refold.actors.folded_actor import Performed
from refold.actors.mailbox import Vital
from refold.actors.outgoing_request import WantedRequest


class ForAcceptedWork(Vital, frozen=True):
    """A command or a question about what was accepted before, which a full mailbox must not turn away."""

    message: object


class PreparedContext(Performed, frozen=True):
    """The reply to `RecordContext`."""

    wanted: WantedRequest | None
    """The request as it is wanted now; None = the run makes no model call any more."""
