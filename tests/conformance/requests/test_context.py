"""A window on the history: what a model is shown of it, and the exact request out of the log."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import refold
from refold import Agent, AgentConfig, Completed, ConfigError, Failed, ModelRequest, TokenWindow, say, tool, use
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.model.context_window import Context
from refold.events.session import events as ev
from refold.replay import recorded_request
from refold.stores import EventStore, InMemoryStore
from tests.conformance import sessions

UNTOLD = AgentConfig(model="m", system_prompt="")


@tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    return f"{what} seen"


@tool(tier="confirm")
async def pay(amount: int) -> str:
    return f"paid {amount}"


async def pay_beside_chats(runtime: refold.AgentRuntime, session: refold.Session, text: str) -> None:
    """Have a call wait for a person while ten inputs join its run, and allow it."""
    seen = sessions.Seen(runtime, session)
    sending = asyncio.create_task(session.send("Pay."))
    (waiting,) = await seen.first(ev.ToolApprovalRequested)
    chats = [asyncio.create_task(session.send(f"{number}{text}", now=True)) for number in range(10)]
    await seen.first(ev.InputQueued, 11)
    await session.decide(waiting.call, allow=True)
    assert (await sending).text == "Paid."
    await asyncio.gather(*chats)


async def assert_rebuilt(log: EventStore, session: str, requests: Sequence[ModelRequest]) -> None:
    """Check that the log gives back exactly the requests that the model got, field by field."""
    events = SESSION_CODEC.decode_all(await log.read_stream(f"session/{session}"))
    places = [
        place
        for place, event in enumerate(events, 1)
        if isinstance(event, ev.ModelResponded | ev.ModelFailed | ev.ContextPrepared) and event.request is not None
    ]
    assert len(places) == len(requests)
    for place, sent in zip(places, requests, strict=True):
        rebuilt = (await recorded_request(log, session, place)).request
        for field in rebuilt.__struct_fields__:
            found, meant = getattr(rebuilt, field), getattr(sent, field)
            assert (list(found) == list(meant)) if field == "messages" else found == meant, (place, field)


async def test_case_a08_a_window_leaves_out_the_oldest_groups_and_the_log_gives_each_request_back(
    log: EventStore,
) -> None:
    script = [use("look", {"what": "a"}), say("A" * 40), use("look", {"what": "b"}), say("B" * 40), say("C")]
    async with sessions.opened(log, *script, tools=[look], config=UNTOLD, context=TokenWindow(110)) as (
        runtime,
        session,
    ):
        for text in ("first", "second", "third"):
            await session.send(text * 8)
        requests = sessions.requests_of(runtime)
        for request in requests:
            sessions.assert_accepted(request.messages)
            assert request.messages[-1].role == "user"
        assert len(requests[0].messages) == 1
        assert sessions.shown(requests[-1].messages)[0] == "user: " + "second" * 8
        assert len(await session.history()) == 10
        await assert_rebuilt(log, "s", requests)
    async with sessions.opened(log, say("D"), tools=[look], config=UNTOLD) as (runtime, session):
        await session.send("fourth")
        assert len(sessions.requests_of(runtime)[0].messages) == 11


async def test_a_long_run_keeps_its_input_and_its_last_results(log: EventStore) -> None:
    script = [use("look", {"what": str(number) * 40}) for number in range(6)]
    async with sessions.opened(log, *script, say("Done."), tools=[look], config=UNTOLD, context=TokenWindow(150)) as (
        runtime,
        session,
    ):
        assert (await session.send("Look around.")).text == "Done."
        requests = sessions.requests_of(runtime)
        for request in requests:
            sessions.assert_accepted(request.messages)
            assert sessions.shown(request.messages)[0] == "user: Look around."
        assert sessions.shown(requests[-1].messages)[-1] == f"result: {'5' * 40} seen"
        assert len(requests[-1].messages) < 13
        await assert_rebuilt(log, "s", requests)


async def test_case_a11_a_call_that_waited_for_approval_is_shown_with_its_result_however_much_was_said_meanwhile(
    memory: InMemoryStore,
) -> None:
    script = use("pay", {"amount": 3}), say("Paid.")
    options: dict[str, Any] = {"clock": ManualClock(), "context": TokenWindow(1)}
    async with sessions.opened(memory, *script, tools=[pay], config=UNTOLD, **options) as (runtime, session):
        await pay_beside_chats(runtime, session, ": still there?")
        request = sessions.requests_of(runtime)[1]
        sessions.assert_accepted(request.messages)
        lines = sessions.shown(request.messages)
        assert lines[:3] == ["user: Pay.", "use pay", "result: paid 3"]
        assert len(lines) == 13
        await assert_rebuilt(memory, "s", sessions.requests_of(runtime))


class Saying:
    """A window that says what it is told."""

    decides_alike = False  # It is told otherwise in the middle of a run.

    def __init__(self, said: Any) -> None:
        self.said = said

    def kept(self, context: Context) -> Any:
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (RuntimeError("no idea"), "the context window failed: RuntimeError: no idea"),
        ([(0, 9)], "give ranges in order"),
        ([(1, 2), (0, 1)], "give ranges in order"),
        ([(1, 1)], "give ranges in order"),
        ([(1, 2)], "no history that providers accept"),
        ([(0, 2)], "no history that providers accept"),
        ([], "it has no message"),
        ("all", "the context window failed"),
        (asyncio.CancelledError(), "the context window failed"),
    ],
)
async def test_a_window_that_cannot_work_fails_the_call_and_nothing_else(
    log: EventStore, said: Any, words: str
) -> None:
    window = Saying(None)

    def answer(request: ModelRequest) -> Any:
        window.said = said
        return use("look", {"what": "a"})

    async with sessions.opened(log, answer, tools=[look], context=window) as (runtime, session):
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "agent_loop"
        assert words in result.outcome.error.message
        assert len(sessions.requests_of(runtime)) == 1


async def test_a_context_that_is_no_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="ContextWindow"):
        Agent(config=sessions.CONFIG, provider=refold.ScriptedProvider([]), context=3)  # type: ignore[call-overload]


async def test_a_request_that_is_not_there_any_more_is_an_error_and_not_something_like_it(log: EventStore) -> None:
    async with sessions.opened(log, say("one")) as (_, session):
        assert isinstance((await session.send("a")).outcome, Completed)
    with pytest.raises(ConfigError, match="version 3 of session 's' has no request"):
        await recorded_request(log, "s", 3)
    with pytest.raises(ConfigError, match="no version 99"):
        await recorded_request(log, "s", 99)
    latest = await recorded_request(log, "s")
    assert sessions.shown(latest.request.messages) == ["user: a"]
