"""A function's signature as a schema, its arguments as Python values, and what cannot be a signature of a tool."""

import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import msgspec
import pytest

from refold.actors.calls.tool_context import ToolContext
from refold.events.core.content import Json, JsonObject
from refold.events.core.errors import ConfigError, ToolError
from refold.tools.signature import Signature


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Step(msgspec.Struct):
    title: str
    done: bool = False


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x must not be negative")


class Filter(TypedDict, total=False):
    author: str
    pages: int


class Pair(NamedTuple):
    low: float
    high: float


class Tree(msgspec.Struct):
    value: int
    children: list["Tree"] = []


def schema_for(annotation: Any) -> Json:
    """The schema of a parameter `it` of that type."""

    def function(it: object) -> None: ...

    function.__annotations__["it"] = annotation
    schema = Signature(function, tool="t").input.schema
    properties = schema["properties"]
    assert isinstance(properties, dict)
    return properties["it"]


def read_as(annotation: Any, value: Json) -> object:
    def function(it: object) -> None: ...

    function.__annotations__["it"] = annotation
    return Signature(function, tool="t").read({"it": value})["it"]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {"description": "Any JSON value."}),
        (Annotated[object, "What to keep."], {"description": "What to keep."}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["b", "a"], {"enum": ["a", "b"]}),
        (Unit, {"$ref": "#/$defs/Unit"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Optional[Step], {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Step"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (Annotated[Step, "What next."], {"$ref": "#/$defs/Step", "description": "What next."}),
        (datetime.date, {"type": "string", "format": "date"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
    ],
)
def test_every_json_type_has_its_schema(annotation: Any, schema: JsonObject) -> None:
    found = schema_for(annotation)
    assert isinstance(found, dict)
    if "anyOf" in found and "anyOf" in schema:
        assert sorted(map(str, found["anyOf"])) == sorted(map(str, schema["anyOf"]))  # type: ignore[call-overload]
    else:
        assert found == schema


@pytest.mark.parametrize(
    ("annotation", "value", "read"),
    [
        (float, 3, 3.0),
        (Unit, "f", Unit.FAHRENHEIT),
        (list[Step], [{"title": "a"}, {"title": "b", "done": True}], [Step("a"), Step("b", True)]),
        (Point, {"x": 1}, Point(1, 0)),
        (Filter, {"pages": 3}, {"pages": 3}),
        (Pair, [1, 2.5], Pair(1.0, 2.5)),
        (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(1, [Tree(2)])),
        (set[str], ["a", "a"], {"a"}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
        (datetime.timedelta, "P1D", datetime.timedelta(days=1)),
        (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
        (bytes, "aGk=", b"hi"),
        (int | None, None, None),
        (str | list[str], ["a"], ["a"]),
        (object, {"any": ["thing", None]}, {"any": ["thing", None]}),
        (str, "Zoë 🌦", "Zoë 🌦"),
    ],
)
def test_arguments_become_values_of_the_annotated_types(annotation: Any, value: Json, read: object) -> None:
    found = read_as(annotation, value)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "5", "Expected `int`, got `str` - at `$.it`"),
        (int, True, "Expected `int`, got `bool` - at `$.it`"),
        (int, 5.5, "Expected `int`, got `float` - at `$.it`"),
        (str, 5, "Expected `str`, got `int` - at `$.it`"),
        (bool, "true", "Expected `bool`, got `str` - at `$.it`"),
        (int, None, "Expected `int`, got `null` - at `$.it`"),
        (Literal["a", "b"], "c", "Invalid enum value 'c' - at `$.it`"),
        (list[Step], [{"title": "a"}, {"done": True}], "Object missing required field `title` - at `$.it[1]`"),
        (Point, {"x": -1}, "x must not be negative - at `$.it`"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "Expected `int` >= 1 - at `$.it`"),
        (datetime.date, "tomorrow", "Invalid RFC3339 encoded date - at `$.it`"),
    ],
)
def test_nothing_is_coerced_and_the_error_says_where_and_what_was_expected(
    annotation: Any, value: Json, said: str
) -> None:
    with pytest.raises(ToolError) as refusal:
        read_as(annotation, value)
    assert str(refusal.value) == said


def test_required_parameters_defaults_and_descriptions_are_in_the_schema_in_the_order_of_the_signature() -> None:
    def book(
        room: str,
        nights: int = 1,
        *,
        guests: Annotated[list[str], msgspec.Meta(description="Their names.")],
        unit: Unit = Unit.CELSIUS,
        start: datetime.date = datetime.date(2026, 1, 2),
        note: str | None = None,
    ) -> None:
        """Book a room.

        Args:
            room: Which room.
            nights: How many nights.
            guests: Overruled by the annotation.
        """

    signature = Signature(book, tool="book")
    assert signature.input.schema == {
        "type": "object",
        "properties": {
            "room": {"type": "string", "description": "Which room."},
            "nights": {"type": "integer", "description": "How many nights.", "default": 1},
            "guests": {"type": "array", "items": {"type": "string"}, "description": "Their names."},
            "unit": {"$ref": "#/$defs/Unit", "default": "c"},
            "start": {"type": "string", "format": "date", "default": "2026-01-02"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["room", "guests"],
        "additionalProperties": False,
        "$defs": {"Unit": {"title": "Unit", "enum": ["c", "f"]}},
    }
    assert list(signature.input.schema["properties"]) == list(signature.names)  # type: ignore[call-overload]


def test_a_function_without_parameters_has_an_empty_object_schema() -> None:
    def ping() -> str:
        return "pong"

    signature = Signature(ping, tool="ping")
    assert signature.input.schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert signature.read({}) == {}


def test_recursive_types_are_kept_as_definitions_that_the_schema_holds_itself() -> None:
    def plant(tree: Tree) -> None: ...

    schema = Signature(plant, tool="plant").input.schema
    assert schema["properties"] == {"tree": {"$ref": "#/$defs/Tree"}}
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    assert definitions["Tree"]["properties"]["children"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Tree"},
        "default": [],
    }


def test_a_type_of_the_users_may_be_named_like_our_own_struct() -> None:
    class Arguments(msgspec.Struct):
        value: int

    def function(it: Arguments) -> None: ...

    signature = Signature(function, tool="t")
    assert list(signature.input.schema["properties"]) == ["it"]  # type: ignore[call-overload]
    assert signature.read({"it": {"value": 1}}) == {"it": Arguments(1)}
    assert signature.input.problem({"it": {"value": "x"}}) == "Expected `integer`, got `string` - at `$.it.value`"


def test_a_default_that_a_model_could_not_give_is_used_and_not_shown() -> None:
    nothing = object()
    shared: list[int] = [1]

    def function(a: object = nothing, b: list[int] = shared, c: "int" = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    signature = Signature(function, tool="t")
    assert signature.input.schema["properties"] == {
        "a": {"description": "Any JSON value."},
        "b": {"type": "array", "items": {"type": "integer"}, "default": [1]},
        "c": {"type": "integer"},
    }
    values = signature.read({})
    assert values["a"] is nothing
    assert values["b"] is shared
    assert values["c"] is None


def test_values_share_nothing_with_the_arguments_that_are_recorded() -> None:
    def function(rows: list[object], more: object) -> None: ...

    arguments: JsonObject = {"rows": [{"a": 1}], "more": {"b": [2]}}
    read = Signature(function, tool="t").read(arguments)
    read["rows"][0]["a"] = read["more"]["b"] = "changed"  # type: ignore[index]
    assert arguments == {"rows": [{"a": 1}], "more": {"b": [2]}}


def test_all_missing_and_unknown_arguments_are_named_at_once() -> None:
    def function(a: int, b: int, c: int = 0) -> None: ...

    with pytest.raises(ToolError) as refusal:
        Signature(function, tool="t").read({"a": 1, "d": 2})
    assert str(refusal.value) == "Missing required field `b`; Unknown field `d` (there are `a`, `b`, `c`)"


@pytest.mark.parametrize(
    "annotation",
    [
        ToolContext,
        ToolContext[str],
        ToolContext | None,
        Optional[ToolContext[int]],  # noqa: UP045
        Annotated[ToolContext[str], "the context"],
    ],
)
def test_a_parameter_for_the_context_is_no_part_of_the_schema(annotation: Any) -> None:
    def function(ctx: object, city: str) -> None: ...

    function.__annotations__["ctx"] = annotation
    signature = Signature(function, tool="t")
    assert signature.context_names == ("ctx",)
    assert signature.names == ("city",)
    with pytest.raises(ToolError, match="Unknown field `ctx`"):
        signature.read({"city": "Lisbon", "ctx": {}})


def test_a_decorated_function_has_the_signature_of_what_it_wraps() -> None:
    def logged(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def wrapper(*args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

        return wrapper

    @logged
    def pay(amount: int) -> int:
        return amount

    assert Signature(pay, tool="pay").names == ("amount",)


def no_annotation(city) -> None: ...  # type: ignore[no-untyped-def]
def star(*cities: str) -> None: ...
def double_star(**cities: str) -> None: ...
def positional(city: str, /) -> None: ...
def unknown_name(city: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def broken_text(city: object) -> None: ...


broken_text.__annotations__["city"] = "list["


def a_path(city: pathlib.Path) -> None: ...
def a_function(city: Callable[[], str]) -> None: ...
def two_shapes(city: Point | Filter) -> None: ...
def nested(city: dict[str, list[complex]]) -> None: ...
def not_a_type(city: 5) -> None: ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_annotation, "parameter 'city'.*no annotation"),
        (star, r"\*cities"),
        (double_star, r"\*cities"),
        (positional, "'city'.*positional-only"),
        (unknown_name, "'city'.*'Nowhere' is not defined"),
        (broken_text, "'city'.*cannot be resolved"),
        (a_path, "'city'.*Path.*not supported"),
        (a_function, "'city'.*Callable.*not supported"),
        (two_shapes, "'city'.*more than one dict-like"),
        (nested, "'city'.*complex.*not supported"),
        (not_a_type, "'city'"),
        (getattr, "."),
        (dict.fromkeys, "."),
    ],
)
def test_what_has_no_schema_is_refused_and_the_tool_and_the_parameter_are_named(
    function: Callable[..., object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        Signature(function, tool="my_tool")
    assert "'my_tool'" in str(refusal.value)


def test_an_unbound_method_is_refused_with_the_way_out() -> None:
    class Account:
        def pay(self, amount: int) -> None: ...

    with pytest.raises(ConfigError, match=r"'self'.*tool\(instance\.method\)"):
        Signature(Account.pay, tool="pay")
