"""When a failed model call or tool call is tried again: a policy, and the delay that it gives for an attempt.

Kinds of errors may have budgets of their own, so that a provider that is overloaded for minutes uses up nothing of what
is meant for broken connections.

The delay grows exponentially, as in "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015), with the jitter
taken from a hash instead of a random number, so that a replay gives the same times.
"""

import hashlib
from collections.abc import Mapping
from typing import get_args

import msgspec

from refold.events.core.errors import ConfigError, ProviderErrorKind

RETRY_AFTER_S_MAX = 600.0
"""A provider may ask for a pause of at most so many seconds."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often, and after which pauses, a failed model call, or tool call, that may be repeated is tried again.

    The pause after attempt `n` (from 1) is `base_s * 2 ** (n - 1)`, at most `max_s`, less a part of up to `jitter` of
    it; but never shorter than the provider asks for.

    Raises:
        ConfigError: a value is outside its bounds.
    """

    attempts_max: int = 3
    """Most attempts at one call, the first one included, >= 1; one that a crash interrupted does not count."""
    attempts_by_kind: dict[str, int] = {}
    """Most attempts by kind of error, such as `{"overloaded": 20}`, >= 1: a kind named here is counted by itself. Kinds
    are those of model calls."""
    attempts_total_max: int | None = None
    """Most attempts with errors of any kind, >= 1; None = as many as all of the above together."""
    base_s: float = 1.0
    """Pause after the first attempt, in seconds, > 0."""
    max_s: float = 60.0
    """Longest pause of our own, in seconds, >= `base_s`."""
    jitter: float = 0.2
    """Largest part of a pause that is left out, 0 to 1."""

    def __post_init__(self) -> None:
        bounds: tuple[tuple[str, bool, str], ...] = (
            ("attempts_max", type(self.attempts_max) is int and self.attempts_max >= 1, "an integer of at least 1"),
            (
                "attempts_by_kind",
                isinstance(self.attempts_by_kind, dict)
                and all(
                    kind in get_args(ProviderErrorKind) and type(most) is int and most >= 1
                    for kind, most in self.attempts_by_kind.items()
                ),
                f"integers of at least 1 by kinds out of {', '.join(get_args(ProviderErrorKind))}",
            ),
            (
                "attempts_total_max",
                self.attempts_total_max is None
                or (type(self.attempts_total_max) is int and self.attempts_total_max >= 1),
                "None or an integer of at least 1",
            ),
            ("base_s", _is_number(self.base_s) and 0 < self.base_s <= 3600, "a number of seconds above 0, up to 3600"),
            (
                "max_s",
                _is_number(self.max_s) and _is_number(self.base_s) and self.base_s <= self.max_s <= 86_400,
                "a number of seconds of at least base_s, up to 86400",
            ),
            ("jitter", _is_number(self.jitter) and 0 <= self.jitter <= 1, "a number from 0 to 1"),
        )
        for field, good, wanted in bounds:
            if not good:
                raise ConfigError(f"RetryPolicy.{field} must be {wanted}, not {getattr(self, field)!r:.80}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def attempts_counted(policy: RetryPolicy, failures: Mapping[str, int], kind: str) -> int | None:
    """Return how many failed attempts count for the next pause after an error of `kind`; None = there is no next one.

    Args:
        policy: how often to try.
        failures: failed attempts at this call by kind of error, the last one included.
        kind: of the last error.
    """
    own = policy.attempts_by_kind
    counted = failures[kind] if kind in own else sum(count for name, count in failures.items() if name not in own)
    total_max = policy.attempts_total_max
    if total_max is None:
        total_max = policy.attempts_max + sum(own.values())
    if counted >= own.get(kind, policy.attempts_max) or sum(failures.values()) >= total_max:
        return None
    return counted


def retry_delay_us(policy: RetryPolicy, attempts: int, retry_after_s: float | None, seed: str) -> int:
    """Return the pause before the next attempt, in microseconds.

    Args:
        policy: how to wait.
        attempts: how many have failed, >= 1; those that `attempts_counted` gives.
        retry_after_s: what the provider asks for; None = nothing. Bounded by `RETRY_AFTER_S_MAX`.
        seed: what the jitter is derived from: the same text gives the same pause.

    Example:
        >>> retry_delay_us(RetryPolicy(jitter=0), 3, None, "")
        4000000
    """
    backoff_s = min(policy.base_s * 2.0 ** min(attempts - 1, 60), policy.max_s)
    part = int.from_bytes(hashlib.sha256(f"{seed}:{attempts}".encode()).digest()[:6]) / 2**48
    pause_s = backoff_s * (1 - policy.jitter * part)
    asked_s = min(max(retry_after_s or 0.0, 0.0), RETRY_AFTER_S_MAX)
    return round(max(pause_s, asked_s) * 1_000_000)
