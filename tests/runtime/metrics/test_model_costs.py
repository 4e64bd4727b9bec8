"""Figures by model and money: the same live and from the log, in any order, and in what the command writes."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import refold
from refold.actors import ManualClock
from refold.events.model.spending import Price, cost_of
from refold.events.session.events import ModelInterrupted
from refold.events.views.metrics import MetricsState, count_all, nano_cost, snapshot
from refold.metrics import MetricsSnapshot, ModelCounts, read_metrics, read_statistics
from refold.providers.scripted import ScriptItem
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import events_of, requests_of
from tests.runtime.command_line import run
from tests.runtime.talking import talking

PRICES = {"big": Price(input=3, output=15, cache_read=0.3), "small": Price(input=0.1, output=0.7)}

CONFIG = refold.AgentConfig(model="big", prices=PRICES, retry=refold.RetryPolicy(attempts_max=2, base_s=1, jitter=0))


def answer(text: str, model: str | None, *tokens: int) -> refold.ModelResponse:
    given, made, read = (*tokens, 0, 0, 0)[:3]
    usage = refold.Usage(input_tokens=given, output_tokens=made, cache_read_tokens=read)
    return refold.ModelResponse(content=(refold.TextBlock(text=text),), usage=usage, model=model)


async def spend(log: EventStore | Path, clock: ManualClock) -> MetricsSnapshot:
    """Have answers of several models, a retry, a failure and half an answer paid; return the live figures."""
    script: list[ScriptItem] = [
        answer("One.", "big-2026", 1_000, 100, 7),
        refold.ProviderError("busy", kind="overloaded", retryable=True),
        answer("Two.", None, 10, 1),
        answer("Three.", "unlisted", 5, 5),
        refold.ProviderError("no", kind="invalid_request", status=404),
        answer("Four.", "small", 3, 3),
    ]
    async with talking(*script, config=CONFIG, log=log, clock=clock) as (session, runtime):
        await session.send("one")
        sending = asyncio.ensure_future(session.send("two"))
        while not sending.done():
            await clock.advance(1)
        await session.send("three")
        assert isinstance((await session.send("four")).outcome, refold.Failed)
        await (await runtime.session("t")).send("five")
        return (await runtime.metrics.snapshot()).recorded()


async def test_each_model_has_its_calls_tokens_and_costs_live_and_from_the_log() -> None:
    log, clock = InMemoryStore(), ManualClock()
    live = await spend(log, clock)
    assert await read_metrics(log, at=live.position) == live
    assert live.models == {
        "big": ModelCounts(
            calls=3, answers=1, failures=2, retries=1, input_tokens=10, output_tokens=1, cost_nano=45_000
        ),
        "big-2026": ModelCounts(
            calls=1, answers=1, input_tokens=1_000, output_tokens=100, cache_read_tokens=7, cost_nano=4_502_100
        ),
        "small": ModelCounts(calls=1, answers=1, input_tokens=3, output_tokens=3, cost_nano=2_400),
        # By the price of the model that was asked for, since none has its name.
        "unlisted": ModelCounts(calls=1, answers=1, input_tokens=5, output_tokens=5, cost_nano=90_000),
    }
    assert live.cost_nano == 4_639_500
    assert live.cost == 0.0046395
    assert live.agents["agent"].cost_nano == live.cost_nano
    assert live.model_calls == sum(counts.calls for counts in live.models.values())
    both = [await read_statistics(log, name) for name in ("s", "t")]
    assert sum((each.models.get("big", ModelCounts()) for each in both), ModelCounts()) == live.models["big"]
    assert [each.cost for each in both] == [0.0046371, 0.0000024]


async def test_the_figures_at_every_position_add_up_to_those_of_the_whole() -> None:
    log = InMemoryStore()
    live = await spend(log, ManualClock())
    earlier = MetricsSnapshot()
    for position in range(1, live.position + 1):
        later = await read_metrics(log, at=position)
        assert (earlier + later.delta(earlier)).models == later.models
        earlier = later
    assert earlier == live


async def test_half_an_answer_that_is_paid_after_its_run_was_cancelled_counts_for_its_model() -> None:
    log = InMemoryStore()
    config = msgspec.structs.replace(CONFIG, streaming=True)
    script = refold.stall(answer("Half of it is here.", None, 1_000, 50), after=1)
    async with talking(script, config=config, log=log) as (session, runtime):
        async with session.stream("Go") as events:
            async for _ in events:
                if requests_of(runtime):
                    break
        statistics = await session.statistics()
        live = await runtime.metrics.snapshot()
        assert await events_of(session, ModelInterrupted)
    assert live.models["big"] == ModelCounts(interruptions=1, input_tokens=1_000, cost_nano=3_000_000)
    assert (live.models, live.cost) == (statistics.models, statistics.cost)


async def test_a_summary_is_a_call_of_its_model() -> None:
    script = [refold.say("A story. " * 60), answer("They told one.", "small", 100, 10), answer("Yes.", "big", 1, 1)]
    async with talking(*script, config=CONFIG, context=refold.Summarising(100)) as (session, runtime):
        await session.send("Tell me.")
        await session.send("Is it true?")
        counts = (await runtime.metrics.snapshot()).models["small"]
    assert counts == ModelCounts(calls=1, summaries=1, input_tokens=100, output_tokens=10, cost_nano=17_000)


async def test_tokens_without_a_price_are_counted_as_such() -> None:
    async with talking(answer("One.", None, 5, 5), config=refold.AgentConfig(model="big")) as (session, runtime):
        await session.send("Go")
        found = await runtime.metrics.snapshot()
    assert (found.models["big"].unpriced, found.cost) == (1, 0)


async def test_prices_are_those_in_force_at_each_call() -> None:
    log = InMemoryStore()
    for price in (1, 2):
        config = refold.AgentConfig(model="big", prices={"big": Price(input=price, output=0)})
        async with talking(answer("One.", None, 1_000), config=config, log=log) as (session, runtime):
            await session.send("Go")
            live = (await runtime.metrics.snapshot()).recorded()
    assert live.models["big"].cost_nano == 3_000_000
    assert (await read_statistics(log, "s")).models == live.models


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20),
    st.floats(0, 1e3, allow_nan=False),
    st.randoms(use_true_random=False),
)
def test_a_sum_of_money_is_the_same_in_any_order_and_near_the_exact_one(
    tokens: list[tuple[int, int]], price: float, random: Random
) -> None:
    whole = Price(input=price, output=price / 3)
    amounts = [nano_cost(refold.Usage(input_tokens=one, output_tokens=other), whole) for one, other in tokens]
    shuffled = list(amounts)
    random.shuffle(shuffled)
    assert sum(amounts) == sum(shuffled)
    exact = Decimal(0)
    for one, other in tokens:
        exact += (Decimal(one) * Decimal(whole.input) + Decimal(other) * Decimal(whole.output)) / 1_000_000
    assert abs(Decimal(sum(amounts)) / 10**9 - exact) <= len(tokens) * (Decimal("5.1e-10") + exact * Decimal("1e-12"))


async def test_streams_may_follow_one_another_in_any_order() -> None:
    log = InMemoryStore()
    live = await spend(log, ManualClock())
    events = await log.read_all(limit=1_000)
    by_stream = sorted(events, key=lambda stored: (stored.stream, stored.version))
    mixed = snapshot(count_all(MetricsState(), by_stream))
    assert (mixed.models, mixed.cost_nano, mixed.agents) == (live.models, live.cost_nano, live.agents)


async def test_a_sessions_own_cost_agrees_with_the_figures() -> None:
    log = InMemoryStore()
    live = await spend(log, ManualClock())
    whole = cost_of(refold.Usage(input_tokens=1_000, output_tokens=100, cache_read_tokens=7), PRICES["big"])
    assert live.models["big-2026"].cost == pytest.approx(whole, abs=1e-9)


def test_the_command_shows_them_and_prometheus_gets_them(tmp_path: Path) -> None:
    log = tmp_path / "a.db"
    live = asyncio.run(spend(log, ManualClock()))

    def written(*arguments: object) -> str:
        result = run(*arguments, columns=120)
        assert result.exit_code == 0, result.output
        return result.stdout

    lines = [line.split() for line in written("metrics", log).splitlines()]
    assert ["cost", "0.00464"] in lines or ["cost", "0.0046395"] in lines or ["cost", "0.004639"] in lines, lines
    assert ["big-2026", "1", "0", "0", "1,000", "100", "7", "0.004502"] in lines
    document = json.loads(written("metrics", log, "--json"))
    assert document["models"]["big"] == msgspec.to_builtins(live.models["big"])
    assert document["derived"]["cost"] == live.cost
    families = {
        family.name: family for family in text_string_to_metric_families(written("metrics", log, "--prometheus"))
    }
    costs = {sample.labels["model"]: sample.value for sample in families["refold_cost_of_model"].samples}
    assert costs == {name: counts.cost for name, counts in live.models.items()}
    assert families["refold_cost"].samples[0].value == live.cost
    calls = {tuple(sample.labels.values()): sample.value for sample in families["refold_calls_of_model"].samples}
    assert calls["big", "failed"] == 2
    session = json.loads(written("stats", log, "s", "--json"))
    assert (session["cost"], session["models"]["big"]["retries"]) == (0.0046371, 1)
    assert "COST" in written("stats", log)
    assert "big-2026" in written("stats", log, "s")
    earlier = json.loads(written("metrics", log, "--at", 5, "--json"))
    assert (earlier["models"], earlier["cost_nano"]) == ({}, 0)
