"""Extreme sizes and values: each is recorded whole or refused by a typed error, and the session lives on.

What is slow at its full size has an everyday version at a smaller one. Growth is shown by counting (commits, events,
effects named in a batch), never by the clock.
"""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refold import (
    AgentConfig,
    AgentRuntime,
    CommandRejected,
    ConfigError,
    Failed,
    ImageBlock,
    Message,
    ModelRequest,
    ScriptedProvider,
    Session,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolCallId,
    ToolContext,
    ToolResultBlock,
    ToolUseBlock,
    say,
    tool,
    use,
)
from refold.commands.cli import app
from refold.events.core.ids import PayloadHash
from refold.inspection.check import check_log
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.processes import refold_line, run
from tests.conformance.sessions import results_of, session_in

MEGABYTE = 1024 * 1024

SIZES = [pytest.param(3 * MEGABYTE, id="3 MB"), pytest.param(100 * MEGABYTE, id="100 MB", marks=pytest.mark.slow)]


@tool(tier="observe", effect="pure")
async def echo(value: Any = None) -> Any:
    return value


def runtime_of(log: Any, *script: Any, tools: Any = (echo,), **settings: Any) -> AgentRuntime:
    config = AgentConfig(model="m", **settings)
    provider = ScriptedProvider(script)
    return AgentRuntime(config, provider=provider, tools=tools, log=log, input_bytes_max=None, result_bytes_max=None)


async def count_of(session: Session) -> int:
    return len([recorded async for recorded in session.events()])


# Large content


def large(kind: str, size: int) -> str | ImageBlock:
    if kind == "image":
        return ImageBlock(media_type="image/png", data=b"\x00\xff\x10\x80" * (size // 4))
    return ("0123456789abcde\n" if kind == "ascii" else "é\u2028\U0001f600\x00\n") * (size // 16)


def shown(block: Any) -> str | ImageBlock:
    return block.text if isinstance(block, TextBlock) else block


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["ascii", "unicode", "image"])
async def test_case_j14_a_huge_result_is_kept_beside_the_events_and_reaches_model_and_reader_whole_also_after_a_restart(
    tmp_path: Path, kind: str, size: int
) -> None:
    path = tmp_path / "events.db"
    huge = large(kind, size)
    asked: list[bool] = []

    @tool(result_limit=None)
    async def read() -> str | ImageBlock:
        return huge

    def look(request: ModelRequest) -> Any:
        if request.messages[0].text == "me too":
            return "done"
        results = results_in(request)
        if not results:
            return use("read")
        asked.append([shown(block) for block in results[0].content] == [huge])
        return "seen"

    async with runtime_of(path, *[look] * 3, tools=[read]) as runtime:
        session, other = await runtime.session("s"), await runtime.session("other")
        sending = asyncio.create_task(session.send("go"))
        assert (await other.send("me too")).text == "done"
        assert (await sending).text == "seen"
    async with session_in(runtime_of(path, look, tools=[read])) as (runtime, session):
        assert (await session.send("again")).text == "seen"
        (result,) = await results_of(session)
        assert [shown(block) for block in result.content] == [huge]
        assert max([len(event.data) for event in await runtime.store.read_stream("session/s")]) < 100_000
    assert asked == [True, True]


@pytest.mark.parametrize("size", [MEGABYTE, pytest.param(10 * MEGABYTE, marks=pytest.mark.slow)])
async def test_a_long_input_and_a_long_answer_are_kept_beside_the_events(log: EventStore, size: int) -> None:
    text = ("a line of \u00e9 and \U0001f600\n" * (size // 16))[:size]
    async with session_in(runtime_of(log, lambda request: request.messages[-1].text[::-1], say("ok"))) as (_, session):
        assert (await session.send(text)).text == text[::-1]
        assert (await session.send("more")).text == "ok"
        assert [message.text for message in await session.history()] == [text, text[::-1], "more", "ok"]
    assert max([len(event.data) for event in await log.read_stream("session/s")]) < 10_000


async def test_arguments_that_are_too_long_together_fail_their_run_and_the_next_one_works(log: EventStore) -> None:
    calls = [use("echo", {"value": "x" * 250_000}) for _ in range(5)]
    async with session_in(runtime_of(log, calls, say("ok"))) as (_, session):
        outcome = (await session.send("go")).outcome
        assert isinstance(outcome, Failed)
        assert "1,048,576" in outcome.error.message
        assert (await session.send("again")).text == "ok"


# Deep nesting


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("depth", [5_000, 200_000])
async def test_what_is_nested_too_deep_is_refused_in_both_directions_by_a_short_error(
    log: EventStore, depth: int, kind: str
) -> None:
    deep = nested(depth, kind)

    @tool
    async def dig() -> object:
        return deep

    async with runtime_of(
        log, [use("echo", {"value": deep}), use("dig")], say("ok"), say("again"), tools=[echo, dig]
    ) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "ok"
        told, returned = await results_of(session)
        assert [told.kind, returned.kind] == ["invalid_arguments", "permanent"]
        for result in (told, returned):
            assert "deeper than 100 levels" in result.text
            assert len(result.text) < 1_000
        before = await count_of(session)
        call = ToolUseBlock(id=ToolCallId("a"), name="echo", input={"value": deep})
        with pytest.raises(CommandRejected, match=r"messages\[1\].*deeper than 100 levels"):
            await session.import_history([Message("user", (TextBlock(text="x"),)), Message("assistant", (call,))])
        assert await count_of(session) == before
        assert (await session.send("more")).text == "again"


async def test_json_text_that_is_nested_deep_is_no_arguments_and_plain_text_everywhere_else(log: EventStore) -> None:
    deep = "[" * 5_000 + "]" * 5_000

    @tool
    async def dig() -> str:
        return deep

    answer = [use("echo", '{"value": ' + deep + "}"), use("dig")]
    async with session_in(runtime_of(log, answer, say(deep), tools=[echo, dig])) as (_, session):
        assert (await session.send(deep)).text == deep
        told, returned = await results_of(session)
        assert (told.kind, returned.text) == ("invalid_arguments", deep)


def form(depth: int, width: int) -> Tool[..., object]:
    """Return a tool with so many fields, and one whose schema is nested so deep."""
    deep: Any = {"type": "string"}
    for _ in range(depth):
        deep = {"type": "object", "properties": {"a": deep}}
    wide = {f"field_{number}": {"type": "integer"} for number in range(width)}
    return Tool.from_schema(
        name="fill",
        description="Fills a form.",
        input_schema={"type": "object", "properties": {"deep": deep, **wide}},
        handler=lambda arguments: len(arguments),
    )


async def test_a_schema_may_be_deep_and_wide(log: EventStore) -> None:
    arguments = {"deep": nested(45, "dict"), **{f"field_{number}": number for number in range(2_000)}}
    async with session_in(runtime_of(log, use("fill", arguments), say("ok"), tools=[form(45, 2_000)])) as (_, session):
        assert (await session.send("go")).text == "ok"
        assert [result.text for result in await results_of(session)] == ["2001"]


@pytest.mark.parametrize("depth", [60, 5_000])
def test_a_schema_that_is_too_deep_to_be_recorded_is_refused_at_definition(depth: int) -> None:
    with pytest.raises(ConfigError, match="deeper than 100 levels"):
        form(depth, 0)


# Many


class CountingStore(InMemoryStore):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = self.events = self.pending_most = 0

    async def append(self, batches: Any, payloads: Any = None) -> Any:
        appended = await super().append(batches, payloads)
        self.commits += any(batch.stream == "session/s" for batch in batches)
        for batch in batches:
            self.events += len(batch.events)
            self.pending_most = max(self.pending_most, len(batch.pending))
        return appended


@pytest.mark.parametrize(
    "number",
    [100, pytest.param(1_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.slow(seconds=10))],
)
async def test_each_of_many_calls_in_one_answer_is_answered_once_and_in_order_for_the_same_price(number: int) -> None:
    log = CountingStore()
    async with runtime_of(log, [use("echo", {"value": place}) for place in range(number)], say("ok")) as runtime:
        session = await runtime.session("s")
        before = log.events
        assert (await session.send("go")).text == "ok"
        results = await results_of(session)
        calls = [block.id for block in (await session.history())[1].content if isinstance(block, ToolUseBlock)]
        kinds = [type(recorded.event).__name__ async for recorded in session.events()]
    assert [result.text for result in results] == [str(place) for place in range(number)]
    assert [result.tool_use_id for result in results] == calls
    assert (kinds.count("ToolCallStarted"), kinds.count("ToolCallCompleted")) == (number, number)
    assert log.commits == number + 3  # The input, the answer with the calls, each result, the final answer.
    assert log.events - before <= 2 * number + 15
    assert log.pending_most <= 500  # However many calls wait: each commit names those that run.
    assert (await check_log(log)).problems == ()


def conversation(number: int, characters: int = 20) -> list[Message]:
    roles: Any = ("user", "assistant")
    return [Message(roles[place % 2], (TextBlock(text=f"{place} ".ljust(characters, "x")),)) for place in range(number)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2_000, pytest.param(100_000, marks=pytest.mark.slow(seconds=20))])
async def test_a_session_of_many_messages_goes_on_restarts_and_can_be_shown_checked_and_replayed(
    tmp_path: Path, number: int
) -> None:
    path, messages = tmp_path / "events.db", conversation(number)

    def count(request: ModelRequest) -> str:
        assert list(request.messages[:number]) == messages
        return str(len(request.messages))

    async with session_in(runtime_of(path, count, count)) as (_, session):
        for start in range(0, number, 2_000):
            await session.import_history(messages[start : start + 2_000])
        assert (await session.send("go")).text == str(number + 1)
        assert (await session.send("more")).text == str(number + 3)
        assert await count_of(session) == 2 + number // 2_000 + 10
    async with session_in(runtime_of(path, count)) as (_, session):
        assert (await session.send("again")).text == str(number + 5)
        assert (await session.history())[:number] == messages
    lines = command("show", path, "s").splitlines()
    texts = {message.text.strip() for message in messages}
    assert sum(line.strip() in texts for line in lines) == number
    assert "sound" in command("check", path)
    assert "no divergence" in command("replay", path)


def command(*arguments: object) -> str:
    done = run(refold_line(*arguments))
    said = [line for line in done.stderr.splitlines() if not line.startswith("note: SQLite ")]
    assert (done.returncode, said) == (0, [])
    return done.stdout


async def test_a_history_that_is_too_large_for_one_event_is_refused_with_its_size(log: EventStore) -> None:
    async with session_in(runtime_of(log, say("ok"))) as (_, session):
        with pytest.raises(CommandRejected, match="1,048,576"):
            await session.import_history(conversation(20, 60_000))
        assert await log.head("session/s") is None
        await session.import_history(conversation(10, 60_000))
        await session.import_history(conversation(10, 60_000))
        assert (await session.send("go")).text == "ok"
        assert len(await session.history()) == 22


# Odd texts and numbers


TEXTS = {
    "astral": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0010ffff",
    "zero width": "a\u200b\u200c\u200d\u2060\ufeffb",
    "controls": "\x00\x01\x1b[31m\x7f\x85\r\n\t\u2028\u2029",
    "right to left": "\u202eabc\u2066\u05d0",
    "combining": "e" + "\u0301" * 200,
    "noncharacters": "\uffff\ufffe\ufdd0\ue000",
    "lone surrogates": "\ud800x\udc00",
    "split pair": "\ud83d\ude00",
    "quotes": "\"'`\\\\ \\u0000 %s {x} </script> '; DROP TABLE events; --",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_case_e01_an_odd_text_may_stand_everywhere_and_stays_over_a_restart(log: EventStore, text: str) -> None:
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    thinking = ThinkingBlock(thinking=text, signature=text)
    imported = [Message("user", (TextBlock(text=text),)), Message("assistant", (thinking, TextBlock(text=text)))]
    seen: list[str] = []

    def repeat(request: ModelRequest) -> Any:
        seen.append(request.system_prompt)
        return [use("echo", {"value": {text: text}}, id=text), use("echo", '{"value": "\\ud800"}'), text]

    async with session_in(runtime_of(log, repeat, say(text), system_prompt=clean)) as (_, session):
        await session.import_history(imported, key="i" + text)
        result = await session.send(text, key="k" + text)
        assert result.text == clean
        await session.cancel(reason=text, key="c" + text)
        before = await session.history()
    assert [message.text for message in before[:3]] == [clean, clean, clean]
    async with session_in(runtime_of(log, system_prompt=clean)) as (_, session):
        assert await session.history() == before
        assert (await session.send(text, key="k" + text)).text == clean
        first, _ = await results_of(session)
        assert json.loads(first.text) == {clean: clean}
    assert seen == [clean]


async def test_empty_texts_are_nothing_or_refused_and_never_in_the_way(log: EventStore) -> None:
    empty = ImageBlock(media_type="image/png", data=b"")
    script = [
        [use("echo", {"value": ""}), use("echo", {"": ""}), use("echo", ""), use("", {})],
        ["", say("").content[0], "ok"],
    ]
    async with runtime_of(
        log, *script, lambda request: "".join(message.text for message in request.messages)
    ) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="empty"):
            await session.send("")
        assert (await session.send(["", "go", "", empty])).text == "ok"
        results = await results_of(session)
        assert (results[0].text, results[0].kind, results[3].kind) == ("", None, "not_found")
        await session.cancel(reason="")
        with pytest.raises(CommandRejected, match="nothing to import"):
            await session.import_history([Message("user", (TextBlock(text=""),)), Message("assistant", ())])
        assert (await session.send("more")).text == "gookmore"


NUMBERS = [2**63 - 1, -(2**63), -0.0, 1e308, 5e-324, True]
NO_NUMBERS = [2**63, -(2**63) - 1, 2**64 - 1, 2**70, 10**5_000, math.nan, math.inf, -math.inf]


async def test_numbers_are_kept_exactly_or_refused_in_both_directions(log: EventStore) -> None:
    numbers = [*NUMBERS, *NO_NUMBERS]
    seen: list[Any] = []

    @tool
    async def number(place: int) -> Any:
        return numbers[place]

    @tool
    async def take(value: Any) -> None:
        seen.append(value)

    answer = [use("number", {"place": place}) for place in range(len(numbers))]
    answer += [use("take", {"value": value}) for value in numbers]
    async with session_in(runtime_of(log, answer, say("ok"), say("back"), tools=[number, take])) as (_, session):
        assert (await session.send("go")).text == "ok"
        kinds = [result.kind for result in await results_of(session)]
        good, bad = len(NUMBERS), len(NO_NUMBERS)
        assert kinds == [None] * good + ["permanent"] * bad + [None] * good + ["invalid_arguments"] * bad
        assert repr(seen) == repr(NUMBERS)
        for value in NO_NUMBERS:
            call = ToolUseBlock(id=ToolCallId("a"), name="take", input={"value": value})
            with pytest.raises(CommandRejected, match=r"messages\[1\].content\[0\].input.value"):
                await session.import_history([Message("user", (TextBlock(text="x"),)), Message("assistant", (call,))])
        assert (await session.send("again")).text == "back"


# Names at their limits


@pytest.mark.parametrize("unit", ["k", "\u00e9", "\U0001f600"])
async def test_keys_and_session_ids_have_at_most_512_bytes(log: EventStore, unit: str) -> None:
    longest = unit * (512 // len(unit.encode()))
    async with runtime_of(log, say("one"), say("two")) as runtime:
        session = await runtime.session(longest)
        assert (await session.send("x", key=longest)).text == "one"
        assert (await session.send("x", key=longest)).text == "one"
        with pytest.raises(CommandRejected, match="512"):
            await session.send("x", key=longest + unit)
        with pytest.raises(ConfigError, match="512"):
            await runtime.session(longest + unit)
        assert await runtime.sessions() == [longest]
    async with runtime_of(log) as runtime:
        session = await runtime.session(longest, restore=True)
        assert (await session.send("x", key=longest)).text == "one"


# Results that are too long for a model: what it sees, what the log keeps, and how to get all of it


LINES = "".join(f"{number:05} ein Wort: größer\n" for number in range(10_000))


@tool(result_limit=3_000, effect="pure")
async def log_file() -> str:
    return LINES


@tool(result_limit=100)
def rows() -> list[dict[str, int]]:
    return [{"row": number} for number in range(1_000)]


LIMITED = (log_file, rows)


def results_in(request: ModelRequest) -> list[ToolResultBlock]:
    return [block for message in request.messages for block in message.content if isinstance(block, ToolResultBlock)]


def hash_in(text: str) -> str:
    return text.partition("the log keeps all of it as payload ")[2][:64]


async def test_case_j14_a_model_sees_beginning_and_end_and_the_log_keeps_all(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.db"
    seen: list[str] = []

    def look(request: ModelRequest) -> str:
        seen.extend(result.text for result in results_in(request))
        return "done"

    async with session_in(runtime_of(path, [use("log_file"), use("rows")], look, tools=LIMITED)) as (_, session):
        assert (await session.send("read")).text == "done"
        text, table = seen
        assert text.startswith("00000 ein Wort: größer\n00001")
        assert text.endswith("09999 ein Wort: größer\n")
        assert len(text.encode()) < 3_200
        assert f"of {len(LINES.encode()):,} bytes are left out here" in text
        assert table.startswith('[{"row":0},{"row":1}')
        assert (await session.payload(hash_in(text))).decode() == LINES
        assert (await session.payload(PayloadHash(hash_in(table)))).endswith(b'{"row":999}]')
    async with session_in(runtime_of(path, look, tools=LIMITED)) as (runtime, session):
        assert (await session.send("again")).text == "done"
        assert seen[2:] == seen[:2]  # The very same request as before.
        assert (await session.payload(hash_in(seen[0]))).decode() == LINES
        assert (await check_log(runtime.store)).sound


def test_show_says_what_was_cut_and_writes_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "events.db"

    async def run() -> str:
        async with session_in(runtime_of(path, use("log_file"), say("done"), tools=LIMITED)) as (_, session):
            await session.send("read")
            (result,) = await results_of(session)
            return hash_in(result.text)

    name = asyncio.run(run())
    shown = CliRunner().invoke(app, ["show", str(path), "s"])
    assert name in shown.stdout.replace("\n", "").replace(" ", "")
    whole = CliRunner().invoke(app, ["show", str(path), "s", "--payload", name])
    assert whole.exit_code == 0
    assert whole.stdout_bytes.decode() == LINES
    for wrong in ("0" * 64, "short", name.upper()):
        refused = CliRunner().invoke(app, ["show", str(path), "s", "--payload", wrong])
        assert refused.exit_code == 2
        assert "payload" in refused.stderr


async def test_what_another_session_has_is_not_shown() -> None:
    async with runtime_of(InMemoryStore(), use("log_file"), say("done"), say("hi"), tools=LIMITED) as runtime:
        alice, bob = await runtime.session("alice"), await runtime.session("bob")
        await alice.send("read")
        await bob.send("hello")
        (result,) = await results_of(alice)
        assert (await alice.payload(hash_in(result.text))).decode() == LINES
        with pytest.raises(ConfigError, match="nothing in session/bob"):
            await bob.payload(hash_in(result.text))
        with pytest.raises(ConfigError, match="no hash"):
            await bob.payload("../etc/passwd")


async def test_an_image_is_shown_whole_or_refused(tmp_path: Path) -> None:
    async def picture(size: int) -> ImageBlock:
        """Return a picture."""
        return ImageBlock(media_type="image/png", data=b"x" * size)

    tools = [tool(picture), tool(name="whole", result_limit=None)(picture)]
    size = 6 * 1024 * 1024
    script = [use("picture", {"size": 100_000}), use("picture", {"size": size}), use("whole", {"size": size})]
    seen: list[ToolResultBlock] = []

    def look(request: ModelRequest) -> str:
        seen.extend(results_in(request))
        return "done"

    async with session_in(runtime_of(tmp_path / "events.db", script, look, tools=tools)) as (_, session):
        await session.send("look")
        small, refused, whole = seen
        assert small.content == (ImageBlock(media_type="image/png", data=b"x" * 100_000),)
        assert refused.kind == "permanent"
        assert "is an image of 6,291,456 bytes; 5,242,880 are accepted" in refused.text
        assert whole.content == (ImageBlock(media_type="image/png", data=b"x" * size),)
        stored = [
            block for event in [e async for e in session.events()] for block in getattr(event.event, "content", ())
        ]
        image = next(block for block in stored if getattr(block, "holds", "") == "image")
        assert await session.payload(image.hash) == b"x" * 100_000


async def test_what_ends_a_run_is_never_cut() -> None:
    @tool(result_limit=10)
    async def finish(context: ToolContext[None]) -> str:
        return context.finish(LINES)

    async with runtime_of(InMemoryStore(), use("finish"), tools=[finish]) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == LINES


def test_an_export_of_one_session_carries_the_whole_of_what_was_cut(tmp_path: Path) -> None:
    log, lines, copy = (str(tmp_path / name) for name in ("events.db", "lines.jsonl", "copy.db"))

    async def run() -> None:
        async with runtime_of(log, use("rows"), say("done"), tools=LIMITED) as runtime:
            await (await runtime.session("s")).send("read")

    async def large_payloads() -> list[bytes]:
        async with await SQLiteStore.open(copy, read_only=True) as store:
            large = [listed.hash for listed in await store.list_payloads(limit=100) if listed.size > 10_000]
            return list((await store.read_payloads(large)).values())

    asyncio.run(run())
    for command in (["export", log, "--session", "s", "--output", lines], ["import", lines, copy]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.stderr
    (whole,) = asyncio.run(large_payloads())
    assert whole.startswith(b'{"type":"text","text":"[{')


@pytest.mark.parametrize("limit", [-1, True, 1.5, "10", 200_000])
def test_a_limit_that_cannot_be_is_refused(limit: Any) -> None:
    async def read() -> str:
        """Read."""
        return ""

    async def handle(arguments: dict[str, object]) -> str:
        return ""

    schema: dict[str, object] = {"type": "object", "properties": {}}
    with pytest.raises(ConfigError, match="result_limit of the tool 'read' must be 0 to 131,072 bytes, or None"):
        tool(result_limit=limit)(read)
    with pytest.raises(ConfigError, match="result_limit of the tool 'handle'"):
        Tool.from_schema(name="handle", description="", input_schema=schema, handler=handle, result_limit=limit)
