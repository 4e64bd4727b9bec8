"""Asking: blocking or with a future, in time or not, and what the asker gets."""

import threading
from typing import Any

import pykka
import pytest

from tests.actors.contract.worlds import LONG_S, World


class Answerer(pykka.Actor):
    """Answers; waits for its gate where it is asked to; raises errors it is sent."""

    def __init__(self, world: World, gate: threading.Event) -> None:
        super().__init__()
        self.world = world
        self.gate = gate

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        return self.world.wait(self.gate) if message == "wait" else f"answer to {message}"


@pytest.fixture
def ref(world: World, gate: threading.Event) -> Any:
    return world.start(Answerer, world, gate)


def test_a_blocking_ask_may_be_given_a_time_and_an_answer_that_comes_too_late_hurts_nobody(
    ref: Any, gate: threading.Event
) -> None:
    with pytest.raises(pykka.Timeout):
        ref.ask("wait", timeout=0.001)
    gate.set()
    assert ref.ask("next") == "answer to next"


def test_an_ask_that_does_not_block_returns_a_future_that_may_be_got_in_time_and_again(
    ref: Any, gate: threading.Event
) -> None:
    future = ref.ask("wait", block=False)
    assert isinstance(future, pykka.Future)
    with pytest.raises(pykka.Timeout):
        future.get(timeout=0)
    gate.set()
    assert [future.get(timeout=LONG_S), future.get()] == [True, True]


def test_an_error_of_the_handler_is_raised_for_the_asker_and_waits_in_the_future(ref: Any) -> None:
    error = ValueError("broken")
    with pytest.raises(ValueError, match="broken") as raised:
        ref.ask(error)
    assert raised.value is error
    assert any(entry.name == "on_receive" for entry in raised.traceback)
    assert ref.ask("next") == "answer to next"
    future = ref.ask(ValueError("broken"), block=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            future.get()


def test_an_ask_of_a_stopped_actor_fails_blocking_or_not(ref: Any) -> None:
    ref.stop()
    with pytest.raises(pykka.ActorDeadError, match="Answerer"):
        ref.ask("too late")
    future = ref.ask("too late", block=False)
    with pytest.raises(pykka.ActorDeadError, match="Answerer"):
        future.get()


def test_answers_come_in_the_order_of_the_questions(ref: Any) -> None:
    assert ref.ask("this") == "answer to this"
    futures = [ref.ask(number, block=False) for number in range(100)]
    assert pykka.get_all(futures) == [f"answer to {number}" for number in range(100)]


def test_an_answer_may_be_a_future(world: World) -> None:
    class Delegating(pykka.Actor):
        def on_receive(self, message: Any) -> Any:
            return self.actor_ref.ask("later", block=False) if message == "now" else message

    assert world.start(Delegating).ask("now").get() == "later"


def test_an_actor_without_on_receive_answers_none(world: World) -> None:
    class Silent(pykka.Actor):
        pass

    assert world.start(Silent).ask("anything") is None
