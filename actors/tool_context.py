"""What a running tool is told, and how it reports back."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

from refold.actors.cancellation import CancellationToken
from refold.actors.errors import AskCycle
from refold.events.content import ResultContent
from refold.events.errors import ToolError
from refold.events.ids import PayloadHash, SessionId, ToolCallId, stream_name
from refold.events.session_core import SESSION_KIND

if TYPE_CHECKING:
    from refold.actors.actor_system import ActorSystem

D = TypeVar("D")


class CallingTool:
    """Whose call a tool's body carries out, so that a wait for that very session can be refused."""

    def __init__(self, system: "ActorSystem", session: SessionId) -> None:
        self.system = system
        self.session = session
        self.over = False
        """Whether the body has ended; what it has begun and left behind waits for nobody who waits for it."""


_WITHOUT_WAITING = (
    "Return what is to be said as the tool's result, use another session, or accept an input for after this run with "
    "the session's remind(), which does not wait for its answer"
)

calling_tool: ContextVar[CallingTool | None] = ContextVar("calling_tool", default=None)
"""Set inside a tool's body, and in what it begins."""


def require_other_session(system: "ActorSystem", session: SessionId) -> None:
    """Return, unless this is inside the body of a tool of that very session, which would wait for itself.

    Raises:
        AskCycle: it is.
    """
    calling = calling_tool.get()
    if calling is not None and not calling.over and (calling.system, calling.session) == (system, session):
        stream = stream_name(SESSION_KIND, session)
        raise AskCycle((stream, "its tool", stream), _WITHOUT_WAITING)


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
        self.finished: str | None = None
        """What the tool ended the run with."""
        self.original: tuple[tuple[ResultContent, ...] | None, dict[PayloadHash, bytes]] = (None, {})
        """What the tool gave, where middleware changed its result, and its payloads."""
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

    def finish(self, text: str) -> str:
        """End the run as completed with `text` as its answer, once the body returns; returns `text`.

        `text` becomes the result of the call, whatever the body returns. Calls of the same answer that run beside this
        one are awaited, and those that have not begun do not run. A body that raises afterwards ends nothing.

        Raises:
            ToolError: `text` is no text.
        """
        if not isinstance(text, str):
            raise ToolError(f"finish takes the run's answer as text, not {type(text).__name__}")
        self.finished = text
        return text
