"""Where our actors differ from pykka's, as far as `tests/actors/kernel` does not show it; see `docs/pykka.md`."""

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pykka
import pytest

from refold import ActorStopped, AskTimeout, CommandRejected, ConfigError
from refold.actors import Actor, EventSourcedActor, Journal, WouldDeadlock
from refold.actors.shell.messages import Query
from refold.events import Event, EventCodec, PureCore
from refold.stores import InMemoryStore
from tests.actors.contract.worlds import LONG_S, RefoldWorld


class Counter(pykka.Actor):
    """Counts messages; raises errors it is sent; waits for events it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.failed = threading.Event()

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        if isinstance(message, threading.Event):
            return message.wait(LONG_S)
        self.count += 1
        return self.count

    def on_failure(self, *_: Any) -> None:
        self.failed.set()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Take everything that is logged, for those tests that read it."""
    caplog.set_level(logging.DEBUG)


def records(caplog: pytest.LogCaptureFixture, logger: str, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if (record.name, record.levelno) == (logger, level)]


# Starting


def test_ours_are_started_by_a_system(refold_world: RefoldWorld) -> None:
    class Plain(Actor):
        pass

    with pytest.raises(ConfigError, match=r"system\.start\(Plain"):
        Plain.start()
    assert refold_world.run(refold_world.system.start(Plain)).is_alive()


class SelfAware(pykka.Actor):
    """Looks at itself in `__init__`."""

    def __init__(self) -> None:
        super().__init__()
        self.known = (self.actor_urn, self.actor_ref)


def test_ours_know_themselves_from_on_start_on(refold_world: RefoldWorld) -> None:
    class Starting(pykka.Actor):
        def on_start(self) -> None:
            self.known = (self.actor_urn, self.actor_ref)

    with pytest.raises(AttributeError):
        refold_world.start(SelfAware)
    ref = refold_world.start(Starting)
    assert ref.proxy().known.get() == (ref.actor_urn, ref)


# Where actors run


class Located(pykka.Actor):
    def on_receive(self, message: Any) -> Any:
        return threading.get_ident()


def test_ours_share_the_loops_thread(refold_world: RefoldWorld) -> None:
    threads = {refold_world.start(Located).ask("where?") for _ in range(3)}
    assert threads == {refold_world.call(threading.get_ident)}


def test_ours_all_wait_while_a_handler_blocks(refold_world: RefoldWorld, gate: threading.Event) -> None:
    one, other = refold_world.start(Counter), refold_world.start(Counter)
    blocked = one.ask(gate, block=False)
    waiting = other.ask("I wait", block=False)
    with pytest.raises(AskTimeout):
        waiting.get(timeout=0.001)
    gate.set()
    assert (blocked.get(), waiting.get()) == (True, 1)


# Names and refs


def test_ours_have_addresses(refold_world: RefoldWorld) -> None:
    ref = refold_world.run(refold_world.system.start(Actor, address="counter/mine"))
    assert (ref.actor_urn, str(ref), repr(ref)) == ("counter/mine", "counter/mine", "<ActorRef counter/mine>")
    assert str(refold_world.unstarted(Counter)) == "Counter (not started)"


def test_ours_name_an_address_whoever_lives_there(refold_world: RefoldWorld) -> None:
    class Registered(Actor):
        def on_receive(self, message: Any) -> str:
            return "somebody"

    refold_world.system.register("kind", lambda _: Registered())
    ref = refold_world.system.ref("kind/one")
    assert len({ref, refold_world.system.ref("kind/one"), refold_world.system.ref("kind/two")}) == 2
    assert ref.is_alive()
    assert ref.actor_class is Actor
    assert ref.ask("anybody?") == "somebody"
    assert ref.stop()
    assert ref.ask("and now?") == "somebody"
    for attribute in ("actor_inbox", "actor_stopped"):
        with pytest.raises(AttributeError):
            getattr(ref, attribute)


# The registry


def test_ours_are_known_to_their_system_only(refold_world: RefoldWorld) -> None:
    ref = refold_world.start(Counter)
    assert pykka.ActorRegistry.get_all() == []
    assert refold_world.system.live() == (ref.actor_urn,)
    assert pykka.ActorRegistry.stop_all() == []
    pykka.ActorRegistry.broadcast("to all")
    assert ref.ask("count") == 1
    refold_world.stop_all()
    assert refold_world.system.live() == ()


# Failing


def test_ours_go_on_as_they_are_after_a_refusal_under_ask(refold_world: RefoldWorld) -> None:
    ref = refold_world.start(Counter)
    assert ref.ask("count") == 1
    with pytest.raises(CommandRejected):
        ref.ask(CommandRejected("not now"))
    assert ref.ask("count") == 2


class Fatal(BaseException):
    """An error that is no Exception."""


# Blocking


def test_ours_refuse_to_block_the_loop(refold_world: RefoldWorld) -> None:
    ref = refold_world.start(Counter)
    proxy: Any = ref.proxy()
    calls: list[Callable[[], Any]] = [
        lambda: ref.ask("count"),
        ref.stop,
        lambda: ref.ask("count", block=False).get(),
        lambda: proxy.count.get(),
        lambda: setattr(proxy, "count", 0),
    ]
    for call in calls:
        with pytest.raises(WouldDeadlock, match=r"await|would stop the loop"):
            refold_world.call(call)
    assert ref.ask("count") == 2, "nothing was sent by a call that was refused, except the ask whose get was"


# Stopping


def test_ours_refuse_what_is_told_after_the_stop(refold_world: RefoldWorld) -> None:
    ref = refold_world.start(Counter)

    def tell_after_the_stop() -> None:
        ref.stop(block=False)
        ref.tell("late")

    with pytest.raises(ActorStopped, match="stopping"):
        refold_world.call(tell_after_the_stop)


def test_ours_make_the_event_when_it_is_asked_for(refold_world: RefoldWorld) -> None:
    class Kept(pykka.Actor):
        def on_receive(self, message: Any) -> Any:
            return self

    ref = refold_world.start(Kept)
    instance = ref.ask("yourself")
    before = instance.actor_stopped
    ref.stop()
    assert (before.is_set(), instance.actor_stopped.is_set()) == (False, True)


# Futures


def test_ours_take_no_get_hook(refold_world: RefoldWorld) -> None:
    with pytest.raises(NotImplementedError, match="map"):
        refold_world.future().set_get_hook(lambda timeout: timeout)


def failing_once() -> Callable[[Any], Any]:
    errors = [ZeroDivisionError("the first time")]

    def function(value: Any) -> Any:
        if errors:
            raise errors.pop()
        return value

    return function


def test_ours_keep_the_error_of_the_function_of_a_derived_future(refold_world: RefoldWorld) -> None:
    future = refold_world.future()
    derived = future.map(failing_once())
    future.set("value")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            derived.get()


# Proxies


class Reflecting(pykka.Actor):
    """Makes a proxy of itself where it is made to."""

    def __init__(self, mirror_in_start: bool = True) -> None:
        super().__init__()
        self.mirror_in_start = mirror_in_start

    def on_start(self) -> None:
        if self.mirror_in_start:
            self._mirror = self.actor_ref.proxy()

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        self._mirror = self.actor_ref.proxy()
        return self._mirror.answer()

    def answer(self) -> str:
        return "answer"


def test_ours_give_an_actor_a_proxy_of_itself_from_the_first_message_on(refold_world: RefoldWorld) -> None:
    with pytest.raises(pykka.ActorDeadError):
        refold_world.start(Reflecting)
    assert refold_world.start(Reflecting, False).ask("reflect").get() == "answer"


def test_ours_lead_to_the_next_instance_with_the_names_of_the_first(refold_world: RefoldWorld) -> None:
    made: list[int] = []

    class Changing(Actor):
        def __init__(self) -> None:
            made.append(len(made))
            setattr(self, f"only_in_{len(made)}", True)
            self.number = len(made)

        def on_receive(self, message: Any) -> None:
            raise ZeroDivisionError

    ref = refold_world.run(refold_world.system.start(Changing))
    proxy: Any = ref.proxy()
    with pytest.raises(ZeroDivisionError):
        ref.ask("fail")
    assert proxy.number.get() == 2
    with pytest.raises(AttributeError):
        _ = proxy.only_in_2
    assert ref.proxy().only_in_2.get() is True


# Logging


class Silent(pykka.Actor):
    """Has no use for any message."""


def test_ours_log_the_type_of_an_unknown_message(refold_world: RefoldWorld, caplog: pytest.LogCaptureFixture) -> None:
    refold_world.start(Silent).ask("a secret")
    (text,) = records(caplog, "refold.actors", logging.WARNING)
    assert "type str" in text
    assert "a secret" not in caplog.text


def test_ours_log_an_error_under_ask_as_one_and_a_refusal_not_at_all(
    refold_world: RefoldWorld, caplog: pytest.LogCaptureFixture
) -> None:
    ref = refold_world.start(Counter)
    with pytest.raises(CommandRejected):
        ref.ask(CommandRejected("not now"))
    assert records(caplog, "refold.actors", logging.ERROR) == []
    with pytest.raises(ZeroDivisionError):
        ref.ask(ZeroDivisionError())
    ref.ask("count")
    assert len(records(caplog, "refold.actors", logging.ERROR)) == 1


def test_ours_log_a_base_exception_as_an_error(refold_world: RefoldWorld, caplog: pytest.LogCaptureFixture) -> None:
    ref = refold_world.start(Counter)
    ref.tell(Fatal())
    assert ref.ask("count") == 1
    (text,) = records(caplog, "refold.actors", logging.ERROR)
    assert "Fatal" in text


# What an event log allows


class Noted(Event, frozen=True, kw_only=True, tag="notes.noted.v1"):
    text: str


class Notes(msgspec.Struct):
    version: int = 0
    texts: tuple[str, ...] = ()


class NotesCore(PureCore[Notes, str, Noted]):
    """Notes what it is told."""

    def admit(self, state: Notes, command: str) -> Noted:
        return Noted(text=command)

    def evolve(self, state: Notes, event: Noted) -> Notes:
        return Notes(state.version + 1, (*state.texts, event.text))


def test_ours_give_no_proxy_of_what_is_folded_from_a_log(
    refold_world: RefoldWorld, caplog: pytest.LogCaptureFixture
) -> None:
    store = InMemoryStore()
    make = functools.partial(EventSourcedActor, NotesCore(), EventCodec([Noted]), Journal(store))
    ref = refold_world.run(refold_world.system.start(make, address="notebook/mine"))

    def texts() -> object:
        return ref.ask(Query(lambda state: state.texts)).get()

    ref.ask("first")
    proxy: Any = ref.proxy()
    refused: list[Callable[[], Any]] = [
        lambda: proxy.address.get(),
        lambda: proxy.receive("forged").get(),
        lambda: setattr(proxy, "state", Notes(9, ("forged",))),
    ]
    for attempt in refused:
        with pytest.raises(ConfigError, match=r"notebook/mine.*log"):
            attempt()
    proxy.receive.defer("forged")
    assert texts() == ("first",)
    ref.ask("second")
    assert texts() == ("first", "second")
    assert len(refold_world.run(store.read_stream("notebook/mine"))) == 2
