"""Failures: whom they reach, which hook sees them, and that they stay where they happened."""

import contextlib
import logging
import threading
from types import TracebackType
from typing import Any

import pykka
import pytest

from tests.actors.contract.worlds import LONG_S, World


class Fragile(pykka.Actor):
    """Raises the errors it is sent, and writes down what its hooks see."""

    def __init__(self, seen: list[Any], failed: threading.Event) -> None:
        super().__init__()
        self.seen = seen
        self.failed = failed

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        return message

    def on_stop(self) -> None:
        self.seen.append("stop")

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.seen.append((exception_type, exception_value, traceback))
        self.failed.set()


class FailsToFail(Fragile):
    """Fails in the hook that is told of failures."""

    def on_failure(self, *args: Any) -> None:
        super().on_failure(*args)
        raise RuntimeError("on_failure is broken")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep the failures that a test provokes out of its output."""
    caplog.set_level(logging.CRITICAL)


def test_an_error_under_tell_goes_to_on_failure_with_its_traceback_and_not_to_on_stop(world: World) -> None:
    seen: list[Any] = []
    failed = threading.Event()
    ref = world.start(Fragile, seen, failed)
    error = ValueError("broken")
    ref.tell(error)
    assert failed.wait(LONG_S)
    [(kind, value, traceback)] = seen
    assert (kind, value) == (ValueError, error)
    assert isinstance(traceback, TracebackType)


@pytest.mark.parametrize("kind", [Fragile, FailsToFail], ids=["one", "also in on_failure"])
def test_the_failure_of_one_actor_is_none_of_another(world: World, kind: type) -> None:
    failed = threading.Event()
    other = world.start(Fragile, [], threading.Event())
    world.start(kind, [], failed).tell(ValueError("broken"))
    assert failed.wait(LONG_S)
    assert other.ask("still there?") == "still there?"


def test_an_error_under_ask_reaches_an_actor_that_asks_as_it_reaches_a_thread(world: World) -> None:
    class Asker(pykka.Actor):
        def on_receive(self, message: Any) -> Any:
            return message.ask(ValueError("broken"), block=False)

    fragile = world.start(Fragile, [], threading.Event())
    answer = world.start(Asker).ask(fragile)
    with pytest.raises(ValueError, match="broken"):
        answer.get(timeout=LONG_S)


def test_no_message_is_taken_by_an_actor_whose_start_failed(world: World) -> None:
    begun = threading.Event()
    refs: list[Any] = []

    class StillBorn(pykka.Actor):
        def on_start(self) -> None:
            refs.append(self.actor_ref)
            begun.set()
            raise RuntimeError("on_start is broken")

        def on_receive(self, message: Any) -> Any:
            raise AssertionError("never called")

    with contextlib.suppress(RuntimeError):  # our start raises it, pykka's does not
        world.start(StillBorn)
    assert begun.wait(LONG_S)
    refs[0].stop()
    assert not refs[0].is_alive()
    with pytest.raises(pykka.ActorDeadError):
        refs[0].ask("anybody?")
