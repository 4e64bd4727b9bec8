"""What runs spend, and how a budget ends them: A17."""

from typing import Any

import pytest

from refold import Budget, ModelResponse, Price, Usage, cut, say, use
from refold.events.session.events import ToolCallFailed
from tests.conformance.cases import Case, Fails, Play, as_tests
from tests.conformance.steps import check, recorded, restart, send, turn

PRICES = {"test": Price(input=1, output=10)}
USED = Usage(input_tokens=100, output_tokens=10)
DEAR = Price(input=1_000, output=10_000)


def looks(*places: str) -> ModelResponse:
    return ModelResponse(content=tuple(use("look", {"at": at}) for at in places), stop_reason="tool_use", usage=USED)


def budget(**limits: Any) -> dict[str, Any]:
    return {"model": "test-model", "prices": PRICES, "budget": Budget(**limits) if limits else None}


def costs(play: Play) -> list[float]:
    return [result.cost for result in play.sent]


async def spent(play: Play) -> list[tuple[Usage, float]]:
    """Return what the session says that it has spent, and what its state says."""
    said, state = await play.session.spent(), await play.session.state_at()
    return [(said.usage, round(said.cost, 9)), (state.usage, round(state.cost, 9))]


CASES = {
    "A17: a run and its session know what they have cost, also after a restart": Case(
        [looks("left"), say("done", usage=USED), say("again", usage=USED)],
        [
            [send("go", "done"), send("go", "again"), check(costs, pytest.approx([0.0004, 0.0002]))],
            check(lambda play: [result.usage for result in play.sent], [USED + USED, USED]),
            *[check(spent, [(USED + USED + USED, 0.0006)] * 2), restart()] * 2,
        ],
        config=budget(),
    ),
    "A17: a turn knows what it took": Case(
        [looks("left"), say("done")],
        [turn("go"), turn(ends="done"), check(lambda play: [turn.usage for turn in play.turns], [USED, Usage()])],
        config=budget(),
    ),
    **{
        f"A17: {what}": Case(
            [ModelResponse(content=say("x").content, usage=USED, model=answered)],
            [send("go", "x"), check(costs, pytest.approx([0.2]))],
            config={"model": "test-model", "prices": prices},
        )
        for what, answered, prices in (
            ("the model that answered is the one that is paid for", "dear-1", PRICES | {"dear": DEAR}),
            (
                "a model of a name without a price costs what the one that was asked costs",
                "some-name-behind-a-gateway",
                {"test": DEAR},
            ),
        )
    },
    "A17: tokens that are spent end the run before its tools run": Case(
        [looks("left"), looks("right"), say("next run")],
        [
            send("go", Fails("budget", message="The budget of 200 tokens is spent: the run has used 220.")),
            [recorded(ToolCallFailed, "kind started", ("denied", False)), send("once more", "next run")],
        ],
        config=budget(tokens=200),
        asked=3,
        done=["saw left"],
    ),
    "A17: a final answer is kept though it spends the budget": Case(
        [say("done", usage=USED)], [send("go", "done")], config=budget(tokens=10)
    ),
    "A17: cost that is spent ends the run": Case(
        [looks("left")],
        [
            send(
                "go",
                Fails("budget", message="The budget of 0.0002 for model calls is spent: the run has cost 0.0002."),
            ),
        ],
        config=budget(cost=0.0002),
    ),
    "A17: an answer that asks for too many calls gets none of them run": Case(
        [looks("a", "b"), looks("c", "d")],
        [
            send("go", Fails("budget", message="The budget of 3 tool calls is spent: the model has asked for 4.")),
        ],
        config=budget(tool_calls=3),
        done=["saw a", "saw b"],
    ),
    "A17: what half an answer cost counts": Case(
        [cut(say("a long answer that breaks", usage=USED), after=2), say("never")],
        [
            [send("go", Fails("provider")), check(costs, pytest.approx([0.0001]))],
            check(lambda play: play.sent[0].usage.input_tokens, 100),
        ],
        config=budget(tokens=100) | {"streaming": True},
    ),
}


test_budgets, test_budgets_with_a_crash_after_each_commit = as_tests(CASES)
