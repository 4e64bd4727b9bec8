"""Tools that a JSON schema describes, as those of other systems are."""

from collections.abc import Iterator
from typing import Any, assert_type

import pytest

from refold.actors.calls.tool_context import ToolContext
from refold.events.core.content import Json, JsonObject
from refold.events.core.errors import ConfigError
from refold.events.session.events import Verdict
from refold.tools.tool import Tool
from tests.runtime.tools.tool_calls import context, refusal, run


def generator(arguments: JsonObject) -> Iterator[str]:
    yield str(arguments)


async def async_validator(path: str) -> None: ...


def echo(arguments: JsonObject) -> JsonObject:
    return arguments


SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
    "required": ["path"],
    "additionalProperties": False,
}


def described(**more: Any) -> Tool[..., object]:
    options: dict[str, Any] = {"name": "read", "description": "Reads.", "input_schema": SCHEMA, "handler": echo}
    return Tool.from_schema(**{**options, **more})


async def test_a_tool_described_by_a_schema_gets_its_arguments_as_one_dict() -> None:
    read = Tool.from_schema(name="read", description="Reads.", input_schema=SCHEMA, handler=echo, tier="observe")
    assert_type(read({"path": "/a"}), JsonObject)
    assert read.spec.input_schema == SCHEMA
    assert (read.spec.tier, read.spec.effect) == ("observe", "once")
    assert read({"path": "/a"}) == {"path": "/a"}
    arguments: JsonObject = {"path": "/a", "lines": [1]}
    result = await run(read, arguments)
    assert result == arguments
    assert result is not arguments


async def test_a_handler_may_be_async_and_take_the_context() -> None:
    async def handler(arguments: JsonObject, ctx: ToolContext[str]) -> Json:
        return [arguments, ctx.deps]

    assert await run(described(handler=handler), {"path": "/a"}, context("deps")) == [{"path": "/a"}, "deps"]


def test_arguments_of_a_described_tool_are_repaired_and_validated_too() -> None:
    read = described(validate=lambda path, lines: "too many" if len(lines) > 2 else None)
    assert read.check({"path": "/a", "lines": "[1, 2]"}) == ({"path": "/a", "lines": [1, 2]}, Verdict())
    assert refusal(read, {"path": "/a", "lines": "[1, 2, 3]"}).endswith(": too many")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "read file"}, "the name of the tool 'read file'"),
        ({"description": None}, "the description of the tool 'read'"),
        ({"input_schema": {"type": "string"}}, "input schema of the tool 'read'"),
        ({"handler": lambda: None}, "handler of the tool 'read' must take the arguments as one dict"),
        ({"handler": lambda a, b: None}, "handler of the tool 'read' must take the arguments as one dict"),
        ({"handler": generator}, "'read' is a generator"),
        ({"handler": "echo"}, "not of str"),
        ({"tier": "x"}, "the tier of the tool 'read'"),
        ({"validate": async_validator}, "validator of the tool 'read'"),
    ],
)
def test_a_described_tool_that_cannot_work_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        described(**options)
