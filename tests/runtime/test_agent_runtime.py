"""An agent's life through the public API: configuration, sessions, turns, outcomes, events."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import (
    ActorStopped,
    Agent,
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Cancelled,
    CommandRejected,
    Completed,
    ConfigError,
    Failed,
    ModelRequest,
    ModelResponse,
    PersistenceError,
    ProviderError,
    ScriptedProvider,
    Session,
    ToolContext,
    ToolError,
    ToolResultBlock,
    ToolUseBlock,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.model import payloads
from refold.events.model.configuration import CORE_VERSION
from refold.events.session.events import CancelRequested, RunStarted, ToolApprovalRequested
from refold.stores import InMemoryStore

CONFIG = AgentConfig(model="test-model", system_prompt="Be brief.")


@tool(tier="observe", effect="pure")
async def weather(city: str, days: int = 1) -> str:
    """Forecast for a city."""
    return f"{city}: sunny for {days} days"


@tool(tier="act")
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


def scripted(*script: Any, tools: Any = (weather, note), **options: Any) -> tuple[AgentRuntime, ScriptedProvider]:
    provider = ScriptedProvider(script)
    return AgentRuntime(CONFIG, provider=provider, tools=tools, **options), provider


async def event_types(session: Any) -> list[str]:
    return [type(recorded.event).__name__ async for recorded in session.events()]


async def test_a_run_with_one_tool_call_completes_with_the_final_text() -> None:
    runtime, provider = scripted(use("weather", {"city": "Lisbon"}, id="toolu_a"), say("Sunny."))
    async with runtime:
        session = await runtime.session("alice")
        result = await session.send("Weather in Lisbon?")
        history = await session.history()

    assert result.outcome == Completed()
    assert result.text == "Sunny."
    assert result.turns == 2
    assert [message.role for message in history] == ["user", "assistant", "user", "assistant"]
    call = history[1].content[0]
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.input, call.provider_id) == ("weather", {"city": "Lisbon"}, "toolu_a")
    answer = history[2].content[0]
    assert isinstance(answer, ToolResultBlock)
    assert (answer.tool_use_id, answer.text, answer.is_error) == (call.id, "Lisbon: sunny for 1 days", False)
    assert list(provider.requests[1].messages) == history[:3]
    assert [spec.name for spec in provider.requests[0].tools] == ["note", "weather"]
    assert provider.requests[0].system_prompt == "Be brief."


async def test_an_input_one_tool_and_a_final_answer_take_four_commits() -> None:
    store = _CountingStore()
    runtime, _ = scripted(use("weather", {"city": "Lisbon"}), say("Sunny."), log=store)
    async with runtime:
        session = await runtime.session("alice")
        await session.send("Weather in Lisbon?")

    assert store.batches_of("session/alice") == [
        ["opened", "agent_configured", "input_queued", "run_started", "model_requested"],
        ["model_responded", "tool_call_started"],
        ["tool_call_completed", "model_requested"],
        ["model_responded", "run_completed"],
    ]


async def test_parallel_calls_take_one_commit_for_the_answer_and_one_for_each_result() -> None:
    store = _CountingStore()
    runtime, _ = scripted([use("weather", {"city": "A"}), use("weather", {"city": "B"})], say("Both."), log=store)
    async with runtime:
        session = await runtime.session("alice")
        await session.send("Both?")

    assert store.batches_of("session/alice")[1:] == [
        ["model_responded", "tool_call_started", "tool_call_started"],
        ["tool_call_completed"],
        ["tool_call_completed", "model_requested"],
        ["model_responded", "run_completed"],
    ]


async def test_a_second_input_on_an_idle_session_takes_one_commit_and_opens_nothing_again() -> None:
    store = _CountingStore()
    runtime, _ = scripted(say("One."), say("Two."), log=store)
    async with runtime:
        session = await runtime.session("alice")
        await session.send("first")
        await session.send("second")

    assert store.batches_of("session/alice")[2:] == [
        ["input_queued", "run_started", "model_requested"],
        ["model_responded", "run_completed"],
    ]


async def test_observing_tools_run_beside_each_other_and_acting_tools_alone_and_in_order() -> None:
    running: list[str] = []
    most: list[int] = []
    both = asyncio.Event()

    @tool(tier="observe")
    async def look(name: str) -> str:
        """Look."""
        running.append(name)
        most.append(len(running))
        if len(running) == 2:
            both.set()
        await both.wait()
        running.remove(name)
        return name

    @tool(tier="act")
    async def act(name: str) -> str:
        """Act."""
        running.append(name)
        most.append(len(running))
        await asyncio.sleep(0)
        running.remove(name)
        return name

    runtime, _ = scripted(
        [use("look", {"name": "a"}), use("look", {"name": "b"}), use("act", {"name": "c"}), use("act", {"name": "d"})],
        say("done"),
        tools=[look, act],
    )
    async with runtime:
        session = await runtime.session()
        await session.send("go")
        history = await session.history()

    assert most == [1, 2, 1, 1]
    assert [block.text for block in history[2].content if isinstance(block, ToolResultBlock)] == ["a", "b", "c", "d"]


async def test_an_agent_without_configuration_is_refused_at_construction() -> None:
    with pytest.raises(ConfigError, match="AgentConfig"):
        AgentRuntime()  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="provider"):
        AgentRuntime(CONFIG)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="no option 'durable'"):
        AgentRuntime(CONFIG, provider=ScriptedProvider([]), durable=True)  # type: ignore[call-overload]


async def test_an_agent_description_can_be_run_and_names_its_sessions_agent() -> None:
    agent = Agent(name="forecaster", config=CONFIG, provider=ScriptedProvider([say("hi")]), tools=[weather])
    async with AgentRuntime(agent) as runtime:
        session = await runtime.session("s")
        assert (await session.send("hello")).text == "hi"
        assert (await session.state_at()).agent == "forecaster"


async def test_reaching_max_turns_fails_and_names_the_number() -> None:
    config = AgentConfig(model="m", max_turns=2)
    provider = ScriptedProvider([use("weather", {"city": "x"})] * 5)
    async with AgentRuntime(config, provider=provider, tools=[weather]) as runtime:
        session = await runtime.session("s")
        result = await session.send("loop")

    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.kind == "max_turns"
    assert "Max turns (2) reached, stopping forcibly" in result.outcome.error.message
    assert len(provider.requests) == 2


async def test_an_unknown_id_with_restore_is_an_error_that_names_it() -> None:
    runtime, _ = scripted(say("hi"))
    async with runtime:
        with pytest.raises(ConfigError, match="'nobody'"):
            await runtime.session("nobody", restore=True)
        session = await runtime.session("somebody")
        await session.send("hello")
        again = await runtime.session("somebody", restore=True)
        assert len(await again.history()) == 2
        assert await runtime.sessions() == ["somebody"]


async def test_a_session_without_an_id_gets_one_from_the_injected_source() -> None:
    runtime, _ = scripted(session_ids=lambda: "made-1")
    async with runtime:
        assert (await runtime.session()).id == "made-1"


async def test_on_event_sees_every_event_of_its_run_in_order() -> None:
    runtime, _ = scripted(use("weather", {"city": "x"}), say("one"), say("two"))
    seen: list[Any] = []
    async with runtime:
        session = await runtime.session("s")
        await session.send("first", on_event=seen.append)
        first = list(seen)
        await session.send("second")
        recorded = [item async for item in session.events()]

    assert first == recorded[2 : 2 + len(first)]
    assert [type(item.event).__name__ for item in first] == [
        "InputQueued",
        "RunStarted",
        "ModelRequested",
        "ModelResponded",
        "ToolCallStarted",
        "ToolCallCompleted",
        "ModelRequested",
        "ModelResponded",
        "RunCompleted",
    ]
    assert seen == first


async def test_an_exception_in_on_event_cancels_the_run_and_is_the_callers_error() -> None:
    parked = asyncio.Event()

    @tool(tier="observe")
    async def wait() -> str:
        """Wait for ever."""
        await parked.wait()
        return "never"

    def handler(recorded: Any) -> None:
        if type(recorded.event).__name__ == "ToolCallStarted":
            raise LookupError("mine")

    runtime, _ = scripted(use("wait"), say("next"), tools=[wait])
    async with runtime:
        session = await runtime.session("s")
        with pytest.raises(LookupError, match="mine"):
            await session.send("go", on_event=handler)
        assert (await event_types(session))[-1] == "RunCancelled"
        assert (await session.send("again")).text == "next"


async def test_a_tool_that_fails_gives_the_model_an_error_with_its_kind_and_the_run_goes_on() -> None:
    @tool
    async def fails(how: str) -> str:
        """Fail."""
        if how == "transient":
            raise ToolError("try later", kind="transient")
        if how == "system exit":
            raise SystemExit(3)
        raise ValueError("broken \ud800")

    runtime, _ = scripted(
        [use("fails", {"how": "transient"}), use("fails", {"how": "permanent"}), use("nothing")],
        say("sorry"),
        tools=[fails],
    )
    async with runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        results = [block for block in (await session.history())[2].content if isinstance(block, ToolResultBlock)]

    assert result.text == "sorry"
    assert [(block.is_error, block.kind) for block in results] == [
        (True, "transient"),
        (True, "permanent"),
        (True, "not_found"),
    ]
    assert results[0].text == "try later"
    assert "ValueError: broken \ufffd" in results[1].text


async def test_a_tool_context_names_the_call_and_carries_the_applications_own_object() -> None:
    seen: list[ToolContext[Any]] = []

    @tool
    async def look(context: ToolContext[dict[str, int]], thing: str) -> str:
        """Look."""
        seen.append(context)
        return str(context.deps["n"])

    runtime, provider = scripted(use("look", {"thing": "x"}), say("ok"), tools=[look], deps={"n": 7})
    async with runtime:
        session = await runtime.session("s")
        await session.send("go")
        history = await session.history()

    call = history[1].content[0]
    assert isinstance(call, ToolUseBlock)
    assert (seen[0].call, seen[0].session) == (call.id, "s")
    assert seen[0].idempotency_key == f"s/{call.id}"
    assert history[2].content[0].text == "7"  # type: ignore[union-attr]
    assert "context" not in str(provider.requests[0].tools[0].input_schema)


async def test_a_provider_that_fails_ends_the_run_as_failed_and_the_next_input_runs() -> None:
    runtime, _ = scripted(ProviderError("overloaded", kind="overloaded", status=529, retryable=True), say("back"))
    async with runtime:
        session = await runtime.session("s")
        failed = await session.send("one")
        completed = await session.send("two")

    assert isinstance(failed.outcome, Failed)
    assert failed.outcome.error.kind == "provider"
    assert "overloaded" in failed.outcome.error.message
    assert completed.text == "back"
    assert (failed.stop_reason, completed.stop_reason) == (None, "end_turn")


async def test_a_provider_that_raises_anything_ends_its_run_only() -> None:
    def broken(request: ModelRequest) -> str:
        raise RuntimeError("not a provider error")

    runtime, _ = scripted(broken, say("fine"))
    async with runtime:
        session = await runtime.session("s")
        failed = await session.send("one")
        assert isinstance(failed.outcome, Failed)
        assert failed.outcome.error.kind == "agent_loop"
        assert "not a provider error" in failed.outcome.error.message
        assert (await session.send("two")).text == "fine"


async def test_inputs_of_one_session_run_one_after_another_in_order() -> None:
    runtime, _ = scripted(say("a"), say("b"), say("c"))
    async with runtime:
        session = await runtime.session("s")
        results = await asyncio.gather(*(session.send(text) for text in ("1", "2", "3")))
        texts = [message.text for message in await session.history()]

    assert [result.text for result in results] == ["a", "b", "c"]
    assert texts == ["1", "a", "2", "b", "3", "c"]


async def test_two_sessions_at_once_share_nothing() -> None:
    def echo(request: ModelRequest) -> str:
        return f"heard {request.messages[-1].text}"

    runtime, _ = scripted(*[echo] * 20)
    async with runtime:
        sessions = [await runtime.session(f"s{number}") for number in range(10)]
        for _ in range(2):
            results = await asyncio.gather(*(session.send(f"I am {session.id}") for session in sessions))
            assert [result.text for result in results] == [f"heard I am {session.id}" for session in sessions]
        for session in sessions:
            assert {message.text for message in await session.history()} == {
                f"I am {session.id}",
                f"heard I am {session.id}",
            }


async def test_the_same_key_is_the_same_run_and_with_another_content_it_is_refused() -> None:
    runtime, provider = scripted(say("first"), say("second"))
    async with runtime:
        session = await runtime.session("s")
        one = await session.send("pay", key="req-17")
        two = await session.send("pay", key="req-17")
        assert one == two
        with pytest.raises(CommandRejected, match="req-17"):
            await session.send("pay more", key="req-17")
        assert len(provider.requests) == 1
        assert (await session.send("pay", key="req-18")).text == "second"


async def test_two_callers_with_one_key_wait_for_one_run() -> None:
    runtime, provider = scripted(say("only"))
    async with runtime:
        session = await runtime.session("s")
        results = await asyncio.gather(*(session.send("go", key="k") for _ in range(3)))
    assert [result.text for result in results] == ["only"] * 3
    assert len(provider.requests) == 1


async def test_the_first_outcome_of_a_key_is_given_after_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    runtime, _ = scripted(say("first"), say("later"), log=log)
    async with runtime:
        session = await runtime.session("s")
        before = await session.send("pay", key="k")
        await session.send("something else")
    again, provider = scripted(log=log)
    async with again:
        session = await again.session("s")
        assert await session.send("pay", key="k") == before
    assert provider.requests == []


async def test_answers_can_be_streamed_and_give_the_same_result() -> None:
    config = AgentConfig(model="m", streaming=True)
    provider = ScriptedProvider([use("weather", {"city": "Lisbon"}), say("Sunny, and warm for the season.")])
    async with AgentRuntime(config, provider=provider, tools=[weather]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("?")).text == "Sunny, and warm for the season."


async def test_every_run_records_which_code_and_configuration_decided() -> None:
    runtime, _ = scripted(say("hi"), app_version="shop 3.1")
    async with runtime:
        session = await runtime.session("s")
        await session.send("hello")
        [started] = [item.event async for item in session.events() if isinstance(item.event, RunStarted)]

    assert started.code.app == "shop 3.1"
    assert started.code.core == CORE_VERSION
    assert len(started.fingerprint) == 16


async def test_events_carry_causes_that_lead_back_to_the_input() -> None:
    runtime, _ = scripted(use("weather", {"city": "x"}), say("ok"))
    async with runtime:
        session = await runtime.session("s")
        await session.send("go")
        events = {f"session/s@{item.version}": item async for item in session.events()}

    last = events[f"session/s@{len(events)}"]
    chain = [last]
    while chain[-1].causation is not None:
        chain.append(events[chain[-1].causation])
    assert [type(item.event).__name__ for item in chain] == [
        "RunCompleted",
        "ModelResponded",
        "ModelRequested",
        "ToolCallCompleted",
        "ToolCallStarted",
        "ModelResponded",
        "ModelRequested",
        "InputQueued",
    ]
    assert {item.correlation for item in chain} == {"session/s@3"}


async def test_a_cancelled_token_before_the_run_makes_no_model_call_and_keeps_the_message() -> None:
    runtime, provider = scripted(say("next"))
    token = CancellationToken()
    token.cancel()
    async with runtime:
        session = await runtime.session("s")
        result = await session.send("never mind", cancel=token)
        assert result.outcome == Cancelled()
        assert provider.requests == []
        assert [message.text for message in await session.history()] == ["never mind"]
        assert (await session.send("go on")).text == "next"


async def test_a_tool_that_sends_to_its_own_session_is_told_instead_of_waiting_for_itself() -> None:
    sessions: list[Session] = []

    @tool
    async def ask_myself() -> str:
        """Send to the own session."""
        return (await sessions[0].send("and?")).text

    runtime, _ = scripted(use("ask_myself"), say("I see."), tools=[ask_myself])
    async with runtime:
        sessions.append(await runtime.session("s"))
        assert (await sessions[0].send("go")).text == "I see."
        results = (await sessions[0].history())[2].content

    assert isinstance(results[0], ToolResultBlock)
    assert "AskCycle" in results[0].text
    assert "session/s -> its tool -> session/s" in results[0].text


async def test_a_tool_may_send_to_another_session() -> None:
    runtimes: list[AgentRuntime] = []

    @tool
    async def ask_another() -> str:
        """Send to another session."""
        return (await (await runtimes[0].session("other")).send("and?")).text

    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].text == "go":
            return use("ask_another")
        return "I say so." if request.messages[-1].text == "and?" else "Heard."

    runtime, _ = scripted(*[answer] * 3, tools=[ask_another])
    async with runtime:
        runtimes.append(runtime)
        session = await runtime.session("s")
        assert (await session.send("go")).text == "Heard."
        assert (await session.history())[2].content[0].text == "I say so."  # type: ignore[union-attr]


async def test_cancelling_one_of_two_callers_with_one_key_only_detaches_it() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def model(request: ModelRequest) -> str:
        asked.set()
        await answer.wait()
        return "for both"

    runtime, _ = scripted(model)
    async with runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("go", key="k"))
        await asked.wait()
        second = asyncio.create_task(session.send("go", key="k"))
        await session.history()
        await session.history()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        answer.set()
        assert (await second).text == "for both"


async def test_the_reason_of_a_token_is_recorded() -> None:
    asked = asyncio.Event()

    async def model(request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    runtime, _ = scripted(model)
    token = CancellationToken()
    async with runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", cancel=token))
        await asked.wait()
        token.cancel("I changed my mind")
        assert (await sending).outcome == Cancelled()
        reasons = [item.event.reason async for item in session.events() if isinstance(item.event, CancelRequested)]
    assert reasons == ["I changed my mind"]


async def test_a_token_that_is_none_is_refused_by_its_type() -> None:
    runtime, _ = scripted(say("hi"))
    async with runtime:
        session = await runtime.session("s")
        with pytest.raises(ConfigError, match="CancellationToken, not bool"):
            await session.send("go", cancel=True)  # type: ignore[arg-type]


async def test_calls_that_wait_for_approval_are_listed_also_after_a_restart(tmp_path: Path) -> None:
    @tool(tier="confirm")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    log = tmp_path / "events.db"
    asked = asyncio.Event()
    runtime, _ = scripted(use("pay", {"amount": 3}), tools=[pay], log=log)
    async with runtime:
        session = await runtime.session("s")
        runtime.subscribe(lambda recorded: asked.set() if isinstance(recorded.event, ToolApprovalRequested) else None)
        sending = asyncio.create_task(session.send("pay", key="k"))
        await asked.wait()
        before = await session.approvals()
    with pytest.raises(ActorStopped):
        await sending
    again, _ = scripted(say("Paid."), tools=[pay], log=log)
    async with again:
        session = await again.session("s", restore=True)
        assert await session.approvals() == before
        assert [(call.tool, call.input) for call in before] == [("pay", {"amount": 3})]
        await session.decide(before[0].call, allow=True)
        assert (await session.send("pay", key="k")).text == "Paid."
        assert await session.approvals() == []


async def test_a_run_of_another_agent_waits_until_somebody_resumes_it(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    asked = asyncio.Event()

    async def model(request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    runtime, _ = scripted(model, log=log, close_grace_s=0.01)
    async with runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        await asked.wait()
    with pytest.raises(ActorStopped):
        await sending
    other, provider = scripted(say("taken over"), log=log, name="other")
    async with other:
        session = await other.session("s")
        await session.history()
        assert provider.requests == []
        await session.resume()
        assert (await session.send("go", key="k")).text == "taken over"


async def test_a_provider_without_a_stream_answers_a_streaming_agent_whole() -> None:
    class Whole:
        async def complete(self, request: ModelRequest) -> ModelResponse:
            return say("all at once")

    config = AgentConfig(model="m", streaming=True)
    async with AgentRuntime(config, provider=Whole()) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == "all at once"


async def test_a_cancelled_input_in_the_queue_is_told_at_once_and_keeps_its_place() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def model(request: ModelRequest) -> str:
        asked.set()
        await answer.wait()
        return "first"

    runtime, _ = scripted(model, say("third"))
    token, early = CancellationToken(), CancellationToken()
    early.cancel()
    async with runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("1"))
        await asked.wait()
        by_token = asyncio.create_task(session.send("2", cancel=token, key="two"))
        third = asyncio.create_task(session.send("3"))
        await session.history()
        token.cancel()
        assert (await by_token).outcome == Cancelled()
        assert (await session.send("2", key="two")).outcome == Cancelled()
        assert (await session.send("4", cancel=early)).outcome == Cancelled()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.send("5"), 0.01)
        assert not first.done()
        answer.set()
        assert [(await first).text, (await third).text] == ["first", "third"]
        assert (await session.send("2", key="two")).outcome == Cancelled()
        users = [message.text for message in await session.history() if message.role == "user"]
    assert users == ["1", "2", "3", "4", "5"]


async def test_a_cancellation_that_the_log_refuses_at_first_is_not_lost() -> None:
    class RefusesOneCancel(InMemoryStore):
        refused = 0

        async def append(self, batches: Any, payloads: Any = None) -> Any:
            if not self.refused and any(b"session.cancel_requested" in b.events[0] for b in batches):
                self.refused += 1
                raise PersistenceError("the disk is full")
            return await super().append(batches, payloads)

    asked, gate = asyncio.Event(), asyncio.Event()

    async def model(request: ModelRequest) -> str:
        asked.set()
        await gate.wait()
        return "never"

    store, clock, token = RefusesOneCancel(), ManualClock(), CancellationToken()
    runtime, _ = scripted(model, log=store, clock=clock)
    async with runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", cancel=token))
        await asked.wait()
        token.cancel()
        await clock.settle()
        assert not sending.done()
        await clock.advance(1)
        gate.set()  # A run whose cancellation was lost would complete.
        assert (await sending).outcome == Cancelled()
    assert store.refused == 1


async def test_a_caller_is_told_when_its_session_has_failed_for_good_and_others_go_on() -> None:
    asked, failed = asyncio.Event(), asyncio.Event()

    async def model(request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    options: dict[str, Any] = {"restarts_max": 0, "close_grace_s": 0, "on_failure": lambda _: failed.set()}
    runtime, _ = scripted(model, say("fine"), log=":memory:", **options)
    async with runtime:
        session, other = await runtime.session("s"), await runtime.session("other")
        sending = asyncio.create_task(session.send("go"))
        await asked.wait()
        runtime.system.ref("session/s").tell(object())
        await failed.wait()
        await ManualClock().settle()
        assert sending.done()
        with pytest.raises(ActorStopped, match="it was stopped"):
            await sending
        with pytest.raises(ActorStopped, match="failed too often"):
            await session.send("again")
        assert (await other.send("go")).text == "fine"


async def test_a_log_that_refuses_for_ever_does_not_hold_a_caller_who_is_cancelled() -> None:
    class RefusesCancels(InMemoryStore):
        async def append(self, batches: Any, payloads: Any = None) -> Any:
            if any(b"session.cancel_requested" in b.events[0] for b in batches):
                raise PersistenceError("the disk is full")
            return await super().append(batches, payloads)

    asked = asyncio.Event()

    async def model(request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    clock = ManualClock()
    runtime, _ = scripted(model, log=RefusesCancels(), clock=clock, cancel_grace_s=5, close_grace_s=0)
    await runtime.__aenter__()
    session = await runtime.session("s")
    sending = asyncio.create_task(session.send("go"))
    await asked.wait()
    sending.cancel()
    await clock.advance(9)
    assert not sending.done()
    await clock.advance(2)
    with pytest.raises(asyncio.CancelledError):
        await sending
    closing = asyncio.create_task(runtime.close())
    while not closing.done():
        await clock.advance(1)


async def test_content_beyond_the_largest_payload_is_refused_or_answered_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payloads, "PAYLOAD_BYTES_MAX", 100_000)

    @tool
    async def huge() -> str:
        """Return more than can be kept."""
        return "x" * 200_000

    runtime, _ = scripted(use("huge"), say("Too much."), tools=[huge])
    async with runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="100,000 are accepted"):
            await session.send("y" * 200_000)
        assert (await session.send("go")).text == "Too much."
        result = (await session.history())[2].content[0]
    assert isinstance(result, ToolResultBlock)
    assert (result.kind, "cannot be recorded" in result.text) == ("permanent", True)


class _CountingStore(InMemoryStore):
    """Keeps the types of the events of each append, stream by stream."""

    def __init__(self) -> None:
        super().__init__()
        self._appends: list[dict[str, list[str]]] = []

    async def append(self, batches: Any, payloads: Any = None) -> Any:
        appended = await super().append(batches, payloads)
        types: dict[str, list[str]] = {}
        for batch in batches:
            types.setdefault(batch.stream, []).extend(_type_name(event) for event in batch.events)
        self._appends.append(types)
        return appended

    def batches_of(self, stream: str) -> list[list[str]]:
        return [types[stream] for types in self._appends if stream in types]


def _type_name(event: bytes) -> str:
    tag: str = msgspec.json.decode(event)["type"]
    return tag.split(".")[1]
