"""What protects callers from what fails, repeats or floods: breakers, deduplication, backpressure, pipelines.

Read `breaker` first. Names load on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.resilience.backpressure import BackpressureGuard as BackpressureGuard
    from refold.resilience.breaker import BreakerBackend as BreakerBackend
    from refold.resilience.breaker import BreakerReport as BreakerReport
    from refold.resilience.breaker import CircuitBreaker as CircuitBreaker
    from refold.resilience.breaker import Guard as Guard
    from refold.resilience.breaker import counts_by_default as counts_by_default
    from refold.resilience.deduplicator import Deduplicator as Deduplicator
    from refold.resilience.deduplicator import KeyStatus as KeyStatus
    from refold.resilience.pipeline import Pipeline as Pipeline
    from refold.resilience.redis_breaker import RedisBreakerState as RedisBreakerState
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.resilience.backpressure": "BackpressureGuard",
            "refold.resilience.breaker": "BreakerBackend BreakerReport CircuitBreaker counts_by_default Guard",
            "refold.resilience.deduplicator": "Deduplicator KeyStatus",
            "refold.resilience.pipeline": "Pipeline",
            "refold.resilience.redis_breaker": "RedisBreakerState",
        },
    )
