"""A runtime whose log another one has taken over begins nothing more, and tells nobody what the log has not."""

import asyncio
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, LogInUse, ScriptedProvider, say, tool, use
from refold.actors import ActorStopped
from refold.stores import SQLiteStore
from tests.conformance.sessions import assert_sound


async def test_what_a_new_owner_has_begun_does_not_begin_in_the_old_one_too(tmp_path: Path) -> None:
    path, bodies = tmp_path / "log.db", []
    gates = {"first": asyncio.Event(), "second": asyncio.Event()}
    begun = asyncio.Event()

    def runtime_named(name: str) -> AgentRuntime:
        @tool
        async def pay(amount: int) -> str:
            bodies.append((name, amount))
            begun.set()
            await gates[name].wait()
            return f"paid {amount}"

        provider = ScriptedProvider([[use("pay", {"amount": 1}), use("pay", {"amount": 2})], say("Paid.")])
        if name == "second":
            provider = ScriptedProvider([say("Paid.")])
        return AgentRuntime(
            AgentConfig(model="m"), provider=provider, tools=[pay], log=path, wait_for_log_s=0, close_grace_s=0
        )

    async with runtime_named("first") as first:
        told = asyncio.create_task((await first.session("a")).send("pay both", key="k"))
        await begun.wait()
        (tmp_path / "log.db.lock").unlink()  # As a script that cleans up does.
        begun.clear()
        async with runtime_named("second") as second:
            await begun.wait()
            assert bodies == [("first", 1), ("second", 2)]
            gates["first"].set()
            with pytest.raises(LogInUse):
                await (await first.session("b")).send("hello")
            for _ in range(50):
                await asyncio.sleep(0)
            assert bodies == [("first", 1), ("second", 2)]
            gates["second"].set()
            result = await (await second.session("a")).send("pay both", key="k")
            assert result.text == "Paid."
        await first.close()
        with pytest.raises(ActorStopped):
            await told
    async with await SQLiteStore.open(path, wait_for_log_s=0) as store:
        await assert_sound(store)
