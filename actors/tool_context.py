"""What a running tool is told, and how it reports back."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

from refold.actors.cancellation import CancellationToken
from refold.events.ids import SessionId, ToolCallId

if TYPE_CHECKING:
    from refold.actors.actor_system import ActorSystem

D = TypeVar("D")

calling_session: ContextVar["tuple[ActorSystem, SessionId] | None"] = ContextVar("calling_session", default=None)
"""Inside a tool's body: the session whose call it is, so that a wait for that very session can be refused."""


class ToolContext(Generic[D]):
    """A tool that has a parameter of this type gets one for each call; it is not part of the tool's schema.

    Attributes:
        call: the call's id, unique in its session.
        session: whose call it is.
        idempotency_key: the same for every attempt at this call, also after a crash; give it to services that can
            recognise a repetition.
        deps: what the application passed to its runtime as `deps`.
    """

    def __init__(
        self,
        *,
        call: ToolCallId,
        session: SessionId,
        deps: D,
        cancel: CancellationToken,
        report: Callable[[object], None],
    ) -> None:
        self.call = call
        self.session = session
        self.idempotency_key = f"{session}/{call}"
        self.deps = deps
        self.watches_cancel = False
        """Whether the tool has looked at `cancel`, so that it is left a moment to end by itself."""
        self._cancel = cancel
        self._report = report

    @property
    def cancel(self) -> CancellationToken:
        """Cancelled when the run is; await it or look at it to end in order.

        A tool that has looked at it gets part of the grace period to return before its task is cancelled.
        """
        self.watches_cancel = True
        return self._cancel

    def progress(self, report: object) -> None:
        """Tell whoever follows the session how far the call is. It also counts as a sign of life.

        From any thread. Reports are published, not logged.
        """
        self._report(report)
