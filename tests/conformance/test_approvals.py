"""Approvals are a durable wait: whoever decides, however late, once or for always, over any restart.

A handler of the application, `Session.decide` and the end of time compete for each decision, and exactly one of them
makes it. What fails on the way, above all the handler, leaves the call waiting.
"""

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from refold import (
    ActorStopped,
    Agent,
    AgentConfig,
    AgentRuntime,
    Allow,
    Ask,
    Cancelled,
    CommandRejected,
    Completed,
    ConfigError,
    Deny,
    Failed,
    ScriptedProvider,
    ToolApprovalRequested,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.content import CANCELLED_TEXT
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RuntimeClosed
from refold.events.session.react import CALLS_RUNNING_MAX, EXPIRED_TEXT
from tests.conformance.approval_desk import (
    Ledger,
    Seen,
    recorded,
    result_blocks,
    results,
    runtime_of,
)

PAY = use("pay", {"amount": 1})


class Desk:
    """An approval handler that keeps what it is asked, and answers each as the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ToolApprovalRequested]] = []
        self.answers: dict[str, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()

    async def __call__(self, session: str, request: ToolApprovalRequested) -> Any:
        self.asked.append((session, request))
        self._changed.set()
        self.answers[request.call] = asyncio.get_running_loop().create_future()
        return await self.answers[request.call]

    async def requests(self, count: int = 1) -> list[ToolApprovalRequested]:
        while len(self.asked) < count:
            self._changed.clear()
            await self._changed.wait()
        return [request for _, request in self.asked]


# Who decides, and how


async def test_an_async_handler_allows_and_denies_with_a_reason_that_the_model_sees(log: Any) -> None:
    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        return Allow() if request.input == {"amount": 1} else Deny(f"{session} may not pay {request.input['amount']}")

    ledger = Ledger()
    script = [[PAY, use("pay", {"amount": 2})], say("done")]
    async with runtime_of(log, ledger, script, approval=handler) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        first, second = await result_blocks(session)
        decided = await recorded(session, "ToolApprovalDecided")
        provider = runtime.agent.provider

    assert ledger.done == ["paid 1"]
    assert (first.text, first.is_error) == ("paid 1", False)
    assert (second.text, second.kind) == ("alice may not pay 2", "denied")
    assert [(event.allowed, event.always) for event in decided] == [(True, False), (False, False)]
    assert isinstance(provider, ScriptedProvider)
    assert "alice may not pay 2" in str(provider.requests[-1].messages[-1])


async def test_a_plain_handler_runs_in_a_thread_and_may_block_there(log: Any) -> None:
    loop_thread, blocked, go_on = threading.current_thread(), asyncio.Event(), threading.Event()
    loop, seen = asyncio.get_running_loop(), list[Any]()

    def handler(session: str, request: ToolApprovalRequested) -> Any:
        seen.append(threading.current_thread())
        loop.call_soon_threadsafe(blocked.set)
        assert go_on.wait(30)
        return Allow()

    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")], approval=handler) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await blocked.wait()  # The loop goes on while the handler thinks.
        [request] = await session.approvals()
        assert (request.call, request.tool, request.input) == ("call_6_0", "pay", {"amount": 1})
        go_on.set()
        assert (await sending).outcome == Completed()
    assert ledger.done == ["paid 1"]
    assert seen != [loop_thread]


async def test_a_call_decided_elsewhere_starts_at_once_and_leaves_a_blocking_handler_to_itself(
    log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocked, go_on, over = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def handler(session: str, request: ToolApprovalRequested) -> Any:
        loop.call_soon_threadsafe(blocked.set)
        if request.input["amount"] == 2:
            return Allow()
        go_on.wait(60)
        over.set()
        return Deny("far too late")

    ledger = Ledger()
    script = [PAY, use("pay", {"amount": 2}), say("done")]
    async with runtime_of(log, ledger, script, approval=handler, tool_threads=1) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await blocked.wait()
        await session.decide("call_6_0", allow=True)
        assert (await sending).outcome == Completed()  # With the thread still blocked, and another in its place.
        assert not over.is_set()
    assert ledger.done == ["paid 1", "paid 2"]
    still = [record.getMessage() for record in caplog.records if "still thinks" in record.getMessage()]
    assert still == ["the approval handler still thinks about alice/call_6_0 in its thread"]
    go_on.set()
    assert over.wait(30)


def failing_handlers() -> list[Any]:
    async def nothing(session: str, request: ToolApprovalRequested) -> Any:
        return None

    def nothing_from_a_thread(session: str, request: ToolApprovalRequested) -> Any:
        return None

    async def nonsense(session: str, request: ToolApprovalRequested) -> Any:
        return True

    async def ask(session: str, request: ToolApprovalRequested) -> Any:
        return Ask("an answer for policies")

    def kind_not_instance(session: str, request: ToolApprovalRequested) -> Any:
        return Allow

    def raising(error: BaseException) -> list[Any]:
        async def handler(session: str, request: ToolApprovalRequested) -> Any:
            raise error

        def handler_in_a_thread(session: str, request: ToolApprovalRequested) -> Any:
            raise error

        kind = type(error).__name__
        return [pytest.param(handler, id=kind), pytest.param(handler_in_a_thread, id=f"{kind} in a thread")]

    def too_few_parameters(session: str) -> Any:
        return Allow()

    return [
        nothing,
        nothing_from_a_thread,
        nonsense,
        ask,
        kind_not_instance,
        *raising(RuntimeError("the desk is on fire")),
        *raising(asyncio.CancelledError()),
        *raising(SystemExit(3)),
        *raising(GeneratorExit()),
        *raising(StopIteration()),
        *raising(TimeoutError()),
        too_few_parameters,
    ]


@pytest.mark.parametrize("handler", failing_handlers())
async def test_a_handler_that_fails_or_decides_nothing_leaves_the_call_waiting(handler: Any, memory: Any) -> None:
    asked = asyncio.Event()

    async def awaited(session: str, request: ToolApprovalRequested) -> Any:
        asked.set()
        return await handler(session, request)

    loop = asyncio.get_running_loop()

    def threaded(session: str, request: ToolApprovalRequested) -> Any:
        loop.call_soon_threadsafe(asked.set)
        return handler(session, request)

    ledger = Ledger()
    tried = awaited if asyncio.iscoroutinefunction(handler) else threaded
    async with runtime_of(memory, ledger, [PAY, say("done"), say("other")], approval=tried) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await asked.wait()
        asking = [task for task in asyncio.all_tasks() if task.get_name().startswith("approval/agent")]
        if asking:
            await asyncio.wait(asking)  # Until what it said has been looked at.
        [waiting] = await session.approvals()
        assert ledger.done == []
        await session.decide(waiting.call, allow=True)
        assert (await sending).outcome == Completed()
        assert (await (await runtime.session("bob")).send("hi")).text == "other"
    assert ledger.done == ["paid 1"]


async def test_a_handler_may_be_any_kind_of_function(log: Any) -> None:
    class Office:
        async def __call__(self, session: str, request: ToolApprovalRequested) -> Any:
            return Deny("object")

        async def method(self, session: str, request: ToolApprovalRequested) -> Any:
            return Deny("method")

        def plain(self, word: str, session: str, request: ToolApprovalRequested) -> Any:
            return Deny(word)

        def returns_awaitable(self, session: str, request: ToolApprovalRequested) -> Any:
            return self.method(session, request)

    office = Office()
    told: list[str] = []
    for handler in (office, office.method, partial(office.plain, "partial"), office.returns_awaitable):
        async with runtime_of(log, Ledger(), [PAY, say("done")], approval=handler) as runtime:
            session = await runtime.session()
            await session.send("go")
            told += await results(session)
    assert told == ["object", "method", "partial", "method"]


async def test_what_is_no_function_is_refused_as_handler() -> None:
    with pytest.raises(ConfigError, match=r"Agent\.approval must be a function, not str"):
        Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), approval="yes")  # type: ignore[arg-type]


async def test_a_handler_may_decide_by_the_session_itself(log: Any) -> None:
    runtimes: list[AgentRuntime] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        await (await runtimes[0].session(session)).decide(request.call, allow=True, key="from the handler")
        return Deny("too late, by itself")

    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")], approval=handler) as runtime:
        runtimes.append(runtime)
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        [decided] = await recorded(session, "ToolApprovalDecided")
    assert ledger.done == ["paid 1"]
    assert decided.key == "from the handler"


async def test_a_handler_in_a_thread_may_decide_by_the_session_itself(log: Any) -> None:
    runtimes: list[AgentRuntime] = []
    loop = asyncio.get_running_loop()

    def handler(session_id: str, request: ToolApprovalRequested) -> Any:
        async def decide() -> None:
            session = await runtimes[0].session(session_id)
            await session.decide(request.call, allow=True)

        asyncio.run_coroutine_threadsafe(decide(), loop).result(30)

    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")], approval=handler) as runtime:
        runtimes.append(runtime)
        assert (await (await runtime.session("alice")).send("go")).outcome == Completed()
    assert ledger.done == ["paid 1"]


async def test_a_handler_may_cancel_the_run(log: Any) -> None:
    runtimes: list[AgentRuntime] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        await (await runtimes[0].session(session)).cancel(reason="the desk is closed")
        return Allow()

    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("after")], approval=handler) as runtime:
        runtimes.append(runtime)
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Cancelled()
        assert await results(session) == [CANCELLED_TEXT]
        assert (await session.send("more")).text == "after"
    assert ledger.done == []


async def test_of_two_who_decide_at_once_one_wins_and_the_other_is_told(log: Any) -> None:
    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")]) as runtime:
        session, again = await runtime.session("alice"), await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await seen.requests()
        outcomes = await asyncio.gather(
            session.decide(request.call, allow=True),
            again.decide(request.call, allow=False, reason="no"),
            return_exceptions=True,
        )
        assert (await sending).outcome == Completed()
        with pytest.raises(CommandRejected, match="does not wait for approval"):
            await session.decide(request.call, allow=True)
        assert len(await recorded(session, "ToolApprovalDecided")) == 1
    assert outcomes[0] is None
    assert isinstance(outcomes[1], CommandRejected)
    assert f"{request.call} does not wait for approval; it was decided" in str(outcomes[1])
    assert ledger.done == ["paid 1"]


async def test_a_decision_beats_the_handler_whose_answer_then_counts_for_nothing(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")], approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        [request] = await desk.requests()
        deciding = asyncio.create_task(session.decide(request.call, allow=False, reason="by hand"))
        await asyncio.sleep(0)
        desk.answers[request.call].set_result(Allow())
        await deciding
        await sending
        assert await results(session) == ["by hand"]
        assert len(await recorded(session, "ToolApprovalDecided")) == 1
    assert ledger.done == []


async def test_a_key_makes_a_decision_one_also_after_a_restart(log: Any) -> None:
    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")]) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await seen.requests()
        await session.decide(request.call, allow=True, key="click-1")
        await session.decide(request.call, allow=True, key="click-1")
        await sending
    async with runtime_of(log, ledger, []) as runtime:
        session = await runtime.session("alice")
        await session.decide(request.call, allow=True, key="click-1", reason="words do not matter")
        with pytest.raises(CommandRejected, match="'click-1' was used before"):
            await session.decide(request.call, allow=False, key="click-1")
        with pytest.raises(CommandRejected, match="'click-1' was used before"):
            await session.decide(request.call, allow=True, always=True, key="click-1")
        assert len(await recorded(session, "ToolApprovalDecided")) == 1
    assert ledger.done == ["paid 1"]


async def test_a_denial_cannot_hold_for_always(log: Any) -> None:
    async with runtime_of(log, Ledger(), [PAY, say("done")]) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await seen.requests()
        with pytest.raises(CommandRejected, match="only an allowance can hold for always"):
            await session.decide(request.call, allow=False, always=True)
        assert [waiting.call for waiting in await session.approvals()] == [request.call]
        await session.cancel()
        await sending


# For always


async def test_allowed_always_holds_for_every_later_call_of_the_tool_also_after_a_restart(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    script = [PAY, use("pay", {"amount": 2}), say("done"), use("pay", {"amount": 3}), say("more")]
    async with runtime_of(log, ledger, script, approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        [request] = await desk.requests()
        desk.answers[request.call].set_result(Allow(always=True))
        await sending
        await session.send("again")
    async with runtime_of(log, ledger, [use("pay", {"amount": 4}), say("done")], approval=desk) as runtime:
        session = await runtime.session("alice")
        await session.send("and again")
        await session.clear()  # What was allowed always stays allowed.
        assert len(await recorded(session, "ToolApprovalRequested")) == 1
    assert ledger.done == ["paid 1", "paid 2", "paid 3", "paid 4"]
    assert len(desk.asked) == 1


async def test_an_action_says_what_is_allowed_always(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    paths = ["tmp/a", "tmp/b", "home/c", "tmp/d"]
    script = [*[use("delete", {"path": path}) for path in paths], say("done")]
    async with runtime_of(log, ledger, script, approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        [first] = await desk.requests()
        desk.answers[first.call].set_result(Allow(always=True))
        _, second = await desk.requests(2)
        desk.answers[second.call].set_result(Deny("not there"))
        await sending
    assert (first.action, second.action) == ("delete: tmp", "delete: home")
    assert second.input == {"path": "home/c"}
    assert ledger.done == ["deleted tmp/a", "deleted tmp/b", "deleted tmp/d"]


async def test_two_long_actions_that_begin_alike_are_not_one(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    script = [[use("delete", {"path": "x" * 5_000 + end}) for end in "ab"], say("done")]
    async with runtime_of(log, ledger, script, approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        first, second = await desk.requests(2)
        desk.answers[first.call].set_result(Allow(always=True))
        desk.answers[second.call].set_result(Deny("not this one"))
        await sending
    assert ledger.done == ["deleted " + "x" * 5_000 + "a"]
    assert first.action != second.action


async def test_allowed_always_lets_the_calls_that_wait_beside_it_run_too(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    calls = [PAY, use("delete", {"path": "home/c"}), use("pay", {"amount": 2}), use("pay", {"amount": 3})]
    async with runtime_of(log, ledger, [calls, say("done")], approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        requests = await desk.requests(4)
        await session.decide(requests[2].call, allow=True, always=True)
        [left] = await session.approvals()
        assert left.tool == "delete"
        assert desk.answers[requests[0].call].cancelled()  # It need not decide any more.
        desk.answers[left.call].set_result(Deny("not that"))
        await sending
        decided = await recorded(session, "ToolApprovalDecided")
    assert ledger.done == ["paid 1", "paid 2", "paid 3"]
    assert [event.always for event in decided] == [True, False, False, False]


async def test_a_policy_that_denies_wins_over_what_was_allowed_always(log: Any) -> None:
    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        return Allow(always=True)

    def policy(call: Any) -> Any:
        return Deny("too much") if call.input["amount"] == 2 else None

    ledger = Ledger()
    script = [PAY, [use("pay", {"amount": 2}), use("pay", {"amount": 3})], say("done")]
    async with runtime_of(log, ledger, script, approval=handler, policy=policy) as runtime:
        session = await runtime.session("alice")
        await session.send("go")
        assert await results(session) == ["paid 1", "too much", "paid 3"]
    assert ledger.done == ["paid 1", "paid 3"]


async def test_what_is_allowed_always_in_one_session_is_not_in_another(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    async with runtime_of(log, ledger, [PAY, say("done"), PAY, say("done")], approval=desk) as runtime:
        alice, bob = await runtime.session("alice"), await runtime.session("bob")
        sending = asyncio.create_task(alice.send("go"))
        [request] = await desk.requests()
        desk.answers[request.call].set_result(Allow(always=True))
        await sending
        sending = asyncio.create_task(bob.send("go"))
        await desk.requests(2)
        assert [session for session, _ in desk.asked] == ["alice", "bob"]
        assert (await alice.approvals(), len(await bob.approvals())) == ([], 1)
        with pytest.raises(CommandRejected, match="does not wait"):
            await alice.decide(request.call, allow=True)  # Bob's call has the same id, and is none of hers.
        await bob.decide(request.call, allow=False, reason="not bob")
        await sending
        assert await results(bob) == ["not bob"]
    assert ledger.done == ["paid 1"]


# The end of time


async def test_a_call_that_nobody_decides_in_time_is_denied(memory: Any) -> None:
    clock, desk, ledger = ManualClock(), Desk(), Ledger()
    runtime = runtime_of(memory, ledger, [PAY, say("done")], approval=desk, approval_expiry_s=60, clock=clock)
    async with runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        [request] = await desk.requests()
        assert request.expires_at == clock.now_us() + 60_000_000
        assert (await session.approvals())[0].expires_at == request.expires_at
        await clock.advance(59.9)
        assert len(await session.approvals()) == 1
        await clock.advance(0.2)
        assert (await sending).outcome == Completed()
        [result] = await result_blocks(session)
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(request.call, allow=True)
    assert (result.text, result.kind) == (EXPIRED_TEXT, "denied")
    assert desk.answers[request.call].cancelled()
    assert ledger.done == []


async def test_a_decision_in_time_leaves_no_timer_behind(memory: Any) -> None:
    clock, ledger = ManualClock(), Ledger()
    script = [PAY, say("done")]
    async with runtime_of(memory, ledger, script, approval_expiry_s=60, clock=clock, passivate_after_s=None) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await seen.requests()
        await clock.settle()
        assert 60 in [round(due) for due in clock.waiting()]
        await session.decide(request.call, allow=True)
        assert (await sending).outcome == Completed()
        assert 60 not in [round(due) for due in clock.waiting()]
        await clock.advance(120)
        assert seen.of("TimerFired") == []
    assert ledger.done == ["paid 1"]


@pytest.mark.parametrize("decided_first", [True, False])
async def test_of_a_decision_and_the_end_of_time_the_first_wins(decided_first: bool, memory: Any) -> None:
    clock, ledger = ManualClock(), Ledger()
    script = [PAY, say("done")]
    async with runtime_of(memory, ledger, script, approval_expiry_s=60, clock=clock) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await seen.requests()
        deciding = asyncio.create_task(session.decide(request.call, allow=True))
        if decided_first:
            await asyncio.sleep(0)  # It lies in the mailbox before the time has come.
        else:
            deciding.cancel()
        await clock.advance(61)
        if not decided_first:
            with pytest.raises(CommandRejected, match="does not wait"):
                await session.decide(request.call, allow=True)
        await sending
        assert await results(session) == (["paid 1"] if decided_first else [EXPIRED_TEXT])
    assert ledger.done == (["paid 1"] if decided_first else [])


@pytest.mark.parametrize("auto_resume", [True, False])
async def test_time_passes_while_no_runtime_is_there_and_nobody_decides_after_it(
    auto_resume: bool, memory: Any
) -> None:
    ledger, clock = Ledger(), ManualClock()
    async with runtime_of(memory, ledger, [PAY], approval_expiry_s=60, clock=clock) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go", key="k"))
        [request] = await seen.requests()
    with pytest.raises(ActorStopped):
        await sending

    later = ManualClock(clock.now_us() + 3_600_000_000)
    runtime = runtime_of(memory, ledger, [say("done")], approval_expiry_s=60, clock=later, auto_resume=auto_resume)
    async with runtime:
        session = await runtime.session("alice")
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(request.call, allow=True)
        assert (await session.send("go", key="k")).outcome == Completed()
        assert await results(session) == [EXPIRED_TEXT]
    assert ledger.done == []


async def test_what_is_left_of_the_time_goes_on_after_a_restart(memory: Any) -> None:
    ledger, clock = Ledger(), ManualClock()
    async with runtime_of(memory, ledger, [PAY], approval_expiry_s=60, clock=clock) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go", key="k"))
        await seen.requests()
    with pytest.raises(ActorStopped):
        await sending

    later = ManualClock(clock.now_us() + 40_000_000)
    async with runtime_of(memory, ledger, [say("done")], approval_expiry_s=60, clock=later) as runtime:
        session = await runtime.session("alice")
        assert len(await session.approvals()) == 1
        await later.advance(19)
        assert len(await session.approvals()) == 1
        await later.advance(2)
        assert await session.approvals() == []
        assert (await session.send("go", key="k")).outcome == Completed()


async def test_the_time_that_a_person_thinks_is_not_the_runs(memory: Any) -> None:
    clock, ledger = ManualClock(), Ledger()

    @tool(tier="act")
    async def hang() -> str:
        """Work for ever."""
        await asyncio.Event().wait()
        return "unreachable"

    script = [PAY, use("hang"), say("never")]
    tools = [*ledger.tools, hang]
    async with runtime_of(memory, ledger, script, tools=tools, run_timeout_s=60, clock=clock) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await seen.requests()
        await clock.advance(3_600)
        assert len(await session.approvals()) == 1
        await session.decide(request.call, allow=True)
        await seen.have("ToolCallStarted", 2)
        await clock.advance(59)
        assert seen.of("RunFailed") == []
        await clock.advance(10)
        result = await sending
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.kind == "run_timeout"
    assert ledger.done == ["paid 1"]


# Other ends of the wait


async def test_a_run_is_cancelled_while_it_waits_and_its_handler_with_it(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    async with runtime_of(log, ledger, [PAY, say("after")], approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        [request] = await desk.requests()
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        [result] = await result_blocks(session)
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(request.call, allow=True)
        assert await session.approvals() == []
        assert (await session.send("more")).text == "after"
    assert (result.text, result.kind) == (CANCELLED_TEXT, "cancelled")
    assert desk.answers[request.call].cancelled()
    assert ledger.done == []


async def test_a_handler_that_swallows_its_cancellation_holds_up_nobody(log: Any) -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return Allow()

    ledger = Ledger()
    clock = ManualClock()  # Stands still: whoever waited for a grace period would wait for ever.
    async with runtime_of(log, ledger, [PAY, say("after")], approval=handler, clock=clock) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await asked.wait()
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        assert (await session.send("more")).text == "after"
        let_go.set()
    assert ledger.done == []


async def runtime_facts(log: Any) -> list[Any]:
    return RUNTIME_CODEC.decode_all(await log.read_stream(RUNTIME_STREAM))


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_closing_waits_for_nobody_who_thinks_and_leaves_the_run_open(in_a_thread: bool, memory: Any) -> None:
    desk, ledger, go_on = Desk(), Ledger(), threading.Event()
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def blocking(session: str, request: ToolApprovalRequested) -> Any:
        loop.call_soon_threadsafe(asked.set)
        go_on.wait(60)

    clock = ManualClock()  # Stands still: whoever waited for the grace period would wait for ever.
    handler: Any = blocking if in_a_thread else desk
    async with runtime_of(memory, ledger, [PAY], approval=handler, clock=clock) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go", key="k"))
        await (asked.wait() if in_a_thread else desk.requests())
    with pytest.raises(ActorStopped):
        await sending
    assert (await runtime_facts(memory))[-1] == RuntimeClosed(open_runs=1, at=clock.now_us())
    go_on.set()
    assert ledger.done == []


async def test_closing_with_cancel_ends_the_wait(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    async with runtime_of(log, ledger, [PAY], approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await desk.requests()
        await runtime.close(cancel=True)
        assert (await sending).outcome == Cancelled()
    assert ledger.done == []


async def test_after_a_restart_each_wait_is_put_to_the_handler_once_more(log: Any) -> None:
    first, second, ledger = Desk(), Desk(), Ledger()
    script = [[PAY, use("pay", {"amount": 2})]]
    async with runtime_of(log, ledger, script, approval=first) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go", key="k"))
        requests = await first.requests(2)
        await session.decide(requests[0].call, allow=False, reason="no")
    with pytest.raises(ActorStopped):
        await sending
    async with runtime_of(log, ledger, [say("done")], approval=second) as runtime:
        session = await runtime.session("alice")
        assert await second.requests() == requests[1:]
        assert [waiting.call for waiting in await session.approvals()] == [request.call for request in requests[1:]]
        second.answers[requests[1].call].set_result(Allow())
        assert (await session.send("go", key="k")).outcome == Completed()
        assert await results(session) == ["no", "paid 2"]
        assert len(second.asked) == 1
    assert ledger.done == ["paid 2"]


async def test_a_handler_that_left_it_to_somebody_else_is_asked_no_second_time_in_one_runtime(log: Any) -> None:
    asked: list[str] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.append(request.call)

    ledger = Ledger()
    calls = [PAY, use("pay", {"amount": 2})]
    async with runtime_of(log, ledger, [calls, say("done")], approval=handler) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        first, second = await seen.requests(2)
        await session.decide(first.call, allow=True)
        await session.decide(second.call, allow=True)
        await sending
    assert asked == [first.call, second.call]


async def test_without_auto_resume_a_wait_is_put_to_nobody_until_somebody_resumes(log: Any) -> None:
    ledger, asked = Ledger(), list[str]()
    async with runtime_of(log, ledger, [PAY, say("done")]) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go", key="k"))
        await seen.requests()
    with pytest.raises(ActorStopped):
        await sending

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.append(request.call)
        return Allow()

    async with runtime_of(log, ledger, [say("done")], approval=handler, auto_resume=False) as runtime:
        session = await runtime.session("alice")
        [request] = await session.approvals()
        await session.history()
        assert (asked, ledger.done) == ([], [])
        await session.resume()
        assert (await session.send("go", key="k")).outcome == Completed()
    assert (asked, ledger.done) == ([request.call], ["paid 1"])


async def test_without_auto_resume_a_decision_by_hand_lets_the_run_go_on(log: Any) -> None:
    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")]) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go", key="k"))
        await seen.requests()
    with pytest.raises(ActorStopped):
        await sending
    async with runtime_of(log, ledger, [say("done")], auto_resume=False) as runtime:
        session = await runtime.session("alice")
        [request] = await session.approvals()
        await session.decide(request.call, allow=True)
        assert (await session.send("go", key="k")).outcome == Completed()
    assert ledger.done == ["paid 1"]


# Many, large and strange


async def test_more_calls_wait_at_once_than_are_put_to_the_handler_beside_each_other(memory: Any) -> None:
    desk, ledger, count = Desk(), Ledger(), CALLS_RUNNING_MAX + 30
    calls = [use("pay", {"amount": n}) for n in range(count)]
    async with runtime_of(memory, ledger, [calls, say("done")], approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await desk.requests(CALLS_RUNNING_MAX)
        assert len(await session.approvals()) == count
        assert len(desk.asked) == CALLS_RUNNING_MAX
        for decided in range(count):
            requests = await desk.requests(decided + 1)
            desk.answers[requests[decided].call].set_result(Allow() if decided % 2 else Deny("odd"))
        assert (await sending).outcome == Completed()
    assert [request.input["amount"] for request in await desk.requests(count)] == list(range(count))
    assert ledger.done == [f"paid {n}" for n in range(1, count, 2)]


async def test_allowed_always_decides_all_that_wait_in_one_go(memory: Any) -> None:
    ledger, count = Ledger(), CALLS_RUNNING_MAX + 30
    calls = [use("pay", {"amount": n}) for n in range(count)]
    async with runtime_of(memory, ledger, [calls, say("done")]) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        requests = await seen.requests(count)
        await session.decide(requests[-1].call, allow=True, always=True)
        assert (await sending).outcome == Completed()
    assert ledger.done == [f"paid {n}" for n in range(count)]


async def test_what_is_shown_is_what_executes(log: Any) -> None:
    ran: list[Any] = []

    @tool(tier="confirm")
    async def order(items: list[dict[str, int]]) -> str:
        """Order."""
        ran.append(items)
        return "ordered"

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        request.input["items"][0]["bread"] = 1_000  # type: ignore[index]
        request.input["more"] = True
        return Allow()

    def policy(call: Any) -> Any:
        call.input["items"].append({"caviar": 5})

    script = [use("order", {"items": [{"bread": 1}]}), say("done")]
    async with runtime_of(log, None, script, tools=[order], approval=handler, policy=policy) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        await session.send("go")
        [request] = seen.of("ToolApprovalRequested")
    assert ran == [[{"bread": 1}]]
    assert request.input == {"items": [{"bread": 1}]}


async def test_changing_what_approvals_returns_changes_nothing(log: Any) -> None:
    ledger = Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")]) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await seen.requests()
        (await session.approvals())[0].input["amount"] = 1_000_000
        await session.decide(request.call, allow=True)
        await sending
    assert ledger.done == ["paid 1"]


@pytest.mark.parametrize(
    "path", ["x" * 200_000, "\u202egnp.exe/\x00\x1b[31m", "日本語/🧾" * 1_000, "\ud83d", ""], ids=range(5)
)
async def test_large_and_strange_inputs_are_shown_and_executed_alike(path: str, log: Any) -> None:
    shown: list[Any] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        shown.append(request.input["path"])
        return Allow()

    ran: list[str] = []

    @tool(tier="confirm")
    async def delete(path: str) -> str:
        """Delete."""
        ran.append(path)
        return "deleted"

    script = [use("delete", {"path": path}), say("done")]
    async with runtime_of(log, None, script, tools=[delete], approval=handler) as runtime:
        assert (await (await runtime.session("alice")).send("go")).outcome == Completed()
    assert shown == ran
    assert ran == [path if path != "\ud83d" else "\ufffd"]


async def test_reasons_of_any_size_and_kind_reach_the_model_and_the_handler_is_asked_once(log: Any) -> None:
    reasons: list[Any] = ["no " * 1_000_000, "\ud83d is no text", 17, None, ""]
    asked: list[str] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.append(request.call)
        return Deny(reasons[len(asked) - 1])

    script = [*[PAY] * len(reasons), say("done")]
    async with runtime_of(log, Ledger(), script, approval=handler) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        texts = await results(session)
    assert len(asked) == len(reasons)
    assert texts[0] == ("no " * 10_000)[:10_000]
    assert texts[1:3] == ["\ufffd is no text", "17"]
    assert texts[3] == texts[4] == "Denied: the call was not run."


async def test_a_run_that_goes_step_by_step_waits_for_approval_within_its_step(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    async with runtime_of(log, ledger, [PAY, say("done")], approval=desk) as runtime:
        session = await runtime.session("alice")
        stepping = asyncio.create_task(session.step("go"))
        [request] = await desk.requests()
        assert not stepping.done()
        desk.answers[request.call].set_result(Allow())
        turn = await stepping
        assert [result.text for _, result in turn.calls] == ["paid 1"]
        assert turn.result is None
        last = await session.step()
        assert last.result is not None
        assert last.result.outcome == Completed()
    assert ledger.done == ["paid 1"]


async def test_observing_calls_run_beside_each_other_behind_the_decision(log: Any) -> None:
    desk, ledger = Desk(), Ledger()
    calls = [use("look", {"n": 1}), PAY, use("look", {"n": 2})]
    async with runtime_of(log, ledger, [calls, say("done")], approval=desk) as runtime:
        session = await runtime.session("alice")
        seen = Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        [request] = await desk.requests()
        await seen.have("ToolCallCompleted")
        assert ledger.done == ["saw 1"]  # What needs nobody and comes before it does not wait for it.
        desk.answers[request.call].set_result(Allow())
        await sending
    assert ledger.done == ["saw 1", "paid 1", "saw 2"]
