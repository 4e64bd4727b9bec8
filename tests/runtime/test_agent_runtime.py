"""An agent's life through the public API: configuration, sessions, turns, outcomes, events.

What the rows of the features promise of runs, keys, cancellation and commits is in `tests/conformance`.
"""

import asyncio
from typing import Any

import msgspec
import pytest

import refold
from refold.actors import ManualClock
from refold.events.model import payloads
from refold.events.session.events import ToolCallCompleted
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import HeldAnswer, requests_of, results_of
from tests.runtime.talking import CONFIG, scripted, talking


@refold.tool(tier="observe", effect="pure")
async def weather(city: str, days: int = 1) -> str:
    return f"{city}: sunny for {days} days"


@refold.tool(tier="act")
def note(text: str) -> str:
    return f"noted {text}"


async def test_a_run_with_one_tool_call_completes_with_the_final_text() -> None:
    script = [refold.use("weather", {"city": "Lisbon"}, id="toolu_a"), refold.say("Sunny.")]
    async with talking(*script, tools=[weather, note]) as (session, runtime):
        result = await session.send("Weather in Lisbon?")
        history = await session.history()
        first, second = requests_of(runtime)
    assert (result.outcome, result.text, result.turns) == (refold.Completed(), "Sunny.", 2)
    assert [message.role for message in history] == ["user", "assistant", "user", "assistant"]
    call, answer = history[1].content[0], history[2].content[0]
    assert isinstance(call, refold.ToolUseBlock)
    assert isinstance(answer, refold.ToolResultBlock)
    assert (call.name, call.input, call.provider_id) == ("weather", {"city": "Lisbon"}, "toolu_a")
    assert (answer.tool_use_id, answer.text, answer.is_error) == (call.id, "Lisbon: sunny for 1 days", False)
    assert list(second.messages) == history[:3]
    assert ([spec.name for spec in first.tools], first.system_prompt) == (["note", "weather"], "Be brief.")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"provider": refold.ScriptedProvider([])}, "AgentConfig"),
        ({"config": CONFIG}, "provider"),
        ({"config": CONFIG, "provider": refold.ScriptedProvider([]), "durable": True}, "no option 'durable'"),
    ],
)
def test_an_agent_without_configuration_is_refused_at_construction(options: dict[str, Any], said: str) -> None:
    config = [options.pop("config")] if "config" in options else []
    with pytest.raises(refold.ConfigError, match=said):
        refold.AgentRuntime(*config, **options)


async def test_an_unknown_id_with_restore_is_an_error_that_names_it() -> None:
    async with talking(refold.say("hi")) as (session, runtime):
        with pytest.raises(refold.ConfigError, match="'nobody'"):
            await runtime.session("nobody", restore=True)
        await session.send("hello")
        assert len(await (await runtime.session("s", restore=True)).history()) == 2
        assert await runtime.sessions() == ["s"]


async def test_a_session_without_an_id_gets_one_from_the_injected_source() -> None:
    async with scripted(session_ids=lambda: "made-1") as runtime:
        assert (await runtime.session()).id == "made-1"


async def test_a_tool_context_names_the_call_and_carries_the_applications_own_object() -> None:
    seen: list[refold.ToolContext[Any]] = []

    @refold.tool
    async def look(context: refold.ToolContext[dict[str, int]], thing: str) -> str:
        seen.append(context)
        return str(context.deps["n"])

    async with talking(refold.use("look", {"thing": "x"}), refold.say("ok"), tools=[look], deps={"n": 7}) as (
        session,
        runtime,
    ):
        await session.send("go")
        (result,) = await results_of(session)
        assert "context" not in str(requests_of(runtime)[0].tools[0].input_schema)
    assert (seen[0].call, seen[0].session, result.text) == (result.tool_use_id, "s", "7")
    assert seen[0].idempotency_key == f"s/{result.tool_use_id}"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refold.ProviderError("overloaded", kind="overloaded", status=529, retryable=True), "provider"),
        (RuntimeError("overloaded, and no provider error"), "agent_loop"),
    ],
)
async def test_a_provider_that_fails_ends_the_run_as_failed_and_the_next_input_runs(
    error: Exception, kind: str
) -> None:
    config = refold.AgentConfig(model="m", retry=None)
    async with talking(error, refold.say("back"), config=config) as (session, _):
        failed, completed = await session.send("one"), await session.send("two")
    assert isinstance(failed.outcome, refold.Failed)
    assert failed.outcome.error.kind == kind
    assert "overloaded" in failed.outcome.error.message
    assert (failed.stop_reason, completed.stop_reason, completed.text) == (None, "end_turn", "back")


async def test_events_carry_causes_that_lead_back_to_the_input() -> None:
    async with talking(refold.use("weather", {"city": "x"}), refold.say("ok"), tools=[weather]) as (session, _):
        await session.send("go")
        events = {f"session/s@{item.version}": item async for item in session.events()}
    chain = [events[f"session/s@{len(events)}"]]
    while chain[-1].causation is not None:
        chain.append(events[chain[-1].causation])
    assert [type(item.event).__name__ for item in chain] == [
        *("RunCompleted", "ModelResponded", "ModelRequested"),
        *("ToolCallCompleted", "ToolCallStarted"),
        *("ModelResponded", "ModelRequested", "InputQueued"),
    ]
    assert {item.correlation for item in chain} == {"session/s@3"}


@pytest.mark.parametrize("way", ["send", "result", "stream"])
async def test_tools_of_several_sessions_that_wait_for_each_other_are_told_before_they_do(way: str) -> None:
    refused: list[str] = []

    @refold.tool
    async def ask_next(context: refold.ToolContext[None]) -> str:
        following = await runtime.session({"s": "b", "b": "c", "c": "s"}[context.session])
        try:
            if way == "send":
                return (await following.send("and?")).text
            run = await following.submit("and?")
            if way == "stream":
                async for _ in run.stream():
                    pass
            return (await run.result()).text
        except refold.AskCycle as error:
            refused.append(str(error))
            raise

    script = [refold.use("ask_next")] * 3 + [refold.say(name) for name in ("c", "b", "s")]
    async with talking(*script, refold.say("queued"), tools=[ask_next]) as (session, runtime):
        assert (await session.send("go")).text == "s"
        assert [block.text for block in await results_of(session)] == ["b"]
    assert [error.split(". ")[0] for error in refused] == [
        "waiting here would never end: session/s -> session/b -> session/c -> its tool -> session/s"
    ]


async def test_a_tool_may_submit_to_its_own_session_and_cannot_wait_for_what_it_submitted() -> None:
    @refold.tool
    async def go_on(context: refold.ToolContext[None]) -> str:
        run = await (await runtime.session(context.session)).submit("and then?", key="then")
        with pytest.raises(refold.AskCycle, match="session/s -> its tool -> session/s"):
            await run.result()
        reader = run.stream()
        assert isinstance(await anext(reader), refold.RecordedEvent)  # What is there is no wait.
        with pytest.raises(refold.AskCycle, match="session/s -> its tool -> session/s"):
            await anext(reader)
        return run.run

    async with talking(refold.use("go_on"), refold.say("done"), refold.say("then"), tools=[go_on]) as (
        session,
        runtime,
    ):
        assert (await session.send("go")).text == "done"
        [result] = await results_of(session)
        assert (await (await session.run(result.text)).result()).text == "then"


async def test_a_tool_may_read_the_run_that_it_is_part_of_until_another_call_has_its_result() -> None:
    both_begun = asyncio.Event()

    @refold.tool(tier="observe")
    async def watch(context: refold.ToolContext[None]) -> str:
        run = await (await runtime.session(context.session)).run(key="go")
        seen: list[str] = []
        async for item in run.stream():
            if isinstance(item, refold.Progressed):
                seen.append(str(item.report))
            elif isinstance(item, refold.RecordedEvent):
                seen.append(type(item.event).__name__)
                if seen.count("ToolCallStarted") == 2:
                    both_begun.set()
                if isinstance(item.event, ToolCallCompleted):
                    break
        return " ".join(seen[-2:])

    @refold.tool(tier="observe")
    async def work(context: refold.ToolContext[None]) -> str:
        await both_begun.wait()
        context.progress("half")
        return "worked"

    calls = [refold.use("watch"), refold.use("work")]
    async with talking(calls, refold.say("done"), tools=[watch, work]) as (session, runtime):
        assert (await session.send("go", key="go")).text == "done"
        assert [block.text for block in await results_of(session)] == ["half ToolCallCompleted", "worked"]


async def test_a_wait_that_a_tool_has_left_behind_keeps_no_other_tool_from_waiting_for_its_session() -> None:
    model = HeldAnswer(refold.use("ask_back"))
    left: list[asyncio.Task[refold.RunResult]] = []

    @refold.tool
    async def ask() -> str:
        left.append(asyncio.create_task((await runtime.session("b")).send("and?")))
        await model.asked.wait()
        return "asked"

    @refold.tool
    async def ask_back() -> str:
        return (await session.send("and you?")).text

    script = [refold.use("ask"), model, refold.say("asked"), refold.say("fine"), refold.say("b is done")]
    async with talking(*script, tools=[ask, ask_back]) as (session, runtime):
        assert (await session.send("go")).text == "asked"
        model.gate.set()
        assert (await left[0]).text == "b is done"
        assert [block.text for block in await results_of(await runtime.session("b"))] == ["fine"]


async def test_a_wait_that_a_tool_has_given_up_keeps_no_other_tool_from_waiting_for_its_session() -> None:
    model, asks_back = HeldAnswer(refold.say("too late")), asyncio.Event()

    @refold.tool
    async def ask() -> str:
        other = await runtime.session("b")
        sending = asyncio.create_task(other.send("and?"))
        await model.asked.wait()
        sending.cancel()
        await asyncio.wait([sending])
        asked = await other.submit("and now?")
        await asks_back.wait()
        return asked.run

    @refold.tool
    async def ask_back() -> str:
        sending = asyncio.create_task(session.send("and you?"))
        await asyncio.sleep(0)
        asks_back.set()
        return (await sending).text

    script = [refold.use("ask"), model, refold.use("ask_back"), *map(refold.say, ("asked", "fine", "b"))]
    async with talking(*script, tools=[ask, ask_back]) as (session, runtime):
        assert (await session.send("go")).text == "asked"
        [asked] = await results_of(session)
        other = await runtime.session("b")
        assert (await (await other.run(asked.text)).result()).text == "b"
        assert [block.text for block in await results_of(other)] == ["fine"]


async def test_a_provider_without_a_stream_answers_a_streaming_agent_whole() -> None:
    class Whole:
        async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
            return refold.say("all at once")

    async with refold.AgentRuntime(refold.AgentConfig(model="m", streaming=True), provider=Whole()) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == "all at once"


def memory() -> FailingStore:
    return FailingStore(InMemoryStore())


def disk_full() -> refold.PersistenceError:
    return refold.PersistenceError("the disk is full")


async def test_a_cancellation_that_the_log_refuses_at_first_is_not_lost() -> None:
    model, clock, token, store = HeldAnswer("never"), ManualClock(), refold.CancellationToken(), memory()
    async with talking(model, log=store, clock=clock) as (session, _):
        sending = asyncio.create_task(session.send("go", cancel=token))
        await model.asked.wait()
        store.fail_appends(disk_full, times=1)
        token.cancel()
        await clock.settle()
        assert not sending.done()
        await clock.advance(1)
        model.gate.set()  # A run whose cancellation was lost would complete.
        assert (await sending).outcome == refold.Cancelled()


async def test_a_log_that_refuses_for_ever_does_not_hold_a_caller_who_is_cancelled() -> None:
    model, clock, store = HeldAnswer("never"), ManualClock(), memory()
    runtime = scripted(model, log=store, clock=clock, cancel_grace_s=5, close_grace_s=0)
    await runtime.__aenter__()
    sending = asyncio.create_task((await runtime.session("s")).send("go"))
    await model.asked.wait()
    store.fail_appends(disk_full)
    sending.cancel()
    await clock.advance(9)
    assert not sending.done()
    await clock.advance(2)
    with pytest.raises(asyncio.CancelledError):
        await sending
    closing = asyncio.create_task(runtime.close())
    while not closing.done():
        await clock.advance(1)


async def test_a_caller_is_told_when_its_session_has_failed_for_good_and_others_go_on() -> None:
    model, failed = HeldAnswer("never"), asyncio.Event()
    options: dict[str, Any] = {"restarts_max": 0, "close_grace_s": 0, "on_failure": lambda _: failed.set()}
    async with talking(model, refold.say("fine"), **options) as (session, runtime):
        other = await runtime.session("other")
        sending = asyncio.create_task(session.send("go"))
        await model.asked.wait()
        runtime.system.ref("session/s").tell(object())
        await failed.wait()
        await ManualClock().settle()
        assert sending.done()
        with pytest.raises(refold.ActorStopped, match="it was stopped"):
            await sending
        with pytest.raises(refold.ActorStopped, match="failed too often"):
            await session.send("again")
        assert (await other.send("go")).text == "fine"


async def test_content_beyond_the_largest_payload_is_refused_or_answered_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payloads, "PAYLOAD_BYTES_MAX", 100_000)

    @refold.tool
    async def huge() -> str:
        return "x" * 200_000

    async with talking(refold.use("huge"), refold.say("Too much."), tools=[huge]) as (session, _):
        with pytest.raises(refold.CommandRejected, match="than the 100,000 that are accepted"):
            await session.send("y" * 200_000)
        assert (await session.send("go")).text == "Too much."
        (result,) = await results_of(session)
    assert (result.kind, "cannot be recorded" in result.text) == ("permanent", True)


async def test_a_result_says_in_json_how_its_run_ended() -> None:
    cancelled = refold.CancellationToken()
    cancelled.cancel()
    async with talking(refold.say("Sunny."), refold.ProviderError("no", kind="auth")) as (session, _):
        results = [await session.send("go"), await session.send("go"), await session.send("go", cancel=cancelled)]
    written = [msgspec.json.encode(result) for result in results]
    outcomes = [msgspec.json.decode(data)["outcome"] for data in written]
    failure = {"kind": "provider", "message": outcomes[1]["error"]["message"]}
    assert outcomes == [{"type": "completed"}, {"type": "failed", "error": failure}, {"type": "cancelled"}]
    again = [msgspec.json.decode(data, type=refold.RunResult[str]).outcome for data in written]
    assert again == [result.outcome for result in results]
