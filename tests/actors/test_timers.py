"""The timers of an event-sourced actor, by themselves: an actor that only notes what they have it do."""

from typing import Any, ClassVar

import pytest

from refold.actors import Actor, ActorSystem, ManualClock
from refold.actors.kernel.supervision import RestartPolicy
from refold.actors.shell.effect_port import EffectPort
from refold.actors.shell.effects import StreamEffects
from refold.actors.shell.messages import EffectEnded, Envelope, Later
from refold.actors.shell.timers import Timers
from refold.events import WaitUntil
from refold.events.core.errors import PersistenceError

ADDRESS = "noting/one"


class Port(EffectPort[Any, object, Any]):
    pauses: ClassVar[RestartPolicy | None] = RestartPolicy()

    def due(self, effect: WaitUntil) -> object:
        return f"{effect.key} is due"


class Noting(Actor):
    """Stands in for the shell."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.log_fails = False
        self.effects = StreamEffects()

    def on_start(self) -> None:
        self.timers = Timers(self, Port(), self.effects)

    async def on_receive(self, message: object) -> Any:
        match message:
            case Later():
                await self.timers.handle(message)
            case EffectEnded():
                await self.effect_ended(message)
            case _:
                raise AssertionError(message)

    async def receive(self, envelope: Envelope) -> Any:
        await self.require_durable_state()
        self.noted.append(str(envelope.command))

    async def effect_ended(self, ended: EffectEnded) -> None:
        self.effects.ended(ended.key, recorded=ended.command is not None)
        self.noted.append(f"{ended.command} ({ended.attempt})")

    async def try_to_recover(self, attempt: int) -> None:
        self.noted.append(f"recovers ({attempt})")

    async def require_durable_state(self) -> None:
        if self.log_fails:
            self.noted.append("the log fails")
            raise PersistenceError("the log fails")

    def reconcile(self, backed_off: str = "") -> None:
        self.noted.append(f"reconciles {backed_off}".strip())

    def abandon_cancelled(self) -> None:
        self.noted.append("abandons")


@pytest.fixture
async def noting(timed: ActorSystem) -> Noting:
    made = Noting()
    await timed.start(lambda: made, address=ADDRESS)
    return made


def waits(noting: Noting, clock: ManualClock, seconds: int, *, pause: bool = False) -> WaitUntil:
    wait = WaitUntil(key="wait", due_at=clock.now_us() + seconds * 1_000_000, pause=pause)
    noting.effects.running[wait.key] = wait
    noting.timers.set_for(wait, 0)
    return wait


@pytest.mark.parametrize("set_by_s", [-100, 0, 100])
async def test_a_date_has_come_when_the_wall_clock_says_so_however_it_was_set(
    noting: Noting, clock: ManualClock, set_by_s: int
) -> None:
    waits(noting, clock, 300)
    clock.jump(set_by_s)
    await clock.advance(299 - set_by_s)
    assert noting.noted == []
    await clock.advance(61)  # A timer that counts seconds looks at the wall clock once a minute.
    assert noting.noted == ["wait is due (0)"]


@pytest.mark.parametrize("set_by_s", [-100, 0])
async def test_a_pause_is_over_after_its_seconds_though_the_wall_clock_was_set_back(
    noting: Noting, clock: ManualClock, set_by_s: int
) -> None:
    waits(noting, clock, 300, pause=True)
    clock.jump(set_by_s)
    await clock.advance(299)
    assert noting.noted == []
    await clock.advance(2)
    assert noting.noted == ["wait is due (0)"]


async def test_a_time_that_had_come_when_the_clock_was_set_back_is_waited_for_again(
    noting: Noting, clock: ManualClock
) -> None:
    waits(noting, clock, 10)
    clock.jump(10)
    noting.actor_ref.tell(Later("_look_at_clock", ("wait",)))
    clock.jump(-10)  # Before the message is handled.
    await clock.settle()
    assert noting.noted == []
    await clock.advance(11)
    assert noting.noted == ["wait is due (0)"]


async def test_a_wait_has_one_timer_however_often_it_is_looked_at(noting: Noting, clock: ManualClock) -> None:
    waits(noting, clock, 300)
    for _ in range(3):
        noting.actor_ref.tell(Later("_look_at_clock", ("wait",)))
        await clock.settle()
    assert len(clock.waiting()) == 1


async def test_what_is_overdue_is_told_earliest_first_and_only_while_it_is_wanted(
    noting: Noting, clock: ManualClock
) -> None:
    now_us = clock.now_us()
    for name, seconds in [("late", 3), ("early", 1), ("dropped", 2), ("future", 60)]:
        noting.effects.running[name] = WaitUntil(key=name, due_at=now_us + seconds * 1_000_000)
    clock.jump(5)
    overdue = noting.timers.overdue()
    assert next(overdue).key == "early"
    del noting.effects.running["dropped"]  # As by what was decided when the first was recorded.
    assert [wait.key for wait in overdue] == ["late"]


async def test_a_message_that_insists_is_handled_again_after_growing_pauses(noting: Noting, clock: ManualClock) -> None:
    noting.log_fails = True
    await noting.timers.insist(Envelope("cancel", insist=True))
    for pause_s in (0.5, 1, 2):
        before = len(noting.noted)
        await clock.advance(pause_s - 0.1)
        assert len(noting.noted) == before
        await clock.advance(0.1)
        assert len(noting.noted) == before + 1
    noting.log_fails = False
    await clock.advance(60)
    assert (noting.noted[-1], clock.waiting()) == ("cancel", ())


async def test_the_log_is_read_again_once_for_all_who_want_it(noting: Noting, clock: ManualClock) -> None:
    noting.timers.recover_later(0)
    noting.timers.recover_later(0)
    await clock.advance(60)
    assert noting.noted == ["recovers (1)"]
    noting.timers.recover_later(1)
    await clock.advance(60)
    assert noting.noted == ["recovers (1)", "recovers (2)"]


async def test_the_end_of_a_pause_outlives_a_log_that_fails(noting: Noting, clock: ManualClock) -> None:
    noting.effects.ends["work"] = 1
    noting.timers.back_off("work")
    assert noting.effects.has("work")
    noting.log_fails = True
    await clock.advance(1)
    assert noting.noted[0] == "the log fails"
    assert noting.effects.has("work")
    noting.log_fails = False
    await clock.advance(1)
    assert noting.noted[-1] == "reconciles work"
    assert not noting.effects.has("work")


async def test_a_grace_period_begins_once_and_ends_once(noting: Noting, clock: ManualClock) -> None:
    noting.timers.begin_grace()
    await clock.advance(4.9)
    noting.timers.begin_grace()
    await clock.advance(0.2)
    assert noting.noted == ["abandons"]
