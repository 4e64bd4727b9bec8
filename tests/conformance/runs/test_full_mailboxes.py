"""A session whose mailbox is full sheds new inputs, and nothing that belongs to what was accepted before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from refold import AgentRuntime, Cancelled, Completed, ModelRequest, RunResult, Session, ToolUseBlock, say, tool, use
from refold.actors.kernel.clock import SystemClock
from refold.events import SESSION_CODEC, fold
from refold.events.core.errors import BackpressureShed
from refold.events.core.ids import ToolCallId
from refold.events.kinds.tool import TOOL_CODEC, ToolDefined
from refold.events.session.events import ToolApprovalRequested
from refold.remote.owner import InboxReader
from refold.remote.protocol import Done, Inbox
from refold.remote.rows import InboxDecide
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore, Hold
from tests.conformance.sessions import HeldAnswer, Seen, assert_sound, runtime_of, session_in


@tool(tier="confirm", effect="once")
def pay(amount: int) -> str:
    return f"paid {amount}"


NEVER = [HeldAnswer("never")] * 2

ASKING = use("pay", {"amount": 3})
"""The first answer of the model; the call then waits for a decision."""


class Flooded:
    """A session with a run under way, an append that hangs, and a mailbox in which nothing has room."""

    def __init__(self, runtime: AgentRuntime, session: Session, sending: "list[asyncio.Task[RunResult]]") -> None:
        self.runtime = runtime
        self.session = session
        self.sending = sending
        self.hold: Hold | None = None

    async def fill(self, store: FailingStore) -> None:
        self.hold = store.hold_append(len(store.appends) + 1)
        self.send()
        await self.hold.reached.wait()
        for _ in range(3):
            self.send()
        shed = self.sending[-1]
        with pytest.raises(BackpressureShed):
            await shed

    def send(self) -> None:
        self.sending.append(asyncio.create_task(self.session.send("more")))

    def drain(self) -> None:
        assert self.hold is not None
        self.hold.let_go()


@asynccontextmanager
async def flooded(store: FailingStore, *script: Any, **options: Any) -> AsyncIterator[Flooded]:
    async with runtime_of(store, *script, tools=[pay], mailbox_capacity=2, close_grace_s=0, **options) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime, session)
        sending = [asyncio.create_task(session.send("first"))]
        await seen.first(ToolApprovalRequested)
        flood = Flooded(runtime, session, sending)
        await flood.fill(store)
        yield flood
    await asyncio.gather(*sending, return_exceptions=True)
    await assert_sound(store)


async def only_call(session: Session) -> ToolCallId:
    turn = (await session.state_at()).turn
    assert turn is not None
    [call] = turn.awaiting
    return ToolCallId(call)


async def test_a_full_mailbox_sheds_inputs_and_says_so(memory: InMemoryStore) -> None:
    async with session_in(runtime_of(memory, *[say("done")] * 5, mailbox_capacity=2), "alice") as (_, session):
        outcomes = await asyncio.gather(*(session.send(f"{number}") for number in range(6)), return_exceptions=True)
        shed = [outcome for outcome in outcomes if isinstance(outcome, BackpressureShed)]
        done = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert len(shed) + len(done) == 6
        assert shed
        assert done
        assert all(result.outcome == Completed() for result in done)
        assert "session/alice has no room" in str(shed[0])
        inputs = [item async for item in session.events() if type(item.event).__name__ == "InputQueued"]
        assert len(inputs) == len(done)


async def test_a_run_is_cancelled_although_the_mailbox_is_full() -> None:
    async with flooded(FailingStore(InMemoryStore()), ASKING, *NEVER, NEVER[0]) as flood:
        cancelling = asyncio.ensure_future(flood.session.cancel())
        await asyncio.sleep(0)
        flood.drain()
        await cancelling
        assert type((await flood.sending[0]).outcome) is Cancelled


async def test_a_call_is_decided_although_the_mailbox_is_full() -> None:
    async with flooded(FailingStore(InMemoryStore()), ASKING, say("paid"), *NEVER) as flood:
        call = await only_call(flood.session)
        deciding = asyncio.ensure_future(flood.session.decide(call, allow=True))
        await asyncio.sleep(0)
        flood.drain()
        await deciding
        result = await flood.sending[0]
        assert (result.text, result.outcome) == ("paid", Completed())


async def test_a_runtime_that_closes_with_cancel_ends_the_runs_of_full_mailboxes_too() -> None:
    store = FailingStore(InMemoryStore())
    async with flooded(store, ASKING, *NEVER, NEVER[0]) as flood:
        closing = asyncio.ensure_future(flood.runtime.close(cancel=True))
        await asyncio.sleep(0)
        flood.drain()
        await closing
    state = fold(SESSION_CODEC.decode_all(await store.read_stream("session/alice")))
    assert (state.run, state.queue) == (None, [])


async def test_a_command_that_another_process_left_durably_is_not_lost_to_a_full_mailbox(tmp_path: Path) -> None:
    beside = tmp_path / "no.db"
    beside.touch()
    store = FailingStore(InMemoryStore())
    async with flooded(store, ASKING, say("paid"), *NEVER) as flood:
        inbox, reader = Inbox(beside, SystemClock()), InboxReader(flood.runtime.context, beside)
        entry = await inbox.put("alice", InboxDecide(call=await only_call(flood.session), allowed=True), "key")
        asking = Hold()
        store.fail_reads(asking, of="session/alice", times=1)  # The log is asked first, and then the session.
        performing = asyncio.ensure_future(reader.perform_waiting())
        await asking.reached.wait()
        asking.let_go()
        for _ in range(10):
            await asyncio.sleep(0)
        flood.drain()
        await performing
        assert isinstance(await inbox.outcome(entry), Done)
        assert (await flood.sending[0]).text == "paid"


@tool(tier="observe", effect="pure")
async def look(place: int) -> str:
    return f"{place} is empty"


async def test_a_tool_with_more_calls_than_its_mailbox_has_room_for_runs_all_and_is_defined_in_the_log() -> None:
    store, sessions, calls = InMemoryStore(), 5, 20
    asked: list[ModelRequest] = []
    all_ask = asyncio.Event()

    async def together(request: ModelRequest) -> Any:
        asked.append(request)
        if len(asked) == sessions:
            all_ask.set()
        await all_ask.wait()
        return [ToolUseBlock(id=ToolCallId(f"c{n}"), name="look", input={"place": n}) for n in range(calls)]

    script = [*[together] * sessions, *[say("done")] * sessions]
    async with runtime_of(store, *script, tools=[look], mailbox_capacity=2) as runtime:
        sending = [asyncio.create_task((await runtime.session(f"s{n}")).send("look")) for n in range(sessions)]
        assert [(await sent).text for sent in sending] == ["done"] * sessions
        assert runtime.system.parked == ()
    defined = TOOL_CODEC.decode_all(await store.read_stream("tool/look"))
    assert [type(event) for event in defined] == [ToolDefined]
    await assert_sound(store)
