"""A limit to how much goes on at once: E5."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers, lists

from refold import BackpressureShed, ConfigError
from refold.resilience import BackpressureGuard


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
