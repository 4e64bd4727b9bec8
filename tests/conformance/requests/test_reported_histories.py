"""Cases A and B of the reported faults: calls without results, results without calls, calls that are not what was said.

Each history that a model is shown here is checked as a provider would check it. What a process that was killed leaves
of a call that a person allowed is with the tests of approvals, A14 and B20.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.events.core.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT, CRASHED_TEXT
from refold.events.model.messages import TextDelta, ToolInputDelta
from refold.events.session.events import RunCancelled, ToolCallFailed, ToolCallStarted
from refold.stores import EventStore
from tests.conformance.cases import Case, Play, as_tests
from tests.conformance.sessions import Parked, Seen, opened, requests_of, results_of, session_in, shown
from tests.conformance.steps import (
    advance,
    begin,
    begun,
    bring,
    cancel,
    cancel_token,
    check,
    crash_and_restart,
    decide,
    ends,
    let_go,
    recorded,
    requested,
    restart,
    resume,
    send,
    until,
    waits,
)

STREAMING = refold.AgentConfig(model="m", streaming=True)

CUT = f"result: {CANCELLED_TEXT}"
LOST = f"result: {CRASHED_TEXT}"
BLOCKS = [refold.ImageBlock(media_type="image/png", data=b"\x89PNG"), refold.TextBlock(text="look"), "again"]


def calls(name: str, *names: str) -> list[Any]:
    return [refold.use(name, {"name": each}) for each in names]


def orphaned(name: str, count: int) -> list[refold.Message]:
    """Return messages of another system that end in calls without results."""
    uses = tuple(
        refold.ToolUseBlock(id=refold.ToolCallId(f"toolu_{place}"), name=name, input={}) for place in range(count)
    )
    return [
        refold.Message("user", (refold.TextBlock(text=f"do {name}"),)),
        refold.Message("assistant", (refold.TextBlock(text="I"), *uses)),
    ]


def orphans_of(*names: str, count: int) -> list[str]:
    """Return how such messages are shown, each with an answer after the input that followed."""
    lines: list[str] = []
    for name, said in (each.split(": ") for each in names):
        results = [f"result: {CRASHED_IMPORT_TEXT}"] * count
        lines += [
            f"user: do {name}",
            "assistant: I",
            *[f"use {name}"] * count,
            *results,
            "user: go on",
            f"assistant: {said}",
        ]
    return lines


# A01, A04, A19: an interrupted call has its result before the next input

TWENTY: dict[str, list[Any]] = {
    "one by one": [refold.use("look", {"at": f"{n}"}) for n in range(20)],
    "beside each other": [[refold.use("look", {"at": f"{n}"}) for n in range(20)]],
}

INTERRUPTED = {
    **{
        f"case A01: the input after an interrupt comes behind one result for each call, {what}": Case(
            [calls("park", *"abc"[:count]), refold.say("fine"), refold.say("still fine")],
            [
                [begin(), begun(count), cancel(), ends(refold.Cancelled())],
                [send(given, "fine"), send("more", "still fine")],
            ],
            requests={
                1: (before := ["user: go", *["use park"] * count, *[CUT] * count, *words]),
                2: [*before, "assistant: fine", "user: more"],
            },
        )
        for what, count, given, words in (
            ("one call", 1, "new text", ["user: new text"]),
            ("several calls", 3, "new text", ["user: new text"]),
            ("an image and several blocks", 1, BLOCKS, ["ImageBlock", "user: look", "user: again"]),
        )
    },
    "case A01: interrupts in a row each leave a balanced history": Case(
        [*calls("park", *"abcd"), refold.say("fine")],
        [
            [[begin(f"input {n}"), begun(n), cancel(), ends(refold.Cancelled())] for n in range(1, 5)],
            send("last", "fine"),
        ],
        requests={4: [*(line for n in range(1, 5) for line in (f"user: input {n}", "use park", CUT)), "user: last"]},
    ),
    "case A01: an input that waits while a call is interrupted comes behind its result": Case(
        [calls("park", "a"), refold.say("fine")],
        [begin(), begun(1), begin("new text"), cancel(), ends(refold.Cancelled(), "fine")],
        requests={1: ["user: go", "use park", CUT, "user: new text"]},
    ),
    "case A01: a call that ended keeps its result beside those that were interrupted": Case(
        [[*calls("park", "a"), refold.use("look")], refold.say("fine")],
        [begin(), begun(1), until("ToolCallCompleted"), cancel(), ends(refold.Cancelled()), send("new text", "fine")],
        requests={1: ["...", CUT, "result: saw it", "user: new text"]},
    ),
    "case A19: a call that was interrupted before it began says so in its event": Case(
        [calls("act", "a", "b")],
        [
            [begin(), begun(1), cancel(), ends(refold.Cancelled())],
            recorded(ToolCallFailed, "kind started", ("cancelled", True), ("cancelled", False)),
        ],
        count={"ToolCallStarted": 1},
    ),
    **{
        f"case A24: twenty completed calls survive a cancel and a restart, {how}": Case(
            [*script, *calls("park", "the last"), refold.say("fine")],
            [
                [begin(token=True), begun(1), cancel_token(), ends(refold.Cancelled()), restart()],
                send("what came of it?", "fine"),
            ],
            results=[*(f"saw {n}" for n in range(20)), CANCELLED_TEXT],
            done=[f"saw {n}" for n in range(20)],
        )
        for how, script in TWENTY.items()
    },
}


# A16, A20: what a crash leaves is repaired each time it needs to be, and before the next prompt

CRASHED = {
    **{
        f"B10, case A16: an orphan that is imported gets one crash result, and so does a later one, {count}": Case(
            [refold.say("one"), refold.say("more"), refold.say("two"), refold.say("three")],
            [
                [bring(*orphaned("first", count)), send("go on", "one"), send("and on", "more"), restart()],
                [
                    [bring(*orphaned(name, count)), send("go on", said)]
                    for name, said in (("2nd", "two"), ("3rd", "three"))
                ],
            ],
            history=[
                *orphans_of("first: one", count=count),
                *["user: and on", "assistant: more"],
                *orphans_of("2nd: two", "3rd: three", count=count),
            ],
            kinds=["crashed"] * 3 * count,
        )
        for count in (1, 3)
    },
    "case A16: every crash in a tool is repaired, whatever was repaired before": Case(
        [*calls("once", *"abc"), refold.say("done")],
        [begin("go", key="k"), [[begun(n), crash_and_restart()] for n in (1, 2, 3)], send("go", "done", key="k")],
        history=["user: go", *["use once", LOST] * 3, "assistant: done"],
        kinds=["crashed"] * 3,
    ),
    **{
        f"B10, case A20: a prompt to a new process comes behind the results of the calls that were lost, {name}": Case(
            [calls(name, "a", "b"), refold.say("recovered"), refold.say("answered")],
            [begin(), begun(2), crash_and_restart(), let_go(), send("new prompt", "answered")],
            requests={
                -2: (before := ["user: go", *[f"use {name}"] * 2, *results]),
                -1: [*before, "assistant: recovered", "user: new prompt"],
            },
        )
        for name, results in {"once": [LOST] * 2, "park": ["result: a returned", "result: b returned"]}.items()
    },
    **{
        f"case A20: a prompt waits for the call that was lost also where nothing resumes by itself, {how}": Case(
            [calls("once", "a"), *script],
            [
                [begin(), begun(1), crash_and_restart(auto_resume=False)],
                [begin("new prompt"), waits(), requested(1), way, ends("answered")],
            ],
            requests={-1: ["user: go", "use once", *lines, "user: new prompt"]},
        )
        for how, way, lines, script in (
            ("resume", resume(), [LOST, "assistant: recovered"], [refold.say("recovered"), refold.say("answered")]),
            ("cancel", cancel(), [CUT], [refold.say("answered")]),
        )
    },
}


# B15, A19: how a call ended is told as it was


def slow(play: Play) -> list[Any]:
    @refold.tool(name="slow", timeout_s=5)
    async def slow(name: str) -> str:
        return await play.bench.parked(name)

    return [slow]


async def silence(play: Play) -> list[bool]:
    """Return what is said of the call that was silent for too long."""
    text = (await results_of(play.session))[2].text
    return ["may have taken full, partial or no effect" in text, "not run" in text, "enied" in text]


async def texts_without_silence(play: Play) -> list[str]:
    return [block.text for block in await results_of(play.session) if block.kind != "timeout"]


PARK, ONCE = refold.use("park", {"name": "a"}), refold.use("once", {"name": "c"})

ENDINGS = {
    "B15, case A19: denied, interrupted, timed out and crashed are different outcomes": Case(
        [
            refold.use("pay"),
            refold.say("denied"),
            *calls("park", "a"),
            *calls("slow", "b"),
            refold.say("timed out"),
            *calls("once", "c"),
            refold.say("done"),
        ],
        [
            [begin("pay"), decide(False, reason="too dear"), ends("denied")],
            [begin("interrupt"), begun(1), cancel(), ends(refold.Cancelled())],
            [begin("be slow"), begun(2), advance(6), ends("timed out"), check(silence, [True, False, False])],
            [begin("crash", key="k"), begun(3), crash_and_restart(), send("crash", "done", key="k")],
            recorded(
                ToolCallFailed,
                "kind started",
                *[("denied", False), ("cancelled", True), ("timeout", True), ("crashed", True)],
            ),
            check(texts_without_silence, ["too dear", CANCELLED_TEXT, CRASHED_TEXT]),
        ],
        clock=True,
        tools=slow,
        kinds=["denied", "cancelled", "timeout", "crashed"],
        done=[],
    ),
}


# B04 to B11 beside the tests of arguments, of schemas and of the registry


async def started_at(play: Play) -> int:
    """Return at how many times calls have begun."""
    return len({event.at for event in await play.events(ToolCallStarted)})


def inputs(play: Play) -> list[Any]:
    blocks = [block for message in play.requests[-1].messages for block in message.content]
    return [(block.input, block.malformed_input) for block in blocks if isinstance(block, refold.ToolUseBlock)]


NAMES = [f"{number * 7919 % 101}" for number in range(50)]

NOTHING: list[Any] = ["", " \n", "null", None, {}]

ARGUMENTS = {
    **{
        f"case B04: a call without arguments is shown again turn after turn, {arguments!r}": Case(
            [refold.use("look", arguments), refold.say("one"), refold.use("look", arguments), refold.say("two")],
            [send("go", "one"), send("go", "two"), check(inputs, [({}, None)] * 2)],
        )
        for arguments in NOTHING
    },
    **{
        f"case B06: a turn with arguments that were cut goes on and makes the other calls, {cut}": Case(
            [[refold.use("look", cut), refold.use("look", {"at": "whole"})], refold.say("ok"), refold.say("next")],
            [send("go", "ok"), send("more", "next")],
            kinds=["invalid_arguments", None],
            done=["saw whole"],
        )
        for cut in ("{", '{"at', '{"at": "/a', '{"at": "a"', '{"at": "a"}}', '{"at": "a"} x')
    },
    "case B10: calls of one tick keep their arguments though their times are equal": Case(
        [[refold.use("look", {"at": name}) for name in NAMES], refold.say("ok")],
        [send("go", "ok"), check(started_at, 1), check(inputs, [({"at": name}, None) for name in NAMES])],
        clock=True,
        results=[f"saw {name}" for name in NAMES],
    ),
}

CASES = {**INTERRUPTED, **CRASHED, **ENDINGS, **ARGUMENTS}


test_histories, test_histories_with_a_crash_after_each_commit = as_tests(CASES)


async def test_case_a04_a_host_that_aborts_in_the_middle_of_a_cancel_leaves_no_open_call(log: EventStore) -> None:
    parked, clock, script = Parked(), ManualClock(), [refold.use("ignore", {"name": "it"})]
    async with opened(log, *script, tools=[parked.ignore], clock=clock, close_grace_s=0) as (runtime, session):
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
    async with opened(log, refold.say("fine")) as (runtime, session):
        assert (await session.send("new text")).text == "fine"
        words = ["user: go", "use ignore", f"result: {CANCELLED_TEXT}", "user: new text"]
        assert shown(requests_of(runtime)[0].messages) == words


# B01: what a stream yields


class Streams(refold.ScriptedProvider):
    """Yields given items instead of the pieces of its script's first answer."""

    def __init__(self, items: Callable[[refold.ModelResponse], list[Any]], script: list[Any]) -> None:
        super().__init__(script)
        self._items = items

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[Any]:
        response = await self.complete(request)
        for item in self._items(response) if len(self.requests) == 1 else [response]:
            yield item


def _cumulative_pieces(response: refold.ModelResponse) -> list[Any]:
    """Return pieces that begin at the first call again and again, and then the answer."""
    return [ToolInputDelta(n, "work", f'{{"name":"{n}"}}') for last in range(3) for n in range(last + 1)] + [response]


def _more_behind_the_answer(response: refold.ModelResponse) -> list[Any]:
    """Return the answer, which ends a stream, and the whole of it again behind that."""
    return [*_cumulative_pieces(response), *_cumulative_pieces(response)]


def _text_between(response: refold.ModelResponse) -> list[Any]:
    return [TextDelta("I "), *_cumulative_pieces(response)[:-1], TextDelta("will"), response]


@pytest.mark.parametrize("items", [_cumulative_pieces, _more_behind_the_answer, _text_between])
@pytest.mark.parametrize("ids", [("t1", "t2", "t3"), ("t1", "t1", "t1"), (None, None, None)])
async def test_case_b01_what_a_stream_repeats_makes_no_call_of_its_own(
    log: EventStore, items: Any, ids: tuple[str | None, ...]
) -> None:
    ran: list[str] = []

    @refold.tool(tier="observe")
    async def work(name: str) -> str:
        ran.append(name)
        return f"{name} is done"

    answer = [refold.ToolUse(name="work", input={"name": str(n)}, id=ids[n]) for n in range(3)]
    provider = Streams(items, [answer, refold.say("ok")])
    async with session_in(refold.AgentRuntime(STREAMING, provider=provider, tools=[work], log=log)) as (_, session):
        assert (await session.send("go")).text == "ok"
        history, results = await session.history(), await results_of(session)
    assert sorted(ran) == ["0", "1", "2"]
    calls = [block for message in history for block in message.content if isinstance(block, refold.ToolUseBlock)]
    assert [call.provider_id for call in calls] == list(ids)
    assert len({call.id for call in calls}) == 3
    assert [result.text for result in results] == ["0 is done", "1 is done", "2 is done"]


async def test_case_b01_pieces_without_an_answer_make_no_call_at_all(log: EventStore) -> None:
    @refold.tool
    async def work(name: str) -> str:
        raise AssertionError("half an answer calls nothing")

    provider = Streams(
        lambda response: _cumulative_pieces(response)[:-1], [refold.use("work", {"name": "0"}), refold.say("ok")]
    )
    async with session_in(refold.AgentRuntime(STREAMING, provider=provider, tools=[work], log=log)) as (_, session):
        result = await session.send("go")
        assert type(result.outcome).__name__ in ("Failed", "Completed")
        assert not [line for line in shown(await session.history()) if line.startswith("use ")]
