"""Models of pydantic as parameters, results and answers, alone and inside others; and results that no log can hold."""

import asyncio
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import logging
import pathlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, NoReturn, TypedDict

import msgspec
import pydantic.dataclasses
import pytest
from pydantic import BaseModel, Field, PositiveInt

import refold
from refold.tools.signature import Signature
from refold.tools.tool import Tool
from tests.runtime.talking import talking


class Address(BaseModel):
    """Where it goes."""

    street: str = Field(description="With its number.", min_length=3)
    zip: int = Field(gt=0)


class Order(BaseModel):
    address: Address
    day: datetime.date | None = None


class Node(BaseModel):
    value: int
    below: list["Node"] = []


class Named(BaseModel):
    kept: int = Field(alias="keptAs")


@pydantic.dataclasses.dataclass
class Point:
    x: PositiveInt


class Parcel(msgspec.Struct):
    to: Address
    also: Order | None = None


class Card(TypedDict):
    address: Address


@dataclasses.dataclass
class Route:
    stops: dict[str, Address]


SOHO = {"street": "Dean Street", "zip": 1}
AT_SOHO = Address(street="Dean Street", zip=1)
NOWHERE = {"street": "Dean Street", "zip": -1}
POSITIVE = "Input should be greater than 0"

TYPES: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "a model": (Address, SOHO, AT_SOHO, NOWHERE, f"{POSITIVE} - at `$.it.zip`"),
    "a model in a model": (
        *(Order, {"address": SOHO, "day": "2026-01-02"}),
        *(Order(address=AT_SOHO, day=datetime.date(2026, 1, 2)), {"address": NOWHERE}),
        f"{POSITIVE} - at `$.it.address.zip`",
    ),
    "a list of models": (list[Address], [SOHO], [AT_SOHO], [SOHO, NOWHERE], f"{POSITIVE} - at `$.it[1].zip`"),
    "one of two models": (
        *(Order | Address, SOHO, AT_SOHO, {"zip": 1}),
        "Field required - at `$.it.Order.address`; Field required - at `$.it.Address.street`",
    ),
    "a model that holds itself": (
        *(Node, {"value": 1, "below": [{"value": 2}]}, Node(value=1, below=[Node(value=2)])),
        *({"value": 1, "below": [{}]}, "Field required - at `$.it.below[0].value`"),
    ),
    "another name": (Named, {"keptAs": 1}, Named(keptAs=1), {"kept": 1}, "Field required - at `$.it.keptAs`"),
    "a dataclass of pydantic's": (Point, {"x": 1}, Point(1), {"x": 0}, f"{POSITIVE} - at `$.it.x`"),
    "a number with bounds": (PositiveInt, 1, 1, 0, f"{POSITIVE} - at `$.it`"),
    "a field of a parameter": (Annotated[int, Field(gt=0)], 1, 1, 0, f"{POSITIVE} - at `$.it`"),
    "a model in a Struct": (
        *(Parcel, {"to": SOHO}, Parcel(to=AT_SOHO), {"to": NOWHERE}),
        f"{POSITIVE} (zip) - at `$.it.to`",
    ),
    "a model in a dictionary": (Card, {"address": SOHO}, {"address": AT_SOHO}, {"address": NOWHERE}, POSITIVE),
    "a model in a dataclass": (
        *(Route, {"stops": {"a": SOHO}}, Route({"a": AT_SOHO}), {"stops": {"a": NOWHERE}}),
        f"{POSITIVE} - at `$.it.stops.a.zip`",
    ),
}


def taking(annotation: Any) -> Tool[..., Any]:
    def echo(it: Any) -> Any:
        return it

    echo.__annotations__ = {"it": annotation, "return": annotation}
    return refold.tool(echo)


@pytest.mark.parametrize(("annotation", "given", "value", "wrong", "why"), TYPES.values(), ids=TYPES)
async def test_a_type_with_a_part_of_pydantics_is_parameter_result_and_answer(
    annotation: Any, given: Any, value: Any, wrong: Any, why: str
) -> None:
    answers = [refold.use("echo", {"it": wrong}), refold.use("echo", {"it": given})]
    texts = [msgspec.json.encode(item).decode() for item in (wrong, given)]
    async with talking(*answers, *map(refold.say, texts), tools=[taking(annotation)], output_type=annotation) as (
        session,
        _,
    ):
        result = await session.send("Go")
        refused, echoed = [
            (block.kind, block.content[0].text)
            for message in await session.history()
            for block in message.content
            if isinstance(block, refold.ToolResultBlock)
            if isinstance(block.content[0], refold.TextBlock)
        ]
        asked_again = (await session.history())[-2].text
    assert refused[0] == "invalid_arguments"
    assert why in refused[1]
    assert why.replace("$.it", "$").partition(" - at ")[0] in asked_again
    assert "pydantic.dev" not in refused[1] + asked_again
    assert echoed[0] is None
    read = Signature(taking(annotation).function, tool="echo").read
    assert read({"it": given}) == read({"it": msgspec.json.decode(echoed[1])}) == {"it": value}
    assert result.output == value


def test_a_schema_holds_all_that_it_refers_to_and_names_are_kept_apart() -> None:
    class Other:
        class Address(BaseModel):
            """Of a computer."""

            host: str

    @refold.tool
    def send(first: list[Address], second: list[Other.Address], parcel: Parcel | None = None) -> None: ...

    schema = send.spec.input_schema
    definitions: Any = schema["$defs"]
    assert {name: part.get("description") for name, part in definitions.items()} == {
        "Address": "Where it goes.",
        "Address_": "Of a computer.",
        "Parcel": None,
    }
    properties: Any = schema["properties"]
    assert [properties[name]["items"] for name in ("first", "second")] == [
        {"$ref": "#/$defs/Address"},
        {"$ref": "#/$defs/Address_"},
    ]
    assert definitions["Address"]["properties"]["street"] == {
        "description": "With its number.",
        "minLength": 3,
        "type": "string",
    }
    assert properties["parcel"]["default"] is None


def test_a_model_is_the_default_of_a_parameter() -> None:
    @refold.tool
    def send(to: Address = AT_SOHO) -> None: ...

    properties: Any = send.spec.input_schema["properties"]
    assert properties["to"]["default"] == SOHO
    assert Signature(send.function, tool="send").read({}) == {"to": AT_SOHO}


GOOD: list[Any] = [
    *(None, str, int, bytes, object, Any, NoReturn, Literal["a"], enum.Enum, uuid.UUID, decimal.Decimal, "Missing"),
    *(list[str], dict[str, Any], Mapping[str, int], tuple[int, ...], set[str], Sequence[int], Iterable[str]),
    *(int | None, Annotated[str, "words"], NewType("Name", str), Awaitable[str]),
    *(Order, list[Node], Parcel, Card, Point, Route, datetime.datetime, refold.ImageBlock),
    list[refold.TextBlock | refold.ImageBlock],
]
BAD: list[Any] = [
    *(pathlib.Path, complex, type[int], ValueError, logging.Logger, asyncio.Lock, Iterator[str], Callable[[], int]),
    *(list[pathlib.Path], dict[str, complex], dict[int, str], complex | None, tuple[int, complex]),
    *(collections.abc.AsyncIterator[str], msgspec.defstruct("Holds", [("path", pathlib.Path)])),
    dataclasses.make_dataclass("Keeps", [("path", pathlib.Path)]),
]


@pytest.mark.parametrize("annotation", GOOD, ids=repr)
def test_a_result_that_may_be_recorded_makes_a_tool(annotation: Any) -> None:
    def echo() -> None: ...

    echo.__annotations__ = {"return": annotation}
    assert refold.tool(echo).name == "echo"


@pytest.mark.parametrize("annotation", BAD, ids=repr)
def test_a_result_that_cannot_be_recorded_is_refused_when_the_tool_is_made(annotation: Any) -> None:
    def echo() -> None: ...

    echo.__annotations__ = {"return": annotation}
    with pytest.raises(refold.ConfigError, match=r"the tool 'echo' returns .*, and no log can hold .*; return text"):
        refold.tool(echo)


def test_a_type_that_nothing_can_read_is_refused_as_before() -> None:
    class Odd(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        lock: asyncio.Lock

    with pytest.raises(
        refold.ConfigError, match=r"the parameter 'it' of the tool 'echo' has the type .*Odd.*\(Cannot gen"
    ):
        taking(Odd)
    with pytest.raises(refold.ConfigError, match="output_type Odd has no JSON Schema"):
        refold.Agent(config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), output_type=Odd)
