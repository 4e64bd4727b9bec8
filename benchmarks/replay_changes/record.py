"""Ten logs of the desk: each is the same, byte for byte of its events, whenever it is recorded by the same code."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from refold import (
    AgentRuntime,
    CancellationToken,
    Message,
    ModelResponse,
    ProviderError,
    RunResult,
    ScriptItem,
    Session,
    TextBlock,
    ToolUse,
    Usage,
    cut,
    stall,
    use,
)
from refold.actors import ManualClock
from refold.events.session.events import HistoryImported

desk: Any = import_module("desk")
"""Of this folder, which is on the path; some of it may be changed."""

HANGS_AFTER_S = 10.0
"""Changed code may never do what is waited for; the log that there is then is compared."""


def spent(text: str, *tokens: int, model: str | None = None) -> ModelResponse:
    """Return an answer, counted with tokens: of the request, of the answer, read from the cache."""
    usage = Usage(input_tokens=tokens[0], output_tokens=tokens[1], cache_read_tokens=tokens[2])
    return ModelResponse(content=(TextBlock(text=text),), usage=usage, model=model)


class Desk:
    """A runtime of the desk on a log, with a clock that moves only when told to.

    Args:
        log: its path.
        script: what the desk's model says.
        below: what the model of its subagent says.
        clock: goes on where it stands; None = a new one.
    """

    def __init__(
        self, log: Path, *script: ScriptItem, below: tuple[ScriptItem, ...] = (), clock: ManualClock | None = None
    ) -> None:
        self.clock = clock or ManualClock()
        self.world = desk.World()
        self.agent = desk.agent(list(script), list(below))
        self.runtime = AgentRuntime(
            self.agent,
            log=log,
            clock=self.clock,
            deps=self.world,
            durability="normal",
            inbox_poll_s=0,
            passivate_after_s=None,
            app_version="1",
        )

    async def __aenter__(self) -> "Desk":
        await self.runtime.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.runtime.__aexit__(*error)  # type: ignore[arg-type]

    async def until(self, ready: Callable[[], Awaitable[bool]], within_s: float = HANGS_AFTER_S) -> None:
        """Return once something is so, without moving time."""
        end = time.monotonic() + within_s
        while not await ready():
            if time.monotonic() > end:
                raise TimeoutError("what was waited for never happened")
            await asyncio.sleep(0.001)
        await self.clock.settle()

    async def ended(self, sending: "asyncio.Task[RunResult]") -> None:
        """Return once a run has ended."""

        async def done() -> bool:
            return sending.done()

        await self.until(done)
        await sending

    async def send(self, session: Session, text: str) -> None:
        """Send an input that needs no time."""
        await self.ended(asyncio.create_task(session.send(text)))

    async def let_pass(self, seconds: float) -> None:
        """Move time by a pause that is waited for; changed code may wait for another one."""

        async def waited_for() -> bool:
            return any(abs(due - seconds) < 0.001 for due in self.clock.waiting())

        with contextlib.suppress(TimeoutError):
            await self.until(waited_for, within_s=1)
        await self.clock.advance(seconds)

    async def happened(self, session: Session, event: str, times: int = 1) -> None:
        """Return once a session has so many events of a name."""

        async def there() -> bool:
            count = 0
            async for recorded in session.events():
                count += type(recorded.event).__name__ == event
            return count >= times

        await self.until(there)


async def lookup(log: Path) -> None:
    """Tools that read, a skill, arguments and tools that are none, both guardrails, and a guest."""
    script: list[ScriptItem] = [
        [use("find_order", {"order": "A-1"}), use("track_parcel", {"order": "A-1"})],
        spent("It is in Lisbon.", 200, 20, 50, model="desk-model-2026"),
        use("load_skill", {"name": "returns"}),
        spent("Is the tin closed?", 300, 10, 200),
        [use("add_note", {"order": "A-1"}), use("fly", {}), use("find_order", {"order": "A-13"})],
        [use("find_order", {"order": "A-2"}), use("add_note", {"order": "A-1", "text": "asked twice", "urgent": True})],
        spent("Noted.", 400, 10, 300),
        spent("It comes tomorrow.", 400, 10, 300),
        spent("Hello.", 50, 5, 0),
    ]
    async with Desk(log, *script) as running:
        session = await running.runtime.session("ann")
        for text in ("  Where is A-1? I am Ann Smith.", "I send it back.", "Note that.", "Pay, or else.", "When?"):
            await running.send(session, text)
        await running.send(await running.runtime.session("guest-1"), "Hi")


async def approval(log: Path) -> None:
    """A person allows, denies and does not come in time; the policy denies and asks."""
    script: list[ScriptItem] = [
        [use("refund", {"order": "A-1", "amount": amount}) for amount in (40, 600, 30)],
        spent("One was paid back.", 200, 10, 0),
        [use("send_again", {"order": "X-9"}), use("send_again", {"order": "A-9"})],
        spent("Nobody has allowed it.", 200, 10, 0),
        use("refund", {"order": "A-2", "amount": 5}),
        use("refund", {"order": "A-2", "amount": 5}),
        spent("Both were paid back.", 200, 10, 0),
    ]
    async with Desk(log, *script) as running:
        session = await running.runtime.session("ann")
        sending = asyncio.create_task(session.send("Pay it back."))
        await running.happened(session, "ToolApprovalRequested", 2)
        state = await session.state_at()
        first, second = [call.id for call in state.turn.calls if call.approval == "requested"] if state.turn else []
        running.clock.jump(7)
        await session.decide(first, allow=True)
        await session.decide(second, allow=False, reason="too late")
        await running.ended(sending)
        sending = asyncio.create_task(session.send("Send it again."))
        await running.happened(session, "ToolApprovalRequested", 3)
        await running.let_pass(60)
        await running.ended(sending)
        sending = asyncio.create_task(session.send("Pay twice."))
        await running.happened(session, "ToolApprovalRequested", 4)
        state = await session.state_at()
        (only,) = [call.id for call in state.turn.calls if call.approval == "requested"] if state.turn else []
        await session.decide(only, allow=True, always=True)
        await running.ended(sending)


async def retry(log: Path) -> None:
    """A model that is overloaded, a stream that breaks, an answer that says nothing, and a carrier that is down."""
    script: list[ScriptItem] = [
        ProviderError("busy", kind="overloaded", status=529, retryable=True),
        use("track_parcel", {"order": "A-1"}),
        cut("It is in Lisbon, I think.", after=2),
        spent("It is in Lisbon.", 200, 10, 0),
        spent("", 100, 0, 0),
        spent("Nothing more.", 100, 5, 0),
    ]
    async with Desk(log, *script) as running:
        running.world.outages = 2
        session = await running.runtime.session("ann")
        sending = asyncio.create_task(session.send("Where is A-1?"))
        await running.happened(session, "ModelFailed", 1)
        await running.let_pass(1)
        for times, seconds in ((1, 2), (2, 4)):
            await running.happened(session, "ToolAttemptFailed", times)
            await running.let_pass(seconds)
        await running.happened(session, "ModelFailed", 2)
        await running.let_pass(1)
        await running.ended(sending)
        await running.send(session, "And else?")


async def failure(log: Path) -> None:
    """A tool that fails, a model that refuses, too many turns, a budget that is spent, an answer that is cut off."""
    script: list[ScriptItem] = [
        use("refund", {"order": "A-1", "amount": 95}),
        spent("The till is empty.", 100, 10, 0),
        ProviderError("no", kind="auth", status=401),
        *[use("find_order", {"order": f"A-{number}"}) for number in range(4)],
        ModelResponse(
            content=(TextBlock(text="Let me see."), *desk_calls("find_order", "add_note")),
            usage=Usage(input_tokens=45_000, output_tokens=6_000),
        ),
        ModelResponse(content=(*desk_calls("find_order"),), stop_reason="max_tokens"),
        spent("That was cut off.", 100, 500, 0),
        ProviderError("busy", kind="overloaded", status=529, retryable=True),
        ProviderError("busy", kind="overloaded", status=529, retryable=True),
    ]
    async with Desk(log, *script) as running:
        session = await running.runtime.session("ann")
        sending = asyncio.create_task(session.send("Pay it back."))
        await running.happened(session, "ToolApprovalRequested")
        state = await session.state_at()
        (only,) = [call.id for call in state.turn.calls] if state.turn else []
        await session.decide(only, allow=True)
        await running.ended(sending)
        for text in ("Why?", "Find them all.", "Find more.", "And?"):
            await running.send(session, text)
        sending = asyncio.create_task(session.send("Still there?"))
        await running.happened(session, "ModelFailed", 2)
        await running.let_pass(1)
        await running.ended(sending)


def desk_calls(*names: str) -> tuple[ToolUse, ...]:
    """Return calls with an order each."""
    return tuple(use(name, {"order": f"A-{number}", "text": "see"}) for number, name in enumerate(names))


async def cancel(log: Path) -> None:
    """Runs that are cancelled while a tool runs, the model speaks and an input waits; and one that lasts too long."""
    script: list[ScriptItem] = [
        stall("Yes, we", after=0),
        [use("find_order", {"order": "A-1"}), use("await_parcel", {"order": "A-1"})],
        stall("It is on its way, and ", after=2),
        spent("Good bye.", 100, 10, 0),
        use("await_parcel", {"order": "A-1"}),
        spent("Hello again.", 100, 10, 0),
        stall("Let me think, and ", after=2),
    ]
    async with Desk(log, *script) as running:
        session = await running.runtime.session("eve")
        sending = asyncio.create_task(session.send("Is anybody there?"))
        await running.happened(session, "ModelRequested")
        await running.let_pass(0.02)
        await running.happened(session, "RequestBuilt")
        await session.cancel()
        await running.ended(sending)
        session = await running.runtime.session("ann")
        token = CancellationToken()
        sending = asyncio.create_task(session.send("Wait for A-1.", cancel=token))
        await running.happened(session, "ToolCallCompleted")
        token.cancel()
        await running.ended(sending)
        sending = asyncio.create_task(session.send("Where is it?"))
        await running.happened(session, "ModelRequested", 2)
        await running.clock.settle()
        await session.cancel()
        await running.ended(sending)
        await running.send(session, "Bye.")
        sending = asyncio.create_task(session.send("Wait again."))
        await running.happened(session, "ToolCallStarted", 3)
        token = CancellationToken()
        waiting = asyncio.create_task(session.send("Never mind.", cancel=token))
        await running.happened(session, "InputQueued", 5)
        token.cancel()
        await running.ended(waiting)
        await running.let_pass(600)
        await running.ended(sending)
        sending = asyncio.create_task(session.send("Say something."))
        await running.happened(session, "ModelRequested", 6)
        await running.let_pass(900)
        await running.ended(sending)


async def dying(log: Path) -> None:
    """Record what stands in a log when its process is killed in the middle of a tool."""
    script: list[ScriptItem] = [
        use("await_parcel", {"order": "B-1"}),
        [use("add_note", {"order": "A-1", "text": "lost"}), use("send_again", {"order": "A-1"})],
    ]
    async with Desk(log, *script) as running:
        running.world.dies = True
        other = await running.runtime.session("bob")
        waiting = asyncio.create_task(other.send("Wait for B-1."))
        await running.happened(other, "ToolCallStarted")
        session = await running.runtime.session("ann")
        await asyncio.wait([waiting, asyncio.create_task(session.send("Send it again."))])


async def resumed(log: Path) -> None:
    """Go on with a log whose process was killed."""
    script: list[ScriptItem] = [
        spent("I do not know whether it was sent.", 100, 10, 0),
        spent("It has arrived.", 100, 10, 0),
        "Bye.",
    ]
    clock = ManualClock()
    clock.jump(30)
    async with Desk(log, *script, clock=clock) as running:
        for name in ("ann", "bob"):
            session = await running.runtime.session(name)
            running.world.arrived.set()
            await running.happened(session, "RunCompleted")
        await running.send(session, "Thanks.")


async def compaction(log: Path) -> None:
    """A history that grows until a model summarises it, and a summary that fails."""
    story = "The tin was dented, and the tea in it was damp. "
    script: list[ScriptItem] = [
        spent(story * 40, 100, 500, 0),
        spent("They speak of a dented tin.", 700, 20, 0),
        spent("I see.", 300, 10, 0),
        spent(story * 40, 300, 500, 0),
        ProviderError("no", kind="auth", status=401),
        spent("Good.", 700, 10, 0),
        use("find_order", {"order": "A-1"}),
        spent("Found.", 700, 10, 0),
    ]
    async with Desk(log, *script) as running:
        session = await running.runtime.session("ann")
        for text in (story * 40, "And then?", story * 40, "Well.", "Find it."):
            await running.send(session, text)


async def subagent(log: Path) -> None:
    """Another agent is asked, whose window leaves out what it found first, and which runs out of turns."""
    script: list[ScriptItem] = [
        use("warehouse", {"task": "Where is A-1?"}),
        spent("On shelf nine.", 100, 10, 0),
        [use("warehouse", {"task": "And A-2?"}), use("find_order", {"order": "A-2"})],
        spent("They do not know.", 100, 10, 0),
    ]
    below: list[ScriptItem] = [
        *[use("find_order", {"order": f"A-1 on shelf {number} of the old house by the river"}) for number in range(4)],
        spent("Shelf nine.", 90, 9, 0),
        *[use("find_order", {"order": "A-2"})] * 6,
    ]
    async with Desk(log, *script, below=tuple(below)) as running:
        session = await running.runtime.session("ann")
        for text in ("Where does A-1 stand?", "And A-2?"):
            await running.send(session, text)


async def steering(log: Path) -> None:
    """Inputs that join a run under way, and one that waits for its end."""
    script: list[ScriptItem] = [
        [use("await_parcel", {"order": "A-1"}), use("find_order", {"order": "A-1"})],
        spent("It has arrived, and so has the note.", 100, 10, 0),
        spent("You are welcome.", 100, 10, 0),
    ]
    async with Desk(log, *script) as running:
        session = await running.runtime.session("ann")
        sending = asyncio.create_task(session.send("Wait for A-1."))
        await running.happened(session, "ToolCallCompleted")
        joining = asyncio.create_task(session.send("Ann Smith wants a note, too.", now=True))
        await running.happened(session, "InputQueued", 2)
        later = asyncio.create_task(session.send("Thanks."))
        await running.happened(session, "InputQueued", 3)
        running.world.arrived.set()
        for task in (sending, joining, later):
            await running.ended(task)
        await session.describe(user="ann", metadata={"from": "web"})


async def kept(objects: tuple[Any, ...]) -> None:
    """Fill what the desk keeps beside its memories: a graph, what is known, a breaker, and work that is done once."""
    graph, knowledge, breaker, dedup = objects
    for name in ("ann", "tea", "lisbon"):
        await graph.add_entity(name, "thing", {"length": len(name)})
    await graph.add_relationship("ann", "likes", "tea", 0.5, key="likes")
    await graph.add_relationship("ann", "lives_in", "lisbon")
    await graph.remove_entity("lisbon")
    await knowledge.put("tea", "is green", ("drink",), [0.5, 0.25])
    await knowledge.put("rain", "falls")
    await knowledge.remove("rain")

    async def broken() -> None:
        raise ConnectionError("gone")

    async def well() -> str:
        return "printed"

    for work in (broken, well, broken, broken):
        with contextlib.suppress(ConnectionError):
            await breaker.call(work)
    await dedup.run("A-1", well)
    await dedup.forget("A-1")


async def memory(log: Path) -> None:
    """Episodes and notes that enter prompts, and more that is kept; a history is imported, set aside and cleared."""
    script: list[ScriptItem] = [
        spent("Green, as ever.", 100, 10, 0),
        spent("Black, then.", 100, 10, 0),
        spent("Yes.", 100, 10, 0),
        spent("Who are you?", 100, 10, 0),
    ]
    async with Desk(log, *script) as running:
        stores = running.agent
        for number, text in enumerate(
            ("She likes green tea", "She dislikes mint tea", "She pays late", "She bought black tea in May")
        ):
            await stores.memory.add_episode("desk", text, 0.2 + number / 5, ("tea",))
            running.clock.jump(60)
        for name, value in (("shop", "open"), ("carrier", "down"), ("stock", "Assam")):
            await stores.working_memory.set(name, value)
        await kept(stores.objects)
        session = await running.runtime.session("ann")
        history = [Message("user", (TextBlock(text="I was here."),)), Message("assistant", (TextBlock(text="Yes."),))]
        await session.import_history(history)
        await running.send(session, "Which green tea do I like?")
        await stores.memory.add_episode("desk", "She gave green tea back", 0.9, ("tea",))
        await running.send(session, "Which black tea then?")
        imported = [each.version async for each in session.events() if isinstance(each.event, HistoryImported)]
        await session.set_aside(imported[0], reason="of another shop")
        await running.send(session, "Sure?")
        await session.clear()
        await running.send(session, "Hello")


LOGS: dict[str, tuple[Callable[[Path], Awaitable[None]], ...]] = {
    each.__name__: (each,)
    for each in (lookup, approval, retry, failure, cancel, compaction, subagent, steering, memory)
} | {"crash": (dying, resumed)}
"""What records each log, each part in a process of its own."""
