"""Spans of OpenTelemetry from a log: the same live and later, over processes, and without words unless asked."""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    Allow,
    ProviderError,
    RetryPolicy,
    ScriptedProvider,
    ToolError,
    Usage,
    connect,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.tracing import SpanSender, TraceSpan, current_traceparent, read_spans, traced
from tests.runtime.command_line import run

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.db"))
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    """Look at something."""
    if what == "nothing":
        raise ToolError("there is nothing")
    return f"{what}: seen"


@tool(tier="confirm")
async def sign(name: str) -> str:
    """Sign with a name."""
    return f"signed by {name}"


def agent(*script: Any, **more: Any) -> Agent:
    config = AgentConfig(model="m", retry=RetryPolicy(base_s=1e-6))
    return Agent(config=config, provider=ScriptedProvider(script), **{"tools": [look, sign]} | more)


async def spans_of(log: Path, **options: Any) -> list[TraceSpan]:
    return [span async for span in read_spans(log, **options)]


def tree(spans: Sequence[TraceSpan]) -> list[str]:
    """Return the names, each behind those above it."""
    above = {span.span: span for span in spans}

    def path(span: TraceSpan) -> str:
        return (path(above[span.parent]) + " > " if span.parent in above else "") + span.name

    return sorted(map(path, spans))


async def test_a_run_is_a_tree_of_spans_in_the_words_of_the_conventions(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    usage = Usage(input_tokens=7, output_tokens=3, cache_read_tokens=2)
    script = (
        [use("look", {"what": "sea"}), use("look", {"what": "nothing"})],
        say("Blue.", usage=usage),
    )
    async with AgentRuntime(agent(*script), log=log) as runtime:
        await (await runtime.session("ann")).send("How is the sea?")
    spans = await spans_of(log)
    assert tree(spans) == [
        "invoke_agent agent",
        "invoke_agent agent > chat m",
        "invoke_agent agent > chat m",
        "invoke_agent agent > execute_tool look",
        "invoke_agent agent > execute_tool look",
    ]
    whole, chat = spans[-1], spans[-2]
    assert whole.parent is None
    assert whole.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "ann",
        "gen_ai.agent.name": "agent",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "refold.run.id": "run_3",
        "refold.outcome": "completed",
        "refold.turns": 2,
        "refold.tool_calls": 2,
    }
    assert (chat.kind, chat.attributes["gen_ai.response.finish_reasons"]) == ("client", ("end_turn",))
    assert [span.error for span in spans if span.name == "execute_tool look"] == [None, "permanent"]
    assert all(whole.start <= span.start <= span.end <= whole.end for span in spans)
    assert "sea" not in str(spans)
    assert "sea: seen" in str(await spans_of(log, content=True))
    assert await spans_of(log) == spans
    assert await spans_of(log, after=spans[1].position) == spans[2:]


async def test_what_an_agent_does_that_was_handed_the_run_is_told_as_its_own(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    second = Agent(config=AgentConfig(model="big"), provider=ScriptedProvider([say("Paid.")]), name="billing")
    async with AgentRuntime(agent(use("transfer_to_billing", {}), handoffs=[second]), log=log) as runtime:
        await (await runtime.session("ann")).send("Pay.", max_tokens=90)
    chats = [span for span in await spans_of(log) if span.kind == "client"]
    assert [
        (span.name, span.attributes["gen_ai.agent.name"], span.attributes["gen_ai.request.model"]) for span in chats
    ] == [
        ("chat m", "agent", "m"),
        ("chat big", "billing", "big"),
    ]


async def test_waits_retries_and_subagents_are_in_the_spans(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    failure = ProviderError("busy", kind="overloaded", retryable=True)
    helper = agent(use("look", {"what": "sea"}), say("Blue."), name="helper")
    script = (failure, [use("sign", {"name": "Ann"}), use("helper", {"task": "Look at the sea."})], say("Done."))
    whole = agent(*script, tools=[sign, helper.as_tool()], approval=lambda session, request: Allow())
    async with AgentRuntime(whole, log=log) as runtime:
        await (await runtime.session("ann")).send("Sign.")
    spans = await spans_of(log)
    assert tree(spans) == [
        "invoke_agent agent",
        *["invoke_agent agent > chat m"] * 3,
        "invoke_agent agent > execute_tool helper",
        "invoke_agent agent > execute_tool helper > invoke_agent helper",
        *["invoke_agent agent > execute_tool helper > invoke_agent helper > chat m"] * 2,
        "invoke_agent agent > execute_tool helper > invoke_agent helper > execute_tool look",
        "invoke_agent agent > execute_tool sign",
        "invoke_agent agent > wait sign",
    ]
    assert len({span.trace for span in spans}) == 1
    assert len({span.span for span in spans}) == len(spans)
    [failed] = [span for span in spans if span.name == "chat m" and span.error is not None]
    assert (failed.error, failed.attributes["error.type"]) == ("overloaded", "overloaded")
    assert [event.name for event in spans[-1].events] == ["retry"]
    [wait] = [span for span in spans if span.name == "wait sign"]
    assert (wait.attributes["refold.wait"], wait.attributes["refold.allowed"]) == ("approval", True)
    child = next(str(span.attributes["gen_ai.conversation.id"]) for span in spans if span.name == "invoke_agent helper")
    assert await spans_of(log, session=child) == [
        span for span in spans if span.attributes["gen_ai.conversation.id"] == child
    ]


async def test_what_is_open_when_a_run_is_cancelled_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with AgentRuntime(agent(use("sign", {"name": "Ann"}), say("Done.")), log=log) as runtime:
        session = await runtime.session("ann")
        run_handle = await session.submit("Sign.")
        async for item in session.follow(after_version=0):
            if type(getattr(item, "event", None)).__name__ == "ToolApprovalRequested":
                break
        await run_handle.cancel()
        await run_handle.result()
    spans = await spans_of(log)
    assert [(span.name, span.error) for span in spans[1:]] == [("wait sign", "cancelled"), ("invoke_agent agent", None)]
    assert spans[-1].attributes["refold.outcome"] == "cancelled"


async def test_a_run_over_two_processes_goes_on_with_the_trace_of_its_caller(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with AgentRuntime(agent(use("sign", {"name": "Ann"})), log=log) as runtime:
        session = await runtime.session("ann")
        await session.submit("Sign.", key="1", traceparent=CALLER)
        same = await session.submit("Sign.", key="1", traceparent=CALLER.replace("b7-", "b8-"))
        assert same.id == "ann/run_3"
    async with AgentRuntime(agent(say("Done."), approval=lambda session, request: Allow()), log=log) as runtime:
        await (await runtime.run("ann/run_3")).result()
        await connect(log).session("ann").send("Again.", traceparent=CALLER)
        await (await runtime.session("ann")).send("Again.", traceparent="00-no trace-at all")
    spans = await spans_of(log)
    first, second, third = (span for span in spans if span.name == "invoke_agent agent")
    for span in (first, second):
        assert (span.trace, span.parent) == (CALLER[3:35], CALLER[36:52])
    assert (first.error, first.attributes["refold.outcome"]) == (None, "completed")
    assert third.parent is None
    assert {span.trace for span in spans} == {first.trace, third.trace}


def test_the_caller_of_opentelemetry_is_found() -> None:
    assert current_traceparent() is None
    with TracerProvider().get_tracer("test").start_as_current_span("caller") as span:
        context = span.get_span_context()
        assert current_traceparent() == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class Exporter(InMemorySpanExporter):
    """Keeps what it is given; tells the loop when something came."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.came = asyncio.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.loop.call_soon_threadsafe(self.came.set)
        return result


async def test_live_spans_and_figures_are_those_of_the_log_though_their_task_is_cut(tmp_path: Path) -> None:
    log, clock, exporter, reader = tmp_path / "events.db", ManualClock(), Exporter(), InMemoryMetricReader()
    script = (use("look", {"what": "sea"}), say("Blue.", usage=Usage(input_tokens=5, output_tokens=2)), say("Green."))
    sender = SpanSender(exporter, meter_provider=MeterProvider([reader]))
    async with traced(log, sender, clock=clock), AgentRuntime(agent(*script), log=log) as runtime:
        session = await runtime.session("ann")
        [following] = [task for task in asyncio.all_tasks() if task.get_name() == f"spans of {log}"]
        following.cancel()  # As other code may; it begins again.
        await session.send("How is the sea?")
        while not exporter.came.is_set():
            await clock.advance(1)
        assert exporter.get_finished_spans()
        await session.send("And now?")
    sent = exporter.get_finished_spans()
    spans = await spans_of(log)
    assert [(span.name, f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}") for span in sent] == [
        (span.name, span.trace, span.span) for span in spans
    ]
    assert [dict(span.attributes or {}) for span in sent] == [span.attributes for span in spans]
    assert [(span.start_time, span.end_time) for span in sent] == [
        (span.start * 1000, span.end * 1000) for span in spans
    ]
    [scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics  # type: ignore[union-attr]
    figures: dict[str, Any] = {metric.name: metric.data.data_points for metric in scope.metrics}
    assert sorted(figures) == ["gen_ai.client.operation.duration", "gen_ai.client.token.usage"]
    assert {point.attributes["gen_ai.token.type"]: point.sum for point in figures["gen_ai.client.token.usage"]} == {
        "input": 5,
        "output": 2,
    }
    assert sum(point.count for point in figures["gen_ai.client.operation.duration"]) == len(spans)


class BrokenExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("no collector")


async def test_an_exporter_that_fails_changes_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "events.db"
    async with (
        traced(log, SpanSender(BrokenExporter()), clock=ManualClock()),
        AgentRuntime(agent(say("Blue.")), log=log) as runtime,
    ):
        assert (await (await runtime.session("ann")).send("How is the sea?")).output == "Blue."
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "the exporter of spans failed" in told
    assert any("2 spans up to position" in line and "`refold trace` sends them again" in line for line in told)


async def test_what_a_log_redacts_no_span_says(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with AgentRuntime(agent(say("It is hunter2."), redact=["hunter2"]), log=log) as runtime:
        await (await runtime.session("ann")).send("Is it hunter2?")
    found = str(await spans_of(log, content=True))
    assert "hunter2" not in found
    assert "Is it [redacted" in found


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A receiver of OTLP over HTTP: its URL, and what it got."""
    got: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, request))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            got.append(format % args)

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_command_shows_spans_and_sends_them(log_file: Path, collector: tuple[str, list[Any]]) -> None:
    url, got = collector
    shown = run("trace", log_file, columns=120)
    assert shown.exit_code == 0
    assert "invoke_agent agent (alice)" in shown.stdout
    assert "└ chat" in shown.stdout
    lines = run("trace", log_file, "--json").stdout.splitlines()
    sent = run("trace", log_file, "--otlp", url)
    assert (sent.exit_code, sent.stderr) == (0, f"{len(lines)} spans sent\n")
    [(path, request)] = [item for item in got if isinstance(item, tuple)]
    assert path == "/v1/traces"
    [scope] = request.resource_spans[0].scope_spans
    assert scope.scope.name == "refold"
    assert [f'"span":"{span.span_id.hex()}"' in line for span, line in zip(scope.spans, lines, strict=True)] == [
        True
    ] * len(lines)
    assert run("trace", log_file, "nobody").exit_code == 2
    assert run("trace", log_file, "--otlp", "localhost").exit_code == 2
    assert run("trace", log_file, "--follow").exit_code == 2


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
async def test_older_logs_give_whole_trees(path: Path) -> None:
    spans = await spans_of(path)
    known = {(span.trace, span.span) for span in spans}
    assert len(known) == len(spans)
    assert [
        span for span in spans if span.name.startswith(("chat", "execute_tool", "wait")) and span.parent is None
    ] == []
    assert all(span.name.partition(" ")[2] for span in spans)


async def test_what_happens_in_a_moment_is_an_event_of_its_span() -> None:
    found = {event.name for path in GOLDEN for span in await spans_of(path) for event in span.events}
    assert found == {
        *("attempt", "attempt failed", "cancel", "compaction", "handoff", "parked", "resumed", "retry"),
    }


async def test_runs_whose_callers_name_each_other_are_shown(tmp_path: Path) -> None:
    async def two_runs(log: Path, *given: str | None) -> list[TraceSpan]:
        async with AgentRuntime(agent(say("Blue."), say("Green.")), log=log, clock=ManualClock()) as runtime:
            session = await runtime.session("ann")
            for traceparent in given:
                await session.send("And?", traceparent=traceparent)
        return [span for span in await spans_of(log) if span.name == "invoke_agent agent"]

    first, second = await two_runs(tmp_path / "before.db", None, None)
    named = [f"00-{first.trace}-{span.span}-01" for span in (second, first)]
    circle = await two_runs(tmp_path / "events.db", *named)
    assert [span.parent for span in circle] == [second.span, first.span]
    assert await asyncio.to_thread(lambda: run("trace", tmp_path / "events.db").exit_code) == 0


def test_times_that_a_log_makes_up_are_sent_as_far_as_there_are_numbers() -> None:
    exporter = InMemorySpanExporter()
    span = TraceSpan(
        trace="1" * 32, span="2" * 16, parent=None, name="s", start=-5, end=2**62, position=1, attributes={}
    )
    assert SpanSender(exporter).send([span])
    [sent] = exporter.get_finished_spans()
    assert (sent.start_time, sent.end_time) == (0, 2**64 - 1)
