"""Proxies: an actor's methods and attributes, as if it were an object, each through its mailbox."""

import threading
from typing import Any
from unittest.mock import Mock, NonCallableMock

import pykka
import pytest
from pykka.typing import ActorMemberMixin, proxy_field, proxy_method

from tests.actors.contract.worlds import LONG_S, World


class Lamp:
    """Has no marker, so that a proxy does not look inside."""

    watts = 40


class SlottedLamp:
    __slots__ = ("pykka_traversable", "watts")

    def __init__(self) -> None:
        self.pykka_traversable = True
        self.watts = 20


@pykka.traversable
class DecoratedLamp:
    watts = 60

    def brighten(self, by: int) -> int:
        self.watts += by
        return self.watts


class MarkedLamp:
    pykka_traversable = True
    watts = 80


class Incomparable:
    """Cannot be compared with anything, a proxy included."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")


class House(pykka.Actor):
    """Has one of everything that a proxy may meet."""

    street = "Main Street"
    _safe = "hidden"
    incomparable = Incomparable()

    def __init__(self) -> None:
        super().__init__()
        self.plain_lamp = Lamp()
        self.lamp = pykka.traversable(Lamp())
        self.decorated_lamp = DecoratedLamp()
        self.marked_lamp = MarkedLamp()
        self.slotted_lamp = SlottedLamp()
        self.number = 1
        self._paint = "white"
        self.failed = threading.Event()

    @property
    def sign(self) -> str:
        return f"{self.street} {self.number}"

    @property
    def paint(self) -> str:
        return self._paint

    @paint.setter
    def paint(self, value: str) -> None:
        self._paint = value

    @property
    def new_lamp(self) -> MarkedLamp:
        return MarkedLamp()

    def ring(self, times: int, *, sound: str = "ding") -> str:
        return " ".join([sound] * times)

    def renumber(self, number: int) -> None:
        self.number = number

    def burn(self) -> None:
        raise ZeroDivisionError("on fire")

    def hang(self, name: str) -> None:
        setattr(self, name, lambda: f"{name} hangs here")

    def ring_through_proxy(self, name: str, *args: Any) -> Any:
        return getattr(self.actor_ref.proxy(), name)(*args)

    def on_failure(self, *_: Any) -> None:
        self.failed.set()


@pytest.fixture
def proxy(world: World) -> Any:
    return world.start(House).proxy()


def test_a_method_is_called_and_returns_a_future_of_what_it_returns_or_raises(proxy: Any) -> None:
    future = proxy.ring(2, sound="dong")
    assert isinstance(future, pykka.Future)
    assert future.get() == "dong dong"
    failed = proxy.burn()
    with pytest.raises(ZeroDivisionError, match="on fire"):
        failed.get()


def test_a_deferred_call_returns_nothing_and_is_seen_by_the_next_message_as_any_other_is(proxy: Any) -> None:
    assert proxy.renumber(7).get() is None
    assert proxy.number.get() == 7
    assert proxy.renumber.defer(8) is None
    assert proxy.number.get() == 8
    failed = proxy.failed.get()
    assert proxy.burn.defer() is None
    assert failed.wait(LONG_S)  # Its error went to on_failure.


@pytest.mark.parametrize("name", ["unknown", "_safe", "_paint"])
def test_what_is_not_there_or_private_is_an_attribute_error_at_once(proxy: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"House.*has no attribute '{name}'"):
        getattr(proxy, name)


def test_attributes_and_properties_are_read_and_set_before_the_assignment_returns(proxy: Any) -> None:
    assert [proxy.street.get(), proxy.number.get(), proxy.sign.get()] == ["Main Street", 1, "Main Street 1"]
    proxy.number = 9
    proxy.paint = "red"
    proxy.garden = "roses"  # An attribute may be new.
    assert [proxy.sign.get(), proxy.paint.get(), proxy.garden.get()] == ["Main Street 9", "red", "roses"]
    with pytest.raises(AttributeError):
        proxy.sign = "elsewhere"  # It has no setter.


def test_making_a_proxy_calls_no_property(world: World) -> None:
    class Costly(pykka.Actor):
        @property
        def costly(self) -> str:
            raise AssertionError("called")

    world.start(Costly).proxy()


def test_an_actor_may_use_a_proxy_of_itself_for_later_and_a_method_added_later_is_found(proxy: Any) -> None:
    assert proxy.ring_through_proxy("ring", 1).get(timeout=LONG_S).get(timeout=LONG_S) == "ding"
    proxy.hang("picture").get()
    assert proxy.picture().get() == "picture hangs here"
    assert proxy.ring_through_proxy("picture").get(timeout=LONG_S).get(timeout=LONG_S) == "picture hangs here"


@pytest.mark.parametrize(
    ("name", "watts"), [("lamp", 40), ("decorated_lamp", 60), ("marked_lamp", 80), ("slotted_lamp", 20)]
)
def test_what_is_marked_traversable_is_a_proxy_itself(proxy: Any, name: str, watts: int) -> None:
    assert isinstance(getattr(proxy, name), pykka.ActorProxy)
    assert getattr(proxy, name).watts.get() == watts
    getattr(proxy, name).watts = 100
    assert getattr(proxy, name).watts.get() == 100


def test_what_is_not_marked_and_what_a_property_gives_is_a_plain_value(proxy: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'watts'"):
        _ = proxy.plain_lamp.watts
    assert proxy.plain_lamp.get().watts == 40
    assert proxy.new_lamp.get().watts == 80  # Though it is marked.
    assert proxy.decorated_lamp.brighten(5).get() == 65


def test_something_with_slots_cannot_be_marked_from_outside() -> None:
    with pytest.raises(ValueError, match="slots"):
        pykka.traversable(SlottedLamp())


def test_proxies_of_one_actor_and_place_are_equal(world: World) -> None:
    ref = world.start(House)
    one, two = ref.proxy(), pykka.ActorProxy(actor_ref=ref)
    assert one == two
    assert hash(one) == hash(two)
    assert one != one.lamp
    assert one != world.start(House).proxy()
    assert one != "a proxy"


def test_a_proxy_names_actor_and_place(proxy: Any) -> None:
    urn = proxy.actor_ref.actor_urn
    for text in (str(proxy), repr(proxy)):
        assert text.startswith("<ActorProxy for House")
        assert urn in text
        assert text.endswith(">")
    assert "lamp" in repr(proxy.lamp)


def test_a_proxy_lists_what_it_offers(proxy: Any) -> None:
    listed = dir(proxy)
    assert {"street", "number", "sign", "ring", "incomparable", "lamp"} <= set(listed)
    assert {"__class__", "__getattr__", "__setattr__"} <= set(listed)
    assert not {"_safe", "_paint"} & set(listed)


def test_a_dead_actor_gets_no_proxy(world: World) -> None:
    ref = world.start(House)
    ref.stop()
    with pytest.raises(pykka.ActorDeadError, match="House"):
        ref.proxy()
    with pytest.raises(pykka.ActorDeadError, match="House"):
        pykka.ActorProxy(actor_ref=ref)


def test_a_proxy_of_an_actor_that_died_leads_to_its_ref_and_no_further(proxy: Any) -> None:
    proxy.actor_ref.stop()
    assert not proxy.actor_ref.is_alive()
    with pytest.raises(pykka.ActorDeadError):
        proxy.ring(1).get()
    with pytest.raises(pykka.ActorDeadError):
        proxy.number = 1
    with pytest.raises(pykka.ActorDeadError):
        proxy.renumber.defer(1)


def test_an_actor_is_stopped_through_its_proxy(proxy: Any) -> None:
    assert proxy.stop().get() is None
    proxy.actor_ref.stop()
    assert not proxy.actor_ref.is_alive()


def test_an_actors_own_proxy_is_no_attribute_of_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class Narcissus(pykka.Actor):
        def look(self) -> None:
            self.mirror = self.actor_ref.proxy()

    proxy: Any = world.start(Narcissus).proxy()
    proxy.look().get()
    with pytest.raises(AttributeError, match="has no attribute 'mirror'"):
        _ = proxy.mirror
    assert "'mirror' is a proxy to itself" in caplog.text


class HouseProxy(ActorMemberMixin, pykka.ActorProxy[House]):
    """What type checkers may be told of a proxy."""

    street = proxy_field(House.street)
    ring = proxy_method(House.ring)


def test_a_typed_proxy_is_used_as_its_types_say(world: World) -> None:
    proxy: HouseProxy = world.start(House).proxy()
    assert proxy.street.get() == "Main Street"
    assert proxy.ring(1).get() == "ding"
    assert proxy.stop().get() is None


def test_a_method_or_a_property_may_be_replaced_by_a_mock(world: World) -> None:
    descriptor = NonCallableMock()
    descriptor.__get__ = Mock(return_value="mocked")

    class Mocked(House):
        ring = Mock(return_value="mocked")
        sign = descriptor
        paint = Mock()

    proxy: Any = world.start(Mocked).proxy()
    assert proxy.ring(3).get() == "mocked"
    Mocked.ring.assert_called_once_with(3)
    assert proxy.sign.get() == "mocked"
    assert descriptor.__get__.call_count == 1
    assert isinstance(proxy.paint, pykka.CallableProxy)  # A mock that can be called is taken for a method.


def test_proxy_calls_gets_and_sets_are_messages_that_anyone_may_send(world: World) -> None:
    ref = world.start(House)
    assert ref.ask(pykka.messages.ProxyCall(attr_path=("ring",), args=(1,), kwargs={"sound": "dong"})) == "dong"
    assert ref.ask(pykka.messages.ProxySetAttr(attr_path=("lamp", "watts"), value=10)) is None
    assert ref.ask(pykka.messages.ProxyGetAttr(attr_path=("lamp", "watts"))) == 10
