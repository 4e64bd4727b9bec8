"""The request that hangs or kills can be seen, and what left is recorded by its digest."""

import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import refold
from refold.actors import ManualClock
from refold.events.model import request as request_building
from refold.events.model.request import form_of, request_digest
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC
from refold.providers import FallbackProvider, OpenAIProvider, RecordingProvider
from refold.providers.http.settings import HttpTimeouts
from refold.providers.recorded import json_of
from refold.replay import recorded_request, replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore, When
from tests.conformance.processes import command_line, read_until, refold_line, run, started
from tests.conformance.requests import requests_in_flight as flight
from tests.conformance.sessions import session_in

PROGRAM = Path(flight.__file__)

FOLLOWING = tuple(shape for shape in flight.SHAPES if shape != "unbuilt")

QUICK = ("middleware", "unbuilt")
"""Shapes whose process is killed in every run of the tests."""


def shown(recorded: Any) -> object:
    """Return a request as its JSON says it, so that two of them can be compared."""
    return json_of(msgspec.structs.replace(recorded, messages=tuple(recorded.messages)))


async def versions(log: EventStore, *types: type) -> list[int]:
    events = SESSION_CODEC.decode_all(await log.read_stream("session/s"))
    return [version for version, event in enumerate(events, 1) if isinstance(event, types)]


@pytest.mark.parametrize("shape", FOLLOWING)
async def test_a_request_in_flight_is_shown_as_it_left_and_is_the_same_when_it_is_answered(shape: str) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def wait(request: refold.ModelRequest) -> str:
        asked.set()
        await answer.wait()
        return "Thought: so.\nFINAL_ANSWER: green" if shape == "react" else "green, shortly"

    at = len(flight.before(shape))
    script = [*flight.before(shape), wait, *[refold.say("green")] * (shape == "summary")]
    log, agent = InMemoryStore(), flight.agent(shape, *script)
    async with session_in(refold.AgentRuntime(agent, log=log)) as (_, session):
        sending = asyncio.create_task(session.send(flight.INPUT))
        await flight.until_in_flight(session, shape, asked)
        sent: Sequence[refold.ModelRequest] = agent.provider.requests  # type: ignore[attr-defined]
        wanted = (await versions(log, ev.ModelRequested))[at]
        found = [await recorded_request(log, "s", version) for version in (wanted, None)]
        assert [(shown(each.request), each.open) for each in found] == [(shown(sent[at]), True)] * 2
        answer.set()
        assert (await sending).outcome == refold.Completed()
        again = await recorded_request(log, "s", wanted)
        assert (shown(again.request), again.open, again.as_sent) == (shown(sent[-1]), False, True)
        ends = [await recorded_request(log, "s", each) for each in await versions(log, ev.ModelResponded)]
        assert [each.sent for each in ends] == [request_digest(each) for each in (*sent[:at], sent[-1])]
        built = await versions(log, ev.RequestBuilt)
        assert len(built) == flight.builds(shape)
        assert len(await versions(log, ev.ContextPrepared)) == (shape == "summary")
        for version in built:
            assert shown((await recorded_request(log, "s", version)).request) == shown(sent[at])
    (await replay(log, agent=agent)).raise_for_divergence()


@pytest.mark.parametrize(
    "shape",
    [shape if shape in QUICK else pytest.param(shape, marks=pytest.mark.slow) for shape in flight.SHAPES],
)
async def test_a_request_in_which_the_process_was_killed_is_shown_by_the_command(shape: str, tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with started(command_line(PROGRAM, log, shape)) as process:
        read_until(process, "in flight")
        process.send_signal(signal.SIGKILL)
        process.wait()
    async with await SQLiteStore.open(log, read_only=True) as store:
        wanted = (await versions(store, ev.ModelRequested))[-1]
    done = run(refold_line("show", log, "s", "--request", wanted, "--json"))
    if shape == "unbuilt":
        assert (done.returncode, done.stdout) == (2, "")
        assert f"the request that version {wanted} of session 's' wants is not in the log" in done.stderr
        return
    recorded = json.loads(done.stdout)
    asked = json.loads(run(["cat", f"{log}.asked"]).stdout)
    assert {name: value for name, value in recorded["request"].items() if name in asked} == asked
    assert recorded["open"]
    assert "not answered" in run(refold_line("show", log, "s", "--request", wanted)).stdout
    agent = flight.agent(shape, *[refold.say("FINAL_ANSWER: green")] * 4)
    async with session_in(refold.AgentRuntime(agent, log=log)) as (_, session):
        assert (await session.send("And now?")).outcome == refold.Completed()
        first: refold.ModelRequest = agent.provider.requests[0]  # type: ignore[attr-defined]
        again = await recorded_request(log, "s", wanted)
        assert again.open is False
        if shape != "summary":
            assert shown(again.request) == shown(first)


def completing(words: str) -> Any:
    """Return a connection to a host that answers in the form of OpenAI's API."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": words}}
    return httpx.MockTransport(lambda _: httpx.Response(200, json={"choices": [choice]}))


def openai(**options: Any) -> OpenAIProvider:
    return OpenAIProvider(api_key="sk-none", transport=completing("green"), **options)


def elsewhere() -> OpenAIProvider:
    return openai(base_url="http://127.0.0.1:9", max_tokens_field="max_completion_tokens")


def asking(provider: Any, **config: Any) -> refold.Agent:
    return refold.Agent(
        config=refold.AgentConfig(model="m", system_prompt="Serve.", **config), provider=provider, tools=[flight.look]
    )


def scripted() -> refold.ScriptedProvider:
    return refold.ScriptedProvider([refold.say("green")])


def changed_building(patch: pytest.MonkeyPatch) -> None:
    plain = request_building.plain_request

    def without_temperature(*given: Any) -> refold.ModelRequest:
        return msgspec.structs.replace(plain(*given), temperature=None)

    for module in ("refold.actors.calls.request", "refold.replay.agent_replay"):
        patch.setattr(f"{module}.plain_request", without_temperature)


@pytest.mark.parametrize(
    ("then", "today", "found"),
    [
        pytest.param(asking(scripted()), asking(scripted()), "", id="nothing"),
        pytest.param(asking(scripted()), asking(scripted(), protocol="react"), "request.sent", id="protocol"),
        pytest.param(asking(openai()), asking(openai(timeouts=HttpTimeouts(total_s=9))), "", id="a timeout"),
        pytest.param(asking(openai()), asking(elsewhere()), "", id="another address"),
        pytest.param(asking(openai()), asking(openai(reasoning_effort="high")), "request.sent", id="reasoning"),
        pytest.param(asking(openai()), asking(openai(extra_body={"top_k": 4})), "request.sent", id="body"),
        pytest.param(asking(openai()), asking(openai(), streaming=True), "request.sent", id="streaming"),
        pytest.param(asking(openai()), asking(scripted()), "ScriptedProvider makes another form", id="provider"),
        pytest.param(
            asking(FallbackProvider([openai(), (openai(), "n")])),
            asking(FallbackProvider([openai(), (openai(reasoning_effort="low"), "n")])),
            "request.sent",
            id="second of two",
        ),
        pytest.param(asking(scripted(), temperature=1.0), changed_building, "request.sent", id="our own code"),
    ],
)  # fmt: skip
async def test_what_makes_another_request_leave_is_found_by_its_digest(
    then: refold.Agent, today: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = InMemoryStore()
    async with refold.AgentRuntime(then, log=log) as runtime:
        assert (await (await runtime.session("s")).send("Is tea green?")).outcome == refold.Completed()
    if not isinstance(today, refold.Agent):
        today(monkeypatch)
        today = then
    report = await replay(log, agent=today)
    missed = [reason.why for each in report.compared for reason in each.not_compared]
    paths = [divergence.difference.path for divergence in report.divergences]
    assert (paths, bool(missed)) == ([found] * found.startswith("request"), found.startswith("Scripted"))
    assert all(found in why for why in missed)


async def test_a_failure_has_the_digest_and_a_request_that_never_left_has_none(tmp_path: Path) -> None:
    class Odd(refold.ScriptedProvider):
        def sent_digest(self, request: refold.ModelRequest, *, streamed: bool) -> str:
            raise self.error  # type: ignore[attr-defined]

    class Numbered(refold.ScriptedProvider):
        def sent_digest(self, request: refold.ModelRequest, *, streamed: bool) -> int:
            return 7

    refused, broken = Odd([refold.say("a")]), Odd([refold.say("a")])
    refused.error, broken.error = refold.ProviderError("no"), KeyError("no")  # type: ignore[attr-defined]
    failing = refold.ScriptedProvider([refold.ProviderError("down", kind="server")])
    cassette = RecordingProvider(openai(), tmp_path / "calls.jsonl")
    for provider, form in (
        (failing, "request"),
        (cassette, "openai"),
        (refused, ""),
        (broken, ""),
        (Numbered([refold.say("a")]), ""),
    ):
        log = InMemoryStore()
        async with refold.AgentRuntime(asking(provider), log=log) as runtime:
            await (await runtime.session("s")).send("Is tea green?")
        assert form_of((await recorded_request(log, "s")).sent) == form
    assert await versions(log, ev.ModelFailed) == []


async def test_a_summary_that_has_come_is_not_taken_for_the_request_that_is_still_at_work() -> None:
    clock, hanging, log = ManualClock(), flight.Hanging(3), InMemoryStore()

    async def slowly(request: refold.ModelRequest) -> str:
        await clock.sleep(1)
        return "They spoke."

    agent = msgspec.structs.replace(flight.agent("summary", *flight.before("summary"), slowly), middleware=[hanging])
    async with session_in(refold.AgentRuntime(agent, log=log, clock=clock, inbox_poll_s=0)) as (_, session):
        sending = asyncio.create_task(session.send(flight.INPUT))
        while not hanging.reached.is_set():
            await clock.advance(0.1)
        wanted = (await versions(log, ev.ModelRequested))[-1]
        assert len(await versions(log, ev.RequestBuilt)) == len(await versions(log, ev.ContextPrepared)) == 1
        for version in (wanted, None):
            with pytest.raises(refold.ConfigError, match="is not in the log"):
                await recorded_request(log, "s", version)
        await session.cancel()
        await sending


async def test_a_request_that_was_shortened_for_the_provider_is_shown_as_it_left() -> None:
    clock, gate, log = ManualClock(), asyncio.Event(), InMemoryStore()

    async def wait(request: refold.ModelRequest) -> str:
        await gate.wait()
        return "green"

    too_long = refold.ProviderError("too long", kind="context_too_long")
    provider = refold.ScriptedProvider([refold.say("A story. " * 200), too_long, wait, wait])
    async with session_in(refold.AgentRuntime(asking(provider), log=log, clock=clock, inbox_poll_s=0)) as (_, session):
        await session.send("Tell me a story.")
        for text in ("Is it true?", "And now?"):
            gate.clear()
            sending = asyncio.create_task(session.send(text))
            for _ in range(5):
                await clock.advance(0.1)
            recorded = await recorded_request(log, "s")
            assert (shown(recorded.request), recorded.open) == (shown(provider.requests[-1]), True)
            assert "A story" not in str(recorded.request.messages)
            gate.set()
            await clock.settle()
            assert (await sending).outcome == refold.Completed()


async def test_every_attempt_has_its_request_and_what_the_log_keeps_apart_is_in_the_digest() -> None:
    large: list[refold.TextBlock | refold.ImageBlock] = [
        refold.TextBlock(text="tea " * 30_000),
        refold.ImageBlock(media_type="image/png", data=bytes(90_000)),
    ]
    provider = refold.ScriptedProvider(
        [refold.ProviderError("busy", kind="server", retryable=True), refold.say("green"), refold.say("again")]
    )
    clock, log = ManualClock(), InMemoryStore()
    agent = asking(provider, retry=refold.RetryPolicy(attempts_max=2))
    async with session_in(refold.AgentRuntime(agent, log=log, clock=clock, inbox_poll_s=0)) as (_, session):
        for content in (large, [refold.TextBlock(text="And now?")]):
            sending = asyncio.create_task(session.send(content))
            while not sending.done():
                await clock.advance(1)
        (failed,) = await versions(log, ev.ModelFailed)
        (again,) = await versions(log, ev.TimerFired)
        for version, sent in zip((failed, again, None), provider.requests, strict=True):
            recorded = await recorded_request(log, "s", version)
            assert shown(recorded.request) == shown(sent)
            assert (recorded.sent, recorded.as_sent) == (request_digest(sent), True)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("meets", ["the request", "the answer"])
async def test_a_log_that_fails_loses_neither_a_request_in_flight_nor_its_answer(when: When, meets: str) -> None:
    log, clock, gate = InMemoryStore(), ManualClock(), asyncio.Event()
    store = FailingStore(log)

    async def wait(request: refold.ModelRequest) -> str:
        await gate.wait()
        return "green"

    async def on(seconds: float) -> None:
        for _ in range(10):
            await clock.settle()
            await clock.advance(seconds / 10)

    agent = flight.agent("window", wait)
    async with session_in(refold.AgentRuntime(agent, log=store, clock=clock, inbox_poll_s=0)) as (_, session):
        sending = asyncio.create_task(session.send(flight.INPUT))
        await clock.settle()
        if meets == "the answer":
            await on(1)
        store.fail_appends(
            lambda: refold.PersistenceError("gone", outcome_unknown=True), when=when, of="session/", times=2
        )
        await on(5)
        gate.set()
        await on(30)
        assert (await sending).outcome == refold.Completed()
        assert shown((await recorded_request(log, "s")).request) == shown(agent.provider.requests[0])  # type: ignore[attr-defined]
    built = SESSION_CODEC.decode_all(await log.read_stream("session/s"))
    assert 1 <= sum(isinstance(event, ev.RequestBuilt) for event in built) <= 3
    assert sum(isinstance(event, ev.ModelResponded) for event in built) == 1
