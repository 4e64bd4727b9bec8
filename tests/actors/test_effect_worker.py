"""The worker of a hosted kind: each piece of work that was begun tells its asker its end exactly once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from refold.actors import Actor, ActorRef, ActorSystem, ManualClock
from refold.actors.effects import CancelEffect, EffectEnded
from refold.actors.hosted import BeginWork, EffectWorker
from refold.events import Effect


class Asker(Actor):
    def __init__(self, heard: list[EffectEnded]) -> None:
        self.heard = heard

    def on_receive(self, message: Any) -> Any:
        self.heard.append(message)


class Setup:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.begun: list[str] = []
        self.heard: list[EffectEnded] = []
        self.gate = asyncio.Event()
        self.stubborn = False
        self.raised: BaseException | None = None

    async def perform(self, effect: Effect) -> object | None:
        self.begun.append(effect.key)
        if self.raised is not None:
            raise self.raised
        while True:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
            else:
                return f"end of {effect.key}"

    async def start(self, system: ActorSystem) -> None:
        self.asker = await system.start(Asker, self.heard, address="asker")
        self.worker: ActorRef = await system.start(
            EffectWorker, self.perform, lambda effect, error: f"{effect.key}: {error}"
        )

    def begin(self, key: str) -> None:
        self.worker.tell(BeginWork(self.asker, Effect(key=key)))

    def cancel(self, key: str) -> None:
        self.worker.tell(CancelEffect("asker", key))

    async def ends(self) -> list[tuple[str, object | None]]:
        await self.clock.settle()
        return [(ended.key, ended.command) for ended in self.heard]


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    async with ActorSystem(clock=made.clock, close_grace_s=0) as system:
        await made.start(system)
        yield made
        made.stubborn = False


async def test_work_that_is_cancelled_before_its_first_step_is_not_done_and_tells_its_end(setup: Setup) -> None:
    setup.begin("a")
    setup.cancel("a")
    assert await setup.ends() == [("a", None)]
    assert setup.begun == []
    setup.begin("a")
    setup.gate.set()
    assert await setup.ends() == [("a", None), ("a", "end of a")]


async def test_work_that_is_begun_twice_is_done_once(setup: Setup) -> None:
    setup.begin("a")
    setup.begin("a")
    await setup.clock.settle()
    setup.begin("a")
    setup.gate.set()
    assert await setup.ends() == [("a", "end of a")]
    assert setup.begun == ["a"]


async def test_what_work_brings_that_ignores_its_cancellation_is_told_and_it_is_not_begun_beside_itself(
    setup: Setup,
) -> None:
    setup.stubborn = True
    setup.begin("a")
    await setup.clock.settle()
    setup.cancel("a")
    await setup.clock.settle()
    setup.begin("a")
    assert await setup.ends() == []
    setup.gate.set()
    assert await setup.ends() == [("a", "end of a")]
    assert setup.begun == ["a"]


class OfItsOwn(BaseException):
    """What no `except Exception` sees."""


@pytest.mark.parametrize("raised", [OfItsOwn("x"), SystemExit("x"), asyncio.CancelledError("x")])
async def test_work_that_raises_whatever_it_may_has_failed_and_tells_its_end(
    setup: Setup, raised: BaseException
) -> None:
    setup.raised = raised
    setup.begin("a")
    [(key, failure)] = await setup.ends()
    assert key == "a"
    assert f"a: the work let {type(raised).__name__}('x') out" in str(failure)
