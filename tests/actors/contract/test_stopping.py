"""A life: the hooks in their order, and its end, from inside and from outside."""

import threading
from typing import Any

import pykka
import pytest

from tests.actors.contract.worlds import LONG_S, World


class Chronicler(pykka.Actor):
    """Writes down what happens to it, in a list that the test sees."""

    def __init__(self, world: World, seen: list[Any], gate: threading.Event | None = None) -> None:
        super().__init__()
        self.world = world
        self.seen = seen
        self.gate = gate

    def on_start(self) -> None:
        self.seen.append("start")

    def on_stop(self) -> None:
        self.seen.append("stop")

    def on_receive(self, message: Any) -> Any:
        self.seen.append(message)
        if message == "wait" and self.gate is not None:
            return self.world.wait(self.gate)
        if message == "stop":
            self.stop()
        if message == "stop twice":
            self.stop()
            self.stop()
        if message == "tell yourself, then stop":
            self.actor_ref.tell("told myself")
            self.stop()
            self.actor_ref.stop(block=False)
        return "answer"


@pytest.fixture
def seen() -> list[Any]:
    return []


def test_the_hooks_run_in_one_thread_that_is_not_the_callers(world: World) -> None:
    threads: list[int] = []

    class Located(pykka.Actor):
        def on_start(self) -> None:
            threads.append(threading.get_ident())

        def on_receive(self, message: Any) -> None:
            threads.append(threading.get_ident())

        def on_stop(self) -> None:
            threads.append(threading.get_ident())

    ref = world.start(Located)
    ref.ask("where?")
    ref.stop()
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


def test_the_arguments_of_the_start_are_those_of_the_instance(world: World) -> None:
    class Given(pykka.Actor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()
            self.given = (args, kwargs)

        def on_receive(self, message: Any) -> Any:
            return self.given

    assert world.start(Given, 1, two=2).ask("what?") == ((1,), {"two": 2})
    assert "Plain" in str(world.unstarted(type("Plain", (pykka.Actor,), {}), 1, 2, keyword="three"))


def test_an_actor_knows_itself(world: World) -> None:
    class Introspective(pykka.Actor):
        def on_receive(self, message: Any) -> Any:
            return self.actor_urn, self.actor_ref, str(self), self.actor_stopped.is_set()

    ref = world.start(Introspective)
    urn, own_ref, text, stopped = ref.ask("who?")
    assert (urn, own_ref, stopped) == (ref.actor_urn, ref, False)
    assert text == f"Introspective ({ref.actor_urn})"


def test_stop_says_whether_there_was_something_to_stop(world: World) -> None:
    ref = world.start(Chronicler, world, [])
    assert ref.stop() is True
    assert ref.stop() is False
    assert ref.stop(block=False).get() is False


def test_stop_without_blocking_is_a_future_of_the_same_for_all_who_want_it(
    world: World, seen: list[Any], gate: threading.Event
) -> None:
    ref = world.start(Chronicler, world, seen, gate)
    ref.tell("wait")
    first, second = ref.stop(block=False), ref.stop(block=False)
    with pytest.raises(pykka.Timeout):
        first.get(timeout=0)
    gate.set()
    assert [first.get(timeout=LONG_S), second.get(timeout=LONG_S)] == [True, True]
    assert seen[-1] == "stop"


def test_a_blocking_stop_may_be_given_a_time_and_goes_on(world: World, gate: threading.Event) -> None:
    ref = world.start(Chronicler, world, [], gate)
    ref.tell("wait")
    with pytest.raises(pykka.Timeout):
        ref.stop(timeout=0.001)
    gate.set()
    ref.stop()
    assert not ref.is_alive()


def test_the_hooks_run_around_the_messages_and_what_was_sent_before_the_stop_is_handled_first(
    world: World, seen: list[Any]
) -> None:
    ref = world.start(Chronicler, world, seen)
    ref.tell("told")
    answers = [ref.ask(number, block=False) for number in range(50)]
    ref.stop()
    assert pykka.get_all(answers) == ["answer"] * 50
    assert not ref.stop()
    assert seen == ["start", "told", *range(50), "stop"]


def test_what_is_asked_after_the_stop_is_answered_with_an_error(
    world: World, seen: list[Any], gate: threading.Event
) -> None:
    ref = world.start(Chronicler, world, seen, gate)
    ref.tell("wait")
    ref.stop(block=False)
    late = ref.ask("late", block=False)
    gate.set()
    with pytest.raises(pykka.ActorDeadError):
        late.get(timeout=LONG_S)
    assert "late" not in seen


@pytest.mark.parametrize(
    ("message", "before"), [("stop", []), ("stop twice", []), ("tell yourself, then stop", ["told myself"])]
)
def test_an_actor_may_stop_itself_and_still_answer_and_handle_what_it_told_itself_before(
    world: World, seen: list[Any], message: str, before: list[str]
) -> None:
    ref = world.start(Chronicler, world, seen)
    assert ref.ask(message) == "answer"
    ref.stop()
    assert not ref.is_alive()
    assert seen == ["start", message, *before, "stop"]


def test_an_actor_may_stop_itself_while_it_starts(world: World) -> None:
    stopped = threading.Event()

    class Brief(pykka.Actor):
        def on_start(self) -> None:
            self.stop()

        def on_stop(self) -> None:
            stopped.set()

    ref = world.start(Brief)
    assert stopped.wait(LONG_S)
    ref.stop()
    assert not ref.is_alive()


def test_an_error_in_on_stop_stops_the_actor_all_the_same(world: World) -> None:
    class Broken(pykka.Actor):
        def on_stop(self) -> None:
            raise RuntimeError("on_stop is broken")

    ref = world.start(Broken)
    assert ref.stop() is True
    assert not ref.is_alive()


def test_an_actor_may_stop_another(world: World) -> None:
    class Killer(pykka.Actor):
        def on_receive(self, message: Any) -> Any:
            return message.stop(block=False)

    victim = world.start(Chronicler, world, [])
    assert world.start(Killer).ask(victim).get() is True
    assert not victim.is_alive()


def test_stopping_all_stops_what_was_started_last_first(world: World) -> None:
    seen: list[str] = []

    class Named(pykka.Actor):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_stop(self) -> None:
            seen.append(self.name)

    refs = [world.start(Named, name) for name in ("first", "second", "third")]
    world.stop_all()
    assert seen == ["third", "second", "first"]
    assert not any(ref.is_alive() for ref in refs)
