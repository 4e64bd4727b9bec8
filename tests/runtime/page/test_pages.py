"""What the page is given of a log is what the commands' `--json` says, at every version."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.events.core.content import TextBlock
from refold.events.core.errors import ConfigError
from refold.inspection.log_reading import opened
from refold.inspection.request_view import recorded_request
from refold.inspection.session_view import list_sessions, view_session
from refold.lineage.causes import why
from refold.page.beside import held
from refold.page.frames import CHUNK, FIELDS, TEXT_MAX, Frames
from refold.page.overview import Sessions, WantedPart
from refold.page.pages import opened_pages
from refold.page.spans import Span
from refold.stores import EventStore
from tests.runtime.log_builder import LogBuilder, use

GOLDEN = Path(__file__).parents[2] / "golden"
LOGS = sorted(path.name for path in GOLDEN.glob("*.db"))

Chunk = dict[str, Any]


async def chunks_of(frames: Frames, store: EventStore) -> list[Chunk]:
    await frames.advance(store)
    return [msgspec.json.decode(frames.chunk(number)) for number in range((frames.version + CHUNK - 1) // CHUNK)]


def as_shown(chunks: list[Chunk], version: int) -> Chunk:
    """Return what the browser makes of frames at a version, as `static/frames.js` does."""
    chunk = chunks[(version - 1) // CHUNK]
    state = dict(chunk["base"])
    for frame in chunk["frames"][: (version - 1) % CHUNK + 1]:
        state |= frame.get("state", {})
    entries: list[Chunk] = []
    calls: Chunk = {}
    for frame in [frame for each in chunks for frame in each["frames"]][:version]:
        entries += frame.get("entries", [])
        calls |= frame.get("calls", {})
    for entry in entries:
        if "calls" in entry:
            entry["calls"] = [calls.get(call["call"], call) for call in entry["calls"]]
    return {**{name: state.get(name) for name in FIELDS}, "transcript": entries}


@pytest.mark.parametrize("name", LOGS)
async def test_frames_add_up_to_what_show_says_at_any_version(name: str, tmp_path: Path) -> None:
    async with opened(shutil.copy(GOLDEN / name, tmp_path / "events.db")) as store:
        for listed in await list_sessions(store):
            chunks = await chunks_of(Frames(listed.session), store)
            for version in {1, listed.version, listed.version // 2 or 1, max(listed.version - 3, 1), CHUNK + 1}:
                if version <= listed.version:
                    said = msgspec.json.decode(
                        msgspec.json.encode(await view_session(store, listed.session, at=version))
                    )
                    shown = as_shown(msgspec.json.decode(msgspec.json.encode(chunks)), version)
                    assert shown == {member: said[member] for member in shown}, (listed.session, version)


async def test_a_session_grows_and_its_full_chunks_stay(builder: LogBuilder) -> None:
    frames = Frames("alice")
    await builder.open("alice")
    for number in range(90):
        await builder.send("alice", f"number {number}")
        await builder.answer("alice", TextBlock(text="Yes."))
        if number == 88:
            await frames.advance(builder.store)
            before = frames.chunk(0)
    assert frames.version < CHUNK
    await frames.advance(builder.store)
    assert frames.chunk(0).startswith(before.removesuffix(b"]}"))
    assert frames.found("NUMBER 88", 10)[0] == frames.found("number 88", 1)[0]
    with pytest.raises(IndexError):
        frames.chunk(1)


async def test_long_texts_are_cut_and_a_damaged_event_ends_what_is_shown(builder: LogBuilder) -> None:
    await builder.open("alice")
    await builder.send("alice", "x" * (TEXT_MAX + 7))
    head = await builder.store.head("session/alice")
    assert head is not None
    await builder.append(head.stream, [b'{"type":"session.unheard_of.v9"}'])
    frames = Frames("alice")
    [chunk] = await chunks_of(frames, builder.store)
    assert "… (7 more characters)" in str(chunk)
    assert (frames.version, "unheard_of" in frames.damage) == (head.version, True)


async def test_spans_begin_and_end_with_the_work(builder: LogBuilder) -> None:
    await builder.open("alice")
    await builder.send("alice", "Pay, and tell me the weather.")
    await builder.answer("alice", use("weather"), use("pay"))
    frames = Frames("alice")
    await frames.advance(builder.store)
    assert sorted((span.lane, span.name) for span in frames.spans.open) == [
        ("person", "pay"),
        ("run", "run_3"),
        ("tool", "weather"),
    ]
    await builder.result("alice", "call_6_0", "no idea", kind="permanent")
    await frames.advance(builder.store)
    ended = [(span.lane, span.name, span.begun, span.ended, span.outcome) for span in frames.spans.ended]
    assert ended == [
        ("mark", "input", 3, 3, ""),
        ("model", "test-model", 5, 6, "ok"),
        ("tool", "weather", 8, 9, "permanent"),
    ]
    assert [span.ended_at - span.begun_at for span in frames.spans.ended if span.lane == "model"] == [1_000_000]
    assert frames.spans.ended[1].usage is not None


async def test_a_crash_shows_as_a_standstill(samples: Path) -> None:
    async with opened_pages(samples / "retried.db", patience_s=None) as pages:
        await pages.session("alice")
        spans = pages.spans("alice")
        assert {span.lane for span in spans} >= {"run", "model", "tool", "retry"}
        assert all(isinstance(span, Span) and span.ended_at >= span.begun_at for span in spans)


async def all_sessions(sessions: Sessions, store: EventStore) -> Sessions:
    complete = False
    while not complete:
        complete = await sessions.advance(store)
    return sessions


async def test_the_list_is_filtered_ordered_and_paged(samples: Path) -> None:
    async with opened_pages(samples / "states.db") as pages:
        sessions = await all_sessions(Sessions(), pages.store)
        names = ("idle", "open", "waiting", "parked", "completed", "failed", "cancelled", "damaged")
        assert sessions.shown(WantedPart()).statuses == dict.fromkeys(names, 1)
        assert [each.listed.session for each in sessions.shown(WantedPart(text="TOMORROW")).sessions] == []
        assert [each.listed.session for each in sessions.shown(WantedPart(text="weather in f")).sessions] == ["open"]
        page = sessions.shown(WantedPart(order="events", first=2, limit=3))
        assert (len(page.sessions), page.found, page.total) == (3, 8, 8)
        assert sessions.shown(WantedPart(text="completed")).sessions[0].usage.input_tokens == 20


async def test_the_list_follows_the_log(builder: LogBuilder) -> None:
    sessions = Sessions()

    async def read() -> dict[str, str]:
        await all_sessions(sessions, builder.store)
        return {each.listed.session: each.listed.status for each in sessions.shown(WantedPart()).sessions}

    assert await read() == {}
    await builder.open_session("alice")
    assert await read() == {"alice": "open"}
    await builder.result("alice", "call_6_0", "rain")
    await builder.answer("alice", TextBlock(text="Rain."))
    await builder.open("bob")
    assert await read() == {"alice": "completed", "bob": "idle"}


async def test_what_a_memory_held_is_told_change_by_change(tmp_path: Path) -> None:
    log = shutil.copy(GOLDEN / "format-1-core-4-stores.db", tmp_path / "events.db")
    async with opened_pages(log, patience_s=None) as pages:
        await pages.session("alice")
        beside = {str(each.stream): each for each in await pages.beside("alice")}
        assert {"working/main", "memory/main"} <= set(beside)
        changes = beside["memory/main"].changes
        positions = [change.position for change in changes]
        assert positions == sorted(positions)
        assert any(change.gone for change in changes)
        again = await held(pages.store, beside["memory/main"].stream)
        assert again == beside["memory/main"]


async def test_parts_of_a_memory_that_are_another_users_are_not_shown(tmp_path: Path) -> None:
    log = shutil.copy(GOLDEN / "format-1-core-5-users.db", tmp_path / "events.db")
    async with opened_pages(log, patience_s=None) as pages:
        for session, user in (("first", "alice"), ("second", "bob")):
            await pages.session(session)
            parts = [each.stream for each in await pages.beside(session) if "/user/" in each.stream]
            assert all(part.endswith(f"/user/{user}") for part in parts)


async def test_an_answer_that_waits_for_nothing_says_that_not_all_was_read(samples: Path) -> None:
    for patience_s, read in ((0, False), (None, True)):
        async with opened_pages(samples / "three.db", patience_s=patience_s) as pages:
            assert (await pages.session("alice")).related is read


async def test_what_is_not_there_is_told(samples: Path) -> None:
    async with opened_pages(samples / "three.db", patience_s=None) as pages:
        with pytest.raises(ConfigError, match="did you mean 'alice'"):
            await pages.session("alicia")
        with pytest.raises(ConfigError, match="has no events there"):
            await pages.chunk("alice", 9)
        assert (await pages.session("alice")).complete
        assert len((await recorded_request(pages.store, "alice", 6)).request.messages) == 1
        assert [each.reference for each in await why(pages.store, "alice@7")] == ["session/alice@7", "session/alice@6"]
