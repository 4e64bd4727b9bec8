"""Bad input, one kind at a time: each gets a clear error or a defined result, and the log stays sound.

Every test runs on the log in memory and on a file; the `log` fixture checks and replays the log afterwards.
"""

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy
import pytest
from msgspec.json import encode as to_json

from refold import (
    CommandRejected,
    Completed,
    ConfigError,
    Failed,
    ImageBlock,
    Message,
    ModelRequest,
    ModelResponse,
    RunResult,
    Session,
    TextBlock,
    ThinkingBlock,
    ToolContext,
    ToolError,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.content import (
    DocumentBlock,
    StoredBlock,
    text_of,
)
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.session.events import ModelResponded, ToolApprovalRequested
from refold.memory import SemanticStore
from refold.resilience import Deduplicator
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import Hooked, Seen, checked_log, requests_of, results_of
from tests.runtime.talking import talking

STORED = StoredBlock(hash=PayloadHash("0" * 64), bytes=5, holds="text")


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is checked and replayed when the test is over."""
    async with checked_log(request.param, tmp_path) as store:
        yield store


@tool(tier="observe", effect="pure")
async def echo(text: str = "nothing") -> str:
    return f"heard {text}"


async def answered(log: EventStore, answer: Any, *more: Any, **options: Any) -> tuple[RunResult, list[ToolResultBlock]]:
    """Return how a run ends in which the model gives these answers, and what its calls gave; the next run works."""
    async with talking(answer, *more, say("back"), log=log, **{"tools": [echo], **options}) as (session, _):
        result = await session.send("go")
        results = await results_of(session)
        assert (await session.send("and now?")).text == "back"
        return result, results


async def outcome_of(log: EventStore, body: Callable[[], object], *, in_thread: bool = False) -> ToolResultBlock:
    """Return the result of a call of a tool that does what `body` does; the run completes after it."""

    async def on_the_loop() -> object:
        return body()

    work: Any = tool(name="work")(body if in_thread else on_the_loop)
    result, (outcome,) = await answered(log, use("work"), say("done"), tools=[work])
    assert result.text == "done"
    return outcome


def user(*blocks: Any) -> Message:
    return Message("user", blocks)


# What callers send


async def handler(recorded: Any) -> None:
    raise AssertionError("never awaited")


FIVE: Any = 5
HALF: Any = 1.5
TEXT: Any = "no bytes" * 50_000
NOTHING: Any = None
"""What a type checker would not let pass."""
INPUTS: list[tuple[str, Any]] = [
    *(("empty", content) for content in ("", " \n\t", [], [""], [TextBlock(text=" ")], ())),
    *(("text or blocks", content) for content in (None, 5, b"bytes", {"text": "x"}, [b"x"], [None], [["x"]], object())),
    (".", ["look", TextBlock(text=FIVE)]),
    (".", ["look", ImageBlock(media_type=FIVE, data=b"x")]),
    (".", ["look", DocumentBlock(data=b"x", name=FIVE)]),
    (".url", ["look", DocumentBlock(data=b"x", url="https://example.org/a.pdf")]),
    (".url", ["look", ImageBlock(url="file:///etc/passwd")]),
    (".url", ["look", ImageBlock(url="https://example.org/a b")]),
    (".", ["look", ImageBlock(media_type="image/png", data=TEXT[:8])]),
    (".", ["look", ImageBlock(media_type="image/png", data=TEXT * 2)]),
    (".", ["look", STORED]),
    ("1,048,576", ["x" * 60_000] * 20),
]
HISTORIES: list[Any] = [
    None,
    "text",
    [{"role": "user", "content": "x"}],
    [user("text")],
    [Message("system", (TextBlock(text="x"),))],  # type: ignore[arg-type]
    [user(TextBlock(text=FIVE))],
    [user(STORED)],
    [user(ImageBlock(media_type="image/png", data=TEXT))],
    [
        user(TextBlock(text="x")),
        Message("assistant", (ToolUseBlock(id=ToolCallId("a"), name="n", input={"x": float("nan")}),)),
    ],
]
KEYS: list[Any] = ["", "k" * 10_000, 5, b"k"]
KEYED: dict[str, Callable[[Session, Any], Any]] = {
    "send": lambda session, key: session.send("x", key=key),
    "cancel": lambda session, key: session.cancel(key=key),
    "decide": lambda session, key: session.decide("call_1_0", allow=True, key=key),
    "import": lambda session, key: session.import_history([user(TextBlock(text="x"))], key=key),
}


async def events_after(session: Session, version: Any) -> None:
    _ = [recorded async for recorded in session.events(after_version=version)]


VERSIONS: list[Any] = ["3", "", True, 1.5, b"3", [3]]
VERSIONED: dict[str, Callable[[Session, Any], Any]] = {
    "rewind": lambda session, version: session.rewind(version),
    "take_back": lambda session, version: session.take_back(version),
    "set_aside": lambda session, version: session.set_aside(version),
    "state_at": lambda session, version: session.state_at(version),
    "events": events_after,
}
REFUSED = [
    *(
        pytest.param(
            lambda session, version=version, do=do: do(session, version),
            *(ConfigError, "must be a version of the session, an integer, not"),
            id=f"{name}: version {version!r}",
        )
        for version in VERSIONS
        for name, do in VERSIONED.items()
    ),
    *(
        pytest.param(lambda session, given=given: session.send(given), CommandRejected, said, id=f"input {n}: {said}")
        for n, (said, given) in enumerate(INPUTS)
    ),
    *(
        pytest.param(lambda session, given=given: session.import_history(given), CommandRejected, "messages")
        for given in HISTORIES
    ),
    *(
        pytest.param(lambda session, key=key, do=do: do(session, key), CommandRejected, "key", id=f"{name}: key {n}")
        for n, key in enumerate(KEYS)
        for name, do in KEYED.items()
    ),
    pytest.param(lambda session: session.send("x", on_event=handler), ConfigError, "on_event", id="an async handler"),
]


@pytest.mark.parametrize(("give", "error", "said"), REFUSED)
async def test_what_cannot_be_given_is_refused_and_nothing_is_recorded(
    log: EventStore, give: Callable[[Session], Any], error: type[Exception], said: str
) -> None:
    async with talking(say("fine"), log=log) as (session, _):
        with pytest.raises(error, match=said):
            await give(session)
        assert await log.head("session/s") is None
        assert (await session.send("x", key="'; \x00 \ud800")).text == "fine"


async def test_an_input_of_text_and_an_image_reaches_the_model_as_it_is(log: EventStore) -> None:
    images = [ImageBlock(media_type="image/png", data=data) for data in (b"\x89PNG\x00", b"x" * 200_000)]
    async with talking(say("seen"), log=log) as (session, runtime):
        assert (await session.send(["what is it?", *images])).text == "seen"
        assert [*requests_of(runtime)[0].messages[-1].content] == [TextBlock(text="what is it?"), *images]


@pytest.mark.parametrize(
    "identifier", ["a/b//c", 'it\'s "quoted"', "'; DROP TABLE events; --", "../../x", "é\u202e\n\x1b", "%_*"]
)
async def test_a_session_id_of_odd_characters_names_one_session(log: EventStore, identifier: str) -> None:
    async with talking(say("one"), say("two"), log=log) as (_, runtime):
        assert (await (await runtime.session(identifier)).send("x")).text == "one"
        assert (await (await runtime.session(identifier + "x")).send("x")).text == "two"
        assert await runtime.sessions() == sorted([identifier, identifier + "x"])
        assert len(await (await runtime.session(identifier, restore=True)).history()) == 2


@pytest.mark.parametrize("identifier", ["", "x" * 10_000, "a\x00b", "\ud800", 7, b"s"])
async def test_a_session_id_that_cannot_be_one_is_refused(log: EventStore, identifier: Any) -> None:
    async with talking(log=log) as (_, runtime):
        with pytest.raises(ConfigError, match="session id"):
            await runtime.session(identifier)


async def test_an_on_event_that_returns_a_coroutine_cancels_the_run_and_says_why(log: EventStore) -> None:
    async with talking(say("fine"), say("next"), log=log) as (session, _):
        with pytest.raises(ConfigError, match="on_event"):
            await session.send("x", on_event=lambda recorded: handler(recorded))


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("mine"), GeneratorExit()])
async def test_an_on_event_that_raises_a_base_exception_gets_it_back(log: EventStore, error: BaseException) -> None:
    def raising(recorded: Any) -> None:
        raise error

    async with talking(say("fine"), say("fine"), log=log) as (session, _):
        with pytest.raises(type(error)):
            await session.send("x", on_event=raising)
        assert (await session.send("again")).text == "fine"


async def test_an_imported_history_loses_its_lone_surrogates(log: EventStore) -> None:
    ids = [ToolCallId(f"call\ud800{last}") for last in "\udfff\udffe"]
    calls = [ToolUseBlock(id=each, name="\ud800", input={"k": "\ud800"}, provider_id="\ud800") for each in ids]
    results = [ToolResultBlock(tool_use_id=each, content=(TextBlock(text=f"{each!a}"),)) for each in ids]
    messages = [
        user(TextBlock(text="\ud800" * 50_000)),
        Message("assistant", (ThinkingBlock(thinking="\ud800"), *calls)),
        user(
            *reversed(results), DocumentBlock(name="\ud800", data=b"%PDF-"), ImageBlock(media_type="\ud800", data=b"x")
        ),
    ]
    async with talking(say("fine"), log=log) as (session, _):
        await session.import_history(messages)
        assert (await session.send("x")).text == "fine"
        history = await session.history()
    assert history[0].text == "\ufffd" * 50_000
    assert isinstance(history[1].content[1], ToolUseBlock)
    assert history[1].content[1].input == {"k": "\ufffd"}
    assert [text_of(block.content) for block in history[2].content if isinstance(block, ToolResultBlock)] == [
        f"{each!a}" for each in ids
    ], "which result is of which call is told by the ids as they were"


# What models answer


@pytest.mark.parametrize("arguments", ["", "  \n", "null", None])
async def test_case_b04_no_arguments_at_all_are_an_empty_object(log: EventStore, arguments: Any) -> None:
    _, results = await answered(log, use("echo", arguments), say("ok"))
    assert [(block.text, block.kind) for block in results] == [("heard nothing", None)]


MISFITS: list[Any] = [
    '{"path": "/a',
    "[1, 2]",
    '"text"',
    "true",
    "3",
    b"\xff\xfe",
    "[" * 100_000,
    {"text": 5},
    {"unknown": "x"},
    {"text": None},
    [1],
    {1: "x"},
    {"text": {1, 2}},
    object(),
    {"text": float("nan")},
    {"text": 2**70},
    *(f'{{"text": {number}}}' for number in ("9" * 5_000, "1e999", "NaN", "9223372036854775808", "-Infinity")),
]
TOO_LONG: list[Any] = [
    {"text": "x" * 300_000},
    '{"text": "' + "x" * 2**21 + '"}',
    dict.fromkeys(map(str, range(50_000)), 0),
]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [*((given, "work") for given in MISFITS), *((given, "262,144") for given in TOO_LONG)],
    ids=lambda value: value[:30] if isinstance(value, str) else type(value).__name__,
)
async def test_case_b06_arguments_that_do_not_fit_are_told_to_the_model_and_the_body_is_not_run(
    log: EventStore, arguments: Any, said: str
) -> None:
    ran: list[str] = []

    @tool
    async def work(text: str) -> str:
        ran.append(text)
        return text

    result, (refusal,) = await answered(log, use("work", arguments), say("ok"), tools=[work])
    assert (result.outcome, refusal.is_error, refusal.kind) == (Completed(), True, "invalid_arguments")
    assert said in refusal.text
    assert ran == []


async def test_an_unknown_tool_name_is_told_to_the_model(log: EventStore) -> None:
    answer = [use("eco"), use(""), use("x" * 100_000), use("a/b\x00\ud800"), use("echo")]
    _, results = await answered(log, answer, say("ok"))
    assert [block.kind for block in results] == ["not_found"] * 4 + [None]
    assert "echo" in results[0].text


async def test_duplicate_call_ids_in_one_answer_are_calls_of_their_own(log: EventStore) -> None:
    answer = [use("echo", {"text": text}, id="same") for text in "abc"]
    async with talking(answer, say("ok"), tools=[echo], log=log) as (session, _):
        await session.send("go")
        calls = [block for block in (await session.history())[1].content if isinstance(block, ToolUseBlock)]
        results = await results_of(session)
    assert [call.provider_id for call in calls] == ["same"] * 3
    assert len({call.id for call in calls}) == 3
    assert [(result.tool_use_id, result.text) for result in results] == [
        (call.id, f"heard {text}") for call, text in zip(calls, "abc", strict=True)
    ]


@pytest.mark.parametrize(
    "content", [(), (TextBlock(text=""),), (TextBlock(text=" "), TextBlock(text="\n")), (ThinkingBlock(thinking="hm"),)]
)
async def test_an_answer_of_empty_blocks_is_asked_again_and_then_fails(log: EventStore, content: Any) -> None:
    empty = ModelResponse(content=content)
    result, _ = await answered(log, empty, empty, empty)
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.kind == "empty_answers"
    assert result.stop_reason == "end_turn", "there were answers"


WRONG_ANSWERS: list[dict[str, Any]] = [
    {"content": None},
    {"content": "text"},
    {"content": (object(),)},
    {"content": (None, "x")},
    {"content": (TextBlock(text=FIVE),)},
    {"content": (ThinkingBlock(thinking=FIVE),)},
    {"content": (use(FIVE),)},
    {"content": (use("echo", id=FIVE),)},
    {"content": (STORED,)},
    {"content": (ImageBlock(media_type="x", data=TEXT),)},
    {"stop_reason": "why not"},
    {"stop_reason": ["end_turn"]},
    {"usage": None},
    {"usage": Usage(input_tokens=-5)},
    {"usage": Usage(output_tokens=2**70)},
    {"usage": Usage(output_tokens=HALF)},
    {"model": 7},
]


@pytest.mark.parametrize("fields", WRONG_ANSWERS)
async def test_an_answer_of_wrong_types_fails_its_run_as_malformed(log: EventStore, fields: dict[str, Any]) -> None:
    wrong = ModelResponse(**{"content": (TextBlock(text="x"),), **fields})
    result, _ = await answered(log, lambda request: wrong)
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.kind == "provider"
    assert "cannot be used" in result.outcome.error.message


class _UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")

    __repr__ = __str__


class _UnsayableEnd(BaseException):
    __str__ = _UnsayableError.__str__
    __repr__ = _UnsayableError.__str__


async def test_a_provider_and_a_subscriber_that_change_arguments_change_nothing_of_the_session(log: EventStore) -> None:
    paid: list[str] = []

    def spoil(request: ModelRequest) -> str:
        for call in (block for message in request.messages for block in message.content):
            if isinstance(call, ToolUseBlock):
                call.input["text"] = "spoiled"
        return "done"

    def meddle(recorded: Any) -> None:
        if isinstance(recorded.event, ToolApprovalRequested):
            recorded.event.input["text"] = "something else"
        if isinstance(recorded.event, ModelResponded):
            for call in recorded.event.content:
                if isinstance(call, ToolUseBlock):
                    call.input.clear()

    @tool(tier="confirm")
    async def pay(text: str) -> str:
        paid.append(text)
        return text

    async with talking(use("pay", {"text": "5 euros"}), spoil, tools=[pay], log=log) as (session, runtime):
        runtime.subscribe(meddle)
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await seen.first(ToolApprovalRequested)
        (mine,) = (await session.history())[1].content
        assert isinstance(mine, ToolUseBlock)
        mine.input["text"] = "mine"
        await session.decide(mine.id, allow=True)
        await sending
        (call,) = (await session.history())[1].content
        assert isinstance(call, ToolUseBlock)
        assert call.input == {"text": "5 euros"}
    assert paid == ["5 euros"]


async def test_a_batch_of_more_than_a_page_of_events_keeps_its_causes(log: EventStore) -> None:
    answer = [use("nothing", {"n": number}) for number in range(2_500)]
    async with talking(answer, say("ok"), log=log) as (session, _):
        await session.send("go")
        events = [recorded async for recorded in session.events()]
        later = [recorded async for recorded in session.events(after_version=2_000)]
    assert [recorded.version for recorded in events] == list(range(1, len(events) + 1))
    assert {recorded.correlation for recorded in events[2:]} == {"session/s@3"}
    assert later == events[2_000:]


# What tools return and raise


class _Colour(str, enum.Enum):  # noqa: UP042 - str() of it is not its value, unlike a StrEnum's
    RED = "red"


class _Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("", ""),
        ("a\ud83d\x00", "a\ufffd\x00"),
        (_Colour.RED, "red"),
        ({"b", "a"}, '["a","b"]'),
        ((1, 2.5, True, None), "[1,2.5,true,null]"),
        ({"k\ud800": _Colour.RED}, '{"k\ufffd":"red"}'),
        ([], "[]"),
        (False, "false"),
        (0, "0"),
        (["text", "image/png"], '["text","image/png"]'),
        (TextBlock(text="\ud800"), "\ufffd"),
        (Usage(input_tokens=1, output_tokens=2), to_json(Usage(input_tokens=1, output_tokens=2)).decode()),
        ({"at": date(2026, 1, 2)}, '{"at":"2026-01-02"}'),
        (UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
        (b"bytes", '"Ynl0ZXM="'),
        (_nested(100), "[" * 100 + '"x"' + "]" * 100),
        ({"a": [{"b": numpy.float64(1)}]}, '{"a":[{"b":1.0}]}'),
    ],
)
async def test_case_e06_what_a_tool_returns_reaches_the_model_as_text_or_json(
    log: EventStore, value: Any, text: str
) -> None:
    result = await outcome_of(log, lambda: value)
    assert (result.text, result.is_error) == (text, False)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"rows": [1.0, float("inf")]}, "$.rows[1]"),
        (2**70, "$"),
        (ValueError, "$"),
        ({"error": ValueError("x")}, "$.error"),
        ({1: "x"}, "$"),
        (_nested(101), "$[0][0]"),
        (_nested(100_000), "$[0][0]"),
        (object(), "$"),
        (_Unshowable(), "$"),
        (complex(1, 2), "$"),
        (Path("/x"), "$"),
        (StoredBlock, "$"),
        ({"a": [{"b": numpy.float32(1)}]}, "$.a[0].b"),
        ({"a": numpy.int64(1)}, "$.a"),
        (numpy.zeros(3), "$"),
        (ImageBlock(media_type="image/png", data=TEXT), "$.data"),
        ([TextBlock(text="x"), ImageBlock(media_type=NOTHING, data=b"")], "$.media_type"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
async def test_case_e04_e06_e08_a_result_without_a_json_form_is_an_error_that_names_its_path(
    log: EventStore, value: Any, path: str
) -> None:
    result = await outcome_of(log, lambda: value)
    assert (result.is_error, result.kind) == (True, "permanent")
    assert path in result.text
    assert "cannot be recorded" in result.text


async def test_a_result_of_many_blocks_that_is_too_large_together_is_an_error_with_its_size(log: EventStore) -> None:
    result = await outcome_of(log, lambda: [ImageBlock(media_type="image/png", data=b"x" * 45_000)] * 20)
    assert (result.kind, "1,048,576" in result.text) == ("permanent", True)


async def test_case_j15_the_history_grows_by_what_is_new_and_by_nothing_else(log: EventStore) -> None:
    big = "z" * 100_000
    script = [use("echo", {"text": str(number)}) for number in range(3)] + [say("a"), say("b")]
    async with talking(*script, tools=[echo], log=log) as (session, runtime):
        await session.send(big)
        await session.send("more")
        requests = requests_of(runtime)
    assert [len(request.messages) for request in requests] == [1, 3, 5, 7, 9]
    assert all(request.messages[0].text == big for request in requests)


async def test_case_j10_a_clock_that_jumps_back_changes_no_order(log: EventStore) -> None:
    clock = ManualClock()

    @tool
    async def back() -> str:
        clock.jump(-3_600)
        return "back"

    async with talking(use("back"), say("ok"), tools=[back], clock=clock, log=log) as (session, _):
        await session.send("go")
        times = [recorded.time async for recorded in session.events()]
        assert len(await session.history()) == 4
    assert times == sorted(times)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("called", ["embed", "deduplicated work"])
async def test_what_a_tool_has_called_may_end_the_call_and_not_the_program(
    log: EventStore, called: str, plain: bool
) -> None:
    async def leave(*_: object) -> Any:
        raise SystemExit(3)

    def leave_at_once(*_: object) -> Any:
        raise SystemExit(3)

    known = SemanticStore("known", embed=leave_at_once if plain else leave)
    once = Deduplicator("once")

    @tool
    async def work() -> str:
        await (known.put("a", "b") if called == "embed" else once.run("key", leave_at_once if plain else leave))
        return "not reached"

    options: dict[str, Any] = {"tools": [work], "semantic": known, "objects": [once]}
    result, (outcome,) = await answered(log, use("work"), say("done"), **options)
    assert (result.text, outcome.is_error, outcome.kind) == ("done", True, "permanent")
    assert "SystemExit" in outcome.text


async def test_a_tool_that_asks_another_session_in_vain_fails_and_its_own_run_goes_on(log: EventStore) -> None:
    async def ask() -> str:
        """Ask a session whose model fails."""
        async with talking(RuntimeError("down"), log=InMemoryStore()) as (other, _):
            return (await other.send("Are you there?")).output

    hooked = Hooked(on_tool_result=lambda _, result: shown.append(result))
    shown: list[ToolResultBlock] = []
    result, (outcome,) = await answered(log, use("ask"), say("done"), tools=[tool(ask)], middleware=[hooked])
    assert (result.text, outcome.kind) == ("done", "permanent")
    assert (
        outcome.text == "RunNotCompleted: the run run_3 has no answer, since it failed (agent_loop): RuntimeError: down"
    )
    assert [each.text for each in shown] == [outcome.text]


LATE, GONE, ONE = TimeoutError("late"), ConnectionError("gone"), ValueError("one")


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (ToolError("try later", kind="transient"), "try later", "transient"),
        (ToolError(""), "ToolError", "permanent"),
        (TimeoutError(), "TimeoutError: ", "transient"),
        (ConnectionResetError("gone"), "ConnectionResetError: gone", "transient"),
        (KeyError("k"), "KeyError: 'k'", "permanent"),
        (ValueError("\ud800"), "ValueError: \ufffd", "permanent"),
        (SystemExit(3), "SystemExit: 3", "permanent"),
        (GeneratorExit(), "GeneratorExit", "permanent"),
        (asyncio.CancelledError("of its own"), "of its own", "permanent"),
        (StopIteration(5), "StopIteration", "permanent"),
        (StopAsyncIteration(), "StopAsyncIteration", "permanent"),
        (RecursionError("deep"), "RecursionError: deep", "permanent"),
        (MemoryError(), "MemoryError", "permanent"),
        (_UnsayableError(), "(its text cannot be had: RuntimeError)", "permanent"),
        (_UnsayableEnd(), "(its text cannot be had: RuntimeError)", "permanent"),
        (BaseExceptionGroup("g", [SystemExit(1)]), "SystemExit: 1", "permanent"),
        (ExceptionGroup("g", [ONE]), "ValueError: one", "permanent"),
        (
            ExceptionGroup("g", [LATE, GONE]),
            "TimeoutError: late; ConnectionError: gone",
            "transient",
        ),
        (ExceptionGroup("g", [LATE, ONE]), "TimeoutError: late; ValueError: one", "permanent"),
        (
            ExceptionGroup("g", [ExceptionGroup("inner", [ToolError("never"), KeyError(1)]), ToolError("")]),
            *("never; KeyError: 1; ", "permanent"),
        ),
        (ExceptionGroup("g", [ToolError("again", kind="transient")]), "again", "transient"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("in_thread", [False, True], ids=["on the loop", "in a thread"])
async def test_whatever_a_tool_raises_becomes_a_text_and_a_kind_and_the_run_goes_on(
    log: EventStore, error: BaseException, text: str, kind: str, in_thread: bool
) -> None:
    def fail() -> object:
        raise error

    outcome = await outcome_of(log, fail, in_thread=in_thread)
    if in_thread and not isinstance(error, Exception | asyncio.CancelledError):
        text = f"raised {type(error).__name__} in its thread"
    assert (text in outcome.text, outcome.kind, outcome.is_error) == (True, kind, True)


@pytest.mark.slow
async def test_a_tool_whose_error_has_5_megabytes_of_text_gives_the_model_the_beginning(log: EventStore) -> None:
    def fail() -> object:
        raise ValueError("e\ud800" * 2_500_000)

    result = await outcome_of(log, fail)
    assert result.text.startswith("ValueError: e\ufffd")
    assert len(result.text) == 4_000


async def test_a_tool_that_cancels_its_own_task_or_token_fails_and_is_not_run_twice(log: EventStore) -> None:
    ran: list[str] = []

    @tool
    async def give_up(context: ToolContext[Any], how: str) -> str:
        ran.append(how)
        if how == "token":
            context.cancel.cancel()
            context.cancel.raise_if_cancelled()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "unreachable"

    answer = [use("give_up", {"how": "token"}), use("give_up", {"how": "task"})]
    _, results = await answered(log, answer, say("ok"), tools=[give_up])
    assert ran == ["token", "task"]
    assert [block.kind for block in results] == ["permanent", "permanent"]


async def test_a_tool_whose_description_cannot_be_recorded_runs_all_the_same(log: EventStore) -> None:
    @tool
    async def work(limit: float = float("inf")) -> str:
        return f"up to {limit}"

    _, results = await answered(log, use("work"), say("ok"), tools=[work])
    assert [block.text for block in results] == ["up to inf"]


# What is decided, cancelled and resumed without reason


async def test_commands_about_nothing_change_nothing(log: EventStore) -> None:
    async with talking(say("fine"), log=log) as (session, _):
        await session.cancel()
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide("call_1_0", allow=True)
        assert await session.history() == []
        assert await log.head("session/s") is None
        await session.send("x")
        before = await log.head("session/s")
        await session.cancel(reason="\ud800")
        await session.resume()
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide("call_1_0", allow=False, reason="\ud800")
        assert await log.head("session/s") == before
