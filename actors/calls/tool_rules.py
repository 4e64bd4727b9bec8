"""How the calls of one tool are carried out: what protects the tool, and how many run at once.

These settings hold in this process and are not recorded: no decision of a session reads them.
"""

from dataclasses import dataclass
from typing import Protocol

from refold.events.core.errors import CircuitOpen


class CallGuard(Protocol):
    """One call under a breaker."""

    async def begin(self) -> None:
        """Return if the call may be made.

        Raises:
            CircuitOpen: it may not.
        """
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
