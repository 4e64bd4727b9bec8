"""Forks: a session goes on from any place of another one, by one event, and what was done is not done again."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    CommandRejected,
    Completed,
    ConfigError,
    PersistenceError,
    ScriptedProvider,
    Session,
    ToolContext,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.bundles import bundle_session
from refold.events.core.content import FORKED_TEXT, ToolResultBlock, text_of
from refold.events.core.ids import stream_name
from refold.events.session.state import history
from refold.inspection.export import export_to_file
from refold.inspection.log_reading import opened
from refold.inspection.session_view import list_sessions
from refold.keeping import repair_log
from refold.remote.client import give
from refold.remote.protocol import Done, Refused
from refold.remote.rows import InboxFork, InboxRewind
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from refold.stores.jsonl.importing import open_to_read
from refold.stores.past_state import last_position
from refold.stores.sample_batches import batch, fork
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import assert_sound, checked_log, runtime_of

charged: list[str] = []


@tool(effect="once")
async def charge(what: str) -> str:
    """Charge for something."""
    charged.append(what)
    return f"charged for {what}"


@tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    """Look at something."""
    return f"{what}: seen"


@tool(tier="confirm")
async def ship(what: str) -> str:
    """Ship something."""
    charged.append(f"shipping {what}")
    return f"shipped {what}"


TOOLS = [charge, look, ship]
STORY = [
    [use("look", {"what": "tea"}), use("charge", {"what": "tea"}), use("charge", {"what": "milk"})],
    use("ship", {"what": "tea"}),
    say("Sent."),
    say("You are welcome."),
]


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    charged.clear()
    async with checked_log(request.param, tmp_path) as store:
        yield store


async def told(runtime: AgentRuntime) -> Session:
    """Return a session with the story: three calls in one answer, one that a person allows, and a second run."""
    session = await runtime.session("alice", user="u1", metadata={"plan": "gold"})
    run = await session.submit("Tea, please.")
    while not (waiting := await session.approvals()):
        await runtime.system.clock.sleep(0)
    await session.decide(waiting[0].call, allow=True)
    await run.result()
    await session.send("Thanks.")
    return session


async def batch_ends(session: Session) -> list[int]:
    versions = [(event.version, event.batch) async for event in session.events()]
    return [v for (v, batch), (_, after) in zip(versions, [*versions[1:], (0, 0)], strict=True) if batch != after]


async def own_events(session: Session) -> list[str]:
    stream = stream_name("session", session.id)
    return [type(event.event).__name__ async for event in session.events() if event.stream == stream]


async def test_a_fork_goes_on_with_another_model_and_prompt_and_its_origin_does_not_change(log: EventStore) -> None:
    async with runtime_of(log, *STORY, say("Otherwise."), tools=TOOLS, alike=False) as runtime:
        session = await told(runtime)
        before = [event async for event in session.events()]
        last = next(event.version for event in before if type(event.event).__name__ == "RunCompleted")
        fork = await session.fork(last, model="small", system_prompt="Be rude.")
        assert fork.id == f"alice~{last}"
        assert await fork.history() == history(await session.state_at(last))
        result = await fork.send("And sugar?")
        assert result.text == "Otherwise."
        request = runtime.provider.requests[-1]  # type: ignore[attr-defined]
        assert (request.model, request.system_prompt) == ("small", "Be rude.")
        assert [event async for event in session.events()] == before
        assert await own_events(fork) == [
            *("SessionForked", "InputQueued", "RunStarted", "ModelRequested", "ModelResponded", "RunCompleted")
        ]
        assert charged == ["tea", "milk", "shipping tea"], "and not again"
        listed = {each.session: each for each in await runtime.list_sessions(user="u1")}
        assert listed[fork.id].forked_from == f"session/alice@{last}"
        assert (listed[fork.id].parent, listed[fork.id].metadata) == (None, {"plan": "gold"})
        metadata = await fork.metadata()
        assert metadata is not None
        assert (metadata.session, metadata.user) == (fork.id, "u1")


async def test_a_fork_of_any_place_is_listed_with_its_user(tmp_path: Path) -> None:
    provider = ScriptedProvider([say("Tea it is.")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=tmp_path / "events.db") as runtime:
        session = await runtime.session("alice", user="u1")
        await session.send("Tea, please.")
        forks = {(await session.fork(version)).id: version for version in (1, 2, 3, 8)}
        users = {forks[each.session]: each.user for each in await runtime.list_sessions() if each.session in forks}
        assert users == {1: None, 2: "u1", 3: "u1", 8: "u1"}


@pytest.mark.parametrize("keep_run", [False, True])
async def test_every_place_of_a_session_can_be_forked_and_nothing_is_done_twice(
    log: EventStore, keep_run: bool
) -> None:
    again = [say("Sent again.")] * 40
    async with runtime_of(log, *STORY, tools=TOOLS, alike=False) as runtime:
        session = await told(runtime)
        ends = await batch_ends(session)
    async with runtime_of(log, *again, tools=TOOLS, alike=False) as runtime:
        session = await runtime.session("alice")
        for version in ends:
            charged.clear()
            then = await session.state_at(version)
            calls = then.turn.calls if then.turn is not None else []
            begun = [call.id for call in calls if call.started and call.result is None]
            fork = await session.fork(version, keep_run=keep_run)
            state = await fork.state_at()
            results = {
                block.tool_use_id: text_of(block.content)
                for message in await fork.history()
                for block in message.content
                if isinstance(block, ToolResultBlock)
            }
            assert (state.run is not None) == (keep_run and then.run is not None)
            for call in begun:
                kept = keep_run and state.turn is not None and state.turn.calls[state.turn.index[call]].name == "look"
                assert kept or results[call] == FORKED_TEXT, (version, call)
            if not keep_run:
                assert state.turn is None
                assert (await fork.send("Go on.")).outcome == Completed()
                assert charged == [], "nothing of the past runs"
            elif state.run is not None:
                await fork.resume()
                run = await fork.run(state.run.id)
                for _ in range(50):
                    if waiting := await fork.approvals():
                        await fork.decide(waiting[0].call, allow=True)
                    await runtime.system.clock.sleep(0)
                assert (await run.result()).outcome == Completed()
                assert len(charged) == len(set(charged))
                assert "tea" not in charged or not any(call.endswith("_1") for call in begun)


async def test_a_call_that_is_open_can_be_given_another_result(log: EventStore) -> None:
    async with runtime_of(log, *STORY, say("No money."), tools=TOOLS, alike=False) as runtime:
        session = await told(runtime)
        events = [(e.version, type(e.event).__name__, getattr(e.event, "call", "")) async for e in session.events()]
        begun = [(version, call) for version, name, call in events if name == "ToolCallStarted"]
        version, call = begun[1]  # The first charge, which runs alone; the second has not begun.
        end = min(end for end in await batch_ends(session) if end >= version)
        fork = await session.fork(end, results={call: "no money"}, name="poor")
        waiting = (await fork.state_at()).run
        assert waiting is not None
        run = await fork.run(waiting.id)
        charged.clear()
        await fork.resume()
        assert (await run.result()).text == "No money."
        assert charged == ["milk"], "which had not begun"
        results = [block for message in await fork.history() for block in message.content]
        given = [block for block in results if isinstance(block, ToolResultBlock) and block.tool_use_id == call]
        assert [text_of(block.content) for block in given] == ["no money"]
        blank = await session.fork(end, results={call: " \n"}, name="blank")
        assert [block.content for block in (await blank.history())[-1].content if block.tool_use_id == call] == [()]  # type: ignore[union-attr]
        for wrong, what in (
            ({"call_1_0": "x"}, "is no call of"),
            ({"x": "x"}, "is no call of"),
            ({5: "x"}, "by the ids of their calls"),
            (["x"], "by the ids of their calls"),
            ({"call_6_0": 5}, "in a fork is a text or blocks, not 5"),
            ({"call_6_0": ["x"]}, "in a fork is a text or blocks, not"),
            ({begun[0][1]: "x"}, "is answered at version"),
        ):
            with pytest.raises(ConfigError, match=what):
                await session.fork((await batch_ends(session))[-1], results=wrong)  # type: ignore[arg-type]


async def test_a_question_waits_in_a_fork_as_long_as_its_run_does(log: EventStore) -> None:
    @tool(tier="observe", effect="pure")
    async def deliver(context: ToolContext[object]) -> str:
        """Deliver."""
        return f"to {await context.ask('Where to?', type=str, expires_s=60)}"

    clock, script = ManualClock(), [use("deliver"), say("Late."), say("Sent.")]
    async with runtime_of(log, *script, tools=[deliver], alike=False, clock=clock) as runtime:
        session = await runtime.session("alice")
        run = await session.submit("Deliver it.")
        while not await session.questions():  # noqa: ASYNC110 - What a session asks sets no event.
            await asyncio.sleep(0)
        fork = await session.fork(keep_run=True)
        await clock.advance(3600)
        assert (await run.result()).text == "Late."
        await fork.resume()
        [question] = await fork.questions()
        await fork.answer(question, "Rosenweg")
        assert (await (await fork.run(run.run)).result()).text == "Sent."
        assert "to Rosenweg" in str(await fork.history())


async def test_a_fork_of_a_fork_and_one_made_twice(log: EventStore) -> None:
    async with runtime_of(log, say("One."), say("Two."), say("Three."), say("Four.")) as runtime:
        session = await runtime.session("alice")
        await session.send("1")
        first = await session.fork(name="second")
        assert (await session.fork(name="second")).id == "second"
        assert len(await own_events(first)) == 1, "it is the same"
        await first.send("2")
        again = await first.fork(name="third", model="large")
        await again.send("3")
        inner = await again.fork(5, name="fourth")  # A place that lies in the first session.
        await inner.send("4")
        assert [message.text for message in await again.history()] == ["1", "One.", "2", "Two.", "3", "Three."]
        assert [message.text for message in await inner.history()][-2:] == ["4", "Four."]
        assert [(await session.fork()).id for _ in range(2)] == ["alice~7", "alice~7.2"]
        with pytest.raises(CommandRejected, match="there is another session 'second' already"):
            await again.fork(name="second")
        with pytest.raises(ConfigError, match="fork at 2, before it, or at 5, its end"):
            await session.fork(3)
        for wrong in (0, 8, -1, True, "x"):
            with pytest.raises(ConfigError, match="has the versions 1 to 7"):
                await session.fork(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="model must be"):
            await session.fork(model="")
    listed = {str(each.session): each.forked_from for each in await list_sessions(log)}
    assert listed["fourth"] == "session/third@5"


async def test_a_fork_costs_the_same_wherever_it_is() -> None:
    log = FailingStore(InMemoryStore())
    costs: list[tuple[int, int]] = []
    async with runtime_of(log, *[say("Yes.")] * 400) as runtime:
        session = await runtime.session("alice")
        for turns in (10, 350):
            for _ in range(turns):
                await session.send("And?")
            log.events_read.clear()
            fork = await session.fork()
            read, [own] = log.events_read.total(), await log.read_all(after_position=await last_position(log) - 1)
            assert own.stream == f"session/{fork.id}"
            costs.append((len(own.data), read))
            assert [message.text for message in (await fork.history())[-2:]] == ["And?", "Yes."]
    (few_bytes, few_read), (many_bytes, many_read) = costs
    assert few_bytes <= many_bytes < few_bytes + 20, "the digits of versions"
    assert few_read == many_read < 10, "events"


async def test_a_long_fork_survives_a_restart_and_its_snapshot(log: EventStore) -> None:
    async with runtime_of(log, *[say("Yes.")] * 120) as runtime:
        session = await runtime.session("alice")
        for _ in range(60):
            await session.send("And?")
        fork = await session.fork(name="other")
        for _ in range(30):
            await fork.send("So?")
        history = await fork.history()
    async with runtime_of(log, say("Last.")) as runtime:
        fork = await runtime.session("other")
        assert await fork.history() == history
        assert (await fork.send("Well?")).text == "Last."
        assert len(await fork.steps()) == 91


async def test_an_origin_is_deleted_with_its_forks_or_not_at_all(log: EventStore) -> None:
    async with runtime_of(log, *[say("Yes.")] * 9) as runtime:
        session = await runtime.session("alice", user="u1")
        await session.send("The secret word")
        fork = await session.fork(name="f1")
        await fork.send("More")
        await (await fork.fork(name="f2")).send("And more")
        other = await runtime.session("bob", user="u2")
        await other.send("Hello")
        with pytest.raises(CommandRejected, match="has forks, which begin with its events: 'f1'"):
            await runtime.delete("alice")
        with pytest.raises(CommandRejected, match="'f2'"):
            await runtime.delete("f1")
        assert (await runtime.delete("f2")).events == 6, "its own"
        assert (await fork.history())[0].text == "The secret word"
        deletion = await runtime.delete("alice", forks=True)
        assert deletion.streams[:2] == ("session/alice", "session/f1")
        assert await runtime.sessions() == ["bob"]
        again = await other.fork(name="alices", system_prompt="x")
        gone = (await runtime.delete_user("u2")).sessions
        assert {stream for each in gone for stream in each.streams} == {"session/bob", f"session/{again.id}"}
        assert await runtime.sessions() == []


async def test_a_fork_that_is_made_while_its_origin_is_deleted_is_never_without_it(log: EventStore) -> None:
    async def forked_later(session: Session, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await session.fork()

    async with runtime_of(log, *[say("Yes.")] * 8) as runtime:
        for number in range(8):
            session = await runtime.session(f"s{number}")
            await session.send("One")
            removal = runtime.delete(session.id) if number % 2 else runtime.retain(timedelta(0))
            await asyncio.gather(removal, forked_later(session, 2 * number), return_exceptions=True)
            left = await runtime.sessions()
            assert len(left) in (0, 2), left
            for name in left:
                assert len(await (await runtime.session(name)).history()) == 2
            if left:
                await runtime.delete(session.id, forks=True)


async def test_a_fork_is_exported_with_its_origin(log: EventStore, tmp_path: Path) -> None:
    async with runtime_of(log, *[say("Yes.")] * 3, alike=False) as runtime:
        session = await runtime.session("alice")
        await session.send("One")
        await (await session.fork(name="f")).send("Two")
        await (await runtime.session("bob")).send("Three")
    await export_to_file(log, tmp_path / "f.jsonl", sessions=["f"])
    async with open_to_read(tmp_path / "f.jsonl") as copy:
        await assert_sound(copy)
        assert [head.stream for head in await copy.list_streams()] == ["session/alice", "session/f"]
        assert await copy.read_stream("session/f") == await log.read_stream("session/f")
    lines = (tmp_path / "f.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "g.jsonl").write_text("".join(line for line in lines if '"session/alice"' not in line[:60]))
    with pytest.raises(PersistenceError, match="follows version 0"):
        async with open_to_read(tmp_path / "g.jsonl"):
            pass


async def test_a_fork_that_cannot_be_recorded_is_not_there() -> None:
    log = FailingStore(InMemoryStore())
    async with runtime_of(log, say("Yes."), say("No."), alike=False) as runtime:
        session = await runtime.session("alice")
        await session.send("One")
        log.fail_appends(lambda: PersistenceError("the disk is full"), times=1)
        with pytest.raises(PersistenceError):
            await session.fork(name="f")
        assert await runtime.sessions() == ["alice"]
        assert (await (await session.fork(name="f")).send("Two")).text == "No."


async def test_a_bundle_of_a_fork_has_its_origins_without_secrets(log: EventStore, tmp_path: Path) -> None:
    async with runtime_of(log, *[say("Yes.")] * 3, alike=False) as runtime:
        session = await runtime.session("alice")
        await session.send("My number is 4111 2222.")
        fork = await session.fork(name="f", system_prompt="Card 4111 2222")
        await fork.send("More")
        await (await fork.fork(5, name="cut")).send("Other")
    await bundle_session(log, "cut", tmp_path / "cut.refold", redact=["4111 2222"])
    async with opened(tmp_path / "cut.refold") as copy:
        await assert_sound(copy)
        events = await copy.read_all(limit=1000)
        assert {event.stream for event in events} >= {"session/alice", "session/f", "session/cut"}
        assert not [event for event in events if b"4111 2222" in event.data]


async def test_an_old_origin_is_kept_until_its_forks_are_old_too(log: EventStore) -> None:
    clock = ManualClock()
    async with runtime_of(log, *[say("Yes.")] * 3, clock=clock) as runtime:
        session = await runtime.session("alice")
        await session.send("One")
        await clock.advance(3600)
        fork = await session.fork(name="f")
        await fork.send("Two")
        assert (await runtime.retain(timedelta(minutes=30))).sessions == ()
        await clock.advance(3600)
        due = await runtime.retain(timedelta(minutes=30), dry_run=True)
        assert (sorted(due.sessions), due.events) == (["alice", "f"], 13)
        gone = await runtime.retain(timedelta(minutes=30))
        assert (sorted(gone.sessions), gone.events) == (["alice", "f"], 13)
        assert await runtime.sessions() == []


async def test_what_is_lost_of_an_origin_is_lost_of_its_forks(tmp_path: Path) -> None:
    log, saved = tmp_path / "events.db", tmp_path / "saved.db"
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Yes.")] * 4), log=log) as runtime:
        session = await runtime.session("alice")
        await session.send("One")
        await session.send("Two")
        await (await session.fork(7, name="early")).send("Three")
        await (await session.fork(name="late")).send("Four")
    with closing(sqlite3.connect(log)) as connection:
        connection.execute("UPDATE events SET data = replace(data, 'Two', 'Tow')")
        connection.commit()
    report = await repair_log(log, saved)
    assert [(cut.stream, cut.kept) for cut in report.cut] == [("session/alice", 7), ("session/late", 0)]
    async with opened(saved) as store:
        await assert_sound(store)
        assert [head.stream for head in await store.list_streams(prefix="session/")] == [
            "session/alice",
            "session/early",
        ]


async def test_forks_of_forks_are_lost_with_what_they_go_on_from_however_deep_they_lie(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    depth = 1_200
    store = await SQLiteStore.open(log, durability="normal")
    await store.append([batch("session/f0", 0)])
    for each in range(1, depth):
        await store.append([fork(f"session/f{each}", f"session/f{each - 1}", each)])
    assert len(await store.read_stream(f"session/f{depth - 1}")) == depth
    await store.close()
    with closing(sqlite3.connect(log)) as connection:
        connection.execute("UPDATE events SET data = replace(data, '\"n\":1}', '\"n\":0}')")
        connection.commit()
    report = await repair_log(log, tmp_path / "saved.db")
    assert (report.streams, len(report.cut)) == (0, depth)


async def test_another_process_forks_and_takes_back_while_a_runtime_owns_the_log(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    provider = ScriptedProvider([say("One."), say("Two.")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log, inbox_poll_s=0.01) as runtime:
        session = await runtime.session("alice")
        await session.send("1")
        for key, new in (("k", True), ("k", True), ("another", False)):
            done = await give(log, "alice", InboxFork(name="f", at=7, model="small"), key=key)
            assert done.outcome == Done(version=8, new=new)
        refused = await give(log, "alice", InboxFork(name="g", at=4))
        assert isinstance(refused.outcome, Refused)
        assert (await (await runtime.session("f")).send("2")).text == "Two."
        assert provider.requests[-1].model == "small"
        assert isinstance((await give(log, "alice", InboxRewind())).outcome, Done)
        assert await session.history() == []
