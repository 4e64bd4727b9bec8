"""The device twin of examples/: what is wanted reaches the lamp in the end, though calls fail in between."""

import pytest

from examples.device_twin import Change, Lamp, LampFails, LampSays, Send, SetLevel, TryAgain, Twin
from refold.actors import EventSourcedSystem, Hosted, ManualClock
from refold.events import Event, RecordedEvent
from refold.replay import replay
from refold.scenarios.core_exploration import explore_core
from refold.stores import InMemoryStore


class House:
    """Lamps on a clock that stands still, each failing as often as it is told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStore()
        self.failing = 0
        self.sent: list[int] = []
        self.events: list[Event] = []

    def system(self) -> EventSourcedSystem:
        return EventSourcedSystem(self.store, clock=self.clock, close_grace_s=0)

    async def host(self, system: EventSourcedSystem) -> "Hosted[Twin, SetLevel | LampSays | LampFails | TryAgain]":
        return await system.host("lamp", Lamp, perform=self.send, on_event=self.see)

    def see(self, recorded: RecordedEvent[Change]) -> None:
        self.events.append(recorded.event)

    async def send(self, effect: Send) -> LampSays:
        self.sent.append(effect.level)
        if self.failing:
            self.failing -= 1
            raise ConnectionError("the lamp does not answer")
        return LampSays(level=effect.level)


@pytest.fixture
def house() -> House:
    return House()


async def test_a_lamp_that_does_not_answer_is_asked_again_after_growing_pauses(house: House) -> None:
    house.failing = 3
    async with house.system() as system:
        lamps = await house.host(system)
        await lamps.ask("hall", SetLevel(level=70))
        for seconds, sent in ((0, 1), (1.9, 1), (0.2, 2), (3.8, 2), (0.2, 3), (7.8, 3), (0.2, 4), (60, 4)):
            await house.clock.advance(seconds)
            assert len(house.sent) == sent, seconds
        assert await lamps.read("hall", lambda twin: (twin.reported, twin.failures)) == (70, 3)
    (await replay(house.store, kinds={"lamp": Lamp})).raise_for_divergence()


async def test_a_pause_goes_on_over_a_restart_and_a_new_wish_ends_it(house: House) -> None:
    house.failing = 10
    async with house.system() as system:
        lamps = await house.host(system)
        await lamps.ask("hall", SetLevel(level=70))
        await house.clock.advance(1)
    house.failing = 0
    async with house.system() as system:
        lamps = await house.host(system)
        await house.clock.advance(0.9)
        assert house.sent == [70]
        await lamps.ask("hall", SetLevel(level=20))
        await house.clock.settle()
        assert await lamps.read("hall", lambda twin: twin.reported) == 20
        await house.clock.advance(10)
        assert house.sent == [70, 20]


def test_in_every_life_a_lamp_that_differs_has_something_pending() -> None:
    def moves(twin: Twin) -> "list[SetLevel | LampSays | LampFails]":
        return [SetLevel(level=1), SetLevel(level=2), LampSays(level=1), LampSays(level=2), LampFails(reason="off")]

    def goes_on(twin: Twin) -> bool:
        return (twin.wanted == twin.reported) == (Lamp().pending(twin) == [])

    found = explore_core(Lamp, moves, holds=goes_on, commands_max=4)
    assert found.counterexample is None, found.counterexample
    assert found.states > 30
