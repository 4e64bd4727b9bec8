"""A limit to how much goes on at once: E5."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers, lists

from refold import BackpressureShed, Completed, ConfigError, Session, say, tool, use
from refold.resilience import BackpressureGuard, CircuitBreaker
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, crash, runtime_of


async def test_e5_what_is_beyond_the_capacity_is_shed_with_depth_and_capacity() -> None:
    guard = BackpressureGuard(2, name="uploads")
    with guard:
        async with guard:
            assert guard.depth == 2
            with pytest.raises(
                BackpressureShed, match="uploads has no room: 2 are waiting and the capacity is 2"
            ) as shed:
                guard.acquire()
            assert (shed.value.depth, shed.value.capacity) == (2, 2)
        with guard:
            assert guard.depth == 2
    assert (guard.depth, guard.shed) == (0, 1)


def test_e5_a_block_that_raises_makes_room_and_a_shed_one_takes_none() -> None:
    guard = BackpressureGuard(1)
    with pytest.raises(ValueError, match="broken"), guard:
        raise ValueError("broken")
    with guard, pytest.raises(BackpressureShed), guard:
        raise AssertionError
    assert guard.depth == 0


def test_e5_the_soft_limit_warns_once_per_crossing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[int, int]] = []
    guard = BackpressureGuard(
        4, soft_limit=2, on_soft_limit=lambda depth, limit: seen.append((depth, limit)), name="it"
    )
    for _ in range(2):
        with guard, guard, guard:
            assert len(caplog.records) == len(seen)
    assert seen == [(2, 2), (2, 2)]
    assert [record.getMessage() for record in caplog.records] == ["it fills up: 2 of 4 are at work"] * 2


def test_e5_a_listener_that_fails_is_logged_and_lets_the_work_go_on(caplog: pytest.LogCaptureFixture) -> None:
    def broken(depth: int, limit: int) -> None:
        raise RuntimeError("no")

    with BackpressureGuard(1, soft_limit=1, on_soft_limit=broken) as guard:
        assert guard.depth == 1
    assert "what was to be told of its soft limit failed" in caplog.text


@given(integers(1, 5), lists(booleans(), max_size=50), integers(1, 5))
def test_e5_in_any_order_the_capacity_holds_and_each_crossing_is_told(
    capacity: int, steps: list[bool], soft: int
) -> None:
    crossings: list[int] = []
    limit = min(soft, capacity)
    guard = BackpressureGuard(capacity, soft_limit=limit, on_soft_limit=lambda depth, _: crossings.append(depth))
    depth = expected = 0
    for enters in steps:
        if enters and depth == capacity:
            with pytest.raises(BackpressureShed):
                guard.acquire()
        elif enters:
            guard.acquire()
            depth += 1
            expected += depth == limit
        elif depth:
            guard.release()
            depth -= 1
        assert guard.depth == depth
    assert crossings == [limit] * expected


def test_e5_threads_share_it() -> None:
    guard = BackpressureGuard(3)
    most: list[int] = []
    lock = threading.Lock()

    def work(_: int) -> bool:
        try:
            with guard:
                with lock:
                    most.append(guard.depth)
                return True
        except BackpressureShed:
            return False

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(work, range(2_000)))
    assert max(most) <= 3
    assert (guard.depth, guard.shed) == (0, done.count(False))


def test_e5_what_cannot_work_is_refused() -> None:
    bad: Any
    for bad in (0, -1, 1.5, True, None):
        with pytest.raises(ConfigError, match="capacity"):
            BackpressureGuard(bad)
    for bad in (0, 3, 1.5, True):
        with pytest.raises(ConfigError, match="soft_limit"):
            BackpressureGuard(2, soft_limit=bad)
    with pytest.raises(ConfigError, match=r"without an acquire\(\)"):
        BackpressureGuard(1).release()


@pytest.mark.parametrize("name", ["", "\ud800", "\0", None, 3])
def test_e5_a_name_that_cannot_be_one_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="guard name"):
        BackpressureGuard(1, name=name)


# In a runtime.


async def read(stream: Any) -> None:
    async with stream:
        async for _ in stream:
            pass


SENDING: dict[str, Callable[[Session], Any]] = {
    "send": lambda session: session.send("more", key="k"),
    "steer": lambda session: session.send("more", now=True),
    "stream": lambda session: read(session.stream("more")),
    "step": lambda session: session.step("more"),
    "stream with a key": lambda session: read(session.stream("more", key="s")),
    "step with a key": lambda session: session.step("more", key="t"),
}


@pytest.mark.parametrize("how", SENDING)
async def test_an_input_beyond_the_capacity_is_shed_before_anything_of_it_is_recorded(how: str) -> None:
    guard, held = BackpressureGuard(2, name="inputs"), HeldAnswer(say("slow"))
    async with runtime_of(InMemoryStore(), held, say("next"), say("more"), backpressure=guard) as runtime:
        one, other = await runtime.session("one"), await runtime.session("other")
        first = asyncio.ensure_future(one.send("go"))
        await held.asked.wait()
        queued = asyncio.ensure_future(one.send("go on"))
        while len([event async for event in one.events()]) < 6:  # noqa: ASYNC110 - As a user would look.
            await asyncio.sleep(0)
        written = (await runtime.store.read_all())[-1].position
        for session in (one, other):
            with pytest.raises(BackpressureShed, match="inputs has no room: 2 are waiting and the capacity is 2"):
                await SENDING[how](session)
        figures = await runtime.metrics.snapshot()
        assert figures.live is not None
        assert (figures.live.depth, figures.live.sheds, figures.shed_rate) == (2, 2, 0.5)
        assert (await runtime.store.read_all())[-1].position == written
        held.gate.set()
        assert [(await sent).text for sent in (first, queued)] == ["slow", "next"]
        await SENDING[how](other)
        later = (await runtime.metrics.snapshot()).delta(figures)
        assert later.live is not None
        assert (guard.depth, later.live.depth, later.live.sheds, later.inputs) == (0, 0, 0, 1)


@pytest.mark.parametrize("end", ["fails", "is cancelled", "is refused", "is of a known key"])
async def test_a_place_is_free_again_however_a_send_ends(end: str) -> None:
    guard, held = BackpressureGuard(1), HeldAnswer(say("slow"))
    script = [ValueError("a bug")] if end == "fails" else [held]
    async with runtime_of(InMemoryStore(), *script, say("next"), backpressure=guard) as runtime:
        session = await runtime.session("one")
        if end == "is refused":
            with pytest.raises(ConfigError, match="next_turn"):
                await session.step(None, key="k")  # type: ignore[call-overload]
        sending = asyncio.ensure_future(session.send("go", key="k"))
        if end == "is cancelled":
            await held.asked.wait()
            sending.cancel()
        held.gate.set()
        await asyncio.wait([sending])
        if end == "is of a known key":
            assert await session.send("go", key="k") == sending.result()
        assert guard.depth == 0
        assert (await (await runtime.session("two")).send("again")).outcome == Completed()


async def test_what_goes_on_after_a_crash_takes_no_place_and_is_never_shed() -> None:
    store, held = FailingStore(InMemoryStore()), HeldAnswer(say("never"))
    runtime = await runtime_of(store, held).open()
    sessions = [await runtime.session(name) for name in "abc"]
    sending = [asyncio.ensure_future(session.send("go", key="k")) for session in sessions]
    await held.asked.wait()
    while len(await store.list_streams(prefix="session/", with_pending=True)) < 3:  # noqa: ASYNC110 - Likewise.
        await asyncio.sleep(0)
    await crash(runtime, store)
    await asyncio.gather(*sending, return_exceptions=True)
    guard = BackpressureGuard(1)
    async with runtime_of(store, say("on"), say("on"), say("on"), backpressure=guard) as runtime:
        for name in "abc":
            assert (await (await runtime.session(name)).send("go", key="k")).text == "on"
        assert guard.shed == 0


async def test_sending_again_with_a_key_takes_no_place_and_is_never_shed() -> None:
    guard, held, other = BackpressureGuard(1), HeldAnswer(say("slow")), BackpressureGuard(2)
    async with runtime_of(InMemoryStore(), say("first"), held, say("last"), backpressure=guard) as runtime:
        session = await runtime.session("one")
        over = await session.send("go", key="over")
        twins = [asyncio.ensure_future(session.send("again", key="k")) for _ in range(2)]
        await held.asked.wait()
        joining = asyncio.ensure_future(session.send("again", key="k"))
        assert await session.send("go", key="over") == over
        stream = session.stream("go", key="over")
        await read(stream)
        assert stream.result == over
        assert (guard.depth, guard.shed) == (1, 0)
        for sent in twins:  # The run goes on for the one that is left, and keeps its place.
            sent.cancel()
        await asyncio.wait(twins)
        for key in (None, "new"):
            with pytest.raises(BackpressureShed):
                await session.send("more", key=key)
        assert (guard.depth, guard.shed) == (1, 2)
        held.gate.set()
        assert (await joining).text == "slow"
        assert guard.depth == 0
        assert (await session.send("more", key="new")).text == "last"
    other.acquire("a")
    other.acquire("a")
    other.release("a")
    assert (other.depth, other.holds("a"), other.holds("b")) == (1, True, False)
    with pytest.raises(ConfigError, match="without an acquire"):
        other.release("b")
    other.release("a")
    assert (other.depth, other.holds("a")) == (0, False)


async def test_calls_that_an_open_circuit_refuses_are_no_sheds() -> None:
    @tool(breaker=CircuitBreaker("mail", threshold=1))
    async def mail() -> str:
        raise ConnectionError("down")

    script = [use("mail"), use("mail"), say("It is down.")]
    async with runtime_of(InMemoryStore(), *script, tools=[mail], backpressure=BackpressureGuard(1)) as runtime:
        await (await runtime.session("one")).send("go")
        figures = await runtime.metrics.snapshot()
    assert figures.live is not None
    assert (figures.refused_calls, figures.live.sheds, figures.tool_failures) == (1, 0, 2)


def test_threads_are_shed_too_and_what_is_no_guard_is_refused() -> None:
    guard = BackpressureGuard(1)
    with runtime_of(InMemoryStore(), say("a"), backpressure=guard) as runtime:
        with guard, pytest.raises(BackpressureShed):
            runtime.session("one").send("go")
        assert runtime.session("one").send("go").text == "a"
    with pytest.raises(ConfigError, match="backpressure must be a BackpressureGuard, not 100"):
        runtime_of(InMemoryStore(), backpressure=100)
