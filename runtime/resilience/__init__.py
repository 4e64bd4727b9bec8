"""What protects callers from what fails, repeats or floods: breakers, deduplication, backpressure, pipelines.

Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.resilience.backpressure import BackpressureGuard as BackpressureGuard
    from refold.resilience.breaker import BreakerReport as BreakerReport
    from refold.resilience.breaker import CircuitBreaker as CircuitBreaker
    from refold.resilience.breaker import Guard as Guard
    from refold.resilience.breaker import counts_by_default as counts_by_default
    from refold.resilience.breaker_state import BreakerBackend as BreakerBackend
    from refold.resilience.deduplicator import Deduplicator as Deduplicator
    from refold.resilience.deduplicator import KeyStatus as KeyStatus
    from refold.resilience.pipeline import Pipeline as Pipeline
    from refold.resilience.redis_breaker import RedisBreakerState as RedisBreakerState

__all__ = [
    "BackpressureGuard",
    "BreakerBackend",
    "BreakerReport",
    "CircuitBreaker",
    "Deduplicator",
    "Guard",
    "KeyStatus",
    "Pipeline",
    "RedisBreakerState",
    "counts_by_default",
]

_HOMES = {
    "BackpressureGuard": "refold.resilience.backpressure",
    "BreakerBackend": "refold.resilience.breaker_state",
    "BreakerReport": "refold.resilience.breaker",
    "CircuitBreaker": "refold.resilience.breaker",
    "Deduplicator": "refold.resilience.deduplicator",
    "Guard": "refold.resilience.breaker",
    "KeyStatus": "refold.resilience.deduplicator",
    "Pipeline": "refold.resilience.pipeline",
    "RedisBreakerState": "refold.resilience.redis_breaker",
    "counts_by_default": "refold.resilience.breaker",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
