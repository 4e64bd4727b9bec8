"""What a breaker that several processes share leaves on the log of each: what this process learned of it, and when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold import AgentRuntime, CircuitOpen
from refold.actors import ManualClock
from refold.events.kinds.breaker import BREAKER_CORE
from refold.resilience import CircuitBreaker, RedisBreakerState
from tests.resilience.conftest import MakeBackend, assert_sound, fail_on_the_loop, runtime_of
from tests.runtime.commands.test_cli import run

SECOND_US = 1_000_000


def breaker_of(backend: RedisBreakerState) -> CircuitBreaker:
    return CircuitBreaker("weather", threshold=2, recovery_s=10, probe_s=20, backend=backend)


async def events_in(runtime: AgentRuntime, breaker: CircuitBreaker) -> list[Any]:
    await breaker.read(lambda state: state.version)  # Behind all that was told before.
    return BREAKER_CORE.codec.decode_all(await runtime.store.read_stream("breaker/weather"))


async def test_a_process_records_what_it_did_itself_and_what_it_learns_of_others(
    make_backend: MakeBackend, clock: ManualClock, tmp_path: Path
) -> None:
    backend = make_backend(clock)
    own, other = breaker_of(backend), breaker_of(make_backend(clock))
    log = tmp_path / "events.db"
    began = clock.now_us()
    async with runtime_of(log, clock, own) as runtime:
        await fail_on_the_loop(own, 1)
        await fail_on_the_loop(other, 1, "gone")
        with pytest.raises(CircuitOpen, match="since breaker/weather@3") as refused:
            await own.call(lambda: 1)
        [_, counted, opened] = await events_in(runtime, own)
        assert (counted.phase, counted.failures, counted.error) == ("closed", 1, "OSError: no route")
        assert (opened.phase, opened.failures, opened.error) == ("open", 2, "OSError: gone")
        assert (opened.opened_at, refused.value.opened) == (began, "breaker/weather@3")
        await clock.advance(11)
        await fail_on_the_loop(own, 1, "still gone")  # The probe.
        await clock.advance(11)
        assert await other.call(lambda: 1) == 1
        assert await own.call(lambda: 1) == 1
        phases = [event.phase for event in (await events_in(runtime, own))[1:]]
        assert phases == ["closed", "open", "half_open", "open", "closed"]
        closed = (await events_in(runtime, own))[-1]
        assert (closed.generation, closed.closed_at) == (3, began + 22 * SECOND_US)
    shown = await asyncio.to_thread(run, "show", log, "breaker/weather")
    assert "OSError: gone" in shown.stdout
    await assert_sound(log)

    await fail_on_the_loop(other, 2, "at night")  # Nobody here sees it.
    again = breaker_of(backend)
    async with runtime_of(log, clock, again) as runtime:
        with pytest.raises(CircuitOpen):
            await again.call(lambda: 1)
        assert (await events_in(runtime, again))[-1].error == "OSError: at night"
        assert (await again.report()).generation == 4


async def test_a_shared_state_that_begins_anew_is_recorded_as_well(
    make_backend: MakeBackend, redis_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    import redis

    breaker = breaker_of(make_backend(clock))
    async with runtime_of(tmp_path / "events.db", clock, breaker) as runtime:
        await fail_on_the_loop(breaker, 2)
        await clock.advance(1)
        with redis.Redis.from_url(redis_url) as client:
            client.delete(*client.keys("*weather"))
        assert await breaker.call(lambda: 1) == 1
        await clock.advance(1)
        await fail_on_the_loop(breaker, 2, "again")
        seen = [(event.phase, event.failures) for event in (await events_in(runtime, breaker))[1:]]
        assert seen == [("closed", 1), ("open", 2), ("closed", 0), ("closed", 1), ("open", 2)]
        assert (await events_in(runtime, breaker))[-1].error == "OSError: again"
