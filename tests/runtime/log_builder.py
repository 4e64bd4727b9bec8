"""A log for tests, decided by the pure core and appended batch by batch, without any actor."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from refold.events import SESSION_CODEC, SESSION_CORE, fold
from refold.events.core.content import AnswerContent, ErrorKind, TextBlock, ToolUseBlock
from refold.events.core.ids import AgentId, PayloadHash, RunId, SessionId, StreamName, ToolCallId, stream_name
from refold.events.core.pure_core import Recorded, plan
from refold.events.core.records import EncodedBatch
from refold.events.model.configuration import (
    CORE_VERSION,
    AgentConfig,
    AgentConfiguration,
    CodeIdentity,
    ToolSpec,
    configuration_of,
)
from refold.events.model.messages import RequestReference, Usage
from refold.events.model.payloads import spill
from refold.events.session import commands
from refold.events.session.events import Verdict
from refold.stores import EventStore, SQLiteStore

BEGINNING = 1_780_000_000_000_000
"""Time of the first batch, in microseconds since the epoch; each batch is a second later."""

TOOLS = (
    ToolSpec(name="weather", description="Forecast.", input_schema={"type": "object"}, tier="observe", effect="pure"),
    ToolSpec(name="pay", description="Pays.", input_schema={"type": "object"}, tier="confirm"),
)


class LogBuilder:
    """Tells sessions what happens and appends what follows."""

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self._now = BEGINNING

    async def append(
        self, stream: StreamName, events: list[bytes], pending: tuple[str, ...] = (), at: int | None = None
    ) -> None:
        """Append a batch as it is given."""
        head = await self.store.head(stream)
        self._now += 1_000_000
        batch = EncodedBatch(
            stream=stream,
            expected_version=head.version if head else 0,
            at=at or self._now,
            events=tuple(events),
            pending=pending,
        )
        await self.store.append([batch])

    async def tell(
        self, session: str, command: commands.SessionCommand, payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> None:
        """Append the batch that a command becomes."""
        stream = stream_name("session", session)
        state = fold(SESSION_CODEC.decode_all(await self.store.read_stream(stream)))
        expected_version = state.version
        self._now += 1_000_000
        planned = plan(SESSION_CORE, state, command, self._now)
        assert not isinstance(planned, Recorded)
        batch = EncodedBatch(
            stream=stream,
            expected_version=expected_version,
            at=self._now,
            events=tuple(SESSION_CODEC.encode(event) for event in planned.events),
            pending=tuple(effect.key for effect in SESSION_CORE.pending(planned.state)),
        )
        await self.store.append([batch], payloads)

    async def open(self, session: str, *, core: int = CORE_VERSION, **settings: object) -> None:
        """Open and configure a session."""
        configuration, payloads = configured(core=core, **settings)
        await self.tell(session, commands.OpenSession(session=SessionId(session), agent=AgentId("agent")))
        await self.tell(session, commands.Configure(configuration=configuration), payloads)

    async def send(self, session: str, text: str) -> None:
        """Queue an input."""
        await self.tell(session, commands.SendInput(content=(TextBlock(text=text),)))

    async def answer(self, session: str, *content: AnswerContent, turn: int = 1, run: str | None = None) -> None:
        """Record a model's answer to the run under way; its calls are allowed."""
        state = fold(SESSION_CODEC.decode_all(await self.store.read_stream(stream_name("session", session))))
        assert state.run is not None
        calls = [block for block in content if isinstance(block, ToolUseBlock)]
        await self.tell(
            session,
            commands.RecordModelResponse(
                run=RunId(run) if run else state.run.id,
                turn=state.run.turns,
                content=content,
                stop_reason="tool_use" if calls else "end_turn",
                usage=Usage(input_tokens=10, output_tokens=5),
                request=RequestReference(configured=2, messages=1),
                verdicts=(Verdict(),) * len(calls),
            ),
        )

    async def result(self, session: str, call: str, text: str, kind: ErrorKind | None = None) -> None:
        """Record a tool's result; a large one becomes a payload."""
        content, payloads = spill((TextBlock(text=text),))
        await self.tell(session, commands.RecordToolResult(call=ToolCallId(call), content=content, kind=kind), payloads)

    async def weather_session(self, session: str, *, result: str = "Lisbon: sunny") -> None:
        """A whole session: an input, a tool call, its result, a final answer. Twelve events, six batches."""
        await self.open(session)
        await self.send(session, "Weather in Lisbon?")
        await self.answer(session, use("weather", city="Lisbon"))
        await self.result(session, "call_6_0", result)
        await self.answer(session, TextBlock(text="Sunny."))

    async def cancelled_session(self, session: str) -> None:
        """A session whose run is cancelled while its tool call is in flight."""
        await self.open(session)
        await self.send(session, "Weather in Porto?")
        await self.answer(session, use("weather", city="Porto"))
        await self.tell(session, commands.CancelRun())

    async def open_session(self, session: str) -> None:
        """A session whose tool call is in flight."""
        await self.open(session)
        await self.send(session, "Weather in Faro?")
        await self.answer(session, use("weather", city="Faro"))


def use(name: str, **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(""), name=name, input=dict(arguments))


def configured(*, core: int = CORE_VERSION, **settings: object) -> tuple[AgentConfiguration, dict[PayloadHash, bytes]]:
    return configuration_of(
        AgentConfig(model="test-model", **settings),  # type: ignore[arg-type]
        agent=AgentId("agent"),
        tools=TOOLS,
        code=CodeIdentity(refold="0.1.0", core=core),
    )


def log_of(path: Path, build: Callable[[LogBuilder], Awaitable[None]]) -> Path:
    """Make a log at a path and return the path."""

    async def make() -> None:
        async with await SQLiteStore.open(path) as store:
            await build(LogBuilder(store))

    asyncio.run(make())
    return path
