"""What Refold logs: under loggers of its own, no secrets, and at INFO nothing that comes with each message."""

import logging
import re
from pathlib import Path

import pytest

import refold
from refold.events.model.messages import ModelRequest
from refold.providers import AnthropicProvider, FallbackProvider
from refold.providers.scripted import ScriptedAnswer
from refold.stores.clean_log import LOGGERS
from tests.providers.anthropic_messages import message
from tests.providers.loopback import Loopback, json_answer

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-ant-api03-Zm9yIHRlc3RzIG9ubHk"


@refold.tool(tier="observe", effect="pure")
async def look(ctx: refold.ToolContext[None]) -> str:
    ctx.progress("half way")
    return "nothing"


@refold.tool
def pay() -> str:
    raise refold.ToolError("no money")


async def test_a_key_is_in_no_record_of_any_logger_at_any_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    script = [
        json_answer(message(call, stop_reason="tool_use").to_dict(mode="json")),
        json_answer(message({"type": "text", "text": f"Is it {KEY}?"}).to_dict(mode="json")),
        json_answer(
            {"type": "error", "error": {"type": "authentication_error", "message": f"invalid x-api-key: {KEY}"}},
            status=401,
            headers={"x-seen": KEY},
        ),
    ]
    log = tmp_path / "events.db"
    async with Loopback(script) as server:
        provider = AnthropicProvider(api_key=KEY, base_url=server.url)
        async with refold.AgentRuntime(
            refold.AgentConfig(model="m"), provider=provider, tools=[look], log=log
        ) as runtime:
            session = await runtime.session("alice")
            assert (await session.send("Go")).outcome == refold.Completed()
            assert isinstance((await session.send("Go")).outcome, refold.Failed)
            await runtime.metrics.snapshot()
        await provider.aclose()
        assert len(server.requests) == 3
        assert all(request.headers["x-api-key"] == KEY for request in server.requests)
    assert {"httpx", "refold.session"} <= {record.name for record in caplog.records}, "DEBUG is on"
    formatter = logging.Formatter("%(message)s")
    for record in caplog.records:
        assert KEY not in f"{formatter.format(record)} {record.args!r} {record.msg!r} {vars(record)!r}"
    assert KEY.encode() not in log.read_bytes()


def model(request: ModelRequest) -> ScriptedAnswer:
    """Call both tools after an input, and answer after their results."""
    return [refold.use("look", {}), refold.use("pay", {})] if request.messages[-1].text == "Go" else refold.say("Done.")


async def records_of(turns: int, log: Path, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what is logged at INFO or above while a runtime opens, takes turns, cancels one, and closes."""
    caplog.clear()
    provider = refold.ScriptedProvider([model] * (2 * turns + 2))
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=provider, tools=[look, pay], log=log
    ) as runtime:
        session = await runtime.session("alice")
        for _ in range(turns):
            assert (await session.send("Go")).outcome == refold.Completed()
        cancelled = refold.CancellationToken()
        cancelled.cancel()
        await session.send("Go", cancel=cancelled)
        await runtime.metrics.snapshot()
    ours = [record for record in caplog.records if record.name.startswith("refold")]
    return [record for record in ours if " can damage a file" not in record.getMessage()]  # Some versions of SQLite.


async def test_turns_of_every_kind_log_nothing_at_info(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    records = await records_of(3, tmp_path / "events.db", caplog)
    assert [record.getMessage() for record in records] == []
    caplog.set_level(logging.DEBUG, logger="refold")
    records = await records_of(3, tmp_path / "other.db", caplog)
    assert [record.name for record in records if "half way" in record.getMessage()] == ["refold.session"] * 3


def test_every_component_logs_under_a_child_of_refold() -> None:
    named = {
        name
        for folder in ("events", "stores", "actors", "runtime", "scenarios")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text(encoding="utf-8"))
    }
    outside = {name for name in named if not re.fullmatch(r'"refold\.[a-z_]+"', name)}
    assert outside == {"_name"}, "those that get the filter"
    assert {name.strip('"') for name in named - outside} <= set(LOGGERS), "each has the filter that keeps secrets out"
    table = re.findall(r"^\| `(refold\.\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.M)
    assert {f'"{name}"' for name in table} == named - outside, "the documents name each"


class Mute(ConnectionError):
    """An error of a user's own that cannot show itself."""

    def __repr__(self) -> str:
        raise NotImplementedError

    __str__ = __repr__


async def test_what_cannot_show_itself_costs_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @refold.tool(tier="observe", effect="pure")
    async def report(ctx: refold.ToolContext[None]) -> str:
        ctx.progress(Mute())
        return "reported"

    caplog.set_level(logging.DEBUG, logger="refold")
    first, second = refold.ScriptedProvider([Mute()] * 2), refold.ScriptedProvider([refold.use("report"), "Done."])
    provider = FallbackProvider([first, second])
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, tools=[report]) as runtime:
        assert (await (await runtime.session("s")).send("go")).output == "Done."
    lines = [record.getMessage() for record in caplog.records]
    assert "provider 1 of 2 failed, the next is asked: (its text cannot be had: NotImplementedError)" in lines
    assert "session s: call_6_0 reports Mute, whose __repr__ raises NotImplementedError" in lines
