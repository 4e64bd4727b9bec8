"""Bad input, one kind at a time: each gets a clear error or a defined result, and the log stays sound.

Every test runs on the log in memory and on a file; the `log` fixture checks and replays the log afterwards.
"""

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    CommandRejected,
    Completed,
    ConfigError,
    Failed,
    ImageBlock,
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    RunResult,
    ScriptedProvider,
    Session,
    TextBlock,
    ThinkingBlock,
    ToolContext,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.content import StoredBlock
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.session.events import ModelResponded, ToolApprovalRequested, ToolCallFailed
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore

CONFIG = AgentConfig(model="test-model")


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is checked and replayed when the test is over."""
    store: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield store
    assert (await check_log(store)).problems == ()
    (await replay(store, level="core")).raise_for_divergence()
    await store.close()


@tool(tier="observe", effect="pure")
async def echo(text: str = "nothing") -> str:
    """Say it again."""
    return f"heard {text}"


def runtime_of(log: EventStore, *script: Any, tools: Any = (echo,), **options: Any) -> AgentRuntime:
    config = options.pop("config", CONFIG)
    return AgentRuntime(config, provider=ScriptedProvider(script), tools=tools, log=log, **options)


async def outcome_of(log: EventStore, body: Callable[[], object]) -> ToolResultBlock:
    """Return the result of a call of a tool that does what `body` does; the run must complete after it."""

    @tool
    async def work() -> object:
        """Work."""
        return body()

    async with runtime_of(log, use("work"), say("done"), tools=[work]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "done"
        return (await results_of(session))[0]


async def results_of(session: Session) -> list[ToolResultBlock]:
    return [
        block for message in await session.history() for block in message.content if isinstance(block, ToolResultBlock)
    ]


async def answered(log: EventStore, answer: Any, *more: Any, **options: Any) -> tuple[RunResult, list[ToolResultBlock]]:
    """Return how a run ends in which the model gives these answers, and what its calls came to; the next run works."""
    async with runtime_of(log, answer, *more, say("back"), **options) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        results = await results_of(session)
        assert (await session.send("and now?")).text == "back"
        return result, results


# What callers send


@pytest.mark.parametrize("nothing", ["", " \n\t", [], [""], [TextBlock(text=" ")], ()])
async def test_an_empty_input_is_refused_and_nothing_is_recorded(log: EventStore, nothing: Any) -> None:
    async with runtime_of(log) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="empty"):
            await session.send(nothing)
        assert await log.head("session/s") is None


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", {"text": "x"}, [b"x"], [None], [["nested"]], object()])
async def test_an_input_that_is_no_text_and_no_block_is_refused(log: EventStore, wrong: Any) -> None:
    async with runtime_of(log) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="text or blocks"):
            await session.send(wrong)
        assert await log.head("session/s") is None


@pytest.mark.parametrize(
    "block",
    [
        TextBlock(text=5),  # type: ignore[arg-type]
        ImageBlock(media_type=5, data=b"x"),  # type: ignore[arg-type]
        ImageBlock(media_type="image/png", data="no bytes"),  # type: ignore[arg-type]
        ImageBlock(media_type="image/png", data="no bytes" * 100_000),  # type: ignore[arg-type]
        StoredBlock(hash=PayloadHash("0" * 64), bytes=5, holds="text"),
    ],
)
async def test_a_block_that_cannot_be_what_it_says_is_refused(log: EventStore, block: Any) -> None:
    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected):
            await session.send(["look", block])
        assert (await session.send("never mind")).text == "fine"


async def test_an_input_of_10_megabytes_reaches_the_model_whole(log: EventStore) -> None:
    text = "0123456789" * 1_048_576

    def measure(request: ModelRequest) -> str:
        return str(len(request.messages[-1].text))

    async with runtime_of(log, measure) as runtime:
        session = await runtime.session("s")
        assert (await session.send(text)).text == str(len(text))
        assert (await session.history())[0].text == text


async def test_an_input_of_many_blocks_that_is_too_large_together_is_refused_with_its_size(log: EventStore) -> None:
    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match=r"1,048,576"):
            await session.send(["x" * 60_000] * 20)
        assert (await session.send("a smaller one")).text == "fine"


async def test_case_e01_lone_surrogates_and_nuls_are_sent_as_valid_text(log: EventStore) -> None:
    def last(request: ModelRequest) -> str:
        return request.messages[-1].text

    async with runtime_of(log, last) as runtime:
        session = await runtime.session("s")
        result = await session.send("a\ud83d b\udc00 \ud83d\ude00 \x00 \x1b[31m \u202e")
        assert result.text == "a\ufffd b\ufffd \U0001f600 \x00 \x1b[31m \u202e"


async def test_an_input_of_text_and_an_image_reaches_the_model_as_it_is(log: EventStore) -> None:
    images = [
        ImageBlock(media_type="image/png", data=b"\x89PNG\x00"),
        ImageBlock(media_type="image/png", data=b"x" * 200_000),
    ]
    seen: list[Any] = []

    def look(request: ModelRequest) -> str:
        seen.extend(request.messages[-1].content)
        return "seen"

    async with runtime_of(log, look) as runtime:
        session = await runtime.session("s")
        assert (await session.send(["what is it?", *images])).text == "seen"
    assert seen == [TextBlock(text="what is it?"), *images]


@pytest.mark.parametrize(
    "identifier", ["a/b//c", 'it\'s "quoted"', "'; DROP TABLE events; --", "../../x", "é\u202e\n\x1b", "%_*"]
)
async def test_a_session_id_of_odd_characters_names_one_session(log: EventStore, identifier: str) -> None:
    async with runtime_of(log, say("one"), say("two")) as runtime:
        assert (await (await runtime.session(identifier)).send("x")).text == "one"
        assert (await (await runtime.session(identifier + "x")).send("x")).text == "two"
        assert await runtime.sessions() == sorted([identifier, identifier + "x"])
        assert len(await (await runtime.session(identifier, restore=True)).history()) == 2


@pytest.mark.parametrize("identifier", ["", "x" * 10_000, "a\x00b", "\ud800", 7, b"s"])
async def test_a_session_id_that_cannot_be_one_is_refused(log: EventStore, identifier: Any) -> None:
    async with runtime_of(log) as runtime:
        with pytest.raises(ConfigError, match="session id"):
            await runtime.session(identifier)


@pytest.mark.parametrize("key", ["", "k" * 10_000, 5, b"k"])
async def test_a_key_that_cannot_be_one_is_refused(log: EventStore, key: Any) -> None:
    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
        for command in (
            session.send("x", key=key),
            session.cancel(key=key),
            session.decide("call_1_0", allow=True, key=key),
            session.import_history([Message("user", (TextBlock(text="x"),))], key=key),
        ):
            with pytest.raises(CommandRejected, match="key"):
                await command
        assert (await session.send("x", key="'; \x00 \ud800")).text == "fine"


async def test_an_async_on_event_is_refused_before_anything_is_recorded(log: EventStore) -> None:
    async def handler(recorded: Any) -> None:
        raise AssertionError("never awaited")

    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
        with pytest.raises(ConfigError, match="on_event"):
            await session.send("x", on_event=handler)
        assert await log.head("session/s") is None


async def test_an_on_event_that_returns_a_coroutine_cancels_the_run_and_says_why(log: EventStore) -> None:
    async def record() -> None:
        raise AssertionError("never awaited")

    async with runtime_of(log, say("fine"), say("next")) as runtime:
        session = await runtime.session("s")
        with pytest.raises(ConfigError, match="on_event"):
            await session.send("x", on_event=lambda recorded: record())


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("mine"), GeneratorExit()])
async def test_an_on_event_that_raises_a_base_exception_gets_it_back(log: EventStore, error: BaseException) -> None:
    def handler(recorded: Any) -> None:
        raise error

    async with runtime_of(log, say("fine"), say("fine")) as runtime:
        session = await runtime.session("s")
        assert type(await _raised_by(session, handler)) is type(error)
        assert (await session.send("again")).text == "fine"


async def _raised_by(session: Session, handler: Callable[[Any], object]) -> BaseException | None:
    try:
        await session.send("x", on_event=handler)
    except BaseException as error:  # noqa: BLE001 - It is what the test looks at.
        return error
    return None


# What is imported


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "text",
        [{"role": "user", "content": "x"}],
        [Message("user", ("text",))],  # type: ignore[arg-type]
        [Message("system", (TextBlock(text="x"),))],  # type: ignore[arg-type]
        [Message("user", (TextBlock(text=b"x"),))],  # type: ignore[arg-type]
        [Message("user", (StoredBlock(hash=PayloadHash("0" * 64), bytes=5, holds="text"),))],
        [Message("user", (ImageBlock(media_type="image/png", data="x" * 100_000),))],  # type: ignore[arg-type]
        [
            Message("user", (TextBlock(text="x"),)),
            Message("assistant", (ToolUseBlock(id="a", name="n", input={"x": float("nan")}),)),  # type: ignore[arg-type]
        ],
    ],
)
async def test_a_history_that_cannot_be_one_is_refused_by_its_place(log: EventStore, messages: Any) -> None:
    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="messages"):
            await session.import_history(messages)
        assert (await session.send("x")).text == "fine"


async def test_an_imported_history_loses_its_lone_surrogates(log: EventStore) -> None:
    messages = [
        Message("user", (TextBlock(text="\ud800" * 50_000),)),
        Message(
            "assistant",
            (
                ThinkingBlock(thinking="\ud800"),
                ToolUseBlock(id=ToolCallId("a"), name="\ud800", input={"k": "\ud800"}),
            ),
        ),
    ]
    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
        await session.import_history(messages)
        assert (await session.send("x")).text == "fine"
        history = await session.history()
    assert history[0].text == "\ufffd" * 50_000
    assert isinstance(history[1].content[1], ToolUseBlock)
    assert history[1].content[1].input == {"k": "\ufffd"}


async def test_case_b10_an_orphaned_call_of_an_import_gets_one_crash_result_and_the_next_request_is_balanced(
    log: EventStore,
) -> None:
    messages = [
        Message("user", (TextBlock(text="go"),)),
        Message("assistant", (ToolUseBlock(id="a", name="n", input={}),)),  # type: ignore[arg-type]
    ]
    provider = ScriptedProvider([say("fine")])
    async with AgentRuntime(CONFIG, provider=provider, log=log) as runtime:
        session = await runtime.session("s")
        await session.import_history(messages)
        assert (await session.send("x")).text == "fine"
        results = await results_of(session)
    assert [block.text for block in results] == ["Tool execution was interrupted by a crash. Please retry."]
    assert [message.role for message in provider.requests[0].messages] == ["user", "assistant", "user", "user"]


# What models answer


@pytest.mark.parametrize("arguments", ["", "  \n", "null", None])
async def test_case_b04_no_arguments_at_all_are_an_empty_object(log: EventStore, arguments: Any) -> None:
    _, results = await answered(log, use("echo", arguments), say("ok"))
    assert [(block.text, block.kind) for block in results] == [("heard nothing", None)]


@pytest.mark.parametrize(
    "arguments",
    [
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
        {"text": "x" * 300_000},
    ],
)
async def test_case_b06_arguments_that_do_not_fit_are_told_to_the_model_and_the_body_is_not_run(
    log: EventStore, arguments: Any
) -> None:
    ran: list[str] = []

    @tool
    async def work(text: str) -> str:
        """Work."""
        ran.append(text)
        return text

    result, results = await answered(log, use("work", arguments), say("ok"), tools=[work])
    assert result.outcome == Completed()
    assert [(block.is_error, block.kind) for block in results] == [(True, "invalid_arguments")]
    assert "work" in results[0].text
    assert ran == []


async def test_an_unknown_tool_name_is_told_to_the_model(log: EventStore) -> None:
    answer = [use("eco"), use(""), use("x" * 100_000), use("a/b\x00\ud800"), use("echo")]
    _, results = await answered(log, answer, say("ok"))
    assert [block.kind for block in results] == ["not_found"] * 4 + [None]
    assert "echo" in results[0].text


async def test_duplicate_call_ids_in_one_answer_are_calls_of_their_own(log: EventStore) -> None:
    answer = [use("echo", {"text": text}, id="same") for text in "abc"]
    async with runtime_of(log, answer, say("ok")) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        history = await session.history()
    calls = [block for block in history[1].content if isinstance(block, ToolUseBlock)]
    results = [block for block in history[2].content if isinstance(block, ToolResultBlock)]
    assert [call.provider_id for call in calls] == ["same"] * 3
    assert [result.tool_use_id for result in results] == [call.id for call in calls]
    assert len({call.id for call in calls}) == 3
    assert [result.text for result in results] == ["heard a", "heard b", "heard c"]


async def test_case_b10_results_go_to_their_calls_by_place_whatever_ends_first(log: EventStore) -> None:
    gates = {name: asyncio.Event() for name in "abc"}

    @tool(tier="observe")
    async def look(name: str) -> str:
        """Look."""
        await gates[name].wait()
        return name

    async with runtime_of(log, [use("look", {"name": name}) for name in "abc"], say("ok"), tools=[look]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        for name in "cab":
            ended = asyncio.Event()
            forget = runtime.subscribe(lambda _, ended=ended: ended.set())  # type: ignore[misc]
            gates[name].set()
            await ended.wait()
            forget()
        await sending
        assert [block.text for block in await results_of(session)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "content", [(), (TextBlock(text=""),), (TextBlock(text=" "), TextBlock(text="\n")), (ThinkingBlock(thinking="hm"),)]
)
async def test_an_answer_of_empty_blocks_is_asked_again_and_then_fails(log: EventStore, content: Any) -> None:
    empty = ModelResponse(content=content)
    result, _ = await answered(log, empty, empty, empty)
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.kind == "empty_answers"
    assert result.stop_reason == "end_turn", "there were answers"


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: ModelResponse(content=None),  # type: ignore[arg-type]
        lambda request: ModelResponse(content="text"),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(object(),)),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(None, "x")),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(TextBlock(text=5),)),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(ThinkingBlock(thinking=b"x"),)),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(use(5),)),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(use("echo", id=5),)),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(StoredBlock(hash=PayloadHash("0" * 64), bytes=5, holds="text"),)),
        lambda request: ModelResponse(content=(ImageBlock(media_type="x", data="y" * 100_000),)),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(TextBlock(text="x"),), stop_reason="why not"),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(TextBlock(text="x"),), stop_reason=["end_turn"]),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(TextBlock(text="x"),), usage=None),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(TextBlock(text="x"),), usage=Usage(input_tokens=-5)),
        lambda request: ModelResponse(content=(TextBlock(text="x"),), usage=Usage(output_tokens=2**70)),
        lambda request: ModelResponse(content=(TextBlock(text="x"),), usage=Usage(output_tokens=1.5)),  # type: ignore[arg-type]
        lambda request: ModelResponse(content=(TextBlock(text="x"),), model=7),  # type: ignore[arg-type]
    ],
)
async def test_an_answer_of_wrong_types_fails_its_run_as_malformed(
    log: EventStore, answer: Callable[[ModelRequest], ModelResponse]
) -> None:
    result, _ = await answered(log, answer)
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.kind == "provider"
    assert "cannot be used" in result.outcome.error.message


class _Provider:
    """Returns, or raises, what it was given."""

    def __init__(self, answer: Any) -> None:
        self._answers = [answer, say("back")]

    async def complete(self, request: ModelRequest) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        yield await self.complete(request)


class _UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")

    __repr__ = __str__


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        5,
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError("of its own"),
        StopAsyncIteration(),
        _UnsayableError(),
        ValueError("\ud800" * 200_000),
        ProviderError("x", kind="nonsense", status="529", retry_after_s=float("inf")),  # type: ignore[arg-type]
        ProviderError("x", kind="overloaded", retryable=True, retry_after_s=float("nan")),
    ],
    ids=lambda answer: type(answer).__name__,
)
async def test_a_provider_that_returns_or_raises_anything_fails_its_run_and_the_next_one_works(
    log: EventStore, answer: Any, streaming: bool
) -> None:
    config = AgentConfig(model="m", streaming=streaming)
    async with AgentRuntime(config, provider=_Provider(answer), log=log) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert 0 < len(result.outcome.error.message) <= 2_100
        assert (await session.send("again")).text == "back"


@pytest.mark.parametrize("provider", [object(), 5, "claude"])
def test_what_cannot_answer_is_refused_as_a_provider_at_construction(provider: Any) -> None:
    with pytest.raises(ConfigError, match="complete"):
        AgentRuntime(CONFIG, provider=provider)


async def test_a_provider_and_a_subscriber_that_change_arguments_change_nothing_of_the_session(log: EventStore) -> None:
    seen: list[Any] = []

    def spoil(request: ModelRequest) -> str:
        for message in request.messages:
            for block in message.content:
                if isinstance(block, ToolUseBlock):
                    block.input["text"] = "spoiled"
        return "done"

    def meddle(recorded: Any) -> None:
        if isinstance(recorded.event, ToolApprovalRequested):
            recorded.event.input["text"] = "something else"
            asked.set()
        if isinstance(recorded.event, ModelResponded):
            for block in recorded.event.content:
                if isinstance(block, ToolUseBlock):
                    block.input.clear()

    @tool(tier="confirm")
    async def pay(text: str) -> str:
        """Pay."""
        seen.append(text)
        return text

    asked = asyncio.Event()
    async with runtime_of(log, use("pay", {"text": "5 euros"}), spoil, tools=[pay]) as runtime:
        session = await runtime.session("s")
        runtime.subscribe(meddle)
        sending = asyncio.create_task(session.send("go"))
        await asked.wait()
        for block in (await session.history())[1].content:
            assert isinstance(block, ToolUseBlock)
            block.input["text"] = "mine"
            await session.decide(block.id, allow=True)
        await sending
        call = (await session.history())[1].content[0]
        assert isinstance(call, ToolUseBlock)
        assert call.input == {"text": "5 euros"}
    assert seen == ["5 euros"]


async def test_an_answer_with_300_calls_is_answered_call_by_call(log: EventStore) -> None:
    answer = [use("echo", {"text": str(number)}) for number in range(300)]
    async with runtime_of(log, answer, say("ok")) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        results = await results_of(session)
        events = [recorded async for recorded in session.events()]
        later = [recorded async for recorded in session.events(after_version=7)]
    assert [block.text for block in results] == [f"heard {number}" for number in range(300)]
    assert {recorded.correlation for recorded in events[2:]} == {"session/s@3"}
    assert later == events[7:]


async def test_a_batch_of_more_than_a_page_of_events_keeps_its_causes(log: EventStore) -> None:
    answer = [use("nothing", {"n": number}) for number in range(2_500)]
    async with runtime_of(log, answer, say("ok")) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        events = [recorded async for recorded in session.events()]
        later = [recorded async for recorded in session.events(after_version=2_000)]
    assert [recorded.version for recorded in events] == list(range(1, len(events) + 1))
    assert {recorded.correlation for recorded in events[2:]} == {"session/s@3"}
    assert later == events[2_000:]


@pytest.mark.slow
async def test_many_turns_end_at_max_turns(log: EventStore) -> None:
    config = AgentConfig(model="m", max_turns=200)
    async with runtime_of(log, *[use("echo")] * 300, config=config) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.error.kind, result.turns) == ("max_turns", 200)


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
        (_nested(100), "[" * 100 + '"x"' + "]" * 100),
    ],
)
async def test_what_a_tool_returns_reaches_the_model_as_text_or_json(log: EventStore, value: Any, text: str) -> None:
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
        (ImageBlock(media_type="image/png", data="no bytes" * 50_000), "$.data"),  # type: ignore[arg-type]
        ([TextBlock(text="x"), ImageBlock(media_type=None, data=b"")], "$.media_type"),  # type: ignore[arg-type]
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


@pytest.mark.parametrize(
    ("made_with", "path"),
    [
        (lambda numpy: {"a": [{"b": numpy.float32(1)}]}, "$.a[0].b"),
        (lambda numpy: {"a": numpy.int64(1)}, "$.a"),
        (lambda numpy: numpy.zeros(3), "$"),
    ],
)
async def test_case_e06_what_only_numpy_knows_is_an_error_that_names_its_path(
    log: EventStore, made_with: Callable[[Any], object], path: str
) -> None:
    value = made_with(pytest.importorskip("numpy"))
    result = await outcome_of(log, lambda: value)
    assert (result.is_error, result.kind) == (True, "permanent")
    assert path in result.text
    assert "cannot be recorded" in result.text


async def test_case_e06_a_numpy_scalar_that_is_a_float_is_recorded_as_one(log: EventStore) -> None:
    numpy = pytest.importorskip("numpy")
    result = await outcome_of(log, lambda: {"a": [{"b": numpy.float64(1)}]})
    assert result.text == '{"a":[{"b":1.0}]}'


@pytest.mark.parametrize("whole", [True, False])
async def test_case_j14_a_result_of_4_megabytes_is_kept_as_a_payload_and_reaches_the_model_as_far_as_its_tool_says(
    log: EventStore, whole: bool
) -> None:
    big = "y" * (4 * 1024 * 1024)

    @tool(result_limit=None if whole else 50_000)
    async def read() -> str:
        """Read."""
        return big

    def measure(request: ModelRequest) -> str:
        (block,) = request.messages[-1].content
        assert isinstance(block, ToolResultBlock)
        return str(len(block.text))

    async with runtime_of(log, use("read"), measure, tools=[read]) as runtime:
        session = await runtime.session("s")
        seen = int((await session.send("go")).text)
        (result,) = await results_of(session)
        assert len(result.text) == seen
        assert (result.text == big) is whole
        assert seen == len(big) if whole else 50_000 < seen < 50_300
    assert all(len(event.data) < 100_000 for event in await log.read_stream("session/s"))


async def test_a_result_of_many_blocks_that_is_too_large_together_is_an_error_with_its_size(log: EventStore) -> None:
    result = await outcome_of(log, lambda: [ImageBlock(media_type="image/png", data=b"x" * 45_000)] * 20)
    assert (result.kind, "1,048,576" in result.text) == ("permanent", True)


async def test_case_j15_the_history_grows_by_what_is_new_and_by_nothing_else(log: EventStore) -> None:
    big = "z" * 100_000
    provider = ScriptedProvider([use("echo", {"text": str(number)}) for number in range(3)] + [say("a"), say("b")])
    async with AgentRuntime(CONFIG, provider=provider, tools=[echo], log=log) as runtime:
        session = await runtime.session("s")
        await session.send(big)
        await session.send("more")
    assert [len(request.messages) for request in provider.requests] == [1, 3, 5, 7, 9]
    assert all(request.messages[0].text == big for request in provider.requests)


async def test_case_j10_a_clock_that_jumps_back_changes_no_order(log: EventStore) -> None:
    clock = ManualClock()

    @tool
    async def back() -> str:
        """Turn the clock back."""
        clock.jump(-3_600)
        return "back"

    async with runtime_of(log, use("back"), say("ok"), tools=[back], clock=clock) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        times = [recorded.time async for recorded in session.events()]
        assert len(await session.history()) == 4
    assert times == sorted(times)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError("of its own"),
        StopIteration(5),
        StopAsyncIteration(),
        RecursionError("deep"),
        MemoryError(),
        _UnsayableError(),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        BaseExceptionGroup("several", [SystemExit(1)]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_tool_that_raises_anything_gives_the_model_an_error_and_the_run_goes_on(
    log: EventStore, error: BaseException, sync: bool
) -> None:
    @tool(name="work")
    async def in_the_loop() -> str:
        """Work."""
        raise error

    @tool(name="work")
    def in_a_thread() -> str:
        """Work."""
        raise error

    async with runtime_of(log, use("work"), say("done"), tools=[in_a_thread if sync else in_the_loop]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "done"
        (result,) = await results_of(session)
    assert (result.is_error, result.kind) == (True, "permanent")
    assert result.text


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
        """Give up."""
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
        """Work."""
        return f"up to {limit}"

    _, results = await answered(log, use("work"), say("ok"), tools=[work])
    assert [block.text for block in results] == ["up to inf"]


@pytest.mark.parametrize("error", [LookupError("nowhere"), RecursionError(), StopIteration()])
async def test_a_validator_that_raises_is_told_to_the_model(log: EventStore, error: Exception) -> None:
    def validate(text: str) -> str | None:
        raise error

    @tool(validate=validate)
    async def work(text: str) -> str:
        """Work."""
        return text

    result, results = await answered(log, use("work", {"text": "x"}), say("ok"), tools=[work])
    assert result.text == "ok"
    assert [block.kind for block in results] == ["invalid_arguments"]


# What is decided, cancelled and resumed without reason


async def test_commands_about_nothing_change_nothing(log: EventStore) -> None:
    async with runtime_of(log, say("fine")) as runtime:
        session = await runtime.session("s")
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


async def test_resuming_a_run_that_goes_on_disturbs_nothing(log: EventStore) -> None:
    working, gate = asyncio.Event(), asyncio.Event()

    @tool(effect="once")
    async def work() -> str:
        """Work."""
        working.set()
        await gate.wait()
        return "worked"

    async with runtime_of(log, use("work"), say("done"), tools=[work]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await working.wait()
        await session.resume()
        gate.set()
        assert (await sending).text == "done"
        assert [block.text for block in await results_of(session)] == ["worked"]


@pytest.mark.parametrize("allow", ["yes", None, 1])
async def test_a_decision_that_is_neither_yes_nor_no_is_refused(log: EventStore, allow: Any) -> None:
    asked = asyncio.Event()

    @tool(tier="confirm")
    async def pay() -> str:
        """Pay."""
        return "paid"

    def look(recorded: Any) -> None:
        if isinstance(recorded.event, ToolApprovalRequested):
            calls.append(recorded.event.call)
            asked.set()

    calls: list[str] = []
    async with runtime_of(log, use("pay"), say("ok"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", on_event=look))
        await asked.wait()
        with pytest.raises(CommandRejected):
            await session.decide(calls[0], allow=allow)
        await session.decide(calls[0], allow=False, reason="no \ud800")
        await sending
        (result,) = await results_of(session)
        failed = [item.event async for item in session.events() if isinstance(item.event, ToolCallFailed)]
    assert (result.kind, result.text) == ("denied", "no \ufffd")
    assert [event.started for event in failed] == [False]
