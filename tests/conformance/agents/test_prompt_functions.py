"""System prompts that a function gives: what is sent, what is recorded of it, and what a replay says of another one."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import refold
from refold import Agent, AgentConfig, AgentRuntime, RunContext, ScriptedProvider, say, use
from refold.inspection.export import conversation_of
from refold.replay import ReplayReport, recorded_request, replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import assert_sound, look, session_in

LONG = "Serve them well. " * 100


class Shop(msgspec.Struct):
    name: str
    greeting: str = "Be brief."


def greeting(context: RunContext[Shop]) -> str:
    return f"{context.deps.name}: {context.deps.greeting}"


async def turn(context: RunContext[Shop]) -> str:
    await asyncio.sleep(0)
    return f"{context.deps.name}, turn {context.turn}, {LONG}"


def shop(prompt: Any, *script: Any, deps: object = None, **parts: Any) -> Agent:
    config = AgentConfig(model="m", system_prompt=prompt)
    answers: list[Any] = [*script] or [use("look", {}), say("Here."), say("There.")]
    provider = ScriptedProvider(answers)
    return Agent(config=config, provider=provider, tools=[look], deps=deps, **parts)


def prompts(agent: Agent) -> list[str]:
    assert isinstance(agent.provider, ScriptedProvider)
    return [request.system_prompt for request in agent.provider.requests]


async def recorded(agent: Agent, store: EventStore, **given: Any) -> Agent:
    async with session_in(AgentRuntime(agent, log=store)) as (_, session):
        for text in ("Where?", "And?"):
            assert isinstance((await session.send(text, **given)).outcome, refold.Completed)
    return agent


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        (greeting, ["Tea: Be brief."] * 3),
        (turn, [f"Tea, turn {number}, {LONG}" for number in (1, 2, 1)]),
        (lambda _: "", [""] * 3),
        (lambda _: "\ud83d one half", ["\ufffd one half"] * 3),
    ],
)
async def test_what_a_function_gave_is_sent_recorded_and_shown(prompt: Any, sent: list[str], log: EventStore) -> None:
    agent = await recorded(shop(prompt, deps=Shop("Tea")), log)
    assert prompts(agent) == sent
    events = await log.read_stream("session/s")
    asked = [event.version for event in events if b"model_responded" in event.data]
    shown = [await recorded_request(log, "s", version) for version in asked]
    assert [each.request.system_prompt for each in shown] == sent
    assert all(each.as_sent for each in shown)
    assert (await conversation_of(log, "s"))[0] == sent[-1]
    report = await replay(log, agent=agent)
    report.raise_for_divergence()


async def test_a_long_prompt_that_is_always_the_same_is_in_the_log_once() -> None:
    store = InMemoryStore()
    await recorded(shop(lambda _: LONG), store)
    events = await store.read_stream("session/s")
    assert sum(event.data.count(LONG.encode()) for event in events) == 0
    payloads = await store.read_payloads([item.hash for item in await store.list_payloads(limit=100)])
    assert sum(LONG.encode() in payload for payload in payloads.values()) == 1


async def test_skills_and_the_schema_of_answers_stand_behind_what_a_function_gave() -> None:
    skill = refold.Skill(name="brew", description="How to brew.", instructions="Boil.")
    agent = shop(greeting, '{"name": "Tea"}', deps=Shop("Tea"), output_type=Shop, skills=[skill])
    async with AgentRuntime(agent) as runtime:
        await (await runtime.session("s")).send("Which?")
    (prompt,) = prompts(agent)
    first, skills, *_, schema = prompt.split("\n\n")
    assert first == "Tea: Be brief."
    assert "brew: How to brew." in skills
    assert "JSON Schema" in schema


async def test_each_run_is_told_of_its_own_deps() -> None:
    agent = shop(greeting, "One.", "Two.", deps=Shop("Tea"))
    async with session_in(AgentRuntime(agent)) as (_, session):
        await session.send("Where?", deps=Shop("Coffee"))
        await session.send("Where?")
    assert prompts(agent) == ["Coffee: Be brief.", "Tea: Be brief."]


def _fails(_: RunContext[Shop]) -> str:
    raise KeyError("till")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (_fails, "the function that makes the system prompt failed: KeyError: 'till'"),
        (lambda _: 7, "the function that makes the system prompt gave int, not a text"),
        (lambda _: None, "gave NoneType, not a text"),
    ],
)
async def test_a_function_that_gives_no_prompt_fails_its_run_and_the_next_input_is_tried(
    prompt: Any, words: str, log: EventStore
) -> None:
    good = [False, True]
    agent = shop(lambda context: "Be brief." if good.pop() else prompt(context), "Yes.")
    async with session_in(AgentRuntime(agent, log=log)) as (_, session):
        assert (await session.send("One")).text == "Yes."
        outcome = (await session.send("Two")).outcome
        assert isinstance(outcome, refold.Failed)
        assert outcome.error.kind == "agent_loop"
        assert words in outcome.error.message


async def test_a_run_is_cancelled_while_its_prompt_is_made(log: EventStore) -> None:
    begun = asyncio.Event()

    async def never(_: RunContext[Shop]) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with session_in(AgentRuntime(shop(never), log=log)) as (_, session):
        sending = asyncio.ensure_future(session.send("One"))
        await begun.wait()
        await session.cancel()
        assert isinstance((await sending).outcome, refold.Cancelled)


async def test_a_secret_in_what_a_function_gave_is_neither_sent_nor_recorded() -> None:
    store = InMemoryStore()
    agent = await recorded(shop(lambda _: f"The code is s3cr3t-{LONG}", redact=["s3cr3t-"]), store)
    assert "s3cr3t" not in str(prompts(agent))
    held = b"".join(event.data for event in await store.read_stream("session/s"))
    payloads = await store.read_payloads([item.hash for item in await store.list_payloads(limit=100)])
    assert b"s3cr3t" not in held + b"".join(payloads.values())
    (await replay(store, agent=agent)).raise_for_divergence()


async def test_a_request_in_flight_has_its_prompt_in_the_log() -> None:
    store, asked = InMemoryStore(), asyncio.Event()

    class Slow:
        async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    agent = Agent(config=AgentConfig(model="m", system_prompt=turn), provider=Slow(), deps=Shop("Tea"))
    async with session_in(AgentRuntime(agent, log=store, close_grace_s=0)) as (_, session):
        sending = asyncio.ensure_future(session.send("One"))
        async for item in session.follow(after_version=0):
            if isinstance(item, refold.RecordedEvent) and type(item.event).__name__ == "RequestBuilt":
                break
        found = await recorded_request(store, "s")
        await session.cancel()
        await sending
    assert (found.open, found.request.system_prompt) == (True, f"Tea, turn 1, {LONG}")


async def test_a_long_prompt_counts_where_a_history_is_summarised() -> None:
    def summaries(prompt: str) -> int:
        agent = shop(lambda _: prompt, *["words " * 30] * 12, context=refold.Summarising(600))
        store = InMemoryStore()

        async def played() -> int:
            async with session_in(AgentRuntime(agent, log=store)) as (_, session):
                for number in range(3):
                    await session.send(f"Tell {number}")
            await assert_sound(store)
            (await replay(store, agent=agent)).raise_for_divergence()
            return sum(b"context_prepared" in event.data for event in await store.read_stream("session/s"))

        return asyncio.run(played())

    counts = [await asyncio.to_thread(summaries, prompt) for prompt in ("", "Serve them well. " * 110)]
    assert counts[0] == 0
    assert counts[1] > 0


@asynccontextmanager
async def real_shop() -> Any:
    raise AssertionError("a replay opens nothing")
    yield


OTHER = Shop("Tea", "Be long.")
REPLAYS: dict[str, tuple[Callable[[], Agent], dict[str, Any], str, str]] = {
    "the same, of a value": (lambda: shop(greeting, deps=Shop("Tea")), {}, "", ""),
    "the same, of deps that are given": (lambda: shop(greeting, deps=real_shop), {"deps": lambda: Shop("Tea")}, "", ""),
    "deps that are not opened": (lambda: shop(greeting, deps=real_shop), {}, "", "the deps of the agent 'agent'"),
    "no deps": (lambda: shop(greeting), {}, "", "the deps of the agent 'agent'"),
    "another value": (lambda: shop(greeting, deps=OTHER), {}, "Be long.", ""),
    "other deps that are given": (lambda: shop(greeting, deps=real_shop), {"deps": OTHER}, "Be long.", ""),
    "another function": (lambda: shop(lambda _: "Sing.", deps=real_shop), {}, "Sing.", ""),
    "a text": (lambda: shop("Be brief."), {}, "Be brief.", ""),
    "a function that raises": (lambda: shop(_fails, deps=Shop("")), {}, "failed: KeyError: 'till'", ""),
}


@pytest.mark.parametrize("today", REPLAYS)
async def test_a_replay_compares_what_a_function_gives_today(today: str) -> None:
    make, given, differs, missing = REPLAYS[today]
    store = InMemoryStore()
    await recorded(shop(greeting, deps=Shop("Tea")), store)
    report = await replay(store, agent=make(), **given)
    found = _requests(report)
    if not (differs or missing):
        report.raise_for_divergence()
        assert found == (3, 0, "")
    if missing:
        assert found[:2] == (0, 0)
        assert missing in found[2]
    if differs:
        (divergence,) = [each for each in report.divergences if each.differs == "request"]
        assert "Tea: Be brief." in str(divergence) or divergence.difference.path == "request.failure"
        assert differs in str(divergence)
        assert found[1] == 3


def _requests(report: ReplayReport) -> tuple[int, int, str]:
    (each,) = [each for each in report.compared if each.what == "request"]
    return each.compared, each.differ, " ".join(missed.why for missed in each.not_compared)


async def test_a_function_instead_of_a_text_is_a_difference_in_words() -> None:
    store = InMemoryStore()
    await recorded(shop("Be brief."), store)
    report = await replay(store, agent=shop(lambda _: "Sing."))
    (divergence,) = [each for each in report.divergences if each.differs == "request"]
    assert "request.system_prompt" in str(divergence)
    assert "Sing." in str(divergence)


async def test_deps_of_a_replay_are_opened_for_it_and_closed_with_it_and_need_an_agent() -> None:
    store, seen = InMemoryStore(), list[str]()
    await recorded(shop(greeting, deps=Shop("Tea")), store)

    @asynccontextmanager
    async def stand_in() -> Any:
        seen.append("opens")
        yield Shop("Tea")
        seen.append("closes")

    (await replay(store, agent=shop(greeting, deps=real_shop), deps=stand_in)).raise_for_divergence()
    assert seen == ["opens", "closes"]
    with pytest.raises(refold.ConfigError, match="the deps of the replay cannot be opened"):
        await replay(store, agent=shop(greeting), deps=lambda: 1 / 0)
    with pytest.raises(refold.ConfigError, match="name it by agent="):
        await replay(store, deps=stand_in)


async def test_hooks_and_policies_that_use_deps_that_are_not_opened_are_not_compared_and_never_a_difference() -> None:
    class Sign(refold.Middleware):
        def on_post_llm(self, context: refold.HookContext, response: refold.ModelResponse) -> None:
            context.deps.name.lower()

    def policy(call: refold.ProposedCall) -> refold.Allow:
        return refold.Allow(always=isinstance(call.deps, str))

    for parts in ({"middleware": [Sign()]}, {"policy": policy}):
        store = InMemoryStore()
        await recorded(shop("Be brief.", deps=lambda: Shop("Tea"), **parts), store)
        report = await replay(store, agent=shop("Be brief.", deps=lambda: Shop("Tea"), **parts))
        assert report.divergence is None
        assert any("answer: " in line and "deps of the agent" in line for line in report.missing())
