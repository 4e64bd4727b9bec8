"""What an object on the log was at an earlier place, which can be asked and not changed."""

from pathlib import Path

import pytest

import refold
from refold.actors import ManualClock
from refold.events.kinds.episodic import Episodes, EpisodicCore
from refold.replay import state_at
from refold.stores import InMemoryStore
from tests.memory.conftest import runtime_of

HOUR_S = 3_600


class Agents:
    """A runtime with one memory of each kind, and where its log stood after each step."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = refold.EpisodicStore(decay=refold.DecayPolicy.exponential(1))
        self.facts = refold.SemanticStore()
        self.working = refold.WorkingMemory(2)
        self.log = InMemoryStore()
        self.positions: list[int] = []

    async def live(self) -> None:
        stores = {"memory": self.memory, "semantic": self.facts, "working_memory": self.working}
        async with runtime_of(self.log, clock=self.clock, **stores):
            for number in range(3):
                await self.memory.add_episode("a", f"tea {number}", 0.8)
                await self.facts.put("k", f"v{number}", embedding=[1, number] * 150)
                await self.working.set(f"n{number}", "v")
                self.positions.append((await self.log.read_all(limit=10_000))[-1].position)
                await self.clock.advance(HOUR_S)
            await self.memory.clear()


async def test_each_place_has_what_was_there_then() -> None:
    agents = Agents()
    await agents.live()
    for number, position in enumerate(agents.positions):
        memory = await agents.memory.at(agents.log, position=position)
        assert list(await memory.contents("a")) == [f"tea {each}" for each in range(number + 1)]
        found = await memory.look("a", "tea", 9)
        expected = [0.8 * 0.5 ** (number - each) for each in range(number + 1)]
        assert [each.importance for each in found] == pytest.approx(sorted(expected, reverse=True), rel=1e-12)
        facts = await agents.facts.at(agents.log, position=position)
        assert await facts.get("k") == f"v{number}"
        assert [each.value for each in await facts.similar([0, 1] * 150)] == [f"v{number}"]
        working = await agents.working.at(agents.log, position=position)
        assert list(await working.items()) == [f"n{each}" for each in range(max(0, number - 1), number + 1)]
    facts = await agents.facts.at(agents.log, position=agents.positions[0])
    for number, position in enumerate(agents.positions):
        assert await facts.move_on(agents.log, position, 0) == (number > 0)
        assert [each.score for each in await facts.similar([1, number] * 150)] == [1.0]
    assert await (await agents.memory.at(agents.log)).count() == 0
    assert await (await agents.memory.at(agents.log, position=0)).count() == 0
    assert await (await agents.memory.at(agents.log, version=2)).count() == 2
    assert await (await agents.memory.at(agents.log, version=0)).count() == 0


async def test_a_place_between_the_events_of_a_batch_is_one_as_well() -> None:
    agents = Agents()
    await agents.live()
    stored = await agents.log.read_stream("working/main")
    middle = next(item for item in stored if item.version != item.batch)
    before = await agents.working.at(agents.log, position=middle.position - 1)
    assert len(await before.items()) == 3
    assert len(await (await agents.working.at(agents.log, version=middle.version)).items()) == 2


async def test_the_past_cannot_be_changed_and_changes_nothing_of_the_present(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    memory = refold.EpisodicStore()
    memory.add_episode("a", "tea")
    async with runtime_of(log, memory=memory) as runtime:
        await memory.look("a", "tea")
        past = await memory.at(runtime.store, version=1)
        for change in (past.add_episode("a", "more"), past.clear(), past.recall("a", "tea")):
            with pytest.raises(
                refold.ConfigError, match="what it was at an earlier place of the log, and cannot be changed"
            ):
                await change
        past.note_recalled([(await past.look("a", "tea"))[0].id])
        assert (await past.look("a", "tea"))[0].recalls == 0
        await memory.add_episode("a", "milk tea")
        assert len(await memory.look("a", "tea")) == 2
        assert len(await past.look("a", "tea")) == 1
        with pytest.raises(refold.ConfigError, match="cannot be changed"):
            await past.attach(runtime.host)
    assert (
        await (await refold.EpisodicStore().at(log)).count() == 2
    )  # Also by path, and of an object that was never there.


async def test_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    agents = Agents()
    await agents.live()
    with pytest.raises(refold.ConfigError, match="'memory/main' has the versions 1 to 4, and not 5"):
        await agents.memory.at(agents.log, version=5)
    with pytest.raises(refold.ConfigError, match="has no position -1"):
        await agents.memory.at(agents.log, position=-1)
    with pytest.raises(refold.PersistenceError):
        await agents.memory.at(tmp_path / "missing.db")


async def test_the_state_of_any_core_can_be_had_by_position() -> None:
    agents = Agents()
    await agents.live()
    for number, position in enumerate(agents.positions):
        state: Episodes = await state_at(agents.log, "memory/main", EpisodicCore, position=position)
        assert len(state.episodes) == number + 1
