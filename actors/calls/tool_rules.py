"""How the calls of one tool are carried out: what protects the tool, when it is tried again, how many run at once.

These settings hold in this process and are not recorded: no decision of a session reads them.
"""

from dataclasses import dataclass
from typing import Protocol

from refold.events.core.errors import CircuitOpen
from refold.events.model.configuration import ToolSpec
from refold.events.model.retry import RetryPolicy


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
    retries: RetryPolicy | None = None
    """A body that failed in a way that may pass (a transient error, or silence) is run again with the same idempotency
    key, after pauses, at most `attempts_max` times in all; None = never. No body whose effect is `once` is."""
    concurrency: int | None = None
    """Most bodies that run at once, over all sessions; None = any number. Further calls wait, which is not silence. A
    body that ignores its cancellation is not counted once it is given up."""


NO_RULES = ToolRules()
"""Every call is carried out at once, and only once."""


class CallNotMade(Exception):
    """A call whose body did not run, since the breaker of its tool keeps it away."""

    def __init__(self, tool: str, error: CircuitOpen) -> None:
        when = "later" if error.retry_after_s is None else f"in {max(error.retry_after_s, 0.001):.3g} seconds"
        super().__init__(
            f"{tool} was not called: it failed repeatedly, and is left alone for now. It may be tried again {when}."
        )


class NoSignOfLife(TimeoutError):
    """An attempt at a call that gave no sign of life and was ended."""


def silence_text(timeout_s: float) -> str:
    """Return what a model is told of a call that was given up."""
    return (
        f"The tool gave no sign of life for {timeout_s:g} seconds and was given up. It may have taken full, "
        "partial or no effect."
    )


def may_run_again(spec: ToolSpec | None, rules: ToolRules, attempts: int) -> bool:
    """Tell whether a body that may be run again has attempts left; one whose effect is `once` never has."""
    if spec is None or spec.effect == "once" or rules.retries is None:
        return False
    return attempts < rules.retries.attempts_max
