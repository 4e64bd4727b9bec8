"""What a breaker that several processes share leaves on the log of each: what this process learned of it, and when."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold import AgentRuntime, CircuitOpen
from refold.actors import ManualClock
from refold.events.core.pure_core import Recorded, evolve_all, plan
from refold.events.kinds.breaker import BREAKER_CORE, BreakerState
from refold.resilience import CircuitBreaker, RedisBreakerState
from refold.resilience.breaker_state import BreakerMemory, BreakerSettings, ObservedTransitions
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
        with pytest.raises(CircuitOpen):
            await own.call(lambda: 1)
        [_, opened] = await events_in(runtime, own)
        assert (opened.error, opened.failures, opened.decided_at) == ("OSError: gone", 2, began)
        await clock.advance(11)
        await fail_on_the_loop(own, 1, "still gone")  # The probe.
        await clock.advance(11)
        assert await other.call(lambda: 1) == 1
        assert await own.call(lambda: 1) == 1
        names = [type(event).__name__ for event in await events_in(runtime, own)]
        assert names == ["BreakerConfigured", "CircuitOpened", "ProbeBegun", "CircuitOpened", "CircuitClosed"]
        closed = (await events_in(runtime, own))[-1]
        assert (closed.generation, closed.decided_at) == (3, began + 22 * SECOND_US)
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
        names = [type(event).__name__ for event in await events_in(runtime, breaker)]
        assert names == ["BreakerConfigured", "CircuitOpened", "CircuitClosed", "CircuitOpened"]
        assert (await events_in(runtime, breaker))[-1].error == "OSError: again"


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "succeeded", "failed", "neither"]), st.integers(0, 12), st.booleans()),
    max_size=40,
)


@settings(max_examples=200)
@given(steps=STEPS, late=st.lists(st.integers(0, 3), max_size=40))
def test_in_any_life_the_log_ends_with_what_was_seen_last(steps: list[tuple[str, int, bool]], late: list[int]) -> None:
    """Some of what happens is seen at once, some late, some never."""
    own = BreakerSettings(threshold=2, recovery_us=3 * SECOND_US, probe_us=5 * SECOND_US)
    shared = BreakerMemory(own, lambda _: None)
    logged = own.begin()
    recorded: list[Any] = []

    def record(command: Any) -> None:
        nonlocal logged
        planned = plan(BREAKER_CORE, logged, command, 1)
        assert not isinstance(planned, Recorded)
        logged = planned.state
        recorded.extend(planned.events)

    learned = ObservedTransitions(own.begin(), record)
    now, waiting, permits = 1_000 * SECOND_US, list[tuple[int, BreakerState, int]](), list[Any]()
    lateness = iter(late)
    for what, wait_s, seen in steps:
        now += wait_s * SECOND_US + 1
        if what == "begin":
            with suppress(CircuitOpen):
                permits.append(shared.begin("b", own, now))
        elif permits:
            shared.settle("b", own, permits.pop(), what, "it failed", now)  # type: ignore[arg-type]
        if seen:
            waiting.append((next(lateness, 0), shared.known("b", own).state, now))
        for delay, state, at in [item for item in waiting if item[0] <= 0]:
            learned.seen(state, at)
            waiting.remove((delay, state, at))
        waiting = [(delay - 1, state, at) for delay, state, at in waiting]
    last = shared.known("b", own).state
    learned.seen(last, now)
    for _, state, at in waiting:
        learned.seen(state, at)
    assert (logged.phase, logged.generation, logged.opened_at) == (last.phase, last.generation, last.opened_at)
    if last.phase == "closed":
        assert logged.closed_at == last.closed_at
    if last.probe_since is not None:
        assert (logged.probe, logged.probe_since) == (last.probe, last.probe_since)
    assert evolve_all(BREAKER_CORE, recorded, own.begin()) == logged
