"""Several runtimes of one program on one log: the first one owns it, and the others reach their sessions through it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    AskTimeout,
    Cancelled,
    CommandRejected,
    ConfigError,
    Message,
    Middleware,
    RecordedEvent,
    TextBlock,
    connect,
    say,
    use,
)
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RuntimeClosed, RuntimeStarted
from refold.events.model.messages import ModelResponse, TextDelta
from refold.events.session.events import ModelResponded, RunCompleted, RunResumed
from refold.publishing.notifications import Streamed
from refold.remote.rows import InboxSend
from refold.running_agents import RunningAgents
from refold.stores import SQLiteStore
from tests.runtime.remote.conftest import begun, runtime_of


@asynccontextmanager
async def shared(log: Path, *scripts: list[Any], **options: Any) -> AsyncIterator[list[AgentRuntime]]:
    """Open a runtime for each script, the owner first; each has the agent, as processes of one program do."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(runtime_of(log, *each, share=True, **options)) for each in scripts]


async def talk(runtime: AgentRuntime) -> list[object]:
    """Do what users do with a runtime, and return what they see."""
    seen: list[object] = []
    session = await runtime.session("ann", user="ann", metadata={"plan": "free"})
    first = await session.send("hello", key="k")
    seen += [first.text, (await session.send("hello", key="k")).run == first.run]
    with pytest.raises(CommandRejected, match="key"):
        await session.send("other", key="k")
    run = await session.submit("pay")
    async with run.stream() as reader:
        async for item in reader:
            if isinstance(item, RecordedEvent) and type(item.event).__name__ == "ToolApprovalRequested":
                break
    [call] = await session.approvals()
    seen.append((call.tool, await runtime.list_sessions(status="waiting") != []))
    await session.decide(call, allow=True)
    seen.append((await (await runtime.run(run.id)).result()).text)
    async with session.stream("stream") as stream:
        seen.append([getattr(type(item), "__name__", "") for item in [it async for it in stream]][-1])
    seen.append(stream.result.text)
    later = await session.remind("later", at=datetime.now(UTC) + timedelta(days=1))
    await session.cancel(run=later)
    seen.append(isinstance((await (await session.run(later)).result()).outcome, Cancelled))
    await session.describe(metadata={"plan": "paid"})
    metadata = await session.metadata()
    assert metadata is not None
    seen += [(metadata.user, dict(metadata.metadata)), await runtime.sessions(user="ann")]
    with pytest.raises(CommandRejected, match="another user"):
        await (await runtime.session("ann", user="bob")).send("hello")
    seen.append([(message.role, message.text) for message in await session.history()])
    await session.set_aside(int(first.run.removeprefix("run_")))
    seen.append("hello" in (await session.history())[0].text)
    await session.clear()
    await session.import_history([Message("user", (TextBlock(text="from elsewhere"),))])
    seen.append(len(await session.history()))
    turn = await session.next_turn("step")
    await session.resume()
    seen += [turn.result is not None, (await (await session.run(turn.run)).result()).text]
    seen.append([type(recorded.event).__name__ async for recorded in session.events()])
    fork = await session.fork(name="fork")
    seen += [fork.id, [message.text for message in await fork.history()]]
    seen.append((await fork.send("and then?")).text)
    seen += [await fork.rewind() > 0, len(await fork.history())]
    seen.append((await session.fork(results={})).id.startswith("ann~"))
    for arguments in ({"at": 10**6}, {"name": "ann"}, {"results": {"call_1_0": "x"}}):
        with pytest.raises((CommandRejected, ConfigError)):
            await session.fork(**arguments)
    kept = await runtime.retain(timedelta(0), statuses=["completed"], archive=None, dry_run=True)
    seen += [kept.dry_run, len(kept.sessions)]
    with pytest.raises((CommandRejected, ConfigError)):
        await runtime.retain(timedelta(-1))
    with pytest.raises(CommandRejected, match="fork"):
        await runtime.delete("ann")
    deletion = await runtime.delete("ann", forks=True)
    seen += [deletion.events > 10, await runtime.sessions()]
    await (await runtime.session("eve", user="eve")).send("hello")
    gone = await runtime.delete_user("eve")
    seen.append((gone.user, [each.session for each in gone.sessions], await runtime.sessions()))
    with pytest.raises(CommandRejected, match="deleted"):
        await session.send("hello")
    return seen


SCRIPT = [say("Hi."), use("pay", {"amount": 1}), *map(say, ("Paid.", "Streamed.", "Stepped.", "Forked.", "Eve."))]


async def test_a_guest_sees_what_the_owner_would_see(tmp_path: Path) -> None:
    saw = []
    for guest in (False, True):
        log = tmp_path / f"{guest}.db"
        async with shared(log, SCRIPT, []) as runtimes:
            assert [runtime.is_owner for runtime in runtimes] == [True, False]
            saw.append(await talk(runtimes[guest]))
    assert saw[0] == saw[1]
    assert saw[0][:2] == ["Hi.", True]


class Model:
    """Answers piece by piece, each when it is let go on; shared by the runtimes of a test."""

    def __init__(self, pieces: int, *, hangs: bool = False) -> None:
        self.asked = asyncio.Queue[int]()
        self._go_on = [asyncio.Event() for _ in range(pieces + 1)]
        self._hangs = hangs
        self.calls = 0

    def let(self, piece: int) -> None:
        self._go_on[piece].set()

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        self.calls += 1
        hangs, self._hangs = self._hangs, False
        for number, event in enumerate(self._go_on):
            self.asked.put_nowait(number)
            await event.wait()
            if number == len(self._go_on) - 1:
                break
            yield TextDelta(f"{number}:{'x' * number} ")
        if hangs:
            await asyncio.Event().wait()
        yield ModelResponse(content=(TextBlock(text=self.text),), stop_reason="end_turn")

    @property
    def text(self) -> str:
        return "".join(f"{number}:{'x' * number} " for number in range(len(self._go_on) - 1))

    async def complete(self, request: Any) -> ModelResponse:
        raise AssertionError("the agent streams")


def streaming(log: Path, model: Model, **options: Any) -> AgentRuntime:
    config = AgentConfig(model="m", streaming=True)
    return AgentRuntime(config, provider=model, log=log, share=True, close_grace_s=0, **options)


class Reader:
    """Reads a run as a client does that keeps nothing but what it was shown and the place where it was."""

    def __init__(self) -> None:
        self.text = ""
        self.shown = asyncio.Queue[Streamed]()
        self.places: list[str] = []
        self.ended = False

    async def read(self, run: Any, pieces: int | None = None) -> None:
        """Go on behind the last place, up to so many pieces; None = to the end."""
        async with run.stream(self.places[-1] if self.places else 0) as items:
            while pieces is None or pieces > 0:
                item = await anext(items, None)
                if item is None:
                    self.ended = True
                    return
                self.places.append(items.place)
                if isinstance(item, Streamed):
                    if item.offset == 0:
                        self.text = ""
                    assert item.offset == len(self.text), "a gap, or a repetition"
                    self.text += item.delta.text  # type: ignore[union-attr]
                    self.shown.put_nowait(item)
                    pieces = None if pieces is None else pieces - 1
                elif isinstance(item, RecordedEvent) and isinstance(item.event, ModelResponded):
                    whole = item.event.content[0].text  # type: ignore[union-attr]
                    assert whole.startswith(self.text)  # The rest was there before this reader, who takes the whole.
                    self.text = whole


CUTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=5)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=CUTS, ahead=st.integers(0, 4))
async def test_a_reader_that_comes_back_in_another_process_has_no_gap_and_no_repetition(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]], ahead: int
) -> None:
    model, log = Model(8), tmp_path_factory.mktemp("log") / "events.db"
    async with streaming(log, model) as owner, streaming(log, model) as guest:
        run = await (await guest.session("s")).submit("go")
        reader, shown, ways = Reader(), 0, (owner, guest, connect(log))
        for where, pieces in cuts:
            pieces = min(pieces, 8 - shown)
            shown += pieces
            for number in range(min(8, shown + ahead)):  # Some of the rest has come before the reader is there.
                model.let(number)
            seen = len(reader.text)
            handle = await ways[where].run(run.id)
            if pieces:
                await reader.read(handle, 1)
                assert len(reader.text) > seen or len(reader.text) == len(model.text)
            shown = reader.text.count(":")
        for number in range(9):
            model.let(number)
        await reader.read(await ways[cuts[-1][0]].run(run.id))
        assert (reader.ended, reader.text) == (True, model.text)
        assert (await run.result()).text == model.text


@pytest.mark.parametrize("threads", [False, True])
async def test_a_connection_streams_what_its_input_brings(tmp_path: Path, threads: bool) -> None:
    model, log = Model(3), tmp_path / "events.db"
    connection, loop = connect(log), asyncio.get_running_loop()
    for number in range(3):
        model.let(number)

    def kind(item: object) -> str:
        if isinstance(item, Streamed):  # The answer ends once a piece of it was seen.
            loop.call_soon_threadsafe(model.let, 3)
        return type(item).__name__

    def read() -> tuple[list[str], str]:
        with connection as face, face.session("s").stream("go", key="k") as stream:
            return [kind(item) for item in stream], stream.result.text

    async with streaming(log, model) as owner:
        if threads:
            kinds, text = await asyncio.to_thread(read)
        else:
            async with connection.session("s").stream("go", key="k") as stream:
                with pytest.raises(ConfigError, match="has not ended yet"):
                    _ = stream.result
                kinds, text = [kind(item) async for item in stream], stream.result.text
        assert (text, kinds[0], kinds[-1], "Streamed" in kinds) == (model.text, *["RecordedEvent"] * 2, True)
        with pytest.raises(CommandRejected, match="key"):
            await anext(connection.session("s").stream("other", key="k"))
        left = connection.session("s").stream("more")
        early = asyncio.ensure_future(anext(left))
        for _ in range(20):
            await asyncio.sleep(0)
        early.cancel()  # Once it is under way.
        await asyncio.wait([early])
        await anext(left)
        await left.aclose()  # Who leaves lets the run go on.
        assert [item async for item in left] == []
        assert (await (await owner.session("s")).send("last")).text == model.text
        said = [message.text for message in await connection.session("s").history() if message.role == "user"]
        assert said == ["go", "more", "last"]


@pytest.mark.parametrize("closed", [False, True])
def test_a_reader_is_read_on_the_loop_on_which_it_began_and_left_on_any(tmp_path: Path, closed: bool) -> None:
    log, loop = tmp_path / "events.db", asyncio.new_event_loop()
    loop.run_until_complete(begun(log, "s"))

    async def read() -> Any:
        reading = connect(log).session("s").follow(after_version=0)
        await anext(reading)
        return reading

    reading = loop.run_until_complete(read())
    if closed:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    async def elsewhere() -> None:
        with pytest.raises(ConfigError, match="another event loop"):
            await anext(reading)
        await reading.aclose()
        assert [item async for item in reading] == []
        assert len(await connect(log).session("s").history()) == 2

    asyncio.run(elsewhere())
    if not closed:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@pytest.mark.parametrize("cut", [0, 1, 3])
async def test_who_waits_and_reads_goes_on_when_the_owner_ends(tmp_path: Path, cut: int) -> None:
    model, log = Model(3, hangs=True), tmp_path / "events.db"
    async with AsyncExitStack() as left:
        owner = await left.enter_async_context(streaming(log, model))
        guest = await left.enter_async_context(streaming(log, model))
        assert (owner.is_owner, guest.is_owner) == (True, False)
        session = await guest.session("s")
        run = await session.submit("go", key="k")
        waiting = [asyncio.create_task(run.result()), asyncio.create_task(session.send("go", key="k"))]
        kinds: list[type] = []
        guest.subscribe(lambda recorded: kinds.append(type(recorded.event)))
        readers = [Reader(), Reader()]
        for number in range(cut):
            model.let(number)
        of_connection = await connect(log).run(run.id)
        reading = [asyncio.create_task(each.read(way)) for each, way in zip(readers, (run, of_connection), strict=True)]
        for each in readers:
            while each.text.count(":") < cut:  # What came before the reader comes as one piece.
                await each.shown.get()
        await owner.close()
        for number in range(4):
            model.let(number)
        assert [(await each).text for each in waiting] == [model.text] * 2
        await asyncio.gather(*reading)
        assert [(each.ended, each.text) for each in readers] == [(True, model.text)] * 2
        assert model.calls == 2
        assert [kind for kind in kinds if kind in (RunResumed, RunCompleted)] == [RunResumed, RunCompleted]
        assert guest.is_owner
        assert (await session.send("go", key="k")).text == model.text


async def test_a_guest_that_closes_lets_go_of_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, log = Model(1), tmp_path / "events.db"
    async with streaming(log, model) as owner, streaming(log, model) as guest:
        session = await guest.session("s")
        run = await session.submit("go")

        async def stands_still(_: object) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr("refold.remote.owner.InboxReader._perform", lambda self, entry: stands_still(entry))
        reader = Reader()
        waiting = [asyncio.create_task(work) for work in (run.result(), session.send("more"), run.cancel())]
        reading = asyncio.create_task(reader.read(run))
        model.let(0)
        await reader.shown.get()
        await guest.close()
        await reading
        for each in waiting:
            with pytest.raises(ActorStopped):
                await each
        with pytest.raises(ActorStopped):
            await session.send("late")
        assert owner.is_owner


async def test_who_reads_while_a_guest_takes_over_notices_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as left:
        owner = await left.enter_async_context(runtime_of(tmp_path / "events.db", share=True))
        guest = await left.enter_async_context(runtime_of(tmp_path / "events.db", share=True))
        session = await guest.session("s")
        run = await session.submit("hello")
        text = (await run.result()).text

        async def reads() -> None:
            while not guest.is_owner:
                assert [item async for item in session.events()]
                assert (await (await guest.run(run.id)).result()).text == text
                assert await guest.sessions() == ["s"]
                assert await session.questions() == []

        reading = [asyncio.create_task(reads()) for _ in range(5)]
        await owner.close()
        await asyncio.gather(*reading)


async def hears(runtime: AgentRuntime) -> None:
    """Return when a guest has reached the owner's bell, so that what it says goes there and not into the inbox."""
    guest = runtime._lifecycle.guest
    assert guest is not None
    while not guest._mirror.listener.hears:  # noqa: ASYNC110 - there is no event of it
        await asyncio.sleep(0)


class Thinking(Middleware):
    """Thinks about an input until it is let go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Queue[str]()
        self.go_on = {text: asyncio.Event() for text in "1234"}

    async def on_user_message(self, context: Any, content: Any) -> None:
        text = content[0].text
        self.begun.put_nowait(text)
        await self.go_on[text].wait()


async def test_a_runtime_that_closes_while_it_takes_over_records_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, begun = tmp_path / "events.db", asyncio.Event()

    async def never_attached(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with shared(log, [say("hi")], []) as (owner, guest):
        await (await owner.session("s")).send("hello")
        monkeypatch.setattr(RunningAgents, "attach", never_attached)
        await owner.close()
        await begun.wait()
        await guest.close()
    async with await SQLiteStore.open(log, read_only=True) as store:
        last = RUNTIME_CODEC.decode_all(await store.read_stream(RUNTIME_STREAM))[-2:]
    assert [type(event) for event in last] == [RuntimeStarted, RuntimeClosed]


async def test_inputs_of_a_guest_keep_their_order_and_hold_up_no_cancellation(tmp_path: Path) -> None:
    middleware = Thinking()
    options: dict[str, Any] = {"middleware": [middleware], "inbox_poll_s": 1_000}
    async with shared(tmp_path / "events.db", [say("Said.")] * 9, [], **options) as (_, guest):
        await hears(guest)
        session = await guest.session("s", user="ann")
        runs = [asyncio.create_task(session.submit(text)) for text in "123"]
        assert await middleware.begun.get() == "1"
        middleware.go_on["1"].set()
        await runs[0]
        runs.append(asyncio.create_task(session.submit("4")))
        middleware.go_on["3"].set()
        middleware.go_on["4"].set()
        await session.cancel(run="run_99")
        middleware.go_on["2"].set()
        handles = await asyncio.gather(*runs)
        await asyncio.gather(*(handle.result() for handle in handles))
        assert [await middleware.begun.get() for _ in "234"] == ["2", "3", "4"]
        assert [message.text for message in await session.history() if message.role == "user"] == ["1", "2", "3", "4"]


async def test_what_is_given_directly_comes_behind_what_lies_in_the_inbox(tmp_path: Path) -> None:
    inbox = await begun(tmp_path / "events.db", "s")
    scripts = [say("Said.")] * 9, list[Any]()
    async with shared(tmp_path / "events.db", *scripts, inbox_poll_s=1_000) as (_, guest):
        await hears(guest)
        session = await guest.session("s")
        for number in range(3):
            await inbox.put("s", InboxSend(text=f"row {number}"), f"{number}")
            await session.send(f"given {number}")
        texts = [message.text for message in await session.history() if message.role == "user"]
    assert texts == ["hello", *(f"{where} {number}" for number in range(3) for where in ("row", "given"))]


async def test_an_owner_that_does_not_answer_is_waited_for_as_long_as_the_caller_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, stands_still = tmp_path / "events.db", asyncio.Event()
    inbox = await begun(log, "s")
    monkeypatch.setattr("refold.remote.owner.InboxReader._perform", lambda self, entry: stands_still.wait())
    async with runtime_of(log, share=True), runtime_of(log, share=True, ask_timeout_s=0.05) as guest:
        await hears(guest)
        with pytest.raises(AskTimeout):
            await (await guest.session("s")).cancel(key="later")
        assert [entry.key for entry in await inbox.waiting("s")] == ["later"]


def test_threads_share_a_log_too(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with runtime_of(log, share=True) as owner, runtime_of(log, share=True) as guest:
        assert (owner.is_owner, guest.is_owner) == (True, False)
        with guest.session("s").stream("hello") as stream:
            assert [type(item).__name__ for item in stream][-1] == "RecordedEvent"
        assert (stream.result.text, owner.session("s").run(stream.run).result().text) == ("Said.", "Said.")


@pytest.mark.parametrize("second", [0, 1], ids=["owner", "guest"])
async def test_who_deletes_what_another_deletes_at_the_same_time_is_told_so(tmp_path: Path, second: int) -> None:
    async with shared(tmp_path / "events.db", [], []) as runtimes:
        for name in ("a", "b", "c"):
            await (await runtimes[0].session(name)).send("hello")
            found = await asyncio.gather(runtimes[0].delete(name), runtimes[second].delete(name))
            assert sorted(each.deleted_before for each in found) == [False, True]
            assert found[0].streams == found[1].streams
