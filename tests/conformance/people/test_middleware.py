"""Middleware: what it may change and where, what is recorded of that, and what becomes of a failing one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

import refold
from refold.events.core.content import text_of
from refold.events.session import events as ev
from refold.stores import EventStore
from tests.conformance.cases import Bench, Case, Fails, Play, as_tests
from tests.conformance.requests.test_context import assert_rebuilt
from tests.conformance.sessions import CONFIG, HOOKS, Hooked, events_of, opened
from tests.conformance.steps import (
    approval_asked,
    begin,
    cancel,
    check,
    decide,
    does,
    ends,
    recorded,
    refused,
    remind,
    requested,
    restart,
    send,
    until,
)

LOOK = refold.use("look", {"at": "a"})


@refold.tool(tier="act", effect="pure")
async def fail(kind: str) -> str:
    raise refold.ToolError("secret 4711", kind="transient" if kind == "transient" else "permanent")


class Noting(refold.Middleware):
    """Adds its name to all that passes, and keeps the order of calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    def _note(self, hook: str, context: refold.HookContext) -> None:
        self.calls.append(f"{self.name}.{hook}")

    def on_user_message(self, context: refold.HookContext, content: Any) -> Any:
        self._note("user", context)
        return f"{text_of(content)} {self.name}"

    async def on_pre_llm(self, context: refold.HookContext, request: refold.ModelRequest) -> refold.ModelRequest:
        self._note("pre", context)
        assert (context.session, context.turn > 0) == ("s", True)
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt} {self.name}")

    def on_post_llm(self, context: refold.HookContext, response: refold.ModelResponse) -> refold.ModelResponse | None:
        self._note("post", context)
        if response.stop_reason == "tool_use":
            return None
        text = "".join(block.text for block in response.content if isinstance(block, refold.TextBlock))
        return msgspec.structs.replace(response, content=(refold.TextBlock(text=f"{text} {self.name}"),))

    def on_tool_call(self, context: refold.HookContext, call: refold.ToolCall) -> None:
        self._note("call", context)
        assert (call.tool, call.input) == ("look", {"at": "tea"})
        call.input["at"] = "coffee"  # Seen by nobody.

    async def on_tool_result(
        self, context: refold.HookContext, result: refold.ToolResultBlock
    ) -> refold.ToolResultBlock:
        self._note("result", context)
        assert context.call == result.tool_use_id
        return msgspec.structs.replace(result, content=(refold.TextBlock(text=f"{result.text} {self.name}"),))


async def until_the_end(following: refold.Subscription) -> AsyncIterator[refold.Published]:
    """Yield what is published up to the end of a run."""
    async for item in following:
        yield item
        if isinstance(getattr(item, "event", None), ev.RunCompleted):
            return


async def test_hooks_tell_those_who_follow_and_know_whose_result_they_see(log: EventStore) -> None:
    def told(context: refold.HookContext, value: Any) -> None:
        context.publish((type(value).__name__, context.tool))

    hooked = Hooked(**dict.fromkeys(HOOKS, told))
    script = [[refold.use("look", {"at": "a"}), refold.use("fail", {"kind": "permanent"})], refold.say("Done.")]
    async with opened(log, *script, tools=[*Bench().tools, fail], middleware=[hooked]) as (_, session):
        async with session.follow() as following:
            await session.send("go")
            items = [item async for item in until_the_end(following)]
        reports = [item for item in items if isinstance(item, refold.Progressed)]
        calls = [event.call for event in await events_of(session, ev.ToolCallStarted)]
    assert [(item.call, *cast("tuple[str, str]", item.report)) for item in reports] == [
        ("", "tuple", ""),
        *[("", kind, "") for kind in ("ModelRequest", "ModelResponse")],
        *[(calls[0], kind, "look") for kind in ("ToolCall", "ToolResultBlock")],
        *[(calls[1], kind, "fail") for kind in ("ToolCall", "ToolResultBlock")],
        *[("", kind, "") for kind in ("ModelRequest", "ModelResponse")],
    ]


async def test_a_hook_that_has_ended_publishes_no_more(log: EventStore) -> None:
    kept: list[refold.HookContext] = []
    hooks = Hooked(**dict.fromkeys(HOOKS, lambda context, value: kept.append(context)))
    script = [LOOK, refold.say("Done."), refold.say("Done again.")]
    async with opened(log, *script, tools=Bench().tools, middleware=[hooks]) as (_, session):
        await session.send("go")
        assert len(kept) == 7
        async with session.follow() as following:
            for context in kept:
                with pytest.raises(refold.ConfigError, match="is over, and its context publishes no more"):
                    context.publish("late")
            await session.send("again")
            assert not [item async for item in until_the_end(following) if isinstance(item, refold.Progressed)]


def hooked(**hooks: Callable[[refold.HookContext, Any], Any]) -> dict[str, Any]:
    """Options with one middleware."""
    return {"middleware": [Hooked(**hooks)]}


def text(words: str) -> tuple[refold.TextBlock]:
    return (refold.TextBlock(text=words),)


async def rebuilt(play: Play) -> bool:
    """Check that the log gives back each request as the model got it."""
    await assert_rebuilt(play.log, "s", play.requests)
    return True


async def answers(play: Play) -> list[str | None]:
    """Return what the model said, where middleware changed it."""
    prepared = [event.request.prepared for event in await play.events(ev.ModelResponded)]
    return [None if each is None or each.answer is None else text_of(each.answer) for each in prepared]


# What may change, and where


def add(context: refold.HookContext, request: refold.ModelRequest) -> refold.ModelRequest:
    """Put a message and a tool into a request, take one out, and pick another model."""
    extra = refold.ToolSpec(name="ask", description="Ask.", input_schema={"type": "object"})
    return msgspec.structs.replace(
        request,
        model="other",
        messages=[refold.Message("user", text("It is Monday.")), *request.messages],
        tools=[*(spec for spec in request.tools if spec.name in ("look", "park")), extra],
        temperature=0.5,
        max_tokens=9,
    )


def first_request(play: Play) -> Any:
    request = play.requests[0]
    return [spec.name for spec in request.tools], request.model, request.temperature, request.max_tokens


def pad(context: refold.HookContext, request: refold.ModelRequest) -> refold.ModelRequest:
    return msgspec.structs.replace(request, system_prompt="x" * 100_000)


async def large(play: Play) -> tuple[bool, bool]:
    (answered,) = await play.events(ev.ModelResponded)
    return answered.request.prepared is None, answered.request.prepared_payload is not None


def halve(context: refold.HookContext, response: refold.ModelResponse) -> refold.ModelResponse:
    content = [
        msgspec.structs.replace(block, input={"amount": 50}) if isinstance(block, refold.ToolUse) else block
        for block in response.content
    ]
    return msgspec.structs.replace(response, content=tuple(content))


async def amounts(play: Play) -> tuple[Any, Any, bool]:
    (asked,) = await play.events(ev.ToolApprovalRequested)
    first, second = await play.events(ev.ModelResponded)
    return first.request.prepared.answer[0].input, asked.input, second.request.prepared is None


def mask(context: refold.HookContext, result: refold.ToolResultBlock) -> refold.ToolResultBlock:
    return msgspec.structs.replace(result, content=text(result.text.replace("4711", "****")))


class Tagging(refold.Middleware):
    decides_alike = False  # It counts.

    def __init__(self) -> None:
        self.count = 0

    def on_user_message(self, context: refold.HookContext, content: Any) -> Any:
        self.count += 1
        return [*content, refold.TextBlock(text=f"(message {self.count})")]


def scribble_request(context: refold.HookContext, request: refold.ModelRequest) -> None:
    scribble(block for message in request.messages for block in message.content)
    for spec in request.tools:
        spec.input_schema["scribbled"] = True


def scribble(blocks: Any) -> None:
    for block in blocks:
        if hasattr(block, "input"):
            block.input["at"] = "scribbled"


async def scribbled(play: Play) -> bool:
    return "scribbled" in repr(play.requests) + repr(await play.session.history())


TURN = ["a.pre", "b.pre", "a.post", "b.post"]

CHANGES = {
    "hooks run in order of registration, and what they changed is in the log beside what was": Case(
        [refold.use("look", {"at": "tea"}), refold.say("Done.")],
        [
            send("Go", "Done. a b"),
            check(
                lambda play: play.kept["hooks"],
                ["a.user", "b.user", *TURN, "a.call", "b.call", "a.result", "b.result", *TURN],
            ),
            check(lambda play: [request.system_prompt for request in play.requests], ["Be brief. a b"] * 2),
            [recorded(ev.InputQueued, "content original", ("Go a b", "Go")), check(answers, [None, "Done."])],
            [recorded(ev.ToolCallCompleted, "content original", ("saw tea a b", "saw tea")), check(rebuilt)],
        ],
        config={"system_prompt": "Be brief."},
        options=lambda play: {
            "middleware": [Noting(name, play.kept.setdefault("hooks", [])) for name in "ab"],
            "keep_originals": True,
        },
        requests={1: ["user: Go a b", "use look", "result: saw tea a b"]},
        done=["saw tea"],
    ),
    "messages and tools of a request may change, and a tool taken out cannot be called": Case(
        [[LOOK, refold.use("pay", {"amount": 3}), refold.use("ask", {})], refold.say("Done.")],
        [send("Go", "Done."), check(first_request, (["ask", "look", "park"], "other", 0.5, 9)), check(rebuilt)],
        options=hooked(on_pre_llm=add),
        kinds=[None, "denied", "not_found"],
        requests={0: ["user: It is Monday.", "user: Go"]},
    ),
    "a large change of a request is a payload": Case(
        [refold.say("Done.")],
        [send("Go", "Done."), check(large, (True, True)), check(rebuilt)],
        options=hooked(on_pre_llm=pad),
    ),
    "arguments change before they are recorded, so that what is approved is what runs": Case(
        [refold.use("pay", {"amount": 100}), refold.say("Paid.")],
        [
            [begin("Pay"), approval_asked(), decide(True), ends("Paid.")],
            check(amounts, ({"amount": 100}, {"amount": 50}, True)),
        ],
        options=hooked(on_post_llm=halve),
        done=["paid 50"],
    ),
    "calls may be taken out of an answer, and the tokens stay the provider's": Case(
        [refold.ModelResponse(content=(LOOK,), stop_reason="tool_use", usage=refold.Usage(input_tokens=7))],
        [send("Go", "No."), check(lambda play: play.sent[0].usage.input_tokens, 7)],
        options=hooked(
            on_post_llm=lambda _, answer: refold.ModelResponse(content=text("No."), usage=refold.Usage(input_tokens=9))
        ),
        done=[],
    ),
    "a call may be denied before its body, and the model is told": Case(
        [LOOK, refold.say("Ok.")],
        [send("Go", "Ok."), recorded(ev.ToolCallFailed, "kind content broken", ("denied", "Not on Mondays.", False))],
        options=hooked(on_tool_call=lambda context, call: refold.Deny("Not on Mondays.")),
        done=[],
    ),
    "a failure's words may change and its kind stays": Case(
        [[refold.use("fail", {"kind": kind}) for kind in ("transient", "permanent")], refold.say("Ok.")],
        [send("Go", "Ok."), recorded(ev.ToolCallFailed, "content original hidden", *[("secret ****", None, True)] * 2)],
        tools=[fail],
        options=hooked(on_tool_result=mask),
        kinds=["transient", "permanent"],
    ),
    "the answer of a tool that ends the run may change too": Case(
        [refold.use("finish", {"text": "the secret is 4711"})],
        [
            send("Go", "the secret is ****"),
            recorded(ev.ToolCallCompleted, "content original", ("the secret is ****", "the secret is 4711")),
        ],
        options=hooked(on_tool_result=mask) | {"keep_originals": True},
    ),
    "a key is of what was given, whatever middleware makes of it": Case(
        [refold.say("one"), refold.say("two")],
        [
            [send("Go", "one", key="k"), send("Go", "one", key="k"), refused("used before", send("Stop", key="k"))],
            [restart(), send("Go", "one", key="k"), check(lambda play: len({each.run for each in play.sent}), 1)],
        ],
        options=lambda play: {"middleware": [Tagging()]},
        history=["user: Go", "user: (message 1)", "assistant: one"],
    ),
    "an input for later is changed when it is accepted": Case(
        [],
        [
            *[remind("Tea", datetime(2100, 1, 1, tzinfo=UTC), key="tea")] * 2,
            recorded(ev.TimerSet, "content original", ("Tea(message 1)", "Tea")),
        ],
        options=lambda play: {"middleware": [Tagging()]},
    ),
    "what middleware does in place to what it is shown changes nothing": Case(
        [LOOK, refold.say("Ok.")],
        [send("Go", "Ok."), check(scribbled, False), check(rebuilt)],
        options=hooked(on_pre_llm=scribble_request, on_post_llm=lambda _, answer: scribble(answer.content)),
        done=["saw a"],
    ),
}


# Middleware that fails, or will not end


def saying(value: Any) -> Callable[[refold.HookContext, Any], Any]:
    """Raise an error or give a value, in the first run only."""

    def hook(context: refold.HookContext, _: Any) -> Any:
        if context.run != "run_3" and context.run is not None:
            return None
        if isinstance(value, BaseException):
            raise value
        return value

    return hook


BAD = {"an error": RuntimeError("torn"), "a cancellation": asyncio.CancelledError(), "a number": 42}


def making(**made: Any) -> dict[str, Any]:
    """Options with middleware that makes something of a request."""
    return hooked(on_pre_llm=lambda context, request: msgspec.structs.replace(request, **made))


WRONG: dict[str, dict[str, Any]] = {
    "an answer alone": {"messages": [refold.Message("assistant", text("I begin."))]},
    "no message": {"messages": []},
    "what is no message": {"messages": ["no message"]},
    "what is no tool": {"tools": ["no tool"]},
    "what is no temperature": {"temperature": "hot"},
}


def stubborn(hook: str) -> Callable[[Play], dict[str, Any]]:
    """Options with middleware that swallows its first cancellation, and answers after it."""

    def options(play: Play) -> dict[str, Any]:
        async def hold(context: refold.HookContext, value: Any) -> Any:
            if "held" in play.kept:
                return None
            play.kept["held"] = True
            play.changed.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return value

        return hooked(**{hook: hold}) | {"alike": False}

    return options


async def held(play: Play) -> None:
    async def found() -> bool:
        return "held" in play.kept

    await play.until(found)


def broken_in(hook: str) -> Callable[[Play], Any]:
    async def found(play: Play) -> bool:
        (failed,) = await play.events(ev.ToolCallFailed)
        return failed.broken and f"Hooked.{hook}" in text_of(failed.content)

    return found


FAILURES = {
    **{
        f"middleware that gives {what} on a model call fails that call, and the next input runs, {hook}": Case(
            [refold.say("a"), refold.say("b"), refold.say("b")],
            [send("Go", Fails("agent_loop", f"Hooked.{hook}")), send("Again", refold.Completed())],
            options=hooked(**{hook: saying(value)}),
        )
        for what, value in BAD.items()
        for hook in ("on_pre_llm", "on_post_llm")
    },
    **{
        f"middleware that gives {what} on a tool call breaks that call as a failing policy does, {hook}": Case(
            [LOOK, refold.say("Ok.")],
            [send("Go", "Ok."), check(broken_in(hook))],
            config={"error_recovery": "retry"},
            options=hooked(**{hook: saying(value)}),
            kinds=[kind],
            done=done,
        )
        for what, value in BAD.items()
        for hook, kind, done in (("on_tool_call", "denied", []), ("on_tool_result", "crashed", ["saw a"]))
    },
    **{
        f"middleware that gives {what} on an input fails the send, and nothing is recorded": Case(
            [refold.say("a")],
            [refused(None, send("Go"), error=(refold.AgentLoopError, refold.CommandRejected))],
            options=hooked(on_user_message=saying(value)),
            events=[],
        )
        for what, value in {**BAD, "a blank": " "}.items()
    },
    **{
        f"a request with {what}, which no provider or no log takes, fails the call": Case(
            [refold.say("a")], [send("Go", Fails("agent_loop")), requested(0)], options=making(**made)
        )
        for what, made in WRONG.items()
    },
    **{
        f"middleware that swallows its cancellation cannot make a cancelled run succeed, {hook}": Case(
            [first, refold.say("Next."), refold.say("Next.")],
            [begin("Go"), does(held), cancel(), ends(refold.Cancelled()), send("Again", "Next."), *late],
            options=stubborn(hook),
        )
        for hook, first, late in (
            ("on_pre_llm", refold.say("Done."), []),
            ("on_post_llm", refold.say("Done."), []),
            ("on_tool_result", LOOK, [until("ToolResultLate"), recorded(ev.ToolResultLate, "content", "saw a")]),
        )
    },
}

CASES = {**CHANGES, **FAILURES}


test_middleware, test_middleware_with_a_crash_after_each_commit = as_tests(CASES)


def test_what_is_no_middleware_is_refused() -> None:
    with pytest.raises(refold.ConfigError, match="Middleware only, not int"):
        refold.Agent(config=CONFIG, provider=refold.ScriptedProvider([]), middleware=[3])  # type: ignore[list-item]
