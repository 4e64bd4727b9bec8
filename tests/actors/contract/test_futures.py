"""Futures: one outcome, got any number of times, and futures derived from others."""

import asyncio
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

import pykka
import pytest

from tests.actors.contract.worlds import LONG_S, World


@pytest.fixture
def future(world: World) -> "pykka.Future[Any]":
    return world.future()


@pytest.fixture
def futures(world: World) -> "list[pykka.Future[Any]]":
    return [world.future() for _ in range(3)]


def test_a_value_can_be_got_many_times(future: "pykka.Future[Any]") -> None:
    future.set(7)
    assert [future.get(), future.get(timeout=0)] == [7, 7]


def test_a_value_is_none_where_none_is_given(future: "pykka.Future[Any]") -> None:
    future.set()
    assert future.get() is None


def test_there_is_one_outcome(future: "pykka.Future[Any]") -> None:
    future.set("first")
    with pytest.raises(queue.Full):
        future.set("second")
    with pytest.raises(queue.Full):
        future.set_exception((ValueError, ValueError("late"), None))
    assert future.get() == "first"


def test_get_gives_up_in_time_and_the_future_lives_on(future: "pykka.Future[Any]") -> None:
    for timeout in (0, 0.001):
        with pytest.raises(pykka.Timeout):
            future.get(timeout=timeout)
    future.set("late")
    assert future.get(timeout=0) == "late"


def test_every_thread_that_waits_gets_the_value(future: "pykka.Future[Any]") -> None:
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(future.get(timeout=LONG_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
    future.set("for all")
    for thread in threads:
        thread.join()
    assert got == ["for all"] * 3


def test_an_error_is_raised_with_the_traceback_of_where_it_came_from(future: "pykka.Future[Any]") -> None:
    def fail() -> None:
        raise KeyError("key")

    try:
        fail()
    except KeyError as error:
        set_error = error
        came_from = traceback.extract_tb(sys.exc_info()[2])
        future.set_exception()
    with pytest.raises(KeyError) as raised:
        future.get()
    assert raised.value is set_error
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][-2:] == [
        frame.name for frame in came_from
    ]


def test_an_error_may_be_given_as_a_class_alone(future: "pykka.Future[Any]") -> None:
    future.set_exception((KeyError, None, None))
    with pytest.raises(KeyError):
        future.get()


def test_a_future_may_be_the_value_of_another(world: World) -> None:
    outer, inner = world.future(), world.future()
    inner.set("inner")
    outer.set(inner)
    assert outer.get().get() == "inner"


def test_get_all_waits_for_all(futures: "list[pykka.Future[Any]]") -> None:
    for number, future in enumerate(futures):
        future.set(number)
    assert pykka.get_all(futures) == [0, 1, 2]
    assert pykka.get_all(futures) == [0, 1, 2]


def test_get_all_gives_up_in_time(futures: "list[pykka.Future[Any]]") -> None:
    futures[0].set(0)
    futures[2].set(2)
    with pytest.raises(pykka.Timeout):
        pykka.get_all(futures, timeout=0)


def test_get_all_takes_futures_of_both_worlds(refold_world: World, pykka_world: World) -> None:
    futures = [refold_world.future(), pykka_world.future()]
    for number, future in enumerate(futures):
        future.set(number)
    assert pykka.get_all(futures) == [0, 1]


def test_a_future_can_be_awaited(future: "pykka.Future[Any]") -> None:
    async def wait() -> Any:
        return await future

    future.set("awaited")
    assert asyncio.run(wait()) == "awaited"


def test_a_future_can_be_yielded_from(future: "pykka.Future[Any]") -> None:
    @coroutine
    def wait() -> Generator[Any, Any, Any]:
        return (yield from future)

    async def run() -> Any:
        return await wait()

    future.set("yielded")
    assert asyncio.run(run()) == "yielded"


DERIVED: "dict[str, Callable[[pykka.Future[Any]], pykka.Future[Any]]]" = {
    "map": lambda future: future.map(lambda value: value),
    "filter": lambda future: future.filter(lambda value: True),
    "reduce": lambda future: future.reduce(lambda one, other: one + other),
    "join": lambda future: future.join(),
}


def test_map_passes_the_whole_value_through_a_function(future: "pykka.Future[Any]") -> None:
    count = future.map(len)
    future.set([10, 20, 30])
    assert count.get(timeout=0) == 3


def test_map_takes_a_mapping_as_one_value(future: "pykka.Future[Any]") -> None:
    picked = future.map(lambda value: value["key"])
    future.set({"key": "picked"})
    assert picked.get(timeout=0) == "picked"


def test_filter_keeps_the_items_that_pass(future: "pykka.Future[Any]") -> None:
    even = future.filter(lambda item: item % 2 == 0)
    future.set(range(7))
    assert even.get(timeout=0) == [0, 2, 4, 6]


def test_reduce_goes_from_left_to_right(future: "pykka.Future[Any]") -> None:
    joined = future.reduce(lambda text, item: text + item)
    future.set(["a", "b", "c"])
    assert joined.get(timeout=0) == "abc"


def test_reduce_may_begin_with_a_value(world: World) -> None:
    some, none = world.future(), world.future()
    sums = [future.reduce(lambda total, item: total + item, 100) for future in (some, none)]
    some.set([1, 2])
    none.set([])
    assert pykka.get_all(sums) == [103, 100]


def test_join_is_the_list_of_all_values_in_the_order_given(futures: "list[pykka.Future[Any]]") -> None:
    joined = futures[0].join(futures[1], futures[2])
    for number, future in enumerate(futures):
        future.set(number)
    assert joined.get(timeout=0) == [0, 1, 2]


def test_derived_futures_can_be_derived_from(futures: "list[pykka.Future[Any]]") -> None:
    total = futures[0].join(*futures[1:]).filter(bool).map(sum)
    for number, future in enumerate(futures):
        future.set(number)
    assert total.get(timeout=0) == 3


@pytest.mark.parametrize("way", ["filter", "reduce"])
def test_what_cannot_be_iterated_is_a_type_error_when_it_is_got(future: "pykka.Future[Any]", way: str) -> None:
    derived = DERIVED[way](future)
    future.set(7)
    with pytest.raises(TypeError):
        derived.get(timeout=0)


@pytest.mark.parametrize("way", DERIVED)
def test_a_derived_future_gives_up_in_time(future: "pykka.Future[Any]", way: str) -> None:
    derived = DERIVED[way](future)
    with pytest.raises(pykka.Timeout):
        derived.get(timeout=0)
    future.set(["late"])
    assert derived.get(timeout=0)


@pytest.mark.parametrize("way", DERIVED)
def test_a_derived_future_raises_the_error_of_what_it_is_derived_from(future: "pykka.Future[Any]", way: str) -> None:
    derived = DERIVED[way](future)
    future.set_exception((KeyError, KeyError("key"), None))
    with pytest.raises(KeyError):
        derived.get(timeout=0)


@pytest.mark.parametrize("way", ["map", "filter", "reduce"])
def test_the_function_of_a_derived_future_is_called_for_the_first_get_only(
    future: "pykka.Future[Any]", way: str
) -> None:
    calls: list[Any] = []

    def count(*values: Any) -> int:
        calls.append(values)
        return 1

    derived = getattr(future, way)(count)
    assert calls == []
    future.set(["one", "two"])
    first = derived.get(timeout=0)
    called = len(calls)
    assert called > 0
    assert derived.get(timeout=0) is first
    assert len(calls) == called


def test_the_function_of_a_derived_future_is_called_once_though_two_threads_wait(future: "pykka.Future[Any]") -> None:
    calls: list[str] = []
    begun, gate = threading.Event(), threading.Event()

    def count(value: Any) -> Any:
        calls.append(value)
        begun.set()
        gate.wait(LONG_S)
        return value

    derived = future.map(count)
    future.set("value")
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(derived.get())) for _ in range(2)]
    threads[0].start()
    assert begun.wait(LONG_S)
    threads[1].start()
    gate.set()
    for thread in threads:
        thread.join()
    assert got == ["value", "value"]
    assert calls == ["value"]
