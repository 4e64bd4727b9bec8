"""Cases A and B of the reported faults: calls without results, results without calls, calls that are not what was said.

Each history that a model is shown here is checked as a provider would check it. A crash is a copy of the files of a
runtime that is still alive: what a process leaves that is killed at that moment.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Cancelled,
    Completed,
    ImageBlock,
    Message,
    ModelRequest,
    ModelResponse,
    ScriptedProvider,
    Session,
    TextBlock,
    ToolCallId,
    ToolContext,
    ToolResultBlock,
    ToolUse,
    ToolUseBlock,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT, CRASHED_TEXT
from refold.events.model.messages import TextDelta, ToolInputDelta
from refold.events.session.events import (
    RunCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolResultLate,
)
from refold.events.session.invariants import check_events, check_history
from refold.stores import EventStore
from tests.conformance.crashes import assert_sound_file, crash_image, crashed, runtime_on
from tests.conformance.sessions import Parked, Seen, events_of, requests_of, types_of

STREAMING = AgentConfig(model="m", streaming=True)


class Asked(ScriptedProvider):
    """Plays a script, and refuses a history as a provider would."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        assert check_history(request.messages) == []
        return await super().complete(request)


def runtime_of(log: Any, *script: Any, **options: Any) -> AgentRuntime:
    return runtime_on(log, **{"provider": Asked(script)} | options)


async def interrupted(session: Session, parked: Parked, calls: int = 1, text: str = "go") -> None:
    """Send, and cancel the run once so many calls more have begun."""
    before = len(parked.begun)
    sending = asyncio.create_task(session.send(text))
    await parked.until(before + calls)
    await session.cancel()
    assert (await sending).outcome == Cancelled()


def calls_in(messages: Sequence[Message]) -> list[ToolUseBlock]:
    return [block for message in messages for block in message.content if isinstance(block, ToolUseBlock)]


def results_in(messages: Sequence[Message]) -> list[ToolResultBlock]:
    return [block for message in messages for block in message.content if isinstance(block, ToolResultBlock)]


def shape(messages: Sequence[Message]) -> list[str]:
    """Return the history in words: what stands where."""
    words = []
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock(text=text):
                    words.append(f"{message.role} says {text}")
                case ToolUseBlock(name=name):
                    words.append(f"calls {name}")
                case ToolResultBlock():
                    words.append(f"result {block.kind or block.text}")
                case _:
                    words.append(type(block).__name__)
    return words


# A01, A04: an interrupted call has its result before the next input


BLOCKS = [ImageBlock(media_type="image/png", data=b"\x89PNG"), TextBlock(text="look"), "again"]


@pytest.mark.parametrize(
    ("calls", "given", "words"),
    [
        pytest.param(1, "new text", ["user says new text"], id="one call"),
        pytest.param(3, "new text", ["user says new text"], id="several calls"),
        pytest.param(1, BLOCKS, ["ImageBlock", "user says look", "user says again"], id="an image and several blocks"),
    ],
)
async def test_case_a01_the_input_after_an_interrupt_comes_behind_one_result_for_each_call(
    log: EventStore, calls: int, given: Any, words: list[str]
) -> None:
    parked = Parked()
    script = ([use("park", {"name": str(number)}) for number in range(calls)], say("fine"), say("still fine"))
    async with runtime_of(log, *script, tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        await interrupted(session, parked, calls)
        assert (await session.send(given)).text == "fine"
        assert (await session.send("more")).text == "still fine"
        expected = ["user says go", *["calls park"] * calls, *["result cancelled"] * calls, *words]
        _, second, third = requests_of(runtime)
        assert shape(second.messages) == expected
        assert shape(third.messages)[: len(expected)] == expected
        assert [result.tool_use_id for result in results_in(second.messages)] == [
            call.id for call in calls_in(second.messages)
        ]


async def test_case_a01_interrupts_in_a_row_each_leave_a_balanced_history(log: EventStore) -> None:
    parked = Parked()
    script = [use("park", {"name": str(number)}) for number in range(4)]
    async with runtime_of(log, *script, say("fine"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        for number in range(4):
            await interrupted(session, parked, text=f"input {number}")
        assert (await session.send("last")).text == "fine"
        assert shape(requests_of(runtime)[4].messages) == [
            *(word for n in range(4) for word in (f"user says input {n}", "calls park", "result cancelled")),
            "user says last",
        ]


async def test_case_a01_an_input_that_waits_while_a_call_is_interrupted_comes_behind_its_result(
    log: EventStore,
) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("fine"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("go"))
        await parked.until(1)
        second = asyncio.create_task(session.send("new text"))
        await session.history()
        await session.cancel()
        assert ((await first).outcome, (await second).text) == (Cancelled(), "fine")
        assert shape(requests_of(runtime)[1].messages) == [
            "user says go",
            "calls park",
            "result cancelled",
            "user says new text",
        ]


async def test_case_a01_a_call_that_ended_keeps_its_result_beside_those_that_were_interrupted(log: EventStore) -> None:
    parked = Parked()

    @tool(tier="observe")
    async def quick() -> str:
        return "was quick"

    async with runtime_of(
        log, [use("park", {"name": "a"}), use("quick")], say("fine"), tools=[parked.park, quick]
    ) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await seen.first(ToolCallCompleted)
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        await session.send("new text")
        assert shape(requests_of(runtime)[1].messages)[3:] == [
            "result cancelled",
            "result was quick",
            "user says new text",
        ]


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "thread"])
async def test_case_a04_a_tool_that_never_looks_at_its_token_has_its_result_from_the_boundary(
    log: EventStore, blocking: bool
) -> None:
    parked, in_thread, clock = Parked(), threading.Event(), ManualClock()
    loop = asyncio.get_running_loop()

    @tool(name="ignore", tier="observe")
    def in_a_thread(name: str) -> str:
        loop.call_soon_threadsafe(parked._begin, name)
        in_thread.wait()
        return f"{name} returned"

    tools = [in_a_thread if blocking else parked.ignore]
    async with runtime_of(log, use("ignore", {"name": "it"}), say("fine"), tools=tools, clock=clock) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        # The body still runs, and the log is balanced already: here the host may abort.
        stored = SESSION_CODEC.decode_all(await log.read_stream("session/s"))
        assert check_events(stored, "session/s") == []
        (result,) = [event for event in stored if isinstance(event, ToolCallFailed)]
        assert (result.kind, result.content, result.started) == ("cancelled", (TextBlock(text=CANCELLED_TEXT),), True)
        await clock.advance(6)
        await cancelling
        assert (await sending).outcome == Cancelled()
        assert (await session.send("new text")).text == "fine"
        parked.gate.set()
        in_thread.set()
        (late,) = await seen.first(ToolResultLate)
        assert late.content == (TextBlock(text="it returned"),)
        assert [result.kind for result in results_in(await session.history())] == ["cancelled"]


async def test_case_a04_a_host_that_aborts_in_the_middle_of_a_cancel_leaves_no_open_call(log: EventStore) -> None:
    parked, clock = Parked(), ManualClock()
    script = [use("ignore", {"name": "it"})]
    runtime = runtime_of(log, *script, tools=[parked.ignore], clock=clock, close_grace_s=0)
    async with runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        closing = asyncio.create_task(runtime.close())
        await clock.settle()
        parked.gate.set()
        while not closing.done():
            await clock.advance(1)
        await asyncio.wait([sending, cancelling])
    async with runtime_of(log, say("fine")) as again:
        assert (await (await again.session("s")).send("new text")).text == "fine"
        words = ["user says go", "calls ignore", "result cancelled", "user says new text"]
        assert shape(requests_of(again)[0].messages) == words


# A14, A16: what a crash leaves is folded once, and repaired each time it needs to be


def confirmed(ran: list[str], gate: asyncio.Event | None = None) -> Any:
    @tool(tier="confirm", effect="once")
    async def pay(context: ToolContext[Any]) -> str:
        ran.append(context.idempotency_key)
        if gate is not None:
            await gate.wait()
        return "paid"

    return pay


async def approval(session: Session) -> ToolCallId:
    while not (waiting := await session.approvals()):
        await session.history()
    assert len(waiting) == 1, "a suspended call is there once"
    return waiting[0].call


@pytest.mark.parametrize("crashes", [1, 3])
async def test_case_a14_a_call_that_waits_for_a_person_is_there_once_after_every_crash(
    tmp_path: Path, crashes: int
) -> None:
    path, ran = tmp_path / "events.db", list[str]()
    pay = confirmed(ran)
    first = runtime_of(path, use("pay"), tools=[pay], close_grace_s=0)
    image = await crashed(first, path, tmp_path / "crash 0", until=approval)
    call = "call_6_0"
    for number in range(1, crashes):
        async with runtime_of(image, tools=[pay]) as between:
            assert await approval(await between.session("s")) == call
            image = crash_image(image, tmp_path / f"crash {number}")
    async with runtime_of(image, say("done"), tools=[pay]) as last:
        session = await last.session("s")
        assert await approval(session) == call
        await session.decide(call, allow=True, key="yes")
        assert (await session.send("go", key="k")).text == "done"
        await session.decide(call, allow=True, key="yes")
        assert shape(requests_of(last)[0].messages) == ["user says go", "calls pay", "result paid"]
        types = await types_of(session)
        assert [types.count(kind) for kind in ("InputQueued", "ModelResponded", "ToolApprovalRequested")] == [1, 2, 1]
    await assert_sound_file(image)
    assert len(ran) == 1


@pytest.mark.parametrize("allow", [True, False], ids=["it is allowed again", "it is denied"])
async def test_b20_case_a14_a_call_that_was_approved_and_crashed_goes_back_to_the_person(
    tmp_path: Path, allow: bool
) -> None:
    path, ran, gate = tmp_path / "events.db", list[str](), asyncio.Event()
    pay = confirmed(ran, gate)

    async def approved_and_begun(session: Session) -> None:
        await session.decide(await approval(session), allow=True, key="yes")
        while not ran:
            await session.history()

    first = runtime_of(path, use("pay"), tools=[pay], close_grace_s=0)
    image = await crashed(first, path, tmp_path / "crash", until=approved_and_begun)
    gate.set()
    async with runtime_of(image, say("done"), tools=[pay]) as again:
        session = await again.session("s")
        call = await approval(session)
        (waiting,) = await session.approvals()
        assert (waiting.call, waiting.tool, waiting.reason) == ("call_6_0", "pay", CRASHED_TEXT)
        await session.decide(call, allow=True, key="yes")
        assert [asked.call for asked in await session.approvals()] == [call], "an old answer is no new one"
        assert len(ran) == 1
        await session.decide(call, allow=allow, key="yes again")
        assert (await session.send("go", key="k")).text == "done"
        result = "result paid" if allow else "result crashed"
        assert shape(requests_of(again)[0].messages) == ["user says go", "calls pay", result]
        if not allow:
            assert [found.text for found in results_in(await session.history())] == [CRASHED_TEXT]
    assert ran == ["s/call_6_0"] * (2 if allow else 1), "the same key, since it is the same call"
    await assert_sound_file(image)


def orphaned(name: str, calls: int) -> list[Message]:
    """Return messages of another system that end in calls without results."""
    uses = tuple(ToolUseBlock(id=ToolCallId(f"toolu_{place}"), name=name, input={}) for place in range(calls))
    return [Message("user", (TextBlock(text=f"do {name}"),)), Message("assistant", (TextBlock(text="I"), *uses))]


@pytest.mark.parametrize("orphans", [1, 3])
async def test_b10_case_a16_an_imported_orphan_gets_one_crash_result_and_one_that_is_imported_later_too(
    log: EventStore, orphans: int
) -> None:
    async with runtime_of(log, say("one"), say("more")) as runtime:
        session = await runtime.session("s")
        await session.import_history(orphaned("first", orphans))
        assert (await session.send("go on")).text == "one"
        assert (await session.send("and on")).text == "more"
        found = [results_in(request.messages) for request in requests_of(runtime)]
        assert [[result.text for result in results] for results in found] == [[CRASHED_IMPORT_TEXT] * orphans] * 2
    async with runtime_of(log, say("two"), say("three")) as runtime:
        session = await runtime.session("s")
        await session.import_history(orphaned("second", orphans))
        assert (await session.send("go on")).text == "two"
        await session.import_history(orphaned("third", orphans))
        assert (await session.send("go on")).text == "three"
        messages = requests_of(runtime)[1].messages
    names = [name for name in ("first", "second", "third") for _ in range(orphans)]
    assert [call.name for call in calls_in(messages)] == names
    assert [(result.kind, result.text) for result in results_in(messages)] == [("crashed", CRASHED_IMPORT_TEXT)] * len(
        names
    )
    assert len({call.id for call in calls_in(messages)}) == len(names)


async def test_case_a16_every_crash_in_a_tool_is_repaired_whatever_was_repaired_before(tmp_path: Path) -> None:
    parked = Parked()
    image, script = tmp_path / "events.db", [use("park", {"name": "0"})]
    for number in range(3):
        runtime = runtime_of(image, *script, tools=[parked.park], close_grace_s=0)
        until = parked.until(number + 1)
        image = await crashed(runtime, image, tmp_path / f"crash {number}", lambda _, until=until: until)  # type: ignore[misc]
        script = [use("park", {"name": str(number + 1)})]
    async with runtime_of(image, say("done"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        words = ["user says go", *["calls park", "result crashed"] * 3, "assistant says done"]
        assert shape(await session.history()) == words
    assert parked.begun == ["0", "1", "2"]
    await assert_sound_file(image)


# A19: how a call ended is told as it was


async def test_b15_case_a19_denied_interrupted_timed_out_and_crashed_are_different_outcomes(tmp_path: Path) -> None:
    path, clock, ran, parked = tmp_path / "events.db", ManualClock(), list[str](), Parked()
    pay = confirmed(ran)

    @tool(timeout_s=5)
    async def slow() -> str:
        ran.append("slow")
        await asyncio.Event().wait()
        return "unreachable"

    script = [use("pay"), say("denied"), use("park", {"name": "interrupted"}), use("slow"), say("timed out")]
    script.append(use("park", {"name": "crashed"}))
    tools = [pay, parked.park, slow]
    runtime = runtime_of(path, *script, tools=tools, clock=clock, close_grace_s=0)
    async with runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("pay"))
        await session.decide(await approval(session), allow=False, reason="too dear")
        assert (await sending).text == "denied"
        await interrupted(session, parked, text="interrupt")
        sending = asyncio.create_task(session.send("be slow"))
        while not sending.done():
            await clock.advance(1)
        assert (await sending).text == "timed out"
        sending = asyncio.create_task(session.send("crash", key="k"))
        await parked.until(2)
        image = crash_image(path, tmp_path / "crash")
        closing = asyncio.create_task(runtime.close())
        while not closing.done():
            await clock.advance(1)
    with pytest.raises(ActorStopped):
        await sending
    async with runtime_of(image, say("done"), tools=tools) as again:
        session = await again.session("s")
        assert (await session.send("crash", key="k")).text == "done"
        results = results_in(requests_of(again)[0].messages)
        ends = [(event.kind, event.started) for event in await events_of(session, ToolCallFailed)]
    await assert_sound_file(image)
    assert ends == [("denied", False), ("cancelled", True), ("timeout", True), ("crashed", True)]
    assert [result.kind for result in results] == ["denied", "cancelled", "timeout", "crashed"]
    denied, cancelled, timeout, crashed = [result.text for result in results]
    assert "too dear" in denied
    assert cancelled == CANCELLED_TEXT
    assert "may have taken full, partial or no effect" in timeout
    assert crashed == CRASHED_TEXT
    for text in (cancelled, timeout, crashed):
        assert "not run" not in text
        assert "enied" not in text
    assert "slow" in ran
    assert not any(key.startswith("s/") for key in ran), "what was denied did not run"


async def test_case_a19_a_call_that_was_interrupted_before_it_began_says_so_in_its_event(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(log, [use("act", {"name": n}) for n in "ab"], tools=[parked.act]) as runtime:
        session = await runtime.session("s")
        await interrupted(session, parked)
        ends = [(event.kind, event.started) for event in await events_of(session, ToolCallFailed)]
        assert len(await events_of(session, ToolCallStarted)) == 1
    assert ends == [("cancelled", True), ("cancelled", False)]
    assert parked.begun == ["a"]


# A20: recovery comes before the next prompt


@pytest.mark.parametrize("repeatable", [False, True], ids=["once", "pure"])
async def test_b10_case_a20_a_prompt_to_a_new_process_comes_behind_the_results_of_the_calls_that_were_killed(
    tmp_path: Path, repeatable: bool
) -> None:
    path, parked = tmp_path / "events.db", Parked()
    # What is repeatable runs alone here, and is begun again.
    name, killed = ("repeat", ["a"]) if repeatable else ("park", ["a", "b"])
    tools = [parked.repeat, parked.park]
    calls = [use(name, {"name": each}) for each in killed]
    first = runtime_of(path, calls, tools=tools, close_grace_s=0)
    image = await crashed(first, path, tmp_path / "crash", lambda _: parked.until(len(killed)))
    parked.gate.set()
    async with runtime_of(image, say("recovered"), say("answered"), tools=tools) as again:
        session = await again.session("s")
        assert (await session.send("new prompt")).text == "answered"
        results = ["result a returned"] if repeatable else ["result crashed"] * 2
        balanced = ["user says go", *[f"calls {name}"] * len(killed), *results]
        assert shape(requests_of(again)[0].messages) == balanced
        assert shape(requests_of(again)[1].messages) == [
            *balanced,
            "assistant says recovered",
            "user says new prompt",
        ]
        crashes = [found.text for found in results_in(await session.history()) if found.kind == "crashed"]
        assert crashes == [CRASHED_TEXT] * results.count("result crashed")
        assert CANCELLED_TEXT not in str([event.data for event in await again.store.read_all()])
    assert parked.begun == (["a", "a"] if repeatable else ["a", "b"])
    await assert_sound_file(image)


@pytest.mark.parametrize("way", ["cancel", "resume"])
async def test_case_a20_a_prompt_waits_for_the_call_that_was_killed_also_where_nothing_resumes_by_itself(
    tmp_path: Path, way: str
) -> None:
    path, parked = tmp_path / "events.db", Parked()
    first = runtime_of(path, use("park", {"name": "a"}), tools=[parked.park], close_grace_s=0)
    image = await crashed(first, path, tmp_path / "crash", lambda _: parked.until(1))
    script = [say("recovered"), say("answered")] if way == "resume" else [say("answered")]
    async with runtime_of(image, *script, tools=[parked.park], auto_resume=False) as again:
        session = await again.session("s")
        prompt = asyncio.create_task(session.send("new prompt"))
        assert check_history(await session.history()) == []
        assert requests_of(again) == []
        await (session.resume() if way == "resume" else session.cancel())
        assert (await prompt).text == "answered"
        words = shape(requests_of(again)[-1].messages)
        assert words[:2] == ["user says go", "calls park"]
        assert words[2] == ("result crashed" if way == "resume" else "result cancelled")
        assert words[-1] == "user says new prompt"
    await assert_sound_file(image)


# A24: completed work stays


@pytest.mark.parametrize("beside", [False, True], ids=["one by one", "beside each other"])
async def test_case_a24_twenty_completed_calls_survive_a_cancel(log: EventStore, beside: bool) -> None:
    parked, token, ran = Parked(), CancellationToken(), list[str]()

    @tool(tier="observe")
    async def work(name: str) -> str:
        ran.append(name)
        return f"{name} is done"

    calls = [use("work", {"name": str(number)}) for number in range(20)]
    script: list[Any] = [calls] if beside else list(calls)
    script += [use("park", {"name": "the last"}), say("fine")]
    async with runtime_of(log, *script, tools=[work, parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", cancel=token))
        await parked.until(1)
        token.cancel()
        assert (await sending).outcome == Cancelled()
    async with runtime_of(log, say("fine"), tools=[work]) as again:
        session = await again.session("s", restore=True)
        texts = [f"{number} is done" for number in range(20)]
        assert [result.text for result in results_in(await session.history())] == [*texts, CANCELLED_TEXT]
        assert (await session.send("what came of it?")).text == "fine"
        assert [result.text for result in results_in(requests_of(again)[0].messages)] == [*texts, CANCELLED_TEXT]
    assert len(ran) == 20


# B01: what a stream yields


class Streams(Asked):
    """Yields given items instead of the pieces of its script's first answer."""

    def __init__(self, items: Callable[[ModelResponse], list[Any]], script: list[Any]) -> None:
        super().__init__(script)
        self._items = items

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        response = await self.complete(request)
        for item in self._items(response) if len(self.requests) == 1 else [response]:
            yield item


def _cumulative_pieces(response: ModelResponse) -> list[Any]:
    """Return pieces that begin at the first call again and again, and then the answer."""
    return [ToolInputDelta(n, "work", f'{{"name":"{n}"}}') for last in range(3) for n in range(last + 1)] + [response]


def _more_behind_the_answer(response: ModelResponse) -> list[Any]:
    """Return the answer, which ends a stream, and the whole of it again behind that."""
    return [*_cumulative_pieces(response), *_cumulative_pieces(response)]


def _text_between(response: ModelResponse) -> list[Any]:
    return [TextDelta("I "), *_cumulative_pieces(response)[:-1], TextDelta("will"), response]


@pytest.mark.parametrize("items", [_cumulative_pieces, _more_behind_the_answer, _text_between])
@pytest.mark.parametrize("ids", [("t1", "t2", "t3"), ("t1", "t1", "t1"), (None, None, None)])
async def test_case_b01_what_a_stream_repeats_makes_no_call_of_its_own(
    log: EventStore, items: Any, ids: tuple[str | None, ...]
) -> None:
    ran: list[str] = []

    @tool(tier="observe")
    async def work(name: str) -> str:
        ran.append(name)
        return f"{name} is done"

    answer = [ToolUse(name="work", input={"name": str(n)}, id=ids[n]) for n in range(3)]
    provider = Streams(items, [answer, say("ok")])
    async with AgentRuntime(STREAMING, provider=provider, tools=[work], log=log) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "ok"
        history = await session.history()
    assert sorted(ran) == ["0", "1", "2"]
    calls = calls_in(history)
    assert [call.provider_id for call in calls] == list(ids)
    assert len({call.id for call in calls}) == 3
    assert [result.text for result in results_in(history)] == ["0 is done", "1 is done", "2 is done"]


async def test_case_b01_pieces_without_an_answer_make_no_call_at_all(log: EventStore) -> None:
    @tool
    async def work(name: str) -> str:
        raise AssertionError("half an answer calls nothing")

    provider = Streams(lambda response: _cumulative_pieces(response)[:-1], [use("work", {"name": "0"}), say("ok")])
    async with AgentRuntime(STREAMING, provider=provider, tools=[work], log=log) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert type(result.outcome).__name__ in ("Failed", "Completed")
        assert calls_in(await session.history()) == []


# B04 to B11 beside the tests of arguments, of schemas and of the registry


@pytest.mark.parametrize("arguments", ["", " \n", "null", None, {}])
async def test_case_b04_a_history_with_a_call_without_arguments_is_shown_again_turn_after_turn(
    log: EventStore, arguments: Any
) -> None:
    @tool
    async def now() -> str:
        return "noon"

    script = [ToolUse(name="now", input=arguments), say("one"), ToolUse(name="now", input=arguments), say("two")]
    async with runtime_of(log, *script, tools=[now]) as runtime:
        session = await runtime.session("s")
        assert [(await session.send("go")).text for _ in range(2)] == ["one", "two"]
        calls = calls_in(requests_of(runtime)[3].messages)
        assert [(call.input, call.malformed_input) for call in calls] == [({}, None)] * 2


@pytest.mark.parametrize("cut", ["{", '{"name', '{"name": "/a', '{"name": "a"', '{"name": "a"}}', '{"name": "a"} x'])
async def test_case_b06_a_turn_with_arguments_that_were_cut_goes_on_and_calls_the_others(
    log: EventStore, cut: str
) -> None:
    parked = Parked()
    parked.gate.set()
    script = [[ToolUse(name="park", input=cut), use("park", {"name": "whole"})], say("ok"), say("next")]
    async with runtime_of(log, *script, tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).outcome == Completed()
        assert (await session.send("more")).text == "next"
        results = results_in(requests_of(runtime)[2].messages)
    assert [result.kind for result in results] == ["invalid_arguments", None]
    assert parked.begun == ["whole"]


async def test_case_b10_calls_of_one_tick_keep_their_arguments_though_their_times_are_equal(log: EventStore) -> None:
    clock = ManualClock()

    @tool(tier="observe")
    async def echo(context: ToolContext[Any], name: str) -> str:
        return f"{context.call} {name}"

    names = [f"{number * 7919 % 101}" for number in range(50)]
    async with runtime_of(
        log, [use("echo", {"name": name}) for name in names], say("ok"), tools=[echo], clock=clock
    ) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        history = await session.history()
        started = {r.time async for r in session.events() if isinstance(r.event, ToolCallStarted)}
    assert len(started) == 1
    calls = calls_in(history)
    assert [call.input["name"] for call in calls] == names
    assert [result.text for result in results_in(history)] == [f"{call.id} {call.input['name']}" for call in calls]
