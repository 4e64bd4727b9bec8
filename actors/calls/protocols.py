"""What actors need from the world above them, as protocols that runtime and tests implement."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from refold.actors.calls.questions import AnswerType
from refold.actors.calls.tool_context import ToolContext
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import JsonObject
from refold.events.core.errors import CircuitOpen
from refold.events.core.ids import RunId, SessionId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import Delta, ModelRequest, ModelResponse
from refold.events.session.events import SessionEvent, Verdict
from refold.events.session.state import SessionState

StreamItem: TypeAlias = Delta | ModelResponse
"""What a stream of an answer yields: deltas, and last the complete response."""


class Provider(Protocol):
    """What answers a model request; where answers are to be streamed, best a `StreamingProvider`."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the model's answer.

        Raises:
            ProviderError: the call failed; its fields say whether it may be repeated. A `ConnectionError`, a
                `TimeoutError` or a transport error of `httpx` counts as one that may be; any other exception ends the
                run as failed.
        """
        ...


class StreamingProvider(Provider, Protocol):
    """A provider that gives its answers as they arrive.

    Of one that has no `stream`, or inherits this one, the stream is the complete response.
    """

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the answer as it arrives, the complete response last; the stream is closed when that has come.

        Raises:
            ProviderError: the call failed, perhaps half-way.
        """
        yield await self.complete(request)


class TellingProvider(Provider, Protocol):
    """A provider that says what it makes of a request, so that the log has the digest of what left."""

    def sent_digest(self, request: ModelRequest, *, streamed: bool) -> str:
        """Return the digest of what would be sent for a request, behind the name of its form: `acme:5d41402a`.

        It depends on the request and the provider's settings alone, and is asked again in a replay. It returns quickly.

        Raises:
            ProviderError: nothing would be sent.
        """
        ...


class CallGuard(Protocol):
    """One call under a breaker."""

    async def begin(self) -> None:
        """Raise CircuitOpen where the call may not be made."""
        ...

    async def end(self, error: BaseException | None) -> None: ...

    def lose(self, error: BaseException) -> None:
        """Say that the call is given up, without waiting; what is said of its end later changes nothing."""
        ...


class CallBreaker(Protocol):
    """What keeps calls from a tool that failed too often; a `refold.resilience.CircuitBreaker` is one."""

    def guard(self) -> CallGuard: ...


@dataclass(frozen=True)
class ToolRules:
    """How a tool's calls are carried out."""

    breaker: CallBreaker | None = None
    """Keeps calls away while the tool fails; in a runtime, it lives on the log."""
    concurrency: int | None = None
    """Most bodies that run at once, over all sessions; None = any number. Further calls wait, which is not silence. A
    body that ignores its cancellation is not counted once it is given up."""

    per_session: bool = False
    """The limit counts for each session by itself."""


NO_RULES = ToolRules()
"""Every call is carried out at once."""


class CallNotMade(Exception):
    """A call whose body did not run, since the breaker of its tool keeps it away."""

    def __init__(self, tool: str, error: CircuitOpen) -> None:
        when = "later" if error.retry_after_s is None else f"in {max(error.retry_after_s, 0.001):.3g} seconds"
        since = "" if error.opened is None else f" since {error.opened}"
        super().__init__(
            f"{tool} was not called: it failed repeatedly, and the circuit {error.service!r} is open{since}. "
            f"It may be tried again {when}."
        )


class NoSignOfLife(TimeoutError):
    """A call, or an attempt at it, that gave no sign of life for so many seconds and was ended."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no sign of life for {timeout_s:g} seconds")
        self.told = (
            f"The tool gave no sign of life for {timeout_s:g} seconds and was given up. It may have taken full, "
            "partial or no effect."
        )
        """What a model is told of it."""


class ToolRunner(Protocol):
    """The tools that exist in this process."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all tools, sorted."""
        ...

    def spec(self, name: str) -> ToolSpec | None: ...

    def rules(self, name: str) -> ToolRules: ...

    def check(self, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
        """Return the arguments as they will be passed, repaired where their meaning is certain, and the verdict."""
        ...

    def described(self, annotation: object) -> AnswerType:
        """Return the type of what a tool asks for; raise ConfigError where it has no JSON Schema."""
        ...

    async def run(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        """Run a tool's body; raise what it raises, or CallRefused where it could not be begun."""
        ...


class SessionObserver(Protocol):
    """Who is told what happens in sessions. It must return quickly; what it raises is logged and ignored."""

    def recorded(self, session: SessionId, events: Sequence[RecordedEvent[SessionEvent]]) -> None:
        """See events that have just become durable, in order."""
        ...

    def settled(self, session: SessionId, state: SessionState) -> None:
        """See that nothing of an earlier run is in flight any more; `state` is to be read only, and only now."""
        ...

    def streamed(
        self, session: SessionId, run: RunId, turn: int, delta: Delta, *, asked: int, begins: bool = False
    ) -> None:
        """See a piece of the answer in a run's turn; it is not logged.

        `asked` is the version of the event that wants the answer; `begins` says that it is the first piece of an
        attempt at it.
        """
        ...

    def progressed(self, session: SessionId, call: str, report: object) -> None:
        """See what a running tool reports; it is not logged."""
        ...
