"""How runs go and end: rows A6, A15, A19, A21, A23, A25, A26 and A27, and answers that were cut.

Time is moved by hand. The `log` fixture checks and replays each log afterwards.
"""

import asyncio
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    AskCycle,
    CancellationToken,
    Cancelled,
    CommandRejected,
    Completed,
    ConfigError,
    Failed,
    Message,
    ModelResponse,
    ProviderError,
    RetryPolicy,
    RunResult,
    ScriptedProvider,
    Session,
    TextBlock,
    ToolContext,
    ToolUse,
    ToolUseBlock,
    TurnResult,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT
from refold.events.core.ids import ToolCallId
from refold.events.session.events import (
    InputQueued,
    ModelRequested,
    RetryScheduled,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    TimerSet,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallStarted,
    ToolResultLate,
)
from refold.events.session.react import ENDED_TEXT, TRUNCATED_TEXT
from refold.stores import EventStore, InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import (
    CONFIG,
    HeldAnswer,
    Parked,
    Seen,
    assert_accepted,
    crash,
    events_of,
    requests_of,
    results_of,
    runtime_of,
    shown,
    types_of,
)

BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)


@tool(tier="observe", effect="pure")
async def look(at: str = "it") -> str:
    """Look."""
    return f"saw {at}"


@tool(tier="confirm")
async def pay() -> str:
    """Pay."""
    return "paid"


def clock_at(moment: datetime = BEGINNING) -> ManualClock:
    return ManualClock(round(moment.timestamp() * 1_000_000))


def after(seconds: float) -> datetime:
    return BEGINNING + timedelta(seconds=seconds)


def sending(session: Session, content: str, **options: Any) -> "asyncio.Task[RunResult]":
    return asyncio.create_task(session.send(content, **options))


# A6: how a run ends


@pytest.mark.parametrize("limit", [1, 3])
async def test_a6_reaching_max_turns_fails_in_words_that_name_the_number(log: EventStore, limit: int) -> None:
    config = AgentConfig(model="m", max_turns=limit)
    script = [[use("look"), use("look")]] * limit
    async with runtime_of(log, *script, say("next"), tools=[look], config=config) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "max_turns"
        assert str(result.outcome.error) == f"Max turns ({limit}) reached, stopping forcibly"
        assert (result.turns, result.text, len(requests_of(runtime))) == (limit, "", limit)
        assert [block.text for block in await results_of(session)] == ["saw it"] * 2 * limit
        assert (await session.send("more")).text == "next", "each run has its own turns"
        assert_accepted(requests_of(runtime)[-1].messages)


async def test_a6_the_last_turn_that_is_allowed_may_answer(log: EventStore) -> None:
    config = AgentConfig(model="m", max_turns=2)
    async with runtime_of(log, use("look"), say("done"), tools=[look], config=config) as runtime:
        result = await (await runtime.session("s")).send("go")
        assert (result.outcome, result.text, result.turns) == (Completed(), "done", 2)


async def test_a6_the_outcome_is_completed_failed_or_cancelled_and_the_log_says_the_same(log: EventStore) -> None:
    held = HeldAnswer(say("never"))
    refusal = ProviderError("no such model", kind="invalid_request")
    async with runtime_of(log, say("done"), refusal, held) as runtime:
        session = await runtime.session("s")
        results = [await session.send("one"), await session.send("two")]
        third = sending(session, "three")
        await held.asked.wait()
        await session.cancel()
        results.append(await third)
        assert [type(result.outcome) for result in results] == [Completed, Failed, Cancelled]
        assert [result.text for result in results] == ["done", "", ""]
        ends = [kind for kind in await types_of(session) if kind in ("RunCompleted", "RunFailed", "RunCancelled")]
        assert ends == ["RunCompleted", "RunFailed", "RunCancelled"]
        assert len({result.run for result in results}) == 3


# A15: empty answers


EMPTY: list[Any] = [say(""), say(" \n\t"), [], ModelResponse(content=())]


async def test_a15_an_answer_with_neither_text_nor_calls_is_asked_again(log: EventStore) -> None:
    script = [EMPTY[0], EMPTY[1], use("look"), EMPTY[2], EMPTY[3], say("done")]
    async with runtime_of(log, *script, tools=[look]) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert (result.outcome, result.text, result.turns) == (Completed(), "done", 6)
        assert shown(await session.history()) == ["user: go", "use look", "result: saw it", "assistant: done"]
        for request in requests_of(runtime):
            assert_accepted(request.messages)
        assert shown(requests_of(runtime)[1].messages) == ["user: go"]


async def test_a15_empty_answers_end_the_run_when_three_come_in_a_row(log: EventStore) -> None:
    async with runtime_of(log, *EMPTY[:3], say("next")) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "empty_answers"
        assert "3 empty answers" in result.outcome.error.message
        assert (await session.send("more")).text == "next"


async def test_a15_asking_again_is_bounded_by_max_turns(log: EventStore) -> None:
    config = AgentConfig(model="m", max_turns=2)
    async with runtime_of(log, *EMPTY[:2], config=config) as runtime:
        result = await (await runtime.session("s")).send("go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "max_turns"


# Answers that were cut


async def test_a15_an_answer_cut_inside_a_call_runs_none_of_its_calls_and_is_asked_again(log: EventStore) -> None:
    ran: list[str] = []

    @tool(tier="observe")
    async def work(name: str) -> str:
        """Work."""
        ran.append(name)
        return name

    half = ModelResponse(
        content=(TextBlock(text="I will"), ToolUse(name="work", input={"name": "a"}), ToolUse(name="work", input="{")),
        stop_reason="max_tokens",
    )
    whole = use("work", {"name": "b"})
    async with runtime_of(log, half, half, whole, half, half, say("done"), tools=[work]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "done"
        assert ran == ["b"]
        results = await results_of(session)
        assert [block.text for block in results] == [*[TRUNCATED_TEXT] * 4, "b", *[TRUNCATED_TEXT] * 4]
        assert [block.kind for block in results][:5] == [*["truncated"] * 4, None]


async def test_a15_answers_cut_inside_their_calls_end_the_run_when_three_come_in_a_row(log: EventStore) -> None:
    half = ModelResponse(content=(ToolUse(name="look", input={}),), stop_reason="max_tokens")
    async with runtime_of(log, half, half, half, tools=[look]) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "truncated_answers"
        assert_accepted(await session.history())


async def test_a15_an_answer_cut_with_text_only_completes_and_shows_its_stop_reason(log: EventStore) -> None:
    async with runtime_of(log, say("a long sto", stop_reason="max_tokens")) as runtime:
        result = await (await runtime.session("s")).send("go")
        assert (result.outcome, result.text, result.stop_reason) == (Completed(), "a long sto", "max_tokens")


# A19: one turn at a time


async def test_a19_a_run_goes_turn_by_turn_and_does_nothing_between(log: EventStore) -> None:
    script = [[say("looking").content[0], use("look"), use("look", {"at": "that"})], use("look"), say("done")]
    async with runtime_of(log, *script, tools=[look]) as runtime:
        session = await runtime.session("s")
        first = await session.step("go")
        assert (first.text, first.result) == ("looking", None)
        assert [(call.name, call.input, result.text) for call, result in first.calls] == [
            ("look", {}, "saw it"),
            ("look", {"at": "that"}, "saw that"),
        ]
        assert [type(item.event).__name__ for item in first.events][-1] == "ToolCallCompleted"
        assert len(requests_of(runtime)) == 1
        assert (await session.state_at()).run is not None
        second = await session.step()
        assert (second.text, second.result, len(second.calls), len(requests_of(runtime))) == ("", None, 1, 2)
        last = await session.step()
        assert (last.text, last.calls) == ("done", [])
        assert last.result is not None
        assert (last.result.outcome, last.result.text, last.result.turns) == (Completed(), "done", 3)
        assert {first.run, second.run, last.run} == {last.result.run}
        stepped = [item.version for turn in (first, second, last) for item in turn.events]
        recorded = [item.version async for item in session.events(after_version=2)]
        assert stepped == recorded, "each event of the run is in exactly one turn"


async def test_a19_without_a_run_that_waits_there_is_no_next_turn(log: EventStore) -> None:
    held = HeldAnswer(say("done"))
    async with runtime_of(log, say("at once"), held) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="send an input step by step first"):
            await session.step()
        only = await session.step("go")
        assert only.result is not None
        assert only.result.text == "at once"
        with pytest.raises(CommandRejected, match="send an input step by step first"):
            await session.step()
        whole = sending(session, "another")
        await held.asked.wait()
        with pytest.raises(CommandRejected, match="does not wait for its next turn"):
            await session.step()
        held.gate.set()
        assert (await whole).text == "done"


async def test_a19_of_two_who_allow_the_next_turn_at_once_one_does(log: EventStore) -> None:
    held = HeldAnswer(use("look"))
    async with runtime_of(log, use("look"), held, say("done"), tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.step("go")
        callers = [asyncio.create_task(session.step()) for _ in range(2)]
        await held.asked.wait()
        held.gate.set()
        one, other = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(one, TurnResult)
        assert isinstance(other, CommandRejected)
        assert (one.result, len(one.calls), len(requests_of(runtime))) == (None, 1, 2)


async def test_a19_two_who_step_with_one_key_see_the_same_turn(log: EventStore) -> None:
    held = HeldAnswer(use("look"))
    async with runtime_of(log, held, say("done"), tools=[look]) as runtime:
        session = await runtime.session("s")
        callers = [asyncio.create_task(session.step("go", key="k")) for _ in range(2)]
        await held.asked.wait()
        held.gate.set()
        one, other = await asyncio.gather(*callers)
        assert one.run == other.run
        assert (one.result, other.result) == (None, None)
        again = await session.step("go", key="k")
        assert (again.run, again.result, len(requests_of(runtime))) == (one.run, None, 1)
        with pytest.raises(CommandRejected, match="key 'k'"):
            await session.step("something else", key="k")


async def test_a19_a_run_waits_for_its_next_turn_over_a_restart(log: EventStore) -> None:
    async with runtime_of(log, use("look"), tools=[look]) as runtime:
        run = (await (await runtime.session("s")).step("go", key="k")).run
    config = AgentConfig(model="a newer one")
    async with runtime_of(log, use("look"), say("done"), tools=[look], config=config, app_version="2") as runtime:
        session = await runtime.session("s")
        assert (await session.step("go", key="k")).run == run
        assert len(requests_of(runtime)) == 0, "a restart allows no turn"
        second = await session.step()
        assert (second.run, second.result, len(second.calls)) == (run, None, 1)
        last = await session.step()
        assert last.result is not None
        assert last.result.text == "done"
        assert {request.model for request in requests_of(runtime)} == {"a newer one"}
        assert "RunResumed" not in await types_of(session)


async def test_a19_resume_lets_a_run_go_on_to_its_end(log: EventStore) -> None:
    async with runtime_of(log, *[use("look")] * 3, say("done"), tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.step("go", key="k")
        await session.resume()
        result = await session.send("go", key="k")
        assert (result.outcome, result.text, result.turns) == (Completed(), "done", 4)


async def test_a19_a_step_takes_the_first_turn_when_the_runs_before_it_have_ended(log: EventStore) -> None:
    held = HeldAnswer(say("first"))
    async with runtime_of(log, held, use("look"), say("second"), say("third"), tools=[look]) as runtime:
        session = await runtime.session("s")
        before = sending(session, "one")
        await held.asked.wait()
        stepping = asyncio.create_task(session.step("two"))
        await session.history()
        queued = sending(session, "three")
        held.gate.set()
        assert (await before).text == "first"
        turn = await stepping
        assert (turn.result, [result.text for _, result in turn.calls]) == (None, ["saw it"])
        assert isinstance(turn.events[0].event, InputQueued)
        assert not queued.done()
        last = await session.step()
        assert last.result is not None
        assert last.result.text == "second"
        assert (await queued).text == "third"


@pytest.mark.parametrize("how", ["session.cancel", "cancel its run", "cancel with a key"])
async def test_a19_a_run_between_two_turns_can_be_cancelled(log: EventStore, how: str) -> None:
    async with runtime_of(log, use("look"), say("next"), tools=[look]) as runtime:
        session = await runtime.session("s")
        turn = await session.step("go")
        match how:
            case "session.cancel":
                await session.cancel()
            case "cancel its run":
                await session.cancel(run=turn.run)
            case _:
                await session.cancel(key="k")
                await session.cancel(key="k")
        assert (await types_of(session))[-2:] == ["CancelRequested", "RunCancelled"]
        with pytest.raises(CommandRejected, match="no run is under way"):
            await session.step()
        assert (await session.send("more")).text == "next"


async def test_a19_a_caller_of_a_step_who_is_cancelled_cancels_the_run(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("next"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        stepping = asyncio.create_task(session.step("go"))
        await parked.until(1)
        stepping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stepping
        assert (await types_of(session))[-1] == "RunCancelled"
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT]
        assert (await session.send("more")).text == "next"


async def test_a19_a_step_waits_for_the_person_who_is_asked_in_its_turn(log: EventStore) -> None:
    async with runtime_of(log, use("pay"), say("done"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        stepping = asyncio.create_task(session.step("go"))
        (asked,) = await seen.first(ToolApprovalRequested)
        assert not stepping.done()
        await session.decide(asked.call, allow=True)
        turn = await stepping
        assert (turn.result, [result.text for _, result in turn.calls]) == (None, ["paid"])


async def test_a19_the_last_turn_that_max_turns_allows_ends_the_run(log: EventStore) -> None:
    config = AgentConfig(model="m", max_turns=2)
    async with runtime_of(log, *[use("look")] * 2, tools=[look], config=config) as runtime:
        session = await runtime.session("s")
        assert (await session.step("go")).result is None
        last = await session.step()
        assert last.result is not None
        assert isinstance(last.result.outcome, Failed)
        assert [result.text for _, result in last.calls] == ["saw it"]


async def test_a19_a_run_that_a_new_configuration_allows_no_turn_more_ends_at_the_next_step(log: EventStore) -> None:
    async with runtime_of(log, use("look"), tools=[look]) as runtime:
        first = await (await runtime.session("s")).step("go")
    config = AgentConfig(model="m", max_turns=1)
    async with runtime_of(log, say("next"), tools=[look], config=config) as runtime:
        session = await runtime.session("s")
        last = await session.step()
        assert last.run == first.run
        assert last.result is not None
        assert isinstance(last.result.outcome, Failed)
        assert requests_of(runtime) == []
        assert (await session.send("another")).text == "next"


async def test_a19_a_tool_cannot_step_its_own_session(log: EventStore) -> None:
    @tool
    async def step_it(context: ToolContext[Any]) -> str:
        """Step."""
        session = await runtime.session(context.session)
        with pytest.raises(AskCycle):
            await session.step()
        with pytest.raises(AskCycle):
            await session.step("go")
        return "refused"

    async with runtime_of(log, use("step_it"), say("done"), tools=[step_it]) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        assert [block.text for block in await results_of(session)] == ["refused"]


async def test_a19_a_key_is_that_of_an_input_and_gives_the_end_of_a_run_that_is_over(log: EventStore) -> None:
    async with runtime_of(log, say("done")) as runtime:
        session = await runtime.session("s")
        first = await session.step("go", key="k")
        again = await session.step("go", key="k")
        assert (again.run, again.result, again.events) == (first.run, first.result, ())
        with pytest.raises(ConfigError, match="give an input too"):
            await session.step(key="k")


async def test_a19_a_turn_that_a_crash_cuts_is_finished_in_the_next_runtime_and_no_other_follows(
    log: EventStore,
) -> None:
    store, parked = FailingStore(log), Parked()
    call = use("repeat", {"name": "a"})
    async with runtime_of(store, call, tools=[parked.repeat], close_grace_s=0) as runtime:
        stepping = asyncio.create_task((await runtime.session("s")).step("go", key="k"))
        await parked.until(1)
        await crash(runtime, store)
    await asyncio.gather(stepping, return_exceptions=True)
    parked.gate.set()
    async with runtime_of(store, say("done"), tools=[parked.repeat]) as runtime:
        session = await runtime.session("s")
        turn = await session.step("go", key="k")
        assert turn.result is None
        assert [block.text for block in await results_of(session)] == ["a returned"]
        assert requests_of(runtime) == []
        last = await session.step()
        assert last.result is not None
        assert last.result.text == "done"


@pytest.mark.parametrize("what", ["waits for its next turn", "is parked"])
async def test_a19_a_run_is_resumed_also_where_the_session_has_a_reminder(log: EventStore, what: str) -> None:
    store, parked = FailingStore(log), Parked()
    config = AgentConfig(model="m", resumes_max=0)
    call = use("repeat", {"name": "a"})
    async with runtime_of(store, call, tools=[parked.repeat], config=config, close_grace_s=0) as runtime:
        session = await runtime.session("s")
        await session.remind("much later", at=datetime.now(UTC) + timedelta(days=300))
        stepping = asyncio.create_task(session.step("go", key="k"))
        await parked.until(1)
        if what == "is parked":
            await crash(runtime, store)
        else:
            parked.gate.set()
            await stepping
    await asyncio.gather(stepping, return_exceptions=True)
    parked.gate.set()
    async with runtime_of(store, say("done"), tools=[parked.repeat], config=config) as runtime:
        session = await runtime.session("s")
        await session.resume()
        assert (await session.send("go", key="k")).text == "done"


# A21: an input that joins the run under way


async def joined(session: Session, content: str = "also this", **options: Any) -> "asyncio.Task[RunResult]":
    """Send an input for now, and return once it is durable."""
    durable = asyncio.Event()
    task = sending(session, content, now=True, on_event=lambda _: durable.set(), **options)
    await durable.wait()
    return task


async def test_a21_an_input_for_now_that_comes_while_the_model_is_asked_follows_the_results(log: EventStore) -> None:
    held = HeldAnswer(use("look"))
    async with runtime_of(log, held, say("both"), tools=[look]) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await held.asked.wait()
        second = await joined(session)
        held.gate.set()
        one, other = await asyncio.gather(first, second)
        assert one == other
        assert one.text == "both"
        assert shown(requests_of(runtime)[1].messages) == ["user: go", "use look", "result: saw it", "user: also this"]
        assert (await types_of(session)).count("RunStarted") == 1


async def test_a21_an_input_for_now_that_comes_before_the_answer_takes_another_turn(log: EventStore) -> None:
    held = HeldAnswer(say("an answer"))
    async with runtime_of(log, held, say("to both")) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await held.asked.wait()
        second = await joined(session)
        held.gate.set()
        assert {(await first).text, (await second).text} == {"to both"}
        assert shown(requests_of(runtime)[1].messages) == ["user: go", "assistant: an answer", "user: also this"]
        assert (await first).turns == 2


async def test_a21_inputs_for_now_that_come_while_tools_run_follow_their_results_in_order(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(
        log, [use("park", {"name": name}) for name in "ab"], say("all"), say("later"), tools=[parked.park]
    ) as runtime:
        session = await runtime.session("s")
        callers = [sending(session, "go")]
        await parked.until(2)
        queued = sending(session, "in turn")
        await session.history()
        callers.append(await joined(session, "first"))
        callers.append(await joined(session, "second"))
        assert not {"first", "second"} & {message.text for message in await session.history()}
        parked.gate.set()
        assert {(await caller).run for caller in callers} == {(await callers[0]).run}
        assert (await queued).text == "later"
        assert shown(requests_of(runtime)[1].messages)[-4:] == [
            "result: a returned",
            "result: b returned",
            "user: first",
            "user: second",
        ]
        assert len(requests_of(runtime)) == 3
        for request in requests_of(runtime):
            assert_accepted(request.messages)


async def test_a21_an_input_for_now_that_comes_while_a_retry_is_awaited_is_in_the_next_attempt(log: EventStore) -> None:
    clock = clock_at()
    overloaded = ProviderError("overloaded", kind="overloaded", retryable=True)
    config = AgentConfig(model="m", retry=RetryPolicy(base_s=10, jitter=0))
    async with runtime_of(log, overloaded, say("done"), config=config, clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        first = sending(session, "go")
        await seen.first(RetryScheduled)
        second = await joined(session)
        await clock.advance(10)
        assert {(await first).text, (await second).text} == {"done"}
        assert shown(requests_of(runtime)[1].messages) == ["user: go", "user: also this"]
        assert (await first).turns == 1


@pytest.mark.parametrize("allow", [True, False])
async def test_a21_an_input_for_now_that_comes_while_somebody_is_asked_waits_for_the_decision(
    log: EventStore, allow: bool
) -> None:
    async with runtime_of(log, use("pay"), say("done"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        first = sending(session, "go")
        (asked,) = await seen.first(ToolApprovalRequested)
        second = await joined(session)
        assert not second.done()
        await session.decide(asked.call, allow=allow, reason="too dear")
        assert {(await first).text, (await second).text} == {"done"}
        answer = "result: paid" if allow else "result: too dear"
        assert shown(requests_of(runtime)[1].messages)[-2:] == [answer, "user: also this"]


async def test_a21_without_a_run_an_input_for_now_is_an_ordinary_one(log: EventStore) -> None:
    async with runtime_of(log, say("one"), say("two")) as runtime:
        session = await runtime.session("s")
        first = await session.send("go", now=True)
        second = await session.send("on", now=True)
        assert [first.text, second.text] == ["one", "two"]
        assert first.run != second.run


async def test_a21_a_key_means_the_run_that_was_joined_for_ever(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("done"), say("next"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await parked.until(1)
        second = await joined(session, key="k")
        repeated = sending(session, "also this", now=True, key="k")
        await session.history()
        with pytest.raises(CommandRejected, match="key 'k'"):
            await session.send("something else", now=True, key="k")
        parked.gate.set()
        results = [await first, await second, await repeated]
        assert len({result.run for result in results}) == 1
        assert (await session.send("and now")).text == "next"
        assert await session.send("also this", key="k", now=True) == results[0]
    async with runtime_of(log) as runtime:
        session = await runtime.session("s")
        assert await session.send("also this", key="k", now=True) == results[0]
        assert [message.text for message in await session.history()].count("also this") == 1


async def test_a21_an_input_for_now_whose_token_is_cancelled_joins_nothing(log: EventStore) -> None:
    parked, token = Parked(), CancellationToken()
    token.cancel()
    async with runtime_of(log, use("park", {"name": "a"}), say("done"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await parked.until(1)
        assert (await session.send("never", now=True, cancel=token)).outcome == Cancelled()
        parked.gate.set()
        assert (await first).text == "done"
        assert "never" not in str(requests_of(runtime))


async def test_a21_the_token_of_an_input_that_has_joined_cancels_the_run(log: EventStore) -> None:
    parked, token = Parked(), CancellationToken()
    async with runtime_of(log, use("park", {"name": "a"}), say("next"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await parked.until(1)
        second = await joined(session, cancel=token)
        token.cancel()
        assert [(await first).outcome, (await second).outcome] == [Cancelled(), Cancelled()]
        assert shown(await session.history()) == [
            "user: go",
            "use park",
            f"result: {CANCELLED_TEXT}",
            "user: also this",
        ]
        assert (await session.send("more")).text == "next"
        assert_accepted(requests_of(runtime)[-1].messages)


async def test_a21_a_caller_who_joined_and_is_cancelled_leaves_the_run_to_the_other(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("done"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await parked.until(1)
        second = await joined(session)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        parked.gate.set()
        assert (await first).text == "done"
        assert shown(requests_of(runtime)[1].messages)[-1] == "user: also this"


async def test_a21_a_run_that_has_no_turn_left_ends_and_keeps_the_input_in_its_history(log: EventStore) -> None:
    held = HeldAnswer(say("an answer"))
    config = AgentConfig(model="m", max_turns=1)
    async with runtime_of(log, held, say("next"), config=config) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await held.asked.wait()
        second = await joined(session)
        held.gate.set()
        one, other = await asyncio.gather(first, second)
        assert one == other
        assert (one.outcome, one.text) == (Completed(), "an answer")
        assert (await session.send("more")).text == "next"
        assert shown(requests_of(runtime)[1].messages) == [
            "user: go",
            "assistant: an answer",
            "user: also this",
            "user: more",
        ]


async def test_a21_an_input_for_now_survives_a_crash_and_joins_a_parked_run_that_goes_on_with_it(
    log: EventStore,
) -> None:
    store, parked = FailingStore(log), Parked()
    config = AgentConfig(model="m", resumes_max=0)
    runtime = runtime_of(store, use("park", {"name": "a"}), tools=[parked.park], config=config, close_grace_s=0)
    async with runtime:
        session = await runtime.session("s")
        callers = [sending(session, "go")]
        await parked.until(1)
        callers.append(await joined(session, "before the crash"))
        await crash(runtime, store)
    await asyncio.gather(*callers, return_exceptions=True)
    async with runtime_of(store, say("done"), tools=[parked.park], config=config) as runtime:
        session = await runtime.session("s")
        third = await joined(session, "while it is parked")
        assert (await types_of(session)).count("RunParked") == 1
        assert not third.done()
        await session.resume()
        assert (await third).text == "done"
        assert shown(requests_of(runtime)[0].messages)[-2:] == ["user: before the crash", "user: while it is parked"]


async def test_a21_now_and_a_later_time_exclude_each_other(log: EventStore) -> None:
    async with runtime_of(log) as runtime:
        session = await runtime.session("s")
        with pytest.raises(ConfigError, match="either for now or for a later time"):
            await session.send("go", now=True, at=after(1))


# A23: timers that survive


async def test_a23_reminders_begin_at_their_times_in_the_order_of_time(log: EventStore) -> None:
    clock = clock_at()
    heard: list[tuple[str, float]] = []

    def answer(request: Any) -> str:
        heard.append((request.messages[-1].text, clock.monotonic_s()))
        return "heard"

    async with runtime_of(log, *[answer] * 5, clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        for name, seconds in (("late", 30), ("early", 10), ("also late", 30), ("middle", 20)):
            await session.remind(name, at=after(seconds))
        assert (await session.send("meanwhile")).text == "heard"
        for ended in range(2, 6):
            await clock.advance(10 if ended < 5 else 0)
            await seen.first(RunCompleted, ended)
    assert [name for name, _ in heard] == ["meanwhile", "early", "middle", "late", "also late"]
    assert [round(when) for _, when in heard] == [0, 10, 20, 30, 30]


async def test_a23_send_at_a_time_returns_how_its_run_ended(log: EventStore) -> None:
    clock = clock_at()
    async with runtime_of(log, say("on time"), clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        types: list[str] = []
        later = sending(session, "go", at=after(60), on_event=lambda item: types.append(type(item.event).__name__))
        (timer,) = await seen.first(TimerSet)
        await clock.advance(59)
        assert len(requests_of(runtime)) == 0
        assert (await session.state_at()).run is None
        await clock.advance(1)
        result = await later
        assert (result.text, timer.due_at) == ("on time", round(after(60).timestamp() * 1e6))
        assert types == ["TimerSet", "InputQueued", "RunStarted", "ModelRequested", "ModelResponded", "RunCompleted"]


@pytest.mark.parametrize("restart_at", [5, 100])
@pytest.mark.parametrize("how", ["in order", "crash"])
async def test_a23_a_reminder_survives_a_restart_before_and_after_its_time(
    log: EventStore, restart_at: int, how: str
) -> None:
    store = FailingStore(log)
    clock = clock_at()
    options: dict[str, Any] = {"clock": clock, "ask_timeout_s": 1e6, "close_grace_s": 0}
    runtime = runtime_of(store, app_version="1", **options)
    async with runtime:
        session = await runtime.session("s")
        run = await session.remind("wake up", at=after(10), key="k")
        if how == "crash":
            await crash(runtime, store, clock)
    clock = clock_at(after(restart_at))
    async with runtime_of(store, say("awake"), app_version="2", **{**options, "clock": clock}) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        assert await session.remind("wake up", at=after(10), key="k") == run
        if restart_at < 10:
            await clock.advance(4)
            assert len(requests_of(runtime)) == 0
            await clock.advance(1)
        else:
            await clock.advance(0)
        if (await session.state_at()).last_run is None:
            await seen.first(RunCompleted)
        result = await session.send("wake up", key="k")
        assert (result.run, result.text) == (run, "awake")
        (started,) = await events_of(session, RunStarted)
        assert started.code.app == "2", "a25: the run says which code decided it"


async def test_a23_a_reminder_in_a_session_that_nobody_opens_again_begins_all_the_same(log: EventStore) -> None:
    async with runtime_of(log, clock=clock_at()) as runtime:
        await (await runtime.session("s")).remind("wake up", at=after(10))
    over, clock = asyncio.Event(), clock_at(after(3600))
    runtime = runtime_of(log, say("awake"), clock=clock, ask_timeout_s=1e6)
    runtime.subscribe(lambda item: over.set() if isinstance(item.event, RunCompleted) else None)
    async with runtime:
        while not over.is_set():
            await clock.advance(0)
        assert shown(await (await runtime.session("s")).history()) == ["user: wake up", "assistant: awake"]


async def test_a23_a_reminder_of_another_agent_waits_until_somebody_resumes_it_here(log: EventStore) -> None:
    async with runtime_of(log, clock=clock_at(), name="one") as runtime:
        await (await runtime.session("s")).remind("wake up", at=after(10))
    clock = clock_at(after(20))
    async with runtime_of(log, say("awake"), clock=clock, name="another", ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        await session.history()
        await clock.advance(100)
        assert requests_of(runtime) == []
        await session.resume()
        await clock.advance(0)
        await seen.first(RunCompleted)


async def test_a23_many_reminders_all_begin_once(log: EventStore) -> None:
    clock, count = clock_at(), 30
    async with runtime_of(log, *[say("heard")] * count, clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        runs = [await session.remind(f"{number}", at=after(1 + number * 7 % count)) for number in range(count)]
        await clock.advance(count)
        while len(await events_of(session, RunCompleted)) < count:
            await clock.advance(1)
        started = [event.run for event in await events_of(session, RunStarted)]
        assert sorted(started) == sorted(runs)
        said = [int(message.text) for message in await session.history() if message.role == "user"]
        assert said == sorted(range(count), key=lambda number: (number * 7 % count, number))


async def test_a23_a_reminder_that_is_cancelled_never_begins(log: EventStore) -> None:
    clock, token = clock_at(), CancellationToken()
    async with runtime_of(log, say("the other"), clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        first = await session.remind("one", at=after(10), key="k")
        await session.remind("two", at=after(10))
        third = sending(session, "three", at=after(10), cancel=token)
        await seen.first(TimerSet, 3)
        await session.cancel(run=first)
        await session.cancel(run=first)
        token.cancel()
        assert (await third).outcome == Cancelled()
        await clock.advance(10)
        await seen.first(RunCompleted)
        assert [message.text for message in await session.history()] == ["two", "the other"]
        assert (await session.send("one", key="k")).outcome == Cancelled()
        assert await session.remind("one", at=after(20), key="k") == first
        await clock.advance(20)
        assert len(requests_of(runtime)) == 1


async def test_a23_an_input_for_later_whose_token_is_cancelled_already_never_begins(log: EventStore) -> None:
    clock, token = clock_at(), CancellationToken()
    token.cancel()
    async with runtime_of(log, clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        for at in (after(10), after(-10)):
            assert (await session.send("never", at=at, cancel=token)).outcome == Cancelled()
        await clock.advance(100)
        assert requests_of(runtime) == []
        assert shown(await session.history()) == ["user: never"] * 2, "as that of any run that was cancelled early"


async def test_a23_a_tool_may_remind_its_own_session(log: EventStore) -> None:
    clock = clock_at()

    @tool
    async def remind_me(context: ToolContext[Any]) -> str:
        """Remind this session."""
        await (await runtime.session(context.session)).remind("wake up", at=after(10))
        return "reminded"

    async with runtime_of(
        log, use("remind_me"), say("good night"), say("awake"), tools=[remind_me], clock=clock, ask_timeout_s=1e6
    ) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        assert (await session.send("go")).text == "good night"
        await clock.advance(10)
        await seen.first(RunCompleted, 2)
        assert shown(await session.history())[-2:] == ["user: wake up", "assistant: awake"]


async def test_a23_cancelling_the_run_under_way_leaves_reminders_alone(log: EventStore) -> None:
    clock, held = clock_at(), HeldAnswer(say("never"))
    async with runtime_of(log, held, say("awake"), clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        await session.remind("wake up", at=after(10))
        first = sending(session, "go")
        await held.asked.wait()
        await session.cancel()
        assert (await first).outcome == Cancelled()
        await session.cancel()
        await clock.advance(10)
        await seen.first(RunCompleted)


async def test_a23_a_reminder_whose_time_comes_during_a_run_is_queued(log: EventStore) -> None:
    clock, held = clock_at(), HeldAnswer(say("first"))
    async with runtime_of(log, held, say("second"), clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        first = sending(session, "go")
        await held.asked.wait()
        await session.remind("wake up", at=after(10))
        await clock.advance(10)
        await seen.first(InputQueued, 2)
        assert len(requests_of(runtime)) == 1
        held.gate.set()
        assert (await first).text == "first"
        await seen.first(RunCompleted, 2)
        assert shown(await session.history())[2:] == ["user: wake up", "assistant: second"]


@pytest.mark.parametrize("at", [after(0), after(-3600), datetime(1969, 12, 31, tzinfo=UTC)])
async def test_a23_a_time_that_is_over_means_at_once(log: EventStore, at: datetime) -> None:
    clock = clock_at()
    async with runtime_of(log, say("at once"), clock=clock, ask_timeout_s=1e6) as runtime:
        later = sending(await runtime.session("s"), "go", at=at)
        while not later.done():
            await clock.advance(0)
        assert (await later).text == "at once"


class Nowhere(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    "at", [BEGINNING.replace(tzinfo=None), BEGINNING.replace(tzinfo=Nowhere()), 1_900_000_000, "2030-01-01T00:00:00Z"]
)
async def test_a23_a_time_without_a_zone_is_refused_and_nothing_is_recorded(log: EventStore, at: Any) -> None:
    async with runtime_of(log) as runtime:
        session = await runtime.session("s")
        with pytest.raises(ConfigError, match="with a time zone"):
            await session.remind("go", at=at)
        with pytest.raises(ConfigError, match="with a time zone"):
            await session.send("go", at=at)
        assert await types_of(session) == []


@pytest.mark.parametrize(
    "at",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
)
async def test_a23_the_ends_of_time_are_times(log: EventStore, at: datetime) -> None:
    clock = clock_at()
    async with runtime_of(log, say("once"), clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        run = await session.remind("go", at=at)
        await clock.advance(1)
        await session.cancel(run=run)
        await clock.settle()


async def test_a23_the_run_timeout_stops_while_a_person_is_waited_for(log: EventStore) -> None:
    clock, held = clock_at(), HeldAnswer(use("pay"))
    parked = Parked()
    config = AgentConfig(model="m", run_timeout_s=10)
    script = [held, use("park", {"name": "a"})]
    tools = [pay, parked.park]
    async with runtime_of(log, *script, tools=tools, config=config, clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        run = sending(session, "go")
        await held.asked.wait()
        await clock.advance(6)
        held.gate.set()
        (asked,) = await seen.first(ToolApprovalRequested)
        await clock.advance(100_000)
        assert not run.done()
        await session.decide(asked.call, allow=True)
        await parked.until(1)
        await session.history()
        await clock.advance(3.9)
        assert await events_of(session, RunFailed) == []
        await clock.advance(0.2)
        outcome = (await run).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "run_timeout"
        assert [block.kind for block in await results_of(session)] == [None, "timeout"]


async def test_a23_the_run_timeout_goes_on_while_a_sibling_runs_beside_the_wait(log: EventStore) -> None:
    clock, parked = clock_at(), Parked()
    config = AgentConfig(model="m", run_timeout_s=10)
    calls = [use("park", {"name": "a"}), use("pay")]
    async with runtime_of(
        log, calls, tools=[pay, parked.park], config=config, clock=clock, ask_timeout_s=1e6
    ) as runtime:
        run = sending(await runtime.session("s"), "go")
        await parked.until(1)
        await clock.advance(10)
        outcome = (await run).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "run_timeout"


async def test_a23_the_run_timeout_stops_between_turns_and_over_a_restart_in_an_approval(log: EventStore) -> None:
    clock = clock_at()
    config = AgentConfig(model="m", run_timeout_s=10)
    options: dict[str, Any] = {"tools": [pay], "config": config, "ask_timeout_s": 1e6}
    async with runtime_of(log, use("pay"), clock=clock, **options) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        stepping = asyncio.create_task(session.step("go"))
        (asked,) = await seen.first(ToolApprovalRequested)
        await clock.advance(50)
    assert not isinstance((await asyncio.gather(stepping, return_exceptions=True))[0], TurnResult)
    clock = clock_at(after(3600))
    async with runtime_of(log, say("done"), clock=clock, **options) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        await session.decide(asked.call, allow=True)
        await seen.first(ToolCallCompleted)
        await clock.advance(3600)
        last = await session.step()
        assert last.result is not None
        assert last.result.text == "done"


async def test_a23_an_approval_that_nobody_gives_in_time_counts_as_denied_also_over_a_restart(log: EventStore) -> None:
    config = AgentConfig(model="m", approval_expiry_s=60)
    options: dict[str, Any] = {"tools": [pay], "config": config, "ask_timeout_s": 1e6}
    async with runtime_of(log, use("pay"), clock=clock_at(), **options) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        run = sending(session, "go", key="k")
        (asked,) = await seen.first(ToolApprovalRequested)
        assert asked.expires_at == round(after(60).timestamp() * 1e6)
    await asyncio.gather(run, return_exceptions=True)
    clock = clock_at(after(50))
    async with runtime_of(log, say("then not"), clock=clock, **options) as runtime:
        session = await runtime.session("s")
        run = sending(session, "go", key="k")
        assert [waiting.call for waiting in await session.approvals()] == [asked.call]
        await clock.advance(9)
        assert not run.done()
        await clock.advance(1)
        assert (await run).text == "then not"
        (result,) = await results_of(session)
        assert result.kind == "denied"
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(asked.call, allow=True)


# A25: which code decided


async def test_a25_a_run_says_which_code_and_agent_began_it_and_which_went_on_with_it(log: EventStore) -> None:
    held = HeldAnswer(say("never"))
    async with runtime_of(log, held, app_version="1", close_grace_s=0) as runtime:
        session = await runtime.session("s")
        run = sending(session, "go", key="k")
        await held.asked.wait()
    await asyncio.gather(run, return_exceptions=True)
    config = AgentConfig(model="another")
    async with runtime_of(log, say("done"), say("more"), config=config, app_version="2") as runtime:
        session = await runtime.session("s")
        await session.send("go", key="k")
        await session.send("on")
        events = [item.event async for item in session.events()]
    codes = [
        (type(event).__name__, event.code.app, event.fingerprint)
        for event in events
        if isinstance(event, RunStarted | RunResumed)
    ]
    assert [(name, app) for name, app, _ in codes] == [("RunStarted", "1"), ("RunResumed", "2"), ("RunStarted", "2")]
    assert codes[0][2] != codes[1][2] == codes[2][2]


@pytest.mark.parametrize("what", ["a step", "a decision", "a reminder"])
async def test_a25_whatever_lets_a_run_go_on_in_new_code_tells_the_session_of_it_first(
    log: EventStore, what: str
) -> None:
    clock = clock_at()
    async with runtime_of(log, use("look"), use("pay"), tools=[look, pay], app_version="1", clock=clock) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        waiting: list[asyncio.Task[Any]] = []
        if what == "a step":
            await session.step("go")
        elif what == "a decision":
            waiting.append(sending(session, "go"))
            (asked,) = await seen.first(ToolApprovalRequested)
        else:
            await session.remind("go", at=after(10))
    await asyncio.gather(*waiting, return_exceptions=True)
    config = AgentConfig(model="another")
    async with runtime_of(
        log, say("done"), tools=[look, pay], config=config, app_version="2", clock=clock, ask_timeout_s=1e6
    ) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        if what == "a step":
            await session.step()
        elif what == "a decision":
            await session.decide(asked.call, allow=True)
        else:
            await session.history()
            await clock.advance(10)
        await seen.first(RunCompleted)
        assert requests_of(runtime)[0].model == "another"


# A26: a tool that ends the run


@tool(tier="observe")
async def finish(context: ToolContext[Any], text: str) -> str:
    """End the run."""
    context.finish(text)
    return "what the body returns is not the result"


@tool(name="finish", tier="observe")
def finish_in_thread(context: ToolContext[Any], text: str) -> str:
    """End the run from a thread."""
    return context.finish(text)


@pytest.mark.parametrize("ending", [finish, finish_in_thread], ids=["async", "sync"])
@pytest.mark.parametrize("text", ["all done", "", "long " * 30_000], ids=["text", "empty", "huge"])
async def test_a26_a_tool_ends_the_run_with_a_text(log: EventStore, ending: Any, text: str) -> None:
    async with runtime_of(log, use("finish", {"text": text}), say("next"), tools=[ending]) as runtime:
        session = await runtime.session("s")
        result = await session.send("go", key="k")
        assert (result.outcome, result.text, result.turns) == (Completed(), text, 1)
        assert [block.text for block in await results_of(session)] == [text]
        assert len(requests_of(runtime)) == 1
        assert (await session.send("more")).text == "next"
        assert_accepted(requests_of(runtime)[1].messages)
        assert await session.send("go", key="k") == result


async def test_a26_calls_beside_the_one_that_ends_the_run_are_awaited_and_those_not_begun_do_not_run(
    log: EventStore,
) -> None:
    parked, ran = Parked(), list[str]()

    @tool
    async def later() -> str:
        """Act after the others."""
        ran.append("later")
        return "acted"

    calls = [use("park", {"name": "a"}), use("finish", {"text": "over"}), use("later"), use("park", {"name": "b"})]
    async with runtime_of(log, calls, tools=[parked.park, finish, later]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        run = sending(session, "go")
        await seen.first(ToolCallCompleted)
        await session.history()
        assert not run.done()
        parked.gate.set()
        assert ((await run).outcome, (await run).text) == (Completed(), "over")
        results = await results_of(session)
        assert [block.text for block in results] == ["a returned", "over", ENDED_TEXT, ENDED_TEXT]
        assert [block.kind for block in results] == [None, None, "denied", "denied"]
        assert (ran, parked.begun) == ([], ["a"])


async def test_a26_a_call_that_waits_for_somebody_is_not_waited_for_when_the_run_is_ended(log: EventStore) -> None:
    calls = [use("finish", {"text": "over"}), use("pay")]
    async with runtime_of(log, calls, tools=[pay, finish]) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert (result.outcome, result.text) == (Completed(), "over")
        assert [block.text for block in await results_of(session)] == ["over", ENDED_TEXT]
        assert await session.approvals() == []
        (asked,) = await events_of(session, ToolApprovalRequested)
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(asked.call, allow=True)


async def test_a26_of_two_calls_that_end_the_run_the_first_to_return_gives_the_answer(log: EventStore) -> None:
    gate = asyncio.Event()

    @tool(tier="observe")
    async def slow(context: ToolContext[Any]) -> str:
        """End the run later."""
        await gate.wait()
        return context.finish("second")

    async with runtime_of(log, [use("slow"), use("finish", {"text": "first"})], tools=[finish, slow]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        run = sending(session, "go")
        await seen.first(ToolCallCompleted)
        gate.set()
        assert (await run).text == "first"
        assert [block.text for block in await results_of(session)] == ["second", "first"]


async def test_a26_a_body_that_raises_after_finish_ends_nothing(log: EventStore) -> None:
    @tool
    async def finish_and_raise(context: ToolContext[Any]) -> str:
        """End the run, and fail."""
        context.finish("over")
        raise ValueError("not quite")

    async with runtime_of(log, use("finish_and_raise"), say("went on"), tools=[finish_and_raise]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "went on"
        (result,) = await results_of(session)
        assert result.is_error
        assert "not quite" in result.text


async def test_a26_finish_takes_text_only(log: EventStore) -> None:
    @tool
    async def finish_with_a_number(context: ToolContext[Any]) -> str:
        """End the run with a number."""
        wrong: Any = 5
        return context.finish(wrong)

    async with runtime_of(log, use("finish_with_a_number"), say("went on"), tools=[finish_with_a_number]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "went on"
        (result,) = await results_of(session)
        assert "text, not int" in result.text


@pytest.mark.parametrize("winner", ["finish", "cancel"])
async def test_a26_finish_and_cancel_at_once_end_the_run_once(log: EventStore, winner: str) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    parked = Parked()

    @tool(tier="observe")
    async def finish_later(context: ToolContext[Any]) -> str:
        """End the run when told."""
        begun.set()
        await gate.wait()
        return context.finish("over")

    calls = [use("finish_later"), use("park", {"name": "a"})]
    async with runtime_of(log, calls, say("next"), tools=[finish_later, parked.park]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        token = CancellationToken()
        run = sending(session, "go", cancel=token)
        await begun.wait()
        await parked.until(1)
        gate.set()
        if winner == "finish":
            await seen.first(ToolCallCompleted)
        token.cancel()
        assert (await run).outcome == Cancelled(), "a sibling was still running"
        assert [block.text for block in await results_of(session)] == [
            "over" if winner == "finish" else CANCELLED_TEXT,
            CANCELLED_TEXT,
        ]
        ends = [kind for kind in await types_of(session) if kind in ("RunCompleted", "RunFailed", "RunCancelled")]
        assert ends == ["RunCancelled"]
        assert (await session.send("more")).text == "next"


async def test_a26_an_input_that_has_joined_a_run_that_a_tool_ends_stays_in_the_history(log: EventStore) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    @tool
    async def finish_later(context: ToolContext[Any]) -> str:
        """End the run when told."""
        begun.set()
        await gate.wait()
        return context.finish("over")

    async with runtime_of(log, use("finish_later"), say("next"), tools=[finish_later]) as runtime:
        session = await runtime.session("s")
        first = sending(session, "go")
        await begun.wait()
        second = await joined(session)
        gate.set()
        assert {(await first).text, (await second).text} == {"over"}
        await session.send("more")
        assert shown(requests_of(runtime)[1].messages) == [
            "user: go",
            "use finish_later",
            "result: over",
            "user: also this",
            "user: more",
        ]


async def test_a26_a_run_that_goes_step_by_step_is_ended_by_a_tool_in_that_turn(log: EventStore) -> None:
    async with runtime_of(log, use("look"), use("finish", {"text": "over"}), tools=[look, finish]) as runtime:
        session = await runtime.session("s")
        assert (await session.step("go")).result is None
        last = await session.step()
        assert last.result is not None
        assert last.result.text == "over"
        assert [result.text for _, result in last.calls] == ["over"]


# A27: upkeep of a session


async def test_a27_an_imported_history_is_what_the_model_sees_first(log: EventStore) -> None:
    call = ToolUseBlock(id=ToolCallId("theirs"), name="look", input={"at": "x"})
    messages = [Message("user", (TextBlock(text="before"),)), Message("assistant", (call,))]
    async with runtime_of(log, say("done"), tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.import_history(messages, key="k")
        await session.import_history(messages, key="k")
        assert (await session.send("go")).text == "done"
        assert shown(requests_of(runtime)[0].messages) == [
            "user: before",
            "use look",
            f"result: {CRASHED_IMPORT_TEXT}",
            "user: go",
        ]
        assert_accepted(requests_of(runtime)[0].messages)


async def test_a_session_that_begins_with_being_cleared_says_whose_it_is_all_the_same(log: EventStore) -> None:
    async with runtime_of(log, say("one")) as runtime:
        session = await runtime.session("s")
        await session.clear(key="k")
        await session.clear()
        recorded = [type(recorded.event).__name__ async for recorded in session.events()]
        assert recorded == ["SessionOpened", "AgentConfigured", "HistoryCleared"]
        assert (await session.send("go")).text == "one"


async def test_a27_after_clear_the_model_sees_nothing_of_before_and_the_log_keeps_it(log: EventStore) -> None:
    async with runtime_of(log, use("look"), say("one"), say("two"), say("three"), tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.send("go", key="sent")
        await session.clear(key="k")
        assert await session.history() == []
        assert (await session.send("anew")).text == "two"
        assert shown(requests_of(runtime)[2].messages) == ["user: anew"]
        await session.clear(key="k")
        assert len(await session.history()) == 2, "the same key is the same clearing"
        assert (await session.send("go", key="sent")).text == "one", "keys are kept"
        assert len(await events_of(session, ToolCallStarted)) == 1
    async with runtime_of(log, say("three")) as runtime:
        session = await runtime.session("s")
        await session.send("after a restart")
        assert shown(requests_of(runtime)[0].messages) == ["user: anew", "assistant: two", "user: after a restart"]


async def test_a27_nothing_is_cleared_or_imported_while_a_run_is_under_way(log: EventStore) -> None:
    held = HeldAnswer(say("done"))
    async with runtime_of(log, held) as runtime:
        session = await runtime.session("s")
        run = sending(session, "go")
        await held.asked.wait()
        with pytest.raises(CommandRejected, match="is under way"):
            await session.clear()
        with pytest.raises(CommandRejected, match="is under way"):
            await session.import_history([Message("user", (TextBlock(text="x"),))])
        held.gate.set()
        assert (await run).text == "done"
        assert shown(await session.history()) == ["user: go", "assistant: done"]


async def test_a27_a_result_that_comes_after_clear_is_evidence_and_no_history(log: EventStore) -> None:
    parked, clock = Parked(), clock_at()
    calls = [use("ignore", {"name": name}) for name in "ab"]
    async with runtime_of(log, calls, say("next"), tools=[parked.ignore], clock=clock, cancel_grace_s=1) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        run = sending(session, "go")
        await parked.until(2)
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        await clock.advance(1)
        await cancelling
        assert (await run).outcome == Cancelled()
        await session.clear()
        parked.gate.set()
        late = await seen.first(ToolResultLate, 2)
        assert {event.content[0].text for event in late} == {"a returned", "b returned"}
        assert await session.history() == []
        assert (await session.send("anew")).text == "next"
        assert shown(requests_of(runtime)[-1].messages) == ["user: anew"]


async def test_a27_a_session_that_is_forgotten_leaves_memory_and_comes_back_from_the_log(log: EventStore) -> None:
    async with runtime_of(log, say("one"), say("two")) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        assert "session/s" in runtime.system.live()
        await runtime.forget("s")
        await runtime.forget("s")
        await runtime.forget("never heard of")
        assert "session/s" not in runtime.system.live()
        assert (await session.send("more")).text == "two"
        assert shown(requests_of(runtime)[1].messages) == ["user: go", "assistant: one", "user: more"]


async def test_a27_a_session_that_does_or_awaits_something_is_not_forgotten(log: EventStore) -> None:
    held, clock = HeldAnswer(use("pay")), clock_at()
    async with runtime_of(log, held, say("done"), tools=[pay], clock=clock, ask_timeout_s=1e6) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        run = sending(session, "go")
        await held.asked.wait()
        with pytest.raises(CommandRejected, match="cannot be forgotten"):
            await runtime.forget("s")
        held.gate.set()
        (asked,) = await seen.first(ToolApprovalRequested)
        with pytest.raises(CommandRejected, match="cannot be forgotten"):
            await runtime.forget("s")
        await session.decide(asked.call, allow=True)
        assert (await run).text == "done"
        reminder = await session.remind("later", at=after(10))
        with pytest.raises(CommandRejected, match="cannot be forgotten"):
            await runtime.forget("s")
        await session.cancel(run=reminder)
        await runtime.forget("s")
        assert "session/s" not in runtime.system.live()


async def test_a27_a_run_that_waits_for_its_next_turn_outlives_that_its_session_is_forgotten(log: EventStore) -> None:
    async with runtime_of(log, use("look"), say("done"), tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.step("go")
        await runtime.forget("s")
        last = await session.step()
        assert last.result is not None
        assert last.result.text == "done"


async def test_a27_a_runtime_shows_what_it_was_built_from(log: EventStore) -> None:
    provider = ScriptedProvider([])

    def approval(session: Any, request: Any) -> Any:
        raise AssertionError("nobody asks")

    def policy(call: Any) -> Any:
        raise AssertionError("nobody asks")

    async with AgentRuntime(
        CONFIG, provider=provider, tools=[look, pay], log=log, approval=approval, policy=policy
    ) as runtime:
        assert runtime.tools.names() == ("look", "pay")
        assert runtime.agent.provider is provider
        assert (runtime.agent.approval, runtime.agent.policy) == (approval, policy)
        await (await runtime.session("s")).import_history([Message("user", (TextBlock(text="x"),))])
        assert await runtime.store.head("session/s") is not None
        assert ModelRequested.__name__ not in await types_of(await runtime.session("s"))


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [36_060, -3_600])
async def test_a23_a_reminder_follows_the_wall_clock_when_that_is_set(jump_s: float) -> None:
    clock = ManualClock()
    async with runtime_of(InMemoryStore(), say("reminded"), clock=clock) as runtime:
        session = await runtime.session("s")
        ten_hours = datetime.fromtimestamp(clock.now_us() / 1e6, UTC) + timedelta(hours=10)
        await session.remind("now?", at=ten_hours)
        clock.jump(jump_s)
        await clock.advance(120)
        finished = (await session.state_at()).last_run
        assert (finished is not None) == (jump_s > 0)
        await clock.advance(36_000 - 60)
        assert ((await session.state_at()).last_run is None) == (jump_s < 0)
        await clock.advance(3_600)
        assert (await session.state_at()).last_run is not None


async def test_a22_a_repeated_key_costs_no_reading_of_the_log(log: EventStore) -> None:
    async with runtime_of(log, *(say(str(number)) for number in range(20))) as runtime:
        session = await runtime.session("s")
        for number in range(20):
            await session.send("go", key=f"k{number}")
        reads = 0
        read_stream = log.read_stream

        async def counting(*args: Any, **named: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read_stream(*args, **named)

        log.read_stream = counting  # type: ignore[method-assign]
        assert [(await session.send("go", key=f"k{number}")).text for number in range(20)] == [
            str(number) for number in range(20)
        ]
        assert reads == 0


async def test_a27_a_repeated_key_clears_nothing_that_came_after_it(log: EventStore) -> None:
    async with runtime_of(log, say("hi")) as runtime:
        session = await runtime.session("s")
        await session.import_history([Message("user", (TextBlock(text="before"),))])
        await session.clear()
        await session.clear(key="k")
        await session.send("hello")
        await session.clear(key="k")
        assert len(await session.history()) == 2


@pytest.mark.parametrize("reason", ["x" * 2_000_000, ValueError("stop"), "\ud800"])
async def test_b16_no_reason_makes_a_cancellation_fail(log: EventStore, reason: Any) -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return "unreachable"

    async with runtime_of(log, use("wait"), use("wait"), tools=[wait]) as runtime:
        session, token = await runtime.session("s"), CancellationToken()
        sending = asyncio.create_task(session.send("go", cancel=token))
        await begun.wait()
        token.cancel(reason)
        assert isinstance((await sending).outcome, Cancelled)
        begun.clear()
        sending = asyncio.create_task(session.send("again"))
        await begun.wait()
        await session.cancel(reason=reason)
        assert isinstance((await sending).outcome, Cancelled)


async def test_what_is_no_id_is_refused_and_costs_the_session_nothing(log: EventStore) -> None:
    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
        for _ in range(8):
            with pytest.raises(CommandRejected):
                await session.decide("\ud800", allow=True, key="k")
        for refused in (session.decide(5, allow=True), session.decide("c", allow="yes"), session.cancel(run=object())):  # type: ignore[arg-type]
            with pytest.raises(CommandRejected):
                await refused
        assert (await session.send("go")).text == "fine"


async def test_what_a_tool_has_begun_may_send_to_its_session_once_the_tool_has_ended(log: EventStore) -> None:
    tasks: list[asyncio.Task[Any]] = []
    ended = asyncio.Event()

    async def later(session: Session) -> Any:
        await ended.wait()
        return await session.send("from behind")

    @tool
    async def begin() -> str:
        """Begin something that goes on."""
        tasks.append(asyncio.create_task(later(await runtime.session("s"))))
        return "begun"

    runtime = runtime_of(log, use("begin"), say("one"), say("two"), tools=[begin])
    async with runtime:
        assert (await (await runtime.session("s")).send("go")).text == "one"
        ended.set()
        assert (await tasks[0]).text == "two"


async def test_a25_an_input_in_new_code_is_answered_by_its_configuration(log: EventStore) -> None:
    for model in ("old", "new"):
        provider = ScriptedProvider([say(model)])
        async with AgentRuntime(AgentConfig(model=model), provider=provider, log=log) as runtime:
            assert (await (await runtime.session("s")).send("go")).text == model
        assert [request.model for request in provider.requests] == [model]
