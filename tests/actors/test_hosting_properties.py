"""Any life of a hosted actor: poison, failing appends, changed messages, restarts in any order; INV6 at its end."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.actors import Hosted
from refold.events import CommandRejected, CoreFailed
from refold.events.core.errors import PersistenceError
from refold.inspection.check import check_log
from tests.actors.test_event_sourced import FaultyStore
from tests.actors.test_hosting import Break, Collect, Collected, Command, Drop, JobCore, Jobs, Want, World


class Fault(msgspec.Struct, frozen=True):
    when: str


class Advance(msgspec.Struct, frozen=True):
    seconds: float


class Reopen(msgspec.Struct, frozen=True):
    pass


class Send(msgspec.Struct, frozen=True):
    command: Command
    waits: bool


jobs = st.sampled_from(["a", "raises", "raises,told", "nothing", "refused", "slow", "slow,late"])
commands = st.one_of(
    st.builds(Collect, names=st.lists(st.sampled_from("abc"), max_size=3), key=st.none() | st.sampled_from("kl")),
    st.builds(Want, jobs, st.lists(st.sampled_from("xyz"), max_size=2)),
    st.builds(Drop, jobs),
    st.builds(Break, st.sampled_from(["admit", "evolve", "react"])),
)
steps = st.lists(
    st.one_of(
        st.builds(Send, commands, st.booleans()),
        st.builds(Fault, st.sampled_from(["before", "after"])),
        st.builds(Advance, st.sampled_from([0.0, 0.3, 30.0])),
        st.just(Reopen()),
    ),
    max_size=15,
)


async def send(hosted: Hosted[Jobs, Command], step: Send) -> None:
    if not step.waits:
        hosted.tell("one", step.command)
        return
    try:
        await hosted.ask("one", step.command)
    except (CommandRejected, CoreFailed, PersistenceError):
        assert step.waits


def change(world: World, command: Command) -> None:
    """Change all that code outside has been given, or has sent."""
    for held in (command, *world.outside.effects, *(seen.event for seen in world.seen)):
        for name in ("names", "tags"):
            part: Any = getattr(held, name, None)
            if part is not None:
                part.append("changed from outside")


async def live(world: World, given_steps: Sequence[msgspec.Struct]) -> None:
    waiting = list(given_steps)
    while True:
        async with world.system() as system:
            hosted = await world.host(system)
            while waiting and not isinstance(step := waiting.pop(0), Reopen):
                if isinstance(step, Send):
                    own = Send(_copied(step.command), step.waits)
                    await send(hosted, own)
                    await world.clock.settle()
                    change(world, own.command)
                elif isinstance(step, Fault):
                    world.store.faults = [step.when]  # type: ignore[attr-defined]
                elif isinstance(step, Advance):
                    await world.clock.advance(step.seconds)
            world.store.faults = []  # type: ignore[attr-defined]
            for seconds in (0, 100):  # With the instance that lived through it, and with one made after it was let go.
                await world.clock.advance(seconds)
                if await world.store.head("jobs/one") is not None:
                    await world.assert_live_is_folded(hosted, "one")
            if not waiting:
                return


def _copied(command: Command) -> Command:
    return msgspec.convert(msgspec.to_builtins(command), type(command))


@given(steps)
@settings(max_examples=12)
def test_after_any_life_the_live_state_is_the_folded_one_and_replays(given_steps: list[msgspec.Struct]) -> None:
    async def check() -> None:
        world = World()
        world.store = FaultyStore()
        await live(world, given_steps)
        report = await check_log(world.store, kinds={"jobs": JobCore})
        assert report.problems == ()
        keys = [
            event.command.key
            for event in await world.events("one")
            if isinstance(event, Collected) and event.command is not None
        ]
        assert len(keys) == len(set(keys))
        assert [failure for failure in world.failures if failure.stopped] == []

    asyncio.run(check())
