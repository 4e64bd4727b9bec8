"""Middleware: what it may change and where, what is recorded of that, and what becomes of a failing one."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from refold import (
    Agent,
    AgentConfig,
    AgentLoopError,
    Cancelled,
    CommandRejected,
    Completed,
    ConfigError,
    Deny,
    Failed,
    HookContext,
    Message,
    Middleware,
    ModelRequest,
    ModelResponse,
    ScriptedProvider,
    TextBlock,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResultBlock,
    ToolSpec,
    ToolUse,
    Usage,
    say,
    tool,
    use,
)
from refold.events.core.content import text_of
from refold.events.session.events import (
    InputQueued,
    ModelResponded,
    TimerSet,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallFailed,
    ToolResultLate,
)
from refold.replay import replay
from refold.stores import EventStore
from tests.conformance.sessions import CONFIG, Seen, events_of, requests_of, results_of, runtime_of, shown
from tests.conformance.test_context import assert_rebuilt

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    """Look."""
    ran.append(what)
    return f"{what} seen"


@tool(tier="act")
async def fail(kind: str) -> str:
    """Fail."""
    raise ToolError("secret 4711", kind="transient" if kind == "transient" else "permanent")


@tool(tier="confirm")
async def pay(amount: int) -> str:
    """Pay."""
    ran.append(amount)
    return f"paid {amount}"


@tool(tier="act")
async def finish(context: ToolContext[None]) -> str:
    """End the run."""
    return context.finish("the secret is 4711")


class Noting(Middleware):
    """Adds its name to all that passes, and keeps the order of calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    def _note(self, hook: str, context: HookContext) -> None:
        self.calls.append(f"{self.name}.{hook}")

    def on_user_message(self, context: HookContext, content: Any) -> Any:
        self._note("user", context)
        return f"{text_of(content)} {self.name}"

    async def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        self._note("pre", context)
        assert (context.session, context.turn > 0) == ("s", True)
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt} {self.name}")

    def on_post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse | None:
        self._note("post", context)
        if response.stop_reason == "tool_use":
            return None
        text = "".join(block.text for block in response.content if isinstance(block, TextBlock))
        return msgspec.structs.replace(response, content=(TextBlock(text=f"{text} {self.name}"),))

    def on_tool_call(self, context: HookContext, call: ToolCall) -> None:
        self._note("call", context)
        assert (call.tool, call.input) == ("look", {"what": "tea"})
        call.input["what"] = "coffee"  # Seen by nobody.

    async def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> ToolResultBlock:
        self._note("result", context)
        assert context.call == result.tool_use_id
        return msgspec.structs.replace(result, content=(TextBlock(text=f"{result.text} {self.name}"),))


async def test_hooks_run_in_order_of_registration_and_what_they_changed_is_in_the_log_beside_what_was(
    log: EventStore,
) -> None:
    calls: list[str] = []
    middleware = [Noting("a", calls), Noting("b", calls)]
    config = AgentConfig(model="m", system_prompt="Be brief.")
    script = [use("look", {"what": "tea"}), say("Done.")]
    async with runtime_of(log, *script, tools=[look], config=config, middleware=middleware) as runtime:
        session = await runtime.session("s")
        assert (await session.send("Go")).text == "Done. a b"
        turns = ["a.pre", "b.pre", "a.post", "b.post"]
        tools = ["a.call", "b.call", "a.result", "b.result"]
        assert calls == ["a.user", "b.user", *turns, *tools, *turns]
        assert ran == ["tea"]
        requests = requests_of(runtime)
        assert [request.system_prompt for request in requests] == ["Be brief. a b"] * 2
        assert shown(requests[1].messages) == ["user: Go a b", "use look", "result: tea seen a b"]
        (queued,) = await events_of(session, InputQueued)
        assert (text_of(queued.content), text_of(queued.original)) == ("Go a b", "Go")
        (completed,) = await events_of(session, ToolCallCompleted)
        assert (text_of(completed.content), text_of(completed.original)) == ("tea seen a b", "tea seen")
        first, second = await events_of(session, ModelResponded)
        assert first.request.prepared.answer is None
        assert text_of(second.request.prepared.answer) == "Done."
        assert text_of(second.content) == "Done. a b"
        await assert_rebuilt(log, "s", requests)
    assert (await replay(log)).divergence is None


class Adding(Middleware):
    """Puts a message and a tool into requests, takes one out, and picks another model."""

    def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        extra = ToolSpec(name="ask", description="Ask.", input_schema={"type": "object"})
        return msgspec.structs.replace(
            request,
            model="other",
            messages=[Message("user", (TextBlock(text="It is Monday."),)), *request.messages],
            tools=[*(spec for spec in request.tools if spec.name != "pay"), extra],
            temperature=0.5,
            max_tokens=9,
        )


async def test_messages_and_tools_of_a_request_may_change_and_a_tool_taken_out_cannot_be_called(
    log: EventStore,
) -> None:
    script = [[use("look", {"what": "a"}), use("pay", {"amount": 3}), use("ask", {})], say("Done.")]
    async with runtime_of(log, *script, tools=[look, pay], middleware=[Adding()]) as runtime:
        session = await runtime.session("s")
        assert isinstance((await session.send("Go")).outcome, Completed)
        requests = requests_of(runtime)
        assert [spec.name for spec in requests[0].tools] == ["ask", "look"]
        assert (requests[0].model, requests[0].temperature, requests[0].max_tokens) == ("other", 0.5, 9)
        assert shown(requests[1].messages)[:2] == ["user: It is Monday.", "user: Go"]
        assert [result.kind for result in await results_of(session)] == [None, "denied", "not_found"]
        assert shown(await session.history())[0] == "user: Go"
        await assert_rebuilt(log, "s", requests)


async def test_a_large_change_of_a_request_is_a_payload(log: EventStore) -> None:
    class Padding(Middleware):
        def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
            return msgspec.structs.replace(request, system_prompt="x" * 100_000)

    async with runtime_of(log, say("Done."), middleware=[Padding()]) as runtime:
        session = await runtime.session("s")
        await session.send("Go")
        (answered,) = await events_of(session, ModelResponded)
        assert answered.request.prepared is None
        assert answered.request.prepared_payload is not None
        await assert_rebuilt(log, "s", requests_of(runtime))


async def test_arguments_change_before_they_are_recorded_so_that_what_is_approved_is_what_runs(
    log: EventStore,
) -> None:
    class Halving(Middleware):
        def on_post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse | None:
            content = tuple(
                msgspec.structs.replace(block, input={"amount": 50})
                if isinstance(block, ToolUse) and block.name == "pay"
                else block
                for block in response.content
            )
            return msgspec.structs.replace(response, content=content)

    async with runtime_of(
        log, use("pay", {"amount": 100}), say("Paid."), tools=[pay], middleware=[Halving()]
    ) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("Pay"))
        (asked,) = await seen.first(ToolApprovalRequested)
        assert asked.input == {"amount": 50}
        await session.decide(asked.call, allow=True)
        assert (await sending).text == "Paid."
        assert ran == [50]
        first, second = await events_of(session, ModelResponded)
        assert first.request.prepared.answer[0].input == {"amount": 100}
        assert second.request.prepared is None


async def test_calls_may_be_taken_out_of_an_answer_and_the_tokens_stay_the_providers(log: EventStore) -> None:
    class Silent(Middleware):
        def on_post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse:
            return ModelResponse(content=(TextBlock(text="No tools today."),), usage=Usage(input_tokens=999))

    answer = ModelResponse(
        content=(ToolUse(name="look", input={"what": "a"}),), stop_reason="tool_use", usage=Usage(input_tokens=7)
    )
    async with runtime_of(log, answer, tools=[look], middleware=[Silent()]) as runtime:
        session = await runtime.session("s")
        result = await session.send("Go")
        assert result.text == "No tools today."
        assert result.usage.input_tokens == 7
        assert ran == []


class Denying(Middleware):
    def on_tool_call(self, context: HookContext, call: ToolCall) -> Deny:
        return Deny("Not on Mondays.")


async def test_a_call_may_be_denied_before_its_body_and_the_model_is_told(log: EventStore) -> None:
    async with runtime_of(log, use("look", {"what": "a"}), say("Ok."), tools=[look], middleware=[Denying()]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("Go")).text == "Ok."
        (failed,) = await events_of(session, ToolCallFailed)
        assert (failed.kind, text_of(failed.content), failed.broken) == ("denied", "Not on Mondays.", False)
        assert ran == []


class Masking(Middleware):
    def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> ToolResultBlock:
        return msgspec.structs.replace(result, content=(TextBlock(text=result.text.replace("4711", "****")),))


async def test_a_failures_words_may_change_and_its_kind_stays(log: EventStore) -> None:
    script = [[use("fail", {"kind": "transient"}), use("fail", {"kind": "permanent"})], say("Ok.")]
    async with runtime_of(log, *script, tools=[fail], middleware=[Masking()]) as runtime:
        session = await runtime.session("s")
        await session.send("Go")
        failed = await events_of(session, ToolCallFailed)
        assert [(each.kind, text_of(each.content)) for each in failed] == [
            ("transient", "secret ****"),
            ("permanent", "secret ****"),
        ]
        assert [text_of(each.original) for each in failed] == ["secret 4711"] * 2


async def test_the_answer_of_a_tool_that_ends_the_run_may_change_too(log: EventStore) -> None:
    async with runtime_of(log, use("finish", {}), tools=[finish], middleware=[Masking()]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("Go")).text == "the secret is ****"
        (completed,) = await events_of(session, ToolCallCompleted)
        assert (completed.ends_run, text_of(completed.original)) == (True, "the secret is 4711")


class Tagging(Middleware):
    decides_alike = False  # It counts.

    def __init__(self) -> None:
        self.count = 0

    def on_user_message(self, context: HookContext, content: Any) -> Any:
        self.count += 1
        return [*content, TextBlock(text=f"(message {self.count})")]


async def test_a_key_is_of_what_was_given_whatever_middleware_makes_of_it(log: EventStore) -> None:
    async with runtime_of(log, say("one"), say("two"), middleware=[Tagging()]) as runtime:
        session = await runtime.session("s")
        first = await session.send("Go", key="k")
        again = await session.send("Go", key="k")
        assert (first.run, first.text) == (again.run, again.text)
        with pytest.raises(CommandRejected, match="used before"):
            await session.send("Stop", key="k")
        assert shown(await session.history())[:2] == ["user: Go", "user: (message 1)"]
    async with runtime_of(log, middleware=[Tagging()]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("Go", key="k")).run == first.run


async def test_an_input_for_later_is_changed_when_it_is_accepted(log: EventStore) -> None:
    async with runtime_of(log, middleware=[Tagging()]) as runtime:
        session = await runtime.session("s")
        later = datetime(2100, 1, 1, tzinfo=UTC)
        run = await session.remind("Tea", at=later, key="tea")
        assert await session.remind("Tea", at=later, key="tea") == run
        (waiting,) = await events_of(session, TimerSet)
        assert (text_of(waiting.content), text_of(waiting.original)) == ("Tea(message 1)", "Tea")


class Raising(Middleware):
    """Raises in one hook, or says something that makes no sense there."""

    def __init__(self, hook: str, said: Any) -> None:
        async def raise_it(context: HookContext, value: Any) -> Any:
            if isinstance(said, BaseException):
                raise said
            return said

        self._raise = raise_it
        self.hook = hook

    async def _maybe(self, hook: str, context: HookContext, value: Any) -> Any:
        return await self._raise(context, value) if hook == self.hook else None

    async def on_user_message(self, context: HookContext, content: Any) -> Any:
        return await self._maybe("on_user_message", context, content)

    async def on_pre_llm(self, context: HookContext, request: ModelRequest) -> Any:
        return await self._maybe("on_pre_llm", context, request)

    async def on_post_llm(self, context: HookContext, response: ModelResponse) -> Any:
        return await self._maybe("on_post_llm", context, response)

    async def on_tool_call(self, context: HookContext, call: ToolCall) -> Any:
        return await self._maybe("on_tool_call", context, call)

    async def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> Any:
        return await self._maybe("on_tool_result", context, result)


BAD = [RuntimeError("torn"), asyncio.CancelledError(), 42]


@pytest.mark.parametrize("said", BAD, ids=lambda said: type(said).__name__)
@pytest.mark.parametrize("hook", ["on_pre_llm", "on_post_llm"])
async def test_middleware_that_fails_on_a_model_call_fails_that_call_and_the_next_input_runs(
    log: EventStore, hook: str, said: Any
) -> None:
    failing = Raising(hook, said)
    async with runtime_of(log, say("a"), say("b"), middleware=[failing]) as runtime:
        session = await runtime.session("s")
        result = await session.send("Go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "agent_loop"
        assert f"Raising.{hook}" in result.outcome.error.message
        failing.hook = ""
        assert isinstance((await session.send("Again")).outcome, Completed)


@pytest.mark.parametrize("said", BAD, ids=lambda said: type(said).__name__)
@pytest.mark.parametrize("hook", ["on_tool_call", "on_tool_result"])
async def test_middleware_that_fails_on_a_tool_call_breaks_that_call_as_a_failing_policy_does(
    log: EventStore, hook: str, said: Any
) -> None:
    config = AgentConfig(model="m", error_recovery="retry")
    failing = Raising(hook, said)
    async with runtime_of(
        log, use("look", {"what": "a"}), say("Ok."), tools=[look], config=config, middleware=[failing]
    ) as runtime:
        session = await runtime.session("s")
        assert (await session.send("Go")).text == "Ok."
        (failed,) = await events_of(session, ToolCallFailed)
        assert failed.broken
        assert failed.kind == ("denied" if hook == "on_tool_call" else "crashed")
        assert f"Raising.{hook}" in text_of(failed.content)
        assert ran == ([] if hook == "on_tool_call" else ["a"])


@pytest.mark.parametrize("said", [RuntimeError("torn"), asyncio.CancelledError(), 42, " "], ids=str)
async def test_middleware_that_fails_on_an_input_fails_the_send_and_nothing_is_recorded(
    log: EventStore, said: Any
) -> None:
    async with runtime_of(log, say("a"), middleware=[Raising("on_user_message", said)]) as runtime:
        session = await runtime.session("s")
        with pytest.raises((AgentLoopError, CommandRejected)):
            await session.send("Go")
        assert [recorded async for recorded in session.events()] == []


@pytest.mark.parametrize(
    "made",
    [
        {"messages": [Message("assistant", (TextBlock(text="I begin."),))]},
        {"messages": []},
        {"messages": ["no message"]},
        {"tools": ["no tool"]},
        {"temperature": "hot"},
    ],
    ids=lambda made: next(iter(made)),
)
async def test_a_request_that_no_provider_or_no_log_takes_fails_the_call(log: EventStore, made: dict[str, Any]) -> None:
    class Wrong(Middleware):
        def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
            return msgspec.structs.replace(request, **made)

    async with runtime_of(log, say("a"), middleware=[Wrong()]) as runtime:
        session = await runtime.session("s")
        result = await session.send("Go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "agent_loop"
        assert requests_of(runtime) == []


class Stubborn(Middleware):
    """Swallows every cancellation, and answers all the same."""

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.begun = asyncio.Event()

    async def _hold(self, hook: str, value: Any) -> Any:
        if hook != self.hook:
            return None
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return value

    async def on_pre_llm(self, context: HookContext, request: ModelRequest) -> Any:
        return await self._hold("on_pre_llm", request)

    async def on_post_llm(self, context: HookContext, response: ModelResponse) -> Any:
        return await self._hold("on_post_llm", response)

    async def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> Any:
        return await self._hold("on_tool_result", result)


@pytest.mark.parametrize("hook", ["on_pre_llm", "on_post_llm", "on_tool_result"])
async def test_middleware_that_swallows_its_cancellation_cannot_make_a_cancelled_run_succeed(
    log: EventStore, hook: str
) -> None:
    stubborn = Stubborn(hook)
    first = use("look", {"what": "a"}) if hook == "on_tool_result" else say("Done.")
    async with runtime_of(log, first, say("Next."), say("Next."), tools=[look], middleware=[stubborn]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("Go"))
        await stubborn.begun.wait()
        await session.cancel()
        assert isinstance((await sending).outcome, Cancelled)
        stubborn.hook = ""
        assert isinstance((await session.send("Again")).outcome, Completed)
        if hook == "on_tool_result":
            (late,) = await events_of(session, ToolResultLate)
            assert text_of(late.content) == "a seen"


async def test_what_middleware_does_in_place_to_what_it_is_shown_changes_nothing(log: EventStore) -> None:
    class Scribbling(Middleware):
        def on_pre_llm(self, context: HookContext, request: ModelRequest) -> None:
            for message in request.messages:
                for block in message.content:
                    if hasattr(block, "input"):
                        block.input["what"] = "scribbled"
            for spec in request.tools:
                spec.input_schema["scribbled"] = True

        def on_post_llm(self, context: HookContext, response: ModelResponse) -> None:
            for block in response.content:
                if isinstance(block, ToolUse):
                    block.input["what"] = "scribbled"  # type: ignore[index]

    async with runtime_of(
        log, use("look", {"what": "a"}), say("Ok."), tools=[look], middleware=[Scribbling()]
    ) as runtime:
        session = await runtime.session("s")
        await session.send("Go")
        assert ran == ["a"]
        assert "scribbled" not in repr(requests_of(runtime))
        assert "scribbled" not in repr(await session.history())
        await assert_rebuilt(log, "s", requests_of(runtime))


def test_what_is_no_middleware_is_refused() -> None:
    with pytest.raises(ConfigError, match="Middleware only, not int"):
        Agent(config=CONFIG, provider=ScriptedProvider([]), middleware=[3])  # type: ignore[list-item]
