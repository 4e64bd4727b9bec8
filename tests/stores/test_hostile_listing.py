"""A log whose rows cannot be gone through in order is an error, and not read without end."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, EpisodicStore, ScriptedProvider
from refold.events.core.errors import LogFormatError
from refold.events.model.configuration import payload_hash
from refold.inspection.export import export_log
from refold.stores import SQLiteStore


async def test_a_payload_whose_name_is_no_text_is_listed_once(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([], {payload_hash(b"content"): b"content"})
    with closing(sqlite3.connect(log)) as connection, connection:
        [(sql,)] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'payloads'").fetchall()
        connection.execute("PRAGMA writable_schema = ON")
        mend = "UPDATE sqlite_schema SET sql = ? WHERE name = 'payloads'"
        connection.execute(mend, (sql.replace("STRICT", "").replace(" TEXT", ""),))
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("UPDATE payloads SET hash = x''")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(mend, (sql,))
    written: list[bytes] = []

    def write(data: bytes) -> None:
        written.append(data)
        assert len(written) < 10, "it goes on without end"

    with pytest.raises(LogFormatError, match="payload"):
        await export_log(log, write)


@pytest.mark.parametrize("reference", ["@Inf", "@", "@-1", "memory/main@1_000", "@" + "9" * 5_000, "no event"])
async def test_a_cause_that_names_no_event_is_an_error_that_says_so(log: Path, reference: str) -> None:

    def runtime(memory: EpisodicStore) -> AgentRuntime:
        return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log=log, memory=memory)

    memory = EpisodicStore(scope="agent")
    async with runtime(memory):
        await memory.add_episode("a", "one")
    with closing(sqlite3.connect(log)) as connection, connection:
        added = "version = batch AND data LIKE '%memory.episode_added%'"
        changed = connection.execute(f"UPDATE events SET correlation = ? WHERE {added}", (reference,))
        assert changed.rowcount == 1
    with pytest.raises(LogFormatError, match="does not name an event"):
        async with runtime(EpisodicStore(scope="agent")):
            pytest.fail("it opened")
