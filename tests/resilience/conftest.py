"""What the tests of this folder share: a runtime for objects on the log, and one redis-server."""

import uuid
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider
from refold.actors import ManualClock
from refold.inspection.check import check_log
from refold.replay import replay
from refold.resilience import CircuitBreaker, RedisBreakerState
from refold.stores import EventStore
from tests.resilience.redis_server import FOUND, REASON, redis_server


@pytest.fixture(scope="session")
def redis_url() -> Generator[str, None, None]:
    if FOUND is None:
        pytest.skip(REASON)
    with redis_server() as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def runtime_of(log: Path | EventStore, clock: ManualClock, *objects: Any, script: Any = ()) -> AgentRuntime:
    """Return a runtime with objects on its log."""
    provider = ScriptedProvider(script)
    config = AgentConfig(model="m")
    return AgentRuntime(
        config, provider=provider, log=log, objects=objects, clock=clock, inbox_poll_s=0, close_grace_s=0
    )


MakeBackend = Callable[..., RedisBreakerState]


@pytest.fixture
def make_backend(redis_url: str) -> Generator[MakeBackend, None, None]:
    """Give a function that makes a breaker's state in Redis, all those of one test under one prefix."""
    made: list[RedisBreakerState] = []
    prefix = f"{uuid.uuid4()}:"

    def make(clock: ManualClock | None = None) -> RedisBreakerState:
        made.append(RedisBreakerState(redis_url, prefix=prefix, clock=clock))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def fail(breaker: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        with suppress(OSError), breaker.guard():
            raise OSError("no route")


async def fail_on_the_loop(breaker: CircuitBreaker, times: int = 1, why: str = "no route") -> None:
    for _ in range(times):
        with suppress(OSError):
            async with breaker.guard():
                raise OSError(why)


async def assert_sound(log: Path | EventStore) -> None:
    assert (await check_log(log)).problems == ()
    (await replay(log)).raise_for_divergence()
