"""Refold as a citizen of asyncio: a caller may be cancelled at any point, by any of asyncio's own means.

A caller cancelled while awaiting `send` gets its CancelledError, counted as asyncio counts; the run is recorded as
cancelled and nothing of it goes on; and a closed runtime leaves nothing on the loop.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.events.session.events import RunCancelled
from refold.inspection.check import check_log
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import TERMINAL, HeldAnswer, Seen, session_in, types_of

pytestmark = pytest.mark.usefixtures("nothing_is_left_on_the_loop")


@refold.tool(tier="observe")
async def look(name: str) -> str:
    await asyncio.sleep(0)
    return f"saw {name}"


@refold.tool(tier="act")
async def act(name: str) -> str:
    return f"did {name}"


@refold.tool(tier="act")
def block(name: str) -> str:
    return f"made {name}"


@refold.tool(tier="confirm")
async def pay(name: str) -> str:
    return f"paid {name}"


TOOLS = (look, act, block, pay)


def whole_run(request: refold.ModelRequest) -> Any:
    """Answer so that a run passes through everything that a run can be doing, and then says "done"."""
    since = list(request.messages)
    while any(message.role == "user" and message.text for message in since[1:]):
        since = since[1:]
    answers: Sequence[Any] = (
        [refold.use("look", {"name": "a"}), refold.use("look", {"name": "b"})],
        [refold.use("act", {"name": "c"}), refold.use("act", {"name": "d"})],
        [refold.use("block", {"name": "e"}), refold.use("pay", {"name": "f"})],
        "done",
    )
    return "after" if since[0].text == "more" else answers[len(since) // 2]


class Answering(refold.ScriptedProvider):
    """Answers every request by a function of it."""

    def __init__(self, answer: Callable[[refold.ModelRequest], Any] = whole_run) -> None:
        super().__init__([answer] * 5_000)


async def whole_run_later(request: refold.ModelRequest) -> Any:
    """Answer later than a time limit, which takes some turns of the loop, has cancelled the run that it ends."""
    for _ in range(3):
        await asyncio.sleep(0)
    return whole_run(request)


def runtime_of(log: Any, provider: Any = None, tools: Any = TOOLS, **options: Any) -> refold.AgentRuntime:
    config = options.pop("config", refold.AgentConfig(model="m"))
    return refold.AgentRuntime(config, provider=provider or Answering(), tools=tools, log=log, **options)


def allow_payments(runtime: refold.AgentRuntime, group: asyncio.TaskGroup) -> None:
    """Allow each call that asks to pay; where the run has ended meanwhile, nobody waits for that."""

    async def allow(recorded: Any) -> None:
        try:
            session = await runtime.session(recorded.stream.removeprefix("session/"))
            await session.decide(recorded.event.call, allow=True)
        except refold.CommandRejected:
            return

    def see(recorded: Any) -> None:
        if kind_of(recorded) == "ToolApprovalRequested":
            group.create_task(allow(recorded))

    runtime.subscribe(see)


def kind_of(recorded: Any) -> str:
    return type(recorded.event).__name__


async def assert_ended(session: refold.Session, *ends: str) -> None:
    """Check that the session's runs have ended as given, that each call has its result, and that nothing goes on."""
    kinds = await types_of(session)
    assert tuple(kind for kind in kinds if kind in TERMINAL) == ends
    open_calls: list[str] = []
    for message in await session.history():
        answered = [block.tool_use_id for block in message.content if isinstance(block, refold.ToolResultBlock)]
        assert answered == open_calls
        open_calls = [block.id for block in message.content if isinstance(block, refold.ToolUseBlock)]
    assert open_calls == []
    state = await session.state_at()
    assert (state.run, state.turn, state.queue) == (None, None, [])


async def assert_nothing_is_pending(log: EventStore) -> None:
    assert list(await log.list_streams(prefix="session/", with_pending=True)) == []


async def cancelled(task: asyncio.Task[Any], requests: int = 1) -> None:
    """Check that a task ends as asyncio says that a cancelled task ends."""
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert task.cancelling() == requests


@asynccontextmanager
async def asked(
    log: EventStore, held: HeldAnswer, *script: Any
) -> AsyncIterator[tuple[refold.Session, "asyncio.Task[refold.RunResult]"]]:
    """Give a session, and what sends to it, once its model has been asked for an answer that is held."""
    async with session_in(runtime_of(log, refold.ScriptedProvider([held, *script]))) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        await held.asked.wait()
        yield session, sending


# Cancelling the task


class AtEvent:
    """Follows a session, and does something at the event in a certain place, counted from 1."""

    def __init__(self, runtime: refold.AgentRuntime, session: refold.Session, place: int) -> None:
        self.action: Callable[[], object] = lambda: None
        self._place = place
        self._seen: list[Any] = []
        self._unsubscribe = runtime.subscribe(self._see, session=session.id)

    def _see(self, recorded: Any) -> None:
        self._seen.append(recorded)
        if len(self._seen) == self._place:
            self.action()

    def end(self) -> str | None:
        """Stop following; return how the run must have ended, None if it has no such event.

        What is durable with the event, since it is of the same batch, stays.
        """
        self._unsubscribe()
        if len(self._seen) < self._place:
            return None
        completed = {recorded.batch for recorded in self._seen if kind_of(recorded) == "RunCompleted"}
        return "RunCompleted" if self._seen[self._place - 1].batch in completed else "RunCancelled"


async def limited(session: refold.Session, moment: AtEvent) -> refold.RunResult:
    """Send with a time limit that expires at a moment."""
    async with asyncio.timeout(None) as limit:
        moment.action = lambda: limit.reschedule(asyncio.get_running_loop().time())
        return await session.send("go")


@pytest.mark.parametrize("means", ["cancelled", "cancelled while it streams", "by a timeout"])
async def test_a_caller_may_be_cancelled_at_every_event_of_a_run(log: EventStore, means: str) -> None:
    config = refold.AgentConfig(model="m", streaming="streams" in means)
    provider = Answering(whole_run_later if means == "by a timeout" else whole_run)
    async with runtime_of(log, provider, config=config) as runtime, asyncio.TaskGroup() as group:
        allow_payments(runtime, group)
        for place in count(1):
            session = await runtime.session(f"s{place}")
            moment = AtEvent(runtime, session, place)
            sends = limited(session, moment) if means == "by a timeout" else session.send("go")
            sending = asyncio.create_task(sends)
            if means != "by a timeout":
                moment.action = sending.cancel
            await asyncio.wait([sending])
            end = moment.end()
            if end is None:
                assert sending.result().text == "done"
                break
            if means == "by a timeout":
                assert isinstance(sending.exception(), TimeoutError)
                assert sending.cancelling() == 0
            else:
                await cancelled(sending)
            await assert_ended(session, end)
            assert (await session.send("more")).text == "after"
            await assert_nothing_is_pending(log)
        assert place > 25


@pytest.mark.slow
async def test_a_caller_may_be_cancelled_after_any_number_of_steps_of_the_loop() -> None:
    log = InMemoryStore()

    def answer(request: refold.ModelRequest) -> Any:
        return (
            "done"
            if len(request.messages) > 1
            else [refold.use("look", {"name": "a"}), refold.use("act", {"name": "b"})]
        )

    async with runtime_of(log, Answering(answer)) as runtime:
        for steps in count():
            session = await runtime.session(f"s{steps}")
            sending = asyncio.create_task(session.send("go"))
            for _ in range(steps):
                await asyncio.sleep(0)
            if not sending.cancel():
                break
            await cancelled(sending)
            if await log.head(f"session/{session.id}") is not None:
                kinds = await types_of(session)
                await assert_ended(session, "RunCompleted" if "RunCompleted" in kinds else "RunCancelled")
            assert (await session.send("more")).text in ("after", "done")
            await assert_nothing_is_pending(log)
        assert sending.result().text == "done"
        assert steps > 20


@pytest.mark.parametrize("kind", ["input_queued", "model_responded", "tool_call_completed", "run_completed"])
async def test_a_caller_cancelled_while_the_log_writes_waits_for_it_and_ends_cancelled(kind: str) -> None:
    log = FailingStore(InMemoryStore())
    hold = log.hold_event(kind)
    async with runtime_of(
        log, refold.ScriptedProvider([refold.use("act", {"name": "a"}), refold.say("done"), refold.say("more")])
    ) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await hold.reached.wait()
        for _ in range(3):
            sending.cancel()
            await asyncio.sleep(0)
        assert not sending.done()
        hold.let_go()
        await cancelled(sending, 3)
        await assert_ended(session, "RunCompleted" if kind == "run_completed" else "RunCancelled")
        await assert_nothing_is_pending(log)


@pytest.mark.parametrize("times", [2, 3, 10])
async def test_a_caller_may_be_cancelled_several_times_and_take_it_back_and_go_on(log: EventStore, times: int) -> None:
    async def stubborn(session: refold.Session) -> str:
        task = asyncio.current_task()
        assert task is not None
        try:
            await session.send("go")
        except asyncio.CancelledError:
            assert task.cancelling() == times
            while task.uncancel():
                pass
        return (await session.send("more")).text

    held = HeldAnswer("never")
    async with session_in(runtime_of(log, refold.ScriptedProvider([held, refold.say("after")]))) as (_, session):
        task = asyncio.create_task(stubborn(session))
        await held.asked.wait()
        for place in range(times):
            task.cancel(f"reason {place}")
            if place % 2:
                await asyncio.sleep(0)
        assert await task == "after"
        assert (await types_of(session)).count("CancelRequested") == 1
        await assert_ended(session, "RunCancelled", "RunCompleted")


# asyncio's own means


@pytest.mark.parametrize("how", ["wait_for", "gather", "cancelled gather", "shield"])
async def test_send_inside_what_asyncio_offers(log: EventStore, how: str) -> None:
    held = HeldAnswer("late")
    async with asked(log, held, refold.say("after")) as (session, sending):
        if how == "wait_for":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sending, 0.001)
        elif how == "cancelled gather":
            gathered = asyncio.gather(sending, session.history(), return_exceptions=True)
            sending.cancel()
            first, second = await gathered
            assert isinstance(first, asyncio.CancelledError)
            assert isinstance(second, list)
        else:
            other = asyncio.Event()
            outer: asyncio.Future[Any] = asyncio.shield(sending)
            if how == "gather":
                outer = asyncio.gather(sending, other.wait(), return_exceptions=True)
            outer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await outer
        if how == "shield":
            held.gate.set()
            assert (await sending).text == "late"
        else:
            await cancelled(sending)
        await assert_ended(session, "RunCompleted" if how == "shield" else "RunCancelled")
        assert (await session.send("more")).text == "after"


# Task groups


async def test_a_task_group_in_a_tool_that_sends_to_other_sessions_ends_their_runs_with_its_own(
    log: EventStore,
) -> None:
    @refold.tool
    async def delegate() -> str:
        async with asyncio.TaskGroup() as group:
            for name in "bc":
                group.create_task((await runtime.session(name)).send("wait"))
        return "unreachable"

    async def answer(request: refold.ModelRequest) -> Any:
        if request.messages[0].text == "delegate":
            return refold.use("delegate")
        waiting.append("waiting")
        if len(waiting) == 2:
            everybody.set()
        await asyncio.Event().wait()

    waiting, everybody = list[str](), asyncio.Event()
    async with session_in(runtime_of(log, Answering(answer), [delegate]), "a") as (runtime, session):
        sending = asyncio.create_task(session.send("delegate"))
        await everybody.wait()
        sending.cancel()
        await cancelled(sending)
        for name in "abc":
            await assert_ended(await runtime.session(name), "RunCancelled")
        await assert_nothing_is_pending(log)


# Who swallows a cancellation, or makes one


class Swallows(HeldAnswer):
    """Takes no notice of its cancellation, as often as it comes, until it is let go."""

    async def __call__(self, request: refold.ModelRequest) -> Any:
        while not self.gate.is_set():
            try:
                await super().__call__(request)
            except asyncio.CancelledError:
                continue
        return self.answer


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_provider_that_swallows_its_cancellation_holds_its_caller_for_the_grace_and_no_longer(
    log: EventStore, streaming: bool
) -> None:
    held, clock = Swallows("too late"), ManualClock()
    options: dict[str, Any] = {
        "config": refold.AgentConfig(model="m", streaming=streaming),
        "clock": clock,
        "cancel_grace_s": 5,
    }
    async with runtime_of(log, refold.ScriptedProvider([held, refold.say("after")]), **options) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await held.asked.wait()
        sending.cancel()
        await seen.first(RunCancelled)
        await clock.advance(4.9)
        assert not sending.done()
        await clock.advance(0.2)
        await cancelled(sending)
        await assert_ended(session, "RunCancelled")
        held.gate.set()
        await assert_ended(session, "RunCancelled")
        assert (await session.send("more")).text == "after"


class Answers(HeldAnswer):
    """Answers when it is cancelled."""

    async def __call__(self, request: refold.ModelRequest) -> Any:
        try:
            return await super().__call__(request)
        except asyncio.CancelledError:
            return "after its cancellation"


async def test_a_provider_that_answers_its_cancellation_is_evidence_and_no_answer(log: EventStore) -> None:
    async with asked(log, Answers("never"), refold.say("after")) as (session, sending):
        sending.cancel()
        await cancelled(sending)
        await assert_ended(session, "RunCancelled")
        assert [message.text for message in await session.history()] == ["go"]
        assert (await session.send("more")).text == "after"


@pytest.mark.parametrize("how", ["raised", "own task", "child task"])
async def test_a_cancellation_of_a_providers_own_is_a_failed_call_and_not_the_callers(
    log: EventStore, how: str
) -> None:
    async def answer(request: refold.ModelRequest) -> str:
        if how == "raised":
            raise asyncio.CancelledError
        if how == "own task":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        child = asyncio.create_task(asyncio.Event().wait())
        child.cancel()
        await child
        return "unreachable"

    async with session_in(runtime_of(log, refold.ScriptedProvider([answer, refold.say("after")]))) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        outcome = (await sending).outcome
        assert isinstance(outcome, refold.Failed)
        assert "CancelledError" in outcome.error.message
        assert sending.cancelling() == 0
        assert (await session.send("more")).text == "after"


# Entering and leaving


async def _enter_and_leave(runtime: refold.AgentRuntime) -> str:
    async with runtime:
        return (await (await runtime.session("s")).send("go")).text


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["memory", "file"])
async def test_a_runtime_may_be_cancelled_at_every_step_of_its_life_and_lets_go_of_its_log(
    kept: str, tmp_path: Path
) -> None:
    """There are many steps, with a file most of them waits for a thread; some of them are tried.

    The slower the disk, the more steps: each is an eighth further than the one before, so that few more are tried.
    """
    text, steps = "", 0
    while not text:
        path = tmp_path / f"{steps}.db"
        log: Any = InMemoryStore() if kept == "memory" else path
        runtime = runtime_of(log, Answering(lambda _: "done"), wait_for_log_s=0)
        living = asyncio.create_task(_enter_and_leave(runtime))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not living.cancel():
            text = living.result()
            break
        steps += 5 if kept == "memory" else max(61, steps // 8)
        await cancelled(living)
        store = log if kept == "memory" else await SQLiteStore.open(path, wait_for_log_s=0)
        assert (await check_log(store)).problems == ()
        assert list(await store.list_streams(prefix="session/", with_pending=True)) == []
        if kept == "file":
            await store.close()
        assert await _enter_and_leave(runtime_of(log, Answering(lambda _: "done"), wait_for_log_s=0)) == "done"
    assert text == "done"
    assert steps > 30


@pytest.mark.slow
async def test_a_runtime_may_be_cancelled_in_every_operation_of_its_store_and_lives_again_on_the_same_log() -> None:
    for place in count(1):
        log = FailingStore(InMemoryStore())
        hold = log.hold_operation(place)
        living = asyncio.create_task(_enter_and_leave(runtime_of(log, Answering(lambda _: "done"))))
        await asyncio.wait([living, held := asyncio.ensure_future(hold.reached.wait())], return_when="FIRST_COMPLETED")
        if living.done():
            held.cancel()
            break
        living.cancel()
        await asyncio.sleep(0)
        hold.let_go()
        await cancelled(living)
        assert await _enter_and_leave(runtime_of(log, Answering(lambda _: "done"))) == "done"
        assert (await check_log(log)).problems == ()
    assert living.result() == "done"
    assert place > 8


async def test_other_waits_of_a_session_may_be_cancelled_and_do_what_they_were_asked_for() -> None:
    log = FailingStore(InMemoryStore())
    hold = log.hold_event("cancel_requested")
    async with asked(log, HeldAnswer("never")) as (session, sending):
        asking = asyncio.create_task(session.cancel())
        await hold.reached.wait()
        reading = asyncio.create_task(session.history())
        await asyncio.sleep(0)
        for task in (asking, reading):
            task.cancel()
            await cancelled(task)
        hold.let_go()
        assert (await sending).outcome == refold.Cancelled()
        await assert_ended(session, "RunCancelled")


def descriptors_in(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, where the system tells."""
    own = Path("/proc/self/fd")
    names = [os.path.realpath(descriptor) for descriptor in own.iterdir()] if own.exists() else []
    return [name for name in names if name.startswith(str(folder))]


@pytest.mark.parametrize("steps", [0, 1, 5, 20, 60, 150, 400])
async def test_an_opening_that_is_cancelled_leaves_no_descriptor_and_no_lock(tmp_path: Path, steps: int) -> None:
    path = str(tmp_path / "events.db")
    opening = asyncio.create_task(SQLiteStore.open(path, wait_for_log_s=0))
    for _ in range(steps):
        await asyncio.sleep(0)
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await (await opening).close()
    assert descriptors_in(tmp_path) == []
    await (await SQLiteStore.open(path, wait_for_log_s=0)).close()
