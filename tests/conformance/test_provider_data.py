"""What only a provider understands of an answer is kept as it came and goes back in its place."""

from pathlib import Path

import pytest

import refold
from refold.events.core.content import Block, JsonObject

SEARCH: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Lisbon"}}
FOUND: JsonObject = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"encrypted_content": "ab" * 50}],
}
CITED: JsonObject = {"anthropic": {"citations": [{"type": "web_search_result_location", "encrypted_index": "x1"}]}}
SIGNED: JsonObject = {"openai": {"thought_signature": "s1"}}


@refold.tool(effect="pure")
def weather(city: str) -> str:
    return f"{city}: sunny"


def answer() -> refold.ModelResponse:
    return refold.ModelResponse(
        content=(
            refold.ThinkingBlock(thinking="hm", signature="sig", provider_data={"anthropic": {"more": 1}}),
            refold.ProviderBlock(provider="anthropic", data=dict(SEARCH)),
            refold.ProviderBlock(provider="anthropic", data=dict(FOUND)),
            refold.TextBlock(text="It is in Portugal.", provider_data=CITED),
            refold.ToolUse(name="weather", input={"city": "Lisbon"}, id="toolu_1", provider_data=SIGNED),
        ),
        stop_reason="tool_use",
    )


EXPECTED: tuple[Block, ...] = (
    refold.ThinkingBlock(thinking="hm", signature="sig", provider_data={"anthropic": {"more": 1}}),
    refold.ProviderBlock(provider="anthropic", data=SEARCH),
    refold.ProviderBlock(provider="anthropic", data=FOUND),
    refold.TextBlock(text="It is in Portugal.", provider_data=CITED),
)


def config() -> refold.AgentConfig:
    return refold.AgentConfig(model="scripted")


async def test_a_providers_own_blocks_and_data_go_back_to_it_unchanged_also_after_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    provider = refold.ScriptedProvider([answer(), refold.say("Sunny.")])
    async with refold.AgentRuntime(config(), provider=provider, tools=[weather], log=log) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("Weather in Lisbon?")).text == "Sunny."
    sent = provider.requests[1].messages[1].content
    assert sent[:4] == EXPECTED
    assert isinstance(sent[4], refold.ToolUseBlock)
    assert sent[4].provider_data == SIGNED
    later = refold.ScriptedProvider([refold.say("And so it stays.")])
    async with refold.AgentRuntime(config(), provider=later, tools=[weather], log=log) as runtime:
        await (await runtime.session("alice")).send("Tomorrow?")
    assert later.requests[0].messages[1].content == sent


async def test_a_large_block_of_a_provider_is_kept_as_a_payload_and_goes_back_whole() -> None:
    large: JsonObject = {"type": "web_search_tool_result", "content": "x" * 200_000}
    response = refold.ModelResponse(
        content=(refold.ProviderBlock(provider="anthropic", data=large), refold.TextBlock(text="Found.")),
        stop_reason="pause_turn",
    )
    provider = refold.ScriptedProvider([response, refold.say("Done.")])
    async with refold.AgentRuntime(config(), provider=provider) as runtime:
        session = await runtime.session("alice")
        await session.send("Search.")
        assert (await session.history())[1].content[0] == refold.ProviderBlock(provider="anthropic", data=large)
    assert provider.requests[1].messages[1].content[0] == refold.ProviderBlock(provider="anthropic", data=large)


async def test_what_a_reader_does_to_provider_data_changes_nothing() -> None:
    provider = refold.ScriptedProvider([answer(), refold.say("Sunny."), refold.say("Still.")])
    async with refold.AgentRuntime(config(), provider=provider, tools=[weather]) as runtime:
        session = await runtime.session("alice")
        await session.send("Weather in Lisbon?")
        for block in (await session.history())[1].content:
            for data in (getattr(block, "provider_data", None), getattr(block, "data", None)):
                if data is not None:
                    data.clear()
        await session.send("Again.")
    assert provider.requests[2].messages[1].content[:4] == EXPECTED


async def test_provider_data_that_is_no_json_object_is_an_answer_that_cannot_be_used() -> None:
    wrong = refold.ModelResponse(content=(refold.TextBlock(text="hm", provider_data=["no object"]),))  # type: ignore[arg-type]
    async with refold.AgentRuntime(config(), provider=refold.ScriptedProvider([wrong])) as runtime:
        result = await (await runtime.session("alice")).send("Hello")
    assert isinstance(result.outcome, refold.Failed)
    assert result.outcome.error.kind == "provider"
    assert "$.content[0].provider_data is of type list" in result.outcome.error.message


async def test_an_imported_history_may_hold_a_providers_blocks() -> None:
    provider = refold.ScriptedProvider([refold.say("I know.")])
    history = [refold.Message("user", (refold.TextBlock(text="Search."),)), refold.Message("assistant", EXPECTED)]
    async with refold.AgentRuntime(config(), provider=provider) as runtime:
        session = await runtime.session("alice")
        await session.import_history(history)
        await session.send("And?")
        block = refold.ProviderBlock(provider="anthropic", data={"bad": object()})
        with pytest.raises(refold.CommandRejected, match=r"messages\[0\].content\[0\].data"):
            await session.import_history([refold.Message("assistant", (block,))])
    assert tuple(provider.requests[0].messages[1].content) == EXPECTED
