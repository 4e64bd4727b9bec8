"""Memories in processes that do not own the log: they answer from it, and what is added in one is there in all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold import ActorStopped, AgentRuntime, CommandRejected
from refold.inspection.check import check_log
from refold.memory import EpisodicStore, GraphStore, SemanticStore, WorkingMemory
from refold.memory.items import NewEntry
from tests.runtime.remote.conftest import runtime_of
from tests.runtime.remote.test_lost_lock import takes_over, until


class Memories:
    """Those of one process."""

    def __init__(self) -> None:
        self.episodes, self.facts = EpisodicStore(), SemanticStore()
        self.working, self.graph = WorkingMemory(9), GraphStore()

    def runtime(self, log: Path) -> AgentRuntime:
        kept: dict[str, Any] = {"memory": self.episodes, "semantic": self.facts}
        return runtime_of(log, share=True, working_memory=self.working, graph=self.graph, **kept)


async def test_what_is_added_in_a_guest_is_durable_and_there_in_every_process(tmp_path: Path) -> None:
    log, one, two = tmp_path / "events.db", Memories(), Memories()
    for each in (one, two):  # As a program fills its stores whenever it starts.
        each.episodes.of(user="ann").add_episode("agent", "Anna lives in Lisbon", importance=0.5)
        each.facts.put("first", "Faro", embedding=[1.0, *[0.5] * 383])
    async with one.runtime(log) as owner, two.runtime(log) as guest:
        assert (owner.is_owner, guest.is_owner) == (True, False)
        anns = [each.episodes.of(user="ann") for each in (one, two)]
        await anns[1].add_episode("agent", "Anna prefers tea", importance=0.8)
        await anns[0].add_episode("agent", "Anna has a cat", importance=0.8)
        told = [sorted(await each.contents("agent")) for each in anns]
        assert told[0] == told[1] == ["Anna has a cat", "Anna lives in Lisbon", "Anna prefers tea"]
        assert len(await anns[1].recall("agent", "Anna tea", limit=9)) == 3
        assert not await two.episodes.of(user="bob").contents("agent")
        assert await asyncio.to_thread(lambda: len(anns[1].contents("agent").get())) == 3
        await two.facts.put("home", "Lisbon")
        await two.facts.put("work", "Porto", embedding=[1.0] * 384)
        assert [each.key for each in await one.facts.similar([1.0] * 384)] == ["work", "first"]
        assert [each.key for each in await two.facts.similar([1.0] * 384)] == ["work", "first"]
        await two.working.of(session="s").set("step", "1")
        assert await one.working.of(session="s").get("step") == await two.working.of(session="s").get("step") == "1"
        several = [NewEntry("a", "x"), NewEntry("b", "y")]
        with pytest.raises(
            CommandRejected, match=r"entries are added together.*one by one, each with a key of its own"
        ):
            await two.facts.put_many(several)
        for _ in range(2):  # As the error says.
            for number, entry in enumerate(several):
                await two.facts.put(entry.key, entry.value, command_key=f"import 7 {number}")
        assert [each.key for each in await two.facts.by_tags()][-2:] == ["a", "b"]
        await takes_over(log, guest)
        await until(lambda: not owner.is_owner)
        await anns[0].add_episode("agent", "Anna moved", importance=0.8)
        told = [sorted(await each.contents("agent")) for each in anns]
        assert told[0] == told[1]
        assert len(told[0]) == 4
        await guest.close()
        await until(lambda: owner.is_owner)
        assert sorted(await anns[0].contents("agent")) == told[0]
        with pytest.raises(ActorStopped):
            await anns[1].contents("agent")
    assert (await check_log(log)).sound
