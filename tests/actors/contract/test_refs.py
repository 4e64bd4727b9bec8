"""A ref: what it says of its actor, and what may be sent through it."""

import threading
from typing import Any

import pykka
import pytest

from tests.actors.contract.worlds import LONG_S, World


class Keeper(pykka.Actor):
    """Keeps what it is told, until it is asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        if message == "all":
            return self.kept
        self.kept.append(message)
        return None


@pytest.fixture
def ref(world: World) -> Any:
    return world.start(Keeper)


def test_a_ref_is_one_of_pykkas_names_its_actor_and_knows_its_class(ref: Any) -> None:
    assert isinstance(ref, pykka.ActorRef)
    assert issubclass(ref.actor_class, Keeper)
    assert ref.actor_urn in str(ref)
    assert "Keeper" in str(ref)
    assert (repr(ref)[0], repr(ref)[-1]) == ("<", ">")
    for part in ("ActorRef", "Keeper", ref.actor_urn):
        assert part in repr(ref)


def test_each_actor_has_a_name_of_its_own(world: World) -> None:
    refs = [world.start(Keeper) for _ in range(3)]
    assert len({ref.actor_urn for ref in refs}) == 3
    assert len(set(refs)) == 3


def test_an_actor_is_alive_until_it_is_stopped_and_then_nothing_can_be_told_to_it(ref: Any) -> None:
    assert ref.is_alive()
    ref.stop()
    assert not ref.is_alive()
    with pytest.raises(pykka.ActorDeadError, match="Keeper"):
        ref.tell("too late")


def test_an_actor_stays_alive_though_nobody_holds_a_ref(world: World) -> None:
    gate = threading.Event()

    class Opener(pykka.Actor):
        def on_receive(self, message: Any) -> None:
            gate.set()

    world.start(Opener).tell("open")
    assert gate.wait(LONG_S)


@pytest.mark.parametrize("message", ["text", 7, 7.5, None, {"a": 1}, ("a", 1), ["a", 1], ValueError("no failure")])
def test_anything_can_be_told_and_is_passed_as_it_is_and_not_copied(ref: Any, message: Any) -> None:
    ref.tell(message)
    (kept,) = ref.ask("all")
    assert kept is message


def test_messages_of_one_sender_keep_their_order(ref: Any) -> None:
    for number in range(500):
        ref.tell(number)
    assert ref.ask("all") == list(range(500))


def test_messages_of_many_senders_all_arrive_and_keep_each_senders_order(ref: Any) -> None:

    def send(sender: int) -> None:
        for number in range(200):
            ref.tell((sender, number))

    senders = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    kept = ref.ask("all")
    for sender in range(4):
        assert [number for who, number in kept if who == sender] == list(range(200))


def test_a_ref_may_be_given_to_another_actor(world: World) -> None:
    class Relay(pykka.Actor):
        def on_receive(self, message: Any) -> None:
            ref, told = message
            ref.tell(told)

    keeper = world.start(Keeper)
    world.start(Relay).ask((keeper, "relayed"))
    assert keeper.ask("all") == ["relayed"]
