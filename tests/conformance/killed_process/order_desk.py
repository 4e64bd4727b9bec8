"""An order desk that may be killed at any moment: the program that the kill -9 test starts, kills, and starts again.

    python -P -m tests.conformance.killed_process.order_desk LOG PLAN WITNESS

Read `work`, at the end, first, then `Desk`. Several sessions send their inputs; a model calls tools of every tier and
effect class, some side by side; what needs approval is decided here as well; some runs are cancelled on the way. Then
look for the code that handles a crash: there is none. The program does not know whether it is the first on its log. It
sends everything again under the same keys, and asks once, in `Desk.take_up`, what an earlier life left for a person to
do. SIGTERM closes the desk as a deploy would; what is open then goes on in the next life, too.

It notes all that it is told in a file that outlives it (`witness`); `log_inspection` holds the log to that.
"""

import asyncio
import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import msgspec

import refold
from refold.events.core.content import Json
from refold.events.model.configuration import EffectClass, Tier
from refold.events.session import events as ev
from refold.options import Log
from tests.conformance.killed_process import witness as told
from tests.conformance.killed_process.witness import Witness
from tests.conformance.killed_process.work_plan import Counter, Errand, WorkPlan, read_plan

AMOUNT_ALLOWED_MAX = 70
"""Refunds and insurances up to this are allowed, the others denied."""


# What the desk can do. Turns of the loop and hashing stand for work; they are what a kill is to fall into.


def desk_tool(name: str, tier: Tier, effect: EffectClass, *, blocking: bool = False) -> refold.Tool[..., object]:
    """Return a tool that works for a moment, in a thread or not, and gives a receipt."""

    async def work(context: refold.ToolContext[Witness], parcel: str, amount: int = 0) -> str:
        with at_work(context):
            await some_turns(context.idempotency_key)
        return receipt(name, parcel, context.idempotency_key)

    def work_in_a_thread(context: refold.ToolContext[Witness], parcel: str, amount: int = 0) -> str:
        with at_work(context):
            some_hashing(context.idempotency_key)
        return receipt(name, parcel, context.idempotency_key)

    return refold.tool(name=name, tier=tier, effect=effect)(work_in_a_thread if blocking else work)


@contextmanager
def at_work(context: refold.ToolContext[Witness]) -> Iterator[None]:
    """Note that the body of a tool begins and, unless it is cancelled, that it ends."""
    context.deps.note(told.BodyBegan(key=context.idempotency_key))
    announce("body")
    yield
    context.deps.note(told.BodyEnded(key=context.idempotency_key))


TOOLS = (
    desk_tool("look_up", "observe", "pure"),
    desk_tool("weigh", "observe", "idempotent", blocking=True),
    desk_tool("photograph", "observe", "once"),
    desk_tool("label", "act", "idempotent", blocking=True),
    desk_tool("ship", "act", "once"),
    desk_tool("refund", "confirm", "once", blocking=True),  # Again only with another approval.
    desk_tool("insure", "confirm", "idempotent"),  # One approval holds however often the call has to be made.
)


def receipt(tool_name: str, parcel: str, key: str) -> str:
    """Return what the call with `key` returns, however often it is made."""
    return f"{tool_name} {parcel} [{key}]"


async def some_turns(text: str) -> None:
    """Let the loop turn 16 to 256 times; always as often for the same text."""
    for _ in range(16 * share(text)):
        await asyncio.sleep(0)


def some_hashing(text: str) -> None:
    """Hash for some milliseconds, which lets other threads run."""
    hashlib.pbkdf2_hmac("sha256", text.encode(), b"", 2_000 * share(text))


def share(text: str) -> int:
    return 1 + crc32(text.encode()) % 16


# Who says what is to be done. The answer follows from the request alone, so it does not matter which life asks.


class Dispatcher(refold.Provider):
    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        await some_turns(f"{len(request.messages)} {request.messages[-1]}")
        return next_answer(request.messages)


def next_answer(messages: Sequence[refold.Message]) -> refold.ModelResponse:
    """Return the calls of the errand's next step, or a summary after the last one."""
    taken = 0
    results: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            taken += 1
        elif message.text:
            return answer_to(message.text, taken, results)
        else:
            results[:0] = [block.text for block in message.content if isinstance(block, refold.ToolResultBlock)]
    raise ValueError("there is no errand in the history")


def answer_to(errand: str, taken: int, results: Sequence[str]) -> refold.ModelResponse:
    """Return the answer to an errand of which `taken` steps are behind us, with `results`."""
    parcel, _, said = errand.removeprefix("parcel ").partition(": ")
    steps = [step.split(", ") for step in said.split("; ")]
    if taken == len(steps):
        return refold.ModelResponse(content=(refold.TextBlock(text=f"{parcel} is done: " + " | ".join(results)),))
    calls = tuple(refold.ToolUse(name=name, input=arguments(name, parcel, taken)) for name in steps[taken])
    return refold.ModelResponse(content=calls, stop_reason="tool_use")


def arguments(tool_name: str, parcel: str, taken: int) -> dict[str, Json]:
    if tool_name in ("refund", "insure"):
        return {"parcel": parcel, "amount": crc32(f"{parcel} {taken}".encode()) % 100}
    return {"parcel": parcel}


# The people: they send, decide, call off, and note what they are told.


class Desk:
    """The people at the counters, in one life of the program."""

    def __init__(self, runtime: refold.AgentRuntime, witness: Witness) -> None:
        self.runtime = runtime
        self.witness = witness
        self.closing = False
        """Whether the runtime closes, so that what it refuses now is no fault."""
        self._aside: set[asyncio.Task[None]] = set()

    async def serve(self, counter: Counter) -> bool:
        """Do all errands of one session; return False where the runtime closed before that."""
        try:
            session = await self.runtime.session(counter.session)
            await self.take_up(session)
            for burst in counter.bursts:
                await asyncio.gather(*(self.send(session, errand) for errand in burst))
            history = msgspec.json.encode(await session.history())
        except (refold.ActorStopped, refold.PersistenceError):
            if not self.closing:
                raise
            return False
        self.witness.note(told.Remembered(session=session.id, digest=hashlib.sha256(history).hexdigest()))
        return True

    async def take_up(self, session: refold.Session) -> None:
        """Do what an earlier life left for a person to do: decide, and free a run that was resumed too often."""
        waiting = await session.approvals()
        asked = {
            recorded.event.call: recorded.version
            async for recorded in session.events()
            if isinstance(recorded.event, refold.ToolApprovalRequested)
        }
        for request in waiting:
            self.aside(self.decide(session, request, asked[request.call]))
        run = (await session.state_at()).run
        if run is not None and run.parked:
            await session.resume()

    async def send(self, session: refold.Session, errand: Errand) -> None:
        """Send one input, have it called off if that is planned, and note what comes of it."""
        token = refold.CancellationToken()
        if errand.call_off == "before it is sent":
            token.cancel()
        sender = asyncio.current_task()
        assert sender is not None
        runs: list[str] = []

        def follow(recorded: refold.RecordedEvent[ev.SessionEvent]) -> None:
            match recorded.event, errand.call_off:
                case ev.InputQueued(key=str(key)), _:
                    self.witness.note(told.Accepted(session=session.id, version=recorded.version, key=key))
                case ev.ToolCallStarted(run=run), "when a call starts" if not runs:
                    runs.append(run)
                    self.aside(self.cancel(session, run, f"call off {errand.key}"))
                case ev.ToolCallCompleted(), "when a call ends":
                    token.cancel()
                case ev.ModelResponded(run=run), "by its caller" if not runs:
                    runs.append(run)
                    sender.cancel()
                case _:
                    return

        try:
            result = await session.send(errand.text, key=errand.key, cancel=token, on_event=follow)
        except asyncio.CancelledError:
            if not self.closing:  # While it closes, nobody waits for the end of a run.
                self.witness.note(told.Ended(session=session.id, run=runs[0]))
            return
        outcome = type(result.outcome).__name__
        self.witness.note(
            told.Returned(session=session.id, key=errand.key, run=result.run, outcome=outcome, text=result.text)
        )

    async def cancel(self, session: refold.Session, run: str, key: str) -> None:
        """Cancel the run under way, which is `run`, or the next one where that has just ended."""
        await session.cancel(key=key)
        self.witness.note(told.Ended(session=session.id, run=run))

    async def decide(self, session: refold.Session, request: refold.ToolApprovalRequested, version: int) -> None:
        """Think about a call, and allow or deny it.

        The key names the request and not the call: a call that a crash interrupted may be put to a person once more,
        and then the old decision must not answer for the new one.
        """
        announce("approval")
        await some_turns(request.call)
        allowed = int(str(request.input["amount"])) <= AMOUNT_ALLOWED_MAX
        key = f"decision on the request at {version}"
        try:
            await session.decide(request.call, allow=allowed, key=key)
        except refold.CommandRejected:
            announce("too late")  # Its run was cancelled meanwhile.
        else:
            self.witness.note(told.Decided(session=session.id, call=request.call, allowed=allowed, key=key))

    def see(self, recorded: refold.RecordedEvent[ev.SessionEvent]) -> None:
        event = recorded.event
        self.witness.note(
            told.Seen(
                stream=recorded.stream,
                version=recorded.version,
                position=recorded.position,
                time=recorded.time,
                event=str(type(event).__struct_config__.tag),
            )
        )
        if isinstance(event, refold.ToolApprovalRequested | ev.RunParked):
            self.aside(self.answer(recorded.stream.removeprefix("session/"), event, recorded.version))

    async def answer(self, session_id: str, event: refold.ToolApprovalRequested | ev.RunParked, version: int) -> None:
        """Do what a person is there for: decide, or let a run go on that was killed too often in a row."""
        session = await self.runtime.session(session_id)
        if isinstance(event, ev.RunParked):
            await session.resume()
        else:
            await self.decide(session, event, version)

    def close(self) -> None:
        self.closing = True
        announce("closing")
        self.aside(self.runtime.close())

    def aside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._done_aside)

    def _done_aside(self, task: asyncio.Task[None]) -> None:
        self._aside.discard(task)
        error = task.exception() if not task.cancelled() else None
        if error is not None and not (
            self.closing and isinstance(error, refold.ActorStopped | refold.PersistenceError)
        ):
            traceback.print_exception(error)
            os._exit(70)  # What nobody awaits must not fail unseen; the parent shows what is printed.


async def work(log: Log, plan: WorkPlan, witness: Path, tools: Sequence[refold.Tool[..., object]] = TOOLS) -> None:
    """Do everything that is planned, or what of it can be done until SIGTERM, or SIGKILL, comes."""
    notes = Witness(witness)
    runtime = refold.AgentRuntime(
        refold.AgentConfig(model="dispatcher"),
        provider=Dispatcher(),
        tools=tools,
        log=log,
        durability=plan.durability,
        deps=notes,
        close_grace_s=10.0,  # A tool takes milliseconds; but the whole machine may stand still for a second.
    )
    desk = Desk(runtime, notes)
    runtime.subscribe(desk.see)
    announce("opening")
    async with runtime:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, desk.close)
        announce("open")
        served = await asyncio.gather(*(desk.serve(counter) for counter in plan.counters))
        desk.closing = True
    announce("done" if all(served) else "closed")


def announce(word: str) -> None:
    """Tell the parent where we are, so that it can choose its moment."""
    os.write(sys.stdout.fileno(), f"{word}\n".encode())


if __name__ == "__main__":
    log_path, plan_path, witness_path = map(Path, sys.argv[1:])
    asyncio.run(work(log_path, read_plan(plan_path), witness_path))
