"""Named stages through which a text goes: E6."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from, text

from refold import ConfigError, PipelineError
from refold.resilience import Pipeline

STAGES: dict[str, Any] = {"strip": str.strip, "upper": str.upper, "double": lambda given: given * 2}


def giving(value: Any) -> Callable[[str], Any]:
    return lambda given: value


async def shout(given: str) -> str:
    await asyncio.sleep(0)
    return given + "!"


async def test_e6_stages_run_in_order_sync_or_async() -> None:
    pipeline = Pipeline([("strip", str.strip), ("shout", shout), ("upper", str.upper)])
    assert pipeline.names == ("strip", "shout", "upper")
    assert repr(pipeline) == "<Pipeline strip → shout → upper>"
    assert await pipeline.run("  hello ") == "HELLO!"
    assert await Pipeline([]).run(" as it is ") == " as it is "


@given(text(), lists(sampled_from(sorted(STAGES)), unique=True))
def test_e6_the_result_is_that_of_the_stages_one_after_another(given: str, names: list[str]) -> None:
    pipeline = Pipeline([(name, STAGES[name]) for name in names])
    expected = given
    for name in names:
        expected = STAGES[name](expected)
    assert pipeline.run_sync(given) == expected == asyncio.run(pipeline.run(given))


async def test_e6_a_stage_that_fails_is_named_and_those_behind_it_do_not_run() -> None:
    seen: list[str] = []

    def note(given: str) -> str:
        seen.append(given)
        return given

    def fail(given: str) -> str:
        raise ValueError("no verb")

    pipeline = Pipeline([("note", note), ("parse", fail), ("never", note)])
    with pytest.raises(PipelineError, match="the stage 'parse' of the pipeline failed: ValueError: no verb") as raised:
        await pipeline.run("x")
    assert raised.value.stage == "parse"
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(PipelineError, match="the stage 'parse' of the pipeline failed: ValueError: no verb"):
        pipeline.run_sync("x")
    assert seen == ["x", "x"]


async def test_e6_what_is_no_text_is_refused_and_the_stage_named() -> None:
    bad: Any
    for bad in (None, 7, b"bytes", ["x"]):
        pipeline = Pipeline([("odd", giving(bad))])
        with pytest.raises(PipelineError, match=f"'odd' of the pipeline must give text, and gave {type(bad).__name__}"):
            await pipeline.run("x")
        with pytest.raises(PipelineError, match="must give text"):
            pipeline.run_sync("x")


def test_e6_an_async_stage_needs_a_loop() -> None:
    with pytest.raises(PipelineError, match="the stage 'shout' of the pipeline is async"):
        Pipeline([("shout", shout)]).run_sync("x")


async def test_e6_a_cancellation_is_no_failure_of_a_stage() -> None:
    async def wait(given: str) -> str:
        await asyncio.Event().wait()
        return given

    running = asyncio.create_task(Pipeline([("wait", wait)]).run("x"))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_e6_what_cannot_work_is_refused() -> None:
    bad: Any
    for bad, says in (
        ([("a", str.strip), ("a", str.strip)], "two stages of the pipeline are named 'a'"),
        ([("", str.strip)], "stage name"),
        ([("a", "strip")], "is a function"),
    ):
        with pytest.raises(ConfigError, match=says):
            Pipeline(bad)
