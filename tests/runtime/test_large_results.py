"""Results that are too long for a model: what it sees, what the log keeps, and who can have all of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refold import (
    AgentConfig,
    AgentRuntime,
    ConfigError,
    ImageBlock,
    ModelRequest,
    ScriptedProvider,
    Tool,
    ToolContext,
    ToolResultBlock,
    say,
    tool,
    use,
)
from refold.commands.cli import app
from refold.events.core.ids import PayloadHash
from refold.inspection.check import check_log
from refold.stores import InMemoryStore, SQLiteStore

LINES = "".join(f"{number:05} ein Wort: größer\n" for number in range(10_000))


@tool(result_limit=3_000, effect="pure")
async def log_file() -> str:
    """Return a long log."""
    return LINES


@tool(result_limit=100)
def rows() -> list[dict[str, int]]:
    """Return many rows."""
    return [{"row": number} for number in range(1_000)]


def runtime_of(log: Any, *script: Any, tools: Any = (log_file, rows)) -> AgentRuntime:
    return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider(script), tools=tools, log=log)


def results_in(request: ModelRequest) -> list[ToolResultBlock]:
    return [block for message in request.messages for block in message.content if isinstance(block, ToolResultBlock)]


def hash_in(text: str) -> str:
    return text.partition("the log keeps all of it as payload ")[2][:64]


async def test_a_model_sees_beginning_and_end_and_the_log_keeps_all_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    seen: list[str] = []

    def look(request: ModelRequest) -> str:
        seen.extend(result.text for result in results_in(request))
        return "done"

    async with runtime_of(path, [use("log_file"), use("rows")], look) as runtime:
        session = await runtime.session("s")
        assert (await session.send("read")).text == "done"
        text, json = seen
        assert text.startswith("00000 ein Wort: größer\n00001")
        assert text.endswith("09999 ein Wort: größer\n")
        assert len(text.encode()) < 3_200
        assert f"of {len(LINES.encode()):,} bytes are left out here" in text
        assert json.startswith('[{"row":0},{"row":1}')
        assert (await session.payload(hash_in(text))).decode() == LINES
        assert (await session.payload(PayloadHash(hash_in(json)))).endswith(b'{"row":999}]')
    async with runtime_of(path, look) as runtime:
        session = await runtime.session("s")
        assert (await session.send("again")).text == "done"
        assert seen[2:] == seen[:2]  # The very same request as before.
        assert (await session.payload(hash_in(seen[0]))).decode() == LINES
        assert (await check_log(runtime.store)).sound


def test_show_says_what_was_cut_and_writes_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "events.db"

    async def run() -> str:
        async with runtime_of(path, use("log_file"), say("done")) as runtime:
            session = await runtime.session("s")
            await session.send("read")
            (result,) = [
                block
                for message in await session.history()
                for block in message.content
                if isinstance(block, ToolResultBlock)
            ]
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
    async with runtime_of(InMemoryStore(), use("log_file"), say("done"), say("hi")) as runtime:
        alice, bob = await runtime.session("alice"), await runtime.session("bob")
        await alice.send("read")
        await bob.send("hello")
        (result,) = [
            block
            for message in await alice.history()
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]
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

    async with runtime_of(tmp_path / "events.db", script, look, tools=tools) as runtime:
        session = await runtime.session("s")
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
        """End the run."""
        return context.finish(LINES)

    async with runtime_of(InMemoryStore(), use("finish"), tools=[finish]) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == LINES


def test_an_export_of_one_session_carries_the_whole_of_what_was_cut(tmp_path: Path) -> None:
    log, lines, copy = (str(tmp_path / name) for name in ("events.db", "lines.jsonl", "copy.db"))

    async def run() -> None:
        async with runtime_of(log, use("rows"), say("done")) as runtime:
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
