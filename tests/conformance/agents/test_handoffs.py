"""Handoffs: another agent goes on with the conversation, in the same session, and all of it is in the log."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

import refold
from refold import Agent, AgentConfig, AgentRuntime, CommandRejected, Message, handoff, say, use
from refold.events.core.errors import ConfigError
from refold.events.session.events import HandedOff, ModelRequested
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.agents.delegating import agent_of
from tests.conformance.cases import Case, Fails, as_tests
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, assert_sound, crash, results_of, session_in, shown, types_of
from tests.conformance.steps import (
    begin,
    begun,
    cancel,
    check,
    decide,
    ends,
    last,
    let_go,
    recorded,
    send,
)

TO_BILLING = use("transfer_to_billing", {"reason": "an invoice"})
BACK = use("transfer_to_front", {})


class Sum(msgspec.Struct):
    euros: int


@refold.tool(tier="observe", effect="pure")
async def invoice() -> str:
    return "7 euros"


def billing(*script: Any, **parts: Any) -> Agent[Any, Any]:
    config = AgentConfig(model="large", system_prompt="You do the billing.")
    return agent_of("billing", *script, **{"config": config, "tools": [invoice], "handoffs": ["front"], **parts})


def front(*script: Any, to: Any = None, **parts: Any) -> Agent[Any, Any]:
    return agent_of("front", *script, **{"handoffs": [billing() if to is None else to], **parts})


def requests_of(agent: Agent[Any, Any]) -> Sequence[refold.ModelRequest]:
    assert isinstance(agent.provider, refold.ScriptedProvider)
    return agent.provider.requests


async def test_another_agent_goes_on_in_the_same_session_and_hands_back(log: EventStore) -> None:
    clerk = billing(use("invoice", {}), say("It is 7 euros."), BACK)
    desk = front(TO_BILLING, say("Anything else?"), to=clerk)
    async with session_in(AgentRuntime(desk, log=log)) as (_, session):
        assert (await session.send("What do I owe?")).text == "It is 7 euros."
        assert (await session.state_at()).agent == "billing"
        assert (await session.send("Thanks")).text == "Anything else?"
        assert await types_of(session) == [
            "SessionOpened",
            "AgentConfigured",
            *("InputQueued", "RunStarted", "ModelRequested"),
            *("ModelResponded", "ToolCallStarted"),
            *("ToolCallCompleted", "AgentConfigured", "HandedOff", "ModelRequested"),
            *("ModelResponded", "ToolCallStarted", "ToolCallCompleted", "ModelRequested"),
            *("ModelResponded", "RunCompleted"),
            *("InputQueued", "RunStarted", "ModelRequested", "ModelResponded", "ToolCallStarted"),
            *("ToolCallCompleted", "AgentConfigured", "HandedOff", "ModelRequested", "ModelResponded", "RunCompleted"),
        ]
    first, second, third = requests_of(clerk)
    assert (first.model, first.system_prompt) == ("large", "You do the billing.")
    assert [tool.name for tool in first.tools] == ["invoice", "transfer_to_front"]
    assert [tool.name for tool in requests_of(desk)[0].tools] == ["transfer_to_billing"]
    assert shown(third.messages)[:3] == [
        "user: What do I owe?",
        "use transfer_to_billing",
        "result: The conversation goes on with billing.",
    ]
    assert len(second.messages) == 5


async def test_a_handoff_takes_no_commit_more_than_another_call(memory: InMemoryStore) -> None:
    store = FailingStore(memory)
    async with AgentRuntime(front(TO_BILLING, to=billing("Yes.")), log=store) as runtime:
        await (await runtime.session("s")).send("Hi")
    assert sum("session/s" in append for append in store.appends) == 4


async def test_the_session_stays_the_others_over_a_restart_and_needs_it(log: EventStore) -> None:
    async with AgentRuntime(front(TO_BILLING, to=billing("Yes.")), log=log) as runtime:
        await (await runtime.session("s")).send("Hi", key="k")
    clerk = billing("I am.")
    async with session_in(AgentRuntime(front(to=clerk), log=log)) as (runtime, session):
        assert (await session.send("Hi", key="k")).text == "Yes."
        assert (await session.send("Still there?")).text == "I am."
    async with session_in(AgentRuntime(agent_of("front", "Never."), log=log)) as (runtime, session):
        words = r"session 's' was handed to the agent 'billing', which this runtime does not have \(it has 'front'\)"
        with pytest.raises(CommandRejected, match=words):
            await session.send("Anyone?")
        assert (await session.history())[-1].text == "I am."


async def test_a_run_of_an_agent_that_is_missing_waits_for_a_runtime_that_has_it(memory: InMemoryStore) -> None:
    held, store = HeldAnswer("late"), FailingStore(memory)
    async with AgentRuntime(front(TO_BILLING, to=billing(held)), log=store, close_grace_s=0) as runtime:
        await (await runtime.session("s")).submit("Hi", key="k")
        await held.asked.wait()
        await crash(runtime, store)
    async with AgentRuntime(agent_of("front", "Never."), log=memory) as runtime:
        with pytest.raises(CommandRejected, match="was handed to the agent 'billing'"):
            await (await runtime.session("s")).resume()
    async with AgentRuntime(front(to=billing("Here.")), log=memory) as runtime:
        assert (await (await runtime.session("s")).send("Hi", key="k")).text == "Here."
    await assert_sound(memory)


def shown_last(messages: Sequence[Message]) -> list[Message]:
    return [Message("user", (refold.TextBlock(text="Earlier: tea."),)), messages[-1]]


@pytest.mark.parametrize(
    ("history", "before"),
    [
        ("all", ["user: Tea?", "assistant: Yes.", "user: Pay"]),
        ("input", ["user: Pay"]),
        (shown_last, ["user: Earlier: tea.", "user: Pay"]),
        (lambda messages: messages, ["user: Tea?", "assistant: Yes.", "user: Pay"]),
    ],
)
async def test_what_the_other_agent_is_shown_of_the_history_can_be_chosen(
    history: Any, before: list[str], log: EventStore
) -> None:
    clerk = billing("Done.", "Again.")
    desk = front("Yes.", TO_BILLING, to=handoff(clerk, history=history))
    async with session_in(AgentRuntime(desk, log=log)) as (_, session):
        await session.send("Tea?")
        await session.send("Pay")
        assert (await session.send("More")).text == "Again."
    after = ["use transfer_to_billing", "result: The conversation goes on with billing."]
    assert shown(requests_of(clerk)[0].messages) == [*before, *after]
    assert shown(requests_of(clerk)[1].messages) == [*before, *after, "assistant: Done.", "user: More"]


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (lambda messages: messages[:1], "a summary that leaves out the latest input"),
        (lambda messages: [], "a summary that leaves out the latest input"),
        (lambda messages: 1 / 0, "ZeroDivisionError"),
        (lambda messages: ["text"], "is not a Message"),
    ],
)
async def test_a_history_that_cannot_be_shown_is_an_error_result_and_nothing_is_handed_over(
    history: Any, words: str, log: EventStore
) -> None:
    desk = front("Yes.", TO_BILLING, "I stay.", to=handoff(billing(), history=history))
    async with session_in(AgentRuntime(desk, log=log)) as (_, session):
        await session.send("Tea?")
        assert (await session.send("Pay")).text == "I stay."
        [result] = await results_of(session)
        assert (result.kind, words in result.text) == ("permanent", True), result.text
        assert (await session.state_at()).agent == "front"


def team(clerk_says: Sequence[Any] = ("Billing here.",), **more: Any) -> Any:
    """Return the options of a case whose agent hands over to a clerk."""
    return lambda play: {"handoffs": [agent_of("billing", *clerk_says, tools=[invoice], **more), agent_of("other")]}


TO_OTHER = use("transfer_to_other", {})

handed = partial(Case, options=team())

CASES = {
    "calls beside a handoff are carried out first, and the session is handed over when all are answered": handed(
        [[use("park", {"name": "a"}), TO_BILLING, use("look", {"at": "b"})]],
        [
            begin("Go"),
            begun(1),
            check(lambda play: [type(event) for event in play.heard if event == "HandedOff"], []),
            let_go("a"),
            ends("Billing here."),
            last(
                "ToolCallCompleted", "AgentConfigured", "HandedOff", "ModelRequested", "ModelResponded", "RunCompleted"
            ),
        ],
        results=["a returned", "The conversation goes on with billing.", "saw b"],
        crashes=False,
    ),
    "the first of two handoffs counts": handed(
        [[TO_BILLING, TO_OTHER]],
        [send("Go", "Billing here."), recorded(HandedOff, "agent before", ("billing", "agent"))],
        kinds=[None, "denied"],
        results=[
            "The conversation goes on with billing.",
            "The conversation goes on with billing already, so it was not handed on.",
        ],
    ),
    "a run that is cancelled while a call beside a handoff runs has been handed over": handed(
        [[TO_BILLING, use("park", {"name": "a"})], "Never."],
        [
            begin("Go"),
            begun(1),
            cancel(),
            ends(refold.Cancelled()),
            last("CancelRequested", "ToolCallFailed", "AgentConfigured", "HandedOff", "RunCancelled"),
            send("Hi", "Billing here."),
        ],
        crashes=False,
    ),
    "a call beside a handoff that waits for a person is decided about first": handed(
        [[TO_BILLING, use("pay", {"amount": 3})]],
        [begin("Go"), decide(allow=True), ends("Billing here.")],
        results=["The conversation goes on with billing.", "paid 3"],
    ),
    "a tool that ends the run beside a handoff ends it as the other's": handed(
        [[TO_BILLING, use("finish", {"text": "Over."})]],
        [send("Go", "Over."), last("AgentConfigured", "HandedOff", "RunCompleted"), send("Hi", "Billing here.")],
        crashes=False,
    ),
    "an answer that is cut hands nothing over": handed(
        [refold.ModelResponse(content=(TO_BILLING,), stop_reason="max_tokens"), "Still me."],
        [send("Go", "Still me.")],
    ),
    "the other's limits count from then on, with the turns that there were": Case(
        [TO_BILLING],
        [send("Go", Fails("max_turns", "Max turns (1) reached"))],
        options=lambda play: {"handoffs": [agent_of("billing", config=AgentConfig(model="m", max_turns=1))]},
    ),
    "what a run does otherwise than its agent ends with the handoff, but for the form of its answer": Case(
        [TO_BILLING],
        [
            send("Go", Fails("agent_loop"), model="own", tools=["transfer_to_billing"], output_type=Sum),
            recorded(ModelRequested, "turn", 1, 2, 3),
        ],
        options=team(['{"euros": "x"}', '{"euros": "y"}'], config=AgentConfig(model="m", rejections_max=1)),
    ),
}

test_handoffs, test_handoffs_and_a_crash_after_each_commit = as_tests(CASES)


async def test_an_answer_is_read_as_the_type_of_the_agent_that_gave_it(memory: InMemoryStore) -> None:
    desk = front(TO_BILLING, to=billing('{"euros": 7}', output_type=Sum))
    async with session_in(AgentRuntime(desk, log=memory)) as (_, session):
        assert (await session.send("Owe?", key="k")).output == Sum(7)
        assert (await (await session.run("run_3")).result()).output == Sum(7)


async def test_a_subagent_may_hand_its_work_over(memory: InMemoryStore) -> None:
    clerk = billing('{"euros": 7}', output_type=Sum, handoffs=[])
    helper = agent_of("front", TO_BILLING, handoffs=[clerk])
    boss = agent_of("boss", use("front", {"task": "What is owed?"}), "7 it is.", tools=[helper.as_tool()])
    async with session_in(AgentRuntime(boss, log=memory)) as (_, session):
        assert (await session.send("Owe?")).text == "7 it is."
        assert [result.text for result in await results_of(session)] == ['{"euros":7}']
    (await replay(memory, agent=boss)).raise_for_divergence()


@pytest.mark.parametrize(
    ("now", "differs"),
    [
        (lambda: front(to=billing()), False),
        (lambda: front(to=billing(config=AgentConfig(model="large", system_prompt="Be rude."))), True),
        (lambda: front(to=billing(tools=[])), True),
        (lambda: agent_of("front"), True),
    ],
)
async def test_a_replay_asks_each_agent_about_its_own_part(now: Any, differs: bool, memory: InMemoryStore) -> None:
    desk = front(TO_BILLING, say("Bye."), to=billing(use("invoice", {}), say("It is 7 euros."), BACK))
    async with session_in(AgentRuntime(desk, log=memory)) as (_, session):
        await session.send("What do I owe?")
        await session.send("Bye")
    report = await replay(memory, agent=now())
    assert bool(report.divergences) == differs


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: agent_of("a", handoffs=["a"]), "hands conversations to itself"),
        (lambda: AgentRuntime(agent_of("a", handoffs=["b"])), "leads to the agent 'b', and the runtime has only 'a'"),
        (lambda: handoff(7), "a handoff is to an Agent or the name of one, not int"),  # type: ignore[arg-type]
        (lambda: handoff("b", history="some"), 'is "all", "input" or a function'),  # type: ignore[arg-type]
        (lambda: handoff("b", name="über"), "name of the tool"),
    ],
)
def test_what_cannot_be_handed_to_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_the_tool_is_named_after_the_agent_as_far_as_a_name_may_be() -> None:
    assert handoff("Lá Bonne Équipe").name == "transfer_to_L__Bonne__quipe"
    assert len(handoff("x" * 100).name) == 64


async def test_a_run_that_is_cancelled_while_it_is_handed_on_breaks_nothing(
    memory: InMemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    desk = front(*[TO_BILLING] * 32, to=handoff(billing(*["Hello."] * 32), history="input"))
    async with AgentRuntime(desk, log=memory) as runtime:
        for turns in range(32):
            run = await (session := await runtime.session(f"s{turns}")).submit("Hi")
            for _ in range(turns):
                await asyncio.sleep(0)
            await session.cancel()
            await run.result()
    assert "AssertionError" not in caplog.text
    await assert_sound(memory)
