"""What is to be seen of a session at each version and of a damaged one; the transcripts show how it is written."""

import asyncio
import contextlib
import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import StreamName
from refold.events.core.records import StoredEvent, StreamHead
from refold.inspection.log_reading import opened
from refold.inspection.session_view import (
    SESSIONS_PER_PAGE,
    checked_version,
    list_names,
    list_sessions,
    view_session,
)
from refold.stores import InMemoryStore
from tests.runtime.command_line import run
from tests.runtime.log_builder import LogBuilder


def test_a_status_is_the_same_in_the_list_and_in_the_view(samples: Path) -> None:
    log = samples / "states.db"
    listed = {each["session"]: each["status"] for each in json.loads(run("sessions", log, "--json").stdout)["sessions"]}
    assert len(listed) == 8
    for name in listed.keys() - {"damaged"}:
        assert json.loads(run("show", log, name, "--json").stdout)["status"] == listed[name] == name


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version_can_be_shown_also_inside_a_batch(builder: LogBuilder, version: int) -> None:
    await builder.weather_session("alice")
    assert (await view_session(builder.store, "alice", at=version)).version == version


@pytest.mark.parametrize("version", [None, 1])
def test_a_session_that_is_listed_without_an_event_is_damaged(version: int | None) -> None:
    head = StreamHead(stream=StreamName("session/alice"), version=-7, chain=b"", pending=())
    with pytest.raises(LogFormatError, match="session 'alice' ends at version -7 according to the list of streams"):
        checked_version(head, version)


async def test_a_session_whose_rows_make_no_sense_is_damaged_and_hides_no_other() -> None:
    class DamagedStore(InMemoryStore):
        async def read_stream(
            self, stream: str, *, after_version: int = 0, limit: int | None = None
        ) -> list[StoredEvent]:
            if stream == "session/bob":
                raise LogFormatError("a row of session/bob has a text for a version")
            return await super().read_stream(stream, after_version=after_version, limit=limit)

    builder = LogBuilder(DamagedStore())
    await builder.weather_session("alice")
    await builder.append(StreamName("session/bob"), [b"{}"])
    listed = await list_sessions(builder.store)
    assert {each.session: each.status for each in listed} == {"alice": "completed", "bob": "damaged"}


async def test_a_list_of_what_waits_reads_no_session_in_which_nothing_is_in_flight() -> None:
    class ReadsStore(InMemoryStore):
        read: set[str]

        async def read_stream(
            self, stream: str, *, after_version: int = 0, limit: int | None = None
        ) -> list[StoredEvent]:
            self.read.add(stream)
            return await super().read_stream(stream, after_version=after_version, limit=limit)

    @refold.tool(tier="confirm")
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    store = ReadsStore()
    store.read = set()
    script: list[Any] = [*[refold.say("Done.")] * 3, *[refold.use("pay", {"amount": 3})] * 2]
    provider, config = refold.ScriptedProvider(script), refold.AgentConfig(model="m")
    async with refold.AgentRuntime(config, provider=provider, tools=[pay], log=store) as runtime:
        for name in ("a", "b", "c"):
            await (await runtime.session(name, user="alice")).send("hello")
        for name in ("bobs", "hers"):
            session = await runtime.session(name, user="bob" if name == "bobs" else "alice")
            async with (await session.submit("pay")).stream() as reader:
                async for item in reader:
                    if isinstance(item, refold.RecordedEvent) and isinstance(item.event, refold.ToolApprovalRequested):
                        break
        wanted: list[tuple[dict[str, Any], list[str]]] = [({}, ["bobs", "hers"]), ({"user": "alice"}, ["hers"])]
        for which, names in wanted:
            store.read.clear()
            assert await runtime.sessions(status="waiting", **which) == names
            assert store.read == {"session/bobs", "session/hers"}
        assert await runtime.sessions(status="waiting", limit=1, after="bobs") == ["hers"]


WANTED: list[tuple[dict[str, Any], list[str], str]] = [
    ({}, ["a", "b", "c", "d", "d/call_12_0"], ""),
    ({"user": "alice"}, ["a", "d", "d/call_12_0"], "--user alice"),
    ({"user": "carol"}, [], "--user carol"),
    ({"status": "failed"}, ["c"], "--status failed"),
    ({"status": ["failed", "idle"]}, ["b", "c"], "--status failed --status idle"),
    ({"metadata": {"plan": "pro"}}, ["b", "d"], "--metadata plan=pro"),
    ({"metadata": {"plan": "pro", "lang": "pt"}}, ["d"], "--metadata plan=pro --metadata lang=pt"),
    ({"metadata": {"plan": "free"}}, ["d/call_12_0"], "--metadata plan=free"),
    ({"user": "alice", "limit": 1}, ["a"], "--user alice --limit 1"),
    ({"user": "alice", "limit": 1, "after": "a"}, ["d"], "--user alice --limit 1 --after a"),
    ({"limit": 2, "after": "b"}, ["c", "d"], "--limit 2 --after b"),
    ({"after": "z"}, [], "--after z"),
    ({"since": datetime.fromtimestamp(1_000, UTC)}, ["d", "d/call_12_0"], "--since 1970-01-01T00:16:40"),
    ({"since": datetime.fromtimestamp(0, UTC), "user": "bob"}, ["b"], "--since 1970-01-01 --user bob"),
]


async def four_sessions(log: Any) -> None:
    """Alice's `a`, Bob's `b` without a run, nobody's `c` that failed, and `d` with a child, long after the others."""
    clock = ManualClock(0)
    refusal = refold.ProviderError("no", kind="invalid_request", status=400)
    answers = (refold.say("Hi."), refusal, refold.say("Hello."), refold.use("helper", {"task": "help"}))
    provider = refold.ScriptedProvider([*answers, refold.say("Helped."), refold.say("Done.")])
    helper = refold.Agent(name="helper", config=refold.AgentConfig(model="m"), provider=provider)
    config = refold.AgentConfig(model="m")
    async with refold.AgentRuntime(
        config, provider=provider, tools=[helper.as_tool()], log=log, clock=clock, inbox_poll_s=0
    ) as runtime:
        await (await runtime.session("a", user="alice")).send("Hello")
        await (await runtime.session("b", user="bob")).describe(metadata={"plan": "pro"})
        await (await runtime.session("c")).send("Hello")
        last = await runtime.session("d", user="alice", metadata={"plan": "free"})
        await last.send("Hello")
        await clock.advance(1_000)
        await last.send("Help")
        await last.describe(metadata={"plan": "pro", "lang": "pt"})


@pytest.mark.parametrize("kind", ["file", "memory", "text"])
def test_sessions_are_found_by_what_they_are(tmp_path: Path, kind: str) -> None:
    log: Any = InMemoryStore() if kind == "memory" else tmp_path / "events.db"
    asyncio.run(four_sessions(log))
    if kind == "text":
        log, source = tmp_path / "events.jsonl", log
        assert run("export", source, "--output", log).exit_code == 0
    told = asyncio.run(found_as_wanted(log))
    assert told["d"] == ("alice", {"plan": "pro", "lang": "pt"}, "completed", "Hello")
    assert told["b"] == ("bob", {"plan": "pro"}, "idle", "")
    if kind == "file":
        for _, names, words in WANTED:
            found = json.loads(run("sessions", log, *words.split(), "--json").stdout)["sessions"]
            assert [each["session"] for each in found] == names, words
        assert run("sessions", log, "--status", "well").exit_code == 2
        assert "USER" in run("sessions", log).stdout
        assert "user alice · plan=pro · lang=pt" in run("show", log, "d").stdout


def test_a_session_in_a_file_whose_rows_make_no_sense_hides_no_other(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    asyncio.run(four_sessions(log))
    with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as database:
        bobs = "(SELECT id FROM streams WHERE name = 'session/b')"
        assert database.execute(f"UPDATE events SET chain = NULL WHERE stream = {bobs}").rowcount
    listed = json.loads(run("sessions", log, "--json").stdout)["sessions"]
    damaged = {each["session"]: each["status"] == "damaged" for each in listed}
    assert damaged == {"a": False, "b": True, "c": False, "d": False, "d/call_12_0": False}


async def found_as_wanted(log: Any) -> dict[str, tuple[Any, ...]]:
    async with opened(log) as store:
        for wanted, names, _ in WANTED:
            assert [each.session for each in await list_sessions(store, **wanted)] == names, wanted
            assert await list_names(store, **wanted) == names, wanted
        every = await list_sessions(store)
    return {each.session: (each.user, each.metadata, each.status, each.first_input) for each in every}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"status": status} for status in ("well", 7, [7])),
        *({"metadata": metadata} for metadata in (7, {"plan": 7}, ["plan"])),
        *({"user": user} for user in ("", 7)),
        *({"limit": 0}, {"limit": True}, {"after": 7}, {"since": "yesterday"}, {"usr": "alice"}),
    ],
)
async def test_what_no_list_can_have_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        await list_sessions(InMemoryStore(), **wrong)


async def test_many_sessions_are_listed_page_by_page() -> None:
    builder = LogBuilder(InMemoryStore())
    for number in range(SESSIONS_PER_PAGE + 7):
        await builder.append(
            StreamName(f"session/{number:04}"), [b'{"type":"session.opened.v1","session":"s","agent":"a"}']
        )
    assert len(await list_sessions(builder.store)) == SESSIONS_PER_PAGE + 7
