"""Tools with a breaker, retries and a limit of bodies that run at once: D6, K05, K10."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import (
    Cancelled,
    Completed,
    ConfigError,
    RetryPolicy,
    RunResult,
    Session,
    ToolContext,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.session.events import ToolCallFailed
from refold.resilience import CircuitBreaker
from refold.stores import EventStore, InMemoryStore
from refold.tools.tool import Tool
from tests.conformance.sessions import abandoned_in, checked_log, events_of, results_of, runtime_of

RETRIES = RetryPolicy(attempts_max=3, base_s=1, jitter=0)
NO_ROUTE = ConnectionError("no route")
CLOSED_AGAIN = ("opened", "probe_begun", "closed")


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventStore]:
    async with checked_log("memory", tmp_path) as store:
        yield store


class Body:
    """What a tool does: each attempt fails with the next error, until there are no more."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.keys: list[str] = []

    def __call__(self, context: ToolContext[Any]) -> str:
        assert not context.cancel.cancelled
        self.keys.append(context.idempotency_key)
        if self.errors:
            raise self.errors.pop(0)
        return "paid"

    @property
    def attempts(self) -> int:
        return len(self.keys)


def paying(body: Callable[[ToolContext[Any]], str], **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def pay(context: ToolContext[Any]) -> str:
        """Pay."""
        return body(context)

    return pay


@asynccontextmanager
async def sending(
    log: EventStore, clock: ManualClock, *tools: Tool[..., Any]
) -> AsyncIterator[tuple[Session, "asyncio.Task[RunResult]"]]:
    """Give a session whose model calls each tool once, and the task of the input that makes it do so."""
    script = [[use(each.name, {}) for each in tools], say("done")]
    async with runtime_of(log, *script, tools=tools, clock=clock) as runtime:
        session = await runtime.session("s")
        yield session, asyncio.create_task(session.send("go"))


async def told(
    log: EventStore, clock: ManualClock, *tools: Tool[..., Any], seconds: float = 0.0
) -> tuple[list[str], list[str]]:
    """Have a model call each tool once, let so much time pass, and return texts of results and kinds of failures."""
    async with sending(log, clock, *tools) as (session, sent):
        await clock.advance(seconds)
        assert (await sent).outcome == Completed()
        return [result.text for result in await results_of(session)], await kinds_of(session)


async def kinds_of(session: Session) -> list[str]:
    return [event.kind for event in await events_of(session, ToolCallFailed)]


# Retries: what holds of them wherever an attempt fails is in `tests/conformance/runs/test_retries.py`.


@pytest.mark.parametrize(
    ("errors", "options", "results", "attempts"),
    [
        pytest.param(
            [ConnectionError("reset")],
            {"retries": RetryPolicy(base_s=20, jitter=0), "timeout_s": 5},
            (["paid"], []),
            2,
            id="a pause longer than the timeout is no silence",
        ),
        pytest.param(
            [NO_ROUTE] * 9,
            {"retries": RETRIES, "breaker": CircuitBreaker("bank", threshold=2)},
            (["ConnectionError: no route"], ["transient"]),
            2,
            id="where retries open the breaker the call tells what failed",
        ),
    ],
)
async def test_d6_failures_are_retried_within_the_rules(
    log: EventStore, clock: ManualClock, errors: list[Exception], options: Any, results: object, attempts: int
) -> None:
    body = Body(*errors)
    assert await told(log, clock, paying(body, effect="pure", **options), seconds=100) == results
    assert body.attempts == attempts


async def test_case_k05_a_tool_whose_effect_is_once_is_never_run_again(log: EventStore, clock: ManualClock) -> None:
    with pytest.raises(ConfigError, match='its effect is "once", so what failed is not run again'):
        paying(Body(), retries=RETRIES)
    attempts: list[str] = []

    @tool(timeout_s=5)
    async def hang(context: ToolContext[Any]) -> str:
        """Commit, and never answer."""
        attempts.append(context.idempotency_key)
        await asyncio.Event().wait()
        return "never"

    body = Body(ConnectionError("reset after the payment"))
    _, kinds = await told(log, clock, paying(body), hang, seconds=1_000)
    assert (kinds, body.attempts, len(attempts)) == (["transient", "timeout"], 1, 1)


async def test_d6_a_silent_attempt_is_ended_and_made_again(log: EventStore, clock: ManualClock) -> None:
    ended: list[str] = []

    @tool(effect="idempotent", timeout_s=10, retries=RETRIES)
    async def fetch() -> str:
        """Hang once."""
        if not ended:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("the first")
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0  # What ended the first attempt is not meant for the second.
        return "fetched"

    assert await told(log, clock, fetch, seconds=12) == (["fetched"], [])
    assert ended == ["the first"]


async def test_d6_what_a_silent_attempt_brings_after_all_counts(log: EventStore, clock: ManualClock) -> None:
    attempts: list[int] = []

    @tool(effect="pure", timeout_s=10, retries=RETRIES)
    async def fetch(context: ToolContext[Any]) -> str:
        """End in order when it is asked to."""
        attempts.append(1)
        await context.cancel.wait()
        return "half of it"

    assert await told(log, clock, fetch, seconds=12) == (["half of it"], [])
    assert len(attempts) == 1


async def test_d6_beside_an_attempt_that_does_not_end_there_is_no_other(log: EventStore, clock: ManualClock) -> None:
    begun: list[int] = []
    gate = threading.Event()

    @tool(effect="pure", timeout_s=10, retries=RETRIES)
    def block() -> str:
        """Block a thread."""
        begun.append(1)
        gate.wait()
        return "late"

    async with sending(log, clock, block) as (session, sent):
        while not begun:
            await clock.advance(0)
        await clock.advance(10)
        assert not sent.done()
        await clock.advance(5)
        told = await kinds_of(session), len(begun)
        gate.set()
        assert told == (["timeout"], 1)
        await sent
    assert await abandoned_in(log, "block") == 1


# Silence


async def test_case_k10_a_call_that_reports_progress_may_take_longer_than_its_timeout(
    log: EventStore, clock: ManualClock
) -> None:
    @tool(timeout_s=10)
    async def build(context: ToolContext[Any]) -> str:
        """Build for minutes."""
        for step in range(30):
            await clock.sleep(9)
            context.progress(step)
        return "built"

    assert await told(log, clock, build, seconds=271) == (["built"], [])


# The limit


async def test_d6_at_most_so_many_bodies_run_at_once_over_all_sessions_and_waiting_is_not_silence(
    log: EventStore, clock: ManualClock
) -> None:
    running = most = begun = 0

    @tool(tier="observe", timeout_s=10, concurrency=2)
    async def count(context: ToolContext[Any]) -> str:
        """Count for 20 seconds."""
        nonlocal running, most, begun
        begun, running = begun + 1, running + 1
        most = max(most, running)
        for step in range(4):
            await clock.sleep(5)
            context.progress(step)
        running -= 1
        return "counted"

    calls = [use("count", {}), use("count", {})]
    async with runtime_of(log, calls, calls, calls, *[say("done")] * 3, tools=[count], clock=clock) as runtime:
        sessions = [await runtime.session(name) for name in ("a", "b", "c")]
        sent = [asyncio.create_task(session.send("go")) for session in sessions]
        for seconds, expected in ((0, 2), (19, 2), (1, 4), (20, 6)):
            await clock.advance(seconds)
            assert begun == expected
        await clock.advance(20)
        assert [(await one).outcome for one in sent] == [Completed()] * 3
        texts = [found.text for session in sessions for found in await results_of(session)]
        assert texts == ["counted"] * 6
    assert most == 2


async def test_d6_a_call_that_waits_for_others_is_cancelled_at_once(log: EventStore, clock: ManualClock) -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    @tool(tier="observe", concurrency=1, timeout_s=1_000)
    async def count(context: ToolContext[Any]) -> str:
        """Count."""
        begun.append(context.session)
        await gate.wait()
        return "counted"

    async with runtime_of(log, use("count", {}), use("count", {}), say("done"), tools=[count], clock=clock) as runtime:
        sessions = [await runtime.session(name) for name in ("a", "b")]
        sent = {session.id: asyncio.create_task(session.send("go")) for session in sessions}
        await clock.advance(500)
        [waiting] = [session for session in sessions if session.id not in begun]
        await waiting.cancel()
        assert (await sent[waiting.id]).outcome == Cancelled()
        assert [result.text for result in await results_of(waiting)] == ["Cancelled by user"]
        gate.set()
        await asyncio.wait(sent.values())
    assert len(begun) == 1


async def test_d6_a_body_that_ignores_its_end_does_not_keep_others_waiting_for_ever(
    log: EventStore, clock: ManualClock
) -> None:
    gate = asyncio.Event()
    begun: list[str] = []

    @tool(tier="observe", concurrency=1, timeout_s=10)
    async def ignore(name: str) -> str:
        """Ignore every cancellation."""
        begun.append(name)
        while name == "first" and not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return name

    script = [[use("ignore", {"name": "first"}), use("ignore", {"name": "second"})], say("done")]
    async with runtime_of(log, *script, tools=[ignore], clock=clock) as runtime:
        session = await runtime.session("s")
        sent = asyncio.create_task(session.send("go"))
        await clock.advance(20)
        await sent
        assert (await kinds_of(session), begun) == (["timeout"], ["first", "second"])
        gate.set()


# The breaker


async def test_d6_an_open_breaker_answers_calls_and_never_breaks_the_session(
    log: EventStore, clock: ManualClock
) -> None:
    body = Body(NO_ROUTE, NO_ROUTE)
    breaker = CircuitBreaker("bank", threshold=2, recovery_s=30)
    script = [use("pay", {}), use("pay", {}), use("pay", {}), say("I give up."), use("pay", {}), say("Paid.")]
    async with runtime_of(log, *script, tools=[paying(body, breaker=breaker)], clock=clock) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).outcome == Completed()
        assert await kinds_of(session) == ["transient", "transient", "shed"]
        assert (await results_of(session))[-1].text == (
            "pay was not called: it failed repeatedly, and the circuit 'bank' is open since breaker/bank@3. "
            "It may be tried again in 30 seconds."
        )
        assert body.attempts == 2
        await clock.advance(30)
        assert (await session.send("again")).text == "Paid."
        assert (await breaker.report()).phase == "closed"
    events = [msgspec.json.decode(stored.data)["type"] for stored in await log.read_stream("breaker/bank")]
    assert events == [f"breaker.{what}.v1" for what in ("configured", "failure_counted", *CLOSED_AGAIN)]


async def test_d6_a_call_that_gave_no_sign_of_life_counts_and_one_that_was_cancelled_does_not(
    log: EventStore, clock: ManualClock
) -> None:
    breaker = CircuitBreaker("bank", threshold=1)

    @tool(breaker=breaker, timeout_s=10)
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    async with runtime_of(log, use("hang", {}), use("hang", {}), say("done"), tools=[hang], clock=clock) as runtime:
        session = await runtime.session("s")
        sent = asyncio.create_task(session.send("go"))
        await clock.advance(5)
        await session.cancel()
        await sent
        assert (await breaker.report()).phase == "closed"
        sent = asyncio.create_task(session.send("go"))
        await clock.advance(10)
        await sent
        report = await breaker.report()
        assert (report.phase, report.error) == ("open", "NoSignOfLife: no sign of life for 10 seconds")


async def test_d6_two_runtimes_of_one_process_share_the_breaker_of_a_tool(clock: ManualClock) -> None:
    one = paying(Body(*[NO_ROUTE] * 5), breaker=CircuitBreaker("bank"))
    first, second = InMemoryStore(), InMemoryStore()
    async with runtime_of(first, tools=[one], clock=clock):
        for _ in range(6):
            _, kinds = await told(second, clock, one)
    assert kinds == ["transient"] * 5 + ["shed"]
    assert await first.head("breaker/bank") is not None
    assert await second.head("breaker/bank") is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"breaker": "weather"}, "breaker is a CircuitBreaker"),
        ({"retries": 3, "effect": "pure"}, "retries are a RetryPolicy"),
        (
            {"retries": RetryPolicy(attempts_by_kind={"overloaded": 2}), "effect": "pure"},
            "retries say attempts_max only",
        ),
        ({"concurrency": 0}, "concurrency is None or an integer"),
        ({"concurrency": True}, "concurrency is None or an integer"),
    ],
)
def test_d6_what_cannot_work_is_refused_when_the_tool_is_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"the tool 'pay' cannot work: its {says}"):
        paying(Body(), **options)


def test_d6_a_tool_from_a_schema_has_rules_too() -> None:
    made = Tool.from_schema(
        name="pay",
        description="Pay.",
        input_schema={"type": "object"},
        handler=lambda arguments: "paid",
        effect="pure",
        breaker=CircuitBreaker("bank"),
        retries=RETRIES,
        concurrency=2,
    )
    assert (made.spec.retries, made.rules.concurrency) == (RETRIES, 2)
    assert [living.stream for living in made.stream_objects] == ["breaker/bank"]
