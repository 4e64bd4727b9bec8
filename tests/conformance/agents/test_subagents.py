"""Agents as tools of agents: A20. A call of a subagent is a run in a session of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import refold
from refold.actors import ManualClock
from refold.events.core.pure_core import keys_of
from refold.events.session.events import RunCancelled, ToolApprovalRequested
from refold.stores import EventStore, InMemoryStore
from tests.conformance.agents.delegating import (
    CHILD,
    STREAMS,
    agent_of,
    asking,
    boss_of,
    child_of,
    payer,
    sent_to,
    told,
    waiting_in,
)
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import (
    CONFIG,
    HeldAnswer,
    Parked,
    Streams,
    abandoned_in,
    results_of,
    session_in,
    types_of,
)

# What a call comes to


async def test_a_call_of_a_subagent_is_a_run_in_a_session_of_its_own(log: EventStore) -> None:
    @refold.tool(tier="observe", effect="pure")
    async def search(q: str) -> str:
        return f"found {q}"

    researcher = agent_of("researcher", refold.use("search", {"q": "x"}), refold.say("x is 42"), tools=[search])
    boss = boss_of(researcher, calls=asking("researcher", "what is x?"), last="It is 42.")
    async with session_in(refold.AgentRuntime(boss, log=log), "alice") as (runtime, session):
        result = await session.send("What is x?")
        assert (result.outcome, result.text) == (refold.Completed(), "It is 42.")
        [answer] = await results_of(session)
        assert (answer.text, answer.is_error) == ("x is 42", False)

        child = await child_of(runtime, session)
        assert child.id == CHILD
        assert await types_of(child) == await types_of(session)  # Four commits each, of the same events.
        assert (await child.history())[0].content == (refold.TextBlock(text="what is x?"),)
        assert (await child.state_at()).agent == "researcher"
    assert {head.stream for head in await log.list_streams(prefix="tool/")} == {
        "tool/researcher",
        "tool/researcher/search",
    }


async def test_a_child_adds_no_commit_to_its_parent(memory: InMemoryStore) -> None:
    store = FailingStore(memory)
    boss = boss_of(agent_of("helper", refold.say("yes")), calls=asking("helper"))
    async with sent_to(boss, store) as (_, _, sending):
        await sending
    assert [sum(stream in append for append in store.appends) for stream in STREAMS] == [4, 2]


async def test_causes_lead_from_the_child_to_the_parent_and_back(memory: InMemoryStore) -> None:
    grandchild = agent_of("c", refold.say("deep"))
    child = agent_of("b", asking("c"), refold.say("mid"), tools=[grandchild.as_tool()])
    async with refold.AgentRuntime(boss_of(child, calls=asking("b")), log=memory) as runtime:
        await (await runtime.session("alice")).send("go")
    first = (await memory.read_stream("session/alice/call_6_0/call_6_0", limit=1))[0]
    assert (first.causation, first.correlation) == ("session/alice/call_6_0@7", "session/alice/call_6_0@3")
    first = (await memory.read_stream("session/alice/call_6_0", limit=1))[0]
    assert (first.causation, first.correlation) == ("session/alice@7", "session/alice@3")
    started = (await memory.read_stream("session/alice", after_version=6, limit=1))[0]
    assert b"call_6_0" in started.data
    assert b"tool_call_started" in started.data


class Found(msgspec.Struct):
    answer: int


async def test_structured_input_and_output(memory: InMemoryStore) -> None:
    def look_up(topic: str, most: int = 3) -> str:
        """Look something up.

        Args:
            topic: what about.
            most: sources.
        """
        return f"{topic}, {most} sources"

    helper = agent_of("helper", refold.say('Here: {"answer": 42}'), output_type=Found)
    asks = helper.as_tool(task=look_up, name="look_up", tier="observe", timeout_s=5)
    assert asks.spec.description == "Look something up."
    assert asks.spec.effect == "idempotent"
    assert asks.spec.input_schema["required"] == ["topic"]
    calls = [refold.use("look_up", {"topic": "tea", "most": 2}), refold.use("look_up", {"topic": 7, "least": 1})]
    async with sent_to(boss_of(asks, calls=calls), memory) as (runtime, session, sending):
        await sending
        good, bad = await results_of(session)
        assert (good.text, bad.kind) == ('{"answer":42}', "invalid_arguments")
        child = await child_of(runtime, session)
        assert (await child.history())[0].content == (refold.TextBlock(text="tea, 2 sources"),)


STRICT = refold.AgentConfig(model="m", rejections_max=0)
ONCE = refold.AgentConfig(model="m", retry=None)
DOWN = refold.ProviderError("down", kind="overloaded", retryable=True)


def no_text(task: str) -> Any:
    return 7


def nothing(task: str) -> str:
    return " "


def raising(task: str) -> str:
    raise ValueError("no such task")


@pytest.mark.parametrize(
    ("helper", "task", "kind", "words"),
    [
        (agent_of("h", DOWN, config=ONCE), None, "transient", "down"),
        (agent_of("h", "", "", "", ""), None, "permanent", "empty answers"),
        (agent_of("h", refold.say("Tea."), config=STRICT, output_type=Found), None, "permanent", "could not be used"),
        (agent_of("h"), no_text, "permanent", "no text"),
        (agent_of("h"), raising, "permanent", "no such task"),
        (agent_of("h"), nothing, "permanent", "empty"),
    ],
)  # fmt: skip
async def test_a_failure_is_an_error_result_with_a_kind(
    helper: refold.Agent, task: Any, kind: str, words: str, memory: InMemoryStore
) -> None:
    boss = boss_of(helper.as_tool(task=task), calls=asking("h"))
    async with session_in(refold.AgentRuntime(boss, log=memory), "alice") as (_, session):
        assert (await session.send("go")).text == "done"
        [result] = await results_of(session)
        assert (result.kind, words in result.text) == (kind, True), result.text


async def test_a_child_that_somebody_cancels_is_an_error_result(memory: InMemoryStore) -> None:
    held = HeldAnswer("never")
    async with sent_to(boss_of(agent_of("h", held), calls=asking("h")), memory) as (runtime, session, sending):
        await held.asked.wait()
        await (await child_of(runtime, session)).cancel()
        assert (await sending).outcome == refold.Completed()
        [result] = await results_of(session)
        assert (result.kind, result.text) == (
            "cancelled",
            "The run of the agent h was cancelled before it had an answer.",
        )


async def test_a_session_that_happens_to_have_the_id_of_a_child_is_left_alone(memory: InMemoryStore) -> None:
    boss = agent_of(
        "boss", refold.say("mine"), asking("h"), refold.say("done"), tools=[agent_of("h", refold.say("no")).as_tool()]
    )
    async with refold.AgentRuntime(boss, log=memory) as runtime:
        squatter = await runtime.session(CHILD)
        await squatter.send("hello")
        before = await types_of(squatter)
        session = await runtime.session("alice")
        await session.send("go")
        [result] = await results_of(session)
        assert result.kind == "permanent"
        assert "no call of a subagent began" in result.text
        assert await types_of(squatter) == before


async def test_a_parent_with_the_longest_id_has_children_too(memory: InMemoryStore) -> None:
    inner = agent_of("b", refold.say("b"))
    helper = agent_of("h", asking("b"), refold.say("yes"), tools=[inner.as_tool()])
    async with refold.AgentRuntime(boss_of(helper, calls=asking("h")), log=memory) as runtime:
        session = await runtime.session("ä" * 256)
        await session.send("go")
        assert await told(session) == ["yes"]
        assert len(await runtime.sessions()) == 3


# Several at once, and deep


async def test_acting_children_run_one_after_another(memory: InMemoryStore) -> None:
    first, second = HeldAnswer("one"), HeldAnswer("two")
    boss = boss_of(agent_of("h", first, second), calls=[asking("h", "a"), asking("h", "b")])
    async with sent_to(boss, memory) as (runtime, _, sending):
        await first.asked.wait()
        assert len(await runtime.sessions()) == 2
        first.gate.set()
        await second.asked.wait()
        second.gate.set()
        assert (await sending).outcome == refold.Completed()


@pytest.mark.parametrize("depth_max", [0, 1, 3, 5])
async def test_an_agent_may_be_its_own_subagent_as_deep_as_is_set(depth_max: int, memory: InMemoryStore) -> None:
    def next_answer(request: Any) -> Any:
        last = request.messages[-1].content[0]
        return asking("boss") if hasattr(last, "text") and last.text == "go" else refold.say(f"said: {last.text}")

    boss = agent_of("boss", *[next_answer] * 20, tools=[refold.subagent("boss")])
    async with session_in(refold.AgentRuntime(boss, log=memory, subagent_depth_max=depth_max)) as (runtime, session):
        result = await session.send("go")
        assert result.text.count("said: ") == depth_max + 1
        assert f"{depth_max} levels deep" in result.text
        assert len(await runtime.sessions()) == depth_max + 1
        deepest = await runtime.session(max(await runtime.sessions(), key=len))
        [refused] = await results_of(deepest)
        assert refused.kind == "denied"


async def test_a_tool_of_a_child_that_sends_to_a_session_which_waits_for_it_is_told(memory: InMemoryStore) -> None:
    runtime: refold.AgentRuntime
    refused: list[refold.AskCycle] = []

    @refold.tool
    async def report(to: str) -> str:
        try:
            return (await (await runtime.session(to)).send("look")).text
        except refold.AskCycle as error:
            refused.append(error)
            raise

    inner = agent_of("inner", refold.use("report", {"to": "alice"}), refold.say("i"), tools=[report])
    outer = agent_of("outer", asking("inner"), refold.say("o"), tools=[inner.as_tool()])
    async with refold.AgentRuntime(boss_of(outer, calls=asking("outer")), log=memory) as runtime:
        assert (await (await runtime.session("alice")).send("go")).text == "done"
    chain = "session/alice -> session/alice/call_6_0 -> session/alice/call_6_0/call_6_0 -> its tool -> session/alice"
    assert [chain in str(error) for error in refused] == [True]


async def later(task: str) -> str:
    return task


def with_context(task: str, context: refold.ToolContext[Any]) -> str:
    return task


def runtime_with(*tools: Any, **options: Any) -> refold.AgentRuntime:
    return refold.AgentRuntime(CONFIG, provider=refold.ScriptedProvider([]), tools=tools, **options)


REFUSED: dict[str, Callable[[], object]] = {
    "two agents are named 'agent'": lambda: runtime_with(agent_of("agent").as_tool()),
    "the agent 'nobody', and the runtime has only 'agent'": lambda: runtime_with(refold.subagent("nobody")),
    "two tools named 'h'": lambda: refold.AgentRuntime(boss_of(agent_of("h"), agent_of("h"))),
    "give it as name=": lambda: agent_of("dr. who").as_tool(),
    "is an Agent or the name of one, not int": lambda: refold.subagent(7),  # type: ignore[arg-type]
    "plain function": lambda: agent_of("h").as_tool(task=later),  # type: ignore[arg-type]
    "gets no ToolContext": lambda: agent_of("h").as_tool(task=with_context),
    "subagent_depth_max": lambda: runtime_with(subagent_depth_max=-1),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_a_subagent(said: str) -> None:
    with pytest.raises(refold.ConfigError, match=said):
        REFUSED[said]()


async def test_a_subagent_runs_in_a_runtime_that_has_its_agent(memory: InMemoryStore) -> None:
    asks = agent_of("h").as_tool()
    with pytest.raises(refold.ConfigError, match="in a runtime"):
        await asks(task="go")  # type: ignore[misc]
    async with refold.AgentRuntime(boss_of(calls=asking("h")), log=memory) as runtime:
        runtime.tools.register(asks)
        session = await runtime.session("alice")
        await session.send("go")
        [result] = await results_of(session)
        assert result.is_error


async def test_each_agent_has_its_own_tools_policy_and_approval_handler(memory: InMemoryStore) -> None:
    asked: list[tuple[str, str]] = []

    def agent_with(name: str, *script: Any, tools: Any = ()) -> refold.Agent:
        @refold.tool(name="look", tier="confirm")
        async def look(at: str) -> str:
            return f"{name} saw {at}"

        def approve(session: str, request: ToolApprovalRequested) -> refold.Allow:
            asked.append((name, session))
            return refold.Allow()

        def policy(call: refold.ProposedCall) -> refold.Deny | None:
            return refold.Deny(f"not by {name}") if call.input.get("at") == name else None

        return agent_of(name, *script, tools=[look, *tools], approval=approve, policy=policy)

    looks = [refold.use("look", {"at": at}) for at in ("boss", "helper")]
    helper = agent_with("helper", looks, refold.say("h"))
    boss = agent_with("boss", [*looks, asking("helper")], refold.say("b"), tools=[helper.as_tool()])
    async with refold.AgentRuntime(boss, log=memory) as runtime:
        assert dict(runtime.agents) == {"boss": boss, "helper": helper}
        session = await runtime.session("s")
        await session.send("go")
        [child] = await session.children()
        assert await told(session) == ["not by boss", "boss saw helper", "h"]
        assert await told(child) == ["helper saw boss", "not by helper"]
    assert asked == [("boss", "s"), ("helper", child.id)]


def test_subagents_serve_synchronous_code_too() -> None:
    @refold.tool
    def shout(text: str) -> str:
        return text.upper()

    helper = agent_of("h", refold.use("shout", {"text": "yes"}), refold.say("shouted"), tools=[shout])
    with refold.AgentRuntime(boss_of(helper, calls=asking("h")), tool_threads=1) as runtime:
        session = runtime.session("s")
        assert session.send("go").text == "done"
        [child] = session.children()
        assert [message.role for message in child.history()] == ["user", "assistant", "user", "assistant"]
        assert set(runtime.agents) == {"boss", "h"}


# The life of a child


async def test_a_child_is_cancelled_with_its_parent(log: EventStore) -> None:
    parked = Parked()
    inner = agent_of("inner", refold.use("park", {"name": "a"}), tools=[parked.park])
    outer = agent_of("outer", asking("inner"), tools=[inner.as_tool()])
    async with sent_to(boss_of(outer, calls=asking("outer")), log) as (runtime, session, sending):
        await parked.until(1)
        await session.cancel(reason="enough")
        assert (await sending).outcome == refold.Cancelled()
        for name in await runtime.sessions():
            found = await runtime.session(name)
            assert (await types_of(found))[-1] == "RunCancelled"
            assert await told(found) == ["Cancelled by user"]
        assert runtime.context.in_flight.count() == 0
        assert len(await runtime.sessions()) == 3


async def test_the_caller_is_told_when_the_childs_work_has_ended_or_its_grace_is_over(memory: InMemoryStore) -> None:
    clock, parked = ManualClock(), Parked()
    inner = agent_of("inner", refold.use("ignore", {"name": "a"}), tools=[parked.ignore])
    outer = agent_of("outer", asking("inner"), tools=[inner.as_tool()])
    boss = boss_of(outer, calls=asking("outer"))
    async with sent_to(boss, memory, clock=clock, cancel_grace_s=10, close_grace_s=0) as (_, session, sending):
        await clock.settle()
        await parked.until(1)
        cancelling = asyncio.create_task(session.cancel())
        await clock.settle()
        assert not cancelling.done()
        await clock.advance(8.1)
        assert not cancelling.done()
        await clock.advance(0.2)  # The grace of the grandchild: (1 + 0.8 ** 2) / 2 of it all.
        assert cancelling.done()
        assert (await sending).outcome == refold.Cancelled()
        parked.gate.set()
        await clock.settle()
    assert await abandoned_in(memory, "inner/ignore") == 1
    assert await abandoned_in(memory, "outer/inner") == 0
    assert await abandoned_in(memory, "outer") == 0


async def test_close_with_cancel_ends_parent_and_child_as_cancelled(log: EventStore) -> None:
    held = HeldAnswer("never")
    async with sent_to(boss_of(agent_of("h", held), calls=asking("h")), log) as (runtime, session, sending):
        await held.asked.wait()
        child = await child_of(runtime, session)
        await runtime.close(cancel=True)
        assert (await sending).outcome == refold.Cancelled()
        assert [type(item.event) async for item in child.events()][-1] is RunCancelled


async def test_close_does_not_spend_its_grace_on_a_child_that_waits_for_a_person(memory: InMemoryStore) -> None:
    clock = ManualClock()
    async with sent_to(boss_of(payer(), calls=asking("payer")), memory, clock=clock) as (runtime, session, sending):
        await waiting_in(session, clock)
        await closed_at_once(runtime, clock)
        assert sending.exception() is not None
    assert await pending_in(memory) == {STREAMS[0]: ("tool:call_6_0",), STREAMS[1]: ("approval:7",)}


async def test_close_waits_for_what_a_child_does_and_no_longer(memory: InMemoryStore) -> None:
    clock, parked = ManualClock(), Parked()
    helper = agent_of("h", refold.use("park", {"name": "a"}), tools=[parked.park])
    async with sent_to(boss_of(helper, calls=asking("h")), memory, clock=clock) as (runtime, _, sending):
        await parked.until(1)
        closing = asyncio.create_task(runtime.close())
        await clock.settle()
        assert not closing.done()
        parked.gate.set()
        await closed_at_once(runtime, clock)
        assert closing.done()
        assert sending.exception() is not None
    assert await pending_in(memory) == {STREAMS[0]: ("tool:call_6_0",), STREAMS[1]: ("model:9",)}


async def closed_at_once(runtime: refold.AgentRuntime, clock: ManualClock) -> None:
    closing = asyncio.create_task(runtime.close())
    await clock.settle()
    assert closing.done()


async def pending_in(log: EventStore) -> dict[str, tuple[str, ...]]:
    return {head.stream: keys_of(head.pending) for head in await log.list_streams(prefix="session/")}


async def test_a_large_task_and_a_large_answer_are_passed_whole(memory: InMemoryStore) -> None:
    long, boss_heard = "x" * 200_000, list[str]()

    def hear(request: Any) -> Any:
        boss_heard.append(request.messages[-1].content[0].text)
        return refold.say("done")

    helper = agent_of("h", lambda request: refold.say(request.messages[0].content[0].text + "!"))
    boss = agent_of("boss", asking("h", long), hear, tools=[helper.as_tool(result_limit=None)])
    async with refold.AgentRuntime(boss, log=memory) as runtime:
        await (await runtime.session("alice")).send("go")
    assert boss_heard == [long + "!"]


async def test_a_child_is_silent_only_while_its_model_is(memory: InMemoryStore) -> None:
    clock = ManualClock()

    @refold.tool(tier="confirm", timeout_s=1000)
    async def work() -> str:
        await clock.sleep(500)
        return "worked"

    first, second = HeldAnswer(refold.use("work")), HeldAnswer("never")
    helper = agent_of("h", first, second, tools=[work])
    boss = boss_of(helper.as_tool(timeout_s=60), calls=asking("h"))
    async with sent_to(boss, memory, clock=clock, close_grace_s=0) as (runtime, session, sending):
        await clock.settle()
        await clock.advance(59)
        first.gate.set()
        await clock.settle()
        child = await runtime.session(CHILD)
        await clock.advance(10_000)  # It waits for a person.
        [request] = await child.approvals()
        await child.decide(request.call, allow=True)
        await clock.settle()
        await clock.advance(500)  # Its tool has a limit of its own.
        await second.asked.wait()
        await clock.advance(59)
        assert await results_of(session) == [] or not sending.done()
        await clock.advance(2)
        assert (await sending).outcome == refold.Completed()
        [result] = await results_of(session)
        assert result.kind == "timeout"
        assert (await types_of(child))[-1] == "RunCancelled"


async def test_deltas_of_a_child_are_signs_of_life(memory: InMemoryStore) -> None:
    clock = ManualClock()
    slow = Streams(*[lambda: clock.sleep(50), refold.TextDelta("x")] * 5, refold.say("xxxxx"))
    helper = refold.Agent(name="h", config=refold.AgentConfig(model="m", streaming=True), provider=slow)
    boss = boss_of(helper.as_tool(timeout_s=60), calls=asking("h"))
    async with session_in(refold.AgentRuntime(boss, log=memory, clock=clock), "alice") as (runtime, session):
        followed = runtime.follow()
        sending = asyncio.create_task(session.send("go"))
        await clock.settle()
        for _ in range(5):
            await clock.advance(50)
        assert (await sending).outcome == refold.Completed()
        assert await told(session) == ["xxxxx"]
        streamed = []
        async for item in followed:
            if type(item).__name__ == "Streamed":
                streamed.append(item.session)  # type: ignore[union-attr]
            if len(streamed) == 5:
                break
        assert set(streamed) == {CHILD}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_childs_input_that_the_log_refuses_for_a_while_is_accepted_once(
    memory: InMemoryStore, when: Any
) -> None:
    clock, store = ManualClock(), FailingStore(memory)
    store.fail_appends(lambda: refold.PersistenceError("full", outcome_unknown=True), when=when, of=STREAMS[1], times=3)
    boss = boss_of(agent_of("h", refold.say("yes"), refold.say("again")), calls=asking("h"))
    async with sent_to(boss, store, clock=clock) as (runtime, session, sending):
        for _ in range(12):
            await clock.advance(1)
        assert (await sending).outcome == refold.Completed()
        assert await told(session) == ["yes"]
        child = await child_of(runtime, session)
        assert (await types_of(child)).count("InputQueued") == 1


async def test_a_parent_that_is_cancelled_while_its_child_begins_leaves_no_work(memory: InMemoryStore) -> None:
    clock, store = ManualClock(), FailingStore(memory)
    boss = boss_of(agent_of("h", HeldAnswer("never")), calls=asking("h"))
    async with refold.AgentRuntime(boss, log=store, clock=clock, cancel_grace_s=4) as runtime:
        session = await runtime.session("alice")
        hold = store.hold_append(5)  # Behind the parent's call: the tool's definition. The child's first waits for it.
        sending = asyncio.create_task(session.send("go"))
        await clock.settle()
        cancelling = asyncio.create_task(session.cancel())
        await clock.settle()
        was_reached = hold.reached.is_set()
        hold.let_go()
        await clock.settle()
        assert (was_reached, cancelling.done()) == (True, True)
        assert (await sending).outcome == refold.Cancelled()
        assert (await types_of(await child_of(runtime, session)))[-1] == "RunCancelled"
        assert runtime.context.in_flight.count() == 0


async def test_a_child_whose_session_fails_for_good_is_a_crashed_result(memory: InMemoryStore) -> None:
    held = HeldAnswer("never")
    boss = boss_of(agent_of("h", held), calls=asking("h"))
    async with sent_to(boss, memory, close_grace_s=0) as (runtime, session, sending):
        await held.asked.wait()
        await runtime.system.ref(STREAMS[1]).stop(block=False)
        runtime.event_bus.session_failed((await child_of(runtime, session)).id, "it was stopped")
        assert (await sending).outcome == refold.Completed()
        [result] = await results_of(session)
        assert (result.kind, "failed for good" in result.text) == ("crashed", True)


async def test_what_a_child_spends_counts_for_the_child(memory: InMemoryStore) -> None:
    from refold import Usage

    helper = agent_of("h", refold.say("yes", usage=Usage(input_tokens=100, output_tokens=10)))
    boss = agent_of("boss", asking("h"), refold.say("done", usage=Usage(input_tokens=7)), tools=[helper.as_tool()])
    async with session_in(refold.AgentRuntime(boss, log=memory), "alice") as (runtime, session):
        assert (await session.send("go")).usage == Usage(input_tokens=7)
        child = await child_of(runtime, session)
        assert (await child.spent()).usage == Usage(input_tokens=100, output_tokens=10)


async def test_people_can_go_on_with_a_child(memory: InMemoryStore) -> None:
    helper = agent_of("h", refold.say("yes"), refold.say("as I said"))
    async with sent_to(boss_of(helper, calls=asking("h")), memory) as (runtime, session, sending):
        await sending
        child = await child_of(runtime, session)
        assert (await child.send("Why?")).text == "as I said"
        assert len(await child.history()) == 4


# A supervisor


async def test_a_supervisor_has_so_many_work_at_once_and_loses_nothing_where_one_fails(log: EventStore) -> None:
    held = [HeldAnswer('{"answer": 1}'), HeldAnswer(DOWN), HeldAnswer('{"answer": 3}'), HeldAnswer('{"answer": 4}')]
    finder = agent_of("finder", *held, config=ONCE, output_type=Found)
    boss = boss_of(finder.as_tool(tier="observe", concurrency=2), calls=[asking("finder", str(n)) for n in range(4)])
    async with sent_to(boss, log) as (_, session, sending):
        for place, answer in enumerate(held):
            await answer.asked.wait()
            if place:  # The first two began together; each that ends lets the next begin.
                assert not any(later.asked.is_set() for later in held[place + 1 :])
                held[place - 1].gate.set()
        held[-1].gate.set()
        assert (await sending).text == "done"
        results = await results_of(session)
        assert sorted(result.text for result in results if not result.is_error) == [
            f'{{"answer":{number}}}' for number in (1, 3, 4)
        ]
        assert [result.kind for result in results if result.is_error] == ["transient"]
        assert len(await session.children()) == 4


async def test_the_limit_of_a_supervisor_is_each_sessions_own_so_that_an_agent_may_be_its_own_subagent(
    memory: InMemoryStore,
) -> None:
    own = refold.subagent("boss", concurrency=1)
    boss = agent_of("boss", asking("boss"), asking("boss"), "deep", "mid", "done", tools=[own])
    async with sent_to(boss, memory) as (runtime, _, sending):
        assert (await sending).text == "done"
        assert len(await runtime.sessions()) == 3


def test_a_subagent_takes_only_a_limit_that_can_be() -> None:
    with pytest.raises(refold.ConfigError, match="concurrency is None or an integer of at least 1, not 0"):
        agent_of("h").as_tool(concurrency=0)
