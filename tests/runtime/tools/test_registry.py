"""The tools of a runtime by name: their order, what is refused, and what a model is told."""

import os
import subprocess
import sys
import threading

import pytest

from refold.actors.thread_pool import ThreadPool
from refold.events.core.errors import ConfigError, ToolError
from refold.events.session.events import Verdict
from refold.tools.registry import ToolRegistry
from refold.tools.tool import Tool, tool
from tests.runtime.tools.tool_calls import context


@tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    """Forecast."""
    return f"{city}: sunny"


@tool(tier="confirm")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


def note(text: str) -> str:
    """Notes."""
    return text


def named(name: str) -> Tool[..., object]:
    return tool(name=name)(note)


def test_descriptions_are_a_column_of_texts_in_name_order() -> None:
    registry = ToolRegistry([weather, pay, note])
    assert registry.descriptions == ["Notes.", "Pays.", "Forecast."]
    assert registry.descriptions.longest == "Forecast."
    registry.remove("weather")
    assert registry.descriptions.total_bytes == len("Notes.Pays.")
    assert ToolRegistry().descriptions.longest is None


def test_tools_and_plain_functions_are_listed_in_name_order() -> None:
    registry = ToolRegistry([weather, pay, note])
    assert registry.names() == ("note", "pay", "weather")
    assert [item.name for item in registry] == ["note", "pay", "weather"]
    assert [spec.name for spec in registry.specs()] == ["note", "pay", "weather"]
    assert len(registry) == 3
    assert repr(registry) == "<ToolRegistry note, pay, weather>"


def test_tools_are_found_by_name_by_part_of_a_name_and_by_tier() -> None:
    registry = ToolRegistry([weather, pay, note, named("weather-maps"), named("Weather_Old")])
    assert "weather" in registry
    assert weather in registry
    assert "sun" not in registry
    assert tool(name="weather")(note) not in registry
    assert registry.get("pay") is pay
    assert registry.get("sun") is None
    assert registry.spec("pay") is pay.spec
    assert registry.spec("sun") is None
    assert registry.names_containing("weather") == ("Weather_Old", "weather", "weather-maps")
    assert registry.names_containing("") == registry.names()
    assert registry.by_tier("observe") == (weather,)
    assert [item.name for item in registry.by_tier("act")] == ["Weather_Old", "note", "weather-maps"]
    with pytest.raises(ConfigError, match="no tier 'all'"):
        registry.by_tier("all")  # type: ignore[arg-type]


def test_a_second_tool_of_one_name_is_refused_and_both_are_named() -> None:
    registry = ToolRegistry([weather])
    with pytest.raises(ConfigError) as refusal:
        registry.register(named("weather"))
    assert weather.origin in str(refusal.value)
    assert f"{note.__module__}.note" in str(refusal.value)
    assert registry.get("weather") is weather
    with pytest.raises(ConfigError, match="two tools named 'note'"):
        ToolRegistry([note, note])


def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(ConfigError, match="not of str"):
        ToolRegistry(["weather"])  # type: ignore[list-item]


def test_a_removed_tool_is_gone_and_its_name_is_free() -> None:
    registry = ToolRegistry([weather, pay])
    assert registry.remove("weather") is weather
    assert registry.names() == ("pay",)
    with pytest.raises(ConfigError, match="no tool 'weather' to remove"):
        registry.remove("weather")
    new = registry.register(named("weather"))
    assert registry.get("weather") is new


def test_tools_may_come_and_go_while_somebody_iterates() -> None:
    registry = ToolRegistry([weather, pay])
    for item in registry:
        registry.remove(item.name)
        registry.register(named(f"{item.name}-2"))
    assert registry.names() == ("pay-2", "weather-2")


def test_five_hundred_tools_are_registered_in_any_order_and_listed_by_name() -> None:
    names = [f"tool_{number:03}" for number in range(500)]
    registry = ToolRegistry(map(named, reversed(names)))
    assert registry.names() == tuple(names)
    assert len(registry.specs()) == 500
    reason = registry.check("something else", {})[1].reason
    assert "tool_000, tool_001" in reason
    assert reason.endswith("and 480 more.")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("wether", "There is no tool 'wether'; did you mean weather?"),
        ("WEATHER", "There is no tool 'WEATHER'; did you mean weather?"),
        ("functions.weather", "There is no tool 'functions.weather'; did you mean weather?"),
        ("zzz", "There is no tool 'zzz'; there are pay, weather."),
        ("", "There is no tool ''; there are pay, weather."),
        ("天気", "There is no tool '天気'; there are pay, weather."),
    ],
)
def test_a_tool_that_does_not_exist_is_answered_with_names_that_do(asked: str, told: str) -> None:
    arguments: dict[str, object] = {"city": "Lisbon"}
    assert ToolRegistry([weather, pay]).check(asked, arguments) == (
        arguments,
        Verdict(verdict="not_found", reason=told),
    )


def test_without_any_tool_a_model_is_told_so() -> None:
    assert ToolRegistry().check("weather", {})[1].reason == "There is no tool 'weather'; there are no tools."


async def test_checking_and_running_go_to_the_tool_in_the_given_pool_or_one_of_its_own() -> None:
    @tool
    def thread() -> str:
        return threading.current_thread().name

    pool = ThreadPool(1, name="given")
    registry = ToolRegistry([weather, thread], pool=pool)
    assert registry.check("weather", {"city": 5})[1].verdict == "invalid_arguments"
    assert await registry.run("weather", {"city": "Lisbon"}, context()) == "Lisbon: sunny"
    assert str(await registry.run("thread", {}, context())).startswith("given")
    pool.close()
    assert await ToolRegistry([weather, thread]).run("thread", {}, context()) != ""


async def test_running_a_tool_that_was_removed_is_a_tools_error() -> None:
    with pytest.raises(ToolError, match="There is no tool 'wether'; did you mean weather"):
        await ToolRegistry([weather]).run("wether", {}, context())


SPECS_OF_A_REGISTRY = """
import enum, msgspec, sys
from typing import Literal
from refold.tools.registry import ToolRegistry
from refold.tools.tool import tool
class Color(enum.Enum):
    RED = "r"; BLUE = "b"; GREEN = "g"
class Shape(msgspec.Struct):
    kind: Literal["circle", "square", "line"]
    colors: frozenset[Color] = frozenset(Color)
class Other(msgspec.Struct):
    shapes: list[Shape] | None = None
def draw(shape: Shape, other: Other | None = None, tags: frozenset[str] = frozenset({"a", "b", "c"})) -> None: ...
tools = [tool(name=name)(draw) for name in {"one", "two", "three", "four", "five"}]
sys.stdout.buffer.write(msgspec.json.encode(ToolRegistry(tools).specs()))
"""


@pytest.mark.slow
def test_case_b11_every_process_lists_the_same_tools_in_the_same_bytes() -> None:
    listed = {
        subprocess.run(
            [sys.executable, "-P", "-c", SPECS_OF_A_REGISTRY],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    assert len(listed) == 1
    only = listed.pop()
    assert b'"default":["a","b","c"]' in only
    assert b'"default":["b","g","r"]' in only
