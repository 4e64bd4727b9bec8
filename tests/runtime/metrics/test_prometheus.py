"""Prometheus's own client writes the metrics, and its own parser reads them back."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from refold import AgentConfig, AgentRuntime, ConfigError, ScriptedProvider, ToolError, say, tool, use
from refold.events.views.metrics_snapshot import AgentCounts, LiveCounts, ToolCounts
from refold.metrics import MetricsSnapshot, PrometheusCollector, prometheus_text

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@tool
def fail() -> str:
    raise ToolError("no")


def runtime_named(name: str = "agent") -> AgentRuntime:
    provider = ScriptedProvider([use("fail", {}), say("Done.")] * 5)
    return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[fail], name=name)


def samples_in(text: str) -> Samples:
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def scraped(registry: CollectorRegistry) -> Samples:
    return samples_in(generate_latest(registry).decode())


def named(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def test_a_server_scrapes_the_figures_of_the_moment() -> None:
    registry = CollectorRegistry(auto_describe=True)
    async with runtime_named() as runtime:
        session = await runtime.session("a")
        registry.register(PrometheusCollector(runtime))
        await session.send("Go")
        await runtime.metrics.snapshot()
        here = scraped(registry)
        assert await asyncio.to_thread(scraped, registry) == here, "in a thread of the server's own"
        await session.send("Go")
        later = scraped(registry)
    assert here[named("refold_metrics_complete")] == 1
    assert here[named("refold_runs_ended_total", outcome="completed")] == 1
    assert later[named("refold_runs_ended_total", outcome="completed")] == 2
    assert later[named("refold_tool_failures_total", tool="fail", kind="permanent")] == 2
    assert later[named("refold_agent_steps_total", agent="agent")] == 4
    assert later[named("refold_commits_total")] > here[named("refold_commits_total")]
    assert later[named("refold_events_total", type="session.run_started.v1")] == 2


async def test_until_the_log_is_counted_a_scrape_on_its_own_loop_has_no_figures() -> None:
    registry = CollectorRegistry()
    async with runtime_named() as runtime:
        registry.register(PrometheusCollector(runtime))
        assert scraped(registry) == {named("refold_metrics_complete"): 0}
        await runtime.metrics.snapshot()
        assert scraped(registry)[named("refold_sessions_total")] == 0


def test_a_program_without_a_loop_scrapes_a_blocking_runtime() -> None:
    registry = CollectorRegistry(auto_describe=True)
    with runtime_named() as runtime:
        runtime.session("a").send("Go")
        registry.register(PrometheusCollector(runtime))
        assert scraped(registry)[named("refold_steps_total")] == 2


async def test_several_runtimes_are_summed() -> None:
    registry = CollectorRegistry()
    async with runtime_named("one") as one, runtime_named("two") as two:
        for runtime in (one, two):
            await (await runtime.session("a")).send("Go")
            await runtime.metrics.snapshot()
        registry.register(PrometheusCollector(one, two))
        found = scraped(registry)
    assert found[named("refold_sessions_total")] == 2
    assert found[named("refold_agent_sessions_total", agent="one")] == 1


def test_a_collector_needs_runtimes_that_have_been_open() -> None:
    with pytest.raises(ConfigError, match="needs a runtime"):
        PrometheusCollector()
    with pytest.raises(ConfigError, match="not open"):
        PrometheusCollector(runtime_named())


HOSTILE = 'a"b\\c\nd{e="f"} 1\n# TYPE x'


def test_labels_hold_any_text() -> None:
    snapshot = MetricsSnapshot(tools={HOSTILE: ToolCounts(calls=3)}, agents={HOSTILE: AgentCounts(steps=2)})
    found = samples_in(prometheus_text(snapshot))
    assert found[named("refold_tool_calls_total", tool=HOSTILE)] == 3
    assert found[named("refold_agent_steps_total", agent=HOSTILE)] == 2


def test_what_no_log_knows_is_given_where_it_is_known() -> None:
    live = LiveCounts(depth=6, sheds=5, commits=4, failed_appends=3, shed_commands=2, observer_failures=1)
    found = samples_in(prometheus_text(MetricsSnapshot(live=live)))
    names = ("sheds", "commits", "failed_appends", "shed_commands", "observer_failures")
    assert [found[named(f"refold_{name}_total")] for name in names] == [5, 4, 3, 2, 1]
    assert found[named("refold_backpressure_depth")] == 6
    assert named("refold_commits_total") not in samples_in(prometheus_text(MetricsSnapshot()))
