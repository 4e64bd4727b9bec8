"""Budgets and deadlines of a run with all that its subagents, and theirs, do: from the log, and so after a crash."""

import asyncio
from typing import Any

import pytest

import refold
from refold import AgentConfig, AgentRuntime, Price, TreeBudget, Usage
from refold.actors import ManualClock
from refold.events.core.errors import ConfigError
from refold.events.session.events import ModelFailed
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.agents.delegating import CHILD, agent_of, asking, boss_of, sent_to
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, crash, results_of, session_in, types_of

PRICES = {"m": Price(input=0, output=1_000_000)}


def cost(text: Any, tokens: int = 10) -> refold.ModelResponse:
    """Return an answer of so many tokens, each of which costs one."""
    usage = Usage(output_tokens=tokens)
    if isinstance(text, str):
        return refold.say(text, usage=usage)
    return refold.ModelResponse(content=tuple(text), stop_reason="tool_use", usage=usage)


def limited(**limits: Any) -> AgentConfig:
    return AgentConfig(model="m", tree_budget=TreeBudget(**limits), prices=PRICES)


PRICED = AgentConfig(model="m", prices=PRICES)


def family(*boss: Any, below: Any, deep: Any, **limits: Any) -> refold.Agent[Any, Any]:
    """Return an agent with a subagent that has one too, and what each of them answers."""
    grandchild = agent_of("c", *deep, config=PRICED)
    child = agent_of("b", *below, tools=[grandchild.as_tool()], config=PRICED)
    return agent_of("boss", *boss, tools=[child.as_tool(tier="observe")], config=limited(**limits))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"tokens": 30}, "The budget of 30 tokens is spent: 30 were used."),
        ({"tokens": 25}, "The budget of 25 tokens is spent: 30 were used."),
        ({"cost": 30.0}, "The budget of 30 for model calls is spent: they have cost 30."),
        ({"turns": 3}, "The budget of 3 model calls is spent."),
    ],
)
async def test_what_all_spend_together_is_limited_and_who_waits_is_told(
    limits: Any, words: str, log: EventStore
) -> None:
    boss = family(
        cost([asking("b")]), below=[cost([asking("c")])], deep=[cost("deep"), cost("never")], **limits
    )  # The third answer is the grandchild's; the fourth call, the child's next, is not made.
    async with session_in(AgentRuntime(boss, log=log), "alice") as (runtime, session):
        outcome = (await session.send("go")).outcome
        assert isinstance(outcome, refold.Failed)
        assert outcome.error.kind == "budget"
        assert str(outcome.error) == f"{words} It is that of session 'alice' with all below it."
        [result] = await results_of(session)
        assert (result.kind, words in result.text) == ("permanent", True)
        assert (await types_of(await runtime.session(f"{CHILD}/call_6_0")))[-1] == "RunCompleted"
    (await replay(log, agent=boss)).raise_for_divergence()


async def test_what_an_earlier_run_spent_does_not_count_and_what_fits_is_not_limited(memory: InMemoryStore) -> None:
    calls = [cost([asking("b")]), cost("done")]
    below = [cost([asking("c")]), cost("mid")]
    boss = family(*calls * 2, below=below * 2, deep=[cost("deep")] * 2, tokens=50)
    async with session_in(AgentRuntime(boss, log=memory), "alice") as (_, session):
        assert [(await session.send(text)).text for text in ("one", "two")] == ["done", "done"]


async def test_children_beside_each_other_spend_at_most_what_is_in_flight_too_much(memory: InMemoryStore) -> None:
    held = [HeldAnswer(cost([asking("c")])) for _ in range(3)]
    helper = agent_of("b", *held, tools=[agent_of("c", cost("never"), config=PRICED).as_tool()], config=PRICED)
    boss = agent_of(
        "boss", cost([asking("b", str(n)) for n in range(3)]), tools=[helper.as_tool(tier="observe")],
        config=limited(tokens=15),
    )  # fmt: skip
    async with sent_to(boss, memory) as (runtime, session, sending):
        for answer in held:
            await answer.asked.wait()
        for answer in held:
            answer.gate.set()
        assert isinstance((await sending).outcome, refold.Failed)
        assert len(await results_of(session)) == 3
        spent = [
            (await (await runtime.session(name)).state_at()).usage.output_tokens for name in await runtime.sessions()
        ]
        assert sum(spent) == 40  # The boss's, and the three that were in flight.


@pytest.mark.parametrize("place", ["child", "grandchild"])
async def test_after_a_crash_the_budget_is_what_the_log_says(place: str, memory: InMemoryStore) -> None:
    held = HeldAnswer(cost("late"))
    below = [cost([asking("c")]), held] if place == "child" else [cost([asking("c")])]
    deep = [cost("deep")] if place == "child" else [held]
    tokens = 30 if place == "child" else 20
    first = family(cost([asking("b")]), below=below, deep=deep, tokens=tokens + 1)
    store = FailingStore(memory)
    async with sent_to(first, store, close_grace_s=0) as (runtime, _, sending):
        await held.asked.wait()
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)
    again = family(below=[cost("never")], deep=[cost("never")], tokens=tokens)
    async with session_in(AgentRuntime(again, log=memory), "alice") as (runtime, session):
        outcome = (await session.send("go", key="k")).outcome
        assert isinstance(outcome, refold.Failed)
        assert outcome.error.kind == "budget"
        assert all(not agent.provider.requests for agent in runtime.agents.values())  # type: ignore[attr-defined]


async def test_a_call_that_is_not_made_is_recorded_and_no_budget_leaves_no_trace(memory: InMemoryStore) -> None:
    boss = family(cost([asking("b")]), below=[], deep=[], tokens=10)
    async with AgentRuntime(boss, log=memory) as runtime:
        await (await runtime.session("alice")).send("go")
        child = await runtime.session(CHILD)
        failed = [recorded.event async for recorded in child.events() if isinstance(recorded.event, ModelFailed)]
        assert [(event.kind, event.retryable, event.request) for event in failed] == [("budget", False, None)]


@pytest.mark.parametrize("length", [440, 512])  # One is cut below its child, one below itself.
async def test_the_longest_ids_are_counted_too(length: int, memory: InMemoryStore) -> None:
    boss = family(cost([asking("b")]), below=[cost([asking("c")])], deep=[cost("deep"), cost("never")], tokens=30)
    async with AgentRuntime(boss, log=memory) as runtime:
        outcome = (await (await runtime.session("x" * length)).send("go")).outcome
        assert isinstance(outcome, refold.Failed)
        assert outcome.error.kind == "budget"


async def test_the_deadline_of_a_run_is_that_of_all_below_it_also_after_a_crash(memory: InMemoryStore) -> None:
    held = HeldAnswer("never")
    clock, store = ManualClock(), FailingStore(memory)
    inner = agent_of("c", held)
    middle = agent_of("b", asking("c"), tools=[inner.as_tool()])
    boss = boss_of(middle, calls=asking("b"), config=AgentConfig(model="m", run_timeout_s=10))
    async with sent_to(boss, store, close_grace_s=0, clock=clock, ask_timeout_s=1e6) as (runtime, _, sending):
        await held.asked.wait()
        await crash(runtime, store, clock)
    await asyncio.gather(sending, return_exceptions=True)
    later = ManualClock(clock.now_us() + 20_000_000)
    async with AgentRuntime(boss, log=memory, clock=later, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("alice")
        result = asyncio.ensure_future(session.send("go", key="k"))
        while not result.done():
            await later.advance(1)
        outcome = result.result().outcome
        assert isinstance(outcome, refold.Failed)
        assert outcome.error.kind == "run_timeout"
        for name in (CHILD, f"{CHILD}/call_6_0"):
            assert (await types_of(await runtime.session(name)))[-1] == "RunCancelled"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TreeBudget(tokens=0), "TreeBudget.tokens must be None or a whole number above 0, not 0"),
        (lambda: TreeBudget(turns=1.5), "TreeBudget.turns must be None or a whole number"),  # type: ignore[arg-type]
        (lambda: AgentConfig(model="m", tree_budget=7), "tree_budget must be None or a TreeBudget"),  # type: ignore[arg-type]
        (
            lambda: AgentRuntime(
                boss_of(agent_of("b", config=AgentConfig(model="other")), config=limited(cost=1.0)),
            ),
            "a tree_budget limits the cost, and 'other' has no price",
        ),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
