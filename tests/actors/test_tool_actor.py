"""The actor that runs a tool's calls: each end is told exactly once, whatever the body does."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from refold.actors import Actor, ActorRef, ActorSystem, Journal, ManualClock
from refold.actors.agent.tool import StartToolCall, ToolActor
from refold.actors.calls.tool_context import ToolContext
from refold.actors.calls.tool_rules import ToolRules
from refold.actors.effects import CancelEffect, EffectEnded
from refold.events.core.content import CRASHED_TEXT, JsonObject
from refold.events.core.errors import PersistenceError
from refold.events.core.ids import EventRef, SessionId, ToolCallId
from refold.events.kinds.tool import TOOL_CODEC, ToolCallAbandoned, ToolDefined
from refold.events.model.configuration import ToolSpec
from refold.events.session.commands import RecordToolResult
from refold.events.session.events import Verdict
from refold.stores import InMemoryStore

Body = Callable[[ToolContext[object]], Awaitable[object]]


class OneTool:
    """A tool runner with one tool."""

    def __init__(self, body: Body, schema: JsonObject | None = None) -> None:
        self.body = body
        self.known_rules = ToolRules()
        self.known: ToolSpec | None = ToolSpec(
            name="work", description="Works.", input_schema=schema or {"type": "object"}, timeout_s=10
        )

    def names(self) -> tuple[str, ...]:
        return ("work",)

    def spec(self, name: str) -> ToolSpec | None:
        return self.known

    def rules(self, name: str) -> ToolRules:
        return self.known_rules

    def check(self, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
        return arguments, Verdict()

    async def run(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        return await self.body(context)


class Observer:
    def __init__(self) -> None:
        self.reports: list[object] = []

    def recorded(self, session: SessionId, events: object) -> None: ...

    def settled(self, session: SessionId, state: object) -> None: ...

    def streamed(self, session: SessionId, run: object, turn: int, delta: object) -> None: ...

    def progressed(self, session: SessionId, call: str, report: object) -> None:
        self.reports.append(report)


class Recipient(Actor):
    """Stands where a session would, and keeps what it is told."""

    def __init__(self, told: list[EffectEnded]) -> None:
        self.told = told

    def on_receive(self, message: EffectEnded) -> None:
        self.told.append(message)


class Setup:
    def __init__(self, body: Body, *, store: InMemoryStore | None = None, schema: JsonObject | None = None) -> None:
        self.clock = ManualClock()
        self.store = store or InMemoryStore()
        self.observer = Observer()
        self.runner = OneTool(body, schema)
        self.told: list[EffectEnded] = []
        self.system = ActorSystem(clock=self.clock)
        journal = Journal(self.store)
        self.system.register("tool", lambda _: ToolActor(self.runner, journal, self.observer, cancel_grace_s=4))
        self.system.register("session", lambda _: Recipient(self.told))

    @property
    def tool(self) -> ActorRef:
        return self.system.ref("tool/work")

    async def start(self, key: str = "tool:call_1_0") -> None:
        self.tool.tell(
            StartToolCall(
                key=key,
                session=SessionId("s"),
                reply_to=self.system.ref("session/s"),
                call=ToolCallId(key.removeprefix("tool:")),
                arguments={},
                started=EventRef("session/s@5"),
            )
        )
        await self.clock.settle()

    async def cancel(self, key: str = "tool:call_1_0") -> None:
        self.tool.tell(CancelEffect("session/s", key))
        await self.clock.settle()

    def ends(self) -> list[tuple[str | None, str | None]]:
        """Return the kind and text of each end that was told; both None = it was cancelled in time."""
        ends: list[tuple[str | None, str | None]] = []
        for ended in self.told:
            command = ended.command
            if isinstance(command, RecordToolResult):
                ends.append((command.kind, "".join(getattr(block, "text", "?") for block in command.content)))
            else:
                ends.append((None, None))
        return ends

    async def recorded(self) -> list[type]:
        return [type(event) for event in TOOL_CODEC.decode_all(await self.store.read_stream("tool/work"))]


@pytest.fixture
async def setups() -> AsyncIterator[Callable[..., Setup]]:
    made: list[Setup] = []

    def make(body: Body, **options: Any) -> Setup:
        made.append(Setup(body, **options))
        return made[-1]

    yield make
    for setup in made:
        closing = asyncio.create_task(setup.system.close())
        await setup.clock.advance(30)
        await closing


async def done(context: ToolContext[object]) -> str:
    return "done"


async def endless(context: ToolContext[object]) -> str:
    await asyncio.Event().wait()
    return "unreachable"


async def test_a_call_begun_twice_under_one_key_runs_once(setups: Callable[..., Setup]) -> None:
    ran, gate = list[int](), asyncio.Event()

    async def body(context: ToolContext[object]) -> str:
        ran.append(1)
        await gate.wait()
        return "done"

    setup = setups(body)
    await setup.start()
    await setup.start()
    gate.set()
    await setup.clock.settle()
    assert (ran, setup.ends()) == ([1], [(None, "done")])


async def test_calls_run_beside_each_other_and_none_waits_for_the_tools_own_stream(
    setups: Callable[..., Setup],
) -> None:
    class Halting(InMemoryStore):
        gate = asyncio.Event()

        async def append(self, batches: Any, payloads: Any = None) -> Any:
            await self.gate.wait()
            return await super().append(batches, payloads)

    store = Halting()
    setup = setups(done, store=store)
    await setup.start("tool:call_1_0")
    await setup.start("tool:call_1_1")
    assert setup.ends()[0] == (None, "done")
    store.gate.set()
    await setup.clock.settle()
    assert setup.ends() == [(None, "done")] * 2
    assert await setup.recorded() == [ToolDefined]


async def test_a_tool_is_defined_once_and_again_where_it_differs(setups: Callable[..., Setup]) -> None:
    store = InMemoryStore()
    for schema in ({"type": "object"}, {"type": "object"}, {"type": "object", "properties": {}}):
        setup = setups(done, store=store, schema=schema)
        await setup.start()
        await setup.start()
    assert await setup.recorded() == [ToolDefined, ToolDefined]


@pytest.mark.parametrize("schema", [{"type": "object", "default": float("nan")}, {"x": {1, 2}}])
async def test_a_definition_that_cannot_be_recorded_costs_no_call(setups: Callable[..., Setup], schema: Any) -> None:
    setup = setups(done, schema=schema)
    await setup.start()
    assert setup.ends() == [(None, "done")]


async def test_a_tool_whose_stream_cannot_be_read_or_written_runs_all_the_same(setups: Callable[..., Setup]) -> None:
    class Broken(InMemoryStore):
        async def append(self, batches: Any, payloads: Any = None) -> Any:
            raise PersistenceError("full")

        async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> Any:
            raise PersistenceError("unreadable")

    setup = setups(done, store=Broken())
    await setup.start()
    assert setup.ends() == [(None, "done")]
    await setup.start("tool:call_1_1")
    assert setup.ends() == [(None, "done")] * 2


async def test_a_tool_that_is_gone_is_told_as_not_found(setups: Callable[..., Setup]) -> None:
    setup = setups(done)
    setup.runner.known = None
    await setup.start()
    assert setup.ends() == [("not_found", "There is no tool 'work' in this process.")]


async def test_silence_beyond_the_timeout_gives_a_call_up_and_its_late_result_is_told_too(
    setups: Callable[..., Setup],
) -> None:
    gate = asyncio.Event()

    async def body(context: ToolContext[object]) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    setup = setups(body)
    await setup.start()
    await setup.clock.advance(9.9)
    assert setup.ends() == []
    await setup.clock.advance(0.2)
    ((kind, text),) = setup.ends()
    assert kind == "timeout"
    assert text is not None
    assert "no sign of life for 10 seconds" in text
    assert ToolCallAbandoned not in await setup.recorded()
    await setup.clock.advance(100)
    assert len(setup.ends()) == 1
    abandoned = (await setup.recorded()).count(ToolCallAbandoned)
    gate.set()
    await setup.clock.settle()
    assert (abandoned, setup.ends()[1:]) == (1, [(None, "late")])


async def test_progress_is_published_and_counts_as_a_sign_of_life_from_any_thread(setups: Callable[..., Setup]) -> None:
    contexts, gate = list[ToolContext[object]](), asyncio.Event()

    async def body(context: ToolContext[object]) -> str:
        contexts.append(context)
        await gate.wait()
        return "done"

    setup = setups(body)
    await setup.start()
    for number in range(3):
        await setup.clock.advance(9)
        if number == 1:
            thread = threading.Thread(target=contexts[0].progress, args=(number,))
            thread.start()
            thread.join()
        else:
            contexts[0].progress(number)
        await setup.clock.settle()
    assert (setup.observer.reports, setup.ends()) == ([0, 1, 2], [])
    gate.set()
    await setup.clock.settle()
    contexts[0].progress("after the end")
    await setup.clock.advance(60)
    assert setup.ends() == [(None, "done")]


async def test_a_cancelled_call_ends_without_a_result(setups: Callable[..., Setup]) -> None:
    setup = setups(endless)
    await setup.start()
    await setup.cancel()
    await setup.cancel()
    assert setup.ends() == [(None, None)]
    assert setup.clock.waiting() == ()


async def test_a_body_that_watches_its_token_is_left_time_and_then_cancelled(setups: Callable[..., Setup]) -> None:
    async def body(context: ToolContext[object]) -> str:
        assert not context.cancel.cancelled
        await asyncio.Event().wait()
        return "unreachable"

    setup = setups(body)
    await setup.start()
    await setup.cancel()
    await setup.clock.advance(1.9)
    assert setup.ends() == []
    await setup.clock.advance(0.2)
    assert setup.ends() == [(None, None)]


async def test_a_body_that_swallows_its_cancellation_tells_what_it_returned_and_is_not_said_to_be_silent(
    setups: Callable[..., Setup],
) -> None:
    gate = asyncio.Event()

    async def body(context: ToolContext[object]) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            context.progress("still here")
            await gate.wait()
        return "in spite of it"

    setup = setups(body)
    await setup.start()
    await setup.cancel()
    await setup.clock.advance(60)
    assert setup.ends() == []
    setup.tool.tell(CancelEffect("session/s", "tool:call_1_0", abandoned=True))
    await setup.clock.settle()
    assert await setup.recorded() == [ToolDefined, ToolCallAbandoned]
    gate.set()
    await setup.clock.settle()
    assert setup.ends() == [(None, "in spite of it")]
    setup.tool.tell(CancelEffect("session/s", "tool:call_1_0", abandoned=True))
    await setup.clock.settle()
    assert await setup.recorded() == [ToolDefined, ToolCallAbandoned]


async def test_an_actor_that_fails_tells_that_the_outcome_of_its_calls_is_unknown(
    setups: Callable[..., Setup], caplog: pytest.LogCaptureFixture
) -> None:
    setup = setups(endless)
    await setup.start()
    with caplog.at_level(logging.CRITICAL):
        setup.tool.tell(object())
        await setup.clock.advance(1)
    assert setup.ends() == [("crashed", CRASHED_TEXT)]


async def test_a_stop_leaves_calls_open_as_after_a_crash(setups: Callable[..., Setup]) -> None:
    setup = setups(endless)
    await setup.start()
    assert await setup.system.close() == ()
    assert setup.ends() == []
