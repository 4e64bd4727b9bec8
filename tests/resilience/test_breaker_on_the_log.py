"""What a breaker leaves on a log, and takes up from it."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from refold import (
    CircuitOpen,
    ConfigError,
    PersistenceError,
    Tool,
    say,
    tool,
    use,
)
from refold.actors import EventSourcedSystem, ManualClock
from refold.events.core.pure_core import evolve_all
from refold.events.kinds.breaker import BREAKER_CORE
from refold.resilience import CircuitBreaker
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.resilience.conftest import assert_sound, fail, runtime_of


def breaker_of(**settings: float) -> CircuitBreaker:
    return CircuitBreaker("weather", **{"threshold": 2, "recovery_s": 10, **settings})  # type: ignore[arg-type]


async def types_in(log: EventStore, stream: str = "breaker/weather") -> list[str]:
    return [type(event).__name__ for event in BREAKER_CORE.codec.decode_all(await log.read_stream(stream))]


async def test_e1_its_state_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "events.db"
    breaker = breaker_of()
    async with runtime_of(log, clock, breaker):
        fail(breaker, 2)
        before = await breaker.report()
    await clock.advance(4)
    again = breaker_of()
    async with runtime_of(log, clock, again):
        with pytest.raises(CircuitOpen) as raised:
            await again.call(lambda: 1)
        assert raised.value.retry_after_s == 6
        assert (await again.report()).error == before.error == "OSError: no route"
        await clock.advance(6)
        assert await again.call(lambda: 1) == 1
    last = breaker_of()
    async with runtime_of(log, clock, last):
        report = await last.report()
        assert (report.phase, report.generation, report.closed_at) == ("closed", 2, clock.now_us())


async def test_e1_a_probe_that_died_with_its_process_gives_up_its_slot(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "events.db"
    breaker = breaker_of(probe_s=5)
    async with runtime_of(log, clock, breaker):
        fail(breaker, 2)
        await clock.advance(10)
        breaker.begin()
    again = breaker_of(probe_s=5)
    async with runtime_of(log, clock, again):
        with pytest.raises(CircuitOpen):
            await again.call(lambda: 1)
        await clock.advance(5)
        assert await again.call(lambda: 1) == 1


async def test_transitions_are_recorded_and_nothing_else_and_the_folded_state_is_the_live_one(
    clock: ManualClock,
) -> None:
    log = InMemoryStore()
    breaker = breaker_of()
    async with runtime_of(log, clock, breaker) as runtime:
        commits = runtime.commits
        for _ in range(50):
            fail(breaker, 1)
            await breaker.call(lambda: 1)
        await clock.settle()
        assert runtime.commits == commits
        fail(breaker, 2)
        await clock.advance(10)
        with suppress(asyncio.CancelledError), breaker.guard():
            raise asyncio.CancelledError
        fail(breaker, 1)
        await clock.advance(10)
        assert await breaker.call(lambda: 1) == 1
        logged = await breaker.read(lambda state: state)
        live = breaker.backend.known("weather", breaker.settings).state
        assert logged == live
    names = ["BreakerConfigured", "CircuitOpened", "ProbeBegun", "ProbeReleased", "ProbeBegun", "CircuitOpened"]
    assert await types_in(log) == [*names, "ProbeBegun", "CircuitClosed"]
    folded = evolve_all(BREAKER_CORE, BREAKER_CORE.codec.decode_all(await log.read_stream("breaker/weather")))
    assert folded == live
    await assert_sound(log)


async def test_settings_are_recorded_where_they_differ_and_no_stream_begins_before_there_is_need(
    clock: ManualClock,
) -> None:
    log = InMemoryStore()
    async with runtime_of(log, clock, CircuitBreaker("weather")):
        pass
    assert await log.head("breaker/weather") is None
    for threshold in (2, 2, 3):
        async with runtime_of(log, clock, breaker_of(threshold=threshold)):
            pass
    assert await types_in(log) == ["BreakerConfigured"] * 2


async def test_a_circuit_that_opened_before_the_runtime_is_open_in_it(clock: ManualClock) -> None:
    log = InMemoryStore()
    breaker = breaker_of(recovery_s=30)
    fail(breaker, 2)
    async with runtime_of(log, clock, breaker):
        assert (await breaker.report()).generation == 1
    assert await types_in(log) == ["BreakerConfigured", "CircuitOpened"]
    fresh = breaker_of(recovery_s=30)
    fail(fresh, 2)
    async with runtime_of(log, clock, fresh):
        assert (await fresh.report()).generation == 1
    assert len(await types_in(log)) == 2


async def test_a_log_that_fails_stops_no_call_and_what_it_missed_does_not_matter(clock: ManualClock) -> None:
    log = FailingStore(InMemoryStore())
    breaker = breaker_of()
    async with runtime_of(log, clock, breaker):
        log.fail_appends(lambda: PersistenceError("no space left"))
        fail(breaker, 2)
        await clock.advance(10)
        assert (await breaker.report()).phase == "half_open"
        assert await breaker.call(lambda: 1) == 1
        await clock.settle()
        log.mend()
        fail(breaker, 2)
        await clock.settle()
    opened = BREAKER_CORE.codec.decode_all(await log.read_stream("breaker/weather"))[-1]
    assert getattr(opened, "generation", None) == 3
    again = breaker_of()
    async with runtime_of(log, clock, again):
        assert (await again.report()).phase == "open"


async def test_threads_have_their_transitions_recorded_without_waiting(tmp_path: Path, clock: ManualClock) -> None:
    store = await SQLiteStore.open(tmp_path / "events.db")
    breaker = breaker_of()
    async with runtime_of(store, clock, breaker):
        await asyncio.to_thread(fail, breaker, 2)
    assert await types_in(store) == ["BreakerConfigured", "CircuitOpened"]
    await store.close()


async def test_after_its_runtime_it_goes_on_in_memory(clock: ManualClock) -> None:
    breaker = breaker_of()
    async with EventSourcedSystem(clock=clock) as system:
        await breaker.attach(system.host)
    fail(breaker, 2)
    with pytest.raises(CircuitOpen):
        await breaker.call(lambda: 1)


def failing_tool(breaker: CircuitBreaker, name: str = "forecast") -> Tool[..., Any]:
    @tool(name=name, effect="pure", breaker=breaker)
    async def forecast() -> str:
        """Say how the weather will be."""
        raise ConnectionError("no route")

    return forecast


async def test_the_breaker_of_a_tool_that_is_registered_later_is_on_the_log(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "events.db"
    script = [use("forecast", {}), use("forecast", {}), say("No idea.")]
    runtime = runtime_of(log, clock, script=script)
    early = CircuitBreaker("early", threshold=1)
    runtime.tools.register(failing_tool(early, "early"))
    breaker = breaker_of()
    async with runtime:
        fail(early, 1)
        runtime.tools.register(failing_tool(breaker))
        session = await runtime.session("alice")
        await session.send("How will the weather be?")
        assert (await breaker.report()).phase == "open"
        assert await types_in(runtime.store) == ["BreakerConfigured", "CircuitOpened"]
        assert await types_in(runtime.store, "breaker/early") == ["BreakerConfigured", "CircuitOpened"]
    await assert_sound(log)


async def test_what_a_breaker_did_before_its_tool_was_registered_is_taken_along(
    tmp_path: Path, clock: ManualClock
) -> None:
    log = tmp_path / "events.db"
    first, second = (CircuitBreaker("weather", threshold=2, recovery_s=10, clock=clock) for _ in range(2))
    async with runtime_of(log, clock, CircuitBreaker("other")) as runtime:
        fail(first, 2)
        await asyncio.to_thread(runtime.tools.register, failing_tool(first))
        with pytest.raises(ConfigError, match="2 objects of the agent are the stream breaker/weather"):
            runtime.tools.register(failing_tool(breaker_of(), "another"))
        assert runtime.tools.names() == ("forecast",)
        runtime.tools.remove("forecast")
        runtime.tools.register(failing_tool(second))
        await runtime.tools_in_force()
        assert (await second.report()).phase == "open"
        assert await types_in(runtime.store) == ["BreakerConfigured", "CircuitOpened"]
    runtime.tools.register(failing_tool(CircuitBreaker("after the end"), "late"))
