"""A summary stands for the beginning of a long history: recorded by the session, once, and never worth a run."""

import asyncio
import logging
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.events.model.context_window import SUMMARY_HEADING, SUMMARY_PROMPT, about_tokens, message_tokens
from refold.events.session import events as ev
from refold.events.session.invariants import check_history
from refold.stores import EventStore, InMemoryStore
from tests.conformance import sessions
from tests.conformance.failing_store import FailingStore
from tests.conformance.requests.test_context import assert_rebuilt, pay, pay_beside_chats
from tests.conformance.requests.test_recall import Episodes

CONFIG = refold.AgentConfig(model="m", system_prompt="")
SHORT = refold.Usage(input_tokens=50, output_tokens=5)


def wants_summary(request: refold.ModelRequest) -> bool:
    return request.system_prompt == SUMMARY_PROMPT


class Model:
    """Answers with texts of forty characters, and gives summaries when it is asked for them."""

    def __init__(self, *summaries: Any, answers: list[Any] | None = None) -> None:
        self.summaries = list(summaries)
        self.answers = answers
        self.requests: list[refold.ModelRequest] = []

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        self.requests.append(request)
        if not wants_summary(request):
            sessions.assert_accepted(request.messages)
            answer = self.answers.pop(0) if self.answers else refold.say("answer " + "x" * 33)
        else:
            answer = self.summaries.pop(0) if self.summaries else refold.say("They talked.", usage=SHORT)
        if isinstance(answer, sessions.HeldAnswer):
            answer = await answer(request)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, refold.ModelResponse):
            return answer
        return refold.ModelResponse(content=(answer,), stop_reason="tool_use")

    @property
    def asked_for_summaries(self) -> int:
        return sum(map(wants_summary, self.requests))


@refold.tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    return f"{what} seen " + "y" * 60


async def talk(session: refold.Session, count: int) -> list[refold.RunResult]:
    """Send so many inputs of forty characters, and return how their runs ended."""
    return [await session.send(f"input {number} " + "x" * 32) for number in range(count)]


def policy(max_tokens: int = 100, **settings: Any) -> refold.Summarising:
    return refold.Summarising(max_tokens, **settings)


async def test_a_summary_stands_for_the_beginning_and_the_log_has_both(log: EventStore) -> None:
    model = Model()
    async with sessions.opened(log, provider=model, config=CONFIG, context=policy()) as (_, session):
        await talk(session, 7)
        (prepared,) = await sessions.events_of(session, ev.ContextPrepared)
        assert prepared.usage == SHORT
        assert sessions.shown(prepared.summary) == [f"user: {SUMMARY_HEADING}\n\nThey talked."]
        assert sessions.shown(await session.history())[0] == f"user: {SUMMARY_HEADING}\n\nThey talked."
        asked = next(request for request in model.requests if wants_summary(request))
        assert (asked.tools, asked.max_tokens, asked.model) == ((), 1_000, "m")
        assert sessions.shown(asked.messages)[0].startswith(f"user: User: input 0 {'x' * 32}\n\nAgent: answer")
        assert check_history(await session.history()) == []
        await assert_rebuilt(log, "s", model.requests)
        types = await sessions.types_of(session)
        place = types.index("ContextPrepared")
        assert types[place - 1 : place + 2] == ["ModelRequested", "ContextPrepared", "ModelResponded"]


async def test_case_a06_a_call_and_its_result_are_summarised_together_or_stay_together(log: EventStore) -> None:
    model = Model(
        answers=[
            refold.use("look", {"what": str(number)}) if number % 2 == 0 else refold.say("ok") for number in range(9)
        ]
    )
    async with sessions.opened(log, provider=model, tools=[look], config=CONFIG, context=policy(130)) as (_, session):
        for number in range(4):
            assert isinstance((await session.send(f"input {number}")).outcome, refold.Completed)
            assert check_history(await session.history()) == []
        assert model.asked_for_summaries >= 1
        assert "Agent calls look" in model.requests[[*map(wants_summary, model.requests)].index(True)].messages[0].text
        await assert_rebuilt(log, "s", model.requests)


async def test_case_a22_the_history_begins_with_a_users_message_where_little_is_kept(log: EventStore) -> None:
    model = Model(answers=[refold.use("look", {"what": "a"}), refold.say("z" * 400), refold.say("ok")])
    context = policy(130, keep_tokens=1)
    async with sessions.opened(log, provider=model, tools=[look], config=CONFIG, context=context) as (_, session):
        await session.send("first " + "x" * 80)
        await session.send("second")
        history = await session.history()
        assert history[0].role == "user"
        assert check_history(history) == []
        assert sessions.shown(history)[-2:] == ["user: second", "assistant: ok"]


async def test_case_a11_a_call_that_waits_for_approval_outlives_compaction(memory: InMemoryStore) -> None:
    model = Model(answers=[*[refold.say("a" * 120)] * 3, refold.use("pay", {"amount": 3}), refold.say("Paid.")])
    options: dict[str, Any] = {"clock": ManualClock(), "context": policy(140)}
    async with sessions.opened(memory, provider=model, tools=[pay], config=CONFIG, **options) as (runtime, session):
        for number in range(3):
            await session.send(f"before {number}")
        await pay_beside_chats(runtime, session, " " + "x" * 60)
        assert model.asked_for_summaries >= 1
        lines = sessions.shown(model.requests[-1].messages)
        assert lines[lines.index("use pay") + 1] == "result: paid 3"
        assert check_history(await session.history()) == []


async def test_case_j06_a_summary_in_the_middle_of_a_run_is_made_once_and_outlives_restarts(
    memory: InMemoryStore,
) -> None:
    model = Model(answers=[refold.use("look", {"what": str(number)}) for number in range(8)])
    options: dict[str, Any] = {"provider": model, "tools": [look], "config": CONFIG, "context": policy(150)}
    async with sessions.dying(memory, **options) as (runtime, session):
        seen = sessions.Seen(runtime, session)
        sending = asyncio.create_task(session.send("Look eight times."))
        await seen.first(ev.ContextPrepared)
    await asyncio.gather(sending, return_exceptions=True)
    summaries = [model.asked_for_summaries]
    for _ in range(2):
        held = sessions.HeldAnswer(refold.say("Done."))
        model.answers = [held]
        async with sessions.dying(memory, **options):
            await held.asked.wait()
        summaries.append(model.asked_for_summaries)
    model.answers = [refold.say("Done.")]
    async with sessions.opened(memory, **options) as (_, session):
        await session.send("And?", now=True)
        assert sessions.shown(await session.history())[1] == "user: Look eight times."
        prepared = await sessions.events_of(session, ev.ContextPrepared)
    assert len(set(summaries)) == 1, summaries
    assert model.asked_for_summaries == len(prepared)


async def test_compaction_does_not_repeat_each_round(log: EventStore) -> None:
    model = Model(answers=[*[refold.use("look", {"what": str(number)}) for number in range(20)], refold.say("Done.")])
    async with sessions.opened(log, provider=model, tools=[look], config=CONFIG, context=policy(300)) as (_, session):
        assert (await session.send("Look twenty times.")).text == "Done."
        assert 1 <= model.asked_for_summaries <= 7
        for request in model.requests:
            if not wants_summary(request):
                assert "user: Look twenty times." in sessions.shown(request.messages)
                assert sum(map(message_tokens, request.messages)) <= 300
        await assert_rebuilt(log, "s", model.requests)


async def test_what_memories_add_is_counted_before_a_summary_is_decided_on(log: EventStore) -> None:
    model, memory = Model(), Episodes(("memory_1", "input " + "y" * 200))
    config = refold.AgentConfig(model="m", system_prompt="", max_memory_recalls=1)
    async with sessions.opened(log, provider=model, config=config, context=policy(150), memory=memory) as (_, session):
        await talk(session, 9)
        assert len(await sessions.events_of(session, ev.ContextPrepared)) == model.asked_for_summaries > 0
        for responded in await sessions.events_of(session, ev.ModelResponded):
            assert responded.request.prepared.kept is None, "nothing is trimmed where a summary can be made"
        assert len(memory.asked) == 9, "a memory is asked once for a request"
        for request in model.requests:
            tokens = about_tokens(request.system_prompt) + sum(map(message_tokens, request.messages))
            assert wants_summary(request) or tokens <= 150
        await assert_rebuilt(log, "s", model.requests)


async def test_case_j12_an_input_that_comes_while_a_summary_is_made_is_recorded_after_what_it_is_behind(
    log: EventStore,
) -> None:
    held = sessions.HeldAnswer(refold.say("They talked."))
    model = Model(held)
    async with sessions.opened(log, provider=model, config=CONFIG, context=policy()) as (runtime, session):
        await talk(session, 3)
        sending = asyncio.create_task(session.send("fourth " + "x" * 160))
        await held.asked.wait()
        seen = sessions.Seen(runtime, session)
        behind = asyncio.create_task(session.send("behind"))
        joining = asyncio.create_task(session.send("joining", now=True))
        await seen.first(ev.InputQueued, 2)
        held.gate.set()
        await asyncio.gather(sending, behind, joining)
        types = await sessions.types_of(session)
        assert types.count("ContextPrepared") == 1
        lines = [line for line in sessions.shown(await session.history()) if not line.startswith("assistant")]
        assert lines[-3:] == ["user: fourth " + "x" * 160, "user: joining", "user: behind"]
        await assert_rebuilt(log, "s", model.requests)


@pytest.mark.parametrize(
    ("summary", "words", "paid"),
    [
        (refold.ProviderError("overloaded", kind="overloaded", retryable=True), "overloaded", 0),
        (RuntimeError("torn"), "RuntimeError: torn", 0),
        (asyncio.CancelledError(), "CancelledError", 0),
        (refold.say(" ", usage=SHORT), "says nothing", 5),
        (refold.say("z" * 2_000, usage=SHORT), "no shorter", 5),
    ],
    ids=["provider", "error", "cancelled", "empty", "long"],
)
async def test_a_summary_that_fails_fails_no_run_and_the_history_is_trimmed(
    log: EventStore, caplog: pytest.LogCaptureFixture, summary: Any, words: str, paid: int
) -> None:
    model = Model(*[summary] * 9)
    async with sessions.opened(log, provider=model, config=CONFIG, context=policy()) as (_, session):
        assert {type(result.outcome) for result in await talk(session, 6)} == {refold.Completed}
        assert await sessions.events_of(session, ev.ContextPrepared) == []
        answered = (await sessions.events_of(session, ev.ModelResponded))[-1]
        assert words in answered.request.prepared.notes[0]
        assert answered.request.prepared.kept is not None
        interrupted = await sessions.events_of(session, ev.ModelInterrupted)
        assert [event.usage.output_tokens for event in interrupted] == [paid] * (
            model.asked_for_summaries if paid else 0
        )
        assert len(await session.history()) == 12
        await assert_rebuilt(log, "s", [request for request in model.requests if not wants_summary(request)])
    assert any("not summarised" in record.message for record in caplog.records if record.levelno == logging.WARNING)


async def test_a_summary_counts_for_the_usage_the_cost_and_the_budget_of_its_run(log: EventStore) -> None:
    config = refold.AgentConfig(
        model="m", system_prompt="", prices={"m": refold.Price(input=1, output=1)}, budget=refold.Budget(tokens=1_000)
    )
    model = Model(refold.say("They talked.", usage=refold.Usage(input_tokens=300, output_tokens=5)))
    async with sessions.opened(log, provider=model, config=config, context=policy()) as (_, session):
        results = await talk(session, 6)
        spending = [result for result in results if result.usage.input_tokens]
        assert [result.usage.input_tokens for result in spending] == [300]
        assert spending[0].cost == pytest.approx(305 / 1e6)


async def test_a_summary_that_spends_the_budget_ends_the_run_before_its_model_call(log: EventStore) -> None:
    config = refold.AgentConfig(model="m", system_prompt="", budget=refold.Budget(tokens=100))
    model = Model(refold.say("They talked.", usage=refold.Usage(input_tokens=300)))
    async with sessions.opened(log, provider=model, config=config, context=policy()) as (_, session):
        results = await talk(session, 6)
        (failed,) = [result.outcome for result in results if isinstance(result.outcome, refold.Failed)]
        assert failed.error.kind == "budget"
        types = await sessions.types_of(session)
        assert types[types.index("ContextPrepared") + 1] == "RunFailed"
        assert isinstance((await session.send("Next.")).outcome, refold.Completed)
        assert check_history(await session.history()) == []


async def test_a_run_that_is_cancelled_while_its_history_is_summarised_ends_and_makes_no_call(log: EventStore) -> None:
    held = sessions.HeldAnswer(refold.say("They talked."))
    model = Model(held)
    async with sessions.opened(log, provider=model, config=CONFIG, context=policy()) as (_, session):
        await talk(session, 3)
        before = len(model.requests)
        sending = asyncio.create_task(session.send("fourth " + "x" * 160))
        await held.asked.wait()
        await session.cancel()
        assert isinstance((await sending).outcome, refold.Cancelled)
        assert len(model.requests) == before + 1
        assert await sessions.events_of(session, ev.ContextPrepared) == []
        assert isinstance((await session.send("Next.")).outcome, refold.Completed)


async def test_a_crash_between_summary_and_answer_repeats_the_model_call_alone(memory: InMemoryStore) -> None:
    held = sessions.HeldAnswer(refold.say("never"))
    model, again = Model(answers=[*[refold.say("answer " + "x" * 33)] * 3, held]), Model()
    async with sessions.dying(memory, provider=model, config=CONFIG, context=policy()) as (_, session):
        await talk(session, 3)
        sending = asyncio.create_task(session.send("fourth " + "x" * 160))
        await held.asked.wait()
        assert len(await sessions.events_of(session, ev.ContextPrepared)) == 1
    await asyncio.gather(sending, return_exceptions=True)
    async with sessions.opened(memory, provider=again, config=CONFIG, context=policy()) as (_, session):
        assert isinstance((await session.send("fifth")).outcome, refold.Completed)
        assert again.asked_for_summaries == 0
        assert sessions.shown(again.requests[0].messages) == sessions.shown(model.requests[-1].messages)


async def test_a_summary_that_the_log_refuses_for_a_while_is_recorded_once() -> None:
    log, clock = FailingStore(InMemoryStore()), ManualClock()
    held = sessions.HeldAnswer(refold.say("They talked."))
    model = Model(held)
    async with sessions.opened(log, provider=model, config=CONFIG, context=policy(), clock=clock) as (_, session):
        await talk(session, 3)
        sending = asyncio.create_task(session.send("fourth " + "x" * 160))
        await held.asked.wait()
        log.fail_appends(lambda: refold.PersistenceError("disk full"))
        held.gate.set()
        await clock.settle()
        await clock.advance(1)
        log.mend()
        while not sending.done():
            await clock.advance(1)
        assert isinstance((await sending).outcome, refold.Completed)
        assert len(await sessions.events_of(session, ev.ContextPrepared)) == 1
        assert model.asked_for_summaries == 1
    await sessions.assert_sound(log)


async def test_another_model_and_another_provider_may_make_the_summaries(log: EventStore) -> None:
    model, maker = Model(), Model()
    context = policy(model="small", provider=maker, summary_tokens=7, prompt=SUMMARY_PROMPT)
    async with sessions.opened(log, provider=model, config=CONFIG, context=context) as (_, session):
        await talk(session, 6)
        assert model.asked_for_summaries == 0
        assert (maker.requests[0].model, maker.requests[0].max_tokens) == ("small", 7)


async def test_a_summary_of_a_react_agent_is_asked_for_without_the_form_of_its_answers(log: EventStore) -> None:
    config = refold.AgentConfig(model="m", system_prompt="", protocol="react")
    model = Model(answers=[refold.say("Thought: I know.\nFINAL_ANSWER: " + "x" * 400) for _ in range(9)])
    async with sessions.opened(log, provider=model, config=config, context=policy(400)) as (_, session):
        for number in range(6):
            assert isinstance((await session.send(f"input {number}")).outcome, refold.Completed)
        assert model.asked_for_summaries >= 1
        assert len(await sessions.events_of(session, ev.ContextPrepared)) == model.asked_for_summaries


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"keep_tokens": 0},
        {"summary_tokens": True},
        {"prompt": " "},
        {"model": 3},
        {"count": 3},
    ],
    ids=str,
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(refold.ConfigError):
        refold.Summarising(**{"max_tokens": 100, **wrong})
