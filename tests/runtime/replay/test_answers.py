"""An answer of today beside the recorded one, and what models may cost that are asked for it."""

from collections.abc import AsyncIterator

import pytest

from refold import ModelRequest, ModelResponse, Price, TreeBudget
from refold.actors.calls.protocols import StreamItem
from refold.events.core.content import AnswerContent, ImageBlock, Message, TextBlock, ThinkingBlock, ToolUseBlock
from refold.events.core.errors import ConfigError
from refold.events.core.ids import ToolCallId
from refold.events.model.messages import StopReason, Usage, UsageDelta
from refold.replay.answers.asked import BudgetSpent, PaidProvider, Spending, answer_differences

SAID = TextBlock(text="Let me look.")
PICTURE = ImageBlock(media_type="image/png", data=b"aaaa")
REQUEST = ModelRequest(model="m-1", system_prompt="", messages=[Message("user", (TextBlock(text="Hi"),))])
PRICES = {"m": Price(input=1_000_000, output=0)}
"""A unit of money for each token."""


def use(name: str = "search", number: int = 0, malformed: str | None = None, **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(f"call_{number}"), name=name, input=arguments, malformed_input=malformed)


@pytest.mark.parametrize(
    ("then", "now", "kinds", "told"),
    [
        ([SAID, use(q="tea")], [SAID, use(number=7, q="tea")], [], ""),
        ([use(), use("buy")], [use("buy"), use()], ["calls"], 'model.calls: ["search","buy"] -> ["buy","search"]'),
        ([SAID], [use()], ["calls", "text"], 'model.calls: [] -> ["search"]'),
        ([use(q="tea", n=1)], [use(q="coffee")], ["arguments"] * 2, 'model.arguments.search.q: "tea" -> "coffee"'),
        ([use(q=1)], [use(malformed='{"q":')], ["arguments"], 'model.arguments.search: {"q":1} -> "{\\"q\\":"'),
        ([SAID], [TextBlock(text="Look.")], ["text"], 'model.text: "Let me look." -> "Look."'),
        ([SAID], [SAID, PICTURE], ["text"], "model.text.images[0]: (nothing) -> "),
        ([ThinkingBlock(thinking="Hm"), SAID], [TextBlock(text="Let me look.\n")], [], ""),
        ([], [], [], ""),
    ],
)
def test_answers_are_compared_by_kind(
    then: list[AnswerContent], now: list[AnswerContent], kinds: list[str], told: str
) -> None:
    found = list(answer_differences(tuple(then), tuple(now), ("end_turn", "end_turn")))
    assert [each.path.split(".")[1] for each in found] == kinds
    assert str(found[0]).startswith(told) if found else not told


def test_why_the_model_stopped_counts_before_what_it_said() -> None:
    cut: tuple[StopReason, StopReason] = ("end_turn", "max_tokens")
    found = list(answer_differences((SAID,), (TextBlock(text="Let"),), cut))
    assert [each.path.split(".")[1] for each in found] == ["end", "text"]


class Counting:
    """Answers in three pieces; each answer takes two tokens."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(content=(SAID,), usage=Usage(input_tokens=2), model="m-other")

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        yield UsageDelta(Usage(input_tokens=1))
        yield UsageDelta(Usage(input_tokens=2))
        yield await self.complete(request)


async def ask(provider: PaidProvider, *, pieces: int | None) -> None:
    if pieces is None:
        await provider.complete(REQUEST)
        return
    stream = provider.stream(REQUEST)
    for _ in range(pieces):
        await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("budget", [TreeBudget(turns=2), TreeBudget(cost=3.5), TreeBudget(tokens=3)])
@pytest.mark.parametrize("pieces", [None, 3, 2])
async def test_no_call_begins_once_the_budget_is_spent(budget: TreeBudget, pieces: int | None) -> None:
    spending = Spending(budget)
    paid = PaidProvider(Counting(), spending, PRICES)
    for _ in range(2):
        await ask(paid, pieces=pieces)
    with pytest.raises(BudgetSpent, match=r"budget of .* is spent"):
        await ask(paid, pieces=pieces)
    assert (spending.calls, spending.usage.input_tokens, spending.cost) == (2, 4, 4)


class Whole:
    """Cannot stream."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await Counting().complete(request)


async def test_a_limit_of_the_cost_needs_a_price_and_others_need_none() -> None:
    request = ModelRequest(model="other", system_prompt="", messages=REQUEST.messages)
    with pytest.raises(ConfigError, match="no price for 'other'"):
        await PaidProvider(Whole(), Spending(TreeBudget(cost=1)), PRICES).complete(request)
    unpriced = Spending(TreeBudget(tokens=1))
    assert [item async for item in PaidProvider(Whole(), unpriced, {}).stream(request)] == [
        await Whole().complete(request)
    ]
    assert (unpriced.calls, unpriced.cost, unpriced.overspent is None) == (1, 0, False)
