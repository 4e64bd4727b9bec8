"""Futures: one outcome, got any number of times, and futures derived from others."""

import asyncio
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from operator import add
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


def test_there_is_one_outcome_which_can_be_got_many_times(futures: "list[pykka.Future[Any]]") -> None:
    future, nothing, _ = futures
    nothing.set()
    future.set("first")
    with pytest.raises(queue.Full):
        future.set("second")
    with pytest.raises(queue.Full):
        future.set_exception((ValueError, ValueError("late"), None))
    assert [future.get(), future.get(timeout=0), nothing.get()] == ["first", "first", None]


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


def test_get_all_waits_for_all_or_gives_up_in_time(futures: "list[pykka.Future[Any]]") -> None:
    futures[0].set(0)
    futures[2].set(2)
    with pytest.raises(pykka.Timeout):
        pykka.get_all(futures, timeout=0)
    futures[1].set(1)
    for _ in range(2):
        assert pykka.get_all(futures) == [0, 1, 2]


def test_get_all_takes_futures_of_both_worlds(refold_world: World, pykka_world: World) -> None:
    futures = [refold_world.future(), pykka_world.future()]
    for number, future in enumerate(futures):
        future.set(number)
    assert pykka.get_all(futures) == [0, 1]


def test_a_future_can_be_awaited_and_yielded_from(future: "pykka.Future[Any]") -> None:
    @coroutine
    def yielding() -> Generator[Any, Any, Any]:
        return (yield from future)

    async def wait() -> Any:
        return await future, await yielding()

    future.set("value")
    assert asyncio.run(wait()) == ("value", "value")


DERIVED: "dict[str, Callable[[pykka.Future[Any]], pykka.Future[Any]]]" = {
    "map": lambda future: future.map(lambda value: value),
    "filter": lambda future: future.filter(lambda value: True),
    "reduce": lambda future: future.reduce(lambda one, other: one + other),
    "join": lambda future: future.join(),
}


def test_join_is_the_list_of_all_values_in_the_order_given_and_can_be_derived_from(
    futures: "list[pykka.Future[Any]]",
) -> None:
    joined = futures[0].join(*futures[1:])
    total = joined.filter(bool).map(sum)
    for number, future in enumerate(futures):
        future.set(number)
    assert (joined.get(timeout=0), total.get(timeout=0)) == ([0, 1, 2], 3)


@pytest.mark.parametrize(
    ("derive", "value", "expected"),
    [
        pytest.param(lambda future: future.map(len), [10, 20, 30], 3, id="map passes the whole value"),
        pytest.param(lambda future: future.map(lambda given: given["a"]), {"a": 1}, 1, id="map takes a mapping as one"),
        pytest.param(
            lambda future: future.filter(lambda item: item % 2 == 0),
            range(7),
            [0, 2, 4, 6],
            id="filter keeps what passes",
        ),
        pytest.param(lambda future: future.reduce(add), ["a", "b", "c"], "abc", id="reduce goes from left to right"),
        pytest.param(lambda future: future.reduce(add, 100), [1, 2], 103, id="reduce may begin with a value"),
        pytest.param(lambda future: future.reduce(add, 100), [], 100, id="which is that of nothing"),
        pytest.param(lambda future: future.filter(bool), 7, None, id="filter of what cannot be iterated"),
        pytest.param(lambda future: future.reduce(add), 7, None, id="reduce of what cannot be iterated"),
    ],
)
def test_a_derived_future_is_made_of_the_value(
    future: "pykka.Future[Any]", derive: Callable[[Any], Any], value: Any, expected: Any
) -> None:
    derived = derive(future)
    future.set(value)
    if expected is not None:
        assert derived.get(timeout=0) == expected
        return
    with pytest.raises(TypeError):
        derived.get(timeout=0)


@pytest.mark.parametrize("way", DERIVED)
def test_a_derived_future_gives_up_in_time_and_raises_the_error_of_what_it_is_derived_from(
    futures: "list[pykka.Future[Any]]", way: str
) -> None:
    late, failed = DERIVED[way](futures[0]), DERIVED[way](futures[1])
    with pytest.raises(pykka.Timeout):
        late.get(timeout=0)
    futures[0].set(["late"])
    assert late.get(timeout=0)
    futures[1].set_exception((KeyError, KeyError("key"), None))
    with pytest.raises(KeyError):
        failed.get(timeout=0)


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
