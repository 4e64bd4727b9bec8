"""What only a provider understands of an answer is kept as it came and goes back in its place."""

from copy import deepcopy
from typing import Any

import refold
from refold.events.core.content import Block, JsonObject
from tests.conformance.cases import Case, Fails, Play, as_tests
from tests.conformance.steps import bring, check, does, refused, restart, send

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


EXPECTED: tuple[refold.ThinkingBlock | refold.ProviderBlock | refold.TextBlock, ...] = (
    refold.ThinkingBlock(thinking="hm", signature="sig", provider_data={"anthropic": {"more": 1}}),
    refold.ProviderBlock(provider="anthropic", data=SEARCH),
    refold.ProviderBlock(provider="anthropic", data=FOUND),
    refold.TextBlock(text="It is in Portugal.", provider_data=CITED),
)
LARGE = refold.ProviderBlock(provider="anthropic", data={"type": "web_search_tool_result", "content": "x" * 200_000})


def answers(play: Play) -> list[refold.ModelResponse]:
    call = refold.ToolUse(name="weather", input={"city": "Lisbon"}, id="toolu_1", provider_data=SIGNED)
    first = refold.ModelResponse(content=(*deepcopy(EXPECTED), call), stop_reason="tool_use")
    return [first, refold.say("Sunny."), refold.say("Still.")]


def shown(place: int, *expected: Block) -> Any:
    """Check with which blocks the first answer goes back in a request."""
    return check(lambda play: play.requests[place].messages[1].content[: len(expected)], expected)


async def scribble(play: Play) -> None:
    for block in (await play.session.history())[1].content:
        for data in (getattr(block, "provider_data", None), getattr(block, "data", None)):
            if data is not None:
                data.clear()


async def kept_whole(play: Play) -> bool:
    return (await play.session.history())[1].content[0] == LARGE


BAD = refold.ProviderBlock(provider="anthropic", data={"bad": object()})
ASKED = refold.Message("user", (refold.TextBlock(text="Search."),))

CASES = {
    "a provider's own blocks and data go back to it unchanged, also after a restart": Case(
        answers,
        [
            [send("Weather?", "Sunny."), shown(1, *EXPECTED), restart(), send("Tomorrow?", "Still.")],
            check(lambda play: play.requests[1].messages[1].content[4].provider_data, SIGNED),  # type: ignore[union-attr]
            check(lambda play: play.requests[2].messages[1] == play.requests[1].messages[1]),
        ],
        tools=[weather],
    ),
    "what a reader does to provider data changes nothing": Case(
        answers,
        [send("Weather?", "Sunny."), does(scribble), send("Again.", "Still."), shown(2, *EXPECTED)],
        tools=[weather],
    ),
    "a large block of a provider is kept as a payload and goes back whole": Case(
        [refold.ModelResponse(content=(LARGE, refold.TextBlock(text="Found.")), stop_reason="pause_turn"), "Done."],
        [send("Search.", "Done."), check(kept_whole), shown(1, LARGE)],
    ),
    "provider data that is no JSON object is an answer that cannot be used": Case(
        [refold.ModelResponse(content=(refold.TextBlock(text="hm", provider_data=["no object"]),))],  # type: ignore[arg-type]
        [send("Hello", Fails("provider", "$.content[0].provider_data is of type list"))],
    ),
    "an imported history may hold a provider's blocks": Case(
        ["I know."],
        [
            [bring(ASKED, refold.Message("assistant", EXPECTED)), send("And?", "I know."), shown(0, *EXPECTED)],
            refused(r"messages\[0\].content\[0\].data", bring(refold.Message("assistant", (BAD,)))),
        ],
    ),
}

test_provider_data, test_provider_data_with_a_crash_after_each_commit = as_tests(CASES)
