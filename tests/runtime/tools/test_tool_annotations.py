"""Tools in a module whose annotations are text."""

from __future__ import annotations

import msgspec
import pytest

from refold.actors.calls.tool_context import ToolContext
from refold.events.core.errors import ConfigError
from refold.tools.tool import Tool, tool


class Step(msgspec.Struct):
    title: str


@tool
def plan(steps: list[Step], ctx: ToolContext[str] | None = None) -> int:
    return len(steps)


def test_names_of_the_module_are_found() -> None:
    assert plan.spec.input_schema["properties"] == {"steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}}}


def test_names_that_are_local_where_the_tool_is_made_are_found() -> None:
    class Local(msgspec.Struct):
        value: int

    def make() -> Tool[[Local, dict[str, list[Local]]], int]:
        @tool
        def count(one: Local, more: dict[str, list[Local]]) -> int:
            return one.value + len(more)

        return count

    assert make().check({"one": {"value": 1}, "more": {"a": [{"value": 2}]}})[1].verdict == "allow"
    assert make()(Local(1), {}) == 1


def test_what_a_function_returns_need_not_be_known() -> None:
    def give() -> Elsewhere:  # type: ignore[name-defined]  # noqa: F821
        return 1

    assert tool(give).name == "give"


def test_a_name_that_cannot_be_found_is_refused_with_the_parameter() -> None:
    def take(it: list[Elsewhere]) -> None:  # type: ignore[name-defined]  # noqa: F821
        return None

    with pytest.raises(ConfigError, match=r"parameter 'it' of the tool 'take'.*'Elsewhere' is not defined"):
        tool(take)


def test_a_local_name_of_another_file_is_not_taken() -> None:
    annotation = "rootdir_of_pytest_or_any_local_of_another_file"

    def call_from_elsewhere(function: object) -> None:
        exec(  # a frame of another file, which has that name
            compile(f"{annotation} = int\nmake(function)", "<another file>", "exec"),
            {"make": tool, "function": function},
        )

    def take(it: object) -> None:
        return None

    take.__annotations__["it"] = annotation
    with pytest.raises(ConfigError, match="is not defined"):
        call_from_elsewhere(take)
