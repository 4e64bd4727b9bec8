"""`refold backup`: a copy of a log that is the log at one moment, while its owner goes on writing."""

import asyncio
import json
import os
import shutil
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.events.core.errors import ConfigError, PersistenceError
from refold.replay import replay
from refold.stores import SQLiteStore, batch
from refold.stores.sqlite import new_log
from tests.runtime.command_line import run


async def test_a_log_is_copied_whole_while_its_owner_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, copy = tmp_path / "events.db", tmp_path / "copy.db"
    monkeypatch.chdir(tmp_path)
    provider = ScriptedProvider([say("Hi.")] * 3)
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log) as runtime:
        session = await runtime.session("alice")
        await session.send("One")
        async with await SQLiteStore.open(log, read_only=True) as reader:
            before = await reader.read_all()
            told = json.loads((await asyncio.to_thread(run, "backup", log.name, copy.name, "--json")).stdout)
        assert told == {"log": str(log), "copy": str(copy), "bytes": copy.stat().st_size}
        await session.send("Two")
    async with await SQLiteStore.open(copy, read_only=True) as store:
        assert await store.read_all() == before
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [name for name in os.listdir(tmp_path) if name.endswith(("-wal", ".making"))] == []
    assert (await replay(copy)).divergences == ()
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Hi.")]), log=copy) as runtime:
        assert (await (await runtime.session("alice")).send("Three")).text == "Hi."


async def test_a_backup_that_is_cancelled_or_fails_leaves_nothing(tmp_path: Path) -> None:
    log, copy = tmp_path / "events.db", tmp_path / "copies" / "copy.db"
    copy.parent.mkdir()
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0, 3000)])
        with patch.object(new_log, "_PAGES_PER_STEP", 1):
            backup = asyncio.create_task(store.back_up(copy))
            while not copy.with_name("copy.db.making").exists():  # noqa: ASYNC110 - it is made by another thread
                await asyncio.sleep(0)
            backup.cancel()
            with pytest.raises(asyncio.CancelledError):
                await backup
        assert os.listdir(copy.parent) == []
        shutil.rmtree(copy.parent)
        with pytest.raises(PersistenceError, match="does not exist"):
            await store.back_up(copy)
        with pytest.raises(ConfigError, match="is there already"):
            await store.back_up(log)
        assert len(await store.read_all(limit=5000)) == 3000
